/* kept_inputs.c - one block for each segment of layers: raw, mixed and gates of each layer. */
#include "engine/session/kept_inputs.h"

#include <assert.h>

struct kept_inputs {
    layer_segments in;
    void *blocks[SEGMENTS_MOST];
    uint64_t bytes[SEGMENTS_MOST];
    size_t channels, gates;              /* of a token */
    float *layers[];                     /* [n_layer] raw; NULL: no inputs are kept */
};

/* Channels of q, k and v of a token. */
static uint64_t channels_of(const model_hparams *hp)
{
    return (2 * (uint64_t)hp->ssm_n_k_head + (uint64_t)hp->ssm_n_v_head) *
           (uint64_t)hp->ssm_head_dim;
}

uint64_t kept_inputs_layer_bytes(const model *m, int l)
{
    if (m->layers[l].mixer != MIX_DELTANET) return 0;
    const uint64_t token = 2 * (channels_of(&m->hp) + (uint64_t)m->hp.ssm_n_v_head);
    return size_times(token, KEPT_TOKENS * sizeof(float));
}

static int make_block(kept_inputs *k, int i, const model *m, err_ctx *err)
{
    mem_space *where = k->in.of[i].where;
    const int first = segment_first(&k->in, i), end = k->in.of[i].end;
    uint64_t bytes = 0;
    for (int l = first; l < end; l++) bytes += kept_inputs_layer_bytes(m, l);
    if (bytes == 0) return 0;
    const int rc = where->alloc(&k->blocks[i], where, bytes, MEM_DENSE, "inputs to go back", err);
    if (rc < 0) return rc;
    k->bytes[i] = bytes;
    uint8_t *p = k->blocks[i];
    for (int l = first; l < end; l++) {
        const uint64_t own = kept_inputs_layer_bytes(m, l);
        if (own > 0) k->layers[l] = (float *)(void *)p;
        p += own;
    }
    return 0;
}

int kept_inputs_create(kept_inputs **out, const model *m, const layer_segments *in, err_ctx *err)
{
    kept_inputs *k = mem_zalloc(sizeof *k + (size_t)m->hp.n_layer * sizeof k->layers[0]);
    int rc = 0;
    *out = NULL;
    if (!k) return err_set(err, ERR_NOMEM, "inputs of %d layers", m->hp.n_layer);
    k->in = *in;
    k->channels = (size_t)channels_of(&m->hp);
    k->gates = 2 * (size_t)m->hp.ssm_n_v_head;
    for (int i = 0; i < in->n && rc == 0; i++) rc = make_block(k, i, m, err);
    if (rc == 0) *out = k;
    else kept_inputs_free(k);
    return rc;
}

void kept_inputs_free(kept_inputs *k)
{
    if (!k) return;
    for (int i = 0; i < k->in.n; i++) {
        mem_space *where = k->in.of[i].where;
        where->free(where, k->blocks[i], k->bytes[i]);
    }
    mem_free(k);
}

layer_inputs kept_inputs_of(const kept_inputs *k, int layer, int first)
{
    float *raw = k->layers[layer], *mixed = raw + KEPT_TOKENS * k->channels;
    float *gates = mixed + KEPT_TOKENS * k->channels;
    const size_t t = (size_t)first;
    assert(raw && first < KEPT_TOKENS);
    return (layer_inputs){ raw + t * k->channels, mixed + t * k->channels, gates + t * k->gates };
}
