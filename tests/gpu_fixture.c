/* gpu_fixture.c - the fixture declared in gpu_fixture.h. */
#include "tests/gpu_fixture.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/numbers.h"
#include "tests/sim_gpu.h"

enum {
    GUARD = 256,                         /* bytes: keeps the alignment that gpu_alloc promises */
    MAX_PIECES = 256,
    CASE_SECONDS = 600                   /* the longest case, on the slowest machine */
};

typedef struct piece {                   /* of VRAM: guard, bytes, guard */
    uint8_t *at;
    size_t bytes;
} piece;

static struct {
    gpu *g;
    pool *team;
    ops contract, exact;
    char family[64];
    int shown, hidden;                   /* failures of the family */
    char label[256];                     /* of the case, */
    int n_case;                          /* and its number in this program */
    bool broken;                         /* an operation of the case failed: nothing is compared */
    void *host[MAX_PIECES];
    piece vram[MAX_PIECES];
    int n_host, n_vram;
} now;

/* ---- the device ------------------------------------------------------------------------------ */

/* Ends the program: no test can continue. */
static void give_up(const char *why)
{
    test_check(false, __FILE__, __LINE__, "%s: %s: %s; what follows was not run", now.family,
               now.label, why);
    exit(test_end());
}

/* A kernel that never ends: names it and ends the program. */
static void on_alarm(int number)
{
    char line[400];
    (void)number;
    snprintf(line, sizeof line, "FAIL: %s: %s: no end after %d seconds\n", now.family, now.label,
             (int)CASE_SECONDS);
    if (write(STDOUT_FILENO, line, strlen(line)) >= 0) _exit(1);
    _exit(2);
}

bool device_open(void)
{
    const loops *sets[LOOPS_MAX_SETS];
    err_ctx err = { 0 };
    if (gpu_count() == 0) {
        test_skip("no GPU");
        return false;
    }
    if (gpu_open(&now.g, 0, &err) < 0 || pool_create(&now.team, test_n_thread(2), &err) < 0)
        give_up(err.msg);
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, on_alarm);
    loops_here(sets);                    /* all give the same bits: use the fastest */
    now.contract = (ops){ now.team, kernels_contract(), sets[0] };
    if (sim_gpu_step(1, 2) > 1)          /* sanitizers are hardest on plain loops */
        now.contract.kernels = kernels_named(NULL, NULL);
    now.exact = (ops){ now.team, kernels_exact(), sets[0] };
    return true;
}

gpu *device(void) { return now.g; }
const ops *contract_ops(void) { return &now.contract; }
const ops *exact_ops(void) { return &now.exact; }

bool contract_reads_int8(quant_type type) { return now.contract.kernels->of[type].quantised; }

void contract_acts(acts *a, const float *x, int n, int cols, quant_type type)
{
    acts_set(a, x, n, cols);
    if (!contract_reads_int8(type)) return;
    acts_clear_padding(a);
    for (int t = 0; t < n; t++) {
        const size_t block = (size_t)t * (size_t)a->n_block;
        now.contract.loops->quantise(a->q + block * ACT_BLOCK, a->dx + block, a->s + 2 * block,
                                     x + (size_t)t * (size_t)cols, cols / ACT_BLOCK);
    }
    a->quantised = true;
}

void contract_multiply(float *y, const matrix *w, const act_row *x)
{
    for (int r = 0; r < w->rows; r += OPS_ROWS)
        product_rows(y + r, OPS_ROWS, &now.contract, w, r,
                     w->rows - r < OPS_ROWS ? w->rows - r : OPS_ROWS, x, 1, NULL);
}

/* The gpu that failed keeps the failure: a new one may go on. */
static void open_anew(void)
{
    err_ctx err = { 0 };
    int word = 1, back = 0;
    gpu_close(now.g);
    if (gpu_open(&now.g, 0, &err) < 0) give_up(err.msg);
    void *p = gpu_alloc(now.g, sizeof word, "a word", &err);
    if (!p || gpu_write(now.g, p, &word, sizeof word, &err) < 0 ||
        gpu_read(now.g, &back, p, sizeof back, &err) < 0 || back != 1)
        give_up(err.msg);
    gpu_free(now.g, p);
}

