/* gpu.h - the whole contract with the GPU: no CUDA types leave cuda/.
 *
 * gpu.cu and its neighbours implement it; gpu_stub.c has the same symbols for builds without CUDA,
 * where gpu_count() is 0 and everything else fails with ERR_UNSUPPORTED. A build with CUDA also
 * starts on a machine without a driver: there gpu_count() is 0 too. tests/sim_gpu.h is a GPU made
 * of threads, for tests.
 *
 * A gpu is one device with one stream. An operation, below, puts work into the stream and returns;
 * operations run in the order of the calls. They return nothing: the first failure is kept, what
 * follows it is skipped, and gpu_wait (or any function with an err_ctx) reports it. All pointers in
 * argument structs are device memory unless a comment says otherwise, and all sizes are in
 * elements. An operation may be recorded: then its arguments are fixed, and what changes from token
 * to token is read from device memory (gpu_cursor). One thread at a time. */
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
    uint64_t vram_total, vram_free;      /* bytes, at the time of asking */
    bool watchdog;                       /* the driver ends kernels that run for seconds, as it does
                                          * on a card with a display */
} gpu_info;

const char *gpu_backend(void);           /* "CUDA 13.0", or "none" in a build without it */

/* Usable devices: 0 without a GPU, a driver or CUDA in the build. Never fails. */
int gpu_count(void);

int gpu_describe(gpu_info *out, int device, err_ctx *err);

typedef struct gpu gpu;

int gpu_open(gpu **out, int device, err_ctx *err);
void gpu_close(gpu *g);                  /* NULL is fine; waits */

/* ---- memory ---------------------------------------------------------------------------------- */

/* VRAM, at a multiple of 256 bytes, with at least 16 readable bytes after it. What names the use:
 * "no room for WHAT: 3.2 GB, 1.1 GB free". NULL on failure. */
void *gpu_alloc(gpu *g, uint64_t bytes, const char *what, err_ctx *err);
void gpu_free(gpu *g, void *p);          /* NULL is fine; waits */

/* Page-locked RAM that the device can reach, too. No fallback: NULL if it is refused. */
void *gpu_alloc_host(gpu *g, uint64_t bytes, err_ctx *err);
void gpu_free_host(gpu *g, void *p);

/* In order with operations. On return `from` in RAM may be reused, and `to` in RAM is complete. */
int gpu_write(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err);
int gpu_read(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err);
/* The same for many small pieces, with one wait: `to` is complete after gpu_read_end. */
int gpu_read_later(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err);
int gpu_read_end(gpu *g, err_ctx *err);
int gpu_zero(gpu *g, void *p, uint64_t bytes, err_ctx *err);
/* Within VRAM, or from page-locked RAM that stays as it is until the next gpu_wait. */
void gpu_copy(gpu *g, void *to, const void *from, uint64_t bytes);

/* Any amount of RAM to VRAM, through page-locked buffers that fill copies into (NULL: memcpy), so
 * that the caller's threads can share that work. On return `from` may be reused; `to` is complete
 * after gpu_upload_end, which also frees the buffers. */
typedef void gpu_fill(void *ctx, void *to, const void *from, size_t n);
int gpu_upload(gpu *g, void *to, const void *from, uint64_t bytes, gpu_fill *fill, void *ctx,
               err_ctx *err);
int gpu_upload_end(gpu *g, err_ctx *err);

/* Waits for everything, and reports the first failure. */
int gpu_wait(gpu *g, err_ctx *err);

/* A kernel that waits for the host gives up after limit_ns, and later kernels do so at once. The
 * results of these operations are undefined. gpu_wait and what waits like it report an error until
 * gpu_recover; operations still run. The default limit is 20 s, or 1.5 s on a device with a
 * watchdog. A new limit also applies to existing recordings. */
void gpu_set_host_limit(gpu *g, uint64_t limit_ns);
/* Ends that state, after waiting for all streams. The caller discards all results since the last
 * gpu_wait that succeeded. Other failures stay. */
void gpu_recover(gpu *g);
int gpu_recoveries(const gpu *g);        /* how often gpu_recover had something to end */

/* Bytes per second that a kernel reads from VRAM at best; uses a gigabyte of it meanwhile. */
int gpu_read_bandwidth(double *bytes_per_s, gpu *g, err_ctx *err);

/* ---- a smaller card on this one, for measurements -------------------------------------------- */

/* Devices that are opened from now on have n multiprocessors of theirs for all that they do, or a
 * few more, as the chip can be divided; if that is all it has, or n is 0: all of them. Opening one
 * fails with ERR_UNSUPPORTED where driver or build cannot. Call it before anything else here. */
void gpu_pretend_sms(int n);

typedef struct gpu_throttled {
    int n_sm, n_sm_all;                  /* in use; of the chip */
    double bytes_per_s;                  /* what a kernel that only reads gets on those in use */
    double whole_bytes_per_s;            /* and what it would get on all of them */
} gpu_throttled;

/* Until gpu_throttle_end the others read as much as it takes to leave those in use no more than
 * this share of the chip's bandwidth, or as much as they can. A share of 1: nobody reads. Takes
 * up to a gigabyte of VRAM. The thread that begins it is the one that opened the device. */
