/* api_parse.c - one body to one api_request: sets defaults and calls the reader of its API.
 *
 * Readers (api_chat.c and others) call api_fields.c, api_build.c and api_tools.c, which call no
 * reader. */
#include "cli/serve/api_internal.h"

int api_parse(api_request **out, api_kind kind, bool count, const char *body, size_t n,
              api_error *error)
{
    api_request *r = mem_zalloc(sizeof *r);
    int rc = -1;

    *out = NULL;
    *error = (api_error){ 0 };
    if (!r) return api_no_memory(error);
    r->kind = kind;
    r->max_tokens = r->top_k = r->logprobs = -1;
    r->temperature = r->top_p = r->min_p = NAN;
    r->frequency_penalty = r->presence_penalty = r->repeat_penalty = NAN;
    r->show_reasoning = r->parallel_calls = true;
    r->n = 1;
    if (!(r->root = api_json_read(body, n, error))) goto done;
    if (!json_is_object(r->root)) {
        api_refuse(error, "", "the body is not a JSON object");
        goto done;
    }
    switch (kind) {
    case API_CHAT: rc = api_parse_chat(r, r->root, error); break;
    case API_COMPLETION: rc = api_parse_completion(r, r->root, error); break;
    case API_RESPONSES: rc = api_parse_responses(r, r->root, error); break;
    case API_MESSAGES: rc = api_parse_messages(r, r->root, count, error); break;
    case API_OLLAMA_CHAT:
    case API_OLLAMA_GENERATE: rc = api_parse_ollama(r, r->root, error); break;
    }
done:
    if (rc < 0) api_request_free(r);
    else *out = r;
    return rc;
}
