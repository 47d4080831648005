/* test_numerics.c - the kernels of the CPU against the arithmetic contract, bit for bit.
 *
 *   test_numerics [DIR]      DIR holds matvec/, ffn/, quant.bin and so on (see the README of
 *                            golden/numerics), or is a folder of golden data as other tests take it
 *
 * First the golden files, with every instruction set that this processor has: codes, rows by all
 * kernels of a type, activations, whole experts with every vector in between. Only the payload of a
 * NaN may differ. Then every block type, those without golden files included, against sums made
 * from the values of loader/quant.h in a different way: in double arithmetic a block's sum is
 * exact, so that rounding it once must give the contract's number. */
#include "tests/test.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/cpu/contract_blocks.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/loops.h"
#include "loader/bytes.h"
#include "tests/exact_exp_one.h"

/* The instruction set under test. */
static struct {
    const kernel_set *set;
    const loops *f;
} now;

static uint32_t bits_of(float v) { return load_u32(&v); }

static bool same(float a, float b) { return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b)); }

/* One check for n values; a failure shows the first that differs. */
static bool check_floats(const char *file, const char *what, const float *got, const float *want,
                         size_t n)
{
    size_t at = 0;
    while (at < n && same(got[at], want[at])) at++;
    if (at == n) return CHECK(true);
    return CHECK_MSG(false, "%s: %s[%zu] is %a (%08x), expected %a (%08x)", file, what, at,
                     (double)got[at], bits_of(got[at]), (double)want[at], bits_of(want[at]));
}

static bool check_bytes(const char *file, const char *what, const void *got, const void *want,
                        size_t bytes)
{
    const uint8_t *a = got, *b = want;
    size_t at = 0;
    while (at < bytes && a[at] == b[at]) at++;
    if (at == bytes) return CHECK(true);
    return CHECK_MSG(false, "%s: byte %zu of %s is %02x, expected %02x", file, at, what, a[at],
                     b[at]);
}

/* ---- activations --------------------------------------------------------------------------- */

/* Tokens as kernels take them. Every array has the size that kernels.h promises and no more, so
 * that a sanitizer sees reads past the end; x is not even padded. */
typedef struct acts {
    int n_token, cols;
    float *x, *dx;
    int8_t *q;
    int16_t *s;
    act_row *row;
} acts;

static void acts_init(acts *a, const float *x, int n_token, int cols, bool quantise)
{
    const size_t blocks = quantise ? (size_t)size_align((uint64_t)cols / ACT_BLOCK, 16) : 0;
    const size_t n = (size_t)n_token;

    *a = (acts){ .n_token = n_token, .cols = cols };
    a->x = test_alloc(n * (size_t)cols, sizeof *a->x);
    a->q = test_alloc(n * blocks * ACT_BLOCK, sizeof *a->q);
    a->dx = test_alloc(n * blocks, sizeof *a->dx);
    a->s = test_alloc(n * blocks * 2, sizeof *a->s);
    a->row = test_alloc(n, sizeof *a->row);
    memcpy(a->x, x, n * (size_t)cols * sizeof *x);
    memset(a->q, 0, n * blocks * ACT_BLOCK * sizeof *a->q);
    memset(a->dx, 0, n * blocks * sizeof *a->dx);
    memset(a->s, 0, n * blocks * 2 * sizeof *a->s);
    for (size_t t = 0; t < n; t++) {
        a->row[t] = (act_row){ a->x + t * (size_t)cols, a->q + t * blocks * ACT_BLOCK,
                               a->dx + t * blocks, a->s + t * blocks * 2 };
        if (quantise)
            now.f->quantise(a->q + t * blocks * ACT_BLOCK, a->dx + t * blocks,
                            a->s + t * blocks * 2, a->row[t].x, cols / ACT_BLOCK);
    }
}

static void acts_release(acts *a)
{
    mem_free(a->x);
    mem_free(a->q);
    mem_free(a->dx);
    mem_free(a->s);
    mem_free(a->row);
    *a = (acts){ 0 };
}

/* ---- golden files -------------------------------------------------------------------------- */

/* Every array of a file starts at a multiple of 16 bytes. take() gives NULL, and from then on only
 * NULL, if the file ends too early. */
typedef struct reader {
    char name[96];                       /* and the instruction set under test */
    uint8_t *data;
    size_t bytes, pos;
    bool bad;
} reader;

static const void *take(reader *r, size_t n, size_t size)
{
    const uint8_t *p = r->data + r->pos;
    const size_t bytes = (n * size + 15) & ~(size_t)15;
    if (r->bad || n > r->bytes || bytes > r->bytes - r->pos) {
        r->bad = true;
        return NULL;
    }
    r->pos += bytes;
    return p;
}

