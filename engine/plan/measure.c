/* measure.c - times the CPU's experts, the GPU's links and the drive.
 *
 * The experts are synthetic: blocks of one byte value, in the shapes and types of the first layer
 * that has experts. They are many times larger than the caches, so every product reads memory. A
 * figure that lacks memory stays 0, and the next figure is measured nevertheless. */
#include "engine/plan/measure.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/gpu_measure.h"
#include "engine/host/experts_cpu.h"
#include "engine/plan/measure_gemm.h"
#include "engine/plan/layer_overhead.h"
#include "tiers/drive_access.h"
#include "tiers/page_advice.h"
#include "tiers/topology.h"

enum {
    MANY_TOKENS = 256,                   /* tokens for the speed of prompts */
    LEAST_TOKENS = 16,                   /* tokens for it if memory is short */
    MANY_EXPERTS = 4,                    /* groups of experts that these tokens use */
    LAYER_LOOPS = 10,                    /* parallel loops in a layer of one token */
    FILL = 0x66                          /* scales are large enough that no product is subnormal;
                                          * subnormals are ten times slower on some processors */
};
#define MEMORY_LEAST ((uint64_t)512 << 20)
#define MEMORY_MOST ((uint64_t)4 << 30)
/* Each figure of the CPU is the median of seven windows, so that a short load does not count. */
enum { WINDOWS = 7 };
static const double LAYER_WINDOW_S = 0.002;

typedef struct measurement {
    const measure_parts *parts;
    const model *m;                      /* m, o and g are copies from parts */
    const ops *o;
    gpu *g;
    uint64_t ram_bytes;                  /* limit */
    double seconds;                      /* for each figure of the CPU */
    keep_going_fn *watch;
    void *ctx;
    /* synthetic experts */
    uint8_t *memory;
    size_t bytes;
    tensor slabs[SLAB_COUNT];
    expert_bank bank;
    /* objects that compute them */
    experts_cpu *cpu;
    worklist *work;
    acts x;
    void *storage;
    float *rows, *y;
    int32_t *ids;
    uint64_t y_floats;                   /* in y */
    int n_token;                         /* for the figure of prompts */
    int next_expert;                     /* first expert of the next token */
    uint64_t next_row;                   /* first row of the next product with the head's type */
    bool partial;                        /* a figure that could have been measured is missing */
} measurement;

static int check_watch(const measurement *b, err_ctx *err)
{
    if (!b->watch || b->watch(b->ctx)) return 0;
    return err_set(err, ERR_STOPPED, "interrupted");
}

/* Lack of memory leaves a figure 0 and is no error; others are returned. */
static int allow_no_memory(measurement *b, int rc)
{
    if (rc != ERR_NOMEM) return rc;
    b->partial = true;
    return 0;
}

/* ---- synthetic experts ----------------------------------------------------------------------- */

static void fill_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    measurement *b = ctx;
    (void)thread;
    memset(b->memory + begin, FILL, (size_t)(end - begin));
}

/* Allocates a bank in a quarter of the RAM, within bounds; its tensors are contiguous. */
static int make_bank(measurement *b, err_ctx *err)
{
    const expert_bank *like = model_first_bank(b->m);
    topology machine;
    topology_read(&machine, "");
    uint64_t want = 8 * topology_last_cache_bytes(&machine);
    if (want < MEMORY_LEAST) want = MEMORY_LEAST;
    if (want > MEMORY_MOST) want = MEMORY_MOST;
    if (want > b->ram_bytes / 4) want = b->ram_bytes / 4;
    const uint64_t one = expert_slabs_bytes(like);
    const int least = 2 * b->m->hp.n_expert_used, n = (int)(want / one);
    b->bank = (expert_bank){ .n_expert = n > least ? n : least, .n_embd = like->n_embd,
                             .n_ff = like->n_ff };
    b->bytes = (size_t)((uint64_t)b->bank.n_expert * one);
    void *p;
    const int rc = pages_map(&p, b->bytes, PAGES_HUGE, err);
    if (rc < 0) return rc;
    b->memory = p;
    pool_run(b->o->team, (int64_t)b->bytes, 1 << 21, fill_range, b);
    uint8_t *data = b->memory;
    for (int s = 0; s < SLAB_COUNT; s++) {
        const tensor *t = like->weight[s];
        b->slabs[s] = (tensor){
            .type = t->type, .cols = t->cols, .rows = expert_slab_rows(like, (expert_slab)s),
            .slabs = (uint64_t)b->bank.n_expert, .row_bytes = t->row_bytes,
            .slab_bytes = expert_slab_bytes(like, (expert_slab)s), .data = data,
        };
        b->bank.weight[s] = &b->slabs[s];
        data += (uint64_t)b->bank.n_expert * b->slabs[s].slab_bytes;
    }
    return 0;
}

