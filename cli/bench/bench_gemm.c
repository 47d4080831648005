/* bench_gemm.c - moe-bench gemm: products of many tokens on the GPU, in each way there is.
 *
 * The shapes of two models: their projections as dense matrices, their experts as a layer with the
 * same number of tokens for each. A dense product is timed from outside, as often as fits into a
 * moment, with all that it takes: for the vendor's library also the decoding of the weights. Of a
 * layer of experts the profile says how long gate and up took, and down. What is held against the
 * peak are two operations for each weight and token. Weights are random, of a sane size; large
 * ones repeat a piece. A shape without room in VRAM is left out, with a line that says so. */
#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args/args.h"
#include "cli/bench/bench_model.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/synth/synth_blocks.h"
#include "cuda/gpu.h"

enum {
    MAX_COUNTS = 16, MAX_COUNT = 16384,  /* of --tokens, and each of them */
    MAX_TYPES = 8, MAX_SPANS = 512,
    PEAK_SIDE = 8192,                    /* the largest product */
    WARM = 1, MOST_REPEATS = 64
};
#define PIECE_BYTES ((size_t)8 << 20)    /* made on the host; the rest of a matrix repeats it */

typedef struct gemm_options {
    const char *types, *tokens;
    double seconds;
    bool json, csv;
} gemm_options;

#define FIELD(f) offsetof(gemm_options, f)
static const arg_option options[] = {
    { "type", 0, ARG_TEXT, FIELD(types), "T[,T]", NULL, 0, 0,
      "Weight types. Default: Q8_0,Q4_K,MXFP4,NVFP4,BF16" },
    { "tokens", 0, ARG_TEXT, FIELD(tokens), "N[,N]", NULL, 0, 0,
      "Default: 16,64,256,512,1024,2048,4096,8192" },
    { "seconds", 0, ARG_FLOAT, FIELD(seconds), "S", NULL, 0.001, 60,
      "For each figure. Default: 0.02" },
    { "json", 0, ARG_FLAG, FIELD(json), NULL, NULL, 0, 0, "One JSON object per row on stdout" },
    { "csv", 0, ARG_FLAG, FIELD(csv), NULL, NULL, 0, 0, "Rows with commas, and a line of names" },
};

static const arg_spec spec = {
    .usage = "moe-bench gemm [options]",
    .about = "Measures products of prompts on the GPU: our kernels, and the vendor's library if\n"
             "it is here, for shapes of gpt-oss-20b and Qwen3-Next.",
    .options = options,
    .n_option = ARRAY_LEN(options),
    .operands = "",
    .epilogue =
        "own      TFLOP/s of our kernel, and percent of the peak\n"
        "vendor   the same for cuBLASLt: dense matrices alone, decoding to bf16 included\n"
        "peak     the library's product of 8192 x 8192 bf16 weights and 8192 tokens; without it,\n"
        "         a loop of mma in registers\n"
        "Types whose blocks do not fit the columns of a shape have no row for it.",
};

/* ---- what is measured ------------------------------------------------------------------------ */

typedef struct dense_shape { const char *model, *name; int rows, cols; } dense_shape;
static const dense_shape dense_shapes[] = {
    { "gpt-oss-20b", "q", 4096, 2880 }, { "gpt-oss-20b", "o", 2880, 4096 },
    { "qwen3-next", "q", 8192, 2048 }, { "qwen3-next", "o", 2048, 4096 },
};

typedef struct expert_shape { const char *model; int n_expert, k, n_embd, n_ff; } expert_shape;
static const expert_shape expert_shapes[] = {
    { "gpt-oss-20b", 32, 4, 2880, 2880 }, { "qwen3-next", 512, 10, 2048, 512 },
};

typedef struct gemm_plan {
    quant_type types[MAX_TYPES];
    int n_type;
    int counts[MAX_COUNTS];
    int n_count;
} gemm_plan;

typedef struct gemm_row {
    const char *model, *matrix;
    quant_type type;
    int rows, cols, tokens;
    int per_expert;                      /* tokens of each; 0: a dense matrix */
    double own, vendor;                  /* FLOP/s; 0: there is none */
} gemm_row;

typedef struct gemm_bench {
    const gemm_options *opt;
    gemm_plan plan;
    gpu *g;
    gpu_info info;
    bool vendor;
    const char *vendor_name;
    double peak;                         /* FLOP/s */
    uint8_t *piece;                      /* PIECE_BYTES on the host */
} gemm_bench;

