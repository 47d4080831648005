/* ram_frames.h - which expert is in which frame of RAM, where experts are moved between RAM and
 * VRAM. Bookkeeping only: offsets, not bytes.
 *
 * A frame is memory for one expert. Its slabs begin at the same offsets in their pages as in the
 * file, so direct reads need no copy. Layers whose experts have the same size share a pool: one
 * frame for each expert without a VRAM frame, and RAM_FRAMES_SPARE more. A frame is free, taken (a
 * copy to it is in flight) or an expert's; an expert has one at most. One thread at a time. */
#ifndef MOE_RAM_FRAMES_H
#define MOE_RAM_FRAMES_H

#include "moe/expert.h"

enum { RAM_FRAMES_SPARE = 8 };           /* of each pool: experts that can be in flight at a time */

typedef struct ram_frames ram_frames;

/* n_in_vram [n_layer]: VRAM frames that a layer adds to its pool. All RAM frames are free. Borrows
 * the banks. */
int ram_frames_create(ram_frames **out, const expert_banks *b, const int *n_in_vram, err_ctx *err);
void ram_frames_free(ram_frames *s);     /* NULL is fine */

/* For plans: bytes of one frame of a layer, and of all spare frames. 0 if experts have more sizes
 * than CACHE_MAX_POOLS. */
uint64_t ram_frames_frame_bytes(const expert_banks *b, int layer);
uint64_t ram_frames_spare_bytes(const expert_banks *b);

uint64_t ram_frames_bytes(const ram_frames *s);          /* of all frames */
/* Of an expert's slab in the bytes of all frames, if this frame of its pool were the expert's. */
uint64_t ram_frames_offset(const ram_frames *s, int frame, int layer, int expert, expert_slab slab);

int ram_frames_find(const ram_frames *s, int layer, int expert);         /* its frame, or -1 */

int ram_frames_take(ram_frames *s, int layer);           /* free -> taken. The frame, or -1 */
void ram_frames_return(ram_frames *s, int frame);        /* taken -> free */
void ram_frames_put(ram_frames *s, int frame, int layer, int expert);    /* taken -> the expert's */
void ram_frames_remove(ram_frames *s, int layer, int expert);            /* the expert's -> free */

/* Whether an expert of the layer was put or removed since the last call. */
bool ram_frames_changed(ram_frames *s, int layer);

#endif
