/* test_gpu_mixers.c - attention and the delta rule on the GPU against the CPU's.
 *
 * A session runs on both sides: batches of all lengths, one after the other, on one store or state.
 * After every batch of attention the stored rows are compared, and the CPU's store takes the GPU's
 * bytes: so keys on the edge between two codes do not add up, and both attend to the same store. */
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
        .partial = vram_room(gpu_attention_scratch(device(), c->n_head, c->dim) * sizeof(float)),
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

/* How far apart code i of two rows is, in steps; for F32 1 stands for a rounding error. */
static int steps_between(const uint8_t *a, const uint8_t *b, kv_type type, int i, float largest)
{
    if (type == KV_F32) {
        const float x = load_f32(a + 4 * i), y = load_f32(b + 4 * i);
        return x == y ? 0 : fabsf(x - y) <= 1e-6f * largest ? 1 : 2;
    }
    if (type == KV_F16) return half_steps(a + 2 * i, b + 2 * i);
    const size_t block = (size_t)(i / 33) * sizeof(block_q8_0);  /* 33 codes: the scale first */
    if (i % 33 == 0) return half_steps(a + block, b + block);
    const size_t at = block + offsetof(block_q8_0, quants) + (size_t)(i % 33) - 1;
    return abs((int8_t)a[at] - (int8_t)b[at]);
}

