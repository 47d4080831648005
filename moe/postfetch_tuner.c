/* postfetch_tuner.c - trials between a level and its candidates.
 *
 * A round: first, is the level better than nothing; then steps up for as long as they win, or, if
 * the first does not, steps down. Steps are large at first, single ones in rounds after one that
 * changed nothing. A level that loses against nothing is tried again at half its size, and again.
 * Then a rest. */
#include "moe/postfetch_tuner.h"

enum { TRY_OFF, TRY_MORE, TRY_FEWER, TRY_COUNT };

/* Fractions of the level's cost: a candidate must stay below the first, and below the second to
 * switch post-fetch on or off. */
static const double better = 0.995, better_at_all = 0.985;
static const double hopeless = 1.2;      /* times the other's cost: a candidate goes at once, a
                                          * level after half as many turns */

void postfetch_tuner_begin(postfetch_tuner *f, int start, int most, bool on, bool never_off)
{
    *f = (postfetch_tuner){
        .level = on || never_off ? start : 0, .start = start, .most = most,
        .never_off = never_off, .other = start, .candidate = -1, .wait = TUNER_WARM,
        .rest = TUNER_REST,
    };
    f->from = f->level;
}

int postfetch_tuner_now(const postfetch_tuner *f)
{
    const bool candidates_turn = f->candidate >= 0 && f->n_token / TUNER_BLOCK % 2 == 1;
    return candidates_turn ? f->candidate : f->level;
}

static double middle(const double *v, int n)
{
    double sorted[TUNER_TURNS];
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > v[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = v[i];
    }
    return n == 0 ? 0 : (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* The candidate that is next in the round, or -1. */
static int candidate_of(const postfetch_tuner *f)
{
    if (f->to_try == TRY_OFF) return f->level == 0 ? f->other : f->never_off ? -1 : 0;
    if (f->level == 0) return -1;
    const int step = f->rest == TUNER_REST ? max_int(f->level / 4, 1) : 1;
    const int candidate = f->to_try == TRY_MORE ? min_int(f->level + step, f->most)
                                                : f->level - step;
    return candidate >= 1 && candidate != f->level ? candidate : -1;
}

static tuner_event end_round(postfetch_tuner *f)
{
    const bool switched = (f->level > 0) != (f->from > 0);
    f->rest = f->level == f->from ? min_int(2 * f->rest, TUNER_MOST_REST) : TUNER_REST;
    f->wait = f->rest;
    /* a bad spell may have lowered it, and will pass */
    if (f->level == 0 && f->rest >= 4 * TUNER_REST) f->other = max_int(f->start / 2, f->other);
    f->from = f->level;
    f->to_try = TRY_OFF;
    f->climbing = false;
    return switched ? TUNER_SWITCHED : TUNER_NOTHING;
}

static void next_try(postfetch_tuner *f)
{
    f->to_try += f->climbing ? TRY_COUNT : 1;            /* the level it came from is slower */
    f->climbing = false;
}

static tuner_event begin_trial(postfetch_tuner *f)
{
    while (f->to_try < TRY_COUNT && (f->candidate = candidate_of(f)) < 0) next_try(f);
    f->n_token = f->n_turn = f->n_cost[0] = f->n_cost[1] = f->ahead = 0;
    return f->candidate < 0 ? end_round(f) : TUNER_NOTHING;
}

/* After a trial of a level against nothing. */
static void settle_off(postfetch_tuner *f, bool known, bool off_won)
{
    const int tried = f->last.level > 0 ? f->last.level : f->last.candidate;
    if (!known || !off_won) {
        next_try(f);
        return;
    }
    f->other = max_int(tried / 2, 1);    /* less of it may be worth something, */
    if (tried == 1) next_try(f);         /* at once or, for this one, later */
}

static void end_trial(postfetch_tuner *f)
{
    const double own = middle(f->cost[0], f->n_cost[0]), its = middle(f->cost[1], f->n_cost[1]);
    const bool known = f->n_cost[0] > 0 && f->n_cost[1] > 0, off = f->to_try == TRY_OFF;
    const double limit = off ? better_at_all : better;
    const bool won = known && its < limit * own;
    f->last = (tuner_trial){ f->level, f->candidate, { own, its }, won };
    if (off && won) f->switched = f->last;
    if (won) f->level = f->candidate;
    if (f->level > 0) f->other = f->level;
    if (off) settle_off(f, known, won == (f->candidate == 0));
    else if (won) f->climbing = true;    /* go on in the same direction */
    else next_try(f);
    f->candidate = -1;
    f->wait = 1;
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* A turn of the level's and one of the candidate's are over; 0: nothing was cold. */
static bool is_decided(postfetch_tuner *f, double own, double its)
{
    if (own <= 0 || its <= 0) return f->n_token == 2 * TUNER_TURNS * TUNER_BLOCK;
    f->ahead += its * hopeless < own ? TUNER_AHEAD / 2 : its < own ? 1 : its > own ? -1 : 0;
    return f->ahead >= TUNER_AHEAD || f->ahead <= -TUNER_BEHIND || its > hopeless * own ||
           f->n_token == 2 * TUNER_TURNS * TUNER_BLOCK;
}

tuner_event postfetch_tuner_token(postfetch_tuner *f, double s, int n_cold)
{
    if (f->most == 0) return TUNER_NOTHING;
    if (f->candidate < 0) return --f->wait <= 0 ? begin_trial(f) : TUNER_NOTHING;
    const int side = f->n_token / TUNER_BLOCK % 2;
    if (f->n_token % TUNER_BLOCK > 0 && n_cold > 0) {
        f->turn[f->n_turn++] = s / n_cold;
        f->n_cold = n_cold;
    }
    if (++f->n_token % TUNER_BLOCK > 0) return TUNER_NOTHING;
    const double cost = middle(f->turn, f->n_turn);
    if (f->n_turn > 0) f->cost[side][f->n_cost[side]++] = cost;
    f->n_turn = 0;
    if (side == 0) f->own_turn = cost;
    if (side == 0 || !is_decided(f, f->own_turn, cost)) return TUNER_NOTHING;
    end_trial(f);
    return TUNER_TRIAL_ENDED;
}

/* ---- what a level means ---------------------------------------------------------------------- */

void postfetch_tuner_split(int *n_down, int *n_all, int level, int m, int k, int most_down,
                       int most_all)
{
    const int n = (level * m + k / 2) / k;
    const int all = n > m ? (n - m + 1) / 2 : 0;         /* 3 of each, and m - all downs at most */
    *n_all = min_int(min_int(all, n / 3), min_int(most_all, m));
    *n_down = min_int(min_int(n - 3 * *n_all, m - *n_all), most_down);
}