/* Takes the next word off a list with commas. False at the end. */
static bool next_word(char word[32], const char **list)
{
    if (!*list) return false;
    const size_t n = strcspn(*list, ",");
    snprintf(word, 32, "%.*s", (int)(n < 31 ? n : 31), *list);
    *list = (*list)[n] ? *list + n + 1 : NULL;
    return true;
}

static int plan_types(gemm_plan *p, const char *list)
{
    char word[32], shown[64];
    quant_type type;
    if (!list) list = "Q8_0,Q4_K,MXFP4,NVFP4,BF16";
    while (next_word(word, &list)) {
        if (!quant_from_name(&type, word) || (gpu_count() > 0 && !gpu_type_fits((int)type))) {
            console_error("--type: '%s' is no type with a kernel on the GPU",
                          ESC(shown, str_from(word)));
            return 2;
        }
        if (p->n_type == MAX_TYPES) {
            console_error("--type: more than %d types", MAX_TYPES);
            return 2;
        }
        p->types[p->n_type++] = type;
    }
    return 0;
}

static int plan_tokens(gemm_plan *p, const char *list)
{
    char word[32], shown[64], *end;
    if (!list) list = "16,64,256,512,1024,2048,4096,8192";
    while (next_word(word, &list)) {
        const long n = strtol(word, &end, 10);
        if (word[0] < '0' || word[0] > '9' || *end || n <= GPU_FEW || n > MAX_COUNT) {
            console_error("--tokens: '%s' is not a number within %d..%d",
                          ESC(shown, str_from(word)), GPU_FEW + 1, MAX_COUNT);
            return 2;
        }
        if (p->n_count == MAX_COUNTS) {
            console_error("--tokens: more than %d numbers", MAX_COUNTS);
            return 2;
        }
        p->counts[p->n_count++] = (int)n;
    }
    return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Parts of one block of VRAM: counted first, then placed. */
typedef struct parts { uint8_t *base; uint64_t used; } parts;

static void *take(parts *p, uint64_t bytes)
{
    void *at = p->base ? p->base + p->used : NULL;
    p->used += size_align(bytes, 256);
    return at;
}

/* The piece, again and again. */
static int repeat_piece(gemm_bench *b, void *to, uint64_t piece, uint64_t bytes, err_ctx *err)
{
    uint64_t done = piece < bytes ? piece : bytes;
    int rc = gpu_write(b->g, to, b->piece, done, err);
    while (rc == 0 && done < bytes) {
        const uint64_t some = done < bytes - done ? done : bytes - done;
        gpu_copy(b->g, (uint8_t *)to + done, to, some);
        done += some;
    }
    return rc;
}

static int fill_weights(gemm_bench *b, void *to, quant_type type, uint64_t bytes, err_ctx *err)
{
    synth_blocks maker;
    synth_blocks_init(&maker, type, 0.02);
    const size_t n = PIECE_BYTES / (size_t)maker.block_bytes;
    synth_blocks_fill(&maker, b->piece, 0, n, 1);
    return repeat_piece(b, to, n * (size_t)maker.block_bytes, bytes, err);
}

static int fill_inputs(gemm_bench *b, void *to, uint64_t bytes, err_ctx *err)
{
    float *x = (float *)(void *)b->piece;
    for (uint64_t i = 0; i < PIECE_BYTES / sizeof *x; i++)
        x[i] = (float)(int32_t)(random_word(2, i) >> 32) * 0x1p-31f;
    return repeat_piece(b, to, PIECE_BYTES, bytes, err);
}

/* ---- dense products -------------------------------------------------------------------------- */

typedef struct dense_job {
    gpu_input in;
    gpu_product p;
    uint64_t w_bytes, x_bytes;
} dense_job;

static dense_job place_dense(parts *a, quant_type type, int rows, int cols, int n)
{
    const uint64_t row_bytes = quant_row_bytes(quant_traits_of(type), (uint64_t)cols);
    const uint64_t x = (uint64_t)n * (uint64_t)cols;
    dense_job j = { .w_bytes = row_bytes * (uint64_t)rows, .x_bytes = x * sizeof(float) };
    j.in = (gpu_input){ .kind = GPU_PLAIN, .n = n, .cols = cols };
    j.p = (gpu_product){
        .y_stride = rows,
        .w = { .type = (int)type, .rows = rows, .cols = cols, .row_bytes = row_bytes,
               .scale = 1.0f },
    };
    j.p.w.data = take(a, j.w_bytes);
    j.in.x = take(a, j.x_bytes);
    j.in.rows = take(a, j.x_bytes);
    j.in.halves = take(a, x * 2);
    j.p.y = take(a, (uint64_t)n * (uint64_t)rows * sizeof(float));
    return j;
}

/* FLOP/s in the way that is set. */
static int time_dense(double *out, gemm_bench *b, dense_job *j, err_ctx *err)
{
    const double work = 2.0 * j->p.w.rows * j->p.w.cols * j->in.n;
    double seconds = 0;
    uint64_t from;
    int rc = 0;
    for (int i = 0; i < WARM && rc == 0; i++) {
        gpu_project(b->g, &j->in, &j->p, 1);
        rc = gpu_wait(b->g, err);
    }
    for (int n = 1; rc == 0; n *= 4) {   /* until it took long enough to tell */
        if (interrupted()) return err_set(err, ERR_STOPPED, "stopped");
        from = clock_ns();
        for (int i = 0; i < n; i++) gpu_project(b->g, &j->in, &j->p, 1);
        rc = gpu_wait(b->g, err);
        seconds = clock_since(from);
        *out = n * work / seconds;
        if (seconds >= b->opt->seconds / 2 || n >= 4096) break;
    }
    return rc;
}

/* Our kernel, then the library's. */
static int time_ways(gemm_row *row, gemm_bench *b, dense_job *j, void *scratch, err_ctx *err)
{
    int rc;
    gpu_gemm_set(b->g, &(gpu_gemm){ .use = GPU_GEMM_OWN });
    if ((rc = time_dense(&row->own, b, j, err)) < 0 || !b->vendor || row->type == QT_F32) return rc;
    gpu_gemm_set(b->g, &(gpu_gemm){ .use = GPU_GEMM_VENDOR });
    gpu_gemm_lend(b->g, scratch);
    rc = time_dense(&row->vendor, b, j, err);
    gpu_gemm_set(b->g, &(gpu_gemm){ .use = GPU_GEMM_OWN });      /* takes the scratch back */
    return rc;
}

static uint64_t scratch_bytes(gemm_bench *b)
{
    gpu_gemm_set(b->g, &(gpu_gemm){ .use = GPU_GEMM_VENDOR });
    return gpu_gemm_scratch(b->g, MAX_COUNT);
}

static int measure_dense(gemm_row *row, gemm_bench *b, err_ctx *err)
{
    parts a = { 0 };
    (void)place_dense(&a, row->type, row->rows, row->cols, row->tokens);
    const uint64_t scratch = scratch_bytes(b), total = a.used + scratch;
    uint8_t *block = gpu_alloc(b->g, total, "a product", err);
    if (!block) return ERR_NOMEM;
    a = (parts){ .base = block };
    dense_job j = place_dense(&a, row->type, row->rows, row->cols, row->tokens);
    int rc = fill_weights(b, (void *)j.p.w.data, row->type, j.w_bytes, err);
    if (rc == 0) rc = fill_inputs(b, (void *)j.in.x, j.x_bytes, err);
    if (rc == 0) rc = time_ways(row, b, &j, take(&a, scratch), err);
    gpu_free(b->g, block);
    return rc;
}

/* ---- experts --------------------------------------------------------------------------------- */

typedef struct expert_job {
    gpu_input in;
    gpu_expert_args a;
    int32_t *ids;
    float *gates;
    uint64_t w_bytes[3];
} expert_job;

static gpu_bank place_bank(parts *p, uint64_t *bytes, quant_type type, int rows, int cols,
                           int n_expert)
{
    gpu_bank b = { .type = (int)type, .rows = rows, .cols = cols,
                   .row_bytes = quant_row_bytes(quant_traits_of(type), (uint64_t)cols) };
    b.slab_bytes = size_align(b.row_bytes * (uint64_t)rows, GPU_SLAB_ALIGN);
    *bytes = b.slab_bytes * (uint64_t)n_expert;
    b.data = take(p, *bytes);
    return b;
}

static expert_job place_experts(parts *p, const gemm_bench *b, const expert_shape *s,
                                quant_type type, int n)
{
    const uint64_t x = (uint64_t)n * (uint64_t)s->n_embd, slots = (uint64_t)n * (uint64_t)s->k;
    expert_job j = { .in = { .kind = GPU_PLAIN, .n = n, .cols = s->n_embd } };
    j.in.x = take(p, x * sizeof(float));
    j.in.rows = take(p, x * sizeof(float));
    j.in.halves = take(p, x * 2);
    j.ids = take(p, slots * sizeof *j.ids);
    j.gates = take(p, slots * sizeof *j.gates);
    j.a = (gpu_expert_args){
        .x = take(p, x * sizeof(float)), .ids = j.ids, .gates = j.gates,
        .gate = place_bank(p, &j.w_bytes[0], type, s->n_ff, s->n_embd, s->n_expert),
        .up = place_bank(p, &j.w_bytes[1], type, s->n_ff, s->n_embd, s->n_expert),
        .down = place_bank(p, &j.w_bytes[2], type, s->n_embd, s->n_ff, s->n_expert),
        .n_expert = s->n_expert, .k = s->k,
        .scratch = take(p, gpu_expert_scratch(b->g, n, s->k, s->n_expert, s->n_ff, s->n_embd)),
    };
    return j;
}

/* Slot after slot, expert after expert: each has as many. */
static int fill_choices(gemm_bench *b, const expert_job *j, err_ctx *err)
{
    const size_t slots = (size_t)j->in.n * (size_t)j->a.k;
    int32_t *ids = mem_array(slots, sizeof *ids);
    float *gates = mem_array(slots, sizeof *gates);
    int rc = ERR_NOMEM;
    for (size_t i = 0; ids && gates && i < slots; i++) {
        ids[i] = (int32_t)(i % (size_t)j->a.n_expert);
        gates[i] = 1.0f / (float)j->a.k;
    }
    if (!ids || !gates) err_set(err, ERR_NOMEM, "%zu choices", slots);
    else if ((rc = gpu_write(b->g, j->ids, ids, slots * sizeof *ids, err)) == 0)
        rc = gpu_write(b->g, j->gates, gates, slots * sizeof *gates, err);
    mem_free(ids);
    mem_free(gates);
    return rc;
}

/* Seconds of both products in one layer, the mean of some. */
static int time_layers(double *up_s, double *down_s, gemm_bench *b, expert_job *j, err_ctx *err)
{
    static gpu_span spans[MAX_SPANS];
    double up = 0, down = 0;
    int n = 0, rc = 0;
    const uint64_t from = clock_ns();
    for (int i = -WARM; i < MOST_REPEATS && rc >= 0; i++) {
        if (interrupted()) return err_set(err, ERR_STOPPED, "stopped");
        if ((rc = gpu_profile_begin(b->g, err)) < 0) break;
        gpu_experts(b->g, &j->in, &j->a);
        if ((rc = gpu_wait(b->g, err)) < 0) break;
        const int n_span = rc = gpu_profile_read(spans, MAX_SPANS, b->g, err);
        for (int s = 0; s < n_span && i >= 0; s++) {
            const double seconds = (double)(spans[s].end_ns - spans[s].ready_ns) * 1e-9;
            if (strcmp(spans[s].name, "experts up") == 0) up += seconds;
            if (strcmp(spans[s].name, "experts down") == 0) down += seconds;
        }
        n += i >= 0;
        if (n >= 3 && clock_since(from) > b->opt->seconds) break;
    }
    gpu_profile_end(b->g);
    if (rc < 0) return rc;
    *up_s = up / n;
    *down_s = down / n;
    return 0;
}

static int measure_experts(gemm_row *up, gemm_row *down, gemm_bench *b, const expert_shape *s,
                           err_ctx *err)
{
    parts a = { 0 };
    double up_s = 0, down_s = 0;
    gpu_gemm_set(b->g, &(gpu_gemm){ .use = GPU_GEMM_OWN });
    (void)place_experts(&a, b, s, up->type, up->tokens);
    uint8_t *block = gpu_alloc(b->g, a.used, "experts", err);
    if (!block) return ERR_NOMEM;
    a = (parts){ .base = block };
    expert_job j = place_experts(&a, b, s, up->type, up->tokens);
    const uint8_t *banks[3] = { j.a.gate.data, j.a.up.data, j.a.down.data };
    int rc = 0;
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = fill_weights(b, (void *)banks[i], up->type, j.w_bytes[i], err);
    if (rc == 0)
        rc = fill_inputs(b, (void *)j.in.x, (uint64_t)j.in.n * (uint64_t)s->n_embd * 4, err);
    if (rc == 0) rc = gpu_zero(b->g, j.a.x, (uint64_t)j.in.n * (uint64_t)s->n_embd * 4, err);
    if (rc == 0) rc = fill_choices(b, &j, err);
    if (rc == 0) rc = time_layers(&up_s, &down_s, b, &j, err);
    gpu_free(b->g, block);
    const double work = 2.0 * s->n_embd * s->n_ff * up->tokens * s->k;
    if (rc == 0 && up_s > 0) up->own = 2 * work / up_s;
    if (rc == 0 && down_s > 0) down->own = work / down_s;
    return rc;
}

/* ---- the peak -------------------------------------------------------------------------------- */

static int measure_peak(gemm_bench *b, err_ctx *err)
{
    gemm_row row = { .type = QT_BF16, .rows = PEAK_SIDE, .cols = PEAK_SIDE, .tokens = PEAK_SIDE };
    int rc = b->vendor ? measure_dense(&row, b, err) : ERR_NOMEM;
    if (rc == 0 && row.vendor > 0) {
        b->peak = row.vendor;
        return 0;
    }
    if (rc < 0 && rc != ERR_NOMEM) return rc;
    rc = gpu_multiply_peak(&b->peak, b->g, err);
    b->peak *= 2;
    return rc;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void print_heading(const gemm_bench *b)
{
    if (b->opt->json) return;
    if (b->opt->csv) {
        printf("model,matrix,type,rows,cols,tokens,tokens_per_expert,own_tflop_s,own_percent,"
               "vendor_tflop_s,vendor_percent\n");
        return;
    }
    printf("%s, vendor: %s; peak %.0f TFLOP/s (%s)\n\n", b->info.name,
           b->vendor ? b->vendor_name : "none", b->peak * 1e-12,
           b->vendor ? "the library, bf16, 8192 tokens" : "mma in registers");
    printf("model        matrix   type     rows   cols tokens  each       own         vendor\n");
}

static const char *rate_text(char dst[32], const gemm_bench *b, double rate)
{
    if (rate > 0) snprintf(dst, 32, "%7.1f %3.0f%%", rate * 1e-12, 100 * rate / b->peak);
    else snprintf(dst, 32, "%7s %4s", "-", "");
    return dst;
}

static void print_csv(const gemm_bench *b, const gemm_row *r)
{
    printf("%s,%s,%s,%d,%d,%d,%d,%.2f,%.1f,", r->model, r->matrix, quant_name(r->type), r->rows,
           r->cols, r->tokens, r->per_expert, r->own * 1e-12, 100 * r->own / b->peak);
    if (r->vendor > 0) printf("%.2f,%.1f\n", r->vendor * 1e-12, 100 * r->vendor / b->peak);
    else printf(",\n");
}

static json_t *rate_json(const gemm_bench *b, double rate)
{
    if (rate <= 0) return json_null();
    return json_pack("{s:f, s:f}", "tflop_s", rate * 1e-12, "percent_of_peak",
                     100 * rate / b->peak);
}

static bool print_json(const gemm_bench *b, const gemm_row *r)
{
    return console_json(json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:o, s:o, s:f, s:s}",
                                  "gpu", b->info.name, "model", r->model, "matrix", r->matrix,
                                  "type", quant_name(r->type), "rows", r->rows, "cols", r->cols,
                                  "tokens", r->tokens, "tokens_per_expert", r->per_expert,
                                  "own", rate_json(b, r->own), "vendor", rate_json(b, r->vendor),
                                  "peak_tflop_s", b->peak * 1e-12,
                                  "library", b->vendor ? b->vendor_name : ""),
                        JSON_COMPACT | JSON_REAL_PRECISION(6));
}

