#!/bin/sh
# test_cli_run.sh BUILD - moe-run as the program that answers: what goes to stdout and to files, the
# same answer however it is asked for, and how it ends. Ends with "cli_run N passed, N failed".
set -u
area=cli_run
. tests/cli_harness.sh

# say NAME ARGUMENTS...: keeps the answer as $tmp/NAME
say() {
    name=$1
    shift
    if "$run" "$@" >"$tmp/$name" 2>"$tmp/err" </dev/null; then ok; else bad "exit $?: $*"; fi
}
newline_ends() { equal "the last byte of $1" '\n' "$(tail -c 1 "$tmp/$1" | od -An -c | tr -d ' ')"; }

# ---- answers of a given form
cat >"$tmp/person.json" <<END
{"properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 7,
 "maximum": 9}}, "required": ["name", "age"]}
END
printf 'root ::= "yes" | "no"\n' >"$tmp/yes.gbnf"
for m in $qwen $gptoss; do
    # reasoning is free, and not every seed comes to its end; two that do are enough, or one
    n=0
    for seed in 1 2 3 4 5; do
        [ $n -lt "$(rounds 5 1)" ] || break
        "$run" -m $m -p "Who are you?" -n 300 -q --seed $seed --json-schema "$tmp/person.json" >"$tmp/out" 2>"$tmp/err"
        if grep -qE '^\{"name": ?"([^"\\]|\\.)*", ?"age": ?[789]\}$' "$tmp/out"; then n=$((n + 1))
        elif grep -q '}' "$tmp/out"; then bad "$m, seed $seed: $(cat "$tmp/out")"; fi
    done
    at_least "$m: answers of the schema's form" 1 $n
done
expect 0 "" $run -m $qwen -p x --raw -q --grammar "$tmp/yes.gbnf"
if grep -qxE "yes|no" "$tmp/out"; then ok; else bad "neither yes nor no: $(cat "$tmp/out")"; fi

# ---- text that is not UTF-8, a prompt that is too long
latin=$(printf 'caf\351')
refuse 2 "-p: the text is not UTF-8: byte 0xE9 at offset 3" $run $tiny -p "$latin"
for v in "run -p x" chat; do refuse 2 "--system: the text is not UTF-8" $run $v $tiny --system "$latin"; done
refuse 2 "--stop: stop string 2 of 2 is not valid UTF-8" $run -m $tiny -p x --stop a --stop "$(printf '\303')"
yes "The quick brown fox jumps over the lazy dog and runs far away." | head -n 200 >"$tmp/long.txt"
refuse 1 "the model's context holds 4096: shorten" $run -m $tiny -f "$tmp/long.txt"

# ---- the same answer, however it is asked for
once="Once upon a time"
base="-m $tiny --seed 7 -n 12 -q"
say a $base -p "$once"
equal "-q: on stderr" "" "$(cat "$tmp/err")"
newline_ends a
# like WHAT ARGUMENTS...: that answer
like() { what=$1; shift; say b "$@"; same a b "$what"; }
printf '%s\n' "$once" >"$tmp/prompt.txt"
printf %s "$once" >"$tmp/bare.txt"
cp $tiny "$tmp/model.bin"
like "same seed" $base -p "$once"
like "verb named" run $base -p "$once"
like "one thread" $base -p "$once" --threads 1
like "another context" $base -p "$once" --ctx 64
like "-f" $base -f "$tmp/prompt.txt"
like "other names of options" $tiny -f "$tmp/bare.txt" --n-predict 12 -s 7 -c 64 -t 1 -q
like "values attached, a file of another name" "$tmp/model.bin" -p "$once" --predict=12 -s7 --ctx-size 64 -t1 -q
like "flags of where experts go" $base -p "$once" --cpu-moe --postfetch-enable --moe-hot-cache-max-mib -1
for x in - "-f -"; do
    $run $base $x <"$tmp/prompt.txt" >"$tmp/b" 2>"$tmp/err"
    same a b "$x: standard input"
done
env MOE_MODEL=$tiny LLAMA_POSTFETCH_CPU_LIMIT=1 LLAMA_POSTFETCH_USE_DEDICATED_STREAMS=0 \
    $run --seed 7 -n 12 -q -p "$once" >"$tmp/b" 2>"$tmp/err"
