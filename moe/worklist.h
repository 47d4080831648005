/* worklist.h - inverts one layer's selection: for each used expert, the list of its slots.
 *
 * A slot is (token, rank): slot = token * k + rank, rank in the router's order. Experts come in
 * ascending order of id, slots of an expert in ascending order. */
#ifndef MOE_WORKLIST_H
#define MOE_WORKLIST_H

#include "loader/base.h"

typedef struct work_item {
    int expert;
    int first, n;                        /* its slots are slots[first .. first + n - 1] */
} work_item;

typedef struct worklist {
    work_item *items;
    int n_item;
    int32_t *slots;                      /* all n_token * k of them, grouped by expert */
    int n_slot, k;
    int n_expert, cap_slot;              /* sizes of what follows; fixed at creation */
    int32_t *count;                      /* [n_expert] */
} worklist;

int worklist_create(worklist **out, int n_expert, int max_slot, err_ctx *err);
void worklist_free(worklist *w);

/* ids [n_token * k], each below n_expert. Allocates nothing. */
void worklist_fill(worklist *w, const int32_t *ids, int n_token, int k);

/* The same for the experts in wanted [n_expert] alone. Only their slots must fit cap_slot. */
void worklist_fill_some(worklist *w, const int32_t *ids, int n_token, int k, const bool *wanted);

#endif
