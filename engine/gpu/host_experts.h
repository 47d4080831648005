/* host_experts.h - the host's side of layers whose experts are not all in VRAM.
 *
 * While the device plays a token it asks the host, once for each such layer, to compute some of the
 * chosen experts; the reply goes into page-locked RAM and the device goes on (cuda/gpu.h). Down
 * matrices of some of them cross the bus meanwhile: post-fetch. Wherever an expert is computed, the
 * bits are the same. For prompts of more than GPU_FEW tokens the host computes all experts of a
 * layer that are not in VRAM, where that is faster than sending them through it. One thread at a
 * time. */
#ifndef ENGINE_GPU_HOST_EXPERTS_H
#define ENGINE_GPU_HOST_EXPERTS_H

#include "cuda/gpu.h"
#include "engine/host/experts_cpu.h"
#include "engine/gpu/weights_gpu.h"
#include "engine/perf_counts.h"
#include "moe/postfetch.h"
#include "moe/vram_places.h"
#include "tiers/plan.h"

typedef struct host_experts host_experts;

/* All of it borrowed but post. */
typedef struct host_experts_parts {
    gpu *g;
    const model *m;
    const weights_gpu *w;
    expert_store *store;
    router_ahead *ahead;                 /* or NULL */
    vram_places *places;                 /* or NULL: what is in VRAM stays there */
    const ops *o;
    const plan *p;
    int n_layer;                         /* the first layers: those that the GPU computes */
    const postfetch_options *post;
    bool skip_missing;                   /* the device's choice looks at what is in VRAM: places
                                          * learn from what it would have been without */
} host_experts_parts;

/* Serves those of the GPU's layers that do not have all of their experts in VRAM. */
int host_experts_create(host_experts **out, const host_experts_parts *parts, err_ctx *err);
void host_experts_free(host_experts *c);                 /* NULL is fine; the device must be idle */

/* What it takes, without making it: of RAM, and of VRAM beside the plan's pad. */
uint64_t host_experts_ram_bytes(const model *m);
uint64_t host_experts_vram_bytes(const model *m);

bool host_experts_layer(const host_experts *c, int layer);

/* Whether the next token has slabs fetched, and what is done with guesses: 0 nothing, 1 the cores
 * read ahead, 2 some cross the bus. The launch arguments of a layer with cold experts depend on
 * both. */
bool host_experts_fetches(const host_experts *c);
int host_experts_guessing(const host_experts *c);
gpu_split host_experts_split(const host_experts *c, int layer);

/* For gpu_prefer: the layer's log of what is wanted, if the choice looks at what is in VRAM; NULL:
 * it does not. */
uint32_t *host_experts_wanted(const host_experts *c, int layer);

/* While paused nothing is fetched, and nothing tried out: for benches. */
void host_experts_pause_fetching(host_experts *c, bool paused);

/* Before a batch of up to GPU_FEW tokens: waits for the one before it. Experts in VRAM may change,
 * after what that one chose, unless they have at its end. */
int host_experts_turn(host_experts *c, err_ctx *err);

/* Around the questions of one batch of up to GPU_FEW tokens: threads stay awake in between, and for
 * a single token the clock runs. At the end, while the device computes the rest, experts in VRAM
 * change in the books; the device gets the new map when it has ended the batch. */
void host_experts_begin(host_experts *c, int n);
void host_experts_end(host_experts *c);

/* Waits for a layer's question and replies, or sees that it has none. After a failure (which it
 * returns once) later questions get an empty reply, so that the device can finish. */
int host_experts_serve(host_experts *c, int layer, err_ctx *err);

/* ---- prompts of more than GPU_FEW tokens ---- */

/* sums [n, n_embd] of the chosen experts' vectors, weighted: x the normed vectors, ids and gates
 * [n, k]. */
int host_experts_prompt(host_experts *c, int layer, float *sums, const float *x, const int32_t *ids,
                        const float *gates, int n, err_ctx *err);

/* The device's map of a layer's experts in VRAM, for gpu_experts_beside_begin; NULL: there are
 * none. It is up to date from host_experts_prompt_begin on, until the batch is over. */
const int32_t *host_experts_map(const host_experts *c, int layer);
void host_experts_prompt_begin(host_experts *c);

/* Computes what the map does not name, for up to HOST_EXPERTS_TOKENS tokens: *y [n, k, n_embd] in
 * page-locked RAM gets the vectors of those slots, and keeps them until the next call. */
enum { HOST_EXPERTS_TOKENS = 512 };
int host_experts_cold(host_experts *c, int layer, const float **y, const float *x,
                      const int32_t *ids, int n, err_ctx *err);

/* Computes the slots of experts that are mine [n_expert], for up to PLAN_SPLIT_TOKENS tokens, and
 * HOST_EXPERTS_TOKENS * k slots at most: *y [., n_embd] in page-locked RAM gets their vectors, and
 * keeps them until the next call of this or of host_experts_cold. row [n, k]: which of them is a
 * slot's; -1: none. */
int host_experts_some(host_experts *c, int layer, const float **y, int32_t *row, const float *x,
                      const int32_t *ids, int n, const bool *mine, err_ctx *err);

typedef struct host_experts_stats {
    uint64_t tokens, questions;          /* of single tokens, as everything here */
    uint64_t quiet;                      /* layers that had nothing to ask */
    uint64_t hot, on_cpu, down_fetched, all_fetched;     /* experts, by where they were computed, */
    uint64_t guessed;                    /* those that crossed the bus before they were chosen */
    uint64_t late;                       /* of those whose down was fetched: too late */
    uint64_t cpu_bytes, pull_bytes, hot_bytes;
    uint64_t ahead_bytes;                /* brought into the cores' caches on a guess */
    double ask_s;                        /* waiting for questions: the device's own time */
    double cpu_s;                        /* from a question to its reply, and of that: */
    double wait_s;                       /* waiting for slabs that were nearly there */
    double pull_s;                       /* fetching */
    double hidden_least_s, hidden_most_s;        /* of that while the CPU computed: perf_counts.h
                                                  * says why there are two */
    uint64_t not_locked;                 /* experts not fetched because of RAM that is not
                                          * page-locked */
    uint64_t pad_bytes;                  /* VRAM that post-fetch takes */
    bool fetching;                       /* post-fetch is on at present */
} host_experts_stats;
host_experts_stats host_experts_counts(const host_experts *c);
void host_experts_reset_counts(host_experts *c);

/* How much is counted from now on; layers [n_layer of the GPU] with PERF_FULL, else NULL. Good
 * until the next call that counts. */
void host_experts_count(host_experts *c, perf_level level);
const perf_layer *host_experts_layers(const host_experts *c);

#endif
