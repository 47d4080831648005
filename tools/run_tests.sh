#!/bin/sh
# run_tests.sh BUILD TEST... - runs the layer check, the test programs, the command-line tests and a
# few seconds of fuzzing, three at a time for every two CPUs; adds up their counts and ends with
# "N passed, N failed". With ONLY_GPU=1 the test programs and the command-line tests of the GPU
# alone; without a GPU that is a failure. TEST_THREADS=N: programs and test programs
# use N threads wherever they would choose a number themselves, as on a machine with N cores.
# TEST_LONG=1: all rounds, seeds and combinations of cases, and more seconds of fuzzing.
# What the tests write goes into a folder that is removed, whichever way this ends.
set -u

# run_tests.sh --one BUILD LOGS NAME: one of them. Its output goes to NAME.log, its exit code to
# NAME.rc, its seconds to NAME.time.
if [ "$1" = --one ]; then
    build=$2 logs=$3 name=${4%.sh}
    seconds=${FUZZ_CHECK_SECONDS:-${TEST_LONG:+4}} seconds=${seconds:-0.4}
    case $4 in
    *.sh\ *) name=${4%%.sh *}_${4#* }; set -- "tests/${4%% *}" "$build" "${4#* }" ;;
    check_layers.sh) set -- tools/check_layers.sh ;;
    fuzz_gguf) set -- "$build/tests/fuzz_gguf" --seconds "$seconds" "$build/seeds" ;;
    fuzz_chat) set -- "$build/tests/fuzz_chat" --seconds "$seconds" tests/seeds/chat ;;
    fuzz_schema) set -- "$build/tests/fuzz_schema" --seconds "$seconds" tests/seeds/grammar ;;
    fuzz_request) set -- "$build/tests/fuzz_request" --seconds "$seconds" tests/seeds/requests ;;
    fuzz_prefix_file) set -- "$build/tests/fuzz_prefix_file" --seconds "$seconds" tests/seeds/prefix ;;
    *.sh) set -- "tests/$4" "$build" ;;
    *) set -- "$build/tests/$4" ;;
    esac
    began=$(date +%s)
    "$@" >"$logs/$name.log" 2>&1 </dev/null
    code=$?
    echo "$(($(date +%s) - began)) $name" >"$logs/$name.time"
    echo $code >"$logs/$name.rc"
    exit 0
fi

build=$1
shift
. tests/clean_environment.sh
passed=0 failed=0 skipped=0
export MOE_TEST_UNPACKED="$build/golden"
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1}" UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
case ${TEST_THREADS:-} in
'') unset TEST_THREADS ;;
*[!0-9]* | 0*) echo "TEST_THREADS: '$TEST_THREADS' is not a number of threads"; exit 2 ;;
*) export TEST_THREADS ;;
esac

