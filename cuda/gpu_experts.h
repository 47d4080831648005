/* gpu_experts.h - operations of a layer's routed experts, whether all are in VRAM, some are
 * computed by the host, or all pass through VRAM in ranges; and copies of experts to VRAM.
 *
 * The rules of gpu.h hold: operations run in the order of the calls, return no result, and borrow
 * all memory until they are complete. Words:
 *   slab     one matrix of an expert: gate, up or down
 *   bank     the slabs of one kind of all experts of a layer
 *   slot     (token, rank): slot t * k + r is choice r of token t
 *   hot      in VRAM; other experts are cold
 *   contract the arithmetic whose bits do not depend on the processor (docs/numerics.md) */
#ifndef CUDA_GPU_EXPERTS_H
#define CUDA_GPU_EXPERTS_H

#include "cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- experts in VRAM ------------------------------------------------------------------------- */

enum { GPU_MOST_USED = 32 };             /* most experts that a token chooses */
#define GPU_SLAB_ALIGN ((uint64_t)16)    /* slabs begin at multiples of this */

typedef struct gpu_bank {
    int type, rows, cols;
    const uint8_t *data;                 /* expert e is at data + e * slab_bytes */
    uint64_t row_bytes, slab_bytes;
    const float *bias;                   /* [n_expert, rows], or NULL */
    const float *scale;                  /* [n_expert], or NULL: 1 */
} gpu_bank;

/* For more than GPU_FEW tokens: which experts a call of gpu_experts computes, and where they are.
 * All zero: all experts, at the addresses of the banks. */
typedef struct gpu_expert_batch {
    /* Computes experts of ranks first .. first + count - 1; count 0: all. The banks' data is the
     * slab of rank first. A layer's calls are in ascending order from rank 0 to the last rank,
     * differ only in first, count, data and addresses, and share the scratch, which nothing else
     * may write between them. The last call adds the sum to x. */
    int first, count;
    /* NULL: rank e is expert e. Otherwise [n_expert, 3] addresses of each expert's gate, up and
     * down, multiples of GPU_SLAB_ALIGN. order [n_expert]: the expert of each rank; rank
     * [n_expert]: the rank of each expert. */
    const uint64_t *addresses;
    const int32_t *order, *rank;
    int32_t *counts;                     /* NULL, or page-locked [n_expert]: gets the number of
                                          * slots of each expert, in the call with first 0 */
    const float *sums;                   /* NULL, or [n, n_embd]: sums of the routed experts, which
                                          * the call then does not compute */
    bool contract;                       /* quantised weights follow the contract; else they are
                                          * multiplied by 16-bit activations. Float weights ignore
                                          * it: 16 bits or exact F32 */
} gpu_expert_batch;

/* Adds the chosen experts and the shared expert to the residual stream:
 * x += sum over the token's slots of gates * expert(in), + sigma * shared(in). For up to GPU_FEW
 * tokens the chosen experts follow the contract, and the shared one does where its types allow. */
typedef struct gpu_expert_args {
    float *x;                            /* [n, n_embd] */
    gpu_bank gate, up, down;             /* gate and up of one type */
    gpu_activation act;                  /* of routed experts and shared expert */
    gpu_matrix shared_gate, shared_up, shared_down;      /* gate, up of one type; data NULL: none */
    const float *sigma;                  /* [n]: factor of the shared expert */
    const int32_t *ids;                  /* [n, k]; may be NULL if gpu_is_few and
                                          * gpu_rule_can_wait: this operation then chooses */
    const float *gates;                  /* [n, k]: weights of the slots; ignored without ids */
    const float *logits;                 /* without ids: [n, n_expert] from gpu_route */
    const float *keys;                   /* without ids: gpu_route's, or NULL */
    gpu_router_rule rule;                /* without ids: gpu_route's */
    int n_expert, k;
    void *scratch;                       /* gpu_expert_scratch() bytes */
    float *y;                            /* NULL, or [n, k, n_embd]: gets the vector of each slot */
    gpu_expert_batch batch;
} gpu_expert_args;
/* n_ff: the wider of routed and shared experts. */
size_t gpu_expert_scratch(const gpu *g, int n, int k, int n_expert, int n_ff, int n_embd);
void gpu_experts(gpu *g, gpu_input *in, const gpu_expert_args *a);

