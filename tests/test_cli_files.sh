#!/bin/sh
# test_cli_files.sh BUILD - what the verbs do with files, streams and terminals: reports on models,
# tokens, logits, tables of speeds, full disks, a prefix, a narrow terminal. What they say to a command
# line alone is in test_command_lines.c. Ends with "cli_files N passed, N failed".
set -u
area=cli_files
. tests/cli_harness.sh

# ---- inspect: lines of the report on the small model of each family, spaces counted as one
for arch in qwen3moe qwen35moe llama olmoe glm4moe gemma4; do
    "$build/tests/small_model" $arch "$tmp/$arch.gguf"
    expect 0 "architecture" $run inspect "$tmp/$arch.gguf"
    tr -s ' ' <"$tmp/out" | sed "s/^/$arch/"
done >"$tmp/facts"
cat >"$tmp/want" <<'END'
qwen3moe layers 2 (full attention)
qwen3moe attention 4 heads of 64, 2 for keys and values
qwen3moe queries and keys normed head by head
qwen3moe experts 32, 4 used, width 32
qwen3moe rope all 64 dimensions, base 1000000
qwen35moe layers 2 (1 DeltaNet, 1 attention)
qwen35moe queries and keys normed head by head, outputs gated
qwen35moe DeltaNet 2 key and 4 value heads of 32, convolution over 4
qwen35moe experts 32, 4 used, width 32 + shared 32
qwen35moe rope 16 of 64 dimensions, base 1000000
llama rope all 64 dimensions in pairs of neighbours, base 1000000
llama model llama (SentencePiece by scores)
llama format mistral
olmoe queries and keys normed over all heads
olmoe router softmax over all experts, weights as they are
olmoe format tulu
glm4moe layers 2 (full attention), and 1 next-token block
glm4moe router sigmoids, corrected for the choice, weights divided by their sum
glm4moe dense layer the first, width 64, no experts
glm4moe shared, dense 6 Q8_0 313,344 B 313.3 kB
glm4moe format glm
gemma4 layers 2 (1 windowed, 1 full attention)
gemma4 with a window: 4 heads of 32, 2 for keys and values
gemma4 rope all 64 dimensions, each pair by a factor of its own, base 1000000
gemma4 with a window: all 32 dimensions, base 10000
gemma4 logits capped at 30
gemma4 model gemma4 (merges of characters)
END
equal "lines that inspect does not print" "" "$(grep -vxFf "$tmp/facts" "$tmp/want")"
# tensors that no layer reads: blocks of glm4moe beyond its layers, under names of a vision tower
sed 's/blk\.2\./v.blk2/g' "$tmp/glm4moe.gguf" >"$tmp/media.gguf"
expect 0 "23 are for pictures or sound, which this program does not read" $run inspect "$tmp/media.gguf"
expect 0 "23 tensors are for pictures or sound: ignored, only text is read" $run -m "$tmp/media.gguf" -p "Hello" -n 1 --ctx 64
families="supported: qwen3next, gpt-oss, qwen3moe, olmoe, llama, qwen35moe, glm4moe, gemma4"
sed 's/olmoe/olmox/g' "$tmp/olmoe.gguf" >"$tmp/olmox.gguf"
for v in inspect plan "-p Hello"; do
    refuse 1 "olmox.gguf: unsupported architecture 'olmox' ($families)" $run $v -m "$tmp/olmox.gguf"
done
for arch in qwen3moe qwen35moe llama olmoe glm4moe gemma4; do
    expect 0 "answer token" $run -m "$tmp/$arch.gguf" -p "Hello" -n 3 --ctx 64
done
rm "$tmp"/*.gguf
truncate -s 1G "$tmp/huge.txt"           # a hole: takes no space on the disk
refuse 1 "huge.txt: 1073741824 bytes are too many" $run -m $tiny -f "$tmp/huge.txt"
rm "$tmp/huge.txt"

# ---- tokenize: every golden case through the program, and back
for v in $(rounds "qwen3 gptoss" qwen3); do
    vocab=$build/golden/tokenizer/$v-vocab.gguf cases=$build/golden/tokenizer/cases-$v.jsonl
    sed 's/.*"ids": *\(\[[^]]*\]\).*/\1/; s/ //g' $cases >"$tmp/want"
    $run tokenize -m "$vocab" <$cases >"$tmp/ids" 2>"$tmp/err"
    same ids want "tokenize $v"
    $run tokenize -m "$vocab" --decode <"$tmp/ids" >"$tmp/text" 2>"$tmp/err"
    equal "tokenize --decode $v: lines" "$(wc -l <"$tmp/want")" "$(wc -l <"$tmp/text")"
