/* logit_stats.h - what rows of logits say, in nats. Sums are taken in double. */
#ifndef CLI_COST_LOGIT_STATS_H
#define CLI_COST_LOGIT_STATS_H

#include "loader/base.h"

/* -log of the probability that a row of n logits gives to a token. */
double logit_stats_nll(const float *row, int n, int32_t id);

/* Kullback-Leibler divergence of what row q says from what row p says: what is lost where q stands
 * in for p. 0 for equal rows, and not a number if a row holds something that is none. */
double logit_stats_kl(const float *p, const float *q, int n);

#endif
