#!/bin/sh
# bench.sh BUILD - what this machine does, in a minute: tokenizers, block decoders, synthetic files.
set -eu
build=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# English and code that every machine has: this repository's own text, and the system's licences.
cat README.md docs/*.md /usr/share/common-licenses/* >"$tmp/prose.txt" 2>/dev/null || true
cat loader/*.[ch] engine/*.[ch] engine/*/*.[ch] cli/*.[ch] tests/*.[ch] >"$tmp/code.txt"
for v in qwen3 gptoss; do
    for t in prose code; do
        echo "== tokenize, $v vocabulary, $t"
        ./moe-bench tokenize -m "$build/golden/tokenizer/$v-vocab.gguf" "$tmp/$t.txt"
    done
done

echo "== decode blocks (scalar, one core)"
for t in Q4_K Q6_K Q8_0 MXFP4 NVFP4; do
    : >"$tmp/blocks"
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do cat "$build/golden/quants/$t.bin" >>"$tmp/blocks"; done
    ./moe-bench quant $t "$tmp/blocks" /dev/null
done

echo "== synthetic model"
./moe-bench synth gpt-oss-20b --layers 1 -o "$tmp/synth.gguf"
