/* vendor_gemm.cuh - dense products of many tokens by cuBLASLt, found when the program runs.
 *
 * The first caller loads the library with dlopen, once in a process. Without the library, or
 * without its header at build time, vendor_gemm_find returns NULL. Weights are decoded to bf16 in a
 * scratch that the caller lends, some rows at a time if the matrix is larger; the scratch is
 * undefined between products. Aligned BF16 weights are read in place. Sums are F32; the library
 * also applies scale, bias and add. Only algorithms with a fixed order of sums are used, so a
 * product has the same bits each time, on the same chip with the same library.
 *
 * All work goes to the gpu's stream, allocates nothing there, and may be recorded. */
#ifndef CUDA_VENDOR_GEMM_CUH
#define CUDA_VENDOR_GEMM_CUH

#include "cuda/gemm.cuh"

/* Loads the library if necessary. Returns its name, e.g. "cuBLASLt 13.0", or NULL. */
const char *vendor_gemm_find(void);

/* Bytes of VRAM to lend: for bf16 weights and for the library's workspace. */
size_t vendor_gemm_bytes(void);

/* Sets g->vendor. False: the library refuses, and g is unchanged. */
bool vendor_gemm_open(gpu *g, void *scratch);
void vendor_gemm_close(gpu *g);          /* g->vendor may be NULL; the stream must be idle */

/* Whether the library supports such a product: one matrix, 16-bit activations in the order of
 * tokens, all at multiples of 16 bytes. */
bool vendor_gemm_fits(const gpu *g, const gemm *p);

/* y = W x for a product that fits; w.factor includes the factor of the weights' format. False: the
 * library has no algorithm or did not start one, and y is unchanged. */
bool vendor_gemm_run(gpu *g, const gemm *p);

#endif
