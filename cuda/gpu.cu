/* gpu.cu - devices, memory, the stream and its recordings. This file reports every stored
 * cudaError_t as an err_ctx.
 *
 * The CUDA runtime is linked statically and looks for the driver at its first call, so a program
 * with this file starts on any machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device.cuh"
#include "cuda/gpu_measure.h"

/* Limits of waits for the host. A display watchdog ends a kernel after 2 s or more. */
static const uint64_t LIMIT_NS = 20000000000, WATCHDOG_NS = 1500000000;

static int fail(err_ctx *err, cudaError_t rc, const char *what, int device)
{
    return err_set(err, rc == cudaErrorMemoryAllocation ? ERR_NOMEM : ERR_IO, "GPU %d: %s: %s",
                   device, what, cudaGetErrorString(rc));
}

/* ---- devices --------------------------------------------------------------------------------- */

const char *gpu_backend(void)
{
    static char text[32];
    snprintf(text, sizeof text, "CUDA %d.%d", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return text;
}

int gpu_count(void)
{
    int n = 0;
    /* without a driver the call fails: then there are 0 devices */
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

/* Reads an attribute, because newer toolkits have no such field in cudaDeviceProp. */
static bool has_watchdog(int device)
{
    int on = 0;
    return cudaDeviceGetAttribute(&on, cudaDevAttrKernelExecTimeout, device) == cudaSuccess && on;
}

int gpu_describe(gpu_info *out, int device, err_ctx *err)
{
    cudaDeviceProp prop;
    size_t vram_free, vram_total;
    cudaError_t rc;
    int now;

    *out = {};
    if ((rc = cudaGetDeviceProperties(&prop, device)) != cudaSuccess)
        return fail(err, rc, "properties", device);
    /* cudaSetDevice would replace a current partition (sm_partition.cu) */
    if (((rc = cudaGetDevice(&now)) != cudaSuccess || now != device) &&
        (rc = cudaSetDevice(device)) != cudaSuccess)
        return fail(err, rc, "select", device);
    if ((rc = cudaMemGetInfo(&vram_free, &vram_total)) != cudaSuccess)
        return fail(err, rc, "memory", device);
    snprintf(out->name, sizeof out->name, "%s", prop.name);
    /* measured speeds are stored by this name, so an emulated smaller card has another name */
    if (gpu_sm_limit() > 0 && gpu_sm_limit() < prop.multiProcessorCount)
        snprintf(out->name, sizeof out->name, "%.200s (%d multiprocessors)", prop.name,
                 gpu_sm_limit());
    out->cc_major = prop.major;
    out->cc_minor = prop.minor;
    out->n_sm = prop.multiProcessorCount;
    out->vram_total = vram_total;
    out->vram_free = vram_free;
    out->watchdog = has_watchdog(device);
    return 0;
}

/* Addresses of streams and events, so that open and close use one list. */
typedef struct stream_list { cudaStream_t *s[4]; cudaEvent_t *e[5]; } stream_list;

static stream_list streams_of(gpu *g)
{
    return { { &g->stream, &g->side, &g->reply, &g->ahead },
             { &g->fork, &g->pulled, &g->join, &g->replied, &g->predicted } };
}

static cudaError_t open_streams(gpu *g)
{
    const stream_list all = streams_of(g);
    cudaError_t rc = cudaSuccess;
    for (cudaStream_t *s : all.s)
        if (rc == cudaSuccess) rc = cudaStreamCreateWithFlags(s, cudaStreamNonBlocking);
    for (cudaEvent_t *e : all.e)
        if (rc == cudaSuccess) rc = cudaEventCreateWithFlags(e, cudaEventDisableTiming);
    return rc;
}

/* Waits for all streams: a failed batch may leave work in any of them. */
cudaError_t gpu_sync_streams(gpu *g)
{
    const stream_list all = streams_of(g);
    cudaError_t first = cudaSuccess;
    for (cudaStream_t *s : all.s) {
        const cudaError_t rc = *s ? cudaStreamSynchronize(*s) : cudaSuccess;
        if (first == cudaSuccess) first = rc;
    }
    return first;
}

static void close_streams(gpu *g)
{
    const stream_list all = streams_of(g);
    for (cudaStream_t *s : all.s)
        if (*s) cudaStreamDestroy(*s);
    for (cudaEvent_t *e : all.e)
        if (*e) cudaEventDestroy(*e);
}

static cudaError_t open_wait(gpu *g, bool watchdog)
{
    void *p = NULL;
    const cudaError_t rc = cudaHostAlloc(&p, sizeof *g->wait, cudaHostAllocMapped);
    if (rc != cudaSuccess) return rc;
    g->wait = (host_wait *)memset(p, 0, sizeof *g->wait);
    g->wait->limit_ns = watchdog ? WATCHDOG_NS : LIMIT_NS;
    return rc;
}

int gpu_open(gpu **out, int device, err_ctx *err)
{
    cudaDeviceProp prop;
    cudaError_t rc;
    int divided;

    *out = NULL;
    gpu *g = (gpu *)mem_zalloc(sizeof *g);
    if (!g) return err_set(err, ERR_NOMEM, "GPU %d: %zu bytes", device, sizeof *g);
    g->device = device;
    if ((rc = cudaSetDevice(device)) != cudaSuccess ||
        (rc = cudaGetDeviceProperties(&prop, device)) != cudaSuccess) {
        gpu_close(g);
        return fail(err, rc, "open", device);
    }
    g->n_sm = g->n_sm_all = prop.multiProcessorCount;
    if ((divided = sm_partition_open(g, err)) < 0) {
        gpu_close(g);
        return divided;
    }
    if ((rc = open_wait(g, has_watchdog(device))) != cudaSuccess ||
        (rc = open_streams(g)) != cudaSuccess) {
        gpu_close(g);
        return fail(err, rc, "open", device);
    }
    g->cc = 10 * prop.major + prop.minor;
    g->smem_block = prop.sharedMemPerBlockOptin;
    g->code = gpu_code_version();
    if (g->code < 0) {
        gpu_close(g);
        return err_set(err, ERR_UNSUPPORTED, "%s: this build has no code for it (make CUDA=1 "
                       "CUDA_ARCHS=%d%d)", prop.name, prop.major, prop.minor);
    }
    /* code that was compiled for an older chip has no griddepcontrol instructions */
    g->dependent_launch = g->cc >= 90 && g->code >= 90;
    copy_batch_make(g);
    *out = g;
    return 0;
}

void gpu_close(gpu *g)
{
    if (!g) return;
    if (g->stream) {
        gpu_throttle_end(g, NULL);
        gpu_sync_streams(g);
        gpu_upload_end(g, NULL);
        copy_batch_free(g);
        gpu_profile_end(g);
        gpu_gemm_reclaim(g, g->lent);
    }
    close_streams(g);
    if (g->wait) cudaFreeHost(g->wait);
    sm_partition_close(g);
    mem_free(g);
}

/* Reports the first failure of an operation. It is permanent, because the device's state is
 * undefined after it. */
static int report(gpu *g, err_ctx *err)
{
    if (g->failure == cudaSuccess) return 0;
    return fail(err, g->failure, g->failed_in ? g->failed_in : "operation", g->device);
}

int gpu_wait(gpu *g, err_ctx *err)
{
    gpu_fail(g, cudaStreamSynchronize(g->stream), "wait");
    if (g->failure != cudaSuccess || !g->wait->late) return report(g, err);
    return err_set(err, ERR_IO,
                   "GPU %d: the program did not answer a kernel within %.1f s, so this "
                   "token is lost; was it stopped or swapped out?",
                   g->device, (double)g->wait->limit_ns * 1e-9);
}

bool gpu_alive(gpu *g)
{
    return g->failure == cudaSuccess && cudaStreamQuery(g->stream) == cudaErrorNotReady;
}

uint32_t gpu_polls(const gpu *) { return 1u << 14; }

void gpu_set_host_limit(gpu *g, uint64_t limit_ns) { g->wait->limit_ns = limit_ns; }

void gpu_recover(gpu *g)
{
    gpu_fail(g, gpu_sync_streams(g), "wait");
    if (!g->wait->late) return;
    g->wait->late = 0;
    g->n_recovery++;
}

int gpu_recoveries(const gpu *g) { return g->n_recovery; }

/* ---- memory ---------------------------------------------------------------------------------- */

enum { SLACK = 256 };                    /* readable bytes after every allocation */

void *gpu_alloc(gpu *g, uint64_t bytes, const char *what, err_ctx *err)
{
    size_t vram_free = 0, vram_total = 0;
    void *p = NULL;
    const cudaError_t rc = bytes > SIZE_MAX - SLACK ? cudaErrorMemoryAllocation
                                                    : cudaMalloc(&p, (size_t)bytes + SLACK);

    if (rc == cudaSuccess) return p;
    cudaGetLastError();                  /* out of memory is not a lasting failure */
    cudaMemGetInfo(&vram_free, &vram_total);
    if (rc == cudaErrorMemoryAllocation)
        err_set(err, ERR_NOMEM, "GPU %d: no room for %s: %.2f GB, and %.2f GB are free", g->device,
                what, (double)bytes * 1e-9, (double)vram_free * 1e-9);
    else
        fail(err, rc, what, g->device);
    return NULL;
}

void gpu_free(gpu *g, void *p)
{
    if (!p) return;
    gpu_sync_streams(g);
    cudaFree(p);
}

void *gpu_alloc_host(gpu *g, uint64_t bytes, err_ctx *err)
{
    void *p = NULL;
    const cudaError_t rc = cudaHostAlloc(&p, (size_t)bytes, cudaHostAllocMapped);
    if (rc == cudaSuccess) return p;
    cudaGetLastError();
    fail(err, rc, "page-locked memory", g->device);
    return NULL;
}

void gpu_free_host(gpu *g, void *p)
{
    if (!p) return;
    gpu_sync_streams(g);
    cudaFreeHost(p);
}

int gpu_write(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err)
{
    gpu_fail(g, cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyHostToDevice, g->stream),
             "copy to VRAM");
    return gpu_wait(g, err);
}

int gpu_read(gpu *g, void *to, const void *from, uint64_t bytes, err_ctx *err)
{
    gpu_fail(g, cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToHost, g->stream),
             "copy from VRAM");
    return gpu_wait(g, err);
}

