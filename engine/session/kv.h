/* kv.h - keys and values of the attention layers of one session.
 *
 * A layer that shares those of an earlier one (model_kv_layer) has no memory. The others store
 * their positions in pages: positions 64 i .. 64 i + 63 are in page i of the layer. A page has the
 * keys of each head, [n_head_kv][KV_PAGE][head_dim] of that kind of layer in the session's KV type,
 * then the values likewise. A table of addresses says where each page is; results do not depend on
 * where. A layer with full attention keeps every position up to ctx. A windowed layer has fewer
 * pages: page i takes the memory of an earlier one, so positions that are old enough are
 * overwritten. kv_create allocates all memory, in a space; the system commits RAM when it is first
 * written. Where a segment has a page_pool, layers with full attention take their pages from it:
 * kv_reserve before a position is written, kv_release afterwards.
 *
 * If the CPU can address a layer's space, kv_write stores. Otherwise other code stores rows in the
 * pages of kv_layer_view and reports them with kv_wrote. All readers use kv_layer_view. One thread
 * at a time, except for kv_write. */
#ifndef ENGINE_SESSION_KV_H
#define ENGINE_SESSION_KV_H

#include "engine/models/model.h"
#include "engine/session/layer_segments.h"
#include "tiers/pool.h"

enum { KV_PAGE = 64 };                   /* positions */

typedef enum kv_type { KV_F32, KV_F16, KV_Q8_0 } kv_type;
const char *kv_type_name(kv_type t);                     /* "f32", "f16", "q8_0" */
bool kv_type_from_name(kv_type *out, const char *name);  /* upper or lower case */

typedef struct kv_store kv_store;

typedef struct kv_options {
    layer_segments in;                   /* all layers of the model; none: all of them in RAM */
    kv_type type;                        /* Q8_0 needs a head size that is a multiple of 32 */
    int ctx;                             /* positions */
    int slack;                           /* the longest run of tokens written before any of them is
                                          * read (the prefill chunk): a windowed layer has pages
                                          * for window + slack positions, or for ctx */
} kv_options;

int kv_create(kv_store **out, const model *m, const kv_options *o, err_ctx *err);
void kv_free(kv_store *c);
/* Bytes of one layer; UINT64_MAX: too much. */
uint64_t kv_layer_bytes(const model *m, const kv_options *o, int layer);

/* For a page_pool of layers first .. end - 1: bytes of a page, and pages of a session of ctx
 * positions. */
uint64_t kv_page_bytes(const model *m, kv_type type, int first, int end);
uint64_t kv_n_page(const model *m, int ctx, int first, int end);

/* Takes pages for positions below n_pos, and gives back those beyond. ERR_NOMEM: there are not
 * enough; nothing has changed. */
int kv_reserve(kv_store *c, int n_pos, err_ctx *err);
void kv_release(kv_store *c, int n_pos);

/* Stores positions pos .. pos+n-1 of a layer: k and v are [n, n_head_kv * head_dim]. By a team, or
 * with NULL by the caller: then layers may be written at the same time, one layer by one thread. */
void kv_write(kv_store *c, int layer, int pos, int n, const float *k, const float *v, pool *team);

/* Positions pos .. pos+n-1 of a layer were stored by other code, or will be before anything reads
 * them: does what kv_write does, except for the bytes. */
void kv_wrote(kv_store *c, int layer, int pos, int n);

/* Where a layer's rows are. Addresses are in the layer's space; pages begin at multiples of 64. */
typedef struct kv_view {
    uint8_t *const *pages;               /* page i is at pages[i * stride]; NULL: this layer stores
                                          * none. The table itself is in RAM */
    int stride, n_head;
    int n_row;                           /* positions that are kept, a multiple of KV_PAGE */
    int first;                           /* lowest position that is not overwritten */
    kv_type type;
    size_t row_bytes;                    /* one head at one position */
} kv_view;
kv_view kv_layer_view(const kv_store *c, int layer);

typedef enum kv_kind { KV_KEYS, KV_VALUES } kv_kind;

/* The row of a head at a position; further positions of its page follow. */
static inline uint8_t *kv_row(const kv_view *v, kv_kind kind, int head, int pos)
{
    const size_t row = ((size_t)kind * (size_t)v->n_head + (size_t)head) * KV_PAGE;
    return v->pages[(size_t)(pos / KV_PAGE) * (size_t)v->stride] +
           (row + (size_t)(pos % KV_PAGE)) * v->row_bytes;
}

/* For views that the CPU can address. Stores the bytes of positions pos .. pos+n-1: k and v are
 * [n, n_head * head_dim]. */
void kv_view_write(const kv_view *w, int head_dim, int pos, int n, const float *k, const float *v);

/* The table of a segment, itself in the segment's space; NULL if none of the layers has memory.
 * Page i of a layer is at table[i * stride + index] of its column. */
uint8_t *const *kv_segment_table(const kv_store *c, int segment);
typedef struct kv_column { int stride, index; } kv_column;
kv_column kv_column_of(const kv_store *c, int layer);

kv_type kv_type_of(const kv_store *c);

/* Lowest position to which a session at position pos can be rewound without a copy of the rings:
 * every key that the token at that position may read is still stored. */
int kv_rewind_limit(const kv_store *c, int pos);

#endif
