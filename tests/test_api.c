/* test_api.c - requests of five APIs: what becomes of the clients' own shapes, and what is refused
 * with which words. */
#include "cli/serve/api.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/test.h"

static const char *const kinds[] = { "chat", "completion", "responses", "messages", "ollama",
                                     "generate" };

/* ---- a request as text --------------------------------------------------------------------- */

/* "S[be kind] U[hi] A[text|reasoning|f({})] T:f[result]" */
static void show_messages(textbuf *b, const api_request *r)
{
    for (int i = 0; i < r->chat.n_message; i++) {
        const chat_message *m = &r->chat.messages[i];
        if (i) textbuf_str(b, " ");
        textbuf_printf(b, "%c", "SDUAT"[m->role]);
        if (m->name.len) textbuf_printf(b, ":%.*s", (int)m->name.len, m->name.ptr);
        textbuf_printf(b, "[%.*s", (int)m->content.len, m->content.ptr);
        if (m->reasoning.len || m->n_call)
            textbuf_printf(b, "|%.*s", (int)m->reasoning.len, m->reasoning.ptr);
        for (int k = 0; k < m->n_call; k++)
            textbuf_printf(b, "|%.*s(%.*s)", (int)m->calls[k].name.len, m->calls[k].name.ptr,
                           (int)m->calls[k].arguments.len, m->calls[k].arguments.ptr);
        textbuf_str(b, "]");
    }
}

static void show_float(textbuf *b, const char *name, float v)
{
    if (!isnan(v)) textbuf_printf(b, " %s=%g", name, (double)v);
}

/* What differs from a request that says nothing. */
static void show_settings(textbuf *b, const api_request *r)
{
    static const char *const choices[] = { "auto", "none", "required", "named" };
    size_t i;
    json_t *tool;

    if (r->stream) textbuf_str(b, " stream");
    if (r->include_usage) textbuf_str(b, " usage");
    if (r->load_only) textbuf_str(b, " load");
    if (r->raw) textbuf_str(b, " raw");
    if (r->echo) textbuf_str(b, " echo");
    for (int k = 0; k < r->n_prompts; k++) {
        const api_prompt *p = &r->prompts[k];
        if (p->text) textbuf_printf(b, " '%.*s'", (int)p->n_text, p->text);
        for (int t = 0; t < p->n_ids; t++)
            textbuf_printf(b, "%s%d", t ? "," : " #", (int)p->ids[t]);
    }
    if (r->suffix) textbuf_printf(b, " suffix=%s", r->suffix);
    if (r->has_effort) textbuf_printf(b, " effort=%s", chat_effort_name(r->chat.effort));
    if (r->chat.thinking == CHAT_THINK_OFF) textbuf_str(b, " no-thinking");
    if (r->chat.thinking == CHAT_THINK_ON) textbuf_str(b, " thinking");
    if (!r->show_reasoning) textbuf_str(b, " hidden");
    if (r->max_tokens != -1) textbuf_printf(b, " max=%d", r->max_tokens);
    show_float(b, "temp", r->temperature);
    show_float(b, "top_p", r->top_p);
    show_float(b, "min_p", r->min_p);
    show_float(b, "freq", r->frequency_penalty);
    show_float(b, "pres", r->presence_penalty);
    show_float(b, "rep", r->repeat_penalty);
    if (r->top_k != -1) textbuf_printf(b, " top_k=%d", r->top_k);
    if (r->has_seed) textbuf_printf(b, " seed=%llu", (unsigned long long)r->seed);
    for (int k = 0; k < r->n_stop; k++) textbuf_printf(b, " stop=%s", r->stop[k]);
    if (r->n != 1) textbuf_printf(b, " n=%d", r->n);
    if (r->logprobs != -1) textbuf_printf(b, " logprobs=%d", r->logprobs);
    for (int k = 0; k < r->n_bias; k++)
        textbuf_printf(b, " bias%d=%g", (int)r->bias[k].id, (double)r->bias[k].value);
    json_array_foreach(r->chat.tools, i, tool) {
        const json_t *f = json_object_get(tool, "function");
        textbuf_printf(b, " tool=%s", json_string_value(json_object_get(f, "name")));
        if (json_object_get(f, "parameters")) textbuf_str(b, "()");
    }
    for (int k = 0; k < r->n_tool; k++)
        if (r->tools[k].space || r->tools[k].custom)
            textbuf_printf(b, " %s=%s/%s%s", r->tools[k].full_name, r->tools[k].space ?
                           r->tools[k].space : "", r->tools[k].name, r->tools[k].custom ? "!" : "");
    if (r->tool_choice != CHOICE_AUTO) textbuf_printf(b, " %s", choices[r->tool_choice]);
    if (r->tool_name) textbuf_printf(b, "=%s", r->tool_name);
    for (int k = 0; k < r->n_allowed; k++) textbuf_printf(b, " allowed=%s", r->allowed[k]);
    if (!r->parallel_calls) textbuf_str(b, " one-call");
    if (r->form != FORM_TEXT) textbuf_str(b, r->form == FORM_JSON ? " json" : " schema");
    if (r->form == FORM_SCHEMA && !json_is_object(r->schema)) textbuf_str(b, " NO SCHEMA");
    if (r->strict) textbuf_str(b, " strict");
    if (r->cache_key) textbuf_printf(b, " key=%s", r->cache_key);
    if (r->include_encrypted) textbuf_str(b, " encrypted");
    if (r->ignore_eos) textbuf_str(b, " no-eos");
}

