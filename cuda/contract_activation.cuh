/* contract_activation.cuh - exp and the experts' activations by the arithmetic contract: the bits
 * of engine/cpu/loops.h. Internal to cuda/. */
#ifndef CUDA_CONTRACT_ACTIVATION_CUH
#define CUDA_CONTRACT_ACTIVATION_CUH

#include "cuda/device.cuh"

static __device__ __forceinline__ float contract_exp(float z)
{
    z = z > 88.0f ? 88.0f : z;
    z = z < -87.0f ? -87.0f : z;
    const float t = __fmaf_rn(z, 0x1.715476p+0f, 12582912.0f);
    const float n = __fsub_rn(t, 12582912.0f);
    float r = __fmaf_rn(n, -0x1.62e430p-1f, z);
    r = __fmaf_rn(n, 0x1.05c610p-29f, r);
    float p = 0x1.6a23d0p-10f;
    p = __fmaf_rn(p, r, 0x1.123a20p-7f);
    p = __fmaf_rn(p, r, 0x1.5558f2p-5f);
    p = __fmaf_rn(p, r, 0x1.555492p-3f);
    p = __fmaf_rn(p, r, 0x1.fffffcp-2f);
    p = __fmaf_rn(p, r, 1.0f);
    p = __fmaf_rn(p, r, 1.0f);
    return __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
}

static __device__ __forceinline__ float contract_gated(float g, float z)
{
    return __fdiv_rn(g, __fadd_rn(1.0f, contract_exp(-z)));
}

static __device__ __forceinline__ float contract_activation(float g, float u, gpu_activation act)
{
    if (act == GPU_SWIGLU) return __fmul_rn(contract_gated(g, g), u);
    if (act == GPU_GEGLU) {
        const float slope = __fmaf_rn(__fmul_rn(g, g), 0x1.2444f2p-4f, 0x1.988454p+0f);
        return __fmul_rn(contract_gated(g, __fmul_rn(g, slope)), u);
    }
    g = g > 7.0f ? 7.0f : g;
    u = u > 7.0f ? 7.0f : u;
    u = u < -7.0f ? -7.0f : u;
    return __fmul_rn(contract_gated(g, __fmul_rn(g, 0x1.b3b646p+0f)), __fadd_rn(u, 1.0f));
}

#endif
