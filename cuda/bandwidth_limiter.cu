/* bandwidth_limiter.cu - gpu_throttle_begin and _end, which emulate the memory bandwidth of a
 * smaller card, for measurements: reader kernels run on the multiprocessors outside the partition
 * (sm_partition.cu), as many as it takes to leave the partition a given share.
 *
 * A reader is a kernel of one millisecond; a thread queues one after the other until `stop` is set.
 * An endless reader would be simpler, but would slow down all other operations of the driver. The
 * thread is created here, because cuda/ may not call tiers/thread.c. */
#include "cuda/device.cuh"
#include "cuda/gpu_measure.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

enum { THREADS = 512, LOADS = 4, IN_FLIGHT = 3, STARTS = 8, TRIES = 3 };
static const uint64_t BUFFER_BYTES = 512u << 20;         /* far more than a cache holds */
static const uint64_t READ_NS = 1000 * 1000;
static const char *const WHAT = "smaller card";

struct gpu_limiter {
    const gpu *g;
    uint8_t *memory;                     /* a buffer for the partition, then one for readers, so
                                          * that neither finds the other's data in a cache */
    int n_reader;                        /* blocks; 0: no thread */
    pthread_t thread;
    bool stop;                           /* tells the thread to end */
    bool ended;                          /* the thread has ended */
    uint64_t n_ended;                    /* kernels that have ended; written by the thread */
    uint64_t begun;                      /* clock_ns() when the first kernel ended */
    cudaError_t failure;                 /* written by the thread before ended */
};

/* ---- readers --------------------------------------------------------------------------------- */

/* Has no tracer, because the launching thread must not use the gpu, which another thread uses. */
static __global__ void __launch_bounds__(THREADS) read_a_while(const uint4 *from, size_t n,
                                                               size_t at, uint32_t *to)
{
    const unsigned long long begin = device_ns();
    const size_t step = (size_t)gridDim.x * THREADS;
    uint32_t sum = 0;

    at += blockIdx.x * (size_t)THREADS + threadIdx.x;
    do {
        for (int i = 0; i < 16; i++) {
            uint4 v[LOADS];
            #pragma unroll
            for (int k = 0; k < LOADS; k++) {
                v[k] = __ldcs(from + at);
                at = at + step < n ? at + step : at + step - n;
            }
            #pragma unroll
            for (int k = 0; k < LOADS; k++) sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
        }
    } while (device_ns() - begin < READ_NS);
    if (sum == 0x12345678u) *to = sum;   /* keeps the compiler from removing the reads */
}

/* The thread's function. Each kernel begins at another address, because a cache may hold data that
 * the previous one read. */
static void *queue_readers(void *self)
{
    gpu_limiter *h = (gpu_limiter *)self;
    uint4 *from = (uint4 *)(h->memory + BUFFER_BYTES);
    const size_t n = (size_t)(BUFFER_BYTES / sizeof *from);
    cudaStream_t stream = NULL;
    cudaEvent_t ended[IN_FLIGHT] = {};
    cudaError_t rc = sm_partition_select_other(h->g);

    if (rc == cudaSuccess) rc = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (cudaEvent_t &e : ended)
        if (rc == cudaSuccess)
            rc = cudaEventCreateWithFlags(&e, cudaEventDisableTiming | cudaEventBlockingSync);
    for (uint64_t i = 0; rc == cudaSuccess && !__atomic_load_n(&h->stop, __ATOMIC_ACQUIRE); i++) {
        const size_t at = i % STARTS * (n / STARTS);
        rc = cudaEventSynchronize(ended[i % IN_FLIGHT]);
        if (rc == cudaSuccess && i >= IN_FLIGHT)
            __atomic_store_n(&h->n_ended, i - IN_FLIGHT + 1, __ATOMIC_RELEASE);
        if (rc == cudaSuccess)
            read_a_while<<<(unsigned)h->n_reader, THREADS, 0, stream>>>(from, n, at,
                                                                        (uint32_t *)from);
        if (rc == cudaSuccess) rc = cudaGetLastError();
        if (rc == cudaSuccess) rc = cudaEventRecord(ended[i % IN_FLIGHT], stream);
    }
    if (stream && rc == cudaSuccess) rc = cudaStreamSynchronize(stream);
    for (cudaEvent_t e : ended)
        if (e) cudaEventDestroy(e);
    if (stream) cudaStreamDestroy(stream);
    h->failure = rc;
    __atomic_store_n(&h->ended, true, __ATOMIC_RELEASE);
    return NULL;
}

