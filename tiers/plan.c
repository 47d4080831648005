/* plan.c - the planner: which bytes go to which tier.
 *
 * Computes the budgets (available memory less a reserve, or less if a wish says so), then makes
 * attempts in order of preference; the first that fits is the plan. Two invariants: no sum exceeds
 * its budget, and experts in VRAM, in RAM and only in the file add up to all experts. No I/O, no
 * clock. plan_speed.c predicts speeds, engine/plan/measure.h measures them,
 * engine/plan/planning.h counts sizes. */
#include "tiers/plan_internal.h"

#include <limits.h>
#include <stdio.h>

#define MB 1000000u
#define GIB (UINT64_C(1) << 30)

enum {
    MOST_RANGES = 16,
    RANGE_BYTES = 256 << 20,             /* larger ranges gain nothing: a copy takes 5 ms over the
                                          * fastest bus, starting kernels some microseconds */
    STAGE_SLACK = 4096,                  /* of each buffer: slabs begin at multiples of 256 */
    SLACK_LEAST = 4 << 20,               /* of advice: two huge pages, */
    SLACK_MORE = 60 << 20                /* and at most this much of large needs */
};

/* UINT64_MAX if the sum overflows: more than any budget. */
static uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return size_add(&sum, a, b) ? sum : UINT64_MAX;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Available bytes less a reserve for the driver, the system and other programs: `reserve`, or a
 * fraction of them if that is more, but at most half. */
static uint64_t budget(uint64_t available, uint64_t reserve, double fraction, uint64_t limit)
{
    const uint64_t relative = (uint64_t)((double)available * fraction);
    if (relative > reserve) reserve = relative;
    return least(available - least(reserve, available / 2), limit);
}

int plan_gpu_layers(const plan *p, int n_layer)
{
    return p->gpu ? n_layer - p->cpu_layers : 0;
}

uint64_t plan_all_experts(const plan_model *model)
{
    uint64_t sum = 0;
    for (int l = 0; l < model->n_layer; l++)
        sum += (uint64_t)model->n_expert * model->expert_bytes[l];
    return sum;
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
        if (p->tier[l] == PLAN_DISK) return true;
    return false;
}

uint64_t plan_cold_bytes(const plan *p, const planner *j)
{
    uint64_t sum = 0;
    for (int l = 0; l < j->model->n_layer; l++)
        sum += (uint64_t)(j->model->n_expert - p->hot[l]) * j->model->expert_bytes[l];
    return sum;
}

static uint64_t largest_expert(const plan_model *model)
{
    uint64_t most = 0;
    for (int l = 0; l < model->n_layer; l++)
        if (model->expert_bytes[l] > most) most = model->expert_bytes[l];
    return most;
}

uint64_t plan_least_cache(const plan_model *model)
{
    if (model->least_cache > 0) return model->least_cache;
    return 2 * (uint64_t)model->n_used * largest_expert(model);
}

const char *plan_bound_name(plan_bound b)
{
    static const char *const names[] = { "VRAM", "CPU memory", "the bus", "the drive", "latency" };
    return names[b];
}

/* ---- placing --------------------------------------------------------------------------------- */

/* Bytes of the rest of VRAM that experts may have. */
static uint64_t hot_bytes(const planner *j, uint64_t left)
{
    return j->w->no_hot ? 0 : least(left, j->w->hot_most);
}

int plan_first_bank(const plan_model *model)
{
    int l = 0;
    while (l < model->n_layer - 1 && model->expert_bytes[l] == 0) l++;
    return l;
}

int plan_n_bank(const plan_model *model)
{
    int n = 0;
    for (int l = 0; l < model->n_layer; l++) n += model->expert_bytes[l] > 0;
    return n;
}

/* Marks layers without experts as complete. */
static void place_none(plan *p, const plan_model *model)
{
    for (int l = 0; l < model->n_layer; l++)
        if (model->expert_bytes[l] == 0) p->hot[l] = model->n_expert;
}

