/* chat_chatml.c - ChatML as the Qwen family writes it: messages to tokens.
 *
 * A turn is <|im_start|> ROLE LF CONTENT <|im_end|> LF. Three things vary between files and are
 * read out of the template's string literals: the sentences around the list of tools, how tools
 * are listed and called (JSON, or the coder models' XML), and whether the cue opens a <think>
 * block. The template is scanned, not executed. Tags such as <tool_call> and <think> are ordinary
 * text here: the vocabularies that have tokens for them recognise them in any text.
 *
 * A developer message is a system message. Call arguments go out as they came in (JSON family);
 * the XML family takes them apart and so needs a JSON object. Empty reasoning counts as none. The
 * way back is in chat_chatml_parse.c. */
#include "engine/text/chat_internal.h"

#include <stdio.h>
#include <string.h>

/* For templates without tools of their own. */
static const char json_intro[] =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
static const char json_outro[] =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";
static const char xml_intro[] = "# Tools\n\nYou have access to the following tools:\n\n<tools>";
static const char xml_outro[] =
    "\n</tools>\n\nIf you choose to call a tool ONLY reply in the following format with NO "
    "suffix:\n\n<tool_call>\n<function=example_function_name>\n"
    "<parameter=example_parameter_1>\nvalue_1\n</parameter>\n</function>\n</tool_call>";

/* ---- what the template says ---------------------------------------------------------------- */

/* Walks the template's output: string literals inside {{ }}, and text outside of all tags. */
typedef struct literal_scan {
    str_view s;
    size_t at;                           /* next byte to look at */
    size_t found_at;                     /* where the current literal began */
    bool in_output;                      /* inside {{ }} */
} literal_scan;

static bool starts_at(str_view s, size_t at, const char *what)
{
    const size_t n = strlen(what);
    return at <= s.len && s.len - at >= n && memcmp(s.ptr + at, what, n) == 0;
}

/* Returns the place after the quoted string that begins at `at`; its unescaped text goes to *lit
 * unless NULL. */
static size_t quoted(str_view s, size_t at, textbuf *lit)
{
    const char quote = s.ptr[at++];
    for (; at < s.len && s.ptr[at] != quote; at++) {
        char ch = s.ptr[at];
        if (ch == '\\' && at + 1 < s.len) {
            ch = s.ptr[++at];
            if (ch == 'n') ch = '\n';
            else if (ch == 't') ch = '\t';
            else if (ch == 'r') ch = '\r';
            else if (ch != '\\' && ch != '"' && ch != '\'' && lit) textbuf_str(lit, "\\");
        }
        if (lit) textbuf_put(lit, (str_view){ &ch, 1 });
    }
    return at + 1;
}

/* Returns the place after a {% %} or {# #}; only the former has strings that could hide its end. */
static size_t skip_block(str_view s, size_t at, const char *close)
{
    while (at < s.len && !starts_at(s, at, close)) {
        if (close[0] == '%' && (s.ptr[at] == '"' || s.ptr[at] == '\'')) at = quoted(s, at, NULL);
        else at++;
    }
    return at + 2;
}

static bool next_literal(literal_scan *k, textbuf *lit)
{
    const str_view s = k->s;
    lit->len = 0;
    while (k->at < s.len) {
        k->found_at = k->at;
        if (k->in_output) {
            if (starts_at(s, k->at, "}}")) {
                k->in_output = false;
                k->at += 2;
            } else if (s.ptr[k->at] == '"' || s.ptr[k->at] == '\'') {
                k->at = quoted(s, k->at, lit);
                return true;
            } else {
                k->at++;
            }
        } else if (starts_at(s, k->at, "{{")) {
            k->in_output = true;
            k->at += 2;
        } else if (starts_at(s, k->at, "{%")) {
            k->at = skip_block(s, k->at + 2, "%}");
        } else if (starts_at(s, k->at, "{#")) {
            k->at = skip_block(s, k->at + 2, "#}");
        } else {
            size_t end = k->at + 1;
            while (end < s.len && !starts_at(s, end, "{{") && !starts_at(s, end, "{%") &&
                   !starts_at(s, end, "{#")) end++;
            const str_view text = { s.ptr + k->at, end - k->at };
            k->at = end;
            if (!view_strip(text, VIEW_SPACE, true, true).len) continue;
            textbuf_put(lit, text);
            return true;
        }
    }
    return false;
}

/* Collects intro and outro over neighbouring literals. step: 0 before "# Tools", 1 inside the
 * intro, 2 among the tools, 3 inside the outro, 4 complete. */
