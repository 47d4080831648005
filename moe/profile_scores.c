/* profile_scores.c - the formulas of the header, and the experts they pick.
 *
 * No divisor can be 0, and weights are at least LEAST, so scores are finite for any profile. The
 * caller decides which experts to move, and when. */
#include "moe/profile_scores.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double LEAST = 1.0 / 64;    /* times the mean: a layer's pressure or time */

static const char *const names[WEIGHTING_COUNT] = {
    [WEIGHTING_FLAT] = "flat",
    [WEIGHTING_PRESSURE] = "pressure",
    [WEIGHTING_SMOOTH_PRESSURE] = "smooth-pressure",
    [WEIGHTING_TIME] = "time",
    [WEIGHTING_BALANCED] = "balanced",
};

bool weighting_named(weighting_mode *out, const char *name)
{
    for (int m = 0; m < WEIGHTING_COUNT; m++)
        if (strcmp(names[m], name) == 0) {
            *out = (weighting_mode)m;
            return true;
        }
    return false;
}

/* ---- layers ---------------------------------------------------------------------------------- */

typedef double per_call_fn(const layer_uses *u);         /* of a layer with calls */

static double slots_per_call(const layer_uses *u) { return u->cold_slots / u->calls; }
static double seconds_per_call(const layer_uses *u) { return (u->cold_s + u->join_s) / u->calls; }

/* Over layers with calls; 0 if there are none. */
static double mean_of(const usage_profile *p, per_call_fn *of)
{
    double sum = 0;
    int n = 0;
    for (int l = 0; l < usage_profile_layers(p); l++) {
        const layer_uses *u = usage_profile_layer(p, l);
        if (u->calls <= 0) continue;
        sum += of(u);
        n++;
    }
    return n > 0 ? sum / n : 0;
}

static double against(double mean, const layer_uses *u, per_call_fn *of)
{
    return mean > 0 && u->calls > 0 ? fmax(of(u) / mean, LEAST) : 1;
}

/* Sums over all layers that a mode needs to weigh one. */
typedef struct weigher {
    weighting_mode mode;
    double curve;
    double mean;                         /* of slots or seconds per call */
    double scale;                        /* makes the mean of v 1 */
} weigher;

/* w(l)^curve */
static double curved(const weigher *w, const layer_uses *u)
{
    double weight = 1;
    if (w->mode == WEIGHTING_PRESSURE) weight = against(w->mean, u, slots_per_call);
    if (w->mode == WEIGHTING_SMOOTH_PRESSURE)
        weight = (sqrt(against(w->mean, u, slots_per_call)) + 1) / 2;
    if (w->mode == WEIGHTING_TIME) weight = against(w->mean, u, seconds_per_call);
    return pow(weight, w->curve);
}

static weigher weigher_of(weighting_mode mode, double curve, const usage_profile *p)
{
    const int n_layer = usage_profile_layers(p);
    weigher w = { .mode = mode, .curve = curve };
    double sum = 0;
    w.mean = mean_of(p, mode == WEIGHTING_TIME ? seconds_per_call : slots_per_call);
    for (int l = 0; l < n_layer; l++) sum += curved(&w, usage_profile_layer(p, l));
    w.scale = n_layer / sum;             /* every term is at least LEAST */
    return w;
}

/* ---- experts --------------------------------------------------------------------------------- */

void profile_scores_of(double *score, const usage_profile *p, const weighting_options *o)
{
    const int n_layer = usage_profile_layers(p), n_expert = usage_profile_experts(p);
    const bool balanced = o->mode == WEIGHTING_BALANCED;
    weigher w[WEIGHTING_BALANCED];
    const int n_mode = balanced ? WEIGHTING_BALANCED : 1;
    assert(o->mode >= 0 && o->mode < WEIGHTING_COUNT && o->curve >= 0 && o->curve <= 1);
    for (int m = 0; m < n_mode; m++)
        w[m] = weigher_of(balanced ? (weighting_mode)m : o->mode, o->curve, p);
    for (int l = 0; l < n_layer; l++, score += n_expert) {
        const expert_uses *u = usage_profile_uses(p, l);
        double v = 0, choices = 0;
        for (int m = 0; m < n_mode; m++)
            v += curved(&w[m], usage_profile_layer(p, l)) * w[m].scale / n_mode;
        for (int e = 0; e < n_expert; e++) choices += u[e].raw;
        for (int e = 0; e < n_expert; e++)
            score[e] = v * (choices > 0 ? u[e].raw / choices : 1.0 / n_expert);
    }
}

/* ---- picking --------------------------------------------------------------------------------- */

typedef struct pick_ctx {
    const double *score;
    const uint64_t *expert_bytes;
    int n_expert;
} pick_ctx;

static double value_of(const pick_ctx *c, int i)
{
    return c->score[i] / (double)c->expert_bytes[i / c->n_expert];
}

static int best_first(const void *a, const void *b, void *ctx)
{
    const int i = *(const int *)a, j = *(const int *)b;
    const double x = value_of(ctx, i), y = value_of(ctx, j);
    return x != y ? (x < y) - (x > y) : (i > j) - (i < j);
}

void profile_scores_pick(int *order, int *n, const double *score, const uint64_t *expert_bytes,
                         uint64_t budget, int n_layer, int n_expert)
{
    pick_ctx ctx = { score, expert_bytes, n_expert };
    int n_candidate = 0;
    for (int i = 0; i < n_layer * n_expert; i++)
        if (score[i] >= 0 && expert_bytes[i / n_expert] > 0) order[n_candidate++] = i;
    qsort_r(order, (size_t)n_candidate, sizeof *order, best_first, &ctx);
    *n = 0;
    for (int i = 0; i < n_candidate; i++) {
        const uint64_t bytes = expert_bytes[order[i] / n_expert];
        if (bytes > budget) continue;
        budget -= bytes;
        order[(*n)++] = order[i];        /* *n <= i */
    }
}

/* ---- universal ------------------------------------------------------------------------------- */

static bool is_universal(const usage_profile *p, int expert, int n_used)
{
    const int n_expert = usage_profile_experts(p);
    const expert_uses *u = usage_profile_uses(p, expert / n_expert);
    double choices = 0;                  /* n_used for each token */
    for (int e = 0; e < n_expert; e++) choices += u[e].raw;
    return choices > 0 && 2 * n_used * u[expert % n_expert].raw >= choices;
}

int profile_scores_universal(int *order, int n, const usage_profile *p, int n_used)
{
    int n_first = 0;
    for (int i = 0; i < n; i++) {
        const int one = order[i];
        if (!is_universal(p, one, n_used)) continue;
        memmove(order + n_first + 1, order + n_first, (size_t)(i - n_first) * sizeof *order);
        order[n_first++] = one;
    }
    return n_first;
}
