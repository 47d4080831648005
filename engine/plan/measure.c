/* measure.c - times the CPU's experts, the GPU's links and the drive.
 *
 * Experts are made up: blocks of one byte value, in the shapes and types of the first layer that
 * has experts, many times the size of the caches, so that every product reads memory. Their sums
 * are finite and of no interest. No figure waits for another: what one of them lacks memory for,
 * the others may still get. */
#include "engine/plan/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/gpu.h"
#include "engine/host/experts_cpu.h"
#include "engine/plan/measure_layers.h"
#include "tiers/drive_access.h"
#include "tiers/page_advice.h"
#include "tiers/topology.h"

enum {
    MANY_TOKENS = 256,                   /* of the measurement for prompts: */
    LEAST_TOKENS = 16,                   /* so many where memory is short */
    MANY_EXPERTS = 4,                    /* that share them */
    LAYER_LOOPS = 10,                    /* of the threads, in a layer of one token */
    FILL = 0x66                          /* scales of no type become so small with it that products
                                          * are subnormal, which costs some processors ten times */
};
#define MEMORY_LEAST ((uint64_t)512 << 20)
#define MEMORY_MOST ((uint64_t)4 << 30)
/* Each figure is the median of some windows: neither the moment in which another program ran nor
 * the one in which none did. */
enum { WINDOWS = 7 };
static const double WINDOW_S = 0.07, LAYER_WINDOW_S = 0.002, DRIVE_S = 0.25;

typedef struct bench {
    const measure_parts *parts;
    const model *m;                      /* these three are of parts */
    const ops *o;
    gpu *g;
    keep_going_fn *watch;
    void *ctx;
    /* made-up experts */
    uint8_t *memory;
    size_t bytes;
    tensor slabs[SLAB_COUNT];
    expert_bank bank;
    /* what experts need */
    experts_cpu *cpu;
    worklist *work;
    acts x;
    void *storage;
    float *rows, *y;
    int32_t *ids;
    uint64_t y_floats;                   /* in y */
    int n_token;                         /* of the measurement for prompts */
    int next;                            /* expert that the next token begins with */
    uint64_t next_row;                   /* of the head, the same */
    bool partial;                        /* something was left out that could have been measured */
} bench;

static int check_watch(const bench *b, err_ctx *err)
{
    if (!b->watch || b->watch(b->ctx)) return 0;
    return err_set(err, ERR_STOPPED, "interrupted");
}

/* A figure stays unknown for lack of memory; anything else is the caller's to know. */
static int or_unknown(bench *b, int rc)
{
    if (rc != ERR_NOMEM) return rc;
    b->partial = true;
    return 0;
}

/* ---- made-up experts ------------------------------------------------------------------------- */

static void fill_piece(void *ctx, int64_t begin, int64_t end, int thread)
{
    bench *b = ctx;
    (void)thread;
    memset(b->memory + begin, FILL, (size_t)(end - begin));
}

/* A bank of as many experts as make up the memory, one tensor after the other. */
static int make_bank(bench *b, uint64_t room, err_ctx *err)
{
    const expert_bank *like = model_first_bank(b->m);
    topology here;
    topology_read(&here, "");
    uint64_t want = 8 * topology_last_cache_bytes(&here);
    if (want < MEMORY_LEAST) want = MEMORY_LEAST;
    if (want > MEMORY_MOST) want = MEMORY_MOST;
    if (want > room / 4) want = room / 4;
    const uint64_t one = expert_slabs_bytes(like);
    const int least = 2 * b->m->hp.n_expert_used, n = (int)(want / one);
    b->bank = (expert_bank){ .n_expert = n > least ? n : least, .n_embd = like->n_embd,
                             .n_ff = like->n_ff };
    b->bytes = (size_t)((uint64_t)b->bank.n_expert * one);
    void *p;
    const int rc = pages_map(&p, b->bytes, PAGES_HUGE, err);
    if (rc < 0) return rc;
    b->memory = p;
    pool_run(b->o->team, (int64_t)b->bytes, 1 << 21, fill_piece, b);
    uint8_t *at = b->memory;
    for (int s = 0; s < SLAB_COUNT; s++) {
        const tensor *t = like->weight[s];
        b->slabs[s] = (tensor){
            .type = t->type, .cols = t->cols, .rows = expert_slab_rows(like, (expert_slab)s),
            .slabs = (uint64_t)b->bank.n_expert, .row_bytes = t->row_bytes,
            .slab_bytes = expert_slab_bytes(like, (expert_slab)s), .data = at,
        };
        b->bank.weight[s] = &b->slabs[s];
        at += (uint64_t)b->bank.n_expert * b->slabs[s].slab_bytes;
    }
    return 0;
}

