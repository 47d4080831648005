/* cache_fixture.c - plans for tests: not what a planner would choose, but what covers every way. */
#include "tests/cache_fixture.h"

#include <limits.h>
#include <string.h>

#include "engine/gpu/expert_server.h"
#include "moe/expert_store.h"
#include "moe/frame_table.h"
#include "moe/postfetch.h"
#include "tests/model_fixture.h"
#include "tests/sim_gpu.h"
#include "tiers/fault_injection.h"
#include "tiers/plan.h"

const char *const family_models[N_FAMILY_MODELS] = {
    "models/tiny-qwen3next-f32", "models/tiny-gptoss-f32", "families/tiny-qwen3moe-bf16",
    "families/tiny-qwen35moe-bf16", "families/tiny-llama-wide-bf16",
    "families/tiny-olmoe-wide-bf16", "families/tiny-glm4moe-bf16", "families/tiny-gemma4-bf16",
    "families/tiny-gemma4-shared-bf16",
};

const place places[N_PLACES] = {
    { .name = "CPU, mapped file" },
    { .name = "CPU, cache before the file", .planned = true, .disk = true },
    { .name = "GPU, all in VRAM", .gpu = true },
    { .name = "GPU, experts in RAM", .gpu = true, .planned = true, .stage_ranges = 1,
      .stream_from = 64 },
    { .name = "GPU, experts in RAM, no post-fetch", .gpu = true, .planned = true, .no_fetch = true,
      .stream_from = INT_MAX },
    { .name = "GPU, half of the experts in VRAM", .gpu = true, .planned = true, .hot_of_8 = 4,
      .stage_ranges = 3, .stream_from = 9 },
    { .name = "GPU, most of them, fetched and not used", .gpu = true, .planned = true,
      .hot_of_8 = 6, .stage_ranges = 2, .stream_from = 9, .force_cpu = true },
    { .name = "GPU, waiting for what is late", .gpu = true, .planned = true, .block = true,
      .stage_ranges = 1, .stream_from = 9 },
    { .name = "GPU, one stream", .gpu = true, .planned = true, .hot_of_8 = 1, .one_stream = true,
      .stage_ranges = 1, .stream_from = 9 },
    { .name = "GPU, cache before the file", .gpu = true, .planned = true, .hot_of_8 = 2,
      .disk = true, .stage_ranges = 2, .stream_from = 40 },
    { .name = "GPU, a cache of half of the experts", .gpu = true, .planned = true, .hot_of_8 = 4,
      .changing = true, .stage_ranges = 2, .stream_from = 9 },
    { .name = "GPU, a cache of most experts, no post-fetch", .gpu = true, .planned = true,
      .hot_of_8 = 6, .changing = true, .no_fetch = true, .stage_ranges = 1, .stream_from = 40 },
    { .name = "GPU, a cache of most experts, prompts by the CPU", .gpu = true, .planned = true,
      .hot_of_8 = 7, .changing = true, .stream_from = INT_MAX },
    { .name = "GPU, half of the experts, moved", .gpu = true, .planned = true, .hot_of_8 = 4,
      .changing = true, .moved = true, .stage_ranges = 2, .stream_from = 9 },
    { .name = "GPU, most of the experts, moved, prompts by the CPU", .gpu = true, .planned = true,
      .hot_of_8 = 6, .changing = true, .moved = true, .stream_from = INT_MAX },
    { .name = "GPU, experts that would be moved, in RAM that cannot be page-locked", .gpu = true,
      .planned = true, .hot_of_8 = 5, .changing = true, .moved = true, .no_lock = true,
      .no_fetch = true, .stage_ranges = 2, .stream_from = 9 },
    { .name = "GPU, experts in RAM, prompts split", .gpu = true, .planned = true,
      .stage_ranges = 2, .split_from = 9, .stream_from = INT_MAX },
    { .name = "GPU, a cache of half of the experts, prompts split", .gpu = true,
      .planned = true, .hot_of_8 = 4, .changing = true, .stage_ranges = 1, .split_from = 9,
      .stream_from = 64, .bus = 1e60 },
    { .name = "GPU, some experts in VRAM, prompts split", .gpu = true, .planned = true,
      .hot_of_8 = 3, .stage_ranges = 3, .split_from = 9, .stream_from = INT_MAX },
    { .name = "half of the layers on the GPU", .gpu = true, .planned = true, .cpu_of_4 = 2,
      .stage_ranges = 1, .stream_from = 9 },
    { .name = "half of the layers on the GPU, no post-fetch", .gpu = true, .planned = true,
      .cpu_of_4 = 2, .no_fetch = true, .stream_from = INT_MAX },
    { .name = "half of the layers on the GPU, cache before the file", .gpu = true,
      .planned = true, .cpu_of_4 = 2, .disk = true, .stage_ranges = 2, .stream_from = 40 },
    { .name = "a quarter of the layers on the GPU, some experts in VRAM", .gpu = true,
      .planned = true, .cpu_of_4 = 3, .hot_of_8 = 4, .stage_ranges = 1, .stream_from = 9 },
    { .name = "all layers on the GPU, the head on the CPU", .gpu = true, .planned = true,
      .head_in_ram = true, .stage_ranges = 1, .stream_from = 9 },
};

