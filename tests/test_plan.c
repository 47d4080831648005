/* test_plan.c - the planner on made-up machines. What it is told of real models: test_planning.c.
 *
 * Every machine of the table with every model keeps the invariants; chosen rows are worked out by
 * hand. Nothing here is timed, and no GPU is asked. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tiers/plan.h"

#define GB UINT64_C(1000000000)
#define MB UINT64_C(1000000)

/* ---- models and machines --------------------------------------------------------------------- */

typedef struct made_model {
    const char *name;
    int n_layer, n_expert, n_used;
    uint64_t expert, down, dense, embed, token_dense;
    double dense_macs, expert_macs;
    uint64_t state;                      /* context of 8192 tokens ... */
    uint64_t ring_token;                 /* ... and for each token of a chunk */
} made_model;

static const made_model models[] = {
    { "gpt-oss-20b, 12.1 GB", 24, 32, 4, 13219200, 4406400, 1950 * MB, 615 * MB, 1300 * MB,
      1.2e9, 2.4e9, 205 * MB, 24576 },
    { "gpt-oss-120b, 63 GB", 36, 128, 4, 13219200, 4406400, 2100 * MB, 615 * MB, 1500 * MB,
      1.5e9, 3.6e9, 308 * MB, 36864 },
    { "Qwen3-Next-80B Q4_K, 45.1 GB", 48, 512, 10, 1769472, 589824, 1600 * MB, 175 * MB, 1424 * MB,
      2.3e9, 1.5e9, 277 * MB, 0 },
    { "Qwen3-Next-80B Q8_0, 85 GB", 48, 512, 10, 3342336, 1114112, 2900 * MB, 330 * MB, 2570 * MB,
      2.3e9, 1.5e9, 277 * MB, 0 },
};

static const int vram_gb[] = { 4, 6, 8, 12, 16, 24, 80 };
static const int ram_gb[] = { 16, 32, 64, 128, 256 };

/* A box with PCIe 4 and two channels of DDR5. */
static const speeds usual = {
    .vram_read = 450e9, .pcie_in = 24e9, .pcie_out = 24e9, .pull = 22e9, .pull_busy = 20e9,
    .cpu = 55e9, .cpu_busy = 48e9, .cpu_dense = 70e9, .cpu_many = 6e11, .gpu_macs = 2e13,
    .hop = 8e-6, .disk = 3e9,
};

enum { N_CHUNKS = 5 };

typedef struct made {
    plan_machine machine;
    plan_model what;
    plan_session s;
    plan_wish w;
    uint64_t expert[PLAN_MAX_LAYERS], down[PLAN_MAX_LAYERS], layer_dense[PLAN_MAX_LAYERS];
    uint64_t slot[PLAN_MAX_LAYERS];
} made;

/* vram 0: no GPU. */
static void make_case(made *c, const made_model *m, uint64_t vram, uint64_t ram)
{
    static const int chunks[N_CHUNKS] = { 4096, 2048, 1024, 512, 256 };
    memset(c, 0, sizeof *c);
    c->machine = (plan_machine){ .gpu = vram > 0, .vram_free = vram, .ram_available = ram,
                                 .lock_limit = UINT64_MAX, .rate = usual };
    c->w = (plan_wish){ .vram = UINT64_MAX, .ram = UINT64_MAX, .hot_most = UINT64_MAX };
    for (int l = 0; l < m->n_layer; l++) {
        c->expert[l] = m->expert;
        c->down[l] = m->down;
    }
    c->what = (plan_model){
        .n_layer = m->n_layer, .n_expert = m->n_expert, .n_used = m->n_used,
        .expert_bytes = c->expert, .down_bytes = c->down, .dense = m->dense, .embed = m->embed,
        .token_dense = m->token_dense, .dense_macs = m->dense_macs, .expert_macs = m->expert_macs,
        .file_bytes = m->dense + (uint64_t)m->n_layer * (uint64_t)m->n_expert * m->expert,
    };
    c->s = (plan_session){ .n_chunk = N_CHUNKS, .ctx = 8192 };
    for (int i = 0; i < N_CHUNKS; i++) {
        const uint64_t n = (uint64_t)chunks[i];
        c->s.chunk[i] = chunks[i];
        c->s.vram_work[i] = 100 * MB + n * 160000;
        c->s.ram_work[i] = 20 * MB + n * 200000;
        c->s.state[i] = m->state + n * m->ring_token;
        c->s.ram_beside[i] = 60 * MB + n * 25000;
        c->s.ram_embed[i] = n * 70000;
    }
}

static int run(plan *p, const made *c)
{
    err_ctx err = { 0 };
    return plan_make(p, &c->machine, &c->what, &c->s, &c->w, &err);
}

/* Must succeed. */
static bool made_plan(plan *p, const made *c, const char *what)
{
    err_ctx err = { 0 };
    return CHECK_MSG(plan_make(p, &c->machine, &c->what, &c->s, &c->w, &err) == 0, "%s: %s", what,
                     err.msg);
}

static uint64_t all_experts(const plan_model *w)
{
    uint64_t sum = 0;
    for (int l = 0; l < w->n_layer; l++) sum += (uint64_t)w->n_expert * w->expert_bytes[l];
    return sum;
}

static int whole_layers(const plan *p, const plan_model *w, int *more)
{
    int n = 0;
    *more = 0;
    for (int l = 0; l < w->n_layer; l++) {
        if (p->hot[l] == w->n_expert) n++;
        else *more += p->hot[l];
    }
    return n;
}

/* ---- what holds for every plan --------------------------------------------------------------- */

/* Budgets as the header and the option's help promise them. */
static uint64_t most_of(uint64_t have, uint64_t reserve, uint64_t percent, uint64_t bound)
{
    if (have / 100 * percent > reserve) reserve = have / 100 * percent;
    const uint64_t left = reserve < have / 2 ? have - reserve : have - have / 2;
    return left + 100 < bound ? left + 100 : bound;      /* + 100: rounding of the percentage */
}

static void check_places(const plan *p, const made *c, const char *what)
{
    const plan_model *w = &c->what;
    uint64_t hot = 0, only_vram = 0, banks = 0, slots = w->spare_bytes;
    bool open = true, ok = true, disk = false;
    for (int l = 0; l < w->n_layer; l++) {
        const uint64_t n = (uint64_t)p->hot[l];
        ok &= p->hot[l] >= 0 && p->hot[l] <= w->n_expert;
        if (p->cache) ok &= n >= (uint64_t)w->n_used && p->hot[0] - p->hot[l] <= 1 &&
                            p->hot[l] <= p->hot[0] && p->hot[l] < w->n_expert;
        else ok &= open || n == 0;       /* no layer after one that is not whole */
        open = p->hot[l] == w->n_expert;
        ok &= !p->cache || p->place[l] == PLAN_RAM;
        ok &= (p->place[l] == PLAN_VRAM) == open;
        disk |= p->place[l] == PLAN_DISK;
        hot += n * w->expert_bytes[l];
        slots += p->moved ? (uint64_t)(w->n_expert - p->hot[l]) * w->slot_bytes[l] : 0;
        if (open) only_vram += n * w->expert_bytes[l];
        else banks += (uint64_t)w->n_expert * w->expert_bytes[l];
    }
    CHECK_MSG(ok, "%s: places", what);
    CHECK_MSG(hot == p->vram_experts && only_vram + banks == all_experts(w), "%s: VRAM sum", what);
    const uint64_t outside = all_experts(w) - hot, cache = p->ram_experts;
    const uint64_t smallest = plan_least_cache(w);
    if (disk)
        CHECK_MSG(p->disk_experts == (outside > cache ? outside - cache : 0) &&
                  cache >= smallest && (cache <= outside || cache == smallest),
                  "%s: cache of %llu", what, (unsigned long long)cache);
    else
        CHECK_MSG(p->ram_experts == (p->moved ? slots : banks) && p->disk_experts == 0,
                  "%s: RAM sum", what);
    CHECK_MSG(!p->moved || (p->cache && p->ram_locked == slots && !c->w.whole_banks),
              "%s: experts that are moved", what);
    for (int l = 0; l < w->n_layer; l++)
        ok &= p->place[l] == PLAN_VRAM || (p->place[l] == PLAN_DISK) == disk;
    CHECK_MSG(ok, "%s: RAM and drive mixed", what);
}

static void check_numbers(const plan *p, const made *c, const char *what)
{
    const double numbers[] = { p->decode_tok_s, p->prefill_tok_s, p->limit_tok_s };
    const double terms[] = { p->t_dense, p->t_hot, p->t_cpu, p->t_pull, p->t_disk, p->t_hop };
    const bool outside = p->vram_experts < all_experts(&c->what);
    bool ok = true;
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) ok &= isfinite(numbers[i]) && numbers[i] > 0;
    for (size_t i = 0; i < ARRAY_LEN(terms); i++) ok &= isfinite(terms[i]) && terms[i] >= 0;
    CHECK_MSG(ok, "%s: numbers", what);
    CHECK_MSG(p->decode_tok_s <= p->limit_tok_s * (1 + 1e-9), "%s: %g above the limit %g", what,
              p->decode_tok_s, p->limit_tok_s);
    CHECK_MSG(p->stage_parts == 0 ? p->vram_stage == 0 : outside && p->vram_stage > 0, "%s: stage",
              what);
    CHECK_MSG(p->stream_from >= 9 && (p->stage_parts > 0 || !outside || p->stream_from == INT_MAX),
              "%s: stream from %d", what, p->stream_from);
    for (int m = 0; m <= PLAN_MOST_USED; m++)
        ok &= p->fetch_down[m] + p->fetch_all[m] <= m && p->fetch_all[m] <= PLAN_PAD_WHOLE &&
              (p->vram_pad > 0 || p->fetch_down[m] + p->fetch_all[m] == 0);
    CHECK_MSG(ok, "%s: fetch table", what);
    CHECK_MSG(p->ram_locked <= p->ram_experts && p->ram_locked <= c->machine.lock_limit,
              "%s: locked", what);
}

