/* trial.c - trials, and two rules for what they decide.
 *
 * A round of levels: first, is the level better than 0; then steps up for as long as they win, or,
 * if the first one loses, steps down. Steps are large at first, and 1 in rounds after one without a
 * change. A level that loses against 0 is tried again at half its size, and again. Then a rest. */
#include "moe/trial.h"

typedef struct trial_rules {
    int turn;                            /* tokens, 1 .. TRIAL_MOST_TOKENS */
    int warm;                            /* the first tokens of a turn, which are not counted */
    int n_turn;                          /* of each side, 1 .. TRIAL_MOST_TURNS */
    /* The trial ends early when the candidate's turns won less those lost reach ahead or -behind.
     * 0: never */
    int ahead, behind;
} trial_rules;

static const double hopeless = 1.2; /* times the other side's cost: a candidate loses at once, a
                                          * level after half as many turns */

static double median(double *list, int n)
{
    if (n == 0) return 0;
    sort_doubles(list, n);
    return (list[(n - 1) / 2] + list[n / 2]) / 2;
}

/* ---- one trial ------------------------------------------------------------------------------- */

static void trial_begin(trial *t, const trial_rules *rules) { *t = (trial){ .rules = rules }; }

/* Which setting the next token has. */
static bool trial_has_candidate(const trial *t) { return t->n_token / t->rules->turn % 2 == 1; }

/* Both sides have had a turn; 0: unknown. */
static bool is_decided(trial *t, double own, double candidate)
{
    const trial_rules *r = t->rules;
    if (t->n_token == 2 * r->turn * r->n_turn) return true;
    if (own <= 0 || candidate <= 0 || r->ahead == 0) return false;
    t->lead += candidate * hopeless < own ? r->ahead / 2 : candidate < own ? 1 : -(candidate > own);
    return t->lead >= r->ahead || t->lead <= -r->behind || candidate > hopeless * own;
}

/* After a token that cost so much; 0: unknown. Returns whether the trial has ended. */
static bool trial_token(trial *t, double cost)
{
    const bool candidate = trial_has_candidate(t);
    if (t->n_token % t->rules->turn >= t->rules->warm && cost > 0) t->token[t->n_counted++] = cost;
    if (++t->n_token % t->rules->turn > 0) return false;
    const double turn = median(t->token, t->n_counted);
    if (t->n_counted > 0) t->turn[candidate][t->n_turn[candidate]++] = turn;
    t->n_counted = 0;
    if (candidate) return is_decided(t, t->last_turn, turn);
    t->last_turn = turn;
    return false;
}

/* The median of its turns; 0: unknown. */
static double trial_cost(const trial *t, bool candidate)
{
    double list[TRIAL_MOST_TURNS];
    for (int i = 0; i < t->n_turn[candidate]; i++) list[i] = t->turn[candidate][i];
    return median(list, t->n_turn[candidate]);
}

/* ---- levels: rounds -------------------------------------------------------------------------- */

enum { TRY_OFF, TRY_MORE, TRY_FEWER, TRY_COUNT };

static const trial_rules level_rules = { .turn = 4, .warm = 1, .n_turn = 16, .ahead = 4,
                                         .behind = 2 };
/* Fractions of the level's cost: a candidate must stay below the first, and below the second to
 * switch on or off. */
static const double better = 0.995, better_at_all = 0.985;

void trial_levels_begin(trial_levels *f, int start, int most, bool on, bool never_off)
{
    *f = (trial_levels){
        .level = on || never_off ? start : 0, .start = start, .most = most,
        .never_off = never_off, .other = start, .candidate = -1, .wait = TRIAL_WARM,
        .rest = TRIAL_REST,
    };
    f->round_level = f->level;
}

int trial_levels_now(const trial_levels *f)
{
    return f->candidate >= 0 && trial_has_candidate(&f->trial) ? f->candidate : f->level;
}

/* The candidate that is next in the round, or -1. */
static int candidate_of(const trial_levels *f)
{
    if (f->next_try == TRY_OFF) return f->level == 0 ? f->other : f->never_off ? -1 : 0;
    if (f->level == 0) return -1;
    const int step = f->rest == TRIAL_REST ? max_int(f->level / 4, 1) : 1;
    const int candidate = f->next_try == TRY_MORE ? min_int(f->level + step, f->most)
                                                  : f->level - step;
    return candidate >= 1 && candidate != f->level ? candidate : -1;
}

static trial_event end_round(trial_levels *f)
{
    const bool switched = (f->level > 0) != (f->round_level > 0);
    f->rest = f->level == f->round_level ? min_int(2 * f->rest, TRIAL_MOST_REST) : TRIAL_REST;
    f->wait = f->rest;
    /* a disturbance may have lowered it, and will pass */
    if (f->level == 0 && f->rest >= 4 * TRIAL_REST) f->other = max_int(f->start / 2, f->other);
    f->round_level = f->level;
    f->next_try = TRY_OFF;
    f->climbing = false;
    return switched ? TRIAL_SWITCHED : TRIAL_NOTHING;
}