/* Returns the bytes of n tokens: inputs, outputs and scratch of the experts. */
static uint64_t tokens_bytes(const model_hparams *hp, int n)
{
    const uint64_t slots = (uint64_t)n * (uint64_t)hp->n_expert_used;
    const uint64_t floats = ((uint64_t)n + slots) * (uint64_t)hp->n_embd;
    return acts_bytes(n, hp->n_embd) + floats * sizeof(float) + slots * sizeof(int32_t) +
           experts_cpu_bytes(hp, (int)slots);
}

static int make_experts(measurement *b, err_ctx *err)
{
    const model_hparams *real = &b->m->hp;
    model_hparams hp = *real;
    int rc;
    hp.n_expert = b->bank.n_expert;
    while (b->n_token > LEAST_TOKENS && b->bytes + tokens_bytes(&hp, b->n_token) > b->ram_bytes)
        b->n_token /= 2;
    const size_t n_token = (size_t)b->n_token, slots = n_token * (size_t)real->n_expert_used;
    b->storage = mem_zalloc(acts_bytes(b->n_token, real->n_embd) + 64);
    b->rows = mem_array(n_token * (size_t)real->n_embd, sizeof *b->rows);
    b->y = mem_array(slots * (size_t)real->n_embd, sizeof *b->y);
    b->y_floats = slots * (size_t)real->n_embd;
    b->ids = mem_array(slots, sizeof *b->ids);
    if (!b->storage || !b->rows || !b->y || !b->ids)
        return err_set(err, ERR_NOMEM, "measuring: %zu values", slots * (size_t)real->n_embd);
    acts_init(&b->x, (uint8_t *)(((uintptr_t)b->storage + 63) / 64 * 64), b->n_token, real->n_embd);
    for (size_t i = 0; i < n_token * (size_t)real->n_embd; i++)
        b->rows[i] = (float)(i % 17) - 8.0f;
    if ((rc = worklist_create(&b->work, b->bank.n_expert, (int)slots, err)) < 0) return rc;
    return experts_cpu_create(&b->cpu, b->o, &hp, NULL, NULL, (int)slots, err);
}

/* Computes n tokens with the experts in b->ids. */
static int run_experts(measurement *b, int n, err_ctx *err)
{
    acts_set(&b->x, b->rows, n, b->m->hp.n_embd);
    worklist_fill(b->work, b->ids, n, b->m->hp.n_expert_used);
    const expert_job job = { .bank = &b->bank, .act = ACT_SWIGLU, .x = &b->x, .work = b->work,
                               .items = b->work->items, .n_item = b->work->n_item, .y = b->y };
    return experts_cpu_run(b->cpu, &job, err);
}

/* ---- figures --------------------------------------------------------------------------------- */

/* Does one unit of work and adds its bytes, or its count, to *done. */
typedef int work_unit(double *done, measurement *b, err_ctx *err);

/* Work per second. */
static int speed_of(double *out, work_unit *unit, double window_s, measurement *b, err_ctx *err)
{
    double rates[WINDOWS];
    int rc = 0;
    for (int i = 0; i < WINDOWS && rc == 0; i++) {
        const uint64_t from = clock_ns();
        double done = 0;
        do rc = unit(&done, b, err);
        while (rc == 0 && clock_since(from) < window_s);
        rates[i] = done / clock_since(from);
        if (rc == 0) rc = check_watch(b, err);
    }
    if (rc < 0) return rc;
    sort_doubles(rates, WINDOWS);
    *out = rates[WINDOWS / 2];
    return 0;
}

