#!/bin/sh
# run_tests.sh BUILD TEST... - runs the layer check, the test programs, the command-line tests and a
# few seconds of fuzzing; adds up their counts and ends with "N passed, N failed".
set -u
build=$1
shift
passed=0 failed=0 skipped=0
export MOE_TEST_UNPACKED="$build/golden"
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1}" UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
log=$build/tests/log
mkdir -p "$build/tests"

# Runs a command whose last line is "area N passed, M failed[, K skipped]". A command that dies
# without that line, or exits non-zero without a counted failure, counts as one failure.
run() {
    "$@" >"$log" 2>&1
    rc=$?
    cat "$log"
    set -- $(sed -n 's/^.* \([0-9][0-9]*\) passed, \([0-9][0-9]*\) failed\(, \([0-9][0-9]*\) skipped\)\{0,1\}$/\1 \2 \4/p' "$log" | tail -n 1)
    passed=$((passed + ${1:-0}))
    failed=$((failed + ${2:-0}))
    skipped=$((skipped + ${3:-0}))
    if [ $rc -ne 0 ] && [ "${2:-0}" -eq 0 ] || [ $# -eq 0 ]; then
        echo "FAIL: exit code $rc and no such failure counted"
        failed=$((failed + 1))
    fi
}

if tools/check_layers.sh; then echo "layers 1 passed, 0 failed"; passed=$((passed + 1))
else echo "layers 0 passed, 1 failed"; failed=$((failed + 1)); fi
for t in "$@"; do run "$build/tests/$t"; done
run tests/test_cli.sh "$build"
run tests/test_cli_run.sh "$build"
run tests/test_cli_chat.sh "$build"
mkdir -p "$build/seeds"
"$build/tests/fuzz_seeds" "$build/seeds"
run "$build/tests/fuzz_gguf" --seconds "${FUZZ_CHECK_SECONDS:-4}" "$build/seeds"

echo "$passed passed, $failed failed$([ $skipped -eq 0 ] || echo ", $skipped skipped")"
[ $failed -eq 0 ]
