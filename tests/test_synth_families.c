/* test_synth_families.c - small synthetic files of the families after gpt-oss and qwen3next:
 * loaded, planned and decoded; which experts are chosen; their vocabularies. Real shapes are
 * test_synth_tables.c's.
 *
 * The linker hands every call of router_select to chosen_experts.c first (Makefile), so the experts
 * that the engine itself chose for each token are known. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/synth/synth.h"
#include "cli/synth/synth_family.h"
#include "cli/synth/synth_popularity.h"
#include "engine/plan/planning.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "loader/bytes.h"
#include "tests/chosen_experts.h"
#include "tests/small_shapes.h"
#include "tests/synth_checks.h"
#include "tests/test.h"

/* ---- contents ---------------------------------------------------------------------------- */

/* Every tensor finite, and of a size that the model's arithmetic can bear. */
static void check_contents(const gguf *g, const char *what)
{
    for (int i = 0; i < gguf_n_tensor(g); i++) {
        const tensor *t = gguf_tensor_at(g, i);
        const quant_traits *q = quant_traits_of(t->type);
        const bool factors = str_is(t->name, "rope_freqs.weight");
        char name[TENSOR_MAX_NAME + 1];
        size_t bad = 0;
        for (uint64_t e = 0; e < t->elems; e += (uint64_t)q->block_elems) {
            float v[256];
            q->decode(v, t->data + e / (uint64_t)q->block_elems * (uint64_t)q->block_bytes, 1);
            for (int k = 0; k < q->block_elems; k++)
                bad += factors ? v[k] != (e < t->elems / 4 ? 1.0f : 1e30f) : !(fabsf(v[k]) < 6);
        }
        CHECK_MSG(bad == 0, "%s: %s: %zu bad weights", what, ESC(name, t->name), bad);
    }
}

/* Layer 0 is the same in a shorter file, and any piece of it that of the whole. */
static void test_pieces(const synth_shape *s)
{
    synth_options o = synth_options_of(s);
    size_t bytes[2] = { 0, 0 };
    uint8_t *data[2], *piece = test_alloc(10007, 1);
    gguf *g[2] = { NULL, NULL };
    synth_plan *p = NULL;
    int wrong = 0;

    for (int i = 0; i < 2; i++) {
        o.n_layer = 4 - 2 * i;
        data[i] = synth_fill_all(&o, &bytes[i]);
        CHECK(data[i] && gguf_open_memory(&g[i], data[i], bytes[i], NULL) == 0);
    }
    if (g[0] && g[1]) {
        check_contents(g[0], s->name);
        for (int i = 0; i < gguf_n_tensor(g[1]); i++) {
            const tensor *b = gguf_tensor_at(g[1], i);
            const bool early = synth_in_block(b, 0) || synth_in_block(b, 1);
            const tensor *a = early ? gguf_tensor_at(g[0], i) : NULL;
            wrong += a && (!str_eq(a->name, b->name) || a->bytes != b->bytes ||
                           memcmp(a->data, b->data, a->bytes));
        }
        CHECK_MSG(wrong == 0, "%s: %d tensors depend on the number of layers", s->name, wrong);
    }
    if (data[1] && CHECK(synth_plan_create(&p, &o, NULL) == 0))
        for (size_t at = 0; at < bytes[1]; at += 10007) {
            const size_t n = bytes[1] - at < 10007 ? bytes[1] - at : 10007;
            synth_plan_fill(p, piece, at, n);
            wrong += memcmp(piece, data[1] + at, n) != 0;
        }
    CHECK_MSG(wrong == 0, "%s: %d pieces differ from the whole", s->name, wrong);
    synth_plan_free(p);
    for (int i = 0; i < 2; i++) {
        gguf_close(g[i]);
        mem_free(data[i]);
    }
    mem_free(piece);
}

/* ---- what a model chooses ---------------------------------------------------------------- */

static int falling(const void *a, const void *b) { return *(const int *)b - *(const int *)a; }

/* Popularity must fall as synth_shares says: what the top eighth gets, and the exponent over the
 * first half of the ranks. */
