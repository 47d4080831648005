/* test_gpu_attention.c - attention on the GPU against the CPU's.
 *
 * A session runs on both sides: batches of all lengths, one after the other, on one store. After
 * every batch the stored rows are compared, and the CPU's store takes the GPU's bytes: so keys on
 * the edge between two codes do not add up, and both attend to the same store. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/models/rope.h"
#include "loader/bytes.h"
#include "loader/quant_blocks.h"
#include "tests/gpu_fixture.h"
#include "tests/sim_gpu.h"

static const float eps = 1e-6f;

/* ---- sessions -------------------------------------------------------------------------------- */

typedef struct attend_case {
    kv_type kv;
    int dim, n_head, n_head_kv;
    int window, slack;                   /* slack: of a ring; 0: rows for all positions */
    bool sinks, norms, gated;            /* gated: between heads of q there are others */
    bool whole;                          /* norms are of all heads together */
    bool norm_values;                    /* values, too, are normed */
    bool same;                           /* values are the keys as they are projected */
    bool stored;                         /* keys and values are in the store before the call */
    bool stale;                          /* the store begins full of NaNs instead of zeros */
    bool distant;                        /* calls are sized as if there were many more keys */
    int rope_dim;
    const int *batches;                  /* tokens of each call, up to a 0; < 0: that many go into
                                          * the store without a call */
} attend_case;

typedef struct session {
    const attend_case *c;
    int most;                            /* tokens of the longest batch */
    int width, q_width, kv_width;        /* of a token's heads, of its row in q, of its keys */
    double freq[256], magnitude;
    kv_store *store;
    kv_view view;
    size_t page_bytes;
    int n_own;                           /* pages with memory of their own: those of the CPU are
                                          * neighbours, in VRAM they are in any order: */
    int *order;                          /* [n_own]: where page i is in `pages` */
    uint8_t *pages;                      /* in VRAM */
    uint8_t *const *table;               /* in VRAM: two columns, of which this is the second */
    float *q_norm, *k_norm, *sinks;      /* the CPU's */
    float *scratch;
    gpu_attention a;
    gpu_cursor *at;
} session;

static float *norm_make(size_t n, test_rng *rng)
{
    float *to = host_floats(n, 0.5f, rng);
    for (size_t i = 0; i < n; i++) to[i] += 1.0f;
    return to;
}

/* Pages in random order, and their table. Other layers have other pages. */
static void make_pages(session *s, int n_pos, test_rng *rng)
{
    enum { COLUMNS = 2 };
    const size_t n_page = (size_t)(n_pos + KV_PAGE - 1) / KV_PAGE;
    uint8_t **table = host_room(n_page * COLUMNS, sizeof *table);
    s->n_own = s->view.n_row / KV_PAGE;
    s->page_bytes = 2 * (size_t)s->view.n_head * KV_PAGE * s->view.row_bytes;
    s->pages = vram_room((size_t)s->n_own * s->page_bytes);
    s->order = host_room((size_t)s->n_own, sizeof *s->order);
    for (int i = 0; i < s->n_own; i++) {
        const int k = (int)test_below(rng, (uint32_t)i + 1);
        s->order[i] = s->order[k];
        s->order[k] = i;
    }
    for (size_t i = 0; i < n_page; i++)
        table[COLUMNS * i + 1] =
            s->pages + (size_t)s->order[i % (size_t)s->n_own] * s->page_bytes;
    s->table = vram_copy(table, n_page * COLUMNS * sizeof *table);
}

/* The CPU's pages, in their own order. */
static uint8_t *cpu_pages(const session *s) { return s->view.pages[0]; }
static size_t store_bytes(const session *s) { return (size_t)s->n_own * s->page_bytes; }

static void put_store(const session *s)
{
    for (int i = 0; i < s->n_own; i++)
        vram_write(s->pages + (size_t)s->order[i] * s->page_bytes,
                   cpu_pages(s) + (size_t)i * s->page_bytes, s->page_bytes);
}

/* The pages in VRAM, in the order of the CPU's. */
static uint8_t *read_store(const session *s)
{
    uint8_t *to = host_room(store_bytes(s), 1);
    for (int i = 0; i < s->n_own; i++)
        vram_read(to + (size_t)i * s->page_bytes, s->pages + (size_t)s->order[i] * s->page_bytes,
                  s->page_bytes);
    return to;
}

