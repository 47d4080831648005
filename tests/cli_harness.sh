# cli_harness.sh - what the command-line tests share; each sources it behind "set -u" with
# area=NAME set. Counts, a folder of its own in $tmp, and the last line that the runner adds up.
build=$1
run=$build/moe-run
bench=$build/moe-bench
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0 skipped=0
qwen=tests/models/demo-qwen3next-Q4_K_M.gguf
gptoss=tests/models/demo-gptoss-MXFP4.gguf
# Looking for leaks costs seconds a run on some machines: the last section of a test does it.
export LC_ALL=C ASAN_OPTIONS=detect_leaks=0
export XDG_CACHE_HOME=$tmp/cache          # nothing is remembered for the user
export MOE_DEVICE=cpu                    # answers are compared to the bit
unset MOE_FAULT MOE_VRAM MOE_RAM MOE_MODEL MOE_RAM_AVAILABLE MOE_CTX MOE_ISA MOE_KV MOE_THREADS

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAIL test_$area: $*"; sed 's/^/    /' "$tmp/err" | head -5; }

# expect CODE TEXT COMMAND...: exit code, and TEXT somewhere on stdout or stderr
expect() {
    code=$1 text=$2
    shift 2
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    if [ $got -ne "$code" ]; then bad "exit $got, expected $code: $*"
    elif ! grep -qF -e "$text" "$tmp/out" "$tmp/err"; then bad "'$text' not printed: $*"
    else ok; fi
}

# refuse CODE TEXT COMMAND...: nothing on stdout, one error line on stderr that holds TEXT
refuse() {
    code=$1 text=$2
    shift 2
    expect "$code" "$text" "$@"
    if [ -s "$tmp/out" ]; then bad "stdout not empty: $*"
    elif [ "$(wc -l <"$tmp/err")" -ne 1 ]; then bad "not one line on stderr: $*"
    elif ! grep -q '^moe-[a-z]*: error: ' "$tmp/err"; then bad "not an error line: $*"
    else ok; fi
}

finish() {
    if [ $skipped -eq 0 ]; then echo "$area $passed passed, $failed failed"
    else echo "$area $passed passed, $failed failed, $skipped skipped"; fi
    [ $failed -eq 0 ]
}
