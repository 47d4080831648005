/* token_scores.h - log probabilities of a token and of the likeliest ones.
 *
 * Natural logarithms of the softmax of the model's logits, before biases, temperature, truncation
 * and mask. Nothing is allocated. Any thread. */
#ifndef ENGINE_SESSION_TOKEN_SCORES_H
#define ENGINE_SESSION_TOKEN_SCORES_H

#include "loader/base.h"

enum { TOKEN_SCORES_MOST = 20 };
#define TOKEN_SCORES_LEAST -9999.0f      /* lower bound, and the score of probability 0 */

typedef struct token_score { int32_t id; float logprob; } token_score;
typedef struct token_scores {
    float logprob;                       /* of the token */
    int n_top;
    token_score top[TOKEN_SCORES_MOST];  /* the likeliest first, of equals the first id */
} token_scores;

/* n logits, at least one of them a number; n_top is cut to TOKEN_SCORES_MOST and n. */
void token_scores_make(token_scores *out, const float *logits, int n, int32_t id, int n_top);

#endif
