/* plan.c - the planner: which bytes go to which tier.
 *
 * Computes the budgets (available memory less a reserve, or less if a wish says so), then tries
 * candidates in order of preference; the first that fits is the plan. Two invariants: no pool
 * exceeds its budget, and experts in VRAM, in RAM and only in the file add up to all experts. No
 * I/O, no clock. plan_speed.c predicts speeds, engine/plan/measure.h measures them,
 * engine/plan/planning.h counts sizes. */
#include "tiers/plan_internal.h"

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
    int n = 0;
    while (p->gpu && n < n_layer && p->place[n].dense == PLAN_VRAM) n++;
    return n;
}

int plan_n_bank(const plan_model *model)
{
    int n = 0;
    for (int l = 0; l < model->n_layer; l++) n += model->expert_bytes[l] > 0;
    return n;
}

uint64_t plan_all_experts(const plan_model *model)
{
    uint64_t sum = 0;
    for (int l = 0; l < model->n_layer; l++)
        sum += (uint64_t)model->n_expert * model->expert_bytes[l];
    return sum;
}

/* All that is taken of a pool. */
static uint64_t taken(const plan_pool *q)
{
    const uint64_t uses[] = { q->program, q->dense, q->state, q->work, q->stage, q->pad,
                              q->experts, q->copy };
    uint64_t sum = 0;
    for (size_t i = 0; i < ARRAY_LEN(uses); i++) sum = size_plus(sum, uses[i]);
    return sum;
}

static uint64_t left_of(const plan_pool *q) { return q->budget - least(taken(q), q->budget); }

uint64_t plan_vram(const plan *p) { return taken(&p->vram); }

uint64_t plan_ram(const plan *p) { return taken(&p->ram); }

bool plan_uses_drive(const plan *p, int n_layer)
{
    for (int l = 0; l < n_layer; l++)
        if (p->place[l].cold == PLAN_DISK) return true;
    return false;
}

/* Sums sizes[l] over the experts outside VRAM; with `banks` over all experts of their layers. */
static uint64_t sum_cold(const plan *p, const plan_model *model, const uint64_t *sizes, bool banks)
{
    uint64_t sum = 0;
    for (int l = 0; l < model->n_layer; l++) {
        const int cold = model->n_expert - p->hot[l];
        const uint64_t n = (uint64_t)(banks && cold > 0 ? model->n_expert : cold);
        sum = size_plus(sum, size_times(n, sizes[l]));
    }
    return sum;
}

uint64_t plan_cold_bytes(const plan *p, const planner *j)
{
    return sum_cold(p, j->model, j->model->expert_bytes, false);
}

static uint64_t largest(const uint64_t *sizes, int n)
{
    uint64_t most = 0;
    for (int i = 0; i < n; i++)
        if (sizes[i] > most) most = sizes[i];
    return most;
}

uint64_t plan_least_cache(const plan_model *model)
{
    if (model->least_cache > 0) return model->least_cache;
    return 2 * (uint64_t)model->n_used * largest(model->expert_bytes, model->n_layer);
}

const char *plan_bound_name(plan_bound b)
{
    static const char *const names[] = { "VRAM", "CPU memory", "the bus", "the drive", "latency" };
    return names[b];
}

/* ---- candidates ------------------------------------------------------------------------------ */

/* The layers whose dense part and state are on the GPU. With some, the head is on the CPU. */
typedef enum gpu_part { ALL_LAYERS, SOME_LAYERS, NO_LAYERS } gpu_part;

typedef struct candidate {
    gpu_part part;
    bool resident;                       /* all experts in VRAM */
    bool drive;                          /* experts may be only in the file */
    bool streams;                        /* prompts stream banks through buffers */
    bool pad;                            /* post-fetch */
    bool smallest;                       /* with the smallest chunk alone */
    bool wanted;                         /* only if a wish asks for the GPU */
    /* chosen by the search: */
    int i;                               /* of the chunks */
    plan_tier embed;
    int ranges;                          /* of a bank; 0: no streaming */
} candidate;

/* In order of preference. The CPU alone, with all experts in RAM, is preferred to some layers on
 * the GPU with experts on the drive, unless a wish asks for the GPU. */
