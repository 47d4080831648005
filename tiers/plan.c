/* plan.c - the planner: which bytes go where, and how fast that should be.
 *
 * Budgets first (what is there, less a reserve, or less than that if asked for), then attempts in
 * order of preference; the first that fits is the plan. Two invariants: no sum exceeds its budget,
 * and experts in VRAM, in RAM and only in the file add up to all experts. Pure: no I/O, no clock.
 * Measuring is left to engine/plan/measure.h, the sizes to engine/plan/planning.h. */
#include "tiers/plan.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "cuda/gpu.h"

#define MB 1000000u
#define GIB (UINT64_C(1) << 30)

enum {
    MOST_PARTS = 16,
    PART_BYTES = 256 << 20,              /* larger parts gain nothing: over the fastest bus such a
                                          * copy takes 5 ms, starting kernels some microseconds */
    STAGE_SLACK = 4096                   /* of each buffer: slabs begin at multiples of 256 */
};

/* Seconds that a layer takes beyond its bytes: gpt-oss-20b 780 us for 1300 MB and 24 layers at
 * 4.5 TB/s, Qwen3-Next 1330 us for 1424 MB and 48 layers. */
static const double layer_dense_s = 20e-6, layer_hot_s = 8e-6;
/* The same on the CPU, which waits for its threads about ten times: the demo models 240 and 280 us
 * for 4.1 and 2.4 MB and 4 layers. */
static const double layer_cpu_s = 30e-6;
/* Until the first bytes of an expert come from a drive, and what does not overlap at the end. */
static const double layer_disk_s = 0.2e-3;

/* What all attempts have in common. */
typedef struct job {
    const plan_model *what;
    const plan_session *s;
    const plan_wish *w;
    speeds rate;                         /* no zeros but those that mean something */
    uint64_t vram, ram;                  /* that may be taken, beside the program */
    uint64_t program;
    uint64_t ram_there;                  /* that could be, without a wish */
    uint64_t experts;                    /* all of them */
    uint64_t one, down;                  /* largest expert, largest down slab */
} job;

/* Sums that cannot be counted are too much for any budget. */
static uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return size_add(&sum, a, b) ? sum : UINT64_MAX;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* What may be taken of have: less a reserve for the driver, the system and other programs, of which
 * a very small machine has to spare less. */
static uint64_t budget(uint64_t have, uint64_t reserve, double share, uint64_t bound)
{
    const uint64_t part = (uint64_t)((double)have * share);
    if (part > reserve) reserve = part;
    return least(have - least(reserve, have / 2), bound);
}

uint64_t plan_vram(const plan *p)
{
    return p->vram_dense + p->vram_state + p->vram_work + p->vram_stage + p->vram_pad +
           p->vram_experts;
}

uint64_t plan_ram(const plan *p)
{
    return p->ram_program + p->ram_experts + p->ram_other + p->ram_copy;
}

bool plan_uses_drive(const plan *p, int n_layer)
{
    for (int l = 0; l < n_layer; l++)
        if (p->place[l] == PLAN_DISK) return true;
    return false;
}

static uint64_t largest_expert(const plan_model *what)
{
    uint64_t most = 0;
    for (int l = 0; l < what->n_layer; l++)
        if (what->expert_bytes[l] > most) most = what->expert_bytes[l];
    return most;
}

uint64_t plan_least_cache(const plan_model *what)
{
    if (what->least_cache > 0) return what->least_cache;
    return 2 * (uint64_t)what->n_used * largest_expert(what);
}

const char *plan_bound_name(plan_bound b)
{
    static const char *const names[] = { "VRAM", "CPU memory", "the bus", "the drive", "latency" };
    return names[b];
}

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

/* One table for all layers, by the mean of the cold ones: their sizes differ little. */
static void fill_fetch(plan *p, const job *j)
{
    const plan_model *what = j->what;
    uint64_t expert = 0, down = 0;
    int n_cold = 0;
    for (int l = 0; l < what->n_layer; l++) {
        if (p->hot[l] == what->n_expert) continue;
        expert += what->expert_bytes[l];
        down += what->down_bytes[l];
        n_cold++;
    }
    if (n_cold == 0 || p->vram_pad == 0) return;
    for (int m = 1; m <= what->n_used && m <= PLAN_MOST_USED; m++) {
        int d, all;
        plan_fetch(&d, &all, m, expert / (uint64_t)n_cold, down / (uint64_t)n_cold, &j->rate);
        p->fetch_down[m] = (uint8_t)d;
        p->fetch_all[m] = (uint8_t)all;
    }
}

