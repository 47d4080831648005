/* bench_gemm.c - moe-bench gemm: products of many tokens on the GPU, with this engine's kernels and
 * with the vendor's library.
 *
 * Prints what engine/plan/measure_gemm.h measures, for dense matrices of two models. Two
 * operations for each weight and token are compared with the chip's peak. A shape that VRAM has
 * no space for is left out with a note. */
#include "cli/commands.h"

#include <stdio.h>
#include <string.h>

#include "cli/args/args.h"
#include "cli/bench/bench_lists.h"
#include "cli/bench/bench_model.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "cuda/gpu_measure.h"
#include "engine/plan/measure_gemm.h"

enum {
    MAX_TOKENS = 16384, MAX_TYPES = 8,
    PEAK_SIDE = 8192                     /* of the product that the peak is measured with */
};

typedef struct gemm_options {
    const char *types, *tokens;
    double seconds;
    bool json;
} gemm_options;

#define FIELD(f) offsetof(gemm_options, f)
static const arg_option options[] = {
    { "type", 0, ARG_TEXT, FIELD(types), "T[,T]", NULL, 0, 0,
      "Weight types. Default: Q8_0,Q4_K,MXFP4,NVFP4,BF16" },
    { "tokens", 0, ARG_TEXT, FIELD(tokens), "N[,N]", NULL, 0, 0,
      "Tokens per product. Default: 16,64,256,512,1024,2048,4096,8192" },
    { "seconds", 0, ARG_FLOAT, FIELD(seconds), "S", NULL, 0.001, 60,
      "Time for each figure. Default: 0.02" },
    { "json", 0, ARG_FLAG, FIELD(json), NULL, NULL, 0, 0, "One JSON object per row on stdout" },
};

static const arg_spec spec = {
    .usage = "moe-bench gemm [options]",
    .about = "Measures products of prompts on the GPU: this engine's kernels, and the vendor's\n"
             "library if it is installed, for matrices of gpt-oss-20b and Qwen3-Next.",
    .options = options, .n_option = ARRAY_LEN(options),
    .epilogue =
        "own      TFLOP/s of this engine's kernel, and percent of the peak\n"
        "vendor   the same for cuBLASLt, decoding to bf16 included\n"
        "peak     the library's product of 8192 x 8192 bf16 weights and 8192 tokens; without it,\n"
        "         a loop of mma in registers\n"
        "Types whose blocks do not fit the columns of a shape have no row for it.",
};

static const struct matrix_shape { const char *model, *name; int rows, cols; } shapes[] = {
    { "gpt-oss-20b", "q", 4096, 2880 }, { "gpt-oss-20b", "o", 2880, 4096 },
    { "qwen3-next", "q", 8192, 2048 }, { "qwen3-next", "o", 2048, 4096 },
};

typedef struct gemm_bench {
    const gemm_options *opt;
    quant_type types[MAX_TYPES];
    int n_type;
    bench_counts tokens;
    gpu *g;
    gpu_info info;
    const char *vendor;                  /* its library's name; NULL: not installed */
    double peak;                         /* FLOP/s */
} gemm_bench;

typedef struct gemm_row {
    const struct matrix_shape *matrix;
    quant_type type;
    int tokens;
    double own, vendor;                  /* FLOP/s; 0: none */
} gemm_row;

