/* synth_part.h - one tensor of a synthetic model: the recipe by which any bytes of it are made.
 *
 * A recipe borrows everything it points to. Immutable while it is used: any number of threads may
 * fill different bytes at once. */
#ifndef CLI_SYNTH_SYNTH_PART_H
#define CLI_SYNTH_SYNTH_PART_H

#include "cli/synth/synth_blocks.h"

typedef enum fill_kind {
    FILL_BLOCKS,                         /* random blocks */
    FILL_RANGE,                          /* F32, uniform in lo..hi */
    FILL_TABLE,                          /* F32, given */
    FILL_ROUTER                          /* F32, lo..hi but for the first n_front columns */
} fill_kind;

typedef struct synth_part {
    uint64_t at, bytes;                  /* in the file */
    uint64_t key, cols;
    fill_kind kind;
    size_t unit;                         /* bytes made at once: a block, or one F32 */
    const synth_blocks *maker;
    uint64_t n_front;                    /* columns that begin each row and are made in another way;
                                          * of blocks: whole ones */
    const synth_blocks *front_maker;     /* FILL_BLOCKS: of these columns */
    uint64_t front_key;                  /* not 0: they are a stream of their own, and the same in
                                          * every row */
    const float *table;                  /* FILL_TABLE: all of it; FILL_ROUTER: [rows] */
    const float *front;                  /* FILL_ROUTER: [n_front]; weights there are table[row] *
                                          * front[c] */
    float lo, hi;
} synth_part;

/* n bytes of t from byte from on. */
void synth_part_fill(const synth_part *t, uint8_t *out, uint64_t from, uint64_t n);

/* What n weights of a matrix of blocks, from column col of a row on, decode to: whole blocks. */
void synth_part_decode(float *out, const synth_part *t, int row, int col, int n);

#endif
