/* test_api_write.c - events to answers of five APIs: the exact bytes of small streams, which are in
 * tests/cases/api_answers.txt, and that a stream holds the same as the answer in one piece. */
#include "cli/serve/api.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/case_file.h"
#include "tests/test.h"

#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]"

static int collect(void *ctx, const char *bytes, size_t n)
{
    textbuf_put(ctx, (str_view){ bytes, n });
    return 0;
}

static const char *const names_of[] = { "chat", "completion", "responses", "messages", "ollama",
                                        "generate" };
static const api_names names = { "demo", "R", 86400 };
static const api_usage at_begin = { .n_prompt = 10, .n_cached = 4 };
static const api_usage at_end = { .n_prompt = 10, .n_cached = 4, .n_answer = 7, .n_reasoning = 2,
                                  .prompt_ns = 6000000, .answer_ns = 7000000,
                                  .total_ns = 13000000 };

/* Events as a text: "r" reasoning, "a" answer, "c" call, "+" arguments, ")" end of the call, "i"
 * idle, "e" end: each followed by its text up to "|". */
static int play(api_writer *w, const char *events)
{
    int rc = 0;
    while (*events && rc == 0) {
        const size_t n = strcspn(events, "|");
        const str_view text = { events + 1, n - 1 };
        chat_event ev = { .text = text };
        switch (*events) {
        case 'r': ev.kind = CHAT_REASONING; break;
        case 'a': ev.kind = CHAT_ANSWER; break;
        case 'c': ev = (chat_event){ .kind = CHAT_CALL_BEGIN, .name = text }; break;
        case '+': ev.kind = CHAT_CALL_ARGS; break;
        case ')': ev.kind = CHAT_CALL_END; break;
        default: ev.kind = CHAT_DONE; break;
        }
        rc = *events == 'i' ? api_writer_idle(w) : api_writer_event(w, &ev);
        events += n + (events[n] == '|');
    }
    return rc;
}

/* The whole answer to the body, for sure terminated; mem_free. NULL after a failed check. */
static char *answer(api_kind kind, const char *body, const char *events, answer_end end,
                    const char *stop_text)
{
    textbuf out = { 0 };
    api_request *r;
    api_writer *w = NULL;
    api_error error;

    if (!CHECK_MSG(api_parse(&r, kind, false, body, strlen(body), &error) == 0, "%s: %s", body,
                   error.message)) return NULL;
    CHECK(api_writer_create(&w, r, &names, collect, &out) == 0 &&
          api_writer_begin(w, &at_begin) == 0 && play(w, events) == 0 &&
          api_writer_end(w, end, stop_text, &at_end) == 0);
    api_writer_free(w);
    api_request_free(r);
    textbuf_put(&out, (str_view){ "", 1 });
    return out.ptr;
}

static void check_text(const char *got, const char *want, const char *label)
{
    CHECK_MSG(got && strcmp(got, want) == 0, "%s:\n%s\nwanted\n%s", label, got, want);
}

/* ---- the bytes of small answers ------------------------------------------------------------ */

static void test_bytes(void)
{
    static case_file file;
    const bool ok = case_file_read(&file, "api_answers.txt");
    for (int i = 0; i < file.n && ok; i++) {
        test_case *c = &file.cases[i];
        char *want = strchr(c->want, '\n'), *how = strstr(c->head, ", ") + 2;
        int kind = API_CHAT;
        answer_end end = ANSWER_STOP;
        while (kind < API_OLLAMA_GENERATE && !case_begins(c->head, names_of[kind], ',')) kind++;
        while (end < ANSWER_INTERRUPTED && !case_begins(how, answer_end_name(end), ':')) end++;
        *want++ = '\0';
        char *got = answer((api_kind)kind, c->body, case_unescape(c->want), end,
                           end == ANSWER_STOP_TEXT ? "END" : NULL);
        check_text(got, want, c->head);
        mem_free(got);
    }
    case_file_free(&file);
}

/* ---- a stream as a list of events ---------------------------------------------------------- */

