/* batch.h - some tokens on their way through the layers together. */
#ifndef ENGINE_BATCH_H
#define ENGINE_BATCH_H

#include "tiers/plan.h"

typedef struct batch {
    const int32_t *ids;                  /* [n]; NULL in a recording: the token that the device's
                                          * cursor names */
    int n;                               /* tokens, 1 .. the chunk that everything was made for */
    int pos;                             /* position of the first */
    int last;                            /* no token is beyond this position: the GPU sizes
                                          * attention by it, so a recording is good up to it */
    prompt_strategy strategy;            /* of experts that are not in VRAM, for more than GPU_FEW
                                          * tokens */
    progress_fn *watch;                  /* told of layers; or NULL */
    void *watch_ctx;
} batch;

#endif