done
echo '{"text": "x"' | $run tokenize -m $qwen >"$tmp/out" 2>"$tmp/err" && bad "bad JSON accepted"
said "line 1" "bad JSON"
if echo '[99999999]' | $run tokenize -m $qwen --decode >"$tmp/out" 2>"$tmp/err"; then bad "id out of range accepted"; else ok; fi
sentences=$build/golden/tokenizer/small-sentencepiece.gguf
expect 0 '"<s>"  special' $run tokenize -m $sentences --add-special --text "the text"
expect 0 'xF4"  byte' $run tokenize -m $sentences --text "$(printf '\364\217\277\275')"
echo '{"text": "the text</s> and the rest"}' | $run tokenize -m $sentences --add-special >"$tmp/ids" 2>"$tmp/err"
equal "tokenize --add-special and back" '{"text": "<s>the text</s> and the rest"}' "$($run tokenize -m $sentences --decode <"$tmp/ids")"

# ---- decode and logits
oss=$build/golden/models/tiny-gptoss-f32.gguf
expect 0 "decode" $bench decode -m $oss -p 1,9,33 -n 3 -r 1
equal "decode of three lengths" "3 1" "$(grep -c '^prompt ' "$tmp/out") $(grep -c '^weights ' "$tmp/out")"
expect 0 " times; 1.00 tokens a pass" $bench decode -m $oss -p 5 -n 3 -r 1 --draft oracle:0
expect 0 '"right_drafts":' $bench decode -m $oss -p 5 -n 9 -r 1 --draft oracle:1 --json
refuse 2 "--draft needs -n 2 or more" $bench decode -m $oss -p 5 -n 1 --draft lookup
refuse 2 "--draft needs -n 2 or more" $bench decode -m $oss -p 5 -n 9 --skip 1 --draft lookup
refuse 1 "no next-token block" $bench decode -m $oss -p 5 -n 9 -r 1 --draft mtp
expect 0 '"draft_ms":' $bench decode -m $qwen -p 5 -n 40 -r 1 --draft mtp --json
refuse 2 "--draft: 'x' is none of mtp, lookup and oracle:P" $bench decode -m $oss --draft x
expect 0 "in turns" $bench batch -m $oss -s 1,3 -p 5 -n 3 -r 1
expect 0 '"sessions":3,' $bench batch -m $oss -s 3 -p 5 -n 3 -r 1 --json
experts=$($bench batch -m $oss -s 1,4 -p 5 -n 9 -r 1 --device cpu --json | sed -n 's/.*"experts_per_pass":\([0-9]*\).*/\1/p' | xargs)
if [ "${experts#* }" -gt "${experts% *}" ] && [ "${experts#* }" -lt $((4 * ${experts% *})) ]; then ok
else bad "experts of a pass of 1 and of 4 tokens: $experts"; fi
refuse 2 "--sessions: '0' is not a number within 1..64" $bench batch -m $oss -s 2,0
expect 0 '"prompt":{"tokens":33,' $bench decode -m $oss -p 9,33 -n 0 -r 1 --json
equal "decode of two lengths: lines of JSON" 2 "$(wc -l <"$tmp/out")"
if $bench --version | grep -q "GPU support: none"; then
    refuse 1 "cuda: this program is built for the CPU alone (make CUDA=1)" $bench decode -m $oss -p 9 -n 3 -r 1 --device cuda
elif $bench --version | grep -q "no GPU"; then
    refuse 1 "cuda: there is no GPU" $bench decode -m $oss -p 9 -n 3 -r 1 --device cuda
    refuse 1 "; use --device cpu" $run -m $tiny -p x -n 1 --device cuda
fi
printf '1 2 3\n\n[4,5]\n' >"$tmp/ids"
expect 0 "" $bench logits -m $oss --ids "$tmp/ids" -o "$tmp/all.f32"
expect 0 "" $bench logits -m $oss --ids "$tmp/ids" -o "$tmp/step.f32" --decode
expect 0 "" $bench logits -m $oss --ids "$tmp/ids" -o "$tmp/last.f32" --last 1 --chunk 2 --threads 1
equal "bytes of five and of two rows of 512 logits" "10240 4096" "$(wc -c <"$tmp/all.f32") $(wc -c <"$tmp/last.f32")"
same all.f32 step.f32 "logits --decode gives other bits"
tail -c 2048 "$tmp/all.f32" >"$tmp/want"
tail -c 2048 "$tmp/last.f32" >"$tmp/got"
same want got "logits --last"
expect 0 "" $bench logits -m $qwen --ids "$tmp/ids" -o "$tmp/all.f32" --mtp
expect 0 "" $bench logits -m $qwen --ids "$tmp/ids" -o "$tmp/step.f32" --mtp --decode
equal "bytes of three rows of 4096 logits of a next-token block" 49152 "$(wc -c <"$tmp/all.f32")"
same all.f32 step.f32 "logits --mtp --decode gives other bits"
refuse 1 "no next-token block" $bench logits -m $oss --ids "$tmp/ids" -o "$tmp/none.f32" --mtp
refuse 2 "--nll is of the model's own logits" $bench logits -m $qwen --ids "$tmp/ids" --nll --mtp
for ids in '1 2\n3 x\n' '511 512\n'; do
    printf "$ids" >"$tmp/ids"
    refuse 1 "ids:" $bench logits -m $oss --ids "$tmp/ids" -o "$tmp/none.f32"
