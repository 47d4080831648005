/* test_gpu_blocks.cu - cuda/blocks.cuh, compiled for the host, against the contract's unpackers.
 *
 * Needs no GPU: the arithmetic of unpack, block_value and block_affine is the same on the host,
 * except for how words are loaded. All 8 blocks of groups of random bytes, at all addresses that a
 * format may have; weights and scales must be equal, values must have the same bits. */
#pragma GCC diagnostic ignored "-Wenum-compare"  /* the traits of a format are one enum */
#include "cuda/blocks.cuh"
#include "loader/base.h"

/* C headers that do not mention C++ */
#define restrict __restrict__
extern "C" {
#include "engine/cpu/contract_blocks.h"
#include "engine/cpu/kernels.h"
#include "tests/make_weights.h"
#include "tests/test.h"
}
#undef restrict

enum { GROUPS = 300, MAX_LINES = 5 };    /* of a type; failures that are printed of it */

static bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static bool same_value(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* One block of the reference. */
typedef struct reference {
    const int8_t *w;
    int sc[2], m[2];
    float d, c, f[2];
    parts_kind kind;
} reference;

static reference reference_of(const block_parts *p, parts_kind kind, int l)
{
    reference r = {};
    r.w = p->w + 32 * l;
    r.kind = kind;
    r.d = p->d[l];
    r.c = p->c[l];
    for (int h = 0; h < 2; h++) {
        r.sc[h] = p->sc[h][l];
        r.m[h] = p->m[h][l];
        r.f[h] = p->f[h][l];
    }
    return r;
}

/* As docs/numerics.md has it. */
static float reference_value(const reference &r, const int8_t *q)
{
    int sum[2] = { 0, 0 }, s[2] = { 0, 0 };
    for (int i = 0; i < 32; i++) {
        sum[i / 16] += r.w[i] * q[i];
        s[i / 16] += q[i];
    }
    if (r.kind == PARTS_TWO_SCALES) {
        const float second = r.f[1] * (float)sum[1];
        return fmaf(r.f[0], (float)sum[0], second);
    }
    const int a = r.sc[0] * sum[0] + r.sc[1] * sum[1];
    if (r.kind == PARTS_PLAIN) return r.d * (float)a;
    const float minimum = r.c * (float)(r.m[0] * s[0] + r.m[1] * s[1]);
    return fmaf(r.d, (float)a, minimum);
}

/* What differs, or NULL. */
template <int TYPE> static const char *compare_parts(const weight_parts &p, const reference &r)
{
    typedef format<TYPE> F;
    for (int i = 0; i < 32; i++)
        if ((int8_t)(p.w[i / 4] >> 8 * (i % 4)) != r.w[i]) return "a weight";
    for (int h = 0; h < 2; h++) {
        const int at = F::by_half ? h : 0;
        if (F::kind == BLOCK_TWO_SCALES) {
            if (!same_bits(p.f[h], r.f[h])) return "f";
            continue;
        }
        if ((F::scaled ? p.sc[at] : 1) != r.sc[h]) return "a scale";
        if (F::kind == BLOCK_MINIMUM && (F::scaled ? p.m[at] : 1) != r.m[h]) return "a minimum";
    }
    if (F::kind != BLOCK_TWO_SCALES && !same_bits(p.d, r.d)) return "d";
    if (F::kind == BLOCK_MINIMUM && !same_bits(p.c, r.c)) return "c";
    return NULL;
}

template <int TYPE> static const char *compare_values(const weight_parts &p, const reference &r,
                                                      test_rng *rng)
{
    for (int round = 0; round < 4; round++) {
        int8_t q[32];
        uint32_t words[8];
        int s[2] = { 0, 0 };
        for (int i = 0; i < 32; i++) {
            q[i] = (int8_t)(round == 0 ? 127 : round == 1 ? -127 : (int)test_below(rng, 255) - 127);
            s[i / 16] += q[i];
        }
        memcpy(words, q, sizeof words);
        const float got = block_value<TYPE>(p, words, s[0], s[1]);
        if (!same_bits(got, reference_value(r, q))) return "the value";
    }
    return NULL;
}

/* Every weight as scale * w + offset against the decoder. exact: without reserved codes, which the
 * contract reads differently. */
template <int TYPE> static const char *compare_affine(const weight_parts &p, const reference &r,
                                                      const float *decoded, bool exact)
{
    typedef format<TYPE> F;
    float scale[2], offset[2];
    block_affine<TYPE>(scale, offset, p);
    for (int h = 0; h < 2; h++) {
        const float want = r.kind == PARTS_TWO_SCALES ? r.f[h] : r.d * (float)r.sc[h];
        const float minimum = r.kind == PARTS_MINIMUM ? r.c * (float)r.m[h] : 0.0f;
        if (!same_value(scale[h], want)) return "the affine scale";
        if (!same_value(offset[h], minimum)) return "the affine offset";
    }
    for (int i = 0; i < 32 && exact; i++)
        if (!same_value(F::factor * fmaf(scale[i / 16], (float)r.w[i], offset[i / 16]), decoded[i]))
            return "a decoded weight";
    return NULL;
}

/* Addresses at which a group may begin: where kernels load 16 bytes at once, multiples of 16; else
 * of 2 where there are binary16 fields. */
static int alignment_of(int type)
{
    return type == QT_Q4_K || type == QT_Q5_K ? 16 : type == QT_MXFP4 || type == QT_NVFP4 ? 1 : 2;
}

template <int TYPE> static void test_group(const uint8_t *group, weight_kind made, int shift,
                                           int *shown, test_rng *rng)
{
    const block_format *ref = contract_blocks_of(TYPE);
    const quant_traits *t = quant_traits_of(TYPE);
    block_parts parts;
    float decoded[SEGMENT];
    memset(&parts, 0, sizeof parts);
    ref->unpack(&parts, group, SEGMENT_BLOCKS);
    t->decode(decoded, group, (size_t)(SEGMENT / t->block_elems));
    for (int l = 0; l < SEGMENT_BLOCKS; l++) {
        const reference r = reference_of(&parts, ref->kind, l);
        weight_parts p;
        memset(&p, 0x5A, sizeof p);
        unpack<TYPE>(p, group, l);
        const char *what = compare_parts<TYPE>(p, r);
        if (!what) what = compare_values<TYPE>(p, r, rng);
        if (!what)
            what = compare_affine<TYPE>(p, r, decoded + 32 * l, made == WEIGHTS_PLAUSIBLE);
        if (!what || (*shown)++ < MAX_LINES)
            CHECK_MSG(!what, "%s, %s, at %d past a multiple of 16, block %d: %s differs", t->name,
                      weight_kind_name(made), shift, l, what);
    }
}

template <int TYPE> static void test_type(test_rng *rng)
{
    typedef format<TYPE> F;
    static const block_kind kinds[] = { BLOCK_PLAIN, BLOCK_MINIMUM, BLOCK_TWO_SCALES };
    const block_format *ref = contract_blocks_of(TYPE);
    const char *name = quant_name(TYPE);
    int shown = 0;
    if (!CHECK_MSG(ref != NULL, "%s has no blocks", name)) return;
    CHECK_MSG((int)F::kind == (int)kinds[ref->kind], "%s: kind %d", name, (int)F::kind);
    CHECK_MSG((int)F::group_bytes == ref->segment_bytes, "%s: %d bytes in a group, expected %d",
              name, (int)F::group_bytes, ref->segment_bytes);
    CHECK_MSG(F::factor == kernels_contract()->of[TYPE].factor, "%s: factor %g", name,
              (double)F::factor);
    for (int i = 0; i < GROUPS; i++) {
        const weight_kind made = (weight_kind)(i % WEIGHT_KINDS);
        const int shift = i / WEIGHT_KINDS * alignment_of(TYPE) % 16;
        uint8_t *room = (uint8_t *)test_alloc(F::group_bytes + 64, 1);
        uint8_t *group = (uint8_t *)(((uintptr_t)room + 31) / 16 * 16) + shift;
        weight_row_make(group, (quant_type)TYPE, SEGMENT, made, rng);
        test_group<TYPE>(group, made, shift, &shown, rng);
        mem_free(room);
    }
    CHECK_MSG(shown <= MAX_LINES, "%s: %d more blocks differ", name, shown - MAX_LINES);
}

int main(int argc, char **argv)
{
    test_rng rng = { 41 };
    test_begin("gpu blocks", argc, argv);
#define TEST(TYPE) test_type<TYPE>(&rng);
    GPU_BLOCK_TYPES(TEST)
#undef TEST
    return test_end();
}
