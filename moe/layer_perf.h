/* layer_perf.h - reads another program's counts of chosen experts as a usage profile.
 *
 * The object is that of the HTTP route /moe-layer-perf: for each layer the counts of chosen
 * experts, hot or cold, and the layer's waits. It comes over the network and names no model, so
 * every index and number is checked; unknown keys are ignored.
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

extern const char *const layer_perf_schema;      /* of objects that this program writes */

/* For a model with this shape. < 0 with *out NULL and *err filled. Counts of an expert or a layer
 * that occurs twice are added up. */
int layer_perf_read(usage_profile **out, const struct json_t *root, int n_layer, int n_expert,
                    err_ctx *err);

#endif