static session session_make(const attend_case *c, int n_pos, int most, test_rng *rng)
{
    static const gpu_kv_type types[] = { [KV_F32] = GPU_KV_F32, [KV_F16] = GPU_KV_F16,
                                         [KV_Q8_0] = GPU_KV_Q8_0 };
    const rope_spec rope = { .dim = c->rope_dim, .base = 10000.0, .factor = 1.0,
                             .scaling = ROPE_PLAIN, .ctx_orig = 4096, .attn_factor = 1.0 };
    model_layer layer = { .mixer = MIX_ATTENTION, .window = c->window };
    const model m = { .hp = { .n_layer = 1, .n_head = c->n_head, .n_head_kv = c->n_head_kv,
                              .head_dim = c->dim, .window = c->window }, .layers = &layer };
    const size_t dim = (size_t)c->dim, half = (size_t)c->rope_dim / 2, n = (size_t)most;
    const size_t n_q_norm = c->whole ? dim * (size_t)c->n_head : dim;
    const size_t n_k_norm = c->whole ? dim * (size_t)c->n_head_kv : dim;
    const int apart = c->gated ? 2 : 1;
    session s = { .c = c, .most = most, .width = c->n_head * c->dim,
                  .q_width = apart * c->n_head * c->dim, .kv_width = c->n_head_kv * c->dim };
    err_ctx err = { 0 };

    rope_frequencies(s.freq, &s.magnitude, &rope);
    expect(kv_create(&s.store, &m,
                     &(kv_options){ .type = c->kv, .ctx = n_pos,
                                    .slack = c->slack ? c->slack : n_pos }, &err) == 0,
           "%s", err.msg);
    s.view = kv_layer_view(s.store, 0);
    make_pages(&s, n_pos, rng);
    memset(cpu_pages(&s), c->stale ? 0xFF : 0, store_bytes(&s));
    put_store(&s);
    s.q_norm = norm_make(n_q_norm, rng);
    s.k_norm = norm_make(n_k_norm, rng);
    s.sinks = host_floats((size_t)c->n_head, 2.0f, rng);
    s.scratch = host_room((size_t)pool_threads(contract_ops()->team) * attend_scratch(c->dim),
                          sizeof *s.scratch);
    s.at = vram_room(sizeof *s.at);
    s.a = (gpu_attention){
        .out = vram_room(n * (size_t)s.width * sizeof(float)),
        .q = vram_room(n * (size_t)s.q_width * sizeof(float)), .q_stride = s.q_width,
        .q_head_stride = apart * c->dim, .k = vram_room(n * (size_t)s.kv_width * sizeof(float)),
        .v = vram_room(n * (size_t)s.kv_width * sizeof(float)), .norm_values = c->norm_values,
        .q_norm = c->norms ? vram_floats(s.q_norm, n_q_norm) : NULL,
        .k_norm = c->norms ? vram_floats(s.k_norm, n_k_norm) : NULL, .norm_whole = c->whole,
        .eps = eps,
        .cosine = vram_room(n * half * sizeof(float)), .sine = vram_room(n * half * sizeof(float)),
        .rope_dim = c->rope_dim, .kv = types[c->kv], .n_column = 2, .column = 1,
        .n_head = c->n_head, .n_head_kv = c->n_head_kv, .head_dim = c->dim, .window = c->window,
        .sinks = c->sinks ? vram_floats(s.sinks, (size_t)c->n_head) : NULL,
        .scale = 1.0f / sqrtf((float)c->dim), .cursor = s.at,
        .partial = vram_room(gpu_attention_scratch(device(), c->n_head, c->dim, GPU_FEW) *
                             sizeof(float)),
        .counters = vram_copy(host_room(GPU_FEW * (size_t)c->n_head, sizeof(uint32_t)),
                              GPU_FEW * (size_t)c->n_head * sizeof(uint32_t)),
    };
    if (c->same) s.a.v = s.a.k;
    return s;
}

/* ---- a batch on the CPU ---------------------------------------------------------------------- */

typedef struct tokens {
    int pos, n;
    float *q, *k, *v;                    /* as projections leave them */
    float *q_ready, *k_ready;            /* normed and rotated, without what is between heads */
    float *v_ready;                      /* normed, or as it is */
    float *cosine, *sine;
} tokens;

static void make_ready(float *to, const float *from, const session *s, const tokens *b, int n_head,
                       int stride, int head_stride, const float *norm)
{
    const loops *f = contract_ops()->loops;
    const size_t dim = (size_t)s->c->dim, half = (size_t)s->c->rope_dim / 2;
    for (size_t t = 0; t < (size_t)b->n; t++) {
        float *heads = to + t * (size_t)n_head * dim;
        for (size_t h = 0; h < (size_t)n_head; h++)
            memcpy(heads + h * dim, from + t * (size_t)stride + h * (size_t)head_stride,
                   dim * sizeof *heads);
        if (s->c->whole) f->rmsnorm(heads, heads, norm, n_head * s->c->dim, eps);
        for (size_t h = 0; h < (size_t)n_head; h++) {
            float *head = heads + h * dim;
            if (s->c->norms && !s->c->whole) f->rmsnorm(head, head, norm, s->c->dim, eps);
            f->rotate(head, b->cosine + t * half, b->sine + t * half, s->c->rope_dim);
        }
    }
}

