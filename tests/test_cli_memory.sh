#!/bin/sh
# test_cli_memory.sh BUILD - budgets of memory: the same tokens from RAM and from the drive, whatever
# goes wrong on the way, with another number of experts; what refusals advise; the plan against the
# clock; measured speeds and where they are kept. Ends with "cli_memory N passed, N failed".
set -u
area=cli_memory
. tests/cli_harness.sh
answer() { "$run" "$@" 2>"$tmp/err" </dev/null; }

# ---- what is needed at least, and what a refusal advises
refuse 1 "no smaller context would help" env MOE_RAM_AVAILABLE=1M $run -m $tiny -p x
enough=$(least $run -m $tiny -p x)
expect 0 "" $run -m $tiny -p x -n 4 --ram $((enough + 1))M
expect 1 "needs" $bench tiers -p 4 -n 2 -r 1 --ram 1
long="-m $qwen -p Hello -n 2 --threads 2 --ctx 4096"
few_mb=$(($(least $run $long) + 1))M
expect 0 "chunks of 32 tokens instead of 2048: memory is short" $run $long --ram $few_mb --chunk 2048
expect 0 "chunks of 32 tokens instead of 500: memory is short" $run $long --ctx 500 --ram $(($(least $run $long --ctx 500) + 1))M --chunk 2048
expect 0 "no memory for the next-token block" $run $long --ram $few_mb
expect 0 '"chunk": 32,' $run $long --ram $few_mb --chunk 2048 --json
for few in "--ram $few_mb --chunk 32" "--ram $few_mb" "--ctx 500 --chunk 2048"; do
    expect 0 "" $run $long $few
    equal "a chunk that fits, or was not asked for: $few" 0 "$(grep -c "memory is short" "$tmp/err")"
done
expect 0 "bound by" $run plan $tiny --cpu-moe
equal "--cpu-moe without a GPU: notes" 0 "$(grep -c "no effect" "$tmp/err")"

# ---- experts from the drive: the same answer, whatever goes wrong on the way to them
for m in $(rounds "$qwen $gptoss" $gptoss); do
    few="-m $m --ctx 128 -p Hello --raw -n 12 --temp 0"
    want=$(answer $few)
    small="$few --ram $(($(least $run $few) + 1))M"
    for with in "" MOE_FAULT=io-uring MOE_FAULT=direct $(rounds "MOE_FAULT=read-short MOE_FAULT=io-uring,direct" "") \
                MOE_FAULT=read-short:3:2 MOE_CACHE_POLICY=lru MOE_CACHE_POLICY=lcp; do
        got=$(env $with "$run" $small 2>"$tmp/err")
        equal "$m from the drive, $with" "${want:-an answer}" "$got"
        case $with in
        '') said "bound by" "$m from the drive" ;;
        MOE_FAULT=io-uring) said "reading with threads" $with ;;
        MOE_FAULT=direct) said "through the page cache" $with ;;
        esac
    done
    # from the sixth read on: a single one may be an early read, which is tried again
    refuse 1 "$m: cannot read at byte" env MOE_FAULT=read-error:5 $run $small -q
    refuse 1 "was it cut while in use?" env MOE_FAULT=read-end:5 $run $small -q
    expect 0 '"drive_bytes": ' $run $small -q --json
    if grep -q '"drive_bytes": [1-9][0-9]*, "expected_tokens_per_second": [0-9]' "$tmp/out"; then ok; else bad "--json from the drive"; fi
done

# ---- rows of moe-bench tiers
for m in $(rounds "$qwen $gptoss" $gptoss); do
    small=$(($(least $bench tiers -m $m -p 12 -n 6 -r 2) + 1))M
    expect 0 "expected" $bench tiers -m $m -p 12 -n 6 -r 2 --ram all,$small,10K
    equal "tiers $m: rows from the drive, different tokens" "1 1" "$(grep -c '^  [12] .* [1-9][0-9]*%  *0 of 4 ' "$tmp/out") $(
        sed -n 's/^  [12] .* \([0-9a-f]\{8\}\)$/\1/p' "$tmp/out" | sort -u | wc -l)"
    equal "tiers $m: a budget that is too small says why" "1 0" \
        "$(grep -c '^  3 .* needs .* of memory at least' "$tmp/out") $(grep -c "not those of" "$tmp/out")"
    equal "tiers: lines over 120 columns" "" "$(awk 'length > 120' "$tmp/out" | grep -v ' needs ')"
done
few="-m $qwen -p 12 -n $(rounds 48 24) -r 1"
least=$(least $bench tiers $few)
small=$((least + 2))M
expect 0 '"same_tokens":true' $bench tiers $few --ram all,$small,10K --json
equal "tiers --json: lines, rows, done, from the drive" "1 3 2 1" "$(wc -l <"$tmp/out") $(grep -o '"ram_budget":' "$tmp/out" | wc -l) $(
    grep -o '"error":null' "$tmp/out" | wc -l) $(grep -o '"drive_bytes_per_token":[1-9]' "$tmp/out" | wc -l)"
