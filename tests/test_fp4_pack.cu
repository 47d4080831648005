/* test_fp4_pack.cu - cuda/fp4_pack.cuh, compiled for the host: where scales lie, against a layout
 * written from the manual; weights against the decoder; activations against a search.
 *
 * Needs no GPU. */
#pragma GCC diagnostic ignored "-Wenum-compare"  /* the traits of a format are one enum */
#include "cuda/fp4_pack.cuh"
#include "loader/base.h"

#include <vector>

/* C headers that do not mention C++ */
#define restrict __restrict__
extern "C" {
#include "tests/test.h"
#include "tests/weight_maker.h"
}
#undef restrict

/* ---- places of scales ------------------------------------------------------------------------ */

/* The manual's picture, walked instead of computed: tiles in order, in a tile 32 lines of 16 bytes,
 * in a line four groups (rows 32 apart) of four neighbouring blocks. */
static std::vector<long> walk_places(int outer, int n_block, size_t *bytes)
{
    std::vector<long> at((size_t)outer * (size_t)n_block, -1);
    long next = 0;
    for (int row = 0; row < outer; row += 128)
        for (int block = 0; block < n_block; block += 4)
            for (int line = 0; line < 32; line++)
                for (int group = 0; group < 4; group++)
                    for (int i = 0; i < 4; i++, next++) {
                        const int r = row + 32 * group + line, b = block + i;
                        if (r < outer && b < n_block) at[(size_t)r * (size_t)n_block + b] = next;
                    }
    *bytes = (size_t)next;
    return at;
}

static void test_places(void)
{
    static const struct { int outer, n_block; const char *why; } rows[] = {
        { 1, 1, "one" }, { 128, 4, "a tile" }, { 129, 5, "just more" }, { 127, 3, "just less" },
        { 4096, 180, "gpt-oss, q" }, { 300, 128, "many blocks" }, { 1000, 7, "ragged" },
    };
    for (const auto &row : rows) {
        size_t bytes, wrong = 0;
        const std::vector<long> want = walk_places(row.outer, row.n_block, &bytes);
        for (int r = 0; r < row.outer; r++)
            for (int b = 0; b < row.n_block; b++)
                wrong += fp4_scale_at(r, b, row.n_block) !=
                         (size_t)want[(size_t)r * (size_t)row.n_block + b];
        CHECK_MSG(wrong == 0, "%s: %zu of %d x %d scales elsewhere", row.why, wrong, row.outer,
                  row.n_block);
        CHECK_MSG(fp4_scales_bytes(row.outer, row.n_block) == bytes, "%s: bytes", row.why);
    }
    /* by hand: within a line, the next line, the next group, the end; the tile on, the row on */
    CHECK(fp4_scale_at(0, 3, 8) == 3 && fp4_scale_at(1, 0, 8) == 16);
    CHECK(fp4_scale_at(32, 0, 8) == 4 && fp4_scale_at(127, 3, 8) == 511);
    CHECK(fp4_scale_at(0, 4, 8) == 512 && fp4_scale_at(128, 0, 8) == 1024);
}

/* ---- weights --------------------------------------------------------------------------------- */

static uint32_t digit(const uint32_t *codes, int i) { return codes[i / 8] >> 4 * (i % 8) & 15u; }

static void test_weights(void)
{
    test_rng rng = { 5 };
    uint8_t bytes[64];
    float want[64];
    for (int round = 0; round < 500; round++) {
        for (uint8_t &b : bytes) b = (uint8_t)test_below(&rng, 256);
        for (int j = 0; j < 4; j++)      /* reserved codes: the contract has its own view of them */
            if ((bytes[1 + j] & 0x7F) == 0x7F) bytes[1 + j] = 0x30;
        quant_traits_of(QT_NVFP4)->decode(want, bytes + 1, 1);
        for (int j = 0; j < 4; j++) {
            uint32_t codes[2];
            const uint32_t scale = fp4_take_nvfp4(codes, bytes + 1, j);
            for (int i = 0; i < 16; i++)
                CHECK_MSG(fp4_e4m3_value(scale) * fp4_value(digit(codes, i)) == want[16 * j + i],
                          "NVFP4, sub-block %d, weight %d", j, i);
        }
        bytes[3] = (uint8_t)(1 + test_below(&rng, 250));
        quant_traits_of(QT_MXFP4)->decode(want, bytes + 3, 1);
        uint32_t codes[4];
        const uint32_t scale = fp4_take_mxfp4(codes, bytes + 3);
        for (int i = 0; i < 32; i++)
            CHECK_MSG(fp4_e8m0_value(scale) * fp4_value(digit(codes, i)) == want[i],
                      "MXFP4, weight %d, scale %u", i, scale);
    }
}

