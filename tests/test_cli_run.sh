#!/bin/sh
# test_cli_run.sh BUILD - moe-run as the program that answers: what goes to stdout, what is refused
# and how, how it ends. Ends with "cli_run N passed, N failed".
set -u
area=cli_run
. tests/cli_harness.sh
holds() { if [ "$1" "$2" "$3" ]; then ok; else bad "$4: '$1' '$2' '$3'"; fi; }
tiny=$build/golden/models/tiny-qwen3next-f32.gguf        # noise, but fast
tinyoss=$build/golden/models/tiny-gptoss-f32.gguf

# say NAME ARGUMENTS...: keeps the answer as $tmp/NAME
say() {
    name=$1
    shift
    if "$run" "$@" >"$tmp/$name" 2>"$tmp/err" </dev/null; then ok; else bad "exit $?: $*"; fi
}
same() { if cmp -s "$tmp/$1" "$tmp/$2"; then ok; else bad "$3: $1 and $2 differ"; fi; }
differ() { if cmp -s "$tmp/$1" "$tmp/$2"; then bad "$3: $1 and $2 are the same"; else ok; fi; }

# ---- processors. Without a GPU a build that could use one says so, once, and goes on
if "$run" --version | grep -q "no GPU"; then
    refuse 1 "; use --device cpu" $run -m $tiny -p x -n 1 --device cuda
    "$run" -m $tiny -p x -n 1 --device auto >"$tmp/out" 2>"$tmp/err"
    said=$(grep -c "no GPU: CPU only" "$tmp/err") want=1
    if "$run" --version | grep -q "support: none"; then want=0; fi
    if [ "$said" -eq $want ]; then ok; else bad "'no GPU: CPU only' was said $said times"; fi
fi

# ---- answers of a given form
cat >"$tmp/person.json" <<END
{"properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 7,
 "maximum": 9}}, "required": ["name", "age"]}
END
printf 'root ::= "yes" | "no"\n' >"$tmp/yes.gbnf"
echo '{"properties": {"a": {"not": {}}}}' >"$tmp/not.json"
for m in $qwen $gptoss; do
    # reasoning is free, and not every seed comes to its end; two that do are enough, or one
    n=0
    for seed in 1 2 3 4 5; do
        [ $n -lt "$(rounds 5 1)" ] || break
        "$run" -m $m -p "Who are you?" -n 300 -q --seed $seed --json-schema "$tmp/person.json" >"$tmp/out" 2>"$tmp/err"
        if grep -qE '^\{"name": ?"([^"\\]|\\.)*", ?"age": ?[789]\}$' "$tmp/out"; then n=$((n + 1))
        elif grep -q '}' "$tmp/out"; then bad "$m, seed $seed: $(cat "$tmp/out")"; fi
    done
    if [ $n -gt 0 ]; then ok; else bad "$m: no answer of the schema's form"; fi
done
expect 0 "" $run -m $qwen -p x --raw -q --grammar "$tmp/yes.gbnf"
if grep -qxE "yes|no" "$tmp/out"; then ok; else bad "neither yes nor no: $(cat "$tmp/out")"; fi
refuse 2 '--json-schema: #/properties/a: unsupported keyword "not"' $run -m $tiny -p x --json-schema "$(cat "$tmp/not.json")"

# ---- help
if [ -w /dev/full ]; then                # help that nobody can read has failed
    for v in "moe-run run" "moe-run chat" "moe-run inspect" "moe-run tokenize" "moe-run render" "moe-run models" \
             "moe-bench decode" "moe-bench logits" "moe-bench synth" "moe-bench machine"; do
        $build/$v --help >/dev/full 2>"$tmp/err"
        if [ $? -eq 1 ] && grep -q "standard output: No space" "$tmp/err"; then ok; else bad "$v --help >/dev/full"; fi
    done
fi

# ---- files that are no models
sed 's/qwen3next/qwen9next/g' $tiny >"$tmp/other.gguf"
refuse 1 "other.gguf: " $run -m "$tmp/other.gguf" -p x
refuse 1 "qwen9next" $run -m "$tmp/other.gguf" -p x
refuse 1 "directory" $run -m "$tmp" -p x

