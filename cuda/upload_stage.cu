/* upload_stage.cu - gpu_lock, page-locking of the caller's memory, and gpu_stage, VRAM buffers that
 * a copy engine fills while operations read others.
 *
 * A stage has its own stream for copies. Each buffer has two events. `filled` follows the copies to
 * the buffer, and the main stream waits for it. `done` follows the operations that read the buffer,
 * and the buffer's next copies wait for it. So copies run ahead of operations by the number of
 * buffers, and the host never waits. */
#include "cuda/device.cuh"
#include "cuda/gpu_experts.h"

typedef struct stage_buffer {
    uint8_t *data;
    cudaEvent_t filled, done;
    bool read;                           /* done was recorded, and no copy has waited for it yet */
} stage_buffer;

struct gpu_stage {
    cudaStream_t stream;
    stage_buffer *buffers;
    int n_buffer;
    int open;                            /* buffer with copies after its last `filled`, or -1 */
    uint64_t bytes;                      /* of a buffer */
};

/* ---- memory of the host ---------------------------------------------------------------------- */

int gpu_lock(gpu *g, void *p, uint64_t bytes, err_ctx *err)
{
    void *seen = NULL;
    cudaError_t rc = cudaHostRegister(p, (size_t)bytes,
                                      cudaHostRegisterMapped | cudaHostRegisterPortable);
    const char *why = NULL;

    if (rc == cudaSuccess) {
        /* kernels use the host's addresses, so both must be equal */
        rc = cudaHostGetDevicePointer(&seen, p, 0);
        if (rc == cudaSuccess && seen == p) return 0;
        why = "the device has other addresses for it";
        cudaHostUnregister(p);
    }
    if (rc != cudaSuccess) why = cudaGetErrorString(rc);
    cudaGetLastError();                  /* a refusal is not a lasting failure */
    return err_set(err, ERR_NOMEM, "GPU %d: %.2f GB of RAM cannot be page-locked: %s", g->device,
                   (double)bytes * 1e-9, why);
}

void gpu_unlock(gpu *g, void *p)
{
    if (!p) return;
    gpu_sync_streams(g);
    cudaHostUnregister(p);
    cudaGetLastError();
}

/* ---- stages ---------------------------------------------------------------------------------- */

static void make_event(gpu *g, cudaEvent_t *event)
{
    if (g->failure == cudaSuccess)
        gpu_fail(g, cudaEventCreateWithFlags(event, cudaEventDisableTiming), "stage");
}

int gpu_stage_create(gpu_stage **out, gpu *g, int n_buffer, uint64_t bytes, err_ctx *err)
{
    const size_t list_bytes = (size_t)n_buffer * sizeof(stage_buffer);
    gpu_stage *s = (gpu_stage *)mem_zalloc(sizeof *s);
    int rc = ERR_NOMEM;

    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "stage: %zu bytes", sizeof *s);
    s->open = -1;
    s->bytes = bytes;
    s->buffers = (stage_buffer *)mem_zalloc(list_bytes);
    if (!s->buffers) {
        err_set(err, ERR_NOMEM, "stage: %zu bytes", list_bytes);
        goto fail;
    }
    s->n_buffer = n_buffer;
    for (int i = 0; i < n_buffer; i++) {
        stage_buffer *b = &s->buffers[i];
        b->data = (uint8_t *)gpu_alloc(g, bytes, "a buffer for banks of experts", err);
        if (!b->data) goto fail;
        make_event(g, &b->filled);
        make_event(g, &b->done);
    }
    if (g->failure == cudaSuccess)
        gpu_fail(g, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "stage");
    if (g->failure != cudaSuccess) {
        rc = gpu_wait(g, err);
        goto fail;
    }
    *out = s;
    return 0;
fail:
    gpu_stage_free(g, s);
    return rc;
}

void gpu_stage_free(gpu *g, gpu_stage *s)
{
    if (!s) return;
    if (s->stream) {
        cudaStreamSynchronize(s->stream);
        cudaStreamDestroy(s->stream);
    }
    for (int i = 0; i < s->n_buffer; i++) {
        stage_buffer *b = &s->buffers[i];
        gpu_free(g, b->data);
        if (b->filled) cudaEventDestroy(b->filled);
        if (b->done) cudaEventDestroy(b->done);
    }
    mem_free(s->buffers);
    mem_free(s);
}

uint8_t *gpu_stage_buffer(const gpu_stage *s, int i) { return s->buffers[i].data; }

/* Records `filled` of the open buffer before copies to another buffer, so that a wait for one
 * buffer does not wait for others. */
static void close_round(gpu *g, gpu_stage *s)
{
    if (s->open >= 0)
        gpu_fail(g, cudaEventRecord(s->buffers[s->open].filled, s->stream), "stage");
    s->open = -1;
}

void gpu_stage_copy(gpu *g, gpu_stage *s, int i, uint64_t offset, const void *from, uint64_t bytes)
{
    stage_buffer *b = &s->buffers[i];

    if (offset > s->bytes || bytes > s->bytes - offset)
        gpu_fail(g, cudaErrorInvalidValue, "stage: copy past the end of a buffer");
    if (s->open != i) close_round(g, s);
    if (g->failure != cudaSuccess) return;
    if (b->read) gpu_fail(g, cudaStreamWaitEvent(s->stream, b->done, 0), "stage");
    b->read = false;
    for (uint64_t done = 0, n; done < bytes; done += n) {
        const uint8_t *part = (const uint8_t *)from + done;
        n = GPU_LOCK_PIECE - (uint64_t)(uintptr_t)part % GPU_LOCK_PIECE;
        if (n > bytes - done) n = bytes - done;
        gpu_fail(g, cudaMemcpyAsync(b->data + offset + done, part, (size_t)n,
                                    cudaMemcpyHostToDevice, s->stream), "copy to a stage");
    }
    s->open = i;
}

void gpu_stage_ready(gpu *g, gpu_stage *s, int i)
{
    if (g->failure != cudaSuccess) return;
    if (s->open == i) close_round(g, s);
    /* does not wait if the buffer never had copies */
    gpu_fail(g, cudaStreamWaitEvent(g->stream, s->buffers[i].filled, 0), "stage");
}

void gpu_stage_done(gpu *g, gpu_stage *s, int i)
{
    if (g->failure != cudaSuccess) return;
    gpu_fail(g, cudaEventRecord(s->buffers[i].done, g->stream), "stage");
    s->buffers[i].read = true;
}

int gpu_stage_sent(gpu *g, gpu_stage *s, int i, err_ctx *err)
{
    if (s->open == i) close_round(g, s);
    if (g->failure == cudaSuccess)
        gpu_fail(g, cudaEventSynchronize(s->buffers[i].filled), "stage");
    return g->failure == cudaSuccess ? 0 : gpu_wait(g, err);
}
