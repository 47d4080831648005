/* test_lane.c - the cold lane against the golden bits of whole experts.
 *
 * The vectors of every chosen expert must have the promised bits whatever the number of threads,
 * however the tokens are batched, and however the experts are divided among shares. */
#include <math.h>
#include <string.h>

#include "engine/lane.h"
#include "tests/ffn_golden.h"
#include "tests/test.h"

static int differing(const float *a, const float *b, int n)
{
    int bad = 0;
    for (int i = 0; i < n; i++)
        bad += memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i]));
    return bad;
}

/* Tokens first .. first+n-1 with the experts cut into two shares before item cut. */
static void run(ffn_golden *g, const ops *o, lane *cold, acts *x, worklist *w, float *y, int first,
                int n, int cut)
{
    acts_set(x, g->x + first * g->n_embd, n, g->n_embd);
    worklist_fill(w, g->ids + first * g->k, n, g->k);
    if (cut > w->n_item) cut = w->n_item;
    lane_share share = {
        .bank = &g->bank, .act = g->kind ? ACT_SWIGLU_CLAMPED : ACT_SWIGLU, .x = x, .work = w,
        .items = w->items, .n_item = cut, .y = y,
    };
    (void)o;
    mem_guard(true);
    cold->launch(cold, &share);
    cold->finish(cold);
    share.items += cut;
    share.n_item = w->n_item - cut;
    cold->launch(cold, &share);
    cold->finish(cold);
    mem_guard(false);
}

static void check_lane(ffn_golden *g, const char *name, const loops *f, int n_thread)
{
    const model_hparams hp = { .n_embd = g->n_embd, .n_ff_expert = g->n_ff,
                               .n_expert = g->n_expert, .n_expert_used = g->k };
    const int slots = g->n_token * g->k;
    float *y = mem_array((size_t)(slots * g->n_embd), sizeof *y);
    void *storage = mem_zalloc(acts_bytes(g->n_token, g->n_embd));
    ops o = { .kernels = kernels_contract(), .loops = f };
    lane *cold = NULL;
    worklist *w = NULL;
    acts x;

    if (!CHECK(y && storage && pool_create(&o.team, n_thread, NULL) == 0 &&
               lane_cpu_create(&cold, &o, &hp, slots, NULL) == 0 &&
               worklist_create(&w, g->n_expert, slots, NULL) == 0))
        return;
    acts_init(&x, storage, g->n_token, g->n_embd);
    for (int cut = 0; cut <= 3; cut++) {
        memset(y, 0xAA, (size_t)(slots * g->n_embd) * sizeof *y);
        run(g, &o, cold, &x, w, y, 0, g->n_token, cut);
        const int bad = differing(y, g->y, slots * g->n_embd);
        CHECK_MSG(bad == 0, "%s, %s, %d threads, cut at %d: %d of %d values differ", name, f->isa,
                  n_thread, cut, bad, slots * g->n_embd);
    }
    for (int t = 0; t < g->n_token; t++) {
        const int n = g->k * g->n_embd;
        run(g, &o, cold, &x, w, y, t, 1, 1);
        const int bad = differing(y, g->y + t * n, n);
        CHECK_MSG(bad == 0, "%s, %s, token %d alone: %d values differ", name, f->isa, t, bad);
    }
    worklist_free(w);
    cold->free(cold);
    pool_free(o.team);
    mem_free(storage);
    mem_free(y);
}

static void check_failures(const ffn_golden *g)
{
    const model_hparams hp = { .n_embd = g->n_embd, .n_ff_expert = g->n_ff,
                               .n_expert = g->n_expert, .n_expert_used = g->k };
    const ops o = { .kernels = kernels_contract(), .loops = loops_for("scalar") };
    for (long fail = 1; fail < 10; fail++) {
        lane *cold = NULL;
        mem_fail_after(fail);
        const int rc = lane_cpu_create(&cold, &o, &hp, 8, NULL);
        mem_fail_after(0);
        CHECK((rc == 0) == (cold != NULL));
        if (!cold) continue;
        cold->free(cold);
        break;
    }
}

int main(int argc, char **argv)
{
    const loops *sets[LOOPS_MAX_SETS];
    const int n_set = loops_here(sets);
    test_begin("lane", argc, argv);
    for (const char *const *name = ffn_golden_names; *name; name++) {
        ffn_golden g;
        if (ffn_golden_read(&g, *name)) {
            for (int k = 0; k < n_set; k++)
                for (int n_thread = 1; n_thread <= 3; n_thread++)
                    check_lane(&g, *name, sets[k], n_thread);
            check_failures(&g);
        }
        ffn_golden_free(&g);
    }
    return test_end();
}
