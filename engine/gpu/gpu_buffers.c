/* gpu_buffers.c - lays out the buffers of a batch in one block of VRAM. The same function counts
 * bytes and sets addresses, so the two cannot differ. */
#include "engine/gpu/gpu_buffers.h"

#include <stdio.h>

#include "cuda/gpu_experts.h"
#include "engine/session/sampler.h"

/* Widths for full and for windowed layers: the larger ones. */
typedef struct widths {
    int n_head, heads, kv, rope_dim;     /* heads, kv: of a token */
    size_t partial;
} widths;

static widths widths_of(const gpu *g, const model_hparams *hp, int pass)
{
    widths w = { 0 };
    for (int i = 0; i < 2; i++) {
        const attn_shape s = hparams_attn(hp, i == 1);
        const size_t partial = gpu_attention_scratch(g, s.n_head, s.head_dim, pass);
        w.n_head = max_int(w.n_head, s.n_head);
        w.heads = max_int(w.heads, s.n_head * s.head_dim);
        w.kv = max_int(w.kv, s.n_head_kv * s.head_dim);
        w.rope_dim = max_int(w.rope_dim, s.rope_dim);
        if (partial > w.partial) w.partial = partial;
    }
    return w;
}

/* Whether a layer's parts are normed before they are added. */
static bool is_normed(const model *m)
{
    return m->layers[m->hp.n_layer - 1].ffn_out_norm.t != NULL;
}

/* Whether products of many tokens with F16 or BF16 weights also read the rounding errors of 16-bit
 * activations. Quantised experts lose more than these, so such models do without. */
static bool keeps_lows(const model *m)
{
    const expert_bank *b = model_first_bank(m);
    for (int s = 0; s < SLAB_COUNT; s++)
        if (b->weight[s] && quant_traits_of(b->weight[s]->type)->block_elems > 1) return false;
    return true;
}

static void place_attention(gpu_buffers *b, mem_layout *a, const widths *w, const model *m, int n)
{
    const int64_t heads = w->heads, kv = w->kv;
    b->q = mem_layout_floats(a, n, (m->family->attn_gated ? 2 : 1) * heads);
    b->k = mem_layout_floats(a, n, kv);
    b->v = mem_layout_floats(a, n, kv);
    b->heads = mem_layout_floats(a, n, heads);
    b->partial = mem_layout_floats(a, 1, (int64_t)w->partial);
}

static void place_deltanet(gpu_buffers *b, mem_layout *a, const gpu *g, const model_hparams *hp,
                           int n)
{
    const int64_t values = (int64_t)hp->ssm_n_v_head * hp->ssm_head_dim;
    const int64_t channels = (int64_t)hparams_channels(hp);
    b->raw = mem_layout_floats(a, n, channels);
    b->mixed = mem_layout_floats(a, n, channels);
    b->z = mem_layout_floats(a, n, values);
    b->ba = mem_layout_floats(a, n, 2 * (int64_t)hp->ssm_n_v_head);
    b->delta = mem_layout_floats(a, n, values);
    b->delta_chunks = mem_layout_take(a, gpu_delta_scratch(g, hp->ssm_n_k_head, hp->ssm_n_v_head,
                                                           hp->ssm_head_dim, n), 1, 1);
}

static void place_parts(gpu_buffers *b, mem_layout *a, const model_hparams *hp, batch_sizes most)
{
    const int pass = most.pass;
    for (int i = 0; i < 2; i++) b->parts[i] = mem_layout_floats(a, most.chunk, hp->n_embd);
    b->parallel_rows = mem_layout_floats(a, pass, hp->n_embd);
    b->parallel_blocks = mem_layout_take(a, (uint64_t)pass, gpu_blocks_bytes(hp->n_embd), 1);
    b->parallel_scratch =
        mem_layout_take(a, gpu_network_scratch(pass, hp->n_ff_shared, hp->n_embd), 1, 1);
}

/* A dense network whose vector is normed is an operation of its own, parallel to the experts. */
static void place_experts(gpu_buffers *b, mem_layout *a, const gpu *g, const model *m,
                          batch_sizes most)
{
    const int n = most.chunk;
    const model_hparams *hp = &m->hp;
    const bool normed = is_normed(m);
    const int k = hp->n_expert_used, n_ff_dense = max_int(hp->n_ff_dense,
                                                          normed ? hp->n_ff_shared : 0);
    const int n_ff = max_int(hp->n_ff_expert, normed ? 0 : hp->n_ff_shared);
    b->router = mem_layout_floats(a, n, hp->n_expert);
    b->keys = mem_layout_floats(a, most.pass, hp->n_expert);
    b->gates = mem_layout_floats(a, n, k);
    b->sigma = mem_layout_floats(a, n, 1);
    b->chosen = mem_layout_take(a, (uint64_t)n, (uint64_t)k, sizeof *b->chosen);
    b->sums = mem_layout_floats(a, n, hp->n_embd);
    const size_t experts = gpu_expert_scratch(g, n, k, hp->n_expert, n_ff, hp->n_embd);
    const size_t dense = n_ff_dense > 0 ? gpu_network_scratch(n, n_ff_dense, hp->n_embd) : 0;
    b->experts = mem_layout_take(a, experts > dense ? experts : dense, 1, 1);
    if (normed) place_parts(b, a, hp, most);
}