/* The data of each event or line as one array. Every event's name is its type. */
static json_t *events_of(const char *text, bool lines)
{
    json_t *list = json_array();
    while (*text) {
        const char *end = strstr(text, lines ? "\n" : "\n\n"), *data = text;
        char name[64] = "";
        if (!CHECK_MSG(end != NULL, "no end: %s", text)) break;
        if (!lines) {
            if (strncmp(data, "event: ", 7) == 0) {
                sscanf(data, "event: %63s", name);
                data = strchr(data, '\n') + 1;
            }
            if (!CHECK_MSG(strncmp(data, "data: ", 6) == 0, "no data: %s", data)) break;
            data += 6;
        }
        if (strncmp(data, "[DONE]", 6) != 0) {
            json_t *v = json_loadb(data, (size_t)(end - data), JSON_REJECT_DUPLICATES, NULL);
            if (!CHECK_MSG(v != NULL, "not JSON: %.*s", (int)(end - data), data)) break;
            if (name[0])
                CHECK_MSG(strcmp(json_string_value(json_object_get(v, "type")), name) == 0, "%s",
                          name);
            json_array_append_new(list, v);
        }
        text = end + (lines ? 1 : 2);
    }
    return list;
}

static void add_text(textbuf *b, const json_t *v)
{
    if (json_is_string(v))
        textbuf_put(b, (str_view){ json_string_value(v), json_string_length(v) });
}

static const json_t *at(const json_t *v, const char *key) { return json_object_get(v, key); }

/* Reasoning, answer and calls that a client would have: "r:...\na:...\nf(...)\n". */
typedef struct heard { textbuf reasoning, text, calls; } heard;

static void hear_chat(heard *h, const json_t *m, bool stream)
{
    size_t i;
    json_t *call;
    add_text(&h->reasoning, at(m, "reasoning_content"));
    add_text(&h->text, at(m, "content"));
    json_array_foreach(at(m, "tool_calls"), i, call) {
        const json_t *f = at(call, "function");
        if (at(f, "name")) {
            textbuf_str(&h->calls, "\n");
            add_text(&h->calls, at(call, "id"));
            add_text(&h->calls, at(f, "name"));
        } else {
            CHECK(stream);
        }
        add_text(&h->calls, at(f, "arguments"));
    }
}

static void hear_block(heard *h, const json_t *block, bool stream)
{
    add_text(&h->reasoning, at(block, "thinking"));
    add_text(&h->text, at(block, "text"));
    if (at(block, "name")) {
        textbuf_str(&h->calls, "\n");
        add_text(&h->calls, at(block, "id"));
        add_text(&h->calls, at(block, "name"));
        if (!stream) {
            char *input = json_dumps(at(block, "input"), JSON_COMPACT);
            textbuf_str(&h->calls, input);
            free(input);
        }
    }
    add_text(&h->calls, at(block, "partial_json"));
}

static void hear_item(heard *h, const json_t *item)
{
    const char *type = json_string_value(at(item, "type"));
    const json_t *part = json_array_get(at(item, "content"), 0);
    if (strcmp(type, "reasoning") == 0) add_text(&h->reasoning, at(part, "text"));
    else if (strcmp(type, "message") == 0) add_text(&h->text, at(part, "text"));
    else {
        textbuf_str(&h->calls, "\n");
        add_text(&h->calls, at(item, "call_id"));
        add_text(&h->calls, at(item, "namespace"));
        add_text(&h->calls, at(item, "name"));
        add_text(&h->calls, at(item, "arguments"));
        add_text(&h->calls, at(item, "input"));
    }
}

static void hear_event(heard *h, const json_t *ev)
{
    const char *type = json_string_value(at(ev, "type"));
    if (strcmp(type, "response.reasoning_text.delta") == 0)
        add_text(&h->reasoning, at(ev, "delta"));
    else if (strcmp(type, "response.output_text.delta") == 0)
        add_text(&h->text, at(ev, "delta"));
    else if (strcmp(type, "response.output_item.added") == 0 && at(at(ev, "item"), "call_id"))
        hear_item(h, at(ev, "item"));
    else if (strstr(type, "arguments.delta") || strstr(type, "input.delta"))
        add_text(&h->calls, at(ev, "delta"));
}

