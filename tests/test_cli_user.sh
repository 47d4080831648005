#!/bin/sh
# test_cli_user.sh BUILD - users who type what they know from elsewhere, fill a disk, have no home,
# or use a narrow terminal. Ends with "cli_user N passed, N failed".
set -u
area=cli_user
. tests/cli_harness.sh
tiny=$build/golden/models/tiny-qwen3next-f32.gguf        # noise, but fast
holds() { if [ "$1" "$2" "$3" ]; then ok; else bad "$4: '$1' '$2' '$3'"; fi; }
said() { if grep -qF -e "$1" "$tmp/err"; then ok; else bad "'$1' not said: $2"; fi; }
same() { if cmp -s "$tmp/$1" "$tmp/$2"; then ok; else bad "$3: $1 and $2 differ"; fi; }

# ---- names and places that fingers know
say() { to=$1; shift; "$@" >"$tmp/$to" 2>"$tmp/err" </dev/null || bad "exit $?: $*"; }
say a $run -m $tiny -p Hello -n 8 --seed 3 --temp 0.5 --ctx 64 --threads 1 -q
printf Hello >"$tmp/hello.txt"
say b $run $tiny -f "$tmp/hello.txt" --n-predict 8 -s 3 --temperature 0.5 -c 64 -t 1 -q
same a b "other names of options"
say b $run run $tiny -p Hello --predict=8 -s3 --temperature=0.5 --ctx-size 64 -t1 -q
same a b "... with their values attached"
say b $run $tiny -p Hello -n 8 -s 3 --temp 0.5 -c 64 -t 1 -q --cpu-moe --postfetch-enable --moe-hot-cache-max-mib -1
same a b "where experts go"
say b env LLAMA_POSTFETCH_CPU_LIMIT=1 LLAMA_POSTFETCH_USE_DEDICATED_STREAMS=0 $run $tiny -p Hello -n 8 -s 3 --temp 0.5 -c 64 -q
same a b "... by variables"
cp $tiny "$tmp/model.bin"
say b env MOE_MODEL=$gptoss $run "$tmp/model.bin" -p Hello -n 8 -s 3 --temp 0.5 -c 64 -t 1 -q
same a b "a file that is not called .gguf"
printf 'Hello\n' | $run chat $tiny -n 2 >"$tmp/out" 2>"$tmp/err"
holds $? -eq 0 "chat with a model and no -m"

# what changes no answer is left out, with its value
plain=$($run $tiny -p x -n 3 --temp 0 -q)
left=$($run $tiny -ngl 99 -ncmoe 4 -ot 'exps=CPU' -fa -ub 512 -fa on --jinja --n-gpu-layers=99 -ngl -1 --no-mmap -no-cnv \
    -p x -n 3 --temp 0 -q -b 64 2>"$tmp/err")
if [ -n "$plain" ] && [ "$plain" = "$left" ]; then ok; else bad "flags that mean nothing here: '$left' instead of '$plain'"; fi
holds "$(grep -c ': not needed here; ' "$tmp/err")" -eq 12 "notes about flags that mean nothing here"
if grep -qF "moe-run: -ngl 99: not needed here; the plan decides" "$tmp/err"; then ok; else bad "-ngl 99: $(cat "$tmp/err")"; fi
# other names with one dash
plain=$($run $qwen -p x -n 4 --temp 0 -q --system "Be kind.")
left=$($run $qwen -p x -n 4 --temp 0 -q -sys "Be kind.")
if [ -n "$plain" ] && [ "$plain" = "$left" ]; then ok; else bad "-sys TEXT: '$left' instead of '$plain'"; fi

# ---- text that is not UTF-8 is refused everywhere, with the place
latin=$(printf 'caf\351')
printf 'caf\351' >"$tmp/latin.txt"
refuse 2 "-p: the text is not UTF-8: byte 0xE9 at offset 3" $run $tiny -p "$latin"
for v in "run -p x" chat; do refuse 2 "--system: the text is not UTF-8" $run $v $tiny --system "$latin"; done
printf 'caf\351\n' | $run chat $tiny >"$tmp/out" 2>"$tmp/err"
holds $? -eq 1 "a message that is not UTF-8"
said "byte 0xE9 at offset 3" "a message that is not UTF-8"