/* Whole banks, layer by layer, and as many experts of the next one as fit. */
static void place_hot(plan *p, const planner *j, uint64_t bytes)
{
    const plan_model *model = j->model;
    for (int l = 0; l < model->n_layer; l++) {
        const uint64_t one = model->expert_bytes[l], all = (uint64_t)model->n_expert;
        if (one == 0) continue;
        const uint64_t n = least(all, bytes / one);
        p->hot[l] = (int)n;
        p->vram_experts += n * one;
        bytes -= n * one;
        if (n < all) return;
    }
}

/* The same number of every layer's experts. False if all fit, or fewer than a token chooses: such a
 * cache has no hits. */
static bool place_spread(plan *p, const planner *j, uint64_t bytes)
{
    const plan_model *model = j->model;
    uint64_t one = 0;
    for (int l = 0; l < model->n_layer; l++) one += model->cached_bytes[l];
    const uint64_t each = bytes / one;
    if (each >= (uint64_t)model->n_expert || each < (uint64_t)model->n_used) return false;
    p->vram_experts = each * one;
    bytes -= p->vram_experts;
    for (int l = 0; l < model->n_layer; l++) {
        if (model->cached_bytes[l] == 0) continue;
        const bool more = bytes >= model->cached_bytes[l] && each + 1 < (uint64_t)model->n_expert;
        p->hot[l] = (int)each + more;
        if (!more) continue;
        p->vram_experts += model->cached_bytes[l];
        bytes -= model->cached_bytes[l];
    }
    return true;
}

static void place_cold(plan *p, const planner *j, plan_tier tier)
{
    for (int l = 0; l < j->model->n_layer; l++)
        p->tier[l] = p->hot[l] == j->model->n_expert ? PLAN_VRAM : tier;
}

static uint64_t ram_with_gpu(const plan *p, const planner *j, int i)
{
    return plus(plus(j->s->snapshots[i], p->embed_in_ram ? j->model->embed : 0),
                plan_cold_bytes(p, j) > 0 ? j->s->ram_with_gpu[i] : 0);
}

/* The CPU's dense weights, with some rows of the table. */
static uint64_t dense_on_cpu(const planner *j, int i)
{
    return j->model->dense - j->model->embed + least(j->model->embed, j->s->ram_embed[i]);
}

static uint64_t ram_without_gpu(const planner *j, int i)
{
    return plus(plus(dense_on_cpu(j, i), j->s->state[i]),
                plus(j->s->snapshots[i], j->s->ram_work[i]));
}

/* With a GPU that has the first layers only. The page-locked table is a copy. */
static uint64_t ram_some_layers(const plan *p, const planner *j, int i)
{
    const uint64_t dense = j->model->dense - j->model->embed - p->vram_dense;
    const uint64_t state = j->s->state[i] - p->vram_state;
    return plus(plus(plus(dense, state), plus(j->model->table, j->s->ram_work[i])),
                plus(j->s->snapshots[i], j->s->ram_with_gpu[i]));
}

/* Banks that are partly in VRAM are in RAM as a whole: prompts stream whole banks. */
static uint64_t cold_banks(const plan *p, const plan_model *model)
{
    uint64_t sum = 0;
    for (int l = 0; l < model->n_layer; l++)
        if (p->hot[l] < model->n_expert) sum += (uint64_t)model->n_expert * model->expert_bytes[l];
    return sum;
}

/* Puts the cold experts into RAM if all of them fit. Else RAM is a cache before the file of at
 * least plan_least_cache bytes, unless `all` forbids that. False if neither fits. */
static bool place_ram(plan *p, const planner *j, int i, bool all)
{
    const uint64_t banks = cold_banks(p, j->model), cold = plan_cold_bytes(p, j);
    const uint64_t smallest = plan_least_cache(j->model);
    p->ram_other = !p->gpu ? ram_without_gpu(j, i) : p->head_in_ram ? ram_some_layers(p, j, i)
                                                              : ram_with_gpu(p, j, i);
    if (p->ram_other > j->ram) return false;
    const uint64_t left = j->ram - p->ram_other;
    const bool disk = banks > left;
    if (disk && (all || left < smallest)) return false;
    place_cold(p, j, disk ? PLAN_DISK : PLAN_RAM);
    p->ram_experts = disk ? least(left, cold > smallest ? cold : smallest) : banks;
    p->disk_experts = disk && cold > p->ram_experts ? cold - p->ram_experts : 0;
    plan_choose_strategies(p, j);
    return true;
}

