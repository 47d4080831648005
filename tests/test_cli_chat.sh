#!/bin/sh
# test_cli_chat.sh BUILD - moe-run chat as a script and as a person see it: repeatable answers,
# commands, saved chats, a full context, Ctrl-C. Ends with "cli_chat N passed, N failed".
set -u
area=cli_chat
. tests/cli_harness.sh
chat="$run chat"
[ "${TEST_THREADS:-}" ] || export MOE_THREADS=1       # with other tests the fastest

holds() { if [ "$1" "$2" "$3" ]; then ok; else bad "$4: '$1' '$2' '$3'"; fi; }
same() { if cmp -s "$1" "$2"; then ok; else bad "$3"; diff "$1" "$2" | head -4; fi; }
differ() { if cmp -s "$1" "$2"; then bad "$3"; else ok; fi; }
said() { if grep -qF -e "$1" "$tmp/err"; then ok; else bad "'$1' not said: $2"; fi; }

# talk CODE OUT LINES FLAGS...: a piped chat that ends with that code; what it says is in err
talk() {
    want=$1 to=$2 said=$3
    shift 3
    printf "$said" | timeout $wait_limit_s $chat "$@" >"$tmp/$to" 2>"$tmp/err"
    holds $? -eq $want "exit code after $(echo $said) $*"
}
lines() { holds "$(wc -l <"$tmp/err")" -eq "$1" "$2: lines on stderr"; }
counted() { holds "$(grep -c -e "$2" "$tmp/err")" -eq "$1" "$3"; }
silent() { if [ -s "$tmp/$1" ]; then bad "$2"; else ok; fi; }

# Answers of one line each: answer N of a chat is its line 2 N - 1.
short="-m $qwen -n 4"
newline='
'
answer() { sed -n "$((2 * $1 - 1))p" "$tmp/$2"; }
equal() {                                # two empty answers would prove nothing
    holds "$(answer "$1" "$2")" = "$(answer "$3" "$4")" "$5"
    [ -n "$(answer "$1" "$2")" ] || bad "no answer: $5"
}
unequal() { holds "$(answer "$1" "$2")" != "$(answer "$3" "$4")" "$5"; }

# ---- repeatable, and nothing but answers on stdout
a='Tell me.\n' b='And?\n' c='Who?\n'
talk 0 two "$a$b" -m $qwen -n 6 --seed 7
if [ -s "$tmp/two" ] && [ ! -s "$tmp/err" ]; then ok; else bad "no answer, or noise on stderr"; fi
talk 1 again "$a\n  \n/nonsense\n$b" -m $qwen -n 6 --seed 7
same "$tmp/two" "$tmp/again" "the same seed gave another conversation"
said "unknown command /nonsense: /help" "unknown command"
lines 1 "an unknown command is one line"
talk 0 other "$a" -m $qwen -n 6 --seed 8
head -c "$(wc -c <"$tmp/other")" "$tmp/two" >"$tmp/begin"
differ "$tmp/begin" "$tmp/other" "another seed gave the same answer"
$build/moe-run run -m $qwen -n 6 --seed 7 -p "Tell me." 2>"$tmp/err" >"$tmp/run"
{ cat "$tmp/run"; echo; } >"$tmp/want"
head -c "$(wc -c <"$tmp/want")" "$tmp/two" >"$tmp/begin"
same "$tmp/want" "$tmp/begin" "not the first answer of moe-run run, then an empty line"
talk 0 demo "$a" -n 6 --seed 7
said "demo model" "no -m"
same "$tmp/run" "$tmp/demo" "the built-in model is another one"
talk 0 none ''
silent none "an answer to nothing"
talk 0 quit "/quit\n$a" -m $qwen
silent quit "/quit did not leave"

# ---- several lines in one message
r='/reset\n'
m='One\\\nTwo\n'$r'"""\nOne\nTwo\n"""\n'$r'One\\\r\nTwo\r\n'$r
m=$m'//help\n'$r'"""\n/help\n"""\n'$r'One\n'
talk 0 lines "$m" $short --temp 0 --stop "$newline"
equal 1 lines 2 lines "a backslash and a block mean different messages"
equal 1 lines 3 lines "lines that end in CR LF"
equal 4 lines 5 lines "// and a block that begins with a slash mean different messages"
unequal 1 lines 6 lines "the second line was not seen"
unequal 1 lines 4 lines "the message was not seen"

