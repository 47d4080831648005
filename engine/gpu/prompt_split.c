/* prompt_split.c - splits a layer's experts between bus and CPU, and joins their vectors.
 *
 *   host     waits for the choices, counts, finds the border
 *   bus      experts with many slots, range by range; the first range begins at once
 *   GPU      experts in VRAM, the shared one, then each range as it arrives
 *   CPU      experts with few slots, at the same time; then the GPU adds up
 *
 * All operations of the GPU are enqueued before the CPU begins, so the GPU waits for the host only
 * at the sum. Everything is allocated at creation. */
#include "engine/gpu/prompt_split.h"

#include <string.h>

#include "moe/split_border.h"
#include "tiers/fault_injection.h"

/* If the wait for the bus takes longer than this, the bus was still busy when it began. */
static const uint64_t waited_ns = 20000;

struct prompt_split {
    gpu *g;
    const model *m;
    expert_server *host;
    expert_stream *banks;
    split_speeds plan, rate;             /* the plan's speeds, and the measured ones */
    int32_t *counts, *list;              /* [n_expert] */
    bool *hot, *picked, *by_cpu;         /* [n_expert] */
    int32_t *row;                        /* [PLAN_SPLIT_TOKENS * k] page-locked */
    double sent_bytes;                   /* of the last layer; 0: nothing to measure */
    uint64_t sent_from, cores_end;       /* clock */
    prompt_split_stats s;
};

/* ---- speeds ---------------------------------------------------------------------------------- */

/* The plan's speeds while both sides work. */
static split_speeds speeds_of(const speeds *r)
{
    const double slower = r->pull > 0 && r->pull_busy > 0 ? r->pull_busy / r->pull : 1.0;
    const double bus = r->pcie_in > 0 ? r->pcie_in * slower : r->pull_busy;
    return (split_speeds){ .bus = bus, .read = r->cpu_busy > 0 ? r->cpu_busy : r->cpu,
                           .many = r->cpu_many > 0 ? r->cpu_many : SPEEDS_CPU_MANY,
                           .gpu = r->gpu_macs * PLAN_CONTRACT_SPEED };
}

int prompt_split_poll(prompt_split *e, err_ctx *err)
{
    const uint64_t from = clock_ns();
    const int rc = expert_stream_arrived(e->banks, err);
    if (rc < 0 || e->sent_bytes == 0) return rc;
    const uint64_t now = clock_ns();
    const bool late = now - from > waited_ns;
    split_border_saw_bus(&e->rate, e->sent_bytes, (double)(now - e->sent_from) * 1e-9, late);
    *(late ? &e->s.late_s : &e->s.early_s) += (double)(now - e->cores_end) * 1e-9;
    e->sent_bytes = 0;
    return 0;
}

void prompt_split_begin(prompt_split *e) { e->sent_bytes = 0; }

/* ---- a layer --------------------------------------------------------------------------------- */

static void count_slots(prompt_split *e, const int32_t *ids, int n_slot)
{
    memset(e->counts, 0, (size_t)e->m->hp.n_expert * sizeof *e->counts);
    for (int i = 0; i < n_slot; i++) e->counts[ids[i]]++;
}

/* Fills picked and by_cpu. Returns the number of picked experts. */
static int divide(prompt_split *e, split_layer *l)
{
    const int n_expert = e->m->hp.n_expert;
    const int n = split_border_sort(e->list, e->counts, e->hot, n_expert);
    int n_hot = 0;
    for (int i = 0; i < n_expert; i++) {
        if (!e->hot[i] || e->counts[i] == 0) continue;
        l->vram_slots += e->counts[i];
        n_hot++;
    }
    const int border = split_border_of(l, &e->rate, e->list, e->counts, n);
    memset(e->picked, 0, (size_t)n_expert * sizeof *e->picked);
    memset(e->by_cpu, 0, (size_t)n_expert * sizeof *e->by_cpu);
    for (int i = 0; i < n; i++) (i < border ? e->picked : e->by_cpu)[e->list[i]] = true;
    split_border_rested(&e->rate, &e->plan, border == 0, border == n);
    if (border == 0) return 0;
    e->s.layers++;
    e->s.hot += (uint64_t)n_hot;
    e->s.hot_slots += (uint64_t)l->vram_slots;
    e->s.sent += (uint64_t)border;
    e->s.by_cores += (uint64_t)(n - border);
    for (int i = 0; i < n; i++)
        *(i < border ? &e->s.sent_slots : &e->s.core_slots) += (uint64_t)e->counts[e->list[i]];
    return border;
}