done
if [ -e "$tmp/none.f32" ]; then bad "logits of bad ids left a file"; else ok; fi

# ---- machine and kernels: what they print; speeds do not matter
quick="--threads 2 --seconds 0.002 --buffer 4M"
expect 0 "scalar (fastest first)" $bench machine $quick
equal "machine: rates" 2 "$(grep -c '^reading .* GB/s with 2 threads\|^  cpu_many  *[0-9]' "$tmp/out")"
expect 0 '"limit_gb_s":' $bench machine $quick --json
equal "machine --json: an object" 1 "$(grep -c '^{"cpu":.*"caches":\[.*"threads":2,.*"speeds":{"vram_read":[0-9][^,]*,.*"cpu":[1-9].*}$' "$tmp/out")"
expect 1 "too few for 2 threads" $bench machine $quick --buffer 100K
expect 0 "of limit" $bench kernels --type q8_0,MXFP4,q8_0 --shape 40x64 --tokens 1,3,70 --isa all $quick
sets=$(grep -c '^Q8_0 .* \(dot\|wide\) .* 64      1 ' "$tmp/out")
equal "kernels: rows" "$((3 * sets)) $((3 * sets))" "$(grep '^Q8_0 ' "$tmp/out" | grep -vc ' repacked ') $(grep -c '^MXFP4 ' "$tmp/out")"
expect 0 '"percent_of_limit":null' $bench kernels --type F16 --shape 3x5 --tokens 1,2 --isa scalar $quick --json
equal "kernels --json: rows" 2 "$(grep -c '^{"type":"F16","isa":"scalar","kernel":"dot",.*"memory":{"gb_s":{.*"l2":{.*}$' "$tmp/out")"

# ---- every instruction set gives the same logits: a prompt in one piece, then tokens one by one
sets=$($bench machine $quick --json | sed 's/.*"kernels":\["\([^]]*\)"\].*/\1/; s/","/ /g')
for m in $(rounds "$qwen $gptoss" $qwen); do
    for isa in $sets; do
        $bench decode -m $m -p $(rounds 70 18) -n $(rounds 6 2) -r 1 --isa $isa --json 2>"$tmp/err" |
            sed -n 's/.*"logits":"\([0-9a-f]\{16\}\)".*/\1/p'
    done >"$tmp/hashes"
    equal "$m: logits of $sets: hashes, different ones" "$(echo $sets | wc -w) 1" "$(wc -l <"$tmp/hashes") $(sort -u "$tmp/hashes" | wc -l)"
done
(ulimit -s 512; $bench decode -m $gptoss -p 70 -n 1 -r 1) >"$tmp/out" 2>"$tmp/err"
equal "exit code with a small stack" 1 $?
said 'a stack of 512 KiB is too small' "a small stack"

# ---- a disk that is full, and files that may not grow (ulimit -f counts 512 bytes): one line, nothing left
if [ -w /dev/full ]; then
    for v in "moe-run inspect --json $qwen" "moe-run run --help" "moe-bench decode --help" "moe-run -m $tiny -n 2 -p x --json"; do
        $build/$v >/dev/full 2>"$tmp/err"
        equal "exit code of $v >/dev/full" 1 $?
        said "standard output: No space" "$v >/dev/full"
    done
fi
for v in "moe-run -m $tiny -p x -n 2 --seed 7" "moe-bench decode -m $tiny -p 2 -n 1 -r 1" "moe-run plan -m $tiny"; do
    timeout $wait_limit_s $build/$v >&- 2>"$tmp/err"     # closed from the beginning: no file of ours
    equal "exit code of $v >&-" 1 $?
    said "standard output: " "$v >&-"
