/* gpu.h - a GPU behind a C interface without CUDA types: device, memory, stream, and the operations
 * of a layer and of sampling. gpu_experts.h has the operations of routed experts, gpu_measure.h
 * measurements and profiles.
 *
 * The other files of cuda/ implement these headers. gpu_stub.c has the same symbols for a build
 * without CUDA: gpu_count() is 0, everything else fails with ERR_UNSUPPORTED. A build with CUDA
 * also starts on a machine without a driver; gpu_count() is then 0. tests/sim_gpu.h simulates a
 * GPU with threads.
 *
 * A gpu is one device with one main stream. An operation puts work into the stream and returns at
 * once, without a result; operations run in the order of the calls. The gpu stores the first
 * failure of an operation and skips all later ones. gpu_wait and every function with an err_ctx
 * report the stored failure, which stays until gpu_close.
 *
 * Pointers in arguments are device memory unless a comment says otherwise. Sizes are in
 * elements. The caller owns all memory; it must stay allocated until the operation is complete.
 * A recorded operation has fixed arguments; values that change from token to token are in device
 * memory (gpu_cursor). Only one thread at a time may call the functions of a gpu. */
#ifndef CUDA_GPU_H
#define CUDA_GPU_H

#include "loader/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- devices --------------------------------------------------------------------------------- */

typedef struct gpu_info {
    char name[256];
    int cc_major, cc_minor;              /* compute capability: 9.0 */
    int n_sm;
    uint64_t vram_total, vram_free;      /* bytes, at the time of the call */
    bool watchdog;                       /* the driver ends kernels that run for seconds, as it does
                                          * on a card with a display */
} gpu_info;

const char *gpu_backend(void);           /* "CUDA 13.0", or "none" in a build without it */

/* Number of usable devices: 0 without a GPU, a driver or CUDA in the build. Never fails. */
int gpu_count(void);

int gpu_describe(gpu_info *out, int device, err_ctx *err);

typedef struct gpu gpu;

int gpu_open(gpu **out, int device, err_ctx *err);       /* on failure *out is NULL */
void gpu_close(gpu *g);                  /* NULL is fine; waits for all streams */

/* ---- memory ---------------------------------------------------------------------------------- */

/* Returns VRAM at a multiple of 256 bytes, with at least 16 readable bytes after it; or NULL, and
 * the gpu stays usable. Message: "no room for WHAT: 3.2 GB, and 1.1 GB are free". */
void *gpu_alloc(gpu *g, uint64_t bytes, const char *what, err_ctx *err);
void gpu_free(gpu *g, void *p);          /* NULL is fine; waits for all streams */

/* Returns page-locked RAM that the device can read and write; or NULL if the system refuses it, and
 * the gpu stays usable. */
void *gpu_alloc_host(gpu *g, uint64_t bytes, err_ctx *err);
void gpu_free_host(gpu *g, void *p);     /* NULL is fine; waits for all streams */

/* Neighbouring locked ranges meet at multiples of this many bytes. A copy must not span two locked
 * ranges, so gpu_stage_copy and gpu_copy_queue cut copies at these addresses. */
#define GPU_LOCK_PIECE ((uint64_t)1 << 30)

/* Page-locks whole pages of the caller's memory; the device then uses the same addresses. ERR_NOMEM
 * if the system refuses; the gpu stays usable. */
int gpu_lock(gpu *g, void *p, uint64_t bytes, err_ctx *err);
void gpu_unlock(gpu *g, void *p);        /* NULL is fine; waits for all streams */

/* Copies between RAM and VRAM, in order with operations. Both functions return after all earlier
 * operations and the copy are complete. */
int gpu_write(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err);
int gpu_read(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err);
/* One of many small copies, in order with operations. `from` of a write may change at once; `to`
 * of a read is complete after gpu_copies_end, which waits for all. */