static uint64_t pad_bytes(const job *j)
{
    const int n = j->what->n_used;
    if (j->w->no_postfetch || n > PLAN_MOST_USED || j->rate.pull <= 0) return 0;
    return (uint64_t)n * j->down + (uint64_t)min_int(n, PLAN_PAD_WHOLE) * j->one;
}

/* ---- prompts --------------------------------------------------------------------------------- */

static uint64_t cold_bytes(const plan *p, const job *j) { return j->experts - p->vram_experts; }

/* The CPU computing the cold experts of n tokens: those that anybody chose are read once. A prompt
 * of some length finds nothing in a cache that does not hold all. */
static double cpu_prompt_s(const plan *p, const job *j, double n)
{
    const double chosen = (double)j->what->n_used / j->what->n_expert;
    const double cold = (double)cold_bytes(p, j), touched = 1 - pow(1 - chosen, n);
    const bool drive = plan_uses_drive(p, j->what->n_layer);
    const double link = drive ? fmin(j->rate.cpu, j->rate.disk) : j->rate.cpu;
    const double macs = n * j->what->expert_macs * (cold / (double)j->experts);
    return fmax(cold * touched / link, macs / j->rate.cpu_many);
}

/* All cold experts through VRAM. */
static double stream_s(const plan *p, const job *j)
{
    const bool drive = plan_uses_drive(p, j->what->n_layer);
    const double link = drive ? fmin(j->rate.pcie_in, j->rate.disk) : j->rate.pcie_in;
    return (double)cold_bytes(p, j) / link;
}

/* The shortest prompt whose experts are faster streamed than computed by the CPU. */
static int find_stream_from(const plan *p, const job *j)
{
    const double sweep = stream_s(p, j);
    int low = GPU_FEW + 1, high = 1 << 30;
    if (cold_bytes(p, j) == 0) return low;
    if (j->w->fixed) return p->stage_parts > 0 ? low : INT_MAX;
    if (p->stage_parts == 0 || cpu_prompt_s(p, j, high) <= sweep) return INT_MAX;
    while (low < high) {
        const int n = low + (high - low) / 2;
        if (cpu_prompt_s(p, j, n) > sweep) high = n;
        else low = n + 1;
    }
    return low;
}

static double prompt_s(const plan *p, const job *j)
{
    const double n = p->chunk, cold = (double)cold_bytes(p, j) / (double)j->experts;
    const double dense = n * j->what->dense_macs, experts = n * j->what->expert_macs;
    if (!p->gpu) return dense / j->rate.cpu_many + cpu_prompt_s(p, j, n);
    if (cold == 0) return (dense + experts) / j->rate.gpu_macs;
    if (p->chunk >= p->stream_from)
        return fmax(stream_s(p, j), (dense + experts) / j->rate.gpu_macs);
    return (dense + experts * (1 - cold)) / j->rate.gpu_macs + cpu_prompt_s(p, j, n);
}

/* ---- a token --------------------------------------------------------------------------------- */

/* Where the cold experts of a token come from. */
typedef struct cold_source {
    double miss;                         /* the share of them that is in no RAM */
    double fetched;                      /* the share that post-fetch can reach */
} cold_source;

static cold_source source_of(const plan *p, const job *j)
{
    const double cold = (double)cold_bytes(p, j), ram = (double)p->ram_experts;
    const double locked = ram > 0 ? (double)p->ram_locked / ram : 0;
    cold_source s = { .miss = 0, .fetched = locked };
    if (plan_uses_drive(p, j->what->n_layer)) {
        /* The least recently used go: with less room than one token takes, an expert is gone
         * before its layer comes again. */
        double token = 0;
        for (int l = 0; l < j->what->n_layer; l++)
            token += (double)j->what->expert_bytes[l] * j->what->n_used *
                     (1 - (double)p->hot[l] / j->what->n_expert);
        s.miss = ram < token ? 1 : fmax(0, 1 - ram / cold);
        s.fetched = 0;                   /* places change hands: nothing is fetched from them */
    }
    if (!p->gpu || p->vram_pad == 0) s.fetched = 0;
    return s;
}

