/* gpu.h - a GPU behind a C interface without CUDA types: device, memory, stream, and the operations
 * of a layer and of sampling. gpu_experts.h has the operations of routed experts, gpu_measure.h
 * measurements and profiles.
 *
 * gpu.cu and its neighbours implement these headers. gpu_stub.c has the same symbols for a build
 * without CUDA: gpu_count() is 0, everything else fails with ERR_UNSUPPORTED. A build with CUDA
 * starts on a machine without a driver, too, and then has no device. tests/sim_gpu.h is a GPU made
 * of threads.
 *
 * A gpu is one device with one stream. An operation puts work into the stream and returns at once;
 * operations run in the order of the calls. Operations return nothing: the gpu keeps the first
 * failure and skips what follows, and gpu_wait (or any function with an err_ctx) reports it. Such a
 * failure stays until gpu_close.
 *
 * Pointers in arguments are device memory unless a comment says otherwise. Sizes are in
 * elements. The caller owns all memory; it must stay allocated until the operation is complete.
 * Operations can be recorded: then their arguments are fixed, and what changes from token to
 * token is in device memory (gpu_cursor). One thread at a time calls the functions of a gpu. */
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

int gpu_open(gpu **out, int device, err_ctx *err);
void gpu_close(gpu *g);                  /* NULL is fine; waits for all streams */

/* ---- memory ---------------------------------------------------------------------------------- */

/* VRAM at a multiple of 256 bytes, with at least 16 readable bytes after it. what names the use in
 * the message: "no room for WHAT: 3.2 GB, and 1.1 GB are free". NULL on failure; the device goes
 * on. */
void *gpu_alloc(gpu *g, uint64_t bytes, const char *what, err_ctx *err);
void gpu_free(gpu *g, void *p);          /* NULL is fine; waits for all streams */

/* Page-locked RAM that the device can read and write. NULL if the system refuses it; the device
 * goes on. */
void *gpu_alloc_host(gpu *g, uint64_t bytes, err_ctx *err);
void gpu_free_host(gpu *g, void *p);     /* NULL is fine; waits for all streams */

/* Locked ranges begin and end at multiples of this: a copy must not reach from one into another,
 * and gpu_stage_copy cuts there. */
#define GPU_LOCK_PIECE ((uint64_t)1 << 30)

/* Page-locks whole pages of the caller's memory. ERR_NOMEM if the system refuses. */
int gpu_lock(gpu *g, void *p, uint64_t bytes, err_ctx *err);
void gpu_unlock(gpu *g, void *p);        /* NULL is fine; waits for all streams */

/* Copies between RAM and VRAM, in order with operations. They wait: afterwards `from` in RAM may be
 * reused, and `to` in RAM is complete. */
int gpu_write(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err);
int gpu_read(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err);
/* Many small reads with one wait: `to` is complete after gpu_read_end. */
int gpu_read_later(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err);
int gpu_read_end(gpu *g, err_ctx *err);
int gpu_zero(gpu *g, void *p, uint64_t bytes, err_ctx *err);
/* An operation: copies within VRAM, or from page-locked RAM that must not change before the next
 * gpu_wait. */
void gpu_copy(gpu *g, void *to, const void *from, uint64_t bytes);

/* Copies any amount of RAM to VRAM through page-locked buffers. fill copies into a buffer, so the
 * caller's threads can share that work; NULL: memcpy. Afterwards `from` may be reused; `to` is
 * complete after gpu_upload_end, which also frees the buffers. ERR_NOMEM if page-locked memory is
 * refused; the device goes on. */
typedef void gpu_fill(void *ctx, void *to, const void *from, size_t n);
int gpu_upload(gpu *g, void *to, const void *from, uint64_t bytes, gpu_fill *fill, void *ctx,
               err_ctx *err);
int gpu_upload_end(gpu *g, err_ctx *err);

/* ---- waiting --------------------------------------------------------------------------------- */

/* Waits for the stream and reports the first failure. */
int gpu_wait(gpu *g, err_ctx *err);

/* Whether the stream still runs without a failure, so that a question to the host may yet come.
 * Cheap enough to call every millisecond. */
bool gpu_alive(gpu *g);
/* Polls of page-locked RAM between two such calls; a power of two. Few on a simulated device, whose
 * threads need the core of the thread that polls. */
uint32_t gpu_polls(const gpu *g);

/* Points in the stream that the host can wait for without waiting for all of it. */
typedef struct gpu_events gpu_events;
int gpu_events_create(gpu_events **out, gpu *g, int n, err_ctx *err);
void gpu_events_free(gpu_events *m);     /* NULL is fine */
void gpu_events_record(gpu *g, gpu_events *m, int i);    /* an operation */
int gpu_events_wait(gpu *g, gpu_events *m, int i, err_ctx *err);