/* Bytes of the experts of one token; consecutive tokens use different experts. */
static int token_experts(double *done, measurement *b, err_ctx *err)
{
    const int k = b->m->hp.n_expert_used;
    for (int r = 0; r < k; r++) b->ids[r] = (b->next_expert + r) % b->bank.n_expert;
    b->next_expert = (b->next_expert + k) % b->bank.n_expert;
    *done += (double)k * (double)expert_slabs_bytes(&b->bank);
    return run_experts(b, 1, err);
}

/* Bytes of a matrix of the head's type with one token: rows of the memory, each call the next. */
static int token_dense(double *done, measurement *b, err_ctx *err)
{
    const tensor *head = b->m->head.t;
    const uint64_t n_row = b->bytes / head->row_bytes;
    uint64_t rows = n_row < b->y_floats ? n_row : b->y_floats;
    if (rows > head->rows) rows = head->rows;
    if (rows == 0) return err_set(err, ERR_NOMEM, "measuring: no memory for a row of the head");
    if (b->next_row + rows > n_row) b->next_row = 0;
    const matrix m = { .type = head->type, .rows = (int)rows, .cols = (int)head->cols,
                       .data = b->memory + b->next_row * head->row_bytes,
                       .row_bytes = head->row_bytes, .scale = 1.0f };
    b->next_row += rows;
    acts_set(&b->x, b->rows, 1, b->m->hp.n_embd);
    ops_matmul(b->o, b->y, &m, &b->x);
    *done += (double)rows * (double)head->row_bytes;
    return 0;
}

/* Multiply-adds of a prompt, whose tokens share experts. */
static int prompt_experts(double *done, measurement *b, err_ctx *err)
{
    const int k = b->m->hp.n_expert_used, n_expert = b->bank.n_expert;
    for (int t = 0; t < b->n_token; t++)
        for (int r = 0; r < k; r++)
            b->ids[t * k + r] = (b->next_expert + t % MANY_EXPERTS * k + r) % n_expert;
    b->next_expert = (b->next_expert + MANY_EXPERTS * k) % n_expert;
    *done += b->n_token * k * 3.0 * (double)b->bank.n_embd * (double)b->bank.n_ff;
    return run_experts(b, b->n_token, err);
}

static void nothing(void *ctx, int64_t begin, int64_t end, int thread)
{
    (void)ctx;
    (void)begin;
    (void)end;
    (void)thread;
}

/* One layer without its products: norms and quantises a vector and runs an empty parallel loop, ten
 * times. */
static int empty_layer(double *done, measurement *b, err_ctx *err)
{
    const int n_embd = b->m->hp.n_embd;
    (void)err;
    for (int i = 0; i < LAYER_LOOPS; i++) {
        ops_rmsnorm(b->o, b->y, b->rows, NULL, 1, n_embd, (size_t)n_embd, b->m->hp.rms_eps);
        acts_set(&b->x, b->y, 1, n_embd);
        ops_quantise(b->o, &b->x);
        pool_run(b->o->team, pool_threads(b->o->team), 1, nothing, NULL);
    }
    *done += 1;
    return 0;
}

static int time_layer(double *seconds, measurement *b, err_ctx *err)
{
    double per_s;
    const int rc = speed_of(&per_s, empty_layer, LAYER_WINDOW_S, b, err);
    if (rc == 0) *seconds = layer_overhead_within(1 / per_s);
    return rc;
}

static int decode_speed(double *out, work_unit *unit, measurement *b, err_ctx *err)
{
    pool_stay_awake(b->o->team, true);
    const int rc = speed_of(out, unit, b->seconds / WINDOWS, b, err);
    pool_stay_awake(b->o->team, false);
    return rc;
}

static int measure_cpu(speeds *out, measurement *b, err_ctx *err)
{
    double done = 0;
    int rc = token_experts(&done, b, err);       /* the first one starts the threads */
    if (rc < 0 || (rc = decode_speed(&out->cpu, token_experts, b, err)) < 0 ||
        (rc = decode_speed(&out->cpu_dense, token_dense, b, err)) < 0)
        return rc;
    if ((rc = time_layer(&out->layer_cpu, b, err)) < 0) return rc;
    return speed_of(&out->cpu_many, prompt_experts, b->seconds / WINDOWS, b, err);
}

