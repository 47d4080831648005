/* profile_scores.h - scores experts by a profile: the best ones get VRAM frames.
 *
 * A score is an expert's share of the choices in its layer, times the layer's weight:
 *
 *   score(l, e) = share(l, e) * v(l)
 *   share(l, e) = raw(l, e) / sum over i of raw(l, i)      1 / n_expert in a layer with no choices
 *   v(l)        = w(l)^curve / mean over layers of w^curve
 *
 * All are without unit. Shares of a layer add up to 1 and v has mean 1, so the scores of all
 * experts add up to n_layer in every mode, and a selection by score mixes the best experts of all
 * layers. The mode defines w(l), the weight of a layer before the curve:
 *
 *   flat             1
 *   pressure         x(l) = cold_slots(l) / calls(l), slots per call, against its mean
 *   smooth pressure  (sqrt(pressure) + 1) / 2
 *   time             t(l) = (cold_s(l) + join_s(l)) / calls(l), seconds per call, against its mean
 *   balanced         no w: v(l) is the mean of the v(l) of the four above
 *
 * "Against its mean": x(l) / mean of x over layers with calls, and at least 1/64, so that experts
 * of a layer that has no cold ones today keep their order. 1 in a layer without calls, and in all
 * layers if the mean is 0.
 *
 * More choices of an expert never lower its score, nor do more cold slots or more seconds of its
 * layer. Pure: no clock, no file, no allocation. */
#ifndef MOE_PROFILE_SCORES_H
#define MOE_PROFILE_SCORES_H

#include "moe/usage_profile.h"

typedef enum weighting_mode {            /* in texts: */
    WEIGHTING_FLAT,                      /* flat */
    WEIGHTING_PRESSURE,                  /* pressure */
    WEIGHTING_SMOOTH_PRESSURE,           /* smooth-pressure */
    WEIGHTING_TIME,                      /* time */
    WEIGHTING_BALANCED,                  /* balanced */
    WEIGHTING_COUNT
} weighting_mode;

typedef struct weighting_options {
    weighting_mode mode;
    double curve;                        /* 0: layers do not matter .. 1: in full */
} weighting_options;

#define WEIGHTING_CURVE 0.5

/* False, with *out as it was, if no mode has this name. */
bool weighting_named(weighting_mode *out, const char *name);

/* score [n_layer, n_expert] of the profile; all are finite and none is negative. */
void profile_scores_of(double *score, const usage_profile *p, const weighting_options *o);

/* Picks the experts of highest score per byte within the budget, the best first; at equal values
 * the lower layer, then the lower expert. An expert that does not fit is skipped, and smaller ones
 * after it may be picked. order [all experts]: layer * n_expert + expert; *n: number of picks.
 * expert_bytes [n_layer]; layers of 0 bytes have no experts. Negative and NaN scores are not
 * picked. O(n log n) for n experts. */
void profile_scores_pick(int *order, int *n, const double *score, const uint64_t *expert_bytes,
                         uint64_t budget, int n_layer, int n_expert);

/* Moves universal experts, which at least half of the profile's tokens chose, to the front of a
 * list of n; keeps their order. n_used: experts that a token chooses in a layer. Returns the number
 * of universal experts. */
int profile_scores_universal(int *order, int n, const usage_profile *p, int n_used);

#endif
