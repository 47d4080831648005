/* test_rows.c - a batch of rows of several conversations gives each the bits that it gets alone.
 *
 * Each conversation is a list of pieces of 1 to MOST tokens. A session with a runner of its own
 * takes them in one by one. Then sessions that share a runner take the same pieces in, several
 * sessions in a batch, at positions that differ. In a second run each draws its tokens itself, in
 * passes of one token of each of some sessions. All families, on the CPU and on a GPU, real or
 * simulated. */
#include "tests/test.h"

#include <string.h>

#include "cuda/gpu.h"
#include "engine/session/runner.h"
#include "tests/cache_fixture.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"

enum { TALKS = 8, PIECES = 7, MOST = 7, FIRST = 70, CTX = FIRST + PIECES * MOST, CHUNK = 40 };

typedef struct piece {
    int32_t ids[FIRST];
    int n, n_logits;
    uint64_t want;                       /* hash of its logits */
} piece;

/* The first piece is a prompt, which the DeltaNet computes in chunks and which fills windows. */
static void make_talk(piece *talk, test_rng *rng, int talk_number, int n_vocab)
{
    for (int i = 0; i < PIECES; i++) {
        piece *p = &talk[i];
        const bool single = test_below(rng, 3) > 0;
        p->n = i == 0 ? 1 + 9 * talk_number % FIRST
                      : single ? 1 : 1 + (int)test_below(rng, MOST);
        p->n_logits = (int)test_below(rng, 4) > 0 ? 1 : (int)test_below(rng, (uint32_t)p->n + 1);
        for (int t = 0; t < p->n; t++) p->ids[t] = (int32_t)test_below(rng, (uint32_t)n_vocab);
    }
}

static uint64_t hash_of(const float *logits, int n_row, int n_vocab)
{
    return str_hash((str_view){ (const char *)logits,
                                (size_t)n_row * (size_t)n_vocab * sizeof *logits });
}

static int play_alone(piece *talk, engine *e, const session_options *so, float *logits,
                      err_ctx *err)
{
    session *s;
    int rc = session_create(&s, e, so, err);
    for (int i = 0; i < PIECES && rc == 0; i++) {
        piece *p = &talk[i];
        rc = session_eval(s, p->ids, p->n, logits, p->n_logits, NULL, NULL, err);
        if (rc == 0) p->want = hash_of(logits, p->n_logits, session_vocab(s));
    }
    session_free(s);
    return rc;
}

/* One batch of some sessions' next pieces, in random order. Returns the rows that differ. */
static int play_together(session **s, piece talks[][PIECES], int *at, test_rng *rng, float *logits,
                         err_ctx *err)
{
    const int n_vocab = session_vocab(s[0]), most = 1 + (int)test_below(rng, TALKS);
    runner_row rows[TALKS];
    const piece *pieces[TALKS];
    int n_row = 0, n = 0, wrong = 0;
    for (int i = 0, from = (int)test_below(rng, TALKS); i < TALKS && n_row < most; i++) {
        const int k = (from + 3 * i) % TALKS;
        if (at[k] == PIECES || n + talks[k][at[k]].n > CHUNK) continue;
        const piece *p = pieces[n_row] = &talks[k][at[k]++];
        rows[n_row++] = (runner_row){ .s = s[k], .ids = p->ids, .n = p->n,
                                      .n_logits = p->n_logits };
        n += p->n;
    }
    if (runner_eval(session_runner(s[0]), rows, n_row, logits, err) < 0) return -1;
    for (int i = 0; i < n_row; i++) {
        wrong += hash_of(logits, rows[i].n_logits, n_vocab) != pieces[i]->want;
        logits += (size_t)rows[i].n_logits * (size_t)n_vocab;
    }
    return wrong;
}

static bool all_done(const int *at)
{
    for (int i = 0; i < TALKS; i++)
        if (at[i] < PIECES) return false;
    return true;
}

static void test_talks(const model *m, engine *e, const char *name, kv_type kv, test_rng *rng)
{
    const session_options so = { .ctx = CTX, .chunk = CHUNK, .kv = kv, .n_sharing = TALKS - 1 };
    float *logits = test_alloc(FIRST * (size_t)m->hp.n_vocab, sizeof *logits);
    static piece talks[TALKS][PIECES];
    session *s[TALKS] = { 0 };
    int at[TALKS] = { 0 }, rc = 0, wrong = 0;
    err_ctx err = { 0 };
    for (int i = 0; i < TALKS && rc == 0; i++) {
        make_talk(talks[i], rng, i, m->hp.n_vocab);
        rc = play_alone(talks[i], e, &so, logits, &err);
    }
    for (int i = 0; i < TALKS && rc == 0; i++) {
        rc = i == 0 ? session_create(&s[0], e, &so, &err)
                    : session_create_sharing(&s[i], session_runner(s[0]), &err);
        const piece *prompt = &talks[i][at[i]++];
        if (rc == 0) rc = session_eval(s[i], prompt->ids, prompt->n, NULL, 0, NULL, NULL, &err);
    }
    while (rc == 0 && wrong >= 0 && !all_done(at)) {
        const int bad = play_together(s, talks, at, rng, logits, &err);
        wrong = bad < 0 ? -1 : wrong + bad;
    }
    CHECK_MSG(rc == 0 && wrong == 0, "%s, %s: %d rows differ: %s", model_arch_name(m->hp.arch),
              name, wrong, err.msg);
    for (int i = TALKS; i-- > 0;) session_free(s[i]);
    mem_free(logits);
}

/* ---- passes: a token of each of several conversations, and what is drawn after it ------------- */

enum { DRAWERS = 21, TOKENS = 7 };      /* more conversations than a kernel for few tokens has */