static tokens tokens_make(const session *s, int pos, int n, test_rng *rng)
{
    const size_t n_token = (size_t)n, half = (size_t)s->c->rope_dim / 2;
    tokens b = { .pos = pos, .n = n,
                 .q = host_floats(n_token * (size_t)s->q_width, 2.0f, rng),
                 .k = host_floats(n_token * (size_t)s->kv_width, 1.5f, rng),
                 .v = host_floats(n_token * (size_t)s->kv_width, 1.0f, rng),
                 .q_ready = host_room(n_token * (size_t)s->width, sizeof(float)),
                 .k_ready = host_room(n_token * (size_t)s->kv_width, sizeof(float)),
                 .v_ready = host_room(n_token * (size_t)s->kv_width, sizeof(float)),
                 .cosine = host_room(n_token * half, sizeof(float)),
                 .sine = host_room(n_token * half, sizeof(float)) };
    rope_table(b.cosine, b.sine, s->freq, s->magnitude, s->c->rope_dim, pos, n);
    make_ready(b.q_ready, b.q, s, &b, s->c->n_head, s->a.q_stride, s->a.q_head_stride, s->q_norm);
    make_ready(b.k_ready, b.k, s, &b, s->c->n_head_kv, s->kv_width, s->c->dim, s->k_norm);
    memcpy(b.v_ready, s->c->same ? b.k : b.v, n_token * (size_t)s->kv_width * sizeof *b.v_ready);
    for (size_t h = 0; s->c->norm_values && h < n_token * (size_t)s->c->n_head_kv; h++) {
        float *head = b.v_ready + h * (size_t)s->c->dim;
        contract_ops()->loops->rmsnorm(head, head, NULL, s->c->dim, eps);
    }
    return b;
}

/* ---- stored rows ----------------------------------------------------------------------------- */

typedef struct row_difference {
    size_t n, one_step, wrong;           /* codes; off by one; off by more */
    int head, pos, at;                   /* of the first that is wrong */
} row_difference;

static int half_order(uint16_t h)        /* neighbours differ by one */
{
    return h & 0x8000 ? -(h & 0x7FFF) : h;
}

static int half_steps(const uint8_t *a, const uint8_t *b)
{
    return abs(half_order(load_u16(a)) - half_order(load_u16(b)));
}

static float float_of(const uint8_t *row, kv_type type, int i)
{
    return type == KV_F32 ? load_f32(row + 4 * i) : f16_to_f32(load_u16(row + 2 * i));
}

/* How far apart code i of two rows is, in steps. A rounding error of the head counts as one: the
 * difference of two products, in a rotation, may be much smaller than both. */
static int steps_between(const uint8_t *a, const uint8_t *b, kv_type type, int i, float largest)
{
    if (type != KV_Q8_0) {
        const float x = float_of(a, type, i), y = float_of(b, type, i);
        const int steps = type == KV_F16 ? half_steps(a + 2 * i, b + 2 * i) : x == y ? 0 : 2;
        return steps > 1 && fabsf(x - y) <= 1e-6f * largest ? 1 : steps;
    }
    const size_t block = (size_t)(i / 33) * sizeof(block_q8_0);  /* 33 codes: the scale first */
    if (i % 33 == 0) return half_steps(a + block, b + block);
    const size_t at = block + offsetof(block_q8_0, quants) + (size_t)(i % 33) - 1;
    return abs((int8_t)a[at] - (int8_t)b[at]);
}

/* Of a row of floats. */
static float largest_of(const uint8_t *row, kv_type type, int dim)
{
    float v = 0.0f;
    for (int i = 0; type != KV_Q8_0 && i < dim; i++) v = fmaxf(v, fabsf(float_of(row, type, i)));
    return v;
}

static void compare_row(row_difference *d, const uint8_t *got, const uint8_t *want,
                        const session *s, int head, int pos)
{
    const kv_type type = s->c->kv;
    const int n = type == KV_Q8_0 ? s->c->dim / 32 * 33 : s->c->dim;
    const float largest = largest_of(want, type, s->c->dim);
    for (int i = 0; i < n; i++) {
        const int steps = steps_between(got, want, type, i, largest);
        d->n++;
        d->one_step += steps == 1;
        if (steps <= 1) continue;
        if (d->wrong++ == 0) {
            d->head = head;
            d->pos = pos;
            d->at = i;
        }
    }
}

/* Takes the GPU's row over to the CPU's store. */
static void take_row(row_difference *d, const uint8_t *got, session *s, kv_kind kind, int head,
                     int pos)
{
    uint8_t *row = kv_row(&s->view, kind, head, pos);
    const uint8_t *from = got + (row - cpu_pages(s));
    compare_row(d, from, row, s, head, pos);
    memcpy(row, from, s->view.row_bytes);
}

/* The CPU has written the same batch: at times keys, and values that are normed, are one step off;
 * other values and older rows never are. */
