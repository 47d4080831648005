/* api_chat.c - reads requests of OpenAI's chat completions.
 *
 * Clients add fields of their own. Unknown fields are ignored; a field is refused only if ignoring
 * it would change the meaning of the answer. */
#include "cli/serve/api_internal.h"

static int read_calls(api_build *b, const json_t *m, const char *path)
{
    const json_t *calls;
    size_t i;
    json_t *call;

    if (api_list(&calls, m, path, "tool_calls", b->error) < 0) return -1;
    json_array_foreach(calls, i, call) {
        const api_path item_path = api_path_of("%s.tool_calls[%zu]", path, i);
        const api_path inner = api_path_of("%s.function", item_path.text);
        const char *id = NULL, *name = NULL;
        const json_t *f;
        if (!json_is_object(call))
            return api_refuse(b->error, item_path.text, "an object is expected");
        if (api_object(&f, call, item_path.text, "function", b->error) < 0) return -1;
        if (!f) return api_refuse(b->error, inner.text, "it is missing");
        if (api_text(&id, call, item_path.text, "id", b->error) < 0 ||
            api_text(&name, f, inner.text, "name", b->error) < 0)
            return -1;
        if (api_build_call(b, id, str_from(name ? name : ""), api_field(f, "arguments"),
                           inner.text) < 0) return -1;
    }
    return 0;
}

/* Servers use three names for it, and some clients send several with the same text. */
static int read_reasoning(api_build *b, const json_t *m, const char *path)
{
    static const char *const keys[] = { "reasoning_content", "reasoning", "thinking" };
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const json_t *v = api_field(m, keys[i]);
        if (!v || (json_is_string(v) && !json_string_length(v))) continue;
        if (!json_is_string(v))
            return api_refuse_field(b->error, path, keys[i], "a string is expected");
        textbuf_put(&b->reasoning, json_view(v));
        return 0;
    }
    return 0;
}

static int read_message(api_build *b, const json_t *m, const char *path)
{
    static const struct { const char *name; chat_role role; } roles[] = {
        { "system", CHAT_SYSTEM }, { "developer", CHAT_DEVELOPER }, { "user", CHAT_USER },
        { "assistant", CHAT_ASSISTANT }, { "tool", CHAT_TOOL }, { "function", CHAT_TOOL },
    };
    const json_t *content = api_field(m, "content");
    const api_path in_content = api_path_of("%s.content", path);
    const char *role = NULL, *id = NULL, *name = NULL;
    size_t k = 0;
    char esc[48];

    if (!json_is_object(m)) return api_refuse(b->error, path, "an object is expected");
    if (api_text(&role, m, path, "role", b->error) < 0) return -1;
    while (role && k < ARRAY_LEN(roles) && strcmp(roles[k].name, role) != 0) k++;
    if (!role) return api_refuse_field(b->error, path, "role", "it is missing");
    if (k == ARRAY_LEN(roles))
        return api_refuse_field(b->error, path, "role", "\"%s\" is none of system, developer, "
                                "user, assistant, tool", ESC(esc, str_from(role)));
    if (roles[k].role == CHAT_TOOL) {
        if (api_text(&id, m, path, "tool_call_id", b->error) < 0 ||
            api_text(&name, m, path, "name", b->error) < 0 ||
            (!name && api_text(&name, m, path, "tool_name", b->error) < 0) ||
            api_build_result(b, id, name) < 0) return -1;
    } else if (api_build_open(b, roles[k].role) < 0) {
        return -1;
    }
    if (roles[k].role == CHAT_ASSISTANT &&
        (read_reasoning(b, m, path) < 0 || read_calls(b, m, path) < 0)) return -1;
    if (content)
        return api_build_text(b, &b->content, content, "", false, in_content.text);
    if (roles[k].role == CHAT_ASSISTANT || roles[k].role == CHAT_TOOL) return 0;
    return api_refuse(b->error, in_content.text, "it is missing");
}

int api_chat_messages(api_request *r, const json_t *root, api_error *error)
{
    const json_t *list = NULL;
    api_build b;
    size_t i;
    json_t *m;
    int rc;

    if (api_list(&list, root, "", "messages", error) < 0) return -1;
    if (!list) return api_refuse(error, "messages", "it is missing");
    if ((rc = api_build_init(&b, r, error)) == 0)
        json_array_foreach(list, i, m)
            if ((rc = read_message(&b, m, api_path_of("messages[%zu]", i).text)) < 0) break;
    if (rc == 0) rc = api_build_done(&b);
    api_build_release(&b);
    return rc;
}

