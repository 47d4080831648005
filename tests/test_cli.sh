#!/bin/sh
# test_cli.sh BUILD - what the verbs do with files, bounds and streams, end to end. What they say to a
# command line alone is in test_command_lines.c. Ends with "cli N passed, N failed".
set -u
area=cli
. tests/cli_harness.sh

# ---- inspect
# fact ARCH TEXT: in the report on the small model of that family, any run of spaces counting as one
fact() {
    if [ ! -s "$tmp/$1.gguf" ]; then
        "$build/tests/small_model" "$1" "$tmp/$1.gguf"
        $run inspect "$tmp/$1.gguf" >"$tmp/out" 2>"$tmp/err" || bad "exit $?: inspect $1"
        tr -s ' ' ' ' <"$tmp/out" >"$tmp/$1.facts"
    fi
    if grep -q "^ $2" "$tmp/$1.facts"; then ok; else bad "inspect $1: no line '$2'"; fi
}
fact qwen3moe "architecture qwen3moe$"
fact qwen3moe "layers 2 (full attention)$"
fact qwen3moe "attention 4 heads of 64, 2 for keys and values$"
fact qwen3moe "queries and keys normed head by head$"
fact qwen3moe "experts 32, 4 used, width 32$"
fact qwen3moe "rope all 64 dimensions, base 1000000$"
fact qwen35moe "layers 2 (1 DeltaNet, 1 attention)$"
fact qwen35moe "queries and keys normed head by head, outputs gated$"
fact qwen35moe "DeltaNet 2 key and 4 value heads of 32, convolution over 4$"
fact qwen35moe "experts 32, 4 used, width 32 + shared 32$"
fact qwen35moe "rope 16 of 64 dimensions, base 1000000$"
fact llama "attention 16 heads of 64, 4 for keys and values$"
fact llama "experts 8, 2 used, width 64$"
fact llama "rope all 64 dimensions in pairs of neighbours, base 1000000$"
fact olmoe "attention 16 heads of 64, 16 for keys and values$"
fact olmoe "queries and keys normed over all heads$"
fact olmoe "rope all 64 dimensions, base 10000$"
fact glm4moe "layers 2 (full attention)"
fact glm4moe "experts 32, 4 used, width 32 + shared 32$"
fact glm4moe "rope 32 of 64 dimensions, base 1000000$"
fact gemma4 "layers 2 (1 windowed, 1 full attention)$"
fact glm4moe "23 are of next-token blocks, which are not used$"
fact glm4moe "router sigmoids, corrected for the choice, weights divided by their sum$"
fact glm4moe "dense layer the first, width 64, no experts$"
fact glm4moe "shared, dense 6 Q8_0"
fact glm4moe "format glm$"
fact olmoe "router softmax over all experts, weights as they are$"
fact olmoe "format tulu$"
fact llama "model llama (SentencePiece by scores)$"
fact llama "format mistral$"
fact gemma4 "with a window: 4 heads of 32, 2 for keys and values$"
fact gemma4 "queries, keys and values normed head by head$"
fact gemma4 "rope all 64 dimensions, each pair by a factor of its own, base 1000000$"
fact gemma4 "with a window: all 32 dimensions, base 10000$"
fact gemma4 "logits capped at 30$"
fact gemma4 "model gemma4 (merges of characters)$"
fact gemma4 "format gemma$"
# what is read by nobody: blocks of glm4moe beyond its layers, under names of parts for pictures
sed 's/blk\.2\./v.blk2/g' "$tmp/glm4moe.gguf" >"$tmp/media.gguf"
expect 0 "23 are for pictures or sound, which this program does not read" $run inspect "$tmp/media.gguf"
expect 0 "23 tensors are for pictures or sound: ignored, only text is read" $run -m "$tmp/media.gguf" -p "Hello" -n 1 --ctx 64
if [ "$(grep -c "pictures or sound" "$tmp/err")" -eq 1 ]; then ok; else bad "pictures: not one line"; fi
# no model of ours
families="supported: qwen3next, gpt-oss, qwen3moe, olmoe, llama, qwen35moe, glm4moe, gemma4"
sed 's/olmoe/olmox/g' "$tmp/olmoe.gguf" >"$tmp/olmox.gguf"
for v in inspect plan "-p Hello"; do
    refuse 1 "olmox.gguf: unsupported architecture 'olmox' ($families)" $run $v -m "$tmp/olmox.gguf"