/* Ends a layer in which gpu_experts computed only the first ranks and the host the other experts:
 * adds the sum of all slots in rank order, as a last call of gpu_experts would. row, page-locked
 * [n, k]: the row of cold that has the slot's vector, or -1 if gpu_experts computed it. cold:
 * page-locked [., n_embd]. row and cold must not change before the operation is complete. in and
 * the rest of a are those of the calls of gpu_experts. */
void gpu_experts_join(gpu *g, const gpu_input *in, const gpu_expert_args *a, const float *cold,
                      const int32_t *row);

/* ---- few tokens, cold experts on the host: the mailbox --------------------------------------- */

/* What computes a slot. The device decides and writes it to the mailbox. */
typedef enum gpu_where {
    GPU_HOT,                             /* the device, from VRAM */
    GPU_COLD,                            /* the host: all of the expert */
    GPU_COLD_FETCHED,                    /* the host: gate and up; meanwhile down is fetched */
    GPU_FETCHED                          /* the device; all three slabs are fetched from RAM */
} gpu_where;

enum { GPU_FETCH_COUNTS = GPU_MOST_USED + 1, GPU_MOST_CHOICES = GPU_MAIL * GPU_MOST_USED };

/* A layer's question to the host and the host's reply, in page-locked RAM. Polled words have cache
 * lines of their own.
 *
 * Layers are numbered from 1 on, modulo 2^28. A layer whose experts are all GPU_HOT is quiet: it
 * writes its number with GPU_QUIET and waits for no reply. So a polling host may miss the number of
 * a quiet layer, but never that of a question. */
#define GPU_CODES 2u
#define GPU_QUIET 1u
#define GPU_NUMBERS 0x0FFFFFFFu
typedef struct gpu_mailbox {
    volatile uint32_t asked;             /* number * GPU_CODES of the last layer, + GPU_QUIET if it
                                          * is quiet. The device writes it after the question */
    uint8_t apart_1[124];
    volatile uint32_t answered;          /* the number; the host writes it after the reply */
    uint8_t apart_2[124];
    volatile uint64_t predicted;         /* the last prediction: gpu_predicted */
    uint8_t apart_3[120];
    /* [slot]: the question's number once the slot's down slab has arrived in the pad */
    volatile uint32_t fetched[GPU_MOST_USED];
    volatile uint64_t fetch_ns;          /* duration of the last fetch; the host sets it to 0 */
    int32_t n, k;                        /* the question: tokens, choices of each token */
    int32_t ids[GPU_MOST_CHOICES];       /* [n, k] in rank order */
    uint8_t where[GPU_MOST_CHOICES];     /* gpu_where */
    /* The reply. GPU_COLD: the vector is in y. GPU_COLD_FETCHED: if by_host, the vector is in y;
     * else the activations after gate and up are in mid and mid_rows. */
    uint8_t by_host[GPU_MOST_CHOICES];
    float *x;                            /* [n, n_embd] normed vectors, also of quiet layers */
    uint8_t *mid;                        /* [slot] int8 forms, gpu_blocks_bytes(n_ff) each */
    float *mid_rows;                     /* [slot, n_ff]; needed only where down has floats */
    float *y;                            /* [slot, n_embd] */
    int n_embd, n_ff;
} gpu_mailbox;

/* A mailbox for up to GPU_MAIL tokens of k choices each. */
int gpu_mailbox_create(gpu_mailbox **out, gpu *g, int n_embd, int n_ff, int k, err_ctx *err);
void gpu_mailbox_free(gpu *g, gpu_mailbox *m);   /* NULL is fine */

/* Called by the host's threads: writes the activations of a slot to mid. q [n_ff], dx [n_ff / 32],
 * sums [n_ff / 32, 2]: the int8 form of engine/host/ops.h. */
void gpu_mailbox_put_mid(gpu_mailbox *m, int slot, const int8_t *q, const float *dx,
                         const int16_t *sums);

/* A prediction is one word: the low bits of a later layer's number, and the cold experts that this
 * layer will probably choose, the likeliest first. */
enum {
    GPU_MOST_PREDICTED = 4,
    GPU_PREDICTED_BITS = 10,
    GPU_PREDICTED_COUNT = GPU_MOST_PREDICTED * GPU_PREDICTED_BITS,
    GPU_PREDICTED_NUMBER = GPU_PREDICTED_COUNT + 4
};
/* Unpacks a prediction. Returns the number of experts; 0 if it is for another number. */
static inline int gpu_predicted(int32_t ids[GPU_MOST_PREDICTED], uint64_t word, uint32_t number)
{
    const int n = (int)(word >> GPU_PREDICTED_COUNT & 15);
    if ((word ^ (uint64_t)number << GPU_PREDICTED_NUMBER) >> GPU_PREDICTED_NUMBER) return 0;
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(word >> i * GPU_PREDICTED_BITS & ((1 << GPU_PREDICTED_BITS) - 1));
    return n;
}