static void check_shares(const synth_shape *s, int l, double skew, int *count, int n_token)
{
    const int top = max_int(s->n_expert / 8, 1), half = s->n_expert / 2;
    double want[64], got = 0, expected = 0, y[2] = { 0, 0 }, sxx = 0, sx = 0, sxy[2] = { 0, 0 };
    qsort(count, (size_t)s->n_expert, sizeof *count, falling);
    synth_shares(want, s->n_expert, s->n_used, skew);
    for (int r = 0; r < top; r++) {
        got += count[r] / (double)(n_token * s->n_used);
        expected += want[r] / s->n_used;
    }
    CHECK_MSG(fabs(got - expected) < 0.06, "%s, layer %d, skew %g: the top eighth gets %.3f of the "
              "choices, expected %.3f", s->name, l, skew, got, expected);
    for (int r = 0; r < half; r++) {
        const double x = log(r + 1), v[2] = { log(count[r] + 0.5), log(want[r]) };
        sx += x, sxx += x * x;
        for (int i = 0; i < 2; i++) y[i] += v[i], sxy[i] += x * v[i];
    }
    const double scale = half * sxx - sx * sx;
    const double slope = -(half * sxy[0] - sx * y[0]) / scale;
    const double meant = -(half * sxy[1] - sx * y[1]) / scale;
    CHECK_MSG(fabs(slope - meant) < 0.35, "%s, layer %d, skew %g: popularity falls with exponent "
              "%.2f, meant %.2f", s->name, l, skew, slope, meant);
}

enum { EMBD = 1024, TOKENS = 1024, CHUNK = 256, ANSWER = 4 };

/* Choices come chunk by chunk, in each layer by layer, token by token. */
static void check_choices(const synth_options *o, double skew)
{
    const int k = o->shape->n_used, first = o->shape->n_dense, n_routed = o->n_layer - first;
    for (int l = 0; l < n_routed; l++) {
        int count[64] = { 0 };
        for (int t = 0; t < TOKENS; t++) {
            const int place = (t / CHUNK * n_routed + l) * CHUNK + t % CHUNK;
            for (int i = 0; i < k; i++) count[chosen.ids[place * k + i]]++;
        }
        check_shares(o->shape, l + first, skew, count, TOKENS);
    }
}

/* Reads a prompt with one thread, then answers. */
static bool read_and_answer(const synth_options *o, const model *m, int n_token)
{
    const engine_options eo = { .threads = 1 };
    const session_options so = { .ctx = TOKENS + ANSWER, .chunk = CHUNK, .kv = KV_F16 };
    const int n_vocab = o->shape->n_vocab;
    float *row = test_alloc((size_t)n_vocab, sizeof *row);
    engine *e = NULL;
    session *s = NULL;
    err_ctx err = { 0, "" };
    int32_t tokens[TOKENS];
    test_rng rng = { 11 };
    int rc, bad = 0, repeated = 0;

    for (int t = 0; t < TOKENS; t++) tokens[t] = (int32_t)test_below(&rng, (uint32_t)n_vocab);
    int32_t last = tokens[n_token - 1];
    rc = engine_open(&e, m, &eo, &err);
    if (rc == 0) rc = session_create(&s, e, &so, &err);
    if (rc == 0) rc = session_eval(s, tokens, n_token, row, 1, NULL, NULL, &err);
    for (int t = 0; t < ANSWER && rc == 0; t++) {
        double sum = 0, sumsq = 0;
        int32_t best = 0;
        for (int i = 0; i < n_vocab; i++) {
            sum += (double)row[i] / n_vocab;
            sumsq += (double)row[i] * (double)row[i] / n_vocab;
            if (row[i] > row[best]) best = i;
        }
        const double std = sqrt(sumsq - sum * sum);
        bad += !(std > 0.5 && std < 2);
        repeated += best == last;
        last = best;
        rc = session_eval(s, &best, 1, row, 1, NULL, NULL, &err);
    }
    CHECK_MSG(rc == 0 && bad == 0, "%s: %d rows of logits out of size, %s", o->shape->name, bad,
              err.msg);
    CHECK_MSG(repeated < ANSWER, "%s: answers with what it has read last", o->shape->name);
    session_free(s);
    engine_close(e);
    mem_free(row);
    return rc == 0;
}