static void compare_store(session *s, const tokens *b)
{
    const uint8_t *got = read_store(s);
    row_difference d = { 0 };
    for (int h = 0; h < s->c->n_head_kv; h++)
        for (int t = max_int(0, b->n - s->view.n_row); t < b->n; t++) {
            take_row(&d, got, s, KV_KEYS, h, b->pos + t);
            if (s->c->norm_values) take_row(&d, got, s, KV_VALUES, h, b->pos + t);
        }
    const size_t most = s->c->kv == KV_F32 ? d.n : d.n / 50 + 2;
    expect(d.wrong == 0 && d.one_step <= most, "%d tokens at %d: of %zu codes %zu are "
           "wrong, %zu one step off (at most %zu); the first: head %d, position %d, code %d", b->n,
           b->pos, d.n, d.wrong, d.one_step, most, d.head, d.pos, d.at);
    expect_bytes("values, and older rows", got, cpu_pages(s), store_bytes(s));
}

/* Not a byte of a store that a call only reads has changed. */
static void compare_unchanged(const session *s)
{
    expect_bytes("stored keys and values", read_store(s), cpu_pages(s), store_bytes(s));
}

/* ---- a batch on both sides ------------------------------------------------------------------- */

static void put_tokens(const session *s, const tokens *b)
{
    const size_t n = (size_t)b->n, half = (size_t)s->c->rope_dim / 2;
    float *nothing = host_room(n * (size_t)s->width, sizeof *nothing);
    memset(nothing, 0xFF, n * (size_t)s->width * sizeof *nothing);
    vram_write(s->a.out, nothing, n * (size_t)s->width * sizeof *nothing);
    vram_write(s->a.q, b->q, n * (size_t)s->q_width * sizeof(float));
    vram_write(s->a.k, b->k, n * (size_t)s->kv_width * sizeof(float));
    if (!s->c->same)
        vram_write((void *)s->a.v, b->v, n * (size_t)s->kv_width * sizeof(float));
    vram_write((void *)s->a.cosine, b->cosine, n * half * sizeof(float));
    vram_write((void *)s->a.sine, b->sine, n * half * sizeof(float));
}

static void put_cursor(const session *s, int pos)
{
    const gpu_cursor at = { .pos = pos, .pages = s->table };
    vram_write(s->at, &at, sizeof at);
}

static void check_output(session *s, const tokens *b)
{
    const size_t n = (size_t)b->n, width = (size_t)s->width, dim = (size_t)s->c->dim;
    const bool rounded = b->n > GPU_FEW || s->c->distant;        /* queries to F16 */
    const double bound = s->c->kv == KV_F32 || !rounded ? 1e-5 : 3e-3;
    float *want = host_room(n * width, sizeof *want);
    const attend_args a = {
        .out = want, .q = b->q_ready, .stored = kv_layer_view(s->store, 0),
        .n_head = s->c->n_head, .n_head_kv = s->c->n_head_kv, .head_dim = s->c->dim, .pos = b->pos,
        .n = b->n, .window = s->c->window, .scale = s->a.scale,
        .sinks = s->c->sinks ? s->sinks : NULL,
    };
    char what[64];
    attend(contract_ops()->loops, contract_ops()->team, &a, s->scratch, attend_scratch(s->c->dim));
    expect_rows_close(test_path(what, sizeof what, "%d tokens at %d", b->n, b->pos),
                      host_copy(s->a.out, n * width), want, n * (size_t)s->c->n_head, dim, bound);
}

/* What is between the heads of q is not attention's; counters are zero again. */
static void check_rest(const session *s, const tokens *b)
{
    const size_t n_counter = GPU_FEW * (size_t)s->c->n_head;
    uint32_t *counters = host_room(n_counter, sizeof *counters);
    const size_t dim = (size_t)s->c->dim, n = (size_t)(b->n * s->c->n_head);
    const float *q = host_copy(s->a.q, (size_t)b->n * (size_t)s->q_width);
    size_t changed = 0;
    for (size_t h = 0; s->c->gated && h < n; h++)
        changed += memcmp(q + (2 * h + 1) * dim, b->q + (2 * h + 1) * dim, dim * sizeof *q) != 0;
    expect(changed == 0, "%d tokens at %d: %zu heads' gates have changed", b->n, b->pos, changed);
    vram_read(counters, s->a.counters, n_counter * sizeof *counters);
    for (size_t i = 0; i < n_counter; i++)
        if (counters[i]) {
            expect(false, "%d tokens at %d: counter %zu is left at %u", b->n, b->pos, i,
                   counters[i]);
            break;
        }
}

static void fill_store(session *s, const tokens *b)
{
    kv_write(s->store, 0, b->pos, b->n, b->k_ready, b->v_ready, NULL);
    put_store(s);
}

