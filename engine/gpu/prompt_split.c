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

#include "engine/engine_internal.h"
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

int prompt_split_poll(prompt_split *p, err_ctx *err)
{
    const uint64_t from = clock_ns();
    const int rc = expert_stream_arrived(p->banks, err);
    if (rc < 0 || p->sent_bytes == 0) return rc;
    const uint64_t now = clock_ns();
    const bool late = now - from > waited_ns;
    split_border_saw_bus(&p->rate, p->sent_bytes, (double)(now - p->sent_from) * 1e-9, late);
    *(late ? &p->s.late_s : &p->s.early_s) += (double)(now - p->cores_end) * 1e-9;
    p->sent_bytes = 0;
    return 0;
}

void prompt_split_begin(prompt_split *p) { p->sent_bytes = 0; }

/* ---- a layer --------------------------------------------------------------------------------- */

static void count_slots(prompt_split *p, const int32_t *ids, int n_slot)
{
    memset(p->counts, 0, (size_t)p->m->hp.n_expert * sizeof *p->counts);
    for (int i = 0; i < n_slot; i++) p->counts[ids[i]]++;
}

/* Fills picked and by_cpu. Returns the number of picked experts. */
static int divide(prompt_split *p, split_layer *l)
{
    const int n_expert = p->m->hp.n_expert;
    const int n = split_border_sort(p->list, p->counts, p->hot, n_expert);
    int n_hot = 0;
    for (int i = 0; i < n_expert; i++) {
        if (!p->hot[i] || p->counts[i] == 0) continue;
        l->vram_slots += p->counts[i];
        n_hot++;
    }
    const int border = split_border_of(l, &p->rate, p->list, p->counts, n);
    memset(p->picked, 0, (size_t)n_expert * sizeof *p->picked);
    memset(p->by_cpu, 0, (size_t)n_expert * sizeof *p->by_cpu);
    for (int i = 0; i < n; i++) (i < border ? p->picked : p->by_cpu)[p->list[i]] = true;
    split_border_rested(&p->rate, &p->plan, border == 0, border == n);
    if (border == 0) return 0;
    p->s.layers++;
    p->s.hot += (uint64_t)n_hot;
    p->s.hot_slots += (uint64_t)l->vram_slots;
    p->s.sent += (uint64_t)border;
    p->s.by_cores += (uint64_t)(n - border);
    for (int i = 0; i < n; i++)
        *(i < border ? &p->s.sent_slots : &p->s.core_slots) += (uint64_t)p->counts[p->list[i]];
    return border;
}

int prompt_split_run(prompt_split *p, int layer, gpu_input *in, gpu_expert_args *a,
                     const float *x, const int32_t *ids, err_ctx *err)
{
    const model_hparams *hp = &p->m->hp;
    const expert_bank *bank = p->m->layers[layer].experts;
    const int n = in->n, n_slot = n * hp->n_expert_used;
    split_layer l = {
        .bytes = (double)expert_slabs_bytes(bank), .macs = 3.0 * hp->n_embd * hp->n_ff_expert,
        .most_slots = (int64_t)EXPERT_SERVER_TOKENS * hp->n_expert_used,
    };
    const float *cold;
    int n_by_cpu = 0;

    count_slots(p, ids, n_slot);
    expert_stream_in_vram(p->banks, layer, a, p->hot);
    const int n_sent = divide(p, &l);
    if (n_sent == 0) return 0;
    p->sent_bytes = n_sent * l.bytes;
    p->s.sent_bytes += (uint64_t)p->sent_bytes;
    p->sent_from = clock_ns();
    const int all = expert_stream_pick(p->banks, layer, in, a, p->picked, p->counts, err);
    if (all < 0) return all;
    if (fault_hits(FAULT_GPU_LOST)) return err_set(err, ERR_IO, "the GPU stopped");

    const uint64_t from = clock_ns();
    const int rc = expert_server_some(p->host, layer, &cold, p->row, x, ids, n, p->by_cpu, err);
    if (rc < 0) return rc;
    p->cores_end = clock_ns();
    const double cores_s = (double)(p->cores_end - from) * 1e-9;
    double slots = 0;
    for (int i = 0; i < hp->n_expert; i++) {
        if (!p->by_cpu[i]) continue;
        slots += p->counts[i];
        n_by_cpu++;
    }
    split_border_saw_cores(&p->rate, &l, n_by_cpu, slots, cores_s);
    p->s.cores_s += cores_s;
    if (!all) gpu_experts_join(p->g, in, a, cold, p->row);
    return 1;
}

prompt_split_stats prompt_split_counts(const prompt_split *p) { return p->s; }
void prompt_split_reset_counts(prompt_split *p) { p->s = (prompt_split_stats){ 0 }; }

/* ---- life ------------------------------------------------------------------------------------ */

uint64_t prompt_split_bytes(const model *m)
{
    return (uint64_t)PLAN_SPLIT_TOKENS * (uint64_t)m->hp.n_expert_used * sizeof(int32_t);
}

int prompt_split_create(prompt_split **out, const engine *e, expert_server *host,
                        expert_stream *banks, err_ctx *err)
{
    const size_t n = (size_t)e->m->hp.n_expert;
    prompt_split *p = mem_zalloc(sizeof *p);
    *out = NULL;
    if (!p) return err_set(err, ERR_NOMEM, "experts of prompts: %zu bytes", sizeof *p);
    *p = (prompt_split){ .g = e->devices[0].g, .m = e->m, .host = host,
                         .banks = banks, .plan = speeds_of(&e->p->rate) };
    p->rate = p->plan;
    p->counts = mem_array(n, sizeof *p->counts);
    p->list = mem_array(n, sizeof *p->list);
    p->hot = mem_array(n, sizeof *p->hot);
    p->picked = mem_array(n, sizeof *p->picked);
    p->by_cpu = mem_array(n, sizeof *p->by_cpu);
    const bool lists = p->counts && p->list && p->hot && p->picked && p->by_cpu;
    if (!lists) err_set(err, ERR_NOMEM, "experts of prompts: %zu experts", n);
    else p->row = gpu_alloc_host(e->devices[0].g, prompt_split_bytes(e->m), err);
    if (!p->row) {
        prompt_split_free(p);
        return ERR_NOMEM;
    }
    *out = p;
    return 0;
}

void prompt_split_free(prompt_split *p)
{
    if (!p) return;
    gpu_free_host(p->g, p->row);
    mem_free(p->by_cpu);
    mem_free(p->picked);
    mem_free(p->hot);
    mem_free(p->list);
    mem_free(p->counts);
    mem_free(p);
}