typedef struct cold_time { double cpu, pull, both; } cold_time;

/* m of layer l's experts, of which the pad may take its share. */
static cold_time cold_time_of(const plan *p, const job *j, int l, int m, double fetched)
{
    const double expert = (double)j->what->expert_bytes[l], down = (double)j->what->down_bytes[l];
    const double alone = m * expert / j->rate.cpu;
    const int table = min_int(m, PLAN_MOST_USED);
    if (fetched == 0 || p->fetch_down[table] + p->fetch_all[table] == 0)
        return (cold_time){ alone, 0, alone };
    const split s = split_of(m, p->fetch_down[table], p->fetch_all[table], expert, down);
    return (cold_time){
        fetched * s.cpu_bytes / j->rate.cpu_busy + (1 - fetched) * alone,
        fetched * s.pull_bytes / j->rate.pull_busy,
        fetched * split_time(s, &j->rate) + (1 - fetched) * alone,
    };
}

/* Between two whole numbers of cold experts: the mean of both. */
static cold_time cold_time_at(const plan *p, const job *j, int l, double m, double fetched)
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

static void predict_layer(plan *p, path *way, const job *j, int l, cold_source from)
{
    const plan_model *what = j->what;
    const double expert = (double)what->expert_bytes[l];
    const double m = what->n_used * (1 - (double)p->hot[l] / what->n_expert);
    const double vram = (what->n_used - m) * expert / j->rate.vram_read;
    const double hot = p->gpu ? vram + layer_hot_s : 0, hop = p->gpu && m > 0 ? j->rate.hop : 0;
    const cold_time cold = cold_time_at(p, j, l, m, from.fetched);
    const double missed = m * from.miss, disk = missed * expert / j->rate.disk;
    const double wait = layer_disk_s * fmin(1, missed);

    p->t_hot += hot;
    p->t_cpu += cold.cpu;
    p->t_pull += cold.pull;
    p->t_disk += disk + wait;
    p->t_hop += hop;
    if (hot >= hop + fmax(cold.both, disk) + wait) {
        way->by[BOUND_VRAM] += vram;
        way->by[BOUND_LATENCY] += hot - vram;
        return;
    }
    way->by[BOUND_LATENCY] += hop;
    way->by[BOUND_DISK] += wait;
    if (disk > cold.both) way->by[BOUND_DISK] += disk;
    else way->by[cold.pull > cold.cpu ? BOUND_PULL : BOUND_CPU] += cold.both;
}

/* The links at full speed, each with all that it has to carry. */
static double limit_s(const plan *p, const job *j, cold_source from)
{
    const speeds *r = &j->rate;
    double hot = 0, cold = 0;
    for (int l = 0; l < j->what->n_layer; l++) {
        const double share = (double)p->hot[l] / j->what->n_expert;
        hot += share * j->what->n_used * (double)j->what->expert_bytes[l];
        cold += (1 - share) * j->what->n_used * (double)j->what->expert_bytes[l];
    }
    const double both = fmax(r->cpu, r->pull > 0 ? r->cpu_busy + r->pull_busy : 0);
    const double lanes = from.fetched * cold / both + (1 - from.fetched) * cold / r->cpu;
    return (double)j->what->token_dense / (p->gpu ? r->vram_read : r->cpu_dense) +
           fmax(fmax(hot / r->vram_read, lanes), from.miss * cold / r->disk);
}

