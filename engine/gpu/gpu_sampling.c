/* gpu_sampling.c - the functions of a sampler_source (engine/session/sampler.h) on the device. */
#include "engine/gpu/gpu_sampling.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

enum { MAX_PAIRS = 8192 };               /* candidates */

static_assert((int)GPU_SHORTLIST_BLOCK == (int)SAMPLER_BLOCK &&
              (int)GPU_SHORTLIST_LANES == (int)SAMPLER_LANES &&
              (int)GPU_SHORTLIST_STEPS == (int)SAMPLER_STEPS, "the sampler's arithmetic");

static void place_all(gpu_sampling *s, mem_layout *a, int n_vocab)
{
    const uint64_t n_block = (uint64_t)sampler_blocks(n_vocab);
    s->count = mem_layout_take(a, 1, 1, sizeof *s->count);
    s->masses = mem_layout_take(a, n_block, 1, sizeof *s->masses);
    s->pairs = mem_layout_take(a, MAX_PAIRS, 1, sizeof *s->pairs);
    s->maxima = mem_layout_take(a, n_block, 1, sizeof *s->maxima);
    s->penalised = mem_layout_take(a, (uint64_t)n_vocab, 2, sizeof *s->penalised);
    s->allowed = mem_layout_take(a, n_block, 1, sizeof *s->allowed);
}

uint64_t gpu_sampling_host_bytes(int n_vocab)
{
    gpu_sampling unused = { 0 };
    mem_layout a = mem_layout_count(64);
    place_all(&unused, &a, n_vocab);
    return a.used;
}

int gpu_sampling_init(gpu_sampling *s, gpu *g, const gpu_buffers *b, int n_vocab, err_ctx *err)
{
    *s = (gpu_sampling){ .g = g, .b = b, .n_vocab = n_vocab };
    s->memory = gpu_alloc_host(g, gpu_sampling_host_bytes(n_vocab), err);
    if (!s->memory) return ERR_NOMEM;
    mem_layout a = mem_layout_over(s->memory, 64);
    place_all(s, &a, n_vocab);
    return 0;
}

void gpu_sampling_release(gpu_sampling *s)
{
    if (s->memory) gpu_free_host(s->g, s->memory);
    *s = (gpu_sampling){ 0 };
}

static float *biases_of(const gpu_sampling *s)
{
    return s->b->bias + (size_t)s->t * (size_t)s->n_vocab;
}

/* Uploads biases and steps if their version has changed. Each row of logits has biases of its own,
 * because the samplers of several answers take turns. */
static int write_rules(gpu_sampling *s, const sampler_rules *r, err_ctx *err)
{
    int rc;
    if (s->bias_version[s->t] == r->bias_version) return 0;
    if ((rc = gpu_write(s->g, biases_of(s), r->bias, (uint64_t)s->n_vocab * sizeof *r->bias,
                        err)) < 0 ||
        (rc = gpu_write(s->g, s->b->steps, r->steps, SAMPLER_STEPS * sizeof *r->steps, err)) < 0)
        return rc;
    s->bias_version[s->t] = r->bias_version;
    return 0;
}

/* The forward pass may still run: unless biases have changed, everything is enqueued before the one
 * wait. A greedy pick needs only the largest logits, so these are gathered in the same call. */
static int prepare(void *ctx, const sampler_rules *r, float *block_max, double *mass, err_ctx *err)
{
    gpu_sampling *s = ctx;
    const gpu_buffers *b = s->b;
    const size_t n_block = (size_t)sampler_blocks(s->n_vocab);
    int rc = write_rules(s, r, err);

    if (rc < 0) return rc;
    if (r->allowed) memcpy(s->allowed, r->allowed, n_block * sizeof *s->allowed);
    for (int i = 0; i < r->n_penalised; i++) {
        s->penalised[2 * i] = r->penalised[i];
        s->penalised[2 * i + 1] = r->count[r->penalised[i]];
    }
    s->list = (gpu_shortlist){
        .logits = b->logits + (size_t)s->t * (size_t)s->n_vocab, .bias = biases_of(s),
        .allowed = r->allowed ? s->allowed : NULL,
        .n = s->n_vocab, .seen = s->penalised, .n_seen = r->n_penalised, .repeat = r->repeat,
        .presence = r->presence, .frequency = r->frequency, .per_temperature = r->per_temperature,
        .steps = b->steps, .work = b->work, .top = b->top, .maxima = s->maxima,
        .masses = mass ? s->masses : NULL,
    };
    gpu_shortlist_make(s->g, &s->list);
    s->has_top = r->per_temperature == 0;
    if (s->has_top) gpu_shortlist_gather_top(s->g, &s->list, s->pairs, MAX_PAIRS, s->count);
    const uint64_t from = clock_ns();
    if ((rc = gpu_wait(s->g, err)) < 0) return rc;
    if (s->single) s->waited_s += clock_since(from);
    memcpy(block_max, s->maxima, n_block * sizeof *block_max);
    if (mass) memcpy(mass, s->masses, n_block * sizeof *mass);
    return 0;
}

static int gather(void *ctx, sampler_pair *pairs, int cap, float bound, err_ctx *err)
{
    gpu_sampling *s = ctx;
    if (!s->has_top || *s->count == 0 || s->pairs[0].logit != bound) {
        s->has_top = false;
        gpu_shortlist_gather(s->g, &s->list, bound, s->pairs, MAX_PAIRS, s->count);
        const int rc = gpu_wait(s->g, err);
        if (rc < 0) return rc;
    }
    const int n = *s->count > INT_MAX ? INT_MAX : (int)*s->count;
    for (int i = 0; i < n && n <= cap && n <= MAX_PAIRS; i++)
        pairs[i] = (sampler_pair){ s->pairs[i].id, s->pairs[i].logit };
    return n <= MAX_PAIRS ? n : INT_MAX;
}

sampler_source gpu_sampling_source(gpu_sampling *s, int t)
{
    s->t = t;
    return (sampler_source){ s, prepare, gather };
}
