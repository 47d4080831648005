/* test_drafts.c - drafts cannot change an answer: what is guessed, how many are tried, and answers
 * with right, wrong and mixed drafts against the same answers without.
 *
 * Answers run on the CPU and on a GPU, real or simulated, greedy and sampled, with penalties. */
#include "tests/test.h"

#include <string.h>

#include "cuda/gpu.h"
#include "engine/session/answer.h"
#include "engine/session/runner.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "tests/cache_fixture.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"

/* ---- guesses --------------------------------------------------------------------------------- */

static const struct {
    const char *text;                    /* a token for each letter */
    int most;
    const char *want, *why;
} lookups[] = {
    { "abcxyzabc", 7, "xyzabc", "all that is left" },
    { "abcxyzabc", 2, "xy", "as many as asked for" },
    { "bcxyzabc", 7, "", "two equal tokens are too few" },
    { "abcxabcyabc", 3, "yab", "the latest of equally long ones" },
    { "zabcxabcyzabc", 2, "xa", "a longer one before a later one" },
    { "aaaaaa", 4, "a", "a repetition that overlaps itself" },
    { "abc", 7, "", "nothing before" },
    { "a", 7, "", "one token" },
};

static void test_lookup(void)
{
    for (size_t i = 0; i < ARRAY_LEN(lookups); i++) {
        int32_t ids[64], got[DRAFTS_MOST];
        const int n = (int)strlen(lookups[i].text), n_want = (int)strlen(lookups[i].want);
        for (int k = 0; k < n; k++) ids[k] = lookups[i].text[k];
        const int found = draft_lookup(NULL, got, lookups[i].most, ids, n);
        bool same = found == n_want;
        for (int k = 0; k < n_want && same; k++) same = got[k] == lookups[i].want[k];
        CHECK_MSG(same, "%s: %d guesses: %s", lookups[i].text, found, lookups[i].why);
    }
}

/* ---- their number ---------------------------------------------------------------------------- */

static double chance(test_rng *rng) { return test_below(rng, 1 << 20) / (double)(1 << 20); }

/* Runs the control against drafts that are right with a probability, and passes that cost `each`
 * single tokens more for each draft. Returns tokens per unit of time. */
static double rate_of(double right, double each, test_rng *rng)
{
    draft_times times = { 0 };
    draft_control c = { .times = &times };
    double time = 0.0, tokens = 0.0;
    for (int i = 0; i < 4000; i++) {
        const int n = draft_control_choose(&c, DRAFTS_MOST);
        int n_right = 0;
        while (n_right < n && chance(rng) < right) n_right++;
        const double seconds = 1e-3 * (1.0 + each * n);
        draft_times_pass(&times, n, seconds);
        draft_control_note(&c, n, n_right);
        time += seconds;
        tokens += 1 + n_right;
    }
    return tokens / time * 1e-3;
}

static void test_control(void)
{
    static const struct { double right, each, least; const char *why; } rows[] = {
        { 0.0, 0.1, 0.98, "never right" }, { 0.0, 1.0, 0.97, "never right, and expensive" },
        { 0.95, 0.1, 2.5, "nearly always right, and cheap" },
        { 0.8, 0.1, 1.7, "often right" }, { 0.5, 0.2, 1.15, "a half right" },
        { 0.9, 0.95, 0.97, "a pass of two costs two" }, { 0.2, 0.5, 0.97, "seldom right" },
    };
    test_rng rng = { 5 };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const double rate = rate_of(rows[i].right, rows[i].each, &rng);
        CHECK_MSG(rate >= rows[i].least, "%s: %.3f tokens instead of one, wanted %.2f", rows[i].why,
                  rate, rows[i].least);
    }
}

/* ---- answers --------------------------------------------------------------------------------- */

enum { CTX = 160, PROMPT = 21, WORDS = 48 };

static tokenizer *tok;                   /* for all models: text does not matter here */

/* Guesses the answer that was given without drafts, with errors. */
typedef struct oracle {
    int32_t ids[CTX];
    int n;
    double right;
    test_rng rng;
} oracle;

static int guess(void *ctx, int32_t *out, int most, const int32_t *ids, int n)
{
    oracle *o = ctx;
    int found = 0;
    (void)ids;
    for (; found < most && n + found < o->n; found++)
        out[found] = chance(&o->rng) < o->right ? o->ids[n + found] : 7;
    return found;
}

/* Leaves all drafts to the model's next-token block. */
static int guess_nothing(void *ctx, int32_t *out, int most, const int32_t *ids, int n)
{
    (void)ctx, (void)out, (void)most, (void)ids, (void)n;
    return 0;
}

static const draft_source no_source = { NULL, guess_nothing };

typedef struct outcome {
    int32_t ids[CTX];                    /* of the session, and the last token drawn */
    int n;
    answer_stats stats;
} outcome;

static int last_token(void *ctx, int32_t id, bool in_text)
{
    (void)in_text;
    *(int32_t *)ctx = id;
    return 0;
}