static int show_row(const gemm_bench *b, const gemm_row *r)
{
    char own[32], vendor[32], each[16] = "-";
    bool ok = true;
    console_status_clear();
    if (r->per_expert > 0) snprintf(each, sizeof each, "%d", r->per_expert);
    if (b->opt->json) ok = print_json(b, r);
    else if (b->opt->csv) print_csv(b, r);
    else
        printf("%-12s %-8s %-7s %5d %6d %6d %5s %s %s\n", r->model, r->matrix, quant_name(r->type),
               r->rows, r->cols, r->tokens, each, rate_text(own, b, r->own),
               rate_text(vendor, b, r->vendor));
    fflush(stdout);
    if (!ok) console_error("out of memory");
    return ok ? 0 : 1;
}

/* ---- the verb -------------------------------------------------------------------------------- */

/* Without room a shape is left out. */
static int left_out(const gemm_row *r, const err_ctx *err)
{
    console_status_clear();
    console_note("%s %s, %s, %d tokens: left out: %s", r->model, r->matrix, quant_name(r->type),
                 r->tokens, err->msg);
    return 0;
}

static bool type_suits(quant_type type, int cols)
{
    return cols % quant_traits_of(type)->block_elems == 0;
}

static int run_dense(gemm_bench *b, const dense_shape *s, quant_type type, int tokens)
{
    gemm_row row = { s->model, s->name, type, s->rows, s->cols, tokens, 0, 0, 0 };
    err_ctx err;
    if (!type_suits(type, s->cols)) return 0;
    console_status("%s %s, %s, %d tokens", s->model, s->name, quant_name(type), tokens);
    const int rc = measure_dense(&row, b, &err);
    if (rc == ERR_NOMEM) return left_out(&row, &err);
    return rc < 0 ? bench_model_fail("gemm", rc, &err) : show_row(b, &row);
}