static uint64_t slabs_bytes(const expert_bank *b)
{
    uint64_t bytes = 0;
    for (int s = 0; s < SLAB_COUNT; s++)
        bytes += size_align((uint64_t)b->n_expert * expert_slab_bytes(b, (expert_slab)s), 256);
    return bytes;
}

/* As the planner would: no floats are split, and where the CPU may compute experts of any
 * prompt, all of them keep to the contract. */
static void choose_ways(plan *to, const model *m, const place *p)
{
    const bool splits = p->split_from > 0 && !expert_bank_has_floats(model_first_bank(m));
    to->stream_from = p->stream_from;
    to->split_from = splits ? p->split_from : INT_MAX;
    to->contract_to = p->stream_from == INT_MAX
                          ? INT_MAX : plan_most_shared(m->hp.n_expert_used, m->hp.n_expert);
}

static void make_plan(plan *to, const model *m, const place *p)
{
    uint64_t largest = 0;
    const int n_gpu = m->hp.n_layer - m->hp.n_layer * p->cpu_of_4 / 4;
    *to = (plan){ .gpu = p->gpu, .stage_ranges = p->stage_ranges,
                  .head = p->head_in_ram || p->cpu_of_4 > 0 ? PLAN_RAM : PLAN_VRAM };
    choose_ways(to, m, p);
    for (int l = 0; l < m->hp.n_layer; l++) {
        const uint64_t bytes = slabs_bytes(m->layers[l].experts);
        const bool there = p->gpu && l < n_gpu;
        const bool whole = l < m->hp.n_layer * p->whole_of_4 / 4;
        to->hot[l] = there ? m->hp.n_expert * (whole ? 8 : p->hot_of_8) / 8 : 0;
        if (p->changing) to->hot[l] = max_int(to->hot[l], m->hp.n_expert_used);
        to->place[l].dense = l < n_gpu ? PLAN_VRAM : PLAN_RAM;
        to->place[l].cold = whole ? PLAN_VRAM : p->disk ? PLAN_DISK : PLAN_RAM;
        if (bytes > largest) largest = bytes;
    }
    to->cache = p->changing;
    to->moved = p->moved;
    for (int l = 0; l < n_gpu; l++)
        to->vram.experts +=
            (uint64_t)to->hot[l] * frame_table_frame_bytes(m->layers[l].experts);
    if (p->stage_ranges > 0)
        to->vram.stage = 2 * (largest / (uint64_t)p->stage_ranges + largest / 4);
    to->ram.experts = expert_store_least(&m->experts);
    to->vram.pad = 1;                    /* there is one; its size is ignored */
    /* a bus as fast as the memory: half of everything is fetched */
    to->rate = (speeds){ .pull = 1e10, .pull_busy = 1e10, .cpu = 1e10, .cpu_busy = 1e10,
                         .pcie_in = p->bus > 0 ? p->bus : 1e10,
                         .disk = 2e9 };
}

bool place_engine(engine *e, const model *m, const place *p)
{
    const postfetch_options post = {.off = p->no_fetch,
                                    .force_cpu = p->force_cpu,
                                    .block = p->block,
                                    .one_stream = p->one_stream,
                                    .debug = p->frozen,
                                    .frozen = p->frozen,
                                    .prediction_always = true};
    plan made;
    err_ctx err = { 0 };
    if (!p->gpu && !p->planned) return true;
    if (p->planned) make_plan(&made, m, p);
    const engine_placement where = { .gpu = p->gpu, .plan = p->planned ? &made : NULL,
                                     .postfetch = &post, .cache = p->cache };
    if (p->no_lock) fault_arm(FAULT_PAGE_LOCK, 1, FAULT_ALWAYS);
    const int rc = engine_place(e, &where, &err);
    if (p->no_lock) fault_disarm_all();
    return CHECK_MSG(rc == 0, "%s: %s", p->name, err.msg);
}

static void each_place_of(const model *m, int i, int of, at_place *fn)
{
    const engine_options eo = { .threads = test_n_thread(sim_gpu() && !test_is_long() ? 1 : 2) };
    const int last = gpu_count() > 0 ? N_PLACES : N_CPU_PLACES;
    for (int p = 0; p < last; p += p < N_CPU_PLACES ? 1 : sim_gpu_step(test_rounds(3, 1), 7)) {
        engine *e = NULL;
        err_ctx err = { 0 };
        if (sim_gpu_skips(p + 9 * i, of) || (p == 0 && sim_gpu())) continue;
        if (!CHECK_MSG(engine_open(&e, m, &eo, &err) == 0, "%s", err.msg)) return;
        if (place_engine(e, m, &places[p])) fn(m, e, &places[p], i + p);
        engine_close(e);
    }
}

void each_place(const char *const *models, size_t n, int of, at_place *fn)
{
    char path[512];
    for (size_t i = 0; i < n; i++) {
        model_fixture f;
        test_path(path, sizeof path, "%s/%s.gguf", test_unpacked(), models[i]);
        if (!model_fixture_open(&f, path)) return;
        model_use_mtp(f.m, true);
        each_place_of(f.m, (int)i, of, fn);
        model_fixture_close(&f);
    }
}
