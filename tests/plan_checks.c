/* plan_checks.c - models and machines for tests of the planner, and its invariants. */
#include "tests/plan_checks.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* ---- models and machines --------------------------------------------------------------------- */

const made_model made_models[N_MADE_MODELS] = {
    { "gpt-oss-20b, 12.1 GB", 24, 32, 4, 13219200, 4406400, 1950 * MB, 615 * MB, 1300 * MB,
      1.2e9, 2.4e9, 205 * MB, 24576 },
    { "gpt-oss-120b, 63 GB", 36, 128, 4, 13219200, 4406400, 2100 * MB, 615 * MB, 1500 * MB,
      1.5e9, 3.6e9, 308 * MB, 36864 },
    { "Qwen3-Next-80B Q4_K, 45.1 GB", 48, 512, 10, 1769472, 589824, 1600 * MB, 175 * MB, 1424 * MB,
      2.3e9, 1.5e9, 277 * MB, 0 },
    { "Qwen3-Next-80B Q8_0, 85 GB", 48, 512, 10, 3342336, 1114112, 2900 * MB, 330 * MB, 2570 * MB,
      2.3e9, 1.5e9, 277 * MB, 0 },
};

const speeds made_speeds = {
    .vram_read = 450e9, .pcie_in = 24e9, .pcie_out = 24e9, .pull = 22e9, .pull_busy = 20e9,
    .cpu = 55e9, .cpu_busy = 48e9, .cpu_dense = 70e9, .cpu_many = 6e11, .gpu_macs = 2e13,
    .hop = 8e-6, .disk = 3e9, .layer_dense = 25e-6, .layer_hot = 9e-6, .layer_cpu = 35e-6,
    .disk_wait = 0.3e-3,
};

void make_case(made *c, const made_model *m, uint64_t vram, uint64_t ram)
{
    static const int chunks[N_CHUNKS] = { 4096, 2048, 1024, 512, 256 };
    memset(c, 0, sizeof *c);
    c->machine = (plan_machine){ .gpu = vram > 0, .vram_free = vram, .ram_available = ram,
                                 .rate = made_speeds };
    c->w = (plan_wish){ .vram = UINT64_MAX, .ram = UINT64_MAX, .hot_most = UINT64_MAX };
    for (int l = 0; l < m->n_layer; l++) {
        c->expert[l] = m->expert;
        c->cached[l] = (m->expert + 767) / 256 * 256;
        c->down[l] = m->down;
    }
    c->model = (plan_model){
        .n_layer = m->n_layer, .n_expert = m->n_expert, .n_used = m->n_used,
        .expert_bytes = c->expert, .down_bytes = c->down, .cached_bytes = c->cached,
        .dense = m->dense, .embed = m->embed,
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
        c->s.ram_with_gpu[i] = 60 * MB + n * 25000;
        c->s.ram_embed[i] = n * 70000;
    }
}

void make_layered(made *c, const made_model *m, uint64_t vram, uint64_t ram)
{
    make_case(c, m, vram, ram);
    for (int l = 0; l < m->n_layer; l++) {
        c->layer_dense[l] = (m->dense - 2 * m->embed) / (uint64_t)m->n_layer;
        for (int i = 0; i < N_CHUNKS; i++)
            c->s.layer_state[i][l] = c->s.state[i] / (uint64_t)m->n_layer;
    }
    c->model.layer_dense = c->layer_dense;
    c->model.split_most = m->n_layer;
    c->model.table = m->embed;
}

/* Each slab of a slot begins in a page of its own. */
static void allow_moves(made *c)
{
    uint64_t slot = c->down[0] + 4095;
    slot = 3 * (slot - slot % 4096);
    for (int l = 0; l < c->model.n_layer; l++) c->slot[l] = slot;
    c->model.frame_bytes = c->slot;
    c->model.spare_bytes = 8 * slot;
}

