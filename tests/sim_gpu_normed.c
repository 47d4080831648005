/* sim_gpu_normed.c - what is normed on its way into the residual stream, and capped logits: by the
 * loops of engine/cpu/. */
#include "tests/sim_gpu_internal.h"

#include <stdlib.h>

/* ---- normed parts ---------------------------------------------------------------------------- */

static void add_token(const gpu_normed *a, size_t t, float *sum, float *part)
{
    const loops *f = sim_ops()->loops;
    const size_t cols = (size_t)a->cols, at = t * cols;
    memset(sum, 0, cols * sizeof *sum);
    for (int i = 0; i < 2 && a->part[i]; i++) {
        memcpy(part, a->part[i] + at, cols * sizeof *part);
        if (a->part_gain[i]) f->rmsnorm(part, part, a->part_gain[i], a->cols, a->eps);
        f->add(sum, part, cols);
    }
    f->rmsnorm(sum, sum, a->gain, a->cols, a->eps);
    f->add(a->x + at, sum, cols);
    for (size_t c = 0; c < cols; c++) a->x[at + c] *= a->scale;
}

static void run_normed(gpu *g, void *args)
{
    const gpu_normed *a = args;
    const size_t cols = (size_t)a->cols;
    float *sum = sim_room(cols, sizeof *sum), *part = sim_room(cols, sizeof *part);
    (void)g;
    for (size_t t = 0; t < (size_t)a->n; t++) add_token(a, t, sum, part);
    if (a->clear) memset(a->clear, 0, (size_t)a->n * cols * sizeof *a->clear);
    free(part);
    free(sum);
}

void gpu_add_normed(gpu *g, const gpu_normed *a)
{
    const uint64_t wide = (uint64_t)a->cols * sizeof(float), all = (uint64_t)a->n * wide;
    sim_call c = sim_begin(g, "normed parts");
    if (a->n < 1 || a->cols < 1 || !a->gain || !a->part[0] || (a->part_gain[1] && !a->part[1])) {
        sim_fail(g, "normed parts: %d vectors of %d", a->n, a->cols);
        return;
    }
    for (int i = 0; i < 2; i++) {
        sim_reads(&c, "part", a->part[i], all);
        sim_reads(&c, "norm of a part", a->part_gain[i], wide);
    }
    sim_reads(&c, "norm", a->gain, wide);
    sim_writes(&c, "x", a->x, all);
    sim_writes(&c, "cleared", a->clear, all);
    sim_end(&c, run_normed, a, sizeof *a);
}

/* ---- capped logits --------------------------------------------------------------------------- */

typedef struct cap_args {
    float *x;
    uint64_t n;
    float cap;
} cap_args;

static void run_cap(gpu *g, void *args)
{
    const cap_args *a = args;
    (void)g;
    sim_ops()->loops->soft_cap(a->x, (int)a->n, a->cap);
}

void gpu_soft_cap(gpu *g, float *x, uint64_t n, float cap)
{
    const cap_args a = { x, n, cap };
    sim_call c = sim_begin(g, "soft cap");
    sim_writes(&c, "x", x, n * sizeof *x);
    sim_end(&c, run_cap, &a, sizeof a);
}
