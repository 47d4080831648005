/* test_quant.c - block formats against golden data from the format's own library.
 *
 * Decoded values must have the expected bits; +0 and -0 may be exchanged. For blocks that no sane
 * file holds (NAME.edge.*) the class and sign must agree. Two parts of those only show what one
 * program happens to do: there the tests hold the decoders to the choice that quant.c states.
 * Decoders run under the allocation guard, from and into buffers of the exact size. */
#include "tests/case_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/bytes.h"
#include "loader/quant.h"
#include "loader/quant_blocks.h"
#include "loader/quant_tables.h"

/* The format's own table, cases/quant_types.txt. */
enum { MOST_TYPES = 64 };
static struct {
    uint32_t id;
    const char *name;
    int elems, bytes;
    double bits_per_weight;
    bool golden, stored;                 /* has golden data, so a decoder; may be in a file */
} types[MOST_TYPES];
static size_t n_type;
static case_rows type_rows;

static bool read_types(void)
{
    if (!case_rows_read(&type_rows, "quant_types.txt") || !CHECK(type_rows.n <= MOST_TYPES))
        return false;
    for (int i = 0; i < type_rows.n; i++) {
        char *const *cells = type_rows.cells[i];
        types[i].id = (uint32_t)atoi(cells[0]);
        types[i].name = cells[1];
        CHECK(sscanf(cells[2], "%d %d %lf", &types[i].elems, &types[i].bytes,
                     &types[i].bits_per_weight) == 3);
        types[i].golden = cells[3][0] != '\0';
        types[i].stored = cells[4][0] != '\0';
    }
    n_type = (size_t)type_rows.n;
    return true;
}

/* ---- values -------------------------------------------------------------------------------- */

static uint32_t bits_of(float v) { return load_u32(&v); }

static bool same_bits(float a, float b)
{
    return bits_of(a) == bits_of(b) || (a == 0.0f && b == 0.0f);
}

static bool same_class(float a, float b) { return isnan(b) ? isnan(a) : same_bits(a, b); }

/* One check for all n values; a failure shows the first that differs. */
static void check_values(const quant_traits *t, const char *suffix, const float *got,
                         const float *want, size_t n, bool (*same)(float, float))
{
    const size_t elems = (size_t)t->block_elems;
    size_t at = 0;

    while (at < n && same(got[at], want[at])) at++;
    if (at == n) CHECK(true);
    else CHECK_MSG(false, "%s%s: value %zu of block %zu is %a (%08x), expected %a (%08x)", t->name,
                   suffix, at % elems, at / elems, (double)got[at], bits_of(got[at]),
                   (double)want[at], bits_of(want[at]));
}

/* ---- golden files -------------------------------------------------------------------------- */

typedef struct vectors {
    const quant_traits *traits;
    uint8_t *bin;
    float *want;
    size_t n_blocks, n_values;
} vectors;

static void vectors_release(vectors *v)
{
    mem_free(v->bin);
    mem_free(v->want);
    *v = (vectors){ 0 };
}

/* Reads NAME<suffix>.bin and .f32 and checks their shape: whole blocks, one value per element. */
static bool vectors_read(vectors *v, uint32_t id, const char *suffix)
{
    char path[512];
    size_t bin_bytes = 0, want_bytes = 0;
    bool ok;

    *v = (vectors){ .traits = quant_traits_of(id) };
    if (!CHECK_MSG(v->traits && v->traits->decode, "type %u has no decoder", id)) return false;
    v->bin = test_read_file(test_path(path, sizeof path, "%s/quants/%s%s.bin", test_unpacked(),
                                      v->traits->name, suffix), &bin_bytes);
    v->want = test_read_file(test_path(path, sizeof path, "%s/quants/%s%s.f32", test_unpacked(),
                                       v->traits->name, suffix), &want_bytes);
    v->n_blocks = bin_bytes / (size_t)v->traits->block_bytes;
    v->n_values = v->n_blocks * (size_t)v->traits->block_elems;
    ok = v->bin && v->want && v->n_blocks > 0 &&
         bin_bytes == v->n_blocks * (size_t)v->traits->block_bytes &&
         want_bytes == v->n_values * sizeof(float);
    CHECK_MSG(ok, "%s%s: %zu bytes of blocks and %zu of values are not blocks of %d -> %d",
              v->traits->name, suffix, bin_bytes, want_bytes, v->traits->block_bytes,
              v->traits->block_elems);
    if (!ok) vectors_release(v);
    return ok;
}

