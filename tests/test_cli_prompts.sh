#!/bin/sh
# test_cli_prompts.sh BUILD - long prompts that moe-run keeps on the drive: the next run computes
# what is new, with the same answer; damaged files, several programs at once, no room.
set -u
area=cli_prompts
. tests/cli_harness.sh
kept=$XDG_CACHE_HOME/moe/prompts
n_token=$(rounds 24 12)

# words N SEED: a text of N words
words() { awk -v n="$1" -v seed="$2" 'BEGIN { srand(seed); k = split("the river mountain blue small house walks tree cat dog stone under over light", w, " "); for (i = 0; i < n; i++) printf "%s ", w[1 + int(k * rand())] }'; }
# more than a chunk of 2048 tokens; without LONG=1 the medium text is, of 512
chunk=$(rounds "" "--chunk 512")
words 3250 1 >"$tmp/long.txt"
words 1150 3 >"$tmp/medium.txt"          # more than the 1024 tokens after which there is a file
words "$(rounds 1150 570)" 3 >"$tmp/small.txt"      # worth a file
words 300 2 >"$tmp/other_end.txt"
least_small=$(rounds 1150 570) most_small=$(rounds 1400 750)         # tokens

# ask NAME ARGUMENTS...: the answer as JSON in $tmp/NAME, its text and tokens in $tmp/NAME.text
ask() {
    name=$1
    shift
    "$run" --json -n $n_token --seed 7 $chunk "$@" >"$tmp/$name" 2>"$tmp/err" </dev/null || bad "$name: exit $?"
    sed 's/"seconds".*//;s/"cached_tokens": *[0-9]*//' "$tmp/$name" >"$tmp/$name.text"
}
number() { sed 's/"seconds".*//' "$tmp/$1" | tr -d ' ' | sed -n 's/.*"'"$2"'":\([0-9]*\).*/\1/p'; }
# new NAME: tokens of the prompt that were computed
new() { echo $(($(number "$1" prompt_tokens) - $(number "$1" cached_tokens))); }
same() { if cmp -s "$tmp/$1.text" "$tmp/$2.text"; then ok; else bad "$1 and $2 differ: $(cat "$tmp/$1.text") $(cat "$tmp/$2.text")"; fi; }
# is WHAT LOW HIGH NUMBER
within() { if [ "$4" -ge "$2" ] && [ "$4" -le "$3" ]; then ok; else bad "$1: $4, expected $2 to $3"; fi; }
files() { find "$kept" -name '*.prefix' 2>/dev/null | wc -l; }

# Both fixtures of test_prefix_drive.c have the states of the other model, too.
for model in $(rounds "$qwen $gptoss" $gptoss); do
    rm -rf "$kept"
    text=$tmp/long.txt
    if long_check; then least=3300 most=3700
    else text=$tmp/medium.txt least=1150 most=1400; fi
    ask alone -m "$model" -f "$text" --prompt-cache-drive 0
    within "$model: tokens" "$least" "$most" "$(new alone)"
    within "files without a drive" 0 0 "$(files)"
    ask first -m "$model" -f "$text"
    within "$model: computed at first" "$least" "$most" "$(new first)"
    ask second -m "$model" -f "$text"
    within "$model: computed at second" 1 16 "$(new second)"
    same first alone
    same second alone
    grep -q "[123][0-9]* prompt tokens ([123][0-9]* reused)" "$tmp/err" && ok || bad "reused tokens are not said"
    n=$(files)
    within "$model: files" 2 8 "$n"
    ask again -m "$model" -f "$text" --deterministic --threads 1
    same again alone
    within "$model: computed with --deterministic" 1 16 "$(new again)"
    within "$model: files, nothing new" "$n" "$n" "$(files)"

    # the same beginning
    { head -c 6400 "$tmp/medium.txt"; cat "$tmp/other_end.txt"; } >"$tmp/branch.txt"
    ! long_check || ask medium -m "$model" -f "$tmp/medium.txt"
    ask branch_alone -m "$model" -f "$tmp/branch.txt" --prompt-cache-drive 0
    ask branch -m "$model" -f "$tmp/branch.txt"
    same branch branch_alone
    within "$model: computed of another end" 100 700 "$(new branch)"
    ask raw -m "$model" -f "$tmp/small.txt" --raw
    ask raw_again -m "$model" -f "$tmp/small.txt" --raw
    same raw raw_again
    within "$model: computed of a raw text" 1 1 "$(new raw_again)"
    system=$(head -c $(rounds 4000 3000) "$tmp/medium.txt")
    ask system_1 -m "$model" -p "What now?" --system "$system"
    ask system_2 -m "$model" -p "And then?" --system "$system"
    ask system_3 -m "$model" -p "And then?" --system "$system" --prompt-cache-drive 0
    same system_2 system_3
    within "$model: computed after a system message" 1 30 "$(new system_2)"

    # another KV type has other states
    ask q8 -m "$model" -f "$tmp/small.txt" --kv q8_0
    within "$model: computed with another KV type" $least_small $most_small "$(new q8)"
