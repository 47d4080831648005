/* test_launch_shapes.c - shared memory of every launch that has any, against the chips' limits.
 *
 * Each launch must fit together with the static memory of its kernel, for all architectures, all
 * types and widths beyond those of the families. A newer GPU cannot show that an older one has too
 * little. */
#include "cuda/launch_shapes.h"
#include "loader/quant.h"
#include "tests/test.h"

static const struct { const char *name; chip chip; } chips[] = {
    { "sm_75", { 64 << 10, 75, 40 } },
    { "sm_80", { 163 << 10, 80, 108 } },
    { "sm_86", { 99 << 10, 80, 82 } },
    { "sm_89", { 99 << 10, 80, 128 } },
    { "sm_90", { 227 << 10, 90, 132 } },
    { "sm_120", { 99 << 10, 120, 170 } },
    { "sm_90, code of sm_75", { 227 << 10, 75, 132 } },
    { "sm_120, code of sm_80", { 99 << 10, 80, 170 } },
};

static const int types[] = {
    QT_Q4_0, QT_Q4_1, QT_Q5_0, QT_Q5_1, QT_Q8_0, QT_Q2_K, QT_Q3_K, QT_Q4_K, QT_Q5_K, QT_Q6_K,
    QT_IQ4_NL, QT_IQ4_XS, QT_MXFP4, QT_NVFP4, QT_F32, QT_F16, QT_BF16,
};

static const int widths[] = { 1024, 2048, 2880, 4096, 5120, 6144, 7168, 8192 };
static const struct { int k, n_ff; } experts[] = {       /* k: with the shared one */
    { 2, 14336 }, { 1, 16384 }, { 4, 2880 }, { 8, 768 }, { 9, 2048 }, { 11, 512 }, { 9, 1536 },
    { 8, 4096 }, { 33, 1024 },
};

static void check(const chip *c, const char *name, const char *kernel, int type, int a, int b,
                  size_t bytes)
{
    CHECK_MSG(bytes <= c->block_bytes, "%s: %s, %s, %d, %d: %zu bytes of %zu", name, kernel,
              quant_name((uint32_t)type), a, b, bytes, c->block_bytes);
}

static void check_width(const chip *c, const char *name, int type, int cols)
{
    const bool floats = shape_is_float(type);
    const int most = up_stages_of(type, false, c->code);
    check(c, name, "gate and up", type, cols, most, up_bytes(c, type, most, cols) + STATIC_BYTES);
    if (!floats && up_takes_fewer(c, type, cols, 3 * c->n_sm))
        check(c, name, "gate and up", type, cols, 3, up_bytes(c, type, 3, cols) + STATIC_BYTES);
    const partial_shape s = partial_shape_of(c, type, cols);
    check(c, name, "experts of a batch", type, cols, s.each, s.bytes + STATIC_BYTES);
    check(c, name, "router", type, cols, 1, route_row_bytes(cols) + ROUTE_STATIC_BYTES);
    check(c, name, "prediction", type, cols, 1, prediction_bytes(cols) + STATIC_BYTES);
    for (int n = 1; n <= GPU_FEW; n++) {
        const int each = dense_tokens(c, type, cols, n), tokens = n > 1 ? GPU_FEW : 1;
        if (floats) {
            check(c, name, "products", type, cols, n,
                  (size_t)each * (size_t)cols * sizeof(float) + SUMS_BYTES);
            continue;
        }
        for (int bulk = 0; bulk <= (tokens == 1); bulk++) {
            const dense_shape d = dense_block_shape(c, type, tokens, bulk, n > 1 ? each : 1, cols);
            check(c, name, "products", type, cols, n, d.rest + (size_t)d.warps * d.warp +
                  dense_static_bytes(tokens));
            for (int need = 1; need <= d.warps && !bulk; need++)
                CHECK_MSG(need * dense_shares(c, type, cols, need) <= d.warps,
                          "%s: %s, %d columns, %d tokens, %d units", name,
                          quant_name((uint32_t)type), cols, n, need);
        }
    }
}

