/* plan.c - the planner: which bytes go where.
 *
 * Budgets first (what is there, less a reserve, or less than that if asked for), then attempts in
 * order of preference; the first that fits is the plan. Two invariants: no sum exceeds its budget,
 * and experts in VRAM, in RAM and only in the file add up to all experts. Pure: no I/O, no clock.
 * How fast that should be is for plan_speed.c, measuring for engine/plan/measure.h, the sizes for
 * engine/plan/planning.h. */
#include "tiers/plan_internal.h"

#include <limits.h>
#include <stdio.h>

#define MB 1000000u
#define GIB (UINT64_C(1) << 30)

enum {
    MOST_PARTS = 16,
    PART_BYTES = 256 << 20,              /* larger parts gain nothing: over the fastest bus such a
                                          * copy takes 5 ms, starting kernels some microseconds */
    STAGE_SLACK = 4096,                  /* of each buffer: slabs begin at multiples of 256 */
    SLACK_LEAST = 4 << 20,               /* of advice: two huge pages; */
    SLACK_MORE = 60 << 20                /* and a part of large needs, at most */
};

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

int plan_gpu_layers(const plan *p, int n_layer)
{
    return p->gpu ? n_layer - p->cpu_layers : 0;
}

uint64_t plan_all_experts(const plan_model *what)
{
    uint64_t sum = 0;
    for (int l = 0; l < what->n_layer; l++)
        sum += (uint64_t)what->n_expert * what->expert_bytes[l];
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

/* ---- placing --------------------------------------------------------------------------------- */

/* Of what is left of VRAM, the part that experts may take. */
static uint64_t hot_room(const planner *j, uint64_t left)
{
    return j->w->no_hot ? 0 : least(left, j->w->hot_most);
}

int plan_first_bank(const plan_model *what)
{
    int l = 0;
    while (l < what->n_layer - 1 && what->expert_bytes[l] == 0) l++;
    return l;
}

int plan_n_bank(const plan_model *what)
{
    int n = 0;
    for (int l = 0; l < what->n_layer; l++) n += what->expert_bytes[l] > 0;
    return n;
}

/* Of layers without experts, whatever else there will be. */
static void place_none(plan *p, const plan_model *what)
{
    for (int l = 0; l < what->n_layer; l++)
        if (what->expert_bytes[l] == 0) p->hot[l] = what->n_expert;
}

/* Whole banks, layer by layer, and of the next as many experts as there is room for. */
static void place_hot(plan *p, const planner *j, uint64_t room)
{
    const plan_model *what = j->what;
    for (int l = 0; l < what->n_layer; l++) {
        const uint64_t one = what->expert_bytes[l], all = (uint64_t)what->n_expert;
        if (one == 0) continue;
        const uint64_t n = least(all, room / one);
        p->hot[l] = (int)n;
        p->vram_experts += n * one;
        room -= n * one;
        if (n < all) return;
    }
}

/* The same share of every layer's experts. False if all fit, or fewer than a token chooses: then
 * none would be found again. */
static bool place_spread(plan *p, const planner *j, uint64_t room)
{
    const plan_model *what = j->what;
    uint64_t one = 0;
    for (int l = 0; l < what->n_layer; l++) one += what->expert_bytes[l];
    const uint64_t each = room / one;
    if (each >= (uint64_t)what->n_expert || each < (uint64_t)what->n_used) return false;
    p->vram_experts = each * one;
    room -= p->vram_experts;
    for (int l = 0; l < what->n_layer; l++) {
        if (what->expert_bytes[l] == 0) continue;
        const bool more = room >= what->expert_bytes[l] && each + 1 < (uint64_t)what->n_expert;
        p->hot[l] = (int)each + more;
        if (!more) continue;
        p->vram_experts += what->expert_bytes[l];
        room -= what->expert_bytes[l];
    }
    return true;
}

static void place_cold(plan *p, const planner *j, plan_place where)
{
    for (int l = 0; l < j->what->n_layer; l++)
        p->place[l] = p->hot[l] == j->what->n_expert ? PLAN_VRAM : where;
}

static uint64_t ram_beside(const plan *p, const planner *j, int i)
{
    return plus(plus(j->s->snapshots[i], p->embed_in_ram ? j->what->embed : 0),
                plan_cold_bytes(p, j) > 0 ? j->s->ram_beside[i] : 0);
}

/* The CPU's dense weights: of the table it holds some rows. */
static uint64_t dense_alone(const planner *j, int i)
{
    return j->what->dense - j->what->embed + least(j->what->embed, j->s->ram_embed[i]);
}

static uint64_t ram_alone(const planner *j, int i)
{
    return plus(plus(dense_alone(j, i), j->s->state[i]),
                plus(j->s->snapshots[i], j->s->ram_work[i]));
}

/* Beside a GPU that computes the first layers alone. The page-locked table is a copy. */
static uint64_t ram_shared(const plan *p, const planner *j, int i)
{
    const uint64_t dense = j->what->dense - j->what->embed - p->vram_dense;
    const uint64_t state = j->s->state[i] - p->vram_state;
    return plus(plus(plus(dense, state), plus(j->what->table, j->s->ram_work[i])),
                plus(j->s->snapshots[i], j->s->ram_beside[i]));
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
static bool place_ram(plan *p, const planner *j, int i, bool all)
{
    const uint64_t banks = cold_banks(p, j->what), cold = plan_cold_bytes(p, j);
    const uint64_t smallest = plan_least_cache(j->what);
    p->ram_other = !p->gpu ? ram_alone(j, i) : p->head_in_ram ? ram_shared(p, j, i)
                                                              : ram_beside(p, j, i);
    if (p->ram_other > j->ram) return false;
    const uint64_t left = j->ram - p->ram_other;
    const bool disk = banks > left;
    if (disk && (all || left < smallest)) return false;
    place_cold(p, j, disk ? PLAN_DISK : PLAN_RAM);
    p->ram_experts = disk ? least(left, cold > smallest ? cold : smallest) : banks;
    p->disk_experts = disk && cold > p->ram_experts ? cold - p->ram_experts : 0;
    plan_choose_ways(p, j);
    return true;
}

/* The experts that are not in VRAM into page-locked RAM, and room for those that are moved. */
static bool place_moved(plan *p, const planner *j, int i)
{
    const plan_model *what = j->what;
    uint64_t slots = what->spare_bytes;
    if (!what->slot_bytes) return false;
    for (int l = 0; l < what->n_layer; l++) {
        uint64_t cold;
        if (!size_mul(&cold, (uint64_t)(what->n_expert - p->hot[l]), what->slot_bytes[l]))
            return false;
        slots = plus(slots, cold);
    }
    p->ram_other = ram_beside(p, j, i);
    if (plus(p->ram_other, slots) > j->ram) return false;
    place_cold(p, j, PLAN_RAM);
    p->ram_experts = slots;
    plan_choose_ways(p, j);
    p->moved = true;
    return true;
}

/* ---- with a GPU ------------------------------------------------------------------------------ */

static uint64_t pad_bytes(const planner *j)
{
    const int n = j->what->n_used;
    if (j->w->no_postfetch || n > PLAN_MOST_USED || j->rate.pull <= 0) return 0;
    return (uint64_t)n * j->down + (uint64_t)min_int(n, PLAN_PAD_WHOLE) * j->one;
}

/* Both buffers; a part is a whole number of experts. */
static uint64_t stage_bytes(const planner *j, int parts)
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

/* What does not depend on which weights are there. */
static plan begin_attempt(const planner *j, attempt a)
{
    plan p = {
        .gpu = true, .embed_in_ram = a.embed_in_ram, .rate = j->rate, .chunk = j->s->chunk[a.i],
        .vram_work = plus(j->s->vram_work[a.i], a.resident ? 0 : j->s->vram_cold),
        .stage_parts = a.parts, .vram_stage = a.parts > 0 ? stage_bytes(j, a.parts) : 0,
        .vram_pad = a.pad ? pad_bytes(j) : 0,
    };
    place_none(&p, j->what);
    return p;
}

/* Some experts of every layer in VRAM; in page-locked RAM all of them, or else those that are not
 * there. Otherwise p is as before. */
static bool attempt_cache(plan *p, const planner *j, int i, uint64_t room)
{
    plan with = *p;
    if (j->w->whole_banks || !place_spread(&with, j, room)) return false;
    if (!place_ram(&with, j, i, true) &&
        !place_moved(&with, j, i))
        return false;
    with.cache = true;
    *p = with;
    return true;
}

static bool attempt_gpu(plan *p, const planner *j, attempt a)
{
    *p = begin_attempt(j, a);
    p->vram_dense = j->what->dense - (a.embed_in_ram ? j->what->embed : 0);
    p->vram_state = j->s->state[a.i];
    const uint64_t fixed = plus(plus(p->vram_dense, p->vram_state),
                                plus(p->vram_work, p->vram_stage + p->vram_pad));
    if (fixed > j->vram) return false;
    const uint64_t room = hot_room(j, j->vram - fixed);
    if (a.resident && room < j->experts) return false;
    if (a.resident || !attempt_cache(p, j, a.i, room)) {
        place_hot(p, j, room);
        if (!place_ram(p, j, a.i, false)) return false;
    }
    plan_fill_fetch(p, j);
    return true;
}

static bool parts_fit(const planner *j, int parts)
{
    return parts <= MOST_PARTS && parts <= j->what->n_expert;
}

/* The fewest parts that are small enough, and of which two take no more than a quarter of what is
 * left after all that has to be there; the most if there are none. */
static int choose_parts(const planner *j, bool embed_in_ram)
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
static bool attempt_streaming(plan *p, const planner *j, int tables)
{
    const int last = j->s->n_chunk - 1;
    for (int i = 0; i <= last; i++)
        for (int t = tables - 1; t >= 0; t--) {
            attempt a = { .i = i, .embed_in_ram = t == 1, .pad = true };
            for (a.parts = choose_parts(j, t == 1); parts_fit(j, a.parts); a.parts *= 2) {
                const uint64_t spent = plus(j->s->vram_work[i], stage_bytes(j, a.parts));
                if (i < last && spent > j->vram / 10 * 3) continue;
                if (attempt_gpu(p, j, a)) return true;
            }
        }
    return false;
}

static bool with_gpu(plan *p, const planner *j)
{
    const int tables = j->what->embed > 0 ? 2 : 1;       /* in VRAM; in RAM */
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

/* The dense part and the state of as many layers as there is room for. Fewer than an eighth are not
 * worth what the GPU costs: its buffers, page-locked experts. */
static bool attempt_shared(plan *p, const planner *j, attempt a, bool all)
{
    const plan_model *what = j->what;
    int n = 0;
    *p = begin_attempt(j, a);
    p->head_in_ram = true;
    const uint64_t fixed = plus(p->vram_work, p->vram_stage + p->vram_pad);
    if (fixed > j->vram) return false;
    for (uint64_t room = j->vram - fixed; n < what->n_layer; n++) {
        const uint64_t one = plus(what->layer_dense[n], j->s->layer_state[a.i][n]);
        if (one > room) break;
        room -= one;
    }
    if (n < what->n_layer && n > what->split_most) n = what->split_most;
    for (int l = 0; l < n; l++) {
        p->vram_dense += what->layer_dense[l];
        p->vram_state += j->s->layer_state[a.i][l];
    }
    p->cpu_layers = what->n_layer - n;
    if (n == 0 || n < what->n_layer / 8 || !place_ram(p, j, a.i, all)) return false;
    plan_fill_fetch(p, j);
    return true;
}

/* all: every expert must have room in RAM. Buffers for streaming and post-fetch, if small beside
 * the budget, are worth more than a few layers; larger chunks are worth less, because the other
 * layers of a prompt are computed by the CPU. */
static bool with_some_layers(plan *p, const planner *j, bool all)
{
    const int last = j->s->n_chunk - 1;
    int parts = 1;
    if (!j->what->layer_dense || j->w->no_hot) return false;
    while (parts_fit(j, 2 * parts)) parts *= 2;
    const bool stage = stage_bytes(j, parts) <= j->vram / 8, pad = pad_bytes(j) <= j->vram / 8;
    for (int i = 0; i <= last; i++) {
        const attempt a = { .i = i, .embed_in_ram = true, .parts = stage ? parts : 0,
                            .pad = pad };
        if (i < last && j->s->vram_work[i] > j->vram / 6) continue;
        if (attempt_shared(p, j, a, all)) return true;
    }
    return false;
}

/* ---- without --------------------------------------------------------------------------------- */

static bool attempt_cpu(plan *p, const planner *j, int i, bool all)
{
    *p = (plan){ .chunk = j->s->chunk[i], .rate = j->rate };
    place_none(p, j->what);
    return place_ram(p, j, i, all);
}

static bool with_cpu(plan *p, const planner *j)
{
    const int last = j->s->n_chunk - 1, n_long = j->s->n_long;
    for (int i = n_long; i <= last; i++)
        if (attempt_cpu(p, j, i, true)) return true;
    for (int i = 0; i < last; i++) {     /* of RAM: longer ones a tenth, the others three */
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

/* Whether VRAM holds what it has to; then RAM is what lacks. */
static bool gpu_could(const planner *j, const plan_machine *m)
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
    uint64_t slack;                      /* that advice leaves */
} lacking;

/* The next run of the same program takes some pages more or less: threads have come or not, huge
 * pages are in other places. Whoever does what a run said must not be refused by that. */
static uint64_t slack_of(uint64_t need)
{
    return SLACK_LEAST + least(need / 32, SLACK_MORE);
}

static lacking lacking_of(const planner *j, const plan_machine *m)
{
    const int last = j->s->n_chunk - 1;
    lacking k = { .beside = gpu_could(j, m), .room = least(j->ram_there, j->w->ram) };
    k.experts = least(j->experts, plan_least_cache(j->what));
    k.dense = k.beside ? 0 : dense_alone(j, last);
    k.session = plus(j->s->snapshots[last], k.beside ? j->s->ram_beside[last] :
                     plus(j->s->state[last], j->s->ram_work[last]));
    k.need = plus(plus(k.dense, k.session), plus(k.experts, j->program));
    k.slack = slack_of(k.need);
    return k;
}

/* The first of the lesser sessions that there is room for: with the same keys and values and a
 * smaller context, with others and the same context, with both. NULL if none. */
static const plan_less *find_less(const planner *j, const lacking *k, uint64_t slack, bool q8,
                                  bool same_ctx)
{
    for (int i = 0; i < j->s->n_less; i++) {
        const plan_less *c = &j->s->less[i];
        const uint64_t session = k->beside ? c->beside : c->alone;
        if (c->q8 == q8 && (c->ctx == j->s->ctx) == same_ctx &&
            plus(plus(k->need - k->session, session), slack) <= k->room)
            return c;
    }
    return NULL;
}

/* Only what would really help; what only just does if nothing else. */
static void advise(char *dst, size_t cap, const planner *j, const lacking *k)
{
    const uint64_t mib = UINT64_C(1) << 20;
    const plan_less *ctx = NULL, *q8 = NULL, *both = NULL;
    for (int tight = 0; tight <= 1 && !ctx && !q8 && !both; tight++) {
        const uint64_t slack = tight ? 0 : k->slack;
        ctx = find_less(j, k, slack, false, false);
        q8 = find_less(j, k, slack, true, true);
        both = ctx || q8 ? NULL : find_less(j, k, slack, true, false);
    }
    const uint64_t enough = least(plus(k->need, k->slack), j->ram_there);
    char ram[48] = "", less[80] = "";
    if (j->w->ram != UINT64_MAX && k->need <= j->ram_there)
        snprintf(ram, sizeof ram, "use --ram %lluM or more",
                 (unsigned long long)((enough + mib - 1) / mib));
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
static int refuse(const planner *j, const plan_machine *m, err_ctx *err)
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
        if (what->down_bytes[l] > what->expert_bytes[l])
            return err_set(err, ERR_RANGE, "plan: layer %d: experts of %llu bytes", l,
                           (unsigned long long)what->expert_bytes[l]);
    if (largest_expert(what) == 0) return err_set(err, ERR_RANGE, "plan: experts of 0 bytes");
    return 0;
}

static int sum_experts(planner *j, err_ctx *err)
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

/* In order of preference. Some layers on the GPU are not worth having experts on the drive that the
 * CPU alone would have in RAM, unless a GPU is what was asked for. */
static bool choose(plan *out, const planner *j, const plan_machine *m)
{
    const bool gpu = m->gpu && !j->w->cpu_only;
    plan shared;
    if (gpu && (with_gpu(out, j) || with_some_layers(out, j, true)))
        return true;
    const bool cpu = with_cpu(out, j);
    if (cpu && !(gpu && j->w->gpu_wanted) && !plan_uses_drive(out, j->what->n_layer)) return true;
    if (!gpu || !with_some_layers(&shared, j, false)) return cpu;
    *out = shared;
    return true;
}

int plan_make(plan *out, const plan_machine *m, const plan_model *what, const plan_session *s,
              const plan_wish *w, err_ctx *err)
{
    planner j = {
        .what = what, .s = s, .w = w, .rate = speeds_assume(&m->rate),
        .vram = budget(m->vram_free, 400 * MB, 0.03, w->vram), .program = m->ram_program,
        .ram_there = plus(budget(m->ram_available, GIB, 0.05, UINT64_MAX), m->ram_program),
    };
    const uint64_t all = least(j.ram_there, w->ram);
    int rc;
    j.ram = all - least(all, m->ram_program);
    *out = (plan){ 0 };
    if ((rc = check_inputs(what, s, err)) < 0 || (rc = sum_experts(&j, err)) < 0) return rc;
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
