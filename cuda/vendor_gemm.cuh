/* vendor_gemm.cuh - dense products of many tokens by cuBLASLt, found when the program runs.
 *
 * The library is looked for with dlopen, once in a process, by whoever asks first; without it, or
 * without its header at build time, vendor_gemm_find says so, and that is all. Weights of any type
 * become bf16 in a scratch that the caller lends, some rows at a time if the matrix is larger, and
 * are multiplied from there; nothing stays in it. BF16 weights are read where they are. Sums are
 * F32; scale, bias and sum are part of the product. Only algorithms whose sums have a fixed order
 * are used, so a product has the same bits each time, on the same chip with the same library.
 *
 * Everything goes to the gpu's stream, allocates nothing there, and may be recorded. Internal to
 * cuda/. */
#ifndef CUDA_VENDOR_GEMM_CUH
#define CUDA_VENDOR_GEMM_CUH

#include "cuda/gemm.cuh"

/* "cuBLASLt 13.0", or NULL if there is none. */
const char *vendor_gemm_find(void);

/* VRAM to lend: bf16 weights, and the library's own workspace. */
size_t vendor_gemm_bytes(void);

/* Makes g->vendor from there on; false: the library refuses, and all stays as it was. */
bool vendor_gemm_open(gpu *g, void *scratch);
void vendor_gemm_close(gpu *g);          /* g->vendor may be NULL; the stream must be at rest */

/* Whether it takes such a product: one matrix, 16-bit activations in the order of tokens, all at
 * multiples of 16 bytes. */
bool vendor_gemm_fits(const gpu *g, const gemm *p);

/* y = W x for a product that fits; the factor of the weights' format is in w.factor. False: there
 * is no algorithm for it, or it did not start, and y is as it was. */
bool vendor_gemm_run(gpu *g, const gemm *p);

#endif
