/* cache_cost.c - reads a text with the choice that looks at what is in VRAM, then with the model's
 * own, and compares.
 *
 * The model's own reading does not depend on what is in VRAM, so it may come second: then the first
 * one finds the cache as an answer would. */
#include "cli/cost/cache_cost.h"

#include "cli/cost/text_reading.h"

cache_cost cache_cost_planned(const plan *p)
{
    return (cache_cost){
        .no_effect = !p->gpu ? "no GPU is used" : p->cache ? NULL :
                     p->ram.experts == 0 && p->drive.experts == 0 ? "all experts are in VRAM" :
                     "experts in VRAM do not change places here",
    };
}

static int read_twice(cache_cost *out, text_reading *r, const model_handle *l,
                      const session_options *so, err_ctx *err)
{
    session_options own = *so;
    int rc;
    own.skip_missing = false;
    if ((rc = text_reading_read(r, READING_OTHER, l, so, true, "reading with experts in VRAM",
                                err)) < 0 ||
        (rc = text_reading_read(r, READING_OWN, l, &own, true,
                                "reading with the model's own choice", err)) < 0)
        return rc;
    return text_reading_compare(&out->kl, r, l->m->hp.n_vocab, err);
}

int cache_cost_measure(cache_cost *out, model_handle *l, session_options *so, err_ctx *err)
{
    text_reading r;
    int rc = model_handle_place(l, so, err);
    if (rc < 0) return rc;
    *out = cache_cost_planned(&l->where->p);
    if (out->no_effect) return 0;
    if ((rc = text_reading_begin(&r, l, so->ctx, err)) < 0) return rc;
    out->n_token = r.n;
    out->n_row = r.n_row;
    rc = read_twice(out, &r, l, so, err);
    text_reading_release(&r);
    return rc;
}

static bool say_no_effect(const cache_cost *c)
{
    if (c->no_effect) console_note("--skip-missing has no effect: %s", c->no_effect);
    return c->no_effect != NULL;
}

void cache_cost_say(const cache_cost *c)
{
    if (!say_no_effect(c))
        console_note("--skip-missing: KL %.3g nats per token over the last %d of %d tokens "
                     "of English text", c->kl, c->n_row, c->n_token);
}

void cache_cost_say_planned(const cache_cost *c)
{
    if (!say_no_effect(c))
        console_note(
            "--skip-missing changes answers; moe-run measures by how much when it runs the "
            "model");
}
