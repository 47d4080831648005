#!/bin/sh
# run_tests.sh BUILD TEST... - runs tests, three at a time for every two CPUs, and ends with
# "N passed, N failed". A TEST is a program of BUILD/tests, a fuzzer, which gets its seeds, or a script
# of tests/, with an argument if need be: test_cli_gpu.sh:sim. They begin in the order given.
#
# A test prints "area N passed, M failed[, K skipped]" as its last line. It also fails if it does not
# print this line, checks nothing, exits with an error but counts no failure, exceeds the time limit,
# or leaves files or processes behind. Each test has its own folder for temporary files.
#
# TEST_LIMIT=SECONDS   for each test: 120, or 1200 with sanitizers or TEST_LONG
# TEST_LONG=1          all rounds, seeds and combinations of cases, and more seconds of fuzzing
# TEST_THREADS=N       default number of threads of programs and tests
# TEST_SAN=NAMES       the sanitizers that everything was built with
# ONLY_GPU=1           a machine without a GPU is a failure
# GPU_TESTS="NAME..."  tests that use a GPU if there is one: TEST_GPU_JOBS=8 at a time
set -u

# Processes that inherited a folder for temporary files, or one inside it.
left_by() { grep -lzsE "^TMPDIR=$1(/|\$)" /proc/[0-9]*/environ | cut -d/ -f3; }

# ---- run_tests.sh --one BUILD LOGS TMP LIMIT TEST: one of them. Its output goes to NAME.log, and to
# NAME.result: passed, failed, skipped, seconds, CPU seconds.
if [ "$1" = --one ]; then
    build=$2 logs=$3 tmp=$4 limit=$5
    name=$(echo "$6" | sed 's/\.sh//; s/:/_/')
    fuzz="--seconds ${FUZZ_CHECK_SECONDS:-${TEST_LONG:+4}}"
    [ "$fuzz" != "--seconds " ] || fuzz="--seconds 0.4"
    case $6 in
    check_*.sh) set -- "tools/$6" ;;
    *.sh) set -- "tests/$6" "$build" ;;
    *.sh:*) set -- "tests/${6%%:*}" "$build" "${6#*:}" ;;
    fuzz_gguf) mkdir -p "$build/seeds" && "$build/tests/fuzz_seeds" "$build/seeds" && set -- "$build/tests/$6" $fuzz "$build/seeds" ;;
    fuzz_chat) set -- "$build/tests/$6" $fuzz tests/seeds/chat ;;
    fuzz_schema) set -- "$build/tests/$6" $fuzz tests/seeds/grammar ;;
    fuzz_request) set -- "$build/tests/$6" $fuzz tests/seeds/requests ;;
    fuzz_prefix_file) set -- "$build/tests/$6" $fuzz tests/seeds/prefix ;;
    *) set -- "$build/tests/$6" ;;
    esac
    log=$logs/$name.log own=$tmp/$name
    mkdir "$own"
    began=$(date +%s)
    TMPDIR=$own timeout -k 1 "$limit" "$@" >"$log" 2>&1 </dev/null
    code=$?
    seconds=$(($(date +%s) - began))
    times >"$logs/$name.times"           # in a pipe it would be another shell's
    cpu=$(awk 'FNR == 2 { split($1, u, /[ms]/); split($2, s, /[ms]/); print 60 * (u[1] + s[1]) + u[2] + s[2] }' "$logs/$name.times")

    set -- $(sed -n 's/^.* \([0-9][0-9]*\) passed, \([0-9][0-9]*\) failed\(, \([0-9][0-9]*\) skipped\)\{0,1\}$/\1 \2 \4 0/p' "$log" | tail -n 1)
    said=$# passed=${1:-0} failed=${2:-0} skipped=${3:-0}
    bad() { echo "FAIL: $name: $*" >>"$log"; failed=$((failed + 1)); }
    if [ $seconds -ge "$limit" ] && { [ $code -eq 124 ] || [ $code -eq 137 ]; }; then
        bad "stopped after $limit s"
    elif [ $said -eq 0 ]; then bad "exit code $code and no count of checks"
    elif [ $code -ne 0 ] && [ "$failed" -eq 0 ]; then bad "exit code $code and no failure counted"
    elif [ $((passed + failed + skipped)) -eq 0 ]; then bad "it checks nothing"
    fi
    # A process may need some time to end.
    for i in 1 2 3 4 5 6 7 8 9 10; do
        left=$(left_by "$own")
        [ "$left" ] && [ $code -ne 124 ] && [ $code -ne 137 ] || break
        sleep 0.2
    done
    [ -z "$left" ] || bad "left running:" $(for pid in $left; do tr '\0' ' ' <"/proc/$pid/cmdline"; echo; done 2>/dev/null)
    [ -z "$left" ] || kill -KILL $left 2>/dev/null
    left=$(ls -A "$own")
    [ -z "$left" ] || bad "left in the folder for temporary files:" $left
    rm -rf "$own"
    echo "$passed $failed $skipped $seconds $cpu" >"$logs/$name.result"
    exit 0