same a b "variables"
# flags of other programs that change no answer are left out, with their values
like "flags that mean nothing here" $base -p "$once" -ngl 99 -ncmoe 4 -ot 'exps=CPU' -fa -ub 512 -fa on --jinja \
    --n-gpu-layers=99 -ngl -1 --no-mmap -no-cnv -b 64
equal "notes about flags that mean nothing here" 12 "$(grep -c ': ignored' "$tmp/err")"
said "moe-run: -ngl 99: ignored: the plan places weights" "-ngl 99"
printf 'a time' | $run $base -p "Once upon" - >"$tmp/b" 2>"$tmp/err"
say c $base -p "Once upon

a time"
same b c "-p and standard input"
say b -m $tiny --seed 8 -n 12 -q -p "$once"
differ a b "another seed"
say b $base -p "$once" --system "Be brief."
differ a b "--system"
say c $base -p "$once" -sys "Be brief."
same b c "-sys"
say b $base -p "$once" --raw
differ a b "--raw"
say b $base -p "$once" --temp 0
say c -m $tiny --seed 9 -n 12 -q -p "$once" --temperature 0
same b c "greedy has no seed"
printf 'Once\000upon' >"$tmp/nul.txt"
say b $base -f "$tmp/nul.txt"
say b -m $tiny -n 0 -q -p "Hello"
equal "-n 0" "" "$(cat "$tmp/b")"
say b -q -p "Tell me a story." -n 4 --seed 1
say c -m $qwen -q -p "Tell me a story." -n 4 --seed 1
same b c "the built-in demo model and the file in the tree"

# ---- stop strings and biases: cut the answer from before at its fourth byte
cut=$(head -c 7 "$tmp/a" | tail -c 4)
for order in 1 2; do
    set -- --stop "never said" --stop "$cut"
    [ $order -eq 1 ] || set -- --stop "$cut" --stop "never said"
    say b $base -p "$once" "$@"
    equal "--stop '$cut'" "$(head -c 3 "$tmp/a")" "$(head -n 1 "$tmp/b")"
done
for bias in 64:aaaaaaaaaaaa 511:; do     # 511 ends the turn
    say b $base -p "$once" --logit-bias ${bias%:*}=1000
    equal "--logit-bias" "${bias#*:}" "$(cat "$tmp/b")"
done
say b -m $tiny -n 3 -q --raw -p "x" --logit-bias 510=1000
equal "--raw shows control tokens" "<|im_start|><|im_start|><|im_start|>" "$(cat "$tmp/b")"

# ---- what is said about it
expect 0 "tiny-qwen3next-f32.gguf: qwen3next, 1 thread, " $run -m $tiny -p "Hello" -n 3 --seed 42 --threads 1
equal "plan and end: lines" 2 "$(wc -l <"$tmp/err")"
line='^moe-run: [0-9]* prompt tokens at [0-9.]* tok/s, 3 answer tokens at [0-9.]* tok/s, peak memory [0-9.]* MB, seed 42, stopped: length$'
if grep -q "$line" "$tmp/err"; then ok; else bad "end line"; fi
equal "escape sequences without a terminal" "" "$(grep "$(printf '\033')" "$tmp/err" "$tmp/out")"
if "$run" --version | grep -q "no GPU"; then     # a build that could use one says so, once
    want="1 0"
    if "$run" --version | grep -q "support: none"; then want="0 0"; fi
    counts=$(for i in 1 2; do XDG_CACHE_HOME=$tmp/gpu $run -m $tiny -p x -n 1 --device auto 2>&1 >"$tmp/out" | grep -c "no GPU: CPU only"; done)
    equal "'no GPU: CPU only'" "$want" "$(echo $counts)"
fi

# ---- reasoning
thinks="-m $gptoss -p Hello -n 36 --seed 2 --temp 0.6 -q --date 2026-01-31"
say b $thinks --show-reasoning
equal "--show-reasoning" "<think>" "$(head -n 1 "$tmp/b")"
say c $thinks
sed '1,/^<\/think>$/d' "$tmp/b" | sed 1d >"$tmp/d"
at_least "bytes of the answer after the reasoning" 2 "$(wc -c <"$tmp/c")"
same c d "the answer after the reasoning"

