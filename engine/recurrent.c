/* recurrent.c - the memory of the DeltaNet layers, in one block.
 *
 *   layer 0: conv [ssm_conv - 1, channels], state [n_v_head, dim, dim] | layer 1: ... | ...
 *
 * without gaps, so the block has the same bytes in every session of a model and may go into a file.
 * What stands in it is for engine/cpu/deltanet.h. */
#include "engine/recurrent.h"

#include <assert.h>
#include <string.h>

struct recurrent {
    void *mem;                           /* the block and what it takes to align it */
    float *block;                        /* at a cache line */
    uint64_t bytes;
    size_t conv_floats, layer_floats;
    int n_layer;
    int slot[];                          /* [n_layer]: which part of the block; -1: none */
};

/* Floats of one layer's window and state. False: too much. */
static bool layer_floats(uint64_t *conv, uint64_t *state, const model_hparams *hp)
{
    const uint64_t dim = (uint64_t)hp->ssm_head_dim;
    const uint64_t heads = 2 * (uint64_t)hp->ssm_n_k_head + (uint64_t)hp->ssm_n_v_head;
    return size_mul(conv, heads * dim, (uint64_t)(hp->ssm_conv - 1)) &&
           size_mul(state, dim * dim, (uint64_t)hp->ssm_n_v_head);
}

uint64_t recurrent_bytes(const model *m)
{
    uint64_t conv, state, one, all, n = 0;
    for (int l = 0; l < m->hp.n_layer; l++) n += m->layers[l].mixer == MIX_DELTANET;
    if (n == 0) return 0;
    if (!layer_floats(&conv, &state, &m->hp) || !size_add(&one, conv, state) ||
        !size_mul(&all, one, n) || !size_mul(&all, all, sizeof(float)))
        return UINT64_MAX;
    return all;
}

int recurrent_create(recurrent **out, const model *m, err_ctx *err)
{
    const uint64_t bytes = recurrent_bytes(m);
    const int n_layer = m->hp.n_layer;
    recurrent *r = mem_zalloc(sizeof *r + (size_t)n_layer * sizeof r->slot[0]);
    int n = 0;

    *out = NULL;
    if (r && bytes > 0 && bytes <= PTRDIFF_MAX - 64) r->mem = mem_zalloc((size_t)bytes + 63);
    if (!r || (bytes > 0 && !r->mem)) {
        recurrent_free(r);
        return err_set(err, ERR_NOMEM, "recurrent state: no memory for %llu bytes (%.1f GB)",
                       (unsigned long long)bytes, (double)bytes * 1e-9);
    }
    if (bytes > 0) {
        uint64_t conv = 0, state = 0;
        layer_floats(&conv, &state, &m->hp);
        r->block = (float *)(uintptr_t)size_align((uintptr_t)r->mem, 64);
        r->conv_floats = (size_t)conv;
        r->layer_floats = (size_t)(conv + state);
    }
    r->bytes = bytes;
    r->n_layer = n_layer;
    for (int l = 0; l < n_layer; l++)
        r->slot[l] = m->layers[l].mixer == MIX_DELTANET ? n++ : -1;
    *out = r;
    return 0;
}

void recurrent_free(recurrent *r)
{
    if (!r) return;
    mem_free(r->mem);
    mem_free(r);
}

float *recurrent_conv(recurrent *r, int layer)
{
    assert(layer >= 0 && layer < r->n_layer && r->slot[layer] >= 0);
    return r->block + (size_t)r->slot[layer] * r->layer_floats;
}

float *recurrent_state(recurrent *r, int layer)
{
    return recurrent_conv(r, layer) + r->conv_floats;
}

void recurrent_clear(recurrent *r)
{
    if (r->bytes) memset(r->block, 0, (size_t)r->bytes);
}

void *recurrent_block(recurrent *r)
{
    return r->block;
}