static void check_plan(const synth_options *o, const model *m)
{
    static planning in;
    static plan p;
    const session_options so = { .ctx = 256, .kv = KV_F16 };
    const plan_wish w = { .vram = UINT64_MAX, .ram = UINT64_MAX, .hot_most = UINT64_MAX };
    model_bytes sum;
    err_ctx err = { 0, "" };
    model_count_bytes(&sum, m);
    memset(&in, 0, sizeof in);
    in.machine.ram_available = UINT64_C(8) << 30;
    CHECK_MSG(planning_make(&p, &in, m, &so, 1, NULL, NULL, &w, &err) == 0, "%s: %s",
              o->shape->name, err.msg);
    CHECK_MSG(sum.experts > 0 && in.model.n_layer == o->n_layer, "%s: planned otherwise",
              o->shape->name);
}

/* Loaded, planned and decoded; and with skew the experts chosen in each layer as it says. */
static void test_decode(const synth_shape *s, double skew, int n_layer)
{
    const int n_token = skew > 0 ? TOKENS : 20;
    synth_options o = synth_options_of(s);
    size_t bytes = 0;
    gguf *g = NULL;
    model *m = NULL;
    err_ctx err = { 0, "" };
    o.skew = skew;
    o.n_layer = n_layer;
    uint8_t *data = synth_fill_all(&o, &bytes);
    chosen.n = 0;
    chosen.cap = (size_t)n_token * (size_t)((o.n_layer - s->n_dense) * s->n_used);
    chosen.ids = test_alloc(chosen.cap, sizeof *chosen.ids);
    if (data && CHECK(gguf_open_memory(&g, data, bytes, &err) == 0) && synth_bind(&m, g, s->name)) {
        synth_check_used(m, g, s, o.n_layer);
        check_plan(&o, m);
        if (read_and_answer(&o, m, n_token) && CHECK(chosen.n == chosen.cap) && skew > 0)
            check_choices(&o, skew);
    }
    model_free(m);
    gguf_close(g);
    mem_free(chosen.ids);
    mem_free(data);
}

/* ---- skew, by formula: also of families that the engine does not know --------------------- */

static float at(const tensor *t, int i) { return load_f32(t->data + 4 * (size_t)i); }

/* The scores by which a token chooses in the first layer with experts. Mixers are left out: they
 * add a percent. x: the embedding; it is normed here. */
static void score(float *scores, const gguf *g, const synth_shape *s, float *x)
{
    const bool gemma = s->family == &synth_gemma4;
    char name[96];
    double sumsq = 0;
    const int l = s->n_dense;
    const tensor *norm = NULL, *bias;
    static const char *const norms[] = { "ffn_gate_inp.scale", "post_attention_norm.weight",
                                         "ffn_norm.weight" };
    for (size_t i = gemma ? 0 : 1; i < ARRAY_LEN(norms) && !norm; i++) {
        snprintf(name, sizeof name, "blk.%d.%s", l, norms[i]);
        norm = gguf_tensor(g, name);
    }
    snprintf(name, sizeof name, "blk.%d.exp_probs_b.bias", l);
    bias = gguf_tensor(g, name);
    snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", l);
    const tensor *router = gguf_tensor(g, name);
    for (int c = 0; c < s->n_embd; c++) sumsq += (double)x[c] * (double)x[c];
    for (int c = 0; c < s->n_embd; c++)
        x[c] *= (float)(1 / sqrt(gemma ? sumsq : sumsq / s->n_embd)) * at(norm, c);
    for (int e = 0; e < s->n_expert; e++) {
        double sum = 0;
        for (int c = 0; c < s->n_embd; c++)
            sum += (double)x[c] * (double)at(router, e * s->n_embd + c);
        scores[e] = (float)(bias ? 1 / (1 + exp(-sum)) + (double)at(bias, e) : sum);
    }
}

