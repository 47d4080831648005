/* test_trial.c - trials on machines that are made up.
 *
 * Levels: the fastest level wins or one that is nearly as fast, also after times have changed,
 * and trials cost little. Work with a price: it goes on while it pays, rests while it does not,
 * and goes on again when the hit rate falls. */
#include "moe/trial.h"

#include <math.h>

#include "tests/test.h"

enum { LEVELS = 17, TOKENS = 6000 };

/* ---- levels ---------------------------------------------------------------------------------- */

/* Seconds of a token at each level; a token in 25 is slow, and so is the first one at a new
 * level. */
typedef struct made_times {
    const char *name;
    double s[LEVELS];
    int start, most;
    bool on;
    double noise;
} made_times;

static const made_times times[] = {
    { "the first estimate is right", { 5, 4, 3, 2, 1, 1.5, 2 }, 4, 6, true, 0.03 },
    { "more is better", { 5, 4.5, 4, 3.5, 3, 2.5, 2, 1.5, 1 }, 1, 8, true, 0.03 },
    { "fewer are better", { 5, 1, 2, 3, 4, 5, 6, 7, 8 }, 8, 8, true, 0.03 },
    { "a valley", { 3, 2.4, 2, 2.4, 2.8, 3.2, 3.6, 4, 4.4 }, 8, 8, true, 0.03 },
    { "off is best", { 1, 1.5, 2, 2.5, 3 }, 2, 4, true, 0.03 },
    { "off at first, but on is best", { 2, 1.6, 1.3, 1.2, 1 }, 2, 4, false, 0.03 },
    { "off at first, and rightly", { 1, 1.1, 1.2, 1.3, 1.4 }, 2, 4, false, 0.03 },
    { "all alike", { 1, 1, 1, 1, 1 }, 2, 4, true, 0.03 },
    { "on or off alone", { 1.1, 1 }, 1, 1, true, 0.03 },
    { "nothing to try", { 1 }, 0, 0, false, 0.03 },
};

static int fastest(const made_times *m)
{
    int best = 0;
    for (int i = 1; i <= m->most; i++)
        if (m->s[i] < m->s[best]) best = i;
    return best;
}

typedef struct run_state {
    trial_levels f;
    test_rng rng;
    int before;                          /* level of the last token */
    double spent;                        /* without noise and slow tokens */
    int n_switched;
    bool is_on;
} run_state;

static void run_tokens(run_state *r, const made_times *m, int n)
{
    for (int i = 0; i < n; i++) {
        const int level = trial_levels_now(&r->f);
        double s = m->s[level] * (1 + m->noise * (test_below(&r->rng, 1001) / 500.0 - 1));
        CHECK_MSG(level >= 0 && level <= m->most, "%s: level %d", m->name, level);
        if (test_below(&r->rng, 25) == 0) s *= 1.4;
        if (level != r->before) s *= 100;
        r->before = level;
        r->spent += m->s[level];
        const trial_event event = trial_levels_token(&r->f, s);
        if (event == TRIAL_SWITCHED) r->is_on = !r->is_on;
        r->n_switched += event == TRIAL_SWITCHED;
    }
}

static run_state begin(const made_times *m, bool never_off, unsigned seed)
{
    run_state r = { .rng = { seed } };
    trial_levels_begin(&r.f, m->start, m->most, m->on, never_off);
    r.before = trial_levels_now(&r.f);
    r.is_on = r.f.level > 0;
    return r;
}

static void check_fastest(run_state *r, const made_times *m, const char *when)
{
    const int best = fastest(m);
    run_tokens(r, m, TOKENS);
    r->spent = 0;
    run_tokens(r, m, TOKENS);
    CHECK_MSG(m->s[r->f.level] < 1.02 * m->s[best], "%s, %s: level %d, best %d", m->name, when,
              r->f.level, best);
    CHECK_MSG(r->spent < 1.03 * TOKENS * m->s[best], "%s, %s: trials cost %.1f%%", m->name, when,
              100 * (r->spent / TOKENS / m->s[best] - 1));
    while (r->f.candidate >= 0 || r->f.next_try > 0) run_tokens(r, m, 1);       /* the round ends */
    CHECK_MSG(r->is_on == (r->f.level > 0), "%s, %s: no event for level %d", m->name, when,
              r->f.level);
}

static void check_levels(const made_times *m, unsigned seed)
{
    run_state r = begin(m, false, seed);
    made_times later = *m;
    check_fastest(&r, m, "at first");
    for (int i = 0; i <= m->most; i++) later.s[i] = m->s[m->most - i];
    if (m->most > 0 && later.s[0] > 1.02 * later.s[fastest(&later)]) {
        r.f.rest = TRIAL_REST;           /* as after a change */
        check_fastest(&r, &later, "after a change");
    }
    r = begin(m, true, seed);
    if (m->most == 0) return;
    for (int i = 0; i < TOKENS; i++) {
        run_tokens(&r, m, 1);
        if (r.before == 0) break;
    }
    CHECK_MSG(r.before > 0 && r.n_switched == 0, "%s: off, and must not be", m->name);
}

