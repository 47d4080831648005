/* gpu.h - the whole contract with the GPU: no CUDA types leave cuda/.
 *
 * gpu.cu implements it; gpu_stub.c has the same symbols for builds without CUDA, where gpu_count()
 * is 0 and everything else fails with ERR_UNSUPPORTED. A build with CUDA also starts on a machine
 * without a driver: there gpu_count() is 0 too. */
#ifndef CUDA_GPU_H
#define CUDA_GPU_H

#include "loader/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpu_info {
    char name[256];
    int cc_major, cc_minor;              /* compute capability: 9.0 */
    int n_sm;
    uint64_t vram_total, vram_free;      /* bytes, at the time of asking */
} gpu_info;

const char *gpu_backend(void);           /* "CUDA 13.0", or "none" in a build without it */

/* Usable devices: 0 without a GPU, a driver or CUDA in the build. Never fails. */
int gpu_count(void);

int gpu_describe(gpu_info *out, int device, err_ctx *err);

#ifdef __cplusplus
}
#endif
#endif
