/* test_kernels.c - every instruction set that this processor has against the contract's reference.
 *
 * memcmp, with all NaNs made one: weights of random bytes (so that scales are infinite, subnormal
 * or NaN now and then), of plausible scales and of extreme ones; activations with zero, tiny, huge,
 * tied and poisoned blocks; ragged shapes; few tokens and many, by all kernels of a type. Arrays
 * end where kernels.h says, so that a sanitizer sees reads past the end. */
#include "tests/make_weights.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/kernels.h"
#include "engine/cpu/loops.h"
#include "loader/bytes.h"
#include "loader/quant_blocks.h"

enum { MAX_TOKENS = 70, MAX_ROWS = 37 };

/* ---- activations --------------------------------------------------------------------------- */

typedef struct batch {
    float *x[MAX_TOKENS], *dx[MAX_TOKENS];
    int8_t *q[MAX_TOKENS];
    int16_t *s[MAX_TOKENS];
    act_row rows[MAX_TOKENS];
    int n;
} batch;

/* Each array by itself, of the size that kernels.h promises. */
static void batch_init(batch *b, int n, int cols, bool quantise, bool poison, test_rng *rng)
{
    const size_t blocks = quantise ? (size_t)size_align((uint64_t)cols / ACT_BLOCK, 16) : 0;
    *b = (batch){ .n = n };
    for (int t = 0; t < n; t++) {
        b->x[t] = test_alloc((size_t)cols, sizeof(float));
        b->q[t] = test_alloc(blocks * ACT_BLOCK, 1);
        b->dx[t] = test_alloc(blocks, sizeof(float));
        b->s[t] = test_alloc(blocks * 2, sizeof(int16_t));
        memset(b->q[t], 0, blocks * ACT_BLOCK);
        memset(b->dx[t], 0, blocks * sizeof(float));
        memset(b->s[t], 0, blocks * 2 * sizeof(int16_t));
        activations_make(b->x[t], cols, poison, rng);
        if (quantise)
            loops_for("scalar")->quantise(b->q[t], b->dx[t], b->s[t], b->x[t], cols / ACT_BLOCK);
        b->rows[t] = (act_row){ b->x[t], b->q[t], b->dx[t], b->s[t] };
    }
}

static void batch_free(batch *b)
{
    for (int t = 0; t < b->n; t++) {
        mem_free(b->x[t]);
        mem_free(b->q[t]);
        mem_free(b->dx[t]);
        mem_free(b->s[t]);
    }
}

/* ---- comparison ---------------------------------------------------------------------------- */

static void one_nan(float *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isnan(v[i])) v[i] = NAN;
}

typedef struct shape { quant_type type; int cols, n_row, n_token; weight_kind scales; } shape;

static void compare(const kernel_set *set, const shape *c, dot_fn *fn, const char *name,
                    const uint8_t *rows, size_t row_bytes, const batch *b, const float *want)
{
    const size_t n = (size_t)c->n_row * (size_t)c->n_token;
    float *got = test_alloc(n, sizeof *got);
    size_t at = 0;
    memset(got, 0x55, n * sizeof *got);
    fn(got, rows, row_bytes, c->n_row, b->rows, c->n_token, c->cols);
    one_nan(got, n);
    while (at < n && memcmp(&got[at], &want[at], sizeof *got) == 0) at++;
    CHECK_MSG(at == n, "%s %s %s, %d columns, %d rows, %d tokens, %s: row %zu, token %zu is %a, "
              "expected %a", set->isa, quant_name(c->type), name, c->cols, c->n_row, c->n_token,
              weight_kind_name(c->scales), at % (size_t)c->n_row, at / (size_t)c->n_row,
              (double)got[at < n ? at : 0], (double)want[at < n ? at : 0]);
    mem_free(got);
}

