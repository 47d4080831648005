/* kernels.h - products of weight rows with activations: the interface of a set of kernels.
 *
 * kernels_contract: int8 activations in blocks of 32, integer block products, eight lanes in a
 * fixed order, as in docs/numerics.md. The sets of the instruction sets are faster and give the
 * same bits.
 * kernels_exact: F32 activations on decoded weights, for comparisons and --exact.
 * In all sets float weights (F32, F16, BF16) are multiplied by F32 activations. */
#ifndef ENGINE_CPU_KERNELS_H
#define ENGINE_CPU_KERNELS_H

#include <stdbool.h>

#include "loader/base.h"
#include "loader/quant.h"

enum { ACT_BLOCK = 32 };                 /* activations that share one scale */

/* One token's activations. q, dx and s are set only if x was quantised, and are padded with zeros
 * to a multiple of 16 blocks. */
typedef struct act_row {
    const float *x;                      /* [cols] */
    const int8_t *q;                     /* [cols] codes */
    const float *dx;                     /* [cols / 32] scales; +0 in the padding */
    const int16_t *s;                    /* [2 * cols / 32] sums of 16 codes */
} act_row;

/* sums[t * n_row + r] = the folded sum of row r with token t, before factor, scale and bias. Rows
 * are row_bytes apart, at any alignment. Bytes after the last row may be prefetched, but are not
 * read. cols is a multiple of the type's block. Any number of rows and tokens. */
typedef void dot_fn(float *sums, const uint8_t *rows, size_t row_bytes, int n_row,
                    const act_row *x, int n_token, int cols);

/* A faster order for weights that every token reads: bundles of rows, in as many bytes as the rows;
 * zeros fill the last bundle. */
typedef struct repacking {
    int bundle;                          /* rows; 0: the type has no such order */
    void (*repack)(uint8_t *dst, const uint8_t *rows, size_t row_bytes, int n_row, int cols);
    dot_fn *dot;                         /* rows must start at a bundle */
} repacking;

/* Packs up to PACKED_TOKENS tokens in the layout of a wide kernel, once for several calls. dot
 * gives the bits of wide with those tokens. It does not write to packed. */
enum { PACKED_TOKENS = 64, PACKED_ALIGN = 64 };
typedef struct packing {
    size_t (*bytes)(int cols);           /* bytes of the packed tokens; NULL: no packing */
    void (*pack)(void *packed, const act_row *x, int n_token, int cols);
    void (*dot)(float *sums, const uint8_t *rows, size_t row_bytes, int n_row, void *packed,
                int n_token, int cols);
} packing;

typedef struct kernel {
    dot_fn *dot;                         /* reads rows once, in order; fastest for few tokens. NULL:
                                          * not a weight type */
    float factor;                        /* power of two by which the caller multiplies sums */
    bool quantised;                      /* reads q, dx, s; else x */
    dot_fn *wide;                        /* fastest from wide_from tokens on; NULL: use dot */
    int wide_from;
    packing packed;                      /* wide in two steps */
    repacking repacked;                  /* for few tokens only */
} kernel;

typedef struct kernel_set {
    const char *isa;                     /* "scalar", "avx2", ..., "exact" */
    kernel of[QT_COUNT];                 /* by weight type */
} kernel_set;

const kernel_set *kernels_contract(void);
const kernel_set *kernels_exact(void);

/* ---- instruction sets: dispatch.c ---- */

enum { KERNELS_MAX_SETS = 8 };

/* Lists the sets that this processor can run, fastest first; the last is kernels_contract().
 * Returns their number. */
int kernels_here(const kernel_set *sets[KERNELS_MAX_SETS]);

/* Returns the set with this name, or the fastest for "" or NULL. Returns NULL, with the available
 * names in *err, if the name is unknown or this processor cannot run the set. */
const kernel_set *kernels_named(const char *isa, err_ctx *err);

/* Returns true if the set uses the contract's kernel for this type. */
bool kernel_is_reference(const kernel_set *set, quant_type type);

#endif
