/* experts_cost.c - evaluates a text as a prompt with the model's number of experts and with
 * another. */
#include "cli/cost/experts_cost.h"

#include "cli/cost/text_reading.h"

static int read_as(text_reading *r, reading_of which, model_handle *l, session_options *so,
                   const char *label, err_ctx *err)
{
    const int rc = model_handle_place(l, so, err);
    const session_options plain = { .chunk = so->chunk, .kv = so->kv };
    return rc < 0 ? rc : text_reading_read(r, which, l, &plain, false, label, err);
}

static int read_twice(experts_cost *out, text_reading *r, model_handle *l, session_options *so,
                      err_ctx *err)
{
    session_options first = *so;
    int rc;
    if ((rc = read_as(r, READING_OWN, l, &first, "reading with the model's own experts",
                      err)) < 0 ||
        (rc = model_handle_use_experts(l, out->used, err)) < 0 ||
        (rc = read_as(r, READING_OTHER, l, so, "reading with --experts-used", err)) < 0)
        return rc;
    return text_reading_compare(&out->kl, r, l->m->hp.n_vocab, err);
}

int experts_cost_measure(experts_cost *out, model_handle *l, int n, session_options *so,
                         err_ctx *err)
{
    text_reading r;
    int rc = model_check_experts(l->m, n, err);  /* before weights are loaded */
    if (rc < 0 || (rc = text_reading_begin(&r, l, so->ctx, err)) < 0) return rc;
    *out = (experts_cost){ .used = n, .own = l->m->own_experts_used, .n_token = r.n,
                           .n_row = r.n_row };
    rc = read_twice(out, &r, l, so, err);
    text_reading_release(&r);
    return rc;
}

void experts_cost_say(const experts_cost *c)
{
    console_note("--experts-used %d (the model's number: %d): KL %.3g nats per token over the last "
                 "%d of %d tokens of English text", c->used, c->own, c->kl, c->n_row, c->n_token);
}