static void hear_ollama(heard *h, const json_t *v)
{
    const json_t *m = at(v, "message") ? at(v, "message") : v;
    size_t i;
    json_t *call;
    add_text(&h->reasoning, at(m, "thinking"));
    add_text(&h->text, at(m, at(v, "message") ? "content" : "response"));
    json_array_foreach(at(m, "tool_calls"), i, call) {
        char *text = json_dumps(call, JSON_COMPACT);
        textbuf_str(&h->calls, text);
        free(text);
    }
}

static void hear(heard *h, api_kind kind, const json_t *v, bool stream)
{
    size_t i;
    json_t *item;
    const json_t *choice = json_array_get(at(v, "choices"), 0);
    switch (kind) {
    case API_CHAT: hear_chat(h, at(choice, stream ? "delta" : "message"), stream); break;
    case API_COMPLETION: add_text(&h->text, at(choice, "text")); break;
    case API_MESSAGES:
        if (stream) {
            hear_block(h, at(v, "content_block"), true);
            hear_block(h, at(v, "delta"), true);
        }
        else json_array_foreach(at(v, "content"), i, item) hear_block(h, item, false);
        break;
    case API_RESPONSES:
        if (stream) hear_event(h, v);
        else json_array_foreach(at(v, "output"), i, item) hear_item(h, item);
        break;
    default: hear_ollama(h, v); break;
    }
}

static const char *const bodies[] = {
    [API_CHAT] = "{" ASK ",\"stream\":%s,\"logprobs\":true}",
    [API_COMPLETION] = "{\"prompt\":\"p\",\"stream\":%s}",
    [API_RESPONSES] = "{\"input\":\"q\",\"stream\":%s,\"include\":"
                      "[\"reasoning.encrypted_content\"],"
                      "\"tools\":[{\"type\":\"namespace\",\"name\":\"ns\",\"tools\":[{\"type\":"
                      "\"function\",\"name\":\"f\"}]},{\"type\":\"custom\",\"name\":\"patch\"}]}",
    [API_MESSAGES] = "{\"max_tokens\":9," ASK ",\"stream\":%s}",
    [API_OLLAMA_CHAT] = "{" ASK ",\"stream\":%s}",
    [API_OLLAMA_GENERATE] = "{\"prompt\":\"p\",\"stream\":%s}",
};

static const char *const lists[] = {
    "",
    "ahello|a world",
    "rI think|r, \"so\"\t\\ \xc3\xa4 \xf0\x9f\x98\x80|aTwo\nlines|a\x01 and more|i|a.",
    "rfirst|athen text|rmore thought|atext again",
    "rhm|aI call|cns__f|+{\"a\"|+:[1,2]}|)|cother|)|cns__f|+{\"b\":\"\xc3\xa4\"}|)",
    "cpatch|+{\"inp|+ut\":\"*** Begin\\n+x\"}|)|adone",
};

