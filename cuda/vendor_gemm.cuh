/* vendor_gemm.cuh - dense products of many tokens by cuBLASLt, found when the program runs.
 *
 * The first caller loads the library with dlopen, once in a process. Without it, or without its
 * header at build time, vendor_gemm_find returns NULL. Weights of any type become bf16 in a scratch
 * that the caller lends, some rows at a time if the matrix is larger; the scratch keeps nothing.
 * BF16 weights are read in place. Sums are F32; scale, bias and sum are part of the product. Only
 * algorithms with a fixed order of sums are used, so a product has the same bits each time, on the
 * same chip with the same library.
 *
 * All work goes to the gpu's stream, allocates nothing there, and may be recorded. */
#ifndef CUDA_VENDOR_GEMM_CUH
#define CUDA_VENDOR_GEMM_CUH

#include "cuda/gemm.cuh"

/* "cuBLASLt 13.0", or NULL if there is none. */
const char *vendor_gemm_find(void);

/* VRAM to lend: bf16 weights, and the library's own workspace. */
size_t vendor_gemm_bytes(void);

/* Sets g->vendor; false: the library refuses, and nothing has changed. */
bool vendor_gemm_open(gpu *g, void *scratch);
void vendor_gemm_close(gpu *g);          /* g->vendor may be NULL; the stream must be at rest */

/* Whether the library supports such a product: one matrix, 16-bit activations in the order of
 * tokens, all at multiples of 16 bytes. */
bool vendor_gemm_fits(const gpu *g, const gemm *p);

/* y = W x for a product that fits; w.factor includes the factor of the weights' format. False: the
 * library has no algorithm or did not start one, and y is unchanged. */
bool vendor_gemm_run(gpu *g, const gemm *p);

#endif
