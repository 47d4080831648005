/* synth_blocks.c - random blocks of any type, with a given standard deviation of the weights.
 *
 * A block starts as random bytes; a repair step per type then writes scales and removes invalid
 * codes. So the codes are evenly distributed, and the standard deviation of a weight is (standard
 * deviation of the codes with d = 1) times d. The first factor is measured when a synth_blocks is
 * prepared, by decoding some blocks made with d = 1.
 *
 * d is one of 16 values between 0.8 and 1.2 of the wanted one. MXFP4 and NVFP4 have scales too
 * coarse for that: there two neighbouring scale bytes alternate at random so that the mean square
 * fits.
 *
 * The mean must be zero: a matrix whose entries lean to one side adds the same number to all of its
 * outputs, and that grows from layer to layer. Formats with a minimum get the one that centres
 * their codes; formats whose code range is lopsided lose a code or trade one for another. */
#include "cli/synth/synth_blocks.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "loader/base.h"
#include "loader/bytes.h"
#include "loader/quant_blocks.h"

/* ---- random bytes ------------------------------------------------------------------------ */

void synth_bytes(uint8_t *out, uint64_t at, size_t n, uint64_t key)
{
    uint64_t i = at / 8, w;
    const size_t skip = (size_t)(at % 8);

    if (skip) {
        const size_t take = n < 8 - skip ? n : 8 - skip;
        w = random_word(key, i++);
        memcpy(out, (const uint8_t *)&w + skip, take);
        out += take;
        n -= take;
    }
    for (; n >= 8; n -= 8, out += 8) store_u64(out, random_word(key, i++));
    if (n) {
        w = random_word(key, i);
        memcpy(out, &w, n);
    }
}

/* ---- numbers ----------------------------------------------------------------------------- */

/* Nearest binary16 of a positive value below 65504; smaller than 2^-24 becomes 2^-24, never 0. */
static uint16_t f16_from(double v)
{
    int e;
    double scaled;
    if (v >= 65504) return 0x7BFF;
    frexp(v, &e);                                    /* v in [2^(e-1), 2^e) */
    if (e < -13) e = -13;                            /* subnormals share the exponent of 2^-14 */
    scaled = nearbyint(ldexp(v, 11 - e));            /* 1024..2048 if normal, less if not */
    if (scaled < 1) scaled = 1;
    /* adding instead of joining: a carry out of the mantissa moves the exponent, as it must */
    return (uint16_t)((uint32_t)(e + 13) * 1024 + (uint32_t)scaled);
}

/* Bit 0 of each nibble of the result: that nibble of x is zero. */
static uint64_t zero_nibbles(uint64_t x)
{
    x |= x >> 1;
    x |= x >> 2;
    return ~x & 0x1111111111111111u;
}

/* ---- repairs ----------------------------------------------------------------------------- */

/* Each function makes n blocks of random bytes valid, except for d and the minimum. */
typedef void repair_fn(uint8_t *b, size_t n);

/* Code 0 (-8) has no counterpart: 8, which is weight 0. */
static void repair_q4_0(uint8_t *b, size_t n)
{
    for (; n; n--, b += sizeof(block_q4_0))
        for (int k = 2; k < 18; k += 8) {
            const uint64_t x = load_u64(b + k);
            store_u64(b + k, x | zero_nibbles(x) << 3);
        }
}

/* The same for code 0 of 5 bits: setting its fifth bit makes it 16, which is weight 0. */
static void repair_q5_0(uint8_t *b, size_t n)
{
    for (; n; n--, b += sizeof(block_q5_0)) {
        const uint8_t *q = ((const block_q5_0 *)b)->nibbles;
        uint32_t high = load_u32(b + 2);
        for (int k = 0; k < 16; k++) {
            high |= (uint32_t)((q[k] & 15) == 0) << k;
            high |= (uint32_t)((q[k] >> 4) == 0) << (k + 16);
        }
        store_u32(b + 2, high);
    }
}