static void test_skew(const synth_shape *s, double skew)
{
    synth_options o = synth_options_of(s);
    size_t bytes = 0;
    gguf *g = NULL;
    test_rng rng = { 5 };
    int count[64] = { 0 };
    double sum[64] = { 0 }, sumsq = 0;
    o.skew = skew;
    o.n_layer = 2;
    uint8_t *data = synth_fill_all(&o, &bytes);
    if (data) CHECK(gguf_open_memory(&g, data, bytes, NULL) == 0);
    const tensor *embd = g ? gguf_tensor(g, "token_embd.weight") : NULL;
    for (int t = 0; embd && t < TOKENS; t++) {
        float x[EMBD], scores[64];
        if (s->family->common)
            quant_traits_of(embd->type)->decode(x, tensor_row(embd, 0, (uint64_t)t), EMBD / 32);
        else
            for (int c = 0; c < EMBD; c++) x[c] = (float)test_below(&rng, 2001) - 1000;
        score(scores, g, s, x);
        for (int e = 0; e < s->n_expert; e++) {
            sum[e] += (double)scores[e] / TOKENS;
            sumsq += (double)scores[e] * (double)scores[e] / TOKENS / s->n_expert;
        }
        for (int k = 0; k < s->n_used; k++) {
            int best = 0;
            for (int e = 1; e < s->n_expert; e++)
                if (scores[e] > scores[best]) best = e;
            count[best]++;
            scores[best] = -INFINITY;
        }
    }
    check_shares(s, s->n_dense, skew, count, TOKENS);
    for (int e = 0; e < s->n_expert; e++) sumsq -= sum[e] * sum[e] / s->n_expert;
    const double std = sqrt(sumsq), want = s->family == &synth_glm4moe ? 0.21 : 1;   /* sigmoids */
    CHECK_MSG(fabs(std / want - 1) < 0.1, "%s: an expert's scores have standard deviation %.2f",
              s->name, std);
    gguf_close(g);
    mem_free(data);
}

/* ---- vocabularies of characters ----------------------------------------------------------- */

typedef struct words {
    str_view *text;
    int n;
} words;

static words read_words(const gguf *g, const char *key)
{
    const gguf_kv *kv = gguf_find(g, key);
    words w = { NULL, 0 };
    if (!CHECK_MSG(kv, "no %s", key)) return w;
    gguf_strings it = gguf_strings_begin(kv);
    w.text = test_alloc((size_t)kv->count + 1, sizeof *w.text);
    while (gguf_strings_next(&it, &w.text[w.n])) w.n++;
    return w;
}

/* Characters of a piece: bytes that do not continue another. */
static int n_character(str_view s)
{
    int n = 0;
    for (size_t i = 0; i < s.len; i++) n += (s.ptr[i] & 0xC0) != 0x80;
    return n;
}

/* What two pieces make is a token with a lower score than theirs, unless they are single. */
static void check_scores(const gguf *g, const words *w, int first, const char *what)
{
    const gguf_kv *scores = gguf_find(g, "tokenizer.ggml.scores");
    int bad = 0;
    if (!CHECK(scores && scores->type == GGUF_F32 && (int)scores->count == w->n)) return;
    for (int id = 1; id < w->n; id++) {
        const float a = load_f32(scores->data + 4 * (size_t)(id - 1));
        const float b = load_f32(scores->data + 4 * (size_t)id);
        bad += id <= first ? b != 0 : !(b < a);
    }
    CHECK_MSG(bad == 0, "%s: %d scores do not fall", what, bad);
}

/* Every merge makes the next token of two that are there, and of a triple it joins what is left
 * when the pair with the lower rank, or the left of two equal ones, has been joined. */