# ---- prompts that are none, and too long ones
i=0; while [ $i -lt 200 ]; do echo "The quick brown fox jumps over the lazy dog and runs far away."; i=$((i + 1)); done >"$tmp/long.txt"
refuse 1 "Is a directory" $run -m $tiny -f "$tmp"
truncate -s 1G "$tmp/huge.txt"          # takes no room on the disk
refuse 1 "huge.txt: 1073741824 bytes are too many" $run -m $tiny -f "$tmp/huge.txt"
rm "$tmp/huge.txt"
refuse 1 "the model's context holds 4096: shorten" $run -m $tiny -f "$tmp/long.txt"

# ---- impossible values
refuse 2 "--stop: stop string 2 of 2 is not valid UTF-8" $run -m $tiny -p x --stop a --stop "$(printf '\303')"

# ---- memory
refuse 1 "no smaller context would do" env MOE_RAM_AVAILABLE=1M $run -m $tiny -p x
$run -m $tiny -p x --ram 0 >"$tmp/out" 2>"$tmp/err"
enough=$(least $run -m $tiny -p x)
if [ -n "$enough" ] && ! grep -q "use.*--ctx" "$tmp/err"; then ok; else bad "--ram 0: advice that helps, and no other"; fi
expect 0 "" $run -m $tiny -p x -n 4 --ram $((enough + 1))M
long="-m $qwen -p Hello -n 2 --threads 2 --ctx 4096"
few_mb=$(($(least $run $long) + 1))M
expect 0 "chunks of 32 tokens instead of 2048: memory is short" $run $long --ram $few_mb --chunk 2048
expect 0 "chunks of 32 tokens instead of 500: memory is short" $run $long --ctx 500 --ram $(($(least $run $long --ctx 500) + 1))M --chunk 2048
expect 0 '"chunk": 32,' $run $long --ram $few_mb --chunk 2048 --json
for few in "--ram $few_mb --chunk 32" "--ram $few_mb" "--ctx 500 --chunk 2048"; do
    expect 0 "" $run $long $few
    if grep -q "memory is short" "$tmp/err"; then bad "a chunk that fits, or was not asked for: $few"; else ok; fi
done
# a figure that was not to be had is measured again; all of them are kept
kept="$tmp/kept/moe/speeds.json"
few="$long $(rounds "" "--threads 1") --ram $few_mb"     # it takes two seconds of each thread
expect 0 "assumed" env XDG_CACHE_HOME="$tmp/kept" MOE_FAULT=read-error:0:1 $run $few
if [ ! -e "$kept" ]; then ok; else bad "speeds without the drive's were kept"; fi
if long_check; then                      # test_cli_user.sh has some measured and kept
    expect 0 "tok/s expected" env XDG_CACHE_HOME="$tmp/kept" $run $few
    if [ -s "$kept" ] && ! grep -q "assumed" "$tmp/err"; then ok; else bad "measured speeds were not kept"; fi
fi

# ---- experts from the drive: the same answer, whatever goes wrong on the way to them
for m in $(rounds "$qwen $gptoss" $gptoss); do
    few="--ctx 128 -p Hello --raw -n 12 --temp 0"
    want=$("$run" -m $m $few 2>/dev/null)
    small=$(($(least $run -m $m $few) + 1))M
    for fault in "" io-uring direct read-short read-short:3:2 io-uring,direct; do
        got=$(MOE_FAULT=$fault "$run" -m $m $few --ram $small 2>"$tmp/err")
        if [ "$got" = "$want" ] && [ -n "$got" ]; then ok; else bad "$m from the drive, $fault: $got"; fi
    done
    for policy in lru lcp fade; do
        got=$("$run" -m $m $few --ram $small --cache-policy $policy 2>"$tmp/err")
        if [ "$got" = "$want" ] && [ -n "$got" ]; then ok; else bad "$m from the drive, $policy: $got"; fi
    done
    expect 0 "bound by" $run -m $m $few --ram $small
    expect 0 "reading with threads" env MOE_FAULT=io-uring $run -m $m $few --ram $small
    expect 0 "through the page cache" env MOE_FAULT=direct $run -m $m $few --ram $small
    # from the sixth read on: a single one may be an early read, which is tried again
    refuse 1 "$m: cannot read at byte" env MOE_FAULT=read-error:5 $run -m $m $few --ram $small -q
    refuse 1 "was it cut while in use?" env MOE_FAULT=read-end:5 $run -m $m $few --ram $small -q