int gpu_throttle_begin(gpu *g, double share, gpu_throttled *out, err_ctx *err);
int gpu_throttle_end(gpu *g, err_ctx *err);  /* also if nothing is held; fails if it did not hold */

/* ---- peaks ----------------------------------------------------------------------------------- */

/* Multiply-adds per second of 16-bit matrices in registers, by the instruction that our kernels use
 * on every chip. */
int gpu_multiply_peak(double *macs_per_s, gpu *g, err_ctx *err);

/* ---- profiles -------------------------------------------------------------------------------- */

/* While a profile is on, every kernel that is launched or recorded notes when it ran. */
typedef struct gpu_span {
    const char *name;                    /* class of the kernel */
    uint64_t bytes;                      /* the least it has to read from VRAM */
    uint64_t start_ns, ready_ns, end_ns; /* first block started; its input was complete; last block
                                          * ended */
} gpu_span;
int gpu_profile_begin(gpu *g, err_ctx *err);     /* forgets an earlier one */
/* Waits, and clears the notes: the next play of a recording fills them again. Returns how many
 * there are, at most cap of them in spans; < 0 on failure. */
int gpu_profile_read(gpu_span *spans, int cap, gpu *g, err_ctx *err);
void gpu_profile_end(gpu *g);            /* recordings made meanwhile must not be played again */

/* ---- recordings: operations captured once, played as one ------------------------------------- */

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

/* The batch's position. Changed by the host between operations, or by gpu_advance. */
typedef struct gpu_cursor {
    int32_t pos;                         /* position of the batch's first token */
    int32_t token;                       /* what gpu_largest picked last */
} gpu_cursor;

/* y = scale * (W x) + bias; bytes as they are in the file. */
typedef struct gpu_matrix {
    int type;                            /* quant_type */
    int rows, cols;
    const uint8_t *data;                 /* NULL: absent */
    uint64_t row_bytes;
    float scale;
    const float *bias;                   /* [rows], or NULL */
} gpu_matrix;

/* What is done to a batch of vectors before products read it. */
typedef enum gpu_input_kind {
    GPU_PLAIN,                           /* x */
    GPU_NORM,                            /* x / rms(x) * weight */
    GPU_GATED,                           /* x * sigmoid(gate), by heads */
    GPU_GATED_NORM                       /* x / rms(x) * weight * silu(gate), by heads */
} gpu_input_kind;

/* n vectors of cols values, the input of one or more operations. For more than GPU_FEW of them the
 * first operation that needs them writes the finished vectors to rows and halves, and the others
 * read them there: so the struct must be kept, and x unchanged, until the last has been called. */
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
    void *lows;                          /* NULL, or the same for what halves leave out: F16 and
                                          * BF16 weights are multiplied by the sum of both, which is
                                          * close to F32 and takes two or three times as long */
    void *blocks;                        /* scratch for the int8 form of up to GPU_FEW vectors,
                                          * gpu_blocks_bytes(cols) each; NULL: no experts read it */
    bool has_rows, has_halves, has_blocks;       /* set by operations; false to begin with */
} gpu_input;

static inline size_t gpu_blocks_bytes(int cols) { return ((size_t)cols / 32 * 40 + 15) / 16 * 16; }

/* A causal convolution over the channels that a product's rows are: y = silu(conv(rows)), and the
 * window moves on. */
typedef struct gpu_conv {
    const float *taps;                   /* [rows, n_tap], oldest first; NULL: none */
    float *window;                       /* [n_tap - 1, rows], oldest first */
    int n_tap;                           /* 2 .. 8 */
    float *raw;                          /* [n, rows] scratch; NULL if n <= GPU_FEW */
} gpu_conv;

typedef struct gpu_product {
    float *y;                            /* token t's rows begin at y + t * y_stride */
    int y_stride;
    bool add;                            /* y += instead of y = */
    gpu_matrix w;
    gpu_conv conv;
} gpu_product;

/* Completes in->rows of more than GPU_FEW vectors. */
void gpu_finish_input(gpu *g, gpu_input *in);

/* ---- products of many tokens: which way ------------------------------------------------------ */

/* Our kernels, or a library of the chip's vendor, found when the program runs. Which one computes a
 * product is decided in one place (cuda/gemm_choice.h), by its shape, its type and these speeds. */
enum { GPU_GEMM_POINTS = 4 };
#define GPU_GEMM_TOKENS { 64, 256, 1024, 4096 }  /* that a point is measured with */
typedef struct gpu_gemm_rates {          /* multiply-adds per second; 0: not measured */
    double own[GPU_GEMM_POINTS], vendor[GPU_GEMM_POINTS];
} gpu_gemm_rates;

typedef enum gpu_gemm_use {
    GPU_GEMM_OWN,                        /* by shapes alone: never the library, never a speed */
    GPU_GEMM_FASTER,                     /* what the speeds say */
    GPU_GEMM_VENDOR                      /* the library wherever it can: to measure it */
} gpu_gemm_use;

