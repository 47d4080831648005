/* batch.h - tokens that go through the layers together: rows of tokens, each of one conversation.
 *
 * Products, routers and experts compute all tokens alike. Only what reads and writes a
 * conversation's memory, attention and DeltaNet, goes row by row. */
#ifndef ENGINE_BATCH_H
#define ENGINE_BATCH_H

#include "engine/session/kept_inputs.h"
#include "engine/session/state.h"
#include "tiers/plan.h"

/* Consecutive tokens of one conversation. */
typedef struct batch_row {
    state *st;
    recurrent *next;                     /* gets the recurrent state after its tokens; may be that
                                          * of st */
    int pos;                             /* of its first token in the conversation */
    int first, n;                        /* its tokens in the batch */
} batch_row;

typedef struct batch {
    const int32_t *ids;                  /* [n]; NULL in a recording, whose tokens are in device
                                          * memory */
    int n;                               /* tokens of all rows, 1 .. the runner's chunk */
    const batch_row *rows;               /* [n_row], without gaps; one on a GPU, unless they have
                                          * up to GPU_FEW tokens together, or are a pass */
    int n_row;
    bool is_pass;                        /* tokens of answers, on a GPU up to GPU_RECORDED: each has
                                          * the bits that it has alone. Their experts are counted */
    int last;                            /* no token is beyond this position: the GPU sizes
                                          * attention by it, so a recording is good up to it */
    kept_inputs *keep;                   /* gets what forward_again needs; or NULL */
    const float *hidden;                 /* [n, n_embd]: for the next-token block, whose row t has
                                          * position t, the vector of token t and the id of token
                                          * t + 1; NULL: a batch of the trunk */
    bool chained;                        /* these vectors are the block's own, not the trunk's */
    prompt_strategy strategy;            /* for cold experts, with more than GPU_MAIL tokens */
    progress_fn *watch;                  /* called after layers; or NULL */
    void *watch_ctx;
} batch;

#endif