/* What n tokens take: their vectors, the experts' answers and all between. */
static uint64_t tokens_bytes(const model_hparams *hp, int n)
{
    const uint64_t slots = (uint64_t)n * (uint64_t)hp->n_expert_used;
    const uint64_t floats = ((uint64_t)n + slots) * (uint64_t)hp->n_embd;
    return acts_bytes(n, hp->n_embd) + floats * sizeof(float) + slots * sizeof(int32_t) +
           experts_cpu_bytes(hp, (int)slots);
}

static int make_experts(bench *b, uint64_t room, err_ctx *err)
{
    const model_hparams *real = &b->m->hp;
    model_hparams hp = *real;
    int rc;
    hp.n_expert = b->bank.n_expert;
    while (b->n_token > LEAST_TOKENS && b->bytes + tokens_bytes(&hp, b->n_token) > room)
        b->n_token /= 2;
    const size_t n_token = (size_t)b->n_token, slots = n_token * (size_t)real->n_expert_used;
    b->storage = mem_zalloc(acts_bytes(b->n_token, real->n_embd) + 64);
    b->rows = mem_array(n_token * (size_t)real->n_embd, sizeof *b->rows);
    b->y = mem_array(slots * (size_t)real->n_embd, sizeof *b->y);
    b->y_floats = slots * (size_t)real->n_embd;
    b->ids = mem_array(slots, sizeof *b->ids);
    if (!b->storage || !b->rows || !b->y || !b->ids)
        return err_set(err, ERR_NOMEM, "measuring: %zu values", slots * (size_t)real->n_embd);
    acts_init(&b->x, (uint8_t *)(((uintptr_t)b->storage + 63) / 64 * 64), b->n_token,
              real->n_embd);
    for (size_t i = 0; i < n_token * (size_t)real->n_embd; i++)
        b->rows[i] = (float)(i % 17) - 8.0f;
    if ((rc = worklist_create(&b->work, b->bank.n_expert, (int)slots, err)) < 0) return rc;
    return experts_cpu_create(&b->cpu, b->o, &hp, NULL, NULL, (int)slots, err);
}

/* n tokens with the ids that are there. */
static int run_experts(bench *b, int n, err_ctx *err)
{
    acts_set(&b->x, b->rows, n, b->m->hp.n_embd);
    worklist_fill(b->work, b->ids, n, b->m->hp.n_expert_used);
    const expert_job job = { .bank = &b->bank, .act = ACT_SWIGLU, .x = &b->x, .work = b->work,
                               .items = b->work->items, .n_item = b->work->n_item, .y = b->y };
    const int rc = experts_cpu_run(b->cpu, &job, err);
    return rc;
}

/* ---- figures --------------------------------------------------------------------------------- */

/* Does a piece of work, and adds to *done what it came to. */
typedef int work_piece(double *done, bench *b, err_ctx *err);

/* Work per second. */
static int speed_of(double *out, work_piece *piece, double window_s, bench *b, err_ctx *err)
{
    double rates[WINDOWS];
    int rc = 0;
    for (int i = 0; i < WINDOWS && rc == 0; i++) {
        const uint64_t from = clock_ns();
        double done = 0;
        do rc = piece(&done, b, err);
        while (rc == 0 && clock_since(from) < window_s);
        rates[i] = done / clock_since(from);
        if (rc == 0) rc = check_watch(b, err);
    }
    if (rc < 0) return rc;
    sort_doubles(rates, WINDOWS);
    *out = rates[WINDOWS / 2];
    return 0;
}

