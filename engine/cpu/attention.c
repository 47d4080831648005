/* attention.c - attention of a few blocks of query heads over one tile of keys and values.
 *
 * The eight query heads of a block are the lanes of a vector, so a score is a sum over dimensions
 * within one lane. Keys are decoded eight at a time, values 32 columns at a time, to buffers that
 * stay in L1 while all blocks use them. Weights are at most 1, so sums cannot overflow. A sink is
 * one more key without a value.
 *
 * Compiled once for each instruction set, with the same bits. attend_team.c distributes the
 * work. */
#include "engine/cpu/attention.h"

#include <assert.h>
#include <float.h>

#include "engine/cpu/exact_exp.h"
#include "engine/cpu/f32_loops.h"
#include "engine/cpu/loops.h"
#include "loader/quant_blocks.h"

enum {
    LANES = ATTEND_HEADS,
    KEYS = ATTEND_KEYS,
    COLUMNS = ATTEND_COLUMNS,
    DIMS = 64                            /* dimensions of one chain of fmas of a score */
};

/* Weights below exp(-70) = 4e-31 become 0. They do not change an F32 sum, and their products could
 * be subnormal, which costs a hundred cycles on some processors. */
static const float lowest_exponent = -70.0f;

/* ---- a part and a thread's buffers ----------------------------------------------------------- */

/* A part in memory: top [8], 8 unused, total [8] in double, sum [8, columns]. Unused lanes are
 * undefined. */
typedef struct part {
    float *top;                          /* largest score */
    double *total;                       /* of exp(score - top) */
    float *sum;                          /* of exp(score - top) * value */
} part;

static size_t columns_of(int head_dim)
{
    return (size_t)size_align((uint64_t)head_dim, COLUMNS);
}

static part part_at(float *p)
{
    return (part){ p, (double *)(void *)(p + 2 * LANES), p + 4 * LANES };
}

typedef struct buffers {
    float *queries;                      /* [ATTEND_BLOCKS][head_dim, 8]: lanes are heads */
    float *scores;                       /* [ATTEND_BLOCKS][ATTEND_TILE, 8]; then weights */
    float *keys;                         /* [KEYS, head_dim] */
    float *values;                       /* [ATTEND_TILE, COLUMNS] */
    float *parts, *totals;               /* [ATTEND_BLOCKS] each */
} buffers;

static void buffers_lay(buffers *b, float *work, int head_dim)
{
    const size_t dim = (size_t)head_dim, part_floats = attend_part_floats(head_dim);
    b->parts = work;
    b->totals = b->parts + ATTEND_BLOCKS * part_floats;
    b->scores = b->totals + ATTEND_BLOCKS * part_floats;
    b->values = b->scores + ATTEND_BLOCKS * ATTEND_TILE * LANES;
    b->queries = b->values + ATTEND_TILE * COLUMNS;
    b->keys = b->queries + ATTEND_BLOCKS * LANES * dim;
}

/* ---- stored rows ----------------------------------------------------------------------------- */

static void widen_f16(float *restrict dst, const uint8_t *restrict from, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8) vec8_store(dst + i, vec8_from_f16(from + 2 * i));
    for (; i < n; i++) dst[i] = f16_to_f32(load_u16(from + 2 * i));
}

static void widen_q8_0(float *restrict dst, const uint8_t *restrict from, int n)
{
    for (int i = 0; i < n; i += 32, from += sizeof(block_q8_0)) {
        const block_q8_0 *b = (const block_q8_0 *)from;
        const vec8 d = vec8_all(f16_to_f32(load_u16(b->d)));
        for (int k = 0; k < 32; k += 8)
            vec8_store(dst + i + k, vec8_mul(d, vec8_from_int8(b->quants + k)));
    }
}

/* Decodes n values of a stored row from column c on, a multiple of 32. */
static void widen(float *dst, const uint8_t *row, kv_type type, int c, int n)
{
    switch (type) {
    case KV_F32: memcpy(dst, row + (size_t)c * sizeof(float), (size_t)n * sizeof(float)); break;
    case KV_F16: widen_f16(dst, row + 2 * (size_t)c, n); break;
    case KV_Q8_0: widen_q8_0(dst, row + (size_t)c / 32 * sizeof(block_q8_0), n); break;
    }
}

/* ---- scores and weights ---------------------------------------------------------------------- */

