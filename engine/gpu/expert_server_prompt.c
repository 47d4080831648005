/* expert_server_prompt.c - computes the cold experts of a prompt of more than GPU_MAIL tokens. */
#include "engine/gpu/expert_server_internal.h"

typedef struct join_job {
    const expert_server *c;
    float *sums;
    const float *gates;
} join_job;

static void join_tokens(void *ctx, int64_t begin, int64_t end, int thread)
{
    const join_job *j = ctx;
    const int k = j->c->m->hp.n_expert_used, n_embd = j->c->m->hp.n_embd;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *sum = j->sums + (size_t)t * (size_t)n_embd;
        memset(sum, 0, (size_t)n_embd * sizeof *sum);
        j->c->o->loops->join(sum, j->c->slots + (size_t)t * (size_t)k * (size_t)n_embd,
                             j->gates + t * k, k, NULL, 0.0f, n_embd);
    }
}

/* The vectors of the slots of the first n_item in c->items. */
static int compute_slots(expert_server *c, int layer, const float *x, int n, int n_item,
                         err_ctx *err)
{
    if (n_item == 0) return 0;
    acts_set(&c->x, x, n, c->m->hp.n_embd);
    const expert_job job = {
        .bank = c->m->layers[layer].experts, .act = c->m->family->act, .x = &c->x,
        .work = c->work, .items = c->items, .n_item = n_item, .y = c->slots, .layer = layer,
    };
    return experts_cpu_run(c->cpu, &job, err);
}

int expert_server_prompt(expert_server *c, int layer, float *sums, const float *x,
                         const int32_t *ids, const float *gates, int n, err_ctx *err)
{
    const size_t n_embd = (size_t)c->m->hp.n_embd, k = (size_t)c->m->hp.n_expert_used;
    for (int done = 0; done < n;) {
        const int some = min_int(n - done, EXPERT_SERVER_TOKENS);
        const size_t first = (size_t)done;
        worklist_fill(c->work, ids + first * k, some, (int)k);
        memcpy(c->items, c->work->items, (size_t)c->work->n_item * sizeof *c->items);
        const int rc = compute_slots(c, layer, x + first * n_embd, some, c->work->n_item, err);
        if (rc < 0) return rc;
        join_job j = { c, sums + first * n_embd, gates + first * k };
        pool_run(c->o->team, some, pool_grain((int64_t)(k * n_embd)), join_tokens, &j);
        done += some;
    }
    return 0;
}

const int32_t *expert_server_map(const expert_server *c, int layer) { return c->args[layer].hot; }

void expert_server_prompt_begin(expert_server *c)
{
    if (c->cache) vram_cache_publish(c->cache);
}

/* Whether the expert is in VRAM. */
static bool is_hot(const expert_server *c, int layer, int expert)
{
    if (!c->cache) return expert < c->p->hot[layer];
    return frame_table_find(vram_cache_table(c->cache), layer, expert) >= 0;
}

static void count_choices(expert_server *c, int layer, const int32_t *ids, int n)
{
    const int k = c->m->hp.n_expert_used;
    for (int t = 0; c->cache && t < n; t++, ids += k) {
        uint32_t chosen[GPU_MOST_USED];
        for (int r = 0; r < k; r++)
            chosen[r] = (uint32_t)ids[r] |
                        (uint32_t)(is_hot(c, layer, ids[r]) ? GPU_HOT : GPU_COLD) << 16;
        vram_cache_chosen(c->cache, layer, chosen, k);
    }
}

int expert_server_cold(expert_server *c, int layer, const float **y, const float *x,
                       const int32_t *ids, int n, err_ctx *err)
{
    int n_item = 0;
    worklist_fill(c->work, ids, n, c->m->hp.n_expert_used);
    for (int i = 0; i < c->work->n_item; i++)
        if (!is_hot(c, layer, c->work->items[i].expert)) c->items[n_item++] = c->work->items[i];
    const int rc = compute_slots(c, layer, x, n, n_item, err);
    if (rc == 0) count_choices(c, layer, ids, n);
    *y = c->slots;
    return rc;
}

int expert_server_some(expert_server *c, int layer, const float **y, int32_t *row, const float *x,
                       const int32_t *ids, int n, const bool *by_cpu, err_ctx *err)
{
    const int k = c->m->hp.n_expert_used;
    worklist_fill_some(c->work, ids, n, k, by_cpu);
    for (int i = 0; i < n * k; i++) row[i] = -1;
    for (int i = 0; i < c->work->n_slot; i++) row[c->work->slots[i]] = i;
    *y = c->slots;
    if (c->work->n_item == 0) return 0;
    acts_set(&c->x, x, n, c->m->hp.n_embd);
    const expert_job job = {
        .bank = c->m->layers[layer].experts, .act = c->m->family->act, .x = &c->x,
        .work = c->work, .items = c->work->items, .n_item = c->work->n_item, .y = c->slots,
        .by_position = true, .layer = layer,
    };
    return experts_cpu_run(c->cpu, &job, err);
}