# ---- JSON says where it ran
say j env XDG_CACHE_HOME="$tmp/unmeasured" $run $qwen -p Hello -n 2 -q --json
for k in '"device": "cpu"' '"plan": {"vram_bytes": 0, "ram_bytes": [1-9]' '"drive_bytes": 0' '"expected_tokens_per_second": null'; do
    if grep -q -e "$k" "$tmp/j"; then ok; else bad "--json: no $k"; fi
done
small="$run $qwen -p Hello -n 2 --ctx 128 --raw"
small="$small --ram $(($(least $small) + 1))M"
say j $small -q --json
if grep -q '"drive_bytes": [1-9][0-9]*, "expected_tokens_per_second": [0-9]' "$tmp/j"; then ok; else bad "--json from the drive"; fi

# ---- a bound for VRAM where there is none; that there is no GPU is said once
expect 0 "bound by" $run plan $tiny --cpu-moe
if grep -q "no effect" "$tmp/err"; then bad "--cpu-moe without a GPU: it is kept"; else ok; fi
expect 0 "--vram has no effect: " $bench decode $tiny -p 2 -n 1 -r 1 --vram 2G
if $run --version | grep -q "no GPU" && ! $run --version | grep -q "support: none"; then
    export XDG_CACHE_HOME="$tmp/gpu"
    for want in 1 0 0; do
        $run $tiny -p x -n 1 --device auto >"$tmp/out" 2>"$tmp/err"
        holds "$(grep -c 'no GPU: CPU only' "$tmp/err")" -eq $want "'no GPU' is said once"
    done
    export XDG_CACHE_HOME="$tmp/cache"
fi

# ---- a full context is full, not more than full
printf 'Hello\n/stats\n' | $run chat $qwen --ctx 40 --temp 0 --logit-bias 4095=-inf,4093=-inf >"$tmp/out" 2>"$tmp/err"
said "context   40 of 40 tokens (full), 1 exchange" "/stats of a full context"

# ---- files that may not grow (ulimit -f counts 512 bytes): one line, and nothing is left
mkdir "$tmp/small"
limited() { to=$1; shift; (ulimit -f 8; exec "$@") >"$tmp/$to" 2>"$tmp/err"; }
limited out sh -c "printf 'Hello\n/save $tmp/small/x.chat\n' | $run chat $tiny -n 2"
holds $? -eq 1 "/save past the limit"
said "x.chat: cannot write: File too large" "/save past the limit"
printf '1 2 3 4 5 6 7 8\n' >"$tmp/ids"
limited out $bench logits -m $tiny --ids "$tmp/ids" -o "$tmp/small/x.f32"
holds $? -eq 1 "logits past the limit"
said "x.f32: cannot write: File too large" "logits past the limit"
limited out $bench synth gpt-oss-20b --layers 1 -o "$tmp/small/x.gguf"
holds $? -eq 1 "synth past the limit"
said "File too large" "synth past the limit"
holds "$(wc -l <"$tmp/err")" -eq 1 "synth past the limit: one line"
# a measurement takes two seconds of each thread
threads=$(rounds "" "-t 1")
measured="$run $qwen -p Hello -n 2 --ctx 128 --raw $threads"
measured="$measured --ram $(($(least $measured) + 1))M"
if ! long_check; then :
elif ldd "$run" 2>/dev/null | grep -q libomp; then skip "LLVM's OpenMP does not start where no file may grow"
else
    (ulimit -f 0; XDG_CACHE_HOME=$tmp/small/cache exec $measured) 2>&1 | cat >"$tmp/err"
    said "stopped: length" "speeds that cannot be kept"
fi
holds "$(find "$tmp/small" -type f | wc -l)" -eq 0 "something is left: $(ls -R "$tmp/small")"

# ---- no home is made
unset XDG_CACHE_HOME XDG_STATE_HOME
mkdir "$tmp/somebody"
(HOME=$tmp/nobody $measured >"$tmp/out.1" 2>"$tmp/err.1" || echo "without a home" >"$tmp/bad.1") &     # each measures
! long_check || (XDG_CACHE_HOME=$tmp/nobody/.cache HOME=$tmp/nobody/ $measured >"$tmp/out.2" 2>"$tmp/err.2" ||
    echo "without a home, but a cache" >"$tmp/bad.2") &