done

# ---- another number of experts: what it costs is measured and said; the model's own costs nothing
for m in $(rounds "$qwen $gptoss" $gptoss); do
    few="-m $m --ctx 300 -p Hello --raw -n 12 --temp 0"
    "$run" $few -q >"$tmp/own" 2>"$tmp/err"
    if [ -s "$tmp/own" ] && [ ! -s "$tmp/err" ]; then ok; else bad "$m: no flag, and something is said"; fi
    small=$(($(least $run $few --experts-used 4) + 2))M
    for where in "" "--ram $small"; do
        expect 0 "--experts-used 4 (the model's own: 4): KL 0 nats a token, over the last 64 of 256 tokens" $run $few -q --experts-used 4 $where
        if cmp -s "$tmp/out" "$tmp/own"; then ok; else bad "$m --experts-used 4 $where: another answer"; fi
    done
    last=0
    for n in 3 2 1; do                   # the fewer, the further off; more are off, too
        expect 0 "--experts-used $n (the model's own: 4): KL 0." $run $few -q --experts-used $n
        kl=$(sed -n 's/.*: KL 0\.\([0-9]*\) nats.*/\1/p' "$tmp/err" | sed 's/$/0000/; s/^\(....\).*/1\1/')
        if [ "${kl:-0}" -gt "$last" ]; then ok; else bad "$m: KL $kl with $n experts, $last with more"; fi
        last=$kl
    done
    if cmp -s "$tmp/out" "$tmp/own"; then bad "$m --experts-used 1: the model's own answer"; else ok; fi
    cp "$tmp/err" "$tmp/once"
    cp "$tmp/out" "$tmp/now"
    expect 0 ": KL 0." $run $few -q --experts-used 1 --threads 1 --ram $small
    if cmp -s "$tmp/err" "$tmp/once" && cmp -s "$tmp/out" "$tmp/now"; then ok
    else bad "$m --experts-used 1: another figure, or another answer, from the drive with one thread"; fi
    expect 0 ": KL 0." $run $few -q --experts-used 9
    refuse 1 "25 experts for a token: of this model's" $run $few --experts-used 25
    expect 0 '"experts_used": 2, "experts_used_kl": 0.' $run $few --experts-used 2 --json
    expect 0 '"experts_used": 4, "experts_used_kl": null' $run $few --json
    expect 0 "over the last 20 of 20 tokens" $run -m $m --ctx 20 -p Hello --raw -n 2 --experts-used 2
    expect 0 "--experts-used 2 (the model's own: 4): other answers" $run plan -m $m --experts-used 2
    expect 0 '"experts_used":2,' $run plan -m $m --experts-used 2 --json
    refuse 1 "25 experts for a token" $run plan -m $m --experts-used 25
done
printf 'Hello\n' >"$tmp/hello"
$run chat -m $tiny -n 2 --experts-used 2 <"$tmp/hello" >"$tmp/out" 2>"$tmp/err"
if [ $? -eq 0 ] && grep -q "experts-used 2 (the model's own: 4): KL [0-9]" "$tmp/err"; then ok; else bad "chat --experts-used"; fi

# ---- a choice that looks at what is in VRAM: without a GPU it changes nothing, and that is said
few="-m $tiny --ctx 64 -p Hello --raw -n 8 --temp 0 -q --device cpu"
say own $few
expect 0 "--skip-missing has no effect: no GPU is used" $run $few --skip-missing
if cmp -s "$tmp/out" "$tmp/own"; then ok; else bad "--skip-missing: another answer"; fi
expect 0 '"skip_missing": true, "cache_kl": null' $run $few --skip-missing --json
expect 0 '"skip_missing":false,' $run plan -m $tiny --json
$run chat -m $tiny -n 2 --skip-missing --device cpu <"$tmp/hello" >"$tmp/out" 2>"$tmp/err"
if [ $? -eq 0 ] && grep -q "skip-missing has no effect" "$tmp/err"; then ok; else bad "chat --skip-missing"; fi

