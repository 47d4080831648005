/* api_build.c - builds the message list of a request.
 *
 * A closed message does not change. A result finds its function's name by the id of an earlier
 * call. System and developer messages at the front are merged; later ones stay in place, so that
 * the beginning of a conversation never changes and the prefix cache finds it. */
#include "cli/serve/api_internal.h"

int api_build_init(api_build *b, api_request *r, api_error *error)
{
    *b = (api_build){ .r = r, .error = error, .names = json_object() };
    return b->names ? 0 : api_no_memory(error);
}

void api_build_release(api_build *b)
{
    mem_free(b->list);
    mem_free(b->calls);
    textbuf_free(&b->content);
    textbuf_free(&b->reasoning);
    json_decref(b->names);
}

static int close_message(api_build *b)
{
    chat_message m = { .role = b->role, .n_call = b->n_call, .name = b->name };
    chat_call *calls = NULL;

    if (!b->open) return 0;
    chat_message *list = mem_grow(b->list, b->n, &b->cap, sizeof *list);
    if (!list) return api_no_memory(b->error);
    b->list = list;
    if (b->n_call) {
        if (!(calls = api_alloc(b->r, (size_t)b->n_call, sizeof *calls)))
            return api_no_memory(b->error);
        memcpy(calls, b->calls, (size_t)b->n_call * sizeof *calls);
        m.calls = calls;
    }
    if (api_keep(&m.content, b->r, &b->content, b->error) < 0 ||
        api_keep(&m.reasoning, b->r, &b->reasoning, b->error) < 0) return -1;
    b->list[b->n++] = m;
    b->content.len = b->reasoning.len = 0;
    b->n_call = 0;
    b->name = (str_view){ NULL, 0 };
    b->open = false;
    return 0;
}

static bool is_system(chat_role role)
{
    return role == CHAT_SYSTEM || role == CHAT_DEVELOPER;
}

int api_build_open(api_build *b, chat_role role)
{
    if (b->open && b->n == 0 && is_system(b->role) && is_system(role)) {
        if (b->content.len) textbuf_str(&b->content, "\n\n");
        return 0;
    }
    if (close_message(b) < 0) return -1;
    b->open = true;
    b->role = role;
    return 0;
}

int api_build_turn(api_build *b)
{
    return b->open && b->role == CHAT_ASSISTANT ? 0 : api_build_open(b, CHAT_ASSISTANT);
}

int api_build_result(api_build *b, const char *id, const char *name)
{
    const json_t *function_name = id ? json_object_get(b->names, id) : NULL;
    char *copy;

    if (api_build_open(b, CHAT_TOOL) < 0) return -1;
    b->name = name && name[0] ? str_from(name) : b->last_name.len ? b->last_name : str_from("tool");
    if (!function_name) return 0;
    /* a later call with this id frees the table's text */
    b->name = json_view(function_name);
    if (!(copy = api_alloc(b->r, b->name.len, 1))) return api_no_memory(b->error);
    b->name.ptr = memcpy(copy, b->name.ptr, b->name.len);
    return 0;
}

/* Chat formats that list parameters need an object, so any other value is wrapped in one. */
static int read_arguments(str_view *out, api_build *b, const json_t *v)
{
    textbuf text = { 0 };
    json_t *parsed = NULL;
    char *inner = NULL;
    size_t len;
    int rc;

    if (json_is_string(v)) {
        const str_view s = json_view(v);
        size_t blank = 0;
        while (blank < s.len && strchr(" \t\r\n", s.ptr[blank])) blank++;
        parsed = s.len ? json_loadb(s.ptr, s.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL)
                       : NULL;
        if (json_is_object(parsed) || blank == s.len) {
            json_decref(parsed);
            *out = blank == s.len ? str_from("{}") : s;
            return 0;
        }
    }
    json_decref(parsed);
    rc = v ? textbuf_json_text(&inner, &len, v, NULL) : 0;
    if (v && !json_is_object(v)) textbuf_str(&text, "{\"arguments\": ");
    textbuf_str(&text, inner ? inner : "{}");
    if (v && !json_is_object(v)) textbuf_str(&text, "}");
    mem_free(inner);
    if (rc < 0) text.failed = true;
    rc = api_keep(out, b->r, &text, b->error);
    textbuf_free(&text);
    return rc;
}

int api_build_call(api_build *b, const char *id, str_view name, const json_t *arguments,
                   const char *param)
{
    json_t *text;
    if (!name.len) return api_refuse(b->error, param, "the call has no name");
    chat_call *calls = mem_grow(b->calls, b->n_call, &b->cap_call, sizeof *calls);
    if (!calls) return api_no_memory(b->error);
    b->calls = calls;
    b->calls[b->n_call].name = b->last_name = name;
    if (read_arguments(&b->calls[b->n_call].arguments, b, arguments) < 0) return -1;
    b->n_call++;
    if (!id) return 0;
    text = json_stringn(name.ptr, name.len);
    if (!text || json_object_set_new(b->names, id, text) != 0) return api_no_memory(b->error);
    return 0;
}

/* The key of the text in a part of this type; NULL: the part has no text. */
static const char *text_key(const char *type)
{
    static const char *const kinds[] = { "text", "input_text", "output_text", "summary_text",
                                         "reasoning_text" };
    if (!type) return "text";
    if (strcmp(type, "refusal") == 0) return "refusal";
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (strcmp(type, kinds[i]) == 0) return "text";
    return NULL;
}

int api_build_text(api_build *b, textbuf *out, const json_t *content, const char *sep, bool note,
                   const char *param)
{
    const size_t start = out->len;
    size_t i;
    json_t *item;
    char esc[48];

    if (json_is_string(content)) {
        textbuf_put(out, json_view(content));
        return 0;
    }
    if (!json_is_array(content))
        return api_refuse(b->error, param, "a string or an array of parts is expected");
    json_array_foreach(content, i, item) {
        const api_path path = api_path_of("%s[%zu]", param, i);
        const char *type = NULL, *key;
        const json_t *text = item;
        if (!json_is_string(item)) {
            if (!json_is_object(item))
                return api_refuse(b->error, path.text, "an object is expected");
            if (api_text(&type, item, path.text, "type", b->error) < 0) return -1;
            key = text_key(type);
            text = key ? api_field(item, key) : NULL;
            if (key && !json_is_string(text))
                return api_refuse_field(b->error, path.text, key, "a string is expected");
            if (!key && !note)
                return api_no_support(b->error, path.text, "\"%s\": this model takes text only",
                                      ESC(esc, str_from(type)));
        }
        if (out->len > start) textbuf_str(out, sep);
        if (text) textbuf_put(out, json_view(text));
        else textbuf_printf(out, "[%s left out: this model takes text only]",
                            ESC(esc, str_from(type)));
    }
    return 0;
}

int api_build_done(api_build *b)
{
    chat_message *list;
    if (close_message(b) < 0) return -1;
    if (!(list = api_alloc(b->r, (size_t)b->n + 1, sizeof *list))) return api_no_memory(b->error);
    if (b->n) memcpy(list, b->list, (size_t)b->n * sizeof *list);
    b->r->chat.messages = list;
    b->r->chat.n_message = b->n;
    return 0;
}
