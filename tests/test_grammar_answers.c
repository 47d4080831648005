/* test_grammar_answers.c - answers of a given form, from models that talk nonsense: every answer of
 * both demo models has its form, reasoning or not; the rest of the sampler's work stays as it was.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session/answer.h"
#include "tests/make_schema.h"
#include "tests/model_fixture.h"

enum { CTX = 4096 };

static const char *const models[] = {
    "tests/models/demo-qwen3next-mtp.gguf", "tests/models/demo-gptoss-MXFP4.gguf",
};

typedef struct fixture {
    model_fixture f;
    token_trie *v;
} fixture;

static bool fixture_open(fixture *r, const char *path)
{
    err_ctx err = { 0 };
    const engine_options eo = { .threads = test_n_thread(2) };
    const session_options so = { .ctx = CTX, .chunk = 64, .kv = KV_F16, .n_snapshot = 1,
                                 .n_version = 1 };
    *r = (fixture){ 0 };
    return model_fixture_open(&r->f, path) && model_fixture_chat(&r->f) &&
           model_fixture_run(&r->f, &eo, &so) &&
           CHECK_MSG(token_trie_create(&r->v, r->f.t, false, &err) == 0, "%s: %s", path, err.msg);
}

static void fixture_close(fixture *r)
{
    token_trie_free(r->v);
    model_fixture_close(&r->f);
}

typedef struct said { textbuf answer, reasoning; answer_stats stats; } said;

/* How to draw: greedily or with penalties, and with which drafts. */
typedef struct manner { bool greedy, penalised; const draft_source *drafts; int n_draft; } manner;

static int on_text(void *ctx, const chat_event *ev)
{
    said *to = ctx;
    if (ev->kind == CHAT_ANSWER) textbuf_put(&to->answer, ev->text);
    if (ev->kind == CHAT_REASONING) textbuf_put(&to->reasoning, ev->text);
    return 0;
}

static void said_free(said *s)
{
    textbuf_free(&s->answer);
    textbuf_free(&s->reasoning);
}

/* The form was the answer's, not the sampler's. */
static void check_free(sampler *smp, int n_vocab)
{
    float *logits = test_alloc((size_t)n_vocab, sizeof *logits);
    int32_t id = -1;
    for (int i = 0; i < n_vocab; i++) logits[i] = i == 7 ? 1000.0f : 0.0f;
    CHECK(sampler_pick(&id, smp, logits, NULL) == 0 && id == 7);
    mem_free(logits);
}

/* One answer of that form; raw: without the chat format. */
static answer_end ask_so(said *out, const fixture *r, const grammar *g, uint64_t seed,
                         int max_tokens, bool raw, const manner *how)
{
    const chat_message message = { .role = CHAT_USER, .content = str_from("Tell me a story.") };
    const chat_request req = { .messages = &message, .n_message = 1 };
    const answer_hooks hooks = { .ctx = out, .text = on_text };
    const int n_vocab = session_vocab(r->f.s);
    sampler_options so;
    id_list ids = { 0 };
    sampler *smp = NULL;
    grammar_mask *m = NULL;
    err_ctx err = { 0 };
    *out = (said){ .stats.end = ANSWER_INTERRUPTED };
    int rc = sampler_defaults(&so, r->f.m, &err);
    so.seed = seed;
    if (how->greedy) so.temperature = 0;
    if (how->penalised) so.repeat_penalty = 1.1, so.frequency_penalty = 0.2;
    if (rc == 0) rc = sampler_create(&smp, &so, n_vocab, CTX, &err);
    if (rc == 0) rc = grammar_mask_create(&m, g, r->v, n_vocab, &err);
    if (rc == 0)
        rc = raw ? encoder_encode(r->f.enc, &ids, str_from("The list is "), false, &err)
                 : chat_render(&ids, r->f.c, r->f.enc, &req, &err);
    const answer_options ao = { .tok = r->f.t, .format = raw ? NULL : r->f.c, .form = m,
                                .req = raw ? NULL : &req, .max_tokens = max_tokens,
                                .drafts = how->drafts, .n_draft = how->n_draft };
    if (rc == 0) rc = answer_run(&out->stats, r->f.s, smp, ids.ids, (int)ids.n, &ao, &hooks, &err);
    if (CHECK_MSG(rc == 0, "seed %d: %s", (int)seed, err.msg)) check_free(smp, n_vocab);
    grammar_mask_free(m);
    sampler_free(smp);
    ids_free(&ids);
    return out->stats.end;
}