static void check_merges(const gguf *g, const words *w, int first, const char *what)
{
    const words merges = read_words(g, "tokenizer.ggml.merges");
    int bad = 0;
    for (int i = 0; i < merges.n; i++) {
        const str_view m = merges.text[i], token = w->text[first + i];
        const char *cut = memchr(m.ptr + 1, ' ', m.len - 1);
        if (!cut || m.len != token.len + 1) { bad++; continue; }
        const size_t left = (size_t)(cut - m.ptr);
        bad += memcmp(m.ptr, token.ptr, left) ||
               memcmp(cut + 1, token.ptr + left, token.len - left);
        if (n_character(token) != 3 || token.len != 3) continue;
        int rank[2] = { -1, -1 };
        for (int k = 0; k < SYNTH_SINGLES * SYNTH_SINGLES; k++)
            for (int side = 0; side < 2; side++)
                if (str_eq(w->text[first + k], (str_view){ token.ptr + side, 2 })) rank[side] = k;
        bad += rank[0] < 0 || rank[1] < 0 || (left == 2) != (rank[0] <= rank[1]);
        if (i > 12000) i += 997;         /* one in a thousand of many */
    }
    CHECK_MSG(merges.n > 0 && bad == 0, "%s: %d of %d merges are wrong", what, bad, merges.n);
    mem_free(merges.text);
}

static void test_pieces_vocabulary(const synth_vocab *v, int n_vocab, const char *what)
{
    gguf_writer *w = gguf_writer_create();
    const uint8_t *head;
    size_t head_bytes;
    gguf *g = NULL;
    words list = { NULL, 0 };
    int64_t eos = -1;
    const int first = v->n_special + 256;

    if (!CHECK(w && synth_vocab_write(w, v, n_vocab, 0, NULL) == 0 &&
               gguf_write_head(w, &head, &head_bytes, NULL) == 0 &&
               gguf_open_memory(&g, head, head_bytes, NULL) == 0)) goto done;
    list = read_words(g, "tokenizer.ggml.tokens");
    const gguf_kv *kinds = gguf_find(g, "tokenizer.ggml.token_type");
    if (!CHECK(list.n == n_vocab && kinds && (int)kinds->count == n_vocab)) goto done;
    int bad = 0;
    for (int id = 0; id < n_vocab; id++) {
        int64_t kind = 0;
        char byte[8];
        gguf_kv_int(&kind, kinds, (uint64_t)id);
        snprintf(byte, sizeof byte, "<0x%02X>", (unsigned)(id - v->n_special) & 255);
        if (id < v->n_special) bad += !str_is(list.text[id], v->special[id].text);
        else if (id < first) bad += kind != 6 || !str_is(list.text[id], byte);
        else if (id < n_vocab - SYNTH_SINGLES) bad += kind != 1 || n_character(list.text[id]) < 2;
        else bad += kind != 1 || n_character(list.text[id]) != 1;
    }
    CHECK_MSG(bad == 0, "%s: %d tokens are not what their places say", what, bad);
    CHECK_MSG(str_is(list.text[first], "\xE2\x96\x81\xE2\x96\x81"), "%s: spaces", what);
    CHECK(gguf_get_int(&eos, g, "tokenizer.ggml.eos_token_id", 0, n_vocab, NULL) == 1 &&
          eos == v->eos);
    check_scores(g, &list, first, what);
    if (v->kind == SYNTH_RANKS) check_merges(g, &list, first, what);
    else CHECK(!gguf_find(g, "tokenizer.ggml.merges"));
    CHECK(synth_vocab_write(w, v, first + SYNTH_SINGLES - 1, 0, NULL) == ERR_RANGE &&
          synth_vocab_write(w, v, first + SYNTH_SINGLES + SYNTH_PIECES_MAX + 1, 0, NULL) ==
              ERR_RANGE && synth_vocab_write(w, v, n_vocab, 1, NULL) == ERR_RANGE);
done:
    mem_free(list.text);
    gguf_close(g);
    gguf_writer_free(w);
}

/* ---- the engine's tokenizers read them ----------------------------------------------------- */