#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]"
#define TOOL "{\"type\":\"function\",\"function\":{\"name\":\"f\"," \
             "\"parameters\":{\"type\":\"object\"}}}"

static const struct { api_kind kind; const char *body, *want, *label; } good[] = {
    /* chat completions */
    { API_CHAT, "{" ASK "}", "U[q]", "the least" },
    { API_CHAT, "{" ASK ",\"model\":\"gpt-4o\",\"user\":\"u\",\"store\":true,\"new_thing\":[{}],"
      "\"modalities\":[\"text\"]}", "U[q]", "any model, unknown fields" },
    { API_CHAT, "{" ASK ",\"temperature\":null,\"stop\":null,\"tools\":null,\"max_tokens\":null,"
      "\"stream\":null,\"n\":null,\"seed\":null,\"response_format\":null,\"tool_choice\":null,"
      "\"stream_options\":null,\"logit_bias\":null,\"reasoning_effort\":null}", "U[q]",
      "null is absent" },
    { API_CHAT, "{\"messages\":[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"developer\","
      "\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"system\",\"content\":"
      "\"d\"}]}", "S[a\n\nb] U[c] S[d]", "system messages in front are one, later ones stay" },
    { API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
      "{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"refusal\",\"refusal\":\"c\"}]}]}", "U[abc]",
      "parts are joined" },
    { API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
      "\"content\":null,\"reasoning_content\":\"r\",\"reasoning\":\"r\",\"tool_calls\":[{\"id\":"
      "\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}},"
      "{\"id\":\"2\",\"type\":\"function\",\"function\":{\"name\":\"g\","
      "\"arguments\":{\"b\":2}}}]},"
      "{\"role\":\"tool\",\"tool_call_id\":\"2\",\"content\":\"G\"},{\"role\":\"tool\","
      "\"tool_call_id\":\"1\",\"content\":[{\"type\":\"text\",\"text\":\"F\"}]},{\"role\":\"tool\","
      "\"tool_call_id\":\"?\",\"content\":\"X\"}]}",
      "U[q] A[|r|f({\"a\":1})|g({\"b\": 2})] T:g[G] T:f[F] T:g[X]",
      "calls and results in any order; an unknown id is the last call's" },
    { API_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"t\",\"tool_calls\":[{\"id\":"
      "\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"not json\"}},{\"id\":\"2\",\"function\":"
      "{\"name\":\"f\",\"arguments\":\"\"}},{\"id\":\"3\",\"function\":{\"name\":\"f\","
      "\"arguments\":\"[1]\"}}]}]}",
      "A[t||f({\"arguments\": \"not json\"})|f({})|f({\"arguments\": \"[1]\"})]",
      "arguments that are no object" },
    { API_CHAT, "{\"messages\":[{\"role\":\"function\",\"name\":\"h\",\"content\":\"x\"},{\"role\":"
      "\"tool\",\"content\":null}]}", "T:h[x] T:tool[]", "results without a call" },
    { API_CHAT, "{" ASK ",\"temperature\":0,\"top_p\":1,\"top_k\":0,\"min_p\":0.5,"
      "\"frequency_penalty\":-2,\"presence_penalty\":2,\"repeat_penalty\":1.5,\"seed\":-1,\"stop\":"
      "[\"a\",\"\",\"b\"],\"n\":8,\"logprobs\":true,\"top_logprobs\":20,"
      "\"logit_bias\":{\"7\":-100},"
      "\"max_tokens\":5,\"max_completion_tokens\":6}",
      "U[q] max=6 temp=0 top_p=1 min_p=0.5 freq=-2 pres=2 rep=1.5 top_k=0 "
      "seed=18446744073709551615 stop=a stop=b n=8 logprobs=20 bias7=-100", "all numbers" },
    { API_CHAT, "{" ASK ",\"seed\":18446744073709551615,\"max_tokens\":-1,\"stop\":\"\",\"top_k\":"
      "40.0}", "U[q] top_k=40 seed=18446744073709551615", "large seeds, -1, empty stop, 40.0" },
    { API_CHAT, "{" ASK ",\"stop\":\"x\",\"stop\":\"y\"}", "U[q] stop=y", "the last of two keys" },
    { API_CHAT, "{" ASK ",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
      "\"ignore_eos\":true,\"prompt_cache_key\":\"k\"}",
      "U[q] stream usage key=k no-eos", "stream" },
    { API_CHAT, "{" ASK ",\"reasoning_effort\":\"xhigh\"}", "U[q] effort=high thinking", "effort" },
    { API_CHAT, "{" ASK ",\"reasoning_effort\":\"none\"}", "U[q] effort=low no-thinking",
      "no effort" },
    { API_CHAT, "{" ASK ",\"chat_template_kwargs\":{\"enable_thinking\":false}}",
      "U[q] no-thinking", "template arguments" },
    { API_CHAT, "{" ASK ",\"chat_template_kwargs\":{\"enable_thinking\":true}}",
      "U[q] thinking", "template arguments" },
    { API_CHAT, "{" ASK ",\"tools\":[" TOOL "],\"tool_choice\":\"required\","
      "\"parallel_tool_calls\":false}", "U[q] tool=f() required one-call", "tools" },
    { API_CHAT, "{" ASK ",\"tools\":[" TOOL "],\"tool_choice\":\"none\"}", "U[q] tool=f() none",
      "tools stay with none" },
    { API_CHAT, "{" ASK ",\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"function\",\"function\":"
      "{\"name\":\"f\"}}}", "U[q] tool=f() named=f", "a named tool" },
    { API_CHAT, "{" ASK ",\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"allowed_tools\","
      "\"allowed_tools\":{\"mode\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":"
      "{\"name\":\"f\"}}]}}}", "U[q] tool=f() required allowed=f", "allowed tools" },
    { API_CHAT, "{" ASK ",\"tools\":[]}", "U[q]", "no tools" },
    { API_CHAT, "{" ASK ",\"response_format\":{\"type\":\"json_object\"}}", "U[q] json", "JSON" },
    { API_CHAT, "{" ASK ",\"response_format\":{\"type\":\"json_object\",\"schema\":{}}}",
      "U[q] schema", "llama.cpp's form" },
    { API_CHAT, "{" ASK ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":"
      "\"n\",\"strict\":true,\"schema\":{\"maximum\":99999999999999999999}}}}",
      "U[q] schema strict", "a schema, with an integer beyond 64 bits" },
    /* completions */
    { API_COMPLETION, "{\"prompt\":\"p\"}", " raw 'p'", "text" },
    { API_COMPLETION, "{\"prompt\":[1,2,3],\"logprobs\":5}", " raw #1,2,3 logprobs=5", "ids" },
    { API_COMPLETION, "{\"prompt\":[\"a\",\"b\"],\"best_of\":1}", " raw 'a' 'b'", "texts" },
    { API_COMPLETION, "{\"prompt\":[[1],[2,3]]}", " raw #1 #2,3", "lists of ids" },
    { API_COMPLETION, "{\"prompt\":\"p\",\"echo\":true,\"max_tokens\":0,\"logprobs\":0,\"suffix\":"
      "\"\"}", " raw echo 'p' max=0 logprobs=0", "scores the prompt" },
    { API_COMPLETION, "{\"prompt\":\"\",\"suffix\":\"s\"}", " raw '' suffix=s", "fill in" },
    /* Anthropic */
    { API_MESSAGES, "{\"max_tokens\":9," ASK "}", "U[q] max=9", "the least" },
    { API_MESSAGES, "{\"max_tokens\":0,\"system\":\"s\"," ASK "}", "S[s] U[q] max=0",
      "0 computes the prompt" },
    { API_MESSAGES, "{\"max_tokens\":9,\"system\":[{\"type\":\"text\",\"text\":"
      "\"x-anthropic-billing-header: cch=1\"},{\"type\":\"text\",\"text\":\"a\",\"cache_control\":"
      "{\"type\":\"ephemeral\"}},{\"type\":\"text\",\"text\":\"b\"}]," ASK "}",
      "S[a\n\nb] U[q] max=9", "system blocks, the billing header dropped" },
    { API_MESSAGES, "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
      "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"text\","
      "\"text\":\"c\"}]},{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":"
      "\"r\",\"signature\":\"\"},{\"type\":\"redacted_thinking\",\"data\":\"x\"},"
      "{\"type\":\"text\","
      "\"text\":\"t\"},{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{\"a\":1}}]},"
      "{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"2\",\"name\":\"g\","
      "\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"d\"},"
      "{\"type\":"
      "\"tool_result\",\"tool_use_id\":\"1\",\"content\":\"F\"},{\"type\":\"tool_result\","
      "\"tool_use_id\":\"2\",\"is_error\":true,\"content\":[{\"type\":\"text\",\"text\":\"G\"},"
      "{\"type\":\"image\",\"source\":{}}]},{\"type\":\"text\",\"text\":\"d2\"}]},"
      "{\"role\":\"system\",\"content\":\"e\"}]}",
      "U[a\n\nb\n\nc] A[t|r|f({\"a\": 1})|g({})] T:f[F] "
      "T:g[G\n[image left out: this model takes text only]] U[d\n\nd2] S[e] max=9",
      "messages merged, results ahead of text" },
    { API_MESSAGES, "{\"max_tokens\":9,\"system\":\"s\",\"messages\":[{\"role\":\"system\","
      "\"content\":\"t\"},{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"system\",\"content\":["
      "{\"type\":\"text\",\"text\":\"u\"}]},{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":"
      "\"assistant\",\"content\":\"b\"}]}", "S[s\n\nt] U[q] S[u] A[ab] max=9",
      "system messages among the others" },
    { API_MESSAGES, "{\"max_tokens\":99999999999," ASK ",\"tools\":[{\"name\":\"f\","
      "\"input_schema\":"
      "{\"type\":\"object\"},\"cache_control\":null,\"defer_loading\":true},{\"type\":"
      "\"web_search_20250305\",\"name\":\"web_search\"},{\"type\":\"custom\",\"name\":\"g\","
      "\"description\":\"d\",\"input_schema\":{}}],\"tool_choice\":{\"type\":\"tool\","
      "\"name\":\"g\","
      "\"disable_parallel_tool_use\":true},\"stop_sequences\":[\"x\"],\"top_k\":5,\"stream\":true,"
      "\"metadata\":{\"user_id\":\"k\"}}", "U[q] stream max=2147483647 top_k=5 stop=x tool=f() "
      "tool=g() named=g one-call key=k", "tools; a huge max_tokens is no error" },
    { API_MESSAGES, "{\"max_tokens\":9," ASK ",\"thinking\":{\"type\":\"disabled\"}}",
      "U[q] effort=low no-thinking hidden max=9", "thinking off" },
    { API_MESSAGES, "{\"max_tokens\":9," ASK ",\"thinking\":{\"type\":\"enabled\","
      "\"budget_tokens\":31999}}", "U[q] effort=high thinking max=9", "a budget" },
    { API_MESSAGES, "{\"max_tokens\":9," ASK ",\"thinking\":{\"type\":\"new\"},\"output_config\":"
      "{\"effort\":\"medium\",\"format\":{\"type\":\"json_schema\",\"schema\":{}}}}",
      "U[q] effort=medium thinking max=9 schema", "thinking is never refused; the output's form" },
    /* Responses */
    { API_RESPONSES, "{\"input\":\"\",\"max_output_tokens\":1}", "U[] max=1", "LM Studio's probe" },
    { API_RESPONSES, "{\"instructions\":\"i\",\"input\":[{\"type\":\"message\",\"role\":"
      "\"developer\",\"content\":[{\"type\":\"input_text\",\"text\":\"d\"}]},{\"role\":\"user\","
      "\"content\":\"q\"},{\"type\":\"reasoning\",\"summary\":[],\"content\":null,"
      "\"encrypted_content\":\"aGkgw6Q=\"},{\"type\":\"message\",\"role\":\"assistant\",\"phase\":"
      "\"commentary\",\"content\":[{\"type\":\"output_text\",\"text\":\"t\"}]},{\"type\":"
      "\"function_call\",\"name\":\"f\",\"namespace\":\"mcp\",\"arguments\":\"{}\","
      "\"call_id\":\"1\"},"
      "{\"type\":\"custom_tool_call\",\"name\":\"patch\",\"input\":\"+x\",\"call_id\":\"2\"},"
      "{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":[{\"type\":\"input_text\","
      "\"text\":\"F\"}]},{\"type\":\"custom_tool_call_output\",\"call_id\":\"2\",\"output\":\"P\"},"
      "{\"type\":\"web_search_call\"},{\"type\":\"reasoning\",\"summary\":[{\"type\":"
      "\"summary_text\",\"text\":\"s\"}],\"content\":[{\"type\":\"reasoning_text\","
      "\"text\":\"r\"}]},"
      "{\"type\":\"message\",\"role\":\"assistant\",\"content\":\"u\"}]}",
      "S[i\n\nd] U[q] A[t|hi \xc3\xa4|mcp__f({})|patch({\"input\": \"+x\"})] T:mcp__f[F] "
      "T:patch[P] "
      "A[u|r]", "items of a turn are one message" },
    { API_RESPONSES, "{\"input\":[{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\","
      "\"text\":\"s\"}],\"encrypted_content\":\"gAAAAB//\"},{\"role\":\"user\","
      "\"content\":\"q\"}]}",
      "A[|s] U[q]", "another server's encrypted content" },
    { API_RESPONSES, "{\"input\":\"q\",\"tools\":[{\"type\":\"function\",\"name\":\"f\","
      "\"parameters\":{},\"strict\":false},{\"type\":\"namespace\",\"name\":\"mcp__a__\","
      "\"tools\":["
      "{\"type\":\"function\",\"name\":\"g\"},{\"type\":\"custom\",\"name\":\"h\"}]},{\"type\":"
      "\"custom\",\"name\":\"patch\",\"format\":{}},{\"type\":\"web_search\"},{\"type\":"
      "\"image_generation\"}],\"tool_choice\":\"auto\",\"parallel_tool_calls\":true,\"reasoning\":"
      "{\"effort\":\"low\",\"summary\":\"auto\"},\"store\":false,\"stream\":true,\"include\":["
      "\"reasoning.encrypted_content\"],\"prompt_cache_key\":\"k\",\"text\":{\"verbosity\":\"low\","
      "\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{},\"strict\":true}},"
      "\"client_metadata\":{}}", "U[q] stream effort=low thinking tool=f() "
      "tool=mcp__a__g tool=mcp__a__h() "
      "tool=patch() mcp__a__g=mcp__a__/g mcp__a__h=mcp__a__/h! patch=/patch! schema strict key=k "
      "encrypted", "Codex" },
    { API_RESPONSES, "{\"input\":\"q\",\"tools\":[{\"type\":\"namespace\",\"name\":\"a\",\"tools\":"
      "[{\"type\":\"function\",\"name\":\"g\"}]}],\"tool_choice\":{\"type\":\"function\",\"name\":"
      "\"g\",\"namespace\":\"a\"}}", "U[q] tool=a__g a__g=a/g named=a__g", "a named tool" },
    { API_RESPONSES, "{\"input\":\"q\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],"
      "\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{\"type\":\"mcp\"},"
      "{\"type\":\"function\",\"name\":\"f\"}]},\"prompt_cache_key\":7}", "U[q] tool=f allowed=f",
      "allowed tools, one of them not ours" },
    { API_RESPONSES, "{\"input\":\"q\",\"tool_choice\":{\"type\":\"web_search\"}}", "U[q]",
      "a choice that is not ours" },
    /* Ollama */
    { API_OLLAMA_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
      "{\"role\":\"assistant\","
      "\"content\":\"\",\"thinking\":\"r\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
      "\"arguments\":{\"a\":1}}}]},{\"role\":\"tool\",\"tool_name\":\"f\",\"content\":\"F\"}],"
      "\"format\":\"json\",\"think\":false,\"keep_alive\":\"5m\",\"options\":{\"temperature\":0.5,"
      "\"num_predict\":-2,\"num_ctx\":999999,\"stop\":[\"x\"],\"seed\":3}}",
      "U[q] A[|r|f({\"a\": 1})] T:f[F] stream no-thinking hidden temp=0.5 seed=3 stop=x json",
      "chat" },
    { API_OLLAMA_CHAT, "{\"model\":\"m\"}", " stream load", "asks for the model" },
    { API_OLLAMA_CHAT, "{" ASK ",\"think\":\"high\",\"format\":{},\"stream\":false,\"tools\":[" TOOL
      "]}", "U[q] effort=high thinking tool=f() schema", "levels, schema, tools" },
    { API_OLLAMA_GENERATE, "{\"prompt\":\"p\",\"system\":\"s\"}", "S[s] U[p] stream", "generate" },
    { API_OLLAMA_GENERATE, "{\"prompt\":\"p\",\"raw\":true}", " stream raw 'p'", "raw" },
    { API_OLLAMA_GENERATE, "{\"prompt\":\"\",\"stream\":false}", " load", "load" },
};

static void test_good(void)
{
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        api_request *r;
        api_error error;
        textbuf b = { 0 };
        const int rc = api_parse(&r, good[i].kind, good[i].body, strlen(good[i].body), &error);
        if (!CHECK_MSG(rc == 0, "%s, %s: %s", kinds[good[i].kind], good[i].label, error.message))
            continue;
        show_messages(&b, r);
        show_settings(&b, r);
        textbuf_put(&b, (str_view){ "", 1 });
        CHECK_MSG(strcmp(b.ptr, good[i].want) == 0, "%s, %s:\n  %s\n  wanted\n  %s",
                  kinds[good[i].kind], good[i].label, b.ptr, good[i].want);
        textbuf_free(&b);
        api_request_free(r);
    }
}

/* ---- what is refused ----------------------------------------------------------------------- */

static const struct { api_kind kind; const char *body, *param, *words; } bad[] = {
    { API_CHAT, "", "", "empty" },
    { API_CHAT, "{", "", "not JSON" },
    { API_CHAT, "[]", "", "not a JSON object" },
    { API_CHAT, "{" ASK "} x", "", "not JSON" },
    { API_CHAT, "{ quote", "", "line 1, column 7: string or '}' expected" },
    { API_CHAT, "{" ASK "}{}", "", "not JSON" },
    { API_CHAT, "{" ASK ",\"temperature\":NaN}", "", "not JSON" },
    { API_CHAT, "{" ASK ",\"temperature\":1e999}", "", "not JSON" },
    { API_CHAT, "{" ASK ",\"x\":\"\xff\"}", "", "not JSON" },
    { API_CHAT, "{}", "messages", "missing" },
    { API_CHAT, "{\"messages\":[]}", "messages", "none" },
    { API_CHAT, "{\"messages\":{}}", "messages", "array" },
    { API_CHAT, "{\"messages\":[1]}", "messages[0]", "object" },
    { API_CHAT, "{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role", "missing" },
    { API_CHAT, "{\"messages\":[{\"role\":\"boss\"}]}", "messages[0].role", "boss" },
    { API_CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content", "missing" },
    { API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages[0].content",
      "string" },
    { API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
      "messages[0].content[0].text", "string" },
    { API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
      "messages[0].content[0]", "takes text only" },
    { API_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}",
      "messages[0].tool_calls[0].function", "missing" },
    { API_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]}",
      "messages[0].tool_calls[0].function", "name" },
    { API_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"reasoning\":7}]}",
      "messages[0].reasoning", "string" },
    { API_CHAT, "{" ASK ",\"stream\":\"yes\"}", "stream", "true or false" },
    { API_CHAT, "{" ASK ",\"temperature\":\"1\"}", "temperature", "number" },
    { API_CHAT, "{" ASK ",\"temperature\":2.1}", "temperature", "0 to 2" },
    { API_CHAT, "{" ASK ",\"top_p\":0}", "top_p", "outside" },
    { API_CHAT, "{" ASK ",\"top_k\":-1}", "top_k", "outside" },
    { API_CHAT, "{" ASK ",\"top_k\":1.5}", "top_k", "whole" },
    { API_CHAT, "{" ASK ",\"seed\":\"x\"}", "seed", "64-bit" },
    { API_CHAT, "{" ASK ",\"seed\":99999999999999999999}", "seed", "64-bit" },
    { API_CHAT, "{" ASK ",\"max_tokens\":0}", "max_tokens", "at least 1" },
    { API_CHAT, "{" ASK ",\"stop\":[1]}", "stop", "string" },
    { API_CHAT, "{" ASK ",\"stop\":\"a\\u0000b\"}", "stop", "zero byte" },
    { API_CHAT, "{" ASK ",\"n\":9}", "n", "1 to 8" },
    { API_CHAT, "{" ASK ",\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs", "0 to 20" },
    { API_CHAT, "{" ASK ",\"logit_bias\":{\"x\":1}}", "logit_bias", "token id" },
    { API_CHAT, "{" ASK ",\"logit_bias\":{\"1\":101}}", "logit_bias", "-100" },
    { API_CHAT, "{" ASK ",\"logit_bias\":{\"9999999999\":1}}", "logit_bias", "token id" },
    { API_CHAT, "{" ASK ",\"reasoning_effort\":\"lots\"}", "reasoning_effort", "lots" },
    { API_CHAT, "{" ASK ",\"tools\":[{\"type\":\"custom\"}]}", "tools[0].type", "custom" },
    { API_CHAT, "{" ASK ",\"tools\":[{\"type\":\"function\"}]}", "tools[0].function", "missing" },
    { API_CHAT, "{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
      "\"parameters\":1}}]}", "tools[0].function.parameters", "object" },
    { API_CHAT, "{" ASK ",\"tool_choice\":\"required\"}", "tool_choice", "no tools" },
    { API_CHAT, "{" ASK ",\"tool_choice\":\"maybe\"}", "tool_choice", "maybe" },
    { API_CHAT, "{" ASK ",\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"function\",\"function\":"
      "{\"name\":\"g\"}}}", "tool_choice", "no tool \"g\"" },
    { API_CHAT, "{" ASK ",\"response_format\":{\"type\":\"json_schema\"}}",
      "response_format.json_schema", "missing" },
    { API_CHAT, "{" ASK ",\"response_format\":{\"type\":\"yaml\"}}", "response_format.type",
      "yaml" },
    { API_CHAT, "{" ASK ",\"functions\":[]}", "functions", "tools" },
    { API_CHAT, "{" ASK ",\"modalities\":[\"text\",\"audio\"]}", "modalities", "text only" },
    { API_CHAT, "{" ASK ",\"audio\":{}}", "audio", "text only" },
    { API_COMPLETION, "{}", "prompt", "missing" },
    { API_COMPLETION, "{\"prompt\":7}", "prompt", "token ids" },
    { API_COMPLETION, "{\"prompt\":[]}", "prompt", "choices" },
    { API_COMPLETION, "{\"prompt\":[1,-2]}", "prompt[1]", "token id" },
    { API_COMPLETION, "{\"prompt\":[\"\",\"\",\"\",\"\",\"\"],\"n\":2}", "prompt", "1 to 8" },
    { API_COMPLETION, "{\"prompt\":\"\",\"best_of\":2}", "best_of", "only 1" },
    { API_COMPLETION, "{\"prompt\":\"\",\"logprobs\":6}", "logprobs", "0 to 5" },
    { API_COMPLETION, "{\"prompt\":\"\",\"max_tokens\":0}", "max_tokens", "at least 1" },
    { API_MESSAGES, "{" ASK "}", "max_tokens", "missing" },
    { API_MESSAGES, "{\"max_tokens\":1,\"messages\":[]}", "messages", "none" },
    { API_MESSAGES, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
      "\"image\"}]}]}", "messages[0].content[0]", "takes text only" },
    { API_MESSAGES, "{\"max_tokens\":1,\"messages\":[{\"role\":\"tool\",\"content\":\"\"}]}",
      "messages[0].role", "tool" },
    { API_MESSAGES, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\"}]}",
      "messages[0].content", "blocks" },
    { API_MESSAGES, "{\"max_tokens\":1," ASK ",\"tools\":[{}]}", "tools[0].name", "missing" },
    { API_MESSAGES, "{\"max_tokens\":1," ASK ",\"tool_choice\":{\"type\":\"any\"}}", "tool_choice",
      "no tools" },
    { API_MESSAGES, "{\"max_tokens\":1," ASK ",\"system\":7}", "system", "blocks" },
    { API_RESPONSES, "{}", "input", "missing" },
    { API_RESPONSES, "{\"input\":[]}", "input", "empty" },
    { API_RESPONSES, "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}",
      "input[0].content[0]", "takes text only" },
    { API_RESPONSES, "{\"input\":\"\",\"previous_response_id\":\"r\"}", "previous_response_id",
      "not stored" },
    { API_RESPONSES, "{\"input\":\"\",\"background\":true}", "background", "not stored" },
    { API_RESPONSES, "{\"input\":[{\"type\":\"function_call\"}]}", "input[0].name", "missing" },
    { API_OLLAMA_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\",\"images\":[\"x\"]}]}",
      "messages[0].images", "text only" },
    { API_OLLAMA_CHAT, "{" ASK ",\"options\":{\"top_p\":2}}", "options.top_p", "outside" },
    { API_OLLAMA_GENERATE, "{\"prompt\":1}", "prompt", "string" },
    { API_OLLAMA_GENERATE, "{\"prompt\":\"x\",\"format\":\"xml\"}", "format", "schema" },
};

