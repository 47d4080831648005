/* attention.h - softmax attention of one head of one token over the stored keys. */
#ifndef ENGINE_CPU_ATTENTION_H
#define ENGINE_CPU_ATTENTION_H

#include "engine/kv.h"

enum { ATTEND_TILE = 64 };               /* keys decoded at a time */

typedef struct attend_args {
    float *out;                          /* [n, n_head * head_dim] */
    const float *q;                      /* [n, n_head * head_dim], rotated */
    const kv_store *cache;                     /* holds the tokens' own keys and values already */
    int layer;
    int n_head, n_head_kv, head_dim;
    int pos;                             /* of token 0 */
    int window;                          /* keys visible including the token's own; 0: all */
    float scale;
    const float *sinks;                  /* [n_head] extra logits without a value, or NULL */
} attend_args;

/* Head h of token t. Goes through the keys in tiles with a running maximum, so no buffer grows with
 * the context. scratch: attend_scratch() floats, not shared with a call at the same time. */
void attend_head(const attend_args *a, int t, int h, float *scratch);
size_t attend_scratch(int head_dim);

#endif
