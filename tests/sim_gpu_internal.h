/* sim_gpu_internal.h - what the files of the simulated GPU share.
 *
 *   sim_gpu.c          the card: its memory, page-locked RAM, what lies where
 *   sim_gpu_stream.c   streams: threads with a queue; operations, recordings, waiting, copies
 *   sim_gpu_stage.c    stages and links
 *   sim_gpu_copy_queue.c    experts that are exchanged; events
 *   sim_gpu_products.c inputs and products
 *   sim_gpu_mixers.c   attention and the delta rule
 *   sim_gpu_token.c    the two ends of a token: embedding, rotation, router, pick, sampling
 *   sim_gpu_network.c  a network for all tokens
 *   sim_gpu_experts.c  experts that are in VRAM
 *   sim_gpu_experts_with_host.c    cold experts on the host
 *   sim_gpu_experts_partial.c   ... for more than GPU_FEW tokens
 *   sim_gpu_prefer.c   a choice of them that looks at what is in VRAM
 *
 * An operation is put together on the caller's thread: what it reads and writes is claimed, and its
 * arguments are copied. Claims are checked when it is called and whenever a recording of it is
 * played; then a stream's thread runs it. What depends on data is checked there. Memory that an
 * operation needs for itself is malloc's: it is no memory of the engine's, which must not allocate
 * in the token loop. */
#ifndef TESTS_SIM_GPU_INTERNAL_H
#define TESTS_SIM_GPU_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda/gpu_experts.h"
#include "engine/host/ops.h"
#include "moe/router.h"
#include "tests/sim_gpu.h"

/* ---- the card: sim_gpu.c --------------------------------------------------------------------- */

/* Whether all of it is in one allocation of the device's VRAM; in one of those or one piece of
 * page-locked RAM; in either, piece after piece. By any thread. */
bool sim_in_vram(const gpu *g, const void *p, uint64_t bytes);
bool sim_in_one_piece(const gpu *g, const void *p, uint64_t bytes);  /* VRAM or page-locked RAM */
bool sim_is_reachable(const gpu *g, const void *p, uint64_t bytes);
/* Memory of the driver's; false: there is not so much left. */
bool sim_take_vram(int device, uint64_t bytes);
void sim_return_vram(int device, uint64_t bytes);
bool sim_touches_locked(const void *p, uint64_t bytes);  /* any of it is page-locked */

int sim_sms(const gpu_info *info);       /* in use, by gpu_limit_sms */

/* Operations never write to this allocation, and read it only while *readable is true. */
void sim_guard_vram(const void *p, const bool *readable);
bool sim_may_use(const void *p, bool write);

void *sim_room(size_t n, size_t size);   /* malloc; ends the program if there is none */

/* ---- streams and operations: sim_gpu_stream.c ------------------------------------------------ */

typedef enum sim_use {
    SIM_READ, SIM_WRITE, SIM_AHEAD       /* read, perhaps before the previous operation has ended */
} sim_use;

typedef struct sim_claim {
    const char *what;
    const void *at;
    uint64_t bytes;
    sim_use use;
    bool any;                            /* page-locked RAM will do */
} sim_claim;

typedef void sim_fn(gpu *g, void *args);

typedef struct sim_op sim_op;
struct sim_op {
    sim_op *next;
    const char *name;
    uint64_t bytes;                      /* for profiles */
    int span;                            /* of the profile, or -1 */
    bool always;                         /* also after a failure */
    sim_fn *run;
    void *args;
    sim_claim *claims;
    int n_claim;
};

/* An operation being put together. */
enum { SIM_MAX_CLAIMS = 64 };
typedef struct sim_call {
    gpu *g;
    const char *name;
    uint64_t bytes;
    int n_claim;
    sim_claim claims[SIM_MAX_CLAIMS];
} sim_call;

sim_call sim_begin(gpu *g, const char *name);
/* Each is ignored if at is NULL. */
void sim_reads(sim_call *c, const char *what, const void *at, uint64_t bytes);
void sim_writes(sim_call *c, const char *what, const void *at, uint64_t bytes);
void sim_reads_ahead(sim_call *c, const char *what, const void *at, uint64_t bytes);
void sim_reads_any(sim_call *c, const char *what, const void *at, uint64_t bytes);
void sim_writes_any(sim_call *c, const char *what, const void *at, uint64_t bytes);
void sim_end(sim_call *c, sim_fn *run, const void *args, size_t arg_bytes);

/* Keeps the first failure; by any thread. */
void sim_fail(gpu *g, const char *fmt, ...) PRINTF_LIKE(2, 3);
bool sim_failed(const gpu *g);
int sim_report(gpu *g, err_ctx *err);
bool sim_is_closing(const gpu *g);       /* no host thread will reply any more */

/* By the stream's thread: the host has not answered within the limit since begun, or earlier. Then
 * the failure is noted, and operations go on as a real device's do. */
bool sim_host_is_late(gpu *g, uint64_t begun);

/* A thread with a queue. */
typedef struct sim_stream {
    gpu *g;
    pthread_t thread;
    bool started;
    sim_op *first, **last;               /* guarded by the gpu's lock, as is all that follows */
    uint64_t n_put, n_done;
    bool quit;
} sim_stream;

