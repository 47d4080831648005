/* expert_server_internal.h - what expert_server.c and expert_server_create.c share; for them
 * alone. */
#ifndef ENGINE_GPU_EXPERT_SERVER_INTERNAL_H
#define ENGINE_GPU_EXPERT_SERVER_INTERNAL_H

#include "engine/engine_internal.h"
#include "engine/gpu/expert_server.h"
#include "engine/gpu/postfetch_levels.h"
#include "engine/gpu/postfetch_log.h"
#include "engine/host/experts_cpu.h"

/* The last question with fetched slabs. The time of its fetches is known when the device has
 * reached the next question. */
typedef struct last_fetch {
    bool open;                           /* not counted yet */
    bool ended;                          /* the fetches ended before the reply */
    int layer;
    uint64_t reply;                      /* clock */
    double busy_s, unsure_s;             /* perf_overlap */
} last_fetch;

struct expert_server {
    gpu *g;
    const model *m;
    expert_store *store;
    vram_cache *cache;
    const ops *o;
    const plan *p;
    int n_layer;                         /* of the GPU */
    postfetch_options post;
    experts_cpu *cpu;
    worklist *work;
    work_item *items;                    /* the items of `work` that the host computes */
    acts x;
    void *x_storage;
    float *slots;                        /* [EXPERT_SERVER_TOKENS * k, n_embd] of prompts;
                                          * page-locked */

    gpu_mailbox *mailbox;
    uint32_t n_poll;                     /* gpu_polls */
    uint32_t *log;                       /* [n_layer, GPU_MAIL * k] page-locked: chosen experts;
                                          * NULL without a cache */
    uint32_t *wanted;                    /* the same, as the router alone would have chosen; or
                                          * NULL */
    int n_logged;                        /* tokens in the log; 0: the cache has counted all */
    int n_counted, cold_counted;         /* layers of these that the cache has counted, and their
                                          * choices outside VRAM */
    bool exchanged;                      /* experts were exchanged since the last token */
    double *layer_s;                     /* [n_layer]: from a question to its reply, since then */
    uint32_t number;                     /* of the last question replied to */
    bool broken;                         /* a failure has been returned */
    uint8_t *arena;                      /* VRAM: */
    uint8_t *fetch_table;
    gpu_with_host *args;                 /* [n_layer]; mail NULL: no experts, or all in VRAM */
    int n_asking;                        /* layers with mail */
    const expert_bank *bank;             /* of the first layer that asks: the others have similar
                                          * sizes */
    postfetch_levels levels;
    read_ahead *reader;                  /* NULL: nothing is predicted */
    bool nothing_locked;                 /* no post-fetch, because RAM is not page-locked */

    int layer;                           /* of the question under way */
    int n;                               /* tokens of the batch */
    uint64_t wait_until;                 /* clock; 0: no slab has been late yet */
    uint64_t token_from;                 /* clock */
    double token_s;                      /* seconds of the last token */
    uint64_t last_empty_poll;            /* clock: the question under way had not come then */
    double waited_s;                     /* for late slabs of the question under way */
    last_fetch fetch;
    postfetch_log *fetch_log;            /* NULL: off */
    uint64_t cold_before;                /* cold experts before the token */
    perf_level perf;
    perf_layer *layers;                  /* [n_layer] */
    expert_server_stats s;
};

/* The experts that the last batch chose in a layer; only with a cache. */
static inline uint32_t *expert_server_log(const expert_server *c, int layer)
{
    return c->log + (size_t)layer * GPU_MAIL * (size_t)c->m->hp.n_expert_used;
}

/* Sends the table of fetch counts to the device, between tokens. The next wait returns a
 * failure. */
void expert_server_send_levels(expert_server *c);

/* Writes the fetches of the last token to the log, if it is on. The device is idle. */
void expert_server_log_fetches(expert_server *c);

#endif
