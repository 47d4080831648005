#!/bin/sh
# test_cli_quant.sh BUILD - moe-quant: every type, what it costs, what it refuses. Ends with
# "cli_quant N passed, N failed".
set -u
area=cli_quant
. tests/cli_harness.sh
quant=$build/moe-quant
out=$tmp/out.gguf
story="It was a dark and stormy night, and the old lady sat by the fire with a book in her hand."
holds() { if [ "$1" "$2" "$3" ]; then ok; else bad "$4: '$1' '$2' '$3'"; fi; }
# below NUMBER BOUND WHAT: of JSON's numbers
below() { if awk "BEGIN { exit !(\"$1\" != \"\" && $1 + 0 <= $2) }"; then ok; else bad "$3: '$1', at most $2"; fi; }
# field NAME: the first of that name in $tmp/out, exponents and all
field() { tr ',{}[]' '\n\n\n\n\n' <"$tmp/out" | sed -n 's/^"'"$1"'":\(.*\)$/\1/p' | sed 1q; }
answer() { "$run" -m "$1" -p "Tell me a story." -n $(rounds 24 12) --temp 0 -q --raw 2>"$tmp/err" </dev/null; }
nothing_left() { holds "$(ls "$tmp" | grep -c 'gguf')" -eq 0 "$1: something is left"; rm -f "$tmp"/*.gguf "$tmp"/*.part; }

# ---- both demo models to every type: size, error, KL, and they answer
# convert MODEL TYPE FILE_TYPE ERROR KL [OPTIONS...]
convert() {
    model=$1 type=$2 number=$3 error=$4 kl=$5
    shift 5
    rm -f "$out"
    expect 0 '"written":true' $quant "$model" "$out" --experts $type --check "$story" --json "$@"
    holds "$(field file_type)" = $number "$type: file_type"
    below "$(field error)" $error "$type: error of the first class"
    below "$(field kl)" $kl "$type: KL"
    holds "$(field bytes)" -eq "$(wc -c <"$out")" "$type: bytes"
    answer "$out" >"$tmp/text"
    holds "$(wc -w <"$tmp/text")" -ge 5 "$type: an answer"
}
answer $gptoss >"$tmp/own"
convert $gptoss q8_0 7 0 0                      # 4-bit floats with powers of two: nothing is lost
cmp -s "$tmp/text" "$tmp/own" && ok || bad "gpt-oss, MXFP4 to Q8_0: another answer"
! long_check || convert $gptoss nvfp4 39 0 0.001
convert $gptoss nvfp4 39 0.083 0.03 --dense q8_0 --head nvfp4
mv "$out" "$tmp/nv.gguf"
convert "$tmp/nv.gguf" mxfp4 38 0 0.001         # and back: NVFP4 lost nothing of the experts
convert $gptoss bf16 32 0 0.002
! long_check || { convert $qwen nvfp4 39 0.083 0.03; mv "$out" "$tmp/nv.gguf"; }
expect 0 "NVFP4" $run inspect "$tmp/nv.gguf"
expect 0 "blk.0.ffn_gate_exps.scale" $run inspect --tensors "$tmp/nv.gguf"
rm -f "$tmp/nv.gguf"
convert $qwen q4_k 14 0.075 0.02 -t 2
for t in 1 2; do expect 0 "" $quant $gptoss "$tmp/$t.gguf" --experts bf16 -t $t; done
if cmp -s "$tmp/1.gguf" "$tmp/2.gguf"; then ok; else bad "one and two threads write different files"; fi
rm "$tmp/1.gguf" "$tmp/2.gguf"

# ---- what people see
rm -f "$out"
expect 0 "experts down            4  MXFP4      Q8_0 " $quant $gptoss "$out" --experts q8_0
if grep -q "10.1 MB instead of 6.3 MB, 12 of 79 tensors rewritten" "$tmp/out" "$tmp/err"; then ok; else bad "sizes"; fi
printf '%s\n' "$story" >"$tmp/book.txt"
expect 0 "KL 0 nats per token" $quant $gptoss "$tmp/c.gguf" -e q8_0 --check "$tmp/book.txt"
rm -f "$tmp"/*.gguf
expect 0 "would be rewritten" $quant $gptoss "$out" --experts nvfp4 --dry-run
expect 0 '"written":false' $quant $gptoss "$out" --experts nvfp4 -n --json
expect 0 "blk.0.attn_q.weight and 11 more stay Q8_0: rows of 192 are no multiple of Q4_K's 256" \
    $quant $gptoss "$out" --dense q4_k --dry-run
expect 0 "token_embd.weight stays Q8_0" $quant $gptoss "$out" --dense nvfp4 --dry-run
expect 0 "12 matrices are of the requested type already" $quant $gptoss "$out" -e mxfp4 --head bf16 -n
nothing_left "--dry-run"

# ---- refusals: one line, nothing is left
refuse 1 "is there already, and nothing is overwritten" $quant $gptoss $gptoss --experts q8_0
refuse 1 "not UTF-8" $quant $gptoss "$out" -e q8_0 --check "$(printf 'caf\351')"
head -c 3000000 $gptoss >"$tmp/cut"
refuse 1 "file truncated?" $quant "$tmp/cut" "$out" --experts q8_0
nothing_left "a refusal"
echo kept >"$out"
refuse 1 "is there already, and nothing is overwritten" $quant $gptoss "$out" --experts q8_0
holds "$(cat "$out")" = kept "a file that was there"
rm "$out"
: >"$out.part"
refuse 1 "out.gguf.part is there" $quant $gptoss "$out" --experts q8_0
rm "$out.part"

# ---- a disk that is full, a file that may not grow, Ctrl-C
(ulimit -f 64; exec $quant $gptoss "$out" --experts q8_0) >"$tmp/out" 2>"$tmp/err"
equal "a file that may not grow: exit code, lines" "1 1" "$? $(wc -l <"$tmp/err")"
said "File too large" "a file that may not grow"
nothing_left "a file that may not grow"
$quant $qwen "$out" --experts q4_k --dense q4_k --head nvfp4 -t 1 >"$tmp/out" 2>"$tmp/err" &
pid=$!
wait_until "$out.part is not there" test -e "$out.part"
kill -TERM $pid 2>/dev/null
wait $pid
holds $? -eq 143 "a signal"
said "interrupted, nothing was kept" "a signal"
nothing_left "a signal"

leaks_last
expect 0 "instead of" $quant $gptoss "$out" --experts q8_0 --check "$story"
finish