# ---- JSON, and a place for each that it names
say j $base -p "$once" --json
for k in text reasoning stop prompt_tokens answer_tokens seconds tokens_per_second peak_memory_bytes seed \
         model settings temperature ctx kv '"device": "cpu"' '"plan": {"vram_bytes": 0, "ram_bytes"' '"drive_bytes": 0'; do
    case $k in \"*) ;; *) k="\"$k\": " ;; esac
    if grep -qF -e "$k" "$tmp/j"; then ok; else bad "--json: no $k"; fi
done
equal "--json: a line with seed and tokens" 1 "$(grep -c '"answer_tokens": 12, .*"seed": 7, ' "$tmp/j")"

# ---- ended from outside: a reader that leaves, a full disk, Ctrl-C. Long enough that only these end it
forever="-m $gptoss --raw -p Hello -n 7000 --seed 1 --show-reasoning --logit-bias 4095=-inf,4094=-inf,4093=-inf,4092=-inf,4091=-inf,4090=-inf,4089=-inf,4088=-inf"
{ $run $forever 2>"$tmp/err"; echo $? >"$tmp/rc"; } | head -c 1 >/dev/null
equal "exit code with a closed pipe, errors" "1 0" "$(cat "$tmp/rc") $(grep -c error "$tmp/err")"
if [ -w /dev/full ]; then
    $run $forever >/dev/full 2>"$tmp/err"
    equal "exit code with a full disk, errors" "1 1" "$? $(grep -c "error: standard output: No space" "$tmp/err")"
fi
# The signal comes with the first byte of the answer; all that was written stays. SIGINT may have been
# switched off where the tests run in the background: the program respects that.
signals="INT:130 TERM:143"
case $(sed -n 's/^SigIgn:.*\(.\)$/\1/p' /proc/self/status 2>/dev/null) in
    [2367abefABEF]) signals=TERM:143 ;;
esac
for s in $signals; do
    { sh -c 'echo $$ >"$0"; exec "$@"' "$tmp/pid" $run $forever 2>"$tmp/err"; echo $? >"$tmp/rc"; } |
        { dd bs=1 count=1 2>/dev/null; kill -"${s%:*}" "$(cat "$tmp/pid")"; cat; } >"$tmp/answer"
    equal "exit code after $s" "${s#*:}" "$(cat "$tmp/rc")"
    said "stopped: interrupted" "$s"
    newline_ends answer
done

# Ctrl-C while the program waits for a reader that does not read. The signal is sent when the program
# sleeps; if it slept for another reason, the test is too lenient, but never wrong.
cat >"$tmp/blocked.py" <<'P'
import fcntl, os, signal, subprocess, sys, time
limit_s, stdin, argv = int(sys.argv[1]), sys.argv[2].encode(), sys.argv[3:]
r, w = os.pipe()
flags = fcntl.fcntl(w, fcntl.F_GETFL)
fcntl.fcntl(w, fcntl.F_SETFL, flags | os.O_NONBLOCK)
try:
    while True: os.write(w, b"x" * 4096)
except BlockingIOError: pass
fcntl.fcntl(w, fcntl.F_SETFL, flags)
signal.signal(signal.SIGINT, signal.default_int_handler)
p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=w, stderr=subprocess.PIPE)
p.stdin.write(stdin)
p.stdin.close()
asleep, end = 0, time.time() + limit_s
while asleep < 20 and time.time() < end and p.poll() is None:
    state = open("/proc/%d/stat" % p.pid).read().rsplit(")", 1)[1].split()[0]
    asleep = asleep + 1 if state == "S" else 0
    time.sleep(0.005)
p.send_signal(signal.SIGINT)
try: p.wait(timeout=limit_s)
except subprocess.TimeoutExpired: p.kill()
p.wait()
message = p.stderr.read()
if p.returncode != 130 or b"error" in message: sys.exit("exit %d: %r" % (p.returncode, message))
P
if [ "$python" ] && "$python" -c 'import fcntl' 2>/dev/null && [ -r /proc/self/stat ]; then
    # blocked STDIN PROGRAM...
    blocked() {
        if "$python" "$tmp/blocked.py" $wait_limit_s "$@" 2>"$tmp/err"; then ok; else bad "a reader that does not read: $*"; fi
    }
    echo '300 301 302 303 304 305' >"$tmp/ids.txt"
    blocked "" $run $forever
    blocked "" $run -q $forever --json -n 20
    blocked "Hello
" $run chat -m $gptoss -n 7000 --show-reasoning --logit-bias 4095=-inf,4093=-inf,4089=-inf
    blocked "" $bench logits -m $tiny --ids "$tmp/ids.txt" -o -
