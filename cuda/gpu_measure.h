/* gpu_measure.h - what a device and its links can do, profiles of kernels, and a smaller card
 * emulated on this one. Nothing here computes a token. */
#ifndef CUDA_GPU_MEASURE_H
#define CUDA_GPU_MEASURE_H

#include "cuda/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- peaks ----------------------------------------------------------------------------------- */

/* Bytes per second that a kernel reads from VRAM at best; uses a gigabyte of VRAM meanwhile. */
int gpu_read_bandwidth(double *bytes_per_s, gpu *g, err_ctx *err);

/* Multiply-adds per second of 16-bit matrices in registers, by the instruction that the kernels use
 * on every chip. */
int gpu_multiply_peak(double *macs_per_s, gpu *g, err_ctx *err);

/* ---- links ----------------------------------------------------------------------------------- */

/* The speed of each link while nothing else runs. Measuring takes about 0.3 s, 128 MB of
 * page-locked RAM and a gigabyte of VRAM. */
typedef struct gpu_links {
    double vram_read;                    /* bytes/s: a kernel that only reads VRAM */
    double pcie_in, pcie_out;            /* copy engine, page-locked RAM to VRAM and back */
    double pull;                         /* a kernel that reads page-locked RAM */
    double hop;                          /* s between two questions to the host, in a recording, if
                                          * the reply takes no time */
} gpu_links;
int gpu_measure_links(gpu_links *out, gpu *g, err_ctx *err);

/* A kernel in a stream of its own that reads `bytes` of page-locked RAM again and again from
 * begin to end, while the caller does something else. bytes should exceed all caches and must be
 * at least GPU_LOAD_LEAST. end returns its speed and frees it. Between the two, gpu_alloc and
 * gpu_free would wait for the kernel, so they are not allowed. */
#define GPU_LOAD_LEAST ((uint64_t)16 << 20)
typedef struct gpu_load gpu_load;
int gpu_load_begin(gpu_load **out, gpu *g, const void *ram, uint64_t bytes, err_ctx *err);
int gpu_load_end(gpu_load *l, double *bytes_per_s, err_ctx *err);        /* NULL is fine */

/* ---- profiles -------------------------------------------------------------------------------- */

/* While a profile is on, every kernel that is launched or recorded notes its times. */
typedef struct gpu_span {
    const char *name;                    /* class of the kernel */
    uint64_t bytes;                      /* the least that it reads from VRAM */
    uint64_t start_ns, ready_ns, end_ns; /* first block started; its input was complete; last block
                                          * ended */
} gpu_span;
int gpu_profile_begin(gpu *g, err_ctx *err);     /* discards an earlier profile */
/* Waits, returns the number of spans (at most cap, in spans) or < 0, and clears the times: the next
 * replay of a recording writes them again. */
int gpu_profile_read(gpu_span *spans, int cap, gpu *g, err_ctx *err);
void gpu_profile_end(gpu *g);            /* recordings made meanwhile must not be replayed */

/* ---- a smaller card, emulated ---------------------------------------------------------------- */

/* Devices that are opened from now on use n multiprocessors, or a few more, as the chip can be
 * divided. n = 0, or as many as the chip has: all of them. gpu_open fails with ERR_UNSUPPORTED
 * where driver or build cannot divide the chip. Must be called before any other function of a
 * gpu. */
void gpu_limit_sms(int n);

typedef struct gpu_throttled {
    int n_sm, n_sm_all;                  /* in use; of the chip */
    double bytes_per_s;                  /* read bandwidth of a kernel on those in use */
    double whole_bytes_per_s;            /* and of one on all of them */
} gpu_throttled;

/* Until gpu_throttle_end, kernels on the other multiprocessors read as much as it takes to leave
 * those in use `share` of the chip's bandwidth, or as much as they can. share = 1: they read
 * nothing. Uses up to a gigabyte of VRAM. Called by the thread that opened the device. */
int gpu_throttle_begin(gpu *g, double share, gpu_throttled *out, err_ctx *err);
/* Fails if the readers did not run all the time. Does nothing if none was begun. */
int gpu_throttle_end(gpu *g, err_ctx *err);

#ifdef __cplusplus
}
#endif
#endif
