/* measure_gemm.h - how fast the GPU multiplies a dense matrix by many tokens: with this engine's
 * kernels, and with the vendor's library.
 *
 * engine/plan/measure.h measures the model's own shape for plans, moe-bench gemm prints others.
 * Called from the thread that opened the device. Afterwards the device uses its own kernels
 * (GPU_GEMM_OWN). */
#ifndef ENGINE_PLAN_MEASURE_GEMM_H
#define ENGINE_PLAN_MEASURE_GEMM_H

#include "cuda/gpu.h"
#include "loader/quant.h"

typedef struct gemm_shape {
    quant_type type;
    int rows, cols;                      /* cols: whole blocks of the type */
} gemm_shape;

/* own[i], vendor[i]: multiply-adds per second with tokens[i], for i in 0 .. n_count - 1. vendor
 * NULL: the own kernels alone. Without the library, and for F32, vendor[i] is 0. A figure takes
 * `seconds` or longer, and at least four products. ERR_NOMEM: too little VRAM; ERR_STOPPED: watch,
 * which may be NULL, returned false. */
int measure_gemm(double *own, double *vendor, gpu *g, const gemm_shape *s, const int *tokens,
                 int n_count, double seconds, keep_going_fn *watch, void *ctx, err_ctx *err);

#endif