typedef struct gpu_gemm {
    gpu_gemm_use use;
    int from;                            /* tokens from which products need not follow the contract;
                                          * up to GPU_FEW: from GPU_FEW + 1 on. Experts that are not
                                          * all in VRAM, or that are counted, go by their own
                                          * arguments above GPU_FEW */
    gpu_gemm_rates rates;
} gpu_gemm;

/* For all products from now on; to begin with all is 0. Looks for the library, once, if it could be
 * chosen; without it all products are ours. Takes back what was lent. */
void gpu_gemm_set(gpu *g, const gpu_gemm *how);
const char *gpu_gemm_name(const gpu *g); /* what the largest products use: "own", "cuBLASLt 13.0" */

/* VRAM that the library needs for batches of up to n tokens: lent by the caller until it is
 * reclaimed or g is closed. Nothing is kept there from one product to the next. 0: none is needed.
 * Without it all products are ours. */
uint64_t gpu_gemm_scratch(const gpu *g, int n);
void gpu_gemm_lend(gpu *g, void *scratch);               /* NULL: nothing */
void gpu_gemm_reclaim(gpu *g, const void *scratch);      /* NULL or another's is fine */

/* ---- operations ------------------------------------------------------------------------------ */

/* x [n, cols] = rows ids [n] of the table. */
void gpu_embed(gpu *g, float *x, const gpu_matrix *table, const int32_t *ids, int n);

/* cos and sin [n, half] of the positions from the cursor's on; freq in double. */
void gpu_rope_table(gpu *g, float *cosine, float *sine, const double *freq, double magnitude,
                    int half, const gpu_cursor *at, int n);

/* Weight types that have kernels. */
bool gpu_type_fits(int type);

/* Products of one input. */
enum { GPU_MAX_PRODUCTS = 6 };
void gpu_project(gpu *g, gpu_input *in, const gpu_product *list, int n_product);

typedef enum gpu_kv_type { GPU_KV_F32, GPU_KV_F16, GPU_KV_Q8_0 } gpu_kv_type;

/* One layer's attention: q and k are normed (if weights are given), by heads or whole, and rotated,
 * v is normed if it is to be, k and v are stored at their positions, then every query looks at the
 * keys of its window, its own included. Keys of earlier calls, the tables and the cursor are read
 * ahead: between what wrote them and this operation there must be another one that launches a
 * kernel. */
typedef struct gpu_attention {
    float *out;                          /* [n, n_head * head_dim] */
    float *q;                            /* head h of token t at
                                          * q + t * q_stride + h * q_head_stride;
                                          * overwritten if n > 1 or norm_whole */
    int q_stride, q_head_stride;
    float *k;                            /* [n, n_head_kv * head_dim]; overwritten like q. NULL:
                                          * keys and values of these tokens are stored already,
                                          * v and k_norm are not used; not with norm_whole */
    const float *v;                      /* [n, n_head_kv * head_dim]; may be k, as it was
                                          * projected, unless norm_whole */
    const float *q_norm, *k_norm;        /* [head_dim], or NULL; norm_whole: [n_head * head_dim]
                                          * and [n_head_kv * head_dim] */
    bool norm_whole;                     /* all heads of q together, and of k; both have weights */
    bool norm_values;                    /* each head of v, with no weights */
    float eps;
    const float *cosine, *sine;          /* [n, rope_dim / 2] */
    int rope_dim;                        /* even, <= head_dim */
    gpu_kv_type kv;
    uint8_t *keys, *values;              /* [n_head_kv][kv_rows][head_dim in type kv] */
    int kv_rows;                         /* position p is in row p % kv_rows */
    int n_head, n_head_kv, head_dim;
    int window;                          /* keys seen, the token's own included; 0: all */
    const float *sinks;                  /* [n_head], or NULL */
    float scale;
    const gpu_cursor *at;
    int n;                               /* tokens; n + window - 1 <= kv_rows */
    int last;                            /* the batch ends at or before this position: for sizing,
                                          * so a recording is good up to it */
    float *partial;                      /* gpu_attention_scratch() floats */
    uint32_t *counters;                  /* [GPU_FEW * n_head], zero before and after */
} gpu_attention;
size_t gpu_attention_scratch(const gpu *g, int n_head, int head_dim);
bool gpu_attention_fits(int n_head, int n_head_kv, int head_dim);        /* shapes there are
                                                                          * kernels for */
void gpu_attend(gpu *g, const gpu_attention *a);

/* The delta rule over n tokens, with the l2 norm of q and k, the write strength and the decay. The
 * state is read ahead, as in gpu_attend: do not call it twice in succession on the same one.
 *
 * With scratch, on chips that can, positions 64 c .. 64 c + 63 that are all in the batch are taken
 * together, as one chunk; tokens before the first chunk and after the last one by themselves. So
 * batches that are cut at multiples of 64 give the same bits as one batch; other cuts give other
 * roundings, as batches of up to GPU_FEW tokens do in products. A recording of a batch that holds a
 * chunk is good for this position only. */