static void check_session(const attend_case *c, test_rng *rng)
{
    int n_pos = 0, most = 1;
    for (const int *n = c->batches; *n; n++) {
        n_pos += abs(*n);
        most = max_int(most, *n);
    }
    session s = session_make(c, n_pos + 1, most, rng);
    for (int pos = 0, i = 0; c->batches[i]; pos += abs(c->batches[i++])) {
        const int held = host_mark();
        const tokens b = tokens_make(&s, pos, abs(c->batches[i]), rng);
        if (c->batches[i] < 0) {
            fill_store(&s, &b);
        } else {
            put_tokens(&s, &b);
            put_cursor(&s, pos);
            s.a.n = b.n;
            s.a.last = s.c->distant ? 20000 : pos + b.n;
            if (c->stored) {
                gpu_attention a = s.a;
                a.k = NULL;
                a.v = NULL;
                a.k_norm = NULL;
                fill_store(&s, &b);
                gpu_attend(device(), &a);
                compare_unchanged(&s);
            } else {
                gpu_attend(device(), &s.a);
                kv_write(s.store, 0, pos, b.n, b.k_ready, b.v_ready, NULL);
                compare_store(&s, &b);
            }
            check_output(&s, &b);
            check_rest(&s, &b);
        }
        host_drop(held);
    }
    kv_free(s.store);
}

/* Up to GPU_FEW tokens in one call, or one by one: the outputs, then all that is stored. */
static float *attend_few(session *s, const tokens *b, bool together)
{
    const size_t half = (size_t)s->c->rope_dim / 2, width = (size_t)s->width;
    const int each = together ? b->n : 1;
    const size_t n_out = (size_t)b->n * width, n_stored = store_bytes(s) / sizeof(float);
    float *out = host_room(n_out + n_stored, sizeof *out);
    put_store(s);
    for (int i = 0; i < b->n; i += each) {
        const size_t t = (size_t)i;
        const tokens part = { .pos = b->pos + i, .n = each, .q = b->q + t * (size_t)s->q_width,
                              .k = b->k + t * (size_t)s->kv_width,
                              .v = b->v + t * (size_t)s->kv_width,
                              .cosine = b->cosine + t * half, .sine = b->sine + t * half };
        int reach = GPU_LEAST_REACH;
        while (reach <= part.pos) reach *= 2;
        put_tokens(s, &part);
        put_cursor(s, part.pos);
        s->a.n = each;
        s->a.last = together ? part.pos + each : reach;
        gpu_attend(device(), &s->a);
        vram_read(out + t * width, s->a.out, (size_t)each * width * sizeof *out);
    }
    memcpy(out + n_out, read_store(s), n_stored * sizeof *out);
    return out;
}

/* Positions on both sides of where ranges and kernels change. */
static void check_few(const attend_case *c, test_rng *rng)
{
    static const int positions[] = { 0, 100, 1020, 2045, 4092 };
    const size_t n_pos = sim_gpu() ? 3 : ARRAY_LEN(positions);
    session s = session_make(c, positions[n_pos - 1] + GPU_FEW, GPU_FEW, rng);
    for (size_t i = 0, pos = 0; i < n_pos; i++) {
        const int held = host_mark(), n = i == 0 ? 2 : GPU_FEW, before = positions[i] - (int)pos;
        if (before > 0) {
            const size_t n_kv = (size_t)before * (size_t)s.kv_width;
            const tokens older = { .pos = (int)pos, .n = before,
                                   .k_ready = host_floats(n_kv, 1.5f, rng),
                                   .v_ready = host_floats(n_kv, 1.0f, rng) };
            fill_store(&s, &older);
            host_drop(held);
        }
        const tokens b = tokens_make(&s, positions[i], n, rng);
        const float *alone = attend_few(&s, &b, false), *together = attend_few(&s, &b, true);
        expect_bits(test_path((char[64]){ 0 }, 64, "%d tokens at %d", n, positions[i]), together,
                    alone, (size_t)n * (size_t)s.width);
        expect_bytes("stored", together + (size_t)n * (size_t)s.width,
                     alone + (size_t)n * (size_t)s.width, store_bytes(&s));
        pos = (size_t)positions[i];
        host_drop(held);
    }
    kv_free(s.store);
}

static void run_session(const attend_case *c, test_rng *rng)
{
    case_begin("%s, heads of %d, %d/%d, window %d%s, rope %d%s%s%s%s%s%s%s", kv_type_name(c->kv),
               c->dim, c->n_head, c->n_head_kv, c->window, c->slack ? ", ring" : "", c->rope_dim,
               c->sinks ? ", sinks" : "", c->norms ? ", norms" : "",
               c->whole ? " of all heads" : "", c->gated ? ", gates" : "",
               c->norm_values ? ", normed values" : "", c->same ? ", keys as values" : "",
               c->stored ? ", stored" : "");
    check_session(c, rng);
    case_end();
}

