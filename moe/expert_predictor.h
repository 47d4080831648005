/* expert_predictor.h - picks the predicted experts that are worth a read.
 *
 * engine/host/router_ahead.h predicts. This file measures the recent hit rate of each rank of the
 * prediction and picks only ranks with a high one. A wrong pick costs a read and cannot change a
 * result. One thread at a time. */
#ifndef MOE_EXPERT_PREDICTOR_H
#define MOE_EXPERT_PREDICTOR_H

#include "loader/base.h"

enum { PREDICTOR_PICKS = 3 };            /* at most, for a layer */

typedef struct expert_predictor {
    int layer;                           /* of the picks that are not yet compared; -1: none */
    int picks[PREDICTOR_PICKS], n_pick;
    float right[PREDICTOR_PICKS];        /* recent hit rate of each rank */
} expert_predictor;

void expert_predictor_init(expert_predictor *p);

/* experts: n predicted experts of a layer that are not in RAM, the likeliest first. Returns how
 * many of the first to read, and keeps these for expert_predictor_check. */
int expert_predictor_pick(expert_predictor *p, int layer, const int *experts, int n);
/* Compares the layer's picks with the experts that its router chose. */
void expert_predictor_check(expert_predictor *p, int layer, const int *chosen, int n);

#endif
