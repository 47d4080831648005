/* chat_harmony.c - the gpt-oss models' format: messages to tokens, and output to events.
 *
 * A message is <|start|> HEADER <|message|> CONTENT <|end|>, without newlines between messages. The
 * engine writes the system message; each system or developer message of a request becomes a
 * developer message, the first with the tools. Rendering follows the format's reference library
 * (openai-harmony), which is closer to the training data than the Jinja template in the files. The
 * template differs in details: blank lines after instructions, "json" without <|constrain|>, quoted
 * tool results, text before a call as reasoning, and only the first call of a message.
 *
 * Reasoning is dropped if a later final answer exists, so it stays while tool calls are in
 * progress. The library differs only between two final answers, where it keeps reasoning. Contents
 * and arguments are copied verbatim, without a check for JSON. */
#include "engine/text/chat/chat_internal.h"

#include <string.h>

/* ---- JSON schema to TypeScript ------------------------------------------------------------- */

/* The output equals the library's byte for byte, oddities included: a nested object's description
 * appears twice, and a description's second line has no comment sign. */
typedef struct indent { const struct indent *outer; const char *by; } indent;

static void put_indent(textbuf *b, const indent *in)
{
    for (; in; in = in->outer) textbuf_str(b, in->by);
}

static void put_line(textbuf *b, const indent *in, const char *lead, const char *text,
                     const char *tail)
{
    put_indent(b, in);
    textbuf_str(b, lead);
    textbuf_str(b, text);
    textbuf_str(b, tail);
}

/* Writes "default: x". Strings are quoted but not escaped. With an enum they are bare in a property
 * and its alternatives, JSON elsewhere. All other values are JSON. */
static void put_default(textbuf *b, const json_t *schema, bool of_property, const char *lead)
{
    const json_t *v = json_object_get(schema, "default");
    const bool is_enum = json_array_size(json_object_get(schema, "enum")) > 0;

    textbuf_str(b, lead);
    textbuf_str(b, "default: ");
    if (json_is_string(v) && (!is_enum || of_property)) {
        if (!is_enum) textbuf_str(b, "\"");
        textbuf_put(b, json_view(v));
        if (!is_enum) textbuf_str(b, "\"");
    } else {
        textbuf_json(b, v, JSON_TIGHT);
    }
}

static void put_type(textbuf *b, const json_t *schema, const indent *in);

/* Writes the type of a property or alternative; adds null if nullable and not yet in the type. */
static void put_nullable(textbuf *b, const json_t *schema, const indent *in)
{
    const size_t from = b->len;
    put_type(b, schema, in);
    if (json_is_true(json_object_get(schema, "nullable")) &&
        view_find(textbuf_view(b), from, "null") == SIZE_MAX) textbuf_str(b, " | null");
}

/* Writes one alternative of a oneOf, then its description and default as a comment. */
static void put_variant(textbuf *b, const json_t *v, const indent *in, bool of_property,
                        bool describe)
{
    const indent deeper = { in, "   " };
    const char *text = describe ? json_text(v, "description") : NULL;

    put_indent(b, in);
    textbuf_str(b, " | ");
    put_nullable(b, v, &deeper);
    if (text) {
        textbuf_str(b, " // ");
        textbuf_str(b, text);
    }
    if (json_object_get(v, "default")) put_default(b, v, of_property, text ? " " : " // ");
}

/* Writes a property whose type is a oneOf, one alternative per line. Omits its description if the
 * first alternative has the same, and the first alternative's if the property has one. */