static const candidate preferences[] = {
    { .part = ALL_LAYERS, .resident = true },
    { .part = ALL_LAYERS, .drive = true, .streams = true, .pad = true },
    { .part = ALL_LAYERS, .drive = true, .pad = true, .smallest = true },
    { .part = ALL_LAYERS, .drive = true, .smallest = true },
    { .part = SOME_LAYERS, .streams = true, .pad = true },
    { .part = SOME_LAYERS, .drive = true, .streams = true, .pad = true, .wanted = true },
    { .part = NO_LAYERS },
    { .part = SOME_LAYERS, .drive = true, .streams = true, .pad = true },
    { .part = NO_LAYERS, .drive = true },
};

static uint64_t pad_bytes(const planner *j)
{
    const int n = j->model->n_used;
    if (j->w->no_postfetch || n > PLAN_MOST_USED || j->rate.pull <= 0) return 0;
    return (uint64_t)n * j->down + (uint64_t)min_int(n, PLAN_PAD_WHOLE) * j->one;
}

/* Both buffers; a range is a whole number of experts. */
static uint64_t stage_bytes(const planner *j, int ranges)
{
    const uint64_t n = (uint64_t)(j->model->n_expert + ranges - 1) / (uint64_t)max_int(ranges, 1);
    return ranges > 0 ? 2 * (n * j->one + STAGE_SLACK) : 0;
}

/* The dense part and the state of as many of the first layers as fit in VRAM. */
static void place_layers(plan *p, const planner *j, const plan_chunk *chunk)
{
    const plan_model *model = j->model;
    uint64_t left = left_of(&p->vram);
    int n = 0;
    for (uint64_t one; n < model->n_layer; n++, left -= one)
        if ((one = size_plus(model->layer_dense[n], chunk->layer_state[n])) > left) break;
    if (n < model->n_layer && n > model->split_most) n = model->split_most;
    for (int l = 0; l < n; l++) {
        p->vram.dense += model->layer_dense[l];
        p->vram.state += chunk->layer_state[l];
        p->place[l].dense = PLAN_VRAM;
    }
}

/* Places all but the experts. Returns whether VRAM is sufficient. With some layers on the GPU, the
 * page-locked table is a copy, and post-fetch has at most an eighth of VRAM. */
static bool place_dense(plan *p, const planner *j, const candidate *c)
{
    const plan_model *model = j->model;
    const plan_chunk *chunk = &j->s->chunk[c->i];
    const bool gpu = c->part != NO_LAYERS, all = c->part == ALL_LAYERS;
    uint64_t table = gpu ? model->table : least(model->embed, chunk->ram_embed);
    *p = (plan){ .gpu = gpu, .chunk = chunk->tokens, .head = all ? PLAN_VRAM : PLAN_RAM,
                 .embed = c->embed, .stage_ranges = c->ranges, .rate = j->rate,
                 .vram = j->vram, .ram = j->ram, .drive = j->drive };
    for (int l = 0; l < model->n_layer; l++) p->place[l].dense = p->head;
    if (gpu) {
        p->vram.work = size_plus(chunk->vram_work, c->resident ? 0 : j->s->vram_cold);
        p->vram.stage = stage_bytes(j, c->ranges);
        if (c->pad && (all || pad_bytes(j) <= j->vram.budget / 8)) p->vram.pad = pad_bytes(j);
    }
    if (all) {
        table = c->embed == PLAN_RAM ? model->embed : 0;
        p->vram.dense = model->dense - table;
        p->vram.state = chunk->state;
    } else if (gpu) {
        place_layers(p, j, chunk);
    }
    p->ram.dense = size_plus(all ? 0 : model->dense - model->embed - p->vram.dense, table);
    p->ram.state = size_plus(chunk->state - p->vram.state, chunk->snapshots);
    p->ram.work = size_plus(all ? 0 : chunk->ram_work,
                            gpu && !c->resident ? chunk->ram_with_gpu : 0);
    return plan_vram(p) <= p->vram.budget;
}

/* ---- experts --------------------------------------------------------------------------------- */

/* Bytes of VRAM that experts may have. */
static uint64_t hot_bytes(const plan *p, const planner *j)
{
    if (j->w->no_hot || p->head != PLAN_VRAM) return 0;
    return least(left_of(&p->vram) + p->vram.experts, j->w->hot_most);
}

