/* api_messages.c - reads requests of Anthropic's Messages API.
 *
 * Messages of this API hold blocks; ours hold one kind. Consecutive messages of one role are
 * merged. Tool results precede the text of their message. The first system block of Claude Code
 * changes with every request; it is dropped, so that the prefix cache works. */
#include "cli/serve/api_internal.h"

static const char *block_type(const json_t *block)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    return type ? type : "text";
}

static bool is_type(const json_t *block, const char *type)
{
    return strcmp(block_type(block), type) == 0;
}

/* Continues the open message if it has this role, except for system messages: api_build_open merges
 * those. */
static int open_or_join(api_build *b, chat_role role)
{
    if (role == CHAT_SYSTEM || !b->open || b->role != role) return api_build_open(b, role);
    if (b->content.len && role == CHAT_USER) textbuf_str(&b->content, "\n\n");
    return 0;
}

static int read_system(api_build *b, const json_t *system)
{
    size_t i;
    json_t *block;

    if (!system) return 0;
    if (json_is_string(system)) {
        if (!json_string_length(system)) return 0;
        if (api_build_open(b, CHAT_SYSTEM) < 0) return -1;
        textbuf_put(&b->content, json_view(system));
        return 0;
    }
    if (!json_is_array(system))
        return api_refuse(b->error, "system", "a string or an array of blocks is expected");
    json_array_foreach(system, i, block) {
        const json_t *text = api_field(block, "text");
        const api_path path = api_path_of("system[%zu]", i);
        if (!json_is_object(block)) return api_refuse(b->error, path.text, "an object is expected");
        if (!is_type(block, "text"))
            return api_no_support(b->error, path.text, "this model takes text only");
        if (!json_is_string(text))
            return api_refuse_field(b->error, path.text, "text", "a string is expected");
        if (str_starts(json_view(text), "x-anthropic-billing-header:") ||
            !json_string_length(text)) continue;
        if (api_build_open(b, CHAT_SYSTEM) < 0) return -1;
        textbuf_put(&b->content, json_view(text));
    }
    return 0;
}

static int read_result(api_build *b, const json_t *block, const char *path)
{
    const json_t *content = api_field(block, "content");
    const char *id = NULL;
    if (api_text(&id, block, path, "tool_use_id", b->error) < 0 ||
        api_build_result(b, id, NULL) < 0) return -1;
    return content ? api_build_text(b, &b->content, content, "\n", true,
                                    api_path_of("%s.content", path).text) : 0;
}

static int read_user(api_build *b, const json_t *content, const char *path)
{
    size_t i;
    json_t *block;
    char esc[48];

    json_array_foreach(content, i, block) {
        const api_path item_path = api_path_of("%s.content[%zu]", path, i);
        if (!json_is_object(block))
            return api_refuse(b->error, item_path.text, "an object is expected");
        if (is_type(block, "tool_result") && read_result(b, block, item_path.text) < 0) return -1;
    }
    json_array_foreach(content, i, block) {
        const api_path item_path = api_path_of("%s.content[%zu]", path, i);
        const json_t *text = api_field(block, "text");
        if (is_type(block, "tool_result")) continue;
        if (!is_type(block, "text"))
            return api_no_support(b->error, item_path.text, "\"%s\": this model takes text only",
                                  ESC(esc, str_from(block_type(block))));
        if (!json_is_string(text))
            return api_refuse_field(b->error, item_path.text, "text", "a string is expected");
        if (open_or_join(b, CHAT_USER) < 0) return -1;
        textbuf_put(&b->content, json_view(text));
    }
    return 0;
}