/* Puts the experts that are not in VRAM into page-locked RAM frames, and adds spare frames. */
static bool place_moved(plan *p, const planner *j, int i)
{
    const plan_model *model = j->model;
    uint64_t frames = model->spare_bytes;
    if (!model->frame_bytes) return false;
    for (int l = 0; l < model->n_layer; l++) {
        uint64_t cold;
        if (!size_mul(&cold, (uint64_t)(model->n_expert - p->hot[l]), model->frame_bytes[l]))
            return false;
        frames = plus(frames, cold);
    }
    p->ram_other = ram_with_gpu(p, j, i);
    if (plus(p->ram_other, frames) > j->ram) return false;
    place_cold(p, j, PLAN_RAM);
    p->ram_experts = frames;
    plan_choose_strategies(p, j);
    p->moved = true;
    return true;
}

/* ---- with a GPU ------------------------------------------------------------------------------ */

static uint64_t pad_bytes(const planner *j)
{
    const int n = j->model->n_used;
    if (j->w->no_postfetch || n > PLAN_MOST_USED || j->rate.pull <= 0) return 0;
    return (uint64_t)n * j->down + (uint64_t)min_int(n, PLAN_PAD_WHOLE) * j->one;
}

/* Both buffers; a range is a whole number of experts. */
static uint64_t stage_bytes(const planner *j, int ranges)
{
    const uint64_t n = (uint64_t)(j->model->n_expert + ranges - 1) / (uint64_t)ranges;
    return 2 * (n * j->one + STAGE_SLACK);
}

typedef struct attempt {
    int i;                               /* of the chunks */
    bool embed_in_ram;
    int ranges;                          /* 0: no streaming */
    bool pad;
    bool resident;                       /* all experts in VRAM, or the attempt fails */
} attempt;

/* What does not depend on the placed weights. */
static plan begin_attempt(const planner *j, attempt a)
{
    plan p = {
        .gpu = true, .embed_in_ram = a.embed_in_ram, .rate = j->rate, .chunk = j->s->chunk[a.i],
        .vram_work = plus(j->s->vram_work[a.i], a.resident ? 0 : j->s->vram_cold),
        .stage_ranges = a.ranges, .vram_stage = a.ranges > 0 ? stage_bytes(j, a.ranges) : 0,
        .vram_pad = a.pad ? pad_bytes(j) : 0,
    };
    place_none(&p, j->model);
    return p;
}

/* Some experts of every layer in VRAM, and in page-locked RAM all experts or those that VRAM does
 * not hold. False leaves *p unchanged. */
static bool attempt_cache(plan *p, const planner *j, int i, uint64_t bytes)
{
    plan with = *p;
    if (j->w->whole_banks || !place_spread(&with, j, bytes)) return false;
    if (!place_ram(&with, j, i, true) &&
        !place_moved(&with, j, i))
        return false;
    with.cache = true;
    *p = with;
    return true;
}

/* Bytes of frames, of the largest size, that have room for so many pages whatever their size. A
 * frame more for each layer: place_spread rounds. False: a page does not fit into one. */
static bool lent_bytes(uint64_t *out, const planner *j, uint64_t pages)
{
    uint64_t one = UINT64_MAX, most = 0;
    for (int l = 0; l < j->model->n_layer; l++) {
        const uint64_t frame = j->model->cached_bytes[l];
        if (frame > 0) one = least(one, frame);
        if (frame > most) most = frame;
    }
    const uint64_t each = one / j->s->page_bytes;
    return each > 0 && size_mul(out, (pages + each - 1) / each + (uint64_t)j->model->n_layer, most);
}

/* Gives the cache the VRAM of pages that contexts do not use yet, if it can give up as many frames
 * again and still hold the experts of a token. */