# ---- commands
talk 0 out '/help\n' -m $qwen
for w in /reset /stats /save /load /system /undo /retry /quit; do said "$w" "/help"; done
m="$a$b/undo\n$b/retry\n$c/undo\n/reset\n$c/system The king died.\n$c"
talk 0 all "$m" $short --temp 0 --stop "$newline"
equal 2 all 3 all "/undo left something"
equal 3 all 4 all "/retry at temperature 0 gave another answer"
talk 0 alone "$c" $short --temp 0 --stop "$newline"
equal 6 all 1 alone "/reset left something"
unequal 6 all 5 all "the conversation is not seen"
talk 0 flag "$c" $short --temp 0 --stop "$newline" --system 'The king died.'
equal 7 all 1 flag "/system is not --system and /reset"
unequal 7 all 6 all "the system prompt is not seen"
talk 0 warm "$a/stats\n/retry\n/stats\n" $short --temp 1 --seed 7 --stop "$newline"
unequal 1 warm 2 warm "/retry gave the same answer"
said "answer 4 tokens" "/stats of the last turn"
said "peak" "/stats of memory"
said "2 answers drawn" "/retry draws anew"
counted 2 ', 1 exchange' "/retry replaces the answer"
# without a chat format, too, the message is not read again
LC_ALL=C sed 's/<|im_start|>/<|xx_start|>/g' $qwen >"$tmp/raw.gguf"
talk 0 out "A fox walks over the hill.\n/retry\n" -m "$tmp/raw.gguf" -n 4 --verbose
said "messages are joined without any markup" "a template of no known format"
n=$(sed -n 's/^prompt \([0-9]*\) tokens (0 reused).*/\1/p' "$tmp/err" | head -n 1)
said "prompt $n tokens ($((n - 1)) reused)" "/retry without a chat format"
rm "$tmp/raw.gguf"
few="$short --temp 0 --ctx 512"
few="$few --ram $(($(least $run $few -p Hello) + 2))M"
talk 0 out "$a$b/stats\n" $few --perf-out "$tmp/perf.json"
said "reads in RAM; " "/stats of experts from the drive"
holds "$(grep -c '"mode":"update"' "$tmp/perf.json")" -eq 1 "--perf-out of a chat"
talk 0 out "$a/stats\n" $few --perf off
if grep -q "reads in RAM" "$tmp/err"; then bad "--perf off: /stats shows counts"; else ok; fi
talk 0 out '/stats\n/system\n/system X y.\n/system\n/system -\n/system\n' -m $qwen
said "context   0 of 4,096 tokens" "/stats before anything was said"
said "system prompt: X y." "/system shows it"
counted 2 'prompt: none' "no system prompt before and after"
for x in /undo /retry "/reset now" /save; do
    talk 1 out "$x\n" -m $qwen
    lines 1 "$x: not one line"
done
talk 1 out 'a\377b\n' -m $qwen
said "not UTF-8" "a message that is not UTF-8"

# ---- saved chats: the rest of the conversation is that of an uninterrupted one
for m in $qwen $gptoss; do
    n=5 f=$tmp/$(basename $m).chat
    [ $m = $qwen ] || n=16               # it thinks before it answers
    talk 0 whole "$a$b/save $f\n$c" -m $m -n $n --seed 2 --temp 0.7 --date 2026-11-15 --system 'Be kind.' --stop "$newline"
    said "saved $f: 2 exchanges" "/save"
    talk 0 rest "$c/load $f\n$c/save $f.again\n/save $f.again\n" -m $m -n $n --load "$f" --stop "$newline"
    equal 3 whole 1 rest "--load goes on differently: $m"
    equal 3 whole 2 rest "/load goes on differently: $m"
    said "loaded $f: 2 exchanges" "/load"
    said "saved $f.again: 3 exchanges" "/save over an older chat"
done

# ---- files that are refused, each with one line, and the conversation stays
f=$tmp/$(basename $qwen).chat
cp $qwen "$tmp/model.gguf"
head -c 3000 "$f" >"$tmp/cut"
{ head -c 1000 "$f"; printf 'X'; tail -c +1002 "$f"; } >"$tmp/damaged"
n=0 loads=
for x in "$(basename $gptoss).chat" cut damaged model.gguf none.chat ""; do
    loads="$loads/load $tmp/$x\n" n=$((n + 1))
