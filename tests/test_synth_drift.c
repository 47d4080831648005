/* test_synth_drift.c - synthetic models whose experts' popularity wanders: the numbers behind it,
 * what is in the file, and what a model does with it.
 *
 * The last is measured: the linker hands every call of router_select to chosen_experts.c first
 * (Makefile), so the experts that the engine itself chose for each token are known. */
#include <math.h>
#include <string.h>

#include "cli/synth/synth.h"
#include "cli/synth/synth_family.h"
#include "engine/engine.h"
#include "loader/bytes.h"
#include "tests/chosen_experts.h"
#include "tests/synth_checks.h"
#include "tests/test.h"

static const synth_shape small_gptoss = {
    .name = "small-gptoss", .family = &synth_gptoss, .n_layer = 4, .n_embd = 1024, .n_head = 8,
    .n_head_kv = 2, .head_dim = 64, .n_expert = 32, .n_used = 4, .n_ff = 32, .n_vocab = 4096,
    .first_special = 4000, .n_ctx = 131072, .rope_base = 150000, .rope_factor = 32,
    .rope_ctx = 4096, .window = 16, .experts = QT_MXFP4, .dense = QT_Q8_0, .head = QT_Q8_0 };

static const synth_shape small_qwen3next = {
    .name = "small-qwen3next", .family = &synth_qwen3next, .n_layer = 4, .n_embd = 1024,
    .n_head = 2, .n_head_kv = 1, .head_dim = 128, .n_expert = 64, .n_used = 4, .n_ff = 32,
    .n_vocab = 4096, .first_special = 4000, .n_ctx = 4096, .rope_base = 1e7, .rope_dim = 32,
    .n_ff_shared = 256, .interval = 4, .conv = 4, .n_k_head = 2, .n_v_head = 4, .ssm_dim = 64,
    .experts = QT_Q8_0, .dense = QT_Q4_K, .head = QT_Q8_0 };

static const synth_shape small_qwen35moe = {
    .name = "small-qwen35moe", .family = &synth_qwen35moe, .n_layer = 4, .n_embd = 1024,
    .n_head = 2, .n_head_kv = 1, .head_dim = 128, .n_expert = 64, .n_used = 4, .n_ff = 32,
    .n_vocab = 4096, .first_special = 4000, .n_ctx = 4096, .rope_base = 1e7, .rope_dim = 32,
    .n_ff_shared = 256, .interval = 4, .conv = 4, .n_k_head = 2, .n_v_head = 4, .ssm_dim = 64,
    .experts = QT_Q8_0, .dense = QT_Q4_K, .head = QT_Q8_0 };

static const synth_shape small_qwen3moe = {
    .name = "small-qwen3moe", .family = &synth_qwen3moe, .n_layer = 4, .n_embd = 1024, .n_head = 4,
    .n_head_kv = 1, .head_dim = 64, .n_expert = 64, .n_used = 4, .n_ff = 32, .n_vocab = 4096,
    .first_special = 4000, .n_ctx = 4096, .rope_base = 1e6, .experts = QT_Q8_0, .dense = QT_Q8_0,
    .head = QT_Q8_0 };

/* Q8_0: nothing norms its keys, and embeddings of another type differ too much in length where they
 * are so short. */
static const synth_shape small_mixtral = {
    .name = "small-mixtral", .family = &synth_llama, .n_layer = 4, .n_embd = 1024, .n_head = 8,
    .n_head_kv = 2, .head_dim = 128, .n_expert = 64, .n_used = 4, .n_ff = 32, .n_vocab = 4096,
    .n_ctx = 4096, .rope_base = 1e6, .experts = QT_Q8_0, .dense = QT_Q8_0, .head = QT_Q8_0 };

static const synth_shape small_olmoe = {
    .name = "small-olmoe", .family = &synth_olmoe, .n_layer = 4, .n_embd = 1024, .n_head = 8,
    .n_head_kv = 8, .head_dim = 128, .n_expert = 64, .n_used = 4, .n_ff = 32, .n_vocab = 4096,
    .first_special = 4000, .n_ctx = 4096, .rope_base = 1e4, .experts = QT_Q8_0, .dense = QT_Q8_0,
    .head = QT_Q8_0 };