/* Each conversation has a prompt of its own. */
static void fill_prompt(int32_t *prompt, int talk)
{
    for (int i = 0; i < PROMPT; i++) prompt[i] = 11 + 3 * (i % 5) + talk;
}

static int run_answer(outcome *out, engine *e, const model *m, kv_type kv,
                      const sampler_options *smp_options, int talk, const draft_source *drafts,
                      int n_draft, err_ctx *err)
{
    const session_options so = { .ctx = CTX, .chunk = 32, .kv = kv, .n_version = 1 };
    const answer_options ao = { .tok = tok, .max_tokens = WORDS, .drafts = drafts,
                                .n_draft = n_draft };
    int32_t prompt[PROMPT];
    session *s = NULL;
    sampler *smp = NULL;
    int32_t last = -1;
    const answer_hooks hooks = { .ctx = &last, .token = last_token };
    fill_prompt(prompt, talk);
    int rc = session_create(&s, e, &so, err);
    if (rc == 0) rc = sampler_create(&smp, smp_options, m->hp.n_vocab, CTX, err);
    if (rc == 0) rc = answer_run(&out->stats, s, smp, prompt, PROMPT, &ao, &hooks, err);
    if (rc == 0) {
        out->n = session_pos(s);
        memcpy(out->ids, session_ids(s), (size_t)out->n * sizeof *out->ids);
        out->ids[out->n++] = last;
    }
    sampler_free(smp);
    session_free(s);
    return rc;
}

static bool is_same(const outcome *a, const outcome *b)
{
    return a->n == b->n && memcmp(a->ids, b->ids, (size_t)a->n * sizeof *a->ids) == 0 &&
           a->stats.n_answer == b->stats.n_answer && a->stats.end == b->stats.end;
}

static void test_place(const model *m, engine *e, const place *p, int index)
{
    static const kv_type types[] = { KV_F16, KV_F32, KV_Q8_0 };
    static const double rights[] = { 0.0, 0.6, 1.0 };
    test_rng rng = { 40 + (uint64_t)index };
    oracle o;
    const draft_source oracles = { &o, guess };
    err_ctx err = { 0 };
    int rc = 0;
    if (p == &places[1] && index > 1 && !test_is_long()) return;
    CHECK(m->hp.n_vocab <= tokenizer_n_token(tok));
    const int n_try = m->hp.uses_mtp ? 6 : 4;            /* oracles, lookup, the model's block */
    for (int sampled = 0; sampled < 2 && rc == 0; sampled++) {
        const sampler_options so = { .temperature = sampled ? 0.9 : 0.0, .top_p = 0.9, .seed = 3,
                                     .repeat_penalty = sampled ? 1.05 : 1.0,
                                     .penalty_window = -1 };
        static outcome plain, drafted;
        int n_right = 0;
        rc = run_answer(&plain, e, m, types[index % 3], &so, 0, NULL, 0, &err);
        memcpy(o.ids, plain.ids, sizeof o.ids);
        o.n = plain.n;
        o.rng = rng;
        for (int i = 0; i < n_try && rc == 0; i++) {
            static const char *const names[] = { "an oracle", "an oracle", "an oracle", "lookup",
                                                 "the block", "the block" };
            const uint32_t most = i < 3 ? DRAFTS_MOST : MTP_DRAFTS;
            const int n_draft = i == 3 ? 0 : 1 + (int)test_below(&rng, most);
            o.right = rights[i % 3];
            rc = run_answer(&drafted, e, m, types[index % 3], &so, 0,
                            i < 3 ? &oracles : i == 3 ? &draft_by_lookup : &no_source, n_draft,
                            &err);
            CHECK_MSG(rc == 0 && is_same(&plain, &drafted), "%s, %s: %s, %d drafts of %s: another "
                      "answer: %s", model_arch_name(m->hp.arch), p->name,
                      sampled ? "sampled" : "greedy", n_draft, names[i], err.msg);
            if (i == 2) n_right = drafted.stats.n_right;
            CHECK_MSG(i < 4 || drafted.stats.n_draft > WORDS / 3, "%s, %s: %d drafts of the block",
                      model_arch_name(m->hp.arch), p->name, drafted.stats.n_draft);
        }
        CHECK_MSG(rc < 0 || n_right > WORDS / 3, "%s, %s: %d right drafts",
                  model_arch_name(m->hp.arch), p->name, n_right);
    }
    CHECK_MSG(rc == 0, "%s, %s: %s", model_arch_name(m->hp.arch), p->name, err.msg);
}

/* ---- in company ------------------------------------------------------------------------------ */

enum { TALKS = 3 };

typedef struct talk {
    session *s;
    sampler *smp;
    running_answer *a;
    int32_t prompt[PROMPT];
    outcome plain;                       /* alone, without drafts */
    oracle o;
    draft_source drafts;
} talk;

/* The last one's drafts come from lookup, or where the model has a next-token block from it: once
 * the others have ended, because the block does not draft in company. */