static void test_joined(void)
{
    for (int kind = API_CHAT; kind <= API_OLLAMA_GENERATE; kind++) {
        for (size_t k = 0; k < ARRAY_LEN(lists); k++) {
            const bool lines = kind >= API_OLLAMA_CHAT;
            char body[512];
            heard h[2] = { 0 };
            for (int stream = 0; stream < 2; stream++) {
                snprintf(body, sizeof body, bodies[kind], stream ? "true" : "false");
                char *text = answer((api_kind)kind, body, lists[k], ANSWER_STOP, NULL);
                json_t *list = text && stream ? events_of(text, lines) : json_array(), *v;
                size_t i;
                if (text && !stream) json_array_append_new(list, json_loads(text, 0, NULL));
                CHECK_MSG(json_array_size(list) > 0, "kind %d, list %zu: %s", kind, k, text);
                json_array_foreach(list, i, v) {
                    hear(&h[stream], (api_kind)kind, v, stream);
                    if (stream && kind == API_RESPONSES)
                        CHECK(json_integer_value(at(v, "sequence_number")) == (json_int_t)i);
                }
                if (stream && kind == API_RESPONSES) {   /* its last event holds all once more */
                    heard last = { 0 };
                    hear(&last, API_RESPONSES, at(json_array_get(list, json_array_size(list) - 1),
                                                  "response"), false);
                    CHECK(str_eq(textbuf_view(&last.calls), textbuf_view(&h[1].calls)));
                    textbuf_free(&last.calls);
                    textbuf_free(&last.text);
                    textbuf_free(&last.reasoning);
                }
                json_decref(list);
                mem_free(text);
            }
            CHECK_MSG(str_eq(textbuf_view(&h[0].reasoning), textbuf_view(&h[1].reasoning)) &&
                      str_eq(textbuf_view(&h[0].text), textbuf_view(&h[1].text)) &&
                      str_eq(textbuf_view(&h[0].calls), textbuf_view(&h[1].calls)),
                      "kind %d, list %zu: %.*s|%.*s|%.*s, stream %.*s|%.*s|%.*s", kind, k,
                      (int)h[0].reasoning.len, h[0].reasoning.ptr, (int)h[0].text.len,
                      h[0].text.ptr, (int)h[0].calls.len, h[0].calls.ptr, (int)h[1].reasoning.len,
                      h[1].reasoning.ptr, (int)h[1].text.len, h[1].text.ptr, (int)h[1].calls.len,
                      h[1].calls.ptr);
            if (k == 4 && kind != API_COMPLETION && kind != API_OLLAMA_GENERATE)
                CHECK(h[0].calls.len > 20 && h[0].text.len == 6);
            for (int i = 0; i < 2; i++) {
                textbuf_free(&h[i].reasoning);
                textbuf_free(&h[i].text);
                textbuf_free(&h[i].calls);
            }
        }
    }
}

/* ---- Responses ----------------------------------------------------------------------------- */

/* The types of the events, without "response." */
static void check_types(const char *text, const char *want, const char *label)
{
    json_t *list = events_of(text, false), *v;
    textbuf b = { 0 };
    size_t i;
    json_array_foreach(list, i, v)
        textbuf_printf(&b, "%s%s", i ? " " : "", json_string_value(at(v, "type")) + 9);
    textbuf_put(&b, (str_view){ "", 1 });
    check_text(b.ptr, want, label);
    textbuf_free(&b);
    json_decref(list);
}

static void test_responses(void)
{
    char body[512];
    snprintf(body, sizeof body, bodies[API_RESPONSES], "true");
    char *text = answer(API_RESPONSES, body, "rhm|ahi|cns__f|+{}|)|cpatch|+{\"input\":\"+x\"}|)",
                        ANSWER_STOP, NULL);
    if (!text) return;
    check_types(text, "created in_progress output_item.added content_part.added "
                "reasoning_text.delta reasoning_text.done content_part.done output_item.done "
                "output_item.added content_part.added output_text.delta output_text.done "
                "content_part.done output_item.done output_item.added "
                "function_call_arguments.delta function_call_arguments.done output_item.done "
                "output_item.added custom_tool_call_input.delta custom_tool_call_input.done "
                "output_item.done completed", "all kinds of items");
    CHECK(strstr(text, "\"encrypted_content\":\"aG0=\""));
    CHECK(strstr(text, "\"name\":\"f\",\"namespace\":\"ns\",\"arguments\":\"{}\""));
    CHECK(strstr(text, "\"type\":\"custom_tool_call\",\"call_id\":\"call_R_3\",\"name\":\"patch\","
                       "\"input\":\"+x\""));
    CHECK(strstr(text, "\"usage\":{\"input_tokens\":10,\"input_tokens_details\":{\"cached_tokens\":"
                       "4,\"cache_write_tokens\":0},\"output_tokens\":7,\"output_tokens_details\":"
                       "{\"reasoning_tokens\":2},\"total_tokens\":17}"));
    mem_free(text);

    text = answer(API_RESPONSES, body, "cf|+{}|)", ANSWER_STOP, NULL);
    CHECK_MSG(text && strstr(text, "\"name\":\"f\",\"namespace\":\"ns\",\"arguments\":\"{}\""),
              "without its namespace: %s", text);
    mem_free(text);

    static const struct { const char *body; answer_end end; const char *type, *label; } ends[] = {
        { "{\"input\":\"q\",\"stream\":true,\"max_output_tokens\":5}", ANSWER_LENGTH,
          "created in_progress output_item.added content_part.added output_text.delta "
          "output_text.done content_part.done output_item.done incomplete", "the client's limit" },
        { "{\"input\":\"q\",\"stream\":true}", ANSWER_LENGTH,
          "created in_progress output_item.added content_part.added output_text.delta "
          "output_text.done content_part.done output_item.done completed", "not its limit" },
        { "{\"input\":\"q\",\"stream\":true}", ANSWER_CONTEXT,
          "created in_progress output_item.added content_part.added output_text.delta "
          "output_text.done content_part.done output_item.done completed", "our limit" },
    };
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        text = answer(API_RESPONSES, ends[i].body, "ahi", ends[i].end, NULL);
        if (text) check_types(text, ends[i].type, ends[i].label);
        mem_free(text);
    }
}