enum { GPU_DELTA_CHUNK = 64 };
typedef struct gpu_delta {
    float *out;                          /* [n, n_v * dim], not yet normed */
    float *mixed;                        /* [n, channels] after the convolution: q, k, v;
                                          * overwritten if n > 1 */
    float *ba;                           /* [n, 2 * n_v]: for each key head ratio betas, then ratio
                                          * alphas; or, if apart, all betas, then all alphas;
                                          * overwritten if n > 1 */
    bool apart;
    bool tiled;                          /* value head h is of key head h % n_k, not h / ratio */
    const float *dt_bias, *a;            /* [n_v] */
    float *state;                        /* [n_v, dim (of keys), dim (of values)] */
    int n_k, n_v, dim;
    int n, pos;                          /* tokens; position of the first one */
    void *scratch;                       /* gpu_delta_scratch() bytes; NULL: no chunks */
} gpu_delta;
bool gpu_delta_fits(int dim);
/* For batches of up to n tokens; 0 if they hold no chunk or the chip cannot. */
size_t gpu_delta_scratch(const gpu *g, int n_k, int n_v, int dim, int n);
void gpu_delta_rule(gpu *g, const gpu_delta *d);

/* Parts of a layer that are normed before they join the residual stream:
 * x = scale * (x + norm(part 0 + part 1)). Each part may have a norm of its own before that. Norms
 * are v / rms(v) * gain. */
typedef struct gpu_normed {
    float *x;                            /* [n, cols] */
    const float *part[2];                /* [n, cols]; the second may be NULL */
    const float *part_gain[2];           /* [cols], or NULL: the part is taken as it is */
    const float *gain;                   /* [cols] */
    float eps, scale;
    float *clear;                        /* NULL, or [n, cols], or a part: becomes zeros */
    int n, cols;
} gpu_normed;
void gpu_add_normed(gpu *g, const gpu_normed *a);

/* How logits become a choice and weights, as router_rule in moe/router.h has it. All of it 0: the
 * usual softmax over the chosen ones. What is not usual has the bits of router_select. */
typedef struct gpu_router_rule {
    bool sigmoid;                        /* scores by a sigmoid; else a softmax over all */
    bool as_scored;                      /* weights are the scores; else divided by their sum */
    float factor;                        /* of all weights; 0: 1 */
    const float *bias;                   /* [n_expert], added to scores for the choice alone; or
                                          * NULL: the logits choose */
} gpu_router_rule;
/* Whether experts can be chosen where they are needed: see gpu_expert_args. */
static inline bool gpu_rule_can_wait(const gpu_router_rule *r) { return !r->bias || r->sigmoid; }

/* Router logits of the normed vectors, the k largest of them and their weights. With a shared
 * expert also its gate. */
typedef struct gpu_route_args {
    gpu_matrix router;                   /* rows: experts, at most 1024 */
    gpu_router_rule rule;
    gpu_matrix shared_gate;              /* one row, or absent */
    int k;                               /* at most 32 */
    float *logits;                       /* [n, n_expert] */
    int32_t *ids;                        /* [n, k] in the order of selection; NULL: the logits are
                                          * enough (see gpu_expert_args) */
    float *gates;                        /* [n, k] */
    float *keys;                         /* NULL, or, if ids is, [n, n_expert]: get what is compared
                                          * where sigmoids and a bias decide */
    float *sigma;                        /* [n]: sigmoid of the shared gate's row */
    /* Other inputs of as many vectors, or NULL, that later operations read, with blocks: for up to
     * GPU_FEW vectors and a router of floats their finished forms are made meanwhile. */
    gpu_input *also[2];
} gpu_route_args;
void gpu_route(gpu *g, gpu_input *in, const gpu_route_args *a);

/* What joins gate and up before down: expert_activation in moe/expert.h. */
typedef enum gpu_activation { GPU_SWIGLU, GPU_SWIGLU_CLAMPED, GPU_GEGLU } gpu_activation;

/* One network that all tokens go through, instead of a layer's experts or beside them:
 * y = sigma * down(activation(gate in, up in)). Of up to GPU_FEW tokens gate and up follow the
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

typedef struct gpu_bank {                /* one slab of all experts of a layer */
    int type, rows, cols;
    const uint8_t *data;                 /* expert e begins at data + e * slab_bytes */
    uint64_t row_bytes, slab_bytes;
    const float *bias;                   /* [n_expert, rows], or NULL */
    const float *scale;                  /* [n_expert], or NULL: 1 */
} gpu_bank;

#define GPU_SLAB_ALIGN ((uint64_t)16)

/* The chosen experts, the shared one beside them, and the sum of both into the residual stream:
 * x += sum over the selection of gates * expert(in), + sigma * shared(in). The chosen experts of up
 * to GPU_FEW tokens by the arithmetic contract, and the shared one where its types allow it. */
