/* expert_server_internal.h - what expert_server.c and expert_server_create.c share; for them
 * alone. */
#ifndef ENGINE_GPU_EXPERT_SERVER_INTERNAL_H
#define ENGINE_GPU_EXPERT_SERVER_INTERNAL_H

#include "engine/gpu/expert_server.h"
#include "engine/gpu/postfetch_levels.h"
#include "engine/gpu/postfetch_log.h"

/* The last question that has slabs fetched. How long that took is known when the device has gone
 * on. */
typedef struct last_fetch {
    bool open;                           /* not counted yet */
    bool ended;                          /* before the reply */
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
    work_item *items;                    /* those of the work that the host computes */
    acts x;
    void *x_storage;
    float *slots;                        /* [EXPERT_SERVER_TOKENS * k, n_embd] of prompts;
                                          * page-locked */

    gpu_mailbox *mailbox;
    uint32_t n_poll;                     /* gpu_polls */
    uint32_t *log;                       /* [n_layer, GPU_FEW * k] page-locked: what was chosen;
                                          * NULL without places */
    uint32_t *wanted;                    /* the same, of what would have been; or NULL */
    int n_logged;                        /* tokens in it; 0: the places have seen all */
    int n_noted, cold_noted;             /* layers of these that they have seen, and how many of the
                                          * choices were not in VRAM */
    bool exchanged;                      /* they have changed since the last token */
    double *layer_s;                     /* [n_layer]: from a question to its reply, since then */
    uint32_t number;                     /* of the last question replied to */
    bool broken;                         /* a failure has been told */
    uint8_t *arena;                      /* VRAM: */
    uint8_t *fetch_table;
    gpu_with_host *args;                 /* [n_layer]; mail NULL: no experts, or all in VRAM */
    int n_asking;                        /* layers with mail */
    const expert_bank *bank;             /* of the first layer that asks: the others are much
                                          * alike */
    postfetch_levels levels;
    read_ahead *reader;                  /* NULL: nothing is predicted */
    bool nothing_locked;                 /* slabs would be fetched if they were in page-locked
                                          * RAM */

    int layer;                           /* of the question under way */
    int n;                               /* tokens of the batch */
    uint64_t wait_until;                 /* clock; 0: nothing has been late yet */
    uint64_t token_from;                 /* clock */
    double token_s;                      /* that the last one took */
    uint64_t last_empty_poll;            /* clock: the question under way had not come then */
    double waited_s;                     /* of the question under way: for late slabs */
    last_fetch fetch;
    postfetch_log *notes;                /* NULL: nobody wants to know */
    uint64_t cold_from;                  /* cold experts before the token */
    perf_level perf;
    perf_layer *layers;                  /* [n_layer] */
    expert_server_stats s;
};

/* What the last batch chose in a layer; only where there is a log. */
static inline uint32_t *expert_server_log(const expert_server *c, int layer)
{
    return c->log + (size_t)layer * GPU_FEW * (size_t)c->m->hp.n_expert_used;
}

/* To the device, between tokens: what is fetched. A failure shows at the next wait. */
void expert_server_send_levels(expert_server *c);

/* The device is idle: what the last token had fetched goes to the log of fetches, if there is
 * one. */
void expert_server_log_fetches(expert_server *c);

#endif
