/* gpu_buffers.c - lays out the buffers of a batch in one block of VRAM; one walk does the counting
 * and the placing. */
#include "engine/gpu/gpu_buffers.h"

#include <stdio.h>

#include "engine/session/sampler.h"

static void place_attention(gpu_buffers *b, mem_layout *a, const gpu *g, const model *m, int n)
{
    const model_hparams *hp = &m->hp;
    const int64_t heads = (int64_t)hp->n_head * hp->head_dim;
    const int64_t kv = (int64_t)hp->n_head_kv * hp->head_dim;
    b->q = mem_layout_floats(a, n, (m->family->attn_gated ? 2 : 1) * heads);
    b->k = mem_layout_floats(a, n, kv);
    b->v = mem_layout_floats(a, n, kv);
    b->heads = mem_layout_floats(a, n, heads);
    b->partial = mem_layout_floats(a, 1,
                                   (int64_t)gpu_attention_scratch(g, hp->n_head, hp->head_dim));
}

static void place_deltanet(gpu_buffers *b, mem_layout *a, const gpu *g, const model_hparams *hp,
                           int n)
{
    const int64_t values = (int64_t)hp->ssm_n_v_head * hp->ssm_head_dim;
    const int64_t channels = 2 * (int64_t)hp->ssm_n_k_head * hp->ssm_head_dim + values;
    b->raw = mem_layout_floats(a, n, channels);
    b->mixed = mem_layout_floats(a, n, channels);
    b->z = mem_layout_floats(a, n, values);
    b->ba = mem_layout_floats(a, n, 2 * (int64_t)hp->ssm_n_v_head);
    b->delta = mem_layout_floats(a, n, values);
    b->delta_chunks = mem_layout_take(a, gpu_delta_scratch(g, hp->ssm_n_k_head, hp->ssm_n_v_head,
                                                           hp->ssm_head_dim, n), 1, 1);
}

static void place_experts(gpu_buffers *b, mem_layout *a, const gpu *g, const model_hparams *hp,
                          int n)
{
    const int k = hp->n_expert_used, n_ff = max_int(hp->n_ff_expert, hp->n_ff_shared);
    b->router = mem_layout_floats(a, n, hp->n_expert);
    b->gates = mem_layout_floats(a, n, k);
    b->sigma = mem_layout_floats(a, n, 1);
    b->chosen = mem_layout_take(a, (uint64_t)n, (uint64_t)k, sizeof *b->chosen);
    b->sums = mem_layout_floats(a, n, hp->n_embd);
    b->experts = mem_layout_take(a, gpu_expert_scratch(g, n, k, hp->n_expert, n_ff, hp->n_embd), 1,
                                 1);
}

static void place_token(gpu_buffers *b, mem_layout *a, const model_hparams *hp, int n)
{
    b->logits = mem_layout_floats(a, LOGIT_ROWS, hp->n_vocab);
    b->ids = mem_layout_take(a, (uint64_t)n, 1, sizeof *b->ids);
    b->at = mem_layout_take(a, 1, 1, sizeof *b->at);
    b->counters = mem_layout_take(a, 1 + GPU_FEW * (uint64_t)hp->n_head, 1, sizeof *b->counters);
    b->best = mem_layout_take(a, GPU_LARGEST_WORDS, 1, sizeof *b->best);
    b->bias = mem_layout_floats(a, 1, hp->n_vocab);
    b->work = mem_layout_floats(a, sampler_blocks(hp->n_vocab), SAMPLER_BLOCK);
    b->steps = mem_layout_take(a, SAMPLER_STEPS, 1, sizeof *b->steps);
    b->top = mem_layout_take(a, 1, 1, sizeof *b->top);
}

static void place_all(gpu_buffers *b, mem_layout *a, const gpu *g, const model *m, int n)
{
    const model_hparams *hp = &m->hp;
    const int values = hp->ssm_n_v_head * hp->ssm_head_dim;
    const int widest = max_int(hp->n_embd, max_int(hp->n_head * hp->head_dim, values));
    b->x = mem_layout_floats(a, n, hp->n_embd);
    b->rows = mem_layout_floats(a, n, widest);
    b->halves = mem_layout_take(a, (uint64_t)n, (uint64_t)widest, 2);
    b->blocks = mem_layout_take(a, GPU_FEW, gpu_blocks_bytes(hp->n_embd), 1);
    for (int i = 0; i < 2; i++) {
        b->rope_cos[i] = mem_layout_floats(a, n, hp->rope_dim / 2);
        b->rope_sin[i] = mem_layout_floats(a, n, hp->rope_dim / 2);
        b->freq[i] = mem_layout_take(a, (uint64_t)hp->rope_dim / 2, 1, sizeof(double));
    }
    const uint64_t mixers = a->used;     /* a layer has one of the two: they share memory */
    place_attention(b, a, g, m, n);
    if (hp->ssm_n_v_head > 0) {
        const uint64_t attention = mem_layout_back(a, mixers);
        place_deltanet(b, a, g, hp, n);
        mem_layout_reach(a, attention);
    }
    place_experts(b, a, g, hp, n);
    const uint64_t gemm = gpu_gemm_scratch(g, n);
    b->gemm = gemm > 0 ? mem_layout_take(a, gemm, 1, 1) : NULL;
    place_token(b, a, hp, n);
}

uint64_t gpu_buffers_bytes(const gpu *g, const model *m, int chunk)
{
    gpu_buffers unused = { 0 };
    mem_layout a = mem_layout_count(256);
    place_all(&unused, &a, g, m, chunk);
    return a.used;
}

int gpu_buffers_init(gpu_buffers *b, gpu *g, const model *m, int chunk, err_ctx *err)
{
    const uint64_t bytes = gpu_buffers_bytes(g, m, chunk);
    char what[64];
    *b = (gpu_buffers){ 0 };
    snprintf(what, sizeof what, "chunks of %d tokens (--chunk)", chunk);
    void *block = gpu_alloc(g, bytes, what, err);
    if (!block) return ERR_NOMEM;
    mem_layout a = mem_layout_over(block, 256);
    place_all(b, &a, g, m, chunk);
    b->arena = block;
    const int rc = gpu_zero(g, block, bytes, err);
    if (rc < 0) gpu_buffers_release(b, g);
    else gpu_gemm_lend(g, b->gemm);
    return rc;
}

void gpu_buffers_release(gpu_buffers *b, gpu *g)
{
    gpu_gemm_reclaim(g, b->gemm);
    gpu_free(g, b->arena);
    *b = (gpu_buffers){ 0 };
}