row() { "$build/tests/http_client" value "$tmp/out" rows.$1.tokens; }        # reads all of it as JSON
first=$(row 0)
equal "tiers --json: tokens of two rows" "${first:-tokens}" "$(row 1)"
# other experts are evicted, so others are read, but the tokens are the same; with one budget two
# policies may read the same number of bytes
two=$((least + 1))M,$small
row_tokens() { grep -o '"tokens":"[0-9a-f]*"' "$tmp/out" | sort -u; }
row_read() { grep -o '"drive_bytes_per_token":[1-9][0-9.e+]*' "$tmp/out"; }
expect 0 '"cache_policy":"fade"' $bench tiers $few --ram $two --json
fade=$(row_read) tokens=$(row_tokens)
for policy in lru lcp; do
    expect 0 "\"cache_policy\":\"$policy\"" $bench tiers $few --ram $two --cache-policy $policy --json
    equal "tiers: tokens with $policy" "${tokens:-tokens}" "$(row_tokens)"
    read=$(row_read)
    if [ "$read" ] && [ "$read" != "$fade" ]; then ok; else bad "tiers: $policy reads what fade reads: '$read'"; fi
    [ $policy != lru ] || awk -v fade="${fade##*:}" -v lru="${read##*:}" 'BEGIN { exit !(fade < lru) }' || bad "tiers: fade reads $fade, lru $read"
done
expect 0 "no GPU is used: --vram has no effect" $bench tiers -p 4 -n 2 -r 1 --vram none,1G --ram all --device cpu
equal "tiers: rows without a GPU" 2 "$(grep -c '^  [0-9] ' "$tmp/out")"

# ---- another number of experts: what it costs is measured and said; the model's own costs nothing
for m in $(rounds "$qwen $gptoss" $gptoss); do
    few="-m $m --ctx 300 -p Hello --raw -n 12 --temp 0"
    answer $few -q >"$tmp/own"
    equal "$m -q: on stderr" "" "$(cat "$tmp/err")"
    small=$(($(least $run $few --experts-used 4) + 2))M
    for where in "" "--ram $small"; do
        expect 0 "--experts-used 4 (the model's number: 4): KL 0 nats per token over the last 64 of 256 tokens" $run $few -q --experts-used 4 $where
        same out own "$m --experts-used 4 $where"
    done
    last=0
    for n in $(rounds "3 2 1" "2 1"); do # the fewer, the further off
        expect 0 "--experts-used $n (the model's number: 4): KL 0." $run $few -q --experts-used $n
        kl=$(sed -n 's/.*: KL 0\.\([0-9]*\) nats.*/\1/p' "$tmp/err" | sed 's/$/0000/; s/^\(....\).*/1\1/')
        at_least "$m: KL with $n experts" $((last + 1)) "$kl"
        last=$kl
    done
    differ out own "$m --experts-used 1"
    cp "$tmp/err" "$tmp/once"
    cp "$tmp/out" "$tmp/now"
    expect 0 ": KL 0." $run $few -q --experts-used 1 --threads 1 --ram $small
    same err once "$m --experts-used 1 from the drive with one thread"
    same out now "$m --experts-used 1 from the drive with one thread"
    expect 0 '"experts_used": 9, "experts_used_kl": 0.' $run -m $m --ctx 20 -p Hello --raw -n 2 --experts-used 9 --json
    said "over the last 20 of 20 tokens" "$m --ctx 20"
    expect 0 '"experts_used": 4, "experts_used_kl": null' $run $few --json
done
# ---- a choice that prefers what is in VRAM: without a GPU it changes nothing, and that is said
few="-m $tiny --ctx 64 -p Hello --raw -n 8 --temp 0 -q --device cpu"
answer $few >"$tmp/own"
expect 0 "--skip-missing has no effect: no GPU is used" $run $few --skip-missing
same out own "--skip-missing"
expect 0 '"skip_missing": true, "cache_kl": null' $run $few --skip-missing --json
for x in "--skip-missing --device cpu:skip-missing has no effect" "--experts-used 2:experts-used 2 (the model's number: 4): KL "; do
    echo Hello | $run chat -m $tiny -n 2 ${x%%:*} >"$tmp/out" 2>"$tmp/err"
    said "${x#*:}" "chat ${x%%:*}"
done

# The copy of the output matrix is optional: address space that is just enough without it (the
# scalar set makes none) is enough for the fastest set. Not with sanitizers, which take it all.
limited() { # KB ARGS...: the logits, with so much address space
    { (ulimit -v "$1" && shift && $bench decode -m $gptoss -p 5 -n 2 -r 1 --threads 1 --json "$@") |
        sed -n 's/.*"logits":"\([0-9a-f]\{16\}\)".*/\1/p'; } 2>"$tmp/err"
}
if ! sanitized; then
    low=10000 kb=400000
    while [ $((kb - low)) -gt 1000 ]; do
        mid=$(((low + kb) / 2))
        if [ "$(limited $mid --isa scalar)" ]; then kb=$mid; else low=$mid; fi
    done
    want=$(limited $kb --isa scalar)
    equal "logits with $kb KB of address space" "${want:-logits}" "$(limited $kb)"