static const synth_shape small_glm4moe = {
    .name = "small-glm4moe", .family = &synth_glm4moe, .n_layer = 4, .n_embd = 1024, .n_head = 8,
    .n_head_kv = 2, .head_dim = 128, .n_expert = 64, .n_used = 4, .n_ff = 32, .n_vocab = 4096,
    .first_special = 4000, .n_ctx = 4096, .rope_base = 1e6, .rope_dim = 64, .n_ff_shared = 32,
    .n_dense = 1, .n_ff_dense = 64, .n_mtp = 1, .experts = QT_Q8_0, .dense = QT_Q8_0,
    .head = QT_Q8_0 };

static synth_options drifting(const synth_shape *s, double skew, int drift)
{
    synth_options o = synth_options_of(s);
    o.skew = skew;
    o.drift = drift;
    return o;
}

/* ---- numbers ----------------------------------------------------------------------------- */

static double normal(test_rng *r)        /* sum of twelve, less 6: no tail to speak of beyond 4 */
{
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += test_below(r, 1u << 30) * 0x1p-30;
    return sum;
}

static void test_mean(void)
{
    static const struct { double spread, tokens; } rows[] = { { 10, 16 }, { 14, 100 }, { 3, 50 } };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const double mean = synth_latch_mean(rows[i].spread, rows[i].tokens);
        test_rng rng = { 7 };
        double share = 0;
        for (int t = 0; t < 200000; t++)
            share += 1 / (1 + exp(-mean - rows[i].spread * normal(&rng))) / 200000;
        CHECK_MSG(fabs(share * rows[i].tokens - 1) < 0.1,
                  "spread %g: a share of 1 in %.1f is replaced, not 1 in %g", rows[i].spread,
                  1 / share, rows[i].tokens);
    }
}

static void test_readers(void)
{
    static float held[DRIFT_HELD * DRIFT_COLS], readers[DRIFT_HELD * DRIFT_COLS];
    test_rng rng = { 3 };
    double worst = 0;
    for (size_t i = 0; i < ARRAY_LEN(held); i++) held[i] = (float)normal(&rng);
    CHECK(synth_latch_readers(readers, held));
    for (int i = 0; i < DRIFT_HELD; i++)
        for (int j = 0; j < DRIFT_HELD; j++) {
            double sum = i == j ? -1 : 0;
            for (int c = 0; c < DRIFT_COLS; c++)
                sum += (double)readers[i * DRIFT_COLS + c] * (double)held[j * DRIFT_COLS + c];
            worst = fmax(worst, fabs(sum));
        }
    CHECK_MSG(worst < 1e-5, "products of readers and vectors are off by %g", worst);
    memset(held + DRIFT_COLS, 0, DRIFT_COLS * sizeof *held);
    CHECK_MSG(!synth_latch_readers(readers, held), "a vector of zeros was accepted");
}

/* What the score of a token loses with its age must be a straight line for a few times T, and stay
 * large up to the longest context. */
static void test_line_of(const rope_spec *rope, int dim)
{
    static const int tokens[] = { 16, 128, 1000, 16384 };
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++) {
        const int T = tokens[i];
        float q[128], k[128];
        double freq[32], magnitude, at_T = 0, worst = 0, least = INFINITY;
        rope_frequencies(freq, &magnitude, rope);
        synth_latch_biases(q, k, 1, rope, dim, T);
        for (int d = T; d < 131072; d += d < 8 * T ? T : 1 + T / 8) {
            double lost = 0;
            for (int c = 0; c < 32; c++)
                lost += (double)q[c] * (double)k[c] * (1 - cos(d * freq[c])) * magnitude *
                        magnitude / sqrt(dim);
            if (d == T) at_T = lost;
            if (d <= 4 * T) worst = fmax(worst, fabs(lost / (at_T * d / T) - 1));
            if (d > 8 * T) least = fmin(least, lost / at_T);
        }
        CHECK_MSG(at_T > 3 && at_T < 12, "heads of %d, T %d: a score loses %.1f", dim, T,
                  at_T);
        CHECK_MSG(worst < 0.2, "heads of %d, T %d: %.2f off a straight line", dim, T, worst);
        CHECK_MSG(least > 4.5, "heads of %d, T %d: only %.1f times as much is lost later on", dim,
                  T, least);
    }
}

static void test_line(void)
{
    static const rope_spec gptoss = { .dim = 64, .base = 150000, .factor = 32, .attn_factor = 1,
                                      .scaling = ROPE_YARN, .ctx_orig = 4096 };
    static const rope_spec glm4moe = { .dim = 64, .base = 1e6, .attn_factor = 1 };
    test_line_of(&gptoss, 64);
    test_line_of(&glm4moe, 128);
}