static void lend_pages(plan *p, const planner *j, uint64_t bytes)
{
    const uint64_t cache = j->experts - j->experts / (uint64_t)j->model->n_expert;  /* not whole */
    const uint64_t most = least(cache, j->w->hot_most);
    uint64_t pages = j->s->n_page - j->s->n_page_own, back;
    if (pages == 0 || !p->cache || p->moved || bytes >= most) return;
    pages = least(pages, (most - bytes) / j->s->page_bytes);
    const uint64_t lent = pages * j->s->page_bytes;
    plan with = *p, full = *p;
    if (!lent_bytes(&back, j, pages) || back > bytes + lent ||
        !place_spread(&with, j, bytes + lent) || !place_spread(&full, j, bytes + lent - back))
        return;
    with.vram_state -= lent;
    with.vram_lent = lent;
    with.pages_own = j->s->n_page - pages;
    plan_choose_strategies(&with, j);
    *p = with;
}

static bool attempt_gpu(plan *p, const planner *j, attempt a)
{
    *p = begin_attempt(j, a);
    p->vram_dense = j->model->dense - (a.embed_in_ram ? j->model->embed : 0);
    p->vram_state = j->s->state[a.i];
    const uint64_t fixed = plus(plus(p->vram_dense, p->vram_state),
                                plus(p->vram_work, p->vram_stage + p->vram_pad));
    if (fixed > j->vram) return false;
    const uint64_t bytes = hot_bytes(j, j->vram - fixed);
    if (a.resident && bytes < j->experts) return false;
    if (a.resident || !attempt_cache(p, j, a.i, bytes)) {
        place_hot(p, j, bytes);
        if (!place_ram(p, j, a.i, false)) return false;
    }
    lend_pages(p, j, bytes);
    plan_fill_fetch(p, j);
    return true;
}

static bool ranges_fit(const planner *j, int ranges)
{
    return ranges <= MOST_RANGES && ranges <= j->model->n_expert;
}

/* The fewest ranges that are small enough and of which two take at most a quarter of the VRAM that
 * is left after the fixed buffers; the most ranges if none are. */
static int choose_ranges(const planner *j, bool embed_in_ram)
{
    const int last = j->s->n_chunk - 1;
    const uint64_t needed = plus(j->model->dense - (embed_in_ram ? j->model->embed : 0),
                                 plus(j->s->state[last],
                                      plus(j->s->vram_work[last], j->s->vram_cold)));
    const uint64_t left = j->vram > needed ? j->vram - needed : 0;
    int ranges = 1;
    for (; ranges_fit(j, 2 * ranges); ranges *= 2) {
        const uint64_t both = stage_bytes(j, ranges);
        if (both <= left / 4 && both <= 2 * (uint64_t)RANGE_BYTES) break;
    }
    return ranges;
}

/* Some experts are cold, and prompts stream them. A larger chunk is preferred to larger ranges
 * and to more experts in VRAM while workspace and ranges take at most 30% of VRAM. The table is
 * in VRAM only if RAM cannot hold it: a row over the bus costs almost nothing. */
static bool attempt_streaming(plan *p, const planner *j, int tables)
{
    const int last = j->s->n_chunk - 1;
    for (int i = 0; i <= last; i++)
        for (int t = tables - 1; t >= 0; t--) {
            attempt a = { .i = i, .embed_in_ram = t == 1, .pad = true };
            for (a.ranges = choose_ranges(j, t == 1); ranges_fit(j, a.ranges); a.ranges *= 2) {
                const uint64_t spent = plus(j->s->vram_work[i], stage_bytes(j, a.ranges));
                if (i < last && spent > j->vram / 10 * 3) continue;
                if (attempt_gpu(p, j, a)) return true;
            }
        }
    return false;
}

static bool with_gpu(plan *p, const planner *j)
{
    const int tables = j->model->embed > 0 ? 2 : 1;      /* in VRAM; in RAM */
    const int last = j->s->n_chunk - 1;
    for (int i = 0; i <= last; i++)
        for (int t = 0; t < tables; t++) {
            const attempt a = { .i = i, .embed_in_ram = t == 1, .resident = true };
            if (attempt_gpu(p, j, a)) return true;
        }
    if (attempt_streaming(p, j, tables)) return true;
    for (int pad = 1; pad >= 0; pad--)
        for (int t = tables - 1; t >= 0; t--) {
            const attempt a = { .i = last, .embed_in_ram = t == 1, .pad = pad == 1 };
            if (attempt_gpu(p, j, a)) return true;
        }
    return false;
}