/* Decodes from a copy of the blocks that starts `shift` bytes into its own allocation and ends with
 * it, into one of the exact size: the sanitizer sees a byte too many on either side. NULL if
 * memory is short. */
static float *decode_exactly(const vectors *v, size_t shift)
{
    const size_t bytes = v->n_blocks * (size_t)v->traits->block_bytes;
    uint8_t *in = mem_alloc(shift + bytes);
    float *out = mem_array(v->n_values, sizeof *out);

    if (in && out) {
        memcpy(in + shift, v->bin, bytes);
        memset(out, 0xA5, v->n_values * sizeof *out);
        mem_guard(true);
        const long before = mem_count();
        v->traits->decode(out, in + shift, v->n_blocks);
        const long after = mem_count();
        mem_guard(false);
        if (after != before) CHECK_MSG(false, "%s: the decoder allocates", v->traits->name);
    } else {
        CHECK_MSG(false, "%s: %zu bytes of memory", v->traits->name, bytes);
        mem_free(out);
        out = NULL;
    }
    mem_free(in);
    return out;
}

/* Every type, bit for bit. A file of zeros would prove nothing, so there must be other values. */
static void test_golden_values(uint32_t id)
{
    vectors v;
    float *got;

    if (!vectors_read(&v, id, "")) return;
    if ((got = decode_exactly(&v, 0)) != NULL) {
        size_t nonzero = 0;
        for (size_t i = 0; i < v.n_values; i++) nonzero += v.want[i] != 0.0f;
        check_values(v.traits, "", got, v.want, v.n_values, same_bits);
        CHECK_MSG(nonzero > v.n_values / 4, "%s: only %zu of %zu golden values are not zero",
                  v.traits->name, nonzero, v.n_values);
    }
    mem_free(got);
    vectors_release(&v);
}

/* Blocks may be at any address in a file, alone as well as in rows. */
static void test_placement(uint32_t id)
{
    vectors v;
    float *base;
    bool aligned_ok = true, alone_ok = true;

    if (!vectors_read(&v, id, "")) return;
    base = decode_exactly(&v, 0);
    for (size_t shift = 1; base && shift < 16; shift++) {
        float *got = decode_exactly(&v, shift);
        aligned_ok = aligned_ok && got && memcmp(got, base, v.n_values * sizeof *got) == 0;
        mem_free(got);
    }
    CHECK_MSG(base && aligned_ok, "%s: another address, other values", v.traits->name);

    /* One block at a time, and none: nothing may be written outside. */
    const size_t elems = (size_t)v.traits->block_elems, step = v.n_blocks > 100 ? 37 : 1;
    float one[256 + 2];
    for (size_t i = 0; base && i < v.n_blocks; i += step) {
        for (size_t k = 0; k < elems + 2; k++) one[k] = 12345.0f;
        v.traits->decode(one + 1, v.bin + i * (size_t)v.traits->block_bytes, 0);
        alone_ok = alone_ok && one[1] == 12345.0f;
        v.traits->decode(one + 1, v.bin + i * (size_t)v.traits->block_bytes, 1);
        alone_ok = alone_ok && one[0] == 12345.0f && one[elems + 1] == 12345.0f &&
                   memcmp(one + 1, base + i * elems, elems * sizeof *one) == 0;
    }
    CHECK_MSG(base && alone_ok, "%s: a block alone decodes differently", v.traits->name);
    mem_free(base);
    vectors_release(&v);
}

/* Inf and NaN scales, reserved codes. */
static void test_edge_values(uint32_t id)
{
    vectors v;
    float *got;

    if (!vectors_read(&v, id, ".edge")) return;
    if ((got = decode_exactly(&v, 0)) != NULL) {
        size_t judged = v.n_values;
        if (id == QT_MXFP4) {
            /* the last block has the reserved exponent 255; our choice is NaN */
            bool all_nan = v.bin[(v.n_blocks - 1) * sizeof(block_mxfp4)] == 255;
            judged -= 32;
            for (size_t i = judged; i < v.n_values; i++) all_nan = all_nan && isnan(got[i]);
            CHECK_MSG(all_nan, "MXFP4: exponent 255 must decode to NaN");
        }
        /* All of NVFP4.edge has bit 7 of the scales set. No rule says what that means; our choice
         * is what the file shows: bit 7 ignored, 0xFF is 480. So it is compared like the rest. */
        check_values(v.traits, ".edge", got, v.want, judged, same_class);
    }
    mem_free(got);
    vectors_release(&v);
}

/* ---- the traits table ---------------------------------------------------------------------- */