static void predict(plan *p, const job *j)
{
    const cold_source from = source_of(p, j);
    const double dense = (double)j->what->token_dense;
    path way = { { 0 } };
    double total = 0;

    if (p->gpu) {
        const double latency = layer_dense_s * j->what->n_layer;
        way.by[BOUND_VRAM] = dense / j->rate.vram_read;
        way.by[BOUND_LATENCY] = latency;
        p->t_dense = way.by[BOUND_VRAM] + latency;
    } else {
        way.by[BOUND_CPU] = dense / j->rate.cpu_dense;
        way.by[BOUND_LATENCY] = layer_cpu_s * j->what->n_layer;
        p->t_dense = way.by[BOUND_CPU] + way.by[BOUND_LATENCY];
    }
    for (int l = 0; l < j->what->n_layer; l++) predict_layer(p, &way, j, l, from);
    for (int b = 0; b <= BOUND_LATENCY; b++) {
        total += way.by[b];
        if (way.by[b] > way.by[p->bound]) p->bound = (plan_bound)b;
    }
    p->decode_tok_s = 1 / total;
    p->limit_tok_s = 1 / limit_s(p, j, from);
    p->prefill_tok_s = p->chunk / prompt_s(p, j);
}

/* ---- placing --------------------------------------------------------------------------------- */

/* Whole banks, layer by layer, and of the next as many experts as there is room for. */
static void place_hot(plan *p, const job *j, uint64_t room)
{
    const plan_model *what = j->what;
    for (int l = 0; l < what->n_layer; l++) {
        const uint64_t n = least((uint64_t)what->n_expert, room / what->expert_bytes[l]);
        p->hot[l] = (int)n;
        p->vram_experts += n * what->expert_bytes[l];
        room -= n * what->expert_bytes[l];
        if (p->hot[l] < what->n_expert) return;
    }
}

static void place_cold(plan *p, const job *j, plan_place where)
{
    for (int l = 0; l < j->what->n_layer; l++)
        p->place[l] = p->hot[l] == j->what->n_expert ? PLAN_VRAM : where;
}

static uint64_t ram_beside(const plan *p, const job *j, int i)
{
    return plus(plus(j->s->snapshots[i], p->embed_in_ram ? j->what->embed : 0),
                cold_bytes(p, j) > 0 ? j->s->ram_beside[i] : 0);
}

/* The CPU's dense weights: of the table it holds some rows. */
static uint64_t dense_alone(const job *j, int i)
{
    return j->what->dense - j->what->embed + least(j->what->embed, j->s->ram_embed[i]);
}

static uint64_t ram_alone(const job *j, int i)
{
    return plus(plus(dense_alone(j, i), j->s->state[i]),
                plus(j->s->snapshots[i], j->s->ram_work[i]));
}

/* Banks that are not all in VRAM are in RAM as a whole: prompts need them so. */
static uint64_t cold_banks(const plan *p, const plan_model *what)
{
    uint64_t sum = 0;
    for (int l = 0; l < what->n_layer; l++)
        if (p->hot[l] < what->n_expert) sum += (uint64_t)what->n_expert * what->expert_bytes[l];
    return sum;
}

/* The cold experts into RAM, if all of them fit, else (unless all must) into a cache before the
 * file, which has a least size however few they are. False if there is no room for that. */
static bool place_ram(plan *p, const job *j, int i, bool all, uint64_t lock_limit)
{
    const uint64_t banks = cold_banks(p, j->what), cold = cold_bytes(p, j);
    const uint64_t smallest = plan_least_cache(j->what);
    p->ram_other = p->gpu ? ram_beside(p, j, i) : ram_alone(j, i);
    if (p->ram_other > j->ram) return false;
    const uint64_t left = j->ram - p->ram_other;
    const bool disk = banks > left;
    if (disk && (all || left < smallest)) return false;
    place_cold(p, j, disk ? PLAN_DISK : PLAN_RAM);
    p->ram_experts = disk ? least(left, cold > smallest ? cold : smallest) : banks;
    p->ram_locked = p->gpu ? least(p->ram_experts, lock_limit) : 0;
    p->disk_experts = disk && cold > p->ram_experts ? cold - p->ram_experts : 0;
    p->stream_from = p->gpu ? find_stream_from(p, j) : INT_MAX;
    return true;
}

/* ---- with a GPU ------------------------------------------------------------------------------ */

