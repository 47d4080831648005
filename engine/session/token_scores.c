/* token_scores.c - two passes over a row of logits: the largest ones, then the sum of all. */
#include "engine/session/token_scores.h"

#include <math.h>

/* A logit this far below the largest adds nothing to a float sum, even 200,000 times. */
#define NOTHING -45.0

/* Inserts a token among the best so far; of equals the first one stays first. */
static void offer(token_scores *out, int most, int32_t id, float logit)
{
    int i = out->n_top;
    if (i == most && (most == 0 || !(logit > out->top[most - 1].logprob))) return;
    if (i == most) i--;
    else out->n_top++;
    for (; i > 0 && logit > out->top[i - 1].logprob; i--) out->top[i] = out->top[i - 1];
    out->top[i] = (token_score){ id, logit };
}

static float logprob_of(float logit, double largest, double log_sum)
{
    const double x = logit - largest - log_sum;
    return x > (double)TOKEN_SCORES_LEAST ? (float)x : TOKEN_SCORES_LEAST;       /* NaN: least */
}

void token_scores_make(token_scores *out, const float *logits, int n, int32_t id, int n_top)
{
    const int most = n_top < TOKEN_SCORES_MOST ? n_top : TOKEN_SCORES_MOST;
    float largest = -INFINITY, bar = -INFINITY;
    double sum = 0;
    out->n_top = 0;
    for (int i = 0; i < n; i++) {
        if (logits[i] > largest) largest = logits[i];
        if (!(logits[i] > bar)) continue;
        offer(out, most, i, logits[i]);
        if (out->n_top == most && most > 0) bar = out->top[most - 1].logprob;
    }
    for (int i = 0; i < n; i++) {
        const double x = (double)logits[i] - (double)largest;
        if (x > NOTHING) sum += exp(x);
    }
    const double log_sum = log(sum);
    out->logprob = id >= 0 && id < n ? logprob_of(logits[id], (double)largest, log_sum)
                                     : TOKEN_SCORES_LEAST;
    for (int i = 0; i < out->n_top; i++)
        out->top[i].logprob = logprob_of(out->top[i].logprob, (double)largest, log_sum);
}
