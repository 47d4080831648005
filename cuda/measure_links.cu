/* measure_links.cu - gpu_measure_links: speeds of VRAM and of the bus, by copies and by a kernel,
 * and the time of a question to the host. gpu_load_begin and _end: a kernel that loads the bus
 * while the caller measures something else.
 *
 * Each figure is the best of several rounds, because idle links save power. */
#include <string.h>

#include "cuda/best_seconds.cuh"
#include "cuda/gpu_measure.h"

enum { PULL_BLOCKS = 16, PULL_THREADS = 512, PULL_AHEAD = 4 };   /* AHEAD: loads in flight */
enum { READ_BLOCKS = 16, READ_THREADS = 256 };
enum { HOPS = 48, PLAYS = 6, LEAST_ROUNDS = 3 };
/* The test's question and reply are as large as those of a layer. */
enum { ASK_BYTES = 12 << 10, ANSWER_BYTES = 64 << 10, ASK_THREADS = ASK_BYTES / 16 };
enum { SPINS = 1024 };                   /* polls of a word before the stream is checked */

static const uint64_t BUS_BYTES = 128u << 20;            /* more than caches hold */
static const uint64_t WINDOW_BYTES = GPU_LOAD_LEAST;     /* VRAM that each pull overwrites */
static const uint64_t ROUND_NS = 40000000;               /* time for the rounds of one figure */

static_assert((WINDOW_BYTES / 16) % (PULL_BLOCKS * PULL_THREADS * PULL_AHEAD) == 0,
              "a window is whole turns of the pull");
static_assert(BUS_BYTES % WINDOW_BYTES == 0, "the bus's bytes are whole windows");

/* ---- a kernel that reads page-locked RAM ----------------------------------------------------- */

/* A block copies its part of a window. */
static __device__ __forceinline__ void pull_window(uint4 *to, const uint4 *from)
{
    const unsigned step = PULL_BLOCKS * PULL_THREADS, n = (unsigned)(WINDOW_BYTES / 16);
    #pragma unroll 1
    for (unsigned i = blockIdx.x * PULL_THREADS + threadIdx.x; i < n; i += PULL_AHEAD * step) {
        uint4 v[PULL_AHEAD];
        #pragma unroll
        for (int j = 0; j < PULL_AHEAD; j++) v[j] = __ldcs(from + i + j * step);
        #pragma unroll
        for (int j = 0; j < PULL_AHEAD; j++) to[i + j * step] = v[j];
    }
}

static __global__ void __launch_bounds__(PULL_THREADS) pull_once(tracer f, uint4 *to,
                                                                 const uint4 *from, int n_window)
{
    pdl_begin(f);
    pdl_wait(f);
    for (int w = 0; w < n_window; w++) pull_window(to, from + w * (WINDOW_BYTES / 16));
    pdl_end(f);
}

/* Words in page-locked RAM that host and kernel share. */
typedef struct load_words {
    volatile uint32_t stop;              /* set by the host */
    uint8_t apart[124];
    volatile uint32_t started;
    uint64_t windows[PULL_BLOCKS];       /* number of windows that each block has copied */
} load_words;

/* Reads RAM until the host sets stop, or until the host limit, because the host may be stopped. */
static __global__ void __launch_bounds__(PULL_THREADS) pull_on(tracer f, uint4 *to,
                                                               const uint4 *from, int n_window,
                                                               load_words *words, host_wait *wait)
{
    __shared__ uint32_t stop;
    uint64_t done = 0;

    pdl_begin(f);
    pdl_wait(f);
    const unsigned long long begun = device_ns();
    const uint64_t limit_ns = wait->limit_ns;
    if (blockIdx.x == 0 && threadIdx.x == 0) words->started = 1;
    for (int w = 0;; w = w + 1 < n_window ? w + 1 : 0) {
        if (threadIdx.x == 0) stop = words->stop;        /* also a read across the bus */
        pull_window(to, from + w * (WINDOW_BYTES / 16));
        done++;
        __syncthreads();
        const bool last = stop != 0;
        __syncthreads();
        if (last) break;
        if (threadIdx.x == 0 && device_ns() - begun >= limit_ns) {
            wait->late = 1;
            words->stop = 1;
        }
    }
    if (threadIdx.x == 0) words->windows[blockIdx.x] = done;
    pdl_end(f);
}

/* ---- a question and its reply ---------------------------------------------------------------- */

typedef struct hop_mailbox {             /* page-locked; polled words have cache lines of their
                                          * own */
    volatile uint32_t asked;
    uint8_t apart_1[124];
    volatile uint32_t answered;
    uint8_t apart_2[124];
    uint4 question[ASK_BYTES / 16];
    uint4 answer[ANSWER_BYTES / 16];
} hop_mailbox;