/* A kernel that waits for the host gives up after limit_ns, and later kernels then give up at once.
 * The results of these operations are undefined. Operations still run; gpu_wait and the functions
 * that wait like it report an error until gpu_recover. The default limit is 20 s, or 1.5 s on a
 * device with a watchdog. A new limit also applies to existing recordings. */
void gpu_set_host_limit(gpu *g, uint64_t limit_ns);
/* Waits for all streams and ends that state. The caller discards all results since the last
 * gpu_wait that succeeded. Other failures stay. */
void gpu_recover(gpu *g);
int gpu_recoveries(const gpu *g);        /* times that gpu_recover ended such a state */

/* ---- recordings: operations captured once, replayed as one ----------------------------------- */

typedef struct gpu_recording gpu_recording;

/* VRAM that plans count for each kernel of a recording: its launch descriptor and arguments,
 * rounded up generously. tests/test_gpu.c compares it with the driver's figure. */
enum { GPU_RECORDED_KERNEL = 4 << 10 };

int gpu_recording_create(gpu_recording **out, err_ctx *err);     /* empty */
void gpu_recording_free(gpu_recording *r);                       /* NULL is fine */
int gpu_record_begin(gpu *g, err_ctx *err);
/* Replaces the contents of r. ERR_NOMEM: VRAM is too small, r is empty, and the device goes on. */
int gpu_record_end(gpu_recording *r, gpu *g, err_ctx *err);
void gpu_replay(gpu *g, gpu_recording *r);       /* an operation; r is not empty */

/* ---- operands -------------------------------------------------------------------------------- */

enum { GPU_FEW = 8 };                    /* tokens up to which products follow the contract */

/* The position of a batch, in device memory. The host changes it between operations, gpu_advance
 * within the stream. */
