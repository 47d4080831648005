#!/bin/sh
# test_cli_page.sh BUILD - what moe-serve shows of its experts: /moe-layer-perf, /moe-hot-cache and
# /moe-events, on the CPU and, without CUDA, on the simulated GPU of BUILD/sim; and the files of its
# page (tests/check_page.py shows that they work). Ends with "cli_page N passed, N failed".
set -u
area=cli_page
. tests/cli_harness.sh
. tests/serve_harness.sh
[ "${TEST_THREADS:-}" ] || export MOE_THREADS=1       # with other tests the fastest

hello='{"messages":[{"role":"user","content":"Hello"}],"max_tokens":24,"temperature":0'
schema=llama.cpp.moe_layer_opt_perf.v1
# keep NAME: the body, for the next request
keep() { cp "$tmp/body" "$tmp/$1"; }
more() { if [ "$(value "$2")" -gt "$3" ] 2>/dev/null; then ok; else bad "$1: $2 is '$(value "$2")', expected more than $3"; fi; }
# wish TEXT BODY: a wish that is refused with a sentence
wish() { gives 400 "$1" POST /moe-hot-cache -d "$2"; }
slots_say() { ask GET /slots; grep -q "$1" "$tmp/body"; }

# ---- without a cache: all choices are cold, and a wish finds nothing to change
start -m $qwen --ctx 512
gives 200 '"layers":[]' GET /moe-layer-perf
gives 200 '"finish_reason"' POST /v1/chat/completions -d "$hello}"
gives 200 "\"schema\":\"$schema\"" GET /moe-layer-perf
keep seen
equal "mode" update "$(value mode)"
equal "hot slots without a cache" 0 "$(value layers.0.hot_slots_total)"
more "cold slots" layers.0.cold_slots_total 24
equal "experts are cold" "$(value layers.0.experts)" "$(value layers.0.cold_experts)"
if grep -q total_moe "$tmp/body"; then bad "mode update has what only full has"; else ok; fi
for mode in full off update; do
    gives 200 "\"mode\":\"$mode\"" POST /moe-layer-perf -d "{\"mode\":\"$mode\"}"
    gives 200 "\"mode\":\"$mode\"" GET /moe-layer-perf
    case $mode in
    full) for k in summary layers.0; do equal "full, $k" 0 "$(value $k.total_moe_time_per_call_us)"; done ;;
    off) equal "off" "{\"enabled\":false,\"mode\":\"off\",\"schema\":\"$schema\",\"layers\":[]}" "$(cat "$tmp/body")" ;;
    esac
done
gives 400 'full, update or off' POST /moe-layer-perf -d '{"mode":"on"}'
gives 400 'full, update or off' POST /moe-layer-perf -d '{}'
gives 400 '"error"' POST /moe-layer-perf -d 'mode'
gives 405 'Allow: GET, HEAD, POST, OPTIONS' PUT /moe-layer-perf -d '{}'
gives 200 '"active":false,"budget_bytes":0,"used_bytes":0,"layers":[]' GET /moe-hot-cache
gives 409 'no expert cache' POST /moe-hot-cache -f "$tmp/seen"
wish 'schema is neither' '{"schema":"llama.cpp.moe_layer_perf.v2","layers":[]}'
wish 'save_to_disk' "{\"schema\":\"$schema\",\"layers\":[],\"save_to_disk\":1}"
wish '"error"' 'no'
wish '"error"' "{\"format\":\"moe-expert-profile\",\"version\":1,\"model\":\"0123456789abcdef\"}"
stop

# ---- asked while an answer is under way: a question is answered in between, a wish after it
start -m $qwen --ctx 2048
send long POST /v1/chat/completions \
    -d '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":'$(rounds 1500 500)',"ignore_eos":true,"stream":true}' &
long=$!
wait_until "no slot works" slots_say '"is_processing":true'
gives 200 '"enabled":true' GET /moe-layer-perf
gives 200 '"mode":"full"' POST /moe-layer-perf -d '{"mode":"full"}'
gives 200 '"active":false' GET /moe-hot-cache
ask GET /slots
equal "questions do not wait for the answer" true "$(value 0.is_processing)"
gives 409 'no expert cache' POST /moe-hot-cache -f "$tmp/seen"
ask GET /slots
equal "a wish waits for the answer under way" false "$(value 0.is_processing)"
wait $long
stop

# ---- requests that wait do not keep a wish waiting: it comes before the next one
start -m $qwen --ctx 2048 --parallel 1
longs=
for i in 1 2 3; do
    send long$i POST /v1/chat/completions \
        -d '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":'$(rounds 600 200)',"ignore_eos":true}' &
    longs="$longs $!"
