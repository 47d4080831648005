/* moe_view.h - what the router chose, and where experts were, in the JSON that dashboards for
 * caches of experts read: the bodies of /moe-layer-perf and /moe-hot-cache.
 *
 * Plain functions of counts. Times that nobody takes here are 0. */
#ifndef CLI_SERVE_MOE_VIEW_H
#define CLI_SERVE_MOE_VIEW_H

#include "engine/instruments.h"
#include "moe/expert_profile.h"

typedef struct moe_counts {
    perf_level level;
    const expert_profile *seen;          /* NULL: nobody counts */
    bool cached;                         /* experts in VRAM make room for others; if not, all
                                          * choices count as cold */
    perf_counts all;
    const perf_layer *layers;            /* [n_layer] with PERF_FULL; or NULL */
    int n_layer;
} moe_counts;

void moe_view_perf(textbuf *to, const moe_counts *c);

/* where [n_layer, n_expert]: expert_tier. */
void moe_view_cache(textbuf *to, bool active, uint64_t budget, uint64_t used, const uint8_t *where,
                    int n_layer, int n_expert);

/* What a replacement came to. */
typedef struct moe_update {
    double hot, cold;                    /* slots of what was sent */
    int candidates, most;                /* experts that deserve a place, and places */
    int exchanged, layers_changed;
} moe_update;
void moe_view_update(textbuf *to, const moe_update *u);

#endif
