/* gpu.cu - devices and their memory; cudaError_t becomes err_ctx here and nowhere else. */
#include "cuda/gpu.h"

#include <cuda_runtime.h>
#include <stdio.h>


static int fail(err_ctx *err, cudaError_t rc, const char *what, int device)
{
    return err_set(err, rc == cudaErrorMemoryAllocation ? ERR_NOMEM : ERR_IO, "GPU %d: %s: %s",
                   device, what, cudaGetErrorString(rc));
}

const char *gpu_backend(void)
{
    static char text[32];
    snprintf(text, sizeof text, "CUDA %d.%d", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return text;
}

int gpu_count(void)
{
    int n = 0;
    /* without a driver this is an error, which to the caller is the same as no device */
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

int gpu_describe(gpu_info *out, int device, err_ctx *err)
{
    cudaDeviceProp prop;
    size_t vram_free, vram_total;
    cudaError_t rc;

    *out = {};
    if ((rc = cudaGetDeviceProperties(&prop, device)) != cudaSuccess)
        return fail(err, rc, "properties", device);
    if ((rc = cudaSetDevice(device)) != cudaSuccess) return fail(err, rc, "select", device);
    if ((rc = cudaMemGetInfo(&vram_free, &vram_total)) != cudaSuccess)
        return fail(err, rc, "memory", device);
    snprintf(out->name, sizeof out->name, "%s", prop.name);
    out->cc_major = prop.major;
    out->cc_minor = prop.minor;
    out->n_sm = prop.multiProcessorCount;
    out->vram_total = vram_total;
    out->vram_free = vram_free;
    return 0;
}