fi

# ---- a plan is printed at the start, and compared with the clock after 64 tokens
kept=$speeds
plan="-m $qwen --ctx 256 --threads 1"
plan="$plan --ram $(($(least $run chat $plan) + 1))M"        # a chat takes most
slow="$plan -p Hello --temp 0"
[ -s "$kept" ] || $run $slow -n 1 >"$tmp/out" 2>"$tmp/err"
expect 0 "tok/s expected" $run $slow -n 1
equal "measured speeds that are said to be assumed" 0 "$(grep -c "assumed" "$tmp/err")"
# measured far too fast, so that no machine is as fast
sed 's/"\(disk\|cpu\|cpu_dense\)": [0-9][0-9.e]*/"\1": 9e14/; s/"\(disk_wait\|layer_cpu\)": [0-9][0-9.e-]*/"\1": 1e-9/' \
    "$kept" >"$tmp/faster" && cp "$tmp/faster" "$kept"
expect 0 "slower than expected" $run $slow -n 64
if grep -q 'slower than expected: .*because .*\(CPU\|drive\)' "$tmp/err"; then ok; else bad "no reason is said"; fi
for few in "-n 63" "-n 64 -q"; do
    expect 0 "" $run $slow $few
    equal "speeds said with $few" 0 "$(grep -c "than expected" "$tmp/err")"
done
if cmp -s "$tmp/faster" "$kept"; then ok; else bad "a slow run has changed the measured speeds"; fi
expect 0 '"measurement":{"date":"20' $run plan $plan --json
printf 'Hello\nHello\n' | $run chat $plan --temp 0 -n 70 >"$tmp/out" 2>"$tmp/err"
equal "a chat says it once" 1 "$(grep -c 'than expected' "$tmp/err")"
if long_check; then                      # no run measures again; --measure does, and the plan says when
    expect 0 "expected (measured 20" $run plan $plan --measure
    if awk '/"processor"/ { text = "" } { text = text $0 "\n" } END { printf "%s", text }' "$kept" | grep -q '": 9\(e14\|0000000000\)'
    then bad "plan --measure kept the old speeds"; else ok; fi
fi
echo '{"speeds": []}' >"$kept"           # a file from before there were dates does not count
expect 0 "assumed speeds: not measured on this machine" $run plan $plan

# ---- a first start measures within --ram, and keeps it in a home that is there, or nowhere. Sanitizers
# take memory of their own. (LLVM's OpenMP does not start where no file may grow.)
unset XDG_CACHE_HOME XDG_STATE_HOME
# A copy: of a file that it has read into huge pages the system maps whole ones, experts and all, which
# count as this program's memory.
cp $qwen "$tmp/own.gguf"
first="$run -m $tmp/own.gguf -p Hello -n 2 --ctx 128 --raw --threads 1"
ram=$(advised $first)
first="$first --ram ${ram}M"
mkdir "$tmp/user" "$tmp/full"
expect 0 '"text":' env HOME="$tmp/user" $first --json
peak=$(json_number peak_memory_bytes "$(sed 's/: /:/g; s/, /,/g' "$tmp/out")")
if sanitized || [ "${peak:-0}" -le $((ram * 1048576)) ]; then ok; else bad "a first start took $peak bytes with --ram ${ram}M"; fi
if [ -s "$tmp/user/.cache/moe/speeds.json" ]; then ok; else bad "speeds are not kept in a home"; fi
if long_check; then
    for home in none none/; do
        expect 0 "stopped: length" env HOME="$tmp/$home" $first
        expect 0 "stopped: length" env HOME="$tmp/$home" XDG_CACHE_HOME="$tmp/none/.cache" $first
        if [ -e "$tmp/none" ]; then bad "a home was made: $(find "$tmp/none")"; else ok; fi
    done
    (ldd "$run" | grep -q libomp || ulimit -f 0; HOME=$tmp/full exec $first) 2>&1 | cat >"$tmp/err"
    said "stopped: length" "speeds that cannot be kept"
    expect 0 "tok/s expected" env HOME="$tmp/user" $first
    equal "measured speeds that were not kept" 0 "$(grep -c assumed "$tmp/err")"
    # without the drive's speed nothing is kept: it is measured again
    expect 0 "assumed" env XDG_CACHE_HOME="$tmp/part" MOE_FAULT=read-error:0:1 $first
    if [ ! -e "$tmp/part/moe/speeds.json" ]; then ok; else bad "speeds without the drive's were kept"; fi
fi

# ---- with a sanitizer build looking for leaks
small=$(($(least $bench tiers -p 4 -n 2 -r 1) + 2))M  # before the slow leak checks begin
leaks_last
expect 0 '"rows"' $bench tiers -p 4 -n 2 -r 1 --ram all,$small,1 --json
finish