fi

# ---- all of them
build=$1
shift
. tests/clean_environment.sh
export MOE_TEST_UNPACKED="$build/golden"
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1}" UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
case ${TEST_THREADS:-} in
'') unset TEST_THREADS ;;
*[!0-9]* | 0*) echo "TEST_THREADS: '$TEST_THREADS' is not a number of threads"; exit 2 ;;
*) export TEST_THREADS ;;
esac
limit=${TEST_LIMIT:-120}
[ -z "${TEST_LIMIT:-}${TEST_SAN:-}${TEST_LONG:-}" ] || limit=${TEST_LIMIT:-1200}
# Only tests of measuring measure this machine. (Sanitizers are too slow for these figures.)
[ "${TEST_SAN:-}" ] || export TEST_SPEEDS=tests/golden/speeds.json
# before a test changes HOME: python3 may be a shim, which takes a third of a second
export TEST_PYTHON="${TEST_PYTHON-$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null)}"

tmp=$(mktemp -d "$TMPDIR/moe-check-XXXXXX") || exit 1
logs=$build/tests/logs
rm -rf "$logs"
mkdir -p "$logs"
trap 'rm -rf "$tmp"' EXIT
lists=
stopped() {                              # on a signal: names the tests that were running
    for log in "$logs"/*.log; do
        [ -e "${log%.log}.result" ] || echo "not done: $(basename "$log" .log)" >&2
    done
    kill $lists 2>/dev/null
    kill -KILL $(left_by "$tmp") 2>/dev/null
    exit "$1"
}
trap 'stopped 129' HUP
trap 'stopped 130' INT
trap 'stopped 141' PIPE
trap 'stopped 143' TERM

# Two dozen programs that use the GPU, each in its slices of time, take four times as long as a few do.
case $("$build/moe-run" --version 2>/dev/null) in
'' | *"no GPU"*) gpu_list=$logs/on_cpu ;;
*) gpu_list=$logs/on_gpu ;;
esac
: >"$logs/on_gpu" >"$logs/on_cpu"
for name in "$@"; do
    case " ${GPU_TESTS:-} " in
    *" $name "*) echo "$name" >>"$gpu_list" ;;
    *) echo "$name" >>"$logs/on_cpu" ;;
    esac
done
run_list() { xargs -P "$2" -I '{}' "$0" --one "$build" "$logs" "$tmp" "$limit" '{}' <"$1"; }
run_list "$logs/on_gpu" "${TEST_GPU_JOBS:-8}" &
lists=$!
run_list "$logs/on_cpu" $(($(nproc) + ($(nproc) + 1) / 2)) &     # many of them wait half of the time
lists="$lists $!"
wait

cat "$logs"/*.log
if [ "${ONLY_GPU:-}" ] && grep -q '^skip: no GPU$' "$logs"/*.log; then
    echo "no GPU: nothing to check"
    exit 1
fi
echo "longest: $(grep -H '' "$logs"/*.result | sed 's|.*/||; s|\.result:| |' | sort -k5 -rn | head -n 5 |
    awk '{ printf "%s%s %s s (%.1f of CPU)", sep, $1, $5, $6; sep = ", " }')"
cat "$logs"/*.result | awk -v wanted=$# '
    { passed += $1; failed += $2; skipped += $3; cpu += $5 }
    END {
        if (NR != wanted) { printf "FAIL: %d of %d tests have no result\n", wanted - NR, wanted; failed++ }
        printf "%d tests, %.0f CPU seconds\n", NR, cpu
        printf "%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : ""
        exit failed > 0
    }'