static int open_talk(talk *t, int i, session *first, engine *e, const session_options *so,
                     const sampler_options *smp_options, const model_hparams *hp, err_ctx *err)
{
    const bool by_block = i == TALKS - 1 && hp->uses_mtp;
    const answer_options ao = { .tok = tok, .max_tokens = WORDS, .drafts = &t->drafts,
                                .n_draft = by_block ? MTP_DRAFTS : 0 };
    fill_prompt(t->prompt, i);
    t->drafts = i < TALKS - 1 ? (draft_source){ &t->o, guess } : by_block ? no_source
                                                                          : draft_by_lookup;
    int rc = first ? session_create_sharing(&t->s, session_runner(first), err)
                   : session_create(&t->s, e, so, err);
    if (rc == 0) rc = sampler_create(&t->smp, smp_options, hp->n_vocab, CTX, err);
    if (rc == 0) rc = answer_open(&t->a, t->s, t->smp, t->prompt, PROMPT, &ao, NULL, err);
    while (rc >= 0 && !answer_draws(t->a)) rc = answer_step(t->a, err);
    return rc < 0 ? rc : 0;
}

/* Steps of all that draw, until none does. */
static int step_talks(talk *talks, test_rng *rng, err_ctx *err)
{
    for (;;) {
        running_answer *list[TALKS];
        err_ctx why[TALKS];
        int rc[TALKS], n = 0;
        for (int i = 0; i < TALKS; i++)
            if (answer_draws(talks[i].a)) list[n++] = talks[i].a;
        if (n == 0) return 0;
        answer_step_together(list, n, (int)test_below(rng, 1 + DRAFTS_MOST), rc, why);
        for (int i = 0; i < n; i++)
            if (rc[i] < 0) {
                *err = why[i];
                return rc[i];
            }
    }
}

/* Answers in one pass, each with drafts of its own, are those that each gives alone. */
static void test_company(const model *m, engine *e, const place *p, int index)
{
    const sampler_options so = { .temperature = index % 2 ? 0.9 : 0.0, .top_p = 0.9, .seed = 4,
                                 .repeat_penalty = 1.05, .penalty_window = -1 };
    const session_options options = { .ctx = CTX, .chunk = 32, .kv = KV_F16,
                                      .n_sharing = TALKS - 1, .n_version = 1 + index % TALKS };
    static talk talks[TALKS];
    test_rng rng = { 70 + (uint64_t)index };
    err_ctx err = { 0 };
    int rc = 0, n_right = 0;
    if (p == &places[1] && index > 1 && !test_is_long()) return;
    memset(talks, 0, sizeof talks);
    for (int i = 0; i < TALKS && rc == 0; i++) {
        talk *t = &talks[i];
        rc = run_answer(&t->plain, e, m, KV_F16, &so, i, NULL, 0, &err);
        memcpy(t->o.ids, t->plain.ids, sizeof t->o.ids);
        t->o.n = t->plain.n;
        t->o.rng = rng;
        t->o.right = i == 0 ? 1.0 : 0.7;
    }
    for (int i = 0; i < TALKS && rc == 0; i++)
        rc = open_talk(&talks[i], i, talks[0].s, e, &options, &so, &m->hp, &err);
    if (rc == 0) rc = step_talks(talks, &rng, &err);
    for (int i = 0; i < TALKS && rc == 0; i++) {
        const talk *t = &talks[i];
        const int n = t->plain.n - 1;    /* the last token is not in the session */
        n_right += answer_so_far(t->a)->n_right;
        CHECK_MSG(session_pos(t->s) == n && session_common(t->s, t->plain.ids, n) == n &&
                  answer_so_far(t->a)->n_answer == t->plain.stats.n_answer,
                  "%s, %s: conversation %d says something else", model_arch_name(m->hp.arch),
                  p->name, i);
    }
    CHECK_MSG(rc == 0 && n_right > WORDS / 4, "%s, %s: %d right drafts in company; %s",
              model_arch_name(m->hp.arch), p->name, n_right, rc < 0 ? err.msg : "no error");
    for (int i = TALKS; i-- > 0;) {
        answer_free(talks[i].a);
        sampler_free(talks[i].smp);
        session_free(talks[i].s);
    }
}

/* If there is no time, one of the two with each model at each place. */
static void test_all(const model *m, engine *e, const place *p, int index)
{
    const bool all = test_is_long() || has_real_gpu();
    if (all || index % 2 == 0) test_place(m, e, p, index);
    if (all || index % 2 == 1) test_company(m, e, p, index);
}

int main(int argc, char **argv)
{
    gguf *g = NULL;
    err_ctx err = { 0 };
    test_begin("drafts", argc, argv);
    test_lookup();
    test_control();
    if (CHECK_MSG(gguf_open(&g, "tests/models/demo-gptoss-MXFP4.gguf", &err) == 0 &&
                  tokenizer_create(&tok, g, &err) == 0, "%s", err.msg))
        each_place(family_models, N_FAMILY_MODELS, 12, test_all);
    tokenizer_free(tok);
    gguf_close(g);
    return test_end();
}
