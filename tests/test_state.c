/* test_state.c - KV store, recurrent block, snapshots, rewinding and copies in parts. Files:
 * test_state_file.c. */
#include "tests/case_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/gpu.h"
#include "loader/bytes.h"
#include "tests/sim_gpu.h"
#include "tests/state_reference.h"

static case_rows cases;                  /* of cases/state.txt */
static int n_ram;                        /* layers of theirs that are in RAM anyway */
static mem_space *where;                 /* of the states under test; NULL: RAM */

/* ---- names and sizes ------------------------------------------------------------------------- */

static void test_names(void)
{
    static const struct { const char *name; bool known; kv_type type; } rows[] = {
        { "f32", true, KV_F32 }, { "F16", true, KV_F16 }, { "q8_0", true, KV_Q8_0 },
        { "Q8_0", true, KV_Q8_0 }, { "q4_0", false, 0 }, { "", false, 0 }, { "f1", false, 0 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        kv_type t = KV_F32;
        CHECK_MSG(kv_type_from_name(&t, rows[i].name) == rows[i].known &&
                  (!rows[i].known || t == rows[i].type), "'%s'", rows[i].name);
    }
    CHECK(!strcmp(kv_type_name(KV_F32), "f32") && !strcmp(kv_type_name(KV_Q8_0), "q8_0"));
}

/* Of all layers; UINT64_MAX: too much. */
static uint64_t kv_bytes(const model *m, const kv_options *o)
{
    uint64_t sum = 0;
    for (int l = 0; l < m->hp.n_layer; l++)
        if (!size_add(&sum, sum, kv_layer_bytes(m, o, l))) return UINT64_MAX;
    return sum;
}

/* The numbers of the real models, worked out by hand. */
static void test_sizes(void)
{
    static const struct {
        const char *layers, *why;
        int n, heads, dim, window, ctx;
        kv_type type;
        uint64_t kv, rec, snap;
    } rows[] = {
        { "WF", "gpt-oss-20b, 128k", 12, 8, 64, 128, 131072, KV_F16,
          12ull * 2048 * (131072 + 128 + 256) + 24 * 16384, 0, 12ull * 2048 * 127 },
        { "WF", "gpt-oss-20b, Q8_0", 12, 8, 64, 128, 131072, KV_Q8_0,
          12ull * 1088 * (131072 + 128 + 256) + 24 * 16384, 0, 12ull * 1088 * 127 },
        { "WF", "context below window and slack: no ring", 12, 8, 64, 128, 384, KV_F32,
          12ull * 4096 * 384 * 2 + 24 * 64, 0, 0 },
        { "WFwf", "shared keys and values take no memory", 1, 8, 64, 128, 385, KV_F32,
          4096ull * (384 + 448) + 2 * 64, 0, 4096ull * 127 },
        { "WF", "one more: a ring", 12, 8, 64, 128, 385, KV_F32,
          12ull * 4096 * (384 + 448) + 24 * 64, 0, 12ull * 4096 * 127 },
        { "DDDF", "qwen3-next-80b, 256k", 12, 2, 256, 0, 262144, KV_F16,
          12ull * 2048 * 262144 + 12 * 32768, 79036416, 79036416 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char layers[64] = "";
        for (int k = 0; k < rows[i].n; k++) strcat(layers, rows[i].layers);
        strcat(layers, "M");             /* an MTP block has no store */
        model *m = reference_model(layers, rows[i].heads, rows[i].dim, rows[i].window);
        const state_options o = { rows[i].ctx, 256, rows[i].type, 3, { .n = 0 } };
        if (m->hp.ssm_conv) {
            m->hp.ssm_head_dim = 128;
            m->hp.ssm_n_k_head = 16;
            m->hp.ssm_n_v_head = 32;
        }
        const kv_options ko = { .type = o.kv, .ctx = o.ctx, .slack = o.slack };
        const uint64_t store = kv_bytes(m, &ko), rec = recurrent_bytes(m);
        CHECK_MSG(store == rows[i].kv, "%s: KV %" PRIu64, rows[i].why, store);
        CHECK_MSG(rec == rows[i].rec, "%s: recurrent %" PRIu64, rows[i].why, rec);
        CHECK_MSG(state_bytes(m, &o) == store + rec + 3 * rows[i].snap, "%s: all %" PRIu64,
                  rows[i].why, state_bytes(m, &o));
        CHECK(state_bytes(m, &o) - state_snapshot_bytes(m, &o) == store + rec);
        reference_model_free(m);
    }
}

/* Too much to count, and too much to have. */
static void test_too_much(void)
{
    static const struct { const char *layers; int heads, dim; uint64_t bytes; } rows[] = {
        { "FF", 1 << 30, 1 << 30, UINT64_MAX }, { "F", 1 << 19, 1 << 10, (1ull << 62) + (1 << 27) },
        { "FFFF", 1 << 19, 1 << 10, UINT64_MAX },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        model *m = reference_model(rows[i].layers, rows[i].heads, rows[i].dim, 0);
        const state_options o = { 1 << 30, 256, KV_F32, 1, reference_segments(m, where, n_ram) };
        err_ctx err = { 0 };
        state *s = NULL;
        const kv_options ko = { .type = KV_F32, .ctx = o.ctx, .slack = 256 };
        CHECK_MSG(kv_bytes(m, &ko) == rows[i].bytes, "row %zu: %" PRIu64, i, kv_bytes(m, &ko));
        CHECK(state_create(&s, m, &o, &err) == ERR_NOMEM && !s && strstr(err.msg, "KV cache"));
        reference_model_free(m);
    }
    model *m = reference_model("DF", 1, 32, 0);
    const state_options o = { 64, 8, KV_F32, 1, reference_segments(m, where, n_ram) };
    err_ctx err = { 0 };
    state *s = NULL;
    m->hp.ssm_head_dim = m->hp.ssm_n_v_head = 1 << 30;
    CHECK(recurrent_bytes(m) == UINT64_MAX && state_bytes(m, &o) == UINT64_MAX);
    CHECK(state_bytes(m, &o) == UINT64_MAX);
    CHECK(state_create(&s, m, &o, &err) == ERR_NOMEM && strstr(err.msg, "recurrent"));
    reference_model_free(m);
}

static void test_refused(void)
{
    static const struct {
        int dim, ctx, slack, n;
        kv_type type;
        int rc;
        const char *text;
    } rows[] = {
        { 32, 0, 8, 0, KV_F32, ERR_RANGE, "context 0" },
        { 32, -5, 8, 0, KV_F32, ERR_RANGE, "context -5" },
        { 32, 8, 0, 0, KV_F32, ERR_RANGE, "run 0" },
        { 32, 8, 8, -1, KV_F32, ERR_RANGE, "-1 snapshots" },
        { 48, 8, 8, 0, KV_Q8_0, ERR_UNSUPPORTED, "multiple of 32, this model has 48" },
        { 48, 8, 8, 0, KV_F16, 0, "" },
        { 32, 8, 1000, 2, KV_Q8_0, 0, "" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        model *m = reference_model("WFD", 1, rows[i].dim, 4);
        const state_options o = { rows[i].ctx, rows[i].slack, rows[i].type, rows[i].n,
                                  reference_segments(m, where, n_ram) };
        err_ctx err = { 0 };
        state *s = NULL;
        const int rc = state_create(&s, m, &o, &err);
        CHECK_MSG(rc == rows[i].rc && (rc < 0) == !s && strstr(err.msg, rows[i].text),
                  "row %zu: %d %s", i, rc, err.msg);
        state_free(s);
        reference_model_free(m);
    }
    kv_free(NULL);
    recurrent_free(NULL);
    state_free(NULL);
}

static void test_no_memory(void)
{
    model *m = reference_model("WFD", 2, 32, 4);
    const state_options o = { 64, 8, KV_F16, 2, reference_segments(m, where, n_ram) };
    long n = 0;
    for (int rc = -1; rc < 0 && n < 50;) {
        err_ctx err = { 0 };
        state *s = NULL;
        mem_fail_after(++n);
        rc = state_create(&s, m, &o, &err);
        mem_fail_after(0);
        if (rc < 0) CHECK_MSG(rc == ERR_NOMEM && !s && err.msg[0], "number %ld: %s", n, err.msg);
        state_free(s);
    }
    CHECK_MSG(n > 5 && n < 50, "%ld allocations", n);
    reference_model_free(m);
}

static void test_no_room(void)
{
    static const struct { int rc; const char *text; } want[] = {
        { ERR_NOMEM, "a KV cache for 64 tokens" }, { ERR_IO, "write failed" },   /* its table */
        { ERR_NOMEM, "the recurrent state" },
    };
    model *m = reference_model("WFD", 2, 32, 4);
    const state_options o = { 64, 8, KV_F16, 2, reference_segments(m, far_space(), 0) };
    for (int n = 1; n <= 4; n++) {
        err_ctx err = { 0 };
        state *s = NULL;
        far_fail_after(n);
        const int rc = state_create(&s, m, &o, &err);
        far_fail_after(0);
        if (n <= 3) CHECK_MSG(rc == want[n - 1].rc && !s && strstr(err.msg, want[n - 1].text) &&
                              far_blocks() == 0, "number %d: %s", n, err.msg);
        else CHECK_MSG(rc == 0 && far_blocks() == 2, "%s", err.msg);
        state_free(s);
    }
    CHECK(far_blocks() == 0);
    reference_model_free(m);
}

typedef struct memory { size_t mapped, resident; } memory;

static memory memory_now(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t mapped = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%zu %zu", &mapped, &resident) == 2);
    if (f) fclose(f);
    return (memory){ mapped * page, resident * page };
}

/* A long context costs nothing until it is used: 3.2 GB of KV here. It is given back in the end. */
static void test_lazy(void)
{
    model *m = reference_model("WFWFWFWFWFWFWFWFWFWFWFWF", 8, 64, 128);
    const state_options o = { 131072, 256, KV_F16, 4, { .n = 0 } };
    const memory before = memory_now();
    float x[512] = { 1 };
    err_ctx err = { 0 };
    state *s = NULL;
    CHECK_MSG(state_create(&s, m, &o, &err) == 0, "%s", err.msg);
    if (s) {
        for (int l = 0; l < m->hp.n_layer; l++) kv_write(state_kv(s), l, 0, 1, x, x, NULL);
        const memory used = memory_now();
        CHECK_MSG(used.resident < before.resident + (64u << 20), "%zu bytes, then %zu",
                  before.resident, used.resident);
        CHECK(used.mapped > before.mapped + (3u << 30));
    }
    state_free(s);
    CHECK(memory_now().mapped < before.mapped + (1u << 30));
    reference_model_free(m);
}

/* ---- encodings ------------------------------------------------------------------------------- */

/* x through a store of one layer with one head of 64. True: keys and values come back alike. */
static bool through(kv_store *c, float out[64], const float x[64])
{
    float value[64];
    const float zero[64] = { 0 };
    kv_write(c, 0, 0, 1, x, zero, NULL);
    kv_row_decode(out, c, 0, 0, 0, false);
    kv_write(c, 0, 0, 1, zero, x, NULL);
    kv_row_decode(value, c, 0, 0, 0, true);
    return !memcmp(out, value, sizeof value);
}

static float of_bits(uint32_t bits)
{
    return load_f32(&bits);
}

/* Every binary16 comes back as it is; between two neighbours the nearer one wins, and halfway the
 * one with an even last bit. Neighbours are those of the format's decoder. */
static void test_f16(void)
{
    model *m = reference_model("F", 1, 64, 0);
    kv_store *c = NULL;
    int bad = 0;
    CHECK(kv_create(&c, m, &(kv_options){ .type = KV_F16, .ctx = 1, .slack = 1 }, NULL) == 0);
    for (uint32_t h = 0; h < 0x7C00; h += 8) {
        float x[64], want[64], have[64];
        for (uint32_t i = 0; i < 8; i++) {
            const float a = f16_to_f32((uint16_t)(h + i));
            /* the neighbour of the largest is 2^16, which stands for infinity */
            const float b = h + i == 0x7BFF ? 65536.0f : f16_to_f32((uint16_t)(h + i + 1));
            const float up = h + i == 0x7BFF ? INFINITY : b, mid = (a + b) / 2;
            const float in[4] = { a, mid, nextafterf(mid, 0), nextafterf(mid, INFINITY) };
            const float out[4] = { a, (h + i) % 2 ? up : a, a, up };
            for (int k = 0; k < 4; k++) {
                x[8 * i + (uint32_t)k] = in[k];
                want[8 * i + (uint32_t)k] = out[k];
                x[8 * i + 4 + (uint32_t)k] = -in[k];
                want[8 * i + 4 + (uint32_t)k] = -out[k];
            }
        }
        bad += !through(c, have, x) || memcmp(have, want, sizeof have) != 0;
    }
    CHECK_MSG(bad == 0, "%d groups of binary16 are not rounded right", bad);

    float x[64] = { INFINITY, -INFINITY, NAN, of_bits(0x7F800001u), of_bits(0x7F802000u), 3e38f,
                    1e-45f, -1e-45f, 0x1p-25f, 0x1.8p-25f };
    float y[64];
    CHECK(through(c, y, x));
    CHECK(y[0] == INFINITY && y[1] == -INFINITY && isnan(y[2]) && isnan(y[3]) && isnan(y[4]));
    CHECK(y[5] == INFINITY && y[6] == 0 && !signbit(y[6]) && y[7] == 0 && signbit(y[7]));
    CHECK(y[8] == 0 && y[9] == 0x1p-24f);
    kv_free(c);
    reference_model_free(m);
}

/* Scale: the binary16 nearest to amax / 127. Values: within half a step of it. */
static void test_q8_0(void)
{
    static const float tops[] = { 127, 1, 8, 3.7f, 65504.0f * 127, 0x1p-10f, 0.2f, 1000, 0 };
    model *m = reference_model("F", 1, 64, 0);
    test_rng rng = { 3 };
    kv_store *c = NULL;
    CHECK(kv_create(&c, m, &(kv_options){ .type = KV_Q8_0, .ctx = 1, .slack = 1 }, NULL) == 0);
    for (size_t r = 0; r < 40 * ARRAY_LEN(tops); r++) {
        const float top = tops[r % ARRAY_LEN(tops)];
        float x[64], y[64];
        double worst = 0, step = (double)top / 127;
        for (int i = 0; i < 64; i++)
            x[i] = ((float)test_below(&rng, 20001) - 10000) * 1e-4f * (i < 32 ? top : 1);
        x[test_below(&rng, 32)] = r % 2 ? -top : top;
        CHECK(through(c, y, x));
        for (int i = 0; i < 32; i++)
            if (!(fabs((double)x[i] - y[i]) <= worst)) worst = fabs((double)x[i] - y[i]);
        /* half a step of a scale that is off by 2^-11 of itself, or 2^-25 where it is subnormal */
        const double allowed = step / 2 * (1 + 0x1p-11) + 127 * 0x1p-25 + 127 * step * 0x1p-11;
        CHECK_MSG(worst <= allowed, "amax %g: off by %g, allowed %g", (double)top,
                  worst, allowed);
    }
    /* whole codes of a scale of 1 survive exactly; blocks do not see each other */
    float x[64], y[64];
    for (int i = 0; i < 64; i++) x[i] = i < 32 ? (float)(i * 8 - 127) : (float)(i - 32) * 0x1p-8f;
    x[1] = 127;
    x[63] = 127 * 0x1p-8f;
    CHECK(through(c, y, x));
    CHECK(!memcmp(x, y, sizeof x));
    for (int i = 0; i < 64; i++) x[i] = i == 40 ? NAN : 1e-3f;
    x[5] = -1e30f;
    CHECK(through(c, y, x));
    CHECK(y[5] == -INFINITY && isinf(y[0]) && isnan(y[33]) && isnan(y[40]));    /* damage shows */
    kv_free(c);
    reference_model_free(m);
}

/* A team stores what one thread does, in a ring as well. */
static void test_write_by_team(void)
{
    enum { N = 70, WIDTH = 3 * 32 };
    model *m = reference_model("WF", 3, 32, 20);
    const kv_options o = { .type = KV_F16, .ctx = 2 * N, .slack = N };
    kv_store *alone = NULL, *shared = NULL;
    pool *team = NULL;
    static float x[2 * N * WIDTH];
    for (int i = 0; i < 2 * N * WIDTH; i++) x[i] = (float)(i % 1013);
    CHECK(kv_create(&alone, m, &o, NULL) == 0 && kv_create(&shared, m, &o, NULL) == 0 &&
          pool_create(&team, 4, NULL) == 0);
    for (int l = 0; l < 2; l++) {
        const float *k = x, *v = x + 7;
        for (int p = 0; p + N <= 2 * N; p += N, k += N * WIDTH / 2) {
            kv_write(alone, l, p, N, k, v, NULL);
            kv_write(shared, l, p, N, k, v, team);
        }
        const kv_view a = kv_layer_view(alone, l), b = kv_layer_view(shared, l);
        const size_t bytes = 2 * 3 * KV_PAGE * a.row_bytes;
        CHECK(a.first == b.first && a.n_row == b.n_row);
        for (int p = 0; p < 2 * N; p += KV_PAGE)
            CHECK(!memcmp(kv_row(&a, KV_KEYS, 0, p), kv_row(&b, KV_KEYS, 0, p), bytes));
    }
    pool_free(team);
    kv_free(alone);
    kv_free(shared);
    reference_model_free(m);
}

/* What kv_layer_view says is where kv_write puts it; a ring's pages take the memory of earlier
 * ones. */
static void test_view(void)
{
    model *m = reference_model("WDF", 3, 32, 3);
    kv_store *c = NULL;
    float x[2 * 96], key[32], value[32];
    for (int i = 0; i < 2 * 96; i++) x[i] = (float)(i + 1);
    CHECK(kv_create(&c, m, &(kv_options){ .type = KV_Q8_0, .ctx = 200, .slack = 62 }, NULL) == 0);
    for (int l = 0; l < 3; l++) {
        const kv_view v = kv_layer_view(c, l);
        CHECK(v.n_row == (l == 0 ? 128 : l == 1 ? 0 : 256) && !v.pages == (l == 1));
        CHECK(v.type == KV_Q8_0 && v.first == 0);
        for (int p = 0; p < 200 && v.pages; p++) {
            const float *from = x + p % 60;
            kv_write(c, l, p, 1, from, from + 30, NULL);
            for (int h = 0; h < 3; h++) {
                quant_traits_of(QT_Q8_0)->decode(key, kv_row(&v, KV_KEYS, h, p), 1);
                quant_traits_of(QT_Q8_0)->decode(value, kv_row(&v, KV_VALUES, h, p), 1);
                CHECK(fabsf(key[31] - from[32 * h + 31]) < 1.0f &&
                      fabsf(value[31] - from[32 * h + 61]) < 1.0f);
            }
        }
        CHECK(kv_layer_view(c, l).first == (l == 0 ? 72 : 0));
        for (int p = 0; p < 200 && v.pages; p += KV_PAGE) {
            CHECK(((uintptr_t)kv_row(&v, KV_KEYS, 0, p) & 63) == 0);
            CHECK((kv_row(&v, KV_KEYS, 0, p) == kv_row(&v, KV_KEYS, 0, 0)) ==
                  (p == 0 || (l == 0 && p == 128)));
        }
    }
    kv_free(c);
    reference_model_free(m);
}

/* ---- rewinding ------------------------------------------------------------------------------ */

static void test_limit(void)
{
    for (int i = 0; i < cases.n; i++) {
        char *const *cells = cases.cells[i], *next = cases.cells[i][3];
        int window, slack, ctx;
        if (strcmp(cells[0], "limit") != 0 ||
            !CHECK(sscanf(cells[2], "%d %d %d", &window, &slack, &ctx) == 3)) continue;
        model *m = reference_model(cells[1], 1, 32, window);
        const state_options o = { ctx, slack, KV_F32, 0, reference_segments(m, where, n_ram) };
        test_rng rng = { (uint64_t)i };
        reference t;
        reference_open(&t, m, &o);
        while (*next) {
            const int step = (int)strtol(next, &next, 10);
            if (step > 0) reference_run(&t, &rng, step, false);
            else reference_rewind(&t, -step);
        }
        const int limit = kv_rewind_limit(state_kv(t.s), t.pos);
        CHECK_MSG(reference_holds(&t, &rng), "%s: %s", cells[5], t.why);
        CHECK_MSG(limit == atoi(cells[4]), "%s: %d, want %s", cells[5], limit, cells[4]);
        reference_close(&t);
        reference_model_free(m);
    }
}

/* Which snapshot is evicted, which are dropped, which stay. */
static void test_snapshots(void)
{
    model *m = reference_model("DF", 1, 32, 0);
    const state_options o = { 100, 10, KV_F32, 3, reference_segments(m, where, n_ram) };
    test_rng rng = { 5 };
    reference t;
    reference_open(&t, m, &o);
    state_snapshot(t.s, NULL);                           /* at 0: takes no place */
    for (int i = 0; i < 3; i++) {
        reference_run(&t, &rng, 10, false);
        reference_snapshot(&t);                          /* 10, 20, 30 */
    }
    CHECK(state_rewind_target(t.s, 9) == 0 && state_rewind_target(t.s, 10) == 10);
    CHECK(state_rewind_target(t.s, 29) == 20 && state_rewind_target(t.s, 99) == 30);
    CHECK(state_rewind_target(t.s, -4) == 0 && state_pos(t.s) == 30);
    reference_rewind(&t, 19);                            /* 10 is used; 20 and 30 are dropped */
    CHECK_MSG(reference_holds(&t, &rng), "back at 10: %s", t.why);
    reference_run(&t, &rng, 10, false);
    CHECK(state_rewind_target(t.s, 19) == 10);
    reference_snapshot(&t);                              /* 20 */
    reference_run(&t, &rng, 5, false);
    reference_snapshot(&t);                              /* 25: full */
    reference_rewind(&t, 20);                            /* 20 is used, 25 dropped */
    reference_run(&t, &rng, 1, false);
    reference_snapshot(&t);                              /* 21 */
    reference_run(&t, &rng, 1, false);
    reference_snapshot(&t);                              /* 22: 10 is evicted */
    CHECK(state_rewind_target(t.s, 19) == 0 && state_rewind_target(t.s, 20) == 20);
    reference_run(&t, &rng, 1, false);
    reference_snapshot(&t);                              /* 23: 20 is evicted */
    CHECK(state_rewind_target(t.s, 20) == 0 && state_rewind_target(t.s, 21) == 21);
    reference_rewind(&t, 0);
    CHECK_MSG(reference_holds(&t, &rng), "cleared: %s", t.why);
    reference_run(&t, &rng, 10, false);
    CHECK(state_rewind_target(t.s, 9) == 0);             /* no snapshot survived */
    reference_close(&t);
    reference_model_free(m);
}

static int walk_steps;

/* Writes, stops, snapshots and rewinds at random; all visible state is compared after each. */
static void walk(const model *m, const state_options *o, uint64_t seed, const char *what)
{
    test_rng rng = { seed };
    reference t;
    int i = 0;
    reference_open(&t, m, o);
    for (; i < walk_steps && reference_holds(&t, &rng); i++) {
        const uint32_t dice = test_below(&rng, 100);
        const int left = o->ctx - t.pos, most = left < o->slack ? left : o->slack;
        if (dice < 60 && left > 0) {
            reference_run(&t, &rng, 1 + (int)test_below(&rng, (uint32_t)most), dice < 5);
        } else if (dice < 80) {
            reference_snapshot(&t);
        } else if (dice < 97) {
            reference_rewind(&t, t.pos - (int)test_below(&rng, 2 * (uint32_t)o->slack + 2));
        } else {
            reference_rewind(&t, (int)test_below(&rng, (uint32_t)o->ctx + 1));
        }
    }
    CHECK_MSG(reference_holds(&t, &rng), "%s: step %d: %s", what, i, t.why);
    reference_close(&t);
}

static void test_walks(void)
{
    for (int i = 0; i < cases.n; i++) {
        char *const *cells = cases.cells[i];
        int window;
        state_options o = { .in = { .n = 0 } };
        if (strcmp(cells[0], "walk") != 0 ||
            !CHECK(sscanf(cells[2], "%d %d %d %d", &window, &o.ctx, &o.slack, &o.n_snapshot) == 4))
            continue;
        model *m = reference_model(cells[1], 2, 32, window);
        o.in = reference_segments(m, where, n_ram);
        for (int type = KV_F32; type <= KV_Q8_0; type++) {
            char what[128];
            o.kv = (kv_type)type;
            test_path(what, sizeof what, "%s, %s", cells[3], kv_type_name(o.kv));
            walk(m, &o, 100 * (uint64_t)i + (uint64_t)type, what);
        }
        reference_model_free(m);
    }
}

/* ---- in parts -------------------------------------------------------------------------------- */

/* What a walk left to others: rows in pieces, each of which begins where the one before it ended,
 * and the mark of the last position. */
typedef struct part { uint8_t *rows; int from, to; } part;
enum { N_PART = 8 };

typedef struct kept_parts {
    part parts[N_PART];
    int n;
    uint8_t *mark;
} kept_parts;

static void parts_drop(kept_parts *k)
{
    for (int i = 0; i < k->n; i++) mem_free(k->parts[i].rows);
    mem_free(k->mark);
    *k = (kept_parts){ 0 };
}

/* Rows from where the last part ended, and the mark. */
static void parts_take(kept_parts *k, const reference *t)
{
    const int from = k->n > 0 ? k->parts[k->n - 1].to : 0;
    const size_t rows = (size_t)state_rows_bytes(t->m, t->o.kv, t->pos - from);
    const size_t mark = (size_t)state_checkpoint_bytes(t->m, t->o.kv, t->pos);
    part *p = &k->parts[k->n++];
    err_ctx err = { 0 };
    *p = (part){ test_alloc(rows + 8, 1), from, t->pos };
    mem_free(k->mark);
    k->mark = test_alloc(mark + 8, 1);
    memset(p->rows + rows, 0x5A, 8);
    memset(k->mark + mark, 0x5A, 8);
    CHECK_MSG(state_export(t->s, p->rows, from, k->mark, &err) == 0, "%s", err.msg);
    for (int i = 0; i < 8; i++)
        if (p->rows[rows + (size_t)i] != 0x5A || k->mark[mark + (size_t)i] != 0x5A)
            CHECK_MSG(false, "more bytes than were promised at %d", t->pos);
}

/* A walk that now and then goes on in another state, of other sizes, perhaps in another space. */
static void test_parts(void)
{
    static const struct { int ctx, slack; } sizes[] = { { 260, 40 }, { 280, 10 }, { 270, 250 } };
    static const char *const layers[] = { "WF", "DDF", "DWF", "F", "D", "FWF", "FVD", "FWwf" };
    for (size_t i = 0; i < 3 * ARRAY_LEN(layers); i++) {
        model *m = reference_model(layers[i / 3], 2, 32, 20);
        state_options o = { 260, 40, (kv_type)(i % 3), 2, reference_segments(m, where, n_ram) };
        test_rng rng = { i };
        kept_parts k = { 0 };
        reference t;
        err_ctx err = { 0 };
        reference_open(&t, m, &o);
        for (int step = 0; step < 80 && !t.why[0]; step++) {
            const int left = t.o.ctx - t.pos, most = left < t.o.slack ? left : t.o.slack;
            const uint32_t dice = test_below(&rng, 10);
            if (dice < 6 && left > 0) {
                reference_run(&t, &rng, 1 + (int)test_below(&rng, (uint32_t)most), dice == 0);
            } else if (dice < 8) {
                reference_snapshot(&t);
                if (k.n < N_PART - 1) parts_take(&k, &t);
            } else {
                reference_rewind(&t, t.pos - (int)test_below(&rng, 8));
                if (k.n > 0 && t.pos < k.parts[k.n - 1].to) parts_drop(&k);
            }
            if (step % 7 != 6) continue;
            const size_t z = test_below(&rng, ARRAY_LEN(sizes));
            reference next;
            parts_take(&k, &t);
            o.ctx = sizes[z].ctx;
            o.slack = sizes[z].slack;
            o.in = reference_segments(m, test_below(&rng, 2) ? NULL : where, n_ram);
            if (t.pos <= o.ctx) {
                reference_open(&next, m, &o);
                reference_run(&next, &rng, 1, false);    /* something to be replaced */
                reference_snapshot(&next);
                state_import_begin(next.s);
                for (int j = k.n - 1; j >= 0; j--)       /* in any order */
                    state_import_rows(next.s, k.parts[j].rows, k.parts[j].from, k.parts[j].to,
                                      k.parts[j].to - k.parts[j].from);
                CHECK_MSG(state_import_end(next.s, t.pos, k.mark, &err) == 0, "%s", err.msg);
                reference_loaded(&next, &t);
                reference_close(&t);
                t = next;
            }
            parts_drop(&k);
        }
        CHECK_MSG(reference_holds(&t, &rng), "%s, %s: %s", layers[i / 3], kv_type_name(o.kv),
                  t.why);
        parts_drop(&k);
        reference_close(&t);
        reference_model_free(m);
    }
}

/* Where rows are all there is, any beginning of them is a state. */
static void test_first_rows(void)
{
    model *m = reference_model("FF", 2, 32, 0);
    const state_options o = { 40, 20, KV_Q8_0, 0, reference_segments(m, where, n_ram) };
    kept_parts k = { 0 };
    test_rng rng = { 4 };
    err_ctx err = { 0 };
    reference t;
    reference_open(&t, m, &o);
    for (int i = 0; i < 2; i++) {
        reference_run(&t, &rng, 20, false);
        parts_take(&k, &t);
    }
    CHECK(state_checkpoint_bytes(m, KV_Q8_0, 40) == 0);
    for (int n = 0; n <= 20; n++) {
        reference u;
        reference_open(&u, m, &o);
        state_import_begin(u.s);
        state_import_rows(u.s, k.parts[0].rows, 0, 20, 20);
        state_import_rows(u.s, k.parts[1].rows, 20, 40, n);
        CHECK(state_import_end(u.s, 20 + n, NULL, &err) == 0);
        t.pos = 20 + n;
        reference_loaded(&u, &t);
        CHECK_MSG(reference_holds(&u, &rng), "%d rows of 20: %s", n, u.why);
        reference_close(&u);
    }
    parts_drop(&k);
    reference_close(&t);
    reference_model_free(m);
}

static void test_parts_fail(void)
{
    model *m = reference_model("DWF", 2, 32, 4);
    const state_options o = { 60, 20, KV_F16, 2, reference_segments(m, far_space(), 0) };
    kept_parts k = { 0 };
    test_rng rng = { 8 };
    err_ctx err = { 0 };
    reference t, u;
    int n = 0, rc = -1;
    reference_open(&t, m, &o);
    reference_run(&t, &rng, 20, false);
    parts_take(&k, &t);
    for (; rc < 0 && n < 50; n++) {
        far_fail_after(n + 1);
        rc = state_export(t.s, k.parts[0].rows, 0, k.mark, &err);
        far_fail_after(0);
        CHECK_MSG(rc == 0 || (rc == ERR_IO && strstr(err.msg, "read failed")), "%s", err.msg);
    }
    CHECK_MSG(n >= 9 && n < 50, "out: %d calls", n);
    for (n = 0, rc = -1; rc < 0 && n < 50; n++) {
        reference_open(&u, m, &o);
        reference_run(&u, &rng, 3, false);
        far_fail_after(n + 1);
        state_import_begin(u.s);
        state_import_rows(u.s, k.parts[0].rows, 0, 20, 20);
        rc = state_import_end(u.s, 20, k.mark, &err);
        far_fail_after(0);
        if (rc < 0) {
            CHECK(rc == ERR_IO && state_pos(u.s) == 0);
            u.pos = 0;
        } else {
            reference_loaded(&u, &t);
        }
        CHECK_MSG(reference_holds(&u, &rng), "failure %d: %s", n, u.why);
        reference_close(&u);
    }
    CHECK_MSG(n >= 9 && n < 50, "in: %d calls", n);
    parts_drop(&k);
    reference_close(&t);
    reference_model_free(m);
}

/* A failure in the space stays visible until a caller asks, and changes no position. */
static void test_space_fails(void)
{
    model *m = reference_model("DWF", 2, 32, 4);
    const state_options o = { 100, 4, KV_F16, 2, reference_segments(m, far_space(), 0) };
    test_rng rng = { 8 };
    err_ctx err = { 0 };
    reference t;
    reference_open(&t, m, &o);
    for (int i = 0; i < 3; i++) {
        reference_run(&t, &rng, 4, false);
        if (i < 2) reference_snapshot(&t);               /* 4, 8 */
    }
    far_fail_after(2);                                   /* the first part of a ring */
    reference_rewind(&t, 11);
    CHECK(far_space()->check(far_space(), &err) == ERR_IO && strstr(err.msg, "write failed"));
    CHECK(state_pos(t.s) == 8 && !reference_holds(&t, &rng));
    far_fail_after(0);
    t.why[0] = '\0';
    reference_rewind(&t, 7);                             /* the copy is in RAM */
    CHECK_MSG(reference_holds(&t, &rng), "back at 4: %s", t.why);
    reference_run(&t, &rng, 1, false);
    far_fail_after(1);
    reference_snapshot(&t);
    CHECK(far_space()->check(far_space(), &err) == ERR_IO && strstr(err.msg, "read failed"));
    far_fail_after(0);
    far_fail_after(1);
    reference_rewind(&t, 0);
    CHECK(far_space()->check(far_space(), &err) == ERR_IO && strstr(err.msg, "zero failed"));
    CHECK(far_space()->check(far_space(), NULL) == ERR_IO && state_pos(t.s) == 0);
    far_fail_after(0);
    reference_close(&t);
    reference_model_free(m);
}

static void test_in_space(void)
{
    test_limit();
    test_snapshots();
    test_walks();
    test_parts();
    test_first_rows();
}

static void test_in_vram(void)
{
    err_ctx err = { 0 };
    gpu *g = NULL;
    if (gpu_count() == 0) {
        if (strcmp(gpu_backend(), "none") != 0) test_skip("a state in VRAM: no GPU");
        return;
    }
    walk_steps = test_rounds(250, 40);   /* each row that is compared is a copy */
    if (CHECK_MSG(gpu_open(&g, 0, &err) == 0 && mem_space_vram_create(&where, g, &err) == 0, "%s",
                  err.msg))
        test_in_space();
    mem_space_vram_free(where);
    where = NULL;
    gpu_close(g);
}

int main(int argc, char **argv)
{
    test_begin("state", argc, argv);
    (void)case_rows_read(&cases, "state.txt");
    case_rows_kinds(&cases, "limit walk other forged");
    if (sim_gpu()) {                     /* the rest is as without it */
        test_in_vram();
        case_rows_free(&cases);
        return test_end();
    }
    walk_steps = test_rounds(250, 40);
    test_names();
    test_sizes();
    test_lazy();
    test_f16();
    test_q8_0();
    test_write_by_team();
    test_view();
    for (int i = 0; i < 3; i++) {
        where = i == 0 ? NULL : far_space();
        n_ram = i == 2 ? 1 : 0;
        test_too_much();
        test_refused();
        test_no_memory();
        test_in_space();
    }
    where = NULL;
    n_ram = 0;
    test_no_room();
    test_space_fails();
    test_parts_fail();
    CHECK(far_blocks() == 0);
    test_in_vram();
    case_rows_free(&cases);
    return test_end();
}