/* ---- activations ----------------------------------------------------------------------------- */

/* The nearest code by trying all; of two equally near the even one. */
template <typename F> static uint32_t search(float v, uint32_t n, F value)
{
    uint32_t best = 0;
    for (uint32_t c = 1; c < n; c++) {
        const double now = fabs((double)value(c) - v), was = fabs((double)value(best) - v);
        if (now < was || (now == was && c % 2 == 0)) best = c;
    }
    return best;
}

static void test_codes(void)
{
    for (int i = 0; i <= 4000; i++) {
        const float v = (float)i * 0.002f;
        CHECK_MSG(fp4_code(v) == search(v, 8, fp4_value), "E2M1 of %g", (double)v);
        if (i > 0) CHECK_MSG(fp4_code(-v) == (fp4_code(v) | 8u), "E2M1 of %g", (double)-v);
    }
    for (int i = 0; i < 6000; i++) {
        const float v = 0x1p-11f * powf(1.004f, (float)i);
        const uint32_t want = v >= 448.0f ? 0x7Eu : search(v, 0x7F, fp4_e4m3_value);
        CHECK_MSG(fp4_e4m3_code(v) == want, "E4M3 of %g: %u instead of %u", (double)v,
                  fp4_e4m3_code(v), want);
        const float power = fp4_e8m0_value(fp4_e8m0_code(v));
        CHECK_MSG(v <= 6 * power && v > 3 * power, "E8M0 of %g", (double)v);
    }
    for (uint32_t c = 0; c < 0x7F; c++)
        CHECK_MSG(fp4_e4m3_code(fp4_e4m3_value(c)) == c, "E4M3 code %u", c);
}

template <int N> static void check_pack(test_rng *rng, float size)
{
    float v[N], was[N];
    uint32_t codes[2][N / 8], scale[2];
    for (int i = 0; i < N; i++)
        v[i] = was[i] = size * ((float)test_below(rng, 20001) / 10000.0f - 1.0f);
    for (int pass = 0; pass < 2; pass++) scale[pass] = fp4_pack<N>(codes[pass], v);
    for (int i = 0; i < N; i++) {
        double sum = 0;
        for (int pass = 0; pass < 2; pass++)
            sum += (double)(N == 16 ? fp4_e4m3_value(scale[pass]) : fp4_e8m0_value(scale[pass])) *
                   fp4_value(digit(codes[pass], i));
        /* a sixth of the largest is left after the first pass at most, or a third of a power of
         * two; a sixth of that after the second */
        CHECK_MSG(fabs(sum - was[i]) <= size / (N == 16 ? 30 : 8), "%d values of %g: %g is %g", N,
                  (double)size, (double)was[i], sum);
        CHECK_MSG(fabs(sum + v[i] - was[i]) <= 1e-6 * size, "what is left of %g", (double)was[i]);
    }
}

static void test_pack(void)
{
    test_rng rng = { 6 };
    for (int i = 0; i < 300; i++) {
        check_pack<16>(&rng, 400.0f);
        check_pack<16>(&rng, 3.0f);
        check_pack<32>(&rng, 1000.0f);
        check_pack<32>(&rng, 0.001f);
    }
    float zeros[16] = {};
    uint32_t codes[2];
    CHECK(fp4_pack<16>(codes, zeros) == 0 && codes[0] == 0 && codes[1] == 0);
}

int main(int argc, char **argv)
{
    test_begin("fp4 pack", argc, argv);
    test_places();
    test_weights();
    test_codes();
    test_pack();
    return test_end();
}
