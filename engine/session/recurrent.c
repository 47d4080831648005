/* recurrent.c - the memory of the DeltaNet layers, in one block for each segment.
 *
 *   layer 0: conv [ssm_conv - 1, channels], state [n_v_head, dim, dim] | layer 1: ... | ...
 *
 * There are no gaps, so the blocks together have the same bytes in every session of a model and
 * may be written to a file. engine/cpu/deltanet.h describes window and state. */
#include "engine/session/recurrent.h"

#include <assert.h>

#include "engine/session/layer_memory.h"

struct recurrent {
    layer_blocks memory;                 /* a layer's begins with the window */
    size_t conv_floats;
    int n_layer;
};

uint64_t recurrent_layer_bytes(const model *m, int l)
{
    const layer_memory a = layer_memory_of(m, l);
    if (a.kind != MEMORY_RECURRENT) return 0;
    return size_times(size_plus(a.conv, a.state), sizeof(float));
}

uint64_t recurrent_bytes(const model *m)
{
    uint64_t sum = 0;
    for (int l = 0; l < m->hp.n_layer; l++) sum = size_plus(sum, recurrent_layer_bytes(m, l));
    return sum;
}

int recurrent_create(recurrent **out, const model *m, const layer_segments *in, err_ctx *err)
{
    recurrent *r = mem_zalloc(sizeof *r);
    *out = NULL;
    if (!r) return err_set(err, ERR_NOMEM, "recurrent state: no memory for %zu bytes", sizeof *r);
    r->n_layer = m->hp.n_layer;
    r->conv_floats = (size_t)hparams_channels(&m->hp) * (size_t)max_int(m->hp.ssm_conv - 1, 0);
    const int rc = layer_blocks_init(&r->memory, m, in, recurrent_layer_bytes,
                                     "the recurrent state", err);
    if (rc == 0) *out = r;
    else recurrent_free(r);
    return rc;
}

void recurrent_free(recurrent *r)
{
    if (!r) return;
    layer_blocks_release(&r->memory);
    mem_free(r);
}

float *recurrent_conv(recurrent *r, int layer)
{
    assert(layer >= 0 && layer < r->n_layer && r->memory.layers[layer]);
    return r->memory.layers[layer];
}

float *recurrent_state(recurrent *r, int layer)
{
    return recurrent_conv(r, layer) + r->conv_floats;
}

recurrent_place recurrent_place_of(const recurrent *r, int layer)
{
    const uint8_t *base = r->memory.of[segment_of(&r->memory.in, layer)].data;
    const uint64_t conv = (uint64_t)((const uint8_t *)r->memory.layers[layer] - base);
    assert(layer >= 0 && layer < r->n_layer && r->memory.layers[layer]);
    return (recurrent_place){ conv, conv + r->conv_floats * sizeof(float) };
}

void recurrent_clear(recurrent *r)
{
    for (int i = 0; i < r->memory.in.n; i++) {
        const layer_block *b = &r->memory.of[i];
        if (b->bytes > 0) b->where->zero(b->where, b->data, (size_t)b->bytes);
    }
}

const layer_blocks *recurrent_memory(const recurrent *r) { return &r->memory; }
