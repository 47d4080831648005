/* fetch_share.h - how many matrices of a layer's cold experts cross the bus: found by trying.
 *
 * A level is that number where all chosen experts are cold; 0: post-fetch is off. The first one is
 * a guess. Now and then the level meets rivals: none at all, some more, some fewer. Both are used
 * in turn, a few tokens each, until one is ahead by enough turns; a rival that is worse goes sooner
 * than one that is better stays. What is compared is the time for each cold expert, the middle one
 * of a turn, so that a slow token now and then does not count.
 *
 * Decides, and no more: no clock and no device here. */
#ifndef ENGINE_FETCH_SHARE_H
#define ENGINE_FETCH_SHARE_H

#include "loader/base.h"

enum {
    SHARE_WARM = 4,                      /* tokens before the first duel */
    SHARE_BLOCK = 4,                     /* tokens of a turn; the first is not counted */
    SHARE_TURNS = 16,                    /* of either side, at most, in a duel */
    SHARE_AHEAD = 4,                     /* turns more than it lost: the rival stays */
    SHARE_BEHIND = 2,                    /* turns more than it won: it goes */
    SHARE_REST = 256,                    /* tokens from a round of duels to the next one, ... */
    SHARE_MOST_REST = 2048               /* ... twice as many if it changed nothing, up to this */
};

/* A duel that has ended. */
typedef struct share_duel {
    int level, rival;
    double cost[2];                      /* s for a cold expert with the level, with its rival */
    bool rival_won;
} share_duel;

typedef struct fetch_share {
    int level;
    int start;                           /* the guess */
    int most;                            /* the highest level there is */
    bool never_off;
    int other;                           /* a level above 0 to come back to, while level is 0 */
    int rival;                           /* -1: no duel is under way */
    int wait;                            /* tokens until the next one */
    int rest;                            /* behind this round */
    int to_try;                          /* an index into what a round tries */
    int from;                            /* level at the round's begin */
    bool climbing;                       /* the last duel was won by a step the same way */
    int n_token;                         /* of the duel */
    int ahead;                           /* turns that the rival won, less those it lost */
    double turn[SHARE_BLOCK];            /* costs of the turn under way */
    int n_turn;
    double own_turn;                     /* of the level's last turn; 0: nothing was cold */
    int n_cold;                          /* of the last token that counted */
    double cost[2][SHARE_TURNS];         /* of turns that are over */
    int n_cost[2];
    share_duel last, turned;             /* the last duel; the last that turned it on or off */
} fetch_share;

/* start 1 .. most, or 0 with most 0: nothing is ever fetched. on: whether to begin with it. */
void fetch_share_begin(fetch_share *f, int start, int most, bool on, bool never_off);

/* The level for the next token. */
int fetch_share_now(const fetch_share *f);

typedef enum share_news {
    SHARE_NO_NEWS,
    SHARE_DUEL,                          /* a duel has ended: f->last */
    SHARE_TURNED                         /* a round has, and what was on is off or the other way
                                          * round: f->turned tells why */
} share_news;

/* Behind a token of s seconds with n_cold experts that were not in VRAM. */
share_news fetch_share_token(fetch_share *f, double s, int n_cold);

/* What a level means where m of k chosen experts are cold: so many downs, and whole experts. First
 * downs alone: while they cross, the CPU has the rest of the expert to do. With one or two experts
 * a token some levels mean the same. */
void fetch_share_split(int *n_down, int *n_all, int level, int m, int k, int most_down,
                       int most_all);

#endif
