/* api_tools.c - tools, and which of them may or must be called.
 *
 * All APIs end in the same array of {"type":"function","function":{...}}. A tool choice removes no
 * tool from it, so that the beginning of the prompt, and its prefix cache, stay the same. */
#include "cli/serve/api_internal.h"

/* each allowed name is searched among all tools */
enum { MAX_ALLOWED = 1024 };

static int check_function(const json_t *f, const char *param, api_error *error)
{
    const char *text = NULL;
    const json_t *parameters;
    bool strict = false;

    if (api_text(&text, f, param, "name", error) < 0) return -1;
    if (!text || !text[0])
        return api_refuse_field(error, param, "name", "it is missing");
    if (api_text(&text, f, param, "description", error) < 0 ||
        api_bool(&strict, f, param, "strict", error) < 0) return -1;
    return api_object(&parameters, f, param, "parameters", error);
}

int api_tools_chat(api_request *r, const json_t *tools, const char *param, api_error *error)
{
    size_t i;
    json_t *tool;
    char esc[48];

    json_array_foreach(tools, i, tool) {
        const api_path path = api_path_of("%s[%zu]", param, i),
            inner = api_path_of("%s.function", path.text);
        const char *type = NULL;
        const json_t *f;
        if (!json_is_object(tool)) return api_refuse(error, path.text, "an object is expected");
        if (api_text(&type, tool, path.text, "type", error) < 0) return -1;
        if (type && strcmp(type, "function") != 0)
            return api_no_support(error, api_path_of("%s.type", path.text).text,
                                  "\"%s\": only functions can be called", ESC(esc, str_from(type)));
        if (api_object(&f, tool, path.text, "function", error) < 0) return -1;
        if (!f) return api_refuse(error, inner.text, "it is missing");
        if (check_function(f, inner.text, error) < 0) return -1;
    }
    r->chat.tools = json_array_size(tools) ? tools : NULL;
    return 0;
}

int api_tool_add(api_request *r, str_view name, const json_t *description, const json_t *parameters,
                 const json_t *strict, api_error *error)
{
    json_t *f = json_pack("{s:s%}", "name", name.ptr, name.len), *tool = NULL;
    bool ok = f != NULL;

    if (!r->built) r->built = json_array();
    if (ok && description) ok = json_object_set(f, "description", (json_t *)description) == 0;
    if (ok && parameters) ok = json_object_set(f, "parameters", (json_t *)parameters) == 0;
    if (ok && strict) ok = json_object_set(f, "strict", (json_t *)strict) == 0;
    if (ok) tool = json_pack("{s:s, s:O}", "type", "function", "function", f);
    json_decref(f);
    if (!tool || json_array_append_new(r->built, tool) != 0) return api_no_memory(error);
    r->chat.tools = r->built;
    return 0;
}

const char *api_full_name(api_request *r, const char *space, const char *name)
{
    const size_t n = strlen(space), bytes = n + strlen(name) + 3;
    char *out = api_alloc(r, bytes, 1);
    if (out) snprintf(out, bytes, "%s%s%s", space, n && space[n - 1] == '_' ? "" : "__", name);
    return out;
}

/* ---- the choice ---------------------------------------------------------------------------- */

static bool has_tool(const api_request *r, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach(r->chat.tools, i, tool) {
        const json_t *f = json_object_get(tool, "function");
        const char *n = json_string_value(json_object_get(f, "name"));
        if (n && strcmp(n, name) == 0) return true;
    }
    return false;
}

int api_check_choice(api_request *r, const char *param, api_error *error)
{
    char esc[80];
    if (r->tool_choice == CHOICE_REQUIRED && !json_array_size(r->chat.tools))
        return api_refuse(error, param, "a call is required, but there are no tools");
    if (r->tool_choice == CHOICE_NAMED && !has_tool(r, r->tool_name))
        return api_refuse(error, param, "there is no tool \"%s\"",
                          ESC(esc, str_from(r->tool_name)));
    for (int i = 0; i < r->n_allowed; i++)
        if (!has_tool(r, r->allowed[i]))
            return api_refuse(error, param, "there is no tool \"%s\"",
                              ESC(esc, str_from(r->allowed[i])));
    return 0;
}

