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
# another for what takes seconds of waiting: that continues during the rest, with a log of its own
"$build/tests/pull_server" $gptoss "$tmp/log.slow" >"$tmp/port.slow" &
server_slow=$!
trap 'kill $server $server_slow 2>/dev/null; rm -rf "$tmp"' EXIT
wait_until "$build/tests/pull_server prints no port" test -s "$tmp/port" -a -s "$tmp/port.slow" || { finish; exit; }
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

# got NAME MODE WHAT: the file is at its place, whole, alone in its folder
got() {
    to=$models/t/$2/$1.gguf
    if cmp -s "$to" $gptoss && [ "$(ls "$models/t/$2")" = "$1.gguf" ]; then ok; else bad "$3: $(ls -l "$models/t/$2" 2>&1)"; fi
}
# none MODE WHAT: nothing is left of it, not even its folder
none() {
    if [ ! -e "$models/t/$1" ]; then ok; else bad "$2: left: $(ls -lA "$models/t/$1")"; fi
}
# kept NAME MODE BYTES WHAT: so many bytes wait for the next try
kept() {
    n=$(wc -c <"$models/t/$2/$1.gguf.part" 2>/dev/null)
    if [ "${n:-0}" -eq "$3" ] && [ ! -e "$models/t/$2/$1.gguf" ]; then ok; else bad "$4: ${n:-no} bytes kept"; fi
}
# asked N TEXT WHAT: the last N requests, of which one holds TEXT
asked() {
    if tail -n "$1" "$tmp/log" | grep -qF -e "$2"; then ok; else bad "$3: $(tail -n "$1" "$tmp/log")"; fi
}

# ---- cut connections, and servers that are slow: each at the same time as the others, while the
# checks below run; how it ended is looked at further down
for f in "cuts cut-1000000" "tiny cut-1000" "half half-1000000" "busy busy-2" "stall stall-2000000" \
         "whole norange-3000000" "plain noetag-3000000" "new changed-3000000" "range wrongrange-1000000" \
         "e500 status-500" "far away-2000000"; do entry $f; done
entry about claim-2000 "~$bytes" -
mkdir "$tmp/slow"
cp "$run" "$tmp/bin/models.txt" "$tmp/slow/"
# slowly NAME [ARGUMENTS...]
slowly() {
    (
        "$tmp/slow/moe-run" pull "$@" --base-url "http://127.0.0.1:$(cat "$tmp/port.slow")" --dir "$tmp/slow/$1" \
            >"$tmp/slow/$1.out" 2>"$tmp/slow/$1.err" </dev/null
        echo $? >"$tmp/slow/$1.rc"
    ) &
    slow="${slow:-} $!"
}
for f in cuts half busy whole plain new range "stall --timeout 1" "tiny --retries 3" "about --retries 1" \
         "e500 --retries 1"; do slowly $f; done
(export HF_TOKEN=hf_secret; slowly far; wait) &
slow="$slow $!"

# ---- as it should be
entry good ok
entry parts ok $((3 * bytes)) $hash parts-00001-of-00003.gguf
expect 0 "$models/t/ok/good.gguf" pull good
got good ok "a download"
asked 1 "range= if= token=" "a whole file is asked for without a range"
expect 0 "exists already: nothing" pull good
expect 0 '"downloaded":0' pull good --json
expect 0 "gpt-oss" "$tmp/bin/moe-run" -m good -p Hi -n 2
expect 0 "gpt-oss" "$tmp/bin/moe-run" -m GOOD:Q4 -p Hi -n 2
expect 0 "gpt-oss" "$tmp/bin/moe-run" t/good -p Hi -n 2
expect 0 "gpt-oss" "$tmp/bin/moe-run" inspect good
expect 0 "good.gguf" "$tmp/bin/moe-bench" decode -m good -p 2 -n 1 -r 1
for verb in "run -p Hi" inspect tokenize render; do
    refuse 1 "moe-run pull 'parts' downloads it, 18.9 MB" "$tmp/bin/moe-run" $verb -m parts
