/* x86_avxvnni_blocks.c - AVX-VNNI kernels of the types with weights of 8 bits: Q8_0, IQ4_NL and
 * IQ4_XS. For other types AVX-VNNI is not faster than AVX2.
 *
 * dpbusd adds four products to 32 bits, which cannot overflow. So weights are made unsigned by an
 * offset, while AVX2 must move the sign of each to its activation, and sums need no widening. The
 * offset times the sum of the activations is subtracted from the block sums. */
#include "engine/cpu/isa_sets.h"
#include "engine/cpu/x86_avx2.h"
#include "engine/cpu/x86_iq4.h"
#include "loader/quant_blocks.h"

enum { OFFSET = 128 };

AVX_INLINE __m256i products(const segment *g, const act_segment *x, int j)
{
    return _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), g->w[j], load256(x->q + 32 * j));
}

/* Returns the sums of the blocks with offset weights, in the order of block_sums(). */
AVX_INLINE __m256i offset_sums(const segment *g, const act_segment *x)
{
    __m256i v[4];
    for (int j = 0; j < 4; j++)
        v[j] = merge_halves(products(g, x, j), products(g, x, j + 4), false);
    for (int j = 0; j < 2; j++) v[j] = merge_quarters(v[2 * j], v[2 * j + 1], false);
    return merge_neighbours(v[0], v[1], false);
}

AVX_INLINE __m256 values(const segment *g, const act_segment *x)
{
    const __m256i of_offset = _mm256_madd_epi16(load256(x->s), _mm256_set1_epi16(OFFSET));
    const __m256i sums = _mm256_sub_epi32(offset_sums(g, x), of_offset);
    return _mm256_mul_ps(g->d, _mm256_cvtepi32_ps(sums));
}

AVX_INLINE void q8_0_unpack(segment *g, const uint8_t *p)
{
    const block_q8_0 *b = (const void *)p;
    for (int j = 0; j < 8; j++)
        g->w[j] = _mm256_xor_si256(load256(b[j].quants), _mm256_set1_epi8((char)OFFSET));
    g->d = halves_at(b->d, sizeof *b);
}

AVX_INLINE void iq4_nl_unpack(segment *g, const uint8_t *p)
{
    iq4_nl_levels(g, p, OFFSET);
}

AVX_INLINE void iq4_xs_unpack(segment *g, const uint8_t *p)
{
    iq4_xs_levels(g, p, OFFSET);
}

/* ---- the table ----------------------------------------------------------------------------- */

#define FORMATS(X) X(Q8_0, q8_0, 32) X(IQ4_NL, iq4_nl, 32) X(IQ4_XS, iq4_xs, 256)

#define DEFINE_DOT(NAME, format, elems)                                                            \
    static void dot_##format(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,        \
                             const act_row *x, int n_token, int cols)                              \
    {                                                                                              \
        static const segment_kernel k = { format##_unpack, values,                                 \
                                          256 / (elems) * (int)sizeof(block_##format),             \
                                          (elems) < 256 };                                         \
        walk_rows(&k, sums, rows, row_bytes, n_row, x, n_token, cols);                             \
    }
FORMATS(DEFINE_DOT)

void put_avxvnni_blocks(kernel_set *s)
{
#define PUT_DOT(NAME, format, elems) s->of[QT_##NAME].dot = dot_##format;
    FORMATS(PUT_DOT)
}