static void check_text(encoder *e, const tokenizer *t, const char *what)
{
    static const char text[] = "The quick brown fox (13 of them):\n\n"
                               "\tjumps, \xC3\xA9\xE2\x82\xAC!";
    id_list ids = { NULL, 0, 0 };
    char back[256];
    size_t n = 0;
    CHECK(encoder_encode(e, &ids, str_from(text), false, NULL) == 0);
    CHECK_MSG(ids.n > 4 && ids.n < sizeof text, "%s: %zu tokens for %zu bytes", what, ids.n,
              sizeof text - 1);
    for (size_t i = 0; i < ids.n; i++) {
        const str_view s = tokenizer_bytes(t, ids.ids[i], false);
        if (n + s.len < sizeof back) memcpy(back + n, s.ptr, s.len);
        n += s.len;
    }
    const size_t skip = n == sizeof text && back[0] == ' ';      /* SentencePiece adds a space */
    CHECK_MSG(n - skip == sizeof text - 1 && !memcmp(back + skip, text, n - skip),
              "%s: text does not come back", what);
    ids_free(&ids);
}

static void test_tokenizer(const synth_shape *s)
{
    const synth_vocab *v = s->family->vocab;
    gguf_writer *w = gguf_writer_create();
    const uint8_t *head;
    size_t head_bytes;
    gguf *g = NULL;
    tokenizer *t = NULL;
    encoder *e = NULL;
    id_list ids = { NULL, 0, 0 };
    err_ctx err = { 0, "" };

    if (!CHECK(w && synth_vocab_write(w, v, s->n_vocab, s->first_special, NULL) == 0 &&
               gguf_write_head(w, &head, &head_bytes, NULL) == 0 &&
               gguf_open_memory(&g, head, head_bytes, NULL) == 0)) goto done;
    const int rc = tokenizer_create(&t, g, &err);
    if (rc == ERR_UNSUPPORTED) {
        test_skip("a tokenizer that the engine does not know yet");
        goto done;
    }
    if (!CHECK_MSG(rc == 0 && encoder_create(&e, t, &err) == 0, "%s: %s", s->name, err.msg))
        goto done;
    CHECK(tokenizer_n_token(t) == s->n_vocab && tokenizer_eos(t) == s->first_special + v->eos &&
          tokenizer_is_stop(t, tokenizer_eos(t)));
    if (v->eot >= 0) CHECK(tokenizer_is_stop(t, s->first_special + v->eot));
    check_text(e, t, s->name);
    for (int i = 0; i < v->n_special; i++) {
        if (!v->special[i].text) continue;
        ids.n = 0;
        CHECK(encoder_encode(e, &ids, str_from(v->special[i].text), true, NULL) == 0);
        CHECK_MSG(ids.n == 1 && ids.ids[0] == s->first_special + i, "%s: %s is %zu ids", s->name,
                  v->special[i].text, ids.n);
    }
done:
    ids_free(&ids);
    encoder_free(e);
    tokenizer_free(t);
    gguf_close(g);
    gguf_writer_free(w);
}

/* ---- memory ------------------------------------------------------------------------------- */

static void test_no_memory(const synth_shape *s)
{
    synth_options o = synth_options_of(s);
    o.skew = 1;
    o.n_layer = 2;
    synth_check_no_memory(&o);
}

int main(int argc, char **argv)
{
    test_begin("synth_families", argc, argv);
    test_pieces_vocabulary(synth_llama.vocab, 32000, "mixtral");
    test_pieces_vocabulary(synth_gemma4.vocab, 262144, "gemma 4");
    const synth_shape *s;
    for (int i = 0; (s = synth_shape_at(i)); i += test_rounds(1, 2)) test_tokenizer(s);
    for (size_t i = 0; i < N_SMALL_SHAPES; i++) {
        if (test_is_long() || i % 2 == 0) test_no_memory(&small_shapes[i]);
        if (test_is_long() || i % 2 == 1) test_pieces(&small_shapes[i]);
        if (test_is_long() || i % 4 == 1) test_skew(&small_shapes[i], 0.5);
        if (test_is_long() || i % 4 == 2) test_skew(&small_shapes[i], 1.5);
        test_decode(&small_shapes[i], 0, 2);
        if (test_is_long() || i == 2) test_decode(&small_shapes[i], 1, 3);
    }
    return test_end();
}