/* -128 is never written by a quantizer: 0. */
static void repair_q8_0(uint8_t *b, size_t n)
{
    const uint64_t sevens = 0x7F7F7F7F7F7F7F7Fu;
    for (; n; n--, b += sizeof(block_q8_0))
        for (int k = 2; k < 34; k += 8) {
            const uint64_t x = load_u64(b + k), y = x ^ ~sevens;
            store_u64(b + k, x ^ ~(((y & sevens) + sevens) | y | sevens));
        }
}

/* The 16 levels sum to -94, the difference of level 1 and level 7: code 1 becomes 7. */
static void repair_iq4_nl(uint8_t *b, size_t n)
{
    for (; n; n--, b += sizeof(block_iq4_nl))
        for (int k = 2; k < 18; k += 8) {
            const uint64_t x = load_u64(b + k), ones = zero_nibbles(x ^ 0x1111111111111111u);
            store_u64(b + k, x | ones << 1 | ones << 2);
        }
}

/* Codes 0..3 are weights -1..2. Of the threes one quarter stays, a quarter becomes 1, half 0. */
static void repair_q2_0(uint8_t *b, size_t n)
{
    const uint64_t low = 0x5555555555555555u;
    for (; n; n--, b += sizeof(block_q2_0))
        for (int k = 2; k < 18; k += 8) {
            const uint64_t x = load_u64(b + k), coin = random_word(x, 0);
            const uint64_t threes = x & x >> 1 & low, one = threes & coin >> 1;
            store_u64(b + k, (x & ~(threes * 3)) | one | (one & coin) << 1);
        }
}

/* Three values only: code 3 becomes 1, weight 0. */
static void repair_tq2_0(uint8_t *b, size_t n)
{
    for (; n; n--, b += sizeof(block_tq2_0))
        for (int k = 0; k < 64; k += 8) {
            const uint64_t x = load_u64(b + k);
            store_u64(b + k, x & ~((x & x >> 1 & 0x5555555555555555u) << 1));
        }
}

/* The smallest byte v for which v / 256 has these digits in base 3. */
static void repair_tq1_0(uint8_t *b, size_t n)
{
    for (; n; n--, b += sizeof(block_tq1_0)) {
        for (int k = 0; k < 48; k++) b[k] = (uint8_t)(((b[k] * 243 >> 8) * 256 + 242) / 243);
        for (int k = 48; k < 52; k++) b[k] = (uint8_t)(((b[k] * 81 >> 8) * 256 + 80) / 81);
    }
}

/* Scales of 6 bits less 32: both upper bits alike makes them -32..-17 or 16..31. */
static void repair_q3_k(uint8_t *b, size_t n)
{
    for (; n; n--, b += sizeof(block_q3_k)) {
        uint8_t *scales = ((block_q3_k *)b)->scales;
        for (int k = 8; k < 12; k++) scales[k] = (uint8_t)((scales[k] & 0x55) * 3);
    }
}

static void repair_iq4_xs(uint8_t *b, size_t n)
{
    for (; n; n--, b += sizeof(block_iq4_xs))
        store_u16(b + 2, (uint16_t)((load_u16(b + 2) & 0x5555) * 3));
}

/* Signed scales of 8 bits: bit 6 against bit 7 makes them 64..127 or -128..-65. */
static void repair_q6_k(uint8_t *b, size_t n)
{
    for (; n; n--, b += sizeof(block_q6_k)) {
        uint8_t *scales = b + offsetof(block_q6_k, scales);
        for (int k = 0; k < 16; k++)
            scales[k] = (uint8_t)((scales[k] & ~0x40) | (~scales[k] >> 1 & 0x40));
    }
}

