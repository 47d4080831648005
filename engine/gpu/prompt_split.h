/* prompt_split.h - splits a prompt's cold experts between GPU and CPU.
 *
 * In each layer, cold experts with many slots cross the bus and the GPU computes them. Meanwhile
 * the CPU computes cold experts with few slots. The border (moe/split_border.h) follows from the
 * layer's choices and from speeds: first the plan's, then those measured in the layers before. The
 * sum is in the order of selection, whichever processor computed a vector. The bits are the same if
 * the caller's gpu_expert_args ask for the contract and weights are in blocks. For prompts of
 * GPU_MAIL + 1 to PLAN_SPLIT_TOKENS tokens. One thread at a time. */
#ifndef ENGINE_GPU_PROMPT_SPLIT_H
#define ENGINE_GPU_PROMPT_SPLIT_H

#include "engine/gpu/expert_server.h"
#include "moe/expert_stream.h"

typedef struct prompt_split prompt_split;

/* Borrows everything. banks must be able to pick. */
int prompt_split_create(prompt_split **out, const engine *e, expert_server *host,
                        expert_stream *banks, err_ctx *err);
void prompt_split_free(prompt_split *p);         /* NULL is fine; the device must be idle */
uint64_t prompt_split_bytes(const model *m);     /* of page-locked RAM */

void prompt_split_begin(prompt_split *p);        /* before each batch */

/* Measures when the bus ended the transfers of the layer before. Called when the operations up to a
 * layer's choices are enqueued, before the wait for the choices. */
int prompt_split_poll(prompt_split *p, err_ctx *err);

/* All experts of a layer, and the sum. x [n, n_embd], the normed vectors, and ids [n, k] are
 * complete in RAM. Returns 1; 0 if sending experts would not save time, and nothing was enqueued;
 * < 0 on failure. */
int prompt_split_run(prompt_split *p, int layer, gpu_input *in, gpu_expert_args *a,
                     const float *x, const int32_t *ids, err_ctx *err);

/* Counts since the last reset. */
typedef struct prompt_split_stats {
    uint64_t layers;                     /* times a layer was split */
    uint64_t hot, sent, by_cores;        /* experts in use: in VRAM before, sent over the bus,
                                          * computed by the CPU */
    uint64_t hot_slots, sent_slots, core_slots;
    uint64_t sent_bytes;
    double cores_s;                      /* time of the CPU */
    double late_s;                       /* the bus ended this long after the CPU */
    double early_s;                      /* upper bound of how long it ended before the CPU, as seen
                                          * by prompt_split_poll */
} prompt_split_stats;
prompt_split_stats prompt_split_counts(const prompt_split *p);
void prompt_split_reset_counts(prompt_split *p);

#endif
