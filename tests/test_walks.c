/* test_walks.c - random walks of several conversations that share a runner: each has the bits of the
 * same conversation alone.
 *
 * A step is a pass of some conversations (single tokens, or drafts of which the wrong ones are
 * taken back), a piece of a prompt (on a CPU with passes between its layers), a snapshot, a rewind,
 * guesses of the model's next-token block, or a conversation that leaves and another that joins.
 * After each step the reference, a session with a runner of its own, does the same alone, one token
 * at a time where the pass had several; all logits that are drawn from are compared by the hash of
 * their log probabilities. CPU and GPU, real or simulated; experts in every place. */
#include "tests/test.h"

#include <string.h>

#include "engine/session/kept_inputs.h"
#include "engine/session/runner.h"
#include "engine/session/sampler.h"
#include "tests/cache_fixture.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"

enum { TALKS = 4, CTX = 256, CHUNK = 48, MOST_PIECE = 40, MOST_DRAFTS = 3, STEPS = 30 };

typedef struct walk {
    engine *e;
    session_options shared, alone;
    session *s[TALKS], *ref[TALKS];
    int busy;                            /* the one whose prompt is being computed; or -1 */
    sampler *smp;                        /* greedy: draws do not depend on order */
    token_scores scores;
    test_rng rng;
    int n_vocab;
    int n_guess;
} walk;

static int random_ids(int32_t *ids, int n, walk *w)
{
    for (int i = 0; i < n; i++) ids[i] = (int32_t)test_below(&w->rng, (uint32_t)w->n_vocab);
    return n;
}

