/* expert_predictor.c - a running hit rate of the predictions of each rank.
 *
 * Ranks that are not read are counted too, so that a rank can be picked again. */
#include "moe/expert_predictor.h"

#include <string.h>

static const float right_at_first = 0.9f, right_enough = 0.8f, learning = 1.0f / 32;

void expert_predictor_init(expert_predictor *p)
{
    *p = (expert_predictor){ .layer = -1 };
    for (int i = 0; i < PREDICTOR_PICKS; i++) p->right[i] = right_at_first;
}

int expert_predictor_pick(expert_predictor *p, int layer, const int *experts, int n)
{
    int worth = 0;
    p->layer = layer;
    p->n_pick = min_int(n, PREDICTOR_PICKS);
    memcpy(p->picks, experts, (size_t)p->n_pick * sizeof *p->picks);
    while (worth < p->n_pick && p->right[worth] >= right_enough) worth++;
    return worth;
}

void expert_predictor_check(expert_predictor *p, int layer, const int *chosen, int n)
{
    if (layer == p->layer)
        for (int i = 0; i < p->n_pick; i++) {
            bool right = false;
            for (int c = 0; c < n; c++) right |= chosen[c] == p->picks[i];
            p->right[i] += learning * ((float)right - p->right[i]);
        }
    p->layer = -1;
}