int gpu_zero(gpu *g, void *p, uint64_t bytes, err_ctx *err)
{
    gpu_fail(g, cudaMemsetAsync(p, 0, (size_t)bytes, g->stream), "clear VRAM");
    return report(g, err);
}

void gpu_copy(gpu *g, void *to, const void *from, uint64_t bytes)
{
    if (g->failure == cudaSuccess)
        gpu_fail(g, cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, g->stream), "copy");
}

/* ---- uploads --------------------------------------------------------------------------------- */

/* Waits for the buffer's last copy and makes it hold n bytes. Page-locking costs time for each page,
 * so a small model gets small buffers. Refused memory is an error of this call and is not stored in
 * g. */
static int reserve_buffer(gpu *g, int i, size_t n, err_ctx *err)
{
    size_t bytes = UPLOAD_LEAST;
    if (!g->upload[i].sent) {
        const cudaError_t rc = cudaEventCreateWithFlags(&g->upload[i].sent, cudaEventDisableTiming);
        if (rc != cudaSuccess) return fail(err, rc, "upload buffers", g->device);
    }
    gpu_fail(g, cudaEventSynchronize(g->upload[i].sent), "upload");
    if (g->failure != cudaSuccess) return report(g, err);
    if (n <= g->upload[i].bytes) return 0;
    while (bytes < n) bytes *= 2;
    cudaFreeHost(g->upload[i].buffer);
    g->upload[i].buffer = (uint8_t *)gpu_alloc_host(g, bytes, err);
    g->upload[i].bytes = g->upload[i].buffer ? bytes : 0;
    return g->upload[i].buffer ? 0 : ERR_NOMEM;
}

