/* api_responses.c - reads requests of OpenAI's Responses API, as Codex sends them.
 *
 * The input is a list of items. Reasoning, text and calls of one turn are separate items and become
 * one assistant message. Unknown items and tools are skipped: new ones come with each release of
 * the clients and must not end a session. */
#include "cli/serve/api_internal.h"

/* {"type":"object","properties":{"input":{"type":"string"}},"required":["input"]} */
static json_t *input_schema(void)
{
    return json_pack("{s:s, s:{s:{s:s}}, s:[s]}", "type", "object", "properties", "input", "type",
                     "string", "required", "input");
}

/* ---- items --------------------------------------------------------------------------------- */

static int read_message(api_build *b, const json_t *item, const char *path)
{
    const json_t *content = api_field(item, "content");
    const api_path in_content = api_path_of("%s.content", path);
    const char *role = NULL;
    char esc[48];

    if (api_text(&role, item, path, "role", b->error) < 0) return -1;
    if (!role) return api_refuse_field(b->error, path, "role", "it is missing");
    if (strcmp(role, "assistant") == 0) {
        if (api_build_turn(b) < 0) return -1;
        return content ? api_build_text(b, &b->content, content, "", false, in_content.text) : 0;
    }
    if (strcmp(role, "user") != 0 && strcmp(role, "system") != 0 && strcmp(role, "developer") != 0)
        return api_refuse_field(b->error, path, "role", "\"%s\" is none of user, system, "
                                "developer, assistant", ESC(esc, str_from(role)));
    if (!content) return api_refuse(b->error, in_content.text, "it is missing");
    if (api_build_open(b, strcmp(role, "user") == 0 ? CHAT_USER : strcmp(role, "system") == 0
                       ? CHAT_SYSTEM : CHAT_DEVELOPER) < 0) return -1;
    return api_build_text(b, &b->content, content, "", false, in_content.text);
}

/* Uses the content, else the encrypted_content that this server sent, else the summary. Each may be
 * null. */
static int read_reasoning(api_build *b, const json_t *item, const char *path)
{
    const json_t *content = api_field(item, "content"), *summary = api_field(item, "summary");
    const json_t *closed = api_field(item, "encrypted_content");

    if (api_build_turn(b) < 0) return -1;
    if (json_array_size(content) || json_is_string(content))
        return api_build_text(b, &b->reasoning, content, "", true,
                              api_path_of("%s.content", path).text);
    if (json_is_string(closed) && json_string_length(closed) &&
        api_base64_read(&b->reasoning, json_view(closed))) return 0;
    return json_array_size(summary) ? api_build_text(b, &b->reasoning, summary, "\n", true,
                                                     api_path_of("%s.summary", path).text) : 0;
}

static int read_call(api_build *b, const json_t *item, bool custom, const char *path)
{
    const char *name = NULL, *space = NULL, *id = NULL;
    json_t *made = NULL;
    int rc;

    if (api_text(&name, item, path, "name", b->error) < 0 ||
        api_text(&space, item, path, "namespace", b->error) < 0 ||
        api_text(&id, item, path, "call_id", b->error) < 0 ||
        api_build_turn(b) < 0) return -1;
    if (!name) return api_refuse_field(b->error, path, "name", "it is missing");
    if (space && !(name = api_full_name(b->r, space, name))) return api_no_memory(b->error);
    if (custom) {
        const json_t *input = api_field(item, "input");
        if (!json_is_string(input))
            return api_refuse_field(b->error, path, "input", "a string is expected");
        if (!(made = json_pack("{s:O}", "input", input))) return api_no_memory(b->error);
    }
    rc = api_build_call(b, id, str_from(name), made ? made : api_field(item, "arguments"), path);
    json_decref(made);
    return rc;
}