static bool reader_open(reader *r, const char *path)
{
    const char *slash = strrchr(path, '/');
    *r = (reader){ .bad = false };
    snprintf(r->name, sizeof r->name, "%s: %.80s", now.set->isa, slash ? slash + 1 : path);
    r->data = test_read_file(path, &r->bytes);
    return r->data != NULL;
}

/* The codes of n_token rows of `cols`, against what was made of the same x. */
typedef struct codes {
    const int8_t *q;
    const float *dx;
    const int16_t *s;
} codes;

static codes take_codes(reader *r, size_t n_token, size_t cols)
{
    codes c;
    c.q = take(r, n_token * cols, 1);
    c.dx = take(r, n_token * cols / 32, 4);
    c.s = take(r, n_token * cols / 16, 2);
    return c;
}

static void check_codes(const char *file, const codes *want, size_t first, const acts *got)
{
    const size_t cols = (size_t)got->cols;
    for (size_t t = 0; t < (size_t)got->n_token; t++) {
        const size_t at = (first + t) * cols;
        check_bytes(file, "q", got->row[t].q, want->q + at, cols);
        check_floats(file, "dx", got->row[t].dx, want->dx + at / 32, cols / 32);
        check_bytes(file, "s", got->row[t].s, want->s + at / 16, cols / 16 * 2);
    }
}

/* y[t * n_row + r], scale and bias in the one fmaf that the contract has for them. factor: with the
 * kernel's. */
static void matvec(float *y, dot_fn *dot, float factor, const uint8_t *w, size_t row_bytes,
                   int n_row, const acts *x, const float *bias)
{
    dot(y, w, row_bytes, n_row, x->row, x->n_token, x->cols);
    for (int t = 0; t < x->n_token; t++) {
        for (int r = 0; r < n_row; r++) {
            float *v = &y[t * n_row + r];
            *v = fmaf(factor, *v, bias ? bias[r] : 0.0f);
        }
    }
}

static bool types_seen[QT_COUNT];

static void golden_matvec(const char *path)
{
    reader r;
    const uint32_t *h;

    if (!reader_open(&r, path)) return;
    h = take(&r, 8, 4);
    const quant_traits *type = h && h[0] == 0x314D554E ? quant_traits_of(h[1]) : NULL;
    if (!CHECK_MSG(type && type->decode && h[2] < 1u << 20 && h[3] < 1u << 20 && h[4] < 1u << 10,
                   "%s: not a matvec file", r.name)) {
        mem_free(r.data);
        return;
    }
    const size_t cols = h[2], n_row = h[3], n_token = h[4];
    const kernel *k = &now.set->of[h[1]];
    const bool coded = h[5] & 2;
    const size_t row_bytes = (size_t)quant_row_bytes(type, cols);
    const uint8_t *w = take(&r, n_row * row_bytes, 1);
    const float *x = take(&r, n_token * cols, 4);
    const codes want = coded ? take_codes(&r, n_token, cols) : (codes){ 0 };
    const float *bias = h[5] & 1 ? take(&r, n_row, 4) : NULL;
    const float *y = take(&r, n_token * n_row, 4);

    if (CHECK_MSG(!r.bad && r.pos == r.bytes && k->dot && k->quantised == coded,
                  "%s: %zu bytes, kernel %s", r.name, r.bytes, k->dot ? "found" : "missing")) {
        const float factor = k->factor * load_f32(&h[6]);
        float *got = test_alloc(n_token * n_row, sizeof *got);
        acts a;
        acts_init(&a, x, (int)n_token, (int)cols, coded);
        if (coded) check_codes(r.name, &want, 0, &a);
        matvec(got, k->dot, factor, w, row_bytes, (int)n_row, &a, bias);
        check_floats(r.name, "y", got, y, n_token * n_row);
        if (k->wide) {
            matvec(got, k->wide, factor, w, row_bytes, (int)n_row, &a, bias);
            check_floats(r.name, "y of the wide kernel", got, y, n_token * n_row);
        }
        if (k->repacked.bundle) {
            const size_t all = (size_t)size_align(n_row, (uint64_t)k->repacked.bundle);
            uint8_t *bundles = test_alloc(all * row_bytes, 1);
            k->repacked.repack(bundles, w, row_bytes, (int)n_row, (int)cols);
            matvec(got, k->repacked.dot, factor, bundles, row_bytes, (int)n_row, &a, bias);
            check_floats(r.name, "y of repacked rows", got, y, n_token * n_row);
            mem_free(bundles);
        }
        types_seen[h[1]] = true;
        acts_release(&a);
        mem_free(got);
    }
    mem_free(r.data);
}

