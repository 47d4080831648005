/* expert_server.h - the host's side of layers whose experts are not all in VRAM.
 *
 * While the device plays a token it asks the host, once for each such layer, to compute some of the
 * chosen experts; the reply goes into page-locked RAM and the device goes on (cuda/gpu.h). Down
 * matrices of some of them cross the bus meanwhile: post-fetch. Wherever an expert is computed, the
 * bits are the same. For prompts of more than GPU_FEW tokens the host computes all experts of a
 * layer that are not in VRAM, where that is faster than sending them through it. One thread at a
 * time. */
#ifndef ENGINE_GPU_EXPERT_SERVER_H
#define ENGINE_GPU_EXPERT_SERVER_H

#include "cuda/gpu_experts.h"
#include "engine/gpu/weights_gpu.h"
#include "engine/host/experts_cpu.h"
#include "engine/perf_counts.h"
#include "moe/postfetch.h"
#include "moe/vram_cache.h"
#include "tiers/plan.h"

typedef struct expert_server expert_server;

/* All of it borrowed but post. */
typedef struct expert_server_parts {
    gpu *g;
    const model *m;
    const weights_gpu *w;
    expert_store *store;
    router_ahead *ahead;                 /* or NULL */
    vram_cache *cache;                   /* or NULL: what is in VRAM stays there */
    const ops *o;
    const plan *p;
    int n_layer;                         /* the first layers: those that the GPU computes */
    const postfetch_options *post;
    bool skip_missing;                   /* the device's choice looks at what is in VRAM: places
                                          * learn from what it would have been without */
} expert_server_parts;

/* Serves those of the GPU's layers that do not have all of their experts in VRAM. */
int expert_server_create(expert_server **out, const expert_server_parts *parts, err_ctx *err);
void expert_server_free(expert_server *c);               /* NULL is fine; the device must be idle */

/* What it takes, without making it: of RAM, and of VRAM beside the plan's pad. */
uint64_t expert_server_ram_bytes(const model *m);
uint64_t expert_server_vram_bytes(const model *m);

bool expert_server_has_cold(const expert_server *c, int layer);

/* Whether the next token has slabs fetched, and whether the CPU reads predicted experts ahead. The
 * launch arguments of a layer with cold experts depend on both. */
bool expert_server_fetches(const expert_server *c);
bool expert_server_reads_ahead(const expert_server *c);
gpu_with_host expert_server_args(const expert_server *c, int layer);

/* For gpu_prefer: the layer's log of what is wanted, if the choice looks at what is in VRAM; NULL:
 * it does not. */
uint32_t *expert_server_wanted(const expert_server *c, int layer);

/* While paused nothing is fetched, and nothing tried out: for benches. */
void expert_server_pause_fetching(expert_server *c, bool paused);

/* Before a batch of up to GPU_FEW tokens: waits for the one before it. Experts in VRAM may change,
 * after what that one chose, unless they have at its end. */
int expert_server_prepare(expert_server *c, err_ctx *err);

/* Around the questions of one batch of up to GPU_FEW tokens: threads stay awake in between, and for
 * a single token the clock runs. At the end, while the device computes the rest, experts in VRAM
 * change in the books; the device gets the new map when it has ended the batch. */
void expert_server_begin(expert_server *c, int n);
void expert_server_end(expert_server *c);

/* Waits for a layer's question and replies, or sees that it has none. After a failure (which it
 * returns once) later questions get an empty reply, so that the device can finish. */
int expert_server_serve(expert_server *c, int layer, err_ctx *err);

/* ---- prompts of more than GPU_FEW tokens ---- */

/* sums [n, n_embd] of the chosen experts' vectors, weighted: x the normed vectors, ids and gates
 * [n, k]. */
int expert_server_prompt(expert_server *c, int layer, float *sums, const float *x,
                         const int32_t *ids, const float *gates, int n, err_ctx *err);

/* The device's map of a layer's experts in VRAM, for gpu_experts_partial_begin; NULL: there are
 * none. It is up to date from expert_server_prompt_begin on, until the batch is over. */
const int32_t *expert_server_map(const expert_server *c, int layer);
void expert_server_prompt_begin(expert_server *c);

/* Computes what the map does not name, for up to EXPERT_SERVER_TOKENS tokens: *y [n, k, n_embd] in
 * page-locked RAM gets the vectors of those slots, and keeps them until the next call. */
enum { EXPERT_SERVER_TOKENS = 512 };
int expert_server_cold(expert_server *c, int layer, const float **y, const float *x,
                       const int32_t *ids, int n, err_ctx *err);

/* Computes the slots of experts that are mine [n_expert], for up to PLAN_SPLIT_TOKENS tokens, and
 * EXPERT_SERVER_TOKENS * k slots at most: *y [., n_embd] in page-locked RAM gets their vectors, and
 * keeps them until the next call of this or of expert_server_cold. row [n, k]: which of them is a
 * slot's; -1: none. */
int expert_server_some(expert_server *c, int layer, const float **y, int32_t *row, const float *x,
                       const int32_t *ids, int n, const bool *by_cpu, err_ctx *err);

typedef struct expert_server_stats {
    uint64_t tokens, questions;          /* of single tokens, as everything here */
    uint64_t quiet;                      /* layers that had nothing to ask */
    uint64_t hot, on_cpu, down_fetched, all_fetched;     /* experts, by where they were computed */
    uint64_t late;                       /* of those whose down was fetched: too late */
    uint64_t cpu_bytes, pull_bytes, hot_bytes;
    uint64_t ahead_bytes;                /* read into the CPU's caches by prediction */
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
} expert_server_stats;
expert_server_stats expert_server_counts(const expert_server *c);
void expert_server_reset_counts(expert_server *c);

/* How much is counted from now on; layers [n_layer of the GPU] with PERF_FULL, else NULL. Good
 * until the next call that counts. */
void expert_server_count(expert_server *c, perf_level level);
const perf_layer *expert_server_layers(const expert_server *c);

#endif