done
rm -f "$tmp/olmox.gguf" "$tmp/media.gguf"
for a in qwen3moe qwen35moe llama olmoe glm4moe gemma4; do
    expect 0 "stopped: length" $run -m "$tmp/$a.gguf" -p "Hello" -n 3 --ctx 64
    rm -f "$tmp/$a.gguf"
done
refuse 1 "directory" $run inspect "$tmp"
long=$tmp/$(printf '%0200d/%0200d/%0200d' 1 2 3)
refuse 1 "No such file" $run inspect "$long"

# ---- tokenize: every golden case through the program, and back
for v in qwen3 gptoss; do
    vocab=$build/golden/tokenizer/$v-vocab.gguf cases=$build/golden/tokenizer/cases-$v.jsonl
    sed 's/.*"ids": *\(\[[^]]*\]\).*/\1/; s/ //g' $cases >"$tmp/want"
    if $run tokenize -m "$vocab" <$cases >"$tmp/ids" 2>"$tmp/err" && cmp -s "$tmp/want" "$tmp/ids"; then ok
    else bad "tokenize $v: $(diff "$tmp/want" "$tmp/ids" | grep -c '^>') lines differ"; fi
    if $run tokenize -m "$vocab" --decode <"$tmp/ids" >"$tmp/text" 2>"$tmp/err" &&
       [ "$(wc -l <"$tmp/text")" -eq "$(wc -l <"$tmp/want")" ]; then ok
    else bad "tokenize --decode $v"; fi
done
echo '{"text": "x"' >"$tmp/bad.jsonl"
if $run tokenize -m $qwen <"$tmp/bad.jsonl" >"$tmp/out" 2>"$tmp/err"; then bad "bad JSON accepted"
elif grep -q "line 1" "$tmp/err"; then ok
else bad "bad JSON: line number missing"; fi
echo '[99999999]' >"$tmp/bad.jsonl"
if $run tokenize -m $qwen --decode <"$tmp/bad.jsonl" >"$tmp/out" 2>"$tmp/err"; then bad "id out of range accepted"
else ok; fi
sentences=$build/golden/tokenizer/small-sentencepiece.gguf
expect 0 '"<s>"  special' $run tokenize -m $sentences --add-special --text "the text"
expect 0 'xF4"  byte' $run tokenize -m $sentences --text "$(printf '\364\217\277\275')"
echo '{"text": "the text</s> and the rest"}' | $run tokenize -m $sentences --add-special >"$tmp/ids" 2>"$tmp/err"
[ "$($run tokenize -m $sentences --decode <"$tmp/ids")" = '{"text": "<s>the text</s> and the rest"}' ] && ok ||
    bad "tokenize --add-special and back: $(cat "$tmp/err")"

# ---- decode and logits
tiny=$build/golden/models/tiny-gptoss-f32.gguf
expect 0 "decode" $bench decode -m $tiny -p 1,9,33 -n 3 -r 1
if [ "$(grep -c '^prompt ' "$tmp/out")" -eq 3 ] && [ "$(grep -c '^weights ' "$tmp/out")" -eq 1 ]; then ok; else bad "decode of three lengths"; fi
expect 0 '"prompt":{"tokens":33,' $bench decode -m $tiny -p 9,33 -n 0 -r 1 --json
if [ "$(wc -l <"$tmp/out")" -eq 2 ]; then ok; else bad "decode of two lengths: JSON lines"; fi
expect 0 '"decode"' $bench decode -m $tiny -p 9 -n 3 -r 2 --json
if $bench --version | grep -q "GPU support: none"; then
    refuse 1 "cuda: this program is built for the CPU alone (make CUDA=1)" $bench decode -m $tiny -p 9 -n 3 -r 1 --device cuda
elif $bench --version | grep -q "no GPU"; then
    refuse 1 "cuda: there is no GPU" $bench decode -m $tiny -p 9 -n 3 -r 1 --device cuda