/* ---- a prompt's products on the GPU
 * ----------------------------------------------------------- */

enum { GEMM_ROWS = 4096, EXPERT_TOKENS = 2048 };

/* Rows as in large matrices; fewer for small models, where they would take seconds to simulate. */
static int gemm_rows(const model *m)
{
    return min_int(GEMM_ROWS, 2 * m->hp.n_embd);
}

/* Measures one matrix of the experts' type. */
static int measure_expert_gemm(speeds *out, measurement *b, err_ctx *err)
{
    static const int tokens[] = { EXPERT_TOKENS };
    const tensor *t = model_first_bank(b->m)->weight[SLAB_GATE];
    const gemm_shape shape = { t->type, gemm_rows(b->m), (int)t->cols };
    return measure_gemm(&out->gpu_macs, NULL, b->g, &shape, tokens, 1, 0, b->watch, b->ctx, err);
}

/* Adds the bytes of a dense matrix to those of its type. */
static void add_dense(void *ctx, const tensor *t, model_use use, int layer)
{
    uint64_t *bytes = ctx;
    if ((use != USE_ATTENTION && use != USE_DELTANET) || layer < 0 || t->rows < 2) return;
    bytes[t->type] += t->rows * t->row_bytes;
}

/* The type with most bytes that the GPU computes. F32 has one implementation only and does not
 * count. QT_COUNT: none. */
static quant_type dense_type(const model *m)
{
    uint64_t bytes[QT_COUNT] = { 0 };
    uint32_t best = QT_COUNT;
    model_visit(m, add_dense, bytes);
    for (uint32_t type = 0; type < QT_COUNT; type++) {
        if (type == QT_F32 || bytes[type] == 0 || !gpu_type_fits((int)type) ||
            m->hp.n_embd % quant_traits_of(type)->block_elems)
            continue;
        if (best == QT_COUNT || bytes[type] > bytes[best]) best = type;
    }
    return (quant_type)best;
}

static int measure_dense_gemm(speeds *out, measurement *b, err_ctx *err)
{
    static const int tokens[SPEEDS_GEMM_POINTS] = GPU_GEMM_TOKENS;
    const gemm_shape shape = { dense_type(b->m), gemm_rows(b->m), b->m->hp.n_embd };
    if (shape.type == QT_COUNT) return 0;
    return measure_gemm(out->gemm_own, out->gemm_vendor, b->g, &shape, tokens, SPEEDS_GEMM_POINTS,
                        0, b->watch, b->ctx, err);
}

/* ---- links and layers
 * ------------------------------------------------------------------------- */

static int measure_links(speeds *out, measurement *b, err_ctx *err)
{
    gpu_links links;
    const int rc = gpu_measure_links(&links, b->g, err);
    if (rc < 0) return rc;
    out->vram_read = links.vram_read;
    out->pcie_in = links.pcie_in;
    out->pcie_out = links.pcie_out;
    out->pull = links.pull;
    out->hop = links.hop;
    return 0;
}

/* Needs the speed of VRAM, to subtract the time of the weights' bytes. */
static int time_layers(speeds *out, measurement *b, err_ctx *err)
{
    const measure_parts *p = b->parts;
    layer_overhead c;
    if (out->vram_read <= 0) return 0;
    const int rc = measure_layer_overhead(&c, b->g, p->m, p->w, p->rope, out->vram_read, err);
    if (rc < 0) return rc;
    out->layer_dense = c.dense;
    out->layer_hot = c.hot;
    return 0;
}

/* Measures the CPU's experts while a GPU kernel reads RAM. */
static int load_speeds(speeds *out, measurement *b, err_ctx *err)
{
    gpu_load *load;
    int rc = gpu_load_begin(&load, b->g, b->memory, b->bytes, err);
    if (rc < 0) return rc;
    rc = decode_speed(&out->cpu_busy, token_experts, b, err);
    const int ended = gpu_load_end(load, &out->pull_busy, rc < 0 ? NULL : err);
    return rc < 0 ? rc : ended;
}