HOME=$tmp/somebody $measured >"$tmp/out" 2>"$tmp/err" || bad "with a home"
wait
for i in 1 2; do [ ! -e "$tmp/bad.$i" ] || { cp "$tmp/err.$i" "$tmp/err"; bad "$(cat "$tmp/bad.$i")"; }; done
if [ -e "$tmp/nobody" ]; then bad "a home was made: $(find "$tmp/nobody")"; else ok; fi
if [ -s "$tmp/somebody/.cache/moe/speeds.json" ]; then ok; else bad "speeds are not kept in a home"; fi
export XDG_CACHE_HOME="$tmp/cache"

# ---- installed: the list names files that are there
mkdir -p "$tmp/prefix/bin" "$tmp/prefix/share/moe"
cp $run "$tmp/prefix/bin/" && cp models.txt $gptoss "$tmp/prefix/share/moe/"
expect 0 "$(basename $gptoss)" "$tmp/prefix/bin/moe-run" models
file=$(sed -n 's/^demo-gptoss .* \(\/.*\)$/\1/p' "$tmp/out")
if [ -n "$file" ] && [ -r "$file" ]; then ok; else bad "models: '$file' is not there"; fi
expect 0 "(not installed)" "$tmp/prefix/bin/moe-run" models

# ---- a narrow terminal: words whole, the speed below them while they come, nothing left of it
if [ "$python" ] && "$python" -c 'import pty, os; os.waitstatus_to_exitcode' 2>/dev/null; then
    screen="$python tests/terminal_emulator.py"
    long="-s 1 --logit-bias 4095=-inf,4093=-inf -p Hello. --isa scalar -t 1"
    # an answer that goes on until its speed has come: if it does not, there is no Ctrl-C
    $screen --until "$(printf 'tokens\033')" 10 50 $run $long -n 4000 >"$tmp/screen" 2>"$tmp/err"
    holds $? -eq 130 "Ctrl-C while the speed is shown"
    holds "$(grep -c 'tok/s, [0-9]* tokens' "$tmp/screen")" -eq 0 "the speed is left after Ctrl-C"
    tr -s ' \n' ' ' <"$tmp/screen" >"$tmp/words"
    if grep -q "stopped: interrupted $" "$tmp/words"; then ok; else bad "the end after Ctrl-C"; fi
    # answers of almost a second: the speed comes after half of one
    n=$(sed -n 's/.* answer tokens at \([0-9]*\).*/\1/p' "$tmp/words")
    n=$(rounds 900 $((${n:-400} * 8 / 10)))
    if nm $run | grep -q __asan_init; then n=40; fi
    quick="-s 1 -n $n --logit-bias 4095=-inf,4093=-inf -p Hello."        # the same words
    long="$quick --isa scalar -t 1"
    $run $quick >"$tmp/pipe" 2>"$tmp/err"
    $screen 10 50 $run $long >"$tmp/screen" 2>"$tmp/err" || bad "at a terminal"
    holds "$(awk 'length > 49' "$tmp/screen" | wc -l)" -eq 0 "lines at the edge"
    grep -v -e '^moe-run: ' -e '^  ' "$tmp/screen" | tr -s ' ' '\n' | grep . >"$tmp/words"
    tr -s ' ' '\n' <"$tmp/pipe" | grep . >"$tmp/want"
    same words want "words on the screen"
    $screen --raw 10 50 $run $long -q >"$tmp/raw" 2>"$tmp/err"
    if grep -aq 'tok/s' "$tmp/raw"; then bad "-q: the speed was told"; else ok; fi
    $screen 10 40 $run -p x --frobnicate >"$tmp/screen" 2>"$tmp/err"
    holds $? -eq 2 "an error at a terminal"
    holds "$(tr '\n' ' ' <"$tmp/screen" | tr -s ' ')" = \
        "moe-run: error: unknown option --frobnicate (moe-run run --help lists them) " "it is whole"
    holds "$(awk 'length > 39' "$tmp/screen" | wc -l)" -eq 0 "an error at the edge"
else
    skipped=$((skipped + 1))
    echo "skipped: a terminal needs python3 with its pty module"
fi

finish