/* Draws begin after a prompt; each token that is drawn is taken in next. */
typedef struct draws {
    session *s;
    sampler *smp;
    token_scores scores;                 /* of the last draw, for every second conversation: these
                                          * read the logits in RAM, the others in VRAM */
    int n;
    int32_t ids[1 + TOKENS], want[1 + TOKENS];
    uint64_t score[1 + TOKENS];          /* hash of the scores */
} draws;

static int begin_draws(draws *d, int number, runner *r, engine *e, const session_options *so,
                       err_ctx *err)
{
    const sampler_options o = { .temperature = number % 3 ? 0.8 : 0.0, .top_p = 0.95,
                                .repeat_penalty = 1.1, .penalty_window = -1,
                                .seed = (uint64_t)number };
    int32_t prompt[FIRST];
    const int n = 1 + 9 * number % FIRST;
    int rc = r ? session_create_sharing(&d->s, r, err) : session_create(&d->s, e, so, err);
    if (rc == 0) rc = sampler_create(&d->smp, &o, session_vocab(d->s), CTX, err);
    if (rc < 0) return rc;
    if (number % 2) sampler_score(d->smp, &d->scores, TOKEN_SCORES_MOST);
    for (int i = 0; i < n; i++) prompt[i] = (7 * i + 31 * number) % session_vocab(d->s);
    d->n = 0;
    d->ids[0] = number;
    return session_eval(d->s, prompt, n, NULL, 0, NULL, NULL, err);
}

static void end_draws(draws *d)
{
    sampler_free(d->smp);
    session_free(d->s);
    d->smp = NULL;
    d->s = NULL;
}

static int draw_next(draws *d, uint64_t *score, err_ctx *err)
{
    int32_t id;
    const int rc = session_pick(d->s, &id, d->smp, err);
    if (rc < 0) return rc;
    sampler_accept(d->smp, id);
    *score = str_hash((str_view){ (const char *)&d->scores, sizeof d->scores });
    d->ids[++d->n] = id;
    return 0;
}

static int draw_alone(draws *d, int number, engine *e, const session_options *so, err_ctx *err)
{
    int rc = begin_draws(d, number, NULL, e, so, err);
    while (rc == 0 && d->n < TOKENS) {
        if ((rc = session_take(d->s, d->ids[d->n], err)) == 0)
            rc = draw_next(d, &d->score[d->n + 1], err);
        if (rc == 0) d->want[d->n] = d->ids[d->n];
    }
    end_draws(d);
    return rc;
}

/* Some conversations that are not done, in one pass; then their draws, in another order. Returns
 * the draws that differ. */
static int pass_together(draws *all, int n_all, test_rng *rng, err_ctx *err)
{
    const int limit = min_int(n_all, runner_most_taken(session_runner(all[0].s)));
    const int most = 1 + (int)test_below(rng, (uint32_t)limit);
    runner_row rows[DRAWERS];
    draws *of[DRAWERS];
    int n = 0, wrong = 0, failed;
    for (int i = 0, from = (int)test_below(rng, (uint32_t)n_all); i < n_all && n < most; i++) {
        draws *d = &all[(from + 5 * i) % n_all];
        if (d->n == TOKENS) continue;
        rows[n] = (runner_row){ .s = d->s, .ids = &d->ids[d->n], .n = 1 };
        of[n++] = d;
    }
    if (n == 0) return 0;
    if (runner_take(session_runner(rows[0].s), rows, n, &failed, err) < 0) return -1;
    for (int i = 0, first = (int)test_below(rng, (uint32_t)n); i < n; i++) {
        draws *d = of[(first + i) % n];
        uint64_t score;
        if (draw_next(d, &score, err) < 0) return -1;
        wrong += d->ids[d->n] != d->want[d->n] || score != d->score[d->n];
    }
    return wrong;
}

/* n: conversations; not a multiple of 5. */
static void test_passes(const model *m, engine *e, const char *name, kv_type kv, int n,
                        test_rng *rng)
{
    const session_options so = { .ctx = CTX, .chunk = CHUNK, .kv = kv, .n_sharing = n - 1 };
    static draws all[DRAWERS];
    int rc = 0, wrong = 0, bad = 0, left = n * TOKENS;
    err_ctx err = { 0 };
    for (int i = 0; i < n && rc == 0; i++) rc = draw_alone(&all[i], i, e, &so, &err);
    for (int i = 0; i < n && rc == 0; i++)
        rc = begin_draws(&all[i], i, i == 0 ? NULL : session_runner(all[0].s), e, &so, &err);
    while (rc == 0 && bad >= 0 && left > 0) {
        bad = pass_together(all, n, rng, &err);
        wrong += bad;
        left = 0;
        for (int i = 0; i < n; i++) left += TOKENS - all[i].n;
    }
    CHECK_MSG(rc == 0 && bad >= 0 && wrong == 0, "%s, %s: %d of %d draws differ: %s",
              model_arch_name(m->hp.arch), name, wrong, n * TOKENS, err.msg);
    for (int i = n; i-- > 0;) end_draws(&all[i]);
}

/* The second place is slow: one model there is enough. */
static void test_place(const model *m, engine *e, const place *p, int index)
{
    static const kv_type types[] = { KV_F16, KV_F32, KV_Q8_0 };
    test_rng rng = { 17 + (uint64_t)index };
    if (p == &places[1] && index > 1 && !test_is_long()) return;
    test_talks(m, e, p->name, types[index % 3], &rng);
    test_passes(m, e, p->name, types[(index + 1) % 3],
                index % 3 == 0 || test_is_long() ? DRAWERS : 9, &rng);
}

int main(int argc, char **argv)
{
    test_begin("rows", argc, argv);
    each_place(family_models, N_FAMILY_MODELS, 12, test_place);
    return test_end();
}