/* Of the embedding table the CPU holds some rows. */
static uint64_t dense_on_cpu(const made *c, int i)
{
    const uint64_t rows = c->s.ram_embed[i];
    return c->what.dense - c->what.embed + (rows < c->what.embed ? rows : c->what.embed);
}

/* The first layers have their dense part and their state in VRAM, as many as fit. */
static void check_some_layers(const plan *p, const made *c, int i, const char *what)
{
    const plan_model *w = &c->what;
    const int n = w->n_layer - p->cpu_layers;
    uint64_t dense = 0, kept = 0;
    for (int l = 0; l < n; l++) {
        dense += w->layer_dense[l];
        kept += c->s.layer_state[i][l];
    }
    CHECK_MSG(n > 0 && n >= w->n_layer / 8 && p->vram_experts == 0 && p->embed_in_ram,
              "%s: %d layers", what, n);
    CHECK_MSG(p->vram_dense == dense && p->vram_state == kept &&
              p->vram_work == c->s.vram_work[i] + c->s.vram_cold, "%s: parts of layers", what);
    CHECK_MSG(p->ram_other == w->dense - w->embed - dense + c->s.state[i] - kept + w->table +
              c->s.ram_work[i] + c->s.ram_beside[i] + c->s.snapshots[i], "%s: RAM of layers", what);
}

static void check_plan(const plan *p, const made *c, const char *what)
{
    const plan_machine *m = &c->machine;
    const uint64_t vram = m->gpu ? most_of(m->vram_free, 400 * MB, 3, c->w.vram) : 0;
    const uint64_t there = most_of(m->ram_available, UINT64_C(1) << 30, 5, UINT64_MAX);
    const uint64_t ram = there + m->ram_program < c->w.ram ? there + m->ram_program : c->w.ram;
    int i = 0;
    CHECK_MSG(plan_vram(p) <= vram, "%s: VRAM %llu of %llu", what,
              (unsigned long long)plan_vram(p), (unsigned long long)vram);
    CHECK_MSG(plan_ram(p) <= ram, "%s: RAM %llu of %llu", what, (unsigned long long)plan_ram(p),
              (unsigned long long)ram);
    while (i < c->s.n_chunk && c->s.chunk[i] != p->chunk) i++;
    if (!CHECK_MSG(i < c->s.n_chunk, "%s: chunk %d", what, p->chunk)) return;
    if (p->gpu && p->head_in_ram) {
        check_some_layers(p, c, i, what);
    } else if (p->gpu) {
        const uint64_t table = p->embed_in_ram ? c->what.embed : 0;
        const plan_place rest = p->place[c->what.n_layer - 1];
        const uint64_t work = c->s.vram_work[i] + (rest == PLAN_VRAM ? 0 : c->s.vram_cold);
        CHECK_MSG(p->vram_dense == c->what.dense - table && p->vram_state == c->s.state[i] &&
                  p->vram_work == work, "%s: fixed parts", what);
        CHECK_MSG(p->ram_other >= table + c->s.snapshots[i], "%s: table in RAM", what);
    } else {
        CHECK_MSG(plan_vram(p) == 0 && p->ram_locked == 0 && p->ram_other == dense_on_cpu(c, i) +
                  c->s.state[i] + c->s.snapshots[i] + c->s.ram_work[i], "%s: CPU parts", what);
    }
    CHECK_MSG(p->ram_program == m->ram_program && (p->ram_copy == 0 ||
              ((!p->gpu || p->head_in_ram) && p->ram_copy == c->w.ram_copy)), "%s: program and copy", what);
    CHECK_MSG(plan_ram(p) == p->ram_program + p->ram_experts + p->ram_other + p->ram_copy,
              "%s: all of the RAM", what);
    check_places(p, c, what);
    check_numbers(p, c, what);
}

static const char *case_name(const made_model *m, double vram, double ram)
{
    static char name[128];
    snprintf(name, sizeof name, "%s, VRAM %g GB, RAM %g GB", m->name, vram, ram);
    return name;
}

/* Every machine of the table, and what more of either does. */
static void test_table(void)
{
    static plan p;
    static made c;
    for (size_t k = 0; k < ARRAY_LEN(models); k++) {
        double of_ram[ARRAY_LEN(vram_gb) + 1] = { 0 };
        for (size_t r = 0; r < ARRAY_LEN(ram_gb); r++) {
            double answers = 0, prompts = 0;
            for (size_t v = 0; v <= ARRAY_LEN(vram_gb); v++) {
                const int vram = v == 0 ? 0 : vram_gb[v - 1];
                const char *what = case_name(&models[k], vram, ram_gb[r]);
                make_case(&c, &models[k], (uint64_t)vram * GB, (uint64_t)ram_gb[r] * GB);
                if (!made_plan(&p, &c, what)) continue;
                check_plan(&p, &c, what);
                CHECK_MSG(p.gpu == (vram > 0), "%s: GPU", what);
                CHECK_MSG(p.decode_tok_s >= answers, "%s: %g tok/s, with less VRAM %g", what,
                          p.decode_tok_s, answers);
                CHECK_MSG(p.decode_tok_s >= of_ram[v], "%s: %g tok/s, with less RAM %g", what,
                          p.decode_tok_s, of_ram[v]);
                /* a chunk of the CPU's is not a chunk of the GPU's */
                CHECK_MSG(p.prefill_tok_s >= prompts, "%s: prompts %g, with less VRAM %g", what,
                          p.prefill_tok_s, prompts);
                answers = of_ram[v] = p.decode_tok_s;
                prompts = v == 0 ? 0 : p.prefill_tok_s;
            }
        }
    }
}

/* In small steps. Buffers that become worth having, and the table's move to VRAM, take room from
 * experts: a few percent, and only there. More RAM costs nothing. */
static void test_steps(void)
{
    static plan p;
    static made c;
    for (size_t k = 0; k < ARRAY_LEN(models); k++)
        for (int ram = 16; ram <= 128; ram *= 2) {
            double best = 0, prompts = 0;
            int chunk = 0;
            bool seen = false;
            for (uint64_t vram = 500; vram <= 90000; vram += 61 + vram / 70) {
                make_case(&c, &models[k], vram * MB, (uint64_t)ram * GB);
                const char *what = case_name(&models[k], (double)vram * 1e-3, ram);
                if (!made_plan(&p, &c, what)) continue;
                check_plan(&p, &c, what);
                CHECK_MSG(p.gpu || !seen, "%s: no GPU, which less VRAM had", what);
                seen |= p.gpu;
                CHECK_MSG(p.decode_tok_s > 0.92 * best, "%s: %g of %g tok/s", what, p.decode_tok_s,
                          best);
                CHECK_MSG(!p.gpu || p.chunk >= chunk || p.stage_parts == 0, "%s: chunk %d of %d",
                          what, p.chunk, chunk);
                CHECK_MSG(!p.gpu || p.prefill_tok_s > 0.95 * prompts, "%s: prompts %g of %g", what,
                          p.prefill_tok_s, prompts);
                if (p.decode_tok_s > best) best = p.decode_tok_s;
                if (p.gpu) chunk = p.chunk;
                if (p.gpu && p.prefill_tok_s > prompts) prompts = p.prefill_tok_s;
            }
            CHECK(seen);
        }
    for (size_t k = 0; k < ARRAY_LEN(models); k++)
        for (int vram = 0; vram <= 24; vram += 8) {
            double best = 0;
            for (uint64_t ram = 8000; ram <= 100000; ram += 613) {
                const char *what = case_name(&models[k], vram, (double)ram * 1e-3);
                make_case(&c, &models[k], (uint64_t)vram * GB, ram * MB);
                if (!made_plan(&p, &c, what)) continue;
                CHECK_MSG(p.decode_tok_s >= best * (1 - 1e-9), "%s: %g of %g tok/s", what,
                          p.decode_tok_s, best);
                if (p.decode_tok_s > best) best = p.decode_tok_s;
            }
        }
}

/* ---- chosen rows ----------------------------------------------------------------------------- */

enum { OSS20, OSS120, QWEN4, QWEN8 };

