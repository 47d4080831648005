/* fetch_share.c - duels between a level and its rivals.
 *
 * A round: is it better than nothing; then steps up for as long as they win, or, if the first does
 * not, steps down. Then a rest. */
#include "engine/fetch_share.h"

enum { TRY_OFF, TRY_MORE, TRY_FEWER, TRY_COUNT };

static const double better = 0.995;      /* of the level's cost: what a rival must stay below ... */
static const double hopeless = 1.2;      /* ... and where there is no need to go on */

void fetch_share_begin(fetch_share *f, int start, int most, bool on, bool never_off)
{
    *f = (fetch_share){
        .level = on || never_off ? start : 0, .most = most, .never_off = never_off, .other = start,
        .rival = -1, .wait = SHARE_WARM,
    };
}

int fetch_share_now(const fetch_share *f)
{
    const bool rivals_turn = f->rival >= 0 && f->n_token / SHARE_BLOCK % 2 == 1;
    return rivals_turn ? f->rival : f->level;
}

/* ---- duels ----------------------------------------------------------------------------------- */

static double middle(const double *v, int n)
{
    double sorted[SHARE_DUEL / 2];
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > v[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = v[i];
    }
    return n == 0 ? 0 : (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

/* Who would be next in the round, or -1. */
static int rival_of(const fetch_share *f)
{
    int rival = -1;
    if (f->level == 0) return f->to_try == TRY_OFF ? f->other : -1;
    if (f->to_try == TRY_OFF) return f->never_off ? -1 : 0;
    rival = f->level + (f->to_try == TRY_MORE ? 1 : -1);
    return rival >= 1 && rival <= f->most ? rival : -1;
}

static void begin_duel(fetch_share *f)
{
    while (f->to_try < TRY_COUNT && (f->rival = rival_of(f)) < 0)
        f->to_try += f->climbing ? TRY_COUNT : 1;        /* where it came from is slower */
    f->n_token = f->n_cost[0] = f->n_cost[1] = 0;
    if (f->rival >= 0) return;
    f->to_try = TRY_OFF;                 /* the round is over */
    f->climbing = false;
    f->wait = SHARE_REST;
}

static void end_duel(fetch_share *f)
{
    const double own = middle(f->cost[0], f->n_cost[0]), its = middle(f->cost[1], f->n_cost[1]);
    const bool known = f->n_cost[0] > 0 && f->n_cost[1] > 0, won = known && its < better * own;
    f->last = (share_duel){ f->level, f->rival, { own, its }, won };
    /* whatever lost against nothing: less of it may be worth something one day */
    if (f->to_try == TRY_OFF && known && won == (f->rival == 0))
        f->other = max_int(f->other / 2, 1);
    if (won) f->level = f->rival;
    if (f->level > 0) f->other = f->level;
    if (f->to_try == TRY_OFF || !won) {
        f->to_try += f->climbing ? TRY_COUNT : 1;
        f->climbing = false;
    } else f->climbing = true;           /* on, the same way */
    f->rival = -1;
    f->wait = 1;
}

/* Even the rival's fastest token is much slower. */
static bool is_hopeless(const fetch_share *f)
{
    const double own = middle(f->cost[0], f->n_cost[0]);
    int n_slow = 0;
    for (int i = 0; i < f->n_cost[1]; i++) n_slow += f->cost[1][i] > hopeless * own;
    return f->n_cost[0] > 0 && n_slow >= 2 && n_slow == f->n_cost[1];
}

bool fetch_share_token(fetch_share *f, double s, int n_cold)
{
    if (f->most == 0) return false;
    if (f->rival < 0) {
        if (--f->wait <= 0) begin_duel(f);
        return false;
    }
    const int side = f->n_token / SHARE_BLOCK % 2;
    if (f->n_token % SHARE_BLOCK > 0 && n_cold > 0) f->cost[side][f->n_cost[side]++] = s / n_cold;
    if (++f->n_token < SHARE_DUEL && !is_hopeless(f)) return false;
    end_duel(f);
    return true;
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