static const int decode[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0 };
static const int all_lengths[] = { 63, 1, 1, 2, 8, 9, 70, 1, 200, 3, 1, 0 };
static const int turning[] = { 9, 1, 2, 8, 70, 1, 1, 33, 8, 70, 3, 1, 1, 70, 1, 0 };
static const int from_one[] = { 1, 9, 8, 70, 1, 2, 0 };
static const int half_thousand[] = { 500, 1, 1, 1, 8, 9, 2, 0 };
static const int thousands[] = { -3000, 1, 1, 1, 8, 2, 9, 70, 1, 0 };
static const int prompt[] = { 700, 1, 0 };       /* large blocks with heads of 256 */

static const int head_counts[][2] = { { 8, 2 }, { 16, 2 }, { 4, 4 }, { 32, 2 } };

/* Every store with every shape; all other options alternate. */
static void test_shapes(void)
{
    static const int windows[] = { 0, 5, 128 };
    test_rng rng = { 21 };
    for (int kv = 0; kv < 3; kv++) {
        family(test_path((char[64]){ 0 }, 64, "attention, %s", kv_type_name((kv_type)kv)));
        for (int d = 0; d < 5; d++)
            for (int h = 0; h < 4; h++) {
                const int i = 20 * kv + 4 * d + h, dim = 32 << d, window = windows[(i + d) % 3];
                const bool ring = window && (i / 2 + d) % 2;
                const attend_case c = {
                    .kv = (kv_type)kv, .dim = dim, .n_head = head_counts[h][0],
                    .n_head_kv = head_counts[h][1], .window = window, .slack = ring ? 70 : 0,
                    .sinks = (i + kv) % 2, .norms = (i / 2 + kv) % 2, .gated = (d + h) % 2,
                    .rope_dim = (i / 4 + h) % 2 ? dim : dim / 4,
                    .batches = ring ? turning : all_lengths,
                };
                run_session(&c, &rng);
            }
    }
}

static void test_lengths(void)
{
    static const attend_case cases[] = {
        { .dim = 64, .n_head = 8, .n_head_kv = 2, .rope_dim = 64, .batches = decode },
        { .dim = 256, .n_head = 16, .n_head_kv = 2, .norms = true, .gated = true, .rope_dim = 64,
          .batches = decode },
        { .dim = 64, .n_head = 64, .n_head_kv = 8, .window = 5, .slack = 2, .sinks = true,
          .rope_dim = 64, .batches = decode },
        { .dim = 128, .n_head = 32, .n_head_kv = 2, .norms = true, .rope_dim = 128,
          .batches = from_one },
        { .dim = 64, .n_head = 64, .n_head_kv = 8, .window = 128, .sinks = true, .rope_dim = 64,
          .batches = half_thousand },
        { .dim = 32, .n_head = 4, .n_head_kv = 4, .rope_dim = 32, .batches = half_thousand },
        { .dim = 64, .n_head = 8, .n_head_kv = 2, .sinks = true, .rope_dim = 64,
          .batches = thousands },
        { .dim = 256, .n_head = 16, .n_head_kv = 2, .norms = true, .gated = true, .rope_dim = 64,
          .batches = thousands },
        { .dim = 128, .n_head = 32, .n_head_kv = 2, .window = 600, .sinks = true, .rope_dim = 32,
          .batches = thousands },
        { .dim = 64, .n_head = 64, .n_head_kv = 8, .window = 128, .slack = 70, .sinks = true,
          .rope_dim = 64, .batches = thousands },
        { .dim = 64, .n_head = 64, .n_head_kv = 8, .window = 2000, .slack = 70, .sinks = true,
          .rope_dim = 64, .batches = thousands },
        { .dim = 256, .n_head = 16, .n_head_kv = 2, .norms = true, .gated = true, .rope_dim = 64,
          .batches = prompt },
        { .dim = 512, .n_head = 16, .n_head_kv = 2, .norms = true, .norm_values = true,
          .same = true, .rope_dim = 512, .batches = decode },
        { .dim = 512, .n_head = 16, .n_head_kv = 2, .norms = true, .norm_values = true,
          .same = true, .rope_dim = 512, .batches = thousands },
        { .dim = 512, .n_head = 16, .n_head_kv = 2, .norms = true, .norm_values = true,
          .same = true, .rope_dim = 512, .batches = prompt },
        { .dim = 256, .n_head = 16, .n_head_kv = 8, .window = 1024, .slack = 70, .norms = true,
          .norm_values = true, .rope_dim = 256, .batches = thousands },
    };
    test_rng rng = { 22 };
    for (int kv = 0; kv < 3; kv++) {
        family(test_path((char[64]){ 0 }, 64, "attention, lengths, %s",
                         kv_type_name((kv_type)kv)));
        for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
            attend_case c = cases[i];
            c.kv = (kv_type)kv;
            run_session(&c, &rng);
        }
    }
}