/* Transposes the queries of a block. Lanes without a head are zero. */
static void put_queries(float *restrict dst, const attend_args *a, const attend_block *b)
{
    const size_t dim = (size_t)a->head_dim, n = (size_t)b->n_head;
    const float *q = a->q + ((size_t)b->t * (size_t)a->n_head + (size_t)b->head) * dim;
    memset(dst, 0, LANES * dim * sizeof *dst);
    if (n == LANES)                      /* the constant lets compilers vectorise */
        for (size_t c = 0; c < dim; c++)
            for (size_t h = 0; h < LANES; h++) dst[c * LANES + h] = q[h * dim + c];
    else
        for (size_t c = 0; c < dim; c++)
            for (size_t h = 0; h < n; h++) dst[c * LANES + h] = q[h * dim + c];
}

/* Computes the scores [KEYS, 8] of decoded keys. */
static void score_keys(float *scores, const float *keys, const float *queries, int head_dim)
{
    memset(scores, 0, KEYS * LANES * sizeof *scores);
    for (int c = 0; c < head_dim; c += DIMS)
        f32_tile(scores, LANES, keys + c, (size_t)head_dim, queries + c * LANES, LANES,
                 head_dim - c < DIMS ? head_dim - c : DIMS, KEYS, 1);
}

/* exp(x) for x <= 0; NaN stays NaN. */
static inline vec8 weight_of(vec8 x)
{
    const vec8 lowest = vec8_all(lowest_exponent);
    return vec8_drop_below(exp_inside(vec8_larger(x, lowest)), x, lowest);
}

/* Replaces the scores of one key with its weights, and adds them to *sum. */
static inline void weigh_key(vec8 *sum, float *scores, vec8 top)
{
    const vec8 w = weight_of(vec8_sub(vec8_load(scores), top));
    vec8_store(scores, w);
    *sum = vec8_add(*sum, w);
}

/* Replaces the scores of n keys with weights, and sets top and total of the part. The total is
 * summed in four chains. */
static void weigh(const part *p, float *scores, int n, float scale)
{
    vec8 top = vec8_all(-FLT_MAX), sum[4];
    float total[LANES];
    int i = 0;

    for (int k = 0; k < n; k++) {
        const vec8 s = vec8_mul(vec8_load(scores + k * LANES), vec8_all(scale));
        vec8_store(scores + k * LANES, s);
        top = vec8_larger(top, s);
    }
    for (int k = 0; k < 4; k++) sum[k] = vec8_all(0.0f);
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) weigh_key(&sum[k], scores + (i + k) * LANES, top);
    for (int k = 0; k < 3; k++)
        if (i + k < n) weigh_key(&sum[k], scores + (i + k) * LANES, top);
    vec8_store(total, vec8_add(vec8_add(sum[0], sum[2]), vec8_add(sum[1], sum[3])));
    vec8_store(p->top, top);
    for (int h = 0; h < LANES; h++) p->total[h] = total[h];
}

