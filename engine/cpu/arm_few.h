/* arm_few.h - NEON: multiplies unpacked groups of four blocks by a few tokens and adds the values
 * to the lanes.
 *
 * Three groups are in different stages of a pipeline, so that independent instructions stand
 * between dependent ones; see arm_blocks_body.h. */
#ifndef ENGINE_CPU_ARM_FEW_H
#define ENGINE_CPU_ARM_FEW_H

#include <string.h>

#include "engine/cpu/arm_blocks_types.h"
#include "engine/cpu/kernels.h"

/* ---- the end of the pipeline --------------------------------------------------------------- */

/* Activations of a group. Pointers instead of indices, because compilers spend too many
 * instructions on addresses with indices. */
typedef struct act_cursor {
    const int8_t *q;
    const float *dx;
    const int16_t *s;
} act_cursor;

ARM_INLINE act_cursor act_cursor_after(act_cursor pos, int n_group)
{
    const int n = GROUP * n_group;
    return (act_cursor){ pos.q + 32 * n, pos.dx + n, pos.s + 2 * n };
}

/* The last multiplied group and the one before it. finish_1() to finish_4() advance both by one
 * stage; callers put independent instructions between them. */
typedef struct finish {
    struct {
        int32x4_t sum[GROUP];            /* partial sums of each block */
        int16x8_t s;
        scales sc;
        float32x4_t dx;
    } multiplied;
    struct {
        group_floats sum;
        scales sc;
        float32x4_t dx;
    } summed;
    int32x4_t blocks01, blocks23;        /* from one stage to the next */
    group_sums sums;
    float32x4_t v;
} finish;

ARM_INLINE void finish_1(finish *f)
{
    f->blocks01 = vpaddq_s32(f->multiplied.sum[0], f->multiplied.sum[1]);
    HERE(f->blocks01);
}

ARM_INLINE void finish_2(quant_type type, finish *f)
{
    f->v = values(type, f->summed.sum, f->summed.sc);
    HERE(f->v);
    f->blocks23 = vpaddq_s32(f->multiplied.sum[2], f->multiplied.sum[3]);
    HERE(f->blocks23);
}

ARM_INLINE void finish_3(quant_type type, finish *f, float32x4_t *lane)
{
    *lane = vfmaq_f32(*lane, f->summed.dx, f->v);
    HERE(*lane);
    f->sums = sums_from(type, f->blocks01, f->blocks23, f->multiplied.s);
    HERE(f->sums.a);
}

ARM_INLINE void finish_4(quant_type type, finish *f)
{
    f->summed.sum = floats_from(type, f->sums);
    f->summed.sc = f->multiplied.sc;
    f->summed.dx = f->multiplied.dx;
}

/* Enters a new group; call it after finish_4(). */
ARM_INLINE void finish_enter(finish *f, const int32x4_t sum[GROUP], scales sc, act_cursor pos)
{
    memcpy(f->multiplied.sum, sum, sizeof f->multiplied.sum);
    f->multiplied.s = vld1q_s16(pos.s);
    f->multiplied.sc = sc;
    f->multiplied.dx = vld1q_f32(pos.dx);
}

/* Completes both groups. */
ARM_INLINE void finish_all(quant_type type, finish *f, float32x4_t *summed, float32x4_t *multiplied)
{
    finish_1(f);
    finish_2(type, f);
    finish_3(type, f, summed);
    finish_4(type, f);
    finish_2(type, f);
    *multiplied = vfmaq_f32(*multiplied, f->summed.dx, f->v);
}

/* ---- a block ------------------------------------------------------------------------------- */

/* Activations of a block. NVFP4 unpacks weights 0-7 and 16-23 to the first half, 8-15 and 24-31 to
 * the second, so its activations need that order. */
typedef struct codes {
    int8x16_t half[2];
} codes;