static const struct chosen_row {
    int model;
    int vram_mb, ram_gb;
    bool gpu, table_in_ram;
    int chunk, parts, layers, more;
    plan_place rest;
    plan_bound bound;
    const char *why;
} chosen[] = {
    { OSS20, 8000, 32, true, true, 4096, 2, 0, 358, PLAN_RAM, BOUND_CPU,
      "7600 MB less 1335, 305.7, 755.4, stage 423.0, pad 44.1: 4736.8 MB are 358 experts" },
    { OSS20, 8000, 12, true, true, 4096, 2, 11, 6, PLAN_RAM, BOUND_CPU,
      "10.2 GB of experts are too much for RAM: whole banks, and the others there" },
    { OSS20, 16000, 32, true, false, 4096, 0, 24, 0, PLAN_VRAM, BOUND_VRAM,
      "15.5 GB hold 10.2 of experts and 3.0 of the rest: no buffers for what never moves" },
    { OSS20, 13500, 32, true, true, 4096, 0, 24, 0, PLAN_VRAM, BOUND_VRAM,
      "13095 of 13164 MB: all of it but the table, which a token reads one row of" },
    { OSS20, 12800, 32, true, true, 2048, 0, 24, 0, PLAN_VRAM, BOUND_VRAM,
      "all of it with a smaller chunk, rather than the wished one without some experts" },
    { OSS20, 3400, 32, true, true, 4096, 8, 1, 2, PLAN_RAM, BOUND_CPU,
      "the table gives way before the chunk; 1/8 of a bank, so that 30% are for experts" },
    { OSS20, 2500, 32, true, true, 1024, 16, 0, 13, PLAN_RAM, BOUND_CPU,
      "then the chunk does: 2048 would need 2115 of 2100 MB" },
    { OSS20, 1950, 32, false, false, 4096, 0, 0, 0, PLAN_RAM, BOUND_CPU,
      "1550 MB: not even the smallest of it, so the CPU with all that it has" },
    { OSS20, 0, 16, false, false, 4096, 0, 0, 0, PLAN_RAM, BOUND_CPU, "no GPU: 13.2 of 14.9 GB" },
    { OSS120, 24000, 64, true, true, 4096, 8, 11, 113, PLAN_RAM, BOUND_CPU,
      "23280 MB hold 1521 experts; 25 banks of 1692 MB are in RAM" },
    { OSS120, 24000, 32, true, true, 4096, 8, 11, 113, PLAN_DISK, BOUND_DISK,
      "42.3 GB do not fit: a cache" },
    { OSS120, 80000, 16, true, false, 4096, 0, 36, 0, PLAN_VRAM, BOUND_VRAM,
      "RAM does not matter" },
    { QWEN4, 8000, 64, true, true, 4096, 4, 0, 2640, PLAN_RAM, BOUND_CPU,
      "the bus is not counted on to its limit; parts of 227 MB" },
    { QWEN4, 8000, 32, true, true, 4096, 4, 5, 80, PLAN_DISK, BOUND_DISK, "39 GB do not fit" },
    { QWEN8, 0, 128, false, false, 4096, 0, 0, 0, PLAN_RAM, BOUND_CPU, "85 GB fit without a GPU" },
    { QWEN8, 0, 64, false, false, 4096, 0, 0, 0, PLAN_DISK, BOUND_DISK, "and here they do not" },
};

static void test_chosen(void)
{
    static plan p;
    static made c;
    for (size_t i = 0; i < ARRAY_LEN(chosen); i++) {
        const struct chosen_row *r = &chosen[i];
        int more;
        make_case(&c, &models[r->model], (uint64_t)r->vram_mb * MB, (uint64_t)r->ram_gb * GB);
        if (!made_plan(&p, &c, r->why)) continue;
        const int layers = whole_layers(&p, &c.what, &more);
        CHECK_MSG(p.gpu == r->gpu && p.embed_in_ram == r->table_in_ram && p.chunk == r->chunk &&
                  p.stage_parts == r->parts && layers == r->layers && more == r->more &&
                  p.place[c.what.n_layer - 1] == r->rest && p.bound == r->bound,
                  "%s, VRAM %d MB, RAM %d GB: gpu %d table %d chunk %d parts %d layers %d+%d place "
                  "%d bound by %s: %s", models[r->model].name, r->vram_mb, r->ram_gb, p.gpu,
                  p.embed_in_ram, p.chunk, p.stage_parts, layers, more,
                  (int)p.place[c.what.n_layer - 1], plan_bound_name(p.bound), r->why);
        check_plan(&p, &c, r->why);
    }
}

/* ---- wishes and limits ----------------------------------------------------------------------- */

static void test_wishes(void)
{
    static plan p, q;
    static made c;
    static const uint64_t bounds[] = {
        0, 500 * MB, 2 * GB, 5 * GB, 7 * GB, 7600 * MB, 8 * GB, 99 * GB
    };
    for (size_t k = 0; k < ARRAY_LEN(models); k++)
        for (size_t i = 0; i < ARRAY_LEN(bounds); i++) {
            make_case(&c, &models[k], 8 * GB, 100 * GB);
            c.w.vram = bounds[i];
            if (made_plan(&p, &c, "--vram")) check_plan(&p, &c, "--vram");
            CHECK_MSG(plan_vram(&p) <= bounds[i], "--vram %llu", (unsigned long long)bounds[i]);
            CHECK(bounds[i] >= GB || !p.gpu);
            CHECK(bounds[i] < 7 * GB || p.gpu);
            /* a bound of all that there is still leaves the reserve */
            CHECK(plan_vram(&p) <= 7600 * MB);
            make_case(&c, &models[k], 8 * GB, 100 * GB);
            c.w.ram = 6 * GB + bounds[i];
            if (made_plan(&p, &c, "--ram")) check_plan(&p, &c, "--ram");
            CHECK_MSG(plan_ram(&p) <= c.w.ram && plan_ram(&p) <= 95 * GB, "--ram");
        }
    make_case(&c, &models[OSS20], 80 * GB, 64 * GB);
    c.w.cpu_only = true;
    CHECK(run(&p, &c) == 0 && !p.gpu && plan_vram(&p) == 0);
    for (size_t k = 0; k < ARRAY_LEN(models); k++) {     /* much VRAM, and no experts in it */
        make_case(&c, &models[k], 80 * GB, 256 * GB);
        c.w.no_hot = true;
        CHECK(run(&p, &c) == 0 && p.gpu && p.vram_experts == 0 && p.chunk == c.s.chunk[0] &&
              p.stage_parts > 0 && p.ram_experts == all_experts(&c.what));
        check_plan(&p, &c, "no experts in VRAM");
    }
    make_case(&c, &models[OSS20], 8 * GB, 64 * GB);
    c.w.whole_banks = true;
    CHECK(run(&p, &c) == 0 && !p.cache && p.hot[0] == c.what.n_expert);
    check_plan(&p, &c, "whole banks");
    c.w.no_postfetch = true;
    CHECK(run(&p, &c) == 0 && p.gpu && p.vram_pad == 0 && p.t_pull == 0);
    check_plan(&p, &c, "no post-fetch");
    c.w.no_postfetch = false;
    CHECK(run(&q, &c) == 0 && q.vram_pad == 4 * 4406400 + 2 * 13219200 && q.t_pull > 0);
    CHECK_MSG(q.decode_tok_s > 1.1 * p.decode_tok_s, "post-fetch: %g, without %g", q.decode_tok_s,
              p.decode_tok_s);
}

/* Each slab of a slot begins in a page of its own. */
static void allow_moves(made *c)
{
    uint64_t slot = c->down[0] + 4095;
    slot = 3 * (slot - slot % 4096);
    for (int l = 0; l < c->what.n_layer; l++) c->slot[l] = slot;
    c->what.slot_bytes = c->slot;
    c->what.spare_bytes = 8 * slot;
}

/* Experts are moved where RAM has room for those that are not in VRAM, but not for all. */
static void test_moved(void)
{
    static const struct { int model, vram_mb; uint64_t ram_mb; int lock_mb; bool cache, moved;
                          int layers; const char *why; } rows[] = {
        { OSS20, 8000, 32000, 0, true, false, 0, "all experts fit: copies" },
        { OSS20, 8000, 12000, 0, true, true, 0, "10.2 GB do not, 5.5 do" },
        { OSS20, 8000, 32000, 8000, true, true, 0, "no more than 8 GB can be locked" },
        { OSS20, 8000, 7500, 0, true, true, 0, "6304 of 6426 MB" },
        { OSS20, 8000, 6900, 0, false, false, 11, "5826 MB are too little, for whole banks, too" },
        { OSS20, 8000, 32000, 5000, false, false, 11, "too little can be locked" },
        { OSS120, 24000, 64000, 0, true, true, 0, "40.9 of 60.9 GB" },
        { QWEN4, 8000, 42000, 0, true, true, 0, "38.8 of 43.5 GB" },
    };
    static plan p;
    static made c;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int more;
        make_case(&c, &models[rows[i].model], (uint64_t)rows[i].vram_mb * MB, rows[i].ram_mb * MB);
        allow_moves(&c);
        if (rows[i].lock_mb > 0) c.machine.lock_limit = (uint64_t)rows[i].lock_mb * MB;
        if (!made_plan(&p, &c, rows[i].why)) continue;
        check_plan(&p, &c, rows[i].why);
        CHECK_MSG(p.cache == rows[i].cache && p.moved == rows[i].moved &&
                  whole_layers(&p, &c.what, &more) == rows[i].layers, "%s: cache %d, moved %d, %d "
                  "whole layers, %llu MB of RAM", rows[i].why, p.cache, p.moved,
                  whole_layers(&p, &c.what, &more), (unsigned long long)(p.ram_experts / MB));
        c.w.whole_banks = true;
        CHECK(run(&p, &c) == 0 && !p.cache && !p.moved);
        check_plan(&p, &c, "whole banks");
    }
    /* to the byte */
    make_case(&c, &models[OSS20], 8000 * MB, 64 * GB);
    allow_moves(&c);
    c.machine.lock_limit = 9 * GB;
    CHECK(run(&p, &c) == 0 && p.moved && p.ram_locked == p.ram_experts);
    const uint64_t need = plan_ram(&p), slots = p.ram_experts;
    c.w.ram = need;
    CHECK(run(&p, &c) == 0 && p.moved && plan_ram(&p) == need);
    c.w.ram = need - 1;
    CHECK(run(&p, &c) == 0 && (!p.moved || plan_ram(&p) < need));
    c.w.ram = UINT64_MAX;
    c.machine.lock_limit = slots;
    CHECK(run(&p, &c) == 0 && p.moved);
    c.machine.lock_limit = slots - 1;
    CHECK(run(&p, &c) == 0 && (!p.moved || p.ram_locked < slots));
    check_plan(&p, &c, "a byte less");
    c.what.slot_bytes = NULL;
    CHECK(run(&p, &c) == 0 && !p.moved && !p.cache);
}

