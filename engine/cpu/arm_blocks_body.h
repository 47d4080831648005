/* arm_blocks_body.h - NEON kernels for 32 weights and a scale: Q8_0, the types of 4 and 5 bits,
 * MXFP4 and NVFP4; and IQ4_XS. Two files include it, for two kinds of cores, after the definition
 * of
 *
 *     SAVE_VECTOR_PIPES         1 if vector pipes limit the kernels; see arm_blocks_types.h
 *
 * Four blocks are a group, whose values are one vector. A block is loaded, unpacked and multiplied
 * by two sdot; a group is summed by three addp, converted, scaled and added to its lanes. That is a
 * chain of ten dependent instructions. An out-of-order core overlaps it with other blocks, but its
 * short vector queues fill with waiting instructions. Written block by block, MXFP4 runs at 13.8
 * GB/s on a Neoverse V1 with every compiler.
 *
 * With one token the kernel should reach the speed of memory, so it is a software pipeline: while a
 * block is multiplied, the block two ahead is unpacked, the one four ahead is loaded, the previous
 * group is summed and the one before that is scaled. That gives 17 GB/s. The pipeline continues
 * over the ends of rows. HERE() stops compilers from changing the order.
 *
 * With several tokens the weights of a group are unpacked once and multiplied by all of them; the
 * second half of the pipeline is the same. */
#ifndef ENGINE_CPU_ARM_BLOCKS_BODY_H
#define ENGINE_CPU_ARM_BLOCKS_BODY_H

#include <string.h>

#include "engine/cpu/arm_few.h"
#include "engine/cpu/isa_sets.h"

/* ---- one token: the pipeline --------------------------------------------------------------- */

/* The state between two groups. */
typedef struct pipeline {
    weights unpacked[2];                 /* blocks 0 and 1 of the next group */
    packed loaded[2];                    /* blocks 2 and 3 */
    codes q;                             /* activations of block 0 */
    finish f;
    prefetcher ahead;
} pipeline;

/* A group of n blocks, its activations, and the addresses after both. Counts are constants. */
typedef struct passage {
    const uint8_t *group, *next;
    act_cursor pos;
    const int8_t *q_next;
    int n, n_next;
    int half;                            /* half of a super-block; the next group is the other */
} passage;

/* Unpacks block k + 2 and loads block k + 4, counted over this group and the next. Returns block k,
 * unpacked. */
ARM_INLINE weights prepare(quant_type type, pipeline *pl, const constants *c, const passage *g,
                           int k)
{
    const weights w = pl->unpacked[k % 2];
    const packed b = pl->loaded[k % 2];
    if (k < g->n_next) pl->loaded[k % 2] = packed_load(type, g->next, g->half ^ 1, k);
    if (k + 2 < g->n || (k + 2 >= GROUP && k + 2 - GROUP < g->n_next))
        pl->unpacked[k % 2] = unpack(type, b, c);
    return w;
}

ARM_INLINE int32x4_t multiply_if(quant_type type, pipeline *pl, weights w, const passage *g, int k)
{
    if (k >= g->n) return sum_start(type);
    return multiply(type, &pl->q, w, false, k + 1 < g->n ? g->pos.q + 32 * (k + 1) : g->q_next);
}

/* Multiplies a group, and adds the group two steps earlier to its lanes. */
ARM_INLINE void step(quant_type type, pipeline *pl, const constants *c, passage g,
                     float32x4_t *lane)
{
    int32x4_t sum[GROUP];
    scale_bits bits = { 0, 0 };
    weights w;

    w = prepare(type, pl, c, &g, 0);
    finish_1(&pl->f);
    scale_bits_add(type, &bits, g.group, g.half, 0);
    sum[0] = multiply_if(type, pl, w, &g, 0);

    w = prepare(type, pl, c, &g, 1);
    finish_2(type, &pl->f);
    if (g.n > 1) scale_bits_add(type, &bits, g.group, g.half, 1);
    sum[1] = multiply_if(type, pl, w, &g, 1);

    w = prepare(type, pl, c, &g, 2);
    finish_3(type, &pl->f, lane);
    if (g.n > 2) scale_bits_add(type, &bits, g.group, g.half, 2);
    sum[2] = multiply_if(type, pl, w, &g, 2);

    w = prepare(type, pl, c, &g, 3);
    finish_4(type, &pl->f);
    if (g.n > 3) scale_bits_add(type, &bits, g.group, g.half, 3);
    sum[3] = multiply_if(type, pl, w, &g, 3);

    finish_enter(&pl->f, sum, scales_from(type, bits), g.pos);
}

ARM_INLINE passage full_group(const uint8_t *group, const uint8_t *next, act_cursor pos, int half)
{
    return (passage){ group, next, pos, act_cursor_after(pos, 1).q, GROUP, GROUP, half };
}