/* Of IQ1_M, too, the upper half of the scales is taken. */
static void repair_iq1_m(uint8_t *b, size_t n)
{
    for (; n; n--, b += sizeof(block_iq1_m))
        for (int k = 0; k < 4; k++) {
            uint8_t *w = ((block_iq1_m *)b)->scales[k];
            store_u16(w, load_u16(w) | 0x924);
        }
}

/* Scales that need no more than some bits set: n bytes of a block, step apart, from `at` on. */
static const struct raised_scales { size_t at, step; int n; uint8_t bits; } raised[QT_COUNT] = {
    /* scales and minimums of 4 bits: 8..15; of 6 bits: 32..63, whose top bits are in 8 bytes */
    [QT_Q2_K] = { 0, 1, 16, 0x88 },
    [QT_Q4_K] = { offsetof(block_q4_k, scales), 1, 8, 0xA0 },
    [QT_Q5_K] = { offsetof(block_q5_k, scales), 1, 8, 0xA0 },
    /* codebooks: indices and signs may be anything; the upper half of the scales is taken */
    [QT_IQ2_XXS] = { offsetof(block_iq2_xxs, part) + 7, 8, 8, 0x80 },
    [QT_IQ2_XS] = { offsetof(block_iq2_xs, scales), 1, 8, 0x88 },
    [QT_IQ2_S] = { offsetof(block_iq2_s, scales), 1, 8, 0x88 },
    [QT_IQ3_XXS] = { offsetof(block_iq3_xxs, signs_scale) + 3, 4, 8, 0x80 },
    [QT_IQ3_S] = { offsetof(block_iq3_s, scales), 1, 4, 0x88 },
    [QT_IQ1_S] = { offsetof(block_iq1_s, words) + 1, 2, 8, 0x40 },
};

static void raise_scales(const struct raised_scales *r, uint8_t *b, size_t n, size_t stride)
{
    for (; n; n--, b += stride)
        for (int k = 0; k < r->n; k++) b[r->at + (size_t)k * r->step] |= r->bits;
}

/* ---- where d is -------------------------------------------------------------------------- */

/* centre: the minimum that centres the codes is centre * d, as the format's sign wants it. */
static const struct block_layout {
    repair_fn *repair;
    int d_at, m_at;                      /* -1: the format has none, or not as a binary16 */
    double centre;
} layouts[QT_COUNT] = {
#define D_ONLY(block, fn) { fn, offsetof(block, d), -1, 0 }
    [QT_Q4_0] = D_ONLY(block_q4_0, repair_q4_0),
    [QT_Q4_1] = { NULL, offsetof(block_q4_1, d), offsetof(block_q4_1, m), -7.5 },
    [QT_Q5_0] = D_ONLY(block_q5_0, repair_q5_0),
    [QT_Q5_1] = { NULL, offsetof(block_q5_1, d), offsetof(block_q5_1, m), -15.5 },
    [QT_Q8_0] = D_ONLY(block_q8_0, repair_q8_0),
    [QT_Q2_K] = { NULL, offsetof(block_q2_k, d), offsetof(block_q2_k, dmin), 1.5 },
    [QT_Q3_K] = D_ONLY(block_q3_k, repair_q3_k),
    [QT_Q4_K] = { NULL, offsetof(block_q4_k, d), offsetof(block_q4_k, dmin), 7.5 },
    [QT_Q5_K] = { NULL, offsetof(block_q5_k, d), offsetof(block_q5_k, dmin), 15.5 },
    [QT_Q6_K] = D_ONLY(block_q6_k, repair_q6_k),
    [QT_IQ2_XXS] = D_ONLY(block_iq2_xxs, NULL),
    [QT_IQ2_XS] = D_ONLY(block_iq2_xs, NULL),
    [QT_IQ2_S] = D_ONLY(block_iq2_s, NULL),
    [QT_IQ3_XXS] = D_ONLY(block_iq3_xxs, NULL),
    [QT_IQ3_S] = D_ONLY(block_iq3_s, NULL),
    [QT_IQ1_S] = D_ONLY(block_iq1_s, NULL),
    [QT_IQ1_M] = { repair_iq1_m, -1, -1, 0 },
    [QT_IQ4_NL] = D_ONLY(block_iq4_nl, repair_iq4_nl),
    [QT_IQ4_XS] = D_ONLY(block_iq4_xs, repair_iq4_xs),
    [QT_TQ1_0] = D_ONLY(block_tq1_0, repair_tq1_0),
    [QT_TQ2_0] = D_ONLY(block_tq2_0, repair_tq2_0),
    [QT_Q1_0] = D_ONLY(block_q1_0, NULL),
    [QT_Q2_0] = D_ONLY(block_q2_0, repair_q2_0),
    [QT_MXFP4] = { NULL, -1, -1, 0 },
    [QT_NVFP4] = { NULL, -1, -1, 0 },
#undef D_ONLY
};

