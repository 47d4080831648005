/* test_synth.c - synthetic models: blocks, file, vocabulary, skew, cleanup. Small shapes only. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/synth/synth.h"
#include "cli/synth/synth_blocks.h"
#include "cli/synth/synth_family.h"
#include "cli/synth/synth_popularity.h"
#include "engine/models/model.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "loader/bytes.h"
#include "loader/quant_blocks.h"
#include "tests/synth_checks.h"
#include "tests/test.h"

static const synth_shape tiny_gptoss = {
    .name = "tiny-gptoss", .family = &synth_gptoss, .n_layer = 2, .n_embd = 64, .n_head = 4,
    .n_head_kv = 2, .head_dim = 16, .n_expert = 64, .n_used = 4, .n_ff = 64, .n_vocab = 600,
    .first_special = 512, .n_ctx = 4096, .rope_base = 150000, .rope_factor = 32, .rope_ctx = 128,
    .window = 8, .experts = QT_MXFP4, .dense = QT_Q8_0, .head = QT_Q8_0 };

static const synth_shape tiny_qwen3next = {
    .name = "tiny-qwen3next", .family = &synth_qwen3next, .n_layer = 4, .n_embd = 512, .n_head = 2,
    .n_head_kv = 1, .head_dim = 32, .n_expert = 64, .n_used = 4, .n_ff = 32, .n_vocab = 600,
    .first_special = 512, .n_ctx = 4096, .rope_base = 1e7, .rope_dim = 16, .n_ff_shared = 32,
    .interval = 4, .conv = 4, .n_k_head = 2, .n_v_head = 4, .ssm_dim = 16, .experts = QT_Q4_0,
    .dense = QT_Q8_0, .head = QT_Q8_0 };

/* ---- blocks ------------------------------------------------------------------------------ */

static void test_type(const quant_traits *q, quant_type type, double sigma)
{
    enum { N = 512 };
    static synth_blocks s;
    static uint8_t blocks[N * SYNTH_BLOCK_BYTES_MAX], again[SYNTH_BLOCK_BYTES_MAX];
    static float v[N * 256];
    const size_t n = q->block_elems < 32 ? N * 32 : N, elems = n * (size_t)q->block_elems;
    double sum = 0, sumsq = 0;
    int bad = 0, empty = 0;

    synth_blocks_init(&s, type, sigma);
    synth_blocks_fill(&s, blocks, 3, n, 42);
    q->decode(v, blocks, n);
    for (size_t i = 0; i < elems; i++) {
        bad += !isfinite(v[i]);
        sum += (double)v[i];
        sumsq += (double)v[i] * (double)v[i];
    }
    for (size_t b = 0; b < n && q->block_elems > 1; b++) {
        const float *at = v + b * (size_t)q->block_elems;
        int zeros = 0;
        for (int i = 0; i < q->block_elems; i++) zeros += at[i] == 0;
        empty += zeros == q->block_elems;
    }
    const double std = sqrt(sumsq / (double)elems), mean = sum / (double)elems;
    CHECK_MSG(bad == 0, "%s: %d weights are not finite", q->name, bad);
    CHECK_MSG(empty == 0, "%s: %d blocks hold zeros only", q->name, empty);
    CHECK_MSG(fabs(std / sigma - 1) < 0.03, "%s: standard deviation %g, wanted %g",
              q->name, std, sigma);
    CHECK_MSG(fabs(mean) < 0.02 * sigma, "%s: mean %g at standard deviation %g",
              q->name, mean, sigma);

    synth_blocks_fill(&s, again, 3 + 77, 1, 42);
    CHECK_MSG(!memcmp(again, blocks + 77 * q->block_bytes, (size_t)q->block_bytes),
              "%s: block 80 alone differs from block 80 in a run", q->name);
}

static void test_blocks(void)
{
    int n_type = 0;
    for (uint32_t id = 0; id < QT_COUNT; id++) {
        const quant_traits *q = quant_traits_of(id);
        if (!q || !q->decode) continue;
        n_type++;
        test_type(q, (quant_type)id, 1.0);
        test_type(q, (quant_type)id, 1 / sqrt(2880));
    }
    CHECK_MSG(n_type == 28, "%d types have a decoder, 28 expected", n_type);
}

