#!/bin/sh
# run_tests.sh BUILD TEST... - runs the layer check, the test programs, the command-line tests and a
# few seconds of fuzzing, as many at a time as there are CPUs; adds up their counts and ends with
# "N passed, N failed". With ONLY_GPU=1 the test programs alone, one at a time; without a GPU that
# is a failure.
set -u
build=$1
shift
passed=0 failed=0 skipped=0
export MOE_TEST_UNPACKED="$build/golden"
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1}" UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
logs=$build/tests/logs
rm -rf "$logs"
mkdir -p "$logs" "$build/seeds"
jobs=$(nproc)
if [ "${ONLY_GPU:-}" ]; then jobs=1; else "$build/tests/fuzz_seeds" "$build/seeds"; fi

# One line for each command, the long ones first.
rest() {
    case $build in
    *thread*)                            # hundreds of tokens at four a second
        echo "skip: thread sanitizer: test_cli_run.sh, test_cli_chat.sh" >&2 ;;
    *)
        echo "tests/test_cli_run.sh $build"
        echo "tests/test_cli_chat.sh $build" ;;
    esac
    echo "tests/test_cli.sh $build"
    echo "$build/tests/fuzz_gguf --seconds ${FUZZ_CHECK_SECONDS:-4} $build/seeds"
    echo tools/check_layers.sh
}
list() {
    [ "${ONLY_GPU:-}" ] || rest
    for t in "$@"; do echo "$build/tests/$t"; done
}
case $build in *thread*) skipped=2 ;; esac

# Each leaves its output in NAME.log and its exit code in NAME.rc.
list "$@" | xargs -P "$jobs" -I '{}' sh -c '
    name=$(basename "${1%% *}" .sh)
    $1 >"$2/$name.log" 2>&1
    echo $? >"$2/$name.rc"' - '{}' "$logs"

# The last line is "area N passed, M failed[, K skipped]". A command that died without that line, or
# exited non-zero without a counted failure, counts as one failure.
for rc in "$logs"/*.rc; do
    log=${rc%.rc}.log
    code=$(cat "$rc")
    [ "${log##*/}" != check_layers.log ] || [ "$code" -ne 0 ] || echo "layers 1 passed, 0 failed" >>"$log"
    cat "$log"
    set -- $(sed -n 's/^.* \([0-9][0-9]*\) passed, \([0-9][0-9]*\) failed\(, \([0-9][0-9]*\) skipped\)\{0,1\}$/\1 \2 \4/p' "$log" | tail -n 1)
    passed=$((passed + ${1:-0}))
    failed=$((failed + ${2:-0}))
    skipped=$((skipped + ${3:-0}))
    if [ "$code" -ne 0 ] && [ "${2:-0}" -eq 0 ] || [ $# -eq 0 ]; then
        log=${log##*/}
        echo "FAIL: ${log%.log}: exit code $code and no such failure counted"
        failed=$((failed + 1))
    fi
done

if [ "${ONLY_GPU:-}" ] && grep -q '^skip: no GPU$' "$logs"/*.log; then
    echo "no GPU: nothing to check"
    exit 1
fi
echo "$passed passed, $failed failed$([ $skipped -eq 0 ] || echo ", $skipped skipped")"
[ $failed -eq 0 ]
