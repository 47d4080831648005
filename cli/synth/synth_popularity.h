/* synth_popularity.h - popularity of experts in a synthetic model with skew. Pure functions. */
#ifndef CLI_SYNTH_SYNTH_POPULARITY_H
#define CLI_SYNTH_SYNTH_POPULARITY_H

/* share[r]: the probability that the expert of rank r is among the n_used of a token. Proportional
 * to (r + 1)^-skew, at most 0.95; the sum is n_used. */
void synth_shares(double *share, int n_expert, int n_used, double skew);

/* x such that a standard normal number exceeds it with probability p. */
double synth_quantile(double p);

#endif
