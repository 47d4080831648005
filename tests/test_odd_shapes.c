/* test_odd_shapes.c - models of the families in sizes that no release has: a single expert, all of
 * them used, one head, heads of 2 or 18 values, a window of one token, a layer that is dense, and
 * so on. What the binder takes has to be computed: the same logits for every cut of a prompt, all
 * of them numbers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/model_fixture.h"
#include "tests/small_shapes.h"
#include "tests/test.h"

enum { N_TOKEN = 40, N_VOCAB = 448 };

/* Changes of the least shape of a family; 0 leaves a size as it is. */
typedef struct oddity {
    const char *what;
    int n_layer, n_head, n_head_kv, head_dim, rope_dim, n_expert, n_used, n_ff, n_ff_shared;
    int window, n_head_kv_full, head_dim_full, n_v_head, n_k_head, ssm_dim, conv, n_dense;
} oddity;

static const oddity oddities[] = {
    { .what = "as it is" },
    { .what = "one expert", .n_expert = 1, .n_used = 1 },
    { .what = "all experts", .n_expert = 5, .n_used = 5 },
    { .what = "experts of width 1", .n_ff = 1, .n_ff_shared = 1 },
    { .what = "33 of 34 experts", .n_expert = 34, .n_used = 33 },
    { .what = "one head", .n_head = 1, .n_head_kv = 1, .head_dim = 32 },
    { .what = "a head for every key", .n_head = 4, .n_head_kv = 4, .head_dim = 8,
      .n_head_kv_full = 4, .head_dim_full = 8 },
    { .what = "heads of 2", .n_head = 16, .n_head_kv = 2, .head_dim = 2, .rope_dim = 2,
      .head_dim_full = 2, .ssm_dim = 2 },
    { .what = "heads of 18", .n_head = 3, .n_head_kv = 1, .head_dim = 18, .rope_dim = 6,
      .n_head_kv_full = 3, .head_dim_full = 34, .ssm_dim = 18 },
    { .what = "a window of 1", .window = 1 },
    { .what = "a window of 41", .window = 41 },
    { .what = "a window without end", .window = INT32_MAX },
    { .what = "one key head, five value heads", .n_k_head = 1, .n_v_head = 5 },
    { .what = "a convolution over 1", .conv = 1 },
    { .what = "a convolution over 9", .conv = 9 },
    { .what = "three dense layers", .n_layer = 4, .n_dense = 3 },
};

static synth_shape shape_of(const synth_shape *small, const oddity *o)
{
    synth_shape s = *small;
    s.n_embd = s.n_ff = 32;
    s.n_expert = 6;
    s.n_used = 2;
    s.n_head = 2;
    s.n_head_kv = 1;
    s.head_dim = 16;
    s.n_vocab = N_VOCAB;
    s.experts = s.dense = s.head = QT_F32;
    if (s.first_special) s.first_special = N_VOCAB - 40;
    if (s.rope_dim) s.rope_dim = 8;
    if (s.n_ff_shared) s.n_ff_shared = 32;
    if (s.n_ff_dense) s.n_ff_dense = 24;
    if (s.n_head_kv_full) s.head_dim_full = 32;
    if (s.n_v_head) s.n_k_head = 1, s.n_v_head = 2, s.ssm_dim = 16;
#define TAKE(field, if_any) if (o->field && (if_any)) s.field = o->field
    TAKE(n_head, true);
    TAKE(n_head_kv, true);
    TAKE(head_dim, true);
    TAKE(rope_dim, s.rope_dim);
    TAKE(n_expert, true);
    TAKE(n_used, true);
    TAKE(n_ff, true);
    TAKE(n_ff_shared, s.n_ff_shared);
    TAKE(window, s.window);
    TAKE(n_head_kv_full, s.n_head_kv_full);
    TAKE(head_dim_full, s.head_dim_full);
    TAKE(n_v_head, s.n_v_head);
    TAKE(n_k_head, s.n_k_head);
    TAKE(ssm_dim, s.ssm_dim);
    TAKE(conv, s.conv);
    TAKE(n_dense, s.n_dense);
#undef TAKE
    /* no key says how long heads are */
    if (s.family == &synth_llama || s.family == &synth_olmoe) s.n_embd = s.n_head * s.head_dim;
    return s;
}