fi
printf '1 2 3\n\n[4,5]\n' >"$tmp/ids"
expect 0 "" $bench logits -m $tiny --ids "$tmp/ids" -o "$tmp/all.f32"
expect 0 "" $bench logits -m $tiny --ids "$tmp/ids" -o "$tmp/step.f32" --decode
expect 0 "" $bench logits -m $tiny --ids "$tmp/ids" -o "$tmp/last.f32" --last 1 --chunk 2 --threads 1
if [ "$(wc -c <"$tmp/all.f32")" -eq $((5 * 512 * 4)) ]; then ok; else bad "five rows of 512 logits"; fi
if [ "$(wc -c <"$tmp/last.f32")" -eq $((2 * 512 * 4)) ]; then ok; else bad "two rows of 512 logits"; fi
if cmp -s "$tmp/all.f32" "$tmp/step.f32"; then ok; else bad "logits --decode gives other bits"; fi
tail -c 2048 "$tmp/all.f32" >"$tmp/want"
tail -c 2048 "$tmp/last.f32" >"$tmp/got"
if cmp -s "$tmp/want" "$tmp/got"; then ok; else bad "logits --last is not the last"; fi
printf '1 2\n3 x\n' >"$tmp/ids"
refuse 1 "ids:2: " $bench logits -m $tiny --ids "$tmp/ids" -o "$tmp/none.f32"
printf '511 512\n' >"$tmp/ids"
refuse 1 "512" $bench logits -m $tiny --ids "$tmp/ids" -o "$tmp/none.f32"
if [ -e "$tmp/none.f32" ]; then bad "logits of bad ids left a file"; else ok; fi

# ---- machine and kernels: what they print, and what they refuse; speeds do not matter
quick="--threads 2 --seconds 0.002 --buffer 4M"
expect 0 "scalar (fastest first)" $bench machine $quick
if grep -q '^reading .* GB/s with 2 threads' "$tmp/out" && grep -q '^  cpu_many  *[0-9]' "$tmp/out"; then ok; else bad "machine: speeds"; fi
expect 0 '"limit_gb_s":' $bench machine $quick --json
if [ "$(wc -l <"$tmp/out")" -eq 1 ] && grep -q '^{"cpu":.*"caches":\[.*"threads":2,.*"speeds":{"vram_read":0.0,.*"cpu":[1-9].*}$' "$tmp/out"; then ok
else bad "machine --json: shape"; fi
expect 1 "too few for 2 threads" $bench machine $quick --buffer 100K

expect 0 "of limit" $bench kernels --type q8_0,MXFP4,q8_0 --shape 40x64 --tokens 1,3,70 --isa all $quick
sets=$(grep -c '^Q8_0 .* \(dot\|wide\) .* 64      1 ' "$tmp/out")
if [ "$sets" -ge 1 ] && [ "$(grep '^Q8_0 ' "$tmp/out" | grep -vc ' repacked ')" -eq $((3 * sets)) ] &&
   [ "$(grep -c '^MXFP4 ' "$tmp/out")" -eq $((3 * sets)) ] && grep -q '^MXFP4 *scalar *dot ' "$tmp/out"; then ok
else bad "kernels: rows"; fi
expect 0 '"percent_of_limit":null' $bench kernels --type F16 --shape 3x5 --tokens 1,2 --isa scalar $quick --json
if [ "$(grep -c '^{"type":"F16","isa":"scalar","kernel":"dot",.*"memory":{"gb_s":{.*"l2":{.*}$' "$tmp/out")" -eq 2 ]; then ok
else bad "kernels --json: shape"; fi

# ---- every instruction set gives the same logits: a prompt in one piece, then tokens one by one
sets=$($bench machine $quick --json | sed 's/.*"kernels":\["\([^]]*\)"\].*/\1/; s/","/ /g')
for m in $(rounds "$qwen $gptoss" $qwen); do
    for isa in $sets; do
        $bench decode -m $m -p $(rounds 70 35) -n $(rounds 6 3) -r 1 --isa $isa --json 2>"$tmp/err" |
            sed -n 's/.*"logits":"\([0-9a-f]\{16\}\)".*/\1/p'
    done >"$tmp/hashes"
    if [ "$(wc -l <"$tmp/hashes")" -eq "$(echo $sets | wc -w)" ] &&
       [ "$(sort -u "$tmp/hashes" | wc -l)" -eq 1 ]; then ok
    else bad "$m: logits of $sets: $(echo $(cat "$tmp/hashes"))"; fi