/* ---- with a GPU for some layers -------------------------------------------------------------- */

/* The dense part and the state of as many layers as fit. Fewer than an eighth do not pay for the
 * GPU's buffers and page-locked experts. */
static bool attempt_some_layers(plan *p, const planner *j, attempt a, bool all)
{
    const plan_model *model = j->model;
    int n = 0;
    *p = begin_attempt(j, a);
    p->head_in_ram = true;
    const uint64_t fixed = plus(p->vram_work, p->vram_stage + p->vram_pad);
    if (fixed > j->vram) return false;
    for (uint64_t bytes = j->vram - fixed; n < model->n_layer; n++) {
        const uint64_t one = plus(model->layer_dense[n], j->s->layer_state[a.i][n]);
        if (one > bytes) break;
        bytes -= one;
    }
    if (n < model->n_layer && n > model->split_most) n = model->split_most;
    for (int l = 0; l < n; l++) {
        p->vram_dense += model->layer_dense[l];
        p->vram_state += j->s->layer_state[a.i][l];
    }
    p->cpu_layers = model->n_layer - n;
    if (n == 0 || n < model->n_layer / 8 || !place_ram(p, j, a.i, all)) return false;
    plan_fill_fetch(p, j);
    return true;
}

/* all: every expert must fit into RAM. Buffers for streaming and post-fetch of at most an eighth of
 * the budget are preferred to more layers; large chunks are not, because the CPU computes the other
 * layers of a prompt. */
static bool with_some_layers(plan *p, const planner *j, bool all)
{
    const int last = j->s->n_chunk - 1;
    int ranges = 1;
    if (!j->model->layer_dense || j->w->no_hot) return false;
    while (ranges_fit(j, 2 * ranges)) ranges *= 2;
    const bool stage = stage_bytes(j, ranges) <= j->vram / 8, pad = pad_bytes(j) <= j->vram / 8;
    for (int i = 0; i <= last; i++) {
        const attempt a = { .i = i, .embed_in_ram = true, .ranges = stage ? ranges : 0,
                            .pad = pad };
        if (i < last && j->s->vram_work[i] > j->vram / 6) continue;
        if (attempt_some_layers(p, j, a, all)) return true;
    }
    return false;
}

/* ---- without a GPU --------------------------------------------------------------------------- */

static bool attempt_cpu(plan *p, const planner *j, int i, bool all)
{
    *p = (plan){ .chunk = j->s->chunk[i], .rate = j->rate };
    place_none(p, j->model);
    return place_ram(p, j, i, all);
}

static bool with_cpu(plan *p, const planner *j)
{
    const int last = j->s->n_chunk - 1, n_long = j->s->n_long;
    for (int i = n_long; i <= last; i++)
        if (attempt_cpu(p, j, i, true)) return true;
    for (int i = 0; i < last; i++) {     /* of RAM: a tenth for long ones, else three */
        const uint64_t most = j->ram / 10 * (i < n_long ? 1 : 3);
        if (j->s->ram_work[i] <= most && attempt_cpu(p, j, i, false)) return true;
    }
    return attempt_cpu(p, j, last, false);
}

static const char *text_size(char dst[32], uint64_t bytes)
{
    const bool large = bytes >= 1000 * MB;
    snprintf(dst, 32, "%.1f %s", (double)bytes * (large ? 1e-9 : 1e-6), large ? "GB" : "MB");
    return dst;
}

/* Whether VRAM is sufficient; then RAM is not. */
static bool gpu_could(const planner *j, const plan_machine *m)
{
    const int last = j->s->n_chunk - 1;
    const uint64_t work = plus(j->s->vram_work[last], j->s->vram_cold);
    return m->gpu && !j->w->cpu_only &&
           plus(j->model->dense, plus(j->s->state[last], work)) <= j->vram;
}