/* The number of each layer's experts that a cache of so many bytes holds. 0: no cache, because all
 * fit, or fewer than a token chooses: such a cache has no hits. */
static uint64_t cached_each(const planner *j, uint64_t bytes)
{
    const uint64_t each = bytes / j->frames;
    return each >= (uint64_t)j->model->n_expert || each < (uint64_t)j->model->n_used ? 0 : each;
}

/* each > 0: a cache with so many experts of every layer, or one more. 0: whole banks, layer by
 * layer, and as many experts of the next one as fit. */
static void place_hot(plan *p, const planner *j, uint64_t bytes, uint64_t each)
{
    const plan_model *model = j->model;
    const uint64_t *sizes = each > 0 ? model->cached_bytes : model->expert_bytes;
    const uint64_t all = (uint64_t)model->n_expert;
    const uint64_t most = each == 0 ? all : least(each + 1, all - 1);
    uint64_t left = each == 0 ? bytes : bytes % j->frames;
    p->vram.experts = 0;
    for (int l = 0; l < model->n_layer; l++) {
        const uint64_t none = model->expert_bytes[l] > 0 ? 0 : all;
        const uint64_t n = sizes[l] > 0 ? least(most, each + left / sizes[l]) : none;
        p->hot[l] = (int)n;
        p->vram.experts += n * sizes[l];
        left = each == 0 && n < all ? 0 : left - (n - each) * sizes[l];
    }
}

/* Puts the cold experts into RAM if it has room for so many bytes. Else RAM is a cache before the
 * file of at least plan_least_cache bytes, if `drive` allows that. False if neither fits. */
static bool place_cold(plan *p, const planner *j, uint64_t bytes, bool drive)
{
    const uint64_t cold = plan_cold_bytes(p, j), smallest = plan_least_cache(j->model);
    plan_pool *ram = &p->ram;
    ram->experts = 0;
    const uint64_t left = left_of(ram);
    const bool reads = bytes > left;
    if (plan_ram(p) > ram->budget || (reads && (!drive || left < smallest))) return false;
    for (int l = 0; l < j->model->n_layer; l++)
        p->place[l].cold = p->hot[l] == j->model->n_expert ? PLAN_VRAM
                           : reads ? PLAN_DISK : PLAN_RAM;
    ram->experts = reads ? least(left, cold > smallest ? cold : smallest) : bytes;
    p->drive.experts = reads ? cold - least(cold, ram->experts) : 0;
    return true;
}

/* Tries one candidate. First a cache: in VRAM some experts of every layer, in page-locked RAM all
 * experts or, with spare frames, those that VRAM does not hold. Else banks: those partly in VRAM
 * are in RAM as a whole, because prompts stream whole banks. Fewer than an eighth of the layers do
 * not pay for the GPU's buffers and page-locked experts. */
static bool place(plan *p, const planner *j, const candidate *c)
{
    const plan_model *model = j->model;
    if (!place_dense(p, j, c)) return false;
    const int n_gpu = plan_gpu_layers(p, model->n_layer);
    const uint64_t bytes = hot_bytes(p, j), each = bytes > 0 ? cached_each(j, bytes) : 0;
    if ((p->gpu && (n_gpu == 0 || n_gpu < model->n_layer / 8)) ||
        (c->resident && bytes < j->experts))
        return false;
    if (each > 0 && !c->resident && !j->w->whole_banks) {
        place_hot(p, j, bytes, each);
        p->cache = place_cold(p, j, sum_cold(p, model, model->expert_bytes, true), false);
        if (p->cache) return true;
        const uint64_t *frames = model->frame_bytes;
        const uint64_t moved = frames ? sum_cold(p, model, frames, false) : UINT64_MAX;
        p->cache = p->moved = place_cold(p, j, size_plus(model->spare_bytes, moved), false);
        if (p->cache) return true;
    }
    place_hot(p, j, bytes, 0);
    return place_cold(p, j, sum_cold(p, model, model->expert_bytes, true), c->drive);
}

/* Gives the cache the VRAM of pages that contexts do not use yet, if it can give up as many frames
 * again, whatever their size, and still hold the experts of a token. A frame more for each layer:
 * place_hot rounds. */