typedef struct gpu_cursor {
    int32_t pos;                         /* of the batch's first token */
    int32_t token;                       /* the last one that gpu_largest picked */
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
 * This struct is also the state of its scratch. The first operation that needs a finished form
 * (rows in F32, halves, int8 blocks) writes it to scratch and sets its has_ flag; later
 * operations read it there. So every operation takes a pointer that is not const, and the caller
 * keeps the struct, x and the scratch unchanged until the last operation on this input has been
 * called. For another x, or after the scratch was overwritten, the caller makes a new struct
 * with the flags false. */
typedef struct gpu_input {
    const char *name;                    /* class of the products in profiles; NULL: "dense" */
    gpu_input_kind kind;
    int n, cols;
    const float *x;                      /* [n, cols] */
    const float *weight;                 /* [cols], by heads [head_dim] */
    float eps;
    const float *gate;                   /* value d of head h of token t is at
                                          * gate[t * gate_stride + h * head_stride + d] */
    int head_dim, head_stride, gate_stride;
    float *rows;                         /* [n, cols] scratch */
    void *halves;                        /* [n, cols] 16-bit scratch; may be NULL if n <= GPU_FEW */
    void *lows;                          /* NULL, or the same for the bits that halves leave out:
                                          * F16 and BF16 weights are multiplied by the sum of both,
                                          * which is close to F32 and takes two or three times as
                                          * long */
    void *blocks;                        /* scratch for the int8 form of up to GPU_FEW vectors,
                                          * gpu_blocks_bytes(cols) each; NULL: no expert reads it */
    bool has_rows, has_halves, has_blocks;       /* set by operations; the caller sets false */
} gpu_input;

static inline size_t gpu_blocks_bytes(int cols) { return ((size_t)cols / 32 * 40 + 15) / 16 * 16; }

/* A causal convolution over the channels that a product's rows are: y = silu(conv(rows)). The
 * operation moves the window on by n tokens, in place. */
typedef struct gpu_conv {
    const float *taps;                   /* [rows, n_tap], oldest first; NULL: no convolution */
    float *window;                       /* [n_tap - 1, rows], oldest first */
    int n_tap;                           /* 2 .. 8 */
    float *raw;                          /* [n, rows] scratch; NULL if n <= GPU_FEW */
} gpu_conv;

typedef struct gpu_product {
    float *y;                            /* rows of token t are at y + t * y_stride */
    int y_stride;
    bool add;                            /* y += instead of y = */
    gpu_matrix w;
    gpu_conv conv;
} gpu_product;

/* Completes in->rows of more than GPU_FEW vectors. */
void gpu_finish_input(gpu *g, gpu_input *in);

/* ---- products of many tokens: own kernels or the vendor's ------------------------------------ */

/* A library of the chip's vendor is found when the program runs. cuda/gemm_choice.h chooses the
 * kernel of a product by its shape, its type and these speeds. */
enum { GPU_GEMM_POINTS = 4 };
#define GPU_GEMM_TOKENS { 64, 256, 1024, 4096 }  /* tokens of each point */
typedef struct gpu_gemm_rates {          /* multiply-adds per second; 0: not measured */
    double own[GPU_GEMM_POINTS], vendor[GPU_GEMM_POINTS];
} gpu_gemm_rates;

typedef enum gpu_gemm_use {
    GPU_GEMM_OWN,                        /* by shapes alone: never the library, never a speed */
    GPU_GEMM_FASTER,                     /* by the measured speeds */
    GPU_GEMM_VENDOR                      /* the library wherever it can: to measure it */
} gpu_gemm_use;

typedef struct gpu_gemm {
    gpu_gemm_use use;
    int from;                            /* tokens from which products need not follow the contract;
                                          * up to GPU_FEW: from GPU_FEW + 1 on. Experts outside VRAM
                                          * and counted ones go by gpu_expert_args.contract */
    gpu_gemm_rates rates;
} gpu_gemm;

/* Applies to all later products; the initial value is zero. Loads the library once, if `how` could
 * choose it; without the library all products use own kernels. Ends a gpu_gemm_lend. */
void gpu_gemm_set(gpu *g, const gpu_gemm *how);
const char *gpu_gemm_name(const gpu *g); /* of the largest products: "own", "cuBLASLt 13.0" */

/* VRAM that the library needs for batches of up to n tokens; 0: none. The caller lends it until
 * gpu_gemm_reclaim or gpu_close. Its contents are undefined between products. Without it all
 * products use own kernels. */
uint64_t gpu_gemm_scratch(const gpu *g, int n);
void gpu_gemm_lend(gpu *g, void *scratch);               /* NULL: nothing */
void gpu_gemm_reclaim(gpu *g, const void *scratch);      /* NULL, or memory of others: nothing */

/* ---- products -------------------------------------------------------------------------------- */

/* x [n, cols] = rows ids [n] of the table. */
void gpu_embed(gpu *g, float *x, const gpu_matrix *table, const int32_t *ids, int n);

/* cosine and sine [n, half] of the positions from the cursor's on; freq [half] in double. */
void gpu_rope_table(gpu *g, float *cosine, float *sine, const double *freq, double magnitude,
                    int half, const gpu_cursor *cursor, int n);

/* Weight types that have kernels. */
bool gpu_type_fits(int type);

/* All products of one input. */
enum { GPU_MAX_PRODUCTS = 6 };
void gpu_project(gpu *g, gpu_input *in, const gpu_product *list, int n_product);

/* ---- attention ------------------------------------------------------------------------------- */

typedef enum gpu_kv_type { GPU_KV_F32, GPU_KV_F16, GPU_KV_Q8_0 } gpu_kv_type;

/* One layer's attention: norms q and k (if weights are given; by heads or whole) and rotates them,
 * norms v on request, stores k and v at their positions, and attends from each query to the keys of
 * its window, its own included.
 *
 * The operation reads keys and values of earlier calls, the tables and the cursor before the
 * previous kernel has ended. So between the operation that wrote them and this one there must be
 * another operation that launches a kernel. */
typedef struct gpu_attention {
    float *out;                          /* [n, n_head * head_dim] */
    float *q;                            /* head h of token t is at
                                          * q + t * q_stride + h * q_head_stride;
                                          * overwritten if n > 1 or norm_whole */
    int q_stride, q_head_stride;
    float *k;                            /* [n, n_head_kv * head_dim]; overwritten like q. NULL:
                                          * keys and values of these tokens are stored already; v
                                          * and k_norm are not used; not with norm_whole */
    const float *v;                      /* [n, n_head_kv * head_dim]; may be k as it was projected,
                                          * unless norm_whole */
    const float *q_norm, *k_norm;        /* [head_dim], or NULL; norm_whole: [n_head * head_dim]
                                          * and [n_head_kv * head_dim] */
    bool norm_whole;                     /* one norm over all heads of q, one over all of k; both
                                          * have weights */
    bool norm_values;                    /* norms each head of v, without weights */
    float eps;
    const float *cosine, *sine;          /* [n, rope_dim / 2] */
    int rope_dim;                        /* even, <= head_dim */
    gpu_kv_type kv;
    uint8_t *keys, *values;              /* [n_head_kv][kv_rows][head_dim in type kv] */
    int kv_rows;                         /* position p is in row p % kv_rows */
    int n_head, n_head_kv, head_dim;
    int window;                          /* keys that a query attends to, its own included; 0:
                                          * all */
    const float *sinks;                  /* [n_head], or NULL */
    float scale;
    const gpu_cursor *cursor;
    int n;                               /* tokens; n + window - 1 <= kv_rows */
    int last;                            /* upper bound of the batch's last position, which sizes
                                          * the launch: a recording is valid up to it */
    float *partial;                      /* gpu_attention_scratch() floats */
    uint32_t *counters;                  /* [GPU_FEW * n_head], zero before and after */
} gpu_attention;
size_t gpu_attention_scratch(const gpu *g, int n_head, int head_dim);
bool gpu_attention_fits(int n_head, int n_head_kv, int head_dim);        /* there are kernels */
void gpu_attend(gpu *g, const gpu_attention *a);

/* ---- gated DeltaNet -------------------------------------------------------------------------- */

/* The delta rule over n tokens: norms q and k (l2), applies write strength and decay, and updates
 * the state in place. The operation reads the state before the previous kernel has ended, as
 * gpu_attend does its keys: two calls in succession on one state are not allowed.
 *
 * With scratch, on chips of sm_80 and newer, positions 64 c .. 64 c + 63 that are all in the
 * batch are computed together, as one chunk; other tokens one by one. So batches that are cut at
 * multiples of 64 give the same bits as one batch. Other cuts round differently. A recording of
 * a batch that holds a chunk is valid for this position only. */
enum { GPU_DELTA_CHUNK = 64 };
typedef struct gpu_delta {
    float *out;                          /* [n, n_v * dim], before the norm */
    float *mixed;                        /* [n, channels] after the convolution: q, k, v;
                                          * overwritten if n > 1 */
    float *ba;                           /* [n, 2 * n_v]: for each key head n_v / n_k betas, then as
                                          * many alphas; apart: all betas, then all alphas;
                                          * overwritten if n > 1 */
    bool apart;
    bool tiled;                          /* value head h has key head h % n_k, not h * n_k / n_v */
    const float *dt_bias, *a;            /* [n_v] */
    float *state;                        /* [n_v, dim (of keys), dim (of values)] */
    int n_k, n_v, dim;
    int n, pos;                          /* tokens; position of the first one */
    void *scratch;                       /* gpu_delta_scratch() bytes; NULL: no chunks */
} gpu_delta;
bool gpu_delta_fits(int dim);
/* For batches of up to n tokens; 0 if they hold no chunk or the chip has no kernel for chunks. */
size_t gpu_delta_scratch(const gpu *g, int n_k, int n_v, int dim, int n);
void gpu_delta_rule(gpu *g, const gpu_delta *d);

/* ---- norms after a part, routers, networks --------------------------------------------------- */

/* Adds parts of a layer to the residual stream, normed: x = scale * (x + norm(part 0 + part 1)).
 * Each part may have a norm of its own first. A norm is v / rms(v) * gain. */
typedef struct gpu_normed {
    float *x;                            /* [n, cols] */
    const float *part[2];                /* [n, cols]; the second may be NULL */
    const float *part_gain[2];           /* [cols], or NULL: the part has no norm of its own */
    const float *gain;                   /* [cols] */
    float eps, scale;
    float *clear;                        /* NULL, or [n, cols], or a part: becomes zeros */
    int n, cols;
} gpu_normed;
void gpu_add_normed(gpu *g, const gpu_normed *a);

/* How logits become a choice and weights: router_rule in moe/router.h. All zero: softmax over the
 * chosen experts. Other rules have the bits of router_select. */
typedef struct gpu_router_rule {
    bool sigmoid;                        /* scores by a sigmoid; else a softmax over all */
    bool as_scored;                      /* weights are the scores; else divided by their sum */
    float factor;                        /* of all weights; 0: 1 */
    const float *bias;                   /* [n_expert], added to scores for the choice alone; NULL:
                                          * the logits choose */
} gpu_router_rule;
/* Whether gpu_experts can choose by itself from what gpu_route left: see gpu_expert_args. */
static inline bool gpu_rule_can_wait(const gpu_router_rule *r) { return !r->bias || r->sigmoid; }

/* Router logits of the normed vectors, the k largest and their weights; with a shared expert also
 * its gate. */
typedef struct gpu_route_args {
    gpu_matrix router;                   /* rows: experts, at most 1024 */
    gpu_router_rule rule;
    gpu_matrix shared_gate;              /* one row, or absent */
    int k;                               /* at most 32 */
    float *logits;                       /* [n, n_expert] */
    int32_t *ids;                        /* [n, k] in the order of selection; NULL: only logits, and
                                          * gpu_experts chooses */
    float *gates;                        /* [n, k] */
    float *keys;                         /* NULL, or, if ids is NULL, [n, n_expert]: the values that
                                          * are compared where sigmoids and a bias decide */
    float *sigma;                        /* [n]: sigmoid of the shared gate's row */
    /* Other inputs of n vectors with blocks that later operations read, or NULL. For up to GPU_FEW
     * vectors and a router of floats, the same launch makes their finished forms. */
    gpu_input *also[2];
} gpu_route_args;
void gpu_route(gpu *g, gpu_input *in, const gpu_route_args *a);

/* What joins gate and up before down: expert_activation in moe/expert.h. */
typedef enum gpu_activation { GPU_SWIGLU, GPU_SWIGLU_CLAMPED, GPU_GEGLU } gpu_activation;

/* One network for all tokens, instead of a layer's experts or parallel to them:
 * y = sigma * down(activation(gate in, up in)). For up to GPU_FEW tokens gate and up follow the
 * arithmetic contract, and down does except for the order of its last additions. */
typedef struct gpu_network_args {
    float *y;                            /* [n, down.rows] */
    bool add;                            /* y += instead of y = */
    gpu_matrix gate, up, down;           /* gate and up of one type */
    gpu_activation act;
    const float *sigma;                  /* [n], or NULL: 1 */
    void *scratch;                       /* gpu_network_scratch() bytes */
} gpu_network_args;
size_t gpu_network_scratch(int n, int n_ff, int n_embd);
/* Up to GPU_FEW vectors need in->blocks. */
void gpu_network(gpu *g, gpu_input *in, const gpu_network_args *a);

/* ---- after the last layer -------------------------------------------------------------------- */

/* x = cap * tanh(x / cap), n values, with the bits of engine/cpu/. */
void gpu_soft_cap(gpu *g, float *x, uint64_t n, float cap);

/* The largest of n logits (the first of equals; 0 for a row of NaNs) goes to cursor->token and, as
 * id | stamp << 32 with stamp = pos + 1 modulo 2^31, to *seen (page-locked RAM, or NULL). counter:
 * one word, zero before and after. best: GPU_LARGEST_WORDS of scratch. */
enum { GPU_LARGEST_WORDS = 2 * 1024 };
void gpu_largest(gpu *g, const float *logits, int n, gpu_cursor *cursor, uint64_t *seen,
                 uint32_t *best, uint32_t *counter);

void gpu_advance(gpu *g, gpu_cursor *cursor, int n);     /* pos += n */

/* What a sampler needs of a row of logits, with the rules and bits of engine/session/sampler.h. A
 * block is 64 logits. */
enum { GPU_SHORTLIST_BLOCK = 64, GPU_SHORTLIST_LANES = 8, GPU_SHORTLIST_STEPS = 256 };
typedef struct gpu_shortlist {
    const float *logits, *bias;          /* [n] */
    const uint64_t *allowed;             /* [blocks]: bit i of word b allows id 64 b + i; may be in
                                          * page-locked RAM. NULL: all */
    int n;
    const int32_t *seen;                 /* [n_seen, 2]: id, number of occurrences */
    int n_seen;
    double repeat, presence, frequency;
    double per_temperature;
    const double *steps;                 /* [GPU_SHORTLIST_STEPS] */
    float *work;                         /* [n, rounded up to blocks]: gets the logits after biases
                                          * and penalties */
    uint32_t *top;                       /* one word: gets the largest logit, for gather_top */
    float *maxima;                       /* [blocks] */
    double *masses;                      /* [blocks], or NULL: not wanted */
} gpu_shortlist;
void gpu_shortlist_make(gpu *g, const gpu_shortlist *s);

/* The logits of work that are not below bound and not -INFINITY, in any order, at most cap of them;
 * *count gets their number. */
typedef struct gpu_pair { int32_t id; float logit; } gpu_pair;
void gpu_shortlist_gather(gpu *g, const gpu_shortlist *s, float bound, gpu_pair *to, int cap,
                          uint32_t *count);
/* The same with the largest logit as the bound, so that the host need not read it first. */
void gpu_shortlist_gather_top(gpu *g, const gpu_shortlist *s, gpu_pair *to, int cap,
                              uint32_t *count);

#ifdef __cplusplus
}
#endif
#endif
