/* expert_predictor.h - which guesses about a layer's experts are worth a read.
 *
 * engine/host/router_ahead.h guesses; this counts how often the guess of each rank was right
 * recently, and picks only good ranks. A wrong pick costs a read and never changes a bit of the
 * result. One thread at a time. */
#ifndef MOE_EXPERT_PREDICTOR_H
#define MOE_EXPERT_PREDICTOR_H

#include "loader/base.h"

enum { PREDICTOR_PICKS = 3 };            /* at most, for a layer */

typedef struct expert_predictor {
    int layer;                           /* the layer whose picks are not judged yet; -1: none */
    int picks[PREDICTOR_PICKS], n_pick;
    float right[PREDICTOR_PICKS];        /* how often the pick of that rank was right recently */
} expert_predictor;

void expert_predictor_init(expert_predictor *p);

/* Given a guess about a layer (n experts that would have to be read, the likeliest first): how many
 * of the first are worth it. Remembered until expert_predictor_tell. */
int expert_predictor_pick(expert_predictor *p, int layer, const int *experts, int n);
void expert_predictor_tell(expert_predictor *p, int layer, const int *chosen, int n);

#endif
