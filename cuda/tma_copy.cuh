/* tma_copy.cuh - bulk copies from global to shared memory, started by one thread, and the barriers
 * (mbarrier) that signal their arrival. Before sm_90 the functions are empty and never called. */
#ifndef CUDA_TMA_COPY_CUH
#define CUDA_TMA_COPY_CUH

#include <stdint.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define COPIES_IN_BULK true
#else
#define COPIES_IN_BULK false
#endif

/* Makes a barrier in shared memory, 8 bytes at a multiple of 8, for copies that n threads start.
 * Phases alternate: a thread waits for phase 0 first, then for 1, for 0, ... */
static __device__ __forceinline__ void arrival_init(uint32_t barrier, uint32_t n)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(n) : "memory");
#else
    (void)barrier, (void)n;
#endif
}

/* Called by one thread when no thread waits for the barrier. Its memory may then be reused. */
static __device__ __forceinline__ void arrival_end(uint32_t barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");
#else
    (void)barrier;
#endif
}

/* Called by the thread that made the barriers, before copies use them. */
static __device__ __forceinline__ void arrivals_ready(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/* Called by each of the n threads. The phase ends when the bytes of all n calls have arrived. */
static __device__ __forceinline__ void arrival_expect(uint32_t barrier, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(barrier), "r"(bytes) : "memory");
#else
    (void)barrier, (void)bytes;
#endif
}

/* Starts a copy that arrives at the barrier. Addresses and bytes are multiples of 16. */
static __device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes,
                                                 uint32_t barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
#else
    (void)to, (void)from, (void)bytes, (void)barrier;
#endif
}

static __device__ __forceinline__ void arrival_wait(uint32_t barrier, uint32_t phase)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred here;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 here, [%0], %1;\n"
                 "@!here bra again;\n"
                 "}" :: "r"(barrier), "r"(phase) : "memory");
#else
    (void)barrier, (void)phase;
#endif
}

#endif