static answer_end ask(said *out, const fixture *r, const grammar *g, uint64_t seed, int max_tokens,
                      bool raw)
{
    return ask_so(out, r, g, seed, max_tokens, raw, &(manner){ .n_draft = 0 });
}

/* Is the text, up to an incomplete character at its end, a beginning of the form? */
static bool is_beginning(const grammar *g, str_view text)
{
    grammar_run *run;
    err_ctx err;
    if (text.len >= 3 && memcmp(text.ptr + text.len - 3, "\xEF\xBF\xBD", 3) == 0) text.len -= 3;
    if (grammar_run_create(&run, g, &err) < 0) return false;
    grammar_state at = grammar_run_start(run);
    for (size_t i = 0; i < text.len; i++) at = grammar_run_step(run, at, (uint8_t)text.ptr[i]);
    grammar_run_free(run);
    return at >= 0;
}

/* SCHEMAS=100 for as many; 0: a handful. */
static int schemas_wanted(void)
{
    const char *want = getenv("SCHEMAS");
    return want ? atoi(want) : 0;
}

static void test_schemas(const fixture *r, const char *name)
{
    const bool many = schemas_wanted() > 0;
    const int n = many ? schemas_wanted() : test_rounds(12, 2), every = min_int(n, 5);
    test_rng rng = { 11 };
    int n_done = 0;
    for (int i = 0; i < n;) {
        json_t *schema = schema_random(&rng);
        err_ctx err = { 0 };
        grammar *g;
        said s;
        schema_widen(&rng, schema);
        if (grammar_from_schema(&g, schema, true, &err) < 0) {
            json_decref(schema);
            continue;
        }
        const int most = many ? 3500 : i % every == every - 1 ? 60 : 1000;
        const answer_end end = ask(&s, r, g, (uint64_t)i, most, false);
        json_t *v = json_loadb(s.answer.ptr ? s.answer.ptr : "", s.answer.len, JSON_DECODE_ANY,
                               NULL);
        char *shown = json_dumps(schema, JSON_COMPACT);
        if (end == ANSWER_STOP)
            CHECK_MSG(v && schema_valid(schema, v, schema, true), "%s, %s: %.*s", name, shown,
                      (int)s.answer.len, s.answer.ptr);
        else
            CHECK_MSG(end == ANSWER_LENGTH && is_beginning(g, textbuf_view(&s.answer)),
                      "%s, %s: ended by %s: %.*s", name, shown, answer_end_name(end),
                      (int)s.answer.len, s.answer.ptr ? s.answer.ptr : "");
        n_done += end == ANSWER_STOP;
        free(shown);
        json_decref(v);
        said_free(&s);
        grammar_free(g);
        json_decref(schema);
        i++;
    }
    CHECK_MSG(n_done >= n * 2 / 3, "%s: only %d answers came to their end", name, n_done);
    if (many)
        printf("%s: %d schemas, %d answers valid, %d after 3500 tokens the beginning of one\n",
               name, n, n_done, n - n_done);
}

static bool same_answer(const said *a, const said *b)
{
    const str_view x = textbuf_view(&a->answer), y = textbuf_view(&b->answer);
    return str_eq(x, y) && a->stats.end == b->stats.end &&
           a->stats.n_answer == b->stats.n_answer;
}

/* Text without a choice is taken in together, and the answer stays the same. */
static void test_drafted(const fixture *r, const char *name)
{
    const int n = schemas_wanted() > 0 ? schemas_wanted() : test_rounds(100, 6);
    test_rng rng = { 23 };
    int n_draft = 0, n_right = 0;
    for (int i = 0; i < n;) {
        json_t *schema = schema_random(&rng);
        const int fixed[] = { DRAFTS_MOST, 0, 2 };       /* 0: chosen by time */
        manner how = { .greedy = i % 2, .penalised = i / 2 % 2 };
        err_ctx err = { 0 };
        grammar *g;
        said plain, drafted;
        if (grammar_from_schema(&g, schema, true, &err) == 0) {
            const int most = 20 + (int)test_below(&rng, 100);
            const bool raw = i % 5 == 0;
            ask_so(&plain, r, g, (uint64_t)i, most, raw, &how);
            how.drafts = &draft_by_lookup;
            how.n_draft = fixed[i % 3];
            ask_so(&drafted, r, g, (uint64_t)i, most, raw, &how);
            CHECK_MSG(same_answer(&plain, &drafted), "%s, seed %d: '%.*s' without drafts, '%.*s' "
                      "with", name, i, (int)plain.answer.len, plain.answer.ptr,
                      (int)drafted.answer.len, drafted.answer.ptr);
            n_draft += drafted.stats.n_draft;
            n_right += drafted.stats.n_right;
            said_free(&plain);
            said_free(&drafted);
            grammar_free(g);
            i++;
        }
        json_decref(schema);
    }
    CHECK_MSG(n_right > 5 * n && 2 * n_right > n_draft, "%s: %d drafts, %d of them right", name,
              n_draft, n_right);
    if (schemas_wanted() > 0)
        printf("%s: %d schemas, %d drafts, %d of them right\n", name, n, n_draft, n_right);
}