static void put_union(textbuf *b, const char *key, const json_t *schema, bool required,
                      const indent *in)
{
    const json_t *list = json_object_get(schema, "oneOf");
    const char *about = json_text(schema, "description");
    const char *first = json_text(json_array_get(list, 0), "description");
    size_t i;
    json_t *v;

    if (about && !(first && strcmp(first, about) == 0)) put_line(b, in, "// ", about, "\n");
    if (json_object_get(schema, "default")) {
        put_indent(b, in);
        put_default(b, schema, true, "// ");
        textbuf_str(b, "\n");
    }
    put_line(b, in, key, required ? "" : "?", ":\n");
    json_array_foreach(list, i, v) {
        const char *text = json_text(v, "description");
        put_variant(b, v, in, true, !about || (i > 0 && text && strcmp(text, about) != 0));
        textbuf_str(b, "\n");
    }
    put_line(b, in, ",", "", "\n");
}

static void put_property(textbuf *b, const char *key, const json_t *schema, bool required,
                         const indent *in)
{
    const indent deeper = { in, "    " };
    const json_t *examples = json_object_get(schema, "examples"), *alternatives;
    const char *text = json_text(schema, "title");
    size_t i;
    json_t *v;

    alternatives = json_object_get(schema, "oneOf");
    if (text) {
        put_line(b, in, "// ", text, "\n");
        put_line(b, in, "//", "", "\n");
    }
    text = json_text(schema, "description");
    if (text && !json_is_array(alternatives)) put_line(b, in, "// ", text, "\n");
    if (json_array_size(examples)) put_line(b, in, "// Examples:", "", "\n");
    json_array_foreach(examples, i, v)
        if (json_is_string(v)) put_line(b, in, "// - \"", json_string_value(v), "\"\n");
    if (json_is_array(alternatives)) {
        put_union(b, key, schema, required, in);
        return;
    }
    put_line(b, in, key, required ? "" : "?", ": ");
    put_nullable(b, schema, &deeper);
    textbuf_str(b, ",");
    if (json_object_get(schema, "default")) put_default(b, schema, true, " // ");
    textbuf_str(b, "\n");
}

static void put_object(textbuf *b, const json_t *schema, const indent *in)
{
    const json_t *required = json_object_get(schema, "required");
    const char *text = json_text(schema, "description"), *key;
    json_t *prop, *v;
    size_t i;

    if (text) put_line(b, in, "// ", text, "\n");
    textbuf_str(b, "{\n");
    json_object_foreach(json_object_get(schema, "properties"), key, prop) {
        bool needed = false;
        json_array_foreach(required, i, v)
            if (json_is_string(v) && strcmp(json_string_value(v), key) == 0) needed = true;
        put_property(b, key, prop, needed, in);
    }
    put_line(b, in, "}", "", "");
}

/* Writes "a" | "b". Returns false if no value is a string. */
static bool put_enum(textbuf *b, const json_t *values)
{
    size_t i;
    json_t *v;
    bool any = false;
    json_array_foreach(values, i, v) {
        if (!json_is_string(v)) continue;
        textbuf_str(b, any ? " | \"" : "\"");
        textbuf_str(b, json_string_value(v));
        textbuf_str(b, "\"");
        any = true;
    }
    return any;
}

static void put_type(textbuf *b, const json_t *schema, const indent *in)
{
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "oneOf");
    const char *name = json_is_string(type) ? json_string_value(type) : "";
    size_t i;
    json_t *v;

    if (json_is_array(list)) {
        json_array_foreach(list, i, v) {
            textbuf_str(b, "\n");
            put_variant(b, v, in, false, true);
        }
    } else if (json_is_array(type)) {
        bool any = false;
        json_array_foreach(type, i, v) {
            if (!json_is_string(v)) continue;
            textbuf_str(b, any ? " | " : "");
            textbuf_str(b, strcmp(json_string_value(v), "integer") == 0 ? "number" :
                        json_string_value(v));
            any = true;
        }
        if (!any) textbuf_str(b, "any");
    } else if (strcmp(name, "object") == 0) {
        put_object(b, schema, in);
    } else if (strcmp(name, "string") == 0) {
        if (!put_enum(b, json_object_get(schema, "enum"))) textbuf_str(b, "string");
    } else if (strcmp(name, "number") == 0 || strcmp(name, "integer") == 0) {
        textbuf_str(b, "number");
    } else if (strcmp(name, "boolean") == 0) {
        textbuf_str(b, "boolean");
    } else if (strcmp(name, "array") == 0 && json_object_get(schema, "items")) {
        put_type(b, json_object_get(schema, "items"), in);
        textbuf_str(b, "[]");
    } else {
        textbuf_str(b, strcmp(name, "array") == 0 ? "Array<any>" : "any");
    }
}

