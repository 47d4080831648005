/* plan_speed.c - predicts the speed of a plan: the time of each link for a token and for a prompt.
 *
 * Also decides what follows from these: how much post-fetch copies, and the length from which on
 * prompts are split or streamed. No I/O, no clock. */
#include "tiers/plan_internal.h"

#include <limits.h>
#include <math.h>

/* ---- post-fetch ------------------------------------------------------------------------------ */

typedef struct split { double cpu_bytes, pull_bytes; } split;

static split split_of(double m, double n_down, double n_all, double expert, double down)
{
    const double pulled = n_down * down + n_all * expert;
    return (split){ m * expert - pulled, pulled };
}

static double split_time(split s, const speeds *rate)
{
    return fmax(s.cpu_bytes / rate->cpu_busy, s.pull_bytes / rate->pull_busy);
}

void plan_fetch(int *n_down, int *n_all, int m, uint64_t expert_bytes, uint64_t down_bytes,
                const speeds *rate)
{
    const double expert = (double)expert_bytes, down = (double)down_bytes;
    double best = 0.97 * m * expert / rate->cpu;         /* less gain is not worth its risk */
    *n_down = *n_all = 0;
    if (!(rate->pull > 0 && rate->pull_busy > 0 && rate->cpu > 0 && rate->cpu_busy > 0)) return;
    for (int all = 0; all <= min_int(m, PLAN_PAD_WHOLE); all++)
        for (int d = 0; d + all <= m; d++) {
            const split s = split_of(m, d, all, expert, down);
            const double t = fmax(s.cpu_bytes / rate->cpu_busy,
                                  s.pull_bytes / (PLAN_PULL_MARGIN * rate->pull_busy));
            if (t >= best) continue;
            best = t;
            *n_down = d;
            *n_all = all;
        }
}

