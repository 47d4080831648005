/* layer_perf.c - counts of another program to a profile.
 *
 * Lists of where experts were come first; if they are all empty, the one without places counts, as
 * choices that made no difference. Times are given for each call, and stay so: profiles hold sums,
 * so they are multiplied by the calls again. */
#include "moe/layer_perf.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

const char *const layer_perf_schema = "llama.cpp.moe_layer_opt_perf.v1";
static const char *const other_schema = "llama.cpp.moe_layer_perf.v1";

/* Of one expert: three of them are still exact as a double. */
static const uint64_t most_uses = (uint64_t)1 << 50;

/* [id, count] pairs into uses [n_expert]. A list that is missing has no pairs. *any: some had a
 * count. */
static int add_list(uint64_t *uses, bool *any, const json_t *layer, const char *name, int l,
                    int n_expert, err_ctx *err)
{
    const json_t *list = json_object_get(layer, name);
    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list))
        return err_set(err, ERR_FORMAT, "layer %d: %s is no list", l, name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i);
        const json_t *id = json_array_get(pair, 0), *n = json_array_get(pair, 1);
        if (!json_is_array(pair) || json_array_size(pair) != 2 || !json_is_integer(id) ||
            !json_is_integer(n) || json_integer_value(id) < 0 || json_integer_value(n) < 0)
            return err_set(err, ERR_FORMAT, "layer %d: element %zu of %s is not [id, count], two "
                           "whole numbers of 0 or more", l, i, name);
        if (json_integer_value(id) >= n_expert)
            return err_set(err, ERR_RANGE, "layer %d: %s has expert %" JSON_INTEGER_FORMAT
                           " of %d", l, name, json_integer_value(id), n_expert);
        uint64_t *u = &uses[json_integer_value(id)];
        const uint64_t more = (uint64_t)json_integer_value(n);
        *u = more > most_uses - *u ? most_uses : *u + more;
        *any |= more > 0;
    }
    return 0;
}

static int count_list(usage_profile *p, bool *any, uint64_t *uses, const json_t *layer,
                      const char *name, expert_where where, int l, err_ctx *err)
{
    const int n_expert = usage_profile_experts(p);
    memset(uses, 0, (size_t)n_expert * sizeof *uses);
    const int rc = add_list(uses, any, layer, name, l, n_expert, err);
    for (int e = 0; rc == 0 && e < n_expert; e++)
        if (uses[e] > 0) usage_profile_count(p, l, e, where, uses[e]);
    return rc;
}

/* A number of a layer, or NAN if it has none. */
static int get_number(double *out, const json_t *layer, const char *name, int l, err_ctx *err)
{
    const json_t *v = json_object_get(layer, name);
    *out = NAN;
    if (!v || json_is_null(v)) return 0;
    if (!json_is_number(v) || !(json_number_value(v) >= 0 && json_number_value(v) <= 1e15))
        return err_set(err, ERR_FORMAT, "layer %d: %s is no number of 0 or more", l, name);
    *out = json_number_value(v);
    return 0;
}

static int read_figures(usage_profile *p, const json_t *layer, int l, err_ctx *err)
{
    enum { CALLS, PER_CALL, TOTAL, JOIN, COLD, HOT, N };
    static const char *const names[N] = {
        "calls", "cold_slots_per_call", "cold_slots_total", "parallel_join_wait_time_per_call_us",
        "parallel_cold_lane_wall_time_per_call_us", "parallel_hot_lane_wall_time_per_call_us",
    };
    double v[N];
    int rc;
    for (int i = 0; i < N; i++)
        if ((rc = get_number(&v[i], layer, names[i], l, err)) < 0) return rc;
    const double calls = v[CALLS] > 0 ? v[CALLS] : 1;    /* what counts is each call's share */
    const double cold = !isnan(v[PER_CALL]) ? v[PER_CALL] * calls : fmax(0, v[TOTAL]);
    const double wait_us = !isnan(v[JOIN]) ? v[JOIN] : fmax(0, v[COLD] - v[HOT]);
    usage_profile_add_layer(p, l, &(layer_uses){ .calls = calls, .cold_slots = cold,
                                                  .join_s = wait_us * 1e-6 * calls });
    return 0;
}

static int read_layer(usage_profile *p, uint64_t *uses, const json_t *layer, size_t i, err_ctx *err)
{
    const json_t *which = json_object_get(layer, "layer");
    const int n_layer = usage_profile_layers(p);
    bool any = false;
    int rc;
    if (!json_is_object(layer)) return err_set(err, ERR_FORMAT, "layers: %zu is no object", i);
    if (!json_is_integer(which) || json_integer_value(which) < 0)
        return err_set(err, ERR_FORMAT, "layers: layer of %zu is no whole number of 0 or more", i);
    if (json_integer_value(which) >= n_layer)
        return err_set(err, ERR_RANGE, "layers: there is layer %" JSON_INTEGER_FORMAT " of %d",
                       json_integer_value(which), n_layer);
    const int l = (int)json_integer_value(which);
    if ((rc = read_figures(p, layer, l, err)) < 0 ||
        (rc = count_list(p, &any, uses, layer, "hot_experts", EXPERT_HOT, l, err)) < 0 ||
        (rc = count_list(p, &any, uses, layer, "cold_experts", EXPERT_COLD, l, err)) < 0)
        return rc;
    if (!any) return count_list(p, &any, uses, layer, "experts", EXPERT_EITHER, l, err);
    memset(uses, 0, (size_t)usage_profile_experts(p) * sizeof *uses);      /* looked at all the
                                                                            * same */
    return add_list(uses, &any, layer, "experts", l, usage_profile_experts(p), err);
}

int layer_perf_read(usage_profile **out, const json_t *root, int n_layer, int n_expert,
                    err_ctx *err)
{
    const json_t *layers = json_object_get(root, "layers");
    const char *name = json_string_value(json_object_get(root, "schema"));
    usage_profile *p;
    *out = NULL;
    if (!name || (strcmp(name, layer_perf_schema) != 0 && strcmp(name, other_schema) != 0))
        return err_set(err, ERR_FORMAT, "schema is neither %s nor %s", other_schema,
                       layer_perf_schema);
    if (!json_is_array(layers)) return err_set(err, ERR_FORMAT, "layers is missing, or no list");
    int rc = usage_profile_create(&p, n_layer, n_expert, err);
    if (rc < 0) return rc;
    uint64_t *uses = mem_array((size_t)n_expert, sizeof *uses);
    if (!uses) rc = err_set(err, ERR_NOMEM, "%d experts", n_expert);
    for (size_t i = 0; rc == 0 && i < json_array_size(layers); i++)
        rc = read_layer(p, uses, json_array_get(layers, i), i, err);
    mem_free(uses);
    if (rc < 0) usage_profile_free(p);
    else *out = p;
    return rc;
}
