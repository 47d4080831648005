/* expert_server.h - the CPU computes experts for the device.
 *
 * While the device replays a token it asks the host, once for each layer with cold experts, to
 * compute some of the chosen ones. The reply goes into page-locked RAM (cuda/gpu.h). Meanwhile down
 * matrices of some of them cross the bus: post-fetch. The bits are the same whichever processor
 * computes an expert. For prompts of more than GPU_MAIL tokens the host computes the cold experts
 * that do not pass through VRAM. One thread at a time. */
#ifndef ENGINE_GPU_EXPERT_SERVER_H
#define ENGINE_GPU_EXPERT_SERVER_H

#include "cuda/gpu_experts.h"
#include "engine/engine.h"
#include "engine/perf_counts.h"

typedef struct expert_server expert_server;

/* Serves the GPU's layers with cold experts. Borrows e. skip_missing, only with a cache: the device
 * prefers hot experts, the cache counts what the router alone would have chosen, and there is no
 * post-fetch, because few cold experts are left. */
int expert_server_create(expert_server **out, const engine *e, bool skip_missing, err_ctx *err);
void expert_server_free(expert_server *c);               /* NULL is fine; the device must be idle */

/* Bytes that expert_server_create takes: of RAM, and of VRAM without the plan's pad. */
uint64_t expert_server_ram_bytes(const model *m);
uint64_t expert_server_vram_bytes(const model *m);

bool expert_server_has_cold(const expert_server *c, int layer);

/* Whether the next token has slabs fetched, and whether the CPU reads predicted experts ahead. The
 * launch arguments of a layer with cold experts depend on both. */
bool expert_server_fetches(const expert_server *c);
bool expert_server_reads_ahead(const expert_server *c);
gpu_with_host expert_server_args(const expert_server *c, int layer);

/* With skip_missing: the layer's log for gpu_prefer of the experts that the router alone would have
 * chosen; else NULL. */
uint32_t *expert_server_wanted(const expert_server *c, int layer);

/* While paused there is no post-fetch and no trial: for benches. */
void expert_server_pause_fetching(expert_server *c, bool paused);

/* Before a batch of up to GPU_MAIL tokens: waits for the batch before. Exchanges experts in VRAM by
 * the choices of that batch, unless expert_server_end has done so. */
int expert_server_prepare(expert_server *c, err_ctx *err);

/* Around the questions of one batch of up to GPU_MAIL tokens: threads stay awake in between, and
 * for a single token the clock runs. While the device computes the rest of the batch, the end
 * decides exchanges of experts; the device gets the new map when it has ended the batch. */
void expert_server_begin(expert_server *c, int n);
void expert_server_end(expert_server *c);

/* Waits until a layer's question can be answered, or until the layer turns out to have none. A
 * failure is returned once; later questions get an empty reply, so that the device can finish. */
int expert_server_serve(expert_server *c, int layer, err_ctx *err);

/* ---- prompts of more than GPU_MAIL tokens ---- */

/* sums [n, n_embd] of the chosen experts' vectors, weighted: x the normed vectors, ids and gates
 * [n, k]. */
int expert_server_prompt(expert_server *c, int layer, float *sums, const float *x,
                         const int32_t *ids, const float *gates, int n, err_ctx *err);

/* The device's map of a layer's experts in VRAM, for gpu_experts_partial_begin; NULL: none is in
 * VRAM. It is up to date from expert_server_prompt_begin to the end of the batch. */
const int32_t *expert_server_map(const expert_server *c, int layer);
void expert_server_prompt_begin(expert_server *c);

/* Computes the slots of experts that are not in the map, for up to EXPERT_SERVER_TOKENS tokens: *y
 * [n, k, n_embd] in page-locked RAM has their vectors until the next call. */
enum { EXPERT_SERVER_TOKENS = 512 };
int expert_server_cold(expert_server *c, int layer, const float **y, const float *x,
                       const int32_t *ids, int n, err_ctx *err);

/* Computes the slots of experts with by_cpu [n_expert] set, for up to PLAN_SPLIT_TOKENS tokens and
 * EXPERT_SERVER_TOKENS * k slots: *y [., n_embd] in page-locked RAM has their vectors until the
 * next call of this or of expert_server_cold. row [n, k]: index of a slot's vector; -1: none. */
int expert_server_some(expert_server *c, int layer, const float **y, int32_t *row, const float *x,
                       const int32_t *ids, int n, const bool *by_cpu, err_ctx *err);

typedef struct expert_server_stats {
    uint64_t tokens, questions;          /* of single tokens, like all counts here */
    uint64_t quiet;                      /* layers without a question: all experts hit */
    uint64_t hot, on_cpu, down_fetched, all_fetched;     /* experts, by what the device computed:
                                          * all, nothing, down alone, all after a fetch */
    uint64_t late;                       /* part of down_fetched: came too late, the CPU computed */
    uint64_t cpu_bytes, pull_bytes, hot_bytes;
    uint64_t ahead_bytes;                /* read into the CPU's caches by prediction */
    double ask_s;                        /* waiting for questions: the device's own time */
    double cpu_s;                        /* from a question to its reply; included in that: */
    double wait_s;                       /* waiting for slabs that were about to arrive */
    double pull_s;                       /* fetching */
    double hidden_least_s, hidden_most_s;        /* bounds of the part of pull_s during which the
                                                  * CPU computed (perf_counts.h) */
    uint64_t not_locked;                 /* experts not fetched because of RAM that is not
                                          * page-locked */
    uint64_t pad_bytes;                  /* VRAM that post-fetch takes */
    bool fetching;                       /* post-fetch is on at present */
} expert_server_stats;
expert_server_stats expert_server_counts(const expert_server *c);
void expert_server_reset_counts(expert_server *c);

/* Sets the level of counting. layers [n_layer of the GPU] with PERF_FULL, else NULL; valid until
 * the next call that counts. */
void expert_server_count(expert_server *c, perf_level level);
const perf_layer *expert_server_layers(const expert_server *c);

#endif