/* Skips blocks of other kinds: redacted thinking, tools that run on servers. */
static int read_assistant(api_build *b, const json_t *content, const char *path)
{
    size_t i;
    json_t *block;

    if (api_build_turn(b) < 0) return -1;
    json_array_foreach(content, i, block) {
        const api_path item_path = api_path_of("%s.content[%zu]", path, i);
        const char *id = NULL, *name = NULL;
        const json_t *v;
        if (!json_is_object(block))
            return api_refuse(b->error, item_path.text, "an object is expected");
        if (is_type(block, "text") || is_type(block, "thinking")) {
            const bool thinking = is_type(block, "thinking");
            const char *key = thinking ? "thinking" : "text";
            v = api_field(block, key);
            if (!json_is_string(v))
                return api_refuse_field(b->error, item_path.text, key, "a string is expected");
            textbuf_put(thinking ? &b->reasoning : &b->content, json_view(v));
        } else if (is_type(block, "tool_use")) {
            if (api_text(&id, block, item_path.text, "id", b->error) < 0 ||
                api_text(&name, block, item_path.text, "name", b->error) < 0 ||
                api_build_call(b, id, str_from(name ? name : ""), api_field(block, "input"),
                               item_path.text) < 0) return -1;
        }
    }
    return 0;
}

static int read_message(api_build *b, const json_t *m, const char *path)
{
    const json_t *content = api_field(m, "content");
    const char *role = NULL;
    chat_role message_role;
    char esc[48];

    if (!json_is_object(m)) return api_refuse(b->error, path, "an object is expected");
    if (api_text(&role, m, path, "role", b->error) < 0) return -1;
    if (!role) return api_refuse_field(b->error, path, "role", "it is missing");
    if (strcmp(role, "user") == 0) message_role = CHAT_USER;
    else if (strcmp(role, "assistant") == 0) message_role = CHAT_ASSISTANT;
    else if (strcmp(role, "system") == 0) message_role = CHAT_SYSTEM;
    else return api_refuse_field(b->error, path, "role", "\"%s\" is none of user, assistant, "
                                 "system", ESC(esc, str_from(role)));
    if (!content || (!json_is_string(content) && !json_is_array(content)))
        return api_refuse_field(b->error, path, "content",
                                "a string or an array of blocks is expected");
    if (json_is_string(content)) {
        if (open_or_join(b, message_role) < 0) return -1;
        textbuf_put(&b->content, json_view(content));
        return 0;
    }
    if (message_role == CHAT_USER) return read_user(b, content, path);
    if (message_role == CHAT_ASSISTANT) return read_assistant(b, content, path);
    if (api_build_open(b, CHAT_SYSTEM) < 0) return -1;
    return api_build_text(b, &b->content, content, "\n\n", false,
                          api_path_of("%s.content", path).text);
}

static int read_messages(api_request *r, const json_t *root, api_error *error)
{
    const json_t *list = NULL;
    api_build b;
    size_t i;
    json_t *m;
    int rc;

    if (api_list(&list, root, "", "messages", error) < 0) return -1;
    if (!json_array_size(list)) return api_refuse(error, "messages", "there are none");
    if ((rc = api_build_init(&b, r, error)) == 0)
        rc = read_system(&b, api_field(root, "system"));
    for (i = 0; rc == 0 && (m = json_array_get(list, i)); i++)
        rc = read_message(&b, m, api_path_of("messages[%zu]", i).text);
    if (rc == 0) rc = api_build_done(&b);
    api_build_release(&b);
    if (rc == 0 && !r->chat.n_message) return api_refuse(error, "messages", "they are empty");
    return rc;
}

static int read_tools(api_request *r, const json_t *root, api_error *error)
{
    const json_t *list;
    size_t i;
    json_t *tool;

    if (api_list(&list, root, "", "tools", error) < 0) return -1;
    json_array_foreach(list, i, tool) {
        const api_path path = api_path_of("tools[%zu]", i);
        const char *type = NULL, *name = NULL, *about = NULL;
        const json_t *schema;
        if (!json_is_object(tool)) return api_refuse(error, path.text, "an object is expected");
        if (api_text(&type, tool, path.text, "type", error) < 0) return -1;
        if (type && strcmp(type, "custom") != 0) continue;       /* tools that run on servers */
        if (api_text(&name, tool, path.text, "name", error) < 0 ||
            api_text(&about, tool, path.text, "description", error) < 0 ||
            api_object(&schema, tool, path.text, "input_schema", error) < 0) return -1;
        if (!name || !name[0])
            return api_refuse_field(error, path.text, "name", "it is missing");
        if (api_tool_add(r, str_from(name), api_field(tool, "description"), schema, NULL,
                         error) < 0) return -1;
    }
    return 0;
}