/* What can be locked is what can be fetched; in between the time is in between. */
static void test_locked(void)
{
    static plan none, half, all;
    static made c;
    make_case(&c, &models[OSS120], 8 * GB, 128 * GB);
    c.w.whole_banks = true;
    CHECK(run(&all, &c) == 0 && all.ram_locked == all.ram_experts && all.ram_experts > 0);
    c.machine.lock_limit = all.ram_experts / 2;
    CHECK(run(&half, &c) == 0 && half.ram_locked == all.ram_experts / 2);
    check_plan(&half, &c, "half of it locked");
    c.machine.lock_limit = 0;
    CHECK(run(&none, &c) == 0 && none.ram_locked == 0 && none.t_pull == 0);
    c.w.whole_banks = false;             /* what cannot be locked cannot change places */
    CHECK(run(&none, &c) == 0 && !none.cache);
    const double middle = (1 / none.decode_tok_s + 1 / all.decode_tok_s) / 2;
    CHECK_MSG(fabs(1 / half.decode_tok_s / middle - 1) < 1e-6, "half locked: %g s, not %g",
              1 / half.decode_tok_s, middle);
    CHECK(none.decode_tok_s < all.decode_tok_s);
}

/* The least RAM: with one byte less there is an error with both numbers in it. */
static void test_least(void)
{
    static plan p;
    static made c;
    const int last = N_CHUNKS - 1;
    for (size_t k = 0; k < ARRAY_LEN(models); k++)
        for (int vram = 0; vram <= 8; vram += 8) {
            const made_model *m = &models[k];
            err_ctx err = { 0 };
            make_case(&c, m, (uint64_t)vram * GB, 200 * GB);
            for (int i = 0; i < N_CHUNKS; i++) c.s.snapshots[i] = 5 * MB;
            c.w.ram = vram ? c.s.snapshots[last] + c.s.ram_beside[last]
                           : dense_on_cpu(&c, last) + c.s.state[last] + c.s.snapshots[last] +
                             c.s.ram_work[last];
            c.machine.ram_program = 8 * MB;
            c.w.ram += c.machine.ram_program + 2 * (uint64_t)m->n_used * m->expert;
            if (made_plan(&p, &c, m->name)) check_plan(&p, &c, m->name);
            CHECK_MSG(p.chunk == 256 && p.gpu == (vram > 0), "%s: chunk %d", m->name, p.chunk);
            c.w.ram--;
            CHECK(plan_make(&p, &c.machine, &c.what, &c.s, &c.w, &err) == ERR_NOMEM);
            CHECK_MSG(strstr(err.msg, "needs ") && strstr(err.msg, "B may be used (--ram)") &&
                      strstr(err.msg, vram ? "beside the GPU" : "8192 tokens"), "%s: %s", m->name,
                      err.msg);
            CHECK(!p.gpu && p.chunk == 0 && plan_ram(&p) == 0);
        }
    /* a machine with hardly any memory still has half of it to give */
    make_case(&c, &models[OSS20], 0, 1200 * MB);
    c.what.n_layer = 2;
    c.what.n_expert = 8;
    c.what.dense = c.what.embed = 50 * MB;
    CHECK(run(&p, &c) == 0 && p.ram_experts == 2 * 8 * models[OSS20].expert);
    check_plan(&p, &c, "1200 MB");
    c.machine.ram_available = 10 * MB;
    err_ctx err = { 0 };
    CHECK(plan_make(&p, &c.machine, &c.what, &c.s, &c.w, &err) == ERR_NOMEM);
    CHECK_MSG(strstr(err.msg, "5.0 MB may be used (10.0 MB are available)"), "%s", err.msg);
}

/* What the process has already counts against --ram, not against what is available. */
static void test_program(void)
{
    static plan p, q;
    static made c;
    make_case(&c, &models[OSS20], 0, 16 * GB);
    c.w.ram = 14 * GB;
    CHECK(run(&p, &c) == 0 && p.place[0] == PLAN_RAM);
    c.machine.ram_program = 4 * GB;
    CHECK(run(&q, &c) == 0 && q.place[0] == PLAN_DISK && q.ram_program == 4 * GB);
    check_plan(&q, &c, "--ram counts the program");
    c.w.ram = 18 * GB;
    CHECK(run(&q, &c) == 0 && q.place[0] == PLAN_RAM && plan_ram(&q) == plan_ram(&p) + 4 * GB);
    c.w.ram = UINT64_MAX;
    CHECK(run(&q, &c) == 0 && q.place[0] == PLAN_RAM);
    check_plan(&q, &c, "what is available does not");
    c.w.ram = 1 * GB;                    /* less than the program alone */
    CHECK(run(&q, &c) == ERR_NOMEM);
}

/* The repacked head is the last to get room, and only the CPU needs it. */
static void test_copy(void)
{
    static plan p;
    static made c;
    make_case(&c, &models[OSS20], 0, 64 * GB);
    c.machine.ram_program = 30 * MB;
    CHECK(run(&p, &c) == 0 && p.ram_copy == 0);
    const uint64_t without = plan_ram(&p);
    c.w.ram_copy = 615 * MB;
    for (int lacks = 0; lacks <= 1; lacks++) {
        c.w.ram = without + c.w.ram_copy - (uint64_t)lacks;
        CHECK_MSG(run(&p, &c) == 0 && p.ram_copy == (lacks ? 0 : 615 * MB) &&
                  plan_ram(&p) == without + p.ram_copy, "%d bytes are missing", lacks);
        check_plan(&p, &c, "a repacked head");
    }
    c.w.ram = UINT64_MAX;
    c.machine.gpu = true;
    c.machine.vram_free = 8 * GB;
    CHECK(run(&p, &c) == 0 && p.gpu && p.ram_copy == 0);
}

/* Of the table the rows that are read, but never more than the table. */
static void test_embed(void)
{
    static plan p;
    static made c;
    make_case(&c, &models[OSS20], 0, 64 * GB);
    for (int i = 0; i < N_CHUNKS; i++) c.s.ram_embed[i] = 33 * MB;
    CHECK(run(&p, &c) == 0);
    const uint64_t few = p.ram_other;
    for (int i = 0; i < N_CHUNKS; i++) c.s.ram_embed[i] = 616 * MB;
    CHECK(run(&p, &c) == 0 && p.ram_other == few + (615 - 33) * MB);
    c.what.embed = 0;                    /* it is the output matrix, too: read whole */
    CHECK(run(&p, &c) == 0 && p.ram_other == few + (615 - 33) * MB);
    make_case(&c, &models[OSS20], 3400 * MB, 64 * GB);   /* page-locked: whole */
    for (int i = 0; i < N_CHUNKS; i++) c.s.ram_embed[i] = 33 * MB;
    CHECK(run(&p, &c) == 0 && p.embed_in_ram && p.ram_other >= 615 * MB);
}

/* ---- advice ---------------------------------------------------------------------------------- */

/* Sessions that are halved, with so many bytes for each token, and with half as many. */
static void add_less(made *c, uint64_t fixed, uint64_t each)
{
    c->s.n_less = 0;
    for (int q8 = 0; q8 <= 1; q8++)
        for (int ctx = q8 ? 8192 : 4096; ctx >= 256; ctx /= 2) {
            const uint64_t bytes = fixed + (uint64_t)ctx * each / (q8 ? 2 : 1);
            c->s.less[c->s.n_less++] = (plan_less){ ctx, q8 == 1, bytes, bytes / 4 };
        }
    for (int i = 0; i < N_CHUNKS; i++) {
        c->s.state[i] = fixed + 8192 * each;
        c->s.ram_work[i] = c->s.snapshots[i] = 0;
    }
}

enum { NO_BOUND = 1 << 20 };
static const struct {
    int ram_mb;                          /* --ram, beyond the dense weights, experts and program;
                                          * < 0: --ram 0; NO_BOUND: none */
    int there_mb;                        /* of the machine, the same */
    const char *want;
    const char *not;                     /* must not be said */
    const char *why;
} advice[] = {
    /* 819 MB at f16, 410 at q8_0; with 4096 tokens 410 and 205; advice leaves 67 MB
     * more if it can */
    { 818, 9000, "; use --ram 2265M or more, or --ctx 4096 or less, or --kv q8_0", NULL,
      "each of three would do" },
    { 476, 9000, "; use --ram 2265M or more, or --ctx 2048 or less", "q8_0",
      "half of it is not enough" },
    { 13, 9000, "; use --ram 2265M or more, or --ctx 256 or less and --kv q8_0", NULL,
      "only both together, and hardly" },
    { 12, 9000, "; use --ram 2265M or more", "--ctx", "no context is small enough" },
    { -1, 9000, "; use --ram 2265M or more", "--ctx", "--ram 0" },
    { 818, 850, "; use --ram 2231M or more, or --ctx 4096 or less, or --kv q8_0", NULL,
      "all that the machine has" },
    { 818, 818, "; use --ctx 4096 or less, or --kv q8_0", "--ram 2", "the machine has no more" },
    { NO_BOUND, 818, "; use --ctx 4096 or less, or --kv q8_0", "--ram 2", "no bound" },
    { NO_BOUND, 476, "; use --ctx 2048 or less", "q8_0", "no bound, less room" },
    { NO_BOUND, 13, "; use --ctx 256 or less and --kv q8_0", NULL, "no bound, hardly any room" },
    { NO_BOUND, 12, "; no smaller context would do: end other programs, or use a smaller model or "
      "quantisation", "--ctx", "nothing helps" },
};