/* One table for all layers, for the mean size of their experts. */
void plan_fill_fetch(plan *p, const planner *j)
{
    const plan_model *model = j->model;
    uint64_t expert = 0, down = 0;
    int n_cold = 0;
    for (int l = 0; l < model->n_layer; l++) {
        if (p->hot[l] == model->n_expert) continue;
        expert += model->expert_bytes[l];
        down += model->down_bytes[l];
        n_cold++;
    }
    if (n_cold == 0 || p->vram_pad == 0) return;
    for (int m = 1; m <= model->n_used && m <= PLAN_MOST_USED; m++) {
        int d, all;
        plan_fetch(&d, &all, m, expert / (uint64_t)n_cold, down / (uint64_t)n_cold, &j->rate);
        p->fetch_down[m] = (uint8_t)d;
        p->fetch_all[m] = (uint8_t)all;
    }
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* Tokens whose slots the cold server computes at a time: engine/gpu/expert_server.h. */
#define PLAN_SPLIT_COLD 512.0

/* Seconds of the cold experts of n tokens on the CPU. The chosen experts are read once; reading and
 * computing add up. (Measured, all experts of Qwen3-Next: 512 tokens took 1.47 s, the sum is 1.13,
 * the longer of both 0.7; 64 tokens 0.37, the sum is 0.40.) The drive is read at the same time. A
 * long prompt has no hits in a cache that does not hold all experts. */
static double cpu_prompt_s(const plan *p, const planner *j, double n)
{
    const double chosen = (double)j->model->n_used / j->model->n_expert;
    const double cold = (double)plan_cold_bytes(p, j), touched = cold * (1 - pow(1 - chosen, n));
    const double macs = n * j->model->expert_macs * (cold / (double)j->experts);
    const double threads = touched / j->rate.cpu + macs / j->rate.cpu_many;
    const bool drive = plan_uses_drive(p, j->model->n_layer);
    return drive ? fmax(threads, touched / j->rate.disk) : threads;
}

/* Seconds to copy all cold experts to VRAM. */
static double stream_s(const plan *p, const planner *j)
{
    const bool drive = plan_uses_drive(p, j->model->n_layer);
    const double link = drive ? fmin(j->rate.pcie_in, j->rate.disk) : j->rate.pcie_in;
    return (double)plan_cold_bytes(p, j) / link;
}

/* Seconds of the cold experts of n tokens if they are split: a fraction is copied while the CPU
 * computes the others, and both end together. The CPU takes a limited number of slots. */
static double split_s(const plan *p, const planner *j, double n)
{
    const double chosen = (double)j->model->n_used / j->model->n_expert;
    const double cold = (double)plan_cold_bytes(p, j), touched = cold * (1 - pow(1 - chosen, n));
    const double share = cold / (double)j->experts, macs = n * j->model->expert_macs * share;
    const bool known = j->rate.pull > 0 && j->rate.pull_busy > 0;
    const double slower = known ? j->rate.pull_busy / j->rate.pull : 1;
    const double bus = touched / (j->rate.pcie_in * slower);
    const double cores = touched / j->rate.cpu_busy + macs / j->rate.cpu_many;
    const double most = fmin(1, PLAN_SPLIT_COLD / (n * share));
    const double part = fmin(bus / (bus + cores), most); /* computed by the CPU */
    return fmax((1 - part) * bus, part * cores);
}

/* Seconds of a prompt of n tokens with all layers on the GPU. Streamed banks are copied while
 * others are computed; the other strategies wait for the choices of each layer. */
static double strategy_s(const plan *p, const planner *j, prompt_strategy strategy, double n)
{
    const double cold = (double)plan_cold_bytes(p, j) / (double)j->experts;
    const double dense = n * j->model->dense_macs / j->rate.gpu_macs;
    const double bound = n <= p->contract_to ? PLAN_CONTRACT_SPEED : 1;
    const double experts = n * j->model->expert_macs / (j->rate.gpu_macs * bound);
    switch (strategy) {
    case PROMPT_CORES: return dense + experts * (1 - cold) + cpu_prompt_s(p, j, n);
    case PROMPT_SPLIT: return dense + fmax(experts, split_s(p, j, n));
    case PROMPT_BUS: break;
    }
    return fmax(stream_s(p, j), dense + experts);
}

/* The shortest prompt that is faster streamed than with the other strategy, at most `most`. */
static int faster_from(const plan *p, const planner *j, prompt_strategy other, int most)
{
    int low = PLAN_FEW_TOKENS + 1, high = most;
    while (low < high) {
        const int n = low + (high - low) / 2;
        if (strategy_s(p, j, other, n) > strategy_s(p, j, PROMPT_BUS, n)) high = n;
        else low = n + 1;
    }
    return low;
}

int plan_most_shared(int n_used, int n_expert)
{
    return min_int(PLAN_SHARED_SLOTS * n_expert / n_used, PLAN_SPLIT_TOKENS);
}

/* The longest prompt under the contract. Where nothing can be streamed, the CPU computes the
 * experts of any prompt. */
static int contract_to(const plan *p, const planner *j)
{
    const plan_wish *w = j->w;
    if (!p->gpu) return 0;
    if (w->fixed) return INT_MAX;
    if (plan_cold_bytes(p, j) == 0) return 0;
    if (p->stage_ranges == 0 || (w->strategy_wanted && w->strategy != PROMPT_BUS)) return INT_MAX;
    return plan_most_shared(j->model->n_used, j->model->n_expert);
}

/* The strategy that the wish names, where it is possible. */
static void choose_wanted(plan *p, prompt_strategy strategy, bool can_split)
{
    const int low = PLAN_FEW_TOKENS + 1;
    if (strategy == PROMPT_BUS) p->stream_from = low;
    if (strategy == PROMPT_SPLIT && can_split) p->split_from = low;
    if (strategy == PROMPT_SPLIT) p->stream_from = can_split ? PLAN_SPLIT_TOKENS + 1 : low;
}

/* Experts from the drive are not split, because they would be read one by one. Floats are not
 * split, because results would differ; for them speeds may not choose the strategy at all. Above
 * plan_most_shared all prompts are streamed. */
void plan_choose_strategies(plan *p, const planner *j)
{
    const int low = PLAN_FEW_TOKENS + 1,
              above = plan_most_shared(j->model->n_used, j->model->n_expert) + 1;
    const bool can_split = p->stage_ranges > 0 && !plan_uses_drive(p, j->model->n_layer);
    const plan_wish *w = j->w;
    p->stream_from = p->split_from = INT_MAX;
    p->contract_to = contract_to(p, j);
    if (!p->gpu) return;
    if (plan_cold_bytes(p, j) == 0 || (w->fixed && p->stage_ranges > 0)) p->stream_from = low;
    if (p->stream_from == low || w->fixed || p->stage_ranges == 0) return;
    if (w->strategy_wanted) {
        choose_wanted(p, w->strategy, can_split);
        return;
    }
    p->stream_from = above;
    if (j->model->float_experts) return;
    if (can_split) p->split_from = low;
    p->stream_from = faster_from(p, j, can_split ? PROMPT_SPLIT : PROMPT_CORES, above);
}

prompt_strategy plan_prompt_strategy(const plan *p, int n)
{
    return n >= p->stream_from ? PROMPT_BUS : n >= p->split_from ? PROMPT_SPLIT : PROMPT_CORES;
}

static double prompt_s(const plan *p, const planner *j)
{
    const double n = p->chunk, in_vram = (double)plan_gpu_layers(p, j->model->n_layer) /
                                       j->model->n_layer;
    const double cpu_s = n * j->model->dense_macs / j->rate.cpu_many + cpu_prompt_s(p, j, n);
    const double gpu_s = strategy_s(p, j, plan_prompt_strategy(p, p->chunk), n);
    return in_vram * gpu_s + (1 - in_vram) * cpu_s;
}

/* ---- a token --------------------------------------------------------------------------------- */

/* The source of the cold experts of a token. */
typedef struct cold_source {
    double miss;                         /* the fraction that is read from the drive */
    bool fetched;                        /* by post-fetch */
} cold_source;

static cold_source source_of(const plan *p, const planner *j)
{
    const double cold = (double)plan_cold_bytes(p, j), ram = (double)p->ram_experts;
    cold_source s = { .miss = 0, .fetched = p->gpu && p->vram_pad > 0 && ram > 0 };
    if (plan_uses_drive(p, j->model->n_layer)) {
        s.miss = fmax(0, 1 - ram / cold);
        s.fetched = false;               /* RAM frames change their expert meanwhile */
    }
    return s;
}

typedef struct cold_time { double cpu, pull, both; } cold_time;

/* Times of m cold experts of layer l. */
static cold_time cold_time_of(const plan *p, const planner *j, int l, int m, bool fetched)
{
    const double expert = (double)j->model->expert_bytes[l], down = (double)j->model->down_bytes[l];
    const double alone = m * expert / j->rate.cpu;
    const int table = min_int(m, PLAN_MOST_USED);
    if (!fetched || p->fetch_down[table] + p->fetch_all[table] == 0)
        return (cold_time){ alone, 0, alone };
    const split s = split_of(m, p->fetch_down[table], p->fetch_all[table], expert, down);
    return (cold_time){ s.cpu_bytes / j->rate.cpu_busy, s.pull_bytes / j->rate.pull_busy,
                        split_time(s, &j->rate) };
}

/* Interpolated between whole numbers of cold experts. */
static cold_time cold_time_at(const plan *p, const planner *j, int l, double m, bool fetched)
{
    const int low = (int)m;
    const double part = m - low;
    const cold_time a = cold_time_of(p, j, l, low, fetched);
    if (part == 0) return a;
    const cold_time b = cold_time_of(p, j, l, low + 1, fetched);
    return (cold_time){ a.cpu + part * (b.cpu - a.cpu), a.pull + part * (b.pull - a.pull),
                        a.both + part * (b.both - a.both) };
}

/* Seconds on the path that a token waits for, by what it waits for. */
typedef struct path { double by[BOUND_LATENCY + 1]; } path;

static void predict_layer(plan *p, path *time, const planner *j, int l, cold_source from)
{
    const plan_model *model = j->model;
    const double expert = (double)model->expert_bytes[l];
    const double m = expert > 0 ? model->n_used * (1 - (double)p->hot[l] / model->n_expert) : 0;
    const double vram = (model->n_used - m) * expert / j->rate.vram_read;
    const bool in_vram = l < plan_gpu_layers(p, model->n_layer);
    const double hot = in_vram ? vram + j->rate.layer_hot : 0;
    const double hop = in_vram && m > 0 ? j->rate.hop : 0;
    const cold_time cold = cold_time_at(p, j, l, m, in_vram && from.fetched);
    const double missed = m * from.miss, disk = missed * expert / j->rate.disk;
    const double wait = j->rate.disk_wait * fmin(1, missed);

    p->t_hot += hot;
    p->t_cpu += cold.cpu;
    p->t_pull += cold.pull;
    p->t_disk += disk + wait;
    p->t_hop += hop;
    if (hot >= hop + fmax(cold.both, disk) + wait) {
        time->by[BOUND_VRAM] += vram;
        time->by[BOUND_LATENCY] += hot - vram;
        return;
    }
    time->by[BOUND_LATENCY] += hop;
    time->by[BOUND_DISK] += wait;
    if (disk > cold.both) time->by[BOUND_DISK] += disk;
    else time->by[cold.pull > cold.cpu ? BOUND_PULL : BOUND_CPU] += cold.both;
}

/* Of what is read for every token: the dense bytes in VRAM. */
static double dense_in_vram(const plan *p, const planner *j)
{
    if (!p->gpu) return 0;
    return (double)(p->head_in_ram ? p->vram_dense : j->model->token_dense);
}

/* The links at full speed, each with all that it has to carry. */
static double limit_s(const plan *p, const planner *j, cold_source from)
{
    const speeds *r = &j->rate;
    const int n_gpu = plan_gpu_layers(p, j->model->n_layer);
    double hot = 0, cold = 0, cold_fetchable = 0;
    for (int l = 0; l < j->model->n_layer; l++) {
        const double share = (double)p->hot[l] / j->model->n_expert;
        const double chosen = j->model->n_used * (double)j->model->expert_bytes[l];
        hot += share * chosen;
        cold += (1 - share) * chosen;
        if (l < n_gpu) cold_fetchable += (1 - share) * chosen;
    }
    const double both = fmax(r->cpu, r->pull > 0 ? r->cpu_busy + r->pull_busy : 0);
    const double fetched = from.fetched ? cold_fetchable : 0, in_vram = dense_in_vram(p, j);
    const double experts = fetched / both + (cold - fetched) / r->cpu;
    return in_vram / r->vram_read + ((double)j->model->token_dense - in_vram) / r->cpu_dense +
           fmax(fmax(hot / r->vram_read, experts), from.miss * cold / r->disk);
}

void plan_predict(plan *p, const planner *j)
{
    const cold_source from = source_of(p, j);
    const int n_layer = j->model->n_layer, n_gpu = plan_gpu_layers(p, n_layer);
    const double in_vram = dense_in_vram(p, j);
    path time = { { 0 } };
    double total = 0;

    time.by[BOUND_VRAM] = in_vram / j->rate.vram_read;
    time.by[BOUND_CPU] = ((double)j->model->token_dense - in_vram) / j->rate.cpu_dense;
    time.by[BOUND_LATENCY] =
        j->rate.layer_dense * n_gpu + j->rate.layer_cpu * (n_layer - n_gpu);
    p->t_dense = time.by[BOUND_VRAM] + time.by[BOUND_CPU] + time.by[BOUND_LATENCY];
    for (int l = 0; l < j->model->n_layer; l++) predict_layer(p, &time, j, l, from);
    for (int b = 0; b <= BOUND_LATENCY; b++) {
        total += time.by[b];
        if (time.by[b] > time.by[p->bound]) p->bound = (plan_bound)b;
    }
    p->decode_tok_s = 1 / total;
    p->limit_tok_s = 1 / limit_s(p, j, from);
    p->prefill_tok_s = p->chunk / prompt_s(p, j);
}
