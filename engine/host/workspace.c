/* workspace.c - lays out all buffers of a batch in one block, at multiples of 64 bytes. The same
 * function counts bytes and sets addresses, so the two cannot differ. */
#include "engine/host/workspace.h"

#include "engine/cpu/attention.h"
#include "engine/cpu/deltanet.h"

static void place_acts(acts *x, mem_layout *a, int n, int cols)
{
    void *storage = mem_layout_take(a, acts_bytes(n, cols), 1, 1);
    if (storage) acts_init(x, storage, n, cols);
}

/* ---- the parts ------------------------------------------------------------------------------- */

static void place_attention(workspace *w, mem_layout *a, const model *m, int n)
{
    const attn_shape full = hparams_attn(&m->hp, false), windowed = hparams_attn(&m->hp, true);
    const int q_width = max_int(full.n_head * full.head_dim, windowed.n_head * windowed.head_dim);
    const int kv_width = max_int(full.n_head_kv * full.head_dim,
                                 windowed.n_head_kv * windowed.head_dim);
    w->q = mem_layout_floats(a, n, q_width);
    if (m->family->attn_gated) w->q_gate = mem_layout_floats(a, n, 2 * (int64_t)q_width);
    w->k = mem_layout_floats(a, n, kv_width);
    w->v = mem_layout_floats(a, n, kv_width);
    w->heads = mem_layout_floats(a, n, q_width);
}

static void place_deltanet(workspace *w, mem_layout *a, const model_hparams *hp, int n)
{
    const int64_t v = (int64_t)hp->ssm_n_v_head * hp->ssm_head_dim;
    const int64_t channels = (int64_t)hparams_channels(hp);
    w->qkvz = mem_layout_floats(a, n, channels + v);
    w->qkv = mem_layout_floats(a, n, channels);
    w->mixed = mem_layout_floats(a, n, channels);
    w->z = mem_layout_floats(a, n, v);
    w->ba = mem_layout_floats(a, n, 2 * (int64_t)hp->ssm_n_v_head);
    w->delta_gates = mem_layout_floats(a, n, 2 * (int64_t)hp->ssm_n_v_head);
}

static void place_experts(workspace *w, mem_layout *a, const model_hparams *hp, int n)
{
    const int k = hp->n_expert_used;
    w->router = mem_layout_floats(a, n, hp->n_expert);
    w->ids = mem_layout_take(a, (uint64_t)n, (uint64_t)k, sizeof *w->ids);
    w->gates = mem_layout_floats(a, n, k);
    w->slots = mem_layout_floats(a, n, (int64_t)k * hp->n_embd);
    const int n_ff = max_int(hp->n_ff_shared, hp->n_ff_dense);
    if (n_ff == 0) return;
    w->shared_gate = mem_layout_floats(a, n, n_ff);
    w->shared_up = mem_layout_floats(a, n, n_ff);
    w->shared_y = mem_layout_floats(a, n, hp->n_embd);
    w->shared_sigma = mem_layout_floats(a, n, 1);
    place_acts(&w->shared_x, a, n, n_ff);
}

static void place_all(workspace *w, mem_layout *a, const model *m, int n_thread, int n)
{
    const model_hparams *hp = &m->hp;
    const attn_shape full = hparams_attn(hp, false), windowed = hparams_attn(hp, true);
    const int heads = max_int(full.n_head * full.head_dim, windowed.n_head * windowed.head_dim);
    const int values = hp->ssm_n_v_head * hp->ssm_head_dim;
    w->chunk = n;
    w->x = mem_layout_floats(a, n, hp->n_embd);
    w->h = mem_layout_floats(a, n, hp->n_embd);
    w->y = mem_layout_floats(a, n, hp->n_embd);
    place_acts(&w->hx, a, n, max_int(hp->n_embd * (1 + hp->uses_mtp), max_int(heads, values)));
    if (hp->uses_mtp) {
        w->hidden = mem_layout_floats(a, n, hp->n_embd);
        w->joined = mem_layout_floats(a, n, 2 * (int64_t)hp->n_embd);
    }
    for (int i = 0; i < 2; i++) {
        const int half = (i == 0 ? full : windowed).rope_dim / 2;
        w->rope_cos[i] = mem_layout_floats(a, n, half);
        w->rope_sin[i] = mem_layout_floats(a, n, half);
    }
    const uint64_t mixers = a->used;     /* a layer has one of the two: they share memory */
    place_attention(w, a, m, n);
    if (hp->ssm_n_v_head > 0) {
        const uint64_t attention = mem_layout_rewind(a, mixers);
        place_deltanet(w, a, hp, n);
        mem_layout_extend(a, attention);
    }
    place_experts(w, a, hp, n);

    const size_t attend = attend_scratch(max_int(full.head_dim, windowed.head_dim));
    const size_t delta = hp->ssm_head_dim ? delta_scratch(hp->ssm_head_dim, hp->ssm_head_dim) : 0;
    w->thread_floats = size_align(attend > delta ? attend : delta, 16);
    w->thread_scratch = mem_layout_take(a, (uint64_t)n_thread, w->thread_floats, sizeof(float));
}

/* ---- the whole ------------------------------------------------------------------------------- */

uint64_t workspace_bytes(const model *m, int n_thread, int chunk)
{
    workspace w = { 0 };
    mem_layout a = mem_layout_count(64);
    place_all(&w, &a, m, n_thread, chunk);
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
    mem_layout a = mem_layout_over((void *)(((uintptr_t)w->block + 63) / 64 * 64), 64);
    place_all(w, &a, m, n_thread, chunk);
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