int gpu_read_later(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err);
int gpu_write_later(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err);
int gpu_copies_end(gpu *g, err_ctx *err);
int gpu_zero(gpu *g, void *p, uint64_t bytes, err_ctx *err);     /* in the stream; does not wait */
/* An operation: copies within VRAM, or from page-locked RAM that must not change before the next
 * gpu_wait, or from VRAM to page-locked RAM. */
void gpu_copy(gpu *g, void *to, const void *from, uint64_t bytes);

/* Copies any amount of RAM to VRAM through page-locked buffers. fill copies n bytes into a buffer,
 * so that several threads of the caller can do it; NULL: memcpy. When gpu_upload returns, `from`
 * may be reused. `to` is complete after gpu_upload_end, which also frees the buffers. ERR_NOMEM if
 * page-locked memory is refused; the gpu stays usable. */
typedef void gpu_fill(void *ctx, void *to, const void *from, size_t n);
int gpu_upload(gpu *g, void *to, const void *from, uint64_t bytes, gpu_fill *fill, void *ctx,
               err_ctx *err);
int gpu_upload_end(gpu *g, err_ctx *err);

/* ---- waiting --------------------------------------------------------------------------------- */

/* Waits for the stream. Returns 0, or < 0 for a stored failure or a missed host limit (below). */
int gpu_wait(gpu *g, err_ctx *err);

/* Whether the stream has work left and no failure is stored, so that the device may still ask the
 * host (gpu_mailbox). Cheap enough to call every millisecond. */
bool gpu_alive(gpu *g);
/* How often the host should poll page-locked RAM between two calls of gpu_alive; a power of two.
 * Small on a simulated device, whose threads need the core of the polling thread. */
uint32_t gpu_polls(const gpu *g);

/* n points in the stream, numbered from 0. gpu_events_wait waits for the operations before one. */
typedef struct gpu_events gpu_events;
int gpu_events_create(gpu_events **out, gpu *g, int n, err_ctx *err);
void gpu_events_free(gpu_events *m);     /* NULL is fine */
void gpu_events_record(gpu *g, gpu_events *m, int i);    /* an operation */
int gpu_events_wait(gpu *g, gpu_events *m, int i, err_ctx *err);

/* A kernel that waits for the host gives up after limit_ns; later kernels then give up at once.
 * Results of such kernels are undefined. Operations still run, but gpu_wait and all functions that
 * call it return an error until gpu_recover. The default limit is 20 s, or 1.5 s on a device with a
 * watchdog. A new limit also applies to existing recordings. */
void gpu_set_host_limit(gpu *g, uint64_t limit_ns);
/* Waits for all streams and clears that error. The caller must discard all results since the last
 * successful gpu_wait. Other failures stay. */
void gpu_recover(gpu *g);
int gpu_recoveries(const gpu *g);        /* number of errors that gpu_recover cleared */

/* ---- recordings: operations captured once, replayed as one ----------------------------------- */

typedef struct gpu_recording gpu_recording;

/* Bytes of VRAM that plans count for each kernel of a recording: an upper bound for its launch
 * descriptor and arguments. tests/test_gpu.c compares it with the driver's figure. */
enum { GPU_RECORDED_KERNEL = 4 << 10 };

int gpu_recording_create(gpu_recording **out, err_ctx *err);     /* empty */
void gpu_recording_free(gpu_recording *r);                       /* NULL is fine */
int gpu_record_begin(gpu *g, err_ctx *err);      /* until end, operations are captured, not run */
/* Replaces the contents of r by the captured operations. ERR_NOMEM: VRAM is too small; r is then
 * empty, and the gpu stays usable. */
int gpu_record_end(gpu_recording *r, gpu *g, err_ctx *err);
void gpu_replay(gpu *g, gpu_recording *r);       /* an operation; r is not empty */

/* ---- operands -------------------------------------------------------------------------------- */

enum {                                   /* most tokens ... */
    GPU_FEW = 8,                         /* whose products follow docs/numerics.md */
    GPU_MAIL = 8,                        /* of a question to the host (cuda/gpu_experts.h) */
    GPU_RECORDED = 32                    /* of a pass: of a recording, and rows of logits */
};