static void test_advice(void)
{
    static plan p;
    static made c;
    for (size_t i = 0; i < ARRAY_LEN(advice); i++) {
        err_ctx err = { 0 };
        make_case(&c, &models[OSS20], 0, 0);
        add_less(&c, 0, 100000);
        c.machine.ram_program = 30 * MB;
        const uint64_t base = dense_on_cpu(&c, N_CHUNKS - 1) + 8 * models[OSS20].expert;
        const uint64_t all = base + c.machine.ram_program;
        /* a GiB is the system's */
        c.machine.ram_available = base + (uint64_t)advice[i].there_mb * MB + (UINT64_C(1) << 30);
        if (advice[i].there_mb > 5000) c.machine.ram_available += 2 * GB;
        if (advice[i].ram_mb < NO_BOUND)
            c.w.ram = advice[i].ram_mb < 0 ? 0 : all + (uint64_t)advice[i].ram_mb * MB;
        const int rc = plan_make(&p, &c.machine, &c.what, &c.s, &c.w, &err);
        CHECK_MSG(rc == ERR_NOMEM && strstr(err.msg, advice[i].want) &&
                  strlen(strstr(err.msg, advice[i].want)) == strlen(advice[i].want) &&
                  !(advice[i].not && strstr(err.msg, advice[i].not)), "%s: %d, '%s'",
                  advice[i].why, rc, err.msg);
    }
    /* what is needed at least does, and not one less */
    make_case(&c, &models[OSS20], 0, 64 * GB);
    add_less(&c, 0, 100000);
    c.machine.ram_program = 30 * MB;
    c.w.ram = UINT64_C(2201) << 20;
    CHECK(run(&p, &c) == 0);
    c.w.ram -= UINT64_C(1) << 20;
    CHECK(run(&p, &c) == ERR_NOMEM);
    /* beside a GPU it is its own sum */
    err_ctx err = { 0 };
    make_case(&c, &models[OSS20], 8 * GB, 64 * GB);
    add_less(&c, 400 * MB, 100000);
    for (int k = 0; k < N_CHUNKS; k++) c.s.ram_beside[k] = 300 * MB;
    c.w.ram = 8 * models[OSS20].expert + 220 * MB;
    CHECK(plan_make(&p, &c.machine, &c.what, &c.s, &c.w, &err) == ERR_NOMEM);
    CHECK_MSG(strstr(err.msg, "beside the GPU") && strstr(err.msg, "; use --ram 404M or more, or "
              "--ctx 4096 or less, or --kv q8_0"), "%s", err.msg);
}

/* The program takes more in the next run, by two huge pages in different places: whoever did what
 * the first one said is not refused again. */
static void test_advice_holds(void)
{
    static const uint64_t programs[] = { 8 * MB, 17 * MB, 150 * MB, 4 * GB };
    static plan p;
    static made c;
    for (size_t i = 0; i < ARRAY_LEN(programs); i++)
        for (int gpu = 0; gpu <= 1; gpu++) {
            err_ctx err = { 0 };
            unsigned long long mib = 0;
            make_case(&c, &models[OSS20], gpu ? 8 * GB : 0, 64 * GB);
            add_less(&c, 0, 1000);
            c.machine.ram_program = programs[i];
            c.w.ram = 0;
            CHECK(plan_make(&p, &c.machine, &c.what, &c.s, &c.w, &err) == ERR_NOMEM);
            const char *at = strstr(err.msg, "; use --ram ");
            CHECK_MSG(at && sscanf(at, "; use --ram %lluM", &mib) == 1, "%s", err.msg);
            c.w.ram = (uint64_t)mib << 20;
            c.machine.ram_program += 4 << 20;
            CHECK_MSG(plan_make(&p, &c.machine, &c.what, &c.s, &c.w, &err) == 0, "--ram %lluM: %s",
                      mib, err.msg);
        }
}

/* A store that asks for more than all that is cold: it gets that, or there is no such plan. */
static void test_least_cache(void)
{
    static plan p;
    static made c;
    const made_model *m = &models[OSS20];
    const int last = N_CHUNKS - 1;
    make_case(&c, m, 0, 64 * GB);
    c.machine.gpu = true;
    c.machine.vram_free = 80 * GB;
    c.s.n_chunk = 1;                     /* nothing to give way with */
    c.what.embed = 0;
    c.w.vram = c.what.dense + c.s.state[0] + c.s.vram_work[0] + all_experts(&c.what) + 100 * MB;
    if (made_plan(&p, &c, "all in VRAM")) check_plan(&p, &c, "all in VRAM");
    CHECK(p.vram_experts == all_experts(&c.what));
    /* room for two experts less, and a stage: two banks are not whole */
    c.what.least_cache = 50 * m->expert;
    c.w.no_postfetch = true;
    c.s.vram_work[0] += 100 * MB + 2 * m->expert;
    for (int spare = 0; spare <= 14; spare++) {
        c.w.ram = c.s.ram_beside[0] + c.what.least_cache + (uint64_t)spare * m->expert;
        if (made_plan(&p, &c, "a large least cache")) check_plan(&p, &c, "a large least cache");
        const uint64_t outside = all_experts(&c.what) - p.vram_experts;
        CHECK_MSG(p.gpu && outside == 35 * m->expert, "%llu bytes are cold",
                  (unsigned long long)outside);
        CHECK_MSG(p.place[23] == (spare < 14 ? PLAN_DISK : PLAN_RAM) && p.disk_experts == 0 &&
                  p.ram_experts == (spare < 14 ? 50 : 64) * m->expert && p.t_disk == 0,
                  "%d more: a cache of %llu", spare, (unsigned long long)p.ram_experts);
    }
    /* less than that will not do: with a smaller stage it is one bank, for which there is room */
    c.w.ram = c.s.ram_beside[0] + c.what.least_cache - 1;
    if (made_plan(&p, &c, "one bank")) check_plan(&p, &c, "one bank");
    CHECK(p.gpu && p.place[23] == PLAN_RAM && p.ram_experts == 32 * m->expert);
    c.w.ram = c.s.ram_beside[0] + 32 * m->expert - 1;
    CHECK(run(&p, &c) == ERR_NOMEM);
    /* without a GPU all of it is the other way to have room */
    make_case(&c, m, 0, 64 * GB);
    c.what.n_layer = 1;
    c.what.least_cache = 100 * m->expert;
    c.w.ram = dense_on_cpu(&c, last) + c.s.state[last] + c.s.ram_work[last] + 32 * m->expert;
    CHECK(run(&p, &c) == 0 && p.place[0] == PLAN_RAM && p.ram_experts == 32 * m->expert);
    c.w.ram--;
    CHECK(run(&p, &c) == ERR_NOMEM);
}

/* VRAM that only cold experts need. */
static void test_vram_beside(void)
{
    static plan p, q;
    static made c;
    for (size_t k = 0; k < ARRAY_LEN(models); k++)
        for (uint64_t vram = 2500; vram <= 70000; vram += 200 + vram / 20)
            for (uint64_t ram = 16; ram <= 64; ram *= 4) {
                const char *what = case_name(&models[k], (double)vram * 1e-3, (double)ram);
                make_case(&c, &models[k], vram * MB, ram * GB);
                const bool before = made_plan(&q, &c, what);
                c.s.vram_cold = 50 * MB;
                if (!before || !made_plan(&p, &c, what)) continue;
                check_plan(&p, &c, what);
                CHECK_MSG(p.gpu <= q.gpu && (!p.gpu || p.vram_experts <= q.vram_experts ||
                          p.chunk < q.chunk || p.stage_parts != q.stage_parts), "%s: more of it",
                          what);
                CHECK_MSG(q.vram_experts < all_experts(&c.what) || p.vram_experts ==
                          q.vram_experts, "%s: resident experts need none of it", what);
            }
    make_case(&c, &models[OSS20], 8 * GB, 64 * GB);      /* what cannot be counted does not fit */
    c.s.vram_cold = UINT64_MAX;
    CHECK(run(&p, &c) == 0 && !p.gpu);
}

static void test_refused(void)
{
    static plan p;
    static made c;
    make_case(&c, &models[OSS20], 8 * GB, 64 * GB);
    c.what.n_layer = PLAN_MAX_LAYERS + 1;
    CHECK(run(&p, &c) == ERR_UNSUPPORTED);
    make_case(&c, &models[OSS20], 8 * GB, 64 * GB);
    c.what.n_used = 33;
    CHECK(run(&p, &c) == ERR_RANGE);     /* of 32 */
    c.what.n_used = 4;
    c.s.n_chunk = 0;
    CHECK(run(&p, &c) == ERR_RANGE);
    c.s.n_chunk = N_CHUNKS;
    c.down[3] = c.expert[3] + 1;
    CHECK(run(&p, &c) == ERR_RANGE);
    c.down[3] = 1;
    c.expert[7] = UINT64_MAX / 32;
    CHECK(run(&p, &c) == ERR_RANGE);
    /* what cannot be counted does not fit */
    make_case(&c, &models[OSS20], 8 * GB, 64 * GB);
    for (int i = 0; i < N_CHUNKS; i++) c.s.vram_work[i] = UINT64_MAX;
    CHECK(run(&p, &c) == 0 && !p.gpu);
    for (int i = 0; i < N_CHUNKS; i++) c.s.ram_work[i] = UINT64_MAX - 1;
    CHECK(run(&p, &c) == ERR_NOMEM);
}