tmp=$(mktemp -d "$TMPDIR/moe-check-XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
# Whoever stops this learns what was running.
logs=$build/tests/logs
stopped() {
    for log in "$logs"/*.log; do
        [ -e "${log%.log}.rc" ] || echo "not done: $(basename "$log" .log)" >&2
    done
    exit "$1"
}
trap 'stopped 129' HUP
trap 'stopped 130' INT
trap 'stopped 141' PIPE
trap 'stopped 143' TERM
export TMPDIR="$tmp"

rm -rf "$logs"
mkdir -p "$logs" "$build/seeds"
jobs=$(($(nproc) + ($(nproc) + 1) / 2)) # many of them wait half of the time
[ "${ONLY_GPU:-}" ] || "$build/tests/fuzz_seeds" "$build/seeds"
# before HOME changes: python3 may be a shim, which takes a third of a second
export TEST_PYTHON="$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null)"

# How fast this machine is, measured once and as if it had been quiet, for every number of threads
# that tests use: a test whose experts are on the drive would measure for two seconds, and each run
# after that would look for a fifth of a second whether the machine is less busy now. Tests that are
# about measuring use files of their own. Where a key does not fit, the programs measure.
# The simulated GPU takes four CPU-seconds to measure for each model and number of threads, so figures
# are made up for it, also for the small models of test_cli_gpu.sh; test_measure.c measures it, and
# with TEST_LONG=1 each program does.
measured() { # FILE...: their entries in one list
    awk -v assume="$([ ! -d "$build/sim" ] || [ "${TEST_LONG:-}" ] || echo 1)" '
        function put_one(e) { printf "%s%s", sep, e; sep = ",\n" }
        function figure(names, value) {  # where there is none
            while (match(e_gpu, "\"(" names ")\": 0\\.0"))
                e_gpu = substr(e_gpu, 1, RSTART + RLENGTH - 4) value substr(e_gpu, RSTART + RLENGTH)
        }
        function put(e) {
            put_one(e)
            if (!assume) return
            e_gpu = e
            sub(/"gpu": ""/, "\"gpu\": \"simulated GPU\"", e_gpu)
            figure("vram_read", "1e12")
            figure("pcie_in|pcie_out|pull|pull_busy", "2e10")
            figure("cpu_busy", "1e9")
            figure("gpu_macs|gemm_own_[0-9]+", "5e10")
            figure("hop|layer_dense|layer_hot", "5e-5")
            put_one(e_gpu)
            if (sub(/Q4_K 256x256/, "Q8_0 1024x32", e_gpu)) put_one(e_gpu)
        }
        function put_alike(e) {          # near enough for the tiny models
            put(e)
            if (sub(/Q4_K 256x256/, "F32 64x32", e)) put(e)
        }
        function put_drives(e) { put_alike(e); sub(/"drive": [0-9]+/, "\"drive\": 0", e); put_alike(e) }
        function put_threads(e, n) {
            sub(/"n_thread": [0-9]+/, "\"n_thread\": " n, e)
            put_drives(e)
            if (n == 1 && sub(/"kernels": "[^,"]*/, "\"kernels\": \"scalar", e)) put_drives(e)
        }
        /^ "version"/ && !seen++ { print "{" $0 " \"speeds\": [" }
        /^  {/ { e = ""; inside = 1 }
        inside && /"n_thread"/ { own = $2 + 0 }
        inside && /"load"/ { sub(/: [0-9.e+-]+/, ": 0.0") }
        inside { e = e $0 "\n" }
        /^  }/ {
            inside = 0
            sub(/},?\n$/, "}", e)
            put_threads(e, 16)           # test_cli_prompts.sh
            put_threads(e, 64)
            put_threads(e, 1)
            if (own > 2 && own != 16 && own != 64) put_threads(e, own)
            put_threads(e, 2)
        }' "$@"
    echo ']}'
}
if [ -z "${ONLY_GPU:-}" ] && ! nm "$build/moe-run" 2>/dev/null | grep -q __tsan_init; then
    for m in tests/models/demo-qwen3next-Q4_K_M tests/models/demo-gptoss-MXFP4; do
        XDG_CACHE_HOME=$tmp/speeds/${m##*/} MOE_DEVICE=cpu ${TEST_THREADS:+env MOE_CORES=$TEST_THREADS} \
            "$build/moe-run" plan -m "$m.gguf" --measure >/dev/null 2>&1 &
    done
    wait
    measured "$tmp"/speeds/*/moe/speeds.json >"$logs/speeds.json"
    export TEST_SPEEDS="$logs/speeds.json"
    # a list that the programs do not take is noticed by its cost alone
    mkdir "$tmp/speeds/moe" && cp "$TEST_SPEEDS" "$tmp/speeds/moe/speeds.json"
    if XDG_CACHE_HOME=$tmp/speeds MOE_DEVICE=cpu "$build/moe-run" plan --json -m "$m.gguf" --threads 2 2>/dev/null |
        grep -q '"measured":true'; then passed=$((passed + 1))
    else
        echo "FAIL: moe-run does not know the speeds in $TEST_SPEEDS"
        failed=$((failed + 1))
    fi
    rm -r "$tmp/speeds"
fi

# Names, the slow ones first.
rest() {
    if nm "$build/moe-run" 2>/dev/null | grep -q __tsan_init; then       # four tokens a second
        echo "skip: thread sanitizer: test_cli_run.sh, test_cli_chat.sh, test_cli_user.sh, test_cli_quant.sh, test_cli_serve.sh, test_cli_soak.sh, test_cli_prompts.sh, test_cli_page.sh, test_cli_gpu.sh" >"$logs/cli_slow.log"
        echo "cli_slow 0 passed, 0 failed, 9 skipped" >>"$logs/cli_slow.log"
        echo 0 >"$logs/cli_slow.rc"
    else
        echo test_cli_run.sh
        echo test_cli_chat.sh
        echo test_cli_user.sh
        echo test_cli_quant.sh
        echo test_cli_serve.sh
        echo test_cli_soak.sh
        echo test_cli_prompts.sh
        echo test_cli_page.sh
        [ ! -d "$build/sim" ] || echo "test_cli_gpu.sh sim"
    fi
    echo test_cli.sh
    echo test_cli_pull.sh
    echo test_packaging.sh
    echo test_bootstrap.sh
    echo fuzz_gguf
    echo fuzz_chat
    echo fuzz_schema
    echo fuzz_request
    echo fuzz_prefix_file
    echo check_layers.sh
}
# The longest of the test programs begin first, so that nobody waits for them at the end.
is_long() {
    case $1 in
    test_forward | test_places | test_state | test_prefix_drive) ;;
    test_sim_forward | test_sim_prompts | test_sim_places | test_sim_prefix_cache | test_sim_prefix_drive) ;;
    *) return 1 ;;
    esac
}
list() {
    for t in "$@"; do if is_long "$t"; then echo "$t"; fi; done
    [ "${ONLY_GPU:-}" ] || rest
    for part in qwen3next gptoss glm4moe gemma4 speeds; do echo "test_cli_gpu.sh $part"; done
    for t in "$@"; do is_long "$t" || echo "$t"; done
}
# Where there is a GPU, programs that use it (GPU_TESTS, from make) are a list of their own, a few at a
# time: two dozen of them, each in its slices of the GPU's time, take four times as long.
has_gpu=yes
! "$build/moe-run" --version 2>/dev/null | grep -q "no GPU" || has_gpu=
uses_gpu() {
    case $1 in
    "test_cli_gpu.sh sim") return 1 ;;
    "test_cli_gpu.sh "*) return 0 ;;
    esac
    case " $GPU_TESTS " in
    *" $1 "*) return 0 ;;
    esac
    return 1
}
run_list() { xargs -P "$2" -I '{}' "$0" --one "$build" "$logs" '{}' <"$1"; }
: >"$logs/on_gpu" >"$logs/on_cpu"
list "$@" | while read -r name; do
    if [ "$has_gpu" ] && uses_gpu "$name"; then echo "$name" >>"$logs/on_gpu"
    else echo "$name" >>"$logs/on_cpu"; fi
done
run_list "$logs/on_gpu" "${TEST_GPU_JOBS:-8}" &
run_list "$logs/on_cpu" "$jobs"
wait

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

left=$(ls -A "$tmp")
if [ -z "$left" ]; then passed=$((passed + 1))
else
    echo "FAIL: left in the folder for temporary files:" $left
    failed=$((failed + 1))
fi
if [ "${ONLY_GPU:-}" ] && grep -q '^skip: no GPU$' "$logs"/*.log; then
    echo "no GPU: nothing to check"
    exit 1
fi
echo "longest: $(sort -rn "$logs"/*.time | head -n 5 | sed 's/\([0-9]*\) \(.*\)/\2 \1 s/' | paste -sd, - | sed 's/,/, /g')"
echo "$passed passed, $failed failed$([ $skipped -eq 0 ] || echo ", $skipped skipped")"
[ $failed -eq 0 ]
