/* fetch_share.c - duels between a level and its rivals.
 *
 * A round: is it better than nothing; then steps up for as long as they win, or, if the first does
 * not, steps down: large ones at first, single ones in rounds behind one that changed nothing.
 * Whatever loses against nothing comes again at half its size, and again. Then a rest. */
#include "engine/fetch_share.h"

enum { TRY_OFF, TRY_MORE, TRY_FEWER, TRY_COUNT };

/* Of the level's cost: what a rival must stay below, to be turned on or off further below. */
static const double better = 0.995, better_at_all = 0.985;
static const double hopeless = 1.2;      /* times the other's cost: a rival goes at once, a level
                                          * after half as many turns */

void fetch_share_begin(fetch_share *f, int start, int most, bool on, bool never_off)
{
    *f = (fetch_share){
        .level = on || never_off ? start : 0, .start = start, .most = most,
        .never_off = never_off, .other = start, .rival = -1, .wait = SHARE_WARM,
        .rest = SHARE_REST,
    };
    f->from = f->level;
}

int fetch_share_now(const fetch_share *f)
{
    const bool rivals_turn = f->rival >= 0 && f->n_token / SHARE_BLOCK % 2 == 1;
    return rivals_turn ? f->rival : f->level;
}

static double middle(const double *v, int n)
{
    double sorted[SHARE_TURNS];
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > v[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = v[i];
    }
    return n == 0 ? 0 : (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* Who would be next in the round, or -1. */
static int rival_of(const fetch_share *f)
{
    if (f->to_try == TRY_OFF) return f->level == 0 ? f->other : f->never_off ? -1 : 0;
    if (f->level == 0) return -1;
    const int step = f->rest == SHARE_REST ? max_int(f->level / 4, 1) : 1;
    const int rival = f->to_try == TRY_MORE ? min_int(f->level + step, f->most) : f->level - step;
    return rival >= 1 && rival != f->level ? rival : -1;
}

static share_news end_round(fetch_share *f)
{
    const bool turned = (f->level > 0) != (f->from > 0);
    f->rest = f->level == f->from ? min_int(2 * f->rest, SHARE_MOST_REST) : SHARE_REST;
    f->wait = f->rest;
    /* a bad spell may have brought it down: that is over, some day */
    if (f->level == 0 && f->rest >= 4 * SHARE_REST) f->other = max_int(f->start / 2, f->other);
    f->from = f->level;
    f->to_try = TRY_OFF;
    f->climbing = false;
    return turned ? SHARE_TURNED : SHARE_NO_NEWS;
}

static void next_try(fetch_share *f)
{
    f->to_try += f->climbing ? TRY_COUNT : 1;            /* where it came from is slower */
    f->climbing = false;
}

static share_news begin_duel(fetch_share *f)
{
    while (f->to_try < TRY_COUNT && (f->rival = rival_of(f)) < 0) next_try(f);
    f->n_token = f->n_turn = f->n_cost[0] = f->n_cost[1] = f->ahead = 0;
    return f->rival < 0 ? end_round(f) : SHARE_NO_NEWS;
}

/* Behind a duel of a level with nothing. */
static void settle_off(fetch_share *f, bool known, bool off_won)
{
    const int tried = f->last.level > 0 ? f->last.level : f->last.rival;
    if (!known || !off_won) {
        next_try(f);
        return;
    }
    f->other = max_int(tried / 2, 1);    /* less of it may be worth something, */
    if (tried == 1) next_try(f);         /* at once or, this one, some day */
}

static void end_duel(fetch_share *f)
{
    const double own = middle(f->cost[0], f->n_cost[0]), its = middle(f->cost[1], f->n_cost[1]);
    const bool known = f->n_cost[0] > 0 && f->n_cost[1] > 0, off = f->to_try == TRY_OFF;
    const double limit = off ? better_at_all : better;
    const bool won = known && its < limit * own;
    f->last = (share_duel){ f->level, f->rival, { own, its }, won };
    if (off && won) f->turned = f->last;
    if (won) f->level = f->rival;
    if (f->level > 0) f->other = f->level;
    if (off) settle_off(f, known, won == (f->rival == 0));
    else if (won) f->climbing = true;    /* on, the same way */
    else next_try(f);
    f->rival = -1;
    f->wait = 1;
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* A turn of the level's and one of the rival's are over; 0: nothing was cold. */
static bool is_decided(fetch_share *f, double own, double its)
{
    if (own <= 0 || its <= 0) return f->n_token == 2 * SHARE_TURNS * SHARE_BLOCK;
    f->ahead += its * hopeless < own ? SHARE_AHEAD / 2 : its < own ? 1 : its > own ? -1 : 0;
    return f->ahead >= SHARE_AHEAD || f->ahead <= -SHARE_BEHIND || its > hopeless * own ||
           f->n_token == 2 * SHARE_TURNS * SHARE_BLOCK;
}

share_news fetch_share_token(fetch_share *f, double s, int n_cold)
{
    if (f->most == 0) return SHARE_NO_NEWS;
    if (f->rival < 0) return --f->wait <= 0 ? begin_duel(f) : SHARE_NO_NEWS;
    const int side = f->n_token / SHARE_BLOCK % 2;
    if (f->n_token % SHARE_BLOCK > 0 && n_cold > 0) {
        f->turn[f->n_turn++] = s / n_cold;
        f->n_cold = n_cold;
    }
    if (++f->n_token % SHARE_BLOCK > 0) return SHARE_NO_NEWS;
    const double cost = middle(f->turn, f->n_turn);
    if (f->n_turn > 0) f->cost[side][f->n_cost[side]++] = cost;
    f->n_turn = 0;
    if (side == 0) f->own_turn = cost;
    if (side == 0 || !is_decided(f, f->own_turn, cost)) return SHARE_NO_NEWS;
    end_duel(f);
    return SHARE_DUEL;
}

/* ---- what a level means ---------------------------------------------------------------------- */

void fetch_share_split(int *n_down, int *n_all, int level, int m, int k, int most_down,
                       int most_all)
{
    const int n = (level * m + k / 2) / k;
    const int all = n > m ? (n - m + 1) / 2 : 0;         /* 3 of each, and m - all downs at most */
    *n_all = min_int(min_int(all, n / 3), min_int(most_all, m));
    *n_down = min_int(min_int(n - 3 * *n_all, m - *n_all), most_down);
}