static void place_token(gpu_buffers *b, mem_layout *a, const widths *w, const model_hparams *hp,
                        batch_sizes most)
{
    const uint64_t pass = (uint64_t)most.pass;
    b->n_logits = most.pass;
    b->logits = mem_layout_floats(a, most.pass, hp->n_vocab);
    b->ids = mem_layout_take(a, (uint64_t)most.chunk, 1, sizeof *b->ids);
    b->cursor = mem_layout_take(a, pass, 1, sizeof *b->cursor);
    b->counters = mem_layout_take(a, 1 + pass * (uint64_t)w->n_head, 1, sizeof *b->counters);
    b->best = mem_layout_take(a, GPU_LARGEST_WORDS, 1, sizeof *b->best);
    b->bias = mem_layout_floats(a, most.pass, hp->n_vocab);
    b->work = mem_layout_floats(a, most.pass, (int64_t)sampler_blocks(hp->n_vocab) * SAMPLER_BLOCK);
    b->steps = mem_layout_take(a, SAMPLER_STEPS, 1, sizeof *b->steps);
    b->top = mem_layout_take(a, pass, 1, sizeof *b->top);
}

static void place_all(gpu_buffers *b, mem_layout *a, const gpu *g, const model *m, batch_sizes most)
{
    const int n = most.chunk;
    const model_hparams *hp = &m->hp;
    const int values = hp->ssm_n_v_head * hp->ssm_head_dim;
    const widths w = widths_of(g, hp, most.pass);
    const int widest = max_int(hp->n_embd, max_int(w.heads, values)), half = w.rope_dim / 2;
    b->x = mem_layout_floats(a, n, hp->n_embd);
    if (hp->uses_mtp) b->hidden = mem_layout_floats(a, n, hp->n_embd);
    b->rows = mem_layout_floats(a, n, widest);
    b->halves = mem_layout_take(a, (uint64_t)n, (uint64_t)widest, 2);
    b->lows = keeps_lows(m) ? mem_layout_take(a, (uint64_t)n, (uint64_t)widest, 2) : NULL;
    b->blocks = mem_layout_take(a, (uint64_t)most.pass, gpu_blocks_bytes(hp->n_embd), 1);
    b->codes = mem_layout_take(a, GPU_FEW, gpu_blocks_bytes(widest), 1);
    for (int i = 0; i < 2; i++) {
        b->rope_cos[i] = mem_layout_floats(a, n, half);
        b->rope_sin[i] = mem_layout_floats(a, n, half);
        b->freq[i] = mem_layout_take(a, (uint64_t)half, 1, sizeof(double));
    }
    const uint64_t mixers = a->used;     /* a layer has one of the two: they share memory */
    place_attention(b, a, &w, m, n);
    if (hp->ssm_n_v_head > 0) {
        const uint64_t attention = mem_layout_rewind(a, mixers);
        place_deltanet(b, a, g, hp, n);
        mem_layout_extend(a, attention);
    }
    place_experts(b, a, g, m, most);
    const uint64_t gemm = gpu_gemm_scratch(g, n);
    b->gemm = gemm > 0 ? mem_layout_take(a, gemm, 1, 1) : NULL;
    place_token(b, a, &w, hp, most);
}

uint64_t gpu_buffers_bytes(const gpu *g, const model *m, batch_sizes most)
{
    gpu_buffers unused = { 0 };
    mem_layout a = mem_layout_count(256);
    if (most.chunk < most.pass) most.chunk = most.pass;
    place_all(&unused, &a, g, m, most);
    return a.used;
}

/* A shared expert without a gate has weight 1. */
static int write_ones(gpu_buffers *b, gpu *g, int n, err_ctx *err)
{
    const size_t bytes = (size_t)n * sizeof(float);
    float *ones = mem_alloc(bytes);
    if (!ones) return err_set(err, ERR_NOMEM, "%zu bytes", bytes);
    for (int t = 0; t < n; t++) ones[t] = 1.0f;
    const int rc = gpu_write(g, b->sigma, ones, bytes, err);
    mem_free(ones);
    return rc;
}

static bool is_gated(const model *m)
{
    return m->layers[m->hp.n_layer - 1].shared_gate_inp.t != NULL;
}

int gpu_buffers_init(gpu_buffers *b, gpu *g, const model *m, batch_sizes most, err_ctx *err)
{
    const uint64_t bytes = gpu_buffers_bytes(g, m, most);
    char purpose[64];
    *b = (gpu_buffers){ 0 };
    if (most.chunk < most.pass) most.chunk = most.pass;
    snprintf(purpose, sizeof purpose, "chunks of %d tokens (--chunk)", most.chunk);
    void *block = gpu_alloc(g, bytes, purpose, err);
    if (!block) return ERR_NOMEM;
    mem_layout a = mem_layout_over(block, 256);
    place_all(b, &a, g, m, most);
    b->arena = block;
    int rc = gpu_zero(g, block, bytes, err);
    if (rc == 0 && m->hp.n_ff_shared > 0 && !is_gated(m)) rc = write_ones(b, g, most.chunk, err);
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