int gpu_upload(gpu *g, void *to, const void *from, uint64_t bytes, gpu_fill *fill, void *ctx,
               err_ctx *err)
{
    int rc = report(g, err);
    for (uint64_t done = 0; done < bytes && rc == 0;) {
        const int i = g->next_upload;
        const size_t n =
            (size_t)(bytes - done < UPLOAD_BYTES ? bytes - done : (uint64_t)UPLOAD_BYTES);
        if ((rc = reserve_buffer(g, i, n, err)) < 0) break;
        uint8_t *buffer = g->upload[i].buffer;
        if (fill) fill(ctx, buffer, (const uint8_t *)from + done, n);
        else memcpy(buffer, (const uint8_t *)from + done, n);
        gpu_fail(g, cudaMemcpyAsync((uint8_t *)to + done, buffer, n, cudaMemcpyHostToDevice,
                                    g->stream), "upload");
        gpu_fail(g, cudaEventRecord(g->upload[i].sent, g->stream), "upload");
        rc = report(g, err);
        g->next_upload = (i + 1) % UPLOAD_BUFFERS;
        done += n;
    }
    return rc;
}

int gpu_upload_end(gpu *g, err_ctx *err)
{
    const int rc = gpu_wait(g, err);
    for (int i = 0; i < UPLOAD_BUFFERS; i++) {
        if (!g->upload[i].sent) continue;
        cudaEventDestroy(g->upload[i].sent);
        cudaFreeHost(g->upload[i].buffer);
        g->upload[i] = {};
    }
    return rc;
}