/* Kernels that are compiled for a few shapes: the smallest of each, which a chip must have. */
static void check_fixed(const chip *c, const char *name)
{
    static const struct { int dim, rows, keys; } attention[] = {
        { 32, 128, 64 }, { 64, 128, 64 }, { 128, 128, 32 }, { 256, 64, 16 },
    };
    static const struct { int side, tokens, groups; } floats[] = {
        { 32, 32, 8 }, { 32, 16, 4 }, { 32, 32, 4 }, { 64, 64, 4 },
    };
    static const int dims[] = { 32, 64, 128, 256 }, keys[] = { 32, 32, 32, 8 };

    for (size_t i = 0; i < ARRAY_LEN(attention); i++)
        for (int q8 = 0; q8 < 2; q8++)
            check(c, name, "attention of prompts", q8 ? QT_Q8_0 : QT_F16, attention[i].dim,
                  attention[i].keys,
                  (size_t)attention_tensor_bytes(attention[i].dim, attention[i].rows,
                                                 attention[i].keys, q8));
    for (size_t i = 0; i < ARRAY_LEN(dims); i++)
        check(c, name, "attention of prompts", QT_F32, dims[i], keys[i],
              (size_t)attention_float_bytes(dims[i], keys[i]));
    for (size_t i = 0; i < ARRAY_LEN(floats); i++)
        check(c, name, "products", QT_F32, floats[i].side, floats[i].tokens,
              gemm_float_bytes(floats[i].side, floats[i].tokens, floats[i].groups));
    if (c->code < 80) return;
    for (int dim = 32; dim <= 128; dim *= 2) {
        check(c, name, "DeltaNet, solve", QT_F32, dim, 0, delta_solve_bytes(dim));
        check(c, name, "DeltaNet, carry", QT_F32, dim, delta_carry_stages(c, dim),
              delta_carry_bytes(dim, delta_carry_stages(c, dim)));
        CHECK(delta_carry_stages(c, dim) >= 2);
    }
}

static void check_tiles(const chip *c, const char *name, int type)
{
    if (shape_is_float(type)) return;
    for (int rows = FEW_LEAST_ROWS; rows <= FEW_MOST_ROWS; rows *= 2)
        check(c, name, "tiles of few", type, 0, rows, (size_t)few_bytes(type, rows, c->code));
    if (c->code < 80)
        check(c, name, "contract tile", type, 32, 32, (size_t)contract_tile_bytes(type, 32, 32));
    else
        for (int tokens = 32; tokens <= 64; tokens *= 2)
            check(c, name, "contract tile", type, 64, tokens,
                  (size_t)contract_tile_bytes(type, 64, tokens));
    const size_t staged = c->code == 90 ? (size_t)raw_tile_bytes(QT_Q8_0) : 0;
    CHECK(raw_tile_bytes(type) <= raw_tile_bytes(QT_Q8_0));
    for (int most = GEMM_MOST_TOKENS; most >= GEMM_LEAST_TOKENS; most /= 2) {
        const int tokens = tile_tokens_that_fit(c, staged, most);
        check(c, name, "tile", type, most, tokens, tile_bytes(tokens) + staged);
    }
}

static void check_down(const chip *c, const char *name, int type, int k, int n_ff, int n_embd)
{
    const int n = n_ff / 256 * 256;      /* whole blocks */
    down_shape s;
    if (shape_is_float(type)) {
        s = down_float_shape(c, k, n_ff);
        CHECK_MSG(s.n_staged >= 0 && s.n_staged <= k, "%s: %d of %d slots", name, s.n_staged, k);
    } else {
        const uint64_t row = (uint64_t)n / 256 * (uint64_t)group_bytes_of(type);
        s = down_block_shape(c, type, down_is_paired(type, row), k, n, n_embd);
        CHECK_MSG(s.warps >= 1 && s.warps <= DOWN_MOST_THREADS / 32, "%s: %u warps", name, s.warps);
    }
    check(c, name, "down", type, k, n_ff, s.bytes + STATIC_BYTES);
}

int main(int argc, char **argv)
{
    test_begin("launch shapes", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(chips); i++) {
        const chip *c = &chips[i].chip;
        const char *name = chips[i].name;
        for (size_t t = 0; t < ARRAY_LEN(types); t++) {
            CHECK(shape_is_float(types[t]) || group_bytes_of(types[t]) > 0);
            for (size_t w = 0; w < ARRAY_LEN(widths); w++)
                check_width(c, name, types[t], widths[w]);
            check_tiles(c, name, types[t]);
            for (size_t e = 0; e < ARRAY_LEN(experts); e++)
                check_down(c, name, types[t], experts[e].k, experts[e].n_ff, 5120);
        }
        check_fixed(c, name);
    }
    return test_end();
}
