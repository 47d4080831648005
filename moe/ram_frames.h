/* ram_frames.h - slots of RAM for experts that are either there or in VRAM, not in both.
 *
 * A slot has room for one expert, whose slabs begin in their pages as they do in the file. Layers
 * whose experts have the same size share a pool of slots: one for each of their experts that has no
 * place in VRAM, and a few spares. A slot is free, taken (an expert's bytes are on their way to it)
 * or an expert's; an expert has one at most. Books alone: offsets, not bytes. One thread at a
 * time. */
#ifndef MOE_RAM_FRAMES_H
#define MOE_RAM_FRAMES_H

#include "moe/expert.h"

enum { FREE_RAM_FRAMES = 8 };            /* of each pool: as many experts can be on their way */

typedef struct ram_frames ram_frames;

/* in_vram [n_layer]: how many experts of a layer have places; of a pool the sum counts. All slots
 * are free. Borrows the banks. */
int ram_frames_create(ram_frames **out, const expert_banks *b, const int *in_vram,
                      err_ctx *err);
void ram_frames_free(ram_frames *s); /* NULL is fine */

/* For plans: bytes of a layer's slots, one each, and of all spares. 0 if there are too many sizes
 * of experts. */
uint64_t ram_frames_one(const expert_banks *b, int layer);
uint64_t ram_frames_n_free(const expert_banks *b);

uint64_t ram_frames_bytes(const ram_frames *s);          /* of all slots */
/* Where in these bytes an expert's slab is, or would be, in a slot of its pool. */
uint64_t ram_frames_at(const ram_frames *s, int slot, int layer, int expert, expert_slab slab);

int ram_frames_find(const ram_frames *s, int layer, int expert);         /* its slot, or -1 */
int ram_frames_left(const ram_frames *s, int layer); /* free slots of the layer's pool */

int ram_frames_take(ram_frames *s, int layer);           /* a free one of its pool, or -1 */
void ram_frames_return(ram_frames *s, int slot);         /* a taken one is free again */
void ram_frames_put(ram_frames *s, int slot, int layer, int expert); /* a taken one is its */
void ram_frames_leave(ram_frames *s, int layer, int expert);             /* its slot is free */

/* Whether an expert of the layer was put or has left since the last call. */
bool ram_frames_changed(ram_frames *s, int layer);

#endif