/* What no quantizer writes must not occur. */
static void test_valid_codes(void)
{
    enum { N = 4096 };
    static synth_blocks s;
    static uint8_t b[N * 144];
    int bad = 0;

    synth_blocks_init(&s, QT_Q8_0, 0.02);
    synth_blocks_fill(&s, b, 0, N, 1);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 32; k++) bad += ((block_q8_0 *)b)[i].quants[k] == -128;
    CHECK_MSG(bad == 0, "Q8_0: %d quants of -128", bad);
    for (int i = 0; i < N; i++) {
        const float d = f16_to_f32(load_u16(((block_q8_0 *)b)[i].d));
        bad += !(d > 0 && d < 1);
    }
    CHECK_MSG(bad == 0, "Q8_0: %d scales outside 0..1", bad);

    synth_blocks_init(&s, QT_Q4_K, 0.02);
    synth_blocks_fill(&s, b, 0, N, 1);
    for (int i = 0; i < N; i++) {
        const uint8_t *sc = ((block_q4_k *)b)[i].scales;
        for (int j = 0; j < 4; j++) {
            const int scale = (sc[j + 8] & 15) | sc[j] >> 6 << 4,
                      min = sc[j + 8] >> 4 | sc[j + 4] >> 6 << 4;
            bad += (sc[j] & 63) < 32 || (sc[j + 4] & 63) < 32 || scale < 32 || min < 32;
        }
    }
    CHECK_MSG(bad == 0, "Q4_K: %d scales or minimums below 32", bad);

    synth_blocks_init(&s, QT_MXFP4, 0.02);
    synth_blocks_fill(&s, b, 0, N, 1);
    for (int i = 0; i < N; i++) bad += b[i * 17] < 100 || b[i * 17] > 127;
    CHECK_MSG(bad == 0, "MXFP4: %d scale bytes far from 0.02", bad);

    synth_blocks_init(&s, QT_NVFP4, 0.0001);
    synth_blocks_fill(&s, b, 0, N, 1);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 4; k++) bad += b[i * 36 + k] != 1;
    CHECK_MSG(bad == 0, "NVFP4: %d of the smallest scales are not 1 (2^-9)", bad);
}

/* ---- a plan in memory -------------------------------------------------------------------- */

static void test_pieces(const synth_shape *shape, double skew)
{
    static const size_t sizes[] = { 1, 7, 4096, 12345, 100003 };
    synth_options o = synth_options_of(shape);
    size_t bytes, at = 0;
    uint8_t *whole, *piece = mem_alloc(100003);
    synth_plan *p = NULL;
    int wrong = 0;

    o.skew = skew;
    o.n_layer = 1;
    whole = synth_fill_all(&o, &bytes);
    if (!whole || !CHECK(piece && synth_plan_create(&p, &o, NULL) == 0)) goto done;
    for (int i = 0; at < bytes; i++) {
        const size_t n = sizes[i % 5], inside = n < bytes - at ? n : bytes - at;
        memset(piece, 0xEE, n);
        synth_plan_fill(p, piece, at, n);
        wrong += memcmp(piece, whole + at, inside) != 0;
        for (size_t k = inside; k < n; k++) wrong += piece[k] != 0;
        at += n;
    }
    CHECK_MSG(wrong == 0, "%s, skew %g: %d pieces differ from the whole", shape->name, skew, wrong);
done:
    synth_plan_free(p);
    mem_free(piece);
    mem_free(whole);
}

static const tensor *need_tensor(const gguf *g, const char *name)
{
    const tensor *t = gguf_tensor(g, name);
    CHECK_MSG(t != NULL, "no tensor %s", name);
    return t;
}