static void test_bad(void)
{
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        api_request *r;
        api_error error;
        const int rc = api_parse(&r, bad[i].kind, bad[i].body, strlen(bad[i].body), &error);
        CHECK_MSG(rc == -1 && !r && error.status == 400 &&
                  strcmp(error.type, "invalid_request_error") == 0 &&
                  strcmp(error.param, bad[i].param) == 0 && strstr(error.message, bad[i].words),
                  "%s %s: rc %d, %d, param \"%s\", \"%s\"", kinds[bad[i].kind], bad[i].body, rc,
                  error.status, error.param, error.message);
        CHECK_MSG(!strstr(error.message, "quote"), "text of the body: %s", error.message);
        api_request_free(r);
    }
}

static void test_depth(void)
{
    const int depths[] = { 255, 256, 100000 };   /* of the inner value; the body is one more */
    for (size_t i = 0; i < ARRAY_LEN(depths); i++) {
        textbuf b = { 0 };
        api_request *r;
        api_error error;
        textbuf_str(&b, "{" ASK ",\"x\":");
        for (int k = 0; k < depths[i]; k++) textbuf_str(&b, "[");
        for (int k = 0; k < depths[i]; k++) textbuf_str(&b, "]");
        textbuf_str(&b, "}");
        const int rc = api_parse(&r, API_CHAT, b.ptr, b.len, &error);
        CHECK_MSG((rc == 0) == (depths[i] < 256), "depth %d: rc %d %s", depths[i] + 1, rc,
                  error.message);
        if (rc < 0) CHECK(strstr(error.message, "nested deeper than 256"));
        api_request_free(r);
        textbuf_free(&b);
    }
}