/* Whether n tokens have the bits that each has alone: up to GPU_FEW always, up to GPU_RECORDED in a
 * pass. */
static inline bool gpu_is_few(int n, bool in_pass) { return n <= GPU_FEW || in_pass; }

enum { GPU_PAGE = 64 };                  /* positions of a page of keys and values */
enum { GPU_LEAST_REACH = 1024 };         /* see gpu_attention.last */

/* Whose tokens a batch has and where they stand, in device memory: so one recording serves every
 * conversation. A list with an entry for each conversation, in the order of the tokens; batches of
 * more than GPU_FEW tokens that are no pass are of one. gpu_copy or gpu_write sets it; gpu_advance
 * and gpu_largest update the first entry within the stream. */
typedef struct gpu_cursor {
    int32_t pos;                         /* of the conversation's first token */
    int32_t n;                           /* its tokens; 0 in the last entry: all the others */
    int32_t token;                       /* the last one that gpu_largest picked */
    uint8_t *const *pages;               /* device memory [page][gpu_attention.n_column]: where the
                                          * pages of each layer are */
    const uint8_t *recurrent;            /* the memory of its recurrent layers before the batch, */
    uint8_t *recurrent_next;             /* and after it; may be the same. gpu_advance swaps them */
} gpu_cursor;

/* y = scale * (W x) + bias, with W's bytes as they are in the file. */
typedef struct gpu_matrix {
    int type;                            /* quant_type */
    int rows, cols;
    const uint8_t *data;                 /* NULL: absent */
    uint64_t row_bytes;
    float scale;
    const float *bias;                   /* [rows], or NULL */
} gpu_matrix;

/* What happens to each vector before products read it. */
typedef enum gpu_input_kind {
    GPU_PLAIN,                           /* x */
    GPU_NORM,                            /* x / rms(x) * weight */
    GPU_GATED,                           /* x * sigmoid(gate), by heads */
    GPU_GATED_NORM                       /* x / rms(x) * weight * silu(gate), by heads */
} gpu_input_kind;

/* n vectors of cols values, the input of one or more operations.
 *
 * The struct also records what its scratch contains. The first operation that needs a finished
 * form (rows in F32, halves, int8 blocks) writes it to scratch and sets its has_ flag; later
 * operations read that form. The caller must not change the struct, x or the scratch until the
 * last operation on this input has been called. For another x, or after the scratch was
 * overwritten, the caller makes a new struct with the flags false. */
typedef struct gpu_input {
    const char *name;                    /* name of the products in profiles; NULL: "dense" */
    gpu_input_kind kind;
    int n, cols;
    bool in_pass;                        /* see gpu_is_few */
    const float *x;                      /* [n, cols] */
    const float *weight;                 /* [cols]; for kinds by heads [head_dim] */
    float eps;
    const float *gate;                   /* value d of head h of token t is at
                                          * gate[t * gate_stride + h * head_stride + d] */
    int head_dim, head_stride, gate_stride;
    float *rows;                         /* [n, cols] scratch */
    void *halves;                        /* [n, cols] 16-bit scratch; may be NULL if gpu_is_few */
    void *lows;                          /* NULL, or [n, cols] 16-bit scratch for the rounding
                                          * errors of halves. F16 and BF16 weights are then
                                          * multiplied by halves + lows: close to F32, in two or
                                          * three times the time */
    void *blocks;                        /* if gpu_is_few: scratch for the int8 form of n vectors,
                                          * gpu_blocks_bytes(cols) each; NULL: no expert reads it */
    void *codes;                         /* the same for GPU_FEW vectors, for products, whose
                                          * norms are summed in another order; NULL: each vector is
                                          * multiplied alone, which is slower */
    bool has_rows, has_halves, has_blocks, has_codes;    /* set by operations; the caller sets
                                                          * false */
} gpu_input;

static inline size_t gpu_blocks_bytes(int cols) { return ((size_t)cols / 32 * 40 + 15) / 16 * 16; }