/* ---- golden experts ------------------------------------------------------------------------ */

enum { GATE, UP, DOWN };

typedef struct ffn {
    reader r;
    int kind, n_embd, n_ff, n_expert, k, n_token;
    const kernel *kernel[3];
    size_t row_bytes[3];
    const uint8_t *w[3];
    const float *bias[3], *scale, *x, *router, *g, *u, *a, *y, *out;
    const int32_t *ids;
    codes x_codes, a_codes;
} ffn;

static bool ffn_read(ffn *f, const char *path)
{
    const uint32_t *h;

    *f = (ffn){ 0 };
    if (!reader_open(&f->r, path)) return false;
    h = take(&f->r, 12, 4);
    if (!CHECK_MSG(h && h[0] == 0x3146554E, "%s: not an ffn file", f->r.name)) return false;
    f->kind = (int)h[1];
    f->n_embd = (int)h[5], f->n_ff = (int)h[6], f->n_expert = (int)h[7];
    f->k = (int)h[8], f->n_token = (int)h[9];
    const size_t embd = h[5], ff = h[6], expert = h[7], token = h[9], pick = token * h[8];
    for (int m = GATE; m <= DOWN; m++) {
        const quant_traits *type = quant_traits_of(h[2 + m]);
        if (!CHECK_MSG(type && now.set->of[h[2 + m]].dot, "%s: type %u", f->r.name,
                       h[2 + m])) return false;
        f->kernel[m] = &now.set->of[h[2 + m]];
        f->row_bytes[m] = (size_t)quant_row_bytes(type, m == DOWN ? ff : embd);
        f->w[m] = take(&f->r, expert * (m == DOWN ? embd : ff) * f->row_bytes[m], 1);
    }
    if (h[10] & 1)
        for (int m = GATE; m <= DOWN; m++)
            f->bias[m] = take(&f->r, expert * (m == DOWN ? embd : ff), 4);
    if (h[10] & 2) f->scale = take(&f->r, 3 * expert, 4);
    f->x = take(&f->r, token * embd, 4);
    f->ids = take(&f->r, pick, 4);
    f->router = take(&f->r, pick, 4);
    f->x_codes = take_codes(&f->r, token, embd);
    f->g = take(&f->r, pick * ff, 4);
    f->u = take(&f->r, pick * ff, 4);
    f->a = take(&f->r, pick * ff, 4);
    f->a_codes = take_codes(&f->r, pick, ff);
    f->y = take(&f->r, pick * embd, 4);
    f->out = take(&f->r, token * embd, 4);
    return CHECK_MSG(!f->r.bad && f->r.pos == f->r.bytes, "%s: %zu bytes", f->r.name, f->r.bytes);
}

/* One matrix of expert e with one token. */
static void ffn_rows(float *y, const ffn *f, int m, int e, const acts *x)
{
    const size_t n_row = (size_t)(m == DOWN ? f->n_embd : f->n_ff);
    const float scale = f->scale ? f->scale[m * f->n_expert + e] : 1.0f;
    matvec(y, f->kernel[m]->dot, f->kernel[m]->factor * scale,
           f->w[m] + (size_t)e * n_row * f->row_bytes[m], f->row_bytes[m], (int)n_row, x,
           f->bias[m] ? f->bias[m] + (size_t)e * n_row : NULL);
}

typedef void glu_fn(float *out, const float *g, const float *u, int n);

static void golden_ffn(const char *path)
{
    ffn f;

    if (ffn_read(&f, path)) {
        const size_t embd = (size_t)f.n_embd, ff = (size_t)f.n_ff;
        const char *name = f.r.name;
        float *g = test_alloc(ff, sizeof *g), *u = test_alloc(ff, sizeof *u);
        float *y = test_alloc(embd, sizeof *y), *out = test_alloc(embd, sizeof *out);
        for (int t = 0; t < f.n_token; t++) {
            acts x, a;
            acts_init(&x, f.x + (size_t)t * embd, 1, f.n_embd, true);
            check_codes(name, &f.x_codes, (size_t)t, &x);
            memset(out, 0, embd * sizeof *out);
            for (size_t i = (size_t)(t * f.k); i < (size_t)((t + 1) * f.k); i++) {
                ffn_rows(g, &f, GATE, f.ids[i], &x);
                ffn_rows(u, &f, UP, f.ids[i], &x);
                check_floats(name, "g", g, f.g + i * ff, ff);
                check_floats(name, "u", u, f.u + i * ff, ff);
                glu_fn *const glu[] = { now.f->swiglu, now.f->swiglu_clamped, now.f->geglu };
                glu[f.kind](g, g, u, f.n_ff);
                check_floats(name, "a", g, f.a + i * ff, ff);
                acts_init(&a, g, 1, f.n_ff, true);
                check_codes(name, &f.a_codes, i, &a);
                ffn_rows(y, &f, DOWN, f.ids[i], &a);
                check_floats(name, "y", y, f.y + i * embd, embd);
                for (size_t c = 0; c < embd; c++) out[c] = fmaf(f.router[i], y[c], out[c]);
                acts_release(&a);
            }
            check_floats(name, "out", out, f.out + (size_t)t * embd, embd);
            acts_release(&x);
        }
        mem_free(g);
        mem_free(u);
        mem_free(y);
        mem_free(out);
    }
    mem_free(f.r.data);
}

