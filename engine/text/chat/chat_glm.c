/* chat_glm.c - GLM-4.5 to 4.7: messages to tokens, and parsing of its calls.
 *
 * A prompt begins with [gMASK]<sop>. A turn is the token of its role and its text; the next role's
 * token ends it. An assistant's turn has a block of reasoning, which is empty in history. A
 * call is <tool_call>NAME and then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> for each
 * argument: strings verbatim, other values as JSON. Up to GLM-4.6 each part is on its own line, and
 * /nothink after the user's text disables reasoning. From 4.7 on there are no line breaks, and the
 * cue opens the reasoning or closes it. tagged_tool_calls.c parses the rest of the output. */
#include "engine/text/chat/chat_internal.h"

#include <string.h>

#define NOTHINK "/nothink"

/* ---- the template -------------------------------------------------------------------------- */

/* Reads the sentences around the tools, which are template text outside of all Jinja tags. */
static int read_sentences(chat *c, str_view template, err_ctx *err)
{
    static const char head[] = "<|system|>", list[] = "<tools>\n";
    literal_scan k = { .s = template };
    textbuf lit = { 0 };
    int rc = 0;
    while (rc == 0 && template_next(&k, &lit)) {
        const str_view s = textbuf_view(&lit);
        const size_t from = view_find(s, 0, head), tools = view_find(s, 0, "# Tools");
        if ((rc = textbuf_check(&lit, err)) < 0) break;
        if (from != SIZE_MAX && tools != SIZE_MAX && str_ends(s, list)) {
            const size_t pos = from + strlen(head);
            rc = chat_keep(&c->tools_intro, (str_view){ s.ptr + pos, s.len - pos }, err);
        } else if (c->tools_intro && str_starts(view_trim(s), "</tools>")) {
            rc = chat_keep(&c->tools_outro, view_trim(s), err);
        }
    }
    textbuf_free(&lit);
    return rc;
}

static int glm_setup(chat *c, str_view template, err_ctx *err)
{
    static const char *const tags[] = { TAG_KEY, TAG_KEY_END, TAG_VALUE, TAG_VALUE_END };
    if (!view_has(template, "[gMASK]<sop>") || !view_has(template, TAG_KEY)) return 0;
    c->g_system = tokenizer_special(c->t, "<|system|>");
    c->g_user = tokenizer_special(c->t, "<|user|>");
    c->g_assistant = tokenizer_special(c->t, "<|assistant|>");
    c->g_observation = tokenizer_special(c->t, "<|observation|>");
    if (c->g_system < 0 || c->g_user < 0 || c->g_assistant < 0 || c->g_observation < 0) return 0;
    const int rc = read_sentences(c, template, err);
    if (rc < 0) return rc;
    if (!c->tools_intro || !c->tools_outro) {
        mem_free(c->tools_intro);
        c->tools_intro = NULL;
        return 0;
    }
    c->tags = &think_tags;
    c->knows_reasoning = true;
    c->may_rest = view_has(template, "enable_thinking");
    c->g_line = view_has(template, "<|user|>{{") ? "" : "\n";
    c->cue_thinks = !c->g_line[0];
    c->cue_open = !c->cue_thinks;
    chat_show(c, think_tags.think);
    chat_show(c, think_tags.think_end);
    chat_show(c, think_tags.call);
    chat_show(c, think_tags.call_end);
    for (size_t i = 0; i < ARRAY_LEN(tags); i++) chat_show(c, tags[i]);
    c->ends[c->n_end++] = c->g_system;
    c->ends[c->n_end++] = c->g_user;
    c->ends[c->n_end++] = c->g_assistant;
    c->ends[c->n_end++] = c->g_observation;
    return 1;
}

/* ---- messages to tokens -------------------------------------------------------------------- */

static void open_turn(prompt *p, int role)
{
    prompt_token(p, role);
    prompt_text(p, p->c->g_line);
}

