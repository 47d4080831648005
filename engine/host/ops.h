/* ops.h - the verbs a model's recipe is written in, on the CPU.
 *
 * Batches are [n, width], row-major: one row for each token. Every verb spreads its work over the
 * thread team and returns when it is done; none allocates. Results do not depend on the number of
 * threads, and a token's result does not depend on its neighbours in the batch. */
#ifndef ENGINE_HOST_OPS_H
#define ENGINE_HOST_OPS_H

#include <stdalign.h>

#include "engine/cpu/kernels.h"
#include "engine/cpu/loops.h"
#include "engine/host/weights.h"
#include "tiers/pool.h"

typedef struct ops {
    pool *team;
    const kernel_set *kernels;
    const loops *loops;                  /* everything but products */
} ops;

/* A batch made ready for products. The int8 form is made when the first product asks for it, and
 * serves all that follow. Storage is the caller's: see acts_init. */
typedef struct acts {
    const float *x;                      /* [n, cols], borrowed from acts_set to the last product */
    int n, cols;
    int n_block;                         /* of 32, rounded up to a multiple of 16: padding is 0 */
    bool quantised;
    int8_t *q;
    float *dx;
    int16_t *s;
    act_row *rows;                       /* [n] */
} acts;

/* Bytes of storage for batches of up to n tokens of up to cols values. */
size_t acts_bytes(int n, int cols);
void acts_init(acts *a, void *storage, int n, int cols);
void acts_set(acts *a, const float *x, int n, int cols);
void ops_quantise(const ops *o, acts *a);        /* if not yet done */
/* For callers that fill q, dx and s themselves, block by block: zeros after the last block of each
 * row. */
void acts_clear_padding(acts *a);

/* Tokens as the wide kernel of a type wants them: kept while more of its rows meet the same tokens.
 * A megabyte: room for K up to 6144 at least. Few tokens do without (ops_packs). */
enum { TOKEN_PACK_BYTES = 1 << 20 };
typedef struct token_pack {
    const act_row *x;                    /* what is packed; NULL: nothing */
    int n, cols;
    quant_type type;                     /* of weights that it is for */
    alignas(PACKED_ALIGN) uint8_t room[TOKEN_PACK_BYTES];
} token_pack;

/* Rows first .. first+n_row-1 of one matrix with n_token activations, finished: y[t][r - first]
 * with y rows y_stride apart. At most OPS_TOKENS tokens and OPS_SUMS products. For use inside a
 * loop of the team. pack: tokens are kept there from one call to the next, and recognised by x,
 * so what x points to must not change between them; NULL: not kept. */
enum { OPS_TOKENS = 64, OPS_SUMS = 8192 };
void product_rows(float *y, size_t y_stride, const ops *o, const matrix *w, int first, int n_row,
                  const act_row *x, int n_token, token_pack *pack);

/* Whether so many tokens are worth a token_pack. */
static inline bool ops_packs(int n_token) { return n_token >= 8; }

/* Rows worth a piece of their own. Many tokens are packed anew for each run of pieces, so there it
 * pays to let them meet more rows. */
enum { OPS_ROWS = 32, OPS_ROWS_WIDE = 128 };
static inline int ops_rows(int n_token)
{
    return n_token >= 8 ? OPS_ROWS_WIDE : OPS_ROWS;
}

/* y[n, w->rows] = w x */
typedef struct product {
    float *y;
    const matrix *w;
} product;

/* Several products of the same x, as one loop of the team. */
void ops_matmuls(const ops *o, const product *list, int n_product, acts *x);
void ops_matmul(const ops *o, float *y, const matrix *w, acts *x);

/* y[n, width] = row ids[t] of the embedding */
void ops_embed(const ops *o, float *y, const matrix *table, const int32_t *ids, int n);

/* y = x / rms(x) * w; w NULL: no gain. y may be x. Rows of x lie stride apart, as do those of y. */
void ops_rmsnorm(const ops *o, float *y, const float *x, const float *w, int n, int width,
                 size_t stride, float eps);

/* g = act(g, u), n values; for use inside a loop of the team. */
void ops_activate(const ops *o, expert_activation act, float *g, const float *u, int n);

/* x = cap * tanh(x / cap), n values */
void ops_soft_cap(const ops *o, float *x, int64_t n, float cap);

/* The index of the largest of n > 0 values, the first of equals. Any number beats a NaN. */
int ops_largest(const ops *o, const float *x, int n);

/* x += y */
void ops_add(const ops *o, float *x, const float *y, int n, int width);

#endif