static void test_traits(void)
{
    size_t next = 0;
    for (uint32_t id = 0; id < 60; id++) {
        const quant_traits *t = quant_traits_of(id);
        if (next == n_type || types[next].id != id) {
            CHECK_MSG(t == NULL, "id %u is a gap, not %s", id, quant_name(id));
            CHECK_MSG(!quant_is_storable(id), "id %u is a gap, not storable", id);
            continue;
        }
        if (CHECK_MSG(t != NULL, "id %u, %s, is missing", id, types[next].name)) {
            const unsigned cols = 3 * 256, bytes = (unsigned)quant_row_bytes(t, cols);
            CHECK_MSG(strcmp(t->name, types[next].name) == 0, "id %u is %s, expected %s", id,
                      t->name, types[next].name);
            CHECK_MSG(strcmp(t->name, quant_name(id)) == 0, "%s: messages say %s", t->name,
                      quant_name(id));
            CHECK_MSG(t->block_elems == types[next].elems && t->block_bytes == types[next].bytes,
                      "%s: %d in %d bytes, expected %d in %d", t->name, t->block_elems,
                      t->block_bytes, types[next].elems, types[next].bytes);
            CHECK_MSG(bytes * 8.0 == cols * types[next].bits_per_weight,
                      "%s: a row of %u has %u bytes", t->name, cols, bytes);
            CHECK_MSG((t->decode != NULL) == types[next].golden, "%s: decoder %s", t->name,
                      t->decode ? "where none belongs" : "missing");
            CHECK_MSG(quant_is_storable(id) == types[next].stored, "%s: storable is %d", t->name,
                      quant_is_storable(id));
        }
        next++;
    }
    CHECK(next == n_type);
    CHECK(QT_COUNT == 43);
    for (int shift = 6; shift < 32; shift++) {
        const uint32_t id = 1u << shift;
        if (quant_traits_of(id) || quant_traits_of(~id) || quant_is_storable(id))
            CHECK_MSG(false, "id %u or %u exists", id, ~id);
    }
}

static void test_names(void)
{
    static const struct { uint32_t id; const char *name, *why; } messages[] = {
        { 4, "Q4_2, removed", "first gap" },
        { 5, "Q4_3, removed", "its second id" },
        { 31, "Q4_0_4_4, removed", "repacked Q4_0" },
        { 32, "Q4_0_4_8, removed", "repacked Q4_0" },
        { 33, "Q4_0_8_8, removed", "repacked Q4_0" },
        { 36, "IQ4_NL_4_4, removed", "repacked IQ4_NL" },
        { 37, "IQ4_NL_4_8, removed", "repacked IQ4_NL" },
        { 38, "IQ4_NL_8_8, removed", "repacked IQ4_NL" },
        { 43, "unknown", "first unused id" },
        { 255, "unknown", "far outside" },
        { UINT32_MAX, "unknown", "largest id a file can hold" },
    };
    static const struct { const char *name; int id; const char *why; } lookups[] = {
        { "q4_k", QT_Q4_K, "lower case" }, { "Q4_k", QT_Q4_K, "mixed case" },
        { "mxfp4", QT_MXFP4, "lower case" }, { "bf16", QT_BF16, "lower case" },
        { "Q4_", -1, "start of a name" }, { "Q4_K_M", -1, "a file's label, no block type" },
        { "", -1, "empty" }, { " Q4_K", -1, "space before" }, { "Q8_1", -1, "no decoder" },
        { "Q8_K", -1, "no decoder" }, { "I8", -1, "no decoder" }, { "F64", -1, "no decoder" },
        { "Q4_2", -1, "removed" }, { "unknown", -1, "what messages say is no name" },
    };
    quant_type got;

    for (size_t i = 0; i < ARRAY_LEN(messages); i++)
        CHECK_MSG(strcmp(quant_name(messages[i].id), messages[i].name) == 0,
                  "id %u (%s) is called %s, expected %s", messages[i].id, messages[i].why,
                  quant_name(messages[i].id), messages[i].name);
    for (size_t i = 0; i < n_type; i++) {
        const bool found = quant_from_name(&got, types[i].name);
        CHECK_MSG(found == types[i].golden && (!found || (uint32_t)got == types[i].id),
                  "lookup of %s", types[i].name);
    }
    for (size_t i = 0; i < ARRAY_LEN(lookups); i++) {
        const bool found = quant_from_name(&got, lookups[i].name);
        CHECK_MSG(found == (lookups[i].id >= 0) && (!found || (int)got == lookups[i].id),
                  "lookup of '%s': %s", lookups[i].name, lookups[i].why);
    }
}