static int tools_step(int step, textbuf *intro, textbuf *outro, str_view lit)
{
    if (step == 0 && view_has(lit, "# Tools")) step = 1;
    if (step == 1) {
        textbuf_put(intro, lit);
        return str_ends(textbuf_view(intro), "<tools>") ? 2 : 1;
    }
    if (step == 2 && str_starts(lit, "\n</tools>")) step = 3;
    if (step == 3) {
        const size_t end = view_find(lit, 0, "<|im_end|>");
        textbuf_put(outro, end == SIZE_MAX ? lit : (str_view){ lit.ptr, end });
        return end == SIZE_MAX ? 3 : 4;
    }
    return step;
}

static int keep_text(char **out, str_view s, err_ctx *err)
{
    if (*out) return 0;
    *out = mem_strdup_n(s.ptr ? s.ptr : "", s.len);
    return *out ? 0 : err_set(err, ERR_NOMEM, "chat: %zu bytes of template text", s.len);
}

/* "<|im_start|>system\nYou are ..." with the sentence in the same literal: said if nobody else
 * wrote a system message; a literal that also ends the turn is said even without tools. */
static int note_default(chat *c, str_view lit, err_ctx *err)
{
    static const char head[] = "<|im_start|>system\n";
    if (!str_starts(lit, head) || lit.len == sizeof head - 1) return 0;
    const size_t end = view_find(lit, 0, "<|im_end|>");
    const str_view text = { lit.ptr + sizeof head - 1,
                            (end == SIZE_MAX ? lit.len : end) - (sizeof head - 1) };
    if (!text.len) return 0;
    if (end != SIZE_MAX) c->default_always = true;
    return keep_text(&c->default_system, text, err);
}

int chatml_setup(chat *c, str_view template, err_ctx *err)
{
    literal_scan k = { .s = template };
    textbuf lit = { 0 }, intro = { 0 }, outro = { 0 };
    size_t cue_at = SIZE_MAX;
    int step = 0, rc = 0;

    for (size_t at = 0; (at = view_find(template, at, "add_generation_prompt")) != SIZE_MAX; at++)
        cue_at = at;
    while (rc == 0 && next_literal(&k, &lit)) {
        const str_view text = textbuf_view(&lit);
        if ((rc = textbuf_check(&lit, err)) < 0) break;
        step = tools_step(step, &intro, &outro, text);
        rc = note_default(c, text, err);
        if (k.found_at > cue_at && str_ends(text, "<think>\n")) c->cue_thinks = true;
        if (view_has(text, "<|im_start|>assistant\n<think>\n")) c->cue_thinks = true;
    }
    c->xml_calls = view_has(template, "<tool_call>") && view_has(template, "<function=") &&
                   view_has(template, "<parameter=");
    c->xml_list = c->xml_calls && view_has(template, "<parameters>");
    c->knows_reasoning = c->cue_thinks || view_has(template, "reasoning_content");
    if (rc == 0) rc = textbuf_check(&intro, err);
    if (rc == 0) rc = textbuf_check(&outro, err);
    if (rc == 0)
        rc = keep_text(&c->tools_intro, step == 4 ? textbuf_view(&intro)
                       : str_from(c->xml_calls ? xml_intro : json_intro), err);
    if (rc == 0)
        rc = keep_text(&c->tools_outro, step == 4 ? textbuf_view(&outro)
                       : str_from(c->xml_calls ? xml_outro : json_outro), err);
    textbuf_free(&lit);
    textbuf_free(&intro);
    textbuf_free(&outro);
    return rc;
}

/* ---- tools as nested tags ------------------------------------------------------------------ */

/* A value as Python's str() writes it, which is what the template applies. */
static void put_plain(textbuf *b, const json_t *v)
{
    size_t i;
    json_t *item;

    if (json_is_string(v)) {
        textbuf_put(b, (str_view){ json_string_value(v), json_string_length(v) });
    } else if (json_is_boolean(v)) {
        textbuf_str(b, json_is_true(v) ? "True" : "False");
    } else if (json_is_null(v)) {
        textbuf_str(b, "None");
    } else if (json_is_array(v)) {
        textbuf_str(b, "[");
        json_array_foreach(v, i, item) {
            textbuf_str(b, i ? ", " : "");
            if (json_is_string(item)) textbuf_str(b, "'");
            put_plain(b, item);
            if (json_is_string(item)) textbuf_str(b, "'");
        }
        textbuf_str(b, "]");
    } else {
        textbuf_json(b, v, JSON_SPACED);
    }
}

/* Arrays and objects as JSON, everything else plain. */
static void put_value(textbuf *b, const json_t *v)
{
    if (json_is_object(v) || json_is_array(v)) textbuf_json(b, v, JSON_SPACED);
    else put_plain(b, v);
}

