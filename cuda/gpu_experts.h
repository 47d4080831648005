/* gpu_experts.h - operations of a layer's routed experts: all in VRAM, in ranges that pass through
 * VRAM, or in VRAM and on the host at the same time; and the copies that bring experts to VRAM.
 *
 * The rules of gpu.h hold: operations run in the order of the calls, report nothing, and borrow all
 * memory until they are complete. Words:
 *   bank     one slab (gate, up or down) of all experts of a layer
 *   slot     (token, rank): slot t * k + r is choice r of token t
 *   hot      in VRAM; the others are cold
 *   contract the arithmetic whose bits do not depend on the processor (docs/numerics.md) */
#ifndef CUDA_GPU_EXPERTS_H
#define CUDA_GPU_EXPERTS_H

#include "cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- experts in VRAM ------------------------------------------------------------------------- */

enum { GPU_MOST_USED = 32 };             /* experts chosen for a token */
#define GPU_SLAB_ALIGN ((uint64_t)16)    /* of the address of a slab */

typedef struct gpu_bank {
    int type, rows, cols;
    const uint8_t *data;                 /* expert e is at data + e * slab_bytes */
    uint64_t row_bytes, slab_bytes;
    const float *bias;                   /* [n_expert, rows], or NULL */
    const float *scale;                  /* [n_expert], or NULL: 1 */
} gpu_bank;

/* For more than GPU_FEW tokens: which experts a call computes, and where they are. All zero: all
 * experts, as the banks say. */
typedef struct gpu_expert_batch {
    /* Ranks first .. first + count - 1, whose slabs begin at the banks' data; count 0: all. The
     * calls of a layer are in ascending order from rank 0 to the last, differ only in these two,
     * in data and in addresses, and leave the scratch alone in between. The last one adds the
     * sum to x. */
    int first, count;
    /* NULL: rank e is expert e of the banks. Otherwise [n_expert, 3] addresses of each expert's
     * gate, up and down, multiples of GPU_SLAB_ALIGN; order [n_expert] has the expert of each
     * rank, rank [n_expert] the rank of each expert. */
    const uint64_t *addresses;
    const int32_t *order, *rank;
    int32_t *counts;                     /* NULL, or page-locked [n_expert]: gets the slots of each
                                          * expert; complete with the call whose first is 0 */
    const float *sums;                   /* NULL, or [n, n_embd]: sums of the routed experts that
                                          * are computed already; the banks are ignored */
    bool contract;                       /* weights in blocks follow the contract, as for few
                                          * tokens; else 16-bit activations. Float weights use 16
                                          * bits or exact F32 */
} gpu_expert_batch;

/* Adds the chosen experts and the shared expert to the residual stream:
 * x += sum over the token's slots of gate * expert(in), + sigma * shared(in). For up to GPU_FEW
 * tokens the chosen experts follow the contract, and the shared one does where its types allow. */
typedef struct gpu_expert_args {
    float *x;                            /* [n, n_embd] */
    gpu_bank gate, up, down;             /* gate and up of one type, here and in the shared
                                          * expert */
    gpu_activation act;                  /* of both */
    gpu_matrix shared_gate, shared_up, shared_down;      /* data NULL: no shared expert */
    const float *sigma;                  /* [n]: factor of the shared expert */
    const int32_t *ids;                  /* [n, k]; NULL if n <= GPU_FEW and gpu_rule_can_wait: the
                                          * experts kernels choose from keys or logits */
    const float *gates;                  /* [n, k], with ids */
    const float *logits;                 /* [n, n_expert] as gpu_route left them */
    const float *keys;                   /* likewise, or NULL if the rule has no bias */
    gpu_router_rule rule;                /* of that choice */
    int n_expert, k;
    void *scratch;                       /* gpu_expert_scratch() bytes */
    float *y;                            /* NULL, or [n, k, n_embd]: gets the vector of each slot */
    gpu_expert_batch batch;
} gpu_expert_args;
/* n_ff: the wider of routed and shared experts. */
size_t gpu_expert_scratch(const gpu *g, int n, int k, int n_expert, int n_ff, int n_embd);
void gpu_experts(gpu *g, gpu_input *in, const gpu_expert_args *a);