static void go_on(trial_levels *f)
{
    f->next_try += f->climbing ? TRY_COUNT : 1;          /* the level it came from is slower */
    f->climbing = false;
}

static trial_event begin_next(trial_levels *f)
{
    while (f->next_try < TRY_COUNT && (f->candidate = candidate_of(f)) < 0) go_on(f);
    if (f->candidate < 0) return end_round(f);
    trial_begin(&f->trial, &level_rules);
    return TRIAL_NOTHING;
}

/* After a trial of a level against 0. */
static void settle_off(trial_levels *f, bool off_won)
{
    const int tried = f->last.level > 0 ? f->last.level : f->last.candidate;
    if (!off_won) {
        go_on(f);
        return;
    }
    f->other = max_int(tried / 2, 1);    /* a lower level may pay, */
    if (tried == 1) go_on(f);            /* now or, for this one, later */
}

static void end_trial(trial_levels *f)
{
    const double own = trial_cost(&f->trial, false), its = trial_cost(&f->trial, true);
    const bool known = own > 0 && its > 0, off = f->next_try == TRY_OFF;
    const bool won = known && its < (off ? better_at_all : better) * own;
    f->last = (trial_result){ f->level, f->candidate, { own, its }, won };
    if (off && won) f->switched = f->last;
    if (won) f->level = f->candidate;
    if (f->level > 0) f->other = f->level;
    if (off) settle_off(f, known && won == (f->candidate == 0));
    else if (won) f->climbing = true;    /* go on in the same direction */
    else go_on(f);
    f->candidate = -1;
    f->wait = 1;
}

trial_event trial_levels_token(trial_levels *f, double cost)
{
    if (f->most == 0) return TRIAL_NOTHING;
    if (f->candidate < 0) return --f->wait <= 0 ? begin_next(f) : TRIAL_NOTHING;
    if (!trial_token(&f->trial, cost)) return TRIAL_NOTHING;
    end_trial(f);
    return TRIAL_ENDED;
}

/* ---- worth its cost -------------------------------------------------------------------------- */

static const trial_rules worth_rules = { .turn = 16, .n_turn = 3 };
static const double high_price = 0.02;   /* of a token's time */
static const double worth_it = 0.005;    /* hit rate, from one trial to the next */
static const double hits_lost = 0.02;    /* hit rate, during a rest */
static const double learning = 1.0 / 64;

void trial_worth_begin(trial_worth *w)
{
    *w = (trial_worth){ .left = TRIAL_WORTH_EVERY, .rest = TRIAL_WORTH_EVERY, .hit_rate = -1,
                        .earlier = -1 };
}

bool trial_worth_runs(const trial_worth *w)
{
    return w->trial.rules ? !trial_has_candidate(&w->trial) : !w->resting;
}

static trial_worth_event end_worth(trial_worth *w)
{
    const double with = trial_cost(&w->trial, false), without = trial_cost(&w->trial, true);
    w->trial.rules = NULL;
    w->left = TRIAL_WORTH_EVERY;
    w->price = without > 0 ? with / without - 1 : 0;
    w->gain = w->earlier < 0 ? 1 : w->hit_rate - w->earlier;
    w->earlier = w->hit_rate;
    if (w->price <= high_price || w->gain >= worth_it) {
        w->n_lost = 0;
        w->rest = TRIAL_WORTH_EVERY;
        return TRIAL_WORTH_NOTHING;
    }
    if (++w->n_lost < 2) return TRIAL_WORTH_NOTHING;
    w->n_lost = 0;
    w->resting = true;
    w->left = w->rest;
    if (w->rest < TRIAL_WORTH_REST) w->rest *= 2;
    return TRIAL_WORTH_RESTS;
}

static trial_worth_event rest(trial_worth *w)
{
    if (--w->left > 0 && w->hit_rate > w->earlier - hits_lost) return TRIAL_WORTH_NOTHING;
    w->resting = false;
    w->left = TRIAL_WORTH_EVERY;
    w->earlier = w->hit_rate;
    return TRIAL_WORTH_WAKES;
}

trial_worth_event trial_worth_token(trial_worth *w, double seconds, int hits, int n)
{
    const double now = n > 0 ? (double)hits / n : 1;
    w->hit_rate = w->hit_rate < 0 ? now : w->hit_rate + learning * (now - w->hit_rate);
    if (w->resting) return rest(w);
    if (w->trial.rules) return trial_token(&w->trial, seconds) ? end_worth(w) : TRIAL_WORTH_NOTHING;
    if (--w->left == 0) trial_begin(&w->trial, &worth_rules);
    return TRIAL_WORTH_NOTHING;
}
