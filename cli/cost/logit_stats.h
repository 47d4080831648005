/* logit_stats.h - likelihood and divergence of rows of logits, in nats, with sums in double. */
#ifndef CLI_COST_LOGIT_STATS_H
#define CLI_COST_LOGIT_STATS_H

#include "loader/base.h"

/* -log of the probability that a row of n logits gives to a token. */
double logit_stats_nll(const float *row, int n, int32_t id);

/* Kullback-Leibler divergence KL(p || q) of the distributions of two rows. 0 for equal rows; NaN
 * if a logit is NaN. */
double logit_stats_kl(const float *p, const float *q, int n);

#endif
