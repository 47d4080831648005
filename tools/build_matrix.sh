#!/usr/bin/env bash
# build_matrix.sh [nightly] - builds and tests every configuration that users or developers have,
# warnings as errors, and prints what each step took. No step needs a GPU.
#
# Without an argument, in about a quarter of an hour: all tests with gcc, real clients, the arithmetic
# with clang, test programs and the server under sanitizers, and the GPU side for one architecture.
# make nightly runs all rounds, seeds and combinations, the page in a browser, scripts and loops over
# numbers under sanitizers, and compiles every architecture.
# A failed step does not stop the next ones; the last line names the failed steps.
set -u
cd "$(dirname "$0")/.."
nightly=$([ "${1:-}" != nightly ] || echo 1)
failed=

step() {                         # step WHAT ARGUMENTS-OF-MAKE...
    local what=$1 from=$SECONDS
    shift
    echo "== $what"
    make WERROR=1 CURL=1 "$@" || failed="$failed${failed:+, }$what"
    echo "== $what: $((SECONDS - from)) s"
}

# Completion and the page are tested with these, and skipped without them.
INSTALL=1 tools/bootstrap.sh zsh=zsh ccache=ccache ${nightly:+chromium=chromium} || true
# The configuration with CUDA compiles the C files of the first step once more.
[ ! -d /usr/lib/ccache ] || export PATH=/usr/lib/ccache:$PATH

arithmetic="test_quant test_kernels test_loops test_experts_cpu test_forward"
loops="$arithmetic test_quantise test_deltanet test_mixers test_numerics test_ops test_variants test_state test_state_file"
threads="test_tiers test_reader test_expert_store test_experts_cpu test_expert_cache test_ram_frames test_http"
memory="SAN=address,undefined"

step "gcc, all tests" CUDA=0 LONG=$nightly check
step "real clients" CUDA=0 check-clients
step "clang" CUDA=0 CC=clang check ONLY="$arithmetic"
SOAK=$([ "$nightly" ] && echo 200 || echo 100) step "thread sanitizer" SAN=thread SAN_LOOPS=0 check ONLY="$threads test_cli_soak.sh"
if [ "$nightly" ]; then
    step "the page in a browser" CUDA=0 check-page
    step "address and undefined-behaviour sanitizers" $memory SAN_LOOPS=0 check
    step "the same, loops over numbers too" $memory check ONLY="$loops"
    step "thread sanitizer, loops over numbers too" SAN=thread check ONLY="$threads"
else
    step "address and undefined-behaviour sanitizers" $memory SAN_LOOPS=0 check SCRIPTS=test_cli_serve.sh
fi
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    archs=$([ "$nightly" ] && echo all || echo 90)
    step "CUDA for $archs" CUDA=1 CUDA_ARCHS="$archs" all
    # kernel code that runs on the host, and programs that start and answer without a driver
    step "CUDA programs without a GPU" CUDA=1 CUDA_ARCHS="$archs" check ONLY="test_gpu_blocks test_cli_run.sh"
else
    echo "== CUDA: not compiled, there is no nvcc here"
fi
echo "== $SECONDS s; ${failed:+failed: }${failed:-0 failed}"
[ -z "$failed" ]