typedef struct gpu_expert_args {
    float *x;                            /* [n, n_embd] */
    gpu_bank gate, up, down;             /* gate and up of one type, here and in the shared one */
    gpu_activation act;                  /* here and in the shared one */
    gpu_matrix shared_gate, shared_up, shared_down;      /* data NULL: none */
    const float *sigma;                  /* [n]: what the shared one is multiplied by */
    const int32_t *ids;                  /* [n, k]; NULL if n <= GPU_FEW and the rule can wait:
                                          * chosen from keys or logits */
    const float *gates;
    const float *logits;                 /* [n, n_expert] as gpu_route left them */
    const float *keys;                   /* likewise, or NULL if the rule has no bias */
    gpu_router_rule rule;                /* of that choice */
    int n_expert, k;
    void *scratch;                       /* gpu_expert_scratch() bytes */
    float *y;                            /* NULL, or [n, k, n_embd]: gets every expert's vector */
    /* n > GPU_FEW: only experts first .. first + count - 1, whose slabs begin at the banks' data. A
     * layer takes calls in ascending order, from expert 0 to the last, that differ only in these
     * two and data, with no other use of the scratch in between; the last one takes the sum. count
     * 0: all. */
    int first, count;
    /* n > GPU_FEW: experts that lie here and there, in an order of the caller's, which first and
     * count then speak of. at NULL: they are as the banks say. */
    const uint64_t *at;                  /* [n_expert, 3] addresses of an expert's gate, up, down,
                                          * multiples of GPU_SLAB_ALIGN */
    const int32_t *order, *rank;         /* [n_expert]: the expert of each rank; the rank of each */
    /* n > GPU_FEW: NULL, or page-locked [n_expert]: how many slots chose each expert; complete when
     * the call with first 0 is */
    int32_t *counts;
    /* n > GPU_FEW: NULL, or [n, n_embd] sums of the routed experts, computed elsewhere; the banks
     * are ignored */
    const float *sums;
    /* n > GPU_FEW: weights in blocks follow the contract here, too, so that the bits are those of
     * few tokens; else 16-bit activations. Float weights always have the latter, or exact F32 */
    bool contract;
    /* gpu_experts_with_host alone: NULL, or a network of the same tokens that is computed while the
     * host computes experts. Memory that it writes, its input's included, is its own. */
    gpu_input *partial_in;
    const gpu_network_args *beside;
} gpu_expert_args;
/* n_ff: the wider of routed and shared experts. */
size_t gpu_expert_scratch(const gpu *g, int n, int k, int n_expert, int n_ff, int n_embd);
void gpu_experts(gpu *g, gpu_input *in, const gpu_expert_args *a);

/* Ends a layer whose calls stopped before the last expert, because the host computed the others:
 * the sum of all, in the order of selection, as the last call would have taken it. row, page-locked
 * [n, k]: which of the vectors cold, page-locked [., n_embd], is the slot's; -1: the calls left it.
 * in, and of `a` all but first and count, as in these calls. row and cold must stay as they are
 * until the operation is complete. */
void gpu_experts_join(gpu *g, const gpu_input *in, const gpu_expert_args *a, const float *cold,
                      const int32_t *row);

/* ---- a layer's experts in two places --------------------------------------------------------- */

/* Where a chosen expert is computed. The device decides and tells the host. */
typedef enum gpu_where {
    GPU_HOT,                             /* in VRAM: by the device */
    GPU_COLD,                            /* by the host, whole */
    GPU_COLD_FETCHED,                    /* gate and up by the host, while down crosses the bus */
    GPU_FETCHED                          /* all of it crosses the bus: by the device */
} gpu_where;

enum { GPU_MOST_USED = 32,               /* experts chosen for a token */
       GPU_FETCH_COUNTS = GPU_MOST_USED + 1, GPU_MOST_CHOICES = GPU_FEW * GPU_MOST_USED };

/* One layer's question to the host, and the reply, in page-locked RAM. Slot t * k + r is the r-th
 * choice of token t. Words that are polled have cache lines of their own.
 *
 * Questions are numbered from 1 on, modulo 2^28. A layer whose chosen experts are all GPU_HOT is
 * quiet: it only counts, writes GPU_QUIET with its number, and goes on without a reply. So the host
 * may miss the numbers of quiet layers, but never that of a question that wants a reply. */
#define GPU_CODES 2u
#define GPU_QUIET 1u
#define GPU_NUMBERS 0x0FFFFFFFu
typedef struct gpu_mailbox {
    volatile uint32_t asked;             /* the last question's number * GPU_CODES, + GPU_QUIET if
                                          * the layer is quiet; else written after all of it */
    uint8_t apart_1[124];
    volatile uint32_t answered;          /* the same number, written after all of the reply */
    uint8_t apart_2[124];
    volatile uint64_t predicted;         /* the last prediction: gpu_predicted */
    uint8_t apart_3[120];
    /* [slot]: number of the question whose down slab is in the pad */
    volatile uint32_t fetched[GPU_MOST_USED];
    volatile uint64_t fetch_ns;          /* how long the last fetching took; the host clears it */
    int32_t n, k;                        /* the question: tokens, choices of each */
    int32_t ids[GPU_MOST_CHOICES];       /* [n, k] in the order of selection */
    uint8_t where[GPU_MOST_CHOICES];     /* gpu_where */
    /* the reply: for GPU_COLD the vector is in y; for GPU_COLD_FETCHED either that (by_host), or
     * the activations after gate and up are in mid and mid_rows */
    uint8_t by_host[GPU_MOST_CHOICES];
    float *x;                            /* [n, n_embd] the normed vectors; of quiet layers, too */
    uint8_t *mid;                        /* [slot] int8 forms, gpu_blocks_bytes(n_ff) each */
    float *mid_rows;                     /* [slot, n_ff]; needed only where down has floats */
    float *y;                            /* [slot, n_embd] */
    int n_embd, n_ff;
} gpu_mailbox;

