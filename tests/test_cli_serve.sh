#!/bin/sh
# test_cli_serve.sh BUILD - moe-serve as its clients see it: responses and streams of every API have the
# text of moe-run; keys, hosts, methods, limits; disconnects and stopping. Ends with "cli_serve N
# passed, N failed".
set -u
area=cli_serve
. tests/cli_harness.sh
. tests/serve_harness.sh

hello='{"messages":[{"role":"user","content":"Hello"}],"max_tokens":24,"temperature":0'
for m in $(rounds "$qwen $gptoss" $gptoss); do
    start -m $m --ctx 512
    "$run" -m $m --ctx 512 -p Hello -n 24 --temp 0 --json -q >"$tmp/run.json" 2>"$tmp/err"
    cp "$tmp/run.json" "$tmp/body"
    said=$(value text) reasoning=$(value reasoning) n=$(value prompt_tokens)

    gives 200 '"object":' POST /v1/chat/completions -d "$hello}"
    equal "$m: chat" "$said" "$(value choices.0.message.content)"
    equal "$m: its reasoning" "$reasoning" "$(value choices.0.message.reasoning_content)"
    equal "$m: tokens of the prompt" "$n" "$(value usage.prompt_tokens)"
    equal "$m: its end" length "$(value choices.0.finish_reason)"
    for path in /v1/chat/completions /chat/completions; do
        gives 200 "text/event-stream" POST $path -d "$hello,\"stream\":true}"
        equal "$m: stream" "$said" "$(joined choices.0.delta.content)"
        equal "$m: reasoning in a stream" "$reasoning" "$(joined choices.0.delta.reasoning_content)"
        if tail -n 3 "$tmp/body" | grep -q '^data: \[DONE\]'; then ok; else bad "$m: no [DONE]"; fi
    done
    equal "$m: Cache-Control of a stream" no-cache "$(header Cache-Control)"
    gives 200 '"cached_tokens":' POST /v1/chat/completions -d "$hello}"
    if [ "$(value usage.prompt_tokens_details.cached_tokens)" -gt 0 ]; then ok
    else bad "$m: nothing of a prompt that was there is cached"; fi

    # ---- the same conversation by the other APIs
    body='"temperature":0,"messages":[{"role":"user","content":"Hello"}]'
    gives 200 '"type":"message"' POST /v1/messages?beta=true -d "{$body,\"max_tokens\":24}"
    if grep -qF '"stop_reason":"max_tokens"' "$tmp/body"; then ok; else bad "$m: stop_reason"; fi
    gives 200 'event: message_stop' POST /v1/messages -d "{$body,\"max_tokens\":24,\"stream\":true}"
    equal "$m: messages" "$said" "$(joined delta.text)"
    equal "$m: thinking" "$reasoning" "$(joined delta.thinking)"
    gives 200 "{\"input_tokens\":$n}" POST /v1/messages/count_tokens -d "{$body}"
    gives 200 'event: response.incomplete' POST /v1/responses \
        -d '{"input":"Hello","temperature":0,"max_output_tokens":100,"stream":true}'
    gives 200 '"object":"response"' POST /v1/responses \
        -d '{"input":"Hello","temperature":0,"max_output_tokens":24}'
    gives 200 '"done":true' POST /api/chat -d "{$body,\"options\":{\"num_predict\":24,\"temperature\":0}}"
    equal "$m: Ollama" "$said" "$(joined message.content)"
    gives 200 '"object":"text_completion"' POST /v1/completions -d '{"prompt":"Hello","max_tokens":8,"temperature":0}'
    "$run" -m $m --ctx 512 --raw -p Hello -n 8 --temp 0 -q >"$tmp/raw" 2>"$tmp/err"
    equal "$m: completion" "$(cat "$tmp/raw")" "$(value choices.0.text)"
    gives 200 '"stop_reason":"stop_sequence"' POST /v1/messages -d "{$body,\"max_tokens\":24,\"stop_sequences\":[\"zzzz\",\"o\"]}"
    equal "$m: which stop string" o "$(value stop_sequence)"
    gives 200 '"index":1' POST /v1/completions -d '{"prompt":["Hello","Good day"],"max_tokens":8,"temperature":0,"echo":true}'
    equal "$m: the first of two" "Hello$(cat "$tmp/raw")" "$(value choices.0.text)"
    case $(value choices.1.text) in "Good day"?*) ok ;; *) bad "$m: the second of two" ;; esac
    # ---- log probabilities: a row for each token, the likeliest one is what temperature 0 draws
    gives 200 '"top_logprobs":[{' POST /v1/chat/completions -d "$hello,\"logprobs\":true,\"top_logprobs\":20}"
    equal "$m: the likeliest" "$(value choices.0.logprobs.content.0.logprob)" \
        "$(value choices.0.logprobs.content.0.top_logprobs.0.logprob)"
    equal "$m: twenty of them" "" "$(value choices.0.logprobs.content.0.top_logprobs.20.logprob)"
    case $(value choices.0.logprobs.content.0.top_logprobs.19.logprob) in
        -[0-9]*) ok ;; *) bad "$m: twenty are wanted" ;;
    esac
    row=$(value choices.0.logprobs.content.0.token)
    case $said in "$row"*) ok ;; *) bad "$m: '$said' does not begin with '$row'" ;; esac
    gives 200 '"token_logprobs":[-' POST /v1/completions -d '{"prompt":"Hello","logprobs":2,"max_tokens":8,"temperature":0}'
    gives 200 '"token_logprobs":[null,-' POST /v1/completions \
        -d '{"prompt":"Hello world","logprobs":1,"max_tokens":0,"echo":true}'
    equal "$m: a prompt that is scored" "Hello world" "$(value choices.0.text)"
    gives 400 'there is no token' POST /v1/completions -d '{"prompt":[1,999999],"logprobs":1,"echo":true}'
    gives 200 '"logprobs":[{"token":' POST /v1/responses \
        -d '{"input":"Hello","temperature":0,"max_output_tokens":24,"include":["message.output_text.logprobs"]}'
    gives 400 '"param":"suffix"' POST /v1/completions -d '{"prompt":"Hello","suffix":"world"}'
    gives 400 'no token 999999' POST /v1/chat/completions -d "$hello,\"logit_bias\":{\"999999\":5}}"
    gives 200 '"length"' POST /v1/chat/completions -d "$hello,\"n\":2,\"ignore_eos\":true}"
    equal "$m: two choices" 48 "$(value usage.completion_tokens)"
    for path in /api/tags /api/ps /api/version /props; do gives 200 '{' GET $path; done
    gives 200 '{"tokens":[' POST /tokenize -d '{"content":"Hello world"}'
    gives 200 '{"content":"Hello world"}' POST /detokenize -d "$(cat "$tmp/body")"
    gives 400 'ids of the vocabulary' POST /detokenize -d '{"tokens":[1,-2]}'
    gives 400 'content' POST /tokenize -d '{"content":7}'
    gives 400 '"error"' POST /tokenize -d 'no'
    gives 200 'Hello' POST /apply-template -d "$hello}"
    printf '%s}' "$hello" >"$tmp/messages"
    equal "$m: a template" "$("$run" render -m $m "$tmp/messages" 2>"$tmp/err")" "$(value prompt)"
    gives 200 '"model_info"' POST /api/show -d '{"model":"x"}'

    # ---- calls that must come, and what their tools allow
    props='"type":"object","required":["n"],"properties":{"n":{"type":"integer","minimum":3,"maximum":5}}'
    tool="{\"type\":\"function\",\"function\":{\"name\":\"pick\",\"parameters\":{$props}}}"
    idle='{"type":"function","function":{"name":"idle"}}'
    must='{"messages":[{"role":"user","content":"Hello"}],"max_tokens":400,"temperature":0'
    gives 200 '"finish_reason":"tool_calls"' POST /v1/chat/completions \
        -d "$must,\"tools\":[$tool],\"tool_choice\":\"required\"}"
    equal "$m: the only tool" pick "$(value choices.0.message.tool_calls.0.function.name)"
    case $(value choices.0.message.tool_calls.0.function.arguments) in
        '{"n":'[345]'}'|'{"n": '[345]'}') ok ;; *) bad "$m: arguments: $(head -c 400 "$tmp/body")" ;;
    esac
    gives 200 '"finish_reason":"tool_calls"' POST /v1/chat/completions \
        -d "$must,\"tools\":[$tool,$idle],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"idle\"}}}"
    equal "$m: the named tool" idle "$(value choices.0.message.tool_calls.0.function.name)"
    equal "$m: its arguments" '{}' "$(value choices.0.message.tool_calls.0.function.arguments)"
    gives 200 '"stop_reason":"tool_use"' POST /v1/messages \
        -d "$must,\"tools\":[{\"name\":\"pick\",\"input_schema\":{$props}}],\"tool_choice\":{\"type\":\"any\"}}"
    gives 200 '"type":"function_call"' POST /v1/responses -d "{\"input\":\"Hello\",\"temperature\":0,\"tool_choice\":\"required\",
        \"tools\":[{\"type\":\"function\",\"name\":\"pick\",\"parameters\":{$props}}]}"
    odd='{"type":"function","function":{"name":"odd","strict":true,"parameters":{"properties":{"a":{"type":"string","pattern":"x"}}}}}'
    gives 400 'unsupported keyword \"pattern\"' POST /v1/chat/completions -d "$must,\"tools\":[$odd]}"

    gives 200 '"status":"ok"' GET /health
    gives 200 '"object":"list"' GET /v1/models
    gives 200 'moe-serve' GET /
    gives 200 'llamacpp:prompt_tokens_total' GET /metrics
    metric() { sed -n "s/^$1 //p" "$tmp/body"; }
    tokens=$(metric llamacpp:tokens_predicted_total)
    if [ "$(metric llamacpp:n_decode_total)" -gt 0 ] && [ "$tokens" -gt 0 ] &&
        [ "$(metric moe_drafts_total)" -ge "$(metric moe_drafts_right_total)" ]; then ok; else bad "$m: steps: $(metric llamacpp:n_decode_total)"; fi
    if [ "$(metric moe_pass_rows_total)" = "$(metric moe_passes_total)" ] && [ "$(metric moe_passes_total)" -lt "$tokens" ] &&
        [ "$(metric moe_pass_tokens_total)" -ge "$(metric moe_passes_total)" ] && [ "$(metric moe_pass_experts_total)" -gt 0 ]; then ok; else bad "$m: passes in /metrics"; fi
    if [ "$(metric 'moe_expert_choices_total{found="cold"}')" -gt 0 ] && [ "$(metric 'moe_expert_bytes_total{from="ram"}')" -gt 0 ]; then ok; else bad "$m: experts in /metrics"; fi
    chats=$(metric 'moe_http_requests_total{route="\/v1\/chat\/completions",status="200"}')
    gives 404 '' GET /no/such/path
    gives 200 '"object":' POST /v1/chat/completions -d "$hello}"
    ask GET /metrics
    equal "$m: requests by route" "$((chats + 1)) 1" "$(metric 'moe_http_requests_total{route="\/v1\/chat\/completions",status="200"}') $(metric 'moe_http_requests_total{route="other",status="404"}')"
    gives 200 '"is_processing":false' GET /slots
    equal "$m: slots" "0 7" "$(value 0.id) $(value 7.id)"
    if [ "$(value 0.n_together)" = 1 ] && [ "$(value 0.n_drafts)" -ge "$(value 0.n_right_drafts)" ]; then ok; else bad "$m: drafts in /slots"; fi

    # ---- tools without a system message: the next conversation has them, too
    tools='"tools":[{"type":"function","function":{"name":"weather","description":"Of a town, now.","parameters":{"type":"object","properties":{"town":{"type":"string"}}}}}]'
    ask POST /v1/chat/completions -d "{\"messages\":[{\"role\":\"user\",\"content\":\"Good day\"}],\"max_tokens\":2,$tools}"
    ask POST /v1/chat/completions -d "{\"messages\":[{\"role\":\"user\",\"content\":\"Rain?\"}],\"max_tokens\":2,$tools}"
    if [ "$(value usage.prompt_tokens_details.cached_tokens)" -gt 20 ]; then ok; else bad "$m: tools were read again: $(value usage)"; fi
    gives 400 'temperature' POST /v1/chat/completions -d '{"messages":[{"role":"user","content":"x"}],"temperature":"hot"}'
    in_log 'POST /v1/chat/completions 400: temperature: a number is expected' "$m: why it was refused"

    # ---- many at once: each gets what it gets alone
    asked=$(rounds "1 2 3 4 5 6 7 8" "1 2 3 4")
    question() { echo "{\"messages\":[{\"role\":\"user\",\"content\":\"Count to $1.\"}],\"max_tokens\":16,\"seed\":$1,\"stream\":true}"; }
    for i in $asked; do
        ask POST /v1/chat/completions -d "$(question $i)"
        joined choices.0.delta >"$tmp/alone.$i"
    done
    clients=
    for i in $asked; do
        send with_others.$i POST /v1/chat/completions -d "$(question $i)" &
        clients="$clients $!"
    done
    wait $clients
    for i in $asked; do
        "$client" join "$tmp/with_others.$i" choices.0.delta >"$tmp/now"
        if [ -s "$tmp/now" ] && cmp -s "$tmp/now" "$tmp/alone.$i"; then ok
        else bad "$m: stream $i with others: $(head -c 200 "$tmp/now")"; fi
    done

    # ---- a client that leaves in the middle of a stream frees its slot
    long='{"messages":[{"role":"user","content":"Tell me a story."}],"max_tokens":400,"temperature":0,"ignore_eos":true,"stream":true}'
    ask POST /v1/chat/completions -d "$long" -q 3
    gives 200 '"object":' POST /v1/chat/completions -d "$hello}"
    equal "$m: after a client left" "$said" "$(value choices.0.message.content)"
    stop