static int read_output(api_build *b, const json_t *item, const char *path)
{
    const json_t *output = api_field(item, "output");
    const char *id = NULL;

    if (api_text(&id, item, path, "call_id", b->error) < 0 ||
        api_build_result(b, id, NULL) < 0) return -1;
    if (output && !json_is_string(output) && !json_is_array(output)) {
        api_put_json(&b->content, output);
        return 0;
    }
    return output ? api_build_text(b, &b->content, output, "\n", true,
                                   api_path_of("%s.output", path).text) : 0;
}

static int read_item(api_build *b, const json_t *item, const char *path)
{
    const char *type = "message";
    char esc[48];

    if (!json_is_object(item)) return api_refuse(b->error, path, "an object is expected");
    if (api_text(&type, item, path, "type", b->error) < 0) return -1;
    if (strcmp(type, "message") == 0) return read_message(b, item, path);
    if (strcmp(type, "reasoning") == 0) return read_reasoning(b, item, path);
    if (strcmp(type, "function_call") == 0) return read_call(b, item, false, path);
    if (strcmp(type, "custom_tool_call") == 0) return read_call(b, item, true, path);
    if (strcmp(type, "function_call_output") == 0 || strcmp(type, "custom_tool_call_output") == 0)
        return read_output(b, item, path);
    log_line("responses: %s: an item of type \"%s\" is left out", path, ESC(esc, str_from(type)));
    return 0;
}

static int read_input(api_build *b, const json_t *root)
{
    const json_t *input = api_field(root, "input");
    const char *text = NULL;
    size_t i;
    json_t *item;

    if (api_text(&text, root, "", "instructions", b->error) < 0) return -1;
    if (text && text[0]) {
        if (api_build_open(b, CHAT_SYSTEM) < 0) return -1;
        textbuf_str(&b->content, text);
    }
    if (!input) return api_refuse(b->error, "input", "it is missing");
    if (json_is_string(input)) {
        if (api_build_open(b, CHAT_USER) < 0) return -1;
        textbuf_put(&b->content, json_view(input));
        return 0;
    }
    if (!json_is_array(input))
        return api_refuse(b->error, "input", "a string or an array of items is expected");
    json_array_foreach(input, i, item)
        if (read_item(b, item, api_path_of("input[%zu]", i).text) < 0) return -1;
    return 0;
}

/* ---- tools --------------------------------------------------------------------------------- */

static int add_tool(api_request *r, api_tool *list, const json_t *tool, const char *space,
                    const char *path, api_error *error)
{
    const char *type = "function", *name = NULL, *about = NULL;
    const json_t *parameters;
    json_t *made = NULL;
    api_tool *t;
    int rc;

    if (!json_is_object(tool)) return api_refuse(error, path, "an object is expected");
    if (api_text(&type, tool, path, "type", error) < 0) return -1;
    if (strcmp(type, "function") != 0 && strcmp(type, "custom") != 0) return 0;
    if (api_text(&name, tool, path, "name", error) < 0 ||
        api_text(&about, tool, path, "description", error) < 0 ||
        api_object(&parameters, tool, path, "parameters", error) < 0)
        return -1;
    if (!name || !name[0])
        return api_refuse_field(error, path, "name", "it is missing");
    t = &list[r->n_tool];
    t->name = name;
    t->space = space;
    t->custom = strcmp(type, "custom") == 0;
    t->full_name = space ? api_full_name(r, space, name) : name;
    if (t->custom) parameters = made = input_schema();
    if (!t->full_name || (t->custom && !made)) {
        json_decref(made);
        return api_no_memory(error);
    }
    r->n_tool++;
    rc = api_tool_add(r, str_from(t->full_name), api_field(tool, "description"), parameters,
                      json_is_boolean(api_field(tool, "strict")) ? api_field(tool, "strict") : NULL,
                      error);
    json_decref(made);
    return rc;
}

static bool is_namespace(const json_t *tool)
{
    const char *type = json_string_value(api_field(tool, "type"));
    return type && strcmp(type, "namespace") == 0;
}