static void lend_pages(plan *p, const planner *j)
{
    const plan_model *model = j->model;
    const uint64_t cache = j->experts - j->experts / (uint64_t)model->n_expert;  /* not whole */
    const uint64_t most = least(cache, j->w->hot_most), bytes = hot_bytes(p, j);
    const uint64_t large = largest(model->cached_bytes, model->n_layer);
    uint64_t pages = j->s->n_page - j->s->n_page_own, back, small = UINT64_MAX;
    if (pages == 0 || !p->cache || p->moved || bytes >= most) return;
    for (int l = 0; l < model->n_layer; l++)
        if (model->cached_bytes[l] > 0) small = least(small, model->cached_bytes[l]);
    pages = least(pages, (most - bytes) / j->s->page_bytes);
    const uint64_t lent = pages * j->s->page_bytes, in_frame = small / j->s->page_bytes;
    const uint64_t each = cached_each(j, bytes + lent);
    if (in_frame == 0 || each == 0 ||
        !size_mul(&back, (pages + in_frame - 1) / in_frame + (uint64_t)model->n_layer, large) ||
        back > bytes + lent || cached_each(j, bytes + lent - back) == 0)
        return;
    place_hot(p, j, bytes + lent, each);
    p->vram.state -= lent;
    p->vram_lent = lent;
    p->pages_own = j->s->n_page - pages;
}

/* ---- the search ------------------------------------------------------------------------------ */

static bool ranges_fit(const planner *j, int ranges)
{
    return ranges <= MOST_RANGES && ranges <= j->model->n_expert;
}

/* The fewest ranges that are small enough and of which two take at most a quarter of the VRAM that
 * the smallest chunk leaves; the most ranges if none are, and for some layers: these have an eighth
 * of VRAM for them, or no streaming, so that more layers fit. */
static int fewest_ranges(const planner *j, const candidate *c)
{
    const candidate smallest = { .part = c->part, .i = j->s->n_chunk - 1, .embed = c->embed };
    const bool all = c->part == ALL_LAYERS;
    plan p;
    int ranges = 1;
    if (!c->streams) return 0;
    place_dense(&p, j, &smallest);
    const uint64_t most = least(left_of(&p.vram) / 4, 2 * (uint64_t)RANGE_BYTES);
    while (ranges_fit(j, 2 * ranges) && !(all && stage_bytes(j, ranges) <= most)) ranges *= 2;
    return all || stage_bytes(j, ranges) <= j->vram.budget / 8 ? ranges : 0;
}

/* Whether the chunk may have its workspace; the smallest always may. While workspace and ranges
 * take at most 30% of VRAM, a larger chunk is preferred to larger ranges and to more experts in
 * VRAM. With some layers it gains less, because the CPU computes the others. Of RAM, long chunks
 * may take a tenth, others three. */
static bool chunk_pays(const planner *j, const candidate *c)
{
    const plan_chunk *chunk = &j->s->chunk[c->i];
    if (c->resident || c->i == j->s->n_chunk - 1) return true;
    if (c->part == ALL_LAYERS)
        return size_plus(chunk->vram_work, stage_bytes(j, c->ranges)) <= j->vram.budget / 10 * 3;
    if (c->part == SOME_LAYERS) return chunk->vram_work <= j->vram.budget / 6;
    return !c->drive || chunk->ram_work <= left_of(&j->ram) / 10 * (c->i < j->s->n_long ? 1 : 3);
}

/* Tries the candidate with each number of ranges. */
static bool try_ranges(plan *out, const planner *j, candidate *c)
{
    c->ranges = fewest_ranges(j, c);
    do
        if (chunk_pays(j, c) && place(out, j, c)) return true;
    while (c->streams && c->part == ALL_LAYERS && ranges_fit(j, c->ranges *= 2));
    return false;
}

/* A resident model has the table in VRAM if that is large enough. Others have it there only if RAM
 * cannot hold it: a row over the bus costs almost nothing. */