static void put_tools(prompt *p, const json_t *tools)
{
    size_t i;
    json_t *tool;
    if (json_array_size(tools) == 0) return;
    prompt_token(p, p->c->g_system);
    prompt_text(p, p->c->tools_intro);
    json_array_foreach(tools, i, tool) {
        textbuf_json(&p->text, tool, JSON_SPACED);
        prompt_text(p, "\n");
    }
    prompt_text(p, p->c->tools_outro);
}

static void put_call(prompt *p, const chat_call *call, int i_message)
{
    const char *line = p->c->g_line, *key;
    json_t *args = call_arguments(p, call, i_message), *v;

    prompt_text(p, line);
    prompt_tag(p, TAG_CALL);
    prompt_view(p, call->name);
    prompt_text(p, line);
    json_object_foreach(args, key, v) {
        prompt_tag(p, TAG_KEY);
        prompt_text(p, key);
        prompt_tag(p, TAG_KEY_END);
        prompt_text(p, line);
        prompt_tag(p, TAG_VALUE);
        if (json_is_string(v)) prompt_view(p, json_view(v));
        else textbuf_json(&p->text, v, JSON_SPACED);
        prompt_tag(p, TAG_VALUE_END);
        prompt_text(p, line);
    }
    prompt_tag(p, TAG_CALL_END);
    json_decref(args);
}

static void put_assistant(prompt *p, const chat_message *m, int i, bool in_progress)
{
    const char *line = p->c->g_line;
    str_view content = m->content, reasoning = m->reasoning;

    split_reasoning(&reasoning, &content);
    content = view_trim(content);
    prompt_token(p, p->c->g_assistant);
    prompt_text(p, line);
    if (in_progress && reasoning.len) {
        prompt_tag(p, think_tags.think);
        prompt_view(p, view_trim(reasoning));
    } else if (line[0]) {
        prompt_tag(p, think_tags.think);
    }
    prompt_tag(p, think_tags.think_end);
    if (content.len) prompt_text(p, line);
    prompt_view(p, content);
    for (int k = 0; k < m->n_call; k++) put_call(p, &m->calls[k], i);
}

/* Writes a tool's result. Consecutive results share a turn. */
static void put_result(prompt *p, str_view content, bool first)
{
    const char *line = p->c->g_line;
    if (first) prompt_token(p, p->c->g_observation);
    prompt_text(p, line);
    prompt_tag(p, "<tool_response>");
    prompt_text(p, line);
    prompt_view(p, content);
    prompt_text(p, line);
    prompt_tag(p, "</tool_response>");
}

static bool rests(const chat *c, const chat_request *req)
{
    return c->may_rest && req->thinking == CHAT_THINK_OFF;
}

static void put_message(prompt *p, const chat_request *req, int i, bool in_progress)
{
    const chat *c = p->c;
    const chat_message *m = &req->messages[i];
    switch (m->role) {
    case CHAT_SYSTEM:
    case CHAT_DEVELOPER:
        open_turn(p, c->g_system);
        prompt_view(p, m->content);
        break;
    case CHAT_USER:
        open_turn(p, c->g_user);
        prompt_view(p, m->content);
        if (rests(c, req) && c->cue_open && !str_ends(m->content, NOTHINK)) prompt_tag(p, NOTHINK);
        break;
    case CHAT_ASSISTANT:
        put_assistant(p, m, i, in_progress);
        break;
    case CHAT_TOOL:
        put_result(p, m->content, i == 0 || req->messages[i - 1].role != CHAT_TOOL);
        break;
    }
}

