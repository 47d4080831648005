/* postfetch_levels.c - two searches that alternate, and the table that follows from their levels.
 *
 * Costs are seconds for each cold expert, so that tokens with different numbers of them compare. */
#include "engine/gpu/postfetch_levels.h"

#include <string.h>

/* The slabs that a level fetches if m of k chosen experts are cold. Downs alone come first: while
 * they cross the bus, the CPU computes gate and up. With one or two experts a token some levels are
 * equal. */
static void split_level(const postfetch_levels *f, int level, int m, int *n_down, int *n_all)
{
    const int n = (level * m + f->k / 2) / f->k;
    const int all = n > m ? (n - m + 1) / 2 : 0;         /* 3 slabs of each, at most m downs */
    *n_all = min_int(min_int(all, n / 3), min_int(f->pad_all, m));
    *n_down = min_int(min_int(n - 3 * *n_all, m - *n_all), f->pad_down);
}

/* For each number of cold experts, how many downs and how many whole experts to fetch. */
static void set(postfetch_levels *f, int level, bool reads_ahead)
{
    memset(f->table, 0, FETCH_TABLE);
    for (int m = 1; m <= f->k && level > 0; m++) {
        int n_down, n_all;
        split_level(f, level, m, &n_down, &n_all);
        f->table[m] = (uint8_t)n_down;
        f->table[GPU_FETCH_COUNTS + m] = (uint8_t)n_all;
    }
    f->level = level;
    f->reads_ahead = reads_ahead;
}

static void set_now(postfetch_levels *f)
{
    set(f, trial_levels_now(&f->fetch), trial_levels_now(&f->read) > 0);
}

/* By the measured speeds; 0: nothing. */
static int promised_level(const postfetch_levels *f, const expert_bank *bank, const speeds *rate)
{
    int n_down, n_all;
    plan_fetch(&n_down, &n_all, f->k, expert_slabs_bytes(bank), expert_slab_bytes(bank, SLAB_DOWN),
               rate);
    return n_down + 3 * n_all;
}

static int highest_level(const postfetch_levels *f)
{
    const int fits = f->pad_down + 2 * f->pad_all, most = f->post.max_transfers;
    return most > 0 && most < fits ? most : fits;
}

/* Where the speeds promise nothing, half of the downs wait for their trial. */
void postfetch_levels_begin(postfetch_levels *f, const expert_bank *bank, const speeds *rate)
{
    const int most = bank ? highest_level(f) : 0;
    const int promised = most > 0 ? promised_level(f, bank, rate) : 0;
    const int half = max_int(f->k / 2, 1);
    trial_levels_begin(&f->fetch, min_int(promised > 0 ? promised : half, most), most, promised > 0,
                       f->post.always);
    trial_levels_begin(&f->read, f->can_predict, f->can_predict, f->can_predict,
                       f->post.prediction_always);
    set_now(f);
}

/* ---- trials ---------------------------------------------------------------------------------- */

/* Costs are reported for a whole token like the last one. */
static double token_ms(const postfetch_levels *f, double cost) { return cost * f->n_cold * 1e3; }

static void log_trial(const postfetch_levels *f, const char *name, const trial_levels *t)
{
    log_line("%s: level %d %.2f ms a token, %d %.2f; %d from now on", name, t->last.level,
             token_ms(f, t->last.cost[0]), t->last.candidate, token_ms(f, t->last.cost[1]),
             t->level);
}

static void log_switch(const postfetch_levels *f, const char *name, const trial_levels *t)
{
    const int without = t->switched.candidate == 0, with = !without;
    log_line("%s %s: %.2f ms a token with it, %.2f without; it is %s", name,
             with ? "pays" : "does not pay here", token_ms(f, t->switched.cost[with]),
             token_ms(f, t->switched.cost[without]), with ? "on" : "off for now");
}

static void run_trial(postfetch_levels *f, const char *name, trial_levels *t, double cost,
                      bool logs_switch)
{
    const trial_event event = trial_levels_token(t, cost);
    if (event == TRIAL_ENDED && f->post.debug) log_trial(f, name, t);
    if (event == TRIAL_SWITCHED && logs_switch) log_switch(f, name, t);
}

/* At most one of the two has a trial at a time. */
bool postfetch_levels_token(postfetch_levels *f, double seconds, int n_cold)
{
    const int level = f->level;
    const bool reads_ahead = f->reads_ahead;
    const double cost = n_cold > 0 ? seconds / n_cold : 0;
    if (f->post.frozen || f->paused) return false;
    if (n_cold > 0) f->n_cold = n_cold;
    if (f->read.candidate < 0) run_trial(f, "post-fetch", &f->fetch, cost, true);
    if (f->fetch.candidate < 0) run_trial(f, "reading ahead", &f->read, cost, f->post.debug);
    set_now(f);
    return f->level != level || f->reads_ahead != reads_ahead;
}

void postfetch_levels_pause(postfetch_levels *f, bool paused)
{
    f->paused = paused;
    if (paused) set(f, 0, false);
    else set_now(f);
}

int postfetch_levels_meant(const postfetch_levels *f, int n_cold)
{
    if (f->level == 0) return 0;
    return min_int(n_cold, min_int(f->table[n_cold], f->pad_down) +
                           min_int(f->table[GPU_FETCH_COUNTS + n_cold], f->pad_all));
}
