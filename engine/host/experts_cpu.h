/* experts_cpu.h - a place where chosen experts are computed.
 *
 * A layer's chosen experts are divided among lanes; each gets its share with launch, and after
 * finish the vector of every slot of that share is in y. Between the two a lane may run while the
 * caller does something else. Whatever the division, the bits are the same: a slot's vector depends
 * on nothing but its token and its expert. The sum over experts is not a lane's business. */
#ifndef ENGINE_HOST_EXPERTS_CPU_H
#define ENGINE_HOST_EXPERTS_CPU_H

#include "engine/expert_store.h"
#include "engine/host/ops.h"
#include "moe/worklist.h"

typedef enum expert_activation { ACT_SWIGLU, ACT_SWIGLU_CLAMPED } expert_activation;

/* One layer's experts, as far as one lane has to compute them. */
typedef struct expert_job {
    const expert_bank *bank;
    expert_activation act;
    acts *x;                             /* the tokens' vectors after the norm */
    const worklist *work;                /* the whole selection ... */
    const work_item *items;              /* ... and the items of it that are this lane's */
    int n_item;
    float *y;                            /* [slot, n_embd] */
    int layer;
    /* Asked once for each item but the first n_sure when its gate and up (and those of the others)
     * are done, before its down: true if someone else does that, from the activations that
     * experts_cpu_mid gives. NULL: nobody does. */
    bool (*taken)(void *ctx, const work_item *it);
    void *taken_ctx;
    int n_sure;
} expert_job;

typedef struct lane lane;

/* launch fails where experts have to be read first, and cannot be. */
struct lane {
    const char *name;
    int (*launch)(experts_cpu *self, const expert_job *share, err_ctx *err);
    void (*finish)(experts_cpu *self);
    void (*free)(experts_cpu *self);
};

/* The cold lane: the CPU's threads. Computes inside launch, as experts come in. Borrows experts,
 * where the slabs come from; NULL: the mapping of the share's bank. max_slot: the largest number of
 * slots of a selection. experts_cpu_bytes: what it takes, without making it. */
int experts_cpu_create(experts_cpu **out, const ops *o, const model_hparams *hp, expert_store *experts,
                    int max_slot, err_ctx *err);
uint64_t experts_cpu_bytes(const model_hparams *hp, int max_slot);

/* The activations between up and down of the share under way, as products read them: row i belongs
 * to slot work->slots[i]. */
const acts *experts_cpu_mid(const experts_cpu *self);

#endif
