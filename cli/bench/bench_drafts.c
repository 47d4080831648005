/* bench_drafts.c - greedy decoding with drafts of a known quality.
 *
 * The oracle knows the answer from a run without drafts and spoils a share of it, so any share of
 * right drafts can be measured, also with random weights. */
#include "cli/bench/bench_drafts.h"

#include <stdlib.h>
#include <string.h>

#include "cli/console.h"
#include "cli/view/median_spread.h"
#include "engine/session/runner.h"
#include "engine/session/sampler.h"

int bench_draft_read(bench_draft *out, const char *text)
{
    char shown[64], *end;
    *out = (bench_draft){ .lookup = strcmp(text, "lookup") == 0, .mtp = strcmp(text, "mtp") == 0 };
    if (out->lookup || out->mtp) return 0;
    if (strncmp(text, "oracle:", 7) == 0) {
        out->right = strtod(text + 7, &end);
        if (end > text + 7 && !*end && out->right >= 0 && out->right <= 1) return 0;
    }
    console_error("--draft: '%s' is none of mtp, lookup and oracle:P, 0 <= P <= 1",
                  ESC(shown, str_from(text)));
    return 2;
}

typedef struct run {
    session *s;
    sampler *smp;
    const bench_draft *d;
    int32_t *known;                      /* [n]: the tokens that are drawn; known after a run
                                          * without drafts */
    int n_known, n, first;               /* first: position of known[0] */
    int n_vocab;
    uint64_t n_random;
    bool drafts;
    bench_draft_result *out;
} run;

/* Whether the next draft of the oracle is right. */
static bool is_right(run *r)
{
    return (double)(random_word(7, r->n_random++) >> 11) * 0x1p-53 < r->d->right;
}

static int guess(run *r, int32_t *out, int most, const int32_t *ids, int n_ids)
{
    const int done = n_ids - r->first;   /* tokens drawn so far */
    int n = 0;
    if (r->d->lookup) return draft_lookup(NULL, out, most, ids, n_ids);
    for (; n < most && done + n < r->n_known; n++) {
        const int32_t id = r->known[done + n];
        out[n] = is_right(r) ? id : (id + 1) % r->n_vocab;
    }
    return n;
}

/* One pass: the last token and its drafts. Writes the tokens drawn behind `drawn`. Returns their
 * number. */
static int pass(run *r, int32_t *drawn, int32_t last, draft_control *c, int left, err_ctx *err)
{
    runner *all = session_runner(r->s);
    const int pos = session_pos(r->s);
    int32_t ids[1 + DRAFTS_MOST] = { last };
    int n = 1, rc, t = 0, failed;
    if (r->drafts) {
        int most = min_int(r->d->mtp ? MTP_DRAFTS : DRAFTS_MOST, runner_most_taken(all) - 1);
        most = draft_control_choose(c, min_int(most, left - 1));
        const uint64_t guessing = clock_ns();
        rc = most <= 0 ? 0 : r->d->mtp ? runner_guess(r->s, ids + 1, most, last, err) :
             guess(r, ids + 1, most, session_with(r->s, last), pos + 1);
        if (rc < 0) return rc;
        if (r->d->mtp) draft_times_guess(runner_draft_times(all), rc, clock_since(guessing));
        n += rc;
    }
    const uint64_t from = clock_ns();
    const runner_row row = { .s = r->s, .ids = ids, .n = n, .keep = n > 1 && runner_keeps(all) };
    if ((rc = runner_take(all, &row, 1, &failed, err)) < 0) return rc;
    for (;; t++) {
        if ((rc = runner_pick(r->s, t, &drawn[t], r->smp, err)) < 0) return rc;
        if (t == n - 1 || drawn[t] != ids[t + 1]) break;
    }
    if (t < n - 1 && session_rewind(r->s, pos + t + 1) != pos + t + 1)
        return err_set(err, ERR_IO, "cannot go back to token %d", pos + t + 1);
    r->out->n_pass++;
    r->out->n_draft += n - 1;
    r->out->n_right += t;
    if (r->drafts) {
        draft_times_pass(runner_draft_times(all), n - 1, clock_since(from));
        draft_control_note(c, n - 1, t);
    }
    return t + 1;
}

/* Returns tok/s in *rate. Compares the tokens with those that are known. */
static int run_once(double *rate, run *r, const int32_t *prompt, int n_prompt, float *logits,
                    progress_fn *watch, void *ctx, err_ctx *err)
{
    draft_times *times = runner_draft_times(session_runner(r->s));
    draft_control c = { .times = times, .of_block = r->d->mtp };
    int32_t drawn[1 + DRAFTS_MOST];
    int rc, done = 1;
    session_rewind(r->s, 0);
    if ((rc = session_eval(r->s, prompt, n_prompt, logits, 1, watch, ctx, err)) < 0) return rc;
    int32_t last = session_likeliest(r->s, logits);
    r->out->n_pass = r->out->n_draft = r->out->n_right = 0;
    r->known[0] = last;
    const uint64_t start = clock_ns();
    while (done < r->n) {
        if (watch && !watch(ctx, 0, 1)) return err_set(err, ERR_STOPPED, "stopped");
        if ((rc = pass(r, drawn, last, &c, r->n - done, err)) < 0) return rc;
        for (int i = 0; i < rc && done < r->n; i++, done++) {
            if (done < r->n_known && r->known[done] != drawn[i])
                return err_set(err, ERR_FORMAT, "token %d is %d with drafts and %d without", done,
                               drawn[i], r->known[done]);
            r->known[done] = last = drawn[i];
        }
    }
    *rate = (done - 1) / clock_since(start);
    r->out->times = *times;
    r->n_known = r->n;
    return 0;
}

int bench_draft_measure(bench_draft_result *out, session *s, const bench_draft *d,
                        const int32_t *prompt, int n_prompt, int n, int runs, progress_fn *watch,
                        void *ctx, err_ctx *err)
{
    const sampler_options greedy = { .top_p = 1, .repeat_penalty = 1 };
    double plain[MEDIAN_MAX_RUNS], drafted[MEDIAN_MAX_RUNS];
    float *logits = mem_array((size_t)session_vocab(s), sizeof *logits);
    run r = { .s = s, .d = d, .n = n, .first = n_prompt, .n_vocab = session_vocab(s), .out = out };
    *out = (bench_draft_result){ .n_token = n };
    if (d->mtp && !runner_guesses(session_runner(s))) {
        mem_free(logits);
        return err_set(err, ERR_UNSUPPORTED, "--draft mtp: the file has no next-token block, or "
                       "memory is too short for it");
    }
    r.known = mem_array((size_t)n, sizeof *r.known);
    int rc = logits && r.known ? sampler_create(&r.smp, &greedy, r.n_vocab, session_ctx(s), err)
                               : err_set(err, ERR_NOMEM, "%d tokens", n);
    if (rc == 0) rc = run_once(plain, &r, prompt, n_prompt, logits, watch, ctx, err);
    for (int i = 0; i < runs && rc == 0; i++) {
        r.drafts = false;
        rc = run_once(&plain[i], &r, prompt, n_prompt, logits, watch, ctx, err);
        r.drafts = true;
        if (rc == 0) rc = run_once(&drafted[i], &r, prompt, n_prompt, logits, watch, ctx, err);
    }
    if (rc == 0) {
        out->plain = spread_of(plain, runs).median;
        out->drafted = spread_of(drafted, runs).median;
    }
    sampler_free(r.smp);
    mem_free(r.known);
    mem_free(logits);
    return rc;
}