/* Bytes of one token's experts after another's, each read once in a long while. */
static int token_experts(double *done, bench *b, err_ctx *err)
{
    const int k = b->m->hp.n_expert_used;
    for (int r = 0; r < k; r++) b->ids[r] = (b->next + r) % b->bank.n_expert;
    b->next = (b->next + k) % b->bank.n_expert;
    *done += (double)k * (double)expert_slabs_bytes(&b->bank);
    return run_experts(b, 1, err);
}

/* Bytes of a matrix of the head's type with one token: some rows of the memory, then the next. */
static int token_dense(double *done, bench *b, err_ctx *err)
{
    const tensor *head = b->m->head.t;
    const uint64_t there = b->bytes / head->row_bytes, room = b->y_floats;
    uint64_t rows = there < room ? there : room;
    if (rows > head->rows) rows = head->rows;
    if (rows == 0) return err_set(err, ERR_NOMEM, "measuring: no room for a row of the head");
    if (b->next_row + rows > there) b->next_row = 0;
    const matrix m = { .type = head->type, .rows = (int)rows, .cols = (int)head->cols,
                       .data = b->memory + b->next_row * head->row_bytes,
                       .row_bytes = head->row_bytes, .scale = 1.0f };
    b->next_row += rows;
    acts_set(&b->x, b->rows, 1, b->m->hp.n_embd);
    ops_matmul(b->o, b->y, &m, &b->x);
    *done += (double)rows * (double)head->row_bytes;
    return 0;
}