/* ---- few tokens, cold experts on the host: the operation ------------------------------------- */

/* Predicts the next layer's experts: applies that layer's router to this layer's vectors and writes
 * the likeliest cold experts to the mailbox, unless that layer has already asked. */
typedef struct gpu_predict {
    gpu_matrix router;                   /* the next layer's, of floats; data NULL: no prediction */
    gpu_router_rule rule;
    const float *norm, *next_norm;       /* [n_embd] norm weights of this layer's and of the next
                                          * layer's router input */
    const int32_t *hot;                  /* the next layer's gpu_with_host.hot */
} gpu_predict;

typedef struct gpu_with_host {
    gpu_mailbox *mailbox;
    uint32_t *number;                    /* device: number of the last layer; the caller sets 0 */
    const int32_t *hot;                  /* device [n_expert]: the expert's index in the banks of
                                          * gpu_expert_args, or -1: cold; NULL: all are cold */
    const uint64_t *slabs;               /* [n_expert, 3], in RAM or VRAM: addresses of gate, up,
                                          * down in page-locked RAM; 0: not in RAM. NULL: nothing
                                          * is fetched */
    const uint8_t *fetch;                /* device [2, GPU_FETCH_COUNTS]: of m cold experts,
                                          * fetch[GPU_FETCH_COUNTS + m] are fetched whole; of the
                                          * next fetch[m] only down is. Experts that are not in RAM
                                          * or exceed the pad are left to the host */
    uint32_t *chosen;                    /* NULL, or page-locked [n * k]: gets the layer's choices
                                          * as id | gpu_where << 16. The host may read them after
                                          * the operation, or once mailbox->asked has a question of
                                          * this or a later layer, or a layer with `closes` */
    bool closes;                         /* set for the token's last layer: once its number is in
                                          * mailbox->asked, all choices of the token are in RAM */
    uint8_t *pad;                        /* VRAM for fetched slabs, gpu_with_host_pad() bytes */
    int pad_down, pad_all;               /* most slots fetched: only down; whole */
    bool one_stream;                     /* fetches before the hot experts, not parallel to them;
                                          * predictions are off */
    void *scratch;                       /* gpu_with_host_scratch() bytes; the caller clears it */
    /* NULL, or a network of the same tokens that is computed while the host computes experts. It
     * shares no memory with the experts; its input has scratch of its own. */
    const gpu_network_args *parallel;
    gpu_input *parallel_in;
    gpu_predict next;
    int prediction_layer;                /* index of this layer in prediction_state */
    void *prediction_state;              /* gpu_prediction_state() bytes that the caller clears,
                                          * shared by all layers. NULL: predictions are off */
} gpu_with_host;
bool gpu_prediction_fits(int router_type);
size_t gpu_prediction_state(int n_expert, int n_embd, int n_layer);
size_t gpu_with_host_pad(const gpu_expert_args *a, int pad_down, int pad_all);
size_t gpu_with_host_scratch(int k, int n_ff, int n_embd);

/* gpu_experts for at most GPU_MAIL tokens with some of the experts on the host, with the same bits.
 * It chooses experts, asks the host, fetches slabs (for a single token only), computes hot and
 * shared experts, waits for the reply, and adds the sum in rank order. It uses further streams,
 * which the main one waits for, and can be recorded. The banks of a need type, shape, bias and
 * scale; data may be NULL if hot is NULL. The host must reply to every question; for a missing
 * reply see gpu_set_host_limit. */
void gpu_experts_with_host(gpu *g, gpu_input *in, const gpu_expert_args *a, const gpu_with_host *s);

/* Called between gpu_route with ids NULL and gpu_experts_with_host: drops a token's cold experts,
 * unless all are cold. Weights are computed from the remaining experts' logits. A dropped slot
 * comes last, with weight 0 and the id of the first remaining expert, so the host is not asked for
 * it. If all or none of a token's experts are hot, its choice has the bits of the model's own. */
