/* postfetch_tuner.h - how many matrices of a layer's cold experts cross the bus: found by trying.
 *
 * A level is that number where all chosen experts are cold; 0: post-fetch is off. The first level
 * is a guess. Now and then the level is compared with candidates: none at all, some more, some
 * fewer. Level and candidate alternate, a few tokens each, until one is ahead by enough turns; it
 * takes fewer turns to drop a candidate than to adopt one. The time per cold expert is compared,
 * the median of a turn, so that an occasional slow token does not count.
 *
 * It only decides: no clock and no device here. */
#ifndef MOE_POSTFETCH_TUNER_H
#define MOE_POSTFETCH_TUNER_H

#include "loader/base.h"

enum {
    TUNER_WARM = 4,                      /* tokens before the first trial */
    TUNER_BLOCK = 4,                     /* tokens of a turn; the first is not counted */
    TUNER_TURNS = 16,                    /* of either side, at most, in a trial */
    TUNER_AHEAD = 4,                     /* turns won less turns lost: the candidate stays */
    TUNER_BEHIND = 2,                    /* turns lost less turns won: it goes */
    TUNER_REST = 256,                    /* tokens from a round of trials to the next one, ... */
    TUNER_MOST_REST = 2048               /* ... twice as many if it changed nothing, up to this */
};

/* A trial that has ended. */
typedef struct tuner_trial {
    int level, candidate;
    double cost[2];                      /* s per cold expert: level, candidate */
    bool candidate_won;
} tuner_trial;

typedef struct postfetch_tuner {
    int level;
    int start;                           /* the guess */
    int most;                            /* the highest level there is */
    bool never_off;
    int other;                           /* a level above 0 to come back to, while level is 0 */
    int candidate;                       /* -1: no trial is under way */
    int wait;                            /* tokens until the next one */
    int rest;                            /* after this round */
    int to_try;                          /* an index into what a round tries */
    int from;                            /* level when the round began */
    bool climbing;                       /* a step in the same direction won last */
    int n_token;                         /* of the trial */
    int ahead;                           /* turns that the candidate won, less those it lost */
    double turn[TUNER_BLOCK];            /* costs of the turn under way */
    int n_turn;
    double own_turn;                     /* of the level's last turn; 0: nothing was cold */
    int n_cold;                          /* of the last token that counted */
    double cost[2][TUNER_TURNS];         /* of turns that are over */
    int n_cost[2];
    tuner_trial last, switched;          /* the last trial; the last that switched */
} postfetch_tuner;

/* start 1 .. most, or 0 with most 0: nothing is ever fetched. on: whether to begin with it. */
void postfetch_tuner_begin(postfetch_tuner *f, int start, int most, bool on, bool never_off);

/* The level for the next token. */
int postfetch_tuner_now(const postfetch_tuner *f);

typedef enum tuner_event {
    TUNER_NOTHING,
    TUNER_TRIAL_ENDED,                   /* a trial has ended: f->last */
    TUNER_SWITCHED                       /* a round has ended, and post-fetch went on or off:
                                          * f->switched tells why */
} tuner_event;

/* After a token of s seconds with n_cold experts that were not in VRAM. */
tuner_event postfetch_tuner_token(postfetch_tuner *f, double s, int n_cold);

/* What a level means where m of k chosen experts are cold: how many downs, and how many whole
 * experts. First downs alone: while they cross, the CPU does the rest of the expert. With one or
 * two experts a token some levels mean the same. */
void postfetch_tuner_split(int *n_down, int *n_all, int level, int m, int k, int most_down,
                       int most_all);

#endif
