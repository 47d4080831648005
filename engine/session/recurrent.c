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
    layer_segments in;
    recurrent_block blocks[SEGMENTS_MOST];       /* each at a cache line */
    size_t conv_floats;
    int n_layer;
    float *layers[];                     /* [n_layer]: the layer's window; NULL: none */
};

uint64_t recurrent_layer_bytes(const model *m, int l)
{
    const layer_memory a = layer_memory_of(m, l);
    if (a.kind != MEMORY_RECURRENT) return 0;
    return size_times(size_plus(a.conv, a.state), sizeof(float));
}

/* Of layers first .. end - 1. */
static uint64_t run_bytes(const model *m, int first, int end)
{
    uint64_t sum = 0;
    for (int l = first; l < end; l++) sum = size_plus(sum, recurrent_layer_bytes(m, l));
    return sum;
}

uint64_t recurrent_bytes(const model *m) { return run_bytes(m, 0, m->hp.n_layer); }

/* The block of layers first .. end - 1. */
static int make_block(recurrent *r, recurrent_block *b, const model *m, int first, int end,
                      err_ctx *err)
{
    const uint64_t bytes = run_bytes(m, first, end);
    if (bytes == 0) return 0;
    const int rc =
        b->where->alloc(&b->data, b->where, bytes, MEM_DENSE, "the recurrent state", err);
    if (rc < 0) return rc;
    b->bytes = bytes;
    uint8_t *p = b->data;
    for (int l = first; l < end; l++) {
        const layer_memory a = layer_memory_of(m, l);
        if (a.kind != MEMORY_RECURRENT) continue;
        r->conv_floats = (size_t)a.conv;
        r->layers[l] = (float *)(void *)p;
        p += recurrent_layer_bytes(m, l);
    }
    return 0;
}

int recurrent_create(recurrent **out, const model *m, const layer_segments *in, err_ctx *err)
{
    const int n_layer = m->hp.n_layer;
    recurrent *r = mem_zalloc(sizeof *r + (size_t)n_layer * sizeof r->layers[0]);
    int rc = 0;

    *out = NULL;
    if (!r) return err_set(err, ERR_NOMEM, "recurrent state: no memory for %d layers", n_layer);
    r->n_layer = n_layer;
    r->in = *in;
    for (int i = 0; i < in->n; i++) r->blocks[i].where = in->of[i].where;
    for (int i = 0; i < in->n && rc == 0; i++)
        rc = make_block(r, &r->blocks[i], m, segment_first(in, i), in->of[i].end, err);
    if (rc == 0) *out = r;
    else recurrent_free(r);
    return rc;
}

void recurrent_free(recurrent *r)
{
    if (!r) return;
    for (int i = 0; i < r->in.n; i++) {
        recurrent_block *b = &r->blocks[i];
        b->where->free(b->where, b->data, b->bytes);
    }
    mem_free(r);
}

float *recurrent_conv(recurrent *r, int layer)
{
    assert(layer >= 0 && layer < r->n_layer && r->layers[layer]);
    return r->layers[layer];
}

float *recurrent_state(recurrent *r, int layer)
{
    return recurrent_conv(r, layer) + r->conv_floats;
}

recurrent_place recurrent_place_of(const recurrent *r, int layer)
{
    const uint8_t *base = r->blocks[segment_of(&r->in, layer)].data;
    const uint64_t conv = (uint64_t)((const uint8_t *)r->layers[layer] - base);
    assert(layer >= 0 && layer < r->n_layer && r->layers[layer]);
    return (recurrent_place){ conv, conv + r->conv_floats * sizeof(float) };
}

void recurrent_clear(recurrent *r)
{
    for (int i = 0; i < r->in.n; i++) {
        recurrent_block *b = &r->blocks[i];
        if (b->bytes > 0) b->where->zero(b->where, b->data, (size_t)b->bytes);
    }
}

int recurrent_n_block(const recurrent *r) { return r->in.n; }
recurrent_block recurrent_block_of(const recurrent *r, int i) { return r->blocks[i]; }