/* ---- golden tables ------------------------------------------------------------------------- */

static void golden_quant(const char *path)
{
    reader r;
    if (!reader_open(&r, path)) return;
    const size_t n = r.bytes / 168 * 32;                 /* 128 + 32 + 4 + 4 bytes a block */
    const float *x = take(&r, n, 4);
    const codes want = take_codes(&r, 1, n);
    if (CHECK_MSG(n > 0 && !r.bad && r.pos == r.bytes, "%s: %zu bytes", r.name, r.bytes)) {
        acts a;
        acts_init(&a, x, 1, (int)n, true);
        check_codes(r.name, &want, 0, &a);
        acts_release(&a);
    }
    mem_free(r.data);
}

static void golden_exp(const char *path)
{
    reader r;
    if (!reader_open(&r, path)) return;
    const size_t n = r.bytes / 8;
    const float *v = (const float *)(const void *)r.data;
    float *got = test_alloc(n, sizeof *got), *want = test_alloc(n, sizeof *want);
    for (size_t i = 0; i < n; i++) {
        got[i] = exact_exp(v[2 * i]);
        want[i] = v[2 * i + 1];
    }
    if (CHECK(n > 0)) check_floats(r.name, "exp", got, want, n);
    mem_free(got);
    mem_free(want);
    mem_free(r.data);
}

/* In one call, value by value, and over its own inputs. */
static void golden_glu(const char *path, glu_fn *glu)
{
    reader r;
    if (!reader_open(&r, path)) return;
    const size_t n = r.bytes / 12;
    const float *v = (const float *)(const void *)r.data;
    float *col[4];
    for (int c = 0; c < 4; c++) {
        col[c] = test_alloc(n, sizeof **col);
        for (size_t i = 0; c < 3 && i < n; i++) col[c][i] = v[3 * i + (size_t)c];
    }
    glu(col[3], col[0], col[1], (int)n);
    if (CHECK(n > 0)) check_floats(r.name, "all at once", col[3], col[2], n);
    for (size_t i = 0; i < n; i++) glu(&col[3][i], &col[0][i], &col[1][i], 1);
    check_floats(r.name, "one by one", col[3], col[2], n);
    memcpy(col[3], col[0], n * sizeof **col);
    glu(col[3], col[3], col[1], (int)n);
    check_floats(r.name, "out is g", col[3], col[2], n);
    glu(col[1], col[0], col[1], (int)n);
    check_floats(r.name, "out is u", col[1], col[2], n);
    for (int c = 0; c < 4; c++) mem_free(col[c]);
    mem_free(r.data);
}

/* Runs fn on every .bin file of dir, in any order. */
static int each_file(const char *dir, void (*fn)(const char *path))
{
    DIR *d = opendir(dir);
    const struct dirent *e;
    char path[1024];
    int n = 0;

    while (d && (e = readdir(d)) != NULL) {
        if (!str_ends(str_from(e->d_name), ".bin")) continue;
        fn(test_path(path, sizeof path, "%s/%s", dir, e->d_name));
        n++;
    }
    if (d) closedir(d);
    return n;
}

static bool exists(const char *dir, const char *name)
{
    char path[1024];
    FILE *f = fopen(test_path(path, sizeof path, "%s/%s", dir, name), "rb");
    if (f) fclose(f);
    return f != NULL;
}