/* Multiply-adds when tokens share experts. */
static int prompt_split(double *done, bench *b, err_ctx *err)
{
    const int k = b->m->hp.n_expert_used, n_expert = b->bank.n_expert;
    for (int t = 0; t < b->n_token; t++)
        for (int r = 0; r < k; r++)
            b->ids[t * k + r] = (b->next + t % MANY_EXPERTS * k + r) % n_expert;
    b->next = (b->next + MANY_EXPERTS * k) % n_expert;
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

/* One layer without its products: ten times or so a vector is normed and quantised, and the threads
 * begin a loop together and wait for each other. */
static int empty_layer(double *done, bench *b, err_ctx *err)
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

static int time_layer(double *seconds, bench *b, err_ctx *err)
{
    double per_s;
    const int rc = speed_of(&per_s, empty_layer, LAYER_WINDOW_S, b, err);
    if (rc == 0) *seconds = layer_cost_within(1 / per_s);
    return rc;
}

static int decode_speed(double *out, work_piece *piece, bench *b, err_ctx *err)
{
    pool_stay_awake(b->o->team, true);
    const int rc = speed_of(out, piece, WINDOW_S, b, err);
    pool_stay_awake(b->o->team, false);
    return rc;
}

static int measure_cpu(speeds *out, bench *b, err_ctx *err)
{
    double done = 0;
    int rc = token_experts(&done, b, err);       /* the threads' first work takes longer */
    if (rc < 0 || (rc = decode_speed(&out->cpu, token_experts, b, err)) < 0 ||
        (rc = decode_speed(&out->cpu_dense, token_dense, b, err)) < 0)
        return rc;
    if ((rc = time_layer(&out->layer_cpu, b, err)) < 0) return rc;
    return speed_of(&out->cpu_many, prompt_split, WINDOW_S, b, err);
}

/* A prompt's product on the GPU, as one matrix of the experts' type. */
static int measure_macs(double *out, bench *b, err_ctx *err)
{
    enum { ROWS = 4096, TOKENS = 2048, REPEATS = 4 };
    const tensor *t = model_first_bank(b->m)->weight[SLAB_GATE];
    const uint64_t w = ROWS * t->row_bytes, x = (uint64_t)TOKENS * t->cols * sizeof(float);
    const uint64_t parts[] = { w, x, x, x, (uint64_t)TOKENS * ROWS * sizeof(float) };
    uint64_t total = 0, used = 0;
    uint8_t *at[5];
    for (int i = 0; i < 5; i++) total += size_align(parts[i], 256);
    uint8_t *arena = gpu_alloc(b->g, total, "measuring", err);
    if (!arena) return ERR_NOMEM;
    for (int i = 0; i < 5; i++) {
        at[i] = arena + used;
        used += size_align(parts[i], 256);
    }
    uint64_t from = 0;
    int rc = gpu_zero(b->g, arena, total, err);
    for (int i = -1; i < REPEATS && rc == 0; i++) {      /* the first one warms up */
        gpu_input in = { .kind = GPU_PLAIN, .n = TOKENS, .cols = (int)t->cols,
                         .x = (float *)(void *)at[1], .rows = (float *)(void *)at[2],
                         .halves = at[3] };
        const gpu_product p = {
            .y = (float *)(void *)at[4], .y_stride = ROWS,
            .w = { .type = (int)t->type, .rows = ROWS, .cols = (int)t->cols, .data = at[0],
                   .row_bytes = t->row_bytes, .scale = 1.0f },
        };
        gpu_project(b->g, &in, &p, 1);
        if (i < 0) {
            rc = gpu_wait(b->g, err);
            from = clock_ns();
        }
    }
    if (rc == 0) rc = gpu_wait(b->g, err);
    if (rc == 0)
        *out = REPEATS * (double)ROWS * TOKENS * (double)t->cols / clock_since(from);
    gpu_free(b->g, arena);
    return rc;
}

/* ---- ways to compute a prompt's dense products ----------------------------------------------- */

enum { GEMM_ROWS = 4096, GEMM_MOST = 4096, GEMM_REPEATS = 4 };

/* Bytes of dense matrices by type. */
static void add_dense(void *ctx, const tensor *t, model_use use, int layer)
{
    uint64_t *bytes = ctx;
    if ((use != USE_ATTENTION && use != USE_DELTANET) || layer < 0 || t->rows < 2) return;
    bytes[t->type] += t->rows * t->row_bytes;
}

/* The type of most of them; F32 weights are multiplied in one way only. QT_COUNT: none will do. */
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

typedef struct gemm_bench {
    gpu_matrix w;
    uint8_t *x, *rows, *halves, *y;      /* in VRAM, for GEMM_MOST tokens */
    uint8_t *scratch;
} gemm_bench;

/* Multiply-adds per second with n tokens, in the way that is set. */
static int time_gemm(double *out, bench *b, const gemm_bench *t, int n, err_ctx *err)
{
    gpu_input in = { .kind = GPU_PLAIN, .n = n, .cols = t->w.cols, .x = (float *)(void *)t->x,
                     .rows = (float *)(void *)t->rows, .halves = t->halves };
    const gpu_product p = { .y = (float *)(void *)t->y, .y_stride = t->w.rows, .w = t->w };
    uint64_t from = 0;
    int rc = 0;
    for (int i = -1; i < GEMM_REPEATS && rc == 0; i++) {         /* the first one warms up */
        gpu_project(b->g, &in, &p, 1);
        if (i >= 0) continue;
        rc = gpu_wait(b->g, err);
        from = clock_ns();
    }
    if (rc == 0) rc = gpu_wait(b->g, err);
    if (rc == 0) *out = GEMM_REPEATS * (double)t->w.rows * t->w.cols * n / clock_since(from);
    return rc;
}

static int time_way(double rates[SPEEDS_GEMM_POINTS], bench *b, const gemm_bench *t,
                    gpu_gemm_use use, err_ctx *err)
{
    static const int tokens[SPEEDS_GEMM_POINTS] = GPU_GEMM_TOKENS;
    const gpu_gemm how = { .use = use };
    int rc = 0;
    gpu_gemm_set(b->g, &how);
    if (use == GPU_GEMM_VENDOR && gpu_gemm_scratch(b->g, GEMM_MOST) == 0) return 0;
    gpu_gemm_lend(b->g, t->scratch);
    for (int i = 0; i < SPEEDS_GEMM_POINTS && rc == 0; i++)
        rc = time_gemm(&rates[i], b, t, tokens[i], err);
    gpu_gemm_set(b->g, &(gpu_gemm){ .use = GPU_GEMM_OWN });      /* takes the scratch back */
    return rc;
}

/* Numbers that are not zero: a chip that multiplies zeros is faster than it will be. */
static int fill_gemm(bench *b, const gemm_bench *t, uint64_t w_bytes, err_ctx *err)
{
    const uint64_t part = (uint64_t)b->n_token * (uint64_t)t->w.cols * sizeof(float);
    int rc = 0;
    if (b->memory && b->bytes >= w_bytes)
        rc = gpu_write(b->g, (void *)t->w.data, b->memory, w_bytes, err);
    for (int i = 0; i < GEMM_MOST / b->n_token && rc == 0 && b->rows; i++)
        rc = gpu_write(b->g, t->x + (uint64_t)i * part, b->rows, part, err);
    return rc;
}

static int measure_gemm(speeds *out, bench *b, err_ctx *err)
{
    const quant_type type = dense_type(b->m);
    const int cols = b->m->hp.n_embd;
    if (type == QT_COUNT) return 0;
    gpu_gemm_set(b->g, &(gpu_gemm){ .use = GPU_GEMM_VENDOR });
    const uint64_t row_bytes = quant_row_bytes(quant_traits_of(type), (uint64_t)cols);
    const uint64_t w = GEMM_ROWS * row_bytes, x = (uint64_t)GEMM_MOST * (uint64_t)cols * 4;
    const uint64_t y = (uint64_t)GEMM_MOST * GEMM_ROWS * sizeof(float);
    const uint64_t parts[] = { w, x, x, x / 2, y, gpu_gemm_scratch(b->g, GEMM_MOST) };
    uint8_t *at[ARRAY_LEN(parts)];
    uint64_t total = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) total += size_align(parts[i], 256);
    uint8_t *arena = gpu_alloc(b->g, total, "measuring", err);
    if (!arena) return ERR_NOMEM;
    uint8_t *next = arena;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        at[i] = next;
        next += size_align(parts[i], 256);
    }
    const gemm_bench t = {
        .w = { .type = (int)type, .rows = GEMM_ROWS, .cols = cols, .data = at[0],
               .row_bytes = row_bytes, .scale = 1.0f },
        .x = at[1], .rows = at[2], .halves = at[3], .y = at[4], .scratch = at[5],
    };
    int rc = gpu_zero(b->g, arena, total, err);
    if (rc == 0) rc = fill_gemm(b, &t, w, err);
    if (rc == 0) rc = time_way(out->gemm_own, b, &t, GPU_GEMM_OWN, err);
    if (rc == 0) rc = time_way(out->gemm_vendor, b, &t, GPU_GEMM_VENDOR, err);
    gpu_free(b->g, arena);
    return rc;
}