# ---- the same answer, however it is asked for
base="-m $tiny --seed 7 -n 12 -q"
say a $base -p "Once upon a time"
if [ -s "$tmp/a" ] && [ ! -s "$tmp/err" ]; then ok; else bad "-q: no answer, or something on stderr"; fi
if [ "$(tail -c 1 "$tmp/a" | od -An -c | tr -d ' ')" = '\n' ]; then ok; else bad "no newline at the end"; fi
say b $base -p "Once upon a time"
same a b "same seed"
say b -m $tiny --seed 8 -n 12 -q -p "Once upon a time"
differ a b "another seed"
say b run $base -p "Once upon a time"
same a b "verb named"
say b $base -p "Once upon a time" --threads 1
same a b "one thread"
say b $base -p "Once upon a time" --ctx 64
same a b "another context"
printf 'Once upon a time\n' >"$tmp/prompt.txt"
say b $base -f "$tmp/prompt.txt"
same a b "-f"
$run $base - <"$tmp/prompt.txt" >"$tmp/b" 2>"$tmp/err"
same a b "- for standard input"
$run $base -f - <"$tmp/prompt.txt" >"$tmp/b" 2>"$tmp/err"
same a b "-f -"
printf 'a time' | $run $base -p "Once upon" - >"$tmp/b" 2>"$tmp/err"
say c $base -p "Once upon

a time"
same b c "-p and standard input"
MOE_MODEL=$tiny $run --seed 7 -n 12 -q -p "Once upon a time" >"$tmp/b" 2>"$tmp/err"
same a b "MOE_MODEL"
say b $base -p "Once upon a time" --system "Be brief."
differ a b "--system"
say b $base -p "Once upon a time" --raw
differ a b "--raw"
say b $base -p "Once upon a time" --temp 0
say c -m $tiny --seed 9 -n 12 -q -p "Once upon a time" --temp 0
same b c "greedy has no seed"
printf 'Once\000upon' >"$tmp/nul.txt"
say b $base -f "$tmp/nul.txt"
say b -m $tinyoss --seed 7 -n 4 -q -p "Hello" --kv q8_0 --chunk 3 --date 2026-01-31
say b -m $tiny -n 0 -q -p "Hello"
if [ ! -s "$tmp/b" ]; then ok; else bad "-n 0 said something"; fi

# ---- stop strings and biases: cut the answer from before at its fourth byte
cut=$(head -c 7 "$tmp/a" | tail -c 4)
for order in 1 2; do
    set -- --stop "never said" --stop "$cut"
    [ $order -eq 1 ] || set -- --stop "$cut" --stop "never said"
    say b $base -p "Once upon a time" "$@"
    if [ "$(head -n 1 "$tmp/b")" = "$(head -c 3 "$tmp/a")" ]; then ok
    else bad "--stop '$cut': $(cat "$tmp/b")"; fi
done
say b $base -p "Once upon a time" --logit-bias 64=1000
if [ "$(cat "$tmp/b")" = "aaaaaaaaaaaa" ]; then ok; else bad "--logit-bias: $(cat "$tmp/b")"; fi
say b -m $tiny -n 3 -q --raw -p "x" --logit-bias 510=1000
if [ "$(cat "$tmp/b")" = "<|im_start|><|im_start|><|im_start|>" ]; then ok; else bad "--raw shows control tokens: $(cat "$tmp/b")"; fi
say b -m $tiny -q -p "x" --logit-bias 511=1000
if [ ! -s "$tmp/b" ]; then ok; else bad "the model ended its turn, but: $(cat "$tmp/b")"; fi

