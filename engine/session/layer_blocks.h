/* layer_blocks.h - memory that some layers have, in one block for each segment: so a copy of it is
 * one copy of each block. There are no gaps between layers. */
#ifndef ENGINE_SESSION_LAYER_BLOCKS_H
#define ENGINE_SESSION_LAYER_BLOCKS_H

#include "engine/models/model.h"
#include "engine/session/layer_segments.h"

typedef struct layer_block {
    mem_space *where;
    void *data;                          /* at a cache line */
    uint64_t bytes;                      /* may be 0 */
} layer_block;

typedef struct layer_blocks {
    layer_segments in;
    layer_block of[SEGMENTS_MOST];       /* of each segment */
    float **layers;                      /* [n_layer], in the segment's space; NULL: none */
} layer_blocks;

/* Bytes of a layer: 0 if it has none; UINT64_MAX: too much. */
typedef uint64_t layer_bytes_fn(const model *m, int layer);

/* in: all layers of the model. After a failure, too, b is released by the caller. */
int layer_blocks_init(layer_blocks *b, const model *m, const layer_segments *in,
                      layer_bytes_fn *bytes, const char *what, err_ctx *err);
void layer_blocks_release(layer_blocks *b);

#endif
