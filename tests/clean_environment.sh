# clean_environment.sh - sourced before tests: removes from the environment what changes how our
# programs, OpenMP, the shell and the usual tools behave. The environment of a test may have any of
# it. A value of several lines may look like more names: unsetting those, too, changes nothing.
for name in $(env | LC_ALL=C sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
    case $name in
    MOE_* | LLAMA_* | OMP_* | GOMP_* | KMP_* | XDG_* | LC_* | LANG | LANGUAGE | CDPATH | NO_COLOR | EDITRC | \
        HF_* | *_proxy | *_PROXY | GREP_OPTIONS | POSIXLY_CORRECT | MALLOC_* | COLUMNS | LINES)
        unset "$name" ;;
    esac
done
unset name
export LC_ALL=C

# Whether there is time (make check LONG=1): 1, or not set.
case ${TEST_LONG:-} in
1) export TEST_LONG ;;
*) unset TEST_LONG ;;
esac

# Folders that TMPDIR may name: there, writable, and without characters that a shell splits at.
case ${TMPDIR:-} in
'' | *[!A-Za-z0-9_./-]*) TMPDIR=/tmp ;;
esac
[ ${#TMPDIR} -le 100 ] || TMPDIR=/tmp    # file names are added to it
[ -d "$TMPDIR" ] && [ -w "$TMPDIR" ] || TMPDIR=/tmp
export TMPDIR
