/* gpu_sampling.c - the functions of a sampler_source (engine/session/sampler.h) on the device. */
#include "engine/gpu/gpu_sampling.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

enum {
    MAX_PAIRS = 8192,                    /* candidates */
    SOME_PENALISED = 2048                /* ids with a penalty of a row that is asked */
};

static_assert((int)GPU_SHORTLIST_BLOCK == (int)SAMPLER_BLOCK &&
              (int)GPU_SHORTLIST_LANES == (int)SAMPLER_LANES &&
              (int)GPU_SHORTLIST_STEPS == (int)SAMPLER_STEPS, "the sampler's arithmetic");

static void place_all(gpu_sampling *s, mem_layout *a, int n_vocab, int n_row)
{
    const uint64_t n_block = (uint64_t)sampler_blocks(n_vocab);
    for (int i = 0; i < n_row; i++) {
        row_sampling *r = &s->rows[i];
        r->count = mem_layout_take(a, 1, 1, sizeof *r->count);
        r->masses = mem_layout_take(a, n_block, 1, sizeof *r->masses);
        r->pairs = mem_layout_take(a, MAX_PAIRS, 1, sizeof *r->pairs);
        r->maxima = mem_layout_take(a, n_block, 1, sizeof *r->maxima);
        r->allowed = mem_layout_take(a, n_block, 1, sizeof *r->allowed);
        r->penalised = mem_layout_take(a, SOME_PENALISED, 2, sizeof *r->penalised);
    }
    s->all_penalised = mem_layout_take(a, (uint64_t)n_vocab, 2, sizeof *s->all_penalised);
}

uint64_t gpu_sampling_host_bytes(int n_vocab, int n_row)
{
    gpu_sampling unused = { 0 };
    mem_layout a = mem_layout_count(64);
    place_all(&unused, &a, n_vocab, n_row);
    return a.used;
}

int gpu_sampling_init(gpu_sampling *s, gpu *g, const gpu_buffers *b, int n_vocab, err_ctx *err)
{
    *s = (gpu_sampling){ .g = g, .b = b, .n_vocab = n_vocab };
    s->memory = gpu_alloc_host(g, gpu_sampling_host_bytes(n_vocab, b->n_logits), err);
    if (!s->memory) return ERR_NOMEM;
    mem_layout a = mem_layout_over(s->memory, 64);
    place_all(s, &a, n_vocab, b->n_logits);
    return 0;
}

void gpu_sampling_release(gpu_sampling *s)
{
    if (s->memory) gpu_free_host(s->g, s->memory);
    *s = (gpu_sampling){ 0 };
}

/* Row t of an array of rows in VRAM. */
static float *row_of(const gpu_sampling *s, float *rows, size_t width)
{
    return rows + (size_t)s->t * width;
}

/* Uploads biases and steps if their version has changed. Each row of logits has biases of its own,
 * because the samplers of several answers take turns. */
static int write_rules(gpu_sampling *s, row_sampling *row, const sampler_rules *r, err_ctx *err)
{
    const size_t n_vocab = (size_t)s->n_vocab;
    int rc;
    if (row->bias_version == r->bias_version) return 0;
    if ((rc = gpu_write(s->g, row_of(s, s->b->bias, n_vocab), r->bias, n_vocab * sizeof *r->bias,
                        err)) < 0 ||
        (rc = gpu_write(s->g, s->b->steps, r->steps, SAMPLER_STEPS * sizeof *r->steps, err)) < 0)
        return rc;
    row->bias_version = r->bias_version;
    return 0;
}

/* Enqueues the row's figures. A greedy pick needs only the largest logit, so those that equal it are
 * gathered, too. */
static int enqueue(gpu_sampling *s, row_sampling *row, const sampler_rules *r, int32_t *penalised,
                   bool weigh, err_ctx *err)
{
    const gpu_buffers *b = s->b;
    const size_t n_block = (size_t)sampler_blocks(s->n_vocab), n_vocab = (size_t)s->n_vocab;
    const int rc = write_rules(s, row, r, err);

    if (rc < 0) return rc;
    if (r->allowed) memcpy(row->allowed, r->allowed, n_block * sizeof *row->allowed);
    for (int i = 0; i < r->n_penalised; i++) {
        penalised[2 * i] = r->penalised[i];
        penalised[2 * i + 1] = r->count[r->penalised[i]];
    }
    row->list = (gpu_shortlist){
        .logits = row_of(s, b->logits, n_vocab), .bias = row_of(s, b->bias, n_vocab),
        .allowed = r->allowed ? row->allowed : NULL,
        .n = s->n_vocab, .seen = penalised, .n_seen = r->n_penalised, .repeat = r->repeat,
        .presence = r->presence, .frequency = r->frequency, .per_temperature = r->per_temperature,
        .steps = b->steps, .work = row_of(s, b->work, n_block * SAMPLER_BLOCK),
        .top = b->top + s->t, .maxima = row->maxima, .masses = weigh ? row->masses : NULL,
    };
    gpu_shortlist_make(s->g, &row->list);
    row->has_top = r->per_temperature == 0;
    if (row->has_top)
        gpu_shortlist_gather_top(s->g, &row->list, row->pairs, MAX_PAIRS, row->count);
    row->asked = s->in_flight = true;
    return 0;
}

static int ask(void *ctx, const sampler_rules *r, bool weigh, err_ctx *err)
{
    gpu_sampling *s = ctx;
    row_sampling *row = &s->rows[s->t];
    if (r->n_penalised > SOME_PENALISED) return 0;
    return enqueue(s, row, r, row->penalised, weigh, err);
}

/* The forward pass may still run: unless biases have changed, everything is enqueued before the one
 * wait. */
static int prepare(void *ctx, const sampler_rules *r, float *block_max, double *mass, err_ctx *err)
{
    gpu_sampling *s = ctx;
    row_sampling *row = &s->rows[s->t];
    const size_t n_block = (size_t)sampler_blocks(s->n_vocab);
    const uint64_t from = clock_ns();
    int rc = row->asked ? 0 : enqueue(s, row, r, s->all_penalised, mass != NULL, err);
    row->asked = false;
    if (rc == 0 && s->in_flight) rc = gpu_wait(s->g, err);
    if (rc < 0) return rc;
    s->in_flight = false;
    if (s->single) s->waited_s += clock_since(from);
    memcpy(block_max, row->maxima, n_block * sizeof *block_max);
    if (mass) memcpy(mass, row->masses, n_block * sizeof *mass);
    return 0;
}

static int gather(void *ctx, sampler_pair *pairs, int cap, float bound, err_ctx *err)
{
    gpu_sampling *s = ctx;
    row_sampling *row = &s->rows[s->t];
    if (!row->has_top || *row->count == 0 || row->pairs[0].logit != bound) {
        row->has_top = false;
        gpu_shortlist_gather(s->g, &row->list, bound, row->pairs, MAX_PAIRS, row->count);
        const int rc = gpu_wait(s->g, err);
        if (rc < 0) return rc;
    }
    const int n = *row->count > INT_MAX ? INT_MAX : (int)*row->count;
    for (int i = 0; i < n && n <= cap && n <= MAX_PAIRS; i++)
        pairs[i] = (sampler_pair){ row->pairs[i].id, row->pairs[i].logit };
    return n <= MAX_PAIRS ? n : INT_MAX;
}

sampler_source gpu_sampling_source(gpu_sampling *s, int t)
{
    s->t = t;
    return (sampler_source){ s, prepare, gather, ask };
}

void gpu_sampling_forget(gpu_sampling *s)
{
    for (int i = 0; i < s->b->n_logits; i++) s->rows[i].asked = false;
}