/* Every tensor finite, and of a size that the model's arithmetic can bear. */
static void test_contents(const gguf *g, const char *what)
{
    static float v[1 << 16];
    for (int i = 0; i < gguf_n_tensor(g); i++) {
        const tensor *t = gguf_tensor_at(g, i);
        const quant_traits *q = quant_traits_of(t->type);
        size_t n_block = (size_t)(t->elems / (uint64_t)q->block_elems), bad = 0;
        char name[TENSOR_MAX_NAME + 1];
        if (n_block > ARRAY_LEN(v) / (size_t)q->block_elems)
            n_block = ARRAY_LEN(v) / (size_t)q->block_elems;
        q->decode(v, t->data, n_block);
        for (size_t k = 0; k < n_block * (size_t)q->block_elems; k++) bad += !(fabsf(v[k]) < 6);
        if (str_ends(t->name, "ssm_a"))
            for (size_t k = 0; k < n_block; k++) bad += !(v[k] <= -0.25f);
        if (str_ends(t->name, "norm.weight"))
            for (size_t k = 0; k < n_block; k++) bad += !(v[k] > 0.85f && v[k] < 1.15f);
        CHECK_MSG(bad == 0, "%s: %s: %zu bad weights", what, ESC(name, t->name), bad);
    }
}

static void test_file_of(const synth_shape *shape, double skew, int n_tensor)
{
    synth_options o = synth_options_of(shape);
    size_t bytes;
    uint8_t *data;
    gguf *g = NULL;
    model *m = NULL;
    err_ctx err = { 0, "" };

    o.skew = skew;
    if (!(data = synth_fill_all(&o, &bytes))) return;
    if (CHECK_MSG(gguf_open_memory(&g, data, bytes, &err) == 0, "%s: %s", shape->name, err.msg)) {
        CHECK_MSG(gguf_n_tensor(g) == n_tensor, "%s: %d tensors", shape->name, gguf_n_tensor(g));
        test_contents(g, shape->name);
        if (CHECK_MSG(model_bind(&m, g, &err) == 0, "%s: %s", shape->name, err.msg)) {
            CHECK(m->hp.n_layer == shape->n_layer && m->hp.n_expert == shape->n_expert);
            CHECK_MSG(m->n_bound == n_tensor, "%s: %d of %d tensors in use",
                      shape->name, m->n_bound, n_tensor);
        }
    }
    model_free(m);
    gguf_close(g);
    mem_free(data);
}

/* Layer 0 is the same in a shorter file; another seed changes it. */
static void test_same_layers(void)
{
    synth_options o[3];
    uint8_t *data[3];
    gguf *g[3] = { NULL, NULL, NULL };
    const tensor *t[3];
    size_t bytes;

    for (int i = 0; i < 3; i++) o[i] = synth_options_of(&tiny_gptoss);
    o[1].n_layer = 1;
    o[2].seed = 2;
    for (int i = 0; i < 3; i++) {
        data[i] = synth_fill_all(&o[i], &bytes);
        CHECK(data[i] && gguf_open_memory(&g[i], data[i], bytes, NULL) == 0);
        t[i] = g[i] ? need_tensor(g[i], "blk.0.ffn_up_exps.weight") : NULL;
    }
    if (t[0] && t[1] && t[2]) {
        CHECK_MSG(!memcmp(t[0]->data, t[1]->data, t[0]->bytes),
                  "layer 0 depends on the number of layers");
        CHECK_MSG(memcmp(t[0]->data, t[2]->data, 64) != 0, "another seed gives the same weights");
    }
    for (int i = 0; i < 3; i++) {
        gguf_close(g[i]);
        mem_free(data[i]);
    }
}

static void test_real_shapes(void)
{
    static const struct { const char *name; int n_tensor; uint64_t tensor_bytes; } want[] = {
        { "gpt-oss-20b", 459, 12096558336 },         /* the sizes of the real releases */
        { "gpt-oss-120b", 687, 63374323968 },
        { "qwen3-next-80b", 843, 43486543872 + 951091200 + 175030272 + 255252480 + 207285248 },
    };
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        const synth_shape *s = synth_shape_find(want[i].name);
        synth_options o;
        synth_plan *p = NULL;
        err_ctx err = { 0, "" };
        if (!CHECK(s != NULL)) continue;
        o = synth_options_of(s);
        if (!CHECK_MSG(synth_plan_create(&p, &o, &err) == 0, "%s: %s", s->name, err.msg)) continue;
        const uint64_t head = synth_plan_bytes(p) - want[i].tensor_bytes;
        CHECK_MSG(synth_plan_n_tensor(p) == want[i].n_tensor, "%s: %d tensors",
                  s->name, synth_plan_n_tensor(p));
        CHECK_MSG(head > 1000000 && head < 20000000, "%s: %llu bytes besides the tensors' %llu",
                  s->name, (unsigned long long)head, (unsigned long long)want[i].tensor_bytes);
        synth_plan_free(p);
    }
    CHECK(synth_shape_find("gpt-oss-21b") == NULL);
}