static void put_tag(textbuf *b, const char *tag, const json_t *v, bool trim)
{
    textbuf_str(b, "\n<");
    textbuf_str(b, tag);
    textbuf_str(b, ">");
    if (trim && json_is_string(v)) {
        const str_view s = { json_string_value(v), json_string_length(v) };
        textbuf_put(b, view_strip(s, VIEW_SPACE, true, true));
    } else if (trim) {
        put_plain(b, v);
    } else {
        put_value(b, v);
    }
    textbuf_str(b, "</");
    textbuf_str(b, tag);
    textbuf_str(b, ">");
}

/* Every key of the object that is not in the list `handled`, which ends with NULL. */
static void put_other_keys(textbuf *b, const json_t *object, const char *const *handled)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)object, key, v) {
        int i = 0;
        while (handled[i] && strcmp(handled[i], key) != 0) i++;
        if (!handled[i]) put_tag(b, key, v, false);
    }
}

static void put_xml_tool(textbuf *b, const json_t *function)
{
    static const char *const of_param[] = { "name", "type", "description", NULL };
    static const char *const of_params[] = { "type", "properties", NULL };
    static const char *const of_tool[] = { "type", "name", "description", "parameters", NULL };
    const json_t *params = json_object_get(function, "parameters"), *v;
    const char *key;
    json_t *param;

    textbuf_str(b, "\n<function>");
    put_tag(b, "name", json_object_get(function, "name"), false);
    if ((v = json_object_get(function, "description"))) put_tag(b, "description", v, true);
    textbuf_str(b, "\n<parameters>");
    json_object_foreach(json_object_get(params, "properties"), key, param) {
        textbuf_str(b, "\n<parameter>\n<name>");
        textbuf_str(b, key);
        textbuf_str(b, "</name>");
        if ((v = json_object_get(param, "type"))) put_tag(b, "type", v, true);
        if ((v = json_object_get(param, "description"))) put_tag(b, "description", v, true);
        put_other_keys(b, param, of_param);
        textbuf_str(b, "\n</parameter>");
    }
    put_other_keys(b, params, of_params);
    textbuf_str(b, "\n</parameters>");
    put_other_keys(b, function, of_tool);
    textbuf_str(b, "\n</function>");
}

/* ---- turns --------------------------------------------------------------------------------- */

static void open_turn(prompt *p, const char *role)
{
    prompt_token(p, p->c->im_start);
    prompt_text(p, role);
}

static void close_turn(prompt *p)
{
    prompt_token(p, p->c->im_end);
    prompt_text(p, "\n");
}

/* The system turn: the first message if it is one, then the tools. Templates differ in the blank
 * line before "# Tools": those whose intro begins with it always write it. */
static void put_system(prompt *p, const chat_request *req, const chat_message *first)
{
    const chat *c = p->c;
    const bool tools = json_array_size(req->tools) > 0;
    const bool fallback = !first && c->default_system && (tools || c->default_always);
    size_t i;
    json_t *tool;

    if (!first && !tools && !fallback) return;
    open_turn(p, "system\n");
    if (first) prompt_view(p, first->content);
    else if (fallback) prompt_text(p, c->default_system);
    if (tools) {
        if ((first || fallback) && c->tools_intro[0] != '\n') prompt_text(p, "\n\n");
        prompt_text(p, c->tools_intro);
        json_array_foreach(req->tools, i, tool) {
            if (c->xml_list) {
                put_xml_tool(&p->text, tool_function(tool));
            } else {
                prompt_text(p, "\n");
                textbuf_json(&p->text, tool, JSON_SPACED);
            }
        }
        prompt_text(p, c->tools_outro);
    }
    close_turn(p);
}

static void put_json_calls(prompt *p, const chat_message *m, bool after_text)
{
    for (int k = 0; k < m->n_call; k++) {
        const str_view args = view_strip(m->calls[k].arguments, VIEW_SPACE, true, true);
        if (k || after_text) prompt_text(p, "\n");
        prompt_text(p, "<tool_call>\n{\"name\": \"");
        prompt_view(p, m->calls[k].name);
        prompt_text(p, "\", \"arguments\": ");
        if (args.len) prompt_view(p, args);
        else prompt_text(p, "{}");
        prompt_text(p, "}\n</tool_call>");
    }
}