/* What went out goes back in: the next request has the same turn. */
static void test_round_trip(void)
{
    for (int closed = 0; closed < 2; closed++) {
        char body[512], *again;
        snprintf(body, sizeof body, bodies[API_RESPONSES], "false");
        char *text = answer(API_RESPONSES, body, "rwhy \xc3\xa4?|ahi|cns__f|+{\"a\":1}|)|cpatch|"
                            "+{\"input\":\"+x\"}|)", ANSWER_STOP, NULL);
        json_t *v = json_loads(text ? text : "{}", 0, NULL), *next = json_object();
        json_t *output = json_deep_copy(at(v, "output"));
        api_request *r = NULL;
        api_error error = { 0 };
        mem_free(text);
        if (closed) json_object_set_new(json_array_get(output, 0), "content", json_null());
        json_object_set_new(next, "input", output);
        again = json_dumps(next, 0);
        CHECK_MSG(api_parse(&r, API_RESPONSES, false, again, strlen(again), &error) == 0, "%s",
                  error.message);
        if (r && CHECK(r->chat.n_message == 1 && r->chat.messages[0].n_call == 2)) {
            const chat_message *m = r->chat.messages;
            CHECK(str_is(m->reasoning, "why \xc3\xa4?") && str_is(m->content, "hi") &&
                  str_is(m->calls[0].name, "ns__f") && str_is(m->calls[0].arguments, "{\"a\":1}") &&
                  str_is(m->calls[1].name, "patch") &&
                  str_is(m->calls[1].arguments, "{\"input\": \"+x\"}"));
        }
        api_request_free(r);
        free(again);
        json_decref(next);
        json_decref(v);
    }
}

/* ---- choices, logprobs, failures ----------------------------------------------------------- */

