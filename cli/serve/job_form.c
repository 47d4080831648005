/* job_form.c - the form that a request gives its answer: a schema for the text, calls that must
 * come or that are held to their tools' schemas. */
#include "cli/serve/job.h"

#include "engine/text/chat/chat_grammar.h"

static bool has_strict(const json_t *tools)
{
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool)
        if (json_is_true(json_object_get(json_object_get(tool, "function"), "strict"))) return true;
    return false;
}

/* How calls are held; with a form for the text they are, so that both stay possible. */
static void hold_calls(chat_request *req, const api_request *r)
{
    const bool forced = r->tool_choice == CHOICE_REQUIRED || r->tool_choice == CHOICE_NAMED;
    if (r->tool_choice == CHOICE_NONE) req->tools = NULL;
    if (r->raw || !json_array_size(req->tools)) return;
    req->formed = r->form != FORM_TEXT && !forced;
    req->one_call = !r->parallel_calls || r->tool_choice == CHOICE_NAMED;
    if (r->tool_choice == CHOICE_NAMED) {
        req->callable = &r->tool_name;
        req->n_callable = 1;
    } else {
        req->callable = r->allowed;
        req->n_callable = r->n_allowed;
    }
    if (forced) req->calls = CHAT_CALLS_MUST;
    else if (req->formed || r->n_allowed > 0 || has_strict(req->tools))
        req->calls = CHAT_CALLS_HELD;
}

int job_make_form(job *j, err_ctx *err)
{
    const api_request *r = j->r;
    j->shown = r->chat;
    hold_calls(&j->shown, r);
    if (j->count) return 0;
    if (j->shown.calls != CHAT_CALLS_FREE) {
        json_t *any = json_pack("{s:s}", "type", "object");
        const int rc = any ? chat_grammar(&j->form, j->o->model->talk, &j->shown,
                                          r->form == FORM_SCHEMA ? r->schema : any,
                                          r->form == FORM_SCHEMA && r->strict, err)
                           : err_set(err, ERR_NOMEM, "out of memory");
        json_decref(any);
        return rc;
    }
    if (r->form == FORM_JSON) return grammar_any_object(&j->form, err);
    if (r->form == FORM_SCHEMA) return grammar_from_schema(&j->form, r->schema, r->strict, err);
    return 0;
}