/* Writes each line of the description as a comment; a final newline adds no empty line. */
static void put_comment(textbuf *b, const char *text)
{
    while (text && *text) {
        size_t n = strcspn(text, "\n"), shown = n;
        if (text[n] && shown && text[shown - 1] == '\r') shown--;
        textbuf_str(b, "// ");
        textbuf_put(b, (str_view){ text, shown });
        textbuf_str(b, "\n");
        text += n + (text[n] == '\n');
    }
}

static void put_namespace(textbuf *b, const json_t *tools)
{
    size_t i;
    json_t *tool;

    textbuf_str(b, "# Tools\n\n## functions\n\nnamespace functions {\n\n");
    json_array_foreach(tools, i, tool) {
        const json_t *f = tool_function(tool), *params = json_object_get(f, "parameters");
        put_comment(b, json_text(f, "description"));
        textbuf_str(b, "type ");
        textbuf_str(b, json_text(f, "name"));
        textbuf_str(b, " = (");
        if (json_is_object(params)) {
            textbuf_str(b, "_: ");
            put_type(b, params, NULL);
        }
        textbuf_str(b, ") => any;\n\n");
    }
    textbuf_str(b, "} // namespace functions");
}

/* ---- rendering ----------------------------------------------------------------------------- */

static void open_message(prompt *p, const char *role, const char *channel)
{
    prompt_token(p, p->c->h_start);
    prompt_text(p, role);
    if (channel) {
        prompt_token(p, p->c->h_channel);
        prompt_text(p, channel);
    }
    prompt_token(p, p->c->h_message);
}

static void put_message(prompt *p, const char *role, const char *channel, str_view content)
{
    open_message(p, role, channel);
    prompt_view(p, content);
    prompt_token(p, p->c->h_end);
}

static void put_system(prompt *p, const chat_request *req)
{
    open_message(p, "system", NULL);
    prompt_text(p, "You are ChatGPT, a large language model trained by OpenAI.\n"
                   "Knowledge cutoff: 2024-06\n");
    if (req->date.len) {
        prompt_text(p, "Current date: ");
        prompt_view(p, req->date);
        prompt_text(p, "\n");
    }
    prompt_text(p, "\nReasoning: ");
    prompt_text(p, chat_effort_name(req->effort));
    prompt_text(p, "\n\n# Valid channels: analysis, commentary, final. "
                   "Channel must be included for every message.");
    if (json_array_size(req->tools))
        prompt_text(p, "\nCalls to these tools must go to the commentary channel: 'functions'.");
    prompt_token(p, p->c->h_end);
}

static void put_developer(prompt *p, str_view instructions, const json_t *tools)
{
    if (!instructions.len && !json_array_size(tools)) return;
    open_message(p, "developer", NULL);
    if (instructions.len) {
        prompt_text(p, "# Instructions\n\n");
        prompt_view(p, instructions);
        if (json_array_size(tools)) prompt_text(p, "\n\n");
    }
    if (json_array_size(tools)) put_namespace(&p->text, tools);
    prompt_token(p, p->c->h_end);
}

static void put_function(prompt *p, str_view name)
{
    if (!str_starts(name, "functions.")) prompt_text(p, "functions.");
    prompt_view(p, name);
}

static void put_call(prompt *p, const chat_call *call)
{
    const chat *c = p->c;
    prompt_token(p, c->h_start);
    prompt_text(p, "assistant to=");
    put_function(p, call->name);
    prompt_token(p, c->h_channel);
    prompt_text(p, "commentary ");
    prompt_token(p, c->h_constrain);
    prompt_text(p, "json");
    prompt_token(p, c->h_message);
    if (call->arguments.len) prompt_view(p, call->arguments);
    else prompt_text(p, "{}");
    prompt_token(p, c->h_call);
}