done

# ---- who may ask what
start -m $qwen --ctx 256 --api-key one --api-key two --alias first --alias other
gives 200 '"status":"ok"' GET /health
gives 401 'WWW-Authenticate: Bearer' GET /v1/models
gives 401 '"code":"invalid_api_key"' GET /v1/models -H "Authorization: Bearer none"
gives 401 'invalid_api_key' GET /v1/models -H "Authorization: Bearer on"
gives 401 'invalid_api_key' GET /v1/models -H "Authorization: Bearer oneone"
gives 200 '"first"' GET /v1/models -H "Authorization: Bearer one"
gives 200 '"first"' GET /v1/models -H "authorization: bearer two"
gives 200 '"id":"other"' GET /v1/models/other -H "x-api-key: two"
gives 404 'model_not_found' GET /v1/models/unknown -H "x-api-key: two"
k="x-api-key: one"
gives 404 '"error"' GET /nowhere -H "$k"
gives 405 'Allow: POST, OPTIONS' GET /v1/chat/completions -H "$k"
gives 405 'this path takes POST"' GET /v1/chat/completions -H "$k"
gives 405 'Allow: GET, HEAD, OPTIONS' POST /v1/models -H "$k" -d '{}'
gives 403 'localhost' GET /v1/models -H "$k" -H "Host: evil.example"
for host in 127.0.0.1.evil.example 127.100.100.100.evil.example 127.100.100.100evil.example:80 localhost.evil.example; do
    gives 403 'localhost' GET /v1/models -H "$k" -H "Host: $host"
    gives 403 'origin are not allowed' GET /v1/models -H "$k" -H "Origin: http://$host"
