/* batch.h - tokens that go through the layers together. */
#ifndef ENGINE_BATCH_H
#define ENGINE_BATCH_H

#include "tiers/plan.h"

typedef struct batch {
    const int32_t *ids;                  /* [n]; NULL in a recording: the token that the device's
                                          * cursor names */
    int n;                               /* tokens, 1 .. the session's chunk */
    int pos;                             /* position of the first */
    int last;                            /* no token is beyond this position: the GPU sizes
                                          * attention by it, so a recording is good up to it */
    prompt_strategy strategy;            /* for cold experts, with more than GPU_FEW tokens */
    progress_fn *watch;                  /* called after layers; or NULL */
    void *watch_ctx;
} batch;

#endif
