/* api_ollama.c - reads requests of Ollama's /api/chat and /api/generate.
 *
 * Messages have the form of OpenAI's chat; sampling is in options; a stream is the default. A
 * request without a prompt asks whether the model is loaded. */
#include "cli/serve/api_internal.h"

static int read_format(api_request *r, const json_t *v, api_error *error)
{
    if (!v || (json_is_string(v) && !json_string_length(v))) return 0;
    if (json_is_object(v)) {
        r->form = FORM_SCHEMA;
        r->schema = v;
    } else if (json_is_string(v) && strcmp(json_string_value(v), "json") == 0) {
        r->form = FORM_JSON;
    } else {
        return api_refuse(error, "format", "\"json\" or a JSON schema is expected");
    }
    return 0;
}

static int read_think(api_request *r, const json_t *root, api_error *error)
{
    const json_t *v = api_field(root, "think");
    if (json_is_string(v)) return api_effort(r, root, "", "think", error);
    if (v && !json_is_boolean(v))
        return api_refuse(error, "think", "true, false or a level is expected");
    if (json_is_false(v)) r->show_reasoning = false;
    if (v) r->chat.thinking = json_is_true(v) ? CHAT_THINK_ON : CHAT_THINK_OFF;
    return 0;
}

static int read_options(api_request *r, const json_t *root, api_error *error)
{
    const json_t *o;
    if (api_object(&o, root, "", "options", error) < 0 ||
        api_sampling(r, o, "options", error) < 0 ||
        api_stops(r, o, "options", "stop", error) < 0) return -1;
    return api_max_tokens(r, o, "options", "num_predict", false, error);
}

static int check_images(const json_t *o, const char *path, api_error *error)
{
    const json_t *list;
    if (api_list(&list, o, path, "images", error) < 0) return -1;
    if (!json_array_size(list)) return 0;
    return api_no_support(error, api_path_in(path, "images").text, "this model takes text only");
}

static int read_chat(api_request *r, const json_t *root, api_error *error)
{
    const json_t *list, *tools;
    size_t i;
    json_t *m;

    if (api_list(&list, root, "", "messages", error) < 0) return -1;
    if (!json_array_size(list)) {
        r->load_only = true;
        return 0;
    }
    json_array_foreach(list, i, m)
        if (check_images(m, api_path_of("messages[%zu]", i).text, error) < 0) return -1;
    if (api_chat_messages(r, root, error) < 0 || api_list(&tools, root, "", "tools", error) < 0)
        return -1;
    return api_tools_chat(r, tools, "tools", error);
}

static int read_generate(api_request *r, const json_t *root, api_error *error)
{
    const json_t *prompt = api_field(root, "prompt");
    const char *system = NULL;
    api_prompt *one;
    api_build b;
    int rc;

    if (prompt && !json_is_string(prompt))
        return api_refuse(error, "prompt", "a string is expected");
    if (check_images(root, "", error) < 0 || api_bool(&r->raw, root, "", "raw", error) < 0 ||
        api_text(&system, root, "", "system", error) < 0 ||
        api_text(&r->suffix, root, "", "suffix", error) < 0) return -1;
    if (r->suffix && !r->suffix[0]) r->suffix = NULL;
    if (r->suffix) r->raw = true;
    if (!prompt || !json_string_length(prompt)) {
        r->load_only = true;
        return 0;
    }
    if (r->raw) {
        if (!(one = api_alloc(r, 1, sizeof *one))) return api_no_memory(error);
        one->text = json_string_value(prompt);
        one->n_text = json_string_length(prompt);
        r->prompts = one;
        r->n_prompts = 1;
        return 0;
    }
    rc = api_build_init(&b, r, error);
    if (rc == 0 && system && system[0]) {
        rc = api_build_open(&b, CHAT_SYSTEM);
        textbuf_str(&b.content, system);
    }
    if (rc == 0) rc = api_build_open(&b, CHAT_USER);
    if (rc == 0) {
        textbuf_put(&b.content, json_view(prompt));
        rc = api_build_done(&b);
    }
    api_build_release(&b);
    return rc;
}

int api_parse_ollama(api_request *r, const json_t *root, api_error *error)
{
    r->stream = true;
    if ((r->kind == API_OLLAMA_CHAT ? read_chat(r, root, error) : read_generate(r, root,
                                                                                error)) < 0 ||
        read_format(r, api_field(root, "format"), error) < 0 ||
        read_think(r, root, error) < 0 || read_options(r, root, error) < 0) return -1;
    return api_bool(&r->stream, root, "", "stream", error);
}
