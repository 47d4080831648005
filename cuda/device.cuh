/* device.cuh - internal header of cuda/: struct gpu, launches, and small device helpers.
 *
 * Every kernel has a tracer as first parameter, begins with pdl_begin, and ends with pdl_end. It
 * calls pdl_wait before it reads the output of the previous kernel of the stream, or writes memory
 * that the previous kernel reads. With programmatic dependent launch (sm_90) the next kernel's
 * blocks start once all blocks of this kernel have passed pdl_wait. So the code before pdl_wait,
 * which fetches weights, overlaps with the previous kernel: it may read memory written two kernels
 * ago, but nothing that the previous kernel writes. Weights change only where experts are exchanged
 * (copy_queue.cu), and the next kernel does not read those experts. */
#ifndef CUDA_DEVICE_CUH
#define CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "cuda/gpu.h"
#include "cuda/launch_shapes.h"

/* ---- the host side of a device --------------------------------------------------------------- */

enum {
    TRACE_MAX = 4096,                    /* launches that one profile can hold */
    UPLOAD_BUFFERS = 3, UPLOAD_BYTES = 32 << 20, UPLOAD_LEAST = 64 << 10
};

typedef struct trace_slot {              /* nanoseconds of the device's clock */
    unsigned long long start, ready, end;
} trace_slot;

/* The limit of waits for the host, in page-locked RAM that kernels and host share. */
typedef struct host_wait {
    volatile uint64_t limit_ns;          /* written by the host */
    volatile uint32_t late;              /* 1: a kernel gave up; gpu_recover clears it */
} host_wait;

typedef struct copy_batch copy_batch;
typedef struct sm_partition sm_partition;
typedef struct gpu_limiter gpu_limiter;

struct gpu {
    int device, n_sm, cc, code;          /* cc: compute capability, 90; code: gpu_code_version() */
    int n_sm_all;                        /* multiprocessors of the chip; n_sm are in use */
    size_t smem_block;                   /* most shared memory that a block can ask for */
    bool dependent_launch;
    cudaStream_t stream;
    /* streams parallel to it: side runs from fork to join, reply from pulled to replied, ahead from
     * fork to the next layer's join */
    cudaStream_t side, reply, ahead;
    cudaEvent_t fork, pulled, join, replied, predicted;
    bool predicting;                     /* stream has not yet waited for the event predicted */
    cudaError_t failure;                 /* the first failure, or cudaSuccess */
    const char *failed_in;
    host_wait *wait;                     /* set once */
    int n_recovery;
    struct {
        uint8_t *buffer;                 /* page-locked; NULL: not allocated yet */
        size_t bytes;                    /* of the buffer: grows up to UPLOAD_BYTES */
        cudaEvent_t sent;
    } upload[UPLOAD_BUFFERS];
    int next_upload;
    sm_partition *partition;             /* sm_partition.cu; NULL: the whole chip */
    gpu_limiter *limiter;                /* bandwidth_limiter.cu, or NULL */
    copy_batch *copies;                  /* batched_copies.cu, or NULL */
    gpu_gemm gemm;                       /* how products of many tokens are computed */
    struct vendor *vendor;               /* vendor_gemm.cuh; NULL: own kernels for all products */
    const void *lent;                    /* scratch from gpu_gemm_lend, or NULL */
    trace_slot *trace;                   /* in VRAM; NULL: profiling is off */
    int n_trace;
    const char *trace_name[TRACE_MAX];
    uint64_t trace_bytes[TRACE_MAX];
};

cudaError_t gpu_sync_streams(gpu *g);    /* waits for all streams; returns the first failure */

void copy_batch_make(gpu *g);            /* gpu_open calls it: the token loop allocates nothing */
void copy_batch_free(gpu *g);

/* sm_partition.cu. open reads g->n_sm, sets it, and makes the partition current. The caller calls
 * close even if open fails. Each thread has its own current context: cudaSetDevice selects the
 * whole chip, sm_partition_select the partition, sm_partition_select_other the other
 * multiprocessors; the last fails if there are none. */
int sm_partition_open(gpu *g, err_ctx *err);
void sm_partition_close(gpu *g);
cudaError_t sm_partition_select(const gpu *g);
int sm_partition_other_sms(const gpu *g);
int gpu_sm_limit(void);                  /* 0: all */
cudaError_t sm_partition_select_other(const gpu *g);

/* Highest rate, in bytes per second, at which a kernel reads this memory; 0: failure. */
double gpu_read_rate(gpu *g, const void *from, uint64_t bytes);

/* First argument of every kernel: the slot for its times. */
typedef struct tracer {
    trace_slot *trace;                   /* NULL: profiling is off */
    uint32_t zero;                       /* 0, but unknown to the compiler, which therefore keeps v
                                          * + zero in a register */
} tracer;

static inline chip chip_of(const gpu *g)
{
    return { g->smem_block, g->code, (unsigned)g->n_sm };
}

/* The architecture, e.g. 90, of the kernels that run on this device; -1: no kernel can run. */
int gpu_code_version(void);

