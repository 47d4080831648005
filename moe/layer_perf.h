/* layer_perf.h - what another program of this kind says it saw of its router, as a profile.
 *
 * The object is that of the HTTP route /moe-layer-perf: for each layer how often experts were
 * chosen, where they were, and how long the layer waited. It comes over the network and names no
 * model, so every index and every number is looked at; keys that are not needed may be anything.
 *
 *   {"schema": "llama.cpp.moe_layer_opt_perf.v1",
 *    "layers": [{"layer": 0, "calls": 7, "cold_slots_per_call": 1.5,
 *                "hot_experts": [[3, 12], ...], "cold_experts": [...], "experts": [...]}, ...]}
 *
 * Any thread. */
#ifndef MOE_LAYER_PERF_H
#define MOE_LAYER_PERF_H

#include "moe/usage_profile.h"

struct json_t;                           /* of Jansson */

extern const char *const layer_perf_schema;      /* of what this program writes */

/* Of a model with this shape. < 0 with *out NULL and one line that names the thing. Where one list
 * has an expert twice, and where the layers have a layer twice, the counts are added up. */
int layer_perf_read(usage_profile **out, const struct json_t *root, int n_layer, int n_expert,
                    err_ctx *err);

#endif