static int choose(api_request *r, const char *word, api_error *error)
{
    char esc[48];
    if (strcmp(word, "auto") == 0) r->tool_choice = CHOICE_AUTO;
    else if (strcmp(word, "none") == 0) r->tool_choice = CHOICE_NONE;
    else if (strcmp(word, "required") == 0) r->tool_choice = CHOICE_REQUIRED;
    else return api_refuse(error, "tool_choice", "\"%s\" is none of auto, none, required",
                           ESC(esc, str_from(word)));
    return 0;
}

/* {"type":"function","function":{"name":N}}, or flat: {"type":"function","name":N,"namespace":S} */
static int read_name(const char **out, api_request *r, const json_t *v, bool flat, api_error *error)
{
    const json_t *f = flat ? v : api_field(v, "function");
    const char *name = NULL, *space = NULL;

    if (api_string(&name, api_field(f, "name"), "tool_choice", error) < 0) return -1;
    if (!name) return api_refuse(error, "tool_choice", "it names no function");
    if (flat && api_string(&space, api_field(f, "namespace"), "tool_choice", error) < 0) return -1;
    *out = space ? api_full_name(r, space, name) : name;
    return *out ? 0 : api_no_memory(error);
}

static int read_allowed(api_request *r, const json_t *v, bool flat, api_error *error)
{
    const json_t *inner = flat ? v : api_field(v, "allowed_tools");
    const json_t *list = api_field(inner, "tools");
    const char *mode = "auto";
    size_t i;
    json_t *item;

    if (api_string(&mode, api_field(inner, "mode"), "tool_choice", error) < 0) return -1;
    if (list && !json_is_array(list))
        return api_refuse(error, "tool_choice", "an array is expected");
    if (!json_array_size(list)) return api_refuse(error, "tool_choice", "it allows no tools");
    if (json_array_size(list) > MAX_ALLOWED)
        return api_refuse(error, "tool_choice", "more than %d names", MAX_ALLOWED);
    if (choose(r, mode, error) < 0) return -1;
    if (!(r->allowed = api_alloc(r, json_array_size(list), sizeof *r->allowed)))
        return api_no_memory(error);
    json_array_foreach(list, i, item) {
        const char *type = json_string_value(api_field(item, "type"));
        if (type && strcmp(type, "function") != 0 && strcmp(type, "custom") != 0) continue;
        if (read_name(&r->allowed[r->n_allowed++], r, item, flat, error) < 0) return -1;
    }
    return r->n_allowed ? 0 : api_refuse(error, "tool_choice", "it allows none of the tools here");
}

int api_tool_choice(api_request *r, const json_t *v, bool flat, api_error *error)
{
    const char *type = NULL;

    if (!v) return 0;
    if (json_is_string(v)) {
        if (choose(r, json_string_value(v), error) < 0) return -1;
    } else if (json_is_object(v)) {
        if (api_text(&type, v, "tool_choice", "type", error) < 0) return -1;
        if (!type) return api_refuse(error, "tool_choice.type", "it is missing");
        if (strcmp(type, "allowed_tools") == 0) {
            if (read_allowed(r, v, flat, error) < 0) return -1;
        } else if (strcmp(type, "function") == 0 || strcmp(type, "custom") == 0) {
            if (read_name(&r->tool_name, r, v, flat, error) < 0) return -1;
            r->tool_choice = CHOICE_NAMED;
        } else if (!flat) {
            return api_refuse(error, "tool_choice.type", "function or allowed_tools is expected");
        }
    } else {
        return api_refuse(error, "tool_choice", "a string or an object is expected");
    }
    return api_check_choice(r, "tool_choice", error);
}