else
    skip "a reader that does not read needs python3 and /proc"
fi

# ---- usage of experts, learnt from runs: written, added to; another file is left as it is
learnt="$tmp/learnt.json"
few="-q -m $gptoss --raw -p Hello -n 4 --temp 0"
expect 0 "" $run $few --learn "$learnt"
cp "$learnt" "$tmp/target" && chmod 640 "$tmp/target" && ln -s target "$tmp/link"
expect 0 "" $run $few --learn "$tmp/link"
expect 0 "" env MOE_LEARN="$learnt" $run $few
equal "--learn: two runs, also through a link" "1 1 640" \
    "$(grep -c '"runs":2,' "$learnt") $(grep -c '"runs":2,' "$tmp/target") $(stat -c %a "$tmp/target")"
if [ -L "$tmp/link" ]; then ok; else bad "--learn: a link became a file"; fi
cp "$learnt" "$tmp/before"
printf '{' >"$tmp/half.json"
for file in "$learnt" "$tmp/half.json" /nonexistent/learnt.json; do
    expect 0 "the profile is unchanged" $run -q -m $qwen --raw -p Hello -n 2 --learn "$file"
done
same learnt.json before "--learn: another model's file"

# ---- counts: an object in --json, a file that is replaced in one step, neither if nothing is counted
counted="-q -m $qwen --raw -p Hello -n 4 --temp 0"
perf="$tmp/perf.json"
expect 0 '"perf": {"format": "moe-perf", "version": 1, "mode": "update"' $run $counted --json
equal "--json: layers without --perf full" 0 "$(grep -c '"layers"' "$tmp/out")"
expect 0 '"layers": [{"calls": 0' env MOE_PERF=full $run $counted --json
expect 0 '"text"' $run $counted --json --perf off
equal "--perf off: objects in --json" 0 "$(grep -c '"perf"' "$tmp/out")"
echo old >"$perf"
say plain $counted
say counted $counted --perf full --perf-out "$perf"
same plain counted "an answer and the same one counted"
equal "--perf-out: lines, files" "1 1" "$(wc -l <"$perf") $(ls "$tmp" | grep -c '^perf.json')"
if [ -n "$python" ]; then
    if "$python" -c 'import json,sys; p = json.load(open(sys.argv[1]))
slots = p["tokens"] * p["n_layer"] * p["n_expert_used"]
sys.exit(not (p["tokens"] >= 3 and p["slots"]["cold"] == slots == sum(l["cold"] for l in p["layers"])))' "$perf"
    then ok; else bad "--perf-out: does not add up: $(cat "$perf")"; fi
else
    skip "reading JSON needs python3"
fi
# through a link, into a pipe: neither is replaced by a file
ln -s "$perf" "$tmp/perf.link"
expect 0 "" $run $counted --perf-out "$tmp/perf.link"
mkfifo "$tmp/perf.pipe"
timeout $wait_limit_s cat "$tmp/perf.pipe" >"$tmp/perf.read" &
reader=$!
expect 0 "" $run $counted --perf-out "$tmp/perf.pipe"
wait $reader
if [ -L "$tmp/perf.link" ] && [ -p "$tmp/perf.pipe" ] && grep -q '"mode":"update"' "$tmp/perf.read"; then ok
else bad "--perf-out: a link or a pipe was replaced"; fi
expect 0 "" $run $counted --ram $(($(least $run $counted) + 1))M --perf-out "$perf"
if grep -q '"ram_cache":{"hits":[0-9]*,"misses":[1-9]' "$perf" && grep -q '"drive":[1-9]' "$perf"; then ok
else bad "--perf-out from the drive: $(cat "$perf")"; fi
refuse 1 "/nonexistent/perf.json: cannot write" $run $counted --perf-out /nonexistent/perf.json
if [ -w /dev/full ]; then
    expect 1 "/dev/full: cannot write" $run $counted --perf-out /dev/full
    same plain out "an answer whose counts cannot be written"
fi

leaks_last
expect 0 "\"text\"" $run -m $tiny -p "Hello" -n 3 --json --stop zzz --logit-bias 5=1 --perf full --perf-out "$perf"
expect 1 "the context 10" $run -m $tiny --ctx 10 -p "Once upon a time there was a king."
expect 1 "of memory at least" env MOE_RAM_AVAILABLE=1M $run -m $tiny -p x
finish