/* ---- the file ---------------------------------------------------------------------------- */

static void compare_tensors(const gguf *fixed, const gguf *moving, const char *what, int head_dim)
{
    const float most = head_dim > 64 ? 16.1f * sqrtf((float)head_dim) : 128;     /* of queries */
    char name[TENSOR_MAX_NAME + 1];
    int n_changed = 0;
    CHECK_MSG(gguf_n_tensor(fixed) == gguf_n_tensor(moving), "%s: %d tensors, without drift %d",
              what, gguf_n_tensor(moving), gguf_n_tensor(fixed));
    for (int i = 0; i < gguf_n_tensor(fixed) && i < gguf_n_tensor(moving); i++) {
        const tensor *a = gguf_tensor_at(fixed, i), *b = gguf_tensor_at(moving, i);
        const quant_traits *q = quant_traits_of(b->type);
        size_t bad = 0;
        ESC(name, a->name);
        CHECK_MSG(str_eq(a->name, b->name) && a->type == b->type && a->n_dims == b->n_dims &&
                  a->cols == b->cols && a->rows == b->rows && a->bytes == b->bytes,
                  "%s: %s is not the same tensor", what, name);
        const bool same = a->bytes == b->bytes && !memcmp(a->data, b->data, a->bytes);
        n_changed += !same;
        if (str_ends(a->name, "_exps.weight") || str_is(a->name, "output.weight"))
            CHECK_MSG(same, "%s: drift changes %s", what, name);
        for (uint64_t e = 0; e < b->elems; e += (uint64_t)q->block_elems) {
            float v[256];
            q->decode(v, b->data + e / (uint64_t)q->block_elems * (uint64_t)q->block_bytes, 1);
            for (int j = 0; j < q->block_elems; j++) bad += !(fabsf(v[j]) < most);
        }
        CHECK_MSG(bad == 0, "%s: %s: %zu bad weights", what, name, bad);
    }
    CHECK_MSG(n_changed > 8, "%s: drift changes %d tensors", what, n_changed);
}

static void test_file_of(const synth_shape *s)
{
    size_t bytes[2] = { 0, 0 };
    uint8_t *data[2];
    gguf *g[2] = { NULL, NULL };
    model *m = NULL;
    err_ctx err = { 0, "" };
    for (int i = 0; i < 2; i++) {
        const synth_options o = drifting(s, 1, i ? 64 : 0);
        data[i] = synth_fill_all(&o, &bytes[i]);
        CHECK_MSG(data[i] && gguf_open_memory(&g[i], data[i], bytes[i], &err) == 0, "%s: %s",
                  s->name, err.msg);
    }
    if (g[0] && g[1]) compare_tensors(g[0], g[1], s->name, s->head_dim);
    if (g[1])
        CHECK_MSG(model_bind(&m, g[1], &err) == 0, "%s: %s", s->name, err.msg);
    if (m && !s->n_mtp) CHECK(m->n_bound == gguf_n_tensor(g[1]));
    model_free(m);
    for (int i = 0; i < 2; i++) {
        gguf_close(g[i]);
        mem_free(data[i]);
    }
}

/* Windows are filled by any thread in any order: pieces must be those of the whole. */
static void test_pieces(const synth_shape *s)
{
    static const size_t sizes[] = { 1, 7, 4096, 12345, 100003 };
    const synth_options o = drifting(s, 1, 64);
    uint8_t *whole, *piece = test_alloc(100003, 1);
    size_t bytes = 0, at = 0;
    synth_plan *p = NULL;
    int wrong = 0;

    whole = synth_fill_all(&o, &bytes);
    if (whole && CHECK(synth_plan_create(&p, &o, NULL) == 0))
        for (int i = 0; at < bytes; at += sizes[i++ % 5]) {
            const size_t n = sizes[i % 5], inside = n < bytes - at ? n : bytes - at;
            synth_plan_fill(p, piece, at, inside);
            wrong += memcmp(piece, whole + at, inside) != 0;
        }
    CHECK_MSG(wrong == 0, "%s: %d pieces differ from the whole", s->name, wrong);
    synth_plan_free(p);
    mem_free(piece);
    mem_free(whole);
}

