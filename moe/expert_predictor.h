/* expert_predictor.h - which guesses about a layer's experts are worth a read.
 *
 * Somebody else guesses (engine/host/router_ahead.h); here it is counted how often the guess of
 * each rank was right of late, and only good ranks are picked. A wrong pick costs a read, and never
 * a bit: results do not depend on it. One thread at a time. */
#ifndef MOE_EXPERT_PREDICTOR_H
#define MOE_EXPERT_PREDICTOR_H

#include "loader/base.h"

enum { PREDICTOR_PICKS = 3 };            /* at most, for a layer */

typedef struct expert_predictor {
    int layer;                           /* that picks are open for; -1: none */
    int picks[PREDICTOR_PICKS], n_pick;
    float right[PREDICTOR_PICKS];        /* how often the pick of that rank was right of late */
} expert_predictor;

void expert_predictor_init(expert_predictor *p);

/* Of a guess about a layer, n experts that would have to be read, the likeliest first: how many of
 * the first are worth it. Remembered until the layer's choice is told. */
int expert_predictor_pick(expert_predictor *p, int layer, const int *experts, int n);
void expert_predictor_tell(expert_predictor *p, int layer, const int *chosen, int n);

#endif