/* ---- refusals ---------------------------------------------------------------------------- */

static void test_refusals(void)
{
    synth_options o = synth_options_of(synth_shape_find("gpt-oss-20b"));
    synth_plan *p = NULL;
    err_ctx err = { 0, "" };

    o.experts = QT_Q4_K;
    CHECK(synth_plan_create(&p, &o, &err) == ERR_UNSUPPORTED && !p);
    CHECK_MSG(strstr(err.msg, "blk.0.ffn_gate_exps.weight") && strstr(err.msg, "2880") &&
              strstr(err.msg, "Q4_K") && strstr(err.msg, " MXFP4"), "%s", err.msg);
    o = synth_options_of(&tiny_gptoss);
    o.n_layer = 3;
    CHECK_MSG(synth_plan_create(&p, &o, &err) == ERR_RANGE && strstr(err.msg, "2 layers, not 3"),
              "%s", err.msg);
    o.n_layer = 0;
    CHECK(synth_plan_create(&p, &o, &err) == ERR_RANGE);
}

/* ---- vocabulary -------------------------------------------------------------------------- */

static void check_encodes_as(encoder *e, id_list *ids, const tokenizer *t, int id)
{
    const str_view text = tokenizer_bytes(t, id, true);
    char shown[64];
    ids->n = 0;
    CHECK(encoder_encode(e, ids, text, true, NULL) == 0);
    CHECK_MSG(ids->n == 1 && ids->ids[0] == id, "token %d '%s' is encoded as %zu ids, first %d", id,
              ESC(shown, text), ids->n, ids->n ? ids->ids[0] : -1);
}

static bool letters_only(str_view s)
{
    for (size_t i = 0; i < s.len; i++) {
        const char c = s.ptr[i] | 0x20;
        if (c < 'a' || c > 'z') return false;
    }
    return s.len > 0;
}

static void test_vocabulary(const synth_vocab *v, const char *pre, const char *eos)
{
    enum { FIRST_SPECIAL = 256 + 65536 + 20000, N_VOCAB = FIRST_SPECIAL + 100 };
    static const char text[] = "The quick brown fox.\n"
                               "\tJumps over 13 lazy dogs: \xC3\xA9\xE2\x82\xAC!";
    gguf_writer *w = gguf_writer_create();
    const uint8_t *head;
    size_t head_bytes;
    gguf *g = NULL;
    tokenizer *t = NULL;
    encoder *e = NULL;
    err_ctx err = { 0, "" };
    id_list ids = { NULL, 0, 0 };
    char back[256];
    size_t n = 0;

    if (!CHECK(w && synth_vocab_write(w, v, N_VOCAB, FIRST_SPECIAL, &err) == 0 &&
               gguf_write_head(w, &head, &head_bytes, &err) == 0 &&
               gguf_open_memory(&g, head, head_bytes, &err) == 0)) goto done;
    if (!CHECK_MSG(tokenizer_create(&t, g, &err) == 0, "%s: %s", pre, err.msg)) goto done;
    if (!CHECK(encoder_create(&e, t, &err) == 0)) goto done;
    CHECK(!strcmp(tokenizer_pre_name(t), pre) && tokenizer_n_token(t) == N_VOCAB);
    CHECK_MSG(tokenizer_special(t, eos) == tokenizer_eos(t) &&
              tokenizer_is_stop(t, tokenizer_eos(t)), "%s: eos is %d", pre, tokenizer_eos(t));
    CHECK(tokenizer_kind(t, FIRST_SPECIAL - 1) == TOKEN_NORMAL);
    CHECK(tokenizer_kind(t, FIRST_SPECIAL) == TOKEN_CONTROL);
    CHECK(tokenizer_kind(t, N_VOCAB - 1) == TOKEN_UNUSED);
    for (int i = 0; i < v->n_special; i++) check_encodes_as(e, &ids, t, FIRST_SPECIAL + i);
    /* capitals after small letters are a separate piece in gpt-4o: not one token there */
    for (int id = 256; id < FIRST_SPECIAL; id += id < 256 + 65536 ? 1 : 7) {
        const str_view s = tokenizer_bytes(t, id, true);
        bool small = letters_only(s);
        for (size_t i = 0; i < s.len; i++) small = small && s.ptr[i] >= 'a';
        if (small) check_encodes_as(e, &ids, t, id);
    }
    ids.n = 0;
    CHECK(encoder_encode(e, &ids, str_from(text), false, &err) == 0);
    CHECK_MSG(ids.n < sizeof text * 3 / 4, "%s: %zu tokens for %zu bytes",
              pre, ids.n, sizeof text - 1);
    for (size_t i = 0; i < ids.n; i++) {
        const str_view s = tokenizer_bytes(t, ids.ids[i], false);
        if (n + s.len < sizeof back) memcpy(back + n, s.ptr, s.len);
        n += s.len;
    }
    CHECK_MSG(n == sizeof text - 1 && !memcmp(back, text, n), "%s: text does not come back", pre);
done:
    ids_free(&ids);
    encoder_free(e);
    tokenizer_free(t);
    gguf_close(g);
    gguf_writer_free(w);
}