/* Types of every kind can carry topics: floats, coarse scales, codebooks, two and three values. */
static void test_types(const synth_shape *s)
{
    static const quant_type types[] = { QT_F32, QT_BF16, QT_MXFP4, QT_NVFP4, QT_IQ1_M, QT_TQ1_0,
                                        QT_Q1_0, QT_Q2_K };
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        synth_options o = drifting(s, 1, 64);
        synth_plan *p = NULL;
        err_ctx err = { 0, "" };
        o.dense = types[i];
        o.n_layer = 1;
        CHECK_MSG(synth_plan_create(&p, &o, &err) == 0, "%s: %s: %s", s->name,
                  quant_name(types[i]), err.msg);
        synth_plan_free(p);
    }
}

static void test_refusals(void)
{
    synth_shape narrow = small_qwen3next, plain = small_gptoss;
    const struct { const synth_shape *shape; double skew; int drift, layers; const char *says; }
    rows[] = {
        { &small_gptoss, 0, 64, 4, "needs skew" },
        { &small_gptoss, 1, DRIFT_MIN - 1, 4, "out of range 16..16384" },
        { &small_gptoss, 1, DRIFT_MAX + 1, 4, "out of range 16..16384" },
        { &small_gptoss, 1, -1, 4, "out of range 16..16384" },
        { &small_gptoss, 1, 64, 1, "begins in layer 1" },
        { &plain, 1, 64, 2, "cannot drift in models of this family" },
        { &narrow, 1, 64, 4, "embedding of 1024 channels, this has 768" },
    };
    narrow.n_embd = 768;
    plain.family = &synth_gemma4;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        synth_options o = drifting(rows[i].shape, rows[i].skew, rows[i].drift);
        synth_plan *p = NULL;
        err_ctx err = { 0, "" };
        o.n_layer = rows[i].layers;
        CHECK_MSG(synth_plan_create(&p, &o, &err) == ERR_RANGE && !p &&
                  strstr(err.msg, rows[i].says), "'%s', expected '%s'", err.msg, rows[i].says);
        synth_plan_free(p);
    }
}

static void test_no_memory(const synth_shape *s)
{
    const synth_options o = drifting(s, 1, 64);
    synth_check_no_memory(&o);
}

/* ---- what a model chooses ---------------------------------------------------------------- */

enum { TOKENS = 2048, CHUNK = 256, T = 32 };

/* Feeds random tokens to a model with one thread: choices come chunk by chunk, in each layer by
 * layer, token by token. */
static bool choose(const synth_options *o)
{
    size_t bytes = 0;
    uint8_t *data = synth_fill_all(o, &bytes);
    const engine_options eo = { .threads = 1 };
    const session_options so = { .ctx = TOKENS, .chunk = CHUNK, .kv = KV_F16 };
    gguf *g = NULL;
    model *m = NULL;
    engine *e = NULL;
    session *s = NULL;
    err_ctx err = { 0, "" };
    int32_t tokens[TOKENS];
    test_rng rng = { 11 };
    bool ok;

    for (int t = 0; t < TOKENS; t++)
        tokens[t] = (int32_t)test_below(&rng, 4000);
    chosen.n = 0;
    chosen.cap = (size_t)TOKENS * (size_t)((o->n_layer - o->shape->n_dense) * o->shape->n_used);
    chosen.ids = test_alloc(chosen.cap, sizeof *chosen.ids);
    ok = data && gguf_open_memory(&g, data, bytes, &err) == 0 && model_bind(&m, g, &err) == 0 &&
         engine_open(&e, m, &eo, &err) == 0 && session_create(&s, e, &so, &err) == 0 &&
         session_eval(s, tokens, TOKENS, NULL, 0, NULL, NULL, &err) == 0;
    CHECK_MSG(ok, "%s: %s", o->shape->name, err.msg);
    ok = CHECK(chosen.n == chosen.cap) && ok;
    session_free(s);
    engine_close(e);
    model_free(m);
    gguf_close(g);
    mem_free(data);
    return ok;
}

static const int32_t *chosen_at(const synth_options *o, int l, int t)
{
    const int first = o->shape->n_dense, n = o->n_layer - first;
    const int place = (t / CHUNK * n + l - first) * CHUNK + t % CHUNK;
    return chosen.ids + (size_t)place * (size_t)o->shape->n_used;
}

/* Of the experts that a token chooses in layers first.., the share that the token `lag` later does,
 * too; what would be so by chance is 0 here. */
