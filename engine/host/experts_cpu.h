/* experts_cpu.h - routed experts on the CPU's threads.
 *
 * One layer's chosen experts at a time: after experts_cpu_run the vector of every slot of the job
 * is in y. However the chosen experts are divided between this and the GPU, the bits are the same:
 * a slot's vector depends on nothing but its token and its expert. Adding them up is left to the
 * caller. One thread at a time. */
#ifndef ENGINE_HOST_EXPERTS_CPU_H
#define ENGINE_HOST_EXPERTS_CPU_H

#include "engine/host/read_ahead.h"
#include "engine/host/router_ahead.h"
#include "moe/worklist.h"

/* One layer's experts, as far as the CPU has to compute them. */
typedef struct expert_job {
    const expert_bank *bank;
    expert_activation act;
    acts *x;                             /* the tokens' vectors after the norm */
    const worklist *work;                /* the whole selection ... */
    const work_item *items;              /* ... and the items of it that are computed here */
    int n_item;
    float *y;                            /* [slot, n_embd] */
    bool by_position;                    /* y [i, n_embd] instead: of slot work->slots[i] */
    int layer;
    /* Asked once for each item but the first n_sure when its gate and up (and those of the others)
     * are done, before its down: true if that is computed elsewhere, from the activations that
     * experts_cpu_mid gives. NULL: never. */
    bool (*taken)(void *ctx, const work_item *it);
    void *taken_ctx;
    int n_sure;
} expert_job;

typedef struct experts_cpu experts_cpu;

/* Borrows o, store, where the slabs come from (NULL: the mapping of the job's bank), and ahead,
 * which reads some of them early (NULL: none). max_slot: the largest number of slots of a
 * selection. experts_cpu_bytes: what it takes, without making it. */
int experts_cpu_create(experts_cpu **out, const ops *o, const model_hparams *hp,
                       expert_store *store, router_ahead *ahead, int max_slot, err_ctx *err);
void experts_cpu_free(experts_cpu *c);   /* NULL is fine */
uint64_t experts_cpu_bytes(const model_hparams *hp, int max_slot);

/* Computes a job, in the order in which experts come in. Fails only if experts have to be read
 * first and cannot be. */
int experts_cpu_run(experts_cpu *c, const expert_job *job, err_ctx *err);

/* Brings experts that a job of the layer will probably want for a single token, the likeliest
 * first, into the caches of the threads that will compute them: read_ahead_run. All of them are in
 * RAM; those beyond AHEAD_RUNS / 3 are left out. */
uint64_t experts_cpu_read_ahead(const experts_cpu *c, read_ahead *r, int layer,
                                const expert_bank *bank, const int32_t *experts, int n,
                                keep_going_fn *go_on, void *ctx);

/* The activations between up and down of the job under way, as products read them: row i belongs
 * to slot work->slots[i]. */
const acts *experts_cpu_mid(const experts_cpu *c);

#endif