/* A form that leaves no choice, with the chat format and without. */
static void test_forced(const fixture *r, const char *name)
{
    err_ctx err = { 0 };
    grammar *g;
    said s;
    CHECK(grammar_from_gbnf(&g, str_from("root ::= \"y\xC3\xA9s\" \", sir\"?"), &err) == 0);
    for (int raw = 0; raw < 2; raw++) {
        const answer_end end = ask(&s, r, g, 3, 300, raw);
        const str_view text = textbuf_view(&s.answer);
        CHECK_MSG(end != ANSWER_STOP || str_is(text, "y\xC3\xA9s") ||
                  str_is(text, "y\xC3\xA9s, sir"), "%s, raw %d: %.*s (%s)", name, raw,
                  (int)text.len, text.ptr, answer_end_name(end));
        if (raw) CHECK(end == ANSWER_STOP);
        said_free(&s);
    }
    grammar_free(g);
}

/* Reasoning of the harmony format is still there, and never the answer's form. */
static void test_reasons(const fixture *r)
{
    err_ctx err = { 0 };
    grammar *g;
    int n_reasoned = 0;
    CHECK(grammar_from_gbnf(&g, str_from("root ::= \"{}\""), &err) == 0);
    for (uint64_t seed = 0; seed < (uint64_t)test_rounds(12, 1); seed++) {
        said s;
        const answer_end end = ask(&s, r, g, seed, 400, false);
        n_reasoned += s.reasoning.len > 20;
        CHECK_MSG(end == ANSWER_STOP ? str_is(textbuf_view(&s.answer), "{}") : s.answer.len <= 2,
                  "seed %d: %.*s", (int)seed, (int)s.answer.len, s.answer.ptr);
        said_free(&s);
    }
    CHECK_MSG(n_reasoned > 0, "reasoning is not free");
    grammar_free(g);
}

/* What is not allowed is never picked. */
static void test_allow(void)
{
    const sampler_options o = { .temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5 };
    uint64_t bits[3] = { 0 };
    float logits[150];
    sampler *s;
    err_ctx err = { 0 };
    int32_t id = -1;
    for (int i = 0; i < 150; i++) logits[i] = (float)(i % 7);
    if (!CHECK(sampler_create(&s, &o, 150, 0, &err) == 0)) return;
    bits[0] = (uint64_t)1 << 63;
    bits[2] = 1;
    sampler_allow(s, bits);
    int seen[150] = { 0 };
    for (int i = 0; i < 500; i++)
        if (sampler_pick(&id, s, logits, &err) == 0) seen[id]++;
    CHECK_MSG(seen[63] > 0 && seen[128] > 0 && seen[63] + seen[128] == 500, "%d, %d", seen[63],
              seen[128]);
    bits[0] = bits[2] = 0;
    CHECK(sampler_pick(&id, s, logits, &err) == ERR_RANGE);
    sampler_allow(s, NULL);
    for (int i = 0; i < 500; i++)
        if (sampler_pick(&id, s, logits, &err) == 0) seen[id]++;
    CHECK(seen[6] > 0);
    sampler_free(s);
}

int main(int argc, char **argv)
{
    test_begin("grammar_answers", argc, argv);
    test_allow();
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        fixture r;
        if (fixture_open(&r, models[i])) {
            const bool harmony = chat_format_of(r.f.c) == CHAT_HARMONY;
            if (test_is_long() || !harmony) test_schemas(&r, models[i]);
            test_forced(&r, models[i]);
            test_drafted(&r, models[i]);
            if (harmony) test_reasons(&r);
        }
        fixture_close(&r);
    }
    return test_end();
}