/* Every prefix of good bodies, and every byte changed: never a crash; sanitizers see leaks. */
static void test_damage(void)
{
    int n_ok = 0, n_bad = 0;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        const size_t n = strlen(good[i].body);
        char *copy = test_alloc(n, 1);
        for (size_t at = 0; at < n; at++) {
            static const char other[] = "\"{[1x\\";
            api_request *r;
            api_error error;
            memcpy(copy, good[i].body, n);
            api_parse(&r, good[i].kind, copy, at, &error) == 0 ? n_ok++ : n_bad++;
            api_request_free(r);
            copy[at] = other[at % (sizeof other - 1)];
            api_parse(&r, good[i].kind, copy, n, &error) == 0 ? n_ok++ : n_bad++;
            api_request_free(r);
        }
        mem_free(copy);
    }
    CHECK_MSG(n_ok > 100 && n_bad > 1000, "%d taken, %d refused", n_ok, n_bad);
}

/* Each allocation of ours fails once. */
static void test_no_memory(void)
{
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        for (long k = 1;; k++) {
            api_request *r;
            api_error error;
            mem_fail_after(k);
            const int rc = api_parse(&r, good[i].kind, good[i].body, strlen(good[i].body), &error);
            mem_fail_after(0);
            api_request_free(r);
            if (rc == 0) break;
            if (!CHECK_MSG(error.status == 500, "%s, %s, allocation %ld: %d %s",
                           kinds[good[i].kind],
                           good[i].label, k, error.status, error.message)) break;
        }
    }
}

