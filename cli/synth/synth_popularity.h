/* synth_popularity.h - how often experts are chosen in a synthetic model: the numbers behind skew.
 * Pure functions. */
#ifndef CLI_SYNTH_SYNTH_POPULARITY_H
#define CLI_SYNTH_SYNTH_POPULARITY_H

/* How often the expert of each rank is meant to be among the n_used of a token: share[0] is the
 * most popular one, the sum is n_used. Proportional to (rank + 1)^-skew, at most 0.95. */
void synth_shares(double *share, int n_expert, int n_used, double skew);

/* x such that a standard normal number exceeds it with probability p. */
double synth_quantile(double p);

#endif