/* ---- small floats, every code -------------------------------------------------------------- */

/* Sign, exponent and mantissa of a binary float of 1 + e_bits + m_bits bits, by ldexp in double. */
static double ieee_value(uint32_t code, int e_bits, int m_bits)
{
    const int bias = (1 << (e_bits - 1)) - 1;
    const int exponent = (int)(code >> m_bits) & ((1 << e_bits) - 1);
    const double mantissa = (double)(code & ((1u << m_bits) - 1));
    double v;

    if (exponent == (1 << e_bits) - 1) v = mantissa != 0 ? NAN : INFINITY;
    else if (exponent == 0) v = ldexp(mantissa, 1 - bias - m_bits);
    else v = ldexp(mantissa + ldexp(1, m_bits), exponent - bias - m_bits);
    return code >> (e_bits + m_bits) & 1 ? -v : v;
}

/* Same class, value and sign, the signs of zero and NaN included. */
static bool is_value(float got, double want, bool negative)
{
    if ((bits_of(got) >> 31 != 0) != negative) return false;
    return isnan(want) ? isnan(got) : (double)got == want;
}

static void test_small_floats(void)
{
    int f16_bad = 0, bf16_bad = 0, payload_bad = 0, e8m0_bad = 0, ue4m3_bad = 0;

    for (uint32_t h = 0; h < 65536; h++) {
        const float f16 = f16_to_f32((uint16_t)h), bf16 = bf16_to_f32((uint16_t)h);
        f16_bad += !is_value(f16, ieee_value(h, 5, 10), h >> 15);
        bf16_bad += !is_value(bf16, ieee_value(h, 8, 7), h >> 15);
        payload_bad += isnan(f16) && (bits_of(f16) >> 13 & 1023) != (h & 1023);
        payload_bad += bits_of(bf16) != h << 16;
    }
    for (int e = 0; e < 256; e++) {
        const float got = e8m0_to_f32((uint8_t)e);
        e8m0_bad += !is_value(got, e == 255 ? (double)NAN : ldexp(1, e - 127), false);
    }
    for (int c = 0; c < 256; c++) {
        const int exponent = c >> 3 & 15, mantissa = c & 7;
        double want = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
        if (c == 0x7F) want = 0;
        ue4m3_bad += !is_value(ue4m3_to_f32((uint8_t)c), want, false);
    }
    CHECK_MSG(f16_bad == 0, "f16_to_f32: %d of 65536 codes are wrong", f16_bad);
    CHECK_MSG(bf16_bad == 0, "bf16_to_f32: %d of 65536 codes are wrong", bf16_bad);
    CHECK_MSG(payload_bad == 0, "%d NaN payloads or bf16 patterns are not kept", payload_bad);
    CHECK_MSG(e8m0_bad == 0, "e8m0_to_f32: %d of 256 codes are wrong", e8m0_bad);
    CHECK_MSG(ue4m3_bad == 0, "ue4m3_to_f32: %d of 256 codes are wrong", ue4m3_bad);

    /* fixed points, independent of the formulas above */
    CHECK(f16_to_f32(0x3C00) == 1.0f && f16_to_f32(0xC000) == -2.0f);
    CHECK(f16_to_f32(0x7BFF) == 65504.0f && f16_to_f32(0x0001) == 0x1p-24f);
    CHECK(bf16_to_f32(0x3F80) == 1.0f && bf16_to_f32(0x0001) == 0x1p-133f);
    CHECK(e8m0_to_f32(127) == 1.0f && e8m0_to_f32(0) == 0x1p-127f && e8m0_to_f32(254) == 0x1p127f);
    CHECK(ue4m3_to_f32(0x38) == 1.0f && ue4m3_to_f32(0x7E) == 448.0f);
    CHECK(ue4m3_to_f32(0x7F) == 0.0f && ue4m3_to_f32(0x01) == 0x1p-9f);
    CHECK(ue4m3_to_f32(0xB8) == 1.0f && ue4m3_to_f32(0xFF) == 480.0f && ue4m3_to_f32(0x80) == 0.0f);
}

/* ---- codebooks ----------------------------------------------------------------------------- */