/* Hash of what is drawn after token t of the session's row. */
static int draw(uint64_t *hash, walk *w, session *s, int t, err_ctx *err)
{
    int32_t id;
    memset(&w->scores, 0, sizeof w->scores);
    const int rc = runner_pick(s, t, &id, w->smp, err);
    *hash = str_hash((str_view){ (const char *)&w->scores, sizeof w->scores }) + (uint32_t)id;
    return rc;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* A row of the pass: of n tokens the first `right` stay. */
typedef struct row {
    int k, n, right;                     /* k: the conversation */
    int32_t ids[1 + MOST_DRAFTS];
    uint64_t hash[1 + MOST_DRAFTS];
} row;

static int take_row(row *r, walk *w, int k, int room, bool drafts)
{
    *r = (row){ .k = k, .n = 1 };
    if (drafts) r->n = min_int(room, 1 + (int)test_below(&w->rng, 1 + MOST_DRAFTS));
    r->right = 1 + (int)test_below(&w->rng, (uint32_t)r->n);
    return random_ids(r->ids, r->n, w);
}

/* The reference takes in the right tokens one by one. Returns 1 if logits differ. */
static int follow(walk *w, const row *r, err_ctx *err)
{
    int wrong = 0;
    for (int t = 0; t < r->right; t++) {
        uint64_t hash;
        int rc = session_take(w->ref[r->k], r->ids[t], err);
        if (rc == 0) rc = draw(&hash, w, w->ref[r->k], 0, err);
        if (rc < 0) return rc;
        wrong |= hash != r->hash[t];
    }
    return wrong;
}

static int pass(walk *w, err_ctx *err)
{
    const int from = (int)test_below(&w->rng, TALKS);
    row list[TALKS];
    runner_row rows[TALKS];
    runner *r = session_runner(w->s[0]);
    int most = min_int(1 + (int)test_below(&w->rng, KEPT_TOKENS), runner_most_taken(r));
    int n = 0, failed, wrong = 0;
    for (int i = 0; i < TALKS && most > 0; i++) {
        const int k = (from + i) % TALKS;
        session *s = w->s[k];
        if (k == w->busy || session_pos(s) + 2 + MOST_DRAFTS > CTX) continue;
        most -= take_row(&list[n], w, k, most, test_below(&w->rng, 2) > 0);
        rows[n] = (runner_row){ .s = s, .ids = list[n].ids, .n = list[n].n,
                                .keep = list[n].n > 1 && runner_keeps(r) };
        n++;
    }
    if (n == 0) return 0;
    int rc = runner_take(r, rows, n, &failed, err);
    for (int i = n; i-- > 0 && rc == 0;)
        for (int t = 0; t < list[i].n && rc == 0; t++)
            rc = draw(&list[i].hash[t], w, rows[i].s, t, err);
    for (int i = 0; i < n && rc == 0; i++) {
        const int end = session_pos(rows[i].s) - list[i].n + list[i].right;
        if (session_rewind(rows[i].s, end) != end)
            return err_set(err, ERR_IO, "cannot go back to token %d", end);
        rc = follow(w, &list[i], err);
        if (rc > 0) wrong = 1;
        rc = min_int(rc, 0);
    }
    return rc < 0 ? rc : wrong;
}

typedef struct inner { walk *w; int rc; err_ctx *err; } inner;

/* Between two layers of a prompt, where that is possible: a pass of the other conversations. */
static bool between_layers(void *ctx, double done, double all)
{
    inner *i = ctx;
    runner *r = session_runner(i->w->s[i->w->busy]);
    (void)done, (void)all;
    if (i->rc != 0 || test_below(&i->w->rng, 3) > 0 || !runner_inner_begin(r)) return true;
    i->rc = pass(i->w, i->err);
    runner_inner_end(r);
    return true;
}

static int piece(walk *w, int k, err_ctx *err)
{
    int32_t ids[MOST_PIECE];
    const int n = random_ids(ids, 2 + (int)test_below(&w->rng, MOST_PIECE - 1), w);
    inner i = { w, 0, err };
    if (session_pos(w->s[k]) + n >= CTX) return 0;
    w->busy = k;
    const int rc = session_eval(w->s[k], ids, n, NULL, 0, between_layers, &i, err);
    w->busy = -1;
    if (rc < 0 || i.rc != 0) return rc < 0 ? rc : i.rc;
    return session_eval(w->ref[k], ids, n, NULL, 0, NULL, NULL, err);
}

/* To a position that both can reach: drafts may have taken the memory of a window's oldest keys. */
static int rewind_both(walk *w, int k, err_ctx *err)
{
    const int pos = session_pos(w->ref[k]), wish = (int)test_below(&w->rng, (uint32_t)pos + 1);
    int to = session_rewind_target(w->ref[k], wish);
    if (session_rewind_target(w->s[k], to) != to) to = 0;
    if (session_rewind(w->ref[k], to) == to && session_rewind(w->s[k], to) == to) return 0;
    return err_set(err, ERR_IO, "rewound to %d and %d instead of %d", session_pos(w->s[k]),
                   session_pos(w->ref[k]), to);
}

static int join(walk *w, int k, err_ctx *err)
{
    int other = (k + 1) % TALKS;
    while (!w->s[other] && other != k) other = (other + 1) % TALKS;
    const int rc = w->s[other] ? session_create_sharing(&w->s[k], session_runner(w->s[other]), err)
                               : session_create(&w->s[k], w->e, &w->shared, err);
    return rc < 0 ? rc : session_create(&w->ref[k], w->e, &w->alone, err);
}

static void leave(walk *w, int k)
{
    session_free(w->s[k]);
    session_free(w->ref[k]);
    w->s[k] = w->ref[k] = NULL;
}

/* The reference guesses nothing: guesses leave no trace. */
static int look_ahead(walk *w, int k, err_ctx *err)
{
    int32_t next, guesses[MTP_DRAFTS];
    const int most = 1 + (int)test_below(&w->rng, MTP_DRAFTS);
    random_ids(&next, 1, w);
    const int n = runner_guess(w->s[k], guesses, most, next, err);
    w->n_guess += max_int(n, 0);
    for (int i = 0; i < n; i++)
        if (guesses[i] < 0 || guesses[i] >= w->n_vocab)
            return err_set(err, ERR_RANGE, "guess %d of %d is %d", i, n, guesses[i]);
    return min_int(n, 0);
}

/* < 0: a failure; 1: logits differ. */
static int step(walk *w, err_ctx *err)
{
    const int k = (int)test_below(&w->rng, TALKS);
    switch (test_below(&w->rng, 12)) {
    case 0:
    case 1: return piece(w, k, err);
    case 2:
        session_snapshot(w->s[k]);
        session_snapshot(w->ref[k]);
        return 0;
    case 3: return rewind_both(w, k, err);
    case 4:
        leave(w, k);
        return join(w, k, err);
    case 5:
    case 6: return look_ahead(w, k, err);
    default: return pass(w, err);
    }
}

/* ---- all ------------------------------------------------------------------------------------- */

static void test_place(const model *m, engine *e, const place *p, int index)
{
    static const kv_type types[] = { KV_F16, KV_Q8_0, KV_F32 };
    const sampler_options greedy = { .top_p = 1, .repeat_penalty = 1 };
    const int steps = test_is_long() ? 10 * STEPS : STEPS;
    walk w = { .e = e, .busy = -1, .n_vocab = m->hp.n_vocab, .rng = { 60 + (uint64_t)index } };
    err_ctx err = { 0 };
    int i = 0;
    if (p == &places[1] && index > 1 && !test_is_long()) return;
    w.shared = (session_options){ .ctx = CTX, .chunk = CHUNK, .kv = types[index % 3],
                                  .n_snapshot = 3, .n_version = TALKS, .n_sharing = TALKS - 1 };
    w.alone = w.shared;
    w.alone.n_version = w.alone.n_sharing = 0;
    int rc = sampler_create(&w.smp, &greedy, m->hp.n_vocab, CTX, &err);
    if (rc == 0) sampler_score(w.smp, &w.scores, TOKEN_SCORES_MOST);
    for (int k = 0; k < TALKS && rc == 0; k++) rc = join(&w, k, &err);
    while (rc == 0 && i < steps) {
        i++;
        rc = step(&w, &err);
    }
    CHECK_MSG(rc == 0, "%s, %s: step %d: %s", model_arch_name(m->hp.arch), p->name, i,
              rc > 0 ? "other logits than alone" : err.msg);
    CHECK_MSG(rc != 0 || (w.n_guess > 0) == m->hp.uses_mtp, "%s, %s: %d guesses",
              model_arch_name(m->hp.arch), p->name, w.n_guess);
    for (int k = 0; k < TALKS; k++) leave(&w, k);
    sampler_free(w.smp);
}

int main(int argc, char **argv)
{
    test_begin("walks", argc, argv);
    each_place(family_models, N_FAMILY_MODELS, 12, test_place);
    return test_end();
}
