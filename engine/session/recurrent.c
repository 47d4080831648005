/* recurrent.c - the memory of the DeltaNet layers, in one block.
 *
 *   layer 0: conv [ssm_conv - 1, channels], state [n_v_head, dim, dim] | layer 1: ... | ...
 *
 * without gaps, so the block has the same bytes in every session of a model and may go into a file.
 * What stands in it is for engine/cpu/deltanet.h. */
#include "engine/session/recurrent.h"

#include <assert.h>

struct recurrent {
    mem_space *where;                        /* borrowed */
    void *block;                         /* there, at a cache line */
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

int recurrent_create(recurrent **out, const model *m, mem_space *where, err_ctx *err)
{
    const uint64_t bytes = recurrent_bytes(m);
    const int n_layer = m->hp.n_layer;
    recurrent *r = mem_zalloc(sizeof *r + (size_t)n_layer * sizeof r->slot[0]);
    int n = 0, rc;

    *out = NULL;
    if (!r) return err_set(err, ERR_NOMEM, "recurrent state: no memory for %d layers", n_layer);
    r->where = where;
    if (bytes > 0) {
        uint64_t conv = 0, state = 0;
        if ((rc = where->alloc(&r->block, where, bytes, MEM_DENSE, "the recurrent state",
                               err)) < 0) {
            recurrent_free(r);
            return rc;
        }
        layer_floats(&conv, &state, &m->hp);
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
    r->where->free(r->where, r->block, r->bytes);
    mem_free(r);
}

float *recurrent_conv(recurrent *r, int layer)
{
    assert(layer >= 0 && layer < r->n_layer && r->slot[layer] >= 0);
    return (float *)r->block + (size_t)r->slot[layer] * r->layer_floats;
}

float *recurrent_state(recurrent *r, int layer)
{
    return recurrent_conv(r, layer) + r->conv_floats;
}

void recurrent_clear(recurrent *r)
{
    r->where->zero(r->where, r->block, (size_t)r->bytes);
}

void *recurrent_block(recurrent *r)
{
    return r->block;
}
