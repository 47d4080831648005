#!/bin/sh
# test_cli_pull.sh BUILD - moe-run pull against a server that cuts connections, lies about sizes,
# ignores ranges and sends other bytes (tests/pull_server.c); and models by their names.
set -u
area=cli_pull
. tests/cli_harness.sh

if "$run" pull gpt-oss-20b --base-url x 2>&1 | grep -q "built without libcurl"; then
    refuse 1 "install libcurl4-openssl-dev" "$run" pull gpt-oss-20b
    skip "built without libcurl: pull"
    finish
    exit
fi

# ---- a server, and a program with a list of its own
"$build/tests/pull_server" $gptoss "$tmp/log" >"$tmp/port" &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$tmp"' EXIT
n=0
while [ ! -s "$tmp/port" ] && [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done
port=$(cat "$tmp/port")
base=http://127.0.0.1:$port
mkdir "$tmp/bin"
cp "$run" "$tmp/bin/moe-run"
cp "$bench" "$tmp/bin/moe-bench"
bytes=$(wc -c <$gptoss)
hash=$(sha256sum $gptoss | cut -d ' ' -f 1)
other=$(printf x | sha256sum | cut -d ' ' -f 1)

# entry NAME MODE [BYTES [HASH [FILE]]]: a line of the list
entry() { echo "$1 Q4 | t/$2 | ${5:-$1.gguf} | ${3:-$bytes} | ${4:-$hash} |" >>"$tmp/bin/models.txt"; }
models=$tmp/models
export MOE_MODELS="$models"
pull() { name=$1; shift; "$tmp/bin/moe-run" pull "$name" --base-url "$base" "$@"; }

# got NAME MODE WHAT: the file is at its place, whole, with nothing beside it
got() {
    to=$models/t/$2/$1.gguf
    if cmp -s "$to" $gptoss && [ "$(ls "$models/t/$2")" = "$1.gguf" ]; then ok; else bad "$3: $(ls -l "$models/t/$2" 2>&1)"; fi
}
# none MODE WHAT: nothing is left of it
none() {
    if [ -z "$(ls "$models/t/$1" 2>/dev/null)" ]; then ok; else bad "$2: left: $(ls "$models/t/$1")"; fi
}
# kept NAME MODE BYTES WHAT: so many bytes wait to be gone on with
kept() {
    n=$(wc -c <"$models/t/$2/$1.gguf.part" 2>/dev/null)
    if [ "${n:-0}" -eq "$3" ] && [ ! -e "$models/t/$2/$1.gguf" ]; then ok; else bad "$4: ${n:-no} bytes kept"; fi
}
# asked N TEXT WHAT: the last N requests, of which one holds TEXT
asked() {
    if tail -n "$1" "$tmp/log" | grep -qF -e "$2"; then ok; else bad "$3: $(tail -n "$1" "$tmp/log")"; fi
}

# ---- as it should be
entry good ok
entry parts ok $((3 * bytes)) $hash parts-00001-of-00003.gguf
expect 0 "$models/t/ok/good.gguf" pull good
got good ok "a download"
asked 1 "range= if= token=" "a whole file is asked for without a range"
expect 0 "was there already" pull good
expect 0 '"downloaded":0' pull good --json
expect 0 "gpt-oss" "$tmp/bin/moe-run" -m good -p Hi -n 2
expect 0 "gpt-oss" "$tmp/bin/moe-run" -m GOOD:Q4 -p Hi -n 2
expect 0 "gpt-oss" "$tmp/bin/moe-run" t/good -p Hi -n 2
expect 0 "gpt-oss" "$tmp/bin/moe-run" inspect good
expect 0 "good.gguf" "$tmp/bin/moe-bench" decode -m good -p 2 -n 1 -r 1
refuse 1 "moe-run pull 'parts' downloads it, 18.9 MB" "$tmp/bin/moe-run" -m parts -p Hi
refuse 1 "moe-run models lists" "$tmp/bin/moe-run" -m nonsense -p Hi
rm -r "$models"
expect 0 "\"bytes\":$bytes,\"downloaded\":$bytes," pull good --json
expect 0 "\"sha256\":\"$hash\",\"checked\":\"list\"" sh -c "rm -r '$models'; '$tmp/bin/moe-run' pull good --base-url '$base/' --json"
expect 0 "$tmp/elsewhere/t/ok/good.gguf" pull good --dir "$tmp/elsewhere"
expect 0 "$tmp/data/moe/models/t/ok/good.gguf" env -u MOE_MODELS XDG_DATA_HOME="$tmp/data" "$tmp/bin/moe-run" pull good --base-url "$base"
expect 0 "$HOME/.local/share/moe/models/t/ok/good.gguf" env -u MOE_MODELS "$tmp/bin/moe-run" pull good --base-url "$base"
expect 0 "gpt-oss" env -u MOE_MODELS "$tmp/bin/moe-run" -m good -p Hi -n 2

# ---- several parts
expect 0 '-00003-of-00003.gguf' pull parts --json
for i in 1 2 3; do
    if cmp -s "$models/t/ok/parts-0000$i-of-00003.gguf" $gptoss; then ok; else bad "part $i"; fi
done
rm "$models/t/ok/parts-00002-of-00003.gguf"
expect 0 "\"downloaded\":$bytes," pull parts --json
expect 0 "parts-00001-of-00003.gguf" pull parts

# ---- cut connections
entry cuts cut-1000000
expect 0 cuts.gguf pull cuts
got cuts cut-1000000 "cut every million bytes"
asked 1 "range=bytes=6000000- if=\"v1\"" "goes on where it was cut"
entry tiny cut-1000
refuse 1 "the connection was cut; 4.0 kB of 6.3 MB are kept in" pull tiny --retries 3
kept tiny cut-1000 4000 "cut every thousand bytes"
refuse 1 "6.0 kB of 6.3 MB are kept in" pull tiny --retries 1
asked 1 "range=bytes=5000- if=\"v1\"" "goes on in another run"
entry whole norange-3000000
expect 0 whole.gguf pull whole
got whole norange-3000000 "a server without ranges"
entry plain noetag-3000000
expect 0 plain.gguf pull plain
got plain noetag-3000000 "a server without ETags"
asked 1 "range=bytes=3000000- if= " "no If-Range without an ETag"
entry new changed-3000000
expect 0 new.gguf pull new
got new changed-3000000 "a file that was replaced between two tries"
entry half half-1000000
expect 0 half.gguf pull half
got half half-1000000 "ranges answered by half"
entry busy busy-2
expect 0 busy.gguf pull busy
got busy busy-2 "503 twice, then the file"
entry stall stall-2000000
expect 0 stall.gguf pull stall --timeout 1
got stall stall-2000000 "nothing for a second, then the rest"

# ---- Ctrl-C
entry drip drip-100
env --default-signal=INT "$tmp/bin/moe-run" pull drip --base-url "$base" >"$tmp/out" 2>"$tmp/err" &
client=$!
n=0
while [ "$(cat "$models/t/drip-100/drip.gguf.part" 2>/dev/null | wc -c)" -lt 100000 ] && [ $n -lt 100 ]; do
    sleep 0.1
    n=$((n + 1))
done
refuse 1 "another moe-run pull is writing it" pull drip
kill -INT $client
wait $client
code=$?
if [ $code -eq 130 ]; then ok; else bad "interrupted: exit $code"; fi
if grep -q "error: drip.gguf: interrupted; .* are kept in .*drip.gguf.part, and the same command goes on" "$tmp/err"; then ok; else bad "interrupted: what is kept"; fi
sed -i 's/drip-100/drip-0/' "$tmp/bin/models.txt"
mv "$models/t/drip-100" "$models/t/drip-0"
expect 0 drip.gguf pull drip
got drip drip-0 "an interrupted download"
asked 1 'range=bytes=' "goes on after an interruption"

finish
