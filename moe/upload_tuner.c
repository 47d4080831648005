/* upload_tuner.c - trials of copies against none.
 *
 * Turns of a trial alternate, so that a machine that gets slower or faster meanwhile favours
 * neither; the middle token of a turn stands for it, so that one slow token decides nothing. */
#include "moe/upload_tuner.h"

#include <math.h>
#include <stdlib.h>

static const double too_dear = 0.02;     /* of a token's time */
static const double worth_it = 0.005;    /* of all choices, from one trial to the next */
static const double too_few = 0.02;      /* choices lost during a rest */
static const double learning = 1.0 / 64;

void upload_tuner_begin(upload_tuner *t)
{
    *t = (upload_tuner){ .left = UPLOAD_EVERY, .trial = -1, .rest = UPLOAD_EVERY, .share = -1,
                         .share_then = -1 };
}

bool upload_tuner_allows(const upload_tuner *t)
{
    if (t->trial >= 0) return t->trial / UPLOAD_TURN % 2 == 0;
    return !t->resting;
}

static double middle(double *list, int n)
{
    sort_doubles(list, n);
    return (list[(n - 1) / 2] + list[n / 2]) / 2;
}

/* What copies cost: the middle one of the turns with them against that of those without. */
static double price_of(const upload_tuner *t)
{
    double with[UPLOAD_TURNS / 2], without[UPLOAD_TURNS / 2];
    for (int i = 0; i < UPLOAD_TURNS; i++) (i % 2 ? without : with)[i / 2] = t->cost[i];
    const double base = middle(without, UPLOAD_TURNS / 2);
    return base > 0 ? middle(with, UPLOAD_TURNS / 2) / base - 1 : 0;
}

static upload_event end_trial(upload_tuner *t)
{
    t->trial = -1;
    t->left = UPLOAD_EVERY;
    t->price = price_of(t);
    t->gain = t->share_then < 0 ? 1 : t->share - t->share_then;
    t->share_then = t->share;
    if (t->price <= too_dear || t->gain >= worth_it) {
        t->n_vain = 0;
        t->rest = UPLOAD_EVERY;
        return UPLOAD_NOTHING;
    }
    if (++t->n_vain < 2) return UPLOAD_NOTHING;
    t->n_vain = 0;
    t->resting = true;
    t->left = t->rest;
    if (t->rest < UPLOAD_LONGEST_REST) t->rest *= 2;
    return UPLOAD_RESTS;
}

static upload_event rest(upload_tuner *t)
{
    if (--t->left > 0 && t->share > t->share_then - too_few) return UPLOAD_NOTHING;
    t->resting = false;
    t->left = UPLOAD_EVERY;
    t->share_then = t->share;
    return UPLOAD_WAKES;
}

upload_event upload_tuner_token(upload_tuner *t, double s, int hits, int n)
{
    const double share = n > 0 ? (double)hits / n : 1;
    t->share = t->share < 0 ? share : t->share + learning * (share - t->share);
    if (t->resting) return rest(t);
    if (t->trial < 0) {
        if (--t->left == 0) t->trial = 0;
        return UPLOAD_NOTHING;
    }
    t->token[t->trial % UPLOAD_TURN] = s;
    if (++t->trial % UPLOAD_TURN == 0)
        t->cost[t->trial / UPLOAD_TURN - 1] = middle(t->token, UPLOAD_TURN);
    return t->trial == UPLOAD_TURN * UPLOAD_TURNS ? end_trial(t) : UPLOAD_NOTHING;
}
