/* postfetch_levels.c - two tuners that take turns, and the table that follows from their levels. */
#include "engine/gpu/postfetch_levels.h"

#include <string.h>

/* For each number of cold experts, how many downs and how many whole experts to fetch. */
static void set(postfetch_levels *f, int level, bool reads_ahead)
{
    memset(f->table, 0, FETCH_TABLE);
    for (int m = 1; m <= f->k && level > 0; m++) {
        int n_down, n_all;
        postfetch_tuner_split(&n_down, &n_all, level, m, f->k, f->pad_down, f->pad_all);
        f->table[m] = (uint8_t)n_down;
        f->table[GPU_FETCH_COUNTS + m] = (uint8_t)n_all;
    }
    f->level = level;
    f->reads_ahead = reads_ahead;
}

static void set_now(postfetch_levels *f)
{
    set(f, postfetch_tuner_now(&f->tuner), postfetch_tuner_now(&f->prediction_tuner) > 0);
}

/* What the measured speeds promise; 0: nothing. */
static int promised_level(const postfetch_levels *f, const expert_bank *bank, const speeds *rate)
{
    int n_down, n_all;
    plan_fetch(&n_down, &n_all, f->k, expert_slabs_bytes(bank), expert_slab_bytes(bank, SLAB_DOWN),
               rate);
    return n_down + 3 * n_all;
}

static int highest_level(const postfetch_levels *f)
{
    const int room = f->pad_down + 2 * f->pad_all, most = f->post.max_transfers;
    return most > 0 && most < room ? most : room;
}

/* Where the speeds promise nothing, a modest level waits for its trial. */
void postfetch_levels_begin(postfetch_levels *f, const expert_bank *bank, const speeds *rate)
{
    const int most = bank ? highest_level(f) : 0;
    const int promised = most > 0 ? promised_level(f, bank, rate) : 0;
    const int modest = max_int(f->k / 2, 1);
    postfetch_tuner_begin(&f->tuner, min_int(promised > 0 ? promised : modest, most), most,
                          promised > 0, f->post.always);
    postfetch_tuner_begin(&f->prediction_tuner, f->can_predict, f->can_predict, f->can_predict,
                          f->post.prediction_always);
    set_now(f);
}

/* ---- trials ---------------------------------------------------------------------------------- */

/* Costs are reported for a whole token like the last one. */
static double token_ms(const postfetch_tuner *f, double cost) { return cost * f->n_cold * 1e3; }

static void tell_trial(const postfetch_tuner *f, const char *what, const char *before,
                       const char *after)
{
    log_line("%s: %s%d%s %.2f ms a token, %d %.2f; %d from now on", what, before, f->last.level,
             after, token_ms(f, f->last.cost[0]), f->last.candidate,
             token_ms(f, f->last.cost[1]), f->level);
}

static void tell_switch(const postfetch_tuner *f, const char *what, const char *pays,
                        const char *pays_not)
{
    const int without = f->switched.candidate == 0, with = !without;
    log_line("%s %s: %.2f ms a token with it, %.2f without; it is %s", what,
             with ? pays : pays_not, token_ms(f, f->switched.cost[with]),
             token_ms(f, f->switched.cost[without]), with ? "on" : "off for now");
}

/* One of the two tries something out at a time. */
bool postfetch_levels_token(postfetch_levels *f, double s, int n_cold)
{
    postfetch_tuner *fetch = &f->tuner, *guess = &f->prediction_tuner;
    const int level = f->level;
    const bool debug = f->post.debug, reads_ahead = f->reads_ahead;
    tuner_event event;
    if (f->post.frozen || f->paused) return false;
    if (guess->candidate < 0) {
        event = postfetch_tuner_token(fetch, s, n_cold);
        if (event == TUNER_TRIAL_ENDED && debug)
            tell_trial(fetch, "post-fetch", "", " matrices a layer");
        if (event == TUNER_SWITCHED) tell_switch(fetch, "post-fetch", "pays", "does not pay here");
    }
    if (fetch->candidate < 0) {
        event = postfetch_tuner_token(guess, s, n_cold);
        if (event == TUNER_TRIAL_ENDED && debug) tell_trial(guess, "reading ahead", "level ", "");
        if (event == TUNER_SWITCHED && debug)
            tell_switch(guess, "reading ahead", "pays", "does not pay here");
    }
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
