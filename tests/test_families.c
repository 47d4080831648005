/* test_families.c - tiny models of each family, in every placement, against logits that others
 * computed. What no family differs in: test_forward.c. */
#include "tests/cache_fixture.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"
#include "tests/test.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "cuda/gpu.h"
#include "engine/gpu/weights_gpu.h"
#include "loader/bytes.h"
#include "tiers/plan.h"

enum { MAX_SEQ = 8, MAX_TOKENS = 90 };

typedef struct family {
    const char *name, *arch;             /* arch NULL: the same */
    double error;                        /* of F32 arithmetic */
    bool cpu_only;                       /* heads are too small for a GPU */
    model_fixture x;
    int n_seq, n_vocab;
    int32_t ids[MAX_SEQ][MAX_TOKENS];
    int n[MAX_SEQ];
    float *want;                         /* a row for each position of each sequence */
} family;

static family families[] = {
    { .name = "qwen3moe", .error = 2e-5 }, { .name = "qwen35moe", .error = 4e-5 },
    { .name = "llama", .error = 2e-5, .cpu_only = true },
    { .name = "llama-wide", .arch = "llama", .error = 2e-5 },
    { .name = "olmoe", .error = 2e-5, .cpu_only = true },
    { .name = "olmoe-wide", .arch = "olmoe", .error = 2e-5 },
    { .name = "glm4moe", .error = 2e-5 },
    { .name = "gemma4", .error = 2e-5 },
    { .name = "gemma4-shared", .arch = "gemma4", .error = 2e-5 },
};

/* ---- files ----------------------------------------------------------------------------------- */

static bool read_sequences(family *f)
{
    char path[512];
    json_error_t at;
    size_t i, k, bytes, n_row = 0;
    json_t *seq, *id;
    test_path(path, sizeof path, "%s/families/tiny-%s.logits.json", test_golden(), f->name);
    json_t *j = json_load_file(path, 0, &at);
    if (!CHECK_MSG(j, "%s: %s", path, at.text)) return false;
    f->n_vocab = (int)json_integer_value(json_object_get(j, "vocab"));
    json_array_foreach(json_object_get(j, "seqs"), i, seq) {
        if (!CHECK(i < MAX_SEQ && json_array_size(seq) <= MAX_TOKENS)) break;
        json_array_foreach(seq, k, id) f->ids[i][k] = (int32_t)json_integer_value(id);
        f->n[i] = (int)json_array_size(seq);
        n_row += json_array_size(seq);
        f->n_seq++;
    }
    json_decref(j);
    test_path(path, sizeof path, "%s/families/tiny-%s.logits.f32", test_unpacked(), f->name);
    f->want = test_read_file(path, &bytes);
    return CHECK(f->want && f->n_seq > 0 && bytes == n_row * (size_t)f->n_vocab * sizeof(float));
}

static bool family_open(family *f)
{
    char path[512];
    test_path(path, sizeof path, "%s/families/tiny-%s-bf16.gguf", test_unpacked(), f->name);
    return model_fixture_open(&f->x, path) &&
           CHECK(strcmp(model_arch_name(f->x.m->hp.arch), f->arch ? f->arch : f->name) == 0) &&
           read_sequences(f) && CHECK(f->x.m->hp.n_vocab == f->n_vocab);
}

static void family_close(family *f)
{
    mem_free(f->want);
    model_fixture_close(&f->x);
}

/* ---- logits ---------------------------------------------------------------------------------- */

static double relative_l2(const float *got, const float *want, int n)
{
    double diff = 0, norm = 0;
    for (int i = 0; i < n; i++) {
        diff += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += (double)want[i] * want[i];
    }
    return norm > 0 && isfinite(diff) ? sqrt(diff / norm) : INFINITY;
}

static double worst_row(const float *got, const float *want, int n_row, int n)
{
    double most = 0;
    for (int r = 0; r < n_row; r++) most = fmax(most, relative_l2(got + r * n, want + r * n, n));
    return most;
}