/* The tokenizer may look whole pieces up, so this asks the list itself: a triple's entry must join
 * the two that BPE, lowest entry first and left before right, has left. Entry of a pair: its two
 * ids. */
static void test_merges(void)
{
    enum { FIRST_SPECIAL = 256 + 65536 + 64 * 64 * 64, N_VOCAB = FIRST_SPECIAL + 21 };
    const synth_vocab *v = synth_gptoss.vocab;
    gguf_writer *w = gguf_writer_create();
    str_view *list = mem_array(FIRST_SPECIAL, sizeof *list);
    const uint8_t *head;
    size_t head_bytes;
    gguf *g = NULL;
    int n = 0, n_triple = 0, bad = 0;

    if (CHECK(w && list && synth_vocab_write(w, v, N_VOCAB, FIRST_SPECIAL, NULL) == 0 &&
              gguf_write_head(w, &head, &head_bytes, NULL) == 0 &&
              gguf_open_memory(&g, head, head_bytes, NULL) == 0)) {
        gguf_strings it = gguf_strings_begin(gguf_find(g, "tokenizer.ggml.merges"));
        while (n < FIRST_SPECIAL && gguf_strings_next(&it, &list[n])) n++;
        CHECK_MSG(n == FIRST_SPECIAL - 256, "%d merges", n);
    }
    for (int i = 65536; i < n; i++) {
        const char *m = list[i].ptr;
        const bool left_pair = m[2] == ' ';
        const char a = m[0], b = left_pair ? m[1] : m[2], c = m[3];
        if (list[i].len != 4 || (m[1] != ' ' && m[2] != ' ')) continue;  /* with a space: U+0120 */
        const int left = (a - '!') * 256 + b - '!', right = (b - '!') * 256 + c - '!';
        n_triple++;
        bad += left_pair != (left <= right) || list[left].ptr[0] != a || list[left].ptr[2] != b;
    }
    CHECK_MSG(n_triple == 63 * 63 * 63 && bad == 0,
              "%d of %d triples are cut where BPE never merges", bad, n_triple);
    CHECK_MSG(synth_vocab_write(w, v, N_VOCAB + 9, FIRST_SPECIAL + 1, NULL) == ERR_RANGE &&
              synth_vocab_write(w, v, FIRST_SPECIAL + 20, FIRST_SPECIAL, NULL) == ERR_RANGE,
              "a vocabulary without room was accepted");
    gguf_close(g);
    gguf_writer_free(w);
    mem_free(list);
}

/* ---- skew -------------------------------------------------------------------------------- */

