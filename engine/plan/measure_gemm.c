/* measure_gemm.c - times products of one matrix on the GPU.
 *
 * Matrix, input and output are in one allocation of VRAM. Their bytes are random within bounds that
 * keep all sums finite: a chip multiplies zeros faster than weights. */
#include "engine/plan/measure_gemm.h"

#include <stdlib.h>

enum {
    LEAST_REPEATS = 4, MOST_REPEATS = 4096,
    ALIGN = 256,
    FILL_BYTES = 1 << 20                 /* made on the host and repeated */
};

typedef struct product_bench {
    gpu *g;
    gpu_matrix w;
    uint8_t *x, *rows, *halves, *y, *scratch;
    int most_tokens;
    double seconds;
    keep_going_fn *watch;
    void *ctx;
} product_bench;

/* The arena's bytes; places the buffers in it unless arena is NULL. */
static uint64_t place_buffers(product_bench *b, uint8_t *arena, uint64_t scratch_bytes)
{
    const uint64_t n = (uint64_t)b->most_tokens, x = n * (uint64_t)b->w.cols * sizeof(float);
    uint8_t *data = NULL;
    const struct { uint8_t **buffer; uint64_t bytes; } list[] = {
        { &data, (uint64_t)b->w.rows * b->w.row_bytes }, { &b->x, x }, { &b->rows, x },
        { &b->halves, x / 2 }, { &b->y, n * (uint64_t)b->w.rows * sizeof(float) },
        { &b->scratch, scratch_bytes },
    };
    uint64_t used = 0;
    for (size_t i = 0; i < ARRAY_LEN(list); i++) {
        if (arena) *list[i].buffer = arena + used;
        used += size_align(list[i].bytes, ALIGN);
    }
    b->w.data = data;
    return used;
}

static int repeat_bytes(gpu *g, uint8_t *to, uint64_t bytes, const void *from, err_ctx *err)
{
    int rc = 0;
    for (uint64_t done = 0; rc == 0 && done < bytes; done += FILL_BYTES) {
        const uint64_t rest = bytes - done;
        rc = gpu_write(g, to + done, from, rest < FILL_BYTES ? rest : FILL_BYTES, err);
    }
    return rc;
}

/* Weights: bytes 0x60 .. 0x6f, which are finite in every type, scales included. Inputs: -1 .. 1. */
static int fill_buffers(const product_bench *b, err_ctx *err)
{
    uint8_t *bytes = mem_array(FILL_BYTES, 1);
    if (!bytes) return err_set(err, ERR_NOMEM, "measuring: %d bytes", FILL_BYTES);
    float *x = (float *)(void *)bytes;
    for (uint64_t i = 0; i < FILL_BYTES; i++) bytes[i] = 0x60 | (random_word(1, i) >> 60);
    int rc = repeat_bytes(b->g, (uint8_t *)(uintptr_t)b->w.data,
                          (uint64_t)b->w.rows * b->w.row_bytes, bytes, err);
    for (uint64_t i = 0; i < FILL_BYTES / sizeof *x; i++)
        x[i] = (float)(int32_t)(random_word(2, i) >> 32) * 0x1p-31f;
    if (rc == 0)
        rc = repeat_bytes(b->g, b->x, (uint64_t)b->most_tokens * (uint64_t)b->w.cols * sizeof *x,
                          bytes, err);
    mem_free(bytes);
    return rc;
}

/* Multiply-adds per second of n tokens, with the kernels that are set. */
static int time_products(double *out, const product_bench *b, int n, err_ctx *err)
{
    gpu_input in = { .kind = GPU_PLAIN, .n = n, .cols = b->w.cols, .x = (float *)(void *)b->x,
                     .rows = (float *)(void *)b->rows, .halves = b->halves };
    const gpu_product p = { .y = (float *)(void *)b->y, .y_stride = b->w.rows, .w = b->w };
    gpu_project(b->g, &in, &p, 1);       /* warms up */
    int rc = gpu_wait(b->g, err);
    for (int repeats = LEAST_REPEATS; rc == 0; repeats *= 4) {
        if (b->watch && !b->watch(b->ctx)) return err_set(err, ERR_STOPPED, "interrupted");
        const uint64_t from = clock_ns();
        for (int i = 0; i < repeats; i++) gpu_project(b->g, &in, &p, 1);
        rc = gpu_wait(b->g, err);
        const double seconds = clock_since(from);
        *out = repeats * (double)b->w.rows * b->w.cols * n / seconds;
        if (seconds >= b->seconds || repeats >= MOST_REPEATS) break;
    }
    return rc;
}

/* Selects the kernels. Returns the bytes of scratch VRAM that they need. */
static uint64_t set_use(const product_bench *b, gpu_gemm_use use)
{
    gpu_gemm_set(b->g, &(gpu_gemm){ .use = use });       /* withdraws the scratch */
    return use == GPU_GEMM_VENDOR ? gpu_gemm_scratch(b->g, b->most_tokens) : 0;
}

static int time_counts(double *own, double *vendor, const product_bench *b, const int *tokens,
                       int n_count, err_ctx *err)
{
    int rc = 0;
    set_use(b, GPU_GEMM_OWN);
    for (int i = 0; i < n_count && rc == 0; i++) rc = time_products(&own[i], b, tokens[i], err);
    if (rc < 0 || !vendor || set_use(b, GPU_GEMM_VENDOR) == 0) return rc;
    gpu_gemm_lend(b->g, b->scratch);
    for (int i = 0; i < n_count && rc == 0; i++) rc = time_products(&vendor[i], b, tokens[i], err);
    return rc;
}

int measure_gemm(double *own, double *vendor, gpu *g, const gemm_shape *s, const int *tokens,
                 int n_count, double seconds, keep_going_fn *watch, void *ctx, err_ctx *err)
{
    product_bench b = {
        .g = g, .seconds = seconds, .watch = watch, .ctx = ctx,
        .w = { .type = (int)s->type, .rows = s->rows, .cols = s->cols, .scale = 1.0f,
               .row_bytes = quant_row_bytes(quant_traits_of(s->type), (uint64_t)s->cols) },
    };
    for (int i = 0; i < n_count; i++) {
        if (tokens[i] > b.most_tokens) b.most_tokens = tokens[i];
        own[i] = 0;
        if (vendor) vendor[i] = 0;
    }
    if (s->type == QT_F32) vendor = NULL;
    const uint64_t scratch_bytes = vendor ? set_use(&b, GPU_GEMM_VENDOR) : 0;
    uint8_t *arena = gpu_alloc(g, place_buffers(&b, NULL, scratch_bytes), "measuring", err);
    if (!arena) return ERR_NOMEM;
    place_buffers(&b, arena, scratch_bytes);
    int rc = fill_buffers(&b, err);
    if (rc == 0) rc = time_counts(own, vendor, &b, tokens, n_count, err);
    set_use(&b, GPU_GEMM_OWN);
    gpu_free(g, arena);
    return rc;
}