/* A causal convolution after a product, with one channel for each row: y = silu(conv(W x)). The
 * operation then writes the window, shifted by n tokens. */
typedef struct gpu_conv {
    const float *taps;                   /* [rows, n_tap], oldest first; NULL: no convolution */
    const gpu_cursor *cursor;
    uint64_t window;                     /* in its recurrent memory, in bytes: [n_tap - 1, rows]
                                          * floats, oldest first */
    int first;                           /* tokens of the batch before these */
    int n_tap;                           /* 2 .. 8 */
    float *raw;                          /* [n, rows]: gets W x; may be NULL if gpu_is_few */
} gpu_conv;

typedef struct gpu_product {
    float *y;                            /* rows of token t are at y + t * y_stride */
    int y_stride;
    bool add;                            /* y += instead of y = */
    gpu_matrix w;
    gpu_conv conv;
} gpu_product;

/* The window alone, as after a product of n tokens whose W x is in raw. */
void gpu_conv_window(gpu *g, const gpu_conv *c, int rows, int n);

/* Writes in->rows and sets has_rows, for more than GPU_FEW vectors. */
void gpu_finish_input(gpu *g, gpu_input *in);

/* ---- products of many tokens: own kernels or the vendor's ------------------------------------ */

/* Speeds of our kernels and of the vendor's library (cuBLASLt, loaded at run time).
 * cuda/gemm_choice.h chooses between both by a product's shape, its type and these speeds. */
enum { GPU_GEMM_POINTS = 4 };
#define GPU_GEMM_TOKENS { 64, 256, 1024, 4096 }  /* tokens of each point */
typedef struct gpu_gemm_rates {          /* multiply-adds per second; 0: not measured */
    double own[GPU_GEMM_POINTS], vendor[GPU_GEMM_POINTS];
} gpu_gemm_rates;

typedef enum gpu_gemm_use {
    GPU_GEMM_OWN,                        /* never the library; the choice ignores speeds */
    GPU_GEMM_FASTER,                     /* by the measured speeds */
    GPU_GEMM_VENDOR                      /* the library if it supports the product; to measure it */
} gpu_gemm_use;

typedef struct gpu_gemm {
    gpu_gemm_use use;
    int from;                            /* batches of fewer tokens follow the contract; at least
                                          * GPU_FEW + 1 is used. For cold and counted experts
                                          * gpu_expert_batch.contract decides instead */
    gpu_gemm_rates rates;
} gpu_gemm;

/* Applies to all later products; the initial value is all zero. Loads the library once, if `how`
 * could choose it; without the library all products use own kernels. Takes back lent scratch. */
void gpu_gemm_set(gpu *g, const gpu_gemm *how);
/* What computes the largest products: "own", or e.g. "cuBLASLt 13.0". */
const char *gpu_gemm_name(const gpu *g);

/* Bytes of VRAM that the library needs for batches of up to n tokens; 0: none. The caller lends
 * them until gpu_gemm_reclaim, gpu_gemm_set or gpu_close. Their contents are undefined between
 * products. Without them all products use own kernels. */
uint64_t gpu_gemm_scratch(const gpu *g, int n);
void gpu_gemm_lend(gpu *g, void *scratch);               /* NULL: no effect */
void gpu_gemm_reclaim(gpu *g, const void *scratch);      /* waits; no effect unless it is lent */

/* ---- products -------------------------------------------------------------------------------- */

/* Row t of x [n, cols] = row ids[t] of the table; ids [n]. */
void gpu_embed(gpu *g, float *x, const gpu_matrix *table, const int32_t *ids, int n);

/* cosine, sine [n, half] = magnitude * cos, sin of the token's position * freq[i]. */
void gpu_rope_table(gpu *g, float *cosine, float *sine, const double *freq, double magnitude,
                    int half, const gpu_cursor *cursor, int n);

/* Whether there are kernels for this weight type (quant_type). */
bool gpu_type_fits(int type);