void device_close(void)
{
    family("");
    gpu_close(now.g);
    pool_free(now.team);
    now.g = NULL;
    now.team = NULL;
}

/* ---- families and cases ---------------------------------------------------------------------- */

void family(const char *name)
{
    if (now.hidden)
        test_check(false, __FILE__, __LINE__, "%s: %d more failures", now.family, now.hidden);
    snprintf(now.family, sizeof now.family, "%s", name);
    now.shown = now.hidden = 0;
}

void case_begin(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(now.label, sizeof now.label, fmt, ap);
    va_end(ap);
    now.n_case++;
    now.broken = false;
    alarm(CASE_SECONDS);
}

bool expect(bool ok, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (now.broken) return false;        /* counted once */
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!ok && now.shown == FAMILY_LINES) now.hidden++;
    else test_check(ok, "case", now.n_case, "%s: %s: %s", now.family, now.label, text);
    if (!ok && now.shown < FAMILY_LINES) now.shown++;
    return ok;
}

static void must(int rc, const err_ctx *err)
{
    if (rc == 0) return;
    expect(false, "%s", err->msg);
    now.broken = true;
}

static void check_guards(const piece *p, const uint8_t *guards)
{
    int at = 0;
    while (at < 2 * GUARD && guards[at] == 0xFF) at++;
    if (at < 2 * GUARD)
        expect(false, "written %d bytes %s an array of %zu bytes",
               at < GUARD ? GUARD - at : at - GUARD, at < GUARD ? "before" : "after", p->bytes);
}

/* Of all arrays, with one wait. */
static void check_all_guards(void)
{
    uint8_t (*guards)[2 * GUARD] = test_alloc(MAX_PIECES, sizeof *guards);
    err_ctx err = { 0 };
    memset(guards, 0, MAX_PIECES * sizeof *guards);
    for (int i = 0; i < now.n_vram; i++) {
        const piece *p = &now.vram[i];
        must(gpu_read_later(now.g, guards[i], p->at - GUARD, GUARD, &err), &err);
        must(gpu_read_later(now.g, guards[i] + GUARD, p->at + p->bytes, GUARD, &err), &err);
    }
    must(gpu_copies_end(now.g, &err), &err);
    for (int i = 0; i < now.n_vram && !now.broken; i++) check_guards(&now.vram[i], guards[i]);
    mem_free(guards);
}

void case_end(void)
{
    err_ctx err = { 0 };
    must(gpu_wait(now.g, &err), &err);
    if (!now.broken) check_all_guards();
    for (int i = 0; i < now.n_vram; i++) gpu_free(now.g, now.vram[i].at - GUARD);
    now.n_vram = 0;
    host_drop(0);
    alarm(0);
    if (now.broken) open_anew();
}

/* ---- memory ---------------------------------------------------------------------------------- */

void *host_room(size_t n, size_t size)
{
    void *p = test_alloc(n, size);
    if (now.n_host == MAX_PIECES) give_up("too many arrays in one case");
    memset(p, 0, (n ? n : 1) * size);
    now.host[now.n_host++] = p;
    return p;
}

int host_mark(void) { return now.n_host; }

void host_drop(int mark)
{
    while (now.n_host > mark) mem_free(now.host[--now.n_host]);
}