int sim_stream_start(sim_stream *s, gpu *g, err_ctx *err);
void sim_stream_stop(sim_stream *s);     /* after the last operation; accepts a zeroed one */
void sim_stream_put(sim_stream *s, sim_op *op);
void sim_stream_drain(sim_stream *s);
sim_stream *sim_main_stream(gpu *g);
int sim_device(const gpu *g);
bool sim_is_recording(const gpu *g);
sim_op *sim_op_make(const char *name, sim_fn *run, const void *args, size_t arg_bytes);

/* A point in a stream that others wait for: the one that was noted last. */
typedef struct sim_event {
    uint64_t noted;                      /* by the caller's thread */
    uint64_t reached;                    /* guarded by the gpu's lock */
} sim_event;

void sim_event_note(sim_event *e, sim_stream *s);
void sim_event_await(sim_event *e, sim_stream *s);       /* what follows in s waits */
void sim_event_wait(sim_event *e, gpu *g);               /* the caller waits */
bool sim_event_reached(const sim_event *e, gpu *g);      /* the caller looks */

/* ---- products: sim_gpu_products.c ------------------------------------------------------------ */

const ops *sim_ops(void);                /* the fastest kernels and loops here; no team */

/* Vectors made ready for products. x is borrowed. */
typedef struct sim_vectors {
    acts a;
    void *storage;
    bool lows;                           /* tensor cores get what 16 bits leave out, too */
    bool few;                            /* gpu_is_few */
} sim_vectors;
sim_vectors sim_vectors_make(const float *x, int n, int cols);
void sim_vectors_free(sim_vectors *v);

matrix sim_matrix(const gpu_matrix *m);
/* y[i] [w->rows] = w x[i] */
void sim_multiply(float *const *y, const matrix *w, const act_row *x, int n);
/* y [n, y_stride], from whole vectors */
void sim_multiply_all(float *y, size_t y_stride, const matrix *w, const sim_vectors *x);

/* To 16-bit floats and back; lows: to sums of two. */
void sim_round_halves(float *x, size_t n, bool lows);

/* The int8 form of activations.cuh: cols / 32 times 16 codes, the other 16 of each block, scales,
 * two sums of each. */
void sim_blocks_put(uint8_t *to, int cols, const int8_t *q, const float *dx, const int16_t *sums);
void sim_blocks_get(int8_t *q, float *dx, int16_t *sums, const uint8_t *from, int cols);

/* The finished vectors of an input, [n, cols], computed anew from x; to be freed. If the input says
 * that they were left somewhere, that copy must say the same: else the gpu fails and this is
 * NULL. */
float *sim_finished(gpu *g, const gpu_input *in);

void sim_claim_input(sim_call *c, const gpu_input *in);
void sim_claim_matrix(sim_call *c, const char *what, const gpu_matrix *m);
bool sim_is_float(int type);
/* What cuda/prepare.cu does for many vectors, and cuda/experts.cu for few. */
void sim_prepare_many(gpu *g, gpu_input *in, bool rows, bool halves);
void sim_prepare_few(gpu *g, gpu_input *in);
void sim_leave_few(const gpu_input *in, const float *rows);      /* rows and blocks */

/* Scratch of an operation: NaNs, as far as that is cheap. */
void sim_clobber(void *p, uint64_t bytes);

/* ---- recurrent memory: sim_gpu_mixers.c ------------------------------------------------------ */

/* Tokens of a conversation of the list, of `left` that are left of the batch. */
static inline int sim_row_tokens(const gpu_cursor *row, int left)
{
    return row->n > 0 ? min_int(row->n, left) : left;
}

/* n floats at an offset of the memory that the batch writes, as they were before it; or NULL, and
 * the gpu fails. */
float *sim_recurrent(gpu *g, const gpu_cursor *at, uint64_t offset, size_t n);

/* ---- experts: sim_gpu_experts.c -------------------------------------------------------------- */

/* One expert's slabs, at any address. */
typedef struct sim_expert { matrix gate, up, down; } sim_expert;
matrix sim_slab(const gpu_bank *b, int expert, const uint8_t *at);

/* mid[i] [n_ff] = the activations of x[i] */
void sim_expert_up(float *const *mid, const sim_expert *e, const act_row *x, int n,
                   gpu_activation act);
/* Which bits vectors have: the CPU's; the contract's for weights in blocks; those of tensor cores.
 * These may keep what 16 bits leave out. */
typedef enum sim_bits {
    SIM_BITS_FEW, SIM_BITS_CONTRACT = 1, SIM_BITS_ANY = 2, SIM_BITS_LOWS = 4
} sim_bits;
/* y[i] [n_embd] = expert e of x[i] */
void sim_expert_whole(float *const *y, const sim_expert *e, const act_row *x, int n,
                      gpu_activation act, sim_bits bits);

router_rule sim_rule(const gpu_router_rule *r);
bool sim_choose(gpu *g, int32_t *ids, float *gates, const gpu_expert_args *a, int t);
/* [n, n_embd], to be freed, or NULL: there is none. */
float *sim_shared(const gpu_expert_args *a, const sim_vectors *x);
void sim_claim_experts(sim_call *c, const gpu_input *in, const gpu_expert_args *a, bool banks);
/* x += gates * y, + sigma * shared, of token t; y [k, n_embd] is left in a->y, too. */
void sim_join(const gpu_expert_args *a, int t, const float *y, const float *gates,
              const float *shared);

#endif