/* Both buffers; a part is a whole number of experts. */
static uint64_t stage_bytes(const job *j, int parts)
{
    const uint64_t n = (uint64_t)(j->what->n_expert + parts - 1) / (uint64_t)parts;
    return 2 * (n * j->one + STAGE_SLACK);
}

typedef struct attempt {
    int i;                               /* of the chunks */
    bool embed_in_ram;
    int parts;                           /* 0: no streaming */
    bool pad;
    bool resident;                       /* all experts in VRAM, or not at all */
} attempt;

static bool attempt_gpu(plan *p, const job *j, uint64_t lock_limit, attempt a)
{
    const uint64_t table = a.embed_in_ram ? j->what->embed : 0;
    *p = (plan){ .gpu = true, .embed_in_ram = a.embed_in_ram, .rate = j->rate };
    p->chunk = j->s->chunk[a.i];
    p->vram_dense = j->what->dense - table;
    p->vram_state = j->s->state[a.i];
    p->vram_work = plus(j->s->vram_work[a.i], a.resident ? 0 : j->s->vram_cold);
    p->stage_parts = a.parts;
    p->vram_stage = a.parts > 0 ? stage_bytes(j, a.parts) : 0;
    p->vram_pad = a.pad ? pad_bytes(j) : 0;
    const uint64_t fixed = plus(plus(p->vram_dense, p->vram_state),
                                plus(p->vram_work, p->vram_stage + p->vram_pad));
    if (fixed > j->vram || (a.resident && j->vram - fixed < j->experts)) return false;
    place_hot(p, j, j->w->no_hot ? 0 : j->vram - fixed);
    if (!place_ram(p, j, a.i, false, lock_limit)) return false;
    fill_fetch(p, j);
    return true;
}

static bool parts_fit(const job *j, int parts)
{
    return parts <= MOST_PARTS && parts <= j->what->n_expert;
}

/* The fewest parts that are small enough, and of which two take no more than a quarter of what is
 * left behind all that has to be there; the most if there are none. */
static int choose_parts(const job *j, bool embed_in_ram)
{
    const int last = j->s->n_chunk - 1;
    const uint64_t needed = plus(j->what->dense - (embed_in_ram ? j->what->embed : 0),
                                 plus(j->s->state[last],
                                      plus(j->s->vram_work[last], j->s->vram_cold)));
    const uint64_t left = j->vram > needed ? j->vram - needed : 0;
    int parts = 1;
    for (; parts_fit(j, 2 * parts); parts *= 2) {
        const uint64_t both = stage_bytes(j, parts);
        if (both <= left / 4 && both <= 2 * (uint64_t)PART_BYTES) break;
    }
    return parts;
}

/* Some experts are cold, and prompts stream them. A larger chunk is worth more than larger parts or
 * some experts in VRAM, as long as it leaves 70% of VRAM to other things. A row of the embedding
 * table costs next to nothing over the bus: the table is in VRAM only if RAM has no room. */
static bool attempt_streaming(plan *p, const job *j, uint64_t lock_limit, int tables)
{
    const int last = j->s->n_chunk - 1;
    for (int i = 0; i <= last; i++)
        for (int t = tables - 1; t >= 0; t--) {
            attempt a = { .i = i, .embed_in_ram = t == 1, .pad = true };
            for (a.parts = choose_parts(j, t == 1); parts_fit(j, a.parts); a.parts *= 2) {
                const uint64_t spent = plus(j->s->vram_work[i], stage_bytes(j, a.parts));
                if (i < last && spent > j->vram / 10 * 3) continue;
                if (attempt_gpu(p, j, lock_limit, a)) return true;
            }
        }
    return false;
}

static bool with_gpu(plan *p, const job *j, uint64_t lock_limit)
{
    const int tables = j->what->embed > 0 ? 2 : 1;       /* in VRAM; in RAM */
    const int last = j->s->n_chunk - 1;
    for (int i = 0; i <= last && !j->w->no_hot; i++)
        for (int t = 0; t < tables; t++) {
            const attempt a = { .i = i, .embed_in_ram = t == 1, .resident = true };
            if (attempt_gpu(p, j, lock_limit, a)) return true;
        }
    if (attempt_streaming(p, j, lock_limit, tables)) return true;
    for (int pad = 1; pad >= 0; pad--)
        for (int t = tables - 1; t >= 0; t--) {
            const attempt a = { .i = last, .embed_in_ram = t == 1, .pad = pad == 1 };
            if (attempt_gpu(p, j, lock_limit, a)) return true;
        }
    return false;
}

