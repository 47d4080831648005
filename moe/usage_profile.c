/* usage_profile.c - counts by layer and expert, and how they fade.
 *
 * Invariant: hot + cold <= raw for every expert. */
#include "moe/usage_profile.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* ---- shape ----------------------------------------------------------------------------------- */

static size_t n_all(const usage_profile *p) { return (size_t)p->n_layer * (size_t)p->n_expert; }

int usage_profile_create(usage_profile **out, int n_layer, int n_expert, err_ctx *err)
{
    *out = NULL;
    if (n_layer < 1 || n_expert < 1 || n_expert > PROFILE_MAX_EXPERTS / n_layer)
        return err_set(err, ERR_RANGE, "expert profile: %d layers of %d experts", n_layer,
                       n_expert);
    usage_profile *p = mem_zalloc(sizeof *p);
    if (!p) return err_set(err, ERR_NOMEM, "expert profile: %zu bytes", sizeof *p);
    *p = (usage_profile){ .n_layer = n_layer, .n_expert = n_expert };
    const size_t n = n_all(p);
    p->layers = mem_array((size_t)n_layer, sizeof *p->layers);
    p->experts = mem_array(n, sizeof *p->experts);
    if (!p->layers || !p->experts) {
        usage_profile_free(p);
        return err_set(err, ERR_NOMEM, "expert profile: %zu experts", n);
    }
    for (int l = 0; l < n_layer; l++) p->layers[l] = (layer_uses){ 0 };
    for (size_t i = 0; i < n; i++) p->experts[i] = (expert_uses){ 0 };
    *out = p;
    return 0;
}

void usage_profile_free(usage_profile *p)
{
    if (!p) return;
    mem_free(p->layers);
    mem_free(p->experts);
    mem_free(p);
}

int usage_profile_layers(const usage_profile *p) { return p->n_layer; }
int usage_profile_experts(const usage_profile *p) { return p->n_expert; }
int usage_profile_runs(const usage_profile *p) { return p->n_run; }

const expert_uses *usage_profile_uses(const usage_profile *p, int layer)
{
    assert(layer >= 0 && layer < p->n_layer);
    return p->experts + (size_t)layer * (size_t)p->n_expert;
}

const layer_uses *usage_profile_layer(const usage_profile *p, int layer)
{
    assert(layer >= 0 && layer < p->n_layer);
    return &p->layers[layer];
}

/* ---- counting -------------------------------------------------------------------------------- */

void usage_profile_count(usage_profile *p, int layer, int expert, expert_where where, uint64_t n)
{
    assert(layer >= 0 && layer < p->n_layer && expert >= 0 && expert < p->n_expert);
    expert_uses *u = &p->experts[(size_t)layer * (size_t)p->n_expert + (size_t)expert];
    u->raw += (double)n;
    if (where == EXPERT_HOT) u->hot += (double)n;
    if (where == EXPERT_COLD) u->cold += (double)n;
    p->n_run = max_int(p->n_run, 1);
}

static double seconds(double s) { return isfinite(s) && s > 0 ? s : 0; }

void usage_profile_add_layer(usage_profile *p, int layer, const layer_uses *more)
{
    assert(layer >= 0 && layer < p->n_layer);
    layer_uses *u = &p->layers[layer];
    u->calls += more->calls;
    u->cold_slots += more->cold_slots;
    u->hot_s += seconds(more->hot_s);
    u->cold_s += seconds(more->cold_s);
    u->join_s += seconds(more->join_s);
    p->n_run = max_int(p->n_run, 1);
}

void usage_profile_call(usage_profile *p, int layer, int cold_slots, double hot_s, double cold_s,
                        double join_s)
{
    assert(cold_slots >= 0);
    usage_profile_add_layer(p, layer, &(layer_uses){ 1, cold_slots, hot_s, cold_s, join_s });
}

static double faded(double count, double decay, double more)
{
    return floor((count * decay + more) * 64) / 64;
}

void usage_profile_merge(usage_profile *into, const usage_profile *from, double decay)
{
    assert(into->n_layer == from->n_layer && into->n_expert == from->n_expert);
    assert(decay >= 0 && decay <= 1);
    for (int l = 0; l < into->n_layer; l++) {
        layer_uses *u = &into->layers[l];
        const layer_uses *f = &from->layers[l];
        u->calls = faded(u->calls, decay, f->calls);
        u->cold_slots = faded(u->cold_slots, decay, f->cold_slots);
        u->hot_s = u->hot_s * decay + f->hot_s;
        u->cold_s = u->cold_s * decay + f->cold_s;
        u->join_s = u->join_s * decay + f->join_s;
    }
    for (size_t i = 0; i < n_all(into); i++) {
        expert_uses *u = &into->experts[i];
        const expert_uses *f = &from->experts[i];
        u->hot = faded(u->hot, decay, f->hot);
        u->cold = faded(u->cold, decay, f->cold);
        u->raw = fmax(faded(u->raw, decay, f->raw), u->hot + u->cold);   /* roundings may differ */
    }
    into->n_run = min_int(into->n_run, PROFILE_MAX_RUNS - from->n_run) + from->n_run;
}

/* ---- an order of experts --------------------------------------------------------------------- */

void usage_profile_count_list(usage_profile *p, const int *experts, int n)
{
    for (int i = 0; i < n; i++)
        if (experts[i] >= 0 && experts[i] < p->n_layer * p->n_expert)
            usage_profile_count(p, experts[i] / p->n_expert, experts[i] % p->n_expert,
                                EXPERT_EITHER, (uint64_t)(n - i));
}

static int most_chosen_first(const void *a, const void *b, void *profile)
{
    const usage_profile *p = profile;
    const int i = *(const int *)a, j = *(const int *)b;
    const double x = p->experts[i].raw, y = p->experts[j].raw;
    return x != y ? (x < y) - (x > y) : (i > j) - (i < j);
}

int usage_profile_list(const usage_profile *p, int *list)
{
    int n = 0;
    for (int i = 0; i < p->n_layer * p->n_expert; i++)
        if (p->experts[i].raw > 0) list[n++] = i;
    qsort_r(list, (size_t)n, sizeof *list, most_chosen_first, (void *)p);
    return n;
}