float *host_floats(size_t n, float range, test_rng *rng)
{
    float *p = host_room(n, sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = range * uniform(rng);
    return p;
}

/* Guards with from between them, or with NaNs. */
static void *vram_piece(const void *from, size_t bytes)
{
    err_ctx err = { 0 };
    const size_t all = bytes + 2 * GUARD;
    uint8_t *image = test_alloc(all, 1), *p = gpu_alloc(now.g, all, "a test", &err);
    if (!p) give_up(err.msg);
    if (now.n_vram == MAX_PIECES) give_up("too many arrays in one case");
    memset(image, 0xFF, all);
    if (from) memcpy(image + GUARD, from, bytes);
    must(gpu_write_later(now.g, p, image, all, &err), &err);
    mem_free(image);
    now.vram[now.n_vram++] = (piece){ p + GUARD, bytes };
    return p + GUARD;
}

void *vram_room(size_t bytes)
{
    return vram_piece(NULL, bytes);
}

void *vram_copy(const void *from, size_t bytes)
{
    return vram_piece(from, bytes);
}

float *vram_floats(const float *from, size_t n)
{
    return vram_piece(from, n * sizeof *from);
}

void vram_write(void *to, const void *from, size_t bytes)
{
    err_ctx err = { 0 };
    must(gpu_write_later(now.g, to, from, bytes, &err), &err);
}

void vram_read(void *to, const void *from, size_t bytes)
{
    err_ctx err = { 0 };
    memset(to, 0xFF, bytes);
    must(gpu_read(now.g, to, from, bytes, &err), &err);
}

float *host_copy(const float *from, size_t n)
{
    float *p = host_room(n, sizeof *p);
    vram_read(p, from, n * sizeof *p);
    return p;
}

/* ---- comparisons ----------------------------------------------------------------------------- */

static bool same_bits(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

void expect_bits(const char *what, const float *got, const float *want, size_t n)
{
    size_t bad = 0, first = 0;
    for (size_t i = 0; i < n; i++)
        if (!same_bits(got[i], want[i]) && bad++ == 0) first = i;
    expect(bad == 0, "%s: %zu of %zu values differ, the first at %zu: %a, expected %a", what, bad,
           n, first, (double)got[first], (double)want[first]);
}

void expect_bytes(const char *what, const void *got, const void *want, size_t n)
{
    const uint8_t *a = got, *b = want;
    size_t bad = 0, first = 0;
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i] && bad++ == 0) first = i;
    expect(bad == 0, "%s: %zu of %zu bytes differ, the first at %zu: %02x, expected %02x", what,
           bad, n, first, a[first], b[first]);
}

/* at: the first that is off by more than allowed, else the worst. */
typedef struct deviation {
    double error;                        /* relative, in the L2 norm */
    double worst;                        /* the largest difference */
    size_t at, n_far;
} deviation;

static deviation deviation_of(const float *got, const float *want, size_t n, double far)
{
    deviation d = { 0 };
    double diff = 0.0, norm = 0.0;
    for (size_t i = 0; i < n; i++) norm += (double)want[i] * want[i];
    const double usual = sqrt(norm / (double)n);
    for (size_t i = 0; i < n; i++) {
        double off = fabs((double)got[i] - want[i]);
        if (isnan(off)) off = INFINITY;
        if (off > far * (usual + fabs((double)want[i])) && d.n_far++ == 0) d.at = i;
        if (off > d.worst) {
            d.worst = off;
            if (d.n_far == 0) d.at = i;
        }
        diff += off * off;
    }
    d.error = worse(0.0, diff == 0.0 ? 0.0 : sqrt(diff / norm));
    return d;
}

void expect_close(const char *what, const float *got, const float *want, size_t n, double bound)
{
    const deviation d = deviation_of(got, want, n, 8.0 * bound);
    expect(d.error <= bound && d.n_far == 0, "%s: error %.2e, bound %.0e, %zu of %zu values are "
           "far off; see %zu: %.9g, expected %.9g", what, d.error, bound, d.n_far, n, d.at,
           (double)got[d.at], (double)want[d.at]);
}

void expect_rows_close(const char *what, const float *got, const float *want, size_t n_row,
                       size_t width, double bound)
{
    size_t bad = 0, first = 0, worst = 0;
    double largest = -1.0;
    for (size_t r = 0; r < n_row; r++) {
        const double e = deviation_of(got + r * width, want + r * width, width, bound).error;
        if (e > bound && bad++ == 0) first = r;
        if (e > largest) {
            largest = e;
            worst = r;
        }
    }
    if (bad == 0) first = worst;
    const deviation d = deviation_of(got + first * width, want + first * width, width, bound);
    expect(bad == 0, "%s: %zu of %zu rows of %zu are off, bound %.0e; the worst, %zu, by %.2e; the "
           "first, %zu, by %.2e, see %zu: %.9g, expected %.9g", what, bad, n_row, width, bound,
           worst, largest, first, d.error, d.at, (double)got[first * width + d.at],
           (double)want[first * width + d.at]);
}

/* ---- matrices -------------------------------------------------------------------------------- */

