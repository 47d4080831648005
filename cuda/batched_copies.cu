/* batched_copies.cu - gpu_read_later, gpu_write_later: many small copies with one wait.
 *
 * Each copy goes through a page-locked buffer, in the stream. When the buffer is full, or in
 * gpu_copies_end, the calling thread waits and copies what was read to its destinations. */
#include "cuda/device.cuh"

#include <string.h>

enum { BATCH_BYTES = 1 << 20, BATCH_PIECES = 1024, BATCH_MOST = 256 << 10 };

struct copy_batch {
    uint8_t *buffer;                     /* page-locked */
    size_t used;
    int n;                               /* reads */
    struct { void *to; size_t at, bytes; } pieces[BATCH_PIECES];
};

void copy_batch_make(gpu *g)
{
    copy_batch *a = (copy_batch *)mem_zalloc(sizeof *a);
    if (a && cudaMallocHost((void **)&a->buffer, BATCH_BYTES) != cudaSuccess) {
        cudaGetLastError();              /* every copy then waits */
        mem_free(a);
        a = NULL;
    }
    g->copies = a;
}

/* The next bytes of the buffer, or NULL: the copy has to be made alone. */
static int take_room(uint8_t **room, gpu *g, uint64_t bytes, err_ctx *err)
{
    copy_batch *a = g->copies;
    *room = NULL;
    if (!a || bytes > BATCH_MOST) return 0;
    if (a->n == BATCH_PIECES || a->used + bytes > BATCH_BYTES) {
        const int rc = gpu_copies_end(g, err);
        if (rc < 0) return rc;
    }
    *room = a->buffer + a->used;
    a->used += (size_t)bytes;
    return 0;
}

int gpu_read_later(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err)
{
    uint8_t *room;
    const int rc = take_room(&room, g, bytes, err);
    if (rc < 0 || !room) return rc < 0 ? rc : gpu_read(g, to, from, bytes, err);
    gpu_fail(g, cudaMemcpyAsync(room, from, (size_t)bytes, cudaMemcpyDeviceToHost, g->stream),
             "copy from VRAM");
    copy_batch *a = g->copies;
    a->pieces[a->n++] = { to, (size_t)(room - a->buffer), (size_t)bytes };
    return 0;
}

int gpu_write_later(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err)
{
    uint8_t *room;
    const int rc = take_room(&room, g, bytes, err);
    if (rc < 0 || !room) return rc < 0 ? rc : gpu_write(g, to, from, bytes, err);
    memcpy(room, from, (size_t)bytes);
    gpu_fail(g, cudaMemcpyAsync(to, room, (size_t)bytes, cudaMemcpyHostToDevice, g->stream),
             "copy to VRAM");
    return 0;
}

int gpu_copies_end(gpu *g, err_ctx *err)
{
    copy_batch *a = g->copies;
    if (!a || a->used == 0) return 0;
    const int rc = gpu_wait(g, err);
    for (int i = 0; i < a->n && rc == 0; i++)
        memcpy(a->pieces[i].to, a->buffer + a->pieces[i].at, a->pieces[i].bytes);
    a->n = 0;
    a->used = 0;
    return rc;
}

void copy_batch_free(gpu *g)
{
    if (!g->copies) return;
    cudaFreeHost(g->copies->buffer);
    mem_free(g->copies);
    g->copies = NULL;
}