done
gives 200 '"first"' GET /v1/models -H "$k" -H "Host: 127.100.100.100:8080"
gives 204 'Access-Control-Allow-Methods' OPTIONS /v1/chat/completions -H "Origin: http://localhost:3000"
gives 204 'Access-Control-Allow-Origin: http://localhost:3000' OPTIONS / -H "Origin: http://localhost:3000"
gives 403 'origin are not allowed' POST /v1/chat/completions -H "$k" -H "Origin: http://evil.example" -H "Content-Type: text/plain" -d '{}'
gives 200 '"first"' GET /v1/models -H "$k" -H "Origin: http://127.0.0.1:5173"
{ printf '{"content":"'; seq 60000 | tr '\n' ' '; printf '"}'; } >"$tmp/large"
gives 413 '256 KiB' POST /tokenize -H "$k" -f "$tmp/large"
ask GET /health -H "Origin: http://evil.example"
equal "a foreign origin" "" "$(header Access-Control-Allow-Origin)"
gives 400 '"invalid_request_error"' POST /v1/chat/completions -H "$k" -d '{'
gives 400 '"param":"messages"' POST /v1/chat/completions -H "$k" -d '{}'
gives 400 'maximum context length is 256 tokens' POST /v1/chat/completions -H "$k" \
    -d "{\"messages\":[{\"role\":\"user\",\"content\":\"$(seq 400 | tr '\n' ' ')\"}]}"
