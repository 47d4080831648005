/* layer_blocks.c - allocates the blocks and divides them. */
#include "engine/session/layer_blocks.h"

/* The block of layers first .. end - 1. */
static int make_block(layer_blocks *b, layer_block *to, const model *m, int first, int end,
                      layer_bytes_fn *bytes, const char *what, err_ctx *err)
{
    uint64_t sum = 0;
    for (int l = first; l < end; l++) sum = size_plus(sum, bytes(m, l));
    if (sum == 0) return 0;
    const int rc = to->where->alloc(&to->data, to->where, sum, MEM_DENSE, what, err);
    if (rc < 0) return rc;
    to->bytes = sum;
    uint8_t *p = to->data;
    for (int l = first; l < end; l++) {
        const uint64_t own = bytes(m, l);
        if (own > 0) b->layers[l] = (float *)(void *)p;
        p += own;
    }
    return 0;
}

int layer_blocks_init(layer_blocks *b, const model *m, const layer_segments *in,
                      layer_bytes_fn *bytes, const char *what, err_ctx *err)
{
    int rc = 0;
    *b = (layer_blocks){ .in = *in,
                         .layers = mem_zalloc((size_t)hparams_layers(&m->hp) * sizeof *b->layers) };
    if (!b->layers) rc = err_set(err, ERR_NOMEM, "%s: %d layers", what, hparams_layers(&m->hp));
    for (int i = 0; i < in->n; i++) b->of[i].where = in->of[i].where;
    for (int i = 0; i < in->n && rc == 0; i++)
        rc = make_block(b, &b->of[i], m, segment_first(in, i), in->of[i].end, bytes, what, err);
    return rc;
}

void layer_blocks_release(layer_blocks *b)
{
    for (int i = 0; i < b->in.n; i++) {
        const layer_block *of = &b->of[i];
        of->where->free(of->where, of->data, of->bytes);
    }
    mem_free(b->layers);
}
