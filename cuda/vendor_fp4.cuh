/* vendor_fp4.cuh - operands for the block-scaled FP4 product of cuBLASLt, made on the device.
 *
 * NVFP4 and MXFP4 weights keep their codes and scales, in the library's order. Activations become
 * the sum of two FP4 matrices, the second of what the first left over: one alone would be off by a
 * tenth, both by a hundredth. So a product is two. Before them the activations of a NVFP4 product
 * are divided by a power of two, so that the largest of the batch fits; the product is multiplied
 * by it again.
 *
 * For chips of compute capability 10.0 and later. It has not run on one: vendor_gemm.cu compares
 * one tile with the bf16 product when memory is lent, and leaves FP4 alone if they differ. Internal
 * to cuda/. */
#ifndef CUDA_VENDOR_FP4_CUH
#define CUDA_VENDOR_FP4_CUH

#include "cuda/fp4_pack.cuh"
#include "cuda/gemm.cuh"

/* Values that share a scale. */
static inline int fp4_block(int type) { return type == QT_NVFP4 ? 16 : 32; }

typedef struct fp4_matrix {              /* [outer, cols]; in VRAM, at multiples of 256 bytes */
    uint8_t *codes, *scales;
} fp4_matrix;

static inline size_t fp4_codes_bytes(int outer, int cols)
{
    return ((size_t)outer * cols / 2 + 255) / 256 * 256;
}

static inline size_t fp4_bytes(int type, int outer, int cols)
{
    return fp4_codes_bytes(outer, cols) + fp4_scales_bytes(outer, cols / fp4_block(type));
}

typedef struct fp4_inputs {
    fp4_matrix part[2];                  /* x is their sum, times the unit */
    float *by;                           /* alpha = factor * unit; beta of the first product, of the
                                          * second */
    uint32_t *largest;                   /* scratch, one */
} fp4_inputs;

/* Rows first .. first + rows - 1 of p's matrix. */
void fp4_pack_weights(gpu *g, const fp4_matrix *to, const gemm *p, int first, int rows);
void fp4_pack_inputs(gpu *g, const fp4_inputs *to, const gemm *p);

#endif
