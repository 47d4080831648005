/* synth_popularity.h - how often experts are chosen in a synthetic model: the numbers behind it.
 *
 * Skew: how popular the expert of each rank is. Drift: which expert has which rank changes. Weights
 * never do, so the model must remember something of the tokens that it has seen:
 *
 *   topics   a token's embedding carries one of 16 topics in some of its channels;
 *   latches  four heads of one layer each hold the topic of one token for a while and write it to
 *            other channels of the residual, the held ones;
 *   routers  each reads from there which topic one of the latches holds, and has a ranking of its
 *            own for every topic.
 *
 * So a layer's popularity always falls as the skew says, and which expert is where on that curve
 * changes at once, in a quarter of the layers at a time. A latch takes the topic of a new token
 * after T tokens on average, at any time with the same probability: what is popular now and what
 * was so t tokens ago agree like exp(-t / T), and 1 time in 16 a topic comes back.
 *
 * Pure functions; synth_drift.c turns their results into tensors. */
#ifndef CLI_SYNTH_SYNTH_POPULARITY_H
#define CLI_SYNTH_SYNTH_POPULARITY_H

#include "engine/models/rope.h"

/* ---- skew ---- */

/* How often the expert of each rank is meant to be among the n_used of a token: share[0] is the
 * most popular one, the sum is n_used. Proportional to (rank + 1)^-skew, at most 0.95. */
void synth_shares(double *share, int n_expert, int n_used, double skew);

/* x such that a standard normal number exceeds it with probability p. */
double synth_quantile(double p);

/* ---- drift ---- */

enum {
    DRIFT_LATCHES = 4, DRIFT_TOPICS = 16,
    DRIFT_COLS = 256,                    /* channels that carry a topic, and that are held */
    DRIFT_DIM_MAX = 256,                 /* of a head */
    DRIFT_HELD = DRIFT_LATCHES * DRIFT_TOPICS,   /* what latches can write: one topic each */
    DRIFT_MIN = 16, DRIFT_MAX = 16384    /* T: with more, too few tokens of a vocabulary would ever
                                          * open a latch */
};

/* A latch that forgets a share sigmoid(x) of what it holds, x normal with this standard deviation:
 * the mean that x must have for a mean share of 1 / tokens. */
double synth_latch_mean(double spread, double tokens);

/* A latch made of attention: biases q[dim] of its query head and k[dim] of the key head that all
 * latches share; the first rope->dim of them turn. The product of key weights and a token has
 * standard deviation 1 in every dimension, that of query weights is 0. The head then looks at one
 * token, on average `tokens` ago. */
void synth_latch_biases(float *q, float *k, int latch, const rope_spec *rope, int dim,
                        double tokens);

/* readers[DRIFT_HELD, DRIFT_COLS] from held, of the same shape: the product of reader i and vector
 * j of held is 1 if i is j, else 0. False if the vectors are not independent. */
bool synth_latch_readers(float *readers, const float *held);

#endif
