/* make_weights.c - random blocks, with the scales put right afterwards; activations. */
#include "tests/make_weights.h"

#include <math.h>
#include <string.h>

#include "loader/bytes.h"
#include "loader/quant_blocks.h"

const char *weight_kind_name(weight_kind kind)
{
    static const char *const names[] = { "random bytes", "plausible scales", "extreme scales",
                                         "largest sums" };
    return names[kind];
}

/* Where the binary16 scales of a block are. */
typedef struct half_scales { quant_type type; int at[2]; } half_scales;
static const half_scales halves[] = {
    { QT_Q4_0, { 0, -1 } }, { QT_Q4_1, { 0, 2 } }, { QT_Q5_0, { 0, -1 } }, { QT_Q5_1, { 0, 2 } },
    { QT_Q8_0, { 0, -1 } }, { QT_IQ4_NL, { 0, -1 } }, { QT_IQ4_XS, { 0, -1 } },
    { QT_Q2_K, { offsetof(block_q2_k, d), offsetof(block_q2_k, dmin) } },
    { QT_Q3_K, { offsetof(block_q3_k, d), -1 } },
    { QT_Q4_K, { offsetof(block_q4_k, d), offsetof(block_q4_k, dmin) } },
    { QT_Q5_K, { offsetof(block_q5_k, d), offsetof(block_q5_k, dmin) } },
    { QT_Q6_K, { offsetof(block_q6_k, d), -1 } },
};

static uint16_t half_scale(weight_kind kind, test_rng *rng)
{
    static const uint16_t extreme[] = { 0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF };
    if (kind == WEIGHTS_EXTREME) return extreme[test_below(rng, ARRAY_LEN(extreme))];
    return (uint16_t)(0x1000 + test_below(rng, 0x1800));     /* 2^-11 .. 2^-5 */
}

static uint16_t sign(test_rng *rng) { return (uint16_t)(test_below(rng, 2) << 15); }

static const half_scales *halves_of(quant_type type)
{
    for (size_t i = 0; i < ARRAY_LEN(halves); i++) if (halves[i].type == type) return &halves[i];
    return NULL;
}

static void put_scales(uint8_t *block, quant_type type, const half_scales *of, weight_kind kind,
                       test_rng *rng)
{
    static const uint8_t exponents[] = { 0, 1, 2, 253, 254, 255, 127, 128 };
    static const uint8_t codes[] = { 0, 1, 7, 8, 0x7E, 0x7F, 0x80, 0xFF, 0xFE };
    const bool extreme = kind == WEIGHTS_EXTREME;
    for (int k = 0; of && k < 2; k++)
        if (of->at[k] >= 0) store_u16(block + of->at[k], half_scale(kind, rng));
    if (type == QT_MXFP4)
        block[0] = extreme ? exponents[test_below(rng, ARRAY_LEN(exponents))]
                           : (uint8_t)(115 + test_below(rng, 12));
    for (int k = 0; type == QT_NVFP4 && k < 4; k++)
        block[k] = extreme ? codes[test_below(rng, ARRAY_LEN(codes))]
                           : (uint8_t)(0x28 + test_below(rng, 0x20));        /* 1/4 .. 4 */
}

static void put_floats(uint8_t *row, quant_type type, size_t n, weight_kind kind, test_rng *rng)
{
    for (size_t i = 0; i < n && type == QT_F32; i++) {
        const float v = (float)test_below(rng, 2000) * 0.001f - 1.0f;
        memcpy(row + i * sizeof v, &v, sizeof v);
    }
    for (size_t i = 0; i < n && type == QT_F16; i++)
        store_u16(row + 2 * i, half_scale(kind, rng) ^ sign(rng));
    for (size_t i = 0; i < n && type == QT_BF16; i++)
        store_u16(row + 2 * i, (uint16_t)(0x3C00 + test_below(rng, 0x200)) | sign(rng));
}

void weight_row_make(uint8_t *row, quant_type type, int cols, weight_kind kind, test_rng *rng)
{
    static const uint8_t fills[] = { 0, 0xFF, 0x77, 0x7F, 0x80, 0x88, 0xF7 };
    const quant_traits *t = quant_traits_of(type);
    const size_t bytes = (size_t)t->block_bytes, n = (size_t)(cols / t->block_elems);
    const half_scales *scales = halves_of(type);
    const bool floats = type == QT_F32 || type == QT_F16 || type == QT_BF16;
    const uint8_t fill = fills[test_below(rng, ARRAY_LEN(fills))];
    if (kind == WEIGHTS_LARGEST) memset(row, fill, n * bytes);
    else test_fill(rng, row, n * bytes);
    if (kind == WEIGHTS_RANDOM) return;
    if (floats) put_floats(row, type, n, kind, rng);
    for (size_t b = 0; b < n && !floats; b++) put_scales(row + b * bytes, type, scales, kind, rng);
}

/* ---- activations --------------------------------------------------------------------------- */

static float spread(test_rng *rng)
{
    float v = 0;
    uint64_t word = test_rand(rng);
    for (int i = 0; i < 4; i++, word >>= 16) v += (float)(word & 0xFFFF) / 65536.0f - 0.5f;
    return v;
}

/* One block: mostly plain, now and then a case that quantisation treats specially. */
static void make_block(float *x, int n, bool poison, test_rng *rng)
{
    const uint32_t kind = test_below(rng, 26);
    const float scale = kind == 0 ? 0.0f : kind == 1 ? 0x1p-110f : kind == 2 ? 0x1p-98f :
                        kind == 3 ? 0x1p90f : kind == 4 ? 100.0f : 1.0f;
    for (int i = 0; i < n; i++) x[i] = spread(rng) * scale;
    if (kind == 5)                       /* ties: the largest is 127, the rest end in one half */
        for (int i = 0; i < n; i++) x[i] = i == 0 ? 127.0f : (float)test_below(rng, 126) + 0.5f;
    if (kind >= 24)                      /* codes of 127 or -127 throughout: the largest sums */
        for (int i = 0; i < n; i++) x[i] = kind == 24 ? 1.0f : -1.0f;
    if (kind == 6 && poison) x[test_below(rng, (uint32_t)n)] = test_below(rng, 2) ? INFINITY : NAN;
}

void activations_make(float *x, int cols, bool poison, test_rng *rng)
{
    for (int c = 0; c < cols; c += 32) make_block(x + c, min_int(cols - c, 32), poison, rng);
}
