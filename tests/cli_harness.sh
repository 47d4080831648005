# cli_harness.sh - what the tests of programs share; each sources it after "set -u" with area=NAME set.
# Counts, a folder of its own in $tmp, checks, questions about memory, and the last line that
# tools/run_tests.sh adds up. With TEST_THREADS=N programs behave as on a machine of N cores.
build=$1
run=$build/moe-run
bench=$build/moe-bench
. tests/clean_environment.sh
tmp=$(mktemp -d "$TMPDIR/moe-$area-XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 141' PIPE
trap 'exit 143' TERM
passed=0 failed=0 skipped=0
qwen=tests/models/demo-qwen3next-mtp.gguf
gptoss=tests/models/demo-gptoss-MXFP4.gguf
tiny=$build/golden/models/tiny-qwen3next-f32.gguf        # noise, but fast
wait_limit_s=20                          # until something expected counts as lost
[ -z "${TEST_SAN:-}" ] || wait_limit_s=300
# Looking for leaks costs seconds a run on some machines: what comes after leaks_last does it.
export ASAN_OPTIONS=detect_leaks=0
# python3 may be a shim that needs the real HOME; kernels that a driver has compiled may stay
python=${TEST_PYTHON-$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null)}
[ -z "${HOME:-}" ] || export CUDA_CACHE_PATH="${CUDA_CACHE_PATH:-$HOME/.nv/ComputeCache}"
mkdir "$tmp/home"
export HOME="$tmp/home" XDG_CACHE_HOME="$tmp/cache" XDG_STATE_HOME="$tmp/state"
export MOE_DEVICE=cpu                    # answers are compared to the bit
[ -z "${TEST_THREADS:-}" ] || export MOE_CORES="$TEST_THREADS"
# TEST_SPEEDS: a file of measured speeds; without it each test measures
speeds=$tmp/cache/moe/speeds.json
if [ -s "${TEST_SPEEDS:-}" ]; then mkdir -p "$tmp/cache/moe" && cp "$TEST_SPEEDS" "$speeds"; fi
: >"$tmp/err"

# rounds MANY FEW: MANY with TEST_LONG=1
long_check() { [ "${TEST_LONG:-}" ]; }
rounds() { if long_check; then echo "$1"; else echo "$2"; fi; }

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAIL test_$area: $*"; sed 's/^/    /' "$tmp/err" | head -5; }
skip() { skipped=$((skipped + 1)); echo "skip: $*"; }

# ---- checks. said TEXT WHAT: on stderr; same FILE FILE WHAT, differ FILE FILE WHAT: in $tmp
equal() { if [ "$2" = "$3" ]; then ok; else bad "$1: expected '$2', got '$3'"; fi; }
at_least() { if [ "${3:-0}" -ge "$2" ] 2>/dev/null; then ok; else bad "$1: expected $2 or more, got '$3'"; fi; }
said() { if grep -qF -e "$1" "$tmp/err"; then ok; else bad "$2: '$1' not said"; fi; }
same() { if cmp -s "$tmp/$1" "$tmp/$2"; then ok; else bad "$3: $1 and $2 differ: $(head -c 200 "$tmp/$1")"; fi; }
differ() { if cmp -s "$tmp/$1" "$tmp/$2"; then bad "$3: $1 and $2 are the same"; else ok; fi; }

# wait_until WHAT COMMAND...: until the command succeeds
wait_until() {
    waits_for=$1 steps=$((wait_limit_s * 50))
    shift
    until "$@"; do
        steps=$((steps - 1))
        [ $steps -gt 0 ] || { bad "$wait_limit_s s, and $waits_for"; return 1; }
        sleep 0.02
    done
}

