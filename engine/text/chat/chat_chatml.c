/* chat_chatml.c - ChatML as the Qwen family writes it: messages to tokens.
 *
 * A turn is <|im_start|> ROLE LF CONTENT <|im_end|> LF. Three things vary between files and are
 * read from the template's string literals: the sentences around the list of tools, the notation of
 * tools and calls (JSON, or the coder models' XML), and whether the cue opens a <think> block. From
 * Qwen3.5 on contents are trimmed and the system message follows the tools. The template is
 * scanned, not executed. Tags such as <tool_call> and <think> are ordinary text here; if the
 * vocabulary has tokens for them the tokenizer recognises them in any text.
 *
 * A developer message is a system message. In the JSON family call arguments are copied verbatim;
 * the XML family splits them and so needs a JSON object. Empty reasoning counts as none.
 * tagged_tool_calls.c and chat_chatml_parse.c parse the model's answers. */
#include "engine/text/chat/chat_internal.h"

#include <stdio.h>
#include <string.h>

/* For templates that do not mention tools. */
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

/* ---- the template -------------------------------------------------------------------------- */

/* Collects intro and outro from consecutive literals. step: 0 before "# Tools", 1 inside the intro,
 * 2 in the list of tools, 3 inside the outro, 4 complete. between: the template's source since the
 * previous literal; if it mentions the system message, the outro ended before it. */
static int tools_step(chat *c, int step, textbuf *intro, textbuf *outro, str_view lit,
                      str_view between)
{
    if (step == 0 && view_has(lit, "# Tools")) step = 1;
    if (step == 1) {
        textbuf_put(intro, lit);
        return str_ends(textbuf_view(intro), "<tools>") ? 2 : 1;
    }
    if (step == 3 && !str_starts(lit, "<|im_end|>") && view_has(between, "system")) {
        c->system_last = true;
        return 4;
    }
    if (step == 2 && str_starts(lit, "\n</tools>")) step = 3;
    if (step == 3) {
        const size_t end = view_find(lit, 0, "<|im_end|>");
        textbuf_put(outro, end == SIZE_MAX ? lit : (str_view){ lit.ptr, end });
        return end == SIZE_MAX ? 3 : 4;
    }
    return step;
}

/* Reads the default system text of a literal "<|im_start|>system\nYou are ...". It is used if the
 * request has no system message; without tools only if the literal also ends the turn. */
static int note_default(chat *c, str_view lit, err_ctx *err)
{
    static const char head[] = "<|im_start|>system\n";
    if (!str_starts(lit, head) || lit.len == sizeof head - 1) return 0;
    const size_t end = view_find(lit, 0, "<|im_end|>");
    const str_view text = { lit.ptr + sizeof head - 1,
                            (end == SIZE_MAX ? lit.len : end) - (sizeof head - 1) };
    if (!text.len) return 0;
    if (end != SIZE_MAX) c->default_always = true;
    return chat_keep(&c->default_system, text, err);
}

/* Sets the fields that a search in the template decides, without its literals. */
static void read_marks(chat *c, str_view template)
{
    c->xml_calls = view_has(template, "<tool_call>") && view_has(template, "<function=") &&
                   view_has(template, "<parameter=");
    c->xml_list = c->xml_calls && view_has(template, "<parameters>");
    c->trims = view_has(template, "render_content(message.content, true)|trim");
    c->one_system = view_has(template, "System message must be at the beginning");
    c->json_values = view_has(template, "if args_value is string else args_value | tojson");
    c->may_rest = view_has(template, "enable_thinking");
    c->knows_reasoning = c->cue_thinks || view_has(template, "reasoning_content");
}

static int read_template(chat *c, str_view template, err_ctx *err)
{
    literal_scan k = { .s = template };
    textbuf lit = { 0 }, intro = { 0 }, outro = { 0 };
    size_t cue_at = SIZE_MAX, before = 0;
    int step = 0, rc = 0;
    bool results = false;

    for (size_t pos =
         0; (pos = view_find(template, pos, "add_generation_prompt")) != SIZE_MAX; pos++)
        cue_at = pos;
    while (rc == 0 && template_next(&k, &lit)) {
        const str_view text = textbuf_view(&lit);
        const str_view between = { template.ptr + before, k.found_at - before };
        if ((rc = textbuf_check(&lit, err)) < 0) break;
        step = tools_step(c, step, &intro, &outro, text, between);
        rc = note_default(c, text, err);
        if (k.found_at > cue_at && str_ends(text, "<think>\n")) c->cue_thinks = true;
        if (view_has(text, "<|im_start|>assistant\n<think>\n")) c->cue_thinks = true;
        if (view_has(text, "</tool_response>")) {
            c->xml_results = str_ends(text, "</tool_response>\n");
            results = true;
        }
        before = k.pos;
    }
    read_marks(c, template);
    if (!results) c->xml_results = c->xml_calls;
    if (rc == 0) rc = textbuf_check(&intro, err);
    if (rc == 0) rc = textbuf_check(&outro, err);
    if (rc == 0)
        rc = chat_keep(&c->tools_intro, step == 4 ? textbuf_view(&intro)
                       : str_from(c->xml_calls ? xml_intro : json_intro), err);
    if (rc == 0)
        rc = chat_keep(&c->tools_outro, step == 4 ? textbuf_view(&outro)
                       : str_from(c->xml_calls ? xml_outro : json_outro), err);
    textbuf_free(&lit);
    textbuf_free(&intro);
    textbuf_free(&outro);
    return rc;
}