int prompt_split_run(prompt_split *e, int layer, gpu_input *in, gpu_expert_args *a,
                     const float *x, const int32_t *ids, err_ctx *err)
{
    const model_hparams *hp = &e->m->hp;
    const expert_bank *bank = e->m->layers[layer].experts;
    const int n = in->n, n_slot = n * hp->n_expert_used;
    split_layer l = {
        .bytes = (double)expert_slabs_bytes(bank), .macs = 3.0 * hp->n_embd * hp->n_ff_expert,
        .most_slots = (int64_t)EXPERT_SERVER_TOKENS * hp->n_expert_used,
    };
    const float *cold;
    int n_by_cpu = 0;

    count_slots(e, ids, n_slot);
    expert_stream_in_vram(e->banks, layer, a, e->hot);
    const int n_sent = divide(e, &l);
    if (n_sent == 0) return 0;
    e->sent_bytes = n_sent * l.bytes;
    e->s.sent_bytes += (uint64_t)e->sent_bytes;
    e->sent_from = clock_ns();
    const int all = expert_stream_pick(e->banks, layer, in, a, e->picked, e->counts, err);
    if (all < 0) return all;
    if (fault_hits(FAULT_GPU_LOST)) return err_set(err, ERR_IO, "the GPU stopped");

    const uint64_t from = clock_ns();
    const int rc = expert_server_some(e->host, layer, &cold, e->row, x, ids, n, e->by_cpu, err);
    if (rc < 0) return rc;
    e->cores_end = clock_ns();
    const double cores_s = (double)(e->cores_end - from) * 1e-9;
    double slots = 0;
    for (int i = 0; i < hp->n_expert; i++) {
        if (!e->by_cpu[i]) continue;
        slots += e->counts[i];
        n_by_cpu++;
    }
    split_border_saw_cores(&e->rate, &l, n_by_cpu, slots, cores_s);
    e->s.cores_s += cores_s;
    if (!all) gpu_experts_join(e->g, in, a, cold, e->row);
    return 1;
}

prompt_split_stats prompt_split_counts(const prompt_split *e) { return e->s; }
void prompt_split_reset_counts(prompt_split *e) { e->s = (prompt_split_stats){ 0 }; }

/* ---- life ------------------------------------------------------------------------------------ */

uint64_t prompt_split_bytes(const model *m)
{
    return (uint64_t)PLAN_SPLIT_TOKENS * (uint64_t)m->hp.n_expert_used * sizeof(int32_t);
}

int prompt_split_create(prompt_split **out, gpu *g, const model *m, expert_server *host,
                        expert_stream *banks, const plan *p, err_ctx *err)
{
    const size_t n = (size_t)m->hp.n_expert;
    prompt_split *e = mem_zalloc(sizeof *e);
    *out = NULL;
    if (!e) return err_set(err, ERR_NOMEM, "experts of prompts: %zu bytes", sizeof *e);
    *e = (prompt_split){ .g = g, .m = m, .host = host, .banks = banks,
                           .plan = speeds_of(&p->rate) };
    e->rate = e->plan;
    e->counts = mem_array(n, sizeof *e->counts);
    e->list = mem_array(n, sizeof *e->list);
    e->hot = mem_array(n, sizeof *e->hot);
    e->picked = mem_array(n, sizeof *e->picked);
    e->by_cpu = mem_array(n, sizeof *e->by_cpu);
    const bool lists = e->counts && e->list && e->hot && e->picked && e->by_cpu;
    if (!lists) err_set(err, ERR_NOMEM, "experts of prompts: %zu experts", n);
    else e->row = gpu_alloc_host(g, prompt_split_bytes(m), err);
    if (!e->row) {
        prompt_split_free(e);
        return ERR_NOMEM;
    }
    *out = e;
    return 0;
}

void prompt_split_free(prompt_split *e)
{
    if (!e) return;
    gpu_free_host(e->g, e->row);
    mem_free(e->by_cpu);
    mem_free(e->picked);
    mem_free(e->hot);
    mem_free(e->list);
    mem_free(e->counts);
    mem_free(e);
}
