/* plan_speed.c - predicts the speed of a plan: the time of each link for a token and for a prompt.
 *
 * Also decides what follows from these: how much post-fetch copies, and the length from which on
 * prompts are split or streamed. No I/O, no clock. */
#include "tiers/plan_internal.h"

#include <limits.h>
#include <math.h>

/* What a prediction is made from. cold: of the experts outside VRAM. */
typedef struct forecast {
    plan *p;
    const plan_model *model;
    const plan_wish *w;
    const speeds *rate;
    double cold, share;                  /* bytes, and the fraction of all experts */
    double missed;                       /* the fraction that a token reads from the drive */
    bool drive, fetched;                 /* some are on the drive; some by post-fetch */
    double dense_in_vram;                /* bytes that are read for every token */
} forecast;

/* ---- post-fetch ------------------------------------------------------------------------------ */

void plan_fetch(int *n_down, int *n_all, int m, uint64_t expert_bytes, uint64_t down_bytes,
                const speeds *rate)
{
    const double expert = (double)expert_bytes, down = (double)down_bytes;
    double best = 0.97 * m * expert / rate->cpu;         /* less gain is not worth its risk */
    *n_down = *n_all = 0;
    if (!(rate->pull > 0 && rate->pull_busy > 0 && rate->cpu > 0 && rate->cpu_busy > 0)) return;
    for (int all = 0; all <= min_int(m, PLAN_PAD_WHOLE); all++)
        for (int d = 0; d + all <= m; d++) {
            const double pulled = d * down + all * expert;
            const double t = fmax((m * expert - pulled) / rate->cpu_busy,
                                  pulled / (PLAN_PULL_MARGIN * rate->pull_busy));
            if (t >= best) continue;
            best = t;
            *n_down = d;
            *n_all = all;
        }
}

