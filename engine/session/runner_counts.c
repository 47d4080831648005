/* runner_counts.c - what a runner counts: tokens, and the experts that they used in each tier. */
#include "engine/session/session_internal.h"

void runner_counts(const runner *r, expert_server_stats *host, store_stats *store)
{
    const expert_server *server = forward_expert_server(r->f);
    *host = server ? expert_server_counts(server) : (expert_server_stats){ 0 };
    *store = r->e->store ? expert_store_counts(r->e->store) : (store_stats){ 0 };
}

void runner_reset_counts(runner *r)
{
    expert_server *server = forward_expert_server(r->f);
    if (server) expert_server_reset_counts(server);
    forward_reset_waited(r->f);
    forward_reset_split(r->f);
    r->n_single = r->n_taken = r->n_batched = r->n_pass = r->n_pass_row = 0;
    r->read = forward_read(r->f);
    if (r->e->store) expert_store_reset_counts(r->e->store);
    if (r->e->cache) vram_cache_reset_counts(r->e->cache);
}

frame_table_stats runner_vram_moves(const runner *r)
{
    return r->e->cache ? frame_table_counts(vram_cache_table(r->e->cache))
                        : (frame_table_stats){ 0 };
}

void runner_split(const runner *r, prompt_split_stats *out)
{
    *out = forward_split(r->f);
}

void runner_count(runner *r, perf_level level)
{
    expert_server *server = forward_expert_server(r->f);
    r->perf = level;
    if (server) expert_server_count(server, level);
    runner_reset_counts(r);              /* loading the model has counted reads and copies */
}

/* The tiers of a layer's experts. ASKED: hot and cold ones, which the expert server counts. */
typedef enum layer_tiers { ASKED, ALL_HOT, ALL_COLD } layer_tiers;

static layer_tiers tiers_of(const runner *r, int l)
{
    const expert_server *server = forward_expert_server(r->f);
    if (l >= engine_gpu_layers(r->e)) return ALL_COLD;
    return server && expert_server_has_cold(server, l) ? ASKED : ALL_HOT;
}

/* Slots of a layer without questions. Where others have questions, which are counted for single
 * tokens alone, this layer's are, too. */
static uint64_t counted_slots(const runner *r)
{
    const uint64_t n = forward_expert_server(r->f) ? r->n_single : r->n_taken;
    return n * (uint64_t)r->e->m->hp.n_expert_used;
}

/* Adds the layers without questions, whose counts follow from the number of tokens. */
static void add_other_layers(perf_counts *c, const runner *r)
{
    const uint64_t slots = counted_slots(r);
    for (int l = 0; l < c->n_layer; l++) {
        const expert_bank *bank = r->e->m->layers[l].experts;
        if (bank->n_expert == 0) continue;
        switch (tiers_of(r, l)) {
        case ASKED:
            break;
        case ALL_HOT:
            c->hot += slots;
            c->vram_bytes += r->n_single * (uint64_t)c->n_used * expert_slabs_bytes(bank);
            break;
        case ALL_COLD:
            c->cold += slots;
            c->on_cpu += slots;
            break;
        }
    }
}

perf_counts runner_perf(const runner *r)
{
    expert_server_stats h;
    store_stats st;
    experts_read read = forward_read(r->f);
    runner_counts(r, &h, &st);
    read.n -= r->read.n;
    read.bytes -= r->read.bytes;
    const frame_table_stats moves = runner_vram_moves(r);
    perf_counts c = {
        .n_layer = r->e->m->hp.n_layer, .n_used = r->e->m->hp.n_expert_used,
        .passes = r->n_pass, .rows = r->n_pass_row, .tokens = r->n_taken,
        .prompt_tokens = r->n_batched, .read_experts = read.n,
        .calls = h.questions + h.quiet, .quiet = h.quiet, .hot = h.hot,
        .cold = h.on_cpu + h.down_fetched + h.all_fetched, .on_cpu = h.on_cpu,
        .down_fetched = h.down_fetched, .all_fetched = h.all_fetched,
        .vram_bytes = h.hot_bytes, .cpu_bytes = h.cpu_bytes + read.bytes,
        .fetch_bytes = h.pull_bytes, .upload_bytes = moves.upload_bytes,
        .drive_bytes = st.read_bytes, .ask_s = h.ask_s, .cold_s = h.cpu_s, .late_s = h.wait_s,
        .fetch_s = h.pull_s, .overlap_least_s = h.hidden_least_s,
        .overlap_most_s = h.hidden_most_s, .join_s = forward_waited(r->f), .late = h.late,
        .not_locked = h.not_locked, .failed_uploads = moves.failures, .refused = moves.refused,
        .frame_hits = moves.hits, .frame_misses = moves.misses, .uploads = moves.uploads,
        .swaps = moves.swaps,
        .evictions = moves.evictions, .ram_hits = st.hits, .ram_misses = st.misses,
        .ram_wait_s = st.wait_s,
    };
    add_other_layers(&c, r);
    return c;
}

int runner_perf_layers(const runner *r, perf_layer *layers, int cap)
{
    const expert_server *server = forward_expert_server(r->f);
    const perf_layer *asked = server ? expert_server_layers(server) : NULL;
    const uint64_t slots = counted_slots(r);
    const int n = min_int(r->e->m->hp.n_layer, cap);
    if (r->perf != PERF_FULL) return 0;
    for (int l = 0; l < n; l++) {
        const layer_tiers tiers = tiers_of(r, l);
        if (tiers == ASKED) layers[l] = asked[l];
        else if (r->e->m->layers[l].experts->n_expert == 0) layers[l] = (perf_layer){ 0 };
        else layers[l] = (perf_layer){ .hot = tiers == ALL_HOT ? slots : 0,
                                       .cold = tiers == ALL_COLD ? slots : 0 };
    }
    return n;
}

void runner_pause_postfetch(runner *r, bool paused)
{
    expert_server *server = forward_expert_server(r->f);
    if (server) expert_server_pause_fetching(server, paused);
}