static int read_types(gemm_bench *b, const char *list)
{
    char word[32], shown[64];
    quant_type type;
    while (bench_next_word(word, &list)) {
        if (!quant_from_name(&type, word) || (gpu_count() > 0 && !gpu_type_fits((int)type))) {
            console_error("--type: '%s' is no type with a kernel on the GPU",
                          ESC(shown, str_from(word)));
            return 2;
        }
        if (b->n_type == MAX_TYPES) {
            console_error("--type: more than %d types", MAX_TYPES);
            return 2;
        }
        b->types[b->n_type++] = type;
    }
    return 0;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static int measure_row(gemm_row *row, gemm_bench *b, err_ctx *err)
{
    const gemm_shape shape = { row->type, row->matrix->rows, row->matrix->cols };
    const int rc = measure_gemm(&row->own, &row->vendor, b->g, &shape, &row->tokens, 1,
                                b->opt->seconds / 2, interrupt_watch, NULL, err);
    row->own *= 2;
    row->vendor *= 2;
    return rc;
}

static int measure_peak(gemm_bench *b, err_ctx *err)
{
    static const struct matrix_shape square = { "", "", PEAK_SIDE, PEAK_SIDE };
    gemm_row row = { .matrix = &square, .type = QT_BF16, .tokens = PEAK_SIDE };
    int rc = b->vendor ? measure_row(&row, b, err) : 0;
    b->peak = row.vendor;
    if ((rc < 0 && rc != ERR_NOMEM) || b->peak > 0) return rc;
    rc = gpu_multiply_peak(&b->peak, b->g, err);
    b->peak *= 2;
    return rc;
}

/* ---- output ---------------------------------------------------------------------------------- */

static void print_heading(const gemm_bench *b)
{
    printf("%s, vendor: %s; peak %.0f TFLOP/s (%s)\n\n", b->info.name,
           b->vendor ? b->vendor : "none", b->peak * 1e-12,
           b->vendor ? "the library, bf16, 8192 tokens" : "mma in registers");
    printf("model        matrix   type     rows   cols tokens       own         vendor\n");
}

static const char *rate_text(char dst[32], const gemm_bench *b, double rate)
{
    if (rate > 0) snprintf(dst, 32, "%7.1f %3.0f%%", rate * 1e-12, 100 * rate / b->peak);
    else snprintf(dst, 32, "%7s %4s", "-", "");
    return dst;
}

static json_t *rate_json(const gemm_bench *b, double rate)
{
    if (rate <= 0) return json_null();
    return json_pack("{s:f, s:f}", "tflop_s", rate * 1e-12, "percent_of_peak",
                     100 * rate / b->peak);
}

static int print_json(const gemm_bench *b, const gemm_row *r)
{
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:f, s:s}",
                            "gpu", b->info.name, "model", r->matrix->model,
                            "matrix", r->matrix->name, "type", quant_name(r->type),
                            "rows", r->matrix->rows, "cols", r->matrix->cols,
                            "tokens", r->tokens, "own", rate_json(b, r->own),
                            "vendor", rate_json(b, r->vendor),
                            "peak_tflop_s", b->peak * 1e-12,
                            "library", b->vendor ? b->vendor : "");
    return console_report(row, REPORT_FLAGS, "");
}

static int print_row(const gemm_bench *b, const gemm_row *r)
{
    char own[32], vendor[32];
    int rc = 0;
    console_status_clear();
    if (!b->opt->json)
        printf("%-12s %-8s %-7s %5d %6d %6d %s %s\n", r->matrix->model, r->matrix->name,
               quant_name(r->type), r->matrix->rows, r->matrix->cols, r->tokens,
               rate_text(own, b, r->own), rate_text(vendor, b, r->vendor));
    else rc = print_json(b, r);
    fflush(stdout);
    return rc;
}

/* ---- the verb -------------------------------------------------------------------------------- */

static int run_row(gemm_bench *b, const struct matrix_shape *m, quant_type type, int tokens)
{
    gemm_row row = { .matrix = m, .type = type, .tokens = tokens };
    char label[64];
    err_ctx err;
    if (m->cols % quant_traits_of(type)->block_elems) return 0;
    snprintf(label, sizeof label, "%s %s, %s, %d tokens", m->model, m->name, quant_name(type),
             tokens);
    console_status("%s", label);
    const int rc = measure_row(&row, b, &err);
    if (rc == 0) return print_row(b, &row);
    console_status_clear();
    if (rc != ERR_NOMEM) return bench_model_fail("gemm", rc, &err);
    console_note("%s: left out: %s", label, err.msg);
    return 0;
}

static int run_all(gemm_bench *b)
{
    int rc = 0;
    for (int i = 0; i < b->n_type; i++)
        for (size_t m = 0; m < ARRAY_LEN(shapes); m++)
            for (int t = 0; t < b->tokens.n && rc == 0; t++)
                rc = run_row(b, &shapes[m], b->types[i], b->tokens.of[t]);
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
    if ((rc = gpu_describe(&b->info, 0, &err)) < 0 || (rc = gpu_open(&b->g, 0, &err)) < 0)
        return console_fail("gemm", &err);
    gpu_gemm_set(b->g, &(gpu_gemm){ .use = GPU_GEMM_VENDOR });
    if (gpu_gemm_scratch(b->g, MAX_TOKENS) > 0) b->vendor = gpu_gemm_name(b->g);
    console_status("the peak");
    rc = measure_peak(b, &err);
    console_status_clear();
    if (rc < 0) return bench_model_fail("gemm", rc, &err);
    if (!b->opt->json) print_heading(b);
    return (rc = run_all(b)) != 0 ? rc : console_finish();
}

int cmd_bench_gemm(int argc, char **argv)
{
    gemm_options opt = { .types = "Q8_0,Q4_K,MXFP4,NVFP4,BF16", .seconds = 0.02,
                         .tokens = "16,64,256,512,1024,2048,4096,8192" };
    gemm_bench b = { .opt = &opt };
    int rc = args_parse(&spec, &opt, NULL, NULL, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if ((rc = read_types(&b, opt.types)) == 0 &&
        (rc = bench_read_counts(&b.tokens, "--tokens", opt.tokens, GPU_FEW + 1,
                                MAX_TOKENS)) == 0)
        rc = run(&b);
    gpu_close(b.g);
    return rc;
}