static void put_xml_call(prompt *p, const chat_call *call, int i_message)
{
    const str_view args = call->arguments.len ? call->arguments : str_from("{}");
    json_error_t why;
    json_t *v = json_loadb(args.ptr, args.len, JSON_ALLOW_NUL, &why), *item;
    const char *key;
    char esc[96];

    /* Integers beyond 64 bits are better shown rounded than refused. */
    if (!v) v = json_loadb(args.ptr, args.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &why);
    if (!json_is_object(v)) {
        if (p->rc == 0)
            p->rc = err_set(p->err, ERR_FORMAT, "messages[%d]: the arguments of %s are not a JSON "
                            "object", i_message, ESC(esc, call->name));
        json_decref(v);
        return;
    }
    prompt_text(p, "\n<tool_call>\n<function=");
    prompt_view(p, call->name);
    prompt_text(p, ">\n");
    json_object_foreach(v, key, item) {
        prompt_text(p, "<parameter=");
        prompt_text(p, key);
        prompt_text(p, ">\n");
        put_value(&p->text, item);
        prompt_text(p, "\n</parameter>\n");
    }
    prompt_text(p, "</function>\n</tool_call>");
    json_decref(v);
}

/* Reasoning may come in its own field or, from clients that keep the raw text, before </think>. */
static void split_reasoning(str_view *reasoning, str_view *content)
{
    size_t end = SIZE_MAX, open;
    if (reasoning->len) return;
    for (size_t at = 0; (at = view_find(*content, at, "</think>")) != SIZE_MAX; at++) end = at;
    if (end == SIZE_MAX) return;
    *reasoning = view_strip((str_view){ content->ptr, view_find(*content, 0, "</think>") }, "\n",
                            false, true);
    while ((open = view_find(*reasoning, 0, "<think>")) != SIZE_MAX) {
        reasoning->ptr += open + 7;
        reasoning->len -= open + 7;
    }
    content->ptr += end + 8;
    content->len -= end + 8;
    *reasoning = view_strip(*reasoning, "\n", true, false);
    *content = view_strip(*content, "\n", true, false);
}

static void put_assistant(prompt *p, const chat_message *m, int i, bool in_progress, bool last)
{
    str_view content = m->content, reasoning = m->reasoning;
    bool has_text;

    open_turn(p, "assistant");
    if (p->c->knows_reasoning) split_reasoning(&reasoning, &content);
    has_text = content.len > 0;          /* newlines count, though they are stripped below */
    if (p->c->knows_reasoning) {
        if (in_progress && (last || reasoning.len)) {
            prompt_text(p, "\n<think>\n");
            prompt_view(p, view_strip(reasoning, "\n", true, true));
            prompt_text(p, "\n</think>\n");
            content = view_strip(content, "\n", true, false);
        }
    }
    if (p->c->xml_calls && m->n_call) {
        content = view_strip(content, VIEW_SPACE, true, true);
        if (content.len) {
            prompt_text(p, "\n");
            prompt_view(p, content);
            prompt_text(p, "\n");
        }
        for (int k = 0; k < m->n_call; k++) put_xml_call(p, &m->calls[k], i);
    } else {
        prompt_text(p, "\n");
        prompt_view(p, content);
        put_json_calls(p, m, has_text);
    }
    close_turn(p);
}

/* Consecutive results share one user turn. */
static void put_result(prompt *p, const chat_message *m, bool first, bool last)
{
    const bool xml = p->c->xml_calls;
    if (first) open_turn(p, xml ? "user\n" : "user");
    prompt_text(p, xml ? "<tool_response>\n" : "\n<tool_response>\n");
    prompt_view(p, m->content);
    prompt_text(p, xml ? "\n</tool_response>\n" : "\n</tool_response>");
    if (last) close_turn(p);
}

/* The last message a user wrote: reasoning before it is history, after it work in progress. Tool
 * results that a client sends as user text do not count. */
static int last_query(const chat_request *req)
{
    for (int i = req->n_message - 1; i >= 0; i--) {
        const chat_message *m = &req->messages[i];
        const bool result = str_starts(m->content, "<tool_response>") &&
                            str_ends(m->content, "</tool_response>");
        if (m->role == CHAT_USER && !result) return i;
    }
    return req->n_message - 1;
}

void chatml_render(prompt *p, const chat_request *req)
{
    const chat_message *ms = req->messages;
    const int n = req->n_message, query = last_query(req);
    const bool system_first = ms[0].role == CHAT_SYSTEM || ms[0].role == CHAT_DEVELOPER;

    put_system(p, req, system_first ? &ms[0] : NULL);
    for (int i = system_first; i < n; i++) {
        const chat_message *m = &ms[i];
        if (m->role == CHAT_ASSISTANT) {
            put_assistant(p, m, i, i > query, i == n - 1);
        } else if (m->role == CHAT_TOOL) {
            put_result(p, m, i == 0 || ms[i - 1].role != CHAT_TOOL,
                       i == n - 1 || ms[i + 1].role != CHAT_TOOL);
        } else {
            open_turn(p, m->role == CHAT_USER ? "user\n" : "system\n");
            prompt_view(p, m->content);
            close_turn(p);
        }
    }
    if (req->no_cue) return;
    open_turn(p, p->c->cue_thinks ? "assistant\n<think>\n" : "assistant\n");
}
