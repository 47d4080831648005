/* state_reference.h - a state and a plain model of its contents, for tests.
 *
 * The tokens are numbers; keys, values and recurrent state are a function of the ids up to their
 * position, so the reference knows every right value without having stored one. It also follows
 * the cells of each ring and the snapshots. The state may be in any
 * space; there is one here that stands for all that the CPU cannot address. */
#ifndef TESTS_STATE_REFERENCE_H
#define TESTS_STATE_REFERENCE_H

#include "engine/session/state.h"
#include "tests/test.h"

/* ---- models without a file: dimensions and kinds of layers only ---- */

/* layers: one letter each. F full attention, W windowed, D DeltaNet; M is an MTP block. With a V,
 * windowed layers (V and W) have one KV head more than the others, of 64 values; with a U twice as
 * many heads, of half as many values. f and w are full and windowed layers that share keys and
 * values with the last F or W. */
model *reference_model(const char *layers, int n_head_kv, int head_dim, int window);
void reference_model_free(model *m);

/* All layers in a space, except that the last n_ram are in RAM; NULL: all in RAM. */
layer_segments reference_segments(const model *m, mem_space *where, int n_ram);

/* ---- a far space ---- */

/* Its addresses point to pages that cannot be touched; the bytes are elsewhere. An access that is
 * not within one block is a failed check. One for the whole program. */
mem_space *far_space(void);
/* The n-th call of alloc, read, write or zero from now on fails, and only that one. 0: none
 * fails, and past failures are forgotten. */
void far_fail_after(long n);
int far_blocks(void);                    /* allocated and not freed */

/* ---- rows of a store in RAM ---- */

/* A head's key or value of one position as F32, decoded by loader/quant.h. */
void kv_row_decode(float *out, const kv_store *c, int layer, int head, int pos, bool is_value);

/* ---- the reference ---- */

typedef struct reference_cell { int pos; uint64_t sum; } reference_cell;
typedef struct reference_snap { int pos; uint64_t used; } reference_snap;

typedef struct reference {
    const model *m;
    state_options o;
    state *s;
    kv_store *scribe;                    /* a store of one position in RAM, to encode rows for one
                                          * that is not in RAM; NULL if it is */
    int pos;
    int32_t *ids;                        /* [ctx] */
    uint64_t *sums;                      /* [ctx + 1]: of the ids before that position; [0] is 0 */
    reference_cell *cells;               /* [n_layer, ctx + 63]: what is in each row of each ring */
    reference_snap *snaps;               /* [n_snapshot]; pos 0: free */
    uint64_t clock;
    char why[160];                       /* the first thing that was wrong; empty: nothing */
} reference;

void reference_open(reference *t, const model *m, const state_options *o);
void reference_close(reference *t);

/* Takes in n random tokens. After each layer is written, the keys that the first and the last of
 * them may look at are checked. With aborted, the position does not move, as if the caller had been
 * stopped after half of the layers. */
void reference_run(reference *t, test_rng *rng, int n, bool aborted);
void reference_snapshot(reference *t);
void reference_rewind(reference *t, int pos);  /* checks where it ends */
void reference_loaded(reference *t,
                      const reference *from); /* t->s was loaded with what `from` holds */

/* Compares everything the next token may look at, in pieces cut at random. False, with the reason
 * in why, if that or anything before was wrong. */
bool reference_holds(reference *t, test_rng *rng);

#endif
