/* sim_gpu_prefer.c - a choice of experts that looks at what is in VRAM: cuda/prefer.cu, one token
 * after the other. */
#include "tests/sim_gpu_internal.h"

#include <math.h>

enum { MOST_EXPERTS = 1024 };

/* Weights of n experts by the usual rule. */
static void weigh_usual(float *gates, const int32_t *ids, int n, const float *logits)
{
    double top = -INFINITY, sum = 0.0;
    for (int r = 0; r < n; r++) top = fmax(top, (double)logits[ids[r]]);
    for (int r = 0; r < n; r++) sum += exp((double)logits[ids[r]] - top);
    for (int r = 0; r < n; r++) gates[r] = (float)(exp((double)logits[ids[r]] - top) / sum);
}

/* ... and by another one: scores are the weights of all experts where they stay as they are. */
static void weigh_scores(float *gates, const int32_t *ids, int n, const float *logits,
                         const gpu_prefer *a)
{
    router_rule all = sim_rule(&a->rule);
    int32_t order[MOST_EXPERTS];
    float score[MOST_EXPERTS], lane[GPU_MOST_USED] = { 0.0f };
    all.as_scored = true;
    all.factor = 0.0f;
    all.bias = NULL;
    router_select(order, score, logits, a->n_expert, a->n_expert, &all);
    for (int e = 0; e < a->n_expert; e++)
        for (int r = 0; r < n; r++)
            if (ids[r] == order[e]) lane[r] = gates[r] = score[e];
    for (int d = GPU_MOST_USED / 2; d > 0; d /= 2)
        for (int r = 0; r < d; r++) lane[r] += lane[r + d];
    for (int r = 0; r < n; r++) {
        if (!a->rule.as_scored) gates[r] /= lane[0];
        if (a->rule.factor > 0.0f) gates[r] *= a->rule.factor;
    }
}

static bool is_usual(const gpu_router_rule *r)
{
    return !r->sigmoid && !r->as_scored && !r->bias && !(r->factor > 0.0f);
}

/* ids: as chosen, then those that stay in front, the others' slots without weight. */
static void choose(int32_t *ids, float *gates, const gpu_prefer *a, const float *logits)
{
    int n = 0;
    for (int r = 0; r < a->k; r++)
        if (a->hot[ids[r]] >= 0) ids[n++] = ids[r];
    if (n == 0) n = a->k;                /* ids are as they were */
    if (is_usual(&a->rule)) weigh_usual(gates, ids, n, logits);
    else weigh_scores(gates, ids, n, logits, a);
    for (int r = n; r < a->k; r++) {
        gates[r] = 0.0f;
        ids[r] = ids[0];
    }
}

static void run_prefer(gpu *g, void *args)
{
    const gpu_prefer *a = args;
    const router_rule rule = sim_rule(&a->rule);
    (void)g;
    for (int t = 0; t < a->n; t++) {
        float *logits = a->logits + (size_t)t * (size_t)a->n_expert;
        int32_t *ids = a->ids + t * a->k;
        float *gates = a->gates + t * a->k;
        router_select(ids, gates, logits, a->n_expert, a->k, &rule);
        for (int r = 0; a->wanted && r < a->k; r++)
            a->wanted[t * a->k + r] = (uint32_t)ids[r] |
                                      (a->hot[ids[r]] >= 0 ? GPU_HOT : GPU_COLD) << 16;
        choose(ids, gates, a, logits);
        sim_clobber(logits, (uint64_t)a->n_expert * sizeof *logits);
    }
}

void gpu_prefer_hot(gpu *g, const gpu_prefer *a)
{
    const uint64_t n = (uint64_t)a->n, slots = n * (uint64_t)a->k;
    sim_call c = sim_begin(g, "router");
    if (a->n < 1 || a->n > GPU_MAIL || a->n_expert > MOST_EXPERTS || a->k < 1 ||
        a->k > GPU_MOST_USED || a->k > a->n_expert || !a->hot) {
        sim_fail(g, "choice by what is in VRAM: %d of %d experts, %d tokens", a->k, a->n_expert,
                 a->n);
        return;
    }
    sim_reads(&c, "bias of the choice", a->rule.bias, (uint64_t)a->n_expert * sizeof(float));
    sim_reads(&c, "hot", a->hot, (uint64_t)a->n_expert * sizeof *a->hot);
    sim_writes(&c, "logits", a->logits, n * (uint64_t)a->n_expert * sizeof *a->logits);
    sim_writes(&c, "ids", a->ids, slots * sizeof *a->ids);
    sim_writes(&c, "gates", a->gates, slots * sizeof *a->gates);
    sim_writes_any(&c, "log of what is wanted", a->wanted, slots * sizeof *a->wanted);
    sim_end(&c, run_prefer, a, sizeof *a);
}
