/* synth_part.h - the recipe of a synthetic tensor, which computes any range of its bytes.
 *
 * A recipe borrows everything it points to, and is immutable while in use: any number of threads
 * may fill different ranges at once. */
#ifndef CLI_SYNTH_SYNTH_PART_H
#define CLI_SYNTH_SYNTH_PART_H

#include "cli/synth/synth_blocks.h"

typedef enum fill_kind {
    FILL_BLOCKS,                         /* random blocks */
    FILL_RANGE,                          /* F32, uniform in lo..hi */
    FILL_TABLE,                          /* F32, copied from table */
    FILL_ROUTER                          /* F32, lo..hi except the first n_front columns */
} fill_kind;

typedef struct synth_part {
    uint64_t offset, bytes;              /* in the file */
    uint64_t key, cols;
    fill_kind kind;
    size_t unit;                         /* bytes: a block, or one F32 */
    const synth_blocks *maker;
    uint64_t n_front;                    /* first columns of each row with other contents; whole
                                          * blocks */
    const synth_blocks *front_maker;     /* FILL_BLOCKS: of the front columns */
    uint64_t front_key;                  /* not 0: the front columns are equal in all rows, from
                                          * this random stream */
    const float *table;                  /* FILL_TABLE: all values; FILL_ROUTER: [rows] */
    const float *front;                  /* FILL_ROUTER: [n_front]; weight (row, c) of the front
                                          * is table[row] * front[c] */
    float lo, hi;
} synth_part;

/* Writes bytes from .. from + n - 1 of t. */
void synth_part_fill(const synth_part *t, uint8_t *out, uint64_t from, uint64_t n);

/* Decodes n weights of a quantised matrix from (row, col) on; whole blocks. */
void synth_part_decode(float *out, const synth_part *t, int row, int col, int n);

#endif
