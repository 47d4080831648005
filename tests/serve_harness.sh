# serve_harness.sh - what the tests of moe-serve share; each sources it after cli_harness.sh: a server
# of its own, and a client that asks it.
serve=$build/moe-serve
client=$build/tests/http_client
pid=

# start ARGUMENTS...: waits until the server is ready; its port is in $port. It listens on $listen and prints
# the address $at.
listen=127.0.0.1:0
at=127.0.0.1
start() {
    rm -f "$tmp/serve.err"
    : >"$tmp/serve.err"
    "$serve" --listen "$listen" "$@" >"$tmp/serve.out" 2>"$tmp/serve.err" </dev/null &
    pid=$!
    port=
    for i in $(seq 9000); do          # a GPU may have to be measured first
        if grep -q "listening on .*:[0-9]" "$tmp/serve.err" || ! kill -0 $pid 2>/dev/null; then break; fi
        sleep 0.02
    done
    port=$(sed -n "s|.*listening on http://$at:\([0-9]*\)\$|\1|p" "$tmp/serve.err")
    if [ "$port" ]; then ok; else bad "moe-serve $*: it did not start"; cat "$tmp/serve.err"; fi
}
stop() {
    kill -TERM $pid
    wait $pid 2>/dev/null
    equal "exit code after SIGTERM" 0 $?
    pid=
}
trap '[ -z "$pid" ] || kill -KILL $pid 2>/dev/null; rm -rf "$tmp"' EXIT

# ask METHOD PATH ...: status in $status, body in $tmp/body
ask() {
    timeout $wait_limit_s "$client" "$port" "$@" >"$tmp/answer" 2>"$tmp/err"
    status=
    read -r version status reason <"$tmp/answer"
    sed '1,/^$/d' "$tmp/answer" >"$tmp/body"
}
# send FILE METHOD PATH ...: for a job in the background, whose number is the client's. With -q
# FILE.events has a line for each event.
send() {
    file=$1
    shift
    exec timeout $wait_limit_s "$client" "$port" "$@" >"$tmp/$file" 2>"$tmp/$file.events"
}
in_log() { if grep -qF -e "$1" "$tmp/serve.err"; then ok; else bad "$2: no '$1' in the log: $(tail -n 3 "$tmp/serve.err")"; fi; }
# gives STATUS TEXT ARGUMENTS...
gives() {
    want=$1 text=$2
    shift 2
    ask "$@"
    if [ "$status" != "$want" ]; then bad "$*: expected $want, got '$status': $(head -c 200 "$tmp/body")"
    elif ! grep -qF -e "$text" "$tmp/answer"; then bad "$*: no '$text': $(head -c 300 "$tmp/body")"
    else ok; fi
}
header() { sed -n "s/^$1: //Ip" "$tmp/answer" | head -n 1; }
value() { "$client" value "$tmp/body" "$1"; }
# joined PATH: what the deltas of a stream come to
joined() { "$client" join "$tmp/body" "$1"; }