/* Many tokens of a prompt are multiplied as sums of two 16-bit floats on a GPU, about 1e-5 off.
 * One such float alone would be 3e-3 off, and 3e-2 where an expert changes places with the next
 * best. */
static void see_sequences(const family *f, session *s, const place *p, int piece)
{
    const bool coarse = p->gpu && piece > GPU_FEW;
    float *rows = test_alloc(MAX_TOKENS, (size_t)f->n_vocab * sizeof *rows);
    const float *want = f->want;
    err_ctx err = { 0 };
    for (int q = 0; q < f->n_seq; want += f->n[q] * f->n_vocab, q++) {
        int rc = 0;
        session_rewind(s, 0);
        for (int t = 0; t < f->n[q] && rc == 0; t += piece) {
            const int n = min_int(piece, f->n[q] - t);
            rc = session_eval(s, f->ids[q] + t, n, rows + t * f->n_vocab, n, NULL, NULL, &err);
        }
        CHECK_MSG(rc == 0, "%s, %s: %s", f->name, p->name, err.msg);
        const double e = coarse ? relative_l2(rows, want, f->n[q] * f->n_vocab)
                                : worst_row(rows, want, f->n[q], f->n_vocab);
        CHECK_MSG(e < (coarse ? 1e-3 : f->error), "%s, %s: %d tokens in pieces of %d: error %.2e",
                  f->name, p->name, f->n[q], piece, e);
    }
    mem_free(rows);
}

/* Answers are the same wherever experts are: those of the first placement of that processor. */
static void see_answer(const family *f, session *s, const place *p, int32_t *known)
{
    enum { PROMPT = 5, ANSWER = 24 };
    float *row = test_alloc((size_t)f->n_vocab, sizeof *row);
    int32_t id = 0, *seen = known + (p->gpu ? ANSWER : 0);
    err_ctx err = { 0 };
    bool same = true;
    session_rewind(s, 0);
    int rc = session_eval(s, f->ids[f->n_seq - 1], PROMPT, row, 1, NULL, NULL, &err);
    for (int t = 0; t < ANSWER && rc == 0; t++) {
        id = 0;
        for (int i = 1; i < f->n_vocab; i++)
            if (row[i] > row[id]) id = i;
        if (seen[t] < 0) seen[t] = id;
        same &= seen[t] == id;
        rc = session_eval(s, &id, 1, row, 1, NULL, NULL, &err);
    }
    CHECK_MSG(rc == 0 && same, "%s, %s: another answer %s", f->name, p->name, err.msg);
    mem_free(row);
}