/* The least need, which is above the budget. */
typedef struct shortage {
    bool with_gpu;                       /* whose VRAM is sufficient */
    uint64_t dense, session, experts;
    uint64_t need, usable;               /* with the program */
    uint64_t slack;                      /* that advice adds */
} shortage;

/* Another run of the same program takes some pages more or less, by the start of its threads and
 * its huge pages. A user who follows the advice must not be refused again. */
static uint64_t slack_of(uint64_t need)
{
    return SLACK_LEAST + least(need / 32, SLACK_MORE);
}

static shortage shortage_of(const planner *j, const plan_machine *m)
{
    const int last = j->s->n_chunk - 1;
    shortage k = { .with_gpu = gpu_could(j, m), .usable = least(j->ram_most, j->w->ram) };
    k.experts = least(j->experts, plan_least_cache(j->model));
    k.dense = k.with_gpu ? 0 : dense_on_cpu(j, last);
    k.session = plus(j->s->snapshots[last], k.with_gpu ? j->s->ram_with_gpu[last] :
                     plus(j->s->state[last], j->s->ram_work[last]));
    k.need = plus(plus(k.dense, k.session), plus(k.experts, j->program));
    k.slack = slack_of(k.need);
    return k;
}

/* The first smaller session that fits: with or without q8_0, with the same or a smaller context.
 * NULL: none. */
static const plan_less *find_less(const planner *j, const shortage *k, uint64_t slack, bool q8,
                                  bool same_ctx)
{
    for (int i = 0; i < j->s->n_less; i++) {
        const plan_less *c = &j->s->less[i];
        const uint64_t session = k->with_gpu ? c->ram_gpu : c->ram_cpu;
        if (c->q8 == q8 && (c->ctx == j->s->ctx) == same_ctx &&
            plus(plus(k->need - k->session, session), slack) <= k->usable)
            return c;
    }
    return NULL;
}

/* Names only what would help, first with slack, else without. */
static void advise(char *dst, size_t cap, const planner *j, const shortage *k)
{
    const uint64_t mib = UINT64_C(1) << 20;
    const plan_less *ctx = NULL, *q8 = NULL, *both = NULL;
    for (int tight = 0; tight <= 1 && !ctx && !q8 && !both; tight++) {
        const uint64_t slack = tight ? 0 : k->slack;
        ctx = find_less(j, k, slack, false, false);
        q8 = find_less(j, k, slack, true, true);
        both = ctx || q8 ? NULL : find_less(j, k, slack, true, false);
    }
    const uint64_t enough = least(plus(k->need, k->slack), j->ram_most);
    char ram[48] = "", less[80] = "";
    if (j->w->ram != UINT64_MAX && k->need <= j->ram_most)
        snprintf(ram, sizeof ram, "use --ram %lluM or more",
                 (unsigned long long)((enough + mib - 1) / mib));
    if (ctx) snprintf(less, sizeof less, "--ctx %d or less%s", ctx->ctx,
                      q8 ? ", or --kv q8_0" : "");
    else if (q8) snprintf(less, sizeof less, "--kv q8_0");
    else if (both) snprintf(less, sizeof less, "--ctx %d or less and --kv q8_0", both->ctx);
    if (ram[0]) snprintf(dst, cap, "%s%s%s", ram, less[0] ? ", or " : "", less);
    else if (less[0]) snprintf(dst, cap, "use %s", less);
    else snprintf(dst, cap, "no smaller context would help: end other programs, or use a smaller "
                  "model or quantisation");
}

/* The message of ERR_NOMEM. */
static int refuse(const planner *j, const plan_machine *m, err_ctx *err)
{
    const shortage k = shortage_of(j, m);
    const bool bounded = k.usable == j->w->ram;
    char need[32], weights[32], context[32], experts[32], program[32], usable[32], have[32];
    char advice[200];
    advise(advice, sizeof advice, j, &k);
    return err_set(err, ERR_NOMEM,
                   "needs %s of memory at least%s (program %s, dense weights %s, "
                   "context of %d tokens %s, some experts %s), but %s may be used (%s%s); %s",
                   text_size(need, k.need), k.with_gpu ? " with the GPU" : "",
                   text_size(program, j->program), text_size(weights, k.dense), j->s->ctx,
                   text_size(context, k.session), text_size(experts, k.experts),
                   text_size(usable, k.usable),
                   bounded ? "--ram" : text_size(have, m->ram_available),
                   bounded ? "" : " are available", advice);
}