const quant_type gpu_types[GPU_TYPE_COUNT] = {
    QT_Q4_0, QT_Q4_1, QT_Q5_0, QT_Q5_1, QT_Q8_0, QT_IQ4_NL, QT_MXFP4, QT_NVFP4, QT_Q2_K, QT_Q3_K,
    QT_Q4_K, QT_Q5_K, QT_Q6_K, QT_IQ4_XS, QT_F32, QT_F16, QT_BF16,
};

double product_bound(quant_type type, int n)
{
    if (n <= GPU_FEW) return 2e-5;       /* of one value, perhaps a remainder of larger ones */
    return type == QT_F32 ? 1e-5 : 8e-3;
}

double lows_bound(quant_type type, int n)
{
    const bool whole = n > GPU_FEW && (type == QT_F16 || type == QT_BF16);
    return whole ? LOWS_BOUND : product_bound(type, n);
}

void expert_shape(int *n_embd, int *n_ff, quant_type type, int i)
{
    static const int of_256[2][2] = { { 512, 256 }, { 256, 512 } };
    static const int of_64[2][2] = { { 320, 192 }, { 256, 64 } };
    static const int of_32[2][2] = { { 288, 96 }, { 512, 256 } };
    static const int of_1[2][2] = { { 101, 70 }, { 288, 96 } };
    const int elems = (int)quant_traits_of(type)->block_elems;
    const int *shape = elems == 256 ? of_256[i] : elems == 64 ? of_64[i] : elems == 32 ? of_32[i]
                                                                                      : of_1[i];
    *n_embd = shape[0];
    *n_ff = shape[1];
}

reference reference_make(quant_type type, int rows, int cols, weight_kind kind, float scale,
                         bool bias, test_rng *rng)
{
    const uint64_t row_bytes = quant_row_bytes(quant_traits_of(type), (uint64_t)cols);
    const size_t bytes = (size_t)row_bytes * ((size_t)rows + 1);
    uint8_t *data = host_room(bytes, 1);
    for (size_t r = 0; r <= (size_t)rows; r++)
        weight_row_make(data + r * row_bytes, type, cols, kind, rng);
    reference t = {
        .cpu = { .type = type, .rows = rows, .cols = cols, .data = data + row_bytes,
                 .row_bytes = row_bytes, .scale = scale },
        .gpu = { .type = (int)type, .rows = rows, .cols = cols, .row_bytes = row_bytes,
                 .scale = scale },
    };
    t.gpu.data = (const uint8_t *)vram_copy(data, bytes) + row_bytes;
    if (bias) {
        float *b = host_floats((size_t)rows, 0.5f, rng);
        t.cpu.bias = b;
        t.gpu.bias = vram_floats(b, (size_t)rows);
    }
    return t;
}

float unit_scale(const uint8_t *row, quant_type type, int cols)
{
    const quant_traits *t = quant_traits_of(type);
    const int held = host_mark();
    float *w = host_room((size_t)cols, sizeof *w);
    double sum = 0.0;
    t->decode(w, row, (size_t)(cols / t->block_elems));
    for (int c = 0; c < cols; c++) sum += (double)w[c] * w[c];
    host_drop(held);
    return (float)(1.0 / sqrt(sum));
}

void cpu_activate(float *g, const float *u, int n, const ops *o, gpu_activation act)
{
    switch (act) {
    case GPU_SWIGLU: o->loops->swiglu(g, g, u, n); break;
    case GPU_SWIGLU_CLAMPED: o->loops->swiglu_clamped(g, g, u, n); break;
    case GPU_GEGLU: o->loops->geglu(g, g, u, n); break;
    }
}

const char *act_name(gpu_activation act)
{
    return act == GPU_GEGLU ? ", GELU" : act == GPU_SWIGLU_CLAMPED ? ", clamped" : "";
}

const char *shared_name(shared_text out, quant_type up, quant_type down, int n_ff)
{
    if (n_ff == 0) return "";
    return test_path(out, sizeof(shared_text), ", shared %s/%s of %d", quant_name(up),
                     quant_name(down), n_ff);
}

void cpu_product(float *y, const ops *o, const matrix *w, const float *x, int n)
{
    acts a;
    acts_init(&a, host_room(acts_bytes(n, w->cols), 1), n, w->cols);
    acts_set(&a, x, n, w->cols);
    ops_matmul(o, y, w, &a);
}
