/* batched_reads.cu - many small pieces of VRAM, read with one wait.
 *
 * Pieces go to a page-locked buffer in the order of the stream. When it is full, or at the end,
 * they are waited for and copied to where they belong. */
#include "cuda/device.cuh"

#include <string.h>

enum { GATHER_BYTES = 1 << 20, GATHER_PIECES = 1024, GATHER_MOST = 256 << 10 };

struct gpu_gather {
    uint8_t *buffer;                     /* page-locked */
    size_t used;
    int n;
    struct { void *to; size_t at, bytes; } pieces[GATHER_PIECES];
};

void gpu_gather_make(gpu *g)
{
    gpu_gather *a = (gpu_gather *)mem_zalloc(sizeof *a);
    if (a && cudaMallocHost((void **)&a->buffer, GATHER_BYTES) != cudaSuccess) {
        cudaGetLastError();              /* one by one, then */
        mem_free(a);
        a = NULL;
    }
    g->gather = a;
}

int gpu_read_later(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err)
{
    gpu_gather *a = g->gather;
    if (!a || bytes > GATHER_MOST) return gpu_read(g, to, from, bytes, err);
    if (a->n == GATHER_PIECES || a->used + bytes > GATHER_BYTES) {
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
    gpu_gather *a = g->gather;
    if (!a || a->n == 0) return 0;
    const int rc = gpu_wait(g, err);
    for (int i = 0; i < a->n && rc == 0; i++)
        memcpy(a->pieces[i].to, a->buffer + a->pieces[i].at, a->pieces[i].bytes);
    a->n = 0;
    a->used = 0;
    return rc;
}

void gpu_gather_free(gpu *g)
{
    if (!g->gather) return;
    cudaFreeHost(g->gather->buffer);
    mem_free(g->gather);
    g->gather = NULL;
}