done

# ---- short prompts leave nothing behind
rm -rf "$kept"
ask short -p "Hello there"
within "files of a short prompt" 0 0 "$(files)"

# ---- damage: a line, and the same answer; the next run writes it anew
ask first -m $gptoss -f "$tmp/small.txt"
ask whole -m $gptoss -f "$tmp/small.txt"
for f in "$kept"/*.prefix; do
    size=$(wc -c <"$f")
    printf X | dd of="$f" bs=1 seek=$((size - 5)) conv=notrunc 2>/dev/null
done
ask damaged -m $gptoss -f "$tmp/small.txt"
same damaged whole
if grep -q "^moe-run: prefix cache: .*damaged.*removed" "$tmp/err"; then ok; else bad "no line about a damaged file"; fi
ask mended -m $gptoss -f "$tmp/small.txt"
same mended whole
within "computed after damage" 1 16 "$(new mended)"
for f in "$kept"/*.prefix; do : >"$f"; done
ask emptied -m $gptoss -f "$tmp/small.txt"
same emptied whole

# ---- nowhere to write: the run is as it was
rm -rf "$kept"
mkdir -p "$(dirname "$kept")"
: >"$kept"
ask no_folder -m $gptoss -f "$tmp/small.txt"
same no_folder whole
if grep -q "prefix cache: .*nothing goes to the drive" "$tmp/err"; then ok; else bad "no line about the folder"; fi
rm "$kept"
ask small_drive -m $gptoss -f "$tmp/small.txt" --prompt-cache-drive 500K
same small_drive whole
within "bytes on a small drive" 0 512000 "$(cat "$kept"/*.prefix 2>/dev/null | wc -c)"

# ---- memory: what a plan without it needs is enough
room=$(advised "$run" -m $gptoss -f "$tmp/small.txt" $chunk -n $n_token --prompt-cache-drive 0)
ask tight -m $gptoss -f "$tmp/small.txt" --ram "${room}M"
within "tokens in little memory" $least_small $most_small "$(number tight prompt_tokens)"

# ---- what is set aside for a state is taken off --ram once: experts have all the rest
rm -rf "$kept"
room=$(($(advised "$run" -m $qwen -f "$tmp/small.txt" $chunk -n $n_token --prompt-cache-drive 0) + 4))
ask aside -m $qwen -f "$tmp/small.txt" --ram "${room}M"
planned() { sed -n 's/.*"plan": {[^}]*"'"$1"'": \([0-9]*\).*/\1/p' "$tmp/aside"; }
within "files, with experts on the drive" 1 8 "$(files)"
within "experts on the drive" 1 100000000 "$(planned drive_bytes)"
within "planned of --ram ${room}M" $((room << 20)) $((room << 20)) "$(planned ram_bytes)"

# ---- what a refusal advises is enough at the first try: with other threads, with or without prompts
# that are kept, and where the next run takes two megabytes more (here the C library's heap does)
accepted() {
    if "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; then ok; else bad "$*: $(cat "$tmp/err")"; fi
}
ready() { grep -q "listening on" "$tmp/err" || ! kill -0 $server 2>/dev/null; }
# serves ARGUMENTS...: it is ready, and ends at SIGTERM
serves() {
    : >"$tmp/err"
    "$build/moe-serve" --listen 127.0.0.1:0 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null &
    server=$!
    wait_until "moe-serve $* is not ready" ready
    kill -TERM $server 2>/dev/null
    if wait $server && grep -q "listening on" "$tmp/err"; then ok; else bad "moe-serve $*: $(cat "$tmp/err")"; fi
}
words 520 4 >"$tmp/short.txt"
for threads in $(rounds "1 2 16 64" "2 16"); do
    few="-m $gptoss --threads $threads"
    answer="$few -n 2 -f $tmp/short.txt"
    enough=$(advised "$run" $answer --prompt-cache-drive 0)M
    for i in $(rounds "1 2 3" 1); do accepted "$run" $answer --ram $enough; done
    accepted "$run" $answer --ram $enough --prompt-cache-drive 0
    enough=$(advised "$run" chat $few)M
    accepted "$run" chat $few --ram $enough
    accepted "$run" chat $few --ram $enough --prompt-cache-drive 0
    [ $threads -gt 2 ] ||                # those have some experts on the drive, and measure it
        serves $few --ram "$(advised "$build/moe-serve" --listen 127.0.0.1:0 $few)M"