/* Each layer has its own favourites, and all layers the same set of router biases. */
static void test_ranks(void)
{
    synth_options o = synth_options_of(&tiny_gptoss);
    size_t bytes;
    uint8_t *data;
    gguf *g = NULL;
    const tensor *t[2];
    int same = 0, found = 0;

    o.skew = 1;
    if (!(data = synth_fill_all(&o, &bytes))) return;
    CHECK(gguf_open_memory(&g, data, bytes, NULL) == 0);
    t[0] = g ? need_tensor(g, "blk.0.ffn_gate_inp.bias") : NULL;
    t[1] = g ? need_tensor(g, "blk.1.ffn_gate_inp.bias") : NULL;
    for (int e = 0; t[0] && t[1] && e < 64; e++) {
        same += load_f32(t[0]->data + 4 * e) == load_f32(t[1]->data + 4 * e);
        for (int k = 0; k < 64; k++)
            found += load_f32(t[0]->data + 4 * e) == load_f32(t[1]->data + 4 * k);
    }
    CHECK_MSG(same < 10 && found == 64,
              "%d of 64 experts keep their rank, %d biases in both layers", same, found);
    gguf_close(g);
    mem_free(data);
}

/* Adds one to count[e] for the n_used largest logits. */
static void count_chosen(int *count, float *logits, int n_expert, int n_used)
{
    for (int k = 0; k < n_used; k++) {
        int best = 0;
        for (int e = 1; e < n_expert; e++)
            if (logits[e] > logits[best]) best = e;
        count[best]++;
        logits[best] = -INFINITY;
    }
}

static int falling(const void *a, const void *b) { return *(const int *)b - *(const int *)a; }

/* Routes the tokens of layer 0 with decoded weights: qwen3next's own embedding rows, random vectors
 * for gpt-oss. The mixer is left out: it adds a percent. count[] comes back sorted, most first. */
static bool route(int *count, int *n_token, const synth_shape *s, double skew)
{
    enum { EMBD_MAX = 512 };
    const bool own = s->family->common;
    synth_options o = synth_options_of(s);
    test_rng rng = { 5 };
    size_t bytes;
    gguf *g = NULL;
    const tensor *embd, *norm, *router, *bias = NULL;
    uint8_t *data;

    o.skew = skew;
    o.n_layer = 1;
    if (!(data = synth_fill_all(&o, &bytes))) return false;
    if (!CHECK(gguf_open_memory(&g, data, bytes, NULL) == 0)) {
        mem_free(data);
        return false;
    }
    embd = need_tensor(g, "token_embd.weight");
    norm = need_tensor(g, "blk.0.post_attention_norm.weight");
    router = need_tensor(g, "blk.0.ffn_gate_inp.weight");
    if (!own) bias = need_tensor(g, "blk.0.ffn_gate_inp.bias");
    *n_token = own ? s->n_vocab : 2000;
    memset(count, 0, (size_t)s->n_expert * sizeof *count);
    for (int t = 0; embd && norm && router && t < *n_token; t++) {
        float x[EMBD_MAX], logits[64];
        double sumsq = 0;
        if (own)
            quant_traits_of(embd->type)->decode(x, tensor_row(embd, 0, (uint64_t)t),
                                                (size_t)s->n_embd / 32);
        for (int c = 0; c < s->n_embd; c++) {
            if (!own) x[c] = (float)test_below(&rng, 2001) - 1000;
            sumsq += (double)x[c] * (double)x[c];
        }
        for (int c = 0; c < s->n_embd; c++)
            x[c] *= (float)(1 / sqrt(sumsq / s->n_embd)) * load_f32(norm->data + 4 * c);
        for (int e = 0; e < s->n_expert; e++) {
            const uint8_t *w = tensor_row(router, 0, (uint64_t)e);
            logits[e] = bias ? load_f32(bias->data + 4 * e) : 0;
            for (int c = 0; c < s->n_embd; c++) logits[e] += x[c] * load_f32(w + 4 * c);
        }
        count_chosen(count, logits, s->n_expert, s->n_used);
    }
    qsort(count, (size_t)s->n_expert, sizeof *count, falling);
    gguf_close(g);
    mem_free(data);
    return true;
}