/* Ends a layer whose calls stopped before the last expert because the host computed the others:
 * adds the sum of all slots in rank order, as the last call would have done. row, page-locked
 * [n, k]: the row of cold that has the slot's vector; -1: a call computed it. cold: page-locked
 * [., n_embd]. row and cold must not change before the operation is complete. in and the rest of
 * a: as in the calls. */
void gpu_experts_join(gpu *g, const gpu_input *in, const gpu_expert_args *a, const float *cold,
                      const int32_t *row);

/* ---- few tokens, cold experts on the host: the mailbox --------------------------------------- */

/* Where a chosen expert is computed. The device decides and tells the host. */
typedef enum gpu_where {
    GPU_HOT,                             /* by the device, from VRAM */
    GPU_COLD,                            /* by the host, whole */
    GPU_COLD_FETCHED,                    /* gate and up by the host, while down crosses the bus */
    GPU_FETCHED                          /* by the device: all three slabs cross the bus */
} gpu_where;

enum { GPU_FETCH_COUNTS = GPU_MOST_USED + 1, GPU_MOST_CHOICES = GPU_FEW * GPU_MOST_USED };

/* One layer's question to the host and the reply, in page-locked RAM. Polled words have cache lines
 * of their own.
 *
 * Questions are numbered from 1 on, modulo 2^28. A layer whose experts are all GPU_HOT is quiet: it
 * writes its number with GPU_QUIET and goes on without a reply. So the host can miss the number of
 * a quiet layer, but never that of a question. */
#define GPU_CODES 2u
#define GPU_QUIET 1u
#define GPU_NUMBERS 0x0FFFFFFFu
typedef struct gpu_mailbox {
    volatile uint32_t asked;             /* number * GPU_CODES of the last question, written after
                                          * all of it; of a quiet layer + GPU_QUIET */
    uint8_t apart_1[124];
    volatile uint32_t answered;          /* the question's number, written after all of the reply */
    uint8_t apart_2[124];
    volatile uint64_t predicted;         /* the last prediction: gpu_predicted */
    uint8_t apart_3[120];
    /* [slot]: number of the question whose down slab is in the pad */
    volatile uint32_t fetched[GPU_MOST_USED];
    volatile uint64_t fetch_ns;          /* duration of the last fetch; the host clears it */
    int32_t n, k;                        /* the question: tokens, choices of each */
    int32_t ids[GPU_MOST_CHOICES];       /* [n, k] in rank order */
    uint8_t where[GPU_MOST_CHOICES];     /* gpu_where */
    /* The reply. For GPU_COLD, the vector is in y. For GPU_COLD_FETCHED, by_host says whether the
     * vector is in y or the activations after gate and up are in mid and mid_rows. */
    uint8_t by_host[GPU_MOST_CHOICES];
    float *x;                            /* [n, n_embd] the normed vectors, of quiet layers, too */
    uint8_t *mid;                        /* [slot] int8 forms, gpu_blocks_bytes(n_ff) each */
    float *mid_rows;                     /* [slot, n_ff]; needed only where down has floats */
    float *y;                            /* [slot, n_embd] */
    int n_embd, n_ff;
} gpu_mailbox;

/* For up to GPU_FEW tokens of k choices. */
int gpu_mailbox_create(gpu_mailbox **out, gpu *g, int n_embd, int n_ff, int k, err_ctx *err);
void gpu_mailbox_free(gpu *g, gpu_mailbox *m);   /* NULL is fine */

/* Host: writes the activations of a slot, as engine/host/ops.h keeps them (codes of 32, scale and
 * two sums of each block), to mid. */
void gpu_mailbox_put_mid(gpu_mailbox *m, int slot, const int8_t *q, const float *dx,
                         const int16_t *sums);

/* A prediction is one word: the low bits of the number of the question that it is about, and the
 * cold experts that will probably be in that question, the likeliest first. */
enum {
    GPU_MOST_PREDICTED = 4,
    GPU_PREDICTED_BITS = 10,
    GPU_PREDICTED_COUNT = GPU_MOST_PREDICTED * GPU_PREDICTED_BITS,
    GPU_PREDICTED_NUMBER = GPU_PREDICTED_COUNT + 4
};
/* Unpacks a word. Returns the number of experts; 0 if it is about another question. */
static inline int gpu_predicted(int32_t ids[GPU_MOST_PREDICTED], uint64_t word, uint32_t number)
{
    const int n = (int)(word >> GPU_PREDICTED_COUNT & 15);
    if ((word ^ (uint64_t)number << GPU_PREDICTED_NUMBER) >> GPU_PREDICTED_NUMBER) return 0;
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(word >> i * GPU_PREDICTED_BITS & ((1 << GPU_PREDICTED_BITS) - 1));
    return n;
}