/* quant_tables.c is generated; this is what notices a stale or damaged one. */
static void test_grids(void)
{
    static const struct { const char *file; const void *table; size_t bytes; } grids[] = {
        { "IQ1", quant_grid_iq1, sizeof quant_grid_iq1 },
        { "IQ2_XXS", quant_grid_iq2_xxs, sizeof quant_grid_iq2_xxs },
        { "IQ2_XS", quant_grid_iq2_xs, sizeof quant_grid_iq2_xs },
        { "IQ2_S", quant_grid_iq2_s, sizeof quant_grid_iq2_s },
        { "IQ3_XXS", quant_grid_iq3_xxs, sizeof quant_grid_iq3_xxs },
        { "IQ3_S", quant_grid_iq3_s, sizeof quant_grid_iq3_s },
    };
    char path[512];

    for (size_t i = 0; i < ARRAY_LEN(grids); i++) {
        size_t bytes = 0;
        void *want = test_read_file(test_path(path, sizeof path, "%s/quants/grids/%s.i8",
                                              test_golden(), grids[i].file), &bytes);
        /* rows are numbers with column 0 lowest, which in memory is the order of the file */
        CHECK_MSG(want && bytes == grids[i].bytes && memcmp(want, grids[i].table, bytes) == 0,
                  "grid %s differs: run tools/gen_quant_tables.py", grids[i].file);
        mem_free(want);
    }
}

/* ---- products ------------------------------------------------------------------------------ */

enum { MATVEC_ROWS = 24, MATVEC_COLS = 1024, MATVEC_X = 2 };

/* Rows that a quantizer made, times real vectors: the decoders as kernels will use them. */
static void test_matvec(const char *name, const float *x)
{
    char path[512];
    size_t w_bytes = 0, y_bytes = 0, abs_bytes = 0;
    const char *dir = test_unpacked();
    uint8_t *w = test_read_file(
        test_path(path, sizeof path, "%s/quants/matvec/%s.w.bin", dir, name), &w_bytes);
    double *y = test_read_file(
        test_path(path, sizeof path, "%s/quants/matvec/%s.y.f64", dir, name), &y_bytes);
    double *yabs = test_read_file(
        test_path(path, sizeof path, "%s/quants/matvec/%s.yabs.f64", dir, name), &abs_bytes);
    quant_type type;
    static float row[MATVEC_COLS];
    double worst = 0;

    if (w && y && yabs && CHECK(quant_from_name(&type, name))) {
        const quant_traits *t = quant_traits_of(type);
        const size_t row_bytes = (size_t)quant_row_bytes(t, MATVEC_COLS);
        const size_t n = MATVEC_X * MATVEC_ROWS;
        if (CHECK_MSG(w_bytes == MATVEC_ROWS * row_bytes && y_bytes == n * sizeof *y &&
                      abs_bytes == n * sizeof *yabs, "matvec/%s: file sizes", name)) {
            for (size_t r = 0; r < MATVEC_ROWS; r++) {
                t->decode(row, w + r * row_bytes, MATVEC_COLS / (size_t)t->block_elems);
                for (size_t v = 0; v < MATVEC_X; v++) {
                    const float *xv = x + v * MATVEC_COLS;
                    const size_t at = v * MATVEC_ROWS + r;
                    double sum = 0;
                    for (int c = 0; c < MATVEC_COLS; c++) sum += (double)row[c] * (double)xv[c];
                    worst = fmax(worst, yabs[at] > 0 ? fabs(sum - y[at]) / yabs[at] : INFINITY);
                }
            }
            CHECK_MSG(worst <= 2e-6, "matvec/%s: off by %.1e of sum |w x|", name, worst);
        }
    }
    mem_free(w);
    mem_free(y);
    mem_free(yabs);
}

static void test_matvecs(void)
{
    static const char *const names[] = {
        "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
        "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4",
    };
    char path[512];
    size_t bytes = 0;
    float *x = test_read_file(test_path(path, sizeof path, "%s/quants/matvec/x.f32",
                                        test_unpacked()), &bytes);
    if (CHECK(x && bytes == MATVEC_X * MATVEC_COLS * sizeof *x))
        for (size_t i = 0; i < ARRAY_LEN(names); i++) test_matvec(names[i], x);
    mem_free(x);
}

int main(int argc, char **argv)
{
    test_begin("quant", argc, argv);
    if (!read_types()) return test_end();
    test_traits();
    test_names();
    test_small_floats();
    test_grids();
    for (size_t i = 0; i < n_type; i++) {
        if (!types[i].golden) continue;
        test_golden_values(types[i].id);
        test_placement(types[i].id);
        if (types[i].id != QT_F32) test_edge_values(types[i].id);    /* any F32 decodes to itself */
    }
    test_matvecs();
    case_rows_free(&type_rows);
    return test_end();
}
