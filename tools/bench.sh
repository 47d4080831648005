#!/bin/sh
# bench.sh BUILD - what this machine does, in a minute: memory and drive, the kernels of some weight
# types, the demo model, a synthetic file.
set -eu
build=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

echo "== synthetic model"
"$build/moe-bench" synth gpt-oss-20b --layers 1 -o "$tmp/synth.gguf"
echo "== machine"
"$build/moe-bench" machine -m "$tmp/synth.gguf"
echo "== products of weights"
"$build/moe-bench" kernels --type Q4_K,Q6_K,Q8_0,MXFP4,NVFP4
echo "== demo model"
"$build/moe-bench" decode -p 9,64,512