gives 415 'error' POST /v1/chat/completions -H "$k" -H "Content-Encoding: gzip" -d '{}'
expect 1 "in use; use another --listen" timeout $wait_limit_s $serve -m $qwen --listen 127.0.0.1:$port
stop

# ---- a file of more keys than anything holds at a fixed size
seq -f 'key-%g-' 300 >"$tmp/keys"
start -m $qwen --ctx 256 --api-key own --api-key-file "$tmp/keys"
for key in own key-1- key-127- key-128- key-129- key-200- key-300-; do
    gives 200 '"object"' GET /v1/models -H "x-api-key: $key"
done
gives 401 'invalid_api_key' GET /v1/models -H "x-api-key: key-301-"
stop

# ---- an idle server is idle: no thread of it wakes up within a second
start -m $qwen --ctx 256
gives 200 '"object":' POST /v1/chat/completions -d "$hello}"
wakeups() { cat /proc/$pid/task/*/status | awk '/^voluntary_ctxt_switches/ { n += $2 } END { print n }'; }
idle=no
for i in $(seq 20); do                   # until what is left of the start and the answer is done
    before=$(wakeups)
    sleep 1
    [ "$before" != "$(wakeups)" ] || { idle=yes; break; }
done
equal "an idle server" yes $idle
# ---- the main thread alone takes SIGINT and SIGTERM
for task in /proc/$pid/task/*; do
    mask=$(sed -n 's/^SigBlk:[[:space:]]*[0-9a-f]*\([0-9a-f]\{4\}\)$/\1/p' $task/status)
    mask=$((0x$mask & 0x4002))
    if [ ${task##*/} = $pid ]; then equal "signals that the main thread blocks" 0 $mask
    else equal "signals that thread $(cat $task/comm) blocks" $((0x4002)) $mask; fi