/* Computes n_product products of one input, 1 .. GPU_MAX_PRODUCTS. */
enum { GPU_MAX_PRODUCTS = 6 };
void gpu_project(gpu *g, gpu_input *in, const gpu_product *list, int n_product);

/* ---- attention ------------------------------------------------------------------------------- */

typedef enum gpu_kv_type { GPU_KV_F32, GPU_KV_F16, GPU_KV_Q8_0 } gpu_kv_type;

/* One layer's attention. It norms q and k (if weights are given) and rotates them, norms v on
 * request, stores k and v at their positions, and attends from each query to the keys of its
 * window, its own key included.
 *
 * The operation reads keys and values of earlier calls, the tables and the cursor before the
 * previous kernel has ended. So another operation that launches a kernel must come between the
 * operation that wrote them and this one. */
typedef struct gpu_attention {
    float *out;                          /* [n, n_head * head_dim] */
    float *q;                            /* head h of token t is at
                                          * q + t * q_stride + h * q_head_stride;
                                          * overwritten if n > 1 or norm_whole */
    int q_stride, q_head_stride;
    float *k;                            /* [n, n_head_kv * head_dim]; overwritten like q. NULL (not
                                          * with norm_whole): the store already has keys and values
                                          * of these tokens; v and k_norm are ignored */
    const float *v;                      /* [n, n_head_kv * head_dim]; may equal k, except with
                                          * norm_whole; values are then k before its norm */
    const float *q_norm, *k_norm;        /* [head_dim], or NULL; norm_whole: [n_head * head_dim]
                                          * and [n_head_kv * head_dim] */
    bool norm_whole;                     /* one norm over all heads of q, one of k, with weights */
    bool norm_values;                    /* norms each head of v, without weights */
    float eps;
    const float *cosine, *sine;          /* [n, rope_dim / 2] */
    int rope_dim;                        /* even, <= head_dim */
    gpu_kv_type kv;
    int n_column, column;                /* the layer's column of cursor->pages. Positions 64 i ..
                                          * 64 i + 63 are in page i: keys [n_head_kv][GPU_PAGE]
                                          * [head_dim in type kv], then values. Pages begin at
                                          * multiples of 64 bytes */
    int n_head, n_head_kv, head_dim;
    int window;                          /* keys of a query, its own included; 0: all */
    const float *sinks;                  /* [n_head], or NULL */
    float scale;
    const gpu_cursor *cursor;
    int n;                               /* tokens; no two of the positions that they read and write
                                          * share memory */
    bool in_pass;                        /* see gpu_is_few */
    int last;                            /* upper bound of every pos + n, which sizes the launch;
                                          * a recording is valid up to it. One token has the bits
                                          * that it has among others if this is GPU_LEAST_REACH
                                          * times the least power of two that is large enough */
    float *partial;                      /* gpu_attention_scratch() floats */
    uint32_t *counters;                  /* [max(n, GPU_FEW) * n_head], zero before and after */
} gpu_attention;
/* For up to n tokens, at least GPU_FEW. */
size_t gpu_attention_scratch(const gpu *g, int n_head, int head_dim, int n);
bool gpu_attention_fits(int n_head, int n_head_kv, int head_dim);  /* whether there are kernels */
void gpu_attend(gpu *g, const gpu_attention *a);

/* ---- gated DeltaNet -------------------------------------------------------------------------- */

/* The delta rule over n tokens: norms q and k (l2), applies write strength and decay, and writes
 * the state after them. The operation reads the state before the previous kernel has ended, so
 * another operation that launches a kernel must come between two calls on one state.
 *
 * With scratch, on chips of sm_80 and newer, a chunk is computed at once if all its positions
 * 64 c .. 64 c + 63 are in the batch; other tokens one by one. So batches that are cut at
 * multiples of 64 give the same bits as one batch. Other cuts round differently. A recording of
 * a batch with a chunk is valid for this pos only. */
