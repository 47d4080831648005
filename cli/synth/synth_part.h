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
    FILL_ROUTER                          /* F32, lo..hi but for some columns, see below */
} fill_kind;

/* A rectangle of a matrix of blocks that is made in another way; columns are whole blocks. */
typedef struct synth_patch {
    uint64_t row, n_row, col, n_col;
    const synth_blocks *maker;
    const synth_blocks *const *makers;   /* one for each row, of the same type; NULL: maker */
    uint64_t key, period;                /* the rows come from a stream of their own and repeat
                                          * after so many; period 0: as if not in a patch */
} synth_patch;

enum { SYNTH_PATCHES_MAX = 6 };

typedef struct synth_part {
    uint64_t at, bytes;                  /* in the file */
    uint64_t key, cols;
    fill_kind kind;
    size_t unit;                         /* bytes made at once: a block, or one F32 */
    const synth_blocks *maker;
    synth_patch patch[SYNTH_PATCHES_MAX];        /* of those that cover a block, the first counts */
    int n_patch;
    const float *table;                  /* FILL_TABLE: all of it; FILL_ROUTER: [n_sum, rows] */
    const float *front;                  /* FILL_ROUTER: [n_sum, n_front]; columns from front_at on
                                          * are sums over i of table[i, row] * front[i, c] */
    uint64_t n_sum, n_front, front_at, rows;
    uint64_t n_zero;                     /* FILL_ROUTER: the first columns are 0 */
    float lo, hi;
} synth_part;

/* n bytes of t from byte from on. */
void synth_part_fill(const synth_part *t, uint8_t *out, uint64_t from, uint64_t n);

/* What n weights of a matrix of blocks, from column col of a row on, decode to: whole blocks. */
void synth_part_decode(float *out, const synth_part *t, int row, int col, int n);

#endif