static void test_skew(const synth_shape *s)
{
    static const double skews[] = { 0, 0.5, 1.0, 1.5 };
    const int top = s->n_expert / 10;
    double last = 0;

    for (size_t i = 0; i < ARRAY_LEN(skews); i++) {
        int count[64], n_token = 0;
        double want[64], got = 0, expected = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
        if (!route(count, &n_token, s, skews[i])) return;
        synth_shares(want, s->n_expert, s->n_used, skews[i]);
        for (int r = 0; r < top; r++) {
            got += count[r] / (double)(n_token * s->n_used);
            expected += want[r] / s->n_used;
        }
        CHECK_MSG(fabs(got - expected) < 0.06,
                  "%s, skew %g: the top tenth gets %.3f of the choices, expected %.3f",
                  s->name, skews[i], got, expected);
        CHECK_MSG(got > last, "%s, skew %g: top tenth %.3f, not above %.3f",
                  s->name, skews[i], got, last);
        last = got;
        for (int r = 0; r < 32; r++) {               /* slope of log count over log rank */
            const double x = log(r + 1), y = log(count[r] + 0.5);
            sx += x, sy += y, sxx += x * x, sxy += x * y;
        }
        const double slope = -(32 * sxy - sx * sy) / (32 * sxx - sx * sx);
        CHECK_MSG(fabs(slope - skews[i]) < 0.35,
                  "%s, skew %g: popularity falls with exponent %.2f", s->name, skews[i], slope);
    }
}