# ---- what is said about it
expect 0 "tiny-qwen3next-f32.gguf: qwen3next, 1 thread, " $run -m $tiny -p "Hello" -n 3 --seed 42 --threads 1
if [ "$(wc -l <"$tmp/err")" -eq 2 ]; then ok; else bad "plan and end: two lines"; fi
line='^moe-run: [0-9]* prompt tokens at [0-9.]* tok/s, 3 answer tokens at [0-9.]* tok/s, peak memory [0-9.]* MB, seed 42, stopped: length$'
if grep -q "$line" "$tmp/err"; then ok; else bad "end line"; fi
if grep -q "$(printf '\033')" "$tmp/err" "$tmp/out"; then bad "escape sequences without a terminal"; else ok; fi

# ---- the demo model inside the program is the one in the tree
say b -q -p "Tell me a story." -n 4 --seed 1
say c -m $qwen -q -p "Tell me a story." -n 4 --seed 1
same b c "built-in demo model"

# ---- reasoning
say b -m $gptoss -p "Hello" -n 36 --seed 2 --temp 0.6 -q --show-reasoning --date ""
if [ "$(head -n 1 "$tmp/b")" = "<think>" ] && grep -q '^</think>$' "$tmp/b"; then ok; else bad "--show-reasoning: $(cat "$tmp/b")"; fi
say c -m $gptoss -p "Hello" -n 36 --seed 2 --temp 0.6 -q --date ""
sed '1,/^<\/think>$/d' "$tmp/b" | sed 1d >"$tmp/d"
if [ -s "$tmp/c" ]; then ok; else bad "no answer after the reasoning"; fi
same c d "the answer after the reasoning"

# ---- JSON
say j $base -p "Once upon a time" --json
for k in text reasoning stop prompt_tokens answer_tokens seconds tokens_per_second peak_memory_bytes seed \
         model settings temperature ctx kv; do
    if grep -q "\"$k\": " "$tmp/j"; then ok; else bad "--json: no $k"; fi
done
if [ "$(wc -l <"$tmp/j")" -eq 1 ] && grep -q '"seed": 7, ' "$tmp/j" && grep -q '"answer_tokens": 12, ' "$tmp/j"; then ok
else bad "--json: $(cat "$tmp/j")"; fi

# ---- a first start measures within --ram. Not with sanitizers, which take memory of their own.
first="$run -m $qwen -p Hello -n 3 --ctx 512"
if ! nm $run | grep -q -e __asan_init -e __tsan_init; then
    ram=$(advised $first)
    expect 0 '"text":' env XDG_CACHE_HOME="$tmp/unmeasured" $first --ram "${ram}M" --json
    peak=$(json_number peak_memory_bytes "$(sed 's/: /:/g; s/, /,/g' "$tmp/out")")
    if [ -s "$tmp/unmeasured/moe/speeds.json" ]; then ok; else bad "the first start measured nothing"; fi
    if [ "${peak:-0}" -gt 0 ] && [ "$peak" -le $((ram * 1048576)) ]; then ok
    else bad "a first start took $peak bytes with --ram ${ram}M"; fi
fi

# ---- ended from outside: a reader who leaves, a full disk, Ctrl-C
# Long enough that only these end it; a program that did not notice would run to its end.
forever="-m $gptoss -p Hello -n 7000 --seed 1 --show-reasoning --logit-bias 4095=-inf,4094=-inf,4093=-inf,4092=-inf,4091=-inf,4090=-inf,4089=-inf,4088=-inf"
{ $run $forever 2>"$tmp/err"; echo $? >"$tmp/rc"; } | head -c 1 >/dev/null
if [ "$(cat "$tmp/rc")" -eq 1 ]; then ok; else bad "closed pipe: exit $(cat "$tmp/rc")"; fi
if grep -q "error" "$tmp/err"; then bad "closed pipe: an error line"; else ok; fi
if [ -w /dev/full ]; then
    $run $forever >/dev/full 2>"$tmp/err"
    if [ $? -eq 1 ] && [ "$(grep -c error "$tmp/err")" -eq 1 ] && grep -q "standard output: No space" "$tmp/err"
    then ok; else bad "full disk"; fi
    $run -m $tiny -n 2 -p x --json >/dev/full 2>"$tmp/err"
    if [ $? -eq 1 ] && grep -q "standard output: No space" "$tmp/err"; then ok; else bad "full disk, --json"; fi