static int measure_busy(speeds *out, measurement *b, err_ctx *err)
{
    int rc = ERR_NOMEM;
    if (b->cpu && b->bytes >= GPU_LOAD_LEAST) {
        if (gpu_lock(b->g, b->memory, b->bytes, NULL) < 0) {
            b->partial = true;           /* and nothing is fetched from RAM that is not locked */
            return 0;
        }
        rc = load_speeds(out, b, err);
        gpu_unlock(b->g, b->memory);
    }
    if (rc != ERR_NOMEM) return rc;
    out->cpu_busy = out->cpu;
    out->pull_busy = out->pull;
    return rc;
}

static int measure_gpu(speeds *out, measurement *b, err_ctx *err)
{
    int rc;
    if ((rc = allow_no_memory(b, measure_links(out, b, err))) < 0 ||
        (rc = allow_no_memory(b, time_layers(out, b, err))) < 0 ||
        (rc = allow_no_memory(b, measure_expert_gemm(out, b, err))) < 0 ||
        (rc = allow_no_memory(b, measure_dense_gemm(out, b, err))) < 0 ||
        (rc = check_watch(b, err)) < 0)
        return rc;
    return allow_no_memory(b, measure_busy(out, b, err));
}

/* Returns the largest file of a split model: the first one may have only metadata. */
static int largest_part(const gguf *g)
{
    int most = 0;
    for (int i = 1; i < gguf_n_part(g); i++)
        if (gguf_part_bytes(g, i) > gguf_part_bytes(g, most)) most = i;
    return most;
}

/* Reads of an expert's size. A failed read is no error here: the run itself reports it. */
static int measure_disk(speeds *out, measurement *b, err_ctx *err)
{
    const int part = largest_part(b->m->file);
    const char *path = gguf_part_path(b->m->file, part);
    const uint64_t bytes = gguf_part_bytes(b->m->file, part);
    const uint64_t one = expert_slabs_bytes(model_first_bank(b->m)) / SLAB_COUNT;
    drive_speed d;
    if (!path[0]) return 0;
    uint64_t memory = b->ram_bytes / 4 < DRIVE_MEMORY ? b->ram_bytes / 4 : DRIVE_MEMORY;
    if (memory < drive_least_memory(one)) memory = drive_least_memory(one);
    const drive_task task = { .path = path, .file_bytes = bytes, .one = one,
                              .memory_bytes = memory, .team = b->o->team,
                              .seconds = b->seconds / 2, .at_once = SLAB_COUNT,
                              .watch = b->watch, .ctx = b->ctx };
    const int rc = drive_measure(&d, &task, err);
    if (rc == ERR_RANGE) return 0;       /* the file is too small */
    if (rc < 0) b->partial = true;
    else {
        out->disk = d.speed;
        out->disk_wait = d.wait;
    }
    return check_watch(b, err);
}

static void release(measurement *b)
{
    experts_cpu_free(b->cpu);
    worklist_free(b->work);
    mem_free(b->storage);
    mem_free(b->rows);
    mem_free(b->y);
    mem_free(b->ids);
    pages_unmap(b->memory, b->bytes);
}

int measure_speeds(speeds *out, const measure_parts *p, uint64_t ram_bytes, double seconds,
                   keep_going_fn *watch, void *ctx, err_ctx *err)
{
    measurement b = { .parts = p, .m = p->m, .o = p->o, .g = p->g, .ram_bytes = ram_bytes,
                .seconds = seconds, .n_token = MANY_TOKENS, .watch = watch, .ctx = ctx };
    int rc;
    *out = (speeds){ 0 };
    rc = make_bank(&b, err);
    if (rc == 0) rc = make_experts(&b, err);
    if (rc == 0) rc = measure_cpu(out, &b, err);
    rc = allow_no_memory(&b, rc);
    if (rc == 0 && b.g) rc = measure_gpu(out, &b, err);
    release(&b);                         /* the drive needs memory of its own */
    if (rc == 0) rc = measure_disk(out, &b, err);
    return rc == 0 && b.partial ? MEASURE_PARTIAL : rc;
}
