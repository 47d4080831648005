#!/bin/sh
# test_bootstrap.sh BUILD - which packages make names and which it installs; libcurl on machines with
# and without it, and whether moe-run pull is built.
set -u
area=bootstrap
. tests/cli_harness.sh
unset CUDA URING CURL CC CPPFLAGS DEPS MAKEFLAGS MAKELEVEL    # set by the make that runs the tests

# ---- a machine with everything but libcurl; its apt-get records its arguments
mkdir "$tmp/bin"
fake() { cat >"$tmp/bin/$1" && chmod +x "$tmp/bin/$1"; }
fake apt-get <<EOF
#!/bin/sh
echo "\$*" >>"$tmp/asked"
EOF
fake id <<EOF
#!/bin/sh
echo 0
EOF
fake pkg-config <<EOF
#!/bin/sh
case \$* in *libcurl*) exit 1 ;; esac
EOF
fake cc <<EOF
#!/bin/sh
case \$* in *curl/curl.h*) exit 1 ;; esac
exec gcc "\$@"
EOF
if [ -e /usr/include/curl/curl.h ]; then
    skip "libcurl's headers are where every compiler looks: what is installed without them"
else
    # asks CURL TEXT ARGUMENTS...: exits with 0, having asked for just these packages
    asks() {
        curl=$1 text=$2
        shift 2
        : >"$tmp/asked"
        INSTALL=1 CURL=$curl CC=cc PATH="$tmp/bin:$PATH" tools/bootstrap.sh "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
        got=$?
        asked=$(sed 's/^install -y --no-install-recommends *//' "$tmp/asked")
        if [ $got -eq 0 ] && [ "$asked" = "$text" ]; then ok; else bad "CURL=$curl $*: exit $got, asked for '$asked'"; fi
    }
    asks '' ''
    asks '' 'other libcurl4-openssl-dev' +other
    asks 0 ''
    asks 0 'other' +other
    asks 1 'libcurl4-openssl-dev'
    asks 1 'other libcurl4-openssl-dev' +other
fi

# ---- make names missing packages and stops; only run and check install them
# goal GOAL TEXT: make GOAL on a machine without its compiler hands apt-get just this
goal() {
    : >"$tmp/asked"
    PATH="$tmp/bin:$PATH" make -q CUDA=0 CURL=0 CC=no-such-cc $1 >"$tmp/out" 2>"$tmp/err" </dev/null
    asked=$(cat "$tmp/asked")
    if [ "$asked" = "$2" ]; then ok; else bad "make $1: apt-get was called with '$asked'"; fi
}
line="install -y --no-install-recommends no-such-cc"
for g in '' all tests install deb; do
    goal "$g" ""
    if grep -q "type:  apt-get update && apt-get $line" "$tmp/err"; then ok; else bad "make $g: no line to type: $(cat "$tmp/err")"; fi
    if grep -q "packages are missing" "$tmp/err"; then ok; else bad "make $g goes on"; fi
done
goal run "$line"
goal check "$line"

# ---- the Makefile, with a compiler that finds libcurl's headers and one that does not
mkdir -p "$tmp/include/curl"
: >"$tmp/include/curl/curl.h"
# builds NAME WHAT ARGUMENTS...: of cli/pull/fetch*.c make would compile this one alone
builds() {
    wanted=$1 what=$2
    shift 2
    make -n CUDA=0 OPT=-O0 "$@" all >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    found=$(grep -o 'cli/pull/fetch[_a-z]*\.c' "$tmp/out" | sort -u | tr -d '\n')
    if [ $got -eq 0 ] && [ "$found" = "cli/pull/$wanted.c" ]; then ok; else bad "$what: exit $got, builds '$found'"; fi
}
if command -v gcc >/dev/null; then
    builds fetch_stub "a compiler without libcurl's headers" CC="$tmp/bin/cc"
    if grep -q "without moe-run pull: that needs libcurl4-openssl-dev" "$tmp/out"; then ok; else bad "make does not say what is left out"; fi
    builds fetch "a compiler with libcurl's headers" CPPFLAGS="-I$tmp/include"
    builds fetch_stub "CURL=0" CURL=0 CPPFLAGS="-I$tmp/include"
else
    skip "no gcc: what is built without libcurl"
fi
finish
