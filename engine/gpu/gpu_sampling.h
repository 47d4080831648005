/* gpu_sampling.h - a sampler's source of logits that stay in VRAM. One thread at a time. */
#ifndef ENGINE_GPU_GPU_SAMPLING_H
#define ENGINE_GPU_GPU_SAMPLING_H

#include "engine/gpu/gpu_buffers.h"
#include "engine/session/sampler.h"

typedef struct gpu_sampling {
    gpu *g;
    const gpu_buffers *b;
    int n_vocab;
    uint64_t bias_version[GPU_RECORDED]; /* of the biases in VRAM; 0: none */
    int t;                               /* the token of the source */
    gpu_shortlist list;                  /* of the pick under way */
    bool has_top;                        /* its largest logits are in pairs already */
    bool single;                         /* the source is of a pass of one token; */
    double waited_s;                     /* for picks of such: logits, maxima and masses */
    /* page-locked */
    void *memory;
    uint32_t *count;                     /* candidates */
    float *maxima;                       /* [blocks] */
    double *masses;                      /* [blocks] */
    gpu_pair *pairs;
    int32_t *penalised;                  /* [n_vocab, 2]: id, how often */
    uint64_t *allowed;                   /* [blocks]; the device reads it over the bus: 25 kB at
                                          * most, and it may change with every pick */
} gpu_sampling;

/* Borrows g and b. */
int gpu_sampling_init(gpu_sampling *s, gpu *g, const gpu_buffers *b, int n_vocab, err_ctx *err);
void gpu_sampling_release(gpu_sampling *s);      /* a zeroed s is fine */
uint64_t gpu_sampling_host_bytes(int n_vocab);

/* Row t of the logits in b; one source at a time. */
sampler_source gpu_sampling_source(gpu_sampling *s, int t);

#endif
