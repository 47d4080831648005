/* prompt_split.h - the experts of a prompt, by the GPU and the cores together.
 *
 * Of a layer's experts that are not in VRAM, those that many tokens chose cross the bus and are
 * computed by the GPU; meanwhile the cores compute those that few chose; the others are left alone
 * (moe/split_border.h). The border follows from the layer's own choices and from speeds: first the
 * plan's, then what the layers before showed. The sum is taken in the order of selection, wherever
 * vectors come from, and these have the same bits if the caller's gpu_expert_args ask for the
 * contract and weights are in blocks. For prompts of GPU_FEW + 1 to PLAN_SPLIT_TOKENS tokens. One
 * thread at a time. */
#ifndef ENGINE_GPU_PROMPT_SPLIT_H
#define ENGINE_GPU_PROMPT_SPLIT_H

#include "engine/gpu/expert_server.h"
#include "moe/expert_stream.h"

typedef struct prompt_split prompt_split;

/* Borrows everything. banks must be able to pick. */
int prompt_split_create(prompt_split **out, gpu *g, const model *m, expert_server *host,
                        expert_stream *banks, const plan *p, err_ctx *err);
void prompt_split_free(prompt_split *e);         /* NULL is fine; the device must be idle */
uint64_t prompt_split_bytes(const model *m);     /* of page-locked RAM */

void prompt_split_begin(prompt_split *e);        /* a batch */

/* When the operations up to a layer's choices have been called, before these are waited for: looks
 * when the bus was done with the layer before. */
int prompt_split_poll(prompt_split *e, err_ctx *err);

/* All experts of a layer, and the sum: x [n, n_embd] the normed vectors and ids [n, k] are complete
 * in RAM. Returns 1; 0 if the bus would be of no use in this layer, and nothing has been done;
 * < 0. */
int prompt_split_run(prompt_split *e, int layer, gpu_input *in, gpu_expert_args *a,
                     const float *x, const int32_t *ids, err_ctx *err);

/* What has become of the experts of such prompts since the last reset. */
typedef struct prompt_split_stats {
    uint64_t layers;                     /* times a layer was computed so */
    uint64_t hot, sent, by_cores;        /* experts in use, by who computed them: in VRAM already,
                                          * over the bus, by the cores */
    uint64_t hot_slots, sent_slots, core_slots;
    uint64_t sent_bytes;
    double cores_s;                      /* the cores' time */
    double late_s;                       /* the bus ended this much later; */
    double early_s;                      /* see prompt_split_poll: less than this much earlier */
} prompt_split_stats;
prompt_split_stats prompt_split_counts(const prompt_split *e);
void prompt_split_reset_counts(prompt_split *e);

#endif