/* ---- few tokens, cold experts on the host: the operation ------------------------------------- */

/* Predicts the next layer's experts: applies its router to this layer's vectors, and names the cold
 * ones to the host, unless that layer has asked already. */
typedef struct gpu_predict {
    gpu_matrix router;                   /* the next layer's, of floats; data NULL: no prediction */
    gpu_router_rule rule;
    const float *norm, *next_norm;       /* [n_embd] of this layer's input and of the next one's */
    const int32_t *hot;                  /* of the next layer, as in gpu_with_host */
} gpu_predict;

typedef struct gpu_with_host {
    gpu_mailbox *mailbox;
    uint32_t *number;                    /* device: of the last question; 0 to begin with */
    const int32_t *hot;                  /* device [n_expert]: the expert's index in the banks of
                                          * gpu_expert_args, or -1; NULL: all are -1 */
    const uint64_t *slabs;               /* [n_expert, 3] addresses of gate, up, down in page-locked
                                          * RAM, 0: not in RAM; the table is in RAM or VRAM. NULL:
                                          * nothing is fetched */
    const uint8_t *fetch;                /* device [2, GPU_FETCH_COUNTS]: of m cold experts the
                                          * first fetch[GPU_FETCH_COUNTS + m] are fetched whole,
                                          * then down slabs of fetch[m], as far as they are in RAM
                                          * and fit the pad */
    uint32_t *chosen;                    /* NULL, or page-locked [n * k]: gets the choices of every
                                          * layer, as id | gpu_where << 16; complete with the
                                          * operation, or with the number of its own or a later
                                          * question, or of a layer that closes */
    bool closes;                         /* the token's last layer: its number says, quiet or not,
                                          * that all choices of the token are in RAM */
    uint8_t *pad;                        /* VRAM for fetched slabs, gpu_with_host_pad() bytes */
    int pad_down, pad_all;               /* most slots fetched of either kind */
    bool one_stream;                     /* fetches before the hot experts, not parallel to them;
                                          * predictions are off */
    void *scratch;                       /* gpu_with_host_scratch() bytes, zero to begin with */
    /* NULL, or a network of the same tokens that is computed while the host computes experts. Its
     * memory, that of its input included, is its own. */
    const gpu_network_args *parallel;
    gpu_input *parallel_in;
    gpu_predict next;
    int prediction_layer;                /* index of this layer in prediction_state */
    void *prediction_state;              /* gpu_prediction_state() bytes, zero to begin with, the
                                          * same for all layers. NULL: predictions are off */
} gpu_with_host;
bool gpu_prediction_fits(int router_type);
size_t gpu_prediction_state(int n_expert, int n_embd, int n_layer);
size_t gpu_with_host_pad(const gpu_expert_args *a, int pad_down, int pad_all);
size_t gpu_with_host_scratch(int k, int n_ff, int n_embd);

/* gpu_experts for at most GPU_FEW tokens with some of the experts on the host, with the same
 * bits: chooses experts, asks, fetches, computes hot and shared experts, waits for the reply,
 * and adds the sum in rank order. It uses streams of its own next to the main one, which they
 * join, and can be recorded. The banks of a have type, shape and small vectors; data may be NULL
 * if hot is. Only a single token has slabs fetched. The host must reply to every question that
 * is not quiet; gpu_set_host_limit says what happens otherwise. */
void gpu_experts_with_host(gpu *g, gpu_input *in, const gpu_expert_args *a, const gpu_with_host *s);

/* Between gpu_route with ids NULL and gpu_experts_with_host: drops the chosen experts that are
 * cold, unless all are. Weights are made of the remaining experts' logits. A dropped slot comes
 * after the others with weight 0 and the token's first expert, so it asks the host for nothing.
 * Where all of the choice is hot, or none, the result has the bits of the model's own choice. */