/* ours: the project's own data, of which nothing may be missing. */
static void test_golden_files(const char *dir, bool ours)
{
    static const quant_type golden_types[] = {
        QT_F32, QT_F16, QT_BF16, QT_Q4_0, QT_Q4_1, QT_Q5_0, QT_Q5_1, QT_Q8_0, QT_Q2_K, QT_Q3_K,
        QT_Q4_K, QT_Q5_K, QT_Q6_K, QT_IQ4_NL, QT_IQ4_XS, QT_MXFP4, QT_NVFP4,
    };
    char path[1024];
    const int n_matvec = each_file(test_path(path, sizeof path, "%s/matvec", dir), golden_matvec);
    const int n_ffn = each_file(test_path(path, sizeof path, "%s/ffn", dir), golden_ffn);

    CHECK_MSG(n_matvec > 0 && n_ffn > 0, "%s: %d matvec and %d ffn files", dir, n_matvec, n_ffn);
    if (ours) {
        CHECK_MSG(n_matvec == 69 && n_ffn == 4, "%s: %d and %d files", dir, n_matvec, n_ffn);
        for (size_t i = 0; i < ARRAY_LEN(golden_types); i++)
            CHECK_MSG(types_seen[golden_types[i]], "%s: no rows", quant_name(golden_types[i]));
    }
    if (ours || exists(dir, "quant.bin"))
        golden_quant(test_path(path, sizeof path, "%s/quant.bin", dir));
    if (ours || exists(dir, "exp.u32")) golden_exp(test_path(path, sizeof path, "%s/exp.u32", dir));
    if (ours || exists(dir, "glu_qwen.u32"))
        golden_glu(test_path(path, sizeof path, "%s/glu_qwen.u32", dir), now.f->swiglu);
    if (ours || exists(dir, "glu_gptoss.u32"))
        golden_glu(test_path(path, sizeof path, "%s/glu_gptoss.u32", dir), now.f->swiglu_clamped);
    if (ours || exists(dir, "glu_gemma.u32"))
        golden_glu(test_path(path, sizeof path, "%s/glu_gemma.u32", dir), now.f->geglu);
}

/* ---- sets and parts ------------------------------------------------------------------------ */

static bool is_float_type(int type) { return type == QT_F32 || type == QT_F16 || type == QT_BF16; }

static void test_sets(void)
{
    const kernel_set *contract = kernels_contract(), *exact = kernels_exact();
    for (int type = 0; type < QT_COUNT; type++) {
        const quant_traits *t = quant_traits_of((uint32_t)type);
        const bool known = t && t->decode, blocks = known && !is_float_type(type);
        const kernel *c = &contract->of[type], *e = &exact->of[type];
        const block_format *f = contract_blocks_of((uint32_t)type);
        int exponent = 0;
        CHECK_MSG((c->dot != NULL) == known && (e->dot != NULL) == known && (f != NULL) == blocks,
                  "%s: kernels and decoders differ", quant_name((uint32_t)type));
        if (!known) continue;
        CHECK_MSG(c->quantised == blocks && !e->quantised && e->factor == 1.0f &&
                  frexpf(c->factor, &exponent) == 0.5f, "%s: flags, factor", t->name);
        if (f)
            CHECK_MSG((uint64_t)f->segment_bytes == quant_row_bytes(t, SEGMENT),
                      "%s: a segment of %d bytes", t->name, f->segment_bytes);
    }
    CHECK(contract_blocks_of(QT_COUNT) == NULL && contract_blocks_of(UINT32_MAX) == NULL);
}

/* Weight i of a segment, from its parts, before the one rounding that formats with a minimum have.
 * 64 bits of mantissa hold it exactly. */
static long double part_value(const block_parts *p, parts_kind kind, float factor, int i)
{
    const int j = i / 32, h = i % 32 / 16;
    const long double w = p->w[i];
    if (kind == PARTS_TWO_SCALES) return factor * w * (long double)p->f[h][j];
    const long double v = factor * w * (long double)p->sc[h][j] * (long double)p->d[j];
    return kind == PARTS_PLAIN ? v : v + (long double)p->c[j] * (long double)p->m[h][j];
}

/* Random bytes for n blocks, without what decodes to Inf or NaN and without the codes that
 * contract_blocks.h treats differently from the decoder. even: no scales too large for the sums. */
static void random_blocks(uint8_t *out, const quant_traits *t, int type, size_t n, bool even,
                          test_rng *rng)
{
    const size_t bytes = (size_t)t->block_bytes, elems = (size_t)t->block_elems;
    for (size_t b = 0; b < n; b++, out += bytes) {
        float v[256];
        bool finite;
        do {
            for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)test_rand(rng);
            if (type == QT_MXFP4)
                out[0] = (uint8_t)(even ? 117 + test_below(rng, 20) : 1 + test_below(rng, 252));
            if (type == QT_NVFP4)
                for (int j = 0; j < 4; j++) if ((out[j] & 0x7F) == 0x7F) out[j] = 0x35;
            if (type == QT_F16) out[1] &= 0xBF;          /* below 2 */
            if (type == QT_F32 || type == QT_BF16)       /* between 2^-3 and 2, or minus that */
                store_u16(out + bytes - 2, (uint16_t)(test_below(rng, 512) | 0x3E00 |
                                                      test_below(rng, 2) << 15));
            t->decode(v, out, 1);
            finite = true;
            for (size_t i = 0; i < elems; i++) finite = finite && isfinite(v[i]);
        } while (!finite);
    }
}