/* ---- errors -------------------------------------------------------------------------------- */

static const struct { api_error_type what; api_kind kind; int status; const char *want; } errors[] = {
    { API_BAD_REQUEST, API_CHAT, 400, "{\"error\":{\"message\":\"m\",\"type\":"
      "\"invalid_request_error\",\"param\":null,\"code\":null}}" },
    { API_NO_KEY, API_CHAT, 401, "{\"error\":{\"message\":\"m\",\"type\":\"authentication_error\","
      "\"param\":null,\"code\":\"invalid_api_key\"}}" },
    { API_NO_MODEL, API_RESPONSES, 404, "{\"error\":{\"message\":\"m\",\"type\":"
      "\"not_found_error\",\"param\":null,\"code\":\"model_not_found\"}}" },
    { API_LOADING, API_CHAT, 503, "{\"error\":{\"message\":\"m\",\"type\":\"unavailable_error\","
      "\"param\":null,\"code\":\"loading\"}}" },
    { API_BUSY, API_COMPLETION, 503, "{\"error\":{\"message\":\"m\",\"type\":\"server_error\","
      "\"param\":null,\"code\":\"server_is_overloaded\"}}" },
    { API_BUSY, API_MESSAGES, 529, "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
      "\"message\":\"m\"},\"request_id\":\"R\"}" },
    { API_LOADING, API_MESSAGES, 503, "{\"type\":\"error\",\"error\":{\"type\":"
      "\"overloaded_error\",\"message\":\"m\"},\"request_id\":\"R\"}" },
    { API_TOO_LARGE, API_MESSAGES, 413, "{\"type\":\"error\",\"error\":{\"type\":"
      "\"request_too_large\",\"message\":\"m\"},\"request_id\":\"R\"}" },
    { API_BROKEN, API_MESSAGES, 500, "{\"type\":\"error\",\"error\":{\"type\":\"api_error\","
      "\"message\":\"m\"},\"request_id\":\"R\"}" },
    { API_BUSY, API_OLLAMA_CHAT, 503, "{\"error\":\"m\"}" },
};

