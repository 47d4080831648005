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
        c->s.chunk[i] = (plan_chunk){
            .tokens = chunks[i], .vram_work = 100 * MB + n * 160000,
            .ram_work = 20 * MB + n * 200000, .state = m->state + n * m->ring_token,
            .ram_with_gpu = 60 * MB + n * 25000, .ram_embed = n * 70000,
            .layer_state = c->layer_state[i],
        };
    }
}

void make_layered(made *c, const made_model *m, uint64_t vram, uint64_t ram)
{
    make_case(c, m, vram, ram);
    for (int l = 0; l < m->n_layer; l++) {
        c->layer_dense[l] = (m->dense - 2 * m->embed) / (uint64_t)m->n_layer;
        for (int i = 0; i < N_CHUNKS; i++)
            c->layer_state[i][l] = c->s.chunk[i].state / (uint64_t)m->n_layer;
    }
    c->model.layer_dense = c->layer_dense;
    c->model.split_most = m->n_layer;
    c->model.table = m->embed;
}

/* Each slab of a slot begins in a page of its own. */
static void allow_moves(made *c)
{
    const int n = c->model.n_layer;
    for (int l = 0; l < n; l++) c->slot[l] = 3 * ((c->down[l] + 4095) / 4096 * 4096);
    c->model.frame_bytes = c->slot;
    c->model.spare_bytes = 8 * c->slot[n - 1];
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
    c->s.n_page = c->s.chunk[N_CHUNKS - 1].state / c->s.page_bytes;
    c->s.n_page_own = test_below(&own, (uint32_t)c->s.n_page + 1);
    if (one_of(rng, 8)) c->model.least_cache = 50 * m->expert;
    if (!c->machine.gpu && one_of(rng, 2)) c->s.n_long = 2;
    for (int i = 0; i < N_CHUNKS; i++) {
        c->s.chunk[i].snapshots = 5 * MB;
        if (one_of(rng, 8)) c->s.chunk[i].ram_embed = m->embed + MB;   /* more than the table */
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
            ok &= p->hot[l] == w->n_expert && p->place[l].cold == PLAN_VRAM;
            continue;
        }
        ok &= p->hot[l] >= 0 && p->hot[l] <= w->n_expert;
        if (p->hot[l] > most) most = p->hot[l];
        if (p->hot[l] < fewest) fewest = p->hot[l];
        if (p->cache) ok &= n >= (uint64_t)w->n_used && most - fewest <= 1 &&
                            p->hot[l] < w->n_expert;
        else ok &= open || n == 0;       /* no layer after one that is not whole */
        open = p->hot[l] == w->n_expert;
        ok &= !p->cache || p->place[l].cold == PLAN_RAM;
        ok &= (p->place[l].cold == PLAN_VRAM) == open;
        disk |= p->place[l].cold == PLAN_DISK;
        hot += n * (p->cache ? w->cached_bytes : w->expert_bytes)[l];
        outside += ((uint64_t)w->n_expert - n) * w->expert_bytes[l];
        slots += p->moved ? (uint64_t)(w->n_expert - p->hot[l]) * w->frame_bytes[l] : 0;
        if (open) only_vram += n * w->expert_bytes[l];
        else banks += (uint64_t)w->n_expert * w->expert_bytes[l];
    }
    CHECK_MSG(ok, "%s: places", what);
    CHECK_MSG(hot == p->vram.experts && only_vram + banks == plan_all_experts(w), "%s: VRAM sum",
              what);
    const uint64_t cache = p->ram.experts, smallest = plan_least_cache(w);
    if (disk)
        CHECK_MSG(p->drive.experts == (outside > cache ? outside - cache : 0) &&
                  cache >= smallest && (cache <= outside || cache == smallest),
                  "%s: cache of %llu", what, (unsigned long long)cache);
    else
        CHECK_MSG(p->ram.experts == (p->moved ? slots : banks) && p->drive.experts == 0 &&
                  (!p->moved || (p->cache && !c->w.whole_banks)), "%s: RAM sum", what);
    for (int l = 0; l < w->n_layer; l++)
        ok &= p->place[l].cold == PLAN_VRAM || (p->place[l].cold == PLAN_DISK) == disk;
    CHECK_MSG(ok, "%s: RAM and drive mixed", what);
}

static void check_numbers(const plan *p, const made *c, const char *what)
{
    const double numbers[] = { p->decode_tok_s, p->prefill_tok_s, p->limit_tok_s };
    const double terms[] = { p->t_dense, p->t_hot, p->t_cpu, p->t_pull, p->t_disk, p->t_hop };
    const bool outside = p->vram.experts < plan_all_experts(&c->model);
    bool ok = true;
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) ok &= isfinite(numbers[i]) && numbers[i] > 0;
    for (size_t i = 0; i < ARRAY_LEN(terms); i++) ok &= isfinite(terms[i]) && terms[i] >= 0;
    CHECK_MSG(ok, "%s: numbers", what);
    CHECK_MSG(p->decode_tok_s <= p->limit_tok_s * (1 + 1e-9), "%s: %g above the limit %g", what,
              p->decode_tok_s, p->limit_tok_s);
    CHECK_MSG(p->stage_ranges == 0 ? p->vram.stage == 0 : outside && p->vram.stage > 0, "%s: stage",
              what);
    CHECK_MSG(p->stream_from >= 9 && (p->stage_ranges > 0 || !outside || p->stream_from == INT_MAX),
              "%s: stream from %d", what, p->stream_from);
    for (int m = 0; m <= PLAN_MOST_USED; m++)
        ok &= p->fetch_down[m] + p->fetch_all[m] <= m && p->fetch_all[m] <= PLAN_PAD_WHOLE &&
              (p->vram.pad > 0 || p->fetch_down[m] + p->fetch_all[m] == 0);
    CHECK_MSG(ok, "%s: fetch table", what);
}

