/* job_form.c - the form of a request's answer: a grammar for its text and for its tool calls.
 *
 * A form comes from response_format, from a tool choice that requires a call, or from a strict
 * tool. Without any of them the text is free. */
#include "cli/serve/job_request.h"

#include "engine/text/chat/chat_grammar.h"

static bool has_strict(const json_t *tools)
{
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool)
        if (json_is_true(json_object_get(json_object_get(tool, "function"), "strict"))) return true;
    return false;
}

/* Sets how calls are constrained. Where the text has a form, calls have one, too, because one
 * grammar covers both. */
static void constrain_calls(chat_request *req, const api_request *a)
{
    const bool forced = a->tool_choice == CHOICE_REQUIRED || a->tool_choice == CHOICE_NAMED;
    if (a->tool_choice == CHOICE_NONE) req->tools = NULL;
    if (a->raw || !json_array_size(req->tools)) return;
    req->formed = a->form != FORM_TEXT && !forced;
    req->one_call = !a->parallel_calls || a->tool_choice == CHOICE_NAMED;
    if (a->tool_choice == CHOICE_NAMED) {
        req->callable = &a->tool_name;
        req->n_callable = 1;
    } else {
        req->callable = a->allowed;
        req->n_callable = a->n_allowed;
    }
    if (forced) req->calls = CHAT_CALLS_MUST;
    else if (req->formed || a->n_allowed > 0 || has_strict(req->tools))
        req->calls = CHAT_CALLS_HELD;
}

int job_request_form(job_request *r, err_ctx *err)
{
    const api_request *a = r->api;
    r->parsing = a->chat;
    constrain_calls(&r->parsing, a);
    if (r->count_only) return 0;
    if (r->parsing.calls != CHAT_CALLS_FREE) {
        json_t *any = json_pack("{s:s}", "type", "object");
        const int rc = any ? chat_grammar(&r->form, r->engine->model->format, &r->parsing,
                                          a->form == FORM_SCHEMA ? a->schema : any,
                                          a->form == FORM_SCHEMA && a->strict, err)
                           : err_set(err, ERR_NOMEM, "out of memory");
        json_decref(any);
        return rc;
    }
    if (a->form == FORM_JSON) return grammar_any_object(&r->form, err);
    if (a->form == FORM_SCHEMA) return grammar_from_schema(&r->form, a->schema, a->strict, err);
    return 0;
}