# expect CODE TEXT COMMAND...: exit code, and TEXT somewhere on stdout or stderr
expect() {
    code=$1 text=$2
    shift 2
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    first_line=
    IFS= read -r first_line <"$tmp/err"
    if [ $got -ne "$code" ]; then bad "exit $got, expected $code: $*"
    else
        case $first_line in              # holds most texts, and needs no grep
        *"$text"*) ok ;;
        *) if grep -qF -e "$text" "$tmp/out" "$tmp/err"; then ok; else bad "'$text' not printed: $*"; fi ;;
        esac
    fi
}

# refuse CODE TEXT COMMAND...: nothing on stdout, one error line on stderr that holds TEXT
refuse() {
    expect "$@"
    shift 2
    n_line=0
    while IFS= read -r line; do n_line=$((n_line + 1)); done <"$tmp/err"
    case ${first_line%%: error: *} in
    moe-*[!a-z-]* | "$first_line") bad "not an error line: $*" ;;
    moe-*) if [ ! -s "$tmp/out" ] && [ $n_line -eq 1 ]; then ok; else bad "not one line on stderr alone: $*"; fi ;;
    *) bad "not an error line: $*" ;;
    esac
}

# ---- memory: how much is needed depends on threads and processor, so the program is asked.

# plan_number NAME ARGUMENTS...: a number of moe-run plan --json: chunk, ram.total, vram.experts;
# nothing if there is no such plan.
plan_number() {
    name=$1
    shift
    json=$("$run" plan --json "$@" 2>/dev/null </dev/null) || return 0
    json_number "$name" "$json"
}

# json_number NAME TEXT: the same from a text; of the first object that has it. No program is started:
# some tests ask for hundreds.
json_number() {
    rest=$2 key=${1#*.}
    case $1 in *.*)
        case $rest in *"\"${1%%.*}\":{"*) ;; *) return ;; esac
        rest=${rest#*"\"${1%%.*}\":{"}
        rest=${rest%%\}*}, ;;
    esac
    while :; do
        case $rest in *"\"$key\":"*) rest=${rest#*"\"$key\":"} ;; *) return ;; esac
        number=${rest%%[!0-9]*}
        case $number${rest#"$number"} in [0-9]*) ;; *) continue ;; esac
        case ${rest#"$number"} in [,{}]*) echo "$number"; return ;; esac
    done
}

# least_budget FLAG HIGH GRAIN TEST ARGUMENTS...: the least --ram or --vram up to HIGH for whose
# plan the command TEST, given the plan's JSON, succeeds; with GRAIN bytes less it does not.
least_budget() {
    flag=$1 low=0 high=$2 grain=$3 holds=$4
    shift 4
    while [ $((high - low)) -gt "$grain" ]; do
        mid=$((low + (high - low) / 2))
        json=$("$run" plan --json "$@" "$flag" $mid 2>/dev/null </dev/null)
        if [ -n "$json" ] && $holds "$json"; then high=$mid; else low=$mid; fi
    done
    echo $high
}

# least COMMAND...: the least --ram in MiB that a refusal names, with hardly any expert in it. It
# depends on build and threads. advised COMMAND...: the --ram that the refusal tells to use.
least() { "$@" --ram 0 2>&1 </dev/null | sed -n 's/.* needs \([0-9.]*\) MB of memory at least.*/\1/p' | awk 'NR == 1 { n = ($1 + 0.05) * 1e6 / 1048576; print int(n) + (n > int(n)) }'; }
advised() { "$@" --ram 0 2>&1 </dev/null | sed -n 's/.*; use --ram \([0-9]*\)M or more.*/\1/p' | head -n 1; }

# leaks_last: ends the test here, except with a sanitizer that looks for leaks: the rest is for that one.
sanitized() { nm "$run" | grep -q -e __asan_init -e __tsan_init; }
leaks_last() {
    nm "$run" | grep -q __asan_init || { finish; exit; }
    export ASAN_OPTIONS=detect_leaks=1
}

finish() {
    if [ $skipped -eq 0 ]; then echo "$area $passed passed, $failed failed"
    else echo "$area $passed passed, $failed failed, $skipped skipped"; fi
    [ $failed -eq 0 ]
}