static void test_errors(void)
{
    for (size_t i = 0; i < ARRAY_LEN(errors); i++) {
        api_error error;
        api_error_make(&error, errors[i].what, errors[i].kind, "%s", "m");
        char *body = api_error_body(&error, errors[i].kind, "R");
        CHECK_MSG(error.status == errors[i].status && body && strcmp(body, errors[i].want) == 0,
                  "error %zu: %d %s", i, error.status, body);
        mem_free(body);
    }
}

static const struct { api_kind kind; const char *body; bool inside; const char *words; } longs[] = {
    { API_CHAT, "{" ASK ",\"stream\":true}", false, "This model's maximum context length is 100 "
      "tokens. However, your messages resulted in 200 tokens." },
    { API_MESSAGES, "{\"max_tokens\":1," ASK ",\"stream\":true}", false,
      "prompt is too long: 200 tokens > 100 maximum" },
    { API_RESPONSES, "{\"input\":\"q\"}", false, "This model's maximum context length is 100 "
      "tokens. However, your messages resulted in 200 tokens." },
    { API_RESPONSES, "{\"input\":\"q\",\"stream\":true}", true, "This model's maximum context "
      "length is 100 tokens. However, your messages resulted in 200 tokens." },
};

static void test_overflow(void)
{
    for (size_t i = 0; i < ARRAY_LEN(longs); i++) {
        api_request *r;
        api_error error;
        if (!CHECK(api_parse(&r, longs[i].kind, longs[i].body, strlen(longs[i].body), &error) == 0))
            continue;
        const bool inside = api_error_overflow(&error, r, 200, 100);
        CHECK_MSG(inside == longs[i].inside && error.status == 400 &&
                  strcmp(error.code, "context_length_exceeded") == 0 &&
                  strcmp(error.message, longs[i].words) == 0, "%s: %d %s", kinds[longs[i].kind],
                  inside, error.message);
        api_request_free(r);
    }
}