static int read_choice(api_request *r, const json_t *root, api_error *error)
{
    const json_t *v;
    const char *type = NULL;
    bool alone = false;
    char esc[48];

    if (api_object(&v, root, "", "tool_choice", error) < 0) return -1;
    if (!v) return 0;
    if (api_text(&type, v, "tool_choice", "type", error) < 0 ||
        api_text(&r->tool_name, v, "tool_choice", "name", error) < 0 ||
        api_bool(&alone, v, "tool_choice", "disable_parallel_tool_use", error) < 0) return -1;
    if (!type) return api_refuse(error, "tool_choice.type", "it is missing");
    r->parallel_calls = !alone;
    if (strcmp(type, "auto") == 0) r->tool_choice = CHOICE_AUTO;
    else if (strcmp(type, "any") == 0) r->tool_choice = CHOICE_REQUIRED;
    else if (strcmp(type, "none") == 0) r->tool_choice = CHOICE_NONE;
    else if (strcmp(type, "tool") == 0) r->tool_choice = CHOICE_NAMED;
    else return api_refuse(error, "tool_choice.type", "\"%s\" is none of auto, any, tool, none",
                           ESC(esc, str_from(type)));
    if (r->tool_choice == CHOICE_NAMED && !r->tool_name)
        return api_refuse(error, "tool_choice.name", "it is missing");
    return api_check_choice(r, "tool_choice", error);
}

/* Never refuses: a model without such a switch ignores it. The limits of the budget are those of
 * Claude Code's "think", "think hard" and "ultrathink". */
static void read_thinking(api_request *r, const json_t *root)
{
    const json_t *v = api_field(root, "thinking");
    const char *type = json_string_value(api_field(v, "type"));
    const json_t *budget = api_field(v, "budget_tokens");

    if (!type) return;
    if (strcmp(type, "enabled") == 0) r->chat.thinking = CHAT_THINK_ON;
    if (strcmp(type, "disabled") == 0) {
        r->show_reasoning = false;
        r->chat.thinking = CHAT_THINK_OFF;
        r->chat.effort = CHAT_EFFORT_LOW;
    } else if (strcmp(type, "enabled") == 0 && json_is_number(budget)) {
        const double n = json_number_value(budget);
        r->chat.effort = n <= 4096 ? CHAT_EFFORT_LOW : n < 16384 ? CHAT_EFFORT_MEDIUM
                       : CHAT_EFFORT_HIGH;
    }
}

int api_parse_messages(api_request *r, const json_t *root, bool count, api_error *error)
{
    const json_t *config;

    if (!count && !api_field(root, "max_tokens"))
        return api_refuse(error, "max_tokens", "it is missing");
    if (read_messages(r, root, error) < 0 || read_tools(r, root, error) < 0 ||
        read_choice(r, root, error) < 0) return -1;
    read_thinking(r, root);
    if (api_object(&config, root, "", "output_config", error) < 0 ||
        api_effort(r, config, "output_config", "effort", error) < 0 ||
        api_form(r, api_field(config, "format"), "output_config.format", true, error) < 0 ||
        api_max_tokens(r, root, "", "max_tokens", true, error) < 0 ||
        api_stops(r, root, "", "stop_sequences", error) < 0 ||
        api_sampling(r, root, "", error) < 0 ||
        api_bool(&r->stream, root, "", "stream", error) < 0) return -1;
    return 0;
}
