/* sm_partition.cu - gpu_limit_sms, which emulates a smaller card for measurements: one green
 * context with some of the chip's multiprocessors (the partition), and one with the others.
 *
 * A green context shares memory and code with the device's usual context. A kernel runs only on its
 * multiprocessors if it was current when the stream was created and is current at the launch. */
#include "cuda/device.cuh"
#include "cuda/gpu_measure.h"

#include <cuda.h>
#include <stdlib.h>

enum { MOST_AT_A_TIME = 16 };            /* granularity of the coarsest chip, in multiprocessors */

static int sm_limit;                     /* multiprocessors; 0: all. For the process, like the
                                          * driver's variable below */

int gpu_sm_limit(void) { return sm_limit; }

void gpu_limit_sms(int n)
{
    sm_limit = n;
    /* Streams share the hardware queues that the driver makes at its start, usually 8. In a shared
     * queue a kernel would wait for an earlier reader (bandwidth_limiter.cu), although the reader
     * runs on other multiprocessors. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

#if CUDA_VERSION >= 12050                /* 12.4 has green contexts, but not
                                          * cudaGetDriverEntryPointByVersion */

#define FUNCTIONS(X)                                                                               \
    X(cuDeviceGet) X(cuDeviceGetDevResource) X(cuDevSmResourceSplitByCount)                        \
    X(cuDevResourceGenerateDesc) X(cuGreenCtxCreate) X(cuGreenCtxDestroy)                          \
    X(cuGreenCtxGetDevResource) X(cuCtxFromGreenCtx) X(cuCtxSetCurrent)

typedef struct driver {
#define MEMBER(name) decltype(&::name) name;
    FUNCTIONS(MEMBER)
#undef MEMBER
} driver;

typedef struct part {
    CUgreenCtx green;                    /* NULL: none */
    CUcontext context;                   /* green as an ordinary context */
    int n_sm;
} part;

struct sm_partition {
    driver call;
    part own, rest;
};

static bool find_driver(driver *d)
{
#define FIND(name)                                                                                 \
    if (cudaGetDriverEntryPointByVersion(#name, (void **)&d->name, 12040, cudaEnableDefault) !=    \
        cudaSuccess || !d->name) {                                                                 \
        cudaGetLastError();                                                                        \
        return false;                                                                              \
    }
    FUNCTIONS(FIND)
#undef FIND
    return true;
}

/* Makes a green context of the resource. Driver and runtime errors have the same numbers. */
static cudaError_t make_part(part *p, const driver *d, CUdevResource *of, CUdevice device)
{
    CUdevResourceDesc described;
    CUdevResource got = {};
    CUresult rc;
    if ((rc = d->cuDevResourceGenerateDesc(&described, of, 1)) != CUDA_SUCCESS ||
        (rc = d->cuGreenCtxCreate(&p->green, described, device, CU_GREEN_CTX_DEFAULT_STREAM)) !=
        CUDA_SUCCESS ||
        (rc = d->cuCtxFromGreenCtx(&p->context, p->green)) != CUDA_SUCCESS ||
        (rc = d->cuGreenCtxGetDevResource(p->green, &got, CU_DEV_RESOURCE_TYPE_SM)) != CUDA_SUCCESS)
        return (cudaError_t)rc;
    p->n_sm = (int)got.sm.smCount;
    return cudaSuccess;
}

/* Divides the chip into the partition, rounded up to its granularity, and the rest, if any. */
static cudaError_t divide(sm_partition *s, int ordinal)
{
    const driver *d = &s->call;
    CUdevice device;
    CUdevResource all = {}, own = {}, rest = {};
    unsigned n_own = 1;                  /* parts of this size, not multiprocessors */
    CUresult rc;
    if ((rc = d->cuDeviceGet(&device, ordinal)) != CUDA_SUCCESS ||
        (rc = d->cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM)) != CUDA_SUCCESS ||
        (rc = d->cuDevSmResourceSplitByCount(&own, &n_own, &all, &rest, 0, (unsigned)sm_limit)) !=
        CUDA_SUCCESS)
        return (cudaError_t)rc;
    if (n_own != 1) return cudaErrorInvalidResourceConfiguration;
    const cudaError_t made = make_part(&s->own, d, &own, device);
    if (made != cudaSuccess || rest.type != CU_DEV_RESOURCE_TYPE_SM || rest.sm.smCount == 0)
        return made;
    return make_part(&s->rest, d, &rest, device);
}

int sm_partition_open(gpu *g, err_ctx *err)
{
    if (sm_limit <= 0 || sm_limit >= g->n_sm) return 0;
    sm_partition *s = g->partition = (sm_partition *)mem_zalloc(sizeof *s);
    if (!s) return err_set(err, ERR_NOMEM, "a smaller card: %zu bytes", sizeof *s);
    if (!find_driver(&s->call))
        return err_set(err, ERR_UNSUPPORTED, "GPU %d: its driver cannot divide it (it takes one "
                       "for CUDA 12.4 or later)", g->device);
    cudaError_t rc = divide(s, g->device);
    if (rc == cudaErrorInvalidResourceConfiguration && sm_limit + MOST_AT_A_TIME > g->n_sm) {
        sm_partition_close(g);           /* the rounded number is the whole chip */
        return 0;
    }
    if (rc == cudaSuccess) rc = sm_partition_select(g);
    if (rc != cudaSuccess)
        return err_set(err, ERR_UNSUPPORTED, "GPU %d: %d of its %d multiprocessors cannot be set "
                       "apart: %s", g->device, sm_limit, g->n_sm, cudaGetErrorString(rc));
    g->n_sm = s->own.n_sm;
    return 0;
}

void sm_partition_close(gpu *g)
{
    sm_partition *s = g->partition;
    if (!s) return;
    cudaSetDevice(g->device);            /* a current context must not be destroyed */
    if (s->rest.green) s->call.cuGreenCtxDestroy(s->rest.green);
    if (s->own.green) s->call.cuGreenCtxDestroy(s->own.green);
    mem_free(s);
    g->partition = NULL;
}

cudaError_t sm_partition_select(const gpu *g)
{
    const sm_partition *s = g->partition;
    return s ? (cudaError_t)s->call.cuCtxSetCurrent(s->own.context) : cudaSetDevice(g->device);
}

int sm_partition_other_sms(const gpu *g) { return g->partition ? g->partition->rest.n_sm : 0; }

cudaError_t sm_partition_select_other(const gpu *g)
{
    return (cudaError_t)g->partition->call.cuCtxSetCurrent(g->partition->rest.context);
}

#else                                    /* an older toolkit */

int sm_partition_open(gpu *g, err_ctx *err)
{
    if (sm_limit <= 0 || sm_limit >= g->n_sm) return 0;
    return err_set(err, ERR_UNSUPPORTED, "GPU %d: this build cannot divide it (it takes CUDA 12.5 "
                   "or later to make one that can)", g->device);
}

void sm_partition_close(gpu *) {}
cudaError_t sm_partition_select(const gpu *g) { return cudaSetDevice(g->device); }
int sm_partition_other_sms(const gpu *) { return 0; }
cudaError_t sm_partition_select_other(const gpu *) { return cudaErrorNotSupported; }

#endif