/* Twelve queries for a key, as GLM-4.5 has: heads of 128 of which half turns, with norms or without
 * any. Kernels take them in parts that do not divide them evenly. */
static void test_twelve(void)
{
    static const int *const batches[] = { from_one, all_lengths, thousands };
    test_rng rng = { 28 };
    family("attention, twelve queries for a key");
    for (int i = 0; i < 18; i++) {
        const bool large = i % 6 == 0;
        const attend_case c = { .kv = (kv_type)(i / 6), .dim = i % 6 == 5 ? 64 : 128,
                                .n_head = large ? 96 : 24, .n_head_kv = large ? 8 : 2,
                                .norms = i % 2, .distant = i % 6 == 3, .rope_dim = 64,
                                .batches = batches[large ? 0 : i % 3] };
        run_session(&c, &rng);
    }
}

/* What is in rows not written yet must not matter, even if it is NaN. */
static void test_stale(void)
{
    test_rng rng = { 25 };
    family("attention, stale rows");
    for (int i = 0; i < 15; i++) {
        const attend_case c = { .kv = (kv_type)(i % 3), .dim = 32 << i / 3, .n_head = 8,
                                .n_head_kv = 2, .window = i % 2 ? 128 : 0, .slack = i % 2 ? 70 : 0,
                                .rope_dim = 32, .stale = true, .batches = turning };
        run_session(&c, &rng);
    }
}

/* Queries and keys normed over all heads together; more of them than a block has threads. */
static void test_whole_norms(void)
{
    test_rng rng = { 27 };
    family("attention, norms of all heads");
    for (int i = 0; i < 12; i++) {
        if (sim_gpu_skips(i + i / 3, 7)) continue;
        const int dim = 32 << i / 3, h = (i + 1) % 4;
        const attend_case c = { .kv = (kv_type)(i % 3), .dim = dim, .n_head = head_counts[h][0],
                                .n_head_kv = head_counts[h][1], .window = i % 2 ? 5 : 0,
                                .norms = true, .whole = true, .gated = i / 2 % 2,
                                .distant = i / 6, .rope_dim = i % 4 ? dim : dim / 2,
                                .batches = all_lengths };
        run_session(&c, &rng);
    }
}

/* Values that are normed, and values that are the keys. */
static void test_values(void)
{
    test_rng rng = { 28 };
    family("attention, values");
    for (int i = 0; i < 30; i++) {
        if (sim_gpu_skips(i + i / 3, 7)) continue;
        const int dim = 32 << i / 3 % 5, h = i % 4;
        const attend_case c = { .kv = (kv_type)(i % 3), .dim = dim, .n_head = head_counts[h][0],
                                .n_head_kv = head_counts[h][1], .window = i % 4 == 3 ? 128 : 0,
                                .norms = i % 5 != 4, .norm_values = i < 15 || i % 2,
                                .same = i >= 15 || i % 4 == 0, .distant = i % 7 == 6,
                                .rope_dim = i % 2 ? dim : dim / 2, .batches = all_lengths };
        run_session(&c, &rng);
    }
}

/* Keys and values of another layer: nothing is made of these tokens but queries. */
static void test_stored(void)
{
    test_rng rng = { 29 };
    family("attention, keys that are stored already");
    for (int i = 0; i < 30; i++) {
        if (sim_gpu_skips(i + i / 3, 7)) continue;
        const int dim = 32 << i / 3 % 5, h = i % 4;
        const attend_case c = { .kv = (kv_type)(i % 3), .dim = dim, .n_head = head_counts[h][0],
                                .n_head_kv = head_counts[h][1], .window = i % 4 == 3 ? 128 : 0,
                                .norms = i % 5 != 4, .norm_values = i % 2, .stored = true,
                                .distant = i % 7 == 6, .rope_dim = i % 2 ? dim : dim / 2,
                                .batches = all_lengths };
        run_session(&c, &rng);
    }
}

/* The kernels for long stores, on short ones. */
static void test_distant(void)
{
    test_rng rng = { 26 };
    family("attention, sized for more keys");
    for (int i = 0; i < 60; i++) {
        const int dim = 32 << i / 3 % 5, h = i / 15;
        const attend_case c = { .kv = (kv_type)(i % 3), .dim = dim, .n_head = head_counts[h][0],
                                .n_head_kv = head_counts[h][1], .sinks = i % 2, .norms = i / 2 % 2,
                                .gated = i / 4 % 2, .rope_dim = i % 5 ? dim : dim / 4,
                                .stale = i / 3 % 2, .distant = true,
                                .batches = i % 4 == 1 ? thousands : all_lengths };
        run_session(&c, &rng);
    }
}

