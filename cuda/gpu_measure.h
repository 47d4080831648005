/* gpu_measure.h - measures a device and its links, profiles kernels, and emulates a smaller card.
 * No function of this header computes a token. */
#ifndef CUDA_GPU_MEASURE_H
#define CUDA_GPU_MEASURE_H

#include "cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- peaks ----------------------------------------------------------------------------------- */

/* Highest rate at which a kernel reads VRAM. Uses a gigabyte of VRAM meanwhile. */
int gpu_read_bandwidth(double *bytes_per_s, gpu *g, err_ctx *err);

/* Multiply-adds per second of 16-bit matrices in registers by mma.sync, the instruction of this
 * folder's kernels that every chip has. */
int gpu_multiply_peak(double *macs_per_s, gpu *g, err_ctx *err);

/* ---- links ----------------------------------------------------------------------------------- */

/* The speed of each link while nothing else runs. Measuring takes about 0.3 s, 128 MB of
 * page-locked RAM and a gigabyte of VRAM. */
typedef struct gpu_links {
    double vram_read;                    /* bytes/s: a kernel that only reads VRAM */
    double pcie_in, pcie_out;            /* copy engine, page-locked RAM to VRAM and back */
    double pull;                         /* a kernel that reads page-locked RAM */
    double hop;                          /* s between two recorded questions, if the host replies at
                                          * once */
} gpu_links;
int gpu_measure_links(gpu_links *out, gpu *g, err_ctx *err);

/* A kernel in a stream of its own that reads `bytes` of page-locked RAM repeatedly from begin to
 * end, while the caller measures something else. bytes must be at least GPU_LOAD_LEAST and should
 * exceed all caches. end stops the kernel, returns its speed and frees l. gpu_alloc and gpu_free
 * must not be called between begin and end, because they would wait for the kernel. */
#define GPU_LOAD_LEAST ((uint64_t)16 << 20)
typedef struct gpu_load gpu_load;
int gpu_load_begin(gpu_load **out, gpu *g, const void *ram, uint64_t bytes, err_ctx *err);
int gpu_load_end(gpu_load *l, double *bytes_per_s, err_ctx *err);        /* NULL is fine */

/* ---- profiles -------------------------------------------------------------------------------- */

/* One launch. While a profile is on, every kernel that is launched or recorded writes its times. */
typedef struct gpu_span {
    const char *name;                    /* name of the kernel's class, static */
    uint64_t bytes;                      /* lower bound of the bytes that it reads from VRAM */
    uint64_t start_ns, ready_ns, end_ns; /* the first block started; its input was complete; the
                                          * last block ended */
} gpu_span;
int gpu_profile_begin(gpu *g, err_ctx *err);     /* discards an earlier profile */
/* Waits, writes at most cap spans and returns their number, or < 0. Clears the times; the next
 * replay of a recording writes new ones. */
int gpu_profile_read(gpu_span *spans, int cap, gpu *g, err_ctx *err);
void gpu_profile_end(gpu *g);            /* recordings made meanwhile must not be replayed */

/* ---- a smaller card, emulated ---------------------------------------------------------------- */

/* Devices that are opened later use n multiprocessors, or a few more, as the chip can be divided. 0
 * or at least the chip's number: all. gpu_open fails with ERR_UNSUPPORTED where driver or build
 * cannot divide the chip. Must be called before any other function of these headers. */
void gpu_limit_sms(int n);

typedef struct gpu_throttled {
    int n_sm, n_sm_all;                  /* multiprocessors in use; of the chip */
    double bytes_per_s;                  /* read bandwidth of a kernel on the n_sm in use */
    double whole_bytes_per_s;            /* read bandwidth of a kernel on all n_sm_all */
} gpu_throttled;

/* Until gpu_throttle_end, kernels on the unused multiprocessors read memory, as many as it takes to
 * leave the multiprocessors in use `share` (0 .. 1) of the chip's bandwidth, or as many as fit.
 * share = 1: none. Uses up to a gigabyte of VRAM. Called by the thread that opened the device. */
int gpu_throttle_begin(gpu *g, double share, gpu_throttled *out, err_ctx *err);
/* Fails if the readers did not run all the time. No effect without gpu_throttle_begin. */
int gpu_throttle_end(gpu *g, err_ctx *err);

#ifdef __cplusplus
}
#endif
#endif