/* ---- without --------------------------------------------------------------------------------- */

static bool attempt_cpu(plan *p, const job *j, int i, bool all)
{
    *p = (plan){ .chunk = j->s->chunk[i], .rate = j->rate };
    return place_ram(p, j, i, all, 0);
}

static bool with_cpu(plan *p, const job *j)
{
    const int last = j->s->n_chunk - 1;
    for (int i = 0; i <= last; i++)
        if (attempt_cpu(p, j, i, true)) return true;
    for (int i = 0; i < last; i++)
        if (j->s->ram_work[i] <= j->ram / 10 * 3 && attempt_cpu(p, j, i, false)) return true;
    return attempt_cpu(p, j, last, false);
}

static const char *text_size(char dst[32], uint64_t bytes)
{
    const bool large = bytes >= 1000 * MB;
    snprintf(dst, 32, "%.1f %s", (double)bytes * (large ? 1e-9 : 1e-6), large ? "GB" : "MB");
    return dst;
}

/* Whether VRAM holds what it has to; then RAM is what lacks. */
static bool gpu_could(const job *j, const plan_machine *m)
{
    const int last = j->s->n_chunk - 1;
    const uint64_t work = plus(j->s->vram_work[last], j->s->vram_cold);
    return m->gpu && !j->w->cpu_only &&
           plus(j->what->dense, plus(j->s->state[last], work)) <= j->vram;
}

/* What all attempts lack at least. */
typedef struct lacking {
    bool beside;                         /* a GPU, which has enough VRAM */
    uint64_t dense, session, experts;
    uint64_t need, room;                 /* with the program */
} lacking;

static lacking lacking_of(const job *j, const plan_machine *m)
{
    const int last = j->s->n_chunk - 1;
    lacking k = { .beside = gpu_could(j, m), .room = least(j->ram_there, j->w->ram) };
    k.experts = least(j->experts, plan_least_cache(j->what));
    k.dense = k.beside ? 0 : dense_alone(j, last);
    k.session = plus(j->s->snapshots[last], k.beside ? j->s->ram_beside[last] :
                     plus(j->s->state[last], j->s->ram_work[last]));
    k.need = plus(plus(k.dense, k.session), plus(k.experts, j->program));
    return k;
}

/* The first of the lesser sessions that there is room for: with the same keys and values and a
 * smaller context, with others and the same context, with both. NULL if none. */
static const plan_less *find_less(const job *j, const lacking *k, bool q8, bool same_ctx)
{
    for (int i = 0; i < j->s->n_less; i++) {
        const plan_less *c = &j->s->less[i];
        const uint64_t session = k->beside ? c->beside : c->alone;
        if (c->q8 == q8 && (c->ctx == j->s->ctx) == same_ctx &&
            plus(k->need - k->session, session) <= k->room)
            return c;
    }
    return NULL;
}

/* Only what would really help. */
static void advise(char *dst, size_t cap, const job *j, const lacking *k)
{
    const uint64_t mib = UINT64_C(1) << 20;
    const plan_less *ctx = find_less(j, k, false, false), *q8 = find_less(j, k, true, true);
    const plan_less *both = ctx || q8 ? NULL : find_less(j, k, true, false);
    char ram[48] = "", less[80] = "";
    if (j->w->ram != UINT64_MAX && k->need <= j->ram_there)
        snprintf(ram, sizeof ram, "use --ram %lluM or more",
                 (unsigned long long)((k->need + mib - 1) / mib));
    if (ctx) snprintf(less, sizeof less, "--ctx %d or less%s", ctx->ctx,
                      q8 ? ", or --kv q8_0" : "");
    else if (q8) snprintf(less, sizeof less, "--kv q8_0");
    else if (both) snprintf(less, sizeof less, "--ctx %d or less and --kv q8_0", both->ctx);
    if (ram[0]) snprintf(dst, cap, "%s%s%s", ram, less[0] ? ", or " : "", less);
    else if (less[0]) snprintf(dst, cap, "use %s", less);
    else snprintf(dst, cap, "no smaller context would do: end other programs, or use a smaller "
                  "model or quantisation");
}

