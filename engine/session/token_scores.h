/* token_scores.h - how likely a token was among all others, and which were the likeliest.
 *
 * Natural logarithms of the softmax of the logits as the model gave them: before biases,
 * temperature, truncation and any form. Nothing is allocated. */
#ifndef ENGINE_SESSION_TOKEN_SCORES_H
#define ENGINE_SESSION_TOKEN_SCORES_H

#include "loader/base.h"

enum { TOKEN_SCORES_MOST = 20 };
#define TOKEN_SCORES_LEAST -9999.0f      /* of a token that has no chance at all */

typedef struct token_score { int32_t id; float logprob; } token_score;
typedef struct token_scores {
    float logprob;                       /* of the token */
    int n_top;
    token_score top[TOKEN_SCORES_MOST];  /* the likeliest first, of equals the first id */
} token_scores;

/* n logits, at least one of them a number; n_top up to TOKEN_SCORES_MOST, and not more than n are
 * given. */
void token_scores_make(token_scores *out, const float *logits, int n, int32_t id, int n_top);

#endif