static float largest_of(const uint8_t *row, kv_type type, int dim)
{
    float v = 0.0f;
    for (int i = 0; type == KV_F32 && i < dim; i++) v = fmaxf(v, fabsf(load_f32(row + 4 * i)));
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

/* ---- the delta rule -------------------------------------------------------------------------- */

typedef struct delta_order {             /* of value heads, and of gates */
    bool tiled, apart;
} delta_order;

static const delta_order grouped = { false, false };

typedef struct delta_net {
    int n_k, n_v, dim, ratio;
    delta_order order;
    size_t keys, values, channels;
    float *dt_bias, *a, *state;          /* the CPU's */
    int pos;                             /* of the next token */
    gpu_delta args;
    gpu_cursor *at;                      /* each batch reads one version of the state and writes the
                                          * other */
    gpu_cursor *other;                   /* not this one's: see run_step */
} delta_net;

enum { STATE_AT = 64 };                  /* bytes of a version before its state */

/* A cursor and two versions of recurrent memory; the first one holds the state. */
static gpu_cursor *make_versions(const float *state, size_t n)
{
    gpu_cursor at = { .recurrent = vram_room(STATE_AT + n * sizeof *state),
                      .recurrent_next = vram_room(STATE_AT + n * sizeof *state) };
    vram_write((uint8_t *)(uintptr_t)at.recurrent + STATE_AT, state, n * sizeof *state);
    return vram_copy(&at, sizeof at);
}

/* The version that the next batch would read. */
static const float *read_version(const gpu_cursor *where, size_t n)
{
    gpu_cursor at;
    vram_read(&at, where, sizeof at);
    return host_copy((const float *)(const void *)(at.recurrent + STATE_AT), n);
}

static delta_net delta_make(int n_k, int n_v, int dim, delta_order order, test_rng *rng)
{
    const size_t heads = (size_t)n_v, size = heads * (size_t)dim * (size_t)dim;
    delta_net d = { .n_k = n_k, .n_v = n_v, .dim = dim, .ratio = n_v / n_k, .order = order,
                    .keys = (size_t)(n_k * dim), .values = heads * (size_t)dim,
                    .dt_bias = host_floats(heads, 1.0f, rng), .a = host_floats(heads, 1.0f, rng),
                    .state = host_floats(size, 0.1f, rng) };
    d.channels = 2 * d.keys + d.values;
    for (size_t h = 0; h < heads; h++) d.a[h] = -0.05f - 2.0f * fabsf(d.a[h]);
    d.args = (gpu_delta){ .dt_bias = vram_floats(d.dt_bias, heads), .a = vram_floats(d.a, heads),
                          .state = STATE_AT, .n_k = n_k, .n_v = n_v, .dim = dim,
                          .tiled = order.tiled, .apart = order.apart };
    d.args.cursor = d.at = make_versions(d.state, size);
    d.other = vram_room(sizeof *d.other);
    return d;
}

/* Which value head is number i of key head h, and where a token has its two gates. */
static int value_head(const delta_net *d, int h, int i)
{
    return d->order.tiled ? i * d->n_k + h : h * d->ratio + i;
}

static int beta_at(const delta_net *d, int h, int i)
{
    return d->order.apart ? value_head(d, h, i) : h * 2 * d->ratio + i;
}

static int alpha_at(const delta_net *d, int h, int i)
{
    return d->order.apart ? d->n_v + value_head(d, h, i) : h * 2 * d->ratio + d->ratio + i;
}

/* n tokens on the CPU; out [n, values]. mixed is normed in place. */
static void cpu_delta(float *out, const delta_net *d, float *mixed, const float *ba, int n)
{
    const loops *f = contract_ops()->loops;
    const size_t dim = (size_t)d->dim, n_token = (size_t)n, n_v = (size_t)d->n_v;
    float *beta = host_room(n_token * n_v, sizeof *beta), *g = host_room(n_token * n_v, sizeof *g);
    for (size_t t = 0; t < n_token; t++)
        for (int h = 0; h < d->n_k; h++) {
            float *q = mixed + t * d->channels + (size_t)h * dim;
            const float *gates = ba + t * 2 * n_v;
            f->delta_l2norm(q, d->dim, 1.0f / sqrtf((float)d->dim));
            f->delta_l2norm(q + d->keys, d->dim, 1.0f);
            for (int i = 0; i < d->ratio; i++) {
                const int v = value_head(d, h, i);
                beta[t * n_v + (size_t)v] = sigmoid_f32(gates[beta_at(d, h, i)]);
                g[t * n_v + (size_t)v] = delta_decay(gates[alpha_at(d, h, i)], d->dt_bias[v],
                                                     d->a[v]);
            }
        }
    for (int j = 0; j < d->n_v; j++) {
        const int key = j / d->ratio, v = value_head(d, key, j % d->ratio);
        const float *q = mixed + (size_t)key * dim;
        const delta_args a = {
            .out = out + (size_t)v * dim, .q = q, .k = q + d->keys,
            .v = mixed + 2 * d->keys + (size_t)v * dim, .beta = beta + v, .g = g + v,
            .out_stride = d->values, .qk_stride = d->channels, .v_stride = d->channels,
            .bg_stride = n_v, .state = d->state + (size_t)v * dim * dim, .n = n, .dk = d->dim,
            .dv = d->dim,
        };
        f->delta_recurrence(&a);
    }
}

static void compare_delta(const char *what, const delta_net *d, const float *out, const float *want,
                          int n)
{
    const size_t dim = (size_t)d->dim, values = (size_t)n * d->values;
    const size_t size = (size_t)d->n_v * dim * dim;
    char label[64];
    expect_rows_close(what, host_copy(out, values), want, (size_t)n, d->values, 2e-5);
    expect_rows_close(test_path(label, sizeof label, "state after %s", what),
                      read_version(d->at, size), d->state, (size_t)d->n_v, dim * dim, 2e-5);
}

/* What tokens are like. */
typedef enum delta_kind {
    DELTA_ANY,
    DELTA_SLOW,                          /* all write and forget little, and the same amount: errors
                                          * of the decay add up */
    DELTA_FORGETFUL,                     /* little is left after a few tokens: logs of decays add up
                                          * to large numbers in a chunk */
    DELTA_EQUAL_KEYS,                    /* nothing is forgotten, every token writes over the one
                                          * before: large terms cancel in a chunk */
    DELTA_ABRUPT,                        /* decays of 0 and 1, write strengths of 0 and 1; 1 where
                                          * nothing else is left */
    DELTA_KINDS
} delta_kind;

static const char *const delta_kinds[] = { "any", "slow", "forgetful", "equal keys", "abrupt" };

/* Gates as they come from the products: for each key head betas, then alphas; or all betas
 * first. */
static void shape_tokens(float *mixed, float *ba, const delta_net *d, size_t n, delta_kind kind)
{
    const size_t width = 2 * (size_t)d->n_v, ratio = (size_t)d->ratio;
    for (size_t i = 0; i < n * width; i++) {
        const size_t t = i / width;
        const bool alpha = d->order.apart ? i % width >= width / 2 : i % width / ratio % 2 == 1;
        if (kind == DELTA_SLOW) ba[i] = t == 0 ? 0.5f * ba[i] - 6.0f : ba[i - width];
        if (kind == DELTA_FORGETFUL && alpha) ba[i] += 3.0f;
        if (kind == DELTA_EQUAL_KEYS) ba[i] = alpha ? -60.0f : 40.0f;
        if (kind == DELTA_ABRUPT)
            ba[i] = alpha ? (t % 7 ? -60.0f : 900.0f) : (t % 5 || t % 7 == 0 ? 40.0f : -200.0f);
    }
    for (size_t t = 1; t < n && kind == DELTA_EQUAL_KEYS; t++)
        memcpy(mixed + t * d->channels + d->keys, mixed + d->keys, d->keys * sizeof *mixed);
}

/* n tokens in one call, or one at a time without a wait; with something else in between. */
static void check_delta(delta_net *d, int n, bool alone, delta_kind kind,
                        test_rng *rng)
{
    const size_t n_token = (size_t)n, width = 2 * (size_t)d->n_v;
    float *mixed = host_floats(n_token * d->channels, 1.0f, rng);
    float *ba = host_floats(n_token * width, 3.0f, rng);
    shape_tokens(mixed, ba, d, n_token, kind);
    float *want = host_room(n_token * d->values, sizeof *want);
    const gpu_delta all = { .mixed = vram_floats(mixed, n_token * d->channels),
                            .ba = vram_floats(ba, n_token * width),
                            .out = vram_room(n_token * d->values * sizeof *want) };
    void *scratch = vram_room(gpu_delta_scratch(device(), d->n_k, d->n_v, d->dim, n) + 1);
    char what[64];
    for (int t = 0; t < n; t += alone ? 1 : n) {
        gpu_delta part = d->args;
        part.mixed = all.mixed + (size_t)t * d->channels;
        part.ba = all.ba + (size_t)t * width;
        part.out = all.out + (size_t)t * d->values;
        part.n = alone ? 1 : n;
        part.pos = d->pos;
        part.scratch = scratch;
        gpu_delta_rule(device(), &part);
        gpu_advance(device(), d->at, part.n);
        gpu_advance(device(), d->other, 1);
        d->pos += part.n;
    }
    cpu_delta(want, d, mixed, ba, n);
    compare_delta(test_path(what, sizeof what, "%d tokens%s", n, alone ? ", one by one" : ""), d,
                  all.out, want, n);
}

static void test_delta(void)
{
    static const int sizes[][3] = { { 2, 4, 32 }, { 4, 4, 32 }, { 2, 4, 64 }, { 4, 4, 64 },
                                    { 2, 4, 128 }, { 4, 4, 128 }, { 16, 32, 128 } };
    /* chunks begin at multiples of 64: among these are none, parts before and after, only one */
    static const int batches[] = { 1, 2, 9, 64, 130, 1, 8, 41, 64, 129, 127, 700 };
    test_rng rng = { 24 };
    family("delta rule");
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        case_begin("%d and %d heads of %d", sizes[i][0], sizes[i][1], sizes[i][2]);
        delta_net d = delta_make(sizes[i][0], sizes[i][1], sizes[i][2], grouped, &rng);
        for (size_t k = 0; k < ARRAY_LEN(batches); k++)
            check_delta(&d, batches[k], false, DELTA_ANY, &rng);
        check_delta(&d, 20, true, DELTA_ANY, &rng);
        case_end();
    }
    for (int dim = 32; dim <= 128; dim *= 2)
        for (int kind = DELTA_SLOW; kind < DELTA_KINDS; kind++) {
            case_begin("2 and 8 heads of %d, %s", dim, delta_kinds[kind]);
            delta_net d = delta_make(2, 8, dim, grouped, &rng);
            check_delta(&d, kind == DELTA_SLOW && dim < 128 ? 4000 : 300, false,
                        (delta_kind)kind, &rng);
            case_end();
        }
}