/* Files of mixed types: layers differ, and so may the down slab's share. */
static void test_mixed(void)
{
    static plan p;
    static made c;
    for (uint64_t vram = 3; vram <= 40; vram++)
        for (uint64_t ram = 8; ram <= 64; ram *= 2) {
            make_case(&c, &models[QWEN4], vram * GB, ram * GB);
            for (int l = 0; l < c.what.n_layer; l++) {
                if (l % 3 == 1) continue;
                c.down[l] = 860160;
                c.expert[l] = 2 * 589824 + 860160;
            }
            if (made_plan(&p, &c, "mixed layers")) check_plan(&p, &c, "mixed layers");
        }
}

/* ---- post-fetch ------------------------------------------------------------------------------ */

static double fetch_time(int m, int d, int a, double e, double down, const speeds *r)
{
    const double on_bus = d * down + a * e, on_cpu = m * e - on_bus;
    return fmax(on_cpu / r->cpu_busy, on_bus / (PLAN_PULL_MARGIN * r->pull_busy));
}

/* ---- some layers on the GPU ------------------------------------------------------------------ */

/* As make_case, with the dense weights by layers. */
static void make_layered(made *c, const made_model *m, uint64_t vram, uint64_t ram)
{
    make_case(c, m, vram, ram);
    for (int l = 0; l < m->n_layer; l++) {
        c->layer_dense[l] = (m->dense - 2 * m->embed) / (uint64_t)m->n_layer;
        for (int i = 0; i < N_CHUNKS; i++)
            c->s.layer_state[i][l] = c->s.state[i] / (uint64_t)m->n_layer;
    }
    c->what.layer_dense = c->layer_dense;
    c->what.table = m->embed;
}

/* Budgets below the dense weights: more VRAM, more layers; all of them faster than the CPU alone. */
static void test_some_layers(void)
{
    static made c;
    static plan p, cpu;
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        int before = INT_MAX, shared = 0;
        make_layered(&c, &models[i], 80 * GB, 256 * GB);
        c.w.cpu_only = true;
        if (!made_plan(&cpu, &c, "the CPU alone")) continue;
        c.w.cpu_only = false;
        for (uint64_t mb = 100; mb <= 4000; mb += 100) {
            const char *name = case_name(&models[i], (double)mb / 1000, 256);
            c.w.vram = mb * MB;
            if (!made_plan(&p, &c, name)) continue;
            check_plan(&p, &c, name);
            if (!p.gpu) {
                CHECK_MSG(before == INT_MAX, "%s: no GPU with more VRAM", name);
                continue;
            }
            /* another chunk, or room for streaming, may cost a few layers */
            CHECK_MSG(p.cpu_layers <= before || p.cpu_layers - before <= c.what.n_layer / 8,
                      "%s: %d layers on the CPU, %d with less VRAM", name, p.cpu_layers, before);
            CHECK_MSG(p.decode_tok_s > cpu.decode_tok_s, "%s: %g tok/s, the CPU alone %g", name,
                      p.decode_tok_s, cpu.decode_tok_s);
            before = p.cpu_layers;
            shared += p.head_in_ram;
        }
        CHECK_MSG(before == 0 && shared >= 5, "%s: %d budgets with layers on both", models[i].name,
                  shared);
    }
}

/* Long chunks are for experts that come from the drive, and for a tenth of RAM at most. */
static void test_long_chunks(void)
{
    static made c;
    static plan p;
    make_case(&c, &models[QWEN4], 0, 64 * GB);
    c.s.n_long = 2;
    if (made_plan(&p, &c, "all in RAM")) CHECK(p.chunk == c.s.chunk[2]);
    c.w.ram = 16 * GB;
    for (int i = 0; i < N_CHUNKS; i++) c.s.ram_work[i] = (uint64_t)c.s.chunk[i] * 300000;
    if (made_plan(&p, &c, "16 GB")) CHECK(p.chunk == c.s.chunk[0]);
    c.w.ram = 8 * GB;
    if (made_plan(&p, &c, "8 GB")) CHECK(p.chunk == c.s.chunk[1]);
    c.w.ram = 5 * GB;
    if (made_plan(&p, &c, "5 GB")) CHECK(p.chunk == c.s.chunk[2]);
    c.s.n_long = 0;
    if (made_plan(&p, &c, "as long as any")) CHECK(p.chunk == c.s.chunk[0]);
}

/* RAM for the CPU alone, but not for page-locked experts beside it: none of them goes to the drive.
 * With so little that some must, layers are shared all the same. */
static void test_some_layers_short(void)
{
    static made c;
    static plan p;
    int n_cpu = 0;
    make_layered(&c, &models[0], 80 * GB, 64 * GB);
    c.w.vram = 450 * MB;
    for (c.w.ram = 11 * GB; c.w.ram <= 14 * GB; c.w.ram += 20 * MB) {
        c.w.cpu_only = true;
        if (!made_plan(&p, &c, "the CPU alone")) return;
        const bool drive = plan_uses_drive(&p, c.what.n_layer);
        c.w.cpu_only = false;
        if (!made_plan(&p, &c, "RAM for the CPU")) return;
        CHECK(drive || !plan_uses_drive(&p, c.what.n_layer));
        n_cpu += !p.gpu;
        c.w.gpu_wanted = true;
        if (made_plan(&p, &c, "a GPU is asked for")) CHECK(p.gpu);
        c.w.gpu_wanted = false;
    }
    CHECK_MSG(n_cpu > 0, "%d plans for the CPU alone", n_cpu);
    c.w.ram = 8 * GB;
    if (made_plan(&p, &c, "less RAM"))
        CHECK(p.gpu && p.head_in_ram && plan_uses_drive(&p, c.what.n_layer));
    c.w.no_hot = true;                   /* asks for all dense weights in VRAM */
    if (made_plan(&p, &c, "no experts in VRAM")) CHECK(!p.gpu);
    c.w.no_hot = false;
    c.what.layer_dense = NULL;
    if (made_plan(&p, &c, "layers unknown")) CHECK(!p.gpu);
}

static bool same_plan(const plan *p, const plan *q)
{
    return p->gpu == q->gpu && p->chunk == q->chunk && p->stage_parts == q->stage_parts &&
           p->cpu_layers == q->cpu_layers && p->embed_in_ram == q->embed_in_ram &&
           plan_vram(p) == plan_vram(q) && plan_ram(p) == plan_ram(q) &&
           memcmp(p->hot, q->hot, sizeof p->hot) == 0 && p->decode_tok_s == q->decode_tok_s;
}

/* A bound for the bytes of experts in VRAM: kept to the expert, and nothing else is bounded. */
static void test_hot_most(void)
{
    static plan p, q;
    static made c;
    for (size_t k = 0; k < ARRAY_LEN(models); k++) {
        const made_model *m = &models[k];
        const uint64_t one = m->expert, all = one * (uint64_t)(m->n_layer * m->n_expert);
        const struct { uint64_t most, want; const char *why; } rows[] = {
            { 0, 0, "none" },
            { one - 1, 0, "less than one" },
            { one, one, "one" },
            { 3 * one + one / 2, 3 * one, "whole experts alone" },
            { (uint64_t)m->n_expert * one, (uint64_t)m->n_expert * one, "a layer" },
            { (uint64_t)(m->n_expert + 2) * one, (uint64_t)(m->n_expert + 2) * one, "some of two" },
            { all - 1, all - (uint64_t)m->n_layer * one, "all but one of each layer" },
            { all, all, "all" },
        };
        for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
            make_case(&c, m, 140 * GB, 256 * GB);
            c.w.hot_most = rows[i].most;
            if (!made_plan(&p, &c, rows[i].why)) continue;
            check_plan(&p, &c, rows[i].why);
            CHECK_MSG(p.gpu && p.vram_experts == rows[i].want && p.chunk == c.s.chunk[0],
                      "%s, %s: %llu bytes", m->name, rows[i].why,
                      (unsigned long long)p.vram_experts);
            CHECK_MSG((p.stage_parts > 0) == (rows[i].want < all), "%s, %s: streaming", m->name,
                      rows[i].why);
        }
        make_case(&c, m, 8 * GB, 256 * GB);              /* a bound above what there is room for */
        CHECK(run(&p, &c) == 0 && p.vram_experts > 2 * one && p.vram_experts < all);
        c.w.hot_most = p.vram_experts;
        CHECK(run(&q, &c) == 0 && same_plan(&p, &q));
        c.w.hot_most--;
        CHECK(run(&q, &c) == 0 && q.vram_experts == p.vram_experts - one);
        c.w.hot_most = 0;                                /* none: as no_hot, ... */
        CHECK(run(&p, &c) == 0 && p.gpu);
        c.w.no_hot = true;
        CHECK(run(&q, &c) == 0 && same_plan(&p, &q));
    }
    make_layered(&c, &models[OSS20], 80 * GB, 64 * GB);
    c.w.vram = 450 * MB;
    c.w.hot_most = 0;                    /* ... but the dense weights may be shared out */
    CHECK(run(&p, &c) == 0 && p.gpu && p.cpu_layers > 0);
    c.w.hot_most = UINT64_MAX;
    CHECK(run(&q, &c) == 0 && same_plan(&p, &q));
}

