/* state_internal.h - what state.c, state_file.c and prefix_cache.c share, and what kv.c shows to
 * them alone.
 *
 * Copies and files hold the stored bytes of the positions that the next token may look at, head by
 * head and in the order of positions. That order does not depend on how many rows a ring has, so
 * what one session wrote fits another with a different ctx or slack. */
#ifndef ENGINE_SESSION_STATE_INTERNAL_H
#define ENGINE_SESSION_STATE_INTERNAL_H

#include "engine/session/state.h"

/* ---- kv.c ---- */

typedef enum kv_part {
    KV_ALL,
    KV_RINGS,                            /* only layers that can lose a position by overwriting */
    KV_WINDOWS                           /* only layers with a window, whether they can or not */
} kv_part;

/* Calls fn for every contiguous piece of what a token at position pos may look at, except its own
 * key. bytes is an address in the layer's space, and fn may write there; the first result < 0 ends
 * the walk and is returned. */
typedef int kv_piece_fn(void *ctx, mem_space *where, void *bytes, size_t n);
int kv_each_piece(const kv_store *c, kv_part part, int pos, kv_piece_fn *fn, void *ctx);

/* The same for positions from .. to - 1 of the layers without a window: one piece for each head. */
int kv_each_full(const kv_store *c, int from, int to, kv_piece_fn *fn, void *ctx);

/* Bytes of the pieces of KV_WINDOWS at pos, and of kv_each_full for n positions, whatever ctx and
 * slack are. UINT64_MAX: too much. */
uint64_t kv_window_bytes(const model *m, kv_type type, int pos);
uint64_t kv_full_bytes(const model *m, kv_type type, int n);

/* Those pieces were all written anew and nothing before them is there any more. */
void kv_replaced(kv_store *c, kv_part part, int pos);

/* The most bytes that the pieces of KV_RINGS can be; UINT64_MAX: too much. */
uint64_t kv_ring_bytes(const model *m, kv_type type, int ctx, int slack);

/* ---- state.c ---- */

struct state {
    const model *m;                      /* borrowed */
    state_options o;                     /* where is set */
    kv_store *kv;
    recurrent *rec;
    int pos;
    uint64_t rec_bytes, snap_bytes;      /* of the recurrent blocks; of them and the rings */
    int *snap_pos;                       /* [n_snapshot]; 0: this place is free */
    uint8_t *snap_mem;                   /* RAM [n_snapshot, snap_bytes]: recurrent blocks, rings */
    /* For whoever keeps copies of states: the one that was last taken from here or put here, by a
     * number of the keeper's, and up to which position this state has been that one ever since. */
    uint64_t kept;
    int kept_pos;
    uint64_t key;                        /* state_layout_key of it; 0: not asked for yet */
};

/* As after state_create. */
void state_clear(state *s);

kv_options state_kv_options(const state_options *o);

/* Calls fn for each recurrent block that is not empty. */
int state_each_block(const state *s, kv_piece_fn *fn, void *ctx);

/* One multiplication for every 8 bytes; continues sum. Against accidents, not against people. */
uint64_t state_checksum(uint64_t sum, const void *bytes, size_t n);

/* All that a stored state must agree on, in one number: tag, dimensions, layers, KV type. */
uint64_t state_layout_key(const model *m, kv_type type, const state_tag *tag);

/* Waits for the spaces; the first failure of either. */
int state_check(const state *s, err_ctx *err);

#endif
