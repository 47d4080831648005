/* expert_slots.h - slots of RAM for experts that are either there or in VRAM, not in both.
 *
 * A slot has room for one expert, whose slabs begin in their pages as they do in the file. Layers
 * whose experts have the same size share a pool of slots: one for each of their experts that has no
 * place in VRAM, and a few spares. A slot is free, taken (an expert's bytes are on their way to it)
 * or an expert's; an expert has one at most. Books alone: offsets, not bytes. One thread at a
 * time. */
#ifndef MOE_EXPERT_SLOTS_H
#define MOE_EXPERT_SLOTS_H

#include "moe/expert.h"

enum { EXPERT_SPARES = 8 };              /* of each pool: as many experts can be on their way */

typedef struct expert_slots expert_slots;

/* in_vram [n_layer]: how many experts of a layer have places; of a pool the sum counts. All slots
 * are free. Borrows the banks. */
int expert_slots_create(expert_slots **out, const expert_banks *b, const int *in_vram,
                        err_ctx *err);
void expert_slots_free(expert_slots *s); /* NULL is fine */

/* For plans: bytes of a layer's slots, one each, and of all spares. 0 if there are too many sizes
 * of experts. */
uint64_t expert_slots_one(const expert_banks *b, int layer);
uint64_t expert_slots_spares(const expert_banks *b);

uint64_t expert_slots_bytes(const expert_slots *s);      /* of all slots */
/* Where in these bytes an expert's slab is, or would be, in a slot of its pool. */
uint64_t expert_slots_at(const expert_slots *s, int slot, int layer, int expert, expert_slab slab);

int expert_slots_find(const expert_slots *s, int layer, int expert);     /* its slot, or -1 */
int expert_slots_left(const expert_slots *s, int layer); /* free slots of the layer's pool */

int expert_slots_take(expert_slots *s, int layer);       /* a free one of its pool, or -1 */
void expert_slots_return(expert_slots *s, int slot);     /* a taken one is free again */
void expert_slots_put(expert_slots *s, int slot, int layer, int expert); /* a taken one is its */
void expert_slots_leave(expert_slots *s, int layer, int expert);         /* its slot is free */

/* Whether an expert of the layer was put or has left since the last call. */
bool expert_slots_changed(expert_slots *s, int layer);

#endif
