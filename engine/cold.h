/* cold.h - the host's side of layers whose experts are not all in VRAM.
 *
 * While the device plays a token it asks, once for each such layer, which of the chosen experts the
 * host computes; the answer goes into page-locked RAM and the device goes on (cuda/gpu.h). Down
 * matrices of some of them cross the bus meanwhile: post-fetch. Whatever is decided where, the bits
 * are the same. For prompts of more than GPU_FEW tokens the host computes a whole layer's experts,
 * where that is faster than sending the bank through VRAM. One thread at a time. */
#ifndef ENGINE_COLD_H
#define ENGINE_COLD_H

#include "cuda/gpu.h"
#include "engine/lane.h"
#include "engine/postfetch.h"
#include "engine/weights_gpu.h"
#include "tiers/plan.h"

typedef struct cold cold;

/* Borrows all but o. Layers are cold where the plan has fewer than all experts in VRAM. */
int cold_create(cold **out, gpu *g, const model *m, const weights_gpu *w, expert_store *store,
                const ops *o, lane_activation act, const plan *p, const postfetch_options *post,
                err_ctx *err);
void cold_free(cold *c);                 /* NULL is fine; the device must be idle */

/* What it takes, without making it: of RAM, and of VRAM beside the plan's pad. */
uint64_t cold_ram_bytes(const model *m);
uint64_t cold_vram_bytes(const model *m);

bool cold_layer(const cold *c, int layer);

/* Whether the next token has slabs fetched; what the kernels of a cold layer are launched with
 * depends on it. */
bool cold_fetches(const cold *c);
gpu_split cold_split(const cold *c, int layer);

/* While paused nothing is fetched, and nothing tried out: for benches. */
void cold_pause_fetching(cold *c, bool paused);

/* Around the questions of one batch of up to GPU_FEW tokens: threads stay awake in between, and for
 * a single token the clock runs. */
void cold_begin(cold *c, int n);
void cold_end(cold *c);

/* Waits for a layer's question and answers it. After a failure (which it returns once) the
 * following questions are answered with nothing, so that the device comes to its end. */
int cold_answer(cold *c, int layer, err_ctx *err);

/* sums [n, n_embd] of the chosen experts' vectors, weighted: x the normed vectors, ids and gates
 * [n, k]. */
int cold_prompt(cold *c, int layer, float *sums, const float *x, const int32_t *ids,
                const float *gates, int n, err_ctx *err);

typedef struct cold_stats {
    uint64_t tokens, questions;          /* of single tokens, as everything here */
    uint64_t hot, on_cpu, down_fetched, all_fetched;     /* experts, by where they were computed */
    uint64_t late;                       /* of those whose down was fetched: too late */
    uint64_t cpu_bytes, pull_bytes, hot_bytes;
    double ask_s;                        /* waiting for questions: the device's own time */
    double cpu_s;                        /* from a question to its answer, and of that: */
    double wait_s;                       /* waiting for slabs that were nearly there */
    double pull_s;                       /* fetching */
    double hidden_s;                     /* of that while the CPU computed */
    uint64_t pad_bytes;                  /* VRAM that post-fetch takes */
    bool fetching;                       /* post-fetch is on at present */
} cold_stats;
cold_stats cold_counts(const cold *c);
void cold_reset_counts(cold *c);

#endif