/* ---- scales into blocks ------------------------------------------------------------------ */

/* The random bits at the scale's position select the block's scale, before it overwrites them. */
static void put_scales(const synth_blocks *s, uint8_t *b, size_t n)
{
    const struct block_layout *at = &layouts[s->type];
    const size_t stride = (size_t)s->block_bytes;

    if (at->m_at >= 0) {
        for (; n; n--, b += stride) {
            const int i = b[at->d_at] & (SYNTH_LADDER - 1);
            store_u16(b + at->d_at, s->d[i]);
            store_u16(b + at->m_at, s->m[i]);
        }
    } else {
        for (; n; n--, b += stride)
            store_u16(b + at->d_at, s->d[b[at->d_at] & (SYNTH_LADDER - 1)]);
    }
}

/* n_scale bytes at the start of each block. */
static void put_scale_bytes(const synth_blocks *s, uint8_t *b, size_t n, int n_scale)
{
    for (; n; n--, b += s->block_bytes)
        for (int k = 0; k < n_scale; k++) b[k] = b[k] < s->high_of_256 ? s->byte_high : s->byte_low;
}

/* IQ1_M keeps the four nibbles of d in the top of four words. */
static void put_scales_iq1_m(const synth_blocks *s, uint8_t *b, size_t n)
{
    for (; n; n--, b += sizeof(block_iq1_m)) {
        uint8_t (*words)[2] = ((block_iq1_m *)b)->scales;
        const uint32_t d = s->d[words[0][1] >> 4];
        for (int k = 0; k < 4; k++)
            words[k][1] = (uint8_t)((words[k][1] & 15) | (d >> 4 * k & 15) << 4);
    }
}

void synth_blocks_fill(const synth_blocks *s, uint8_t *out, uint64_t first, size_t n, uint64_t key)
{
    const size_t bytes = n * (size_t)s->block_bytes;

    synth_bytes(out, first * (uint64_t)s->block_bytes, bytes, key);
    switch (s->type) {
    case QT_F32:
        for (size_t i = 0; i < bytes; i += 4) {
            const float v = (float)(int32_t)load_u32(out + i) * s->step;
            memcpy(out + i, &v, 4);
        }
        return;
    case QT_F16:
    case QT_BF16:
        for (size_t i = 0; i < bytes; i += 2)
            store_u16(out + i, s->level[load_u16(out + i) % SYNTH_LEVELS]);
        return;
    default: break;
    }
    if (layouts[s->type].repair) layouts[s->type].repair(out, n);
    raise_scales(&raised[s->type], out, n, (size_t)s->block_bytes);
    if (s->type == QT_MXFP4) put_scale_bytes(s, out, n, 1);
    else if (s->type == QT_NVFP4) put_scale_bytes(s, out, n, 4);
    else if (s->type == QT_IQ1_M) put_scales_iq1_m(s, out, n);
    else put_scales(s, out, n);
}

/* ---- preparing a maker ------------------------------------------------------------------- */