static int run_experts(gemm_bench *b, const expert_shape *s, quant_type type, int tokens)
{
    const int each = tokens * s->k / s->n_expert;
    gemm_row up = { s->model, "gate+up", type, s->n_ff, s->n_embd, tokens, each, 0, 0 };
    gemm_row down = { s->model, "down", type, s->n_embd, s->n_ff, tokens, each, 0, 0 };
    err_ctx err;
    if (!type_suits(type, s->n_embd) || !type_suits(type, s->n_ff)) return 0;
    console_status("%s experts, %s, %d tokens", s->model, quant_name(type), tokens);
    int rc = measure_experts(&up, &down, b, s, &err);
    if (rc == ERR_NOMEM) return left_out(&up, &err);
    if (rc < 0) return bench_model_fail("gemm", rc, &err);
    return (rc = show_row(b, &up)) != 0 ? rc : show_row(b, &down);
}

static int run_all(gemm_bench *b)
{
    const gemm_plan *p = &b->plan;
    int rc = 0;
    for (int i = 0; i < p->n_type; i++) {
        for (size_t s = 0; s < ARRAY_LEN(dense_shapes); s++)
            for (int t = 0; t < p->n_count && rc == 0; t++)
                rc = run_dense(b, &dense_shapes[s], p->types[i], p->counts[t]);
        for (size_t s = 0; s < ARRAY_LEN(expert_shapes); s++)
            for (int t = 0; t < p->n_count && rc == 0; t++)
                rc = run_experts(b, &expert_shapes[s], p->types[i], p->counts[t]);
    }
    return rc;
}