/* Two groups in the middle of a row. */
ARM_INLINE void step_twice(quant_type type, pipeline *pl, const constants *c, const uint8_t *group,
                           act_cursor pos, lanes *l)
{
    const uint8_t *second = group + group_bytes(type), *after = second + group_bytes(type);
    prefetch_go_on(&pl->ahead, group, 2 * group_bytes(type));
    step(type, pl, c, full_group(group, second, pos, 0), &l->low);
    step(type, pl, c, full_group(second, after, act_cursor_after(pos, 1), 1), &l->high);
}

/* The last two groups of a row, with n blocks in the last one. The row at `next` starts with q. */
ARM_INLINE void step_last(quant_type type, pipeline *pl, const constants *c, const uint8_t *group,
                          const uint8_t *next, act_cursor pos, const int8_t *q, int n, lanes *l)
{
    const uint8_t *second = group + group_bytes(type);
    passage a = full_group(group, second, pos, 0);
    passage b = full_group(second, next, act_cursor_after(pos, 1), 1);
    a.n_next = b.n = n;
    b.q_next = q;
    prefetch_go_on(&pl->ahead, group, 2 * group_bytes(type));
    step(type, pl, c, a, &l->low);
    step(type, pl, c, b, &l->high);
}

/* Rows of four groups or more, with 2 or 4 blocks in the last. The first two groups of a row
 * complete the last two of the previous row. The halves of the lanes may be exchanged, because the
 * fold adds them. */
ARM_INLINE void dot_one(quant_type type, float *sums, const uint8_t *rows, size_t row_bytes,
                        int n_row, const act_row *x, int n_block)
{
    const size_t one = group_bytes(type), two = 2 * one;
    const int n_group = (n_block + GROUP - 1) / GROUP;
    const constants c = constants_for(type);
    pipeline pl = { .q = codes_load(false, x->q), .ahead = prefetch_from(rows) };
    lanes l = lanes_zero();

    for (int k = 0; k < 2; k++) {
        pl.unpacked[k] = unpack(type, packed_load(type, rows, 0, k), &c);
        pl.loaded[k] = packed_load(type, rows, 0, k + 2);
    }
    for (int r = 0; r < n_row; r++) {
        const uint8_t *row = rows + (size_t)r * row_bytes, *p = row + two;
        const uint8_t *next = r + 1 < n_row ? row + row_bytes : row;
        act_cursor pos = { x->q, x->dx, x->s };

        prefetch_row(&pl.ahead, row);
        step_twice(type, &pl, &c, row, pos, &l);
        pos = act_cursor_after(pos, 2);
        if (r > 0) sums[r - 1] = lanes_fold(l);
        l = lanes_zero();
        for (int m = n_group - 4; m >= 2; m -= 2, p += two) {
            step_twice(type, &pl, &c, p, pos, &l);
            pos = act_cursor_after(pos, 2);
        }
        if (n_group % 2) {
            step(type, &pl, &c, full_group(p, p + one, pos, 0), &l.low);
            pos = act_cursor_after(pos, 1);
            p += one;
            l = (lanes){ l.high, l.low };
        }
        if (n_block % GROUP) step_last(type, &pl, &c, p, next, pos, x->q, 2, &l);
        else step_last(type, &pl, &c, p, next, pos, x->q, GROUP, &l);
    }
    finish_all(type, &pl.f, &l.low, &l.high);
    sums[n_row - 1] = lanes_fold(l);
}

/* ---- a few tokens -------------------------------------------------------------------------- */

/* Unpacks a group with at least n blocks. Bytes after block n get the scale 0. */
ARM_INLINE group_weights group_unpack(quant_type type, const uint8_t *p, const constants *c, int n,
                                      int half)
{
    scale_bits bits = { 0, 0 };
    group_weights g;
    g.block[0] = unpack(type, packed_load(type, p, half, 0), c);
    g.block[1] = unpack(type, packed_load(type, p, half, 1), c);
    g.block[2] = unpack(type, packed_load(type, p, half, 2), c);
    g.block[3] = unpack(type, packed_load(type, p, half, 3), c);
    for (int k = 0; k < GROUP; k++) scale_bits_add(type, &bits, p, half, k);
    g.sc = scales_from(type, scale_bits_first(type, bits, n));
    return g;
}

/* Multiplies a group by all tokens. The row has `left` more blocks; the weights end at `end`. */
ARM_INLINE void meet_all(quant_type type, few *row, const uint8_t *p, const uint8_t *end,
                         const constants *c, int left, int half, int n)
{
    uint8_t copy[GROUP * sizeof(block_q8_0)];                /* the largest */
    const int8_t *q_next = row->pos[0].q + (left > GROUP ? 32 * GROUP : 0);

    if ((size_t)(end - p) < group_bytes(type)) {
        memset(copy, 0, sizeof copy);
        p = memcpy(copy, p, (size_t)(end - p));
    }
    prefetch_weights(p, group_bytes(type));
    const group_weights g = group_unpack(type, p, c, left, half);
    meet_tokens(type, row, &g, half, n, q_next);
}

