/* moe_view.c - counts to JSON. Every string is our own, so nothing is escaped. */
#include "cli/serve/moe_view.h"

#include "moe/layer_perf.h"

typedef double uses_fn(const expert_uses *u);
static double all_uses(const expert_uses *u) { return u->raw; }
static double hot_uses(const expert_uses *u) { return u->hot; }
static double cold_uses(const expert_uses *u) { return u->cold; }
static double no_uses(const expert_uses *u) { (void)u; return 0; }

/* Sums of one layer, or of all layers. */
typedef struct layer_sums {
    double calls, hot, cold;             /* uses: one for each token and chosen expert */
    double hot_s, cold_s, join_s;
    perf_layer full;
} layer_sums;

static double sum(const expert_uses *u, int n, uses_fn *uses_of)
{
    double s = 0;
    for (int e = 0; e < n; e++) s += uses_of(&u[e]);
    return s;
}

static double per(double a, double calls) { return calls > 0 ? a / calls : 0; }
static double ratio(const layer_sums *f) { return per(f->hot, f->hot + f->cold); }

static layer_sums of_layer(const moe_counts *c, int l)
{
    const layer_uses *u = usage_profile_layer(c->profile, l);
    const expert_uses *x = usage_profile_uses(c->profile, l);
    const int n = usage_profile_experts(c->profile);
    layer_sums f = { .calls = u->calls, .hot = c->cached ? sum(x, n, hot_uses) : 0,
                  .cold = sum(x, n, c->cached ? cold_uses : all_uses), .hot_s = u->hot_s,
                  .cold_s = u->cold_s, .join_s = u->join_s };
    if (c->layers && l < c->n_layer) f.full = c->layers[l];
    return f;
}

static void add(layer_sums *out, const layer_sums *f)
{
    out->calls += f->calls;
    out->hot += f->hot;
    out->cold += f->cold;
    out->hot_s += f->hot_s;
    out->cold_s += f->cold_s;
    out->join_s += f->join_s;
    out->full.calls += f->full.calls;
    out->full.quiet += f->full.quiet;
    out->full.cold_s += f->full.cold_s;
}

static void put_times(textbuf *out, const layer_sums *f)
{
    textbuf_printf(out, "\"parallel_hot_lane_wall_time_per_call_us\":%.6g,"
                   "\"parallel_cold_lane_wall_time_per_call_us\":%.6g,"
                   "\"parallel_join_wait_time_per_call_us\":%.6g", 1e6 * per(f->hot_s, f->calls),
                   1e6 * per(f->cold_s, f->calls), 1e6 * per(f->join_s, f->calls));
}

/* Fields of mode full. A layer with all experts of a token in VRAM launches nothing on the cold
 * side. */
static void put_full(textbuf *out, const layer_sums *f, double overlap_s, uint64_t fallbacks)
{
    static const char *const unmeasured[] = {
        "total_moe", "routing", "worklist", "merge", "hot_branch", "hot_expert_matmul",
        "cold_expert_matmul", "hot_gather_scatter", "cold_gather_scatter", "parallel_region_wall",
    };
    const double calls = (double)f->full.calls;
    for (size_t i = 0; i < ARRAY_LEN(unmeasured); i++)
        textbuf_printf(out, ",\"%s_time_per_call_us\":0", unmeasured[i]);
    textbuf_printf(out, ",\"cold_branch_time_per_call_us\":%.6g,"
                   "\"parallel_overlap_estimate_per_call_us\":%.6g,\"parallel_hot_launches\":%llu,"
                   "\"parallel_cold_launches\":%llu,\"parallel_fallbacks\":%llu",
                   1e6 * per(f->full.cold_s, calls), 1e6 * per(overlap_s, calls),
                   (unsigned long long)f->full.calls,
                   (unsigned long long)(f->full.calls - f->full.quiet),
                   (unsigned long long)fallbacks);
}

static void put_experts(textbuf *out, const char *name, const expert_uses *u, int n,
                        uses_fn *uses_of)
{
    bool first = true;
    textbuf_printf(out, ",\"%s\":[", name);
    for (int e = 0; e < n; e++) {
        const uint64_t count = (uint64_t)uses_of(&u[e]);
        if (count == 0) continue;
        textbuf_printf(out, "%s[%d,%llu]", first ? "" : ",", e, (unsigned long long)count);
        first = false;
    }
    textbuf_str(out, "]");
}

