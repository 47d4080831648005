/* gpu_sampling.h - a sampler's source of logits that stay in VRAM. One thread at a time. */
#ifndef ENGINE_GPU_GPU_SAMPLING_H
#define ENGINE_GPU_GPU_SAMPLING_H

#include "engine/gpu/gpu_buffers.h"
#include "engine/session/sampler.h"

/* The pick from one row of logits. Pointers are to page-locked RAM. */
typedef struct row_sampling {
    uint64_t bias_version;               /* of the biases in VRAM; 0: none */
    gpu_shortlist list;
    bool asked;                          /* list is enqueued, or done */
    bool has_top;                        /* with it, the largest logits go to pairs */
    uint32_t *count;                     /* candidates */
    float *maxima;                       /* [blocks] */
    double *masses;                      /* [blocks] */
    gpu_pair *pairs;
    uint64_t *allowed;                   /* [blocks]; the device reads it over the bus: 25 kB at
                                          * most, and it may change with every pick */
    int32_t *penalised;                  /* [some, 2]: id, how often */
} row_sampling;

typedef struct gpu_sampling {
    gpu *g;
    const gpu_buffers *b;
    int n_vocab;
    row_sampling rows[GPU_RECORDED];
    int t;                               /* the row of the source */
    bool in_flight;                      /* some list is enqueued since the last wait */
    bool single;                         /* the source is of a pass of one token; */
    double waited_s;                     /* for picks of such: logits, maxima and masses */
    void *memory;                        /* page-locked */
    int32_t *all_penalised;              /* [n_vocab, 2]: for a row that has more than some */
} gpu_sampling;

/* Borrows g and b. */
int gpu_sampling_init(gpu_sampling *s, gpu *g, const gpu_buffers *b, int n_vocab, err_ctx *err);
void gpu_sampling_release(gpu_sampling *s);      /* a zeroed s is fine */
uint64_t gpu_sampling_host_bytes(int n_vocab, int n_row);

/* Row t of the logits in b; one source at a time, but several rows may be asked. */
sampler_source gpu_sampling_source(gpu_sampling *s, int t);
/* Forgets what was asked: the rows are about to change. */
void gpu_sampling_forget(gpu_sampling *s);

#endif