/* Layers differ as in files of mixed types, and the first ones may have no experts. */
static void vary_layers(made *c, test_rng *rng)
{
    const int n_dense = (int)test_below(rng, 4);
    for (int l = 0; l < c->model.n_layer; l++) {
        if (l % 3 != 1) {
            c->expert[l] -= c->expert[l] / 5;
            c->down[l] -= c->down[l] / 3;
        }
        c->cached[l] = (c->expert[l] + 767) / 256 * 256;
        if (l < n_dense) c->expert[l] = c->down[l] = c->cached[l] = 0;
    }
}

static uint64_t random_bytes(test_rng *rng, uint32_t least_mb, uint32_t most_mb)
{
    const uint32_t n = test_below(rng, most_mb) / (1 + test_below(rng, 30));
    return (least_mb + n) * MB + test_below(rng, 1000000);
}

static bool one_of(test_rng *rng, uint32_t n) { return test_below(rng, n) == 0; }

void random_case(made *c, test_rng *rng)
{
    const made_model *m = &made_models[test_below(rng, N_MADE_MODELS)];
    make_layered(c, m, one_of(rng, 6) ? 0 : random_bytes(rng, 300, 90000),
                 random_bytes(rng, 2000, 150000));
    if (one_of(rng, 2)) c->model.layer_dense = NULL;
    if (one_of(rng, 2)) c->model.split_most /= 2;
    if (one_of(rng, 4)) vary_layers(c, rng);
    if (one_of(rng, 2)) allow_moves(c);
    if (one_of(rng, 3)) c->s.vram_cold = 50 * MB;
    test_rng own = *rng;                 /* more cases without another order of the others */
    c->s.page_bytes = 64 * 1024 << test_below(&own, 3);
    c->s.n_page = c->s.state[N_CHUNKS - 1] / c->s.page_bytes;
    c->s.n_page_own = test_below(&own, (uint32_t)c->s.n_page + 1);
    if (one_of(rng, 8)) c->model.least_cache = 50 * m->expert;
    if (!c->machine.gpu && one_of(rng, 2)) c->s.n_long = 2;
    for (int i = 0; i < N_CHUNKS; i++) {
        c->s.snapshots[i] = 5 * MB;
        if (one_of(rng, 8)) c->s.ram_embed[i] = m->embed + MB;   /* more than the table */
    }
    c->machine.ram_program = 30 * MB;
    if (one_of(rng, 4)) c->w.vram = random_bytes(rng, 0, 90000);
    if (one_of(rng, 4)) c->w.ram = random_bytes(rng, 0, 90000);
    if (one_of(rng, 4)) c->w.hot_most = random_bytes(rng, 0, 40000);
    if (one_of(rng, 2)) c->w.ram_copy = 615 * MB;
    c->w.no_postfetch = one_of(rng, 8);
    c->w.no_hot = one_of(rng, 8);
    c->w.whole_banks = one_of(rng, 4);
    c->w.gpu_wanted = one_of(rng, 4);
    c->w.fixed = one_of(rng, 4);
}

int run_case(plan *p, const made *c)
{
    err_ctx err = { 0 };
    return plan_make(p, &c->machine, &c->model, &c->s, &c->w, &err);
}

bool made_plan(plan *p, const made *c, const char *what)
{
    err_ctx err = { 0 };
    return CHECK_MSG(plan_make(p, &c->machine, &c->model, &c->s, &c->w, &err) == 0, "%s: %s", what,
                     err.msg);
}