static void put_result(prompt *p, str_view name, str_view content)
{
    prompt_token(p, p->c->h_start);
    put_function(p, name);
    prompt_text(p, " to=assistant");
    prompt_token(p, p->c->h_channel);
    prompt_text(p, "commentary");
    prompt_token(p, p->c->h_message);
    prompt_view(p, content);
    prompt_token(p, p->c->h_end);
}

/* Returns true for an assistant message that ends a turn: it has no calls, and text or no
 * reasoning. A message with only reasoning was cut off. */
static bool is_final(const chat_message *m)
{
    return m->role == CHAT_ASSISTANT && !m->n_call && (m->content.len || !m->reasoning.len);
}

static void put_assistant(prompt *p, const chat_message *m, bool keep_reasoning)
{
    if (keep_reasoning && m->reasoning.len) put_message(p, "assistant", "analysis", m->reasoning);
    if (is_final(m)) put_message(p, "assistant", "final", m->content);
    else if (m->content.len) put_message(p, "assistant", "commentary", m->content);
    for (int k = 0; k < m->n_call; k++) put_call(p, &m->calls[k]);
}

static void harmony_render(prompt *p, const chat_request *req)
{
    const chat_message *ms = req->messages;
    const bool dev_first = req->n_message > 0 &&
                           (ms[0].role == CHAT_SYSTEM || ms[0].role == CHAT_DEVELOPER);
    str_view caller = { NULL, 0 };
    int last_final = -1;

    for (int i = 0; i < req->n_message; i++)
        if (is_final(&ms[i])) last_final = i;
    put_system(p, req);
    put_developer(p, dev_first ? ms[0].content : (str_view){ NULL, 0 }, req->tools);
    for (int i = dev_first; i < req->n_message && p->rc == 0; i++) {
        const chat_message *m = &ms[i];
        if (m->role == CHAT_USER) {
            put_message(p, "user", NULL, m->content);
        } else if (m->role == CHAT_ASSISTANT) {
            put_assistant(p, m, i > last_final);
            if (m->n_call) caller = m->calls[m->n_call - 1].name;
        } else if (m->role == CHAT_TOOL) {
            const str_view name = m->name.len ? m->name : caller;
            if (!name.len) {
                p->rc = err_set(p->err, ERR_FORMAT, "messages[%d]: a tool's result without a call "
                                "before it needs the tool's name", i);
                return;
            }
            put_result(p, name, m->content);
        } else {
            put_developer(p, m->content, NULL);
        }
    }
    if (req->no_cue) return;
    prompt_token(p, p->c->h_start);
    prompt_text(p, "assistant");
}

/* ---- parsing ------------------------------------------------------------------------------- */

/* Headers have a few words. A longer one means that the model does not use harmony: answer text. */
#define HEADER_MAX_BYTES 256

static bool ends_word(char ch) { return (unsigned char)ch <= ' '; }

/* Returns the word at pos, which ends at white space, a mark or an attached recipient. */
static str_view word_at(str_view s, size_t pos)
{
    size_t end = pos;
    while (end < s.len && !ends_word(s.ptr[end]) &&
           !(s.len - end > 3 && memcmp(s.ptr + end, "to=", 3) == 0)) end++;
    return (str_view){ s.ptr + pos, end - pos };
}

typedef struct header { str_view role, channel, recipient; } header;

/* The channel is the word after the last <|channel|>; earlier ones are stray. The recipient may
 * come before or after it; the recipients "assistant" and "user" are not calls. */