/* The same weights in the order that an instruction set prefers. */
static void compare_repacked(const kernel_set *set, const shape *c, const uint8_t *rows,
                             size_t row_bytes, const batch *b, const float *want)
{
    const repacking *a = &set->of[c->type].repacked;
    if (a->bundle == 0) return;
    const size_t n_row = (size_t)size_align((uint64_t)c->n_row, (uint64_t)a->bundle);
    uint8_t *bundles = test_alloc(n_row * row_bytes, 1);
    memset(bundles, 0x55, n_row * row_bytes);
    a->repack(bundles, rows, row_bytes, c->n_row, c->cols);
    compare(set, c, a->dot, "repacked", bundles, row_bytes, b, want);
    mem_free(bundles);
}

/* The kernel that compare calls through packed_in_turn. */
static const kernel *packs;

/* wide in two steps: tokens are packed once for some rows and then the others. */
static void packed_in_turn(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,
                           const act_row *x, int n_token, int cols)
{
    const packing *by = &packs->packed;
    uint8_t *storage = test_alloc(by->bytes(cols) + PACKED_ALIGN, 1);
    void *room = (void *)(((uintptr_t)storage + PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN);
    float *some = test_alloc((size_t)n_row * PACKED_TOKENS, sizeof *some);
    for (int t = 0; t < n_token; t += PACKED_TOKENS) {
        const int n = min_int(n_token - t, PACKED_TOKENS);
        memset(room, 0x55, by->bytes(cols));
        by->pack(room, x + t, n, cols);
        for (int first = 0, end = n_row / 3; first < n_row; first = end, end = n_row) {
            const int n_here = end - first;
            if (n_here == 0) continue;
            by->dot(some, rows + (size_t)first * row_bytes, row_bytes, n_here, room, n, cols);
            for (int k = 0; k < n; k++)
                memcpy(sums + (size_t)(t + k) * (size_t)n_row + first, some + k * n_here,
                       (size_t)n_here * sizeof *sums);
        }
    }
    mem_free(some);
    mem_free(storage);
}

static void compare_sets(const kernel_set *sets[], int n_set, const shape *c, const uint8_t *rows,
                         size_t row_bytes, const batch *b, const float *want)
{
    const kernel *ref = &kernels_contract()->of[c->type];
    for (int i = 0; i < n_set; i++) {
        const kernel *k = &sets[i]->of[c->type];
        if (k->dot != ref->dot) compare(sets[i], c, k->dot, "dot", rows, row_bytes, b, want);
        if (k->wide) compare(sets[i], c, k->wide, "wide", rows, row_bytes, b, want);
        packs = k;
        if (k->packed.bytes)
            compare(sets[i], c, packed_in_turn, "packed", rows, row_bytes, b, want);
        compare_repacked(sets[i], c, rows, row_bytes, b, want);
    }
}

static void test_shape(const kernel_set *sets[], int n_set, const shape *c, test_rng *rng)
{
    const quant_traits *t = quant_traits_of(c->type);
    const kernel *ref = &kernels_contract()->of[c->type];
    const size_t row_bytes = (size_t)quant_row_bytes(t, (uint64_t)c->cols);
    const size_t n = (size_t)c->n_row * (size_t)c->n_token, shift = test_below(rng, 4);
    uint8_t *data = test_alloc(row_bytes * (size_t)c->n_row + shift, 1), *rows = data + shift;
    float *want = test_alloc(n, sizeof *want);
    batch b;

    for (int r = 0; r < c->n_row; r++)
        weight_row_make(rows + (size_t)r * row_bytes, c->type, c->cols, c->scales, rng);
    batch_init(&b, c->n_token, c->cols, ref->quantised, test_below(rng, 4) == 0, rng);
    ref->dot(want, rows, row_bytes, c->n_row, b.rows, c->n_token, c->cols);
    one_nan(want, n);
    compare_sets(sets, n_set, c, rows, row_bytes, &b, want);
    batch_free(&b);
    mem_free(want);
    mem_free(data);
}

/* Lengths that end in every part of a segment, of a group of 16 blocks and of what wide kernels
 * take at a time. */
static int length_of(const quant_traits *t, int round, test_rng *rng)
{
    const int most = 4352 / t->block_elems;
    if (t->block_elems == 1) return round < 70 ? round + 1 : 1 + (int)test_below(rng, 3000);
    if (round < 40 && round < most) return (round + 1) * t->block_elems;
    return (1 + (int)test_below(rng, (uint32_t)most)) * t->block_elems;
}

static void test_type(const kernel_set *sets[], int n_set, quant_type type, test_rng *rng)
{
    static const int tokens[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 33, 70 };
    const quant_traits *t = quant_traits_of(type);
    for (int round = 0; round < 120; round += test_rounds(1, 7)) {
        shape c = {
            .type = type, .cols = length_of(t, round, rng),
            .n_row = 1 + (int)test_below(rng, round % 8 == 0 ? MAX_ROWS : 13),
            .n_token = tokens[round % (int)ARRAY_LEN(tokens)],
            .scales = (weight_kind)(round % WEIGHT_KINDS),
        };
        if (c.n_token * c.cols > 40000) c.n_row = 1 + c.n_row % 17;
        test_shape(sets, n_set, &c, rng);
    }
}

/* ---- rows made for one trap ---------------------------------------------------------------- */

/* One row of n MXFP4 blocks with one token: scale field e, all nibbles alike, x all alike; the last
 * block may have another scale. */
static void test_mxfp4_row(const kernel_set *sets[], int n_set, int n_block, uint8_t e,
                           uint8_t last, uint8_t nibbles, float x, const char *why)
{
    const size_t n = (size_t)n_block, padded = (size_t)size_align(n, 16);
    block_mxfp4 *row = test_alloc(n, sizeof *row);
    float *v = test_alloc(n * ACT_BLOCK, sizeof *v), *dx = test_alloc(padded, sizeof *dx), want;
    int16_t *s = test_alloc(2 * padded, sizeof *s);
    int8_t *q = test_alloc(padded * ACT_BLOCK, 1);
    const act_row a = { v, q, dx, s };

    memset(row, nibbles, n * sizeof *row);
    for (size_t b = 0; b < n; b++) row[b].e = b + 1 < n ? e : last;
    for (size_t i = 0; i < n * ACT_BLOCK; i++) v[i] = x;
    memset(q, 0, padded * ACT_BLOCK);
    memset(dx, 0, padded * sizeof *dx);
    memset(s, 0, 2 * padded * sizeof *s);
    loops_for("scalar")->quantise(q, dx, s, v, n_block);
    kernels_contract()->of[QT_MXFP4].dot(&want, (uint8_t *)row, n * sizeof *row, 1, &a, 1,
                                         n_block * ACT_BLOCK);
    one_nan(&want, 1);
    for (int i = 0; i < n_set; i++) {
        const kernel *k = &sets[i]->of[QT_MXFP4];
        dot_fn *fns[] = { k->dot, k->wide ? k->wide : k->dot };
        for (int f = 0; f < 2; f++) {
            float got;
            fns[f](&got, (uint8_t *)row, n * sizeof *row, 1, &a, 1, n_block * ACT_BLOCK);
            one_nan(&got, 1);
            CHECK_MSG(memcmp(&got, &want, sizeof got) == 0, "%s %s, %d blocks, %s: %a, expected %a",
                      sets[i]->isa, f ? "wide" : "dot", n_block, why, (double)got, (double)want);
        }
    }
    mem_free(row);
    mem_free(v);
    mem_free(dx);
    mem_free(s);
    mem_free(q);
}

/* Ones times minus zeros: a sum that begins with its first product would be -0. */
static void test_minus_zero(const kernel_set *sets[], int n_set, quant_type type, int n)
{
    const size_t size = (size_t)quant_traits_of(type)->block_bytes;
    uint8_t *row = test_alloc((size_t)n, size);
    float *x = test_alloc((size_t)n, sizeof *x), want;
    const act_row a = { .x = x };

    for (int i = 0; i < n; i++) {
        x[i] = -0.0f;
        if (type == QT_F32) store_u32(row + 4 * i, 0x3F800000);
        else store_u16(row + 2 * i, type == QT_F16 ? 0x3C00 : 0x3F80);
    }
    kernels_contract()->of[type].dot(&want, row, (size_t)n * size, 1, &a, 1, n);
    CHECK_MSG(want == 0.0f && !signbit(want), "%s, %d of -0: %a", quant_name(type), n,
              (double)want);
    for (int i = 0; i < n_set; i++) {
        const kernel *k = &sets[i]->of[type];
        dot_fn *fns[] = { k->dot, k->wide ? k->wide : k->dot };
        for (int f = 0; f < 2; f++) {
            float got = 1;
            fns[f](&got, row, (size_t)n * size, 1, &a, 1, n);
            CHECK_MSG(memcmp(&got, &want, sizeof got) == 0, "%s %s %s, %d of -0: %a", sets[i]->isa,
                      quant_name(type), f ? "wide" : "dot", n, (double)got);
        }
    }
    mem_free(row);
    mem_free(x);
}

/* Which bytes of a block hold the weights' codes, where all may be the same. */
static const struct { quant_type type; size_t from, to; } codes_of[] = {
    { QT_Q4_0, offsetof(block_q4_0, nibbles), sizeof(block_q4_0) },
    { QT_Q4_1, offsetof(block_q4_1, nibbles), sizeof(block_q4_1) },
    { QT_Q5_0, offsetof(block_q5_0, high), sizeof(block_q5_0) },
    { QT_Q5_1, offsetof(block_q5_1, high), sizeof(block_q5_1) },
    { QT_Q8_0, offsetof(block_q8_0, quants), sizeof(block_q8_0) },
    { QT_IQ4_NL, offsetof(block_iq4_nl, nibbles), sizeof(block_iq4_nl) },
    { QT_IQ4_XS, offsetof(block_iq4_xs, nibbles), sizeof(block_iq4_xs) },
    { QT_MXFP4, offsetof(block_mxfp4, nibbles), sizeof(block_mxfp4) },
    { QT_NVFP4, offsetof(block_nvfp4, nibbles), sizeof(block_nvfp4) },
    { QT_Q2_K, offsetof(block_q2_k, quants), offsetof(block_q2_k, quants) + 64 },
    { QT_Q3_K, offsetof(block_q3_k, high), offsetof(block_q3_k, scales) },
    { QT_Q4_K, offsetof(block_q4_k, nibbles), sizeof(block_q4_k) },
    { QT_Q5_K, offsetof(block_q5_k, high), sizeof(block_q5_k) },
    { QT_Q6_K, offsetof(block_q6_k, low), offsetof(block_q6_k, scales) },
};

/* Activations of 127 and -127 alone: all of one sign, halves or quarters of blocks in turn, and
 * signs by chance. */
static void largest_activations(batch *b, int cols, test_rng *rng)
{
    static const int run[] = { 1 << 20, 16, 8, 4, 2, 1 };
    for (int t = 0; t < b->n; t++) {
        for (int i = 0; i < cols; i++) {
            const bool negative = t / 2 < (int)ARRAY_LEN(run) ? i / run[t / 2] % 2 != t % 2
                                                              : test_below(rng, 2) != 0;
            b->x[t][i] = negative ? -1.0f : 1.0f;
        }
        loops_for("scalar")->quantise(b->q[t], b->dx[t], b->s[t], b->x[t], cols / ACT_BLOCK);
    }
}

/* Weights at one end of their range or at the other, a row at a time, with such activations: where
 * sums are made in few bits they would not fit. */
static void test_largest(const kernel_set *sets[], int n_set, quant_type type, size_t from,
                         size_t to, test_rng *rng)
{
    static const uint8_t fills[] = { 0, 0xFF, 0x77, 0x7F, 0x80, 0x88, 0x81, 0x0F, 0xF0 };
    const quant_traits *t = quant_traits_of(type);
    const shape c = { type, 512, ARRAY_LEN(fills), 15, WEIGHTS_LARGEST };
    const size_t row_bytes = (size_t)quant_row_bytes(t, (uint64_t)c.cols);
    const size_t n = (size_t)c.n_row * (size_t)c.n_token;
    uint8_t *rows = test_alloc(row_bytes * (size_t)c.n_row, 1);
    float *want = test_alloc(n, sizeof *want);
    batch b;

    for (int r = 0; r < c.n_row; r++) {
        uint8_t *row = rows + (size_t)r * row_bytes;
        weight_row_make(row, type, c.cols, WEIGHTS_PLAUSIBLE, rng);
        for (size_t at = 0; at < row_bytes; at += (size_t)t->block_bytes)
            memset(row + at + from, fills[r], to - from);
    }
    batch_init(&b, c.n_token, c.cols, true, false, rng);
    largest_activations(&b, c.cols, rng);
    kernels_contract()->of[type].dot(want, rows, row_bytes, c.n_row, b.rows, c.n_token, c.cols);
    one_nan(want, n);
    compare_sets(sets, n_set, &c, rows, row_bytes, &b, want);
    batch_free(&b);
    mem_free(want);
    mem_free(rows);
}

static void test_traps(const kernel_set *sets[], int n_set)
{
    test_rng rng = { 20240918 };
    for (int n = 1; n <= 70; n++) {
        test_minus_zero(sets, n_set, QT_F32, n);
        test_minus_zero(sets, n_set, QT_F16, n);
        test_minus_zero(sets, n_set, QT_BF16, n);
    }
    for (int n = 1; n <= 48; n++) {
        test_mxfp4_row(sets, n_set, n, 1, 1, 0x22, -0x1p-99f, "all lanes underflow to -0");
        test_mxfp4_row(sets, n_set, n, 120, 255, 0x22, 1.0f, "the last scale is infinite");
        test_mxfp4_row(sets, n_set, n, 254, 254, 0x77, -3.0f, "sums overflow");
    }
    for (size_t i = 0; i < ARRAY_LEN(codes_of); i++)
        test_largest(sets, n_set, codes_of[i].type, codes_of[i].from, codes_of[i].to, &rng);
}

/* ---- names --------------------------------------------------------------------------------- */

static void test_names(const kernel_set *sets[], int n_set)
{
    err_ctx err = { 0 };
    CHECK(n_set >= 1 && sets[n_set - 1] == kernels_contract());
    for (int i = 0; i < n_set; i++) CHECK(kernels_named(sets[i]->isa, &err) == sets[i]);
    CHECK(kernels_named(NULL, &err) == sets[0] && kernels_named("", &err) == sets[0]);
    CHECK(kernels_named("z80", &err) == NULL && strstr(err.msg, "'z80'") &&
          strstr(err.msg, "scalar"));
    for (int i = 0; i < n_set; i++)
        for (int type = 0; type < QT_COUNT; type++) {
            const kernel *k = &sets[i]->of[type], *ref = &kernels_contract()->of[type];
            CHECK_MSG(!k->dot == !ref->dot && k->factor == ref->factor &&
                      k->quantised == ref->quantised && (!k->wide || k->wide_from > 0),
                      "%s: kernel of type %d", sets[i]->isa, type);
        }
}

int main(int argc, char **argv)
{
    const kernel_set *sets[KERNELS_MAX_SETS];
    const int n_set = kernels_here(sets);
    test_rng rng = { 20240917 };

    test_begin("kernels", argc, argv);
    test_names(sets, n_set);
    test_traps(sets, n_set);
    for (int type = 0; type < QT_COUNT; type++) {
        bool any = false;
        for (int i = 0; i < n_set; i++)
            any = any || sets[i]->of[type].wide ||
                  sets[i]->of[type].dot != kernels_contract()->of[type].dot;
        if (any) test_type(sets, n_set, (quant_type)type, &rng);
    }
    return test_end();
}