static void glm_render(prompt *p, const chat_request *req)
{
    const chat *c = p->c;
    int last_user = -1;

    for (int i = 0; i < req->n_message; i++)
        if (req->messages[i].role == CHAT_USER) last_user = i;
    prompt_tag(p, "[gMASK]");
    prompt_tag(p, "<sop>");
    put_tools(p, req->tools);
    for (int i = 0; i < req->n_message && p->rc == 0; i++) put_message(p, req, i, i > last_user);
    if (req->no_cue) return;
    prompt_token(p, c->g_assistant);
    if (rests(c, req)) {
        prompt_text(p, c->g_line);
        if (c->cue_open) prompt_tag(p, think_tags.think);
        prompt_tag(p, think_tags.think_end);
    } else if (c->cue_thinks) {
        prompt_tag(p, think_tags.think);
    }
}

/* ---- parsing of calls ---------------------------------------------------------------------- */

static void glm_begin(chat_parser *p, const chat_request *req)
{
    const bool rest = rests(p->c, req);
    p->tags.strip = rest || p->c->cue_thinks;
    if (p->c->cue_thinks && !rest) p->tags.where = TAGS_REASONING;
}

static const char *const after_value[] = { TAG_KEY, TAG_CALL_END };

/* Reads the function's name, which ends at a line break or a tag. */
static int read_name(chat_parser *p)
{
    tags_state *m = &p->tags;
    const str_view s = textbuf_view(&p->held);
    const size_t from = skip_space(s, m->tag_at + strlen(TAG_CALL));
    size_t pos = from;
    while (pos < s.len && (unsigned char)s.ptr[pos] > ' ' && s.ptr[pos] != '<') pos++;
    if (pos - from > NAME_MAX_BYTES) return tags_give_up(p, pos);
    if (pos == s.len) return from - m->tag_at < NAME_MAX_BYTES ? MORE : tags_give_up(p, pos);
    if (pos == from) return tags_give_up(p, pos);
    m->name_at = from;
    m->name_len = pos - from;
    m->scan = pos;
    m->phase = PARAMS_BETWEEN;
    return AGAIN;
}

/* Reads <arg_key>KEY</arg_key><arg_value>, or the end of the call; tagged_tool_calls.c drops
 * that. */
static int read_between(chat_parser *p)
{
    tags_state *m = &p->tags;
    const str_view s = textbuf_view(&p->held);
    const size_t pos = skip_space(s, m->scan), key_at = pos + strlen(TAG_KEY);
    const char *const value[] = { TAG_VALUE };
    int rc;

    switch (match_any(s, pos, after_value, ARRAY_LEN(after_value))) {
    case MATCH_MAYBE: return MORE;
    case MATCH_NO: return tags_give_up(p, pos);
    case MATCH_YES: break;
    }
    if (match_at(s, pos, TAG_CALL_END) == MATCH_YES) return params_report(p, false, pos);
    const size_t key_end = view_find(s, key_at, TAG_KEY_END);
    if (key_end == SIZE_MAX)
        return s.len - key_at > NAME_MAX_BYTES ? tags_give_up(p, key_at) : MORE;
    const size_t after = key_end + strlen(TAG_KEY_END);
    switch (match_any(s, after, value, 1)) {
    case MATCH_MAYBE: return MORE;
    case MATCH_NO: return tags_give_up(p, after);
    case MATCH_YES: break;
    }
    if ((rc = params_add(p, key_at, key_end - key_at)) < 0) return rc;
    m->value_at = m->scan = skip_space(s, after) + strlen(TAG_VALUE);
    m->phase = PARAMS_VALUE;
    return AGAIN;
}

static int glm_call(chat_parser *p)
{
    switch (p->tags.phase) {
    case PARAMS_NAME: return read_name(p);
    case PARAMS_BETWEEN: return read_between(p);
    case PARAMS_VALUE: break;
    }
    return params_value(p, TAG_VALUE_END, after_value, ARRAY_LEN(after_value));
}

const chat_ops glm_ops = {
    .format = CHAT_GLM, .name = "glm", .tools = true, .setup = glm_setup, .render = glm_render,
    .begin = glm_begin, .push = tags_push, .end = tags_end, .call = glm_call,
};