done
# The copy of the output matrix is optional: address space that is just enough without it (the
# scalar set makes none) is enough for the fastest set. Not with sanitizers, which take it all.
limited() { # KB ARGS...: the logits, with so much address space
    { (ulimit -v "$1" && shift && $bench decode -m $gptoss -p 5 -n 2 -r 1 --threads 1 --json "$@") |
        sed -n 's/.*"logits":"\([0-9a-f]\{16\}\)".*/\1/p'; } 2>"$tmp/err"
}
if ! nm $bench | grep -q -e __asan_init -e __tsan_init; then
    low=10000 kb=400000
    while [ $((kb - low)) -gt 1000 ]; do
        mid=$(((low + kb) / 2))
        if [ "$(limited $mid --isa scalar)" ]; then kb=$mid; else low=$mid; fi
    done
    want=$(limited $kb --isa scalar)
    got=$(limited $kb)
    if [ -n "$want" ] && [ "$got" = "$want" ]; then ok; else bad "$kb KB of address space: '$got' instead of '$want'"; fi
fi

(ulimit -s 512; $bench decode -m $gptoss -p 70 -n 1 -r 1) >"$tmp/out" 2>"$tmp/err"
if [ $? -eq 1 ] && grep -q 'a stack of 512 KiB is too small' "$tmp/err"; then ok; else bad "small stack"; fi

# ---- budgets of memory: the same tokens from each, also when most experts stay on the drive
export XDG_CACHE_HOME="$tmp/cache"
for m in $(rounds "$qwen $gptoss" $gptoss); do
    small=$(($(least $bench tiers -m $m -p 12 -n 6 -r 2) + 1))M
    expect 0 "expected" $bench tiers -m $m -p 12 -n 6 -r 2 --ram all,$small,10K
    if [ "$(grep -c '^  [12] .* [1-9][0-9]*%  *0 of 4 ' "$tmp/out")" -eq 1 ] &&
       [ "$(sed -n 's/^  [12] .* \([0-9a-f]\{8\}\)$/\1/p' "$tmp/out" | sort -u | wc -l)" -eq 1 ]; then ok
    else bad "tiers $m: a row from the drive, tokens as with all in RAM"; sed 's/^/    /' "$tmp/out"; fi
    if grep -q '^  3 .* needs .* of memory at least' "$tmp/out" && ! grep -q "not those of" "$tmp/out"; then ok
    else bad "tiers $m: a budget that is too small says why"; fi
    if [ "$(awk 'length > 120' "$tmp/out" | grep -vc ' needs ')" -eq 0 ]; then ok; else bad "tiers: more than 120 columns"; fi
done
few="-m $qwen -p 12 -n $(rounds 48 24) -r 1"
small=$(($(least $bench tiers $few) + 2))M
expect 0 '"same_tokens":true' $bench tiers $few --ram all,$small,10K --json
if [ "$(wc -l <"$tmp/out")" -eq 1 ] && [ "$(grep -o '"ram_budget":' "$tmp/out" | wc -l)" -eq 3 ] &&
   [ "$(grep -o '"error":null' "$tmp/out" | wc -l)" -eq 2 ] &&
   [ "$(grep -o '"drive_bytes_per_token":[1-9]' "$tmp/out" | wc -l)" -eq 1 ]; then ok
else bad "tiers --json: one line, three rows, two of them done, one from the drive"; fi
if [ "$python" ]; then
    if "$python" -c 'import json,sys; r = json.load(sys.stdin)["rows"]; sys.exit(r[0]["tokens"] != r[1]["tokens"])' <"$tmp/out"
    then ok; else bad "tiers --json is not JSON, or tokens differ"; fi
fi
# another expert makes room, so others are read, but the tokens are the same
row_tokens() { grep -o '"tokens":"[0-9a-f]*"' "$tmp/out" | sort -u; }
row_read() { grep -o '"drive_bytes_per_token":[1-9][0-9.e+]*' "$tmp/out"; }
expect 0 '"cache_policy":"fade"' $bench tiers $few --ram $small --json
usual=$(row_read)
expect 0 '"cache_policy":"lru"' $bench tiers $few --ram $small --cache-policy lru --json
tokens=$(row_tokens) read=$(row_read)
if [ "$usual" ] && awk -v usual="${usual##*:}" -v lru="${read##*:}" 'BEGIN { exit !(usual < lru) }'; then ok
else bad "tiers: by default $usual is not less than $read with lru"; fi
for policy in lcp fade; do
    expect 0 "\"cache_policy\":\"$policy\"" $bench tiers $few --ram $small --cache-policy $policy --json
    if [ -n "$tokens" ] && [ "$(row_tokens)" = "$tokens" ]; then ok; else bad "tiers: other tokens with $policy"; fi
    if [ -n "$(row_read)" ] && [ "$(row_read)" != "$read" ]; then ok; else bad "tiers: $policy reads what lru reads"; fi
