/* test_layer_perf.c - counts of another program, as a profile: which lists count, how they add up,
 * and what is refused. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "moe/layer_perf.h"
#include "tests/test.h"

#define HEAD "{\"schema\":\"llama.cpp.moe_layer_perf.v1\",\"layers\":["

static usage_profile *load(const char *text, err_ctx *err)
{
    usage_profile *p = NULL;
    json_t *root = json_loads(text, 0, NULL);
    if (!CHECK_MSG(root != NULL, "the test's own text: %s", text)) return NULL;
    const int rc = layer_perf_read(&p, root, 2, 3, err);
    CHECK((rc == 0) == (p != NULL));
    json_decref(root);
    return p;
}

static void test_counts(void)
{
    static const struct { const char *text; expert_uses want[3]; const char *why; } rows[] = {
        { "\"experts\":[[1,4],[2,5]]", { { 0, 0, 0 }, { 0, 0, 4 }, { 0, 0, 5 } }, "no places" },
        { "\"hot_experts\":[[0,2]],\"cold_experts\":[[1,3],[0,1]],\"experts\":[[2,99]]",
          { { 2, 1, 3 }, { 0, 3, 3 }, { 0, 0, 0 } }, "places come first" },
        { "\"hot_experts\":[[0,0]],\"cold_experts\":[],\"experts\":[[2,9]]",
          { { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 9 } }, "places without counts" },
        { "\"experts\":[[1,4],[1,6]]", { { 0, 0, 0 }, { 0, 0, 10 }, { 0, 0, 0 } }, "twice" },
        { "\"experts\":null", { { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 } }, "null is none" },
        { "\"experts\":[[0,9223372036854775807],[0,9223372036854775807]]",
          { { 0, 0, 0x1p50 }, { 0, 0, 0 }, { 0, 0, 0 } }, "no more than there can be" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char text[400];
        err_ctx err = { 0 };
        snprintf(text, sizeof text, HEAD "{\"layer\":1,%s}]}", rows[i].text);
        usage_profile *p = load(text, &err);
        if (!CHECK_MSG(p != NULL, "%s: %s", rows[i].why, err.msg)) continue;
        const expert_uses *u = usage_profile_uses(p, 1);
        for (int e = 0; e < 3; e++)
            CHECK_MSG(u[e].hot == rows[i].want[e].hot && u[e].cold == rows[i].want[e].cold &&
                      u[e].raw == rows[i].want[e].raw, "%s, expert %d: %g hot, %g cold, %g",
                      rows[i].why, e, u[e].hot, u[e].cold, u[e].raw);
        CHECK(usage_profile_layer(p, 0)->calls == 0);
        usage_profile_free(p);
    }
}

static void test_figures(void)
{
    static const struct { const char *text; layer_uses want; const char *why; } rows[] = {
        { "\"calls\":4,\"cold_slots_per_call\":2.5", { 4, 10, 0, 0, 0 }, "each call's" },
        { "\"calls\":4,\"cold_slots_total\":6", { 4, 6, 0, 0, 0 }, "the total" },
        { "\"calls\":4,\"cold_slots_total\":6,\"cold_slots_per_call\":1", { 4, 4, 0, 0, 0 },
          "each call's comes first" },
        { "\"cold_slots_per_call\":3", { 1, 3, 0, 0, 0 }, "calls are not said" },
        { "\"calls\":2,\"parallel_join_wait_time_per_call_us\":5e5,"
          "\"parallel_cold_lane_wall_time_per_call_us\":9e9", { 2, 0, 0, 0, 1 }, "waiting" },
        { "\"calls\":2,\"parallel_cold_lane_wall_time_per_call_us\":3e6,"
          "\"parallel_hot_lane_wall_time_per_call_us\":1e6", { 2, 0, 0, 0, 4 }, "cold less hot" },
        { "\"calls\":2,\"parallel_cold_lane_wall_time_per_call_us\":1e6,"
          "\"parallel_hot_lane_wall_time_per_call_us\":3e6", { 2, 0, 0, 0, 0 }, "hot is longer" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char text[400];
        err_ctx err = { 0 };
        snprintf(text, sizeof text, HEAD "{\"layer\":0,%s}]}", rows[i].text);
        usage_profile *p = load(text, &err);
        if (!CHECK_MSG(p != NULL, "%s: %s", rows[i].why, err.msg)) continue;
        const layer_uses *u = usage_profile_layer(p, 0), *w = &rows[i].want;
        CHECK_MSG(u->calls == w->calls && u->cold_slots == w->cold_slots &&
                  fabs(u->join_s - w->join_s) < 1e-12 && u->cold_s == 0 && u->hot_s == 0,
                  "%s: %g calls, %g slots, %g s", rows[i].why, u->calls, u->cold_slots, u->join_s);
        usage_profile_free(p);
    }
}

static void test_refused(void)
{
    static const struct { const char *text, *says; } rows[] = {
        { "[]", "schema" }, { "{\"schema\":7,\"layers\":[]}", "schema" },
        { "{\"schema\":\"llama.cpp.moe_layer_perf.v3\",\"layers\":[]}", "schema" },
        { "{\"schema\":\"llama.cpp.moe_layer_perf.v1\",\"layers\":{}}", "layers" },
        { HEAD "null]}", "0 is no object" }, { HEAD "{\"layer\":0},{\"layer\":1.0}]}", "of 1" },
        { HEAD "{\"layer\":2}]}", "layer 2 of 2" }, { HEAD "{\"layer\":-1}]}", "0 or more" },
        { HEAD "{\"layer\":1,\"experts\":{}}]}", "layer 1: experts is no list" },
        { HEAD "{\"layer\":1,\"hot_experts\":[[0,1],[3,1]]}]}", "expert 3 of 3" },
        { HEAD "{\"layer\":1,\"hot_experts\":[[0,1]],\"experts\":[[4,1]]}]}", "expert 4 of 3" },
        { HEAD "{\"layer\":1,\"cold_experts\":[[0,1],[1]]}]}", "element 1 of cold_experts" },
        { HEAD "{\"layer\":1,\"cold_experts\":[[true,1]]}]}", "element 0" },
        { HEAD "{\"layer\":1,\"calls\":-1}]}", "calls" },
        { HEAD "{\"layer\":1,\"calls\":1e300}]}", "calls" },
        { HEAD "{\"layer\":1,\"parallel_join_wait_time_per_call_us\":[]}]}", "join_wait" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        err_ctx err = { 0 };
        usage_profile *p = load(rows[i].text, &err);
        CHECK_MSG(!p && strstr(err.msg, rows[i].says), "%s: '%s'", rows[i].text, err.msg);
        usage_profile_free(p);
    }
}

int main(int argc, char **argv)
{
    test_begin("layer_perf", argc, argv);
    test_counts();
    test_figures();
    test_refused();
    return test_end();
}
