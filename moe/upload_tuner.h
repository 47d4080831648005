/* upload_tuner.h - whether experts should go on changing places in VRAM: the clock decides.
 *
 * A copy costs its own token some time on the bus, and pays in later tokens, which find more of
 * what they choose. So now and then some tokens run with copies and some without, in turn: that is
 * the price. What is bought shows in the share of choices that were found, from one trial to the
 * next. Copies that twice in succession cost something and buy nothing rest, longer each time; a
 * share that falls wakes them. Decides and never touches anything; one thread at a time. */
#ifndef MOE_UPLOAD_TUNER_H
#define MOE_UPLOAD_TUNER_H

#include "loader/base.h"

enum {
    UPLOAD_TURN = 16,                    /* tokens with copies, then as many without */
    UPLOAD_TURNS = 6,                    /* of a trial */
    UPLOAD_EVERY = 256,                  /* tokens from one trial to the next */
    UPLOAD_LONGEST_REST = 4096
};

typedef struct upload_tuner {
    bool resting;
    int left;                            /* tokens until a trial, or of a rest */
    int trial;                           /* tokens of the trial under way; -1: none */
    double cost[UPLOAD_TURNS];           /* seconds of its turns, the middle token of each */
    double token[UPLOAD_TURN];           /* of the turn under way */
    double share;                        /* of choices that are found, of late */
    double share_then;                   /* at the last trial, or when the rest began */
    int n_vain;                          /* trials in succession that found copies not worth it */
    int rest;                            /* tokens of the next rest */
    double price, gain;                  /* of the last trial: parts of a token's time; of all
                                          * choices */
} upload_tuner;

void upload_tuner_begin(upload_tuner *t);

/* Whether copies may begin before the next token. */
bool upload_tuner_allows(const upload_tuner *t);

typedef enum upload_event { UPLOAD_NOTHING, UPLOAD_RESTS, UPLOAD_WAKES } upload_event;

/* After a token that took s seconds and found hits of its n choices. */
upload_event upload_tuner_token(upload_tuner *t, double s, int hits, int n);

#endif