/* A token has the same bits alone and among others. */
static void test_few(void)
{
    test_rng rng = { 31 };
    family("attention, few tokens and one");
    for (int i = 0; i < 45; i++) {
        if (sim_gpu_skips(i + i / 3, 7)) continue;
        const int dim = 32 << i / 3 % 5, h = i % 4;
        const attend_case c = { .kv = (kv_type)(i % 3), .dim = dim, .n_head = head_counts[h][0],
                                .n_head_kv = head_counts[h][1], .window = i / 15 == 2 ? 128 : 0,
                                .sinks = i % 2, .norms = i % 5 != 4 || i % 7 == 6,
                                .whole = i % 7 == 6, .norm_values = i % 4 == 3, .same = i % 8 == 7, .gated = i % 3 == 1,
                                .rope_dim = i % 2 ? dim : dim / 2 };
        case_begin("%s, heads of %d, %d/%d, window %d", kv_type_name(c.kv), c.dim, c.n_head,
                   c.n_head_kv, c.window);
        check_few(&c, &rng);
        case_end();
    }
}

/* ---- recorded attention ---------------------------------------------------------------------- */

typedef struct step {                    /* a token: tables, attention, the cursor's move */
    session s;
    const double *freq;                  /* in VRAM */
    gpu_cursor *other;                   /* not this step's */
} step;

/* Attention may read tables before the kernel before it has ended: one that has nothing to do with
 * it comes in between. */

static void run_step(const step *p)
{
    const session *s = &p->s;
    gpu_rope_table(device(), (float *)s->a.cosine, (float *)s->a.sine, p->freq, s->magnitude,
                   s->c->rope_dim / 2, s->at, 1);
    gpu_advance(device(), p->other, 1);
    gpu_attend(device(), &s->a);
    gpu_advance(device(), s->at, 1);
}

/* Tokens 70 .. 81, by a recording or by hand. Returns the outputs; NULL: there was no recording. */
static float *run_tokens(const attend_case *c, bool replay_table, test_rng rng)
{
    enum { BEFORE = 70, TOKENS = 12 };
    step p = { .s = session_make(c, 100, 1, &rng) };
    session *s = &p.s;
    const tokens before = tokens_make(s, 0, BEFORE, &rng);
    const size_t width = (size_t)s->width;
    float *out = host_room(TOKENS * width, sizeof *out);
    gpu_recording *r = NULL;
    gpu_cursor at = { 0 };
    err_ctx err = { 0 };

    p.freq = vram_copy(s->freq, (size_t)c->rope_dim / 2 * sizeof *p.freq);
    p.other = vram_copy(&at, sizeof at);
    fill_store(s, &before);
    put_cursor(s, BEFORE);
    s->a.n = 1;
    s->a.last = 100;
    if (replay_table) {
        int rc = gpu_recording_create(&r, &err);
        if (rc == 0) rc = gpu_record_begin(device(), &err);
        if (rc == 0) {
            run_step(&p);
            rc = gpu_record_end(r, device(), &err);
        }
        if (!expect(rc == 0, "%s", err.msg)) return NULL;
    }
    for (int t = 0; t < TOKENS; t++) {
        const tokens b = tokens_make(s, BEFORE + t, 1, &rng);
        put_tokens(s, &b);
        if (replay_table) gpu_replay(device(), r);
        else run_step(&p);
        vram_read(out + (size_t)t * width, s->a.out, width * sizeof *out);
    }
    vram_read(&at, s->at, sizeof at);
    expect(at.pos == BEFORE + TOKENS, "the cursor is at %d instead of %d", at.pos, BEFORE + TOKENS);
    gpu_recording_free(r);
    kv_free(s->store);
    return out;
}

static void check_recorded(const attend_case *c, const test_rng *rng)
{
    const float *by_hand = run_tokens(c, false, *rng), *replay_table = run_tokens(c, true, *rng);
    if (replay_table)
        expect_bits("played", replay_table, by_hand, 12 * (size_t)(c->n_head * c->dim));
}

static void test_recorded(void)
{
    const test_rng rng = { 23 };
    family("recorded attention");
    for (int kv = 0; kv < 3; kv++)
        for (int window = 0; window < 2; window++) {
            const attend_case c = { .kv = (kv_type)kv, .dim = 64, .n_head = 8, .n_head_kv = 2,
                                    .window = 20 * window, .norms = true,
                                    .whole = (kv + window) % 2, .rope_dim = 32 };
            case_begin("%s, window %d%s", kv_type_name(c.kv), c.window,
                       c.whole ? ", norms of all heads" : "");
            check_recorded(&c, &rng);
            case_end();
        }
}

int main(int argc, char **argv)
{
    test_begin("gpu attention", argc, argv);
    if (device_open()) {
        test_whole_norms();
        test_values();
        test_stored();
        test_few();
        test_recorded();
        if (!sim_gpu()) {                /* whose loops are those that it would be compared with */
            test_lengths();
            test_shapes();
            test_twelve();
            test_stale();
            test_distant();
        }
        device_close();
    }
    return test_end();
}
