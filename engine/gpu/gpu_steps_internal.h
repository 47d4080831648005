/* gpu_steps_internal.h - what gpu_steps.c, gpu_layers.c and gpu_recordings.c share; for them
 * alone. */
#ifndef ENGINE_GPU_GPU_STEPS_INTERNAL_H
#define ENGINE_GPU_GPU_STEPS_INTERNAL_H

#include "engine/engine_internal.h"
#include "engine/gpu/gpu_buffers.h"
#include "engine/gpu/gpu_sampling.h"
#include "engine/gpu/gpu_steps.h"

/* Page-locked messages between device and host. */
typedef struct mailbox {
    uint64_t picked;                     /* from the device: the picked token, with its stamp */
    gpu_cursor cursors[GPU_RECORDED];    /* to the device, as the next */
    int32_t ids[GPU_RECORDED];
} mailbox;

/* A batch's vectors for the host, and the host's sums; page-locked. */
typedef struct host_transfer {
    float *x, *sums;                     /* [n, n_embd] */
    float *gates;                        /* [n, k] */
    int32_t *ids;
    void *memory;                        /* NULL: the device computes everything */
} host_transfer;

enum { CHOICES_SENT, VECTORS_TAKEN, N_EVENTS };          /* of prompts that the host computes */

/* A pass of up to GPU_RECORDED tokens and their logits, for any sessions; of one token, also the
 * pick after it. */
typedef struct recorded_pass {
    gpu_recording *r;
    int n, kind, reach;                  /* what its kernels depend on; reach 0: not recorded */
    uint64_t used;                       /* the pass that used it last */
} recorded_pass;

enum { RECORDINGS = 12 };                /* most that are kept */

struct gpu_steps {
    layer_steps live, replay_table;
    const engine *e;
    gpu *g;                              /* of e, as are m and w */
    const model *m;
    const weights_gpu *w;
    expert_server *server;               /* NULL: all experts of the GPU's layers are in VRAM */
    bool skip_missing;
    gpu_buffers b;
    mailbox *mailbox;
    host_transfer host_transfer;
    gpu_events *events;                  /* NULL: the host computes nothing */
    gpu_sampling sampling;
    expert_stream *banks;                /* NULL: cold experts never pass through VRAM */
    prompt_split *split;                 /* NULL: prompts are never split */
    recorded_pass recordings[RECORDINGS];
    uint64_t n_pass;                     /* passes so far that could be recorded */
    uint64_t retry_at;                   /* VRAM was too small for one: no attempt before this
                                          * pass */
    bool recording, profiling;
    bool refusal_logged;                 /* VRAM was too small for a recording */
    bool has_cold;                       /* some experts of the GPU's layers are not in VRAM */
    gpu_cursor device_cursor;            /* the device's first cursor; token -1: unknown */

    /* the batch under way */
    batch_row rows[GPU_RECORDED];
    int n_row;
    bool in_pass;
    int n, last;
    bool has_questions, watched;         /* the host is asked; the batch has a watcher */
    bool has_logits;                     /* those of all its tokens are in the buffer */
    kept_inputs *keep;                   /* batch.keep */
    bool of_mtp;                         /* a batch of the next-token block */
    bool contract;                       /* with many tokens: experts have the contract's bits */
    gpu_input h;                         /* input of the layer's router and experts */
    gpu_expert_args experts;
    gpu_input parallel_in;               /* input of the parallel network, for few tokens */
    gpu_network_args parallel;           /* y NULL unless it runs while the host is asked */
    double waited_s;                     /* for the ends of single tokens, without the sampler's */
    int failed;                          /* first failure of the host's half of a replayed token */
    err_ctx failure;                     /* its message */
};

/* ---- gpu_layers.c ---- */

/* The steps of a layer: mix, route, experts and join. */
void gpu_layers_fill(layer_steps *table);
/* Reports a layer's keys and values as stored: enqueued operations do it before any other reads
 * them. */
void gpu_layers_note_written(void *self, int layer);

/* The batch's vectors x as they are, and a product y = w x. */
gpu_input gpu_layers_input(const gpu_steps *s, const char *name, const float *x, int cols);
gpu_product gpu_layers_product(float *y, const gpu_matrix *w);
/* Vectors x of n_embd values, normed. */
gpu_input gpu_layers_normed(const gpu_steps *s, const char *name, const float *x,
                            const float *gain);

/* ---- gpu_steps.c ---- */

void gpu_steps_take_batch(gpu_steps *s, const batch *b);
/* The device's cursor at the batch under way, of one row, before this token. */
gpu_cursor gpu_steps_cursor(const gpu_steps *s, int32_t token);
/* Sets the device's cursors to the batch under way; token, of one row: the first one's, or -1. */
void gpu_steps_set_cursors(gpu_steps *s, int32_t token);
/* Sends the ids of few tokens, like the cursors. */
void gpu_steps_send_ids(gpu_steps *s, const int32_t *ids, int n);
/* Logits of n vectors at x, to the first rows of the buffer: of the trunk or of the block. */
void gpu_steps_head(gpu_steps *s, const float *x, int n);
void gpu_steps_send_vectors(gpu_steps *s);       /* the residual to the host */
int gpu_steps_logits(void *self, float *out, int first, int n, err_ctx *err);

/* ---- gpu_recordings.c ---- */

int gpu_recordings_create(gpu_steps *s, err_ctx *err);
void gpu_recordings_free(gpu_steps *s);
void gpu_recordings_fill(layer_steps *table);    /* the host's half of a recorded pass */

#endif
