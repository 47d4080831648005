/* moe_view.h - the JSON of /moe-layer-perf and /moe-hot-cache, as dashboards for expert caches
 * read it.
 *
 * Pure functions of counts. Times that are not measured are 0. */
#ifndef CLI_SERVE_MOE_VIEW_H
#define CLI_SERVE_MOE_VIEW_H

#include "engine/engine_stats.h"
#include "engine/perf_counts.h"
#include "moe/usage_profile.h"

typedef struct moe_counts {
    perf_level level;
    const usage_profile *profile;        /* NULL: uses are not counted */
    bool cached;                         /* there is a VRAM cache; without it all uses are cold */
    perf_counts all;
    const perf_layer *layers;            /* [n_layer] with PERF_FULL, or NULL */
    int n_layer;
} moe_counts;

void moe_view_perf(textbuf *out, const moe_counts *c);

/* tiers [n_layer, n_expert]: expert_tier. */
void moe_view_cache(textbuf *out, bool active, uint64_t budget, uint64_t used, const uint8_t *tiers,
                    int n_layer, int n_expert);

/* The result of replacing the experts in VRAM. */
typedef struct moe_update {
    double hot, cold;                    /* uses in the list that was sent */
    int candidates;                      /* experts that the list ranks high enough */
    int capacity;                        /* experts that VRAM holds */
    int exchanged, layers_changed;
} moe_update;
void moe_view_update(textbuf *out, const moe_update *u);

#endif