typedef struct gpu_prefer {
    float *logits;                       /* [n, n_expert]; undefined afterwards */
    gpu_router_rule rule;
    const int32_t *hot;                  /* [n_expert]: as in gpu_with_host */
    int n, n_expert, k;                  /* at most GPU_MAIL, 1024, 32 */
    int32_t *ids;                        /* [n, k]: output, for gpu_expert_args */
    float *gates;                        /* [n, k]: output */
    uint32_t *wanted;                    /* NULL, or page-locked [n * k]: gets the model's own
                                          * choice as id | gpu_where << 16, where GPU_HOT or
                                          * GPU_COLD; complete with the operation */
} gpu_prefer;
void gpu_prefer_hot(gpu *g, const gpu_prefer *a);

/* ---- many tokens, cold experts on the host --------------------------------------------------- */

/* More than GPU_FEW tokens, without questions: the host has read the choices and computes the cold
 * experts while the device computes the hot ones. begin writes the vectors of hot slots to the
 * scratch. Each end writes the sums of tokens first .. first + n - 1 in rank order; ends of a batch
 * may come in any order. Then gpu_experts takes batch.sums. All vectors follow the contract, so the
 * bits do not depend on hot [n_expert] (see gpu_with_host). From begin to the last end hot must not
 * change, and nothing else may use the scratch. in, ids, gates and the banks of a are used. */
void gpu_experts_partial_begin(gpu *g, gpu_input *in, const gpu_expert_args *a, const int32_t *hot);
/* sums [in->n, n_embd]. cold: page-locked [n * k, n_embd], the vectors of slots from first * k on;
 * rows of hot slots are not read. It must not change before the operation is complete. */
void gpu_experts_partial_end(gpu *g, const gpu_input *in, const gpu_expert_args *a,
                             const int32_t *hot, float *sums, const float *cold, int first, int n);

/* ---- banks that pass through VRAM ------------------------------------------------------------ */

/* n_buffer buffers of `bytes` in VRAM. A copy engine fills one while operations read another. */
typedef struct gpu_stage gpu_stage;
int gpu_stage_create(gpu_stage **out, gpu *g, int n_buffer, uint64_t bytes, err_ctx *err);
void gpu_stage_free(gpu *g, gpu_stage *s);       /* NULL is fine; waits */
uint8_t *gpu_stage_buffer(const gpu_stage *s, int i);
/* Queues a copy to buffer i at offset. Copies run in the order of the calls, each after all
 * operations that were called before the last gpu_stage_done(i). from should be page-locked and
 * must not change before gpu_stage_sent(i). */
void gpu_stage_copy(gpu *g, gpu_stage *s, int i, uint64_t offset, const void *from, uint64_t bytes);
/* Operations called after this wait for the copies to buffer i that were queued before it. */
void gpu_stage_ready(gpu *g, gpu_stage *s, int i);
void gpu_stage_done(gpu *g, gpu_stage *s, int i);        /* the operations so far are the readers */
int gpu_stage_sent(gpu *g, gpu_stage *s, int i, err_ctx *err);   /* the host waits for the copies */

/* ---- experts that are exchanged -------------------------------------------------------------- */

/* Copies between page-locked RAM and VRAM by a copy engine, one after the other, parallel to all
 * operations. Until a copy is complete, the caller ensures that no operation reads its target and
 * that its source does not change. n_mark: number of events. */
typedef struct gpu_copy_queue gpu_copy_queue;
int gpu_copy_queue_create(gpu_copy_queue **out, gpu *g, int n_mark, err_ctx *err);
void gpu_copy_queue_free(gpu *g, gpu_copy_queue *m);     /* NULL is fine; waits */
void gpu_copy_queue_copy(gpu *g, gpu_copy_queue *m, void *to, const void *from, uint64_t bytes);
/* gpu_copy_queue_copy is from RAM to VRAM, gpu_copy_queue_save from VRAM to RAM. */
void gpu_copy_queue_save(gpu *g, gpu_copy_queue *m, void *to, const void *from, uint64_t bytes);
/* Records event i after the copies so far. */
void gpu_copy_queue_record(gpu *g, gpu_copy_queue *m, int i);
/* Never waits. 1: the copies before event i are complete, for the host and for all later
 * operations; 0: not yet; < 0: failure. */
int gpu_copy_queue_passed(gpu *g, gpu_copy_queue *m, int i, err_ctx *err);

/* An operation: n copies within VRAM, in any order; no two may overlap. jobs is in page-locked RAM
 * and must not change before the operation is complete. */
typedef struct gpu_move {
    uint64_t to, from, bytes;            /* addresses */
} gpu_move;
void gpu_moves(gpu *g, const gpu_move *jobs, int n);

#ifdef __cplusplus
}
#endif
#endif
