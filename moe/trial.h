/* trial.h - trials: short runs with another setting, measured by the clock, to keep or drop it.
 *
 * A trial alternates turns of a few tokens with the current setting and with the candidate, so that
 * a change of the machine's speed favours neither. The cost of a turn is the median of its tokens,
 * and the cost of a setting the median of its turns, so single slow tokens do not matter. Pure: it
 * reads no clock, and no setting changes a result. One thread at a time. */
#ifndef MOE_TRIAL_H
#define MOE_TRIAL_H

#include "loader/base.h"

/* ---- one trial ------------------------------------------------------------------------------- */

enum { TRIAL_MOST_TOKENS = 16, TRIAL_MOST_TURNS = 16 };

typedef struct trial {
    const struct trial_rules *rules;     /* NULL: no trial is under way */
    int n_token, lead;
    double token[TRIAL_MOST_TOKENS];     /* costs of the turn under way */
    int n_counted;
    double turn[2][TRIAL_MOST_TURNS];    /* costs of turns: of the present setting, the candidate */
    int n_turn[2];
    double last_turn;                    /* of the present setting; 0: unknown */
} trial;

/* ---- the fastest of several levels ----------------------------------------------------------- */

enum {
    TRIAL_WARM = 4,                      /* tokens before the first trial */
    TRIAL_REST = 256,                    /* tokens from a round of trials to the next one, ... */
    TRIAL_MOST_REST = 2048               /* ... doubled after a round without change, up to this */
};

/* A trial that has ended. */
typedef struct trial_result {
    int level, candidate;
    double cost[2];                      /* level, candidate */
    bool candidate_won;
} trial_result;

/* Level 0 is off. A round tries the level against 0, then higher and lower levels. */
typedef struct trial_levels {
    int level;
    int start, most;                     /* the first estimate; the highest level */
    bool never_off;
    int other;                           /* a level above 0 to come back to, while level is 0 */
    int candidate;                       /* -1: no trial is under way */
    int wait;                            /* tokens until the next trial */
    int rest;                            /* after this round */
    int next_try;                        /* what the round tries next */
    int round_level;                     /* level when the round began */
    bool climbing;                       /* a step in the same direction won last */
    trial trial;
    trial_result last, switched;         /* the last trial; the last that switched on or off */
} trial_levels;

/* start 1 .. most, or 0 with most 0: nothing is ever tried. on: whether to begin with it. */
void trial_levels_begin(trial_levels *f, int start, int most, bool on, bool never_off);
int trial_levels_now(const trial_levels *f);     /* for the next token */

typedef enum trial_event {
    TRIAL_NOTHING,
    TRIAL_ENDED,                         /* a trial has ended: last */
    TRIAL_SWITCHED                       /* a round has ended, and level went to 0 or left it:
                                          * switched has the reason */
} trial_event;

/* After a token that cost so much; 0: unknown. */
trial_event trial_levels_token(trial_levels *f, double cost);

/* ---- worth its cost -------------------------------------------------------------------------- */

enum {
    TRIAL_WORTH_EVERY = 256,             /* tokens from one trial to the next; of the first rest */
    TRIAL_WORTH_REST = 4096              /* tokens of the longest rest */
};

/* Work that slows down the tokens during which it runs and raises the hit rate of later ones.
 * Trials measure its cost; its benefit is the change of the hit rate from one trial to the next.
 * Work whose cost is high and whose benefit is low in two successive trials rests, twice as long
 * each time. A falling hit rate ends the rest. */
typedef struct trial_worth {
    bool resting;
    int left;                            /* tokens until a trial, or of a rest */
    int rest;                            /* tokens of the next rest */
    int n_lost;                          /* successive trials that found it not worth its cost */
    trial trial;
    double hit_rate;                     /* of about the last 64 tokens; -1: unknown */
    double earlier;                      /* hit_rate at the last trial, or when the rest began */
    double price, gain;                  /* of the last trial: share of a token's time; hit rate */
} trial_worth;

void trial_worth_begin(trial_worth *w);
bool trial_worth_runs(const trial_worth *w);     /* during the next token */

typedef enum trial_worth_event {
    TRIAL_WORTH_NOTHING, TRIAL_WORTH_RESTS, TRIAL_WORTH_WAKES
} trial_worth_event;

/* After a token of so many seconds with hits among its n choices. */
trial_worth_event trial_worth_token(trial_worth *w, double seconds, int hits, int n);

#endif