static bool choose(plan *out, const planner *j)
{
    const int last = j->s->n_chunk - 1;
    for (size_t k = 0; k < ARRAY_LEN(preferences); k++) {
        candidate c = preferences[k];
        const bool some = c.part == SOME_LAYERS, all = c.part == ALL_LAYERS;
        const bool both = all && j->model->embed > 0;
        const plan_tier first = !all || (both && !c.resident) ? PLAN_RAM : PLAN_VRAM;
        if ((!j->gpu && (all || some)) || (c.wanted && !j->w->gpu_wanted) ||
            (some && (!j->model->layer_dense || j->w->no_hot)))
            continue;
        c.i = c.smallest ? last : all || some || c.drive ? 0 : j->s->n_long;
        for (; c.i <= last; c.i++)
            for (int table = 0; table <= both; table++) {
                c.embed = table == 0 ? first : first == PLAN_RAM ? PLAN_VRAM : PLAN_RAM;
                if (try_ranges(out, j, &c)) return true;
            }
    }
    return false;
}

/* ---- refusal --------------------------------------------------------------------------------- */

static const char *text_size(char dst[32], uint64_t bytes)
{
    const bool large = bytes >= 1000 * MB;
    snprintf(dst, 32, "%.1f %s", (double)bytes * (large ? 1e-9 : 1e-6), large ? "GB" : "MB");
    return dst;
}

/* The first smaller sessions that fit. NULL: none. */
typedef struct smaller { const plan_less *ctx, *q8, *both; } smaller;

/* of: the least need, with experts and program. */
static smaller find_smaller(const planner *j, const plan *of, uint64_t usable, uint64_t slack)
{
    const uint64_t others = plan_ram(of) - size_plus(of->ram.state, of->ram.work);
    smaller found = { NULL, NULL, NULL };
    for (int i = j->s->n_less - 1; i >= 0; i--) {
        const plan_less *c = &j->s->less[i];
        const uint64_t session = of->gpu ? c->ram_gpu : c->ram_cpu;
        if (size_plus(size_plus(others, session), slack) > usable) continue;
        *(!c->q8 ? &found.ctx : c->ctx == j->s->ctx ? &found.q8 : &found.both) = c;
    }
    return found;
}

/* Names only what would help, first with slack, else without. Another run of the same program takes
 * some pages more or less, by the start of its threads and its huge pages: a user who follows the
 * advice must not be refused again. */
static void advise(char *dst, size_t cap, const planner *j, const plan *of, uint64_t usable)
{
    const uint64_t mib = UINT64_C(1) << 20, need = plan_ram(of);
    const uint64_t slack = SLACK_LEAST + least(need / 32, SLACK_MORE);
    const uint64_t enough = least(size_plus(need, slack), j->ram_most);
    smaller found = find_smaller(j, of, usable, slack);
    char ram[48] = "", less[80] = "";
    if (!found.ctx && !found.q8 && !found.both) found = find_smaller(j, of, usable, 0);
    if (j->w->ram != UINT64_MAX && need <= j->ram_most)
        snprintf(ram, sizeof ram, "use --ram %lluM or more",
                 (unsigned long long)((enough + mib - 1) / mib));
    if (found.ctx) snprintf(less, sizeof less, "--ctx %d or less%s", found.ctx->ctx,
                            found.q8 ? ", or --kv q8_0" : "");
    else if (found.q8) snprintf(less, sizeof less, "--kv q8_0");
    else if (found.both) snprintf(less, sizeof less, "--ctx %d or less and --kv q8_0",
                                  found.both->ctx);
    if (ram[0]) snprintf(dst, cap, "%s%s%s", ram, less[0] ? ", or " : "", less);
    else if (less[0]) snprintf(dst, cap, "use %s", less);
    else snprintf(dst, cap, "no smaller context would help: end other programs, or use a smaller "
                  "model or quantisation");
}

/* The message of ERR_NOMEM: the least need is above the budget. If VRAM is sufficient, it is with
 * the GPU. */