uint64_t dense_on_cpu(const made *c, int i)
{
    const uint64_t rows = c->s.chunk[i].ram_embed;
    return c->model.dense - c->model.embed + (rows < c->model.embed ? rows : c->model.embed);
}

/* The first layers have their dense part and their state in VRAM, as many as fit. */
static void check_some_layers(const plan *p, const made *c, const plan_chunk *k, const char *what)
{
    const plan_model *w = &c->model;
    const int n = plan_gpu_layers(p, w->n_layer);
    uint64_t dense = 0, kept = 0;
    for (int l = 0; l < n; l++) {
        dense += w->layer_dense[l];
        kept += k->layer_state[l];
    }
    CHECK_MSG(n > 0 && n >= w->n_layer / 8 && p->vram.experts == 0 && p->embed == PLAN_RAM &&
              (n == w->n_layer || n <= w->split_most), "%s: %d layers", what, n);
    CHECK_MSG(p->vram.dense == dense && p->vram.state == kept &&
              p->vram.work == k->vram_work + c->s.vram_cold, "%s: parts of layers", what);
    CHECK_MSG(p->ram.dense == w->dense - w->embed - dense + w->table &&
              p->ram.state == k->state - kept + k->snapshots &&
              p->ram.work == k->ram_work + k->ram_with_gpu, "%s: RAM of layers", what);
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
    CHECK_MSG(p->pages_own + pages == c->s.n_page && p->vram.experts <= c->w.hot_most,
              "%s: pages of their own, limit of experts", what);
    CHECK_MSG(p->vram.experts >= token + (pages + each - 1) / each * most,
              "%s: too much is lent", what);
}

void check_plan(const plan *p, const made *c, const char *what)
{
    const plan_machine *m = &c->machine;
    const plan_model *w = &c->model;
    const uint64_t vram = m->gpu ? most_of(m->vram_free, 400 * MB, 3, c->w.vram) : 0;
    const uint64_t free_ram = most_of(m->ram_available, UINT64_C(1) << 30, 5, UINT64_MAX);
    const uint64_t ram = free_ram + m->ram_program < c->w.ram ? free_ram + m->ram_program
                                                               : c->w.ram;
    const plan_chunk *k = c->s.chunk, *end = k + c->s.n_chunk;
    CHECK_MSG(plan_vram(p) <= vram && plan_ram(p) <= ram, "%s: VRAM %llu of %llu, RAM %llu of %llu",
              what, (unsigned long long)plan_vram(p), (unsigned long long)vram,
              (unsigned long long)plan_ram(p), (unsigned long long)ram);
    while (k < end && k->tokens != p->chunk) k++;
    if (!CHECK_MSG(k < end, "%s: chunk %d", what, p->chunk)) return;
    if (p->gpu && p->head == PLAN_RAM) {
        check_some_layers(p, c, k, what);
    } else if (p->gpu) {
        const bool cold = p->place[w->n_layer - 1].cold != PLAN_VRAM;
        const uint64_t table = p->embed == PLAN_RAM ? w->embed : 0;
        CHECK_MSG(p->vram.dense == w->dense - table && p->vram.state + p->vram_lent == k->state &&
                  p->vram.work == k->vram_work + (cold ? c->s.vram_cold : 0),
                  "%s: fixed parts", what);
        check_lent(p, c, what);
        CHECK_MSG(p->ram.dense == table && p->ram.state == k->snapshots &&
                  p->ram.work == (cold ? k->ram_with_gpu : 0), "%s: RAM of a GPU", what);
    } else {
        CHECK_MSG(plan_vram(p) == 0 && p->ram.dense == dense_on_cpu(c, (int)(k - c->s.chunk)) &&
                  p->ram.state == k->state + k->snapshots && p->ram.work == k->ram_work,
                  "%s: CPU parts", what);
    }
    CHECK_MSG(p->ram.program == m->ram_program && (p->ram.copy == 0 ||
              (p->head == PLAN_RAM && p->ram.copy == c->w.ram_copy)), "%s: program and copy", what);
    CHECK_MSG(p->head == PLAN_VRAM || p->ram.copy == c->w.ram_copy ||
              plan_ram(p) + c->w.ram_copy > ram, "%s: RAM for the repacked head", what);
    CHECK_MSG(k >= c->s.chunk + c->s.n_long || (plan_uses_drive(p, w->n_layer) &&
                                                k->ram_work <= ram / 10), "%s: a long chunk", what);
    check_places(p, c, what);
    check_numbers(p, c, what);
}
