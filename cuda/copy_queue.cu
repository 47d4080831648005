/* copy_queue.cu - copies of experts between RAM and VRAM: gpu_copy_queue, parallel to the stream;
 * gpu_moves, within the stream; and gpu_events, which the host waits for.
 *
 * The caller (moe/, engine/gpu/) ensures that no operation reads memory that is overwritten. */
#include "cuda/device.cuh"
#include "cuda/gpu_experts.h"

enum { MOVE_THREADS = 256, MOVE_BLOCKS = 8, MOVE_LOADS = 4 };

/* ---- parallel to the stream ------------------------------------------------------------------ */

struct gpu_events {
    cudaEvent_t *events;
    int n;
};

struct gpu_copy_queue {
    cudaStream_t stream;
    gpu_events *marks;
};

int gpu_events_create(gpu_events **out, gpu *g, int n, err_ctx *err)
{
    gpu_events *m = (gpu_events *)mem_zalloc(sizeof *m);
    *out = NULL;
    if (m) m->events = (cudaEvent_t *)mem_zalloc((size_t)n * sizeof *m->events);
    if (!m || !m->events) {
        mem_free(m);
        return err_set(err, ERR_NOMEM, "%d marks", n);
    }
    for (m->n = 0; m->n < n; m->n++) {
        gpu_fail(g, cudaEventCreateWithFlags(&m->events[m->n], cudaEventDisableTiming), "marks");
        if (g->failure == cudaSuccess) continue;
        gpu_events_free(m);
        return gpu_wait(g, err);
    }
    *out = m;
    return 0;
}

void gpu_events_free(gpu_events *m)
{
    if (!m) return;
    for (int i = 0; i < m->n; i++) cudaEventDestroy(m->events[i]);
    mem_free(m->events);
    mem_free(m);
}

void gpu_events_record(gpu *g, gpu_events *m, int i)
{
    if (g->failure == cudaSuccess) gpu_fail(g, cudaEventRecord(m->events[i], g->stream), "mark");
}

int gpu_events_wait(gpu *g, gpu_events *m, int i, err_ctx *err)
{
    if (g->failure == cudaSuccess) gpu_fail(g, cudaEventSynchronize(m->events[i]), "mark");
    return g->failure == cudaSuccess ? 0 : gpu_wait(g, err);
}

int gpu_copy_queue_create(gpu_copy_queue **out, gpu *g, int n_mark, err_ctx *err)
{
    gpu_copy_queue *m = (gpu_copy_queue *)mem_zalloc(sizeof *m);
    int rc;
    *out = NULL;
    if (!m) return err_set(err, ERR_NOMEM, "mover: %zu bytes", sizeof *m);
    rc = gpu_events_create(&m->marks, g, n_mark, err);
    if (rc == 0) {
        gpu_fail(g, cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking), "mover");
        if (g->failure != cudaSuccess) rc = gpu_wait(g, err);
    }
    if (rc < 0) {
        gpu_copy_queue_free(g, m);
        return rc;
    }
    *out = m;
    return 0;
}

void gpu_copy_queue_free(gpu *g, gpu_copy_queue *m)
{
    (void)g;
    if (!m) return;
    if (m->stream) {
        cudaStreamSynchronize(m->stream);
        cudaStreamDestroy(m->stream);
    }
    gpu_events_free(m->marks);
    mem_free(m);
}

/* Queues a copy, cut at multiples of GPU_LOCK_PIECE in RAM. */
static void copy_pieces(gpu *g, gpu_copy_queue *m, void *to, const void *from, uint64_t bytes,
                        cudaMemcpyKind way)
{
    const uint8_t *host = (const uint8_t *)(way == cudaMemcpyHostToDevice ? from : to);
    for (uint64_t done = 0, n; done < bytes && g->failure == cudaSuccess; done += n) {
        n = GPU_LOCK_PIECE - (uint64_t)(uintptr_t)(host + done) % GPU_LOCK_PIECE;
        if (n > bytes - done) n = bytes - done;
        gpu_fail(g, cudaMemcpyAsync((uint8_t *)to + done, (const uint8_t *)from + done, (size_t)n,
                                    way, m->stream), "copy of an expert");
    }
}

void gpu_copy_queue_copy(gpu *g, gpu_copy_queue *m, void *to, const void *from, uint64_t bytes)
{
    copy_pieces(g, m, to, from, bytes, cudaMemcpyHostToDevice);
}

void gpu_copy_queue_save(gpu *g, gpu_copy_queue *m, void *to, const void *from, uint64_t bytes)
{
    copy_pieces(g, m, to, from, bytes, cudaMemcpyDeviceToHost);
}

void gpu_copy_queue_record(gpu *g, gpu_copy_queue *m, int i)
{
    if (g->failure == cudaSuccess)
        gpu_fail(g, cudaEventRecord(m->marks->events[i], m->stream), "copy of an expert");
}

int gpu_copy_queue_passed(gpu *g, gpu_copy_queue *m, int i, err_ctx *err)
{
    const cudaError_t rc = cudaEventQuery(m->marks->events[i]);
    if (rc == cudaErrorNotReady) return 0;
    gpu_fail(g, rc, "copy of an expert");
    return g->failure == cudaSuccess ? 1 : gpu_wait(g, err);
}

/* ---- in the stream --------------------------------------------------------------------------- */

/* MOVE_BLOCKS blocks copy one job. */
static __global__ void __launch_bounds__(MOVE_THREADS) move_bytes(tracer f, const gpu_move *jobs)
{
    const unsigned first = blockIdx.y * MOVE_THREADS + threadIdx.x;
    const unsigned step = MOVE_BLOCKS * MOVE_THREADS;

    pdl_begin(f);
    pdl_wait(f);
    const gpu_move j = jobs[blockIdx.x];
    uint4 *to = (uint4 *)j.to;
    const uint4 *from = (const uint4 *)j.from;
    const uint64_t n = (j.to | j.from) % 16 ? 0 : j.bytes / 16;
    for (uint64_t at = first; at < n; at += MOVE_LOADS * step) {
        uint4 v[MOVE_LOADS];
        #pragma unroll
        for (int l = 0; l < MOVE_LOADS; l++)
            if (at + l * step < n) v[l] = from[at + l * step];
        #pragma unroll
        for (int l = 0; l < MOVE_LOADS; l++)
            if (at + l * step < n) to[at + l * step] = v[l];
    }
    for (uint64_t at = 16 * n + first; at < j.bytes; at += step)
        ((uint8_t *)j.to)[at] = ((const uint8_t *)j.from)[at];
    pdl_end(f);
}

void gpu_moves(gpu *g, const gpu_move *jobs, int n)
{
    if (n > 0)
        launch(g, "move experts", 0, move_bytes, dim3((unsigned)n, MOVE_BLOCKS), MOVE_THREADS, 0,
               jobs);
}