/* ---- the plan
 * --------------------------------------------------------------------------------- */

static int check_inputs(const plan_model *model, const plan_session *s, err_ctx *err)
{
    if (model->n_layer < 1 || model->n_layer > PLAN_MAX_LAYERS)
        return err_set(err, ERR_UNSUPPORTED, "plan: %d layers, not 1 to %d", model->n_layer,
                       PLAN_MAX_LAYERS);
    if (model->n_used < 1 || model->n_used > model->n_expert)
        return err_set(err, ERR_RANGE, "plan: %d of %d experts", model->n_used, model->n_expert);
    if (s->n_chunk < 1 || s->n_chunk > PLAN_CHUNKS)
        return err_set(err, ERR_RANGE, "plan: %d chunks, not 1 to %d", s->n_chunk, PLAN_CHUNKS);
    for (int l = 0; l < model->n_layer; l++)
        if (model->down_bytes[l] > model->expert_bytes[l])
            return err_set(err, ERR_RANGE, "plan: layer %d: experts of %llu bytes", l,
                           (unsigned long long)model->expert_bytes[l]);
    if (largest_expert(model) == 0) return err_set(err, ERR_RANGE, "plan: experts of 0 bytes");
    return 0;
}

static int sum_experts(planner *j, err_ctx *err)
{
    const plan_model *model = j->model;
    for (int l = 0; l < model->n_layer; l++) {
        uint64_t bank;
        if (!size_mul(&bank, model->expert_bytes[l], (uint64_t)model->n_expert) ||
            !size_add(&j->experts, j->experts, bank) || j->experts > UINT64_MAX / 8)
            return err_set(err, ERR_RANGE, "plan: experts of layer %d are too many bytes", l);
        if (model->down_bytes[l] > j->down) j->down = model->down_bytes[l];
    }
    j->one = largest_expert(model);
    return 0;
}

/* In order of preference. The CPU alone, with all experts in RAM, is preferred to some layers on
 * the GPU with experts on the drive, unless a wish asks for the GPU. */
static bool choose(plan *out, const planner *j, const plan_machine *m)
{
    const bool gpu = m->gpu && !j->w->cpu_only;
    plan shared;
    if (gpu && (with_gpu(out, j) || with_some_layers(out, j, true)))
        return true;
    const bool cpu = with_cpu(out, j);
    if (cpu && !(gpu && j->w->gpu_wanted) && !plan_uses_drive(out, j->model->n_layer)) return true;
    if (!gpu || !with_some_layers(&shared, j, false)) return cpu;
    *out = shared;
    return true;
}

int plan_make(plan *out, const plan_machine *m, const plan_model *model, const plan_session *s,
              const plan_wish *w, err_ctx *err)
{
    planner j = {
        .model = model, .s = s, .w = w, .rate = speeds_assume(&m->rate),
        .vram = budget(m->vram_free, 400 * MB, 0.03, w->vram), .program = m->ram_program,
        .ram_most = plus(budget(m->ram_available, GIB, 0.05, UINT64_MAX), m->ram_program),
    };
    const uint64_t all = least(j.ram_most, w->ram);
    int rc;
    j.ram = all - least(all, m->ram_program);
    *out = (plan){ 0 };
    if ((rc = check_inputs(model, s, err)) < 0 || (rc = sum_experts(&j, err)) < 0) return rc;
    if (!choose(out, &j, m)) {
        *out = (plan){ 0 };
        return refuse(&j, m, err);
    }
    out->ram_program = m->ram_program;
    if ((!out->gpu || out->head_in_ram) && plus(plan_ram(out), w->ram_copy) <= all)
        out->ram_copy = w->ram_copy;
    plan_predict(out, &j);
    return 0;
}