static int chatml_setup(chat *c, str_view template, err_ctx *err)
{
    c->im_start = tokenizer_special(c->t, "<|im_start|>");
    c->im_end = tokenizer_special(c->t, "<|im_end|>");
    if (c->im_start < 0 || c->im_end < 0) return 0;
    if (template.len && !view_has(template, "<|im_start|>")) return 0;
    const int rc = read_template(c, template, err);
    if (rc < 0) return rc;
    c->tags = &think_tags;
    chat_show(c, think_tags.think);
    chat_show(c, think_tags.think_end);
    chat_show(c, think_tags.call);
    chat_show(c, think_tags.call_end);
    return 1;
}

/* ---- tools as nested tags ------------------------------------------------------------------ */

/* Writes arrays and objects as JSON, strings bare, other values as JSON if json, else as Python. */
static void put_value(textbuf *b, const json_t *v, bool json)
{
    if (json_is_object(v) || json_is_array(v) || (json && !json_is_string(v)))
        textbuf_json(b, v, JSON_SPACED);
    else
        textbuf_python(b, v);
}

static void put_tag(textbuf *b, const char *tag, const json_t *v, bool trim)
{
    textbuf_str(b, "\n<");
    textbuf_str(b, tag);
    textbuf_str(b, ">");
    if (trim && json_is_string(v)) {
        textbuf_put(b, view_trim(json_view(v)));
    } else if (trim) {
        textbuf_python(b, v);
    } else {
        put_value(b, v, false);
    }
    textbuf_str(b, "</");
    textbuf_str(b, tag);
    textbuf_str(b, ">");
}

/* Writes every key of the object that is not in the NULL-terminated list `handled`. */
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

static str_view content_of(const chat *c, str_view content)
{
    return c->trims ? view_trim(content) : content;
}

static void put_tools(prompt *p, const json_t *tools)
{
    const chat *c = p->c;
    size_t i;
    json_t *tool;

    prompt_text(p, c->tools_intro);
    json_array_foreach(tools, i, tool) {
        if (c->xml_list) {
            put_xml_tool(&p->text, tool_function(tool));
        } else {
            prompt_text(p, "\n");
            textbuf_json(&p->text, tool, JSON_SPACED);
        }
    }
    prompt_text(p, c->tools_outro);
}

/* Writes the system turn: the text of `first`, or the template's default, and the tools. Templates
 * whose intro begins with a blank line write it even without text. */