static int refuse(const planner *j, err_ctx *err)
{
    const uint64_t usable = least(j->ram_most, j->w->ram);
    const bool bounded = usable == j->w->ram;
    candidate c = { .part = ALL_LAYERS, .i = j->s->n_chunk - 1 };
    char need[32], weights[32], context[32], experts[32], program[32], most[32], have[32];
    char advice[200];
    plan p;
    if (!j->gpu || !place_dense(&p, j, &c)) {
        c.part = NO_LAYERS;
        place_dense(&p, j, &c);
    }
    p.ram.experts = least(j->experts, plan_least_cache(j->model));
    advise(advice, sizeof advice, j, &p, usable);
    return err_set(err, ERR_NOMEM,
                   "needs %s of memory at least%s (program %s, dense weights %s, "
                   "context of %d tokens %s, some experts %s), but %s may be used (%s%s); %s",
                   text_size(need, plan_ram(&p)), p.gpu ? " with the GPU" : "",
                   text_size(program, p.ram.program), text_size(weights, p.ram.dense), j->s->ctx,
                   text_size(context, size_plus(p.ram.state, p.ram.work)),
                   text_size(experts, p.ram.experts), text_size(most, usable),
                   bounded ? "--ram" : text_size(have, j->machine->ram_available),
                   bounded ? "" : " are available", advice);
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* Checks the inputs and adds up the experts. */
static int count_experts(planner *j, err_ctx *err)
{
    const plan_model *model = j->model;
    if (model->n_layer < 1 || model->n_layer > PLAN_MAX_LAYERS)
        return err_set(err, ERR_UNSUPPORTED, "plan: %d layers, not 1 to %d", model->n_layer,
                       PLAN_MAX_LAYERS);
    if (model->n_used < 1 || model->n_used > model->n_expert)
        return err_set(err, ERR_RANGE, "plan: %d of %d experts", model->n_used, model->n_expert);
    if (j->s->n_chunk < 1 || j->s->n_chunk > PLAN_CHUNKS)
        return err_set(err, ERR_RANGE, "plan: %d chunks, not 1 to %d", j->s->n_chunk, PLAN_CHUNKS);
    for (int l = 0; l < model->n_layer; l++)
        if (model->down_bytes[l] > model->expert_bytes[l])
            return err_set(err, ERR_RANGE, "plan: layer %d: experts of %llu bytes", l,
                           (unsigned long long)model->expert_bytes[l]);
    j->one = largest(model->expert_bytes, model->n_layer);
    j->down = largest(model->down_bytes, model->n_layer);
    if (j->one == 0) return err_set(err, ERR_RANGE, "plan: experts of 0 bytes");
    for (int l = 0; l < model->n_layer; l++) {
        uint64_t bank;
        if (!size_mul(&bank, model->expert_bytes[l], (uint64_t)model->n_expert) ||
            !size_add(&j->experts, j->experts, bank) || j->experts > UINT64_MAX / 8)
            return err_set(err, ERR_RANGE, "plan: experts of layer %d are too many bytes", l);
        j->frames += model->cached_bytes[l];
    }
    return 0;
}

int plan_make(plan *out, const plan_machine *m, const plan_model *model, const plan_session *s,
              const plan_wish *w, err_ctx *err)
{
    const speeds rate = speeds_assume(&m->rate);
    planner j = {
        .machine = m, .model = model, .s = s, .w = w, .rate = rate, .gpu = m->gpu && !w->cpu_only,
        .ram_most = size_plus(budget(m->ram_available, GIB, 0.05, UINT64_MAX), m->ram_program),
        .vram = { .budget = budget(m->vram_free, 400 * MB, 0.03, w->vram), .rate = rate.vram_read,
                  .latency = rate.layer_hot },
        .ram = { .program = m->ram_program, .rate = rate.cpu, .latency = rate.hop },
        .drive = { .budget = UINT64_MAX, .rate = rate.disk, .latency = rate.disk_wait },
    };
    const uint64_t ram = least(j.ram_most, w->ram);
    int rc;
    j.ram.budget = ram > m->ram_program ? least(ram, UINT64_MAX - 1) : m->ram_program;
    *out = (plan){ 0 };
    if ((rc = count_experts(&j, err)) < 0) return rc;
    if (!choose(out, &j)) {
        *out = (plan){ 0 };
        return refuse(&j, err);
    }
    lend_pages(out, &j);
    if (out->head == PLAN_RAM && size_plus(plan_ram(out), w->ram_copy) <= out->ram.budget)
        out->ram.copy = w->ram_copy;
    plan_predict(out, &j);
    return 0;
}
