/* gpu_stub.c - gpu.h for a build without CUDA: no devices, and every request says so. */
#include "cuda/gpu.h"

const char *gpu_backend(void)
{
    return "none";
}

int gpu_count(void)
{
    return 0;
}

int gpu_describe(gpu_info *out, int device, err_ctx *err)
{
    *out = (gpu_info){ 0 };
    return err_set(err, ERR_UNSUPPORTED, "GPU %d: this build has no CUDA", device);
}