done
talk 1 out "$a$loads$b" -m $qwen -n 6 --seed 7
counted $n "^moe-run: error: $tmp/" "/load of a bad file: one line that names it"
lines $n "/load of a bad file: not one line"
same "$tmp/two" "$tmp/out" "a refused /load changed the conversation"
for x in "$(basename $gptoss).chat" none.chat; do
    talk 1 out "$a" -m $qwen --load "$tmp/$x"
    silent out "--load $x went on"
done
HOME=$tmp talk 1 out "/save $tmp/model.gguf\n/save $tmp/none/x\n/save ~/home.chat\n" -m $qwen
same $qwen "$tmp/model.gguf" "/save overwrote a model"
said "$tmp/none/x: " "/save names the file"
if [ -s "$tmp/home.chat" ]; then ok; else bad "/save does not know ~/"; fi

# Only an older chat, or nothing, is overwritten; what a link points to is saved, not the link.
mkfifo "$tmp/fifo" && mkdir "$tmp/folder"
: >"$tmp/secret" && chmod 0 "$tmp/secret"
cp "$f" "$tmp/old.chat"
ln -s old.chat "$tmp/link.chat"
ln -s model.gguf "$tmp/link.gguf"
ln -s nothing "$tmp/link.none"
for x in fifo:"no file" folder:"no file" secret:"cannot be read" link.gguf:"no saved chat" link.none:"a link to"; do
    [ "${x%:*}" != secret ] || [ ! -r "$tmp/secret" ] || continue        # root reads everything
    talk 1 out "/save $tmp/${x%%:*}\n" -m $qwen
    said "$tmp/${x%%:*}: is " "/save to $x"
    said "${x#*:}" "/save to $x"
    lines 1 "/save to $x: not one line"
done
if [ -p "$tmp/fifo" ] && [ -L "$tmp/link.gguf" ] && [ -L "$tmp/link.none" ]; then ok; else bad "/save replaced something"; fi
same $qwen "$tmp/model.gguf" "/save overwrote a model through a link"
talk 0 out "$a/save $tmp/link.chat\n" $short
if [ -L "$tmp/link.chat" ]; then ok; else bad "/save replaced the link"; fi
differ "$f" "$tmp/old.chat" "/save through a link did not reach the file"

# A date given by flag beats the file's, and is kept.
talk 0 out "$a/save $tmp/dated.chat\n" -m $gptoss -n 2 --date 2020-02-02
talk 0 out "/save $tmp/kept.chat\n/load $tmp/dated.chat\n" -m $gptoss --load "$tmp/dated.chat"
talk 0 out "/save $tmp/given.chat\n" -m $gptoss --load "$tmp/dated.chat" --date 2021-03-03
for x in dated:2020-02-02 kept:2020-02-02 given:2021-03-03; do
    if grep -aq "\"date\":\"${x#*:}\"" "$tmp/${x%:*}.chat"; then ok; else bad "the date of $x"; fi
done