static void test_choices(void)
{
    for (int stream = 0; stream < 2; stream++) {
        const char *body = stream ? "{" ASK ",\"n\":2,\"stream\":true}" : "{" ASK ",\"n\":2}";
        textbuf out = { 0 }, texts[2] = { 0 };
        api_request *r;
        api_writer *w = NULL;
        api_error error;
        size_t i;
        json_t *v;
        CHECK(api_parse(&r, API_CHAT, false, body, strlen(body), &error) == 0 &&
              api_writer_create(&w, r, &names, collect, &out) == 0);
        api_writer_begin(w, &at_begin);
        play(w, "aone");
        api_writer_choice(w, 1);
        play(w, "atwo|cf|)");
        api_writer_finish(w, ANSWER_STOP, NULL);
        api_writer_choice(w, 0);
        play(w, "a more");
        CHECK(api_writer_end(w, ANSWER_LENGTH, NULL, &at_end) == 0);
        textbuf_put(&out, (str_view){ "", 1 });
        json_t *list = stream ? events_of(out.ptr, false) : json_pack("[o]", json_loads(out.ptr, 0,
                                                                                        NULL));
        const char *finish[2] = { "", "" };
        json_array_foreach(list, i, v) {
            size_t k;
            json_t *c;
            json_array_foreach(at(v, "choices"), k, c) {
                const json_int_t index = json_integer_value(at(c, "index"));
                if (!CHECK(index == 0 || index == 1)) continue;
                add_text(&texts[index], at(at(c, stream ? "delta" : "message"), "content"));
                if (json_is_string(at(c, "finish_reason")))
                    finish[index] = json_string_value(at(c, "finish_reason"));
            }
        }
        CHECK_MSG(str_is(textbuf_view(&texts[0]), "one more") &&
                  str_is(textbuf_view(&texts[1]), "two") && strcmp(finish[0], "length") == 0 &&
                  strcmp(finish[1], "tool_calls") == 0, "%s", out.ptr);
        json_decref(list);
        textbuf_free(&texts[0]);
        textbuf_free(&texts[1]);
        textbuf_free(&out);
        api_writer_free(w);
        api_request_free(r);
    }
}

static const struct { api_kind kind; const char *body, *want; } logprobs[] = {
    { API_CHAT, "{" ASK ",\"logprobs\":true,\"top_logprobs\":1}",
      "\"logprobs\":{\"content\":[{\"token\":\"h\",\"logprob\":-0.5,\"bytes\":[104],"
      "\"top_logprobs\":[{\"token\":\"x\",\"logprob\":-9999,\"bytes\":[120]}]},{\"token\":"
      "\"\xEF\xBF\xBD\",\"logprob\":-1,\"bytes\":[195],\"top_logprobs\":[]},{\"token\":"
      "\"\xEF\xBF\xBD\",\"logprob\":-1,\"bytes\":[164],\"top_logprobs\":[]}],\"refusal\":null}" },
    { API_COMPLETION, "{\"prompt\":\"p\",\"logprobs\":1}",
      "\"logprobs\":{\"tokens\":[\"h\",\"\xEF\xBF\xBD\",\"\xEF\xBF\xBD\"],\"token_logprobs\":"
      "[-0.5,-1,-1],\"top_logprobs\":[{\"x\":-9999},{},{}],\"text_offset\":[0,1,2]}" },
};

static void test_logprobs(void)
{
    const api_top top = { { "x", 1 }, -INFINITY };
    const api_token tokens[] = { { { "h", 1 }, -0.5f, &top, 1 }, { { "\xc3", 1 }, -1, NULL, 0 },
                                 { { "\xa4", 1 }, -1, NULL, 0 } };
    for (size_t i = 0; i < ARRAY_LEN(logprobs); i++) {
        textbuf out = { 0 };
        api_request *r;
        api_writer *w = NULL;
        api_error error;
        CHECK(api_parse(&r, logprobs[i].kind, false, logprobs[i].body, strlen(logprobs[i].body),
                        &error) == 0 && api_writer_create(&w, r, &names, collect, &out) == 0);
        api_writer_begin(w, NULL);
        for (size_t k = 0; k < ARRAY_LEN(tokens); k++) api_writer_token(w, &tokens[k]);
        play(w, "ah\xc3\xa4");
        api_writer_end(w, ANSWER_STOP, NULL, NULL);
        textbuf_put(&out, (str_view){ "", 1 });
        CHECK_MSG(strstr(out.ptr, logprobs[i].want), "%s", out.ptr);
        textbuf_free(&out);
        api_writer_free(w);
        api_request_free(r);
    }
}

static const struct { api_kind kind; bool begin; const char *want; } fails[] = {
    { API_CHAT, true, "\n\ndata: {\"error\":{\"message\":\"gone\",\"type\":\"server_error\","
      "\"param\":null,\"code\":null}}\n\n" },
    { API_MESSAGES, true, "\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":"
      "\"api_error\",\"message\":\"gone\"},\"request_id\":\"R\"}\n\n" },
    { API_RESPONSES, true, "event: response.failed\n" },
    { API_RESPONSES, false, "event: response.created\n" },
    { API_RESPONSES, false, "\"error\":{\"code\":\"server_error\",\"message\":\"gone\"}" },
    { API_OLLAMA_CHAT, true, "{\"error\":\"gone\"}\n" },
};