fi
# The signal comes with the first byte of the answer; all that was written stays. Whoever started
# us in the background may have switched off SIGINT: the program respects that.
signals="INT:130 TERM:143"
case $(sed -n 's/^SigIgn:.*\(.\)$/\1/p' /proc/self/status 2>/dev/null) in
    [2367abefABEF]) signals=TERM:143 ;;
esac
for s in $signals; do
    { sh -c 'echo $$ >"$0"; exec "$@"' "$tmp/pid" $run $forever 2>"$tmp/err"; echo $? >"$tmp/rc"; } |
        { dd bs=1 count=1 2>/dev/null; kill -"${s%:*}" "$(cat "$tmp/pid")"; cat; } >"$tmp/out"
    if [ "$(cat "$tmp/rc")" -eq "${s#*:}" ]; then ok; else bad "$s: exit $(cat "$tmp/rc")"; fi
    if grep -q "stopped: interrupted" "$tmp/err"; then ok; else bad "$s: no end line"; fi
    if [ "$(tail -c 1 "$tmp/out" | od -An -c | tr -d ' ')" = '\n' ]; then ok; else bad "$s: no newline at the end"; fi
done

# Ctrl-C while the program waits for a reader who does not read. The signal is sent when the program
# sleeps; if it slept for another reason, the test is too lenient, but never wrong.
cat >"$tmp/blocked.py" <<'P'
import fcntl, os, signal, subprocess, sys, time
patience, stdin, argv = int(sys.argv[1]), sys.argv[2].encode(), sys.argv[3:]
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
asleep, end = 0, time.time() + patience
while asleep < 20 and time.time() < end and p.poll() is None:
    state = open("/proc/%d/stat" % p.pid).read().rsplit(")", 1)[1].split()[0]
    asleep = asleep + 1 if state == "S" else 0
    time.sleep(0.01)
p.send_signal(signal.SIGINT)
try: p.wait(timeout=patience)
except subprocess.TimeoutExpired: p.kill()
p.wait()
said = p.stderr.read()
if p.returncode != 130 or b"error" in said: sys.exit("exit %d: %r" % (p.returncode, said))
P
if [ "$python" ] && "$python" -c 'import fcntl' 2>/dev/null && [ -r /proc/self/stat ]; then
    # blocked STDIN PROGRAM...
    blocked() {
        if "$python" "$tmp/blocked.py" $patience "$@" 2>"$tmp/err"; then ok; else bad "nobody reads: $*"; fi
    }
    printf '300 301 302 303 304 305\n' >"$tmp/ids.txt"
    blocked "" $run $forever
    blocked "" $run -q $forever --json -n 20
    blocked "Hello
" $run chat -m $gptoss -n 7000 --show-reasoning --logit-bias 4095=-inf,4093=-inf,4089=-inf
    blocked "" $build/moe-bench logits -m $tiny --ids "$tmp/ids.txt" -o -
else
    skip "a reader who does not read needs python3 and /proc"
fi

# ---- what a run saw of its experts: written, added to; a file of another model, or a damaged one,
# is left as it is
seen="$tmp/seen.json"
expect 0 "" $run -q -m $gptoss --raw -p Hello -n 4 --temp 0 --learn "$seen"
holds "$(grep -c '"runs":1,' "$seen")" -eq 1 "--learn: one run"
cp "$seen" "$tmp/seen.behind" && chmod 640 "$tmp/seen.behind" && ln -s seen.behind "$tmp/seen.link"
expect 0 "" $run -q -m $gptoss --raw -p Hello -n 4 --temp 0 --learn "$tmp/seen.link"
if [ -L "$tmp/seen.link" ] && grep -q '"runs":2,' "$tmp/seen.behind" && [ "$(stat -c %a "$tmp/seen.behind")" = 640 ]
then ok; else bad "--learn: through a link: $(ls -l "$tmp"/seen.*)"; fi
expect 0 "" env MOE_LEARN="$seen" $run -q -m $gptoss --raw -p Hello -n 4 --temp 0
holds "$(grep -c '"runs":2,' "$seen")" -eq 1 "MOE_LEARN: two runs"
cp "$seen" "$tmp/before.json"
expect 0 "nothing was learnt" $run -q -m $qwen --raw -p Hello -n 2 --learn "$seen"
if cmp -s "$seen" "$tmp/before.json"; then ok; else bad "--learn: another model's profile was changed"; fi
printf '{' >"$tmp/half.json"
expect 0 "nothing was learnt" $run -q -m $qwen --raw -p Hello -n 2 --learn "$tmp/half.json"
expect 0 "nothing was learnt" $run -q -m $qwen --raw -p Hello -n 2 --learn /nonexistent/seen.json

