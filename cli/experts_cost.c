/* experts_cost.c - reads a text with the model's own number of experts, then with another, and
 * compares.
 *
 * The text goes in as a prompt does, in one piece. Both readings have a session of their own that
 * is no larger than the one the model was placed for, so there is room for it. */
#include "cli/experts_cost.h"

#include <math.h>

#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/logit_stats.h"

typedef struct reading {
    const id_list *ids;
    int n, n_row;
    progress bar;
} reading;

static bool watch(void *ctx, double done_tokens, double n_tokens)
{
    reading *r = ctx;
    (void)n_tokens;
    progress_update(&r->bar, (uint64_t)done_tokens);
    return !interrupted();
}

/* The text's last rows of logits, with whatever number of experts the model now has. */
static int read_text(float *rows, reading *r, model_handle *l, session_options *so,
                     const char *label, err_ctx *err)
{
    session *s = NULL;
    int rc = model_handle_place(l, so, err);
    if (rc < 0) return rc;
    const session_options small = { .ctx = r->n, .chunk = so->chunk, .kv = so->kv };
    if ((rc = session_create(&s, l->e, &small, err)) < 0) return rc;
    progress_begin_tokens(&r->bar, label, (uint64_t)r->n);
    rc = session_eval(s, r->ids->ids, r->n, rows, r->n_row, watch, r, err);
    progress_end(&r->bar);
    session_free(s);
    return rc;
}

static int compare(experts_cost *out, const float *own, const float *other, int n_vocab,
                   err_ctx *err)
{
    double sum = 0;
    for (int t = 0; t < out->n_row; t++)
        sum += logit_stats_kl(own + (size_t)t * (size_t)n_vocab,
                              other + (size_t)t * (size_t)n_vocab, n_vocab);
    out->kl = sum / out->n_row;
    return isfinite(out->kl) ? 0 : err_set(err, ERR_FORMAT, "with %d experts for a token logits "
                                           "are not numbers", out->used);
}

/* Both readings. rows has room for those of both. */
static int read_twice(experts_cost *out, reading *r, float *rows, model_handle *l,
                      session_options *so, err_ctx *err)
{
    const int n_vocab = l->m->hp.n_vocab;
    float *other = rows + (size_t)r->n_row * (size_t)n_vocab;
    session_options first = *so;
    int rc;
    if ((rc = read_text(rows, r, l, &first, "reading with the model's own experts", err)) < 0 ||
        (rc = model_handle_use_experts(l, out->used, err)) < 0 ||
        (rc = read_text(other, r, l, so, "reading with --experts-used", err)) < 0)
        return rc;
    return compare(out, rows, other, n_vocab, err);
}

int experts_cost_measure(experts_cost *out, model_handle *l, int n, session_options *so,
                         err_ctx *err)
{
    id_list ids = { 0 };
    reading r = { .ids = &ids };
    float *rows = NULL;
    int rc = model_check_experts(l->m, n, err);  /* before anything is loaded */
    if (rc == 0) rc = encoder_encode(l->enc, &ids, str_from(experts_cost_text), false, err);
    if (rc < 0) goto done;
    r.n = min_int(min_int((int)ids.n, EXPERTS_COST_TOKENS), so->ctx);
    r.n_row = min_int(r.n, EXPERTS_COST_ROWS);
    *out = (experts_cost){ .used = n, .own = l->m->own_experts_used, .n_token = r.n,
                           .n_row = r.n_row };
    rows = mem_array(2 * (size_t)r.n_row * (size_t)l->m->hp.n_vocab, sizeof *rows);
    rc = rows ? read_twice(out, &r, rows, l, so, err)
              : err_set(err, ERR_NOMEM, "no memory for %d rows of logits", 2 * r.n_row);
done:
    mem_free(rows);
    ids_free(&ids);
    return rc;
}

void experts_cost_say(const experts_cost *c)
{
    console_note("--experts-used %d (the model's own: %d): KL %.3g nats a token, over the last %d "
                 "of %d tokens of English text", c->used, c->own, c->kl, c->n_row, c->n_token);
}
