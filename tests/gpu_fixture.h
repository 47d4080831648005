/* gpu_fixture.h - what tests of GPU operations share: a device, memory for one case, the CPU's
 * side, and comparisons that name the case.
 *
 *   family("products");
 *   case_begin("%s, %d rows", quant_name(type), rows);
 *   float *y = vram_room(n * sizeof *y);
 *   gpu_project(device(), ...);
 *   expect_bits("y", host_copy(y, n), want, n);
 *   case_end();
 *
 * vram_room fills VRAM with NaNs and puts guards around it, which case_end checks. An operation
 * that fails is a failure of its case; the device is then reopened. If that fails, or memory runs
 * out, the program ends. */
#ifndef TESTS_GPU_FIXTURE_H
#define TESTS_GPU_FIXTURE_H

#include "cuda/gpu.h"
#include "engine/host/ops.h"
#include "tests/make_weights.h"

/* ---- the device ------------------------------------------------------------------------------ */

bool device_open(void);                  /* false: no device, which is counted as one skip */
void device_close(void);                 /* ends the last family, too */
gpu *device(void);

/* ---- families and cases ---------------------------------------------------------------------- */

enum { FAMILY_LINES = 5 };               /* failures of a family that are printed */
void family(const char *name);

void case_begin(const char *fmt, ...) PRINTF_LIKE(1, 2);
void case_end(void);                     /* frees all memory of the case */

void *host_room(size_t n, size_t size);                  /* zeros */
int host_mark(void);
void host_drop(int mark);                /* frees the memory allocated since */
float *host_floats(size_t n, float range, test_rng *rng);        /* of -range .. range */
void *vram_room(size_t bytes);
void *vram_copy(const void *from, size_t bytes);
float *vram_floats(const float *from, size_t n);
void vram_write(void *to, const void *from, size_t bytes);
void vram_read(void *to, const void *from, size_t bytes);
float *host_copy(const float *from, size_t n);           /* of what is in VRAM, for the case */

/* A case counts as one check; a failure prints the family, the case and what differs. */
bool expect(bool ok, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The same bits, or both NaN. */
void expect_bits(const char *what, const float *got, const float *want, size_t n);
void expect_bytes(const char *what, const void *got, const void *want, size_t n);
/* |got - want| / |want| is below the bound, and no value is off by more than eight times that much
 * of itself and the root mean square: one wrong value among thousands would hide in the norm. */
void expect_close(const char *what, const float *got, const float *want, size_t n, double bound);
/* |got - want| / |want| of every row is below the bound. */
void expect_rows_close(const char *what, const float *got, const float *want, size_t n_row,
                       size_t width, double bound);

/* ---- the CPU's side -------------------------------------------------------------------------- */

const ops *contract_ops(void);
const ops *exact_ops(void);
/* Whether products of this type read int8 activations. */
bool contract_reads_int8(quant_type type);
/* Sets a to the n tokens x [n, cols] in the form that products of this type read. */
void contract_acts(acts *a, const float *x, int n, int cols, quant_type type);
/* y [rows] = w x, by the contract. */
void contract_multiply(float *y, const matrix *w, const act_row *x);

enum { GPU_TYPE_COUNT = 17 };
extern const quant_type gpu_types[GPU_TYPE_COUNT];       /* those with kernels */

/* Two shapes of experts that suit the type: i is 0 or 1. */
void expert_shape(int *n_embd, int *n_ff, quant_type type, int i);

/* Bounds of products: up to GPU_FEW tokens, those of the contract except for the order of
 * additions; with more, all but F32 weights are multiplied by 16-bit activations. */
double product_bound(quant_type type, int n);
/* The same where inputs have lows: rounding to 16 bits, about 2e-3, would show. */
#define LOWS_BOUND 1e-4
double lows_bound(quant_type type, int n);

/* One matrix on both sides. In VRAM another row precedes it, so that its start is aligned only
 * as its rows are. */
typedef struct reference {
    matrix cpu;
    gpu_matrix gpu;
} reference;
reference reference_make(quant_type type, int rows, int cols, weight_kind kind, float scale,
                         bool bias, test_rng *rng);

/* The scale with which a row like this maps values of about 1 to values of about 1. */
float unit_scale(const uint8_t *row, quant_type type, int cols);

/* g = act(g, u), n values */
void cpu_activate(float *g, const float *u, int n, const ops *o, gpu_activation act);
/* ", clamped" for names of cases */
const char *act_name(gpu_activation act);
enum { ACT_COUNT = 3 };
/* ", shared Q4_K/Q6_K of 512", too; nothing if there is none (n_ff 0) */
typedef char shared_text[96];
const char *shared_name(shared_text out, quant_type up, quant_type down, int n_ff);

void cpu_product(float *y, const ops *o, const matrix *w, const float *x, int n);

#endif