done
mkdir "$tmp/small"
echo '1 2 3 4 5 6 7 8' >"$tmp/ids"
# limited TEXT COMMAND
limited() {
    (ulimit -f 8; eval "exec $2") >"$tmp/out" 2>"$tmp/err" </dev/null
    equal "exit code past the limit: $2" 1 $?
    said "$1File too large" "$2"
}
limited "x.chat: cannot write: " "sh -c \"printf 'Hello\n/save $tmp/small/x.chat\n' | $run chat $tiny -n 2\""
limited "x.f32: cannot write: " "$bench logits -m $tiny --ids $tmp/ids -o $tmp/small/x.f32"
limited "" "$bench synth gpt-oss-20b --layers 1 -o $tmp/small/x.gguf"
equal "synth past the limit: lines" 1 "$(wc -l <"$tmp/err")"
equal "files that are left" "" "$(find "$tmp/small" -type f)"

# ---- installed: the list names files that are there
mkdir -p "$tmp/prefix/bin" "$tmp/prefix/share/moe"
cp $run "$tmp/prefix/bin/" && cp models.txt $gptoss "$tmp/prefix/share/moe/"
expect 0 "(not installed)" "$tmp/prefix/bin/moe-run" models
file=$(sed -n 's/^demo-gptoss .* \(\/.*\)$/\1/p' "$tmp/out")
if [ -n "$file" ] && [ -r "$file" ]; then ok; else bad "models: no file '$file'"; fi

# ---- a narrow terminal: words whole, the speed below them during the answer, nothing left of it
if [ "$python" ] && "$python" -c 'import pty, os; os.waitstatus_to_exitcode' 2>/dev/null; then
    screen="$python tests/terminal_emulator.py"
    long="-s 1 --logit-bias 4095=-inf,4093=-inf -p Hello. --isa scalar -t 1"
    # an answer that goes on until its speed has come: if it does not, there is no Ctrl-C
    $screen --until "$(printf 'tokens\033')" 10 50 $run $long -n 4000 >"$tmp/screen" 2>"$tmp/err"
    equal "exit code after Ctrl-C while the speed is shown" 130 $?
    equal "the speed after Ctrl-C" "" "$(grep 'tok/s, [0-9]* tokens' "$tmp/screen")"
    tr -s ' \n' ' ' <"$tmp/screen" >"$tmp/words"
    if grep -q "stopped: interrupted $" "$tmp/words"; then ok; else bad "the end after Ctrl-C"; fi
    # an answer of more than half a second, after which the speed comes
    n=$(sed -n 's/.* answer tokens at \([0-9]*\).*/\1/p' "$tmp/words")
    n=$(rounds 900 $((${n:-400} * 65 / 100)))
    if sanitized; then n=40; fi
    quick="-s 1 -n $n --logit-bias 4095=-inf,4093=-inf -p Hello."        # the same words
    $run $quick >"$tmp/pipe" 2>"$tmp/err"
    $screen 10 50 $run $quick --isa scalar -t 1 >"$tmp/screen" 2>"$tmp/err" || bad "at a terminal"
    equal "lines at the edge" "" "$(awk 'length > 49' "$tmp/screen")"
    grep -v -e '^moe-run: ' -e '^  ' "$tmp/screen" | tr -s ' ' '\n' | grep . >"$tmp/words"
    tr -s ' ' '\n' <"$tmp/pipe" | grep . >"$tmp/want"
    same words want "words on the screen"
    $screen 10 40 $run -p x --frobnicate >"$tmp/screen" 2>"$tmp/err"
    equal "exit code of an error at a terminal" 2 $?
    equal "an error at a terminal" "moe-run: error: unknown option --frobnicate (moe-run run --help lists them) " \
        "$(tr '\n' ' ' <"$tmp/screen" | tr -s ' ')"
    equal "an error at the edge" "" "$(awk 'length > 39' "$tmp/screen")"
else
    skip "a terminal needs python3 with its pty module"
fi

# ---- verbs once more, with a sanitizer build looking for leaks
leaks_last
echo '{"messages":[{"role":"user","content":"Hi"}]}' >"$tmp/req.json"
head -c 10000000 $qwen >"$tmp/cut.gguf"
expect 0 "deltanet" $run inspect --json --tensors $qwen
expect 1 "truncated" $run inspect "$tmp/cut.gguf"
expect 0 "" $run tokenize -m $qwen --text "Hello world"
expect 0 "<|start|>" $run render -m $gptoss "$tmp/req.json"
expect 0 "gpt-oss-120b" $run models
expect 1 "No such file" $bench synth gpt-oss-20b --layers 1 -o "$tmp/none/x.gguf"
expect 0 '"cpus"' $bench machine --threads 2 --seconds 0.002 --buffer 4M --json
expect 0 "GFLOP/s" $bench kernels --type NVFP4 --shape 8x64 --threads 2 --seconds 0.002 --buffer 4M
expect 1 "needs" $bench kernels --type F32 --shape 16777216x16777216 --threads 2 --seconds 0.002 --buffer 4M
finish