typedef struct gpu_prefer {
    float *logits;                       /* [n, n_expert]; undefined afterwards */
    gpu_router_rule rule;
    const int32_t *hot;                  /* [n_expert]: as in gpu_with_host */
    int n, n_expert, k;                  /* at most GPU_FEW, 1024, 32 */
    int32_t *ids;                        /* [n, k], for gpu_expert_args */
    float *gates;                        /* [n, k] */
    uint32_t *wanted;                    /* NULL, or page-locked [n * k]: gets the model's own
                                          * choice as id | gpu_where << 16, GPU_HOT or GPU_COLD;
                                          * complete with the operation */
} gpu_prefer;
void gpu_prefer_hot(gpu *g, const gpu_prefer *a);

/* ---- many tokens, cold experts on the host --------------------------------------------------- */

/* More than GPU_FEW tokens, without questions: the host knows choices and map, and computes the
 * cold experts while the device computes the hot ones. begin leaves the vectors of hot slots in
 * the scratch. end writes the sums of tokens first .. first + n - 1 in rank order; the calls of
 * a batch may come in any order. Then gpu_experts takes batch.sums. All vectors follow the
 * contract, so the bits do not depend on the map. From begin to the last end the map must not
 * change, and nothing else may use the scratch. Uses in, ids, gates and the banks of a. hot
 * [n_expert]: as in gpu_with_host. */
void gpu_experts_partial_begin(gpu *g, gpu_input *in, const gpu_expert_args *a, const int32_t *hot);
/* sums [in->n, n_embd]. cold: page-locked [n * k, n_embd], the vectors of slots from first * k on;
 * those of hot slots are not read. It must not change before the operation is complete. */
void gpu_experts_partial_end(gpu *g, const gpu_input *in, const gpu_expert_args *a,
                             const int32_t *hot, float *sums, const float *cold, int first, int n);

/* ---- banks that pass through VRAM ------------------------------------------------------------ */

/* Two or more buffers in VRAM that a copy engine fills while operations read others. */
typedef struct gpu_stage gpu_stage;
int gpu_stage_create(gpu_stage **out, gpu *g, int n_buffer, uint64_t bytes, err_ctx *err);
void gpu_stage_free(gpu *g, gpu_stage *s);       /* NULL is fine; waits */
uint8_t *gpu_stage_buffer(const gpu_stage *s, int i);
/* Copies to buffer i at offset, in order, after the operations before gpu_stage_done(i). from
 * should be page-locked and must not change before gpu_stage_sent(i). */
void gpu_stage_copy(gpu *g, gpu_stage *s, int i, uint64_t offset, const void *from, uint64_t bytes);
void gpu_stage_ready(gpu *g, gpu_stage *s, int i);      /* later operations see the copies so far */
void gpu_stage_done(gpu *g, gpu_stage *s, int i);        /* earlier operations are its readers */
int gpu_stage_sent(gpu *g, gpu_stage *s, int i, err_ctx *err);   /* waits for the copies so far */

/* ---- experts that are exchanged -------------------------------------------------------------- */

/* Copies between page-locked RAM and VRAM by a copy engine, parallel to all operations, one after
 * the other. The caller ensures that no operation reads the target meanwhile, and that the source
 * does not change. */
typedef struct gpu_copy_queue gpu_copy_queue;
int gpu_copy_queue_create(gpu_copy_queue **out, gpu *g, int n_mark, err_ctx *err);
void gpu_copy_queue_free(gpu *g, gpu_copy_queue *m);     /* NULL is fine; waits */
void gpu_copy_queue_copy(gpu *g, gpu_copy_queue *m, void *to, const void *from, uint64_t bytes);
/* From VRAM to RAM. */
void gpu_copy_queue_save(gpu *g, gpu_copy_queue *m, void *to, const void *from, uint64_t bytes);
/* Event i, after the copies so far. */
void gpu_copy_queue_record(gpu *g, gpu_copy_queue *m, int i);
/* 1: the copies before event i have arrived, for the host and for all later operations; 0: not yet;
 * < 0: failure. */
int gpu_copy_queue_passed(gpu *g, gpu_copy_queue *m, int i, err_ctx *err);

/* An operation: copies within VRAM in any order. No copy may touch what another reads or writes.
 * jobs is in page-locked RAM and must not change before the operation is complete. */
typedef struct gpu_move {
    uint64_t to, from, bytes;            /* addresses */
} gpu_move;
void gpu_moves(gpu *g, const gpu_move *jobs, int n);

#ifdef __cplusplus
}
#endif
#endif