/* One block writes the question. */
static __global__ void __launch_bounds__(ASK_THREADS) hop_ask(tracer f, hop_mailbox *m,
                                                              uint32_t *number)
{
    pdl_begin(f);
    pdl_wait(f);
    const uint32_t next = *number + 1;
    m->question[threadIdx.x] = make_uint4(next, next, next, next);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        *number = next;
        m->asked = next;
    }
    pdl_end(f);
}

/* One warp waits for the reply. */
static __global__ void hop_wait(tracer f, const hop_mailbox *m, const uint32_t *number,
                                host_wait *wait)
{
    pdl_begin(f);
    pdl_wait(f);
    if (threadIdx.x == 0) {
        wait_for_host(&m->answered, *number, wait);
        __threadfence_system();
    }
    pdl_end(f);
}

static __global__ void __launch_bounds__(READ_THREADS) hop_read(tracer f, uint4 *to,
                                                                const hop_mailbox *m)
{
    const unsigned i = blockIdx.x * READ_THREADS + threadIdx.x;
    pdl_begin(f);
    pdl_wait(f);
    to[i] = __ldcv(m->answer + i);
    pdl_end(f);
}
static_assert(READ_BLOCKS * READ_THREADS * 16 == (int)ANSWER_BYTES, "a thread for 16 bytes");

/* ---- the host's side ------------------------------------------------------------------------- */

typedef struct bench {
    uint8_t *ram, *vram;                 /* BUS_BYTES each */
    uint32_t *number;                    /* in VRAM: number of the last question */
    gpu_recording *hops;
} bench;

static void copy_in(gpu *g, const bench *b)
{
    gpu_fail(g, cudaMemcpyAsync(b->vram, b->ram, BUS_BYTES, cudaMemcpyHostToDevice, g->stream),
             "links");
}

static void copy_out(gpu *g, const bench *b)
{
    gpu_fail(g, cudaMemcpyAsync(b->ram, b->vram, BUS_BYTES, cudaMemcpyDeviceToHost, g->stream),
             "links");
}

static void pull(gpu *g, const bench *b)
{
    launch(g, "links", 0, pull_once, (unsigned)PULL_BLOCKS, PULL_THREADS, 0, (uint4 *)b->vram,
           (const uint4 *)b->ram, (int)(BUS_BYTES / WINDOW_BYTES));
}

/* Highest rate in bytes per second of a step that moves BUS_BYTES; 0: failure. */
static double best_rate(gpu *g, const bench *b, void (*step)(gpu *g, const bench *b))
{
    const double s = best_seconds(g, "links", LEAST_ROUNDS, ROUND_NS, [&] { step(g, b); });
    return s > 0 ? (double)BUS_BYTES / s : 0.0;
}

/* Polls until the device has written value to the word. False: the stream ended first. */
static bool wait_for_word(gpu *g, cudaStream_t stream, const volatile uint32_t *word,
                          uint32_t value)
{
    for (unsigned spins = 1; __atomic_load_n(word, __ATOMIC_ACQUIRE) != value; spins++) {
        if (spins % SPINS) continue;
        const cudaError_t rc = cudaStreamQuery(stream);
        if (rc == cudaErrorNotReady) continue;
        gpu_fail(g, rc, "links");
        return __atomic_load_n(word, __ATOMIC_ACQUIRE) == value;
    }
    return true;
}

static int record_hops(gpu *g, bench *b, err_ctx *err)
{
    hop_mailbox *m = (hop_mailbox *)b->ram;
    int rc;

    memset(m, 0, sizeof *m);
    if ((rc = gpu_zero(g, b->number, sizeof *b->number, err)) < 0) return rc;
    if ((rc = gpu_recording_create(&b->hops, err)) < 0) return rc;
    if ((rc = gpu_record_begin(g, err)) < 0) return rc;
    for (int i = 0; i < HOPS; i++) {
        launch(g, "links", 0, hop_ask, 1u, ASK_THREADS, 0, m, b->number);
        launch(g, "links", 0, hop_wait, 1u, 32, 0, (const hop_mailbox *)m,
               (const uint32_t *)b->number, g->wait);
        launch(g, "links", 0, hop_read, (unsigned)READ_BLOCKS, READ_THREADS, 0, (uint4 *)b->vram,
               (const hop_mailbox *)m);
    }
    return gpu_record_end(b->hops, g, err);
}