static void test_count(void)
{
    static const char body[] = "{" ASK ",\"tools\":[{\"name\":\"f\",\"input_schema\":{}}]}";
    api_request *r;
    api_error error;
    CHECK(api_parse_count(&r, body, strlen(body), &error) == 0 && r->chat.n_message == 1 &&
          json_array_size(r->chat.tools) == 1);
    api_request_free(r);
}

/* ---- bodies about the model ---------------------------------------------------------------- */

static const char *text_at(const json_t *v, const char *key)
{
    const char *s = json_string_value(json_object_get(v, key));
    return s ? s : "";
}

static void test_models(void)
{
    static const char *const aliases[] = { "gpt-oss:20b", "claude-local" };
    const api_model m = { .name = "demo \"x\"", .aliases = aliases, .n_alias = 2, .path = "/m.gguf",
                          .arch = "qwen3next", .quant = "Q4_K_M", .created = 86400, .n_ctx = 4096,
                          .n_params = 80000000000, .size_bytes = 1 << 20, .n_slot = 4,
                          .thinks = true };
    char *bodies[] = { api_models_body(&m), api_tags_body(&m), api_ps_body(&m), api_show_body(&m),
                       api_props_body(&m), api_version_body(), api_count_body(7),
                       api_model_body(&m, "claude-local") };
    json_t *v[ARRAY_LEN(bodies)];

    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        v[i] = bodies[i] ? json_loads(bodies[i], JSON_REJECT_DUPLICATES, NULL) : NULL;
        CHECK_MSG(json_is_object(v[i]), "body %zu: %s", i, bodies[i]);
    }
    const json_t *data = json_object_get(v[0], "data");
    CHECK(json_array_size(data) == 3 && strcmp(text_at(v[0], "object"), "list") == 0 &&
          strcmp(text_at(json_array_get(data, 0), "id"), "demo \"x\"") == 0 &&
          strcmp(text_at(json_array_get(data, 2), "display_name"), "claude-local") == 0 &&
          strcmp(text_at(json_array_get(data, 0), "created_at"), "1970-01-02T00:00:00Z") == 0 &&
          strcmp(text_at(v[0], "last_id"), "claude-local") == 0);
    const json_t *tags = json_object_get(v[1], "models");
    CHECK(json_array_size(tags) == 3 &&
          strcmp(text_at(json_array_get(tags, 1), "name"), "gpt-oss:20b") == 0 &&
          strlen(text_at(json_array_get(tags, 1), "digest")) == 64 &&
          strcmp(text_at(json_object_get(json_array_get(tags, 1), "details"), "parameter_size"),
                 "80B") == 0);
    CHECK(json_array_size(json_object_get(v[2], "models")) == 1);
    const json_t *info = json_object_get(v[3], "model_info");
    CHECK(json_integer_value(json_object_get(info, "qwen3next.context_length")) == 4096 &&
          strcmp(text_at(v[3], "parameters"), "num_ctx 4096\n") == 0 &&
          json_array_size(json_object_get(v[3], "capabilities")) == 3);
    CHECK(json_integer_value(json_object_get(v[4], "total_slots")) == 4);
    CHECK(json_integer_value(json_object_get(v[6], "input_tokens")) == 7);
    CHECK(strcmp(text_at(v[7], "id"), "claude-local") == 0 && !api_model_body(&m, "other"));
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        json_decref(v[i]);
        mem_free(bodies[i]);
    }
}

int main(int argc, char **argv)
{
    test_begin("api", argc, argv);
    test_good();
    test_bad();
    test_depth();
    test_damage();
    test_no_memory();
    test_errors();
    test_overflow();
    test_count();
    test_models();
    return test_end();
}
