/* experts_cpu.h - routed experts on the CPU's threads.
 *
 * One layer's chosen experts at a time: after experts_cpu_run the vector of every slot of the job
 * is in y; the caller adds them up. A slot's vector depends only on its token and its expert, so
 * the bits do not depend on the division of experts between CPU and GPU. One thread at a time. */
#ifndef ENGINE_HOST_EXPERTS_CPU_H
#define ENGINE_HOST_EXPERTS_CPU_H

#include "engine/host/read_ahead.h"
#include "engine/host/router_ahead.h"
#include "moe/worklist.h"

/* The experts of one layer that the CPU computes. */
typedef struct expert_job {
    const expert_bank *bank;
    expert_activation act;
    acts *x;                             /* the tokens' vectors after the norm */
    const worklist *work;                /* all slots of the layer */
    const work_item *items;              /* the items of work that the CPU computes */
    int n_item;
    float *y;                            /* [slot, n_embd] */
    bool by_position;                    /* y [i, n_embd] instead: of slot work->slots[i] */
    int layer;
    bool mapped;                         /* the bank is none of the store's: read its mapping */
    /* Called once for each item after the first n_sure, when gate and up of all items are done and
     * before its down. True: another processor computes the down, from the activations of
     * experts_cpu_mid. NULL: never. */
    bool (*taken)(void *ctx, const work_item *it);
    void *taken_ctx;
    int n_sure;
} expert_job;

typedef struct experts_cpu experts_cpu;

/* Borrows o, store, the source of slabs (NULL: the mapping of the job's bank), and ahead, which
 * reads some of them early (NULL: none). max_slot: the largest number of slots of a job.
 * experts_cpu_bytes: the memory that experts_cpu_create takes. */
int experts_cpu_create(experts_cpu **out, const ops *o, const model_hparams *hp,
                       expert_store *store, router_ahead *ahead, int max_slot, err_ctx *err);
void experts_cpu_free(experts_cpu *c);   /* NULL is fine */
uint64_t experts_cpu_bytes(const model_hparams *hp, int max_slot);

/* Computes a job, in the order in which the store reads its experts. Fails only if a read fails. */
int experts_cpu_run(experts_cpu *c, const expert_job *job, err_ctx *err);

/* Prefetches experts that a single token will probably choose in the layer, the likeliest first,
 * into the caches of the threads that would compute them (read_ahead_run). All of them are in RAM;
 * experts after the first AHEAD_RUNS / 3 are left out. */
uint64_t experts_cpu_read_ahead(const experts_cpu *c, read_ahead *r, int layer,
                                const expert_bank *bank, const int32_t *experts, int n,
                                keep_going_fn *go_on, void *ctx);

/* The activations between up and down of the job under way, as products read them: row i belongs
 * to slot work->slots[i]. */
const acts *experts_cpu_mid(const experts_cpu *c);

#endif