/* A prediction is one word: the number of the question that it is about (its lower bits), and the
 * cold experts that will probably be in that question, the likeliest first. */
enum {
    GPU_MOST_PREDICTED = 4,
    GPU_PREDICTED_BITS = 10,
    GPU_PREDICTED_COUNT = GPU_MOST_PREDICTED * GPU_PREDICTED_BITS,
    GPU_PREDICTED_NUMBER = GPU_PREDICTED_COUNT + 4
};
/* How many; 0 if it is about another question. */
static inline int gpu_predicted(int32_t ids[GPU_MOST_PREDICTED], uint64_t word, uint32_t number)
{
    const int n = (int)(word >> GPU_PREDICTED_COUNT & 15);
    if ((word ^ (uint64_t)number << GPU_PREDICTED_NUMBER) >> GPU_PREDICTED_NUMBER) return 0;
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(word >> i * GPU_PREDICTED_BITS & ((1 << GPU_PREDICTED_BITS) - 1));
    return n;
}

/* For up to GPU_FEW tokens of k choices. */
int gpu_mailbox_create(gpu_mailbox **out, gpu *g, int n_embd, int n_ff, int k, err_ctx *err);
void gpu_mailbox_free(gpu *g, gpu_mailbox *m); /* NULL is fine */

/* The host's part: activations of a slot as engine/host/ops.h keeps them (codes of 32, scale and
 * two sums of each block) into mid. */
void gpu_mailbox_put_mid(gpu_mailbox *m, int slot, const int8_t *q, const float *dx,
                         const int16_t *sums);

/* What gpu_experts does, with some of the experts elsewhere. All of these are operations of the
 * stream (and of a second one beside it) and can be recorded: choose the experts and ask; fetch;
 * compute the hot experts and the shared one; wait for the reply; down, and the sum in the router's
 * order. The bits are those of gpu_experts. The host must reply to every question that is not
 * quiet: gpu_set_host_limit says what happens otherwise. At most GPU_FEW tokens; only a single one
 * has slabs fetched. */
/* Predicts the next layer's experts by its router, from this layer's vectors. Those that are not in
 * VRAM are named to the host, unless that layer has asked already. */
typedef struct gpu_predict {
    gpu_matrix router;                   /* the next layer's, of floats; data NULL: no
                                          * prediction */
    gpu_router_rule rule;
    const float *norm, *next_norm;       /* [n_embd] of this layer's input and of the next one's */
    const int32_t *hot;                  /* of the next layer, as in gpu_with_host */
} gpu_predict;

typedef struct gpu_with_host {
    gpu_mailbox *mailbox;
    uint32_t *number;                    /* device: of the last question; 0 to begin with */
    const int32_t *hot;                  /* device [n_expert]: index of an expert in the banks of
                                          * gpu_expert_args, or -1; NULL: all are -1 */
    const uint64_t *slabs;               /* [n_expert, 3] addresses of gate, up, down in page-locked
                                          * RAM, 0: not there; in RAM or VRAM. NULL: no fetching */
    const uint8_t *fetch;                /* device [2, GPU_FETCH_COUNTS]: of m cold experts
                                          * fetch[GPU_FETCH_COUNTS + m] are fetched whole, then
                                          * fetch[m] have their down slabs fetched, as far as they
                                          * are there and the pad has room */
    uint32_t *chosen;                    /* NULL, or page-locked [n * k]: its choices, quiet or not,
                                          * as id | gpu_where << 16; complete when the
                                          * operation is, or with the number of a question, of
                                          * its own layer or a later one, or of one that
                                          * closes */
    bool closes;                         /* the token's last: its number says, asked or not, that
                                          * all choices of the token are in RAM */
    uint8_t *pad;                      /* VRAM that slabs are fetched to, gpu_with_host_pad bytes */
    int pad_down, pad_all;               /* most slots fetched of either kind */
    bool one_stream;                     /* fetch before the hot experts, not at the same time; then
                                          * there are no predictions */
    void *scratch;                       /* gpu_with_host_scratch bytes, zero to begin with */
    gpu_predict next;
    int prediction_layer;                /* index of this layer in prediction_state */
    void *prediction_state;              /* gpu_prediction_state bytes, zero to begin with; the same
                                          * for all layers. NULL: no predictions are made */
} gpu_with_host;
bool gpu_prediction_fits(int router_type);
size_t gpu_prediction_state(int n_expert, int n_embd, int n_layer);
size_t gpu_with_host_pad(const gpu_expert_args *a, int pad_down, int pad_all);
size_t gpu_with_host_scratch(int k, int n_ff, int n_embd);
/* The banks of `a` carry type, shape and small vectors; data may be NULL if hot is. */
void gpu_experts_with_host(gpu *g, gpu_input *in, const gpu_expert_args *a, const gpu_with_host *s);