static void put_layer(textbuf *out, const moe_counts *c, int l, const layer_sums *f)
{
    const expert_uses *u = usage_profile_uses(c->profile, l);
    const int n = usage_profile_experts(c->profile);
    textbuf_printf(out, "{\"layer\":%d,\"calls\":%.0f,\"hot_slots_total\":%.0f,"
                   "\"cold_slots_total\":%.0f,\"hot_slots_per_call\":%.6g,"
                   "\"cold_slots_per_call\":%.6g,\"hot_slot_ratio\":%.6g,", l, f->calls, f->hot,
                   f->cold, per(f->hot, f->calls), per(f->cold, f->calls), ratio(f));
    put_times(out, f);
    if (c->level == PERF_FULL) {
        put_full(out, f, 0, 0);
        textbuf_printf(out, ",\"parallel_hot_skips_zero\":0,\"parallel_cold_skips_zero\":%llu",
                       (unsigned long long)f->full.quiet);
    }
    put_experts(out, "experts", u, n, all_uses);
    put_experts(out, "hot_experts", u, n, c->cached ? hot_uses : no_uses);
    put_experts(out, "cold_experts", u, n, c->cached ? cold_uses : all_uses);
    textbuf_str(out, "}");
}

void moe_view_perf(textbuf *out, const moe_counts *c)
{
    const int n_layer = c->profile ? usage_profile_layers(c->profile) : 0;
    const perf_counts *a = &c->all;
    layer_sums all = { 0 };
    bool first = true;
    if (c->level == PERF_OFF) {
        textbuf_printf(out, "{\"enabled\":false,\"mode\":\"off\",\"schema\":\"%s\",\"layers\":[]}",
                       layer_perf_schema);
        return;
    }
    for (int l = 0; l < n_layer; l++) {
        const layer_sums f = of_layer(c, l);
        add(&all, &f);
    }
    textbuf_printf(out, "{\"enabled\":true,\"mode\":\"%s\",\"schema\":\"%s\",\"n_expert\":%d,"
                   "\"n_expert_used\":%d,\"updates\":%llu,\"overflow_resets\":0,\"summary\":{"
                   "\"layer_calls\":%.0f,\"hot_slot_ratio\":%.6g,",
                   c->level == PERF_FULL ? "full" : "update", layer_perf_schema,
                   c->profile ? usage_profile_experts(c->profile) : 0, a->n_used,
                   (unsigned long long)(a->uploads + a->swaps), all.calls, ratio(&all));
    put_times(out, &all);
    if (c->level == PERF_FULL)
        put_full(out, &all, a->overlap_least_s, a->late + a->not_locked + a->failed_uploads);
    textbuf_str(out, "},\"layers\":[");
    for (int l = 0; l < n_layer; l++) {
        const layer_sums f = of_layer(c, l);
        if (f.calls == 0) continue;
        if (!first) textbuf_str(out, ",");
        put_layer(out, c, l, &f);
        first = false;
    }
    textbuf_str(out, "]}");
}

void moe_view_cache(textbuf *out, bool active, uint64_t budget, uint64_t used, const uint8_t *tiers,
                    int n_layer, int n_expert)
{
    bool first = true;
    textbuf_printf(out, "{\"active\":%s,\"budget_bytes\":%llu,\"used_bytes\":%llu,\"layers\":[",
                   active ? "true" : "false", (unsigned long long)budget,
                   (unsigned long long)used);
    for (int l = 0; l < n_layer; l++, tiers += n_expert) {
        int n = 0;
        for (int e = 0; e < n_expert; e++) {
            if (tiers[e] != EXPERT_IN_VRAM) continue;
            if (n++ == 0)
                textbuf_printf(out, "%s{\"layer\":%d,\"hot_experts\":[%d", first ? "" : ",", l, e);
            else textbuf_printf(out, ",%d", e);
        }
        if (n > 0) textbuf_str(out, "]}");
        first &= n == 0;
    }
    textbuf_str(out, "]}");
}

void moe_view_update(textbuf *out, const moe_update *u)
{
    textbuf_printf(out, "{\"active\":true,\"update_rate\":1.0,\"hit_rate\":%.6g,\"hot_slots\":%.0f,"
                   "\"cold_slots\":%.0f,\"candidates\":%d,\"max_exchange\":%d,\"exchanged\":%d,"
                   "\"layers_changed\":%d}", per(u->hot, u->hot + u->cold), u->hot, u->cold,
                   u->candidates, u->capacity, u->exchanged, u->layers_changed);
}
