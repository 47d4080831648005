#!/bin/sh
# test_cli_cache.sh BUILD - moe-bench cache: traces recorded and replayed, as a person or a script
# sees it. Ends with "cli_cache N passed, N failed".
set -u
area=cli_cache
. tests/cli_harness.sh

# put FILE OFFSET BYTES...: writes bytes (as for printf) into a file
put() { printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null; }

# ---- help and usage
expect 0 "Usage: moe-bench cache VERB" $bench cache --help
for word in record replay lru lfu lfru lcp fade Belady fixed Examples; do
    if grep -q "$word" "$tmp/out"; then ok; else bad "cache --help does not tell of $word"; fi
done
expect 0 "Usage: moe-bench cache VERB" $bench help cache
expect 0 "Usage: moe-bench cache record" $bench cache record --help
expect 0 "Usage: moe-bench cache replay" $bench cache replay --help
refuse 2 "record or replay?" $bench cache
refuse 2 "'rewind' is neither record nor replay" $bench cache rewind
refuse 2 "(moe-bench cache replay --help lists them)" $bench cache replay --frobnicate
refuse 2 "TRACE missing" $bench cache replay
refuse 2 "-o FILE missing" $bench cache record -m $qwen

# ---- record
few="-p 12 -n 24"
for m in $qwen $gptoss; do
    name=${m##*/}
    expect 0 "12 prompt tokens and 24 after them" $bench cache record -m $m -o "$tmp/$name.trace" $few
    if [ -s "$tmp/out" ]; then bad "record: stdout is not empty"; else ok; fi
    # header, layers, and for each token eight bytes and an id for each of 4 experts in 4 layers
    if [ "$(wc -c <"$tmp/$name.trace")" -eq $((112 + 4 * 16 + 36 * (8 + 4 * 4 * 2))) ]; then ok
    else bad "record $name: $(wc -c <"$tmp/$name.trace") bytes"; fi
done
# a layer without experts is in no trace
"$build/tests/small_model" glm4moe "$tmp/glm.gguf"
expect 0 "4 of 32 experts in each of 1 layers" $bench cache record -m "$tmp/glm.gguf" -o "$tmp/glm.trace" $few
if [ "$(wc -c <"$tmp/glm.trace")" -eq $((112 + 16 + 36 * (8 + 4 * 2))) ]; then ok
else bad "record of a dense layer: $(wc -c <"$tmp/glm.trace") bytes"; fi
expect 0 "" $bench cache replay "$tmp/glm.trace"
trace=$tmp/${qwen##*/}.trace
expect 0 "" $bench cache record $qwen -o "$tmp/again" $few
if cmp -s "$trace" "$tmp/again"; then ok; else bad "record: the same run twice is not the same"; fi
expect 0 "" $bench cache record $qwen -o "$tmp/again" $few --chunk 5 --threads 1 --device auto
if cmp -s "$trace" "$tmp/again"; then ok; else bad "record: chunks or threads change the trace"; fi
expect 0 "" $bench cache record -m $qwen -o "$tmp/again" $few --seed 2
if cmp -s "$trace" "$tmp/again"; then bad "record: another seed gives the same tokens"; else ok; fi
expect 0 "" $bench cache record -m $qwen -o "$tmp/again" $few --temp 0
expect 0 "" $bench cache record -m $qwen -o "$tmp/greedy" $few --temp 0 --seed 2
if cmp -s "$tmp/greedy" "$tmp/again"; then ok; else bad "record: a seed changes the likeliest tokens"; fi
expect 0 "no -m given" $bench cache record -o "$tmp/demo" $few
expect 0 " 3 prompt tokens and 0 after them" $bench cache record -m $qwen -o "$tmp/words" -n 0 -p 3 "Once upon a time, there was"
printf 'Once upon a time, there was' >"$tmp/text"
expect 0 "" $bench cache record -m $qwen -o "$tmp/file" -n 0 -p 3 --text "$tmp/text"
if cmp -s "$tmp/words" "$tmp/file"; then ok; else bad "record: words and a file of them differ"; fi
printf 'old' >"$tmp/kept"
refuse 2 "do not go together" $bench cache record -m $qwen -o "$tmp/kept" --text "$tmp/text" Words
refuse 2 "--device cuda: routing is recorded on the CPU only" $bench cache record -m $qwen -o "$tmp/kept" --device cuda
refuse 2 "temp" $bench cache record -m $qwen -o "$tmp/kept" --temp 1000
refuse 2 "out of range" $bench cache record -m $qwen -o "$tmp/kept" -p 0
refuse 1 "none.gguf: cannot open" $bench cache record -m "$tmp/none.gguf" -o "$tmp/kept"
refuse 1 "none.txt: " $bench cache record -m $qwen -o "$tmp/kept" --text "$tmp/none.txt"
refuse 1 "there is no text in it" $bench cache record -m $qwen -o "$tmp/kept" ""
refuse 1 "tokens are more than the context of 4096" $bench cache record -m $qwen -o "$tmp/kept" -n 5000
refuse 1 "$tmp/no/trace: cannot create" $bench cache record -m $qwen -o "$tmp/no/trace" $few
refuse 1 "/dev/null: not a regular file" $bench cache record -m $qwen -o /dev/null $few
if [ "$(cat "$tmp/kept")" = old ]; then ok; else bad "record: a failure replaced the old file"; fi
# a full disk: no new file, no part of one
(ulimit -f 1; $bench cache record -m $qwen -o "$tmp/kept" $few) >"$tmp/out" 2>"$tmp/err" </dev/null
if [ $? -eq 1 ] && grep -q "kept: cannot write" "$tmp/err" && [ "$(cat "$tmp/kept")" = old ]; then ok
else bad "record: a file that grows too long"; fi
if [ -e "$tmp/kept.part" ]; then bad "record: part left"; else ok; fi

# ---- replay: tables
expect 0 "hit rate" $bench cache replay "$trace"
for text in "4 layers of 24 experts" "prompt of 12, 24 tokens after it" "at most 8 uploads" "assumed speeds: -m MODEL" \
            "size  places     bytes    fixed      lru      lfu     lfru      lcp     fade     best" "all inside" "tok/s" \
            " 16.7%\*      16 " "\* one token's worth"; do
    if grep -q "$text" "$tmp/out"; then ok; else bad "replay does not print '$text'"; fi
done
if [ "$(grep -c '^ *[0-9.]*%' "$tmp/out")" -eq 21 ]; then ok; else bad "replay: seven sizes, three tables"; fi
if [ "$(awk 'length > 100' "$tmp/out" | wc -l)" -eq 0 ]; then ok; else bad "replay: more than 100 columns"; fi
cp "$tmp/out" "$tmp/first"
expect 0 "" $bench cache replay "$trace"
if cmp -s "$tmp/first" "$tmp/out"; then ok; else bad "replay: twice is not the same"; fi
expect 0 "read on demand" $bench cache replay "$trace" --mode ram --sizes 50,12.5,50 --policy best,lru
if grep -q "fixed\|lfu" "$tmp/out" || [ "$(grep -c '^ *12.5%' "$tmp/out")" -ne 3 ] ||
   [ "$(grep -c '^ *50.0%' "$tmp/out")" -ne 3 ]; then bad "replay: sizes and policies that were asked for"; else ok; fi
expect 0 "at most 1 upload a token" $bench cache replay "$trace" --uploads 1 --mode both
if grep -q "read on demand" "$tmp/out"; then ok; else bad "replay --mode both: one only"; fi
# all of it: only what was never used before is missing
expect 0 "" $bench cache replay "$trace" --sizes 100 --uploads 1000 --policy lru,lfu,lfru,lcp,fade,best --csv -
if [ "$(awk -F, '$3 == "100.00" { print $7 }' "$tmp/out" | sort -u | wc -l)" -eq 1 ]; then ok
else bad "replay: with room for all, policies differ"; cat "$tmp/out"; fi

# ---- replay: CSV, JSON, SVG
expect 0 "hit rate" $bench cache replay "$trace" --mode both --csv "$tmp/t.csv" --svg "$tmp/t.svg"
head -n 1 "$tmp/t.csv" >"$tmp/out"
if grep -q '^mode,policy,percent,places,bytes,one_token,hit_rate,layers_inside,uploads,tok_s$' "$tmp/out"; then ok; else bad "CSV: names"; fi
if [ "$(wc -l <"$tmp/t.csv")" -eq $((1 + 7 * 7 + 7 * 6)) ] && [ "$(awk -F, 'NF != 10' "$tmp/t.csv" | wc -l)" -eq 0 ]; then ok; else bad "CSV: lines"; fi
# no policy has more hits than the best, at any size
if awk -F, 'NR > 1 { if ($2 == "best") best[$1 $3] = $7; else if ($2 != "fixed" && $7 > most[$1 $3]) most[$1 $3] = $7 }
            END { for (k in best) if (most[k] > best[k] + 1e-6) exit 1 }' "$tmp/t.csv"; then ok; else bad "CSV: better than the best"; fi
expect 0 '"rows":[{"mode":"vram","policy":"fixed","percent":5' $bench cache replay "$trace" --json
if [ "$(wc -l <"$tmp/out")" -eq 1 ] && grep -q '"measured":{"gpu":false,"cpu":false,"drive":false}' "$tmp/out"; then ok; else bad "replay --json: shape"; fi
cp "$tmp/out" "$tmp/t.json"
expect 0 "<svg " $bench cache replay "$trace" --svg -
if grep -q "hit rate$" "$tmp/out"; then bad "replay --svg -: a table, too"; else ok; fi
# a name that XML and terminals would obey
cp "$trace" "$tmp/odd"
put "$tmp/odd" 48 '<b>&amp;"\033[31m\377\000'
expect 0 '<b>&amp;"\x1B[31m\xFF' $bench cache replay "$tmp/odd" --svg "$tmp/odd.svg"
expect 0 '\\x1B' $bench cache replay "$tmp/odd" --json
cp "$tmp/out" "$tmp/odd.json"
for svg in "$tmp/t.svg" "$tmp/odd.svg"; do
    if [ "$(wc -c <"$svg")" -lt 60000 ] && [ "$(grep -c '<polyline' "$svg")" -ge 7 ] && grep -q 'prefers-color-scheme: dark' "$svg" &&
       grep -q 'one token' "$svg" && [ "$(tail -n 1 "$svg")" = "</svg>" ]; then ok; else bad "$svg: content"; fi
    # every tag ends, every & is one that XML knows
    if [ "$(grep -o '<[a-z]' "$svg" | wc -l)" -eq "$(grep -o '/>\|</[a-z]' "$svg" | wc -l)" ] &&
       ! grep -q '&[^alg]' "$svg"; then ok; else bad "$svg: not well-formed"; fi
done
if [ "$python" ]; then
    for svg in "$tmp/t.svg" "$tmp/odd.svg"; do
        if "$python" -c 'import sys, xml.etree.ElementTree as t; r = t.parse(sys.argv[1]).getroot()
sys.exit(not (r.tag.endswith("}svg") and len(r) > 5))' "$svg" 2>"$tmp/err"; then ok; else bad "$svg: not XML"; fi
    done
    for json in "$tmp/t.json" "$tmp/odd.json"; do
        if "$python" -c 'import json,sys; r = json.load(open(sys.argv[1])); sys.exit(len(r["rows"]) != 49 or r["tokens"] != 24)' "$json" 2>"$tmp/err"
        then ok; else bad "$json: not JSON"; fi
    done
fi

# ---- replay: speeds
threads=$(rounds "" "-t 1")             # it takes two seconds of each
rm -f "$speeds"                          # nothing is known of this machine
expect 0 "assumed speeds: --measure measures this machine" $bench cache replay "$trace" -m $qwen $threads
expect 0 "this machine's speeds" $bench cache replay "$trace" -m $qwen $threads --measure
expect 0 "this machine's speeds" $bench cache replay "$trace" -m $qwen $threads
expect 0 '"measured":{"gpu":false,"cpu":true,"drive":true}' $bench cache replay "$trace" -m $qwen $threads --json
refuse 1 "${gptoss##*/}: not the model of $trace" $bench cache replay "$trace" -m $gptoss
refuse 1 "none.gguf: cannot open" $bench cache replay "$trace" -m "$tmp/none.gguf"
refuse 2 "--measure needs the model" $bench cache replay "$trace" --measure

# ---- replay: bad flags and bad files
for size in 0 -5 101 much "" 5,,10 nan; do
    refuse 2 "is not a percentage above 0, up to 100" $bench cache replay "$trace" --sizes "$size"
done
refuse 2 "--sizes: more than 32" $bench cache replay "$trace" --sizes "$(seq -s, 1 33)"
refuse 2 "--policy: 'fifo' is none of lru, lfu, lfru, lcp, fade, best, fixed and all" $bench cache replay "$trace" --policy lru,fifo
refuse 2 "--mode: 'disk' is none of vram, ram and both" $bench cache replay "$trace" --mode disk
refuse 2 "--uploads: -1 is out of range" $bench cache replay "$trace" --uploads -1
refuse 2 "only one of --csv -, --svg - and --json" $bench cache replay "$trace" --csv - --json
refuse 2 "unexpected argument" $bench cache replay "$trace" "$trace"
refuse 1 "$tmp/none: cannot open: No such file" $bench cache replay "$tmp/none"
refuse 1 "$tmp: not a regular file" $bench cache replay "$tmp"
refuse 1 "LICENSE: not a trace of routing" $bench cache replay LICENSE
: >"$tmp/bad"
refuse 1 "bad: the file is empty" $bench cache replay "$tmp/bad"
for n in 3 50 111 150 200 1000; do
    head -c $n "$trace" >"$tmp/bad"
    refuse 1 "bad: truncated" $bench cache replay "$tmp/bad"
done
{ cat "$trace"; echo; } >"$tmp/bad"
refuse 1 "bad: 1 bytes after the last of 36 tokens" $bench cache replay "$tmp/bad"
cp "$trace" "$tmp/bad"
put "$tmp/bad" 8 '\002'
refuse 1 "bad: a trace of version 2" $bench cache replay "$tmp/bad"
cp "$trace" "$tmp/bad"
put "$tmp/bad" $((112 + 64 + 8)) '\030'
refuse 1 "bad: token 0, layer 0: expert 24 of 24" $bench cache replay "$tmp/bad"
refuse 1 "words: a prompt of 3 tokens and none after it" $bench cache replay "$tmp/words"
refuse 1 "$tmp/no/t.csv" $bench cache replay "$trace" --csv "$tmp/no/t.csv"
refuse 1 "$tmp/no/t.svg" $bench cache replay "$trace" --svg "$tmp/no/t.svg"
if [ -w /dev/full ]; then
    $bench cache replay "$trace" >/dev/full 2>"$tmp/err"
    if [ $? -eq 1 ] && grep -q "standard output" "$tmp/err"; then ok; else bad "full disk unnoticed"; fi
    refuse 1 "/dev/full: cannot write" $bench cache replay "$trace" --csv /dev/full
fi

# ---- once more with a sanitizer build looking for leaks
export ASAN_OPTIONS=detect_leaks=1
expect 0 "after it" $bench cache record -m $gptoss -o "$tmp/again" -p 1 -n 2
expect 1 "not a trace" $bench cache replay LICENSE
expect 1 "not the model" $bench cache replay "$trace" -m $gptoss
expect 0 '"rows"' $bench cache replay "$trace" --mode both --json --csv "$tmp/t.csv" --svg "$tmp/t.svg"

finish