/* Other orders of heads and gates, with more than two value heads for a key head. */
static void test_delta_orders(void)
{
    static const int batches[] = { 1, 2, 61, 64, 1, 8, 200 };
    test_rng rng = { 28 };
    family("delta rule, orders");
    for (int i = 0; i < 9; i++) {
        if (sim_gpu_skips(i + i / 3, 7)) continue;
        const delta_order order = { i % 3 != 0, i % 3 != 1 };
        const int dim = 32 << i / 3, n_k = 2 + i % 2, n_v = n_k * (3 - i % 2);
        case_begin("%d and %d heads of %d%s%s", n_k, n_v, dim, order.tiled ? ", tiled" : "",
                   order.apart ? ", gates apart" : "");
        delta_net d = delta_make(n_k, n_v, dim, order, &rng);
        for (size_t k = 0; k < ARRAY_LEN(batches); k++)
            check_delta(&d, batches[k], false, DELTA_ANY, &rng);
        check_delta(&d, 10, true, DELTA_ANY, &rng);
        case_end();
    }
}

/* A run of tokens from position 24 on, in batches that end at multiples of `each`: out [n, values],
 * then the state. */
static float *delta_in_batches(const delta_net *d, const float *mixed, const float *ba, int n,
                               int each)
{
    const size_t n_token = (size_t)n, width = 2 * (size_t)d->n_v;
    const size_t size = (size_t)(d->n_v * d->dim * d->dim), n_out = n_token * d->values;
    gpu_delta part = d->args;
    float *result = host_room(n_out + size, sizeof *result);
    float *out = vram_room(n_out * sizeof *out), *x = vram_floats(mixed, n_token * d->channels);
    float *gates = vram_floats(ba, n_token * width);
    gpu_cursor *at = make_versions(d->state, size);
    part.cursor = at;
    part.scratch = vram_room(gpu_delta_scratch(device(), d->n_k, d->n_v, d->dim, n) + 1);
    for (int t = 0; t < n; t += part.n) {
        part.mixed = x + (size_t)t * d->channels;
        part.ba = gates + (size_t)t * width;
        part.out = out + (size_t)t * d->values;
        part.pos = 24 + t;
        part.n = each - part.pos % each < n - t ? each - part.pos % each : n - t;
        gpu_delta_rule(device(), &part);
        gpu_advance(device(), at, part.n);
        gpu_advance(device(), d->other, 1);
    }
    memcpy(result, host_copy(out, n_out), n_out * sizeof *result);
    memcpy(result + n_out, read_version(at, size), size * sizeof *result);
    return result;
}

