#!/bin/sh
# fuzz.sh libfuzzer|afl SECONDS FUZZ_SEEDS TARGET... - fuzzes the readers of foreign bytes, each target
# for SECONDS:
#
#   fuzz_gguf         loader, binder, tokenizer and chat formats
#   fuzz_chat         templates, tools, calls and answers in every chat format
#   fuzz_schema       JSON schemas and grammars
#   fuzz_request      bodies of requests, by every API
#   fuzz_prefix_file  files of the prefix cache
#
# Builds them with clang and address and undefined-behaviour sanitizers, starts from the seeds in
# tests/seeds, for fuzz_gguf from those that FUZZ_SEEDS (tests/fuzz_seeds.c) writes, and runs one
# process a core. Findings go to build-fuzz/TARGET/crash-* (libFuzzer) or build-fuzz/TARGET/afl
# (AFL++). Exits 1 if there is one.
set -eu
fuzzer=$1 seconds=$2 seeds=$3
shift 3
cores=$(nproc)

case $fuzzer in
    libfuzzer)
        cc=clang
        tools/bootstrap.sh clang=clang
        # Debian packages the fuzzer's runtime separately from the compiler
        [ -e "$(clang -print-file-name=libclang_rt.fuzzer.a)" ] ||
            ls /usr/lib/llvm-*/lib/clang/*/lib/*/libclang_rt.fuzzer*.a >/dev/null 2>&1 ||
            tools/bootstrap.sh +libclang-rt-dev ;;
    afl) tools/bootstrap.sh afl-clang-fast=afl++; cc=afl-clang-fast ;;
    *) echo "fuzz: FUZZER is libfuzzer or afl, not '$fuzzer'"; exit 1 ;;
esac
# afl-clang-fast takes -fsanitize=fuzzer, too, and puts its own driver there
objects=build-fuzz/with-$fuzzer

# plant TARGET: its seeds into the corpus
plant() {
    case $1 in
        fuzz_gguf) "$seeds" "$dir/corpus" ;;
        fuzz_chat) cp tests/seeds/chat/* "$dir/corpus" ;;
        fuzz_schema) cp tests/seeds/grammar/* "$dir/corpus" ;;
        fuzz_request) cp tests/seeds/requests/* "$dir/corpus" ;;
        fuzz_prefix_file) cp tests/seeds/prefix/* "$dir/corpus" ;;
        *) echo "fuzz: no target $1: fuzz_gguf, fuzz_chat, fuzz_schema, fuzz_request or fuzz_prefix_file"; exit 1 ;;
    esac
}

with_afl() {
    export AFL_SKIP_CPUFREQ=1 AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES=1 AFL_NO_UI=1
    timeout $((seconds + 60)) afl-fuzz -V "$seconds" -m none -t 10000 -i "$dir/corpus" -o "$dir/afl" -- "$1"
    grep -E 'execs_done|saved_crashes|saved_hangs' "$dir/afl/default/fuzzer_stats"
    [ -z "$(ls "$dir/afl/default/crashes" 2>/dev/null | grep -v README)" ]
}

with_libfuzzer() {
    start=$(date +%s) pids= i=0 broken=0
    while [ $i -lt "$cores" ]; do
        "$1" -max_total_time="$seconds" -max_len=131072 -timeout=10 -rss_limit_mb=2048 \
            -print_final_stats=1 -artifact_prefix="$dir/" -seed=$((i + 1)) "$dir/corpus" >"$dir/log/$i" 2>&1 &
        pids="$pids $!"
        i=$((i + 1))
    done
    for pid in $pids; do wait "$pid" || broken=1; done
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$dir"/log/* | awk '{ n += $1 } END { printf "%d", n }')
    cov=$(grep -ho 'cov: [0-9]*' "$dir"/log/* | sort -t' ' -k2n | tail -n 1)
    findings=$(ls "$dir"/crash-* "$dir"/timeout-* "$dir"/oom-* "$dir"/leak-* 2>/dev/null || true)
    echo "$runs executions in $(($(date +%s) - start)) s on $cores cores, $cov"
    if [ $broken -ne 0 ] || [ -n "$findings" ] || [ "$runs" -eq 0 ]; then
        echo "findings: ${findings:-none saved, but a fuzzer ended early or never ran}"
        tail -n 40 "$dir"/log/*
        return 1
    fi
    echo "no findings"
}

failed=0
for target in "$@"; do
    dir=build-fuzz/$target
    mkdir -p "$dir/corpus" "$dir/log"
    rm -f "$dir"/crash-* "$dir"/timeout-* "$dir"/oom-* "$dir"/leak-* "$dir"/log/*
    plant "$target"
    make --no-print-directory CUDA=0 CC=$cc SAN=fuzzer,address,undefined "B=$objects" "$objects/tests/$target"
    echo "$target: for $seconds s on $cores cores; logs in $dir/log"
    with_$fuzzer "$objects/tests/$target" || failed=1
done
exit $failed