static void test_fail(void)
{
    for (size_t i = 0; i < ARRAY_LEN(fails); i++) {
        char body[512];
        textbuf out = { 0 };
        api_request *r;
        api_writer *w = NULL;
        api_error error;
        snprintf(body, sizeof body, bodies[fails[i].kind], "true");
        CHECK(api_parse(&r, fails[i].kind, false, body, strlen(body), &error) == 0 &&
              api_writer_create(&w, r, &names, collect, &out) == 0);
        if (fails[i].begin) api_writer_begin(w, NULL);
        api_error_make(&error, API_BROKEN, fails[i].kind, "gone");
        CHECK(api_writer_fail(w, &error) == 0);
        textbuf_put(&out, (str_view){ "", 1 });
        CHECK_MSG(strstr(out.ptr, fails[i].want) && !strstr(out.ptr, "[DONE]"), "fail %zu: %s", i,
                  out.ptr);
        textbuf_free(&out);
        api_writer_free(w);
        api_request_free(r);
    }
}

static int full_sink(void *ctx, const char *data, size_t n)
{
    (void)data;
    (void)n;
    return --*(int *)ctx < 0 ? ERR_IO : 0;
}

/* Each allocation fails once; the sink says no at each call: an error, never half a life. */
static void test_no_memory(void)
{
    const api_token token = { { "I call", 6 }, -1, NULL, 0 };
    for (int kind = API_CHAT; kind <= API_OLLAMA_GENERATE; kind++) {
        char body[512];
        api_request *r;
        api_error error;
        snprintf(body, sizeof body, bodies[kind], kind % 2 ? "false" : "true");
        if (!CHECK(api_parse(&r, (api_kind)kind, false, body, strlen(body), &error) == 0)) continue;
        size_t n_whole = 0;
        for (long k = 0; k < 1000; k++) {        /* 0: none fails */
            textbuf out = { 0 };
            api_writer *w = NULL;
            textbuf_room(&out, 1 << 20);         /* the sink does not fail */
            mem_fail_after(k);
            int rc = api_writer_create(&w, r, &names, collect, &out);
            if (rc == 0) rc = api_writer_begin(w, &at_begin);
            if (rc == 0) rc = api_writer_token(w, &token);
            if (rc == 0) rc = play(w, lists[4]);
            if (rc == 0) rc = api_writer_end(w, ANSWER_STOP, NULL, &at_end);
            mem_fail_after(0);
            if (rc == 0 && k)
                CHECK_MSG(out.len == n_whole, "kind %d, allocation %ld: text is missing", kind, k);
            n_whole = k ? n_whole : out.len;
            api_writer_free(w);
            textbuf_free(&out);
            if (rc == 0 && k) break;
            CHECK_MSG(rc == (k ? ERR_NOMEM : 0) && k < 999, "kind %d, allocation %ld: %d", kind, k,
                      rc);
        }
        for (int k = 0; k < 3 && r->stream; k++) {
            api_writer *w;
            int left = k;
            CHECK(api_writer_create(&w, r, &names, full_sink, &left) == 0);
            int rc = api_writer_begin(w, &at_begin);
            if (rc == 0) rc = play(w, lists[4]);
            if (rc == 0) rc = api_writer_end(w, ANSWER_STOP, NULL, &at_end);
            CHECK_MSG(rc == ERR_IO, "kind %d, %d calls: %d", kind, k, rc);
            api_writer_free(w);
        }
        api_request_free(r);
    }
}

int main(int argc, char **argv)
{
    test_begin("api write", argc, argv);
    test_bytes();
    test_joined();
    test_responses();
    test_round_trip();
    test_choices();
    test_logprobs();
    test_fail();
    test_no_memory();
    return test_end();
}