# ---- counts: an object in --json, a file that is replaced in one step, neither if nothing is counted
counted="-q -m $qwen --raw -p Hello -n 4 --temp 0"
expect 0 '"perf": {"format": "moe-perf", "version": 1, "mode": "update"' $run $counted --json
if grep -q '"layers"' "$tmp/out"; then bad "--json: layers without --perf full"; else ok; fi
expect 0 '"layers": [{"calls": 0' $run $counted --json --perf full
expect 0 '"mode": "full"' env MOE_PERF=full $run $counted --json
expect 0 '"text"' $run $counted --json --perf off
if grep -q '"perf"' "$tmp/out"; then bad "--perf off: an object in --json"; else ok; fi
perf="$tmp/perf.json"
echo old >"$perf"
say plain $counted
say counted $counted --perf full --perf-out "$perf"
same plain counted "an answer and the same one counted"
holds "$(wc -l <"$perf")" -eq 1 "--perf-out: one line"
holds "$(ls "$tmp" | grep -c '^perf.json')" -eq 1 "--perf-out: nothing beside it"
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
if [ -L "$tmp/perf.link" ]; then ok; else bad "--perf-out: a link became a file"; fi
mkfifo "$tmp/perf.pipe"
timeout 60 cat "$tmp/perf.pipe" >"$tmp/perf.read" &
reader=$!
expect 0 "" $run $counted --perf-out "$tmp/perf.pipe"
wait $reader
if [ -p "$tmp/perf.pipe" ] && grep -q '"mode":"update"' "$tmp/perf.read"; then ok; else bad "--perf-out: into a pipe"; fi
# standard output that is closed from the beginning is no file of ours
for v in "moe-run -m $tiny -p x -n 2" "moe-bench decode -m $tiny -p 2 -n 1 -r 1" "moe-run plan -m $tiny"; do
    timeout 60 $build/$v >&- 2>"$tmp/err"
    if [ $? -eq 1 ] && grep -q "standard output: " "$tmp/err"; then ok; else bad "$v >&-: $(cat "$tmp/err")"; fi
done
expect 0 "" $run $counted --ram $(($(least $run $counted) + 1))M --perf-out "$perf"
if grep -q '"ram_cache":{"hits":[0-9]*,"misses":[1-9]' "$perf" && grep -q '"drive":[1-9]' "$perf"; then ok
else bad "--perf-out from the drive: $(cat "$perf")"; fi
refuse 2 "nothing to write" $run -m $tiny -p x --perf off --perf-out "$perf"
refuse 1 "/nonexistent/perf.json: cannot write" $run $counted --perf-out /nonexistent/perf.json
if [ -w /dev/full ]; then
    expect 1 "/dev/full: cannot write" $run $counted --perf-out /dev/full
    same plain out "an answer whose counts cannot be written"
fi

# ---- once more, with a sanitizer build looking for leaks
export ASAN_OPTIONS=detect_leaks=1
expect 0 "\"text\"" $run -m $tiny -p "Hello" -n 3 --json --stop zzz --logit-bias 5=1 --perf full --perf-out "$perf"
expect 0 "stopped" $run -m $tinyoss -p "Hello" -n 3
expect 1 "the context 10" $run -m $tiny --ctx 10 -p "Once upon a time there was a king."
expect 1 "of memory at least" env MOE_RAM_AVAILABLE=1M $run -m $tiny -p x

finish
