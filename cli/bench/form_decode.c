/* form_decode.c - decodes with a form and without, in turn. */
#include "cli/bench/form_decode.h"

#include "cli/console.h"
#include "cli/interrupt.h"

enum { PROMPT = 32 };

int form_decode_open(form_decode *d, const bench_model_args *a, int n_token, int n_run,
                     double temperature)
{
    const sampler_options o = { .temperature = temperature, .top_p = 1, .repeat_penalty = 1 };
    err_ctx err;
    int rc = bench_model_open(&d->b, a);
    if (rc != 0) return rc;
    d->n_token = n_token;
    d->n_run = n_run;
    if (PROMPT + n_token > d->b.ctx_limit) {
        console_error("%d tokens are more than the context of %d", PROMPT + n_token,
                      d->b.ctx_limit);
        return 1;
    }
    if ((rc = bench_model_session(&d->s, &d->b, PROMPT + n_token)) != 0) return rc;
    d->logits = mem_array((size_t)session_vocab(d->s), sizeof *d->logits);
    if (!d->logits) return console_error("out of memory for logits"), 1;
    if (sampler_create(&d->smp, &o, session_vocab(d->s), 0, &err) < 0)
        return console_fail(NULL, &err);
    return 0;
}

void form_decode_close(form_decode *d)
{
    sampler_free(d->smp);
    mem_free(d->logits);
    session_free(d->s);
    bench_model_close(&d->b);
}

/* Says what may come; with an id first that it came. */
static int follow(form_decode *d, grammar_mask *m, const tokenizer *t, int32_t id, err_ctx *err)
{
    int rc = 0;
    if (!m) return 0;
    if (id >= 0 && tokenizer_is_stop(t, id)) grammar_mask_reset(m);
    else if (id >= 0) rc = grammar_mask_accept(m, id, err);
    const uint64_t *bits = rc < 0 ? NULL : grammar_mask_bits(m, err);
    if (!bits) return rc < 0 ? rc : ERR_RANGE;
    sampler_allow(d->smp, bits);
    return 0;
}

/* m NULL: without a form. The prompt is not measured. */
static int run_once(double *rate, form_decode *d, grammar_mask *m, const tokenizer *t, err_ctx *err)
{
    int32_t prompt[PROMPT], id;
    bench_model_prompt(prompt, PROMPT, session_vocab(d->s));
    session_rewind(d->s, 0);
    sampler_reset(d->smp, 1);
    sampler_allow(d->smp, NULL);
    if (m) grammar_mask_reset(m);
    int rc = session_eval(d->s, prompt, PROMPT, d->logits, 1, NULL, NULL, err);
    if (rc == 0) rc = follow(d, m, t, -1, err);
    if (rc == 0) rc = sampler_pick(&id, d->smp, d->logits, err);
    const uint64_t start = clock_ns();
    for (int i = 0; i < d->n_token && rc == 0; i++) {
        if (interrupted()) return err_set(err, ERR_STOPPED, "stopped");
        rc = session_take(d->s, id, err);
        if (rc == 0) rc = follow(d, m, t, id, err);
        if (rc == 0) rc = session_pick(d->s, &id, d->smp, err);
    }
    *rate = d->n_token * 1e9 / (double)(clock_ns() - start);
    return rc;
}

int form_decode_measure(form_decode *d, const grammar *g, const token_trie *v)
{
    grammar_mask *m = NULL;
    double ignored;
    err_ctx err;
    int rc = grammar_mask_create(&m, g, v, session_vocab(d->s), &err);
    if (rc == 0) rc = run_once(&ignored, d, NULL, v->tok, &err);
    if (rc == 0) rc = run_once(&ignored, d, m, v->tok, &err);
    for (int i = 0; i < d->n_run && rc == 0; i++) {
        rc = run_once(&d->free_rate[i], d, NULL, v->tok, &err);
        if (rc == 0) rc = run_once(&d->held_rate[i], d, m, v->tok, &err);
    }
    grammar_mask_free(m);
    return rc < 0 ? bench_model_fail(d->b.l.path, rc, &err) : 0;
}

double form_decode_cost(const form_decode *d)
{
    const double without = spread_of(d->free_rate, d->n_run).median;
    return 100 * (without / spread_of(d->held_rate, d->n_run).median - 1);
}
