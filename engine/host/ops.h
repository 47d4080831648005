/* ops.h - the operations of a layer on the CPU: products, norms, activations.
 *
 * Batches are [n, width], row-major: one row for each token. Every operation divides its work among
 * the threads of the team and returns when it is done; none allocates. Results do not depend on the
 * number of threads, and a token's result does not depend on other tokens of the batch. */
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

/* Activations of a batch for products. The first product with a quantised matrix makes the int8
 * form, and later ones reuse it. Storage is the caller's: see acts_init. */
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
void ops_quantise(const ops *o, acts *a);        /* no-op if it is done */
/* For callers that fill q, dx and s themselves, block by block: writes zeros after the last block
 * of each row. */
void acts_clear_padding(acts *a);

/* Tokens in the layout of a type's wide kernel, reused for further rows with the same tokens. One
 * MiB: enough for 64 tokens of up to 6144 values. Few tokens need none (ops_packs). */
enum { TOKEN_PACK_BYTES = 1 << 20 };
typedef struct token_pack {
    const act_row *x;                    /* the packed tokens; NULL: none */
    int n, cols;
    quant_type type;                     /* of the weights */
    alignas(PACKED_ALIGN) uint8_t bytes[TOKEN_PACK_BYTES];
} token_pack;

/* Rows first .. first+n_row-1 of one matrix with n_token activations, finished: y[t][r - first]
 * with y rows y_stride apart. At most OPS_TOKENS tokens and OPS_SUMS products. For use inside a
 * loop of the team. pack: keeps packed tokens from one call to the next and recognises them by the
 * address x, so their values must not change in between; NULL: not kept. */
enum { OPS_TOKENS = 64, OPS_SUMS = 8192 };
void product_rows(float *y, size_t y_stride, const ops *o, const matrix *w, int first, int n_row,
                  const act_row *x, int n_token, token_pack *pack);

/* Whether so many tokens are worth a token_pack. */
static inline bool ops_packs(int n_token) { return n_token >= 8; }

/* Rows of a tile. Each thread packs many tokens once for its tiles, so there tiles have more
 * rows. */
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

/* Several products of the same x in one loop of the team. */
void ops_matmuls(const ops *o, const product *list, int n_product, acts *x);
void ops_matmul(const ops *o, float *y, const matrix *w, acts *x);

/* y[n, width] = row ids[t] of the embedding */
void ops_embed(const ops *o, float *y, const matrix *table, const int32_t *ids, int n);

/* y = x / rms(x) * w; w NULL: no gain. y may be x. The rows of both are stride apart. */
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