/* Starts the readers and returns when they run. */
static int readers_start(gpu_limiter *h, int n_reader, err_ctx *err)
{
    sigset_t all, before;
    if (n_reader == 0) return 0;
    h->stop = h->ended = false;
    h->n_ended = 0;
    h->n_reader = n_reader;
    sigfillset(&all);                    /* signals go to the program's other threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int why = pthread_create(&h->thread, NULL, queue_readers, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (why != 0) {
        h->n_reader = 0;
        return err_set(err, ERR_NOMEM, "a smaller card: no thread for its readers: %s",
                       strerror(why));
    }
    while (!__atomic_load_n(&h->n_ended, __ATOMIC_ACQUIRE) &&
           !__atomic_load_n(&h->ended, __ATOMIC_ACQUIRE)) sched_yield();
    h->begun = clock_ns();
    return 0;
}

/* Ends the readers. Returns whether they ran for at least four fifths of the time, judged by the
 * number of kernels that ended. */
static bool readers_stop(gpu *g)
{
    gpu_limiter *h = g->limiter;
    if (h->n_reader == 0) return true;
    const uint64_t ns = clock_ns() - h->begun;
    const uint64_t n = __atomic_load_n(&h->n_ended, __ATOMIC_ACQUIRE);
    __atomic_store_n(&h->stop, true, __ATOMIC_RELEASE);
    pthread_join(h->thread, NULL);
    h->n_reader = 0;
    gpu_fail(g, h->failure, WHAT);
    return g->failure == cudaSuccess && (n + IN_FLIGHT) * READ_NS >= ns / 5 * 4;
}

/* ---- measuring and limiting ------------------------------------------------------------------ */

/* Read rate on all multiprocessors, in the device's usual context. */
static double whole_rate(gpu *g)
{
    const cudaStream_t stream = g->stream;
    const int n_sm = g->n_sm;

    gpu_fail(g, cudaSetDevice(g->device), WHAT);
    g->stream = NULL;
    gpu_fail(g, cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), WHAT);
    g->n_sm = g->n_sm_all;
    const double rate = gpu_read_rate(g, g->limiter->memory, BUFFER_BYTES);
    if (g->stream) cudaStreamDestroy(g->stream);
    g->stream = stream;
    g->n_sm = n_sm;
    gpu_fail(g, sm_partition_select(g), WHAT);
    return rate;
}

/* Number of reader blocks that can be active on the other multiprocessors. */
static int most_readers(gpu *g)
{
    int each = 0;
    gpu_fail(g, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, read_a_while, THREADS, 0),
             WHAT);
    return each * sm_partition_other_sms(g);
}

/* Measures the read rate in the partition while n_reader blocks read; again if another program used
 * the chip meanwhile. */
static int limited_rate(double *rate, gpu *g, int n_reader, err_ctx *err)
{
    for (int i = 0; i < TRIES; i++) {
        int rc = readers_start(g->limiter, n_reader, err);
        if (rc < 0) return rc;
        *rate = gpu_read_rate(g, g->limiter->memory, BUFFER_BYTES);
        const bool kept_up = readers_stop(g);
        if ((rc = gpu_wait(g, err)) < 0) return rc;
        if (kept_up) return 0;
    }
    return err_set(err, ERR_UNSUPPORTED, "a smaller card: kernels do not run at the same time, or "
                   "other programs use the GPU");
}

/* Finds the least number of readers that leaves at most the share, and writes the rate to *out. */
static int find_readers(int *n_reader, gpu *g, double share, gpu_throttled *out, err_ctx *err)
{
    int low = 0, rc;
    for (int high = share < 1 ? most_readers(g) : 0; low < high;) {
        const int n = low + (high - low) / 2;
        if ((rc = limited_rate(&out->bytes_per_s, g, n, err)) < 0) return rc;
        if (out->bytes_per_s > share * out->whole_bytes_per_s) low = n + 1;
        else high = n;
    }
    *n_reader = low;
    return limited_rate(&out->bytes_per_s, g, low, err);
}

static void limiter_free(gpu *g)
{
    gpu_free(g, g->limiter->memory);
    mem_free(g->limiter);
    g->limiter = NULL;
}

static int limiter_make(gpu *g, bool readers, err_ctx *err)
{
    const uint64_t bytes = (readers ? 2 : 1) * BUFFER_BYTES;
    gpu_limiter *h = g->limiter = (gpu_limiter *)mem_zalloc(sizeof *h);
    if (!h) return err_set(err, ERR_NOMEM, "a smaller card: %zu bytes", sizeof *h);
    h->g = g;
    h->memory = (uint8_t *)gpu_alloc(g, bytes, "the readers of a smaller card", err);
    if (h->memory) gpu_fail(g, cudaMemsetAsync(h->memory, 1, bytes, g->stream), WHAT);
    const int rc = h->memory ? gpu_wait(g, err) : ERR_NOMEM;
    if (rc < 0) limiter_free(g);
    return rc;
}

int gpu_throttle_begin(gpu *g, double share, gpu_throttled *out, err_ctx *err)
{
    int n_reader = 0, rc;

    *out = { g->n_sm, g->n_sm_all, 0, 0 };
    if (share < 1 && sm_partition_other_sms(g) == 0)
        return err_set(err, ERR_UNSUPPORTED, "a smaller card: all %d multiprocessors are in use, "
                       "and none is left to read", g->n_sm);
    if ((rc = limiter_make(g, share < 1, err)) < 0) return rc;
    out->whole_bytes_per_s = whole_rate(g);
    if ((rc = gpu_wait(g, err)) < 0 ||
        (rc = find_readers(&n_reader, g, share, out, err)) < 0 ||
        (rc = readers_start(g->limiter, n_reader, err)) < 0)
        limiter_free(g);
    return rc;
}

int gpu_throttle_end(gpu *g, err_ctx *err)
{
    if (!g->limiter) return 0;
    const bool kept_up = readers_stop(g);
    limiter_free(g);
    const int rc = gpu_wait(g, err);
    if (rc < 0 || kept_up) return rc;
    return err_set(err, ERR_UNSUPPORTED, "a smaller card: its bandwidth was not limited all "
                   "the time");
}