/* Logits of all positions. Pieces of seven are token by token for DeltaNet, too. */
static bool run(float *rows, session *s, const int32_t *ids, int piece, const char *what)
{
    err_ctx err = { 0 };
    int rc = 0;
    session_rewind(s, 0);
    for (int t = 0; t < N_TOKEN && rc == 0; t += piece) {
        const int n = min_int(piece, N_TOKEN - t);
        rc = session_eval(s, ids + t, n, rows + t * N_VOCAB, n, NULL, NULL, &err);
    }
    return CHECK_MSG(rc == 0, "%s: %s", what, err.msg);
}

static void decode(model_fixture *f, const char *what)
{
    const engine_options eo = { .threads = test_n_thread(2) };
    const session_options so = { .ctx = 64, .chunk = N_TOKEN, .kv = KV_F16 };
    float *alone = test_alloc(N_TOKEN * N_VOCAB, sizeof *alone);
    float *together = test_alloc(N_TOKEN * N_VOCAB, sizeof *together);
    int32_t ids[N_TOKEN];
    int bad = 0;
    for (int i = 0; i < N_TOKEN; i++) ids[i] = (i * 37 + 11) % N_VOCAB;
    if (model_fixture_run(f, &eo, &so) && run(alone, f->s, ids, 1, what) &&
        run(together, f->s, ids, 7, what)) {
        for (int i = 0; i < N_TOKEN * N_VOCAB; i++) bad += !isfinite(alone[i]);
        CHECK_MSG(bad == 0, "%s: %d logits are no numbers", what, bad);
        CHECK_MSG(memcmp(alone, together, N_TOKEN * N_VOCAB * sizeof *alone) == 0,
                  "%s: pieces of seven give other logits", what);
        run(together, f->s, ids, N_TOKEN, what);
        for (int i = bad = 0; i < N_TOKEN * N_VOCAB; i++) bad += !isfinite(together[i]);
        CHECK_MSG(bad == 0, "%s: in one piece, %d logits are no numbers", what, bad);
    }
    model_fixture_stop(f);
    mem_free(alone);
    mem_free(together);
}

/* A weight that is no number spoils the answer and nothing else: routers still choose. */
static void poison(model_fixture *f, uint8_t *bytes, const char *what)
{
    const engine_options eo = { .threads = 1 };
    const session_options so = { .ctx = 64, .chunk = 16, .kv = KV_F16 };
    const float nan = NAN;
    static const int32_t ids[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };
    float *row = test_alloc(N_VOCAB, sizeof *row);
    for (int i = 0; i < gguf_n_tensor(f->g); i++) {
        const tensor *t = gguf_tensor_at(f->g, i);
        uint8_t *first = bytes + t->offset, kept[sizeof nan];
        err_ctx err = { 0 };
        memcpy(kept, first, sizeof kept);
        memcpy(first, &nan, sizeof nan);
        if (model_fixture_run(f, &eo, &so))
            CHECK_MSG(session_eval(f->s, ids, 11, row, 1, NULL, NULL, &err) == 0 &&
                      session_eval(f->s, ids + 11, 1, row, 1, NULL, NULL, &err) == 0,
                      "%s: %.*s is no number: %s", what, (int)t->name.len, t->name.ptr, err.msg);
        model_fixture_stop(f);
        memcpy(first, kept, sizeof kept);
    }
    mem_free(row);
}

static void test_shape(const synth_shape *small, const oddity *odd)
{
    const synth_shape s = shape_of(small, odd);
    synth_options o = synth_options_of(&s);
    synth_plan *p = NULL;
    uint8_t *bytes = NULL;
    model_fixture f = { 0 };
    char what[96];
    err_ctx err = { 0 };
    snprintf(what, sizeof what, "%s, %s", s.family->arch, odd->what);
    o.n_layer = odd->n_layer ? odd->n_layer : 2;
    if (CHECK_MSG(synth_plan_create(&p, &o, &err) == 0, "%s: %s", what, err.msg)) {
        const size_t n = (size_t)synth_plan_bytes(p);
        bytes = test_alloc(n, 1);
        synth_plan_fill(p, bytes, 0, n);
        if (model_fixture_open_memory(&f, bytes, n, what)) {
            decode(&f, what);
            if (odd == oddities) poison(&f, bytes, what);
        }
    }
    model_fixture_close(&f);
    mem_free(bytes);
    synth_plan_free(p);
}

int main(int argc, char **argv)
{
    test_begin("odd_shapes", argc, argv);
    for (int i = 0; i < N_SMALL_SHAPES; i++)
        for (size_t k = 0; k < ARRAY_LEN(oddities); k++) test_shape(&small_shapes[i], &oddities[k]);
    return test_end();
}