uint64_t all_experts(const plan_model *w)
{
    uint64_t sum = 0;
    for (int l = 0; l < w->n_layer; l++) sum += (uint64_t)w->n_expert * w->expert_bytes[l];
    return sum;
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
    const plan_model *w = &c->model;
    uint64_t hot = 0, outside = 0, only_vram = 0, banks = 0, slots = w->spare_bytes;
    int most = 0, fewest = w->n_expert;
    bool open = true, ok = true, disk = false;
    for (int l = 0; l < w->n_layer; l++) {
        const uint64_t n = (uint64_t)p->hot[l];
        if (w->expert_bytes[l] == 0) {   /* nothing is missing */
            ok &= p->hot[l] == w->n_expert && p->tier[l] == PLAN_VRAM;
            continue;
        }
        ok &= p->hot[l] >= 0 && p->hot[l] <= w->n_expert;
        if (p->hot[l] > most) most = p->hot[l];
        if (p->hot[l] < fewest) fewest = p->hot[l];
        if (p->cache) ok &= n >= (uint64_t)w->n_used && most - fewest <= 1 &&
                            p->hot[l] < w->n_expert;
        else ok &= open || n == 0;       /* no layer after one that is not whole */
        open = p->hot[l] == w->n_expert;
        ok &= !p->cache || p->tier[l] == PLAN_RAM;
        ok &= (p->tier[l] == PLAN_VRAM) == open;
        disk |= p->tier[l] == PLAN_DISK;
        hot += n * (p->cache ? w->cached_bytes : w->expert_bytes)[l];
        outside += ((uint64_t)w->n_expert - n) * w->expert_bytes[l];
        slots += p->moved ? (uint64_t)(w->n_expert - p->hot[l]) * w->frame_bytes[l] : 0;
        if (open) only_vram += n * w->expert_bytes[l];
        else banks += (uint64_t)w->n_expert * w->expert_bytes[l];
    }
    CHECK_MSG(ok, "%s: places", what);
    CHECK_MSG(hot == p->vram_experts && only_vram + banks == all_experts(w), "%s: VRAM sum", what);
    const uint64_t cache = p->ram_experts;
    const uint64_t smallest = plan_least_cache(w);
    if (disk)
        CHECK_MSG(p->disk_experts == (outside > cache ? outside - cache : 0) &&
                  cache >= smallest && (cache <= outside || cache == smallest),
                  "%s: cache of %llu", what, (unsigned long long)cache);
    else
        CHECK_MSG(p->ram_experts == (p->moved ? slots : banks) && p->disk_experts == 0,
                  "%s: RAM sum", what);
    CHECK_MSG(!p->moved || (p->cache && p->ram_experts == slots && !c->w.whole_banks),
              "%s: experts that are moved", what);
    for (int l = 0; l < w->n_layer; l++)
        ok &= p->tier[l] == PLAN_VRAM || (p->tier[l] == PLAN_DISK) == disk;
    CHECK_MSG(ok, "%s: RAM and drive mixed", what);
}

static void check_numbers(const plan *p, const made *c, const char *what)
{
    const double numbers[] = { p->decode_tok_s, p->prefill_tok_s, p->limit_tok_s };
    const double terms[] = { p->t_dense, p->t_hot, p->t_cpu, p->t_pull, p->t_disk, p->t_hop };
    const bool outside = p->vram_experts < all_experts(&c->model);
    bool ok = true;
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) ok &= isfinite(numbers[i]) && numbers[i] > 0;
    for (size_t i = 0; i < ARRAY_LEN(terms); i++) ok &= isfinite(terms[i]) && terms[i] >= 0;
    CHECK_MSG(ok, "%s: numbers", what);
    CHECK_MSG(p->decode_tok_s <= p->limit_tok_s * (1 + 1e-9), "%s: %g above the limit %g", what,
              p->decode_tok_s, p->limit_tok_s);
    CHECK_MSG(p->stage_ranges == 0 ? p->vram_stage == 0 : outside && p->vram_stage > 0, "%s: stage",
              what);
    CHECK_MSG(p->stream_from >= 9 && (p->stage_ranges > 0 || !outside || p->stream_from == INT_MAX),
              "%s: stream from %d", what, p->stream_from);
    for (int m = 0; m <= PLAN_MOST_USED; m++)
        ok &= p->fetch_down[m] + p->fetch_all[m] <= m && p->fetch_all[m] <= PLAN_PAD_WHOLE &&
              (p->vram_pad > 0 || p->fetch_down[m] + p->fetch_all[m] == 0);
    CHECK_MSG(ok, "%s: fetch table", what);
}

uint64_t dense_on_cpu(const made *c, int i)
{
    const uint64_t rows = c->s.ram_embed[i];
    return c->model.dense - c->model.embed + (rows < c->model.embed ? rows : c->model.embed);
}