static header read_header(str_view s, bool has_role)
{
    header h = { .role = { NULL, 0 } };
    if (has_role) h.role = word_at(s, 0);
    for (size_t pos = 0; pos < s.len; pos++) {
        if (s.ptr[pos] == MARK_CHANNEL) h.channel = word_at(s, pos + 1);
        if (s.len - pos > 3 && memcmp(s.ptr + pos, "to=", 3) == 0) {
            size_t end = pos + 3;
            while (end < s.len && !ends_word(s.ptr[end])) end++;
            const str_view to = { s.ptr + pos + 3, end - pos - 3 };
            if (to.len && !str_is(to, "assistant") && !str_is(to, "user") && !str_is(to, "all"))
                h.recipient = to;
            pos = end - 1;
        }
    }
    return h;
}

static void set_key(chat_parser *p, str_view name)
{
    json_t *pos;
    const char *tools_list;
    json_object_foreach(p->callable, tools_list, pos) {
        if (!str_is(name, tools_list)) continue;
        const json_int_t i = json_integer_value(pos);
        p->harmony.key[0] = KEY_CALL;
        p->harmony.key[1] = (uint8_t)(i >> 8);
        p->harmony.key[2] = (uint8_t)i;
    }
}

/* Handles <|message|>. If the request has tools any recipient is a call, also of tools that it does
 * not have (browser, container.exec): the client answers with an error. Without tools such text is
 * reasoning, as are messages that the model wrote in another role. */
static int begin_content(chat_parser *p)
{
    harmony_state *m = &p->harmony;
    const header h = read_header(textbuf_view(&p->held), m->in_header_role);
    const bool foreign = h.role.len && !str_is(h.role, "assistant");
    str_view name = h.recipient;
    int rc = 0;

    m->fresh = true;
    m->key[0] = KEY_TEXT;
    if (h.recipient.len && p->calls && !foreign) {
        m->route = ROUTE_CALL;
        if (str_starts(name, "functions.") && name.len > 10) name.ptr += 10, name.len -= 10;
        set_key(p, name);
        rc = parser_call(p, name);
    } else if (h.recipient.len || foreign || str_is(h.channel, "analysis")) {
        m->route = ROUTE_REASONING;
    } else {
        m->route = ROUTE_ANSWER;
    }
    p->held.len = 0;
    return rc;
}

static int put_content(chat_parser *p, str_view text)
{
    harmony_state *m = &p->harmony;
    const chat_event_kind kind = m->route == ROUTE_CALL ? CHAT_CALL_ARGS
                               : m->route == ROUTE_REASONING ? CHAT_REASONING : CHAT_ANSWER;
    int rc = 0;

    if (!text.len) return 0;
    if (m->route != ROUTE_CALL) {
        bool *said = &m->said[m->route == ROUTE_ANSWER];
        /* A blank line separates several messages of the same kind. */
        if (m->fresh && *said) rc = parser_emit(p, kind, str_from("\n\n"));
        *said = true;
    }
    m->fresh = false;
    return rc < 0 ? rc : parser_emit(p, kind, text);
}

/* Ends the current message; the next header begins. */
static int end_message(chat_parser *p)
{
    harmony_state *m = &p->harmony;
    int rc = 0;

    p->args.len = 0;
    if (m->route == ROUTE_HEADER) {
        p->utf8 = (utf8_stream){ { 0 }, 0 };
    } else {
        rc = parser_decode_end(p, &p->args);
        if (rc == 0) rc = put_content(p, textbuf_view(&p->args));
        if (rc == 0 && m->route == ROUTE_CALL) {
            if (m->fresh) rc = parser_emit(p, CHAT_CALL_ARGS, str_from("{}"));
            if (rc == 0) rc = parser_emit(p, CHAT_CALL_END, (str_view){ NULL, 0 });
        }
    }
    m->route = ROUTE_HEADER;
    m->ended = true;
    m->in_header_role = false;
    p->held.len = 0;
    return rc;
}