static int measure_links(speeds *out, bench *b, err_ctx *err)
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

/* Without the speed of VRAM there is nothing to hold bytes against. */
static int time_layers(speeds *out, bench *b, err_ctx *err)
{
    const measure_parts *p = b->parts;
    layer_costs c;
    if (out->vram_read <= 0) return 0;
    const int rc = measure_layers(&c, b->g, p->m, p->w, p->rope, out->vram_read, err);
    if (rc < 0) return rc;
    out->layer_dense = c.dense;
    out->layer_hot = c.hot;
    return 0;
}

/* The CPU's experts while a kernel pulls. */
static int load_speeds(speeds *out, bench *b, err_ctx *err)
{
    gpu_load *load;
    int rc = gpu_load_begin(&load, b->g, b->memory, b->bytes, err);
    if (rc < 0) return rc;
    rc = decode_speed(&out->cpu_busy, token_experts, b, err);
    const int ended = gpu_load_end(load, &out->pull_busy, rc < 0 ? NULL : err);
    return rc < 0 ? rc : ended;
}

static int measure_busy(speeds *out, bench *b, err_ctx *err)
{
    int rc = ERR_NOMEM;
    if (b->cpu && b->bytes >= GPU_LOAD_LEAST) {
        if (gpu_lock(b->g, b->memory, b->bytes, NULL) < 0) {
            b->partial = true;           /* nothing will be fetched where nothing can be locked */
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

static int measure_gpu(speeds *out, bench *b, err_ctx *err)
{
    int rc;
    if ((rc = or_unknown(b, measure_links(out, b, err))) < 0 ||
        (rc = or_unknown(b, time_layers(out, b, err))) < 0 ||
        (rc = or_unknown(b, measure_macs(&out->gpu_macs, b, err))) < 0 ||
        (rc = or_unknown(b, measure_gemm(out, b, err))) < 0 ||
        (rc = check_watch(b, err)) < 0)
        return rc;
    return or_unknown(b, measure_busy(out, b, err));
}

/* The part with the most experts in it: the first one may hold nothing but metadata. */
static int largest_part(const gguf *g)
{
    int most = 0;
    for (int i = 1; i < gguf_n_part(g); i++)
        if (gguf_part_bytes(g, i) > gguf_part_bytes(g, most)) most = i;
    return most;
}

/* Reads of an expert's size. A drive that cannot be read is found out later. */
static int measure_disk(speeds *out, bench *b, uint64_t room, err_ctx *err)
{
    const int part = largest_part(b->m->file);
    const char *path = gguf_part_path(b->m->file, part);
    const uint64_t bytes = gguf_part_bytes(b->m->file, part);
    const uint64_t one = expert_slabs_bytes(model_first_bank(b->m)) / SLAB_COUNT;
    drive_speed d;
    if (!path[0]) return 0;
    uint64_t memory = room / 4 < DRIVE_MEMORY ? room / 4 : DRIVE_MEMORY;
    if (memory < drive_least_memory(one)) memory = drive_least_memory(one);
    const drive_task task = { .path = path, .file_bytes = bytes, .one = one,
                              .memory_bytes = memory, .team = b->o->team, .seconds = DRIVE_S,
                              .at_once = SLAB_COUNT,
                              .watch = b->watch, .ctx = b->ctx };
    const int rc = drive_measure(&d, &task, err);
    if (rc == ERR_RANGE) return 0;       /* there is nothing to measure */
    if (rc < 0) b->partial = true;
    else {
        out->disk = drive_wants_bounce(&d) ? d.bounced : d.straight;
        out->disk_straight = d.straight;
        out->disk_wait = d.wait;
    }
    return check_watch(b, err);
}

static void release(bench *b)
{
    experts_cpu_free(b->cpu);
    worklist_free(b->work);
    mem_free(b->storage);
    mem_free(b->rows);
    mem_free(b->y);
    mem_free(b->ids);
    pages_unmap(b->memory, b->bytes);
}

int measure_speeds(speeds *out, const measure_parts *p, uint64_t room, keep_going_fn *watch,
                   void *ctx, err_ctx *err)
{
    bench b = { .parts = p, .m = p->m, .o = p->o, .g = p->g, .n_token = MANY_TOKENS,
                .watch = watch, .ctx = ctx };
    int rc;
    *out = (speeds){ 0 };
    rc = make_bank(&b, room, err);
    if (rc == 0) rc = make_experts(&b, room, err);
    if (rc == 0) rc = measure_cpu(out, &b, err);
    rc = or_unknown(&b, rc);
    if (rc == 0 && b.g) rc = measure_gpu(out, &b, err);
    release(&b);                         /* before the drive's turn: it has memory of its own */
    if (rc == 0) rc = measure_disk(out, &b, room, err);
    return rc == 0 && b.partial ? MEASURE_PARTIAL : rc;
}
