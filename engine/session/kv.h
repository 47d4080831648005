/* kv.h - keys and values of the attention layers of one session.
 *
 * A layer that shares those of an earlier one (model_kv_layer) has no memory. A layer with full
 * attention keeps every position up to ctx. A windowed layer keeps a ring: position p is in row p %
 * rows, so positions older than the ring are overwritten. Rows are stored per head,
 * [n_head_kv][rows][head_dim] of that kind of layer, in the session's KV type. kv_create allocates
 * all memory, in a space; the system commits RAM when it is first written.
 *
 * The last layers may be in RAM while the others are in a space. If the CPU can address a layer,
 * kv_write stores. Otherwise other code stores rows at the addresses of kv_layer_view and reports
 * them with kv_wrote. All readers use kv_layer_view. One thread at a time, except for kv_write. */
#ifndef ENGINE_SESSION_KV_H
#define ENGINE_SESSION_KV_H

#include "engine/models/model.h"
#include "tiers/mem_space.h"
#include "tiers/pool.h"

typedef enum kv_type { KV_F32, KV_F16, KV_Q8_0 } kv_type;
const char *kv_type_name(kv_type t);                     /* "f32", "f16", "q8_0" */
bool kv_type_from_name(kv_type *out, const char *name);  /* upper or lower case */

typedef struct kv_store kv_store;

typedef struct kv_options {
    mem_space *where;                    /* borrowed until kv_free; NULL: RAM */
    int n_ram;                           /* this many of the last layers are in RAM in any case */
    kv_type type;                        /* Q8_0 needs a head size that is a multiple of 32 */
    int ctx;                             /* positions */
    int slack;                           /* the longest run of tokens written before any of them is
                                          * read (the prefill chunk): a ring has window + slack
                                          * rows, or ctx if that is less */
} kv_options;

int kv_create(kv_store **out, const model *m, const kv_options *o, err_ctx *err);
void kv_free(kv_store *c);
/* Bytes of one layer, and of all; UINT64_MAX: too much. */
uint64_t kv_layer_bytes(const model *m, const kv_options *o, int layer);
uint64_t kv_bytes(const model *m, const kv_options *o);

/* Stores positions pos .. pos+n-1 of a layer: k and v are [n, n_head_kv * head_dim]. By a team, or
 * with NULL by the caller: then layers may be written at the same time, one layer by one thread. */
void kv_write(kv_store *c, int layer, int pos, int n, const float *k, const float *v, pool *team);

/* Positions pos .. pos+n-1 of a layer were stored by other code, or will be before anything reads
 * them: does what kv_write does, except for the bytes. */
void kv_wrote(kv_store *c, int layer, int pos, int n);

/* Addresses of a layer's rows: position p of head h is row_bytes * (h * rows + p % rows) bytes
 * after keys (values). Addresses are in the layer's space, multiples of 64. */
typedef struct kv_view {
    uint8_t *keys, *values;              /* NULL: this layer stores none */
    int rows;
    int first;                           /* lowest position that is not overwritten */
    kv_type type;
    size_t row_bytes;                    /* one head at one position */
} kv_view;
kv_view kv_layer_view(const kv_store *c, int layer);

/* For views that the CPU can address. Stores the bytes of positions pos .. pos+n-1: k and v are
 * [n, n_head * head_dim]. */
void kv_view_write(const kv_view *w, int n_head, int head_dim, int pos, int n, const float *k,
                   const float *v);

kv_type kv_type_of(const kv_store *c);

/* Lowest position to which a session at position pos can be rewound without a copy of the rings:
 * every key that the token at that position may read is still stored. */
int kv_rewind_limit(const kv_store *c, int pos);

#endif