done
few="-m $gptoss --threads 2"
accepted env MALLOC_TOP_PAD_=4194304 "$run" $few -p Hello -n 2 --ram "$(advised "$run" $few -p Hello)M"
accepted env MALLOC_TOP_PAD_=4194304 "$run" chat $few --ram "$(advised "$run" chat $few)M"
# a cache that was asked for becomes smaller, and slots that were not asked for are fewer
few="-m $gptoss --threads 2 --prompt-cache 30M"
serves $few --ram "$(advised "$build/moe-serve" --listen 127.0.0.1:0 $few)M"
if grep -q "a prompt cache of .* instead of .* memory is short" "$tmp/err"; then ok; else bad "a smaller cache, unsaid: $(cat "$tmp/err")"; fi
few="-m $gptoss --threads 2 --prompt-cache 0 --ctx 512"
serves $few --ram "$(advised "$build/moe-serve" --listen 127.0.0.1:0 $few)M"

# ---- several at once, on a drive that has room for half of it: one has the folder, the others read
# only and say so; all answer, and nothing is damaged
limit=$(rounds 1800K 670K) each=$(rounds "1 2 3 4" "1 2") model=$(rounds $qwen $gptoss)
rm -rf "$kept"
for i in $each; do
    words "$(rounds 900 570)" $i >"$tmp/at_once_$i.txt"
    ask one_$i -m $model -f "$tmp/at_once_$i.txt" --prompt-cache-drive 0
done
for round in $(rounds "1 2 3" 1); do
    for i in $each; do
        "$run" --json -n $n_token --seed 7 -m $model -f "$tmp/at_once_$i.txt" --prompt-cache-drive $limit --threads 1 >"$tmp/at_$i" 2>"$tmp/err_$i" </dev/null &
    done
    wait
    for i in $each; do
        sed 's/"seconds".*//;s/"cached_tokens": *[0-9]*//' "$tmp/at_$i" >"$tmp/at_$i.text"
        cp "$tmp/err_$i" "$tmp/err"
        same at_$i one_$i
        if grep "prefix cache" "$tmp/err" | grep -qv "another program keeps states in this folder; nothing is written"
        then bad "at once: $(cat "$tmp/err")"; else ok; fi
    done
    within "bytes after several at once" 1 $((${limit%K} * 1024)) "$(cat "$kept"/*.prefix | wc -c)"
done
# one that lives on has the folder: another only reads, so that the next run has to compute
rm -rf "$kept"
mkfifo "$tmp/lines"
"$run" chat -m $model -n 4 <"$tmp/lines" >"$tmp/out" 2>"$tmp/err_1" &
first=$!
exec 3>"$tmp/lines"
{ cat "$tmp/small.txt"; echo; } >&3
wait_until "there is no answer" test -s "$tmp/out"
ask second -m $model -f "$tmp/at_once_1.txt"
same second one_1
if grep -q "another program keeps states in this folder; nothing is written" "$tmp/err"; then ok; else bad "no line about the other program"; fi
exec 3>&-
wait $first
least=$(number second prompt_tokens)
ask after -m $model -f "$tmp/at_once_1.txt"
same after one_1
within "computed after a program that wrote nothing" $((least - 64)) $least "$(new after)"
for i in $each; do
    ask at_$i -m $model -f "$tmp/at_once_$i.txt" --prompt-cache-drive $limit
    same at_$i one_$i
    if grep -q "prefix cache" "$tmp/err"; then bad "after several at once: $(cat "$tmp/err")"; else ok; fi
done

# ---- chat: its second start
rm -rf "$kept"
chat() { { cat "$tmp/small.txt"; echo; echo "And now?"; } | "$run" chat -v -m "$1" -n 8 --seed 7 >"$tmp/out" 2>"$tmp/err" || bad "chat: exit $?"; }
for model in $(rounds "$qwen $gptoss" $gptoss); do
    chat "$model"
    cp "$tmp/out" "$tmp/chat_first"
    if grep -q "tokens (0 reused)" "$tmp/err"; then ok; else bad "chat: the first start"; fi
    chat "$model"
    if cmp -s "$tmp/out" "$tmp/chat_first"; then ok; else bad "$model: the second chat differs"; fi
    reused=$(sed -n 's/^prompt \([0-9]*\) tokens (\([0-9]*\) reused).*/\1 \2/p' "$tmp/err" | head -n 1)
    within "$model: computed by the second chat" 1 256 $((${reused% *} - ${reused#* }))
done

finish