static void test_fetch(void)
{
    test_rng rng = { 7 };
    for (int round = 0; round < 1000; round++) {
        const uint64_t e = 3000 + test_below(&rng, 20000000), down = 1 + test_below(&rng, e);
        const double cpu = 1e9 + test_below(&rng, 200) * 1e9;
        const speeds r = {
            .cpu = cpu, .cpu_busy = cpu * (0.5 + test_below(&rng, 51) * 0.01), .pull = 60e9,
            .pull_busy = 1e9 + test_below(&rng, 60) * 1e9,
        };
        const int m = (int)test_below(&rng, PLAN_MOST_USED + 1);
        const double alone = m * (double)e / r.cpu;
        double best = alone;
        int d, a;
        plan_fetch(&d, &a, m, e, down, &r);
        for (int i = 0; i <= m; i++)
            for (int k = 0; k <= m - i && k <= PLAN_PAD_WHOLE; k++)
                best = fmin(best, fetch_time(m, i, k, (double)e, (double)down, &r));
        const double got = d + a == 0 ? alone
                                      : fetch_time(m, d, a, (double)e, (double)down, &r);
        const double want = best < 0.97 * alone ? best : alone;
        CHECK_MSG(d >= 0 && a >= 0 && d + a <= m && a <= PLAN_PAD_WHOLE, "fetch %d + %d of %d", d,
                  a, m);
        CHECK_MSG(fabs(got - want) <= 1e-9 * alone, "fetch %d of %d + %d: %g s, best %g", m, d, a,
                  got, want);
    }
}

static const struct fetch_row {
    int m;
    double cpu, cpu_busy, pull, pull_busy;       /* GB/s */
    int down, all;
    const char *why;
} fetch_rows[] = {
    { 4, 76, 70, 50, 47, 4, 0, "0.36 of 12 slabs is 4.4: four downs" },
    { 10, 76, 70, 50, 47, 8, 1, "0.36 of 30 slabs is 10.9: eight downs and one expert" },
    { 10, 30, 30, 50, 47, 8, 2, "0.6 of 30 slabs: all that the pad can take" },
    { 4, 60, 58, 12, 11, 1, 0, "a seventh of 12 slabs" },
    { 1, 60, 54, 12, 11, 0, 0, "a third of one expert takes the bus longer than the CPU all" },
    { 4, 60, 40, 12, 11, 0, 0, "the CPU loses more than the bus brings" },
    { 4, 60, 54, 0, 11, 0, 0, "no pull" },
    { 0, 60, 54, 50, 47, 0, 0, "nothing cold" },
};

static void test_fetch_rows(void)
{
    for (size_t i = 0; i < ARRAY_LEN(fetch_rows); i++) {
        const struct fetch_row *f = &fetch_rows[i];
        const speeds r = { .cpu = f->cpu * 1e9, .cpu_busy = f->cpu_busy * 1e9,
                           .pull = f->pull * 1e9, .pull_busy = f->pull_busy * 1e9 };
        int d, a;
        plan_fetch(&d, &a, f->m, 1769472, 589824, &r);
        CHECK_MSG(d == f->down && a == f->all, "fetch of %d: %d + %d, not %d + %d: %s", f->m, d, a,
                  f->down, f->all, f->why);
    }
}

/* ---- expectations ---------------------------------------------------------------------------- */

static void check_near(double got, double want, const char *what)
{
    CHECK_MSG(fabs(got - want) <= 1e-9 * fabs(want), "%s: %.9g, not %.9g", what, got, want);
}

static void test_times(void)
{
    static plan p;
    static made c;
    const made_model *m = &models[OSS20];
    const double e = (double)m->expert, dense = (double)m->token_dense;

    make_case(&c, m, 80 * GB, 64 * GB);  /* all in VRAM */
    CHECK(run(&p, &c) == 0);
    check_near(p.t_dense, dense / 450e9 + 24 * 20e-6, "dense in VRAM");
    check_near(p.t_hot, 24 * (4 * e / 450e9 + 8e-6), "experts in VRAM");
    check_near(1 / p.decode_tok_s, p.t_dense + p.t_hot, "a token in VRAM");
    check_near(1 / p.limit_tok_s, (dense + 24 * 4 * e) / 450e9, "its limit");
    check_near(p.prefill_tok_s, 2e13 / (1.2e9 + 2.4e9), "prompts in VRAM");
    CHECK(p.stream_from == 9 && p.t_hop == 0 && p.t_cpu == 0);

    make_case(&c, m, 0, 64 * GB);        /* all on the CPU */
    CHECK(run(&p, &c) == 0);
    check_near(1 / p.decode_tok_s, dense / 70e9 + 24 * 30e-6 + 24 * 4 * e / 55e9,
               "a token on the CPU");
    check_near(1 / p.limit_tok_s, dense / 70e9 + 24 * 4 * e / 55e9, "its memory alone");
    check_near(p.prefill_tok_s, p.chunk / (p.chunk * (1.2e9 + 2.4e9) / 6e11 +
                                           (double)all_experts(&c.what) / 55e9),
               "prompts on the CPU: every expert is read once");
    CHECK(p.stream_from == INT_MAX && p.t_hot == 0 && p.t_hop == 0);

    make_case(&c, m, 8 * GB, 64 * GB);   /* no expert in VRAM */
    c.w.vram = 1950 * MB - c.what.embed + c.s.state[0] + c.s.vram_work[0] + 300 * MB;
    while (run(&p, &c) == 0 && p.vram_experts > 0) c.w.vram -= MB;
    CHECK(p.gpu && p.stage_parts > 0);
    /* of four experts the downs of three cross: 13.2 of 52.9 MB at 20 GB/s, the rest at 48 */
    CHECK_MSG(p.fetch_down[4] == 3 && p.fetch_all[4] == 0, "%d + %d", p.fetch_down[4],
              p.fetch_all[4]);
    check_near(p.t_cpu, 24 * 3 * e / 48e9, "the CPU's part");
    check_near(p.t_pull, 24 * e / 20e9, "the bus's part");
    check_near(p.t_hop, 24 * 8e-6, "questions");
    check_near(1 / p.decode_tok_s, p.t_dense + p.t_cpu + p.t_hop, "a token with all experts cold");
    check_near(1 / p.limit_tok_s, dense / 450e9 + 24 * 4 * e / 68e9, "both links together");
    CHECK(p.bound == BOUND_CPU);
    c.w.no_postfetch = true;
    CHECK(run(&p, &c) == 0);
    check_near(p.t_cpu, (24 * 4 * e - (double)p.vram_experts / 32 * 4) / 55e9, "without fetching");
}

static void test_drive_times(void)
{
    static plan p;
    static made c;
    const made_model *m = &models[OSS120];
    const double e = (double)m->expert, token = 36 * 4 * e;

    make_case(&c, m, 0, 64 * GB);
    c.w.ram = dense_on_cpu(&c, 0) + c.s.state[0] + c.s.ram_work[0] + all_experts(&c.what) / 2;
    CHECK(run(&p, &c) == 0 && p.place[0] == PLAN_DISK && p.chunk == 4096);
    check_near(p.t_disk, token / 2 / 3e9 + 36 * 0.2e-3, "half of it from the drive");
    check_near(1 / p.decode_tok_s, p.t_dense + p.t_disk, "while the CPU computes");
    check_near(1 / p.limit_tok_s, (double)m->token_dense / 70e9 + token / 2 / 3e9,
               "the drive alone");
    CHECK(p.bound == BOUND_DISK && p.disk_experts == all_experts(&c.what) / 2);
    c.machine.rate.cpu_many = 1e15;      /* a prompt waits for every expert that it touches */
    CHECK(run(&p, &c) == 0);
    check_near(p.prefill_tok_s, 4096 / (4096 * m->dense_macs / 1e15 + (double)
               all_experts(&c.what) * (1 - pow(1 - 4.0 / 128, 4096)) / 3e9), "a prompt, too");
    c.machine.rate.cpu_many = 6e11;
    /* less than a token's worth never hits */
    c.w.ram = dense_on_cpu(&c, 0) + c.s.state[0] + c.s.ram_work[0] + (uint64_t)token - 1;
    CHECK(run(&p, &c) == 0);
    check_near(p.t_disk, token / 3e9 + 36 * 0.2e-3, "all of it from the drive");
    c.w.ram++;
    CHECK(run(&p, &c) == 0);
    CHECK(p.t_disk < token / 3e9);
}