static double alike(const synth_options *o, int first, int lag)
{
    const int k = o->shape->n_used;
    double n = 0, same = 0;
    for (int l = first; l < o->n_layer; l++)
        for (int t = 0; t + lag < TOKENS; t++, n += k) {
            const int32_t *a = chosen_at(o, l, t), *b = chosen_at(o, l, t + lag);
            for (int i = 0; i < k * k; i++) same += a[i / k] == b[i % k];
        }
    return same / n - k / (double)o->shape->n_expert;
}

/* Choices of layer l that eight tokens from t on have in common with those T later. */
static double kept(const synth_options *o, int l, int t)
{
    const int k = o->shape->n_used;
    int same = 0;
    for (int i = 0; i < 8 * k * k; i++)
        same += chosen_at(o, l, t + i % 8)[i / 8 / k] == chosen_at(o, l, t + i % 8 + T)[i / 8 % k];
    return same;
}

/* Correlation of what two layers keep: 0 if they change at different times. */
static double together(const synth_options *o, int l, int other)
{
    double n = 0, x = 0, y = 0, xx = 0, yy = 0, xy = 0;
    for (int t = 0; t + 8 + T < TOKENS; t += 8, n++) {
        const double a = kept(o, l, t), b = kept(o, other, t);
        x += a, y += b, xx += a * a, yy += b * b, xy += a * b;
    }
    return (n * xy - x * y) / sqrt((n * xx - x * x) * (n * yy - y * y));
}

/* Neighbours must be as alike as the skew alone makes them, tokens T apart about 1 / e of that, and
 * tokens much farther apart no more than topics that come back make them, 1 / 16. */
static void test_wander(const synth_shape *s, double skew)
{
    const synth_options o = drifting(s, skew, T);
    const int first = max_int(s->family->latch_layer, s->n_dense);
    const int k = s->n_used, n = s->n_expert;
    double share[64], want = -k / (double)n, far = 0;

    if (!choose(&o)) goto done;
    synth_shares(share, n, k, skew);
    for (int r = 0; r < n; r++) want += share[r] * share[r] / k;
    const double near = (alike(&o, first, 1) + alike(&o, first, 2)) / 2;
    const double soon = alike(&o, first, T / 4), later = alike(&o, first, T);
    for (int i = 4; i < 12; i++) far += alike(&o, first, i * T) / 8;
    CHECK_MSG(fabs(near / want - 1) < 0.2, "%s, skew %g: neighbours share %.3f more than by chance,"
              " skew alone makes it %.3f", s->name, skew, near, want);
    CHECK_MSG(soon / near > 0.65 && soon / near < 0.95, "%s, skew %g: %.2f is left after T/4",
              s->name, skew, soon / near);
    CHECK_MSG(later / near > 0.2 && later / near < 0.6, "%s, skew %g: %.2f is left after T",
              s->name, skew, later / near);
    CHECK_MSG(fabs(far / near) < 0.2, "%s, skew %g: %.2f is left after 4T and more", s->name, skew,
              far / near);
    CHECK_MSG(together(&o, 1, 2) < 0.4 && together(&o, 2, 3) < 0.4,
              "%s, skew %g: layers 1, 2 and 3 change together: %.2f, %.2f", s->name, skew,
              together(&o, 1, 2), together(&o, 2, 3));
done:
    mem_free(chosen.ids);
}

int main(int argc, char **argv)
{
    test_begin("synth_drift", argc, argv);
    test_mean();
    test_readers();
    test_line();
    test_file_of(&small_gptoss);
    test_file_of(&small_qwen3next);
    test_file_of(&small_qwen35moe);
    test_file_of(&small_qwen3moe);
    test_file_of(&small_mixtral);
    test_file_of(&small_olmoe);
    test_file_of(&small_glm4moe);
    test_pieces(&small_gptoss);
    test_pieces(&small_qwen3next);
    test_pieces(&small_olmoe);
    test_pieces(&small_glm4moe);
    test_types(&small_qwen3moe);
    test_refusals();
    test_no_memory(&small_gptoss);
    test_no_memory(&small_qwen3next);
    test_no_memory(&small_olmoe);
    test_no_memory(&small_glm4moe);
    test_wander(&small_qwen3next, 1);
    if (test_is_long()) {
        test_types(&small_qwen3next);
        test_no_memory(&small_qwen35moe);
        test_wander(&small_gptoss, 1);
        test_wander(&small_qwen35moe, 1);
        test_wander(&small_qwen3moe, 1);
        test_wander(&small_mixtral, 1);
        test_wander(&small_olmoe, 1);
        test_wander(&small_glm4moe, 1);
    }
    return test_end();
}