/* Any shape, n tokens. The sums of consecutive tokens are `stride` floats apart. */
ARM_INLINE void dot_few(quant_type type, float *sums, size_t stride, const uint8_t *rows,
                        size_t row_bytes, int n_row, const act_row *x, int n, int n_block)
{
    const size_t row_end = (size_t)n_block * block_bytes(type);
    const uint8_t *end = rows + (size_t)(n_row - 1) * row_bytes + row_end;
    const constants c = constants_for(type);

    for (int r = 0; r < n_row; r++) {
        const uint8_t *p = rows + (size_t)r * row_bytes;
        few row = few_from(type == QT_NVFP4, x, n);

        for (int left = n_block; left > 0; left -= 2 * GROUP, p += 2 * group_bytes(type)) {
            meet_all(type, &row, p, end, &c, left, 0, n);
            if (left > GROUP)
                meet_all(type, &row, p + group_bytes(type), end, &c, left - GROUP, 1, n);
        }
        if ((n_block + GROUP - 1) / GROUP % 2) meet_end(type, &row, 0, n);
        else meet_end(type, &row, 1, n);
        for (int t = 0; t < n; t++) sums[(size_t)t * stride + (size_t)r] = lanes_fold(row.lane[t]);
    }
}

/* ---- the kernels --------------------------------------------------------------------------- */

enum {
    ROWS = 32,                           /* rows that stay in the cache for the next tokens */
    MOST_REORDERED = 16384,              /* columns, on the stack */
};

/* NVFP4: one copy of the activations in the order of the weights serves all rows. */
ARM_INLINE void dot_one_reordered(quant_type type, float *sums, const uint8_t *rows,
                                  size_t row_bytes, int n_row, const act_row *x, int n_block)
{
    int8_t q[MOST_REORDERED];
    act_row y = *x;

    for (int j = 0; j < n_block; j++) {
        const codes c = codes_load(true, x->q + 32 * j);
        vst1q_s8(q + 32 * j, c.half[0]);
        vst1q_s8(q + 32 * j + 16, c.half[1]);
    }
    y.q = q;
    dot_one(type, sums, rows, row_bytes, n_row, &y, n_block);
}

/* 1, 2 or 4 tokens. Shapes without a pipeline compute one token as two, with the same sums. */
ARM_INLINE void dot_tokens(quant_type type, float *sums, size_t stride, const uint8_t *rows,
                           size_t row_bytes, int n_row, const act_row *x, int n_token, int n_block)
{
    const act_row twice[2] = { x[0], x[0] };
    const bool pipeline_fits = n_block > 3 * GROUP && n_block % 2 == 0;

    if (n_token == 4)
        dot_few(type, sums, stride, rows, row_bytes, n_row, x, 4, n_block);
    else if (n_token == 1 && type == QT_NVFP4 && pipeline_fits && 32 * n_block <= MOST_REORDERED)
        dot_one_reordered(type, sums, rows, row_bytes, n_row, x, n_block);
    else if (n_token == 1 && type != QT_NVFP4 && pipeline_fits)
        dot_one(type, sums, rows, row_bytes, n_row, x, n_block);
    else
        dot_few(type, sums, n_token == 1 ? 0 : stride, rows, row_bytes, n_row,
                n_token == 1 ? twice : x, 2, n_block);
}

typedef void tokens_fn(float *sums, size_t stride, const uint8_t *rows, size_t row_bytes, int n_row,
                       const act_row *x, int n_token, int n_block);

/* Any number of tokens. Several batches are multiplied by a few rows at a time, which stay in the
 * cache. */
static void dot_batches(tokens_fn *fn, float *sums, const uint8_t *rows, size_t row_bytes,
                        int n_row, const act_row *x, int n_token, int n_block)
{
    const bool one_batch = n_token <= 2 || n_token == TOKENS;
    const int n_rows = one_batch ? n_row : ROWS;
    for (int r = 0; r < n_row; r += n_rows)
        for (int t = 0, n; t < n_token; t += n) {
            n = n_token - t >= TOKENS ? TOKENS : min_int(n_token - t, 2);
            fn(sums + (size_t)t * (size_t)n_row + r, (size_t)n_row, rows + (size_t)r * row_bytes,
               row_bytes, min_int(n_row - r, n_rows), x + t, n, n_block);
        }
}

#define TYPES(X)                                                                                   \
    X(Q8_0) X(MXFP4) X(NVFP4) X(IQ4_NL) X(IQ4_XS) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1)

#define DEFINE(NAME)                                                                               \
    static void tokens_##NAME(float *sums, size_t stride, const uint8_t *rows, size_t row_bytes,   \
                              int n_row, const act_row *x, int n_token, int n_block)               \
    {                                                                                              \
        dot_tokens(QT_##NAME, sums, stride, rows, row_bytes, n_row, x, n_token, n_block);          \
    }                                                                                              \
    static void dot_##NAME(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,          \
                           const act_row *x, int n_token, int cols)                                \
    {                                                                                              \
        dot_batches(tokens_##NAME, sums, rows, row_bytes, n_row, x, n_token, cols / 32);           \
    }
TYPES(DEFINE)

static void put_blocks(kernel_set *s)
{
#define PUT(NAME) s->of[QT_##NAME].dot = dot_##NAME;
    TYPES(PUT)
}

#endif