/* 64 slots for each expert, as far as anybody has room for the batch. */
static void test_most_shared(void)
{
    static const struct { int n_used, n_expert, most; } rows[] = {
        { 4, 32, 512 }, { 4, 128, 2048 }, { 10, 512, 2048 }, { 4, 16, 256 }, { 4, 24, 384 },
        { 8, 8, 64 }, { 1, 1, 64 }, { 3, 16, 341 }, { 8, 512, 2048 }, { 10, 64, 409 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const int n = plan_most_shared(rows[i].n_used, rows[i].n_expert);
        CHECK_MSG(n == rows[i].most && n > 8, "%d of %d: %d", rows[i].n_used, rows[i].n_expert, n);
    }
}

/* Which bits a prompt has: not a speed's business, and above the rule only one way is gone. */
static void test_contract_to(void)
{
    static plan p;
    static made c;
    for (size_t k = 0; k < ARRAY_LEN(models); k++)
        for (int kind = 0; kind < 8; kind++) {
            const made_model *m = &models[k];
            const bool disk = kind & 1, floats = kind & 2, whole = kind & 4;
            const int most = plan_most_shared(m->n_used, m->n_expert);
            for (double factor = 1e-9; factor < 1e10; factor *= 1e9) {
                make_case(&c, m, 6 * GB, disk ? 8 * GB : 128 * GB);
                c.what.float_experts = floats;
                c.w.whole_banks = whole;
                c.machine.rate.cpu *= factor;
                c.machine.rate.cpu_many *= factor;
                if (!made_plan(&p, &c, m->name)) continue;
                CHECK_MSG(p.contract_to == most && p.stream_from <= most + 1, "%s: %d, from %d",
                          m->name, p.contract_to, p.stream_from);
                CHECK_MSG(!floats || (p.split_from == INT_MAX && p.stream_from == most + 1),
                          "%s: floats are shared out from %d, streamed from %d", m->name,
                          p.split_from, p.stream_from);
            }
        }
    make_case(&c, &models[OSS20], 90 * GB, 128 * GB);
    CHECK(run(&p, &c) == 0 && p.contract_to == 0);       /* nothing is outside */
    c.w.fixed = true;
    CHECK(run(&p, &c) == 0 && p.contract_to == INT_MAX);
    make_case(&c, &models[OSS20], 0, 128 * GB);
    CHECK(run(&p, &c) == 0 && !p.gpu && p.contract_to == 0);
}

/* The definition, written down again. */
static void test_stream_from(void)
{
    static plan p;
    static made c;
    for (size_t k = 0; k < ARRAY_LEN(models); k++)
        for (int kind = 0; kind <= 2; kind++) {
            const made_model *m = &models[k];
            const int most = plan_most_shared(m->n_used, m->n_expert);
            const bool disk = kind == 1, slow = kind == 2;       /* at reading alone */
            const double cpu_read = slow ? 20e9 : 55e9, cpu_many = slow ? 1e30 : 6e11;
            make_case(&c, m, 6 * GB, disk ? 8 * GB : 128 * GB);
            c.machine.rate.cpu = cpu_read;
            c.machine.rate.cpu_many = cpu_many;
            if (!made_plan(&p, &c, m->name)) continue;
            CHECK(p.place[c.what.n_layer - 1] == (disk ? PLAN_DISK : PLAN_RAM));
            const double all = (double)all_experts(&c.what), outside = all - (double)p.vram_experts;
            const double sweep = outside / (disk ? 3e9 : 24e9), share = outside / all;
            double other[2], streamed[2];
            for (int i = 0; i < 2; i++) {
                const double n = p.stream_from - 1 + i, gpu = n / 2e13;
                const double experts = m->expert_macs * gpu / (n <= most ? 0.4 : 1);
                const double touched = outside * (1 - pow(1 - (double)m->n_used / m->n_expert, n));
                const double macs = n * m->expert_macs * share / cpu_many;
                streamed[i] = fmax(sweep, m->dense_macs * gpu + experts);
                if (disk) {
                    other[i] = m->dense_macs * gpu + experts * (1 - share) +
                               fmax(touched / cpu_read + macs, touched / 3e9);
                    continue;
                }
                const speeds *r = &c.machine.rate;
                const double bus = touched / (24e9 * r->pull_busy / r->pull);
                const double cores = touched / r->cpu_busy + macs;
                double best = 1e300;     /* of all shares that the CPU could have */
                for (double part = 0; part <= fmin(1, 512 / (n * share)); part += 1e-4)
                    best = fmin(best, fmax((1 - part) * bus, part * cores));
                other[i] = m->dense_macs * gpu + fmax(experts, best);
            }
            CHECK(p.split_from == (disk ? INT_MAX : 9));
            CHECK_MSG(other[0] <= streamed[0] * 1.001 &&
                      (other[1] * 1.001 > streamed[1] || p.stream_from == most + 1),
                      "%s: from %d: %g, %g against %g, %g", m->name, p.stream_from, other[0],
                      other[1], streamed[0], streamed[1]);
            c.machine.rate.cpu_many = 1e6;       /* a CPU that is lost with any prompt */
            CHECK(run(&p, &c) == 0 && p.split_from == (disk ? INT_MAX : 9) &&
                  (!disk || p.stream_from == 9));
            check_near(p.prefill_tok_s, p.chunk / fmax(sweep, p.chunk * (m->dense_macs +
                       m->expert_macs) / 2e13), "a streamed prompt");
            c.machine.rate.cpu_many = 1e30;      /* and one that is not with any */
            c.machine.rate.cpu = c.machine.rate.cpu_busy = 1e30;
            c.machine.rate.disk = 1e30;
            CHECK(run(&p, &c) == 0 && p.stream_from == most + 1);
        }
}

/* Whoever asks for a way gets it wherever it can be gone, but not against fixed. */
static void test_wanted_way(void)
{
    static const struct { prompt_way way; bool disk, fixed; int split, stream; } rows[] = {
        { PROMPT_CORES, false, false, INT_MAX, INT_MAX },
        { PROMPT_CORES, true, false, INT_MAX, INT_MAX },
        { PROMPT_BUS, false, false, INT_MAX, 9 },
        { PROMPT_BUS, true, false, INT_MAX, 9 },
        { PROMPT_SPLIT, false, false, 9, PLAN_SPLIT_TOKENS + 1 },
        { PROMPT_SPLIT, true, false, INT_MAX, 9 },
        { PROMPT_SPLIT, false, true, INT_MAX, 9 },
        { PROMPT_CORES, false, true, INT_MAX, 9 },
    };
    static plan p;
    static made c;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        make_case(&c, &models[OSS20], 6 * GB, rows[i].disk ? 8 * GB : 128 * GB);
        c.w.way_wanted = true;
        c.w.way = rows[i].way;
        c.w.fixed = rows[i].fixed;
        if (!made_plan(&p, &c, "a way")) continue;
        CHECK_MSG(p.split_from == rows[i].split && p.stream_from == rows[i].stream,
                  "row %d: split from %d, streamed from %d", (int)i, p.split_from, p.stream_from);
        const prompt_way at_9 = rows[i].split == 9 ? PROMPT_SPLIT : rows[i].stream == 9 ?
                                PROMPT_BUS : PROMPT_CORES;
        CHECK(plan_prompt_way(&p, 9) == at_9);
        CHECK_MSG(p.contract_to == (rows[i].fixed || rows[i].way != PROMPT_BUS ? INT_MAX : 512),
                  "row %d: contract up to %d", (int)i, p.contract_to);
        CHECK(plan_prompt_way(&p, PLAN_SPLIT_TOKENS + 1) ==
              (rows[i].stream == INT_MAX ? PROMPT_CORES : PROMPT_BUS));
    }
}

/* With fixed wishes no speed changes who computes a prompt. */
static void test_fixed(void)
{
    static plan p;
    static made c;
    static const double factors[] = { 1e-6, 1, 1e6 };
    for (size_t k = 0; k < ARRAY_LEN(models); k++)
        for (int kind = 0; kind <= 3; kind++) {
            bool differs = false;
            int first = 0;
            for (size_t f = 0; f < ARRAY_LEN(factors); f++) {
                make_case(&c, &models[k], kind == 3 ? 0 : kind == 2 ? 90 * GB : 6 * GB,
                          kind == 1 ? 8 * GB : 128 * GB);
                c.machine.rate.cpu *= factors[f];
                c.machine.rate.cpu_many *= factors[f];
                c.machine.rate.disk *= factors[f];
                if (!made_plan(&p, &c, models[k].name)) continue;
                if (f == 0) first = p.stream_from;
                differs |= p.stream_from != first;
                c.w.fixed = true;
                if (!made_plan(&p, &c, models[k].name)) continue;
                check_plan(&p, &c, "fixed");
                CHECK_MSG(p.stream_from == (p.gpu ? 9 : INT_MAX), "%s: fixed, from %d",
                          models[k].name, p.stream_from);
            }
            CHECK_MSG(differs == (kind < 2), "%s: speeds decide", models[k].name);
        }
    make_case(&c, &models[OSS20], 2250 * MB, 128 * GB);  /* no room for a stage */
    c.w.fixed = true;
    for (; run(&p, &c) == 0 && p.gpu && p.stage_parts > 0; c.machine.vram_free -= MB) { }
    CHECK_MSG(p.gpu && p.stage_parts == 0 && p.stream_from == INT_MAX, "no stage: from %d",
              p.stream_from);
    c.w.fixed = false;                   /* the CPU computes any prompt's */
    CHECK(run(&p, &c) == 0 && p.stage_parts == 0 && p.contract_to == INT_MAX);
}

static void test_assumed(void)
{
    static plan p, q;
    static made c;
    speeds s = { 0 };
    make_case(&c, &models[OSS120], 8 * GB, 128 * GB);
    c.machine.rate = s;
    CHECK(run(&p, &c) == 0 && p.t_pull > 0 && p.rate.cpu == SPEEDS_CPU &&
          p.rate.disk == SPEEDS_DISK);
    check_plan(&p, &c, "nothing measured");
    c.machine.rate = speeds_assume(&s);
    CHECK(run(&q, &c) == 0 && memcmp(&p.decode_tok_s, &q.decode_tok_s, sizeof(double)) == 0);
    /* a GPU that was measured and cannot pull does not */
    c.machine.rate = usual;
    c.machine.rate.pull = c.machine.rate.pull_busy = 0;
    CHECK(run(&p, &c) == 0 && p.t_pull == 0 && p.vram_pad == 0);
    check_plan(&p, &c, "no pull");
}

int main(int argc, char **argv)
{
    test_begin("plan", argc, argv);
    test_table();
    test_steps();
    test_chosen();
    test_wishes();
    test_locked();
    test_least();
    test_program();
    test_copy();
    test_embed();
    test_advice();
    test_advice_holds();
    test_least_cache();
    test_moved();
    test_vram_beside();
    test_refused();
    test_mixed();
    test_some_layers();
    test_some_layers_short();
    test_hot_most();
    test_fetch();
    test_fetch_rows();
    test_times();
    test_long_chunks();
    test_drive_times();
    test_most_shared();
    test_contract_to();
    test_stream_from();
    test_wanted_way();
    test_fixed();
    test_assumed();
    return test_end();
}