done
wait_until "two requests do not wait" slots_say '"n_waiting":2'
gives 409 'no expert cache' POST /moe-hot-cache -f "$tmp/seen"
ask GET /slots
case $(value 0.id_task) in 1 | 2) ok ;; *) bad "a wish waits for the waiting requests: $(cat "$tmp/body")" ;; esac
wait $longs
for i in 1 2 3; do if grep -q '"length"' "$tmp/long$i"; then ok; else bad "request $i was not answered"; fi; done
stop

# ---- the page, without a key; what it shows, with one
start -m $qwen --ctx 512 --api-key one
k="Authorization: Bearer one"
gives 200 "Content-Security-Policy: default-src 'none'" GET /
equal "type of the page" "text/html; charset=utf-8" "$(header Content-Type)"
equal "cache of the page" no-cache "$(header Cache-Control)"
cmp -s "$tmp/body" cli/serve/page/index.html && ok || bad "the page is not the file"
gives 200 "Content-Type: text/css" GET /page/style.css
gives 200 "Content-Type: text/javascript" GET /page/app.js
cmp -s "$tmp/body" cli/serve/page/app.js && ok || bad "the script is not the file"
tag=$(header ETag)
gives 304 "$tag" GET /page/app.js -H "If-None-Match: $tag"
equal "body of a 304" "" "$(cat "$tmp/body")"
gives 200 "$tag" GET /page/app.js -H 'If-None-Match: "0"'
gives 200 "ETag" HEAD /
gives 405 "Allow: GET" POST /page/app.js -H "$k" -d '{}'
gives 404 "error" GET /page/nothing
gives 401 "invalid_api_key" POST / -d '{}'
for path in /moe-events /moe-layer-perf /moe-hot-cache; do gives 401 "invalid_api_key" GET $path; done
gives 200 "text/event-stream" GET /moe-events -H "$k" -q 2
sed -n 's/^data: //p' "$tmp/body" | sed -n 1p >"$tmp/hello"
sed -n 's/^data: //p' "$tmp/body" | sed -n 2p >"$tmp/tick"
cp "$tmp/hello" "$tmp/body"
n=$(($(value n_layer) * $(value n_expert)))
more "layers" n_layer 0
more "bytes of the plan" plan.ram.total 0
cp "$tmp/tick" "$tmp/body"
equal "an expert, a character" $n "$(value map | tr -d '\n' | wc -c)"
# a client watches a conversation, and gets to see it
send watched GET /moe-events -H "$k" -q 8 &
watcher=$!
wait_until "the watcher has no event" grep -qs event "$tmp/watched.events"
gives 200 '"finish_reason"' POST /v1/chat/completions -H "$k" -d "$hello}"
wait $watcher
cp "$tmp/watched" "$tmp/body"
equal "one greeting" 1 "$(grep -c '^event: hello' "$tmp/body")"
if [ "$(sed -n 's/.*"map":"\([^"]*\)".*/\1/p' "$tmp/body" | sort -u | wc -l)" -gt 2 ]; then ok
else bad "the map does not move: $(tail -c 300 "$tmp/body")"; fi
if grep -q '"tokens":24,' "$tmp/body"; then ok; else bad "tokens are not counted: $(tail -c 600 "$tmp/body")"; fi
# more watchers than there may be, and the server stops while they watch
watchers=
for i in $(seq 34); do
    send watch.$i GET /moe-events -H "$k" -q 100000 &
    watchers="$watchers $!"
done
greeted() { [ "$(cat "$tmp"/watch.*.events | wc -l)" -ge 64 ]; }
wait_until "32 watchers have no tick" greeted
gives 200 '"finish_reason"' POST /v1/chat/completions -H "$k" -d "$hello}"
stop
wait $watchers
equal "watchers that are too many" 2 "$(cat "$tmp"/watch.* | grep -c 'too many clients read')"
equal "streams that ended in order" 32 "$(grep -l '^event: tick' "$tmp"/watch.* | wc -l)"
if grep -q '\[cut\]' "$tmp"/watch.*; then bad "a stream broke when the server stopped"; else ok; fi

# ---- with experts in VRAM that others replace
if [ -x "$build/sim/moe-serve" ]; then
    serve=$build/sim/moe-serve run=$build/sim/moe-run
    unset MOE_DEVICE
    # cached_vram ARGUMENTS...: of the sixty-fourths of all that is needed the most that leaves a cache
    cached_vram() {
        all=$(plan_number vram.total "$@")
        for i in $(seq 63 -1 1); do
            case $("$run" plan --json "$@" --vram $((all * i / 64)) 2>"$tmp/err") in
            *'"cache":true'*) echo $((all * i / 64)); return ;;
            esac
        done
    }
    few="-m $qwen --ctx 512 --device cuda"
    vram=$(cached_vram $few)
    start $few --parallel 1 --vram "$vram" --learn "$tmp/learnt"
    gives 200 '"active":true' GET /moe-hot-cache
    more "bytes in VRAM" used_bytes 0
    keep before
    gives 200 '"finish_reason"' POST /v1/chat/completions -d "$hello}"
    gives 200 '"mode":"full"' POST /moe-layer-perf -d '{"mode":"full"}'
    gives 200 '"finish_reason"' POST /v1/chat/completions -d "$hello}"
    gives 200 '"enabled":true' GET /moe-layer-perf
    keep seen
    more "hot slots" layers.0.hot_slots_total 0
    more "cold slots" layers.0.cold_slots_total 0
    more "launches" summary.parallel_hot_launches 0
    # the experts of a wish are in VRAM afterwards
    pairs=$(seq 0 23 | sed 's/.*/[&,1]/' | paste -sd, -)
    gives 200 '"update_rate":1' POST /moe-hot-cache \
        -d "{\"schema\":\"llama.cpp.moe_layer_perf.v1\",\"save_to_disk\":true,\"layers\":[{\"layer\":1,\"experts\":[[5,900],[7,800],[7,100],[9,850]]},{\"layer\":2,\"experts\":[$pairs]}]}"
    more "exchanged" exchanged -1
    more "candidates" candidates 2
    gives 200 '"active":true' GET /moe-hot-cache
    hot=$(tr '{' '\n' <"$tmp/body" | sed -n 's/^"layer":1,"hot_experts":\[\([0-9,]*\)\].*/,\1,/p')
    for e in 5 7 9; do case $hot in *,$e,*) ok ;; *) bad "expert $e of layer 1 is not in VRAM: $hot" ;; esac; done
    if ls "$tmp"/cache/moe/experts-*.json >/dev/null 2>&1; then ok; else bad "save_to_disk: no list was kept"; fi
    gives 200 '"exchanged"' POST /moe-hot-cache -f "$tmp/seen"
    gives 200 '"finish_reason"' POST /v1/chat/completions -d "$hello}"
    stop
    # our own file: what --learn wrote; and that of another model
    start $few --parallel 1 --vram "$vram"
    gives 200 '"exchanged"' POST /moe-hot-cache -f "$tmp/learnt"
    sed 's/"model": *"[0-9a-f]*"/"model":"0123456789abcdef"/' "$tmp/learnt" >"$tmp/foreign"
    if cmp -s "$tmp/learnt" "$tmp/foreign"; then bad "the file names no model"; else ok; fi
    gives 400 'model' POST /moe-hot-cache -f "$tmp/foreign"
    stop
    # a layer without experts has none anywhere, and takes none
    "$build/tests/small_model" glm4moe "$tmp/glm.gguf"
    start -m "$tmp/glm.gguf" --ctx 512 --device cuda
    gives 200 "text/event-stream" GET /moe-events -q 2
    sed -n 's/^data: //p' "$tmp/body" | sed -n 2p >"$tmp/tick"
    sed -n 's/^data: //p' "$tmp/body" | sed -n 1p >"$tmp/hello"
    cp "$tmp/hello" "$tmp/body"
    equal "layers with experts" "2 1" "$(value n_layer) $(value n_bank)"
    cp "$tmp/tick" "$tmp/body"
    equal "32 that are not there, 32 in VRAM" wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwgggggggggggggggggggggggggggggggg "$(value map)"
    gives 200 '"layers":[{"layer":1,"hot_experts":[0,1,2,' GET /moe-hot-cache
    stop
    glm="-m $tmp/glm.gguf --ctx 512 --chunk 64 --device cuda"
    vram=$(cached_vram $glm)
    start $glm --parallel 1 --vram "$vram" --learn "$tmp/learnt-glm"
    gives 200 '"active":true' GET /moe-hot-cache
    gives 200 '"completion_tokens":24' POST /v1/chat/completions -d "$hello,\"ignore_eos\":true}"
    gives 200 '"layers":[{"layer":1,' GET /moe-layer-perf
    keep seen
    gives 200 '"layers_changed":' POST /moe-hot-cache \
        -d '{"schema":"llama.cpp.moe_layer_perf.v1","layers":[{"layer":0,"experts":[[5,900]]},{"layer":1,"experts":[[31,800],[30,700]]}]}'
    gives 200 '"layers":[{"layer":1,"hot_experts":[' GET /moe-hot-cache
    case $(cat "$tmp/body") in *,30,31]*) ok ;; *) bad "experts 30 and 31 of layer 1 are not in VRAM: $(cat "$tmp/body")" ;; esac
    gives 200 '"exchanged"' POST /moe-hot-cache -f "$tmp/seen"
    stop
    start $glm --parallel 1 --vram "$vram"
    gives 200 '"exchanged"' POST /moe-hot-cache -f "$tmp/learnt-glm"
    stop
else
    skip "no simulated GPU"
fi
finish
