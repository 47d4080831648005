/* api_completion.c - reads requests of OpenAI's completions: text or token ids, no chat format.
 *
 * Several prompts in one request are choices, in order. max_tokens 0 with echo scores the prompt,
 * as evaluation harnesses do. */
#include "cli/serve/api_internal.h"

static bool is_ids(const json_t *v)
{
    return json_is_array(v) && json_array_size(v) && json_is_number(json_array_get(v, 0));
}

static int read_prompt(api_prompt *out, api_request *r, const json_t *v, const char *param,
                       api_error *error)
{
    const size_t n = json_array_size(v);
    int32_t *ids;
    size_t i;
    json_t *id;

    if (json_is_string(v)) {
        *out = (api_prompt){ .text = json_string_value(v), .n_text = json_string_length(v) };
        return 0;
    }
    if (!json_is_array(v))
        return api_refuse(error, param, "text, token ids or a list of these is expected");
    if (!n || n > INT32_MAX) return api_refuse(error, param, "there are no token ids");
    if (!(ids = api_alloc(r, n, sizeof *ids))) return api_no_memory(error);
    json_array_foreach(v, i, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX)
            return api_refuse(error, api_path_of("%s[%zu]", param, i).text,
                              "a token id is expected");
        ids[i] = (int32_t)json_integer_value(id);
    }
    *out = (api_prompt){ .ids = ids, .n_ids = (int)n };
    return 0;
}

static int read_prompts(api_request *r, const json_t *v, api_error *error)
{
    const bool one = json_is_string(v) || is_ids(v) || !json_is_array(v);
    const size_t n = one ? 1 : json_array_size(v);
    api_prompt *list;

    if (!v) return api_refuse(error, "prompt", "it is missing");
    if (n < 1 || n * (size_t)r->n > API_MAX_CHOICE)
        return api_refuse(error, "prompt", "%zu prompts with n %d are not 1 to %d choices", n, r->n,
                          API_MAX_CHOICE);
    if (!(list = api_alloc(r, n, sizeof *list))) return api_no_memory(error);
    for (size_t i = 0; i < n; i++)
        if (read_prompt(&list[i], r, one ? v : json_array_get(v, i),
                        one ? "prompt" : api_path_of("prompt[%zu]", i).text, error) < 0) return -1;
    r->prompts = list;
    r->n_prompts = (int)n;
    return 0;
}

int api_parse_completion(api_request *r, const json_t *root, api_error *error)
{
    int64_t v;
    bool given;

    r->raw = true;
    if (api_chat_n(r, root, error) < 0 || read_prompts(r, api_field(root, "prompt"), error) < 0 ||
        api_bool(&r->echo, root, "", "echo", error) < 0 ||
        api_text(&r->suffix, root, "", "suffix", error) < 0 ||
        api_int(&v, &given, root, "", "logprobs", 0, 5, error) < 0) return -1;
    if (given) r->logprobs = (int)v;
    if (r->suffix && !r->suffix[0]) r->suffix = NULL;
    if (api_int(&v, &given, root, "", "best_of", 1, INT64_MAX, error) < 0) return -1;
    if (given && v != 1) return api_no_support(error, "best_of", "only 1 is possible");
    if (api_max_tokens(r, root, "", "max_tokens", r->echo, error) < 0 ||
        api_form(r, api_field(root, "response_format"), "response_format", false, error) < 0 ||
        api_stops(r, root, "", "stop", error) < 0 ||
        api_sampling(r, root, "", error) < 0 ||
        api_chat_bias(r, root, error) < 0 ||
        api_chat_stream(r, root, error) < 0 ||
        api_bool(&r->ignore_eos, root, "", "ignore_eos", error) < 0) return -1;
    return 0;
}