int api_chat_bias(api_request *r, const json_t *root, api_error *error)
{
    const json_t *bias;
    const char *key;
    json_t *v;
    char esc[48];

    if (api_object(&bias, root, "", "logit_bias", error) < 0) return -1;
    if (!json_object_size(bias)) return 0;
    if (!(r->bias = api_alloc(r, json_object_size(bias), sizeof *r->bias)))
        return api_no_memory(error);
    json_object_foreach((json_t *)bias, key, v) {
        const size_t n = strlen(key);
        long long id = 0;
        if (!n || n > 10 || strspn(key, "0123456789") != n || sscanf(key, "%lld", &id) != 1 ||
            id > INT32_MAX)
            return api_refuse(error, "logit_bias", "\"%s\" is not a token id",
                              ESC(esc, str_from(key)));
        if (!json_is_number(v) || !(fabs(json_number_value(v)) <= 100))
            return api_refuse(error, "logit_bias", "the value of \"%s\" is not a number from -100 "
                              "to 100", key);
        r->bias[r->n_bias++] = (api_bias){ (int32_t)id, (float)json_number_value(v) };
    }
    return 0;
}

int api_chat_stream(api_request *r, const json_t *root, api_error *error)
{
    const json_t *o;
    if (api_bool(&r->stream, root, "", "stream", error) < 0 ||
        api_object(&o, root, "", "stream_options", error) < 0) return -1;
    return api_bool(&r->include_usage, o, "stream_options", "include_usage", error);
}

int api_chat_n(api_request *r, const json_t *root, api_error *error)
{
    int64_t v;
    bool given;
    if (api_int(&v, &given, root, "", "n", 1, API_MAX_CHOICE, error) < 0) return -1;
    if (given) r->n = (int)v;
    return 0;
}

static int read_logprobs(api_request *r, const json_t *root, api_error *error)
{
    bool on = false, given;
    int64_t v = 0;
    if (api_bool(&on, root, "", "logprobs", error) < 0 ||
        api_int(&v, &given, root, "", "top_logprobs", 0, API_MAX_TOP, error) < 0)
        return -1;
    if (given && v > 0 && !on)
        return api_refuse(error, "top_logprobs", "it needs logprobs: true");
    if (on) r->logprobs = given ? (int)v : 0;
    return 0;
}

static int check_refused(const json_t *root, api_error *error)
{
    const json_t *list;
    size_t i;
    json_t *v;
    if (api_field(root, "audio"))
        return api_no_support(error, "audio", "this model writes text only");
    if (api_list(&list, root, "", "modalities", error) < 0) return -1;
    json_array_foreach(list, i, v)
        if (!json_is_string(v) || strcmp(json_string_value(v), "text") != 0)
            return api_no_support(error, "modalities", "this model writes text only");
    if (api_field(root, "functions"))
        return api_no_support(error, "functions", "use tools instead");
    if (api_field(root, "function_call"))
        return api_no_support(error, "function_call", "use tool_choice instead");
    return 0;
}

int api_parse_chat(api_request *r, const json_t *root, api_error *error)
{
    const json_t *tools, *kwargs;
    bool thinks = true;

    if (check_refused(root, error) < 0 || api_chat_messages(r, root, error) < 0) return -1;
    if (!r->chat.n_message) return api_refuse(error, "messages", "there are none");
    if (api_list(&tools, root, "", "tools", error) < 0 ||
        api_tools_chat(r, tools, "tools", error) < 0 ||
        api_tool_choice(r, api_field(root, "tool_choice"), false, error) < 0 ||
        api_bool(&r->parallel_calls, root, "", "parallel_tool_calls", error) < 0 ||
        api_form(r, api_field(root, "response_format"), "response_format", false, error) < 0 ||
        api_max_tokens(r, root, "", "max_tokens", false, error) < 0 ||
        api_max_tokens(r, root, "", "max_completion_tokens", false, error) < 0 ||
        api_stops(r, root, "", "stop", error) < 0 ||
        api_sampling(r, root, "", error) < 0 ||
        api_chat_bias(r, root, error) < 0 ||
        read_logprobs(r, root, error) < 0 ||
        api_chat_n(r, root, error) < 0 ||
        api_chat_stream(r, root, error) < 0 ||
        api_effort(r, root, "", "reasoning_effort", error) < 0 ||
        api_object(&kwargs, root, "", "chat_template_kwargs", error) < 0 ||
        api_effort(r, kwargs, "chat_template_kwargs", "reasoning_effort", error) < 0 ||
        api_bool(&thinks, kwargs, "chat_template_kwargs", "enable_thinking", error) < 0 ||
        api_bool(&r->ignore_eos, root, "", "ignore_eos", error) < 0) return -1;
    if (api_field(kwargs, "enable_thinking"))
        r->chat.thinking = thinks ? CHAT_THINK_ON : CHAT_THINK_OFF;
    return 0;
}