/* sum[8, COLUMNS] += weights[n, 8] transposed, times values[n, COLUMNS]. */
static void add_values(float *sum, size_t stride, const float *weights, const float *values, int n)
{
    for (int i = 0; i < n; i += F32_TERMS) {
        const int n_here = n - i < F32_TERMS ? n - i : F32_TERMS;
        for (int c = 0; c < COLUMNS; c += 16)
            for (int h = 0; h < LANES; h += 4)
                f32_tile_transposed(sum + (size_t)h * stride + c, stride, weights + i * LANES + h,
                                    LANES, values + i * COLUMNS + c, COLUMNS, n_here, 2);
    }
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Keys first .. first+n-1 of a KV head, all in one tile. */
typedef struct key_range { int head_kv, first, n; } key_range;

/* The keys of a key_range that a block sees, counted from its first. */
typedef struct span { int from, n; } span;

static span span_of(const attend_block *b, const key_range *k)
{
    const int from = b->first > k->first ? b->first - k->first : 0;
    const int end = b->last - k->first + 1 < k->n ? b->last - k->first + 1 : k->n;
    return (span){ from, end > from ? end - from : 0 };
}

static float *scores_of(const buffers *buf, int b, int key)
{
    return buf->scores + (b * ATTEND_TILE + key) * LANES;
}

static part part_of(const buffers *buf, int b, int head_dim)
{
    return part_at(buf->parts + (size_t)b * attend_part_floats(head_dim));
}

static_assert(KV_PAGE % ATTEND_TILE == 0, "a tile is in one page");

/* The row of the range's first key; the others follow. */
static const uint8_t *row_of(const kv_view *v, kv_kind kind, const key_range *k)
{
    assert(k->first >= v->first && k->first % ATTEND_TILE + k->n <= ATTEND_TILE);
    return kv_row(v, kind, k->head_kv, k->first);
}

static void score_range(const buffers *buf, const attend_args *a, int n, const key_range *k)
{
    const size_t dim = (size_t)a->head_dim;
    const kv_view *v = &a->stored;
    const uint8_t *row = row_of(v, KV_KEYS, k);
    for (int i = 0; i < k->n; i += KEYS) {
        for (int j = 0; j < KEYS; j++) {
            float *key = buf->keys + (size_t)j * dim;
            if (i + j < k->n)
                widen(key, row + (size_t)(i + j) * v->row_bytes, v->type, 0, a->head_dim);
            else memset(key, 0, dim * sizeof *key);
        }
        for (int b = 0; b < n; b++)
            score_keys(scores_of(buf, b, i), buf->keys, buf->queries + (size_t)(b * LANES) * dim,
                       a->head_dim);
    }
}

static void sum_range(const buffers *buf, const attend_args *a, const span *seen, int n,
                      const key_range *k)
{
    const int dim = a->head_dim;
    const kv_view *v = &a->stored;
    const uint8_t *row = row_of(v, KV_VALUES, k);
    for (int c = 0; c < dim; c += COLUMNS) {
        const int width = dim - c < COLUMNS ? dim - c : COLUMNS;
        if (width < COLUMNS) memset(buf->values, 0, ATTEND_TILE * COLUMNS * sizeof *buf->values);
        for (int i = 0; i < k->n; i++)
            widen(buf->values + i * COLUMNS, row + (size_t)i * v->row_bytes, v->type, c, width);
        for (int b = 0; b < n; b++)
            add_values(part_of(buf, b, dim).sum + c, columns_of(dim),
                       scores_of(buf, b, seen[b].from), buf->values + seen[b].from * COLUMNS,
                       seen[b].n);
    }
}

/* Computes the parts of n blocks. The part of a block that sees none of the keys is neutral in
 * join(). */
static void make_parts(const buffers *buf, const attend_args *a, const attend_block *blocks, int n,
                       const key_range *k)
{
    span seen[ATTEND_BLOCKS];
    score_range(buf, a, n, k);
    for (int b = 0; b < n; b++) {
        const part p = part_of(buf, b, a->head_dim);
        seen[b] = span_of(&blocks[b], k);
        weigh(&p, scores_of(buf, b, seen[b].from), seen[b].n, a->scale);
        memset(p.sum, 0, LANES * columns_of(a->head_dim) * sizeof *p.sum);
    }
    sum_range(buf, a, seen, n, k);
}

/* ---- joining --------------------------------------------------------------------------------- */

/* Initialises lanes from .. end-1 of a total with the sinks. */
static void begin_total(const part *total, const attend_args *a, const attend_block *b, int from,
                        int end)
{
    const size_t columns = columns_of(a->head_dim);
    for (int h = from; h < end; h++) {
        const bool has_sink = a->sinks && h < b->n_head;
        total->top[h] = has_sink ? a->sinks[b->head + h] : -FLT_MAX;
        total->total[h] = has_sink ? 1.0 : 0.0;
    }
    memset(total->sum + (size_t)from * columns, 0,
           (size_t)(end - from) * columns * sizeof *total->sum);
}

/* Computes the factors of a total and a part in their sum. Returns the top of the sum. */
static inline vec8 join_factors(vec8 *old, vec8 *new, vec8 total_top, vec8 part_top)
{
    const vec8 top = vec8_larger(total_top, part_top);
    *old = weight_of(vec8_sub(total_top, top));
    *new = weight_of(vec8_sub(part_top, top));
    return top;
}

/* Joins lane h of the sums. */
static void join_lane(const part *total, const part *p, int h, float old, float new, size_t columns)
{
    float *sum = total->sum + (size_t)h * columns;
    const float *more = p->sum + (size_t)h * columns;
    const vec8 shrink = vec8_all(old), enter = vec8_all(new);
    total->total[h] = total->total[h] * (double)old + p->total[h] * (double)new;
    for (size_t c = 0; c < columns; c += 8)
        vec8_store(sum + c, vec8_fma(shrink, vec8_load(sum + c),
                                     vec8_mul(enter, vec8_load(more + c))));
}

/* total = total + p */
static void join(const part *total, const part *p, int head_dim)
{
    vec8 old, new;
    float olds[LANES], news[LANES];
    vec8_store(total->top, join_factors(&old, &new, vec8_load(total->top), vec8_load(p->top)));
    vec8_store(olds, old);
    vec8_store(news, new);
    for (int h = 0; h < LANES; h++)
        join_lane(total, p, h, olds[h], news[h], columns_of(head_dim));
}

/* join() for lane h only; other threads may join other lanes at the same time. */
static void join_alone(const part *total, const part *p, int h, int head_dim)
{
    vec8 old, new;
    float top[LANES], olds[LANES], news[LANES];
    vec8_store(top, join_factors(&old, &new, vec8_all(total->top[h]), vec8_all(p->top[h])));
    vec8_store(olds, old);
    vec8_store(news, new);
    total->top[h] = top[0];
    join_lane(total, p, h, olds[0], news[0], columns_of(head_dim));
}

static void finish_head(const attend_args *a, const attend_block *b, const part *total, int h)
{
    const size_t dim = (size_t)a->head_dim;
    const size_t head = (size_t)b->t * (size_t)a->n_head + (size_t)(b->head + h);
    const float *sum = total->sum + (size_t)h * columns_of(a->head_dim);
    const float inverse = (float)(1.0 / total->total[h]);
    float *restrict out = a->out + head * dim;
    for (size_t c = 0; c < dim; c++) out[c] = sum[c] * inverse;
}

/* ---- the functions of struct loops ----------------------------------------------------------- */

static void attend_blocks(const attend_args *a, int head_kv, int first, int n, float *work)
{
    const size_t part_floats = attend_part_floats(a->head_dim);
    /* first and last keys do not decrease from block to block */
    const int begin = attend_block_at(a, head_kv, first).first;
    const int end = attend_block_at(a, head_kv, first + n - 1).last + 1;
    attend_block blocks[ATTEND_BLOCKS];
    part total[ATTEND_BLOCKS];
    buffers buf;

    buffers_lay(&buf, work, a->head_dim);
    for (int b = 0; b < n; b++) {
        blocks[b] = attend_block_at(a, head_kv, first + b);
        total[b] = part_at(buf.totals + (size_t)b * part_floats);
        put_queries(buf.queries + (size_t)(b * LANES) * (size_t)a->head_dim, a, &blocks[b]);
        begin_total(&total[b], a, &blocks[b], 0, LANES);
    }
    for (int p = begin, next; p < end; p = next) {
        const int tile_end = p / ATTEND_TILE * ATTEND_TILE + ATTEND_TILE;
        next = tile_end < end ? tile_end : end;
        const key_range keys = { head_kv, p, next - p };
        make_parts(&buf, a, blocks, n, &keys);
        for (int b = 0; b < n; b++) {
            const part more = part_of(&buf, b, a->head_dim);
            join(&total[b], &more, a->head_dim);
        }
    }
    for (int b = 0; b < n; b++)
        for (int h = 0; h < blocks[b].n_head; h++) finish_head(a, &blocks[b], &total[b], h);
}

static void attend_part(float *dst, const attend_args *a, int head_kv, int block, int tile,
                        float *work)
{
    const attend_block b = attend_block_at(a, head_kv, block);
    const int first = b.first > tile ? b.first : tile;
    const int last = b.last < tile + ATTEND_TILE - 1 ? b.last : tile + ATTEND_TILE - 1;
    const key_range keys = { head_kv, first, last - first + 1 };
    buffers buf;

    buffers_lay(&buf, work, a->head_dim);
    buf.parts = dst;
    put_queries(buf.queries, a, &b);
    make_parts(&buf, a, &b, 1, &keys);
}

static void attend_join(float *total, float *parts, int n, const attend_args *a, int head_kv,
                        int block, int row, bool begin)
{
    const size_t part_floats = attend_part_floats(a->head_dim);
    const attend_block b = attend_block_at(a, head_kv, block);
    const part sum = part_at(total);
    if (begin) begin_total(&sum, a, &b, row, row + 1);
    for (int i = 0; i < n; i++, parts += part_floats) {
        const part more = part_at(parts);
        join_alone(&sum, &more, row, a->head_dim);
    }
    finish_head(a, &b, &sum, row);
}

void LOOPS_PUT(attention)(loops *l)
{
    l->attend_blocks = attend_blocks;
    l->attend_part = attend_part;
    l->attend_join = attend_join;
}