/* The same for more than GPU_FEW tokens, and without questions: the host knows the choices and the
 * map, and computes the cold experts while the device computes the hot ones. begin leaves the hot
 * experts' vectors in the scratch; end takes the sum of tokens first .. first + n - 1, in the
 * router's order, and may be called for some tokens after others; then gpu_experts takes the sums.
 * The vectors are those of the arithmetic contract, wherever they come from, so the bits do not
 * depend on the map. The map must stay as it is from begin to the last end, and nothing else may
 * use the scratch. */
/* Reads in, ids, gates and the banks of `a`, whose data hot ([n_expert], as in gpu_with_host)
 * speaks of. */
void gpu_experts_partial_begin(gpu *g, gpu_input *in, const gpu_expert_args *a, const int32_t *hot);
/* sums [in->n, n_embd]. cold: page-locked [n * k, n_embd], the vectors of slots first * k and on;
 * those of hot experts are not read. It must stay as it is until the operation is complete. */
void gpu_experts_partial_end(gpu *g, const gpu_input *in, const gpu_expert_args *a,
                             const int32_t *hot, float *sums, const float *cold, int first, int n);

/* Between gpu_route, which was asked for logits alone, and gpu_experts_with_host: drops those of
 * the chosen experts that are not in VRAM, unless all would be. Weights are made of the
 * remaining experts' own logits. A slot that was dropped comes after the others, with weight 0
 * and the token's first expert: it asks the host for nothing. Where all of the choice is in
 * VRAM, or none, the result has the bits of the model's own choice. */
typedef struct gpu_prefer {
    float *logits;                       /* [n, n_expert]; of no use afterwards */
    gpu_router_rule rule;
    const int32_t *hot;                  /* [n_expert]: as in gpu_with_host */
    int n, n_expert, k;                  /* at most GPU_FEW, 1024, 32 */
    int32_t *ids;                        /* [n, k], for gpu_expert_args */
    float *gates;                        /* [n, k] */
    uint32_t *wanted;                    /* NULL, or page-locked [n * k]: what the model itself
                                          * would have chosen, as id | gpu_where << 16, with GPU_HOT
                                          * or GPU_COLD; complete when the operation is */
} gpu_prefer;
void gpu_prefer_hot(gpu *g, const gpu_prefer *a);

/* Whether the stream still runs without a failure, so that a question may yet come. Cheap enough to
 * call every millisecond. */
bool gpu_alive(gpu *g);
/* Polls of page-locked RAM between two such calls; a power of two. Few on a simulated device, whose
 * threads need the core of the thread that polls. */
uint32_t gpu_polls(const gpu *g);

/* ---- memory of the host that the device may read --------------------------------------------- */

/* A copy must not reach from one locked piece of memory into another: pieces begin and end at
 * addresses that are multiples of this, and gpu_stage_copy cuts there. */
#define GPU_LOCK_PIECE ((uint64_t)1 << 30)

/* Page-locks memory of the caller's (whole pages), or refuses with ERR_NOMEM. */
int gpu_lock(gpu *g, void *p, uint64_t bytes, err_ctx *err);
void gpu_unlock(gpu *g, void *p);

/* ---- banks that pass through VRAM ------------------------------------------------------------ */

/* Two or more buffers in VRAM that a separate copy engine fills while operations read others. */
typedef struct gpu_stage gpu_stage;
int gpu_stage_create(gpu_stage **out, gpu *g, int n_buffer, uint64_t bytes, err_ctx *err);
void gpu_stage_free(gpu *g, gpu_stage *s);       /* NULL is fine; waits */
uint8_t *gpu_stage_buffer(const gpu_stage *s, int i);
/* Copies to buffer i, at offset, in order, after the operations before gpu_stage_done(i) have read
 * it. from should be page-locked, and must not change until gpu_stage_sent(i). */
void gpu_stage_copy(gpu *g, gpu_stage *s, int i, uint64_t offset, const void *from, uint64_t bytes);
void gpu_stage_ready(gpu *g, gpu_stage *s, int i);       /* operations from here on see what was
                                                          * copied to buffer i before */
void gpu_stage_done(gpu *g, gpu_stage *s, int i);        /* operations until here read buffer i */
int gpu_stage_sent(gpu *g, gpu_stage *s, int i, err_ctx *err);   /* waits for the copies to i */

/* ---- experts that change places -------------------------------------------------------------- */

/* Copies from page-locked RAM to VRAM, and back (save), beside all operations, one after the other,
 * by a copy engine. The caller sees to it that nobody reads what is overwritten, and that `from`
 * stays. */
typedef struct gpu_copy_queue gpu_copy_queue;
int gpu_copy_queue_create(gpu_copy_queue **out, gpu *g, int n_mark, err_ctx *err);
void gpu_copy_queue_free(gpu *g, gpu_copy_queue *m);  /* NULL is fine; waits */
void gpu_copy_queue_copy(gpu *g, gpu_copy_queue *m, void *to, const void *from, uint64_t bytes);
void gpu_copy_queue_save(gpu *g, gpu_copy_queue *m, void *to, const void *from, uint64_t bytes);
void gpu_copy_queue_record(gpu *g, gpu_copy_queue *m, int i);  /* after the copies so far */
/* 1: the copies before mark i have arrived, for the host and for whatever operation is called from
 * now on; 0: not yet; < 0: failure. */