static void test_family(family *f)
{
    static const int pieces[] = { 1, 7, MAX_TOKENS };
    const engine_options eo = { .threads = test_n_thread(1) };
    const session_options so = { .ctx = 128, .chunk = 64, .kv = KV_F32 };
    const bool no_gpu = gpu_count() == 0 || f->cpu_only;
    err_ctx why = { 0 };
    if (gpu_count() > 0)
        CHECK_MSG((weights_gpu_check(f->x.m, &why) < 0) == f->cpu_only, "%s: %s", f->name, why.msg);
    int32_t known[2 * 24];
    for (size_t i = 0; i < ARRAY_LEN(known); i++) known[i] = -1;
    for (int i = 0; i < N_PLACES; i++) {
        if (places[i].gpu && no_gpu) continue;
        if (i > 0 && sim_gpu_skips(i + (int)(f - families), 9)) continue;
        if (model_fixture_engine(&f->x, &eo) && place_engine(f->x.e, f->x.m, &places[i]) &&
            model_fixture_session(&f->x, &so)) {
            /* of a simulated GPU, the CPU is what the others are compared with */
            for (size_t k = i == 0 && sim_gpu_skips(1, 2) ? ARRAY_LEN(pieces) : 0;
                 k < ARRAY_LEN(pieces); k++)
                see_sequences(f, f->x.s, &places[i], pieces[k]);
            see_answer(f, f->x.s, &places[i], known);
        }
        model_fixture_stop(&f->x);
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The value of a key that the file has: after its length, its name and its type. */
static uint8_t *value_of(uint8_t *bytes, size_t size, const char *key)
{
    const size_t n = strlen(key);
    for (uint8_t *p = bytes + 8; p + n + 8 < bytes + size; p++)
        if (load_u64(p - 8) == n && memcmp(p, key, n) == 0) return p + n + 4;
    return NULL;
}

/* Binds the file of a family, or the one named, with 32 bits of one key changed. Free both. */
static int bind_changed(model **m, gguf **g, uint8_t **bytes, const char *name, const char *key,
                        uint32_t value, err_ctx *err)
{
    char path[512];
    size_t size;
    int rc;
    *m = NULL;
    *g = NULL;
    test_path(path, sizeof path, "%s/families/tiny-%.*s-bf16.gguf", test_unpacked(),
              (int)strcspn(name ? name : key, "."), name ? name : key);
    *bytes = test_read_file(path, &size);
    uint8_t *at = *bytes ? value_of(*bytes, size, key) : NULL;
    if (!CHECK_MSG(at, "%s: not in %s", key, path)) return -1;
    store_u32(at, value);
    rc = gguf_open_memory(g, *bytes, size, err);
    return rc < 0 ? rc : model_bind(m, *g, err);
}

static void test_refused(void)
{
    static const struct { const char *key; uint32_t value; const char *want; } rows[] = {
        { "glm4moe.expert_group_count", 2, "routing by groups" },
        { "glm4moe.leading_dense_block_count", 3, "leading_dense_block_count" },
        { "glm4moe.leading_dense_block_count", 2, "missing tensor blk.1.ffn_gate.weight" },
        { "glm4moe.leading_dense_block_count", 0, "missing tensor blk.0.ffn_gate_inp.weight" },
        { "glm4moe.expert_gating_func", 3, "expert_gating_func" },
        { "glm4moe.expert_shared_count", 2, "tensor blk.1.ffn_gate_shexp.weight has shape" },
        { "gemma4.expert_count", 0, "a dense model" },
        { "gemma4.embedding_length_per_layer_input", 32, "per_layer_input = 32: not supported" },
        { "gemma4.attention.head_count", 3, "multiple of attention.head_count_kv = 2" },
        { "gemma4.attention.value_length_swa", 64, "differs from attention.key_length_swa = 32" },
        { "gemma4.attention.key_length", 32, "differs from attention.key_length = 32" },
        { "gemma4.rope.dimension_count_swa", 34, "at most attention.key_length_swa = 32" },
        { "gemma4.rope.dimension_count", 32, "tensor rope_freqs.weight has shape" },
        { "gemma4.feed_forward_length", 64, "tensor blk.0.ffn_gate.weight has shape" },
        { "gemma4.attention.sliding_window", 0, "attention.sliding_window" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        model *m;
        gguf *g;
        uint8_t *bytes;
        err_ctx err = { 0 };
        const int rc = bind_changed(&m, &g, &bytes, NULL, rows[i].key, rows[i].value, &err);
        CHECK_MSG(rc < 0 && strstr(err.msg, rows[i].want), "%s = %u: %s", rows[i].key,
                  rows[i].value, err.msg);
        model_free(m);
        gguf_close(g);
        mem_free(bytes);
    }
}

/* What keys say that no tiny model does otherwise. */
static void test_keys(void)
{
    const float factor = 2.5f;
    model *m;
    gguf *g;
    uint8_t *bytes;
    err_ctx err = { 0 };
    if (CHECK_MSG(bind_changed(&m, &g, &bytes, NULL, "glm4moe.expert_weights_scale",
                               load_u32(&factor), &err) == 0, "%s", err.msg)) {
        CHECK(m->hp.router.factor == factor && m->hp.router.score == ROUTER_SIGMOID &&
              !m->hp.router.as_scored);
        CHECK(m->hp.n_layer == 3 && m->hp.n_mtp == 1 && model_first_bank(m) == &m->experts.of[1]);
        CHECK(m->layers[0].shared_gate.t && !m->layers[0].router.t && m->layers[1].router.t);
    }
    model_free(m);
    gguf_close(g);
    mem_free(bytes);
    if (CHECK_MSG(bind_changed(&m, &g, &bytes, NULL, "gemma4.final_logit_softcapping", 0,
                               &err) == 0, "%s", err.msg)) {
        const attn_shape full = layer_attn(&m->hp, &m->layers[2]);
        const attn_shape windowed = layer_attn(&m->hp, &m->layers[0]);
        CHECK(m->hp.logit_cap == 0.0f && m->layers[0].window == 16 && m->layers[2].window == 0);
        CHECK(full.n_head_kv == 1 && full.head_dim == 64 && full.rope_dim == 64);
        CHECK(windowed.n_head_kv == 2 && windowed.head_dim == 32 && windowed.rope_dim == 32);
        CHECK(!m->layers[2].attn.v.t && m->layers[0].attn.v.t && m->head_tied);
    }
    model_free(m);
    gguf_close(g);
    mem_free(bytes);
}

/* ---- shared keys and values ------------------------------------------------------------------ */

/* With the last n layers sharing, which layers they share with. The file has no matrices for keys
 * in the last three; those of others that share are not used. */
static void test_shared_layers(void)
{
    static const struct { uint32_t n; const char *want; int back[10], split; } rows[] = {
        { 0, "missing tensor blk.7.attn_k.weight", { 0 }, 0 },
        { 2, "missing tensor blk.7.attn_k.weight", { 0 }, 0 },
        { 3, NULL, { 0, 0, 0, 0, 0, 0, 0, 1, 2, 4 }, 5 },
        { 4, NULL, { 0, 0, 0, 0, 0, 0, 2, 3, 4, 4 }, 4 },
        { 7, NULL, { 0, 0, 0, 2, 3, 3, 5, 6, 7, 7 }, 1 },
        { 8, "shared_kv_layers = 8: no full layer is before", { 0 }, 0 },
        { 10, "shared_kv_layers = 10", { 0 }, 0 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        model *m;
        gguf *g;
        uint8_t *bytes;
        err_ctx err = { 0 };
        const int rc = bind_changed(&m, &g, &bytes, "gemma4-shared",
                                    "gemma4.attention.shared_kv_layers", rows[i].n, &err);
        if (rows[i].want)
            CHECK_MSG(rc < 0 && strstr(err.msg, rows[i].want), "%u shared: %s", rows[i].n, err.msg);
        else if (CHECK_MSG(rc == 0, "%u shared: %s", rows[i].n, err.msg)) {
            for (int l = 0; l < m->hp.n_layer; l++)
                CHECK_MSG(m->layers[l].kv_back == rows[i].back[l] &&
                          !m->layers[l].attn.k.t == (rows[i].back[l] > 0),
                          "%u shared, layer %d: %d", rows[i].n, l, m->layers[l].kv_back);
            CHECK(model_split_most(m) == rows[i].split);
        }
        model_free(m);
        gguf_close(g);
        mem_free(bytes);
    }
}

/* The session's bytes of keys and values are those of the layers that store some. A session that
 * went back gives the bits of before, and coarser types of the store change logits by their
 * rounding. */
static void test_shared_store(family *f)
{
    enum { CTX = 128, CHUNK = 16, N = 60, BACK = 45 };
    static const double most[] = { [KV_F32] = 2e-5, [KV_F16] = 1e-2, [KV_Q8_0] = 1e-1 };
    const engine_options eo = { .threads = test_n_thread(1) };
    const kv_options ko = { .type = KV_F32, .ctx = CTX, .slack = CHUNK };
    const uint64_t row = 2 * 64 * sizeof(float);         /* two heads of 32, or one of 64 */
    const int last = f->n_seq - 1;
    const float *want = f->want;
    float *rows = test_alloc(N, (size_t)f->n_vocab * sizeof *rows);
    float *again = test_alloc(N, (size_t)f->n_vocab * sizeof *again);
    /* whole pages: a window of 16 and the chunk take one, the context two; and the table */
    uint64_t bytes = 0;
    for (int l = 0; l < f->x.m->hp.n_layer; l++) bytes += kv_layer_bytes(f->x.m, &ko, l);
    CHECK(bytes == 5 * row * KV_PAGE + 2 * row * CTX + 7 * 64);
    CHECK(kv_layer_bytes(f->x.m, &ko, 6) > 0 && kv_layer_bytes(f->x.m, &ko, 7) == 0 &&
          kv_layer_bytes(f->x.m, &ko, 9) == 0);
    for (int q = 0; q < last; q++) want += f->n[q] * f->n_vocab;
    for (int i = 0; i < 6; i++) {
        const place *p = &places[i < 3 ? 0 : N_CPU_PLACES];
        const session_options so = { .ctx = CTX, .chunk = CHUNK, .kv = (kv_type)(i % 3),
                                     .n_snapshot = 1 };
        err_ctx err = { 0 };
        if (p->gpu && gpu_count() == 0) continue;
        if (model_fixture_engine(&f->x, &eo) && place_engine(f->x.e, f->x.m, p) &&
            model_fixture_session(&f->x, &so) && CHECK(f->n[last] >= N)) {
            session *s = f->x.s;
            int rc = session_eval(s, f->ids[last], BACK, rows, BACK, NULL, NULL, &err);
            session_snapshot(s);
            if (rc == 0)
                rc = session_eval(s, f->ids[last] + BACK, N - BACK, rows + BACK * f->n_vocab,
                                  N - BACK, NULL, NULL, &err);
            CHECK(session_rewind(s, BACK) == BACK);
            if (rc == 0)
                rc = session_eval(s, f->ids[last] + BACK, N - BACK, again, N - BACK, NULL, NULL,
                                  &err);
            const double e2 = relative_l2(rows, want, N * f->n_vocab);
            const bool coarse = p->gpu && so.kv == KV_F32;       /* see_sequences */
            CHECK_MSG(rc == 0 && e2 < (coarse ? 1e-3 : most[so.kv]) &&
                      memcmp(again, rows + BACK * f->n_vocab,
                             (size_t)(N - BACK) * (size_t)f->n_vocab * sizeof *rows) == 0,
                      "%s, %s: error %.2e %s", p->name, kv_type_name(so.kv), e2, err.msg);
        }
        model_fixture_stop(&f->x);
    }
    mem_free(again);
    mem_free(rows);
}

/* A plan that splits layers from those that they share with is refused. */
static void test_shared_split(family *f)
{
    const engine_options eo = { .threads = test_n_thread(1) };
    static plan cut;
    cut = (plan){ .gpu = true, .place[6].dense = PLAN_RAM, .stage_ranges = 1 };
    const engine_placement where = { .gpu = true, .plan = &cut };
    err_ctx err = { 0 };
    if (model_fixture_engine(&f->x, &eo))
        CHECK_MSG(engine_place(f->x.e, &where, &err) == ERR_RANGE &&
                  strstr(err.msg, "6 of 10 layers on the GPU"), "%s", err.msg);
    model_fixture_stop(&f->x);
}

int main(int argc, char **argv)
{
    test_begin("families", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        if (family_open(&families[i])) test_family(&families[i]);
        if (families[i].x.m && model_split_most(families[i].x.m) < families[i].x.m->hp.n_layer) {
            test_shared_store(&families[i]);
            test_shared_split(&families[i]);
        }
        family_close(&families[i]);
    }
    test_refused();
    test_keys();
    test_shared_layers();
    return test_end();
}