enum { GPU_DELTA_CHUNK = 64 };
typedef struct gpu_delta {
    float *out;                          /* [n, n_v * dim], before the norm */
    const float *mixed;                  /* [n, channels] after the convolution: q, k, v */
    const float *ba;                     /* [n, 2 * n_v] betas and alphas */
    bool apart;                          /* ba of a token has n_v betas, then n_v alphas; else for
                                          * each key head n_v / n_k betas, then as many alphas */
    bool tiled;                          /* value head h has key head h % n_k, not h * n_k / n_v */
    const float *dt_bias, *a;            /* [n_v] */
    const gpu_cursor *cursor;
    uint64_t state;                      /* in its recurrent memory, in bytes: [n_v, dim (of keys),
                                          * dim (of values)] floats */
    int n_k, n_v, dim;
    int n, pos;                          /* tokens; unless gpu_is_few, the first one's position */
    bool in_pass;
    void *scratch;                       /* gpu_delta_scratch() bytes; NULL: no chunks */
} gpu_delta;
bool gpu_delta_fits(int dim);
/* Bytes for batches of up to n tokens; 0 if n < 64 or the chip has no kernel for chunks. */
size_t gpu_delta_scratch(const gpu *g, int n_k, int n_v, int dim, int n);
void gpu_delta_rule(gpu *g, const gpu_delta *d);

/* ---- norms after a part, routers, networks --------------------------------------------------- */

/* Adds the outputs of one or two parts of a layer to the residual stream:
 * x = scale * (x + norm(part 0 + part 1)), norm(v) = v / rms(v) * gain. Each part may be normed
 * alone before the sum. */
typedef struct gpu_normed {
    float *x;                            /* [n, cols] */
    const float *part[2];                /* [n, cols]; the second may be NULL */
    const float *part_gain[2];           /* [cols], or NULL: the part has no norm of its own */
    const float *gain;                   /* [cols] */
    float eps, scale;
    float *clear;                        /* NULL, or [n, cols] that is set to 0; may be a part */
    int n, cols;
} gpu_normed;
void gpu_add_normed(gpu *g, const gpu_normed *a);

/* How a router's logits become a choice and weights: router_rule in moe/router.h. All zero: softmax
 * over the chosen experts. Other rules give the bits of router_select. */
typedef struct gpu_router_rule {
    bool sigmoid;                        /* scores are sigmoids; else the softmax over all */
    bool as_scored;                      /* weights are the scores; else divided by their sum */
    float factor;                        /* multiplies all weights; 0 means 1 */
    const float *bias;                   /* [n_expert], added to scores for the choice only; NULL:
                                          * the largest logits are chosen */
} gpu_router_rule;
/* Whether gpu_route may leave the choice to gpu_experts: gpu_expert_args with ids NULL. */
static inline bool gpu_rule_can_wait(const gpu_router_rule *r) { return !r->bias || r->sigmoid; }

/* Computes router logits of the input, the k chosen experts and their weights; with a shared expert
 * also the sigmoid of its gate. */
typedef struct gpu_route_args {
    gpu_matrix router;                   /* rows: experts, at most 1024 */
    gpu_router_rule rule;
    gpu_matrix shared_gate;              /* one row, or absent */
    int k;                               /* at most 32 */
    float *logits;                       /* [n, n_expert] */
    int32_t *ids;                        /* [n, k] in the order of selection; NULL: only logits, and
                                          * gpu_experts chooses */
    float *gates;                        /* [n, k] */
    float *keys;                         /* with ids NULL, sigmoid and a bias: [n, n_expert], gets
                                          * sigmoid + bias, which decides the choice; else NULL */
    float *sigma;                        /* [n]: sigmoid of the shared gate's row */
    /* NULL, or other inputs of n vectors, with blocks, that later operations read. For up to
     * GPU_FEW vectors, or a pass, and a router of floats, the same launch makes their finished
     * forms. */
    gpu_input *also[2];
} gpu_route_args;
void gpu_route(gpu *g, gpu_input *in, const gpu_route_args *a);

/* The function of gate and up whose result is down's input: expert_activation in moe/expert.h. */
typedef enum gpu_activation { GPU_SWIGLU, GPU_SWIGLU_CLAMPED, GPU_GEGLU } gpu_activation;

