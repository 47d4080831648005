/* workspace.c - lays all buffers of a pass into one block.
 *
 * The same walk counts and places: without a block it only adds up. Buffers begin at multiples of
 * 64 bytes. */
#include "engine/host/workspace.h"

#include "engine/cpu/attention.h"
#include "engine/cpu/deltanet.h"

typedef struct layout {
    uint8_t *block;                      /* NULL while counting */
    uint64_t used;                       /* UINT64_MAX once a sum did not fit */
} layout;

static void *place(layout *a, uint64_t n, uint64_t width, uint64_t bytes)
{
    uint64_t size, end;
    void *p = a->block ? a->block + a->used : NULL;
    if (a->used == UINT64_MAX || !size_mul(&size, n, width) || !size_mul(&size, size, bytes) ||
        !size_add(&end, a->used, size) || !size_add(&end, end, 64)) {
        a->used = UINT64_MAX;
        return NULL;
    }
    a->used = (end - 1) / 64 * 64;
    return p;
}

static float *floats(layout *a, int n, int64_t width)
{
    return place(a, (uint64_t)n, (uint64_t)width, sizeof(float));
}

static void place_acts(acts *x, layout *a, int n, int cols)
{
    void *storage = place(a, acts_bytes(n, cols), 1, 1);
    if (storage) acts_init(x, storage, n, cols);
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

/* ---- the parts ------------------------------------------------------------------------------- */

static void place_attention(workspace *w, layout *a, const model_hparams *hp, int n)
{
    const int64_t q_width = (int64_t)hp->n_head * hp->head_dim;
    const int64_t kv_width = (int64_t)hp->n_head_kv * hp->head_dim;
    w->q = floats(a, n, q_width);
    if (hp->arch == ARCH_QWEN3NEXT) w->q_gate = floats(a, n, 2 * q_width);
    w->k = floats(a, n, kv_width);
    w->v = floats(a, n, kv_width);
    w->heads = floats(a, n, q_width);
}

static void place_deltanet(workspace *w, layout *a, const model_hparams *hp, int n)
{
    const int64_t v = (int64_t)hp->ssm_n_v_head * hp->ssm_head_dim;
    const int64_t channels = 2 * (int64_t)hp->ssm_n_k_head * hp->ssm_head_dim + v;
    w->qkvz = floats(a, n, channels + v);
    w->qkv = floats(a, n, channels);
    w->mixed = floats(a, n, channels);
    w->z = floats(a, n, v);
    w->ba = floats(a, n, 2 * (int64_t)hp->ssm_n_v_head);
    w->beta = floats(a, n, hp->ssm_n_v_head);
    w->g = floats(a, n, hp->ssm_n_v_head);
}

static void place_experts(workspace *w, layout *a, const model_hparams *hp, int n)
{
    const int k = hp->n_expert_used;
    w->router = floats(a, n, hp->n_expert);
    w->ids = place(a, (uint64_t)n, (uint64_t)k, sizeof *w->ids);
    w->gates = floats(a, n, k);
    w->slots = floats(a, n, (int64_t)k * hp->n_embd);
    if (hp->n_ff_shared == 0) return;
    w->shared_gate = floats(a, n, hp->n_ff_shared);
    w->shared_up = floats(a, n, hp->n_ff_shared);
    w->shared_y = floats(a, n, hp->n_embd);
    w->shared_sigma = floats(a, n, 1);
    place_acts(&w->shared_x, a, n, hp->n_ff_shared);
}

static void place_all(workspace *w, layout *a, const model_hparams *hp, int n_thread, int n)
{
    const int heads = hp->n_head * hp->head_dim, values = hp->ssm_n_v_head * hp->ssm_head_dim;
    w->chunk = n;
    w->x = floats(a, n, hp->n_embd);
    w->h = floats(a, n, hp->n_embd);
    w->y = floats(a, n, hp->n_embd);
    place_acts(&w->hx, a, n, larger(hp->n_embd, larger(heads, values)));
    for (int i = 0; i < 2; i++) {
        w->rope_cos[i] = floats(a, n, hp->rope_dim / 2);
        w->rope_sin[i] = floats(a, n, hp->rope_dim / 2);
    }
    const uint64_t mixers = a->used;     /* a layer has one of the two: they share their place */
    place_attention(w, a, hp, n);
    const uint64_t attention = a->used;
    if (hp->ssm_n_v_head > 0 && attention != UINT64_MAX) {
        a->used = mixers;
        place_deltanet(w, a, hp, n);
        if (a->used < attention) a->used = attention;
    }
    place_experts(w, a, hp, n);

    const size_t attend = attend_scratch(hp->head_dim);
    const size_t delta = hp->ssm_head_dim ? delta_scratch(hp->ssm_head_dim, hp->ssm_head_dim) : 0;
    w->thread_floats = size_align(attend > delta ? attend : delta, 16);
    w->thread_scratch = place(a, (uint64_t)n_thread, w->thread_floats, sizeof(float));
}

/* ---- the whole ------------------------------------------------------------------------------- */

uint64_t workspace_bytes(const model *m, int n_thread, int chunk)
{
    workspace w = { 0 };
    layout a = { 0 };
    place_all(&w, &a, &m->hp, n_thread, chunk);
    return a.used;
}

int workspace_create(workspace **out, const model *m, int n_thread, int chunk, err_ctx *err)
{
    const uint64_t bytes = workspace_bytes(m, n_thread, chunk);
    workspace *w = mem_zalloc(sizeof *w);
    int rc;
    *out = NULL;
    if (!w) return err_set(err, ERR_NOMEM, "workspace: %zu bytes", sizeof *w);
    if (bytes <= SIZE_MAX - 64) w->block = mem_alloc((size_t)bytes + 64);
    if (!w->block) {
        rc = err_set(err, ERR_NOMEM, "workspace for chunks of %d tokens: %llu bytes", chunk,
                     (unsigned long long)bytes);
        goto fail;
    }
    layout a = { .block = (uint8_t *)(((uintptr_t)w->block + 63) / 64 * 64) };
    place_all(w, &a, &m->hp, n_thread, chunk);
    rc = worklist_create(&w->work, m->hp.n_expert, chunk * m->hp.n_expert_used, err);
    if (rc < 0) goto fail;
    *out = w;
    return 0;
fail:
    workspace_free(w);
    return rc;
}

void workspace_free(workspace *w)
{
    if (!w) return;
    worklist_free(w->work);
    mem_free(w->block);
    mem_free(w);
}
