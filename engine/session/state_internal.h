/* state_internal.h - shared by kv.c, state.c, state_file.c and prefix_cache.c alone.
 *
 * Copies and files hold the stored bytes of the positions that the next token may read, head by
 * head and in the order of positions. That order does not depend on the number of rows of a ring,
 * so sessions with another ctx or slack can read them. One thread at a time. */
#ifndef ENGINE_SESSION_STATE_INTERNAL_H
#define ENGINE_SESSION_STATE_INTERNAL_H

#include "engine/session/state.h"

/* ---- kv.c ---- */

typedef enum kv_part {
    KV_ALL,
    KV_TRUNK,                            /* all layers but that of a next-token block */
    KV_MTP,                              /* that one */
    KV_RINGS,                            /* only layers that can lose a position by overwriting */
    KV_WINDOWS                           /* all layers with a window */
} kv_part;

/* Calls fn for every contiguous piece of the keys and values that a token at position pos may read,
 * except its own. bytes is an address in the layer's space; fn may write to it. The first result <
 * 0 ends the loop and is returned. */
typedef int kv_piece_fn(void *ctx, mem_space *where, void *bytes, size_t n);
int kv_each_piece(const kv_store *c, kv_part part, int pos, kv_piece_fn *fn, void *ctx);

/* The same for positions from .. to - 1 of the layers without a window. */
int kv_each_full(const kv_store *c, int from, int to, kv_piece_fn *fn, void *ctx);

/* Bytes of n positions of a layer without a window, also of a next-token block that is not in
 * use. */
uint64_t kv_rows_bytes(const model *m, kv_type type, int layer, int n);

/* Bytes of the pieces of KV_WINDOWS at pos, and of kv_each_full for n positions, whatever ctx and
 * slack are. UINT64_MAX: too much. */
uint64_t kv_window_bytes(const model *m, kv_type type, int pos);
uint64_t kv_full_bytes(const model *m, kv_type type, int n);

/* Those pieces were all overwritten; no position before them can be read any more. */
void kv_replaced(kv_store *c, kv_part part, int pos);

/* The most bytes of the pieces of KV_RINGS at any position; UINT64_MAX: too much. */
uint64_t kv_ring_bytes(const model *m, kv_type type, int ctx, int slack);

/* ---- state.c ---- */

struct state {
    const model *m;                      /* borrowed */
    state_options o;                     /* in is set */
    kv_store *kv;
    recurrent *rec;
    int pos;
    uint64_t rec_bytes, snap_bytes;      /* of the recurrent blocks; of them and the rings */
    int *snap_pos;                       /* [n_snapshot]; 0: free */
    uint8_t *snap_mem;                   /* RAM [n_snapshot, snap_bytes]: recurrent blocks, rings */
    /* For the prefix cache: the number of the node that was last exported from this state or
     * imported into it, and the position up to which the two have the same bits. */
    uint64_t kept;
    int kept_pos;
    uint64_t key;                        /* state_layout_key; 0: not computed yet */
};

/* As after state_create. */
void state_clear(state *s);

kv_options state_kv_options(const state_options *o);

/* Calls fn for each recurrent block that is not empty. */
int state_each_block(const state *s, kv_piece_fn *fn, void *ctx);

/* One multiplication for every 8 bytes; continues sum. Detects accidents, not forgery. */
uint64_t state_checksum(uint64_t sum, const void *bytes, size_t n);

/* A hash of everything that a stored state depends on: tag, dimensions, layers, KV type. */
uint64_t state_layout_key(const model *m, kv_type type, const state_tag *tag);

/* Waits for the spaces; the first failure of either. */
int state_check(const state *s, err_ctx *err);

#endif