/* One network for all tokens, instead of a layer's experts or parallel to them:
 * y = sigma * down(activation(gate in, up in)). For up to GPU_FEW tokens gate and up follow the
 * arithmetic contract, as for a pass. Down follows it, too, except for the order of its last
 * additions. */
typedef struct gpu_network_args {
    float *y;                            /* [n, down.rows] */
    bool add;                            /* y += instead of y = */
    gpu_matrix gate, up, down;           /* gate and up of one type */
    gpu_activation act;
    const float *sigma;                  /* [n], or NULL: 1 */
    void *scratch;                       /* gpu_network_scratch() bytes */
} gpu_network_args;
size_t gpu_network_scratch(int n, int n_ff, int n_embd);
/* If gpu_is_few, in->blocks must not be NULL. */
void gpu_network(gpu *g, gpu_input *in, const gpu_network_args *a);

/* ---- after the last layer -------------------------------------------------------------------- */

/* x = cap * tanh(x / cap), n values, with the bits of engine/cpu/. */
void gpu_soft_cap(gpu *g, float *x, uint64_t n, float cap);

/* Ends a batch of one token: writes the id of the largest of n logits to cursor->token, the lowest
 * of equals, 0 if all are NaN; then gpu_advance(cursor, 1). Also writes id | stamp << 32, stamp =
 * the new position modulo 2^31, to *seen (page-locked RAM, or NULL). counter: one word, zero before
 * and after. best: GPU_LARGEST_WORDS words of scratch. */
enum { GPU_LARGEST_WORDS = 2 * 1024 };
void gpu_largest(gpu *g, const float *logits, int n, gpu_cursor *cursor, uint64_t *seen,
                 uint32_t *best, uint32_t *counter);

/* The batch of n tokens is done: pos += n, and what was written becomes what is read. */
void gpu_advance(gpu *g, gpu_cursor *cursor, int n);

/* Figures of a row of logits that a sampler needs, with the rules (sampler_rules) and the bits of
 * engine/session/sampler.h. A block is 64 logits. */
enum { GPU_SHORTLIST_BLOCK = 64, GPU_SHORTLIST_LANES = 8, GPU_SHORTLIST_STEPS = 256 };
typedef struct gpu_shortlist {
    const float *logits, *bias;          /* [n] */
    const uint64_t *allowed;             /* [blocks]: bit i of word b allows id 64 b + i; may be in
                                          * page-locked RAM. NULL: all */
    int n;
    const int32_t *seen;                 /* [n_seen, 2]: id, number of occurrences */
    int n_seen;
    double repeat, presence, frequency;  /* penalties */
    double per_temperature;              /* 1 / temperature */
    const double *steps;                 /* [GPU_SHORTLIST_STEPS]: 2^(k / GPU_SHORTLIST_STEPS) */
    float *work;                         /* [blocks * 64]: gets the logits after biases and
                                          * penalties; -INFINITY: not allowed */
    uint32_t *top;                       /* one word: gets the key (order_key) of the largest */
    float *maxima;                       /* [blocks]: gets the largest of each block */
    double *masses;                      /* [blocks]: gets their sums of weights; or NULL */
} gpu_shortlist;
void gpu_shortlist_make(gpu *g, const gpu_shortlist *s);

/* Writes the logits of work that are >= bound and not -INFINITY to `to`, in any order, at most cap
 * of them. *count gets the number of such logits, which may exceed cap. */
typedef struct gpu_pair { int32_t id; float logit; } gpu_pair;
void gpu_shortlist_gather(gpu *g, const gpu_shortlist *s, float bound, gpu_pair *to, int cap,
                          uint32_t *count);
/* gpu_shortlist_gather with the largest logit as the bound; the host need not read it first. */
void gpu_shortlist_gather_top(gpu *g, const gpu_shortlist *s, gpu_pair *to, int cap,
                              uint32_t *count);

#ifdef __cplusplus
}
#endif
#endif