# ---- a full context is said, and nothing is lost
long=$(printf 'word %.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20)
talk 1 full "$a/stats\n$long $long\n/stats\n$b" -m $qwen -n 4 --ctx 50 --temp 0 --stop "$newline"
said "the context holds 50" "a message that does not fit"
counted 2 ', 1 exchange' "the conversation after a message that did not fit"
equal 2 full 2 all "a message that did not fit changed the conversation"
talk 1 out "$a$b/undo\n$a" -m $qwen --ctx 30 --logit-bias 4095=-inf --logit-bias 4093=-inf --temp 0
said "the context holds 30" "a message into a full context"
holds "$(grep -c 'the context of 30 tokens is full: /undo, /reset' "$tmp/err")" -eq 2 \
    "after /undo there is room again"

# ---- a full disk
if [ -w /dev/full ]; then
    printf "$a$b" | $chat -m $qwen -n 4 >/dev/full 2>"$tmp/err"
    holds $? -eq 1 "full disk"
    said "standard output" "full disk"
fi

# ---- a model file that is cut while it is in use: one line, and the end
answered() { [ -s "$tmp/out" ] || ! kill -0 $pid 2>/dev/null; }
for m in $(rounds "$qwen $gptoss" $gptoss); do
    cp $m "$tmp/cut.gguf"
    mkfifo "$tmp/talk"
    : >"$tmp/out"
    timeout $wait_limit_s $chat -m "$tmp/cut.gguf" -n 4 --show-reasoning <"$tmp/talk" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    exec 3>"$tmp/talk"
    printf "$a" >&3
    wait_until "$m: there is no answer" answered
    truncate -s 4096 "$tmp/cut.gguf"
    (trap '' PIPE; printf "$b" >&3) 2>/dev/null  # it may have ended within the first answer
    exec 3>&-
    wait $pid
    holds $? -eq 1 "$m: cut while in use"
    said "moe-run: error: $tmp/cut.gguf: cannot be read any more: it was changed while in use" "$m: cut while in use"
    lines 1 "$m: cut while in use: not one line"
    rm "$tmp/talk" "$tmp/cut.gguf"
done

# ---- nothing was typed at a terminal yet, so there is no history
if [ -e "$tmp/state" ]; then bad "a pipe left $(ls -R "$tmp/state")"; else ok; fi

# ---- at a terminal. Waits for what should appear, never for a time.
cat >"$tmp/person.py" <<'P'
import fcntl, os, pty, re, select, signal, struct, subprocess, sys, termios, time
program, state, gptoss, limit_s, results = *sys.argv[1:4], int(sys.argv[4]), []
# a background job starts with SIGINT ignored
signal.signal(signal.SIGINT, signal.default_int_handler)

def check(ok, what, seen=b""):
    results.append("ok" if ok else "bad " + what + ": " + repr(seen[-300:]))

class Person:
    def __init__(self, *flags, ignored=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            if ignored: signal.signal(ignored, signal.SIG_IGN)
            self.start([program, "chat", *flags])
        self.seen, self.at = b"", 0
    def start(self, argv):           # in lines that hold a path of any length
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 400, 0, 0))
        os.environ["TERM"] = "xterm"
        os.execv(argv[0], argv)
    def read(self, limit):
        if not select.select([self.fd], [], [], limit)[0]: return False
        try: piece = os.read(self.fd, 65536)
        except OSError: piece = b""
        self.seen += piece
        return piece != b""
    def until(self, what, ready):    # reads meanwhile; says what did not come within the limit
        end = time.time() + limit_s
        while not ready():
            if time.time() > end or not self.read(0.2) and self.gone() and not ready():
                check(False, "%d s, and no %r" % (limit_s, what), self.seen[self.at:])
                return False
        return True
    def wait(self, text):            # what comes after what was waited for before
        if not self.until(text, lambda: text in self.seen[self.at:]): return False
        self.at = self.seen.index(text, self.at) + len(text)
        return True
    def more(self, n):               # n more bytes, bars not counted
        self.at = len(self.seen)
        ok = self.until("%d more bytes" % n,
                        lambda: len(re.sub(rb"\r[^\r\n]*\x1b\[K", b"", self.seen[self.at:])) >= n)
        self.at = len(self.seen)
        return ok
    def is_quiet(self):              # the terminal neither echoes nor waits for whole lines
        return not termios.tcgetattr(self.fd)[3] & (termios.ICANON | termios.ECHO)
    def gone(self):
        try: os.kill(self.pid, 0)
        except OSError: return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    def type(self, text): os.write(self.fd, text)
    def types(self, text, what, *answers):   # each of them after the one before
        self.type(text)
        check(all(self.wait(a) for a in answers), what, self.seen)
    def code(self):                  # that it leaves with
        if not self.until("end", self.gone): os.kill(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
    def leaves(self, what):          # at Ctrl-D
        self.type(b"\x04")
        check(self.code() == 0, what, self.seen)
    def answering(self, n):          # n bytes of an answer that goes on until it is stopped
        self.wait(b"> ")
        self.type(b"Go on.\r")
        self.more(n)
        return self

# A person with a shell that has job control: it takes the terminal back when the program stops or
# ends, and then reports the terminal's mode; what was typed for it is left there.
class Job(Person):
    def __init__(self, *argv, out=None):
        (self.reports, report), (go, self.go) = os.pipe(), os.pipe()
        self.argv, self.out = [program, *argv], out
        self.pid, self.fd = pty.fork()
        if self.pid == 0: self.shell(report, go)
        self.seen, self.at = b"", 0
        os.close(report)
        self.job = int(self.tell())
    def shell(self, report, go):
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        for fd in (self.reports, self.go): os.close(fd)
        start, started = os.pipe()
        job = os.fork()
        if job == 0:
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.read(start, 1)
            if self.out: os.dup2(os.open(self.out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            self.start(self.argv)
        os.setpgid(job, job)
        os.tcsetpgrp(0, job)
        os.write(started, b"x")
        os.write(report, b"%d\n" % job)
        while True:
            status = os.waitpid(job, os.WUNTRACED)[1]
            os.tcsetpgrp(0, os.getpgrp())
            lines = termios.tcgetattr(0)[3] & (termios.ICANON | termios.ECHO)
            whole = lines == termios.ICANON | termios.ECHO
            if not os.WIFSTOPPED(status): break
            os.write(report, b"stopped %d\n" % whole)
            os.read(go, 1)
            os.tcsetpgrp(0, job)
            os.killpg(job, signal.SIGCONT)
        left = os.read(0, 1000) if select.select([0], [], [], 0)[0] else b""
        os.write(report, b"%d %r %d\n" % (os.waitstatus_to_exitcode(status), left, whole))
        os._exit(0)
    def tell(self):                  # the shell's next line
        line = b""
        def ready():
            nonlocal line
            while line[-1:] != b"\n" and select.select([self.reports], [], [], 0)[0]:
                piece = os.read(self.reports, 1)
                if not piece: break
                line += piece
            return line[-1:] == b"\n"
        self.until("report of the shell", ready)
        return line.decode().strip()
    def go_on(self): os.write(self.go, b"x")

# an answer that goes on until it is stopped
endless = "--seed", "7", "--logit-bias", "4095=-inf,4093=-inf"
p = Person(*endless)
check(p.wait(b"Ctrl-D leaves") and p.wait(b"> "), "greeting", p.seen)
p.types("Erzähl mir etwas, bitte: grüße.\r".encode(), "UTF-8 is echoed", "grüße.\r\n".encode())
p.more(30)
p.types(b"\x03", "Ctrl-C brings the prompt back", b"^C", b"> ")
check(b"/quit leaves" not in p.seen, "that Ctrl-C is forgotten", p.seen)
p.types(b"/stats\r", "the answer was stopped", b"(interrupted)", b"> ")
p.types(b"/save " + os.path.join(state, "stopped.chat").encode() + b"\r", "/save of it",
        b"saved", b"1 exchange", b"> ")
kept = open(os.path.join(state, "stopped.chat"), "rb").read()
kept = kept[kept.index(b'"messages"'):].split(b'"role":"assistant","content":"')
check(len(kept) == 2 and kept[1][:1] != b'"', "the stopped answer is kept", kept[0])
p.types(b"half a li\x03", "Ctrl-C at the prompt", b"/quit leaves", b"> ")
p.type(b"/retry\r")
p.more(30)
os.kill(p.pid, signal.SIGINT)
check(p.wait(b"> "), "SIGINT brings the prompt back", p.seen)
p.types(b"/res\t\r", "Tab completes", b"is cleared", b"> ")
p.types(b"\x1b[A" * 5 + b"\r", "an older line comes back", "grüße.\r\n".encode())
p.more(30)
p.types(b"\x03", "Ctrl-C brings the prompt back once more", b"> ")
p.types(b"/stats\r", "and is answered", b", 1 exchange", b"3 answers drawn", b"> ")
p.leaves("Ctrl-D leaves with 0")
history = os.path.join(state, "moe-run", "history")
check("grüße" in open(history, encoding="utf8").read(), "history is kept")
check(os.stat(history).st_mode & 0o777 == 0o600, "history is private")

# a history that is too long is cut; SIGTERM at the prompt leaves
with open(history, "a") as f: f.write("".join("line %d\n" % i for i in range(1500)))
p = Person()
p.wait(b"> ")
p.types(b"\x1b[A", "history of an earlier chat", b"line 1499")
os.kill(p.pid, signal.SIGTERM)
check(p.code() == 143, "SIGTERM at the prompt", p.seen)
lines = open(history).read().splitlines()
check(len(lines) == 1000 and lines[-1] == "line 1499", "history is cut to 1000, %d" % len(lines))

# a second Ctrl-C before the first one is handled ends nothing
p = Person(*endless, "--threads", "1", "--isa", "scalar")
p.wait(b"> ")
p.type(b"Go on.\r")
alive = True
for i in range(10):
    p.more(20)
    for k in range(2):
        os.kill(p.pid, signal.SIGINT)
        for look in range(1000):         # until it has arrived
            if not re.search(rb"ShdPnd:\s*0*2\n", open("/proc/%d/status" % p.pid, "rb").read()): break
    if p.gone(): alive = False
    else: p.type(b"/stats\r")
    alive = alive and p.wait(b"memory ") and p.wait(b"> ")
    if not alive: break
    p.type(b"/retry\r")
check(alive, "Ctrl-C twice", p.seen)
if alive:
    p.type(b"\x03")
    p.wait(b"> ")
    p.leaves("Ctrl-D after all that")

# a signal that was ignored at the start stays ignored after another one
p = Person(ignored=signal.SIGTERM)
p.wait(b"> ")
p.types(b"\x03", "Ctrl-C without SIGTERM", b"/quit leaves", b"> ")
os.kill(p.pid, signal.SIGTERM)
p.types(b"/stats\r", "SIGTERM stays ignored", b"memory ", b"> ")
p.leaves("and Ctrl-D leaves")

# /retry that is stopped before an answer comes leaves the earlier one: here an answer that was cut
# while the model was thinking, which it never ends
def messages(name):
    kept = open(name, "rb").read()
    return kept[kept.index(b'"messages"'):].split(b"]}")[0]
p = Person("-m", gptoss, "-n", "400", "--seed", "2", "--temp", "0.6", "--date", "", "--logit-bias",
           "4095=-inf,4093=-inf,4089=-inf")
p.wait(b"> ")
p.types(b"Hello\r", "it thinks and thinks", b"cut after 400 tokens", b"> ")
one, two = os.path.join(state, "one.chat"), os.path.join(state, "two.chat")
p.type(b"/save " + one.encode() + b"\r")
p.wait(b"saved")
p.types(b"/retry\r", "/retry", b"thinking...")
p.types(b"\x03", "the earlier answer stays", b"the earlier one stays", b"> ")
p.types(b"/save " + two.encode() + b"\r", "/save after a stopped /retry", b"saved", b"> ")
p.leaves("Ctrl-D after a stopped /retry")
check(b"assistant" in messages(one) and messages(one) == messages(two), "it is the earlier one")

# what is typed during an answer is not seen in it and belongs to the next prompts, Ctrl-D as well
p = Person(*endless)
p.wait(b"Ctrl-D leaves") and p.wait(b"> ")
check(p.is_quiet(), "no echo at the prompt")
p.type(b"Go on.\r")
p.more(30)
check(p.is_quiet(), "no echo during an answer")
from_here = len(p.seen)
p.type(b"/st")
p.more(20)
p.type(b"ats\r\x04")
p.more(20)
p.type(b"\x03")
check(p.wait(b"^C") and b"/st" not in p.seen[from_here:p.at], "an answer with what was typed", p.seen)
check(p.wait(b"/stats") and p.wait(b"memory "), "a line typed during an answer", p.seen)
check(p.code() == 0, "Ctrl-D typed during an answer leaves after it", p.seen)

# keys keep their order, however fast they come
p = Person(*endless)
p.wait(b"> ")
p.types(b"nothing\x03/stats\r", "Ctrl-C and a line at once",
        b"/quit leaves", b"> ", b"memory ", b"> ")
check(b"unknown" not in p.seen, "the line before Ctrl-C is given up", p.seen)
p.types(b"Go on.\r\x03/stats\r", "a message, Ctrl-C and a line at once",
        b"^C", b"/stats", b"memory ", b"> ")
p.leaves("and Ctrl-D leaves")

# what is typed behind /quit is the shell's, and so is the terminal
p = Job("chat", *endless).answering(20)
p.type(b"/quit\rls -l\n")
p.type(b"\x03")
end = p.tell()
check(end == "0 b'ls -l\\n' 1", "what the shell finds after /quit: " + end, p.seen)
p.code()
p = Job("chat", *endless).answering(20)
os.kill(p.job, signal.SIGSTOP)
p.tell()
os.kill(p.job, signal.SIGTERM)
p.go_on()
end = p.tell()
check(end == "143 b'' 1", "the terminal after SIGTERM during an answer: " + end, p.seen)
p.code()

# Ctrl-Z between two tokens and at the prompt: the shell gets its terminal, and the answer is the same
def answered(stops):
    name = os.path.join(state, "stops%d.chat" % stops)
    p = Job("chat", *endless, "--date", "")
    p.wait(b"> ")
    p.type(b"Go on.\r")
    for i in range(stops):
        p.more(20)
        if i % 2: os.kill(p.job, signal.SIGTSTP)
        else: p.type(b"\x1a")
        check(p.tell() == "stopped 1", "Ctrl-Z during an answer", p.seen)
        p.go_on()
        check(p.more(20) and p.is_quiet(), "the terminal after Ctrl-Z during an answer", p.seen)
    p.more(200)
    p.type(b"\x03")
    p.wait(b"> ")
    p.type(b"/save " + name.encode())
    for i in range(stops):
        p.wait(b".chat")
        p.type(b"\x1a")
        check(p.tell() == "stopped 1", "Ctrl-Z at the prompt", p.seen)
        p.go_on()
    p.types(b"\r", "a line with Ctrl-Z in it", b"saved", b"> ")
    p.type(b"\x04")
    check(p.tell() == "0 b'' 1", "Ctrl-D after Ctrl-Z", p.seen)
    p.code()
    return messages(name).split(b'"assistant"')[1].rstrip(b'"}')

def run(stops):
    name = os.path.join(state, "stops%d.txt" % stops)
    def grown(n):
        p.until("text in the file", lambda: os.path.exists(name) and os.path.getsize(name) >= n)
    p = Job("run", *endless, "-p", "Go on.", "--date", "", out=name)
    for i in range(stops):
        grown(20 + (os.path.getsize(name) if i else 0))
        p.type(b"\x1a")
        check(p.tell() == "stopped 1", "Ctrl-Z during an answer of run", p.seen)
        p.go_on()
    grown(200 + (os.path.getsize(name) if stops else 0))
    p.type(b"\x03")
    check(p.tell() == "130 b'' 1", "run after Ctrl-Z", p.seen)
    p.code()
    return open(name, "rb").read().rstrip()

for what, answer in ("chat", answered), ("run", run):
    one, two = answer(0), answer(2)  # of different lengths
    n = min(len(one), len(two))
    check(n > 100 and one[:n] == two[:n], "Ctrl-Z changed an answer of " + what, one + b" != " + two)

# in a pipe Ctrl-C ends the program
q = subprocess.Popen([program, "chat", *endless], stdin=subprocess.PIPE,
                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
q.stdin.write(b"Go on.\n"); q.stdin.flush()
check(select.select([q.stdout], [], [], limit_s)[0], "%d s, and no answer in a pipe" % limit_s)
q.send_signal(signal.SIGINT)
try: q.communicate(timeout=limit_s)
except subprocess.TimeoutExpired: q.kill()
check(q.wait() == 130, "%d s after Ctrl-C in a pipe: %d" % (limit_s, q.returncode))
print("\n".join(results))
P
if [ "$python" ] && "$python" -c 'import pty, os; os.waitstatus_to_exitcode' 2>/dev/null; then
    "$python" "$tmp/person.py" "$build/moe-run" "$tmp/state" $gptoss $wait_limit_s >"$tmp/results" 2>"$tmp/err"
    holds $? -eq 0 "the person at the terminal"
    while read -r result what; do
        if [ "$result" = ok ]; then ok; else bad "at a terminal: $what"; fi
    done <"$tmp/results"
else
    skip "a person at a terminal needs python3 with its pty module"
fi

leaks_last
talk 1 out "$a/retry\n/system x\n$b/save $tmp/l.chat\n/load $tmp/l.chat\n/load $tmp/cut\n/stats\n" $short
said "context " "everything once"

finish