/* ---- recordings ------------------------------------------------------------------------------ */

struct gpu_recording {
    cudaGraphExec_t exec;
};

int gpu_record_begin(gpu *g, err_ctx *err)
{
    if (g->failure != cudaSuccess) return report(g, err);
    g->predicting = false;                 /* a failed batch may have left it true */
    gpu_fail(g, cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal), "record");
    return report(g, err);
}

int gpu_recording_create(gpu_recording **out, err_ctx *err)
{
    *out = (gpu_recording *)mem_zalloc(sizeof **out);
    return *out ? 0 : err_set(err, ERR_NOMEM, "recording: %zu bytes", sizeof **out);
}

static void empty_recording(gpu_recording *r)
{
    if (r->exec) cudaGraphExecDestroy(r->exec);
    r->exec = NULL;
}

/* One of these two calls allocates VRAM for the nodes. */
static cudaError_t instantiate(gpu_recording *r, cudaGraph_t graph, cudaStream_t stream)
{
    cudaError_t rc = cudaGraphInstantiate(&r->exec, graph, 0);
    if (rc == cudaSuccess) rc = cudaGraphUpload(r->exec, stream);
    else r->exec = NULL;
    return rc;
}

int gpu_record_end(gpu_recording *r, gpu *g, err_ctx *err)
{
    cudaGraph_t graph = NULL;
    cudaError_t rc = cudaSuccess;

    gpu_fail(g, cudaStreamEndCapture(g->stream, &graph), "end of recording");
    empty_recording(r);                  /* frees memory that the new recording may need */
    if (g->failure == cudaSuccess) rc = instantiate(r, graph, g->stream);
    if (graph) cudaGraphDestroy(graph);
    if (rc == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        empty_recording(r);
        return fail(err, rc, "recording", g->device);
    }
    gpu_fail(g, rc, "recording");
    return report(g, err);
}

void gpu_replay(gpu *g, gpu_recording *r)
{
    if (g->failure == cudaSuccess) gpu_fail(g, cudaGraphLaunch(r->exec, g->stream), "play");
}

void gpu_recording_free(gpu_recording *r)
{
    if (!r) return;
    empty_recording(r);
    mem_free(r);
}

/* ---- profiles -------------------------------------------------------------------------------- */

static void clear_trace(gpu *g)
{
    /* start and ready are minima, end is a maximum */
    static trace_slot empty[TRACE_MAX];
    for (int i = 0; i < TRACE_MAX; i++) empty[i] = { ~0ull, ~0ull, 0 };
    gpu_fail(g, cudaMemcpyAsync(g->trace, empty, sizeof empty, cudaMemcpyHostToDevice, g->stream),
             "profile");
    gpu_fail(g, cudaStreamSynchronize(g->stream), "profile");
}

int gpu_profile_begin(gpu *g, err_ctx *err)
{
    g->n_trace = 0;
    if (!g->trace)
        g->trace = (trace_slot *)gpu_alloc(g, TRACE_MAX * sizeof *g->trace, "a profile", err);
    if (!g->trace) return ERR_NOMEM;
    clear_trace(g);
    return report(g, err);
}

int gpu_profile_read(gpu_span *spans, int cap, gpu *g, err_ctx *err)
{
    static trace_slot slots[TRACE_MAX];
    const int rc = gpu_read(g, slots, g->trace, sizeof slots, err);
    if (rc < 0) return rc;
    for (int i = 0; i < g->n_trace && i < cap; i++)
        spans[i] = { g->trace_name[i], g->trace_bytes[i], slots[i].start, slots[i].ready,
                     slots[i].end };
    clear_trace(g);
    return g->n_trace < cap ? g->n_trace : cap;
}

void gpu_profile_end(gpu *g)
{
    gpu_free(g, g->trace);
    g->trace = NULL;
    g->n_trace = 0;
}