int gpu_copy_queue_passed(gpu *g, gpu_copy_queue *m, int i, err_ctx *err);

/* An operation: copies within VRAM, in any order, so that no job may touch what another reads or
 * writes. jobs is in page-locked RAM and stays as it is until then. */
typedef struct gpu_move {
    uint64_t to, from, bytes;            /* addresses */
} gpu_move;
void gpu_moves(gpu *g, const gpu_move *jobs, int n);

/* Points in the stream that the host can wait for without waiting for all of it. */
typedef struct gpu_events gpu_events;
int gpu_events_create(gpu_events **out, gpu *g, int n, err_ctx *err);
void gpu_events_free(gpu_events *m);     /* NULL is fine */
void gpu_events_record(gpu *g, gpu_events *m, int i);    /* an operation */
int gpu_events_wait(gpu *g, gpu_events *m, int i, err_ctx *err);

/* ---- links ----------------------------------------------------------------------------------- */

/* What each link gives while nothing else runs. Measuring takes about 0.3 s, 128 MB of page-locked
 * RAM and a gigabyte of VRAM meanwhile. */
typedef struct gpu_links {
    double vram_read;                    /* bytes/s: a kernel that only reads VRAM */
    double pcie_in, pcie_out;            /* copy engine, page-locked RAM to VRAM and back */
    double pull;                         /* a kernel that reads page-locked RAM */
    double hop;                          /* s from one question to the host to the next, in a
                                          * recording, if the reply takes no time */
} gpu_links;
int gpu_measure_links(gpu_links *out, gpu *g, err_ctx *err);

/* A kernel beside all operations that reads page-locked RAM (GPU_LOAD_LEAST bytes or more, which
 * should be more than caches hold) again and again from begin to end, while the caller does
 * something else; end tells how fast it was and frees it. Until then allocate or free no device
 * memory: that would wait for the kernel. */
#define GPU_LOAD_LEAST ((uint64_t)16 << 20)
typedef struct gpu_load gpu_load;
int gpu_load_begin(gpu_load **out, gpu *g, const void *ram, uint64_t bytes, err_ctx *err);
int gpu_load_end(gpu_load *l, double *bytes_per_s, err_ctx *err);        /* NULL is fine */

/* ---- after the last layer -------------------------------------------------------------------- */

/* x = cap * tanh(x / cap), n values, with the bits of engine/cpu/. */
void gpu_soft_cap(gpu *g, float *x, uint64_t n, float cap);

/* The largest of n logits (the first of equals), to at->token and to *seen (page-locked RAM, or
 * NULL) as (id | stamp << 32), where stamp is pos + 1 modulo 2^31; an all-NaN row gives 0. counter:
 * one, zero before and after. best: GPU_LARGEST_WORDS of scratch. */
enum { GPU_LARGEST_WORDS = 2 * 1024 };
void gpu_largest(gpu *g, const float *logits, int n, gpu_cursor *at, uint64_t *seen, uint32_t *best,
                 uint32_t *counter);

void gpu_advance(gpu *g, gpu_cursor *at, int n);         /* pos += n */

/* What a sampler asks about a row of logits; rules and bits are those of
 * engine/session/sampler.h. */
enum { GPU_SHORTLIST_BLOCK = 64, GPU_SHORTLIST_LANES = 8, GPU_SHORTLIST_STEPS = 256 };
typedef struct gpu_shortlist {
    const float *logits, *bias;          /* [n] */
    const uint64_t *allowed;             /* [blocks]: bit i of word b is of id 64 b + i, others are
                                          * out; may be in page-locked RAM. NULL: all */
    int n;
    const int32_t *seen;                 /* [n_seen, 2]: id, how often */
    int n_seen;
    double repeat, presence, frequency;
    double per_temperature;
    const double *steps;                 /* [GPU_SHORTLIST_STEPS] */
    float *work;                         /* [n, rounded up to blocks]: gets the logits after biases
                                          * and penalties */
    uint32_t *top;                       /* one: gets the largest of all, for gather_top */
    float *maxima;                       /* [blocks] */
    double *masses;                      /* [blocks], or NULL: not wanted */
} gpu_shortlist;
void gpu_shortlist_make(gpu *g, const gpu_shortlist *s);

/* All of work that are not below bound and not -INFINITY, in any order, at most cap of them; *count
 * gets how many there are. */
typedef struct gpu_pair { int32_t id; float logit; } gpu_pair;
void gpu_shortlist_gather(gpu *g, const gpu_shortlist *s, float bound, gpu_pair *to, int cap,
                          uint32_t *count);
/* The same with the largest of all as the bound, which nobody has to wait for first. */
void gpu_shortlist_gather_top(gpu *g, const gpu_shortlist *s, gpu_pair *to, int cap,
                              uint32_t *count);

#ifdef __cplusplus
}
#endif
#endif