ARM_INLINE codes codes_load(bool reorder, const int8_t *q)
{
    const int8x16_t a = vld1q_s8(q), b = vld1q_s8(q + 16);
    const int64x2_t a64 = vreinterpretq_s64_s8(a), b64 = vreinterpretq_s64_s8(b);
    codes c = { { a, b } };
    if (reorder) c = (codes){ { vreinterpretq_s8_s64(vzip1q_s64(a64, b64)),
                                vreinterpretq_s8_s64(vzip2q_s64(a64, b64)) } };
    HERE(c.half[0]);
    HERE(c.half[1]);
    return c;
}

/* Returns the partial sums of a block, and loads the activations of the next one to *q. */
ARM_INLINE int32x4_t multiply(quant_type type, codes *q, weights w, bool reorder,
                              const int8_t *q_next)
{
    const codes x = *q;
    int32x4_t sum = starts_above_zero(type) ? dot_next(sum_start(type), w.half[0], x.half[0])
                                       : dot_first(w.half[0], x.half[0]);
    HERE(sum);
    *q = codes_load(reorder, q_next);
    sum = dot_next(sum, w.half[1], x.half[1]);
    HERE(sum);
    return sum;
}

/* ---- a few tokens -------------------------------------------------------------------------- */

enum { TOKENS = 4 };                     /* limited by the number of registers */

typedef struct group_weights {
    weights block[GROUP];
    scales sc;
} group_weights;

/* A row with n tokens, a constant 2 or 4. The groups of all tokens pass through one pipeline in
 * turn. */
typedef struct few {
    act_cursor pos[TOKENS];
    lanes lane[TOKENS];
    codes q;                             /* activations of the next token */
    finish f;
} few;

/* Returns half 0 or 1 of the lanes of the token `steps` before token t. */
ARM_INLINE float32x4_t *lane_before(few *row, int half, int t, int n, int steps)
{
    if (t < steps) half ^= 1;
    t = (t + n - steps) % n;
    return half ? &row->lane[t].high : &row->lane[t].low;
}

/* Multiplies a group by token t. */
ARM_INLINE void meet(quant_type type, few *row, const group_weights *g, int half, int t, int n,
                     const int8_t *q_next)
{
    const bool reorder = type == QT_NVFP4;
    const act_cursor pos = row->pos[t];
    int32x4_t sum[GROUP];

    row->pos[t] = act_cursor_after(pos, 1);
    finish_1(&row->f);
    sum[0] = multiply(type, &row->q, g->block[0], reorder, pos.q + 32);
    finish_2(type, &row->f);
    sum[1] = multiply(type, &row->q, g->block[1], reorder, pos.q + 64);
    finish_3(type, &row->f, lane_before(row, half, t, n, 2));
    sum[2] = multiply(type, &row->q, g->block[2], reorder, pos.q + 96);
    finish_4(type, &row->f);
    sum[3] = multiply(type, &row->q, g->block[3], reorder, q_next);
    finish_enter(&row->f, sum, g->sc, pos);
}

/* Multiplies a group by all tokens. q_next: activations of the first token for the next group. */
ARM_INLINE void meet_tokens(quant_type type, few *row, const group_weights *g, int half, int n,
                            const int8_t *q_next)
{
    meet(type, row, g, half, 0, n, row->pos[1].q);
    meet(type, row, g, half, 1, n, n > 2 ? row->pos[2].q : q_next);
    if (n > 2) meet(type, row, g, half, 2, n, row->pos[3].q);
    if (n > 2) meet(type, row, g, half, 3, n, q_next);
}

/* Completes the pipeline after the last group of a row, which belongs to this half. */
ARM_INLINE void meet_end(quant_type type, few *row, int half, int n)
{
    finish_all(type, &row->f, lane_before(row, half, n - 1, n, 1),
               lane_before(row, half, n - 1, n, 0));
}

/* Returns the state at the start of a row with n tokens. */
ARM_INLINE few few_from(bool reorder, const act_row *x, int n)
{
    few row = { .q = codes_load(reorder, x->q) };
    for (int t = 0; t < n; t++) row.pos[t] = (act_cursor){ x[t].q, x[t].dx, x[t].s };
    return row;
}

#endif