/* F16, BF16 and F32 are uniform between -sqrt(3) sigma and sqrt(3) sigma. */
static void init_floats(synth_blocks *s)
{
    const double edge = sqrt(3.0) * s->sigma;
    s->step = (float)ldexp(edge, -31);
    for (int i = 0; i < SYNTH_LEVELS / 2; i++) {
        const double v = edge * (2 * i + 1) / SYNTH_LEVELS;
        const float single = (float)v;
        const uint16_t code = s->type == QT_F16 ? f16_from(v) : (uint16_t)(load_u32(&single) >> 16);
        s->level[2 * i] = code;
        s->level[2 * i + 1] = code | 0x8000;
    }
}

/* The ladder: d between 0.8 and 1.2 times base with base as its root mean square. */
static void set_ladder(synth_blocks *s, double base, double spread)
{
    double sumsq = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < SYNTH_LADDER; i++) {
            const double x = 1 + spread * ((2 * i + 1.0) / SYNTH_LADDER - 1);
            if (pass == 0) { sumsq += x * x; continue; }
            s->d[i] = f16_from(base * x / sqrt(sumsq / SYNTH_LADDER));
            const double m = (double)f16_to_f32(s->d[i]) * layouts[s->type].centre;
            s->m[i] = (uint16_t)(m == 0 ? 0 : f16_from(fabs(m)) | (m < 0 ? 0x8000 : 0));
        }
}

static double scale_of_byte(quant_type type, int code)
{
    return (double)(type == QT_MXFP4 ? e8m0_to_f32 : ue4m3_to_f32)((uint8_t)code);
}

/* Two neighbouring scale bytes around scale, mixed so that the mean square is scale squared. */
static void set_scale_bytes(synth_blocks *s, double scale)
{
    const int last = s->type == QT_MXFP4 ? 250 : 0x7D;
    int low = 1;
    while (low < last && scale_of_byte(s->type, low + 1) <= scale) low++;
    const double a = scale_of_byte(s->type, low), b = scale_of_byte(s->type, low + 1);
    const double share = (scale * scale - a * a) / (b * b - a * a);
    s->byte_low = (uint8_t)low;
    s->byte_high = (uint8_t)(low + 1);
    s->high_of_256 = share <= 0 ? 0 : (int)nearbyint(256 * share);
}

static void set_scale(synth_blocks *s, double scale, double spread)
{
    if (s->type == QT_MXFP4 || s->type == QT_NVFP4) set_scale_bytes(s, scale);
    else set_ladder(s, scale, spread);
}

/* Root mean square of the weights when every d is 1: a property of the type alone. */
static double unit_rms(const synth_blocks *s)
{
    enum { PART = 8, ROUNDS = 64 };
    const quant_traits *q = quant_traits_of((uint32_t)s->type);
    const size_t elems = PART * (size_t)q->block_elems;
    uint8_t blocks[PART * SYNTH_BLOCK_BYTES_MAX];
    float values[PART * 256];
    double sumsq = 0;

    for (int r = 0; r < ROUNDS; r++) {
        synth_blocks_fill(s, blocks, (uint64_t)r * PART, PART, 1);
        q->decode(values, blocks, PART);
        for (size_t i = 0; i < elems; i++) sumsq += (double)values[i] * (double)values[i];
    }
    return sqrt(sumsq / (double)(elems * ROUNDS));
}

void synth_blocks_init(synth_blocks *s, quant_type type, double sigma)
{
    const quant_traits *q = quant_traits_of((uint32_t)type);
    assert(q && q->decode && q->block_bytes <= SYNTH_BLOCK_BYTES_MAX && q->block_elems <= 256);
    *s = (synth_blocks){ .type = type, .block_bytes = q->block_bytes, .sigma = sigma };
    if (type == QT_F32 || type == QT_F16 || type == QT_BF16) {
        init_floats(s);
        return;
    }
    set_scale(s, 1.0, 0.0);
    set_scale(s, sigma / unit_rms(s), 0.2);
}