/* Cuts at multiples of a chunk do not show. */
static void test_delta_cuts(void)
{
    test_rng rng = { 25 };
    family("delta rule, cut");
    for (int dim = 32; dim <= 128; dim *= 2) {
        enum { N = 1000 };
        case_begin("2 and 4 heads of %d", dim);
        delta_net d = delta_make(2, 4, dim, (delta_order){ dim > 32, dim > 64 }, &rng);
        const size_t all = N * d.values + (size_t)(d.n_v * dim * dim);
        float *mixed = host_floats(N * d.channels, 1.0f, &rng);
        float *ba = host_floats(N * 2 * (size_t)d.n_v, 3.0f, &rng);
        const float *whole = delta_in_batches(&d, mixed, ba, N, 1 << 20);
        expect_bits("chunk by chunk", delta_in_batches(&d, mixed, ba, N, GPU_DELTA_CHUNK), whole,
                    all);
        expect_bits("batches of 192", delta_in_batches(&d, mixed, ba, N, 192), whole, all);
        case_end();
    }
}

/* One batch of three conversations, each with a state of its own. */
static void test_delta_rows(void)
{
    static const int rows[][3] = { { 1, 1, 1 }, { 2, 5, 1 }, { 1, 3, 4 } };
    test_rng rng = { 32 };
    family("delta rule, several conversations");
    for (int dim = 32; dim <= 128; dim *= 2) {
        case_begin("2 and 6 heads of %d", dim);
        delta_net d = delta_make(2, 6, dim, (delta_order){ dim > 32, dim > 64 }, &rng);
        const size_t size = (size_t)(d.n_v * dim * dim), width = 2 * (size_t)d.n_v;
        for (size_t k = 0; k < ARRAY_LEN(rows); k++) {
            float *states[3], *mixed = host_floats(GPU_FEW * d.channels, 1.0f, &rng);
            float *ba = host_floats(GPU_FEW * width, 3.0f, &rng);
            float *want = host_room(GPU_FEW * d.values, sizeof *want);
            gpu_cursor list[3];
            gpu_delta part = d.args;
            for (int i = 0; i < 3; i++) {
                states[i] = host_floats(size, 0.1f, &rng);
                vram_read(&list[i], make_versions(states[i], size), sizeof list[i]);
                list[i].n = i < 2 ? rows[k][i] : 0;
                part.n += rows[k][i];
            }
            part.cursor = vram_copy(list, sizeof list);
            part.mixed = vram_floats(mixed, GPU_FEW * d.channels);
            part.ba = vram_floats(ba, GPU_FEW * width);
            part.out = vram_room(GPU_FEW * d.values * sizeof *want);
            gpu_delta_rule(device(), &part);
            for (int i = 0, t = 0; i < 3; t += rows[k][i++]) {
                delta_net own = d;
                own.state = states[i];
                cpu_delta(want + (size_t)t * d.values, &own, mixed + (size_t)t * d.channels,
                          ba + (size_t)t * width, rows[k][i]);
                const uint8_t *after = list[i].recurrent_next + STATE_AT;
                expect_rows_close("state", host_copy((const float *)(const void *)after, size),
                                  states[i], (size_t)d.n_v, (size_t)(dim * dim), 2e-5);
            }
            expect_rows_close("out", host_copy(part.out, (size_t)part.n * d.values), want,
                              (size_t)part.n, d.values, 2e-5);
        }
        case_end();
    }
}