static void test_shares(void)
{
    static const struct { int n, k; double s; const char *why; } rows[] = {
        { 32, 4, 0, "uniform" }, { 32, 4, 1.5, "first ranks at the limit" },
        { 512, 10, 1, "real size" }, { 128, 4, 4, "steepest" }, { 4, 3, 0, "nearly all" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        double share[512], sum = 0;
        bool falls = true;
        synth_shares(share, rows[i].n, rows[i].k, rows[i].s);
        for (int r = 0; r < rows[i].n; r++) {
            sum += share[r];
            falls = falls && share[r] > 0 && share[r] <= 0.951 &&
                    (r == 0 || share[r] <= share[r - 1] * 1.0001);
        }
        CHECK_MSG(fabs(sum - rows[i].k) < 1e-6, "%s: shares sum to %g, not %d",
                  rows[i].why, sum, rows[i].k);
        CHECK_MSG(falls, "%s: shares do not fall from at most 0.95", rows[i].why);
    }
}

/* ---- on a disk --------------------------------------------------------------------------- */

static char folder[400];

static bool there(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static bool stop_at_once(void *ctx, double done, double total)
{
    *(uint64_t *)ctx = total;
    return done > total;
}

static bool never_stop(void *ctx, double done, double total)
{
    if (done == total) ++*(int *)ctx;
    return true;
}

static void test_threads(void)
{
    synth_options o = synth_options_of(&tiny_qwen3next);         /* three windows */
    char path[512];
    uint8_t *file[3] = { NULL, NULL, NULL };
    size_t bytes[3] = { 0, 0, 0 };
    int finished = 0;

    file[2] = synth_fill_all(&o, &bytes[2]);
    for (int i = 0; i < 2; i++) {
        synth_report r = { 0, 0, 0 };
        err_ctx err = { 0, "" };
        test_path(path, sizeof path, "%s/threads%d", folder, i + 1);
        CHECK_MSG(synth_write(&r, path, &o, i + 1, never_stop, &finished, &err) == 0,
                  "%s", err.msg);
        file[i] = test_read_file(path, &bytes[i]);
        CHECK_MSG(bytes[i] == bytes[2] && r.bytes == bytes[2], "%zu bytes on disk, %zu planned",
                  bytes[i], bytes[2]);
        CHECK_MSG(file[i] && file[2] && !memcmp(file[i], file[2], bytes[2]),
                  "%d threads: other bytes", i + 1);
        unlink(path);
    }
    CHECK_MSG(bytes[2] > 2 * (4 << 20), "%zu bytes are too few for three windows", bytes[2]);
    CHECK_MSG(finished == 2, "progress reached the end %d times in 2 runs", finished);
    for (int i = 0; i < 3; i++) mem_free(file[i]);
}

static void test_disk_failures(void)
{
    synth_options o = synth_options_of(&tiny_gptoss);
    char path[512], part[544];
    synth_report r;
    err_ctx err = { 0, "" };
    struct rlimit old, small;
    uint64_t total = 0;
    FILE *f;
    size_t n = 0;
    char *kept;

    test_path(path, sizeof path, "%s/model", folder);
    test_path(part, sizeof part, "%s.part", path);

    CHECK(synth_write(&r, path, &o, 2, stop_at_once, &total, &err) == ERR_IO && total > 0);
    CHECK_MSG(!there(part) && !there(path), "stopped: a file is left");
    if (CHECK((f = fopen(path, "w")) != NULL)) { fputs("kept", f); fclose(f); }
    CHECK(synth_write(&r, path, &o, 2, NULL, NULL, &err) == ERR_IO &&
          strstr(err.msg, "is there already"));
    kept = test_read_file(path, &n);
    CHECK_MSG(kept && n == 4 && !there(part), "an existing file was touched");
    mem_free(kept);
    unlink(path);

    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 100000;                         /* a disk that is full after 100 kB */
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    const int rc = synth_write(&r, path, &o, 2, NULL, NULL, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK_MSG(rc == ERR_IO && strstr(err.msg, "too large"), "file size limit: %d, %s", rc, err.msg);
    CHECK_MSG(!there(path) && !there(part), "file size limit: something was left behind");

    CHECK(synth_write(&r, folder, &o, 1, NULL, NULL, &err) == ERR_IO &&
          strstr(err.msg, "is there already"));
    test_path(path, sizeof path, "%s/none/model", folder);
    CHECK_MSG(synth_write(&r, path, &o, 1, NULL, NULL, &err) == ERR_IO &&
              strstr(err.msg, "No such"), "%s", err.msg);

    test_path(path, sizeof path, "%s/victim", folder);       /* .part as a link to another file */
    test_path(part, sizeof part, "%s/model.part", folder);
    if (CHECK(symlink(path, part) == 0)) {
        test_path(path, sizeof path, "%s/model", folder);
        CHECK(synth_write(&r, path, &o, 1, NULL, NULL, &err) == ERR_IO);
        test_path(path, sizeof path, "%s/victim", folder);
        CHECK_MSG(!there(path), "wrote through a link");
        unlink(part);
    }
}

/* Each allocation fails once: an error, no leak (the sanitizer looks), nothing on the disk. */
static void test_no_memory(const synth_shape *s, double skew)
{
    synth_shape small = *s;
    synth_options o = synth_options_of(&small);
    char path[512], part[544];
    long n = 1;
    int rc = -1;

    small.n_expert = 8;
    o.n_layer = 1;
    o.skew = skew;
    test_path(path, sizeof path, "%s/nomem", folder);
    test_path(part, sizeof part, "%s.part", path);
    for (; n < 1000 && rc < 0; n++) {
        synth_report r;
        err_ctx err = { 0, "" };
        mem_fail_after(n);
        rc = synth_write(&r, path, &o, 1, NULL, NULL, &err);
        mem_fail_after(0);
        if (rc == 0) break;
        CHECK_MSG(rc == ERR_NOMEM && err.msg[0], "%s: allocation %ld: %d, %s",
                  s->name, n, rc, err.msg);
        CHECK_MSG(!there(path) && !there(part), "%s: allocation %ld left a file", s->name, n);
    }
    CHECK_MSG(rc == 0 && n > 10, "%s: %d after %ld allocations", s->name, rc, n);
    unlink(path);
}

int main(int argc, char **argv)
{
    test_begin("synth", argc, argv);
    if (!CHECK(mkdtemp(test_temp(folder, sizeof folder)) != NULL)) return test_end();
    test_blocks();
    test_valid_codes();
    test_pieces(&tiny_gptoss, 0);
    test_pieces(&tiny_gptoss, 1);
    test_pieces(&tiny_qwen3next, 1);
    test_file_of(&tiny_gptoss, 0, 3 + 2 * 19);
    test_file_of(&tiny_qwen3next, 0, 3 + 3 * 18 + 16);
    test_file_of(&tiny_qwen3next, 1, 3 + 3 * 18 + 16);
    test_same_layers();
    test_real_shapes();
    test_refusals();
    test_vocabulary(synth_gptoss.vocab, "gpt-4o", "<|return|>");
    test_vocabulary(synth_qwen3next.vocab, "qwen2", "<|im_end|>");
    test_merges();
    test_shares();
    test_ranks();
    test_skew(&tiny_gptoss);
    test_skew(&tiny_qwen3next);
    test_threads();
    test_disk_failures();
    test_no_memory(&tiny_gptoss, 1);
    test_no_memory(&tiny_qwen3next, 1);
    CHECK_MSG(rmdir(folder) == 0, "%s is not empty", folder);
    return test_end();
}