/* Stores rc if it is the first failure. */
static inline void gpu_fail(gpu *g, cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess || g->failure != cudaSuccess) return;
    g->failure = rc;
    g->failed_in = what;
}

/* The stream of a kernel. dependent: the kernel may start before the previous one has ended; false
 * where streams fork and join. */
typedef struct launch_stream {
    cudaStream_t stream;
    bool dependent;
} launch_stream;

static inline launch_stream main_stream(const gpu *g) { return { g->stream, g->dependent_launch }; }

/* Launches kernel(tracer, args...). name, a static string, is its class in profiles; bytes is a
 * lower bound of the bytes that it reads from VRAM. smem: bytes of dynamic shared memory. */
template <typename... Params, typename... Args>
static inline void launch_at(gpu *g, launch_stream at, const char *name, uint64_t bytes,
                             void (*kernel)(tracer, Params...), dim3 grid, unsigned threads,
                             size_t smem, Args... args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    tracer f = {};

    if (smem > g->smem_block) gpu_fail(g, cudaErrorInvalidConfiguration, name);
    if (g->failure != cudaSuccess) return;
    if (g->trace && g->n_trace < TRACE_MAX) {
        g->trace_name[g->n_trace] = name;
        g->trace_bytes[g->n_trace] = bytes;
        f.trace = g->trace + g->n_trace++;
    }
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = smem;
    config.stream = at.stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = at.dependent ? 1 : 0;
    if (smem > 32 * 1024)                /* with static memory it may exceed the usual 48 KB */
        gpu_fail(g, cudaFuncSetAttribute((const void *)kernel,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem),
                 name);
    gpu_fail(g, cudaLaunchKernelEx(&config, kernel, f, static_cast<Params>(args)...), name);
}

template <typename... Params, typename... Args>
static inline void launch(gpu *g, const char *name, uint64_t bytes,
                          void (*kernel)(tracer, Params...), dim3 grid, unsigned threads,
                          size_t smem, Args... args)
{
    launch_at(g, main_stream(g), name, bytes, kernel, grid, threads, smem, args...);
}

static inline unsigned ceil_div(uint64_t a, uint64_t b) { return (unsigned)((a + b - 1) / b); }

/* ---- the device side ------------------------------------------------------------------------- */

static __device__ __forceinline__ unsigned long long device_ns(void)
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* One thread polls a word in page-locked RAM until it equals number. False: the limit has passed,
 * here or in an earlier kernel. The limit is read once in POLLS polls, so it costs nothing while
 * the host replies in time. */
static __device__ __forceinline__ bool wait_for_host(const volatile uint32_t *word, uint32_t number,
                                                     host_wait *w)
{
    enum { POLLS = 256 };                /* each poll crosses the bus */
    unsigned long long begun = 0;
    for (unsigned i = 1; *word != number; i++) {
        __nanosleep(20);
        if (i % POLLS) continue;
        const unsigned long long now = device_ns();
        if (begun == 0) begun = now;
        if (!w->late && now - begun < w->limit_ns) continue;
        w->late = 1;
        return false;
    }
    return true;
}

static __device__ __forceinline__ void pdl_begin(tracer f)
{
    if (f.trace && threadIdx.x == 0) atomicMin(&f.trace->start, device_ns());
}

/* Lets the next kernel start before this one has called pdl_wait. Before its own pdl_wait the next
 * kernel may then read only weights: kernels before this one may still be writing. */
static __device__ __forceinline__ void pdl_release(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void pdl_wait(tracer f)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    if (f.trace && threadIdx.x == 0) atomicMin(&f.trace->ready, device_ns());
}

static __device__ __forceinline__ void pdl_end(tracer f)
{
    if (f.trace && threadIdx.x == 0) atomicMax(&f.trace->end, device_ns());
}

/* Prefetches a line into the second-level cache. */
static __device__ __forceinline__ void prefetch(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" :: "l"(at));
}

/* Copies 16 bytes from global to shared memory, both aligned to 16; asynchronously from sm_80 on.
 * The calling thread sees them after copy_wait. */
static __device__ __forceinline__ void copy16(void *to, const void *from)
{
#if __CUDA_ARCH__ >= 800
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(from) : "memory");
#else
    *(uint4 *)to = *(const uint4 *)from;
#endif
}

/* copy16 for 4 bytes, aligned to 4. */
static __device__ __forceinline__ void copy4(void *to, const void *from)
{
#if __CUDA_ARCH__ >= 800
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"(from) : "memory");
#else
    *(uint32_t *)to = *(const uint32_t *)from;
#endif
}

/* copy16, or, if there is false, stores zeros and reads nothing. */
static __device__ __forceinline__ void copy16_or_zero(void *to, const void *from, bool there)
{
#if __CUDA_ARCH__ >= 800
    const unsigned at = (unsigned)__cvta_generic_to_shared(to), bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(at), "l"(from), "r"(bytes) : "memory");
#else
    *(uint4 *)to = there ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
#endif
}

/* copy16 to an address in shared memory. */
static __device__ __forceinline__ void copy16_to(uint32_t to, const void *from)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
#else
    const uint4 v = *(const uint4 *)from;
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};"
                 :: "r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#endif
}