/* Tokens of unknown cost teach nothing; differences of half a percent do not change a level. */
static void check_unknown(void)
{
    static const double nearly[] = { 2, 1.002, 1, 0.998, 0.996 };
    trial_levels f;
    trial_levels_begin(&f, 2, 4, true, false);
    for (int i = 0; i < TOKENS; i++) trial_levels_token(&f, 0);
    CHECK(f.level == 2);
    trial_levels_begin(&f, 2, 4, true, false);
    for (int i = 0; i < TOKENS; i++) trial_levels_token(&f, nearly[trial_levels_now(&f)]);
    CHECK(f.level == 2);
}

/* The first token of a turn is not counted: the level costs 2 a token after it, a candidate 2.2. */
static void check_first_token(void)
{
    static const double own[] = { 1000, 1, 2, 3 };
    trial_levels f;
    trial_levels_begin(&f, 2, 4, true, false);
    for (int i = 0; i < 300; i++)
        trial_levels_token(&f, trial_levels_now(&f) == 2 && f.candidate >= 0
                                   ? own[f.trial.n_token % 4] : 2.2);
    CHECK(f.level == 2);
}

/* Rounds that change nothing become rarer: at most one token in 20 has a candidate. */
static void check_rests(void)
{
    static const double s[] = { 2, 1.5, 1, 1.5, 2 };
    trial_levels f;
    int n_candidate = 0;
    trial_levels_begin(&f, 2, 4, true, false);
    for (int i = 0; i < 4 * TOKENS; i++) {
        n_candidate += trial_levels_now(&f) != 2;
        trial_levels_token(&f, s[trial_levels_now(&f)]);
    }
    CHECK_MSG(f.level == 2 && n_candidate > 0 && n_candidate < 4 * TOKENS / 20, "%d of %d tokens",
              n_candidate, 4 * TOKENS);
}

/* ---- worth its cost -------------------------------------------------------------------------- */

enum { CHOICES = 100 };

typedef struct made_work {
    double cost;                         /* share of a token's time */
    double hit_rate;                     /* at first */
    double per_token;                    /* added to it by each token with the work */
    int drift_at;                        /* token at which the hit rate halves; 0: never */
} made_work;

typedef struct outcome { int n_with, n_rests, n_wakes; } outcome;

static outcome run_work(const made_work *m, int n, uint64_t seed)
{
    test_rng rng = { seed };
    trial_worth w;
    outcome o = { 0 };
    double hit_rate = m->hit_rate;
    trial_worth_begin(&w);
    for (int i = 0; i < n; i++) {
        const bool with = trial_worth_runs(&w);
        const double noise = 0.05 * ((double)test_below(&rng, 1000) / 500 - 1);
        const double slow = test_below(&rng, 40) == 0 ? 3 : 1;
        const double s = (1 + (with ? m->cost : 0) + noise) * slow;
        if (i == m->drift_at && i > 0) hit_rate = m->hit_rate / 2;
        if (with) hit_rate = fmin(hit_rate + m->per_token, 0.95);
        const trial_worth_event e =
            trial_worth_token(&w, s * 1e-3, (int)(hit_rate * CHOICES), CHOICES);
        o.n_with += with;
        o.n_rests += e == TRIAL_WORTH_RESTS;
        o.n_wakes += e == TRIAL_WORTH_WAKES;
    }
    return o;
}

static void check_worth(uint64_t seed)
{
    const made_work cheap = { .cost = 0.0, .hit_rate = 0.8 };
    const made_work pays = { .cost = 0.1, .hit_rate = 0.3, .per_token = 0.0002 };
    const made_work useless = { .cost = 0.1, .hit_rate = 0.8 };
    const made_work drifts = { .cost = 0.1, .hit_rate = 0.9, .per_token = 0.0002,
                               .drift_at = 9000 };
    outcome o = run_work(&cheap, 4000, seed);
    CHECK_MSG(o.n_with > 3300, "work without a cost: %d of 4000", o.n_with);
    o = run_work(&pays, 2500, seed);
    CHECK_MSG(o.n_rests == 0, "work that pays: %d rests", o.n_rests);
    o = run_work(&useless, 20000, seed);
    CHECK_MSG(o.n_rests > 0 && o.n_with < 7000, "useless work: %d of 20000, %d rests", o.n_with,
              o.n_rests);
    const outcome before = run_work(&drifts, 9000, seed), after = run_work(&drifts, 9300, seed);
    CHECK_MSG(before.n_rests > 0 && after.n_with - before.n_with > 150,
              "a hit rate that falls: %d rests, then %d of 300", before.n_rests,
              after.n_with - before.n_with);
}

/* No choices, no time: no division by zero, no rest. */
static void check_no_work(void)
{
    trial_worth w;
    trial_worth_begin(&w);
    for (int i = 0; i < 3000; i++) CHECK(trial_worth_token(&w, 0, 0, 0) == TRIAL_WORTH_NOTHING);
    CHECK(isfinite(w.price) && isfinite(w.gain) && !w.resting);
}

int main(int argc, char **argv)
{
    test_begin("trial", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(times); i++)
        for (unsigned seed = 1; seed <= 5; seed++) check_levels(&times[i], seed);
    check_unknown();
    check_first_token();
    check_rests();
    for (uint64_t seed = 1; seed <= 20; seed++) check_worth(seed);
    check_no_work();
    return test_end();
}