done

# ---- a body in chunks that does not end: refused at the limit, and not kept
peak() { sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' /proc/$pid/status; }
before=$(peak)
gives 413 'the body is too large' POST /v1/chat/completions -c 160
in_log 'POST /v1/chat/completions 413: the body is too large' "a refused body"
grown=$(($(peak) - before))
if sanitized || [ $grown -lt $((40 << 10)) ]; then ok; else bad "a body of 160 MiB in chunks: the server grew by $grown kB"; fi

# ---- large requests, which take seconds to prepare, hold up no small one
{ printf '{"max_tokens":1,"messages":[{"role":"user","content":"'; yes 'A fox, a dog and 7 cats.' | head -c 6000000 | tr '\n' ' '; printf '"}]}'; } >"$tmp/large"
for i in 1 2; do send large.$i POST /v1/chat/completions -f "$tmp/large" & done
second=$!
waits() { ask GET /slots; [ "$(value 0.n_waiting)" -ge 1 ]; }
wait_until "no request waits" waits
gives 200 '"object":' POST /v1/chat/completions -d "$hello}"
ask GET /slots
equal "large requests that are prepared after a small one" 1 "$(value 0.n_waiting)"
wait $second
if grep -q 'maximum context length' "$tmp/large.2"; then ok; else bad "a large request: $(head -c 200 "$tmp/large.2")"; fi
stop
wait

# ---- all addresses of the machine: what is printed can be asked
listen=0.0.0.0:0
start -m $qwen --ctx 256
in_log "other machines use the address of this one instead of 127.0.0.1" "--listen $listen"
in_log "ANTHROPIC_BASE_URL=http://127.0.0.1:$port " "--listen $listen"
gives 200 '"status":"ok"' GET /health
# its own page on another machine may ask; a page of another address or of a host name may not
for host in 192.168.1.2 192.168.1.2:8080 '[fe80::1]:8080'; do
    gives 200 "Access-Control-Allow-Origin: http://$host" GET /v1/models -H "Host: $host" -H "Origin: http://$host"
    gives 403 'origin are not allowed' GET /v1/models -H "Host: $host" -H "Origin: http://192.168.1.3:8080"
done
for host in evil.example 192.168.1.2.evil.example 192.168.1.2evil:8080 '[fe80::1]evil' '[fe80::1' '[]' ''; do
    gives 403 'origin are not allowed' GET /v1/models -H "Host: $host" -H "Origin: http://$host"
done
stop
start -m $qwen --ctx 256 --api-key one
gives 200 '"object"' GET /v1/models -H "x-api-key: one" -H "Host: my-box.lan:80" -H "Origin: http://my-box.lan:80"
gives 401 'a key is needed' GET /v1/models -H "Host: my-box.lan:80" -H "Origin: http://my-box.lan:80"
stop
if grep -q '^00000000000000000000000000000001 ' /proc/net/if_inet6 2>/dev/null; then
    listen=[::]:0 at='\[::1\]'
    start -m $qwen --ctx 256
    in_log "other machines use the address of this one instead of [::1]" "--listen $listen"
    stop
else
    skip "no ::1 here: --listen [::]:PORT"
fi
listen=127.0.0.1:0 at=127.0.0.1
start -m $qwen --ctx 256
if grep -q "other machines" "$tmp/serve.err"; then bad "other machines cannot ask 127.0.0.1"; else ok; fi
stop

refuse 2 "neither ADDRESS:PORT" $serve --listen 127.0.0.1:x
refuse 2 "one ADDRESS:PORT and one unix:PATH at most" $serve --listen 8081 --listen 8082
refuse 2 "it is empty" $serve --api-key ""
# there is no such address: a server whose origin is accepted ends there
for o in bla "" / http:// ://a.example http:/a.example https://a.example/ https://a.example/x "https://a.example:" \
         https://a.example:0 https://a.example:65536 https://a.example:x "https://a b.example" "https://*.example" null \
         https://u@a.example "http://[::1" "http://[]" "http://[a.example]" 1s://a.example "https://a.example https://b.example"; do
    refuse 2 "--cors: '$o' is neither * nor SCHEME://HOST[:PORT] such as https://a.example" timeout $wait_limit_s $serve --listen 1.2.3.4.5:0 --cors "$o"
done
for o in "*" http://a.example https://a.example:8443 "http://[fe80::1]:3000" chrome-extension://abcdef http://10.0.0.5:65535 http://my_box; do
    refuse 1 "not an address such as" timeout $wait_limit_s $serve -q --listen 1.2.3.4.5:0 --cors "$o"
done
refuse 2 "unknown option --frobnicate (moe-serve --help lists them)" $serve --frobnicate
refuse 2 "--port: use --listen ADDRESS:PORT" $serve --port 8081
refuse 2 "-np: 0 is out of range" $serve -np 0
expect 1 "nonexistent" timeout $wait_limit_s $serve -np 4 -m /nonexistent.gguf --listen 127.0.0.1:0
expect 1 "nonexistent" timeout $wait_limit_s $serve -m /nonexistent.gguf --listen 127.0.0.1:0
expect 0 "OpenAI" $run serve --help

# ---- conversations that take turns, and a server that was killed: what was read is not read again
turn() { echo "{\"max_tokens\":8,\"temperature\":0,\"messages\":[{\"role\":\"system\",\"content\":\"You are $1. $(seq 60 | tr '\n' ' ')\"},{\"role\":\"user\",\"content\":\"Hello\"}$2]}"; }
more=',{"role":"assistant","content":"Hi."},{"role":"user","content":"And now?"}'
cached() { value usage.prompt_tokens_details.cached_tokens; }
most_cached() {                          # WHAT LEAST
    if [ "$(cached)" -ge "$2" ]; then ok; else bad "$1: $(cached) tokens of $(value usage.prompt_tokens) were there, expected $2"; fi
}
tick() { "$client" value "$tmp/tick" "$1"; }
all_kept() {
    ask GET /moe-events -q 2
    sed -n 's/^data: //p' "$tmp/body" | sed -n 2p >"$tmp/tick"
    [ "$(tick states)" -gt 0 ] && [ "$(tick states)" = "$(tick states_on_drive)" ]
}
for m in $(rounds "$qwen $gptoss" $qwen); do
    start -m $m --ctx 1024
    gives 200 '"object"' POST /v1/chat/completions -d "$(turn Ann '')"
    first=$(value usage.prompt_tokens)
    gives 200 '"object"' POST /v1/chat/completions -d "$(turn Bob '')"
    gives 200 '"object"' POST /v1/chat/completions -d "$(turn Ann "$more")"
    most_cached "$m: the second turn" $((first - 1))
    cp "$tmp/body" "$tmp/second"
    gives 200 '"object"' POST /v1/chat/completions -d "$(turn Bob "$more")"
    most_cached "$m: the other's second turn" $((first - 1))
    wait_until "states are in RAM alone" all_kept
    kill -KILL $pid
    wait $pid 2>/dev/null
    start -m $m --ctx 1024
    gives 200 '"object"' POST /v1/chat/completions -d "$(turn Ann "$more")"
    most_cached "$m: after a kill" $(($(value usage.prompt_tokens) - 1))
    text=$(value choices.0.message.content)
    cp "$tmp/second" "$tmp/body"
    equal "$m: after a kill" "$(value choices.0.message.content)" "$text"
    for i in 1 2; do gives 200 '"object"' POST /v1/completions -d "{\"prompt\":\"One $(seq 2 60 | tr '\n' ' ')\",\"max_tokens\":4}"; done
    most_cached "$m: the same text once more" $(($(value usage.prompt_tokens) - 1))

    # ---- answers of a form
    schema='{"type":"object","properties":{"n":{"type":"integer","minimum":3,"maximum":40},"s":{"enum":["yes","no"]}},"required":["n","s"],"additionalProperties":false}'
    for seed in $(rounds "1 2 3" 1); do
        gives 200 '"object"' POST /v1/chat/completions \
            -d "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"seed\":$seed,\"max_tokens\":400,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":$schema,\"strict\":true}}}"
        value choices.0.message.content >"$tmp/content"
        n=$("$client" value "$tmp/content" n) s=$("$client" value "$tmp/content" s)
        if [ "$n" -ge 3 ] 2>/dev/null && [ "$n" -le 40 ] && { [ "$s" = yes ] || [ "$s" = no ]; }; then ok
        else bad "$m: an answer of a form: $(cat "$tmp/content")"; fi
    done
    gives 400 'pattern' POST /v1/chat/completions \
        -d '{"messages":[{"role":"user","content":"Hi"}],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"string","pattern":"a+"}}}}'
    stop
done

# ---- several at a time: a short answer waits neither for long ones nor for a long prompt
forever='{"messages":[{"role":"user","content":"Hi"}],"max_tokens":3000,"n":8,"temperature":0,"ignore_eos":true,"stream":true}'
words=$(yes 'A fox, a dog and a cat.' | head -n $(rounds 150 100) | tr '\n' ' ')
busy() { ask GET /slots; grep -o '"is_processing":true' "$tmp/body" | wc -l; }
at_work() { [ "$(busy)" "$1" "$2" ]; }
for m in $(rounds "$qwen $gptoss" $gptoss); do
    start -m $m --ctx 4096 --parallel 4 --stop-after 0
    gives 200 '"object":' POST /v1/chat/completions -d "$hello}"
    said=$(value choices.0.message.content)
    send long.1 POST /v1/chat/completions -d "$forever" &
    first=$!
    send long.2 POST /v1/completions -d '{"prompt":"Once","max_tokens":3000,"n":8,"ignore_eos":true}' &
    wait_until "two slots do not work" at_work -ge 2
    send long.3 POST /v1/completions -d "{\"prompt\":\"$words\",\"max_tokens\":1}" &
    gives 200 '"object":' POST /v1/chat/completions -d "$hello}"
    equal "$m: with three others" "$said" "$(value choices.0.message.content)"
    if kill -0 $first 2>/dev/null && [ "$(busy)" -ge 2 ]; then ok; else bad "$m: the long ones did not run meanwhile"; fi
    gives 200 '"total_slots":4' GET /props
    kill $first
    if wait_until "$m: a client that left has its slot" at_work -lt 2; then ok; fi
    stop
    wait
done
start -m $gptoss --ctx 4096 --parallel 1 --stop-after 0
send long.1 POST /v1/chat/completions -d "$forever" &
first=$!
wait_until "no slot works" at_work -ge 1
gives 503 'all slots are busy' GET '/slots?fail_on_no_slot=1'
kill $first
wait $first 2>/dev/null
wait_until "a client that left has its slot" at_work -eq 0
stop
in_log 'the client left' "a client that left"
expect 2 "parallel" "$serve" -m $qwen --parallel 0

# ---- nor for a prompt whose tokens are all scored; a client that leaves frees its slot
start -m $gptoss --ctx 4096 --parallel 2 --stop-after 0
scored="{\"prompt\":\"$words\",\"max_tokens\":1,\"echo\":true,\"logprobs\":1"
send long.1 POST /v1/completions -d "$scored}" &
first=$!
wait_until "no prompt is scored" at_work -ge 1
gives 200 '"object":' POST /v1/chat/completions -d "$hello}"
if kill -0 $first 2>/dev/null; then ok; else bad "while a prompt is scored: it was over first"; fi
wait $first
if grep -q '"token_logprobs":\[null,-' "$tmp/long.1"; then ok; else bad "a long prompt that is scored"; fi
send long.1 POST /v1/completions -d "$scored,\"n\":8}" &
first=$!
wait_until "no prompt is scored" at_work -ge 1
kill $first
wait $first 2>/dev/null
if wait_until "a client whose prompt was scored has its slot" at_work -eq 0; then ok; fi
gives 200 '"object":' POST /v1/chat/completions -d "$hello}"
stop

# ---- as many requests at once as slots and waiting ones: none is refused
start -m $qwen --ctx 256 --parallel 3 --queue 1
burst=
for i in 1 2 3 4; do
    "$client" $port POST /v1/chat/completions -d "$hello}" >"$tmp/burst.$i" 2>&1 &
    burst="$burst $!"
done
wait $burst
equal "answers to a burst" 4 "$(grep -l '^HTTP/1.1 200' "$tmp"/burst.? | wc -l)"
stop

# ---- stopping in the middle of an answer: it ends in order
start -m $qwen --ctx 4096 --stop-after 0
send last POST /v1/chat/completions \
    -d '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":4000,"ignore_eos":true,"stream":true}' &
wait_until "no slot works" at_work -ge 1
stop
wait
if grep -q 'length' "$tmp/last" || grep -q 'stop' "$tmp/last"; then ok; else bad "stopped in an answer: $(tail -c 200 "$tmp/last")"; fi
finish