/* One table for all layers, for the mean size of their experts. */
static void fill_fetch(const forecast *f)
{
    const plan_model *model = f->model;
    uint64_t expert = 0, down = 0, n_cold = 0;
    for (int l = 0; l < model->n_layer; l++) {
        if (f->p->hot[l] == model->n_expert) continue;
        expert += model->expert_bytes[l];
        down += model->down_bytes[l];
        n_cold++;
    }
    if (n_cold == 0 || f->p->vram.pad == 0) return;
    for (int m = 1; m <= model->n_used && m <= PLAN_MOST_USED; m++) {
        int d, all;
        plan_fetch(&d, &all, m, expert / n_cold, down / n_cold, f->rate);
        f->p->fetch_down[m] = (uint8_t)d;
        f->p->fetch_all[m] = (uint8_t)all;
    }
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* Tokens whose slots the cold server computes at a time: engine/gpu/expert_server.h. */
#define PLAN_SPLIT_COLD 512.0

/* Bytes of the cold experts that some of n tokens choose. */
static double touched(const forecast *f, double n)
{
    return f->cold * (1 - pow(1 - (double)f->model->n_used / f->model->n_expert, n));
}

/* Seconds that the CPU computes the cold experts of n tokens, without reading them. */
static double many_s(const forecast *f, double n)
{
    return n * f->model->expert_macs * f->share / f->rate->cpu_many;
}

/* Seconds of the cold experts of n tokens on the CPU. The chosen experts are read once; reading and
 * computing add up. (Measured, all experts of Qwen3-Next: 512 tokens took 1.47 s, the sum is 1.13,
 * the longer of both 0.7; 64 tokens 0.37, the sum is 0.40.) The drive is read at the same time. A
 * long prompt has no hits in a cache that does not hold all experts. */
static double cpu_prompt_s(const forecast *f, double n)
{
    const double bytes = touched(f, n), cores = bytes / f->rate->cpu + many_s(f, n);
    return f->drive ? fmax(cores, bytes / f->rate->disk) : cores;
}

/* Seconds of the cold experts of n tokens if they are split: a fraction is copied while the CPU
 * computes the others, and both end together. The CPU takes a limited number of slots. */
static double split_s(const forecast *f, double n)
{
    const speeds *r = f->rate;
    const double slower = r->pull > 0 && r->pull_busy > 0 ? r->pull_busy / r->pull : 1;
    const double bus = touched(f, n) / (r->pcie_in * slower);
    const double cores = touched(f, n) / r->cpu_busy + many_s(f, n);
    const double by_cpu = fmin(bus / (bus + cores), fmin(1, PLAN_SPLIT_COLD / (n * f->share)));
    return fmax((1 - by_cpu) * bus, by_cpu * cores);
}

/* Seconds of a prompt of n tokens with all layers on the GPU. Streamed banks are copied while
 * others are computed; the other strategies wait for the choices of each layer. */
static double strategy_s(const forecast *f, prompt_strategy strategy, double n)
{
    const speeds *r = f->rate;
    const double dense = n * f->model->dense_macs / r->gpu_macs;
    const double bound = n <= f->p->contract_to ? PLAN_CONTRACT_SPEED : 1;
    const double experts = n * f->model->expert_macs / (r->gpu_macs * bound);
    switch (strategy) {
    case PROMPT_CORES: return dense + experts * (1 - f->share) + cpu_prompt_s(f, n);
    case PROMPT_SPLIT: return dense + fmax(experts, split_s(f, n));
    case PROMPT_BUS: break;
    }
    return fmax(f->cold / (f->drive ? fmin(r->pcie_in, r->disk) : r->pcie_in), dense + experts);
}

/* The shortest prompt that is faster streamed than with the other strategy, at most `most`. */
static int faster_from(const forecast *f, prompt_strategy other, int most)
{
    int low = PLAN_FEW_TOKENS + 1, high = most;
    while (low < high) {
        const int n = low + (high - low) / 2;
        if (strategy_s(f, other, n) > strategy_s(f, PROMPT_BUS, n)) high = n;
        else low = n + 1;
    }
    return low;
}

int plan_most_shared(int n_used, int n_expert)
{
    return min_int(PLAN_SHARED_SLOTS * n_expert / n_used, PLAN_SPLIT_TOKENS);
}

/* Where nothing can be streamed, the CPU computes the experts of any prompt. Experts from the drive
 * are not split, because they would be read one by one. Floats are not split, because results would
 * differ; for them speeds may not choose the strategy at all. Above plan_most_shared all prompts
 * are streamed. */
static void choose_strategies(const forecast *f)
{
    const int low = PLAN_FEW_TOKENS + 1,
              shared = plan_most_shared(f->model->n_used, f->model->n_expert);
    const plan_wish *w = f->w;
    plan *p = f->p;
    const bool streams = p->stage_ranges > 0, can_split = streams && !f->drive;
    p->stream_from = p->split_from = INT_MAX;
    p->contract_to = p->gpu && (w->fixed || (f->cold > 0 && !streams)) ? INT_MAX : 0;
    if (p->gpu && (f->cold == 0 || (w->fixed && streams))) p->stream_from = low;
    if (!p->gpu || f->cold == 0 || w->fixed || !streams) return;
    p->contract_to = w->strategy_wanted && w->strategy != PROMPT_BUS ? INT_MAX : shared;
    if (w->strategy_wanted) {
        const bool split = w->strategy == PROMPT_SPLIT && can_split;
        if (split) p->split_from = low;
        if (w->strategy != PROMPT_CORES) p->stream_from = split ? PLAN_SPLIT_TOKENS + 1 : low;
        return;
    }
    p->stream_from = shared + 1;
    if (f->model->float_experts) return;
    if (can_split) p->split_from = low;
    p->stream_from = faster_from(f, can_split ? PROMPT_SPLIT : PROMPT_CORES, shared + 1);
}

prompt_strategy plan_prompt_strategy(const plan *p, int n)
{
    return n >= p->stream_from ? PROMPT_BUS : n >= p->split_from ? PROMPT_SPLIT : PROMPT_CORES;
}

static double prompt_s(const forecast *f, int n_gpu)
{
    const double n = f->p->chunk, on_gpu = (double)n_gpu / f->model->n_layer;
    const double cpu_s = n * f->model->dense_macs / f->rate->cpu_many + cpu_prompt_s(f, n);
    const double gpu_s = strategy_s(f, plan_prompt_strategy(f->p, f->p->chunk), n);
    return on_gpu * gpu_s + (1 - on_gpu) * cpu_s;
}

/* ---- a token --------------------------------------------------------------------------------- */

typedef struct cold_time { double cpu, pull, both; } cold_time;

/* Times of m cold experts of layer l. */
static cold_time cold_time_of(const forecast *f, int l, int m, bool fetched)
{
    const double all = m * (double)f->model->expert_bytes[l];
    const int table = min_int(m, PLAN_MOST_USED);
    const int n_down = f->p->fetch_down[table], n_all = f->p->fetch_all[table];
    if (!fetched || n_down + n_all == 0)
        return (cold_time){ all / f->rate->cpu, 0, all / f->rate->cpu };
    const double pulled = n_down * (double)f->model->down_bytes[l] +
                          n_all * (double)f->model->expert_bytes[l];
    const double cpu = (all - pulled) / f->rate->cpu_busy, pull = pulled / f->rate->pull_busy;
    return (cold_time){ cpu, pull, fmax(cpu, pull) };
}

/* Interpolated between whole numbers of cold experts. */
static cold_time cold_time_at(const forecast *f, int l, double m, bool fetched)
{
    const int low = (int)m;
    const double part = m - low;
    const cold_time a = cold_time_of(f, l, low, fetched);
    if (part == 0) return a;
    const cold_time b = cold_time_of(f, l, low + 1, fetched);
    return (cold_time){ a.cpu + part * (b.cpu - a.cpu), a.pull + part * (b.pull - a.pull),
                        a.both + part * (b.both - a.both) };
}

/* Seconds on the path that a token waits for, by what it waits for. */
typedef struct path { double by[BOUND_LATENCY + 1]; } path;

static void predict_layer(const forecast *f, path *time, int l)
{
    const plan_model *model = f->model;
    plan *p = f->p;
    const double expert = (double)model->expert_bytes[l];
    const double m = expert > 0 ? model->n_used * (1 - (double)p->hot[l] / model->n_expert) : 0;
    const double vram = (model->n_used - m) * expert / p->vram.rate;
    const bool on_gpu = p->place[l].dense == PLAN_VRAM;
    const double hot = on_gpu ? vram + p->vram.latency : 0;
    const double hop = on_gpu && m > 0 ? p->ram.latency : 0;
    const cold_time cold = cold_time_at(f, l, m, on_gpu && f->fetched);
    const double missed = m * f->missed, disk = missed * expert / p->drive.rate;
    const double wait = p->drive.latency * fmin(1, missed);

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

/* The links at full speed, each with all that it has to carry. */
static double limit_s(const forecast *f)
{
    const speeds *r = f->rate;
    double hot = 0, cold = 0, cold_fetchable = 0;
    for (int l = 0; l < f->model->n_layer; l++) {
        const double share = (double)f->p->hot[l] / f->model->n_expert;
        const double chosen = f->model->n_used * (double)f->model->expert_bytes[l];
        hot += share * chosen;
        cold += (1 - share) * chosen;
        if (f->p->place[l].dense == PLAN_VRAM) cold_fetchable += (1 - share) * chosen;
    }
    const double both = fmax(r->cpu, r->pull > 0 ? r->cpu_busy + r->pull_busy : 0);
    const double fetched = f->fetched ? cold_fetchable : 0;
    const double experts = fetched / both + (cold - fetched) / r->cpu;
    return f->dense_in_vram / r->vram_read +
           ((double)f->model->token_dense - f->dense_in_vram) / r->cpu_dense +
           fmax(fmax(hot / r->vram_read, experts), f->missed * cold / r->disk);
}

void plan_predict(plan *p, const planner *j)
{
    const int n_layer = j->model->n_layer, n_gpu = plan_gpu_layers(p, n_layer);
    const double cold = (double)plan_cold_bytes(p, j), ram = (double)p->ram.experts;
    const bool drive = plan_uses_drive(p, n_layer);
    const forecast f = {
        .p = p, .model = j->model, .w = j->w, .rate = &p->rate, .cold = cold,
        .share = cold / (double)j->experts, .drive = drive,
        .missed = drive ? fmax(0, 1 - ram / cold) : 0,
        .fetched = p->vram.pad > 0 && ram > 0 && !drive, /* RAM frames of a cache change */
        .dense_in_vram = (double)(p->head == PLAN_RAM ? p->vram.dense : j->model->token_dense),
    };
    path time = { { 0 } };
    double total = 0;

    fill_fetch(&f);
    choose_strategies(&f);
    time.by[BOUND_VRAM] = f.dense_in_vram / f.rate->vram_read;
    time.by[BOUND_CPU] = ((double)j->model->token_dense - f.dense_in_vram) / f.rate->cpu_dense;
    time.by[BOUND_LATENCY] = f.rate->layer_dense * n_gpu + f.rate->layer_cpu * (n_layer - n_gpu);
    p->t_dense = time.by[BOUND_VRAM] + time.by[BOUND_CPU] + time.by[BOUND_LATENCY];
    for (int l = 0; l < n_layer; l++) predict_layer(&f, &time, l);
    for (int b = 0; b <= BOUND_LATENCY; b++) {
        total += time.by[b];
        if (time.by[b] > time.by[p->bound]) p->bound = (plan_bound)b;
    }
    p->decode_tok_s = 1 / total;
    p->limit_tok_s = 1 / limit_s(&f);
    p->prefill_tok_s = p->chunk / prompt_s(&f, n_gpu);
}