static int run(gemm_bench *b)
{
    err_ctx err;
    int rc;
    if (gpu_count() == 0) {
        console_error("gemm: there is no GPU%s", strcmp(gpu_backend(), "none") == 0 ?
                      " (built for the CPU alone)" : ", or no driver for it");
        return 1;
    }
    interrupt_install();
    b->piece = mem_array(PIECE_BYTES, 1);
    if (!b->piece) {
        console_error("out of memory: %zu bytes", PIECE_BYTES);
        return 1;
    }
    if ((rc = gpu_describe(&b->info, 0, &err)) < 0 || (rc = gpu_open(&b->g, 0, &err)) < 0)
        return console_fail("gemm", &err);
    b->vendor = scratch_bytes(b) > 0;
    b->vendor_name = gpu_gemm_name(b->g);
    console_status("the peak");
    rc = measure_peak(b, &err);
    console_status_clear();
    if (rc < 0) return bench_model_fail("gemm", rc, &err);
    print_heading(b);
    return (rc = run_all(b)) != 0 ? rc : console_finish();
}

int cmd_bench_gemm(int argc, char **argv)
{
    gemm_options opt = { .seconds = 0.02 };
    gemm_bench b = { .opt = &opt };
    int rc = args_parse(&spec, &opt, NULL, NULL, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if (opt.json && opt.csv) {
        console_error("--json and --csv: one of them");
        return 2;
    }
    if ((rc = plan_types(&b.plan, opt.types)) == 0 && (rc = plan_tokens(&b.plan, opt.tokens)) == 0)
        rc = run(&b);
    gpu_close(b.g);
    mem_free(b.piece);
    return rc;
}