done
expect 0 "no GPU is used: --vram has no effect" $bench tiers -p 4 -n 2 -r 1 --vram none,1G --ram all --device cpu
if [ "$(grep -c '^  [0-9] ' "$tmp/out")" -eq 2 ]; then ok; else bad "tiers: one row without a GPU"; fi
expect 1 "needs" $bench tiers -p 4 -n 2 -r 1 --ram 1

# ---- a plan is printed at the start, and compared with the clock after 64 tokens
same="--ctx 256 --threads 1 --isa scalar"
same="$same --ram $(($(least $run chat -m $qwen $same) + 1))M"       # a chat takes most
slow="$same --temp 0"
expect 0 "tok/s expected" $run -m $qwen -p Hello $slow -n 70
if grep -q "assumed" "$tmp/err"; then bad "measured speeds are printed as assumed"; else ok; fi
# measured far too fast
kept=$tmp/cache/moe/speeds.json
newest() { awk '/"processor"/ { text = "" } { text = text $0 "\n" } END { printf "%s", text }' "$kept"; }
made_up='": 9\(e14\|0000000000\)'
sed 's/"\(disk\|cpu\|cpu_dense\)": [0-9][0-9.e]*/"\1": 9e14/' "$kept" >"$tmp/faster" && cp "$tmp/faster" "$kept"
expect 0 "slower than expected" $run -m $qwen -p Hello $slow -n 64
if grep -q 'slower than expected: .*because .*\(CPU\|drive\)' "$tmp/err"; then ok; else bad "no reason"; fi
for few in "-n 63" "-n 64 -q"; do
    expect 0 "" $run -m $qwen -p Hello $slow $few
    if grep -q "than expected" "$tmp/err"; then bad "a line about the speed: $few"; else ok; fi
done
# no run measures again; by hand it is, and the plan says when
if cmp -s "$tmp/faster" "$kept"; then ok; else bad "a slow run has changed the measured speeds"; fi
if long_check; then
    cp "$tmp/faster" "$kept"
    expect 0 "expected (measured 20" $run plan -m $qwen $same --measure
    if newest | grep -q "$made_up"; then bad "plan --measure kept the old speeds"; else ok; fi
fi
expect 0 '"measurement":{"date":"20' $run plan -m $qwen $same --json
# a file from before there were dates does not count
echo '{"speeds": []}' >"$kept"
expect 0 "assumed speeds: none are measured here" $run plan -m $qwen $same
cp "$tmp/faster" "$kept"
printf 'Hello\nHello\n' >"$tmp/talk"
$run chat -m $qwen $slow -n 70 <"$tmp/talk" >"$tmp/out" 2>"$tmp/err"
if [ "$(grep -c 'than expected' "$tmp/err")" -eq 1 ]; then ok; else bad "a chat prints it once"; fi

# ---- a full disk and a closed pipe are errors, not silence
if [ -w /dev/full ]; then
    $run inspect --json $qwen >/dev/full 2>"$tmp/err"
    if [ $? -eq 1 ] && grep -q "standard output" "$tmp/err"; then ok; else bad "full disk unnoticed"; fi
fi

# ---- every verb once, good and bad, with a sanitizer build looking for leaks
nm $run | grep -q __asan_init || { finish; exit; }
small=$(($(least $bench tiers -p 4 -n 2 -r 1) + 2))M  # before the slow leak checks begin
export ASAN_OPTIONS=detect_leaks=1
echo '{"messages":[{"role":"user","content":"Hi"}]}' >"$tmp/req.json"
head -c 10000000 $qwen >"$tmp/cut.gguf"
expect 0 "deltanet" $run inspect --json --tensors $qwen
expect 1 "truncated" $run inspect "$tmp/cut.gguf"
expect 0 "" $run tokenize -m $qwen --text "Hello world"
expect 0 "<|start|>" $run render -m $gptoss "$tmp/req.json"
expect 0 "gpt-oss-120b" $run models
expect 1 "No such file" $bench synth gpt-oss-20b --layers 1 -o "$tmp/none/x.gguf"
expect 0 '"cpus"' $bench machine $quick --json
expect 0 "GFLOP/s" $bench kernels --type NVFP4 --shape 8x64 $quick
expect 1 "needs" $bench kernels --type F32 --shape 16777216x16777216 $quick
expect 0 '"rows"' $bench tiers -p 4 -n 2 -r 1 --ram all,$small,1 --json

finish