/* Parts multiplied together are what the decoder says, for all weights of random blocks; also for a
 * part of a segment, past whose end nothing may be touched. */
static void test_parts(int type, test_rng *rng)
{
    const quant_traits *t = quant_traits_of((uint32_t)type);
    const block_format *f = contract_blocks_of((uint32_t)type);
    const float factor = kernels_contract()->of[type].factor;
    const int step = t->block_elems / 32;
    int bad = 0, touched = 0, compared = 0;

    for (int round = 0; round < 60; round++) {
        const int n = step * (1 + (int)test_below(rng, (uint32_t)(8 / step)));
        const size_t bytes = (size_t)quant_row_bytes(t, (uint64_t)n * 32);
        uint8_t *blocks = test_alloc(bytes, 1);
        float want[SEGMENT];
        block_parts p;
        random_blocks(blocks, t, type, (size_t)(n / step), false, rng);
        memset(&p, 0x55, sizeof p);
        f->unpack(&p, blocks, n);
        t->decode(want, blocks, (size_t)(n / step));
        for (int i = 0; i < 32 * n; i++, compared++)
            bad += (float)part_value(&p, f->kind, factor, i) != want[i];
        for (int i = 32 * n; i < SEGMENT; i++) touched += p.w[i] != 0x55;
        mem_free(blocks);
    }
    CHECK_MSG(bad == 0, "%s: %d of %d weights differ from the decoder's", t->name, bad, compared);
    CHECK_MSG(touched == 0, "%s: %d weights written past the end", t->name, touched);
}

/* The scale codes whose meaning the contract fixes. */
static void test_special_codes(void)
{
    static const struct { uint8_t code; float d; } mxfp4[] = {
        { 0, 0.0f }, { 1, 0x1p-126f }, { 127, 1.0f }, { 254, 0x1p127f }, { 255, INFINITY },
    };
    static const struct { uint8_t code; float f; } nvfp4[] = {
        { 0, 0.0f }, { 1, 0x1p-17f }, { 0x38, 0x1p-8f }, { 0x7E, 1.75f }, { 0x7F, 0.0f },
        { 0xFF, 0.0f }, { 0xB8, 0x1p-8f }, { 0x80, 0.0f },
    };
    block_parts p;
    uint8_t block[36] = { 0 };

    for (size_t i = 0; i < ARRAY_LEN(mxfp4); i++) {
        block[0] = mxfp4[i].code;
        contract_blocks_of(QT_MXFP4)->unpack(&p, block, 1);
        CHECK_MSG(same(p.d[0], mxfp4[i].d), "MXFP4 exponent %d: %a", mxfp4[i].code, (double)p.d[0]);
    }
    for (size_t i = 0; i < ARRAY_LEN(nvfp4); i++) {
        block[3] = nvfp4[i].code;
        contract_blocks_of(QT_NVFP4)->unpack(&p, block, 2);
        CHECK_MSG(same(p.f[1][1], nvfp4[i].f), "NVFP4 scale %d: %a", nvfp4[i].code,
                  (double)p.f[1][1]);
    }
}

/* ---- sums ---------------------------------------------------------------------------------- */

enum { MAX_TOKENS = 17, ROWS = 3 };

/* Magnitudes differ between blocks, some blocks are zero, one token in four has large values. */
static float *random_x(int n_token, int cols, test_rng *rng)
{
    float *x = test_alloc((size_t)(n_token * cols), sizeof *x);
    float size = 1.0f;
    for (int i = 0; i < n_token * cols; i++) {
        if (i % 32 == 0) size = test_below(rng, 8) ? ldexpf(1.0f, (int)test_below(rng, 6) - 3) : 0;
        x[i] = size * ((float)test_below(rng, 1u << 20) * 0x1p-19f - 1.0f);
        if (i / cols % 4 == 3 && test_below(rng, 50) == 0) x[i] *= 30.0f;
    }
    return x;
}

/* The contract's sum of a row without minimums, from decoded weights: the products of a block have
 * few bits, so a double adds them up exactly, and d * A is that sum, rounded once. */