static int read_tools(api_request *r, const json_t *root, api_error *error)
{
    const json_t *list, *inner;
    api_tool *tools;
    size_t i, k, n = 0;
    json_t *tool, *sub;

    if (api_list(&list, root, "", "tools", error) < 0) return -1;
    json_array_foreach(list, i, tool)
        n += is_namespace(tool) ? json_array_size(api_field(tool, "tools")) : 1;
    if (!n) return 0;
    if (!(tools = api_alloc(r, n, sizeof *tools))) return api_no_memory(error);
    r->tools = tools;
    json_array_foreach(list, i, tool) {
        const api_path path = api_path_of("tools[%zu]", i);
        const char *space = NULL;
        if (!is_namespace(tool)) {
            if (add_tool(r, tools, tool, NULL, path.text, error) < 0) return -1;
            continue;
        }
        if (api_text(&space, tool, path.text, "name", error) < 0 ||
            api_list(&inner, tool, path.text, "tools", error) < 0)
            return -1;
        if (!space)
            return api_refuse_field(error, path.text, "name", "it is missing");
        json_array_foreach(inner, k, sub)
            if (add_tool(r, tools, sub, space, api_path_of("%s.tools[%zu]", path.text, k).text,
                         error) < 0)
                return -1;
    }
    return 0;
}

/* ---- the request --------------------------------------------------------------------------- */

static int check_refused(const json_t *root, api_error *error)
{
    bool background = false;
    if (api_field(root, "previous_response_id"))
        return api_no_support(error, "previous_response_id", "responses are not stored here: send "
                              "the whole conversation");
    if (api_field(root, "conversation"))
        return api_no_support(error, "conversation", "conversations are not stored here");
    if (api_bool(&background, root, "", "background", error) < 0) return -1;
    return background ? api_no_support(error, "background", "answers are not stored here") : 0;
}

static int read_include(api_request *r, const json_t *root, api_error *error)
{
    const json_t *list;
    size_t i;
    json_t *v;
    int64_t top = 0;
    bool given;
    if (api_list(&list, root, "", "include", error) < 0 ||
        api_int(&top, &given, root, "", "top_logprobs", 0, API_MAX_TOP, error) < 0)
        return -1;
    if (given && top > 0) r->logprobs = (int)top;
    json_array_foreach(list, i, v) {
        const char *entry = json_is_string(v) ? json_string_value(v) : "";
        if (strcmp(entry, "reasoning.encrypted_content") == 0) r->include_encrypted = true;
        if (strcmp(entry, "message.output_text.logprobs") == 0) r->logprobs = given ? (int)top : 0;
    }
    return 0;
}

int api_parse_responses(api_request *r, const json_t *root, api_error *error)
{
    const json_t *reasoning, *text;
    api_build b;
    int rc;

    if (check_refused(root, error) < 0) return -1;
    if ((rc = api_build_init(&b, r, error)) == 0) rc = read_input(&b, root);
    if (rc == 0) rc = api_build_done(&b);
    api_build_release(&b);
    if (rc < 0) return -1;
    if (!r->chat.n_message) return api_refuse(error, "input", "it is empty");
    if (read_tools(r, root, error) < 0 ||
        api_tool_choice(r, api_field(root, "tool_choice"), true, error) < 0 ||
        api_bool(&r->parallel_calls, root, "", "parallel_tool_calls", error) < 0 ||
        api_object(&reasoning, root, "", "reasoning", error) < 0 ||
        api_effort(r, reasoning, "reasoning", "effort", error) < 0 ||
        api_object(&text, root, "", "text", error) < 0 ||
        api_form(r, api_field(text, "format"), "text.format", true, error) < 0 ||
        api_max_tokens(r, root, "", "max_output_tokens", false, error) < 0 ||
        api_sampling(r, root, "", error) < 0 ||
        api_bool(&r->stream, root, "", "stream", error) < 0) return -1;
    return read_include(r, root, error);
}