static __device__ __forceinline__ void copy_commit(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until all committed groups but the last n have arrived. */
template <int n> static __device__ __forceinline__ void copy_wait(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(n) : "memory");
#endif
}

/* A token of a batch: its conversation, and its number among that one's tokens. */
typedef struct row_token {
    const gpu_cursor *row;
    int t;
} row_token;

static __device__ __forceinline__ row_token row_token_of(const gpu_cursor *rows, int t)
{
    for (; rows->n > 0 && t >= rows->n; rows++) t -= rows->n;
    return { rows, t };
}

static __device__ __forceinline__ int pos_of(const row_token &x) { return x.row->pos + x.t; }

/* Makes the compiler keep v in a register instead of computing it again. */
static __device__ __forceinline__ void keep(uint32_t &v) { asm volatile("" : "+r"(v)); }
static __device__ __forceinline__ void keep(const uint8_t *&v) { asm volatile("" : "+l"(v)); }

/* threadIdx.x / 32, as a value that the compiler knows to be uniform in a warp. */
static __device__ __forceinline__ int warp_index(void)
{
    return __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0);
}

static __device__ __forceinline__ float warp_sum(float v)
{
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xFFFFFFFFu, v, d);
    return v;
}

/* Returns to every thread the sum over all THREADS threads of the block, in a fixed order. shared:
 * 32 floats, which no thread may write before the block synchronises once more. */
template <int THREADS> static __device__ __forceinline__ float block_sum(float v, float *shared)
{
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0.0f;
    #pragma unroll
    for (int i = 0; i < THREADS / 32; i++) v += shared[i];
    return v;
}

/* An unsigned key in the order of floats: equal for both zeros, never 0. Undefined for NaN. */
static __device__ __forceinline__ uint32_t order_key(float v)
{
    const uint32_t bits = __float_as_uint(__fadd_rn(v, 0.0f));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The float whose order_key this is. */
static __device__ __forceinline__ float key_float(uint32_t key)
{
    return __uint_as_float(key >> 31 ? key & 0x7FFFFFFFu : ~key);
}

static __device__ __forceinline__ float sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }
static __device__ __forceinline__ float silu(float v) { return v / (1.0f + expf(-v)); }

/* Halves: the 16-bit floats that tensor cores multiply: bfloat16, or binary16 before sm_80. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
typedef __half half16;
static __device__ __forceinline__ uint32_t pack_halves(float lo, float hi)
{
    const __half2 v = __floats2half2_rn(lo, hi);
    return *(const uint32_t *)&v;
}
static __device__ __forceinline__ float2 unpack_halves(uint32_t v)
{
    return __half22float2(*(const __half2 *)&v);
}
#else
typedef __nv_bfloat16 half16;
static __device__ __forceinline__ uint32_t pack_halves(float lo, float hi)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *(const uint32_t *)&v;
}
static __device__ __forceinline__ float2 unpack_halves(uint32_t v)
{
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xFFFF0000u));
}
#endif

/* The rounding errors of pack_halves, as halves: value = half + low to 16 bits or more. */
static __device__ __forceinline__ uint32_t pack_lows(float lo, float hi)
{
    const float2 high = unpack_halves(pack_halves(lo, hi));
    return pack_halves(lo - high.x, hi - high.y);
}

/* d[16, 8] += a[16, 16] * b[16, 8] in the registers of a warp, as mma.m16n8k16 lays them out: with
 * g = lane / 4 and t = lane % 4, a[0] holds row g, columns 2t and 2t+1; a[1] row g+8; a[2], a[3]
 * the same rows, 8 columns later; b[0] holds rows 2t and 2t+1 of column g, b[1] rows 2t+8, 2t+9;
 * d[0], d[1] are row g, columns 2t and 2t+1; d[2], d[3] row g+8. */
static __device__ __forceinline__ void mma_16x8x16(float d[4], const uint32_t a[4],
                                                   const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif __CUDA_ARCH__ >= 750
    for (int h = 0; h < 2; h++)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, "
                     "{%6}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[2 * h]), "r"(a[2 * h + 1]), "r"(b[h]));
#endif
}

/* mma_16x8x16 for binary16, on any chip. */
static __device__ __forceinline__ void mma_f16(float d[4], const uint32_t a[4], uint32_t b0,
                                               uint32_t b1)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif __CUDA_ARCH__ >= 750
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

/* 2^x with a relative error of 2^-22. exp2f adds code for subnormal results to this instruction. */
static __device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Loads four 8x8 tiles of 16-bit values from shared memory. Lane l passes the address of row l % 8
 * of tile l / 8, and gets in r[i] columns 2(l % 4) and 2(l % 4) + 1 of row l / 4 of tile i. */
static __device__ __forceinline__ void load_tiles(uint32_t r[4], const void *row)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

/* load_tiles, each tile transposed. */
static __device__ __forceinline__ void load_tiles_transposed(uint32_t r[4], const void *row)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

/* Transposes an 8x8 tile of 16-bit values; v as load_tiles returns it. */
static __device__ __forceinline__ uint32_t transpose_tile(uint32_t v)
{
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}

#endif