/* After a batch, the state after its first tokens again: from the version before it, and from what
 * the batch has left of its inputs. */
static void test_delta_again(void)
{
    test_rng rng = { 31 };
    family("delta rule, again");
    for (int dim = 32; dim <= 128; dim *= 2) {
        enum { N = GPU_FEW };
        case_begin("2 and 6 heads of %d", dim);
        delta_net d = delta_make(2, 6, dim, (delta_order){ dim > 32, dim > 64 }, &rng);
        const size_t size = (size_t)(d.n_v * dim * dim);
        float *mixed = host_floats(N * d.channels, 1.0f, &rng);
        float *ba = host_floats(N * 2 * (size_t)d.n_v, 3.0f, &rng);
        gpu_delta part = d.args;
        part.mixed = vram_floats(mixed, N * d.channels);
        part.ba = vram_floats(ba, N * 2 * (size_t)d.n_v);
        part.out = vram_room(N * d.values * sizeof *part.out);
        for (int n = N; n > 1; n--) {
            gpu_cursor at;
            part.n = n;
            part.prepared = n < N;
            gpu_delta_rule(device(), &part);
            gpu_advance(device(), d.other, 1);
            vram_read(&at, d.at, sizeof at);
            const float *state = (const float *)(const void *)(at.recurrent_next + STATE_AT);
            const float *want = delta_in_batches(&d, mixed, ba, n, 1 << 20);
            expect_bits("state", host_copy(state, size), want + (size_t)n * d.values, size);
        }
        case_end();
    }
}

int main(int argc, char **argv)
{
    test_begin("gpu mixers", argc, argv);
    if (device_open()) {
        test_delta_orders();
        test_delta_again();
        test_delta_rows();
        test_whole_norms();
        test_values();
        test_stored();
        test_recorded();
        if (!sim_gpu()) {                /* whose loops are those that it would be compared with */
            test_delta();
            test_delta_cuts();
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