done
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
wait $slow
# ended NAME: as if it had run now, for expect and refuse
ended() { cat "$tmp/slow/$1.out"; cat "$tmp/slow/$1.err" >&2; return "$(cat "$tmp/slow/$1.rc")"; }
mv "$tmp/slow"/*/t/* "$models/t/"
asked_slow() { if grep -qF -e "$1" "$tmp/log.slow"; then ok; else bad "$2: $(cat "$tmp/log.slow")"; fi; }
expect 0 cuts.gguf ended cuts
got cuts cut-1000000 "cut every million bytes"
asked_slow "range=bytes=6000000- if=\"v1\"" "goes on where it was cut"
refuse 1 "the connection was cut; 4.0 kB of 6.3 MB are kept in" ended tiny
kept tiny cut-1000 4000 "cut every thousand bytes"
refuse 1 "6.0 kB of 6.3 MB are kept in" pull tiny --retries 1
asked 1 "range=bytes=5000- if=\"v1\"" "goes on in another run"
asked_slow "range=bytes=3000000- if= " "no If-Range without an ETag"
while read -r f mode what; do
    expect 0 $f.gguf ended $f
    got $f $mode "$what"
done <<END
whole norange-3000000 a server without ranges
plain noetag-3000000 a server without ETags
new changed-3000000 a file that was replaced between two tries
half half-1000000 ranges answered by half
busy busy-2 503 twice, then the file
stall stall-2000000 nothing for a second, then the rest
END

# ---- Ctrl-C
entry drip drip-100
env --default-signal=INT "$tmp/bin/moe-run" pull drip --base-url "$base" >"$tmp/out" 2>"$tmp/err" &
client=$!
dripped() { [ "$(cat "$models/t/drip-100/drip.gguf.part" 2>/dev/null | wc -c)" -ge 100000 ]; }
wait_until "100,000 bytes did not come" dripped
refuse 1 "another moe-run pull is writing it" pull drip
kill -INT $client
wait $client
equal "exit code after Ctrl-C" 130 $?
if grep -q "error: drip.gguf: interrupted; .* are kept in .*drip.gguf.part, and the same command resumes" "$tmp/err"; then ok; else bad "interrupted: what is kept"; fi
sed -i 's/drip-100/drip-0/' "$tmp/bin/models.txt"
mv "$models/t/drip-100" "$models/t/drip-0"
expect 0 drip.gguf pull drip
got drip drip-0 "an interrupted download"
asked 1 'range=bytes=' "goes on after an interruption"

# ---- a server that lies
while read -r f mode text; do
    entry $f $mode
    refuse 1 "$text" pull $f
    none $mode "$f"
done <<END
flip other the received bytes are not those of models.txt: sha256
page page no GGUF file: '<!DOCTYPE html>
more claim-1000 has $((bytes + 1000)) bytes, models.txt says $bytes
less less-1000 has $((bytes - 1000)) bytes, models.txt says $bytes
lost nolength-1000 received $((bytes - 1000)) bytes, models.txt says $bytes
END
refuse 1 "the connection was cut; 6.3 MB of 6.3 MB are kept" ended about
kept about claim-2000 $bytes "more was announced than came"
entry open nolength
expect 0 open.gguf pull open
got open nolength "no length, and all bytes"
entry endless endless
refuse 1 "sends more than the" pull endless
kept endless endless "$(cat "$models/t/endless/endless.gguf.part" | wc -c)" "a file without an end"
if [ "$(cat "$models/t/endless/endless.gguf.part" | wc -c)" -lt $((2 * bytes)) ]; then ok; else bad "a file without an end: too much"; fi
entry huge claim-999999999 "~$bytes" -
refuse 1 "far more than models.txt says" pull huge
none claim-999999999 "a length far too large"
refuse 1 "sends another range than the requested one" ended range
kept range wrongrange-1000000 1000000 "another range"
for n in 404 401 403; do entry e$n status-$n; done
refuse 1 "no such file (HTTP 404)" pull e404
refuse 1 "set HF_TOKEN" pull e401
refuse 1 "refuses this HF_TOKEN" env HF_TOKEN=hf_x "$tmp/bin/moe-run" pull e403 --base-url "$base"
refuse 1 "the server answers HTTP 500" ended e500
for n in 404 401 403 500; do none status-$n "HTTP $n"; done
refuse 1 "127.0.0.1: " pull good --dir "$tmp/unheard" --base-url http://127.0.0.1:1 --retries 0
if [ ! -e "$tmp/unheard" ]; then ok; else bad "nothing listens, and something is left: $(find "$tmp/unheard")"; fi

# ---- folders that were there stay, and so does what holds something
mkdir -p "$tmp/there/t"
as_before() { if [ "$(cd "$tmp/there" && find . | tr '\n' ' ')" = ". ./t " ]; then ok; else bad "$1 left: $(find "$tmp/there")"; fi; }
refuse 1 "no such file (HTTP 404)" pull e404 --dir "$tmp/there"
as_before "in a folder that was there"
for d in . t/ new new/er/ new//er ./new new/../t/new; do
    refuse 1 "no such file (HTTP 404)" sh -c "cd '$tmp/there' && exec '$tmp/bin/moe-run' pull e404 --base-url '$base' --dir '$d'"
    [ "$d" != new/../t/new ] || rmdir "$tmp/there/new"     # t was there, and is all that matters
    as_before "--dir $d"
done
mkdir -p "$tmp/there/t/status-404"
refuse 1 "no such file (HTTP 404)" pull e404 --dir "$tmp/there"
if [ -d "$tmp/there/t/status-404" ]; then ok; else bad "a folder that was there went"; fi
refuse 1 "no such file (HTTP 404)" env -u MOE_MODELS XDG_DATA_HOME="$tmp/fresh" "$tmp/bin/moe-run" pull e404 --base-url "$base"
if [ ! -e "$tmp/fresh" ]; then ok; else bad "left: $(find "$tmp/fresh")"; fi

# ---- what an earlier run left: of another file, longer than it, of unknown origin, damaged, no file
stale() { mkdir -p "$models/t/$1"; head -c "$3" $gptoss >"$models/t/$1/$2.gguf.part"; echo "$4" >"$models/t/$1/$2.gguf.part.from"; }
entry old ok
stale ok old 1000000 "$bytes \"v0\""
expect 0 "\"downloaded\":$bytes," pull old --json
asked 1 'range=bytes=1000000- if="v0"' "of another version"
while read -r part downloaded from; do
    mv "$models/t/ok/old.gguf" "$tmp/x"
    stale ok old $part "$from"
    expect 0 "\"downloaded\":$downloaded," pull old --json
done <<END
1000000 $bytes 999999999 -
1000000 $bytes 5000 "v1"
1000000 $((bytes - 1000000)) nonsense
$bytes 0 $bytes "v1"
END
mv "$models/t/ok/old.gguf" "$tmp/x"
stale ok old 1000000 "$bytes \"v1\""
printf x | dd of="$models/t/ok/old.gguf.part" bs=1 seek=5000 conv=notrunc 2>/dev/null
refuse 1 "not those of models.txt" pull old
expect 0 "\"downloaded\":$bytes," pull old --json
got_old=$models/t/ok/old.gguf
if cmp -s "$got_old" $gptoss; then ok; else bad "what an earlier run left"; fi
entry loose ok $bytes -
stale ok loose 1000000 "- -"
expect 0 "\"downloaded\":$bytes," pull loose --json
expect 0 '"checked":"no"' sh -c "rm '$models/t/ok/loose.gguf'; '$tmp/bin/moe-run' pull loose --base-url $base --json"
entry dirpart ok
mkdir -p "$models/t/ok/dirpart.gguf.part"
refuse 1 "cannot create" pull dirpart
entry linkpart ok
ln -s "$tmp/outside" "$models/t/ok/linkpart.gguf.part"
refuse 1 "cannot create" pull linkpart
if [ ! -e "$tmp/outside" ]; then ok; else bad "written through a link"; fi
printf GGUF >"$models/t/ok/good.gguf"
refuse 1 "exists, but has 4 bytes instead of $bytes: remove it" pull good
if [ "$(cat "$models/t/ok/good.gguf")" = GGUF ]; then ok; else bad "overwritten"; fi

# ---- a token goes to the server that was asked, and to no other
expect 0 far.gguf ended far
got far away-2000000 "from another host, with a cut"
asked_there() { equal "requests with '$1'" 2 "$(grep -c "$1" "$tmp/log.slow")"; }
asked_there "^away host=127.0.0.1:$(cat "$tmp/port.slow") .*token=Bearer hf_secret$"
asked_there "^cut_once host=localhost:$(cat "$tmp/port.slow") .*token=$"
asked_slow 'range=bytes=2000000- if="v1"' "a range travels"
entry near near
expect 0 near.gguf env HF_TOKEN=hf_secret "$tmp/bin/moe-run" pull near --base-url "$base"
asked 1 "token=Bearer hf_secret" "a token stays on its host"
refuse 2 "HF_TOKEN has a space" env HF_TOKEN="a b" "$tmp/bin/moe-run" pull e404 --base-url "$base"
refuse 2 "HF_TOKEN has a space" env HF_TOKEN="$(printf 'a\r\nX: y')" "$tmp/bin/moe-run" pull e404 --base-url "$base"
expect 1 "HF_TOKEN is not sent: http://0.0.0.0:$port is not https" env HF_TOKEN=hf_secret "$tmp/bin/moe-run" pull e404 --base-url "http://0.0.0.0:$port"
asked 1 "host=0.0.0.0:$port range= if= token=" "not over http"
entry round round
refuse 1 "more than 10 redirects" pull round
entry local file
refuse 1 "redirects to an address that is not http or https" pull local
none file "a redirect to a file"

# ---- the hash that a server names
entry named linked-1 $bytes - $hash
expect 0 '"checked":"server"' pull named --json
entry wrong linked-0 $bytes - $hash
refuse 1 "the received bytes are not those of the server's file" pull wrong
none linked-0 "other bytes than the server named"
entry moved linked-1 $bytes $other m/$hash
refuse 1 "the publisher has replaced the file: its sha256 is $hash, models.txt says $other" pull moved
expect 0 '"checked":"server"' pull moved --accept-changed --json

# ---- what is asked for
entry big ok 999999999999999999
refuse 1 "1.0 EB are to be downloaded, and the disk of $models has" pull big
refuse 1 "no such model in" pull nonsense
refuse 2 "NAME missing" "$tmp/bin/moe-run" pull
refuse 2 "is not an address" "$tmp/bin/moe-run" pull good --base-url "ftp://127.0.0.1/"
refuse 2 "is not an address" env HF_ENDPOINT=nonsense "$tmp/bin/moe-run" pull good
refuse 2 "--timeout: 0 is out of range" pull good --timeout 0
refuse 1 "use --dir" env -u MOE_MODELS -u HOME "$tmp/bin/moe-run" pull old --base-url "$base"
refuse 1 "cannot create" pull good --dir "$tmp/port/x"
entry cut ok $bytes - "$(printf '%0250d' 0).gguf"
refuse 1 "File name too long" pull cut --dir "$tmp/long"
if [ ! -e "$tmp/long" ]; then ok; else bad "a file that cannot be made: left: $(find "$tmp/long")"; fi
refuse 1 "cannot write: File too large; 1.0 MB of 6.3 MB are kept in" sh -c "ulimit -f 2000; exec '$tmp/bin/moe-run' pull good --base-url $base --dir '$tmp/small'"
expect 0 "\"bytes\":$bytes," pull good --dir "$tmp/small" --json
expect 0 "demo-gptoss-MXFP4.gguf" "$run" pull demo-gptoss

# ---- a list that would lead out of the folder
cp "$tmp/bin/models.txt" "$tmp/good.txt"
for v in "t/../x | a.gguf" "t/x | ../a.gguf" "t/x | /a.gguf" "t/x | a b.gguf" "t/.. | a.gguf" "t//x | a.gguf" "t/x | a/"; do
    echo "bad Q4 | $v | 5 | - |" >"$tmp/bin/models.txt"
    refuse 1 "line 1: " pull bad
done
echo "bad Q4 | t/x | a-00002-of-00003.gguf | 5 | - |" >"$tmp/bin/models.txt"
refuse 1 "expected the first part" pull bad
cp "$tmp/good.txt" "$tmp/bin/models.txt"

leaks_last
rm -rf "$models"
expect 0 far.gguf env HF_TOKEN=hf_secret "$tmp/bin/moe-run" pull far --base-url "$base"
refuse 1 "not those of models.txt" pull flip
refuse 1 "HTTP 500" pull e500 --retries 1
refuse 1 "no such model" pull nonsense
expect 0 "parts-00003" pull parts --json

finish