static void put_system(prompt *p, const chat_request *req, const chat_message *first)
{
    const chat *c = p->c;
    const bool tools = json_array_size(req->tools) > 0;
    const bool fallback = !first && c->default_system && (tools || c->default_always);
    const str_view text = first ? content_of(c, first->content)
                        : fallback ? str_from(c->default_system) : (str_view){ NULL, 0 };

    if (!first && !tools && !fallback) return;
    open_turn(p, "system\n");
    if (tools && c->system_last) {
        put_tools(p, req->tools);
        if (text.len) prompt_text(p, "\n\n");
        prompt_view(p, text);
    } else {
        prompt_view(p, text);
        if (tools && (first || fallback) && c->tools_intro[0] != '\n') prompt_text(p, "\n\n");
        if (tools) put_tools(p, req->tools);
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
    json_t *args = call_arguments(p, call, i_message), *item;
    const char *key;

    prompt_text(p, "<tool_call>\n<function=");
    prompt_view(p, call->name);
    prompt_text(p, ">\n");
    json_object_foreach(args, key, item) {
        prompt_text(p, "<parameter=");
        prompt_text(p, key);
        prompt_text(p, ">\n");
        put_value(&p->text, item, p->c->json_values);
        prompt_text(p, "\n</parameter>\n");
    }
    prompt_text(p, "</function>\n</tool_call>");
    json_decref(args);
}

/* Writes calls as in the coder models' history: each on its own line, after the trimmed text. */
static void put_xml_calls(prompt *p, const chat_message *m, int i, str_view content)
{
    content = view_trim(content);
    if (content.len) {
        prompt_text(p, "\n");
        prompt_view(p, content);
        prompt_text(p, "\n");
    }
    for (int k = 0; k < m->n_call; k++) {
        prompt_text(p, "\n");
        put_xml_call(p, &m->calls[k], i);
    }
}

static void put_assistant(prompt *p, const chat_message *m, int i, bool in_progress, bool last)
{
    const chat *c = p->c;
    str_view content = content_of(c, m->content), reasoning = m->reasoning;
    bool has_text;

    open_turn(p, "assistant");
    if (c->knows_reasoning) split_reasoning(&reasoning, &content);
    has_text = content.len > 0;          /* counts newlines, although they are stripped below */
    if (c->knows_reasoning && in_progress && (c->trims || last || reasoning.len)) {
        prompt_text(p, "\n<think>\n");
        prompt_view(p, view_strip(reasoning, c->trims ? VIEW_SPACE : "\n", true, true));
        prompt_text(p, "\n</think>\n");
        if (!c->trims) content = view_strip(content, "\n", true, false);
    }
    if (c->xml_calls && m->n_call && !c->trims) {
        put_xml_calls(p, m, i, content);
    } else {
        prompt_text(p, "\n");
        prompt_view(p, content);
        if (!c->xml_calls) put_json_calls(p, m, has_text);
        for (int k = 0; c->xml_calls && k < m->n_call; k++) {
            prompt_text(p, k ? "\n" : view_trim(content).len ? "\n\n" : "");
            put_xml_call(p, &m->calls[k], i);
        }
    }
    close_turn(p);
}

/* Writes a tool's result. Consecutive results share one user turn. */
static void put_result(prompt *p, const chat_message *m, bool first, bool last)
{
    const bool xml = p->c->xml_results;
    if (first) open_turn(p, xml ? "user\n" : "user");
    prompt_text(p, xml ? "<tool_response>\n" : "\n<tool_response>\n");
    prompt_view(p, content_of(p->c, m->content));
    prompt_text(p, xml ? "\n</tool_response>\n" : "\n</tool_response>");
    if (last) close_turn(p);
}

/* Returns the index of the last user message, except tool results that a client sends as user text.
 * Reasoning before it is history; later reasoning belongs to the answer in progress. */
static int last_query(const chat *c, const chat_request *req)
{
    for (int i = req->n_message - 1; i >= 0; i--) {
        const chat_message *m = &req->messages[i];
        const str_view text = content_of(c, m->content);
        const bool result = str_starts(text, "<tool_response>") &&
                            str_ends(text, "</tool_response>");
        if (m->role == CHAT_USER && !result) return i;
    }
    return req->n_message - 1;
}

static void chatml_render(prompt *p, const chat_request *req)
{
    const chat *c = p->c;
    const chat_message *ms = req->messages;
    const int n = req->n_message, query = last_query(c, req);
    const bool system_first = n > 0 &&
                              (ms[0].role == CHAT_SYSTEM || ms[0].role == CHAT_DEVELOPER);

    put_system(p, req, system_first ? &ms[0] : NULL);
    for (int i = system_first; i < n && p->rc == 0; i++) {
        const chat_message *m = &ms[i];
        if (m->role == CHAT_ASSISTANT) {
            put_assistant(p, m, i, i > query, i == n - 1);
        } else if (m->role == CHAT_TOOL) {
            put_result(p, m, i == 0 || ms[i - 1].role != CHAT_TOOL,
                       i == n - 1 || ms[i + 1].role != CHAT_TOOL);
        } else if (m->role != CHAT_USER && c->one_system) {
            p->rc = err_set(p->err, ERR_UNSUPPORTED, "messages[%d]: in this model's chat format a "
                            "system message comes first or not at all", i);
        } else {
            open_turn(p, m->role == CHAT_USER ? "user\n" : "system\n");
            prompt_view(p, content_of(c, m->content));
            close_turn(p);
        }
    }
    if (req->no_cue) return;
    open_turn(p, "assistant\n");
    if (c->may_rest && req->thinking == CHAT_THINK_OFF) prompt_text(p, "<think>\n\n</think>\n\n");
    else if (c->cue_thinks) prompt_text(p, "<think>\n");
}

static void chatml_begin(chat_parser *p, const chat_request *req)
{
    const bool rests = p->c->may_rest && req->thinking == CHAT_THINK_OFF;
    p->tags.strip = rests || p->c->cue_thinks;
    if (p->c->cue_thinks && !rests) p->tags.where = TAGS_REASONING;
}

const chat_ops chatml_ops = {
    .format = CHAT_CHATML, .name = "chatml", .tools = true, .setup = chatml_setup,
    .render = chatml_render, .begin = chatml_begin, .push = tags_push, .end = tags_end,
    .call = chatml_call,
};