/* Measures the seconds from one question to the next. */
static int measure_hop(double *out, gpu *g, bench *b, err_ctx *err)
{
    hop_mailbox *m = (hop_mailbox *)b->ram;
    uint64_t best = UINT64_MAX;
    int rc = record_hops(g, b, err);

    for (int p = 0; rc == 0 && p < PLAYS; p++) {
        uint64_t begun = 0, now = 0;
        int i = 0;
        gpu_replay(g, b->hops);
        for (; i < HOPS; i++) {
            const uint32_t number = (uint32_t)(p * HOPS + i + 1);
            if (!wait_for_word(g, g->stream, &m->asked, number)) break;
            now = clock_ns();
            if (i == 0) begun = now;
            __atomic_store_n(&m->answered, number, __ATOMIC_RELEASE);
        }
        rc = gpu_wait(g, err);
        if (i == HOPS && now - begun < best) best = now - begun;
    }
    if (rc == 0 && best != UINT64_MAX) *out = (double)best * 1e-9 / (HOPS - 1);
    return rc;
}

int gpu_measure_links(gpu_links *out, gpu *g, err_ctx *err)
{
    bench b = {};
    int rc;

    *out = {};
    if ((rc = gpu_read_bandwidth(&out->vram_read, g, err)) < 0) return rc;
    rc = ERR_NOMEM;
    b.vram = (uint8_t *)gpu_alloc(g, BUS_BYTES, "a measurement of the bus", err);
    b.number = b.vram ? (uint32_t *)gpu_alloc(g, sizeof *b.number, "a measurement", err) : NULL;
    b.ram = b.number ? (uint8_t *)gpu_alloc_host(g, BUS_BYTES, err) : NULL;
    if (!b.ram) goto end;
    out->pcie_in = best_rate(g, &b, copy_in);
    out->pcie_out = best_rate(g, &b, copy_out);
    out->pull = best_rate(g, &b, pull);
    if ((rc = gpu_wait(g, err)) < 0) goto end;
    rc = measure_hop(&out->hop, g, &b, err);
end:
    gpu_recording_free(b.hops);
    gpu_free_host(g, b.ram);
    gpu_free(g, b.number);
    gpu_free(g, b.vram);
    if (rc < 0) *out = {};
    return rc;
}

/* ---- a load on the bus ----------------------------------------------------------------------- */

struct gpu_load {
    gpu *g;
    cudaStream_t stream;
    uint8_t *vram;
    load_words *words;
    uint64_t begun;                      /* ns */
};

/* Sets stop and waits until the kernel has ended. */
static void stop_load(gpu_load *l)
{
    __atomic_store_n(&l->words->stop, 1u, __ATOMIC_RELEASE);
    gpu_fail(l->g, cudaStreamSynchronize(l->stream), "load");
}

static void load_free(gpu_load *l)
{
    if (l->stream) cudaStreamDestroy(l->stream);
    gpu_free_host(l->g, l->words);
    gpu_free(l->g, l->vram);
    mem_free(l);
}

int gpu_load_begin(gpu_load **out, gpu *g, const void *ram, uint64_t bytes, err_ctx *err)
{
    gpu_load *l = (gpu_load *)mem_zalloc(sizeof *l);
    int rc = ERR_NOMEM;

    *out = NULL;
    if (!l) return err_set(err, ERR_NOMEM, "load: %zu bytes", sizeof *l);
    l->g = g;
    l->vram = (uint8_t *)gpu_alloc(g, WINDOW_BYTES, "a load on the bus", err);
    l->words = l->vram ? (load_words *)gpu_alloc_host(g, sizeof *l->words, err) : NULL;
    if (!l->words) goto fail;
    memset((void *)l->words, 0, sizeof *l->words);
    gpu_fail(g, cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), "load");
    /* in a stream of its own, parallel to other operations */
    launch_at(g, { l->stream, false }, "load", 0, pull_on, (unsigned)PULL_BLOCKS, PULL_THREADS, 0,
              (uint4 *)l->vram, (const uint4 *)ram, (int)(bytes / WINDOW_BYTES), l->words, g->wait);
    if (g->failure != cudaSuccess || !wait_for_word(g, l->stream, &l->words->started, 1)) {
        stop_load(l);
        rc = gpu_wait(g, err);
        if (rc == 0)
            rc = err_set(err, ERR_IO, "GPU %d: a load on the bus did not start", g->device);
        goto fail;
    }
    l->begun = clock_ns();
    *out = l;
    return 0;
fail:
    load_free(l);
    return rc;
}

int gpu_load_end(gpu_load *l, double *bytes_per_s, err_ctx *err)
{
    double shares = 0.0;
    int rc;

    *bytes_per_s = 0.0;
    if (!l) return 0;
    stop_load(l);
    const double s = clock_since(l->begun);
    for (int i = 0; i < PULL_BLOCKS; i++) shares += (double)l->words->windows[i];
    if (s > 0.0) *bytes_per_s = shares / PULL_BLOCKS * (double)WINDOW_BYTES / s;
    if ((rc = gpu_wait(l->g, err)) < 0) *bytes_per_s = 0.0;
    load_free(l);
    return rc;
}