/* The first layers have their dense part and their state in VRAM, as many as fit. */
static void check_some_layers(const plan *p, const made *c, int i, const char *what)
{
    const plan_model *w = &c->model;
    const int n = w->n_layer - p->cpu_layers;
    uint64_t dense = 0, kept = 0;
    for (int l = 0; l < n; l++) {
        dense += w->layer_dense[l];
        kept += c->s.layer_state[i][l];
    }
    CHECK_MSG(n > 0 && n >= w->n_layer / 8 && p->vram_experts == 0 && p->embed_in_ram &&
              (p->cpu_layers == 0 || n <= w->split_most),
              "%s: %d layers", what, n);
    CHECK_MSG(p->vram_dense == dense && p->vram_state == kept &&
              p->vram_work == c->s.vram_work[i] + c->s.vram_cold, "%s: parts of layers", what);
    CHECK_MSG(p->ram_other == w->dense - w->embed - dense + c->s.state[i] - kept + w->table +
                                  c->s.ram_work[i] + c->s.ram_with_gpu[i] + c->s.snapshots[i],
              "%s: RAM of layers", what);
}

/* With all contexts full, the frames that are not lent hold the experts of a token. */
static void check_lent(const plan *p, const made *c, const char *what)
{
    uint64_t least = UINT64_MAX, most = 0, token = 0;
    if (p->vram_lent == 0) return;
    for (int l = 0; l < c->model.n_layer; l++) {
        const uint64_t one = c->model.cached_bytes[l];
        if (one == 0) continue;
        least = one < least ? one : least;
        most = one > most ? one : most;
        token += (uint64_t)c->model.n_used * one;
    }
    const uint64_t each = least / c->s.page_bytes, pages = p->vram_lent / c->s.page_bytes;
    CHECK_MSG(p->cache && !p->moved && p->vram_lent % c->s.page_bytes == 0 && each > 0 &&
              pages <= c->s.n_page - c->s.n_page_own,
              "%s: %llu bytes lent", what, (unsigned long long)p->vram_lent);
    CHECK_MSG(p->pages_own + pages == c->s.n_page && p->vram_experts <= c->w.hot_most,
              "%s: pages of their own, limit of experts", what);
    CHECK_MSG(p->vram_experts >= token + (pages + each - 1) / each * most,
              "%s: too much is lent", what);
}

void check_plan(const plan *p, const made *c, const char *what)
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
        const uint64_t table = p->embed_in_ram ? c->model.embed : 0;
        const plan_tier rest = p->tier[c->model.n_layer - 1];
        const uint64_t work = c->s.vram_work[i] + (rest == PLAN_VRAM ? 0 : c->s.vram_cold);
        CHECK_MSG(p->vram_dense == c->model.dense - table &&
                  p->vram_state + p->vram_lent == c->s.state[i] && p->vram_work == work,
                  "%s: fixed parts", what);
        check_lent(p, c, what);
        CHECK_MSG(p->ram_other >= table + c->s.snapshots[i], "%s: table in RAM", what);
    } else {
        CHECK_MSG(plan_vram(p) == 0 && p->ram_other == dense_on_cpu(c, i) +
                  c->s.state[i] + c->s.snapshots[i] + c->s.ram_work[i], "%s: CPU parts", what);
    }
    CHECK_MSG(p->ram_program == m->ram_program && (p->ram_copy == 0 ||
              ((!p->gpu || p->head_in_ram) && p->ram_copy == c->w.ram_copy)),
              "%s: program and copy", what);
    CHECK_MSG(plan_ram(p) == p->ram_program + p->ram_experts + p->ram_other + p->ram_copy,
              "%s: all of the RAM", what);
    CHECK_MSG(p->cpu_layers == 0 || p->head_in_ram, "%s: the head before the last layers", what);
    CHECK_MSG((p->gpu && !p->head_in_ram) || p->ram_copy == c->w.ram_copy ||
              plan_ram(p) + c->w.ram_copy > ram, "%s: RAM for the repacked head", what);
    CHECK_MSG(i >= c->s.n_long || (plan_uses_drive(p, c->model.n_layer) &&
                                   c->s.ram_work[i] <= ram / 10), "%s: a long chunk", what);
    check_places(p, c, what);
    check_numbers(p, c, what);
}