static int push_header(chat_parser *p, str_view bytes)
{
    const size_t from = p->held.len;
    int rc = parser_decode(p, &p->held, bytes);

    if (rc < 0) return rc;
    for (size_t i = from; i < p->held.len; i++)
        if (p->held.ptr[i] == MARK_CHANNEL ||
            p->held.ptr[i] == MARK_CONSTRAIN) p->held.ptr[i] = ' ';
    if (p->held.len <= HEADER_MAX_BYTES) return 0;
    p->harmony.route = ROUTE_ANSWER;
    p->harmony.fresh = true;
    for (size_t i = 0; i < p->held.len; i++)
        if (p->held.ptr[i] == MARK_CHANNEL ||
            p->held.ptr[i] == MARK_CONSTRAIN) p->held.ptr[i] = ' ';
    rc = put_content(p, textbuf_view(&p->held));
    p->held.len = 0;
    return rc;
}

static int push_mark(chat_parser *p, char mark)
{
    int rc = parser_decode_end(p, &p->held);
    if (rc < 0) return rc;
    textbuf_put(&p->held, (str_view){ &mark, 1 });
    return textbuf_check(&p->held, p->err);
}

static int harmony_push(chat_parser *p, int id)
{
    const chat *c = p->c;
    harmony_state *m = &p->harmony;
    int rc;

    if (id == c->h_end || id == c->h_start) {
        if (id == c->h_start && m->route == ROUTE_HEADER) {
            p->held.len = 0;
        } else if ((rc = end_message(p)) < 0) {
            return rc;
        }
        m->in_header_role = id == c->h_start;
        return 0;
    }
    if (id == c->h_channel) {            /* in content it means that <|end|> is missing */
        if (m->route != ROUTE_HEADER && (rc = end_message(p)) < 0) return rc;
        return push_mark(p, MARK_CHANNEL);
    }
    if (id == c->h_constrain) return m->route == ROUTE_HEADER ? push_mark(p, MARK_CONSTRAIN) : 0;
    if (id == c->h_message) {
        if (m->route != ROUTE_HEADER) return 0;
        rc = parser_decode_end(p, &p->held);
        return rc < 0 ? rc : begin_content(p);
    }
    if (m->route == ROUTE_HEADER) return push_header(p, tokenizer_bytes(c->t, id, false));
    p->args.len = 0;
    rc = parser_decode(p, &p->args, tokenizer_bytes(c->t, id, false));
    return rc < 0 ? rc : put_content(p, textbuf_view(&p->args));
}

/* A generation that ends in its first header, before a channel, was plain text. */
static int harmony_end(chat_parser *p)
{
    harmony_state *m = &p->harmony;
    int rc;

    if (m->route == ROUTE_HEADER && !m->said[0] && !m->said[1] && !m->in_header_role &&
        !memchr(p->held.ptr, MARK_CHANNEL, p->held.len)) {
        if ((rc = parser_decode_end(p, &p->held)) < 0) return rc;
        m->route = ROUTE_ANSWER;
        m->fresh = true;
        if ((rc = put_content(p, textbuf_view(&p->held))) < 0) return rc;
    }
    return end_message(p);
}

/* ---- the format ---------------------------------------------------------------------------- */

static int harmony_setup(chat *c, str_view template, err_ctx *err)
{
    (void)err;
    c->h_start = tokenizer_special(c->t, "<|start|>");
    c->h_message = tokenizer_special(c->t, "<|message|>");
    c->h_channel = tokenizer_special(c->t, "<|channel|>");
    c->h_end = tokenizer_special(c->t, "<|end|>");
    c->h_call = tokenizer_special(c->t, "<|call|>");
    c->h_constrain = tokenizer_special(c->t, "<|constrain|>");
    c->knows_reasoning = true;
    return c->h_start >= 0 && c->h_message >= 0 && c->h_channel >= 0 && c->h_end >= 0 &&
           (!template.len || view_has(template, "<|channel|>") || view_has(template, "<|start|>"));
}

const chat_ops harmony_ops = {
    .format = CHAT_HARMONY, .name = "harmony", .tools = true, .setup = harmony_setup,
    .render = harmony_render, .push = harmony_push, .end = harmony_end,
};
