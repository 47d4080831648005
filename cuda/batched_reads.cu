/* batched_reads.cu - gpu_read_later: many small reads of VRAM with one wait.
 *
 * Each read is a copy to a page-locked buffer in the stream. When the buffer is full, or in
 * gpu_read_end, the calling thread waits and copies the bytes to their destinations. */
#include "cuda/device.cuh"

#include <string.h>

enum { BATCH_BYTES = 1 << 20, BATCH_PIECES = 1024, BATCH_MOST = 256 << 10 };

struct read_batch {
    uint8_t *buffer;                     /* page-locked */
    size_t used;
    int n;
    struct { void *to; size_t at, bytes; } pieces[BATCH_PIECES];
};

void read_batch_make(gpu *g)
{
    read_batch *a = (read_batch *)mem_zalloc(sizeof *a);
    if (a && cudaMallocHost((void **)&a->buffer, BATCH_BYTES) != cudaSuccess) {
        cudaGetLastError();              /* gpu_read_later then calls gpu_read */
        mem_free(a);
        a = NULL;
    }
    g->read_batch = a;
}

int gpu_read_later(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err)
{
    read_batch *a = g->read_batch;
    if (!a || bytes > BATCH_MOST) return gpu_read(g, to, from, bytes, err);
    if (a->n == BATCH_PIECES || a->used + bytes > BATCH_BYTES) {
        const int rc = gpu_read_end(g, err);
        if (rc < 0) return rc;
    }
    gpu_fail(g, cudaMemcpyAsync(a->buffer + a->used, from, (size_t)bytes, cudaMemcpyDeviceToHost,
                                g->stream), "copy from VRAM");
    a->pieces[a->n++] = { to, a->used, (size_t)bytes };
    a->used += (size_t)bytes;
    return 0;
}

int gpu_read_end(gpu *g, err_ctx *err)
{
    read_batch *a = g->read_batch;
    if (!a || a->n == 0) return 0;
    const int rc = gpu_wait(g, err);
    for (int i = 0; i < a->n && rc == 0; i++)
        memcpy(a->pieces[i].to, a->buffer + a->pieces[i].at, a->pieces[i].bytes);
    a->n = 0;
    a->used = 0;
    return rc;
}

void read_batch_free(gpu *g)
{
    if (!g->read_batch) return;
    cudaFreeHost(g->read_batch->buffer);
    mem_free(g->read_batch);
    g->read_batch = NULL;
}