static float row_by_decoder(const float *w, float factor, const act_row *x, int cols)
{
    float lane[8] = { 0 };
    for (int j = 0; j < cols / 32; j++) {
        double block = 0;
        for (int k = 0; k < 32; k++) block += (double)w[32 * j + k] * x->q[32 * j + k];
        lane[j % 8] = fmaf(x->dx[j], (float)(block / (double)factor), lane[j % 8]);
    }
    for (int half = 4; half > 2; half /= 2)
        for (int i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + 0.0f;
}

typedef struct sums_case {
    const kernel_set *set;
    const kernel *k;
    const quant_traits *t;
    int type, cols;
    size_t row_bytes;
    const uint8_t *rows;
    const acts *x;
} sums_case;

/* Largest distance from a double sum, in units of the sum of magnitudes; *bits counts the sums that
 * are not the contract's, for formats without minimums. */
static double sums_distance(const sums_case *c, const float *sums, int *bits)
{
    const bool coded = c->k->quantised;
    const bool judge = coded && contract_blocks_of((uint32_t)c->type)->kind != PARTS_MINIMUM;
    float *w = test_alloc((size_t)c->cols, sizeof *w);
    double worst = 0;

    for (int r = 0; r < ROWS; r++) {
        c->t->decode(w, c->rows + (size_t)r * c->row_bytes, (size_t)(c->cols / c->t->block_elems));
        for (int t = 0; t < c->x->n_token; t++) {
            const act_row *x = &c->x->row[t];
            const float got = sums[t * ROWS + r];
            double sum = 0, magnitude = 0;
            for (int i = 0; i < c->cols; i++) {
                const double xi = coded ? (double)x->dx[i / 32] * x->q[i] : (double)x->x[i];
                sum += (double)w[i] * xi;
                magnitude += fabs((double)w[i] * xi);
            }
            const double off = fabs((double)(got * c->k->factor) - sum);
            worst = fmax(worst, magnitude > 0 ? off / magnitude : off > 0 ? INFINITY : 0);
            if (judge) *bits += !same(got, row_by_decoder(w, c->k->factor, x, c->cols));
        }
    }
    mem_free(w);
    return worst;
}

/* Random rows at odd addresses with gaps between them; the last one ends with its allocation. */
static void test_sums(const kernel_set *set, int type, int cols, double limit, test_rng *rng)
{
    static const int tokens[] = { 1, 2, 7, 8, 9, 17 };
    const quant_traits *t = quant_traits_of((uint32_t)type);
    const size_t bytes = (size_t)quant_row_bytes(t, (uint64_t)cols), shift = test_below(rng, 16);
    const size_t stride = bytes + test_below(rng, 8);
    uint8_t *data = test_alloc(shift + (ROWS - 1) * stride + bytes, 1);
    float *x = random_x(MAX_TOKENS, cols, rng);
    float one[MAX_TOKENS * ROWS], many[MAX_TOKENS * ROWS + 1];
    sums_case c = { set, &set->of[type], t, type, cols, stride, data + shift, NULL };
    int bits = 0;
    acts a;

    for (size_t r = 0; r < ROWS; r++)
        random_blocks(data + shift + r * stride, t, type, (size_t)(cols / t->block_elems), true,
                      rng);
    acts_init(&a, x, MAX_TOKENS, cols, c.k->quantised);
    c.x = &a;
    mem_guard(true);
    for (int i = 0; i < MAX_TOKENS; i++)
        for (int r = 0; r < ROWS; r++)
            c.k->dot(&one[i * ROWS + r], c.rows + (size_t)r * stride, stride, 1, &a.row[i], 1,
                     cols);
    for (size_t n = 0; n < ARRAY_LEN(tokens); n++) {
        const size_t n_sum = (size_t)(tokens[n] * ROWS);
        many[n_sum] = 12345.0f;
        c.k->dot(many, c.rows, stride, ROWS, a.row, tokens[n], cols);
        CHECK_MSG(memcmp(many, one, n_sum * sizeof *one) == 0 && many[n_sum] == 12345.0f,
                  "%s %s K=%d: %d tokens differ from one at a time", set->isa, t->name, cols,
                  tokens[n]);
    }
    mem_guard(false);
    const double off = sums_distance(&c, one, &bits);
    CHECK_MSG(off <= limit, "%s %s K=%d: off by %.1e of sum |w x|", set->isa, t->name, cols, off);
    CHECK_MSG(bits == 0, "%s %s K=%d: %d of %d sums have other bits", set->isa, t->name, cols, bits,
              MAX_TOKENS * ROWS);
    acts_release(&a);
    mem_free(x);
    mem_free(data);
}

static void test_all_sums(test_rng *rng)
{
    static const struct { int blocks; const char *why; } lengths[] = {
        { 1, "one block" }, { 3, "one short segment" }, { 8, "whole segments" },
        { 9, "one block in the last segment" }, { 11, "three" },
        { 90, "2880, the width of a model: two blocks in the last segment" },
    };
    static const int float_cols[] = { 1, 31, 32, 33, 255, 256, 289, 2880 };

    for (int type = 0; type < QT_COUNT; type++) {
        const quant_traits *t = quant_traits_of((uint32_t)type);
        if (!t || !t->decode) continue;
        for (size_t i = 0; i < ARRAY_LEN(lengths) && !is_float_type(type); i++) {
            const int cols = lengths[i].blocks * t->block_elems;
            if (cols > 3000) continue;
            test_sums(kernels_contract(), type, cols, 5e-7, rng);
            test_sums(kernels_exact(), type, cols, 3e-7, rng);
        }
        for (size_t i = 0; i < ARRAY_LEN(float_cols) && is_float_type(type); i++) {
            test_sums(kernels_contract(), type, float_cols[i], 5e-7, rng);
            test_sums(kernels_exact(), type, float_cols[i], 3e-7, rng);
        }
    }
}

/* ---- exp ----------------------------------------------------------------------------------- */

static void test_exp(void)
{
    double worst = 0;
    for (int i = -86999; i < 88000; i += 7) {
        const float z = (float)i * 0.001f;
        const double want = exp((double)z), ulp = ldexp(1, ilogb(want) - 23);
        worst = fmax(worst, fabs((double)exact_exp(z) - want) / ulp);
    }
    CHECK_MSG(worst < 0.9, "exp is off by %.3f ulp", worst);
    CHECK(exact_exp(0.0f) == 1.0f && exact_exp(-0.0f) == 1.0f && isnan(exact_exp(NAN)));
    CHECK(same(exact_exp(INFINITY), exact_exp(88.0f)));
    CHECK(same(exact_exp(-INFINITY), exact_exp(-87.0f)));
}

/* What the gates do with Inf and NaN: clamps must let a NaN pass, from either side. */
static void test_gate_limits(void)
{
    static const struct { float g, u, qwen, gptoss; const char *why; } rows[] = {
        { NAN, 1, NAN, NAN, "NaN gate" },
        { 1, NAN, NAN, NAN, "NaN up" },
        { INFINITY, 1, INFINITY, 14, "no limit, and 7 * 2, nearly" },
        { 0, INFINITY, NAN, 0, "no limit, and 0 * 8" },
        { 0, -INFINITY, NAN, -0.0f, "no limit, and 0 * -6" },
        { -0.0f, 3, -0.0f, -0.0f, "sign of zero" },
    };                                   /* Gemma's has no limit either: as Qwen's */
    const loops *l = loops_for("scalar");
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        float qwen, gptoss, gemma;
        l->geglu(&gemma, &rows[i].g, &rows[i].u, 1);
        CHECK_MSG(same(gemma, rows[i].qwen), "%s, GELU: %a", rows[i].why, (double)gemma);
        l->swiglu(&qwen, &rows[i].g, &rows[i].u, 1);
        l->swiglu_clamped(&gptoss, &rows[i].g, &rows[i].u, 1);
        CHECK_MSG(same(qwen, rows[i].qwen), "%s: %a", rows[i].why, (double)qwen);
        CHECK_MSG(fabsf(gptoss - rows[i].gptoss) < 1e-3f || same(gptoss, rows[i].gptoss),
                  "%s, clamped: %a", rows[i].why, (double)gptoss);
    }
}

/* argv[1] may be a folder of numerics itself; the harness knows only folders that hold one. */
int main(int argc, char **argv)
{
    const bool direct = argc > 1 && exists(argv[1], "quant.bin");
    const kernel_set *sets[KERNELS_MAX_SETS];
    const int n_set = kernels_here(sets);
    test_rng rng = { 20260822 };
    char dir[1024];

    test_begin("numerics", direct ? 1 : argc, argv);
    for (int i = 0; i < n_set; i++) {
        now.set = sets[i];
        now.f = loops_for(sets[i]->isa);
        memset(types_seen, 0, sizeof types_seen);
        test_golden_files(direct ? argv[1] : test_path(dir, sizeof dir, "%s/numerics",
                                                       test_golden()), !direct);
    }                                    /* from here on the contract's, which is the last */
    test_sets();
    for (int type = 0; type < QT_COUNT; type++)
        if (contract_blocks_of((uint32_t)type)) test_parts(type, &rng);
    test_special_codes();
    test_all_sums(&rng);
    test_exp();
    test_gate_limits();
    return test_end();
}