/* Why not even the least of it can be done. */
static int refuse(const job *j, const plan_machine *m, err_ctx *err)
{
    const lacking k = lacking_of(j, m);
    const bool bounded = k.room == j->w->ram;
    char need[32], weights[32], context[32], experts[32], program[32], room[32], have[32];
    char advice[200];
    advise(advice, sizeof advice, j, &k);
    return err_set(err, ERR_NOMEM, "needs %s of memory at least%s (program %s, dense weights %s, "
                   "context of %d tokens %s, some experts %s), but %s may be used (%s%s); %s",
                   text_size(need, k.need), k.beside ? " beside the GPU" : "",
                   text_size(program, j->program), text_size(weights, k.dense), j->s->ctx,
                   text_size(context, k.session), text_size(experts, k.experts),
                   text_size(room, k.room), bounded ? "--ram" : text_size(have, m->ram_available),
                   bounded ? "" : " are available", advice);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int check_inputs(const plan_model *what, const plan_session *s, err_ctx *err)
{
    if (what->n_layer < 1 || what->n_layer > PLAN_MAX_LAYERS)
        return err_set(err, ERR_UNSUPPORTED, "plan: %d layers, not 1 to %d", what->n_layer,
                       PLAN_MAX_LAYERS);
    if (what->n_used < 1 || what->n_used > what->n_expert)
        return err_set(err, ERR_RANGE, "plan: %d of %d experts", what->n_used, what->n_expert);
    if (s->n_chunk < 1 || s->n_chunk > PLAN_CHUNKS)
        return err_set(err, ERR_RANGE, "plan: %d chunks, not 1 to %d", s->n_chunk, PLAN_CHUNKS);
    for (int l = 0; l < what->n_layer; l++)
        if (what->expert_bytes[l] == 0 || what->down_bytes[l] > what->expert_bytes[l])
            return err_set(err, ERR_RANGE, "plan: layer %d: experts of %llu bytes", l,
                           (unsigned long long)what->expert_bytes[l]);
    return 0;
}

static int sum_experts(job *j, err_ctx *err)
{
    const plan_model *what = j->what;
    for (int l = 0; l < what->n_layer; l++) {
        uint64_t bank;
        if (!size_mul(&bank, what->expert_bytes[l], (uint64_t)what->n_expert) ||
            !size_add(&j->experts, j->experts, bank) || j->experts > UINT64_MAX / 8)
            return err_set(err, ERR_RANGE, "plan: experts of layer %d are too many bytes", l);
        if (what->down_bytes[l] > j->down) j->down = what->down_bytes[l];
    }
    j->one = largest_expert(what);
    return 0;
}

int plan_make(plan *out, const plan_machine *m, const plan_model *what, const plan_session *s,
              const plan_wish *w, err_ctx *err)
{
    job j = {
        .what = what, .s = s, .w = w, .rate = speeds_assume(&m->rate),
        .vram = budget(m->vram_free, 400 * MB, 0.03, w->vram), .program = m->ram_program,
        .ram_there = plus(budget(m->ram_available, GIB, 0.05, UINT64_MAX), m->ram_program),
    };
    const uint64_t all = least(j.ram_there, w->ram);
    int rc;
    j.ram = all - least(all, m->ram_program);
    *out = (plan){ 0 };
    if ((rc = check_inputs(what, s, err)) < 0 || (rc = sum_experts(&j, err)) < 0) return rc;
    if (!(m->gpu && !w->cpu_only && with_gpu(out, &j, m->lock_limit)) && !with_cpu(out, &j)) {
        *out = (plan){ 0 };
        return refuse(&j, m, err);
    }
    out->ram_program = m->ram_program;
    if (!out->gpu && plus(plan_ram(out), w->ram_copy) <= all) out->ram_copy = w->ram_copy;
    predict(out, &j);
    return 0;
}
