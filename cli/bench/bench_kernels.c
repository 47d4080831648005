/* bench_kernels.c - moe-bench kernels: speed of the products of each weight type.
 *
 * From memory: a stack of matrices much larger than the caches, split among the thread team as in
 * ops_matmul. Each measurement continues in the stack where the last one stopped. For one token the
 * rate is compared with the fastest read of memory by the same threads.
 * From L2: a few rows, repeatedly, on one core. This is the limit by instructions: a kernel whose
 * rate is not well above one core's share of the memory limit is bound by instructions. */
#include "cli/commands.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench/bench_lists.h"
#include "cli/bench/bench_memory.h"
#include "cli/bench/bench_model.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/synth/synth_blocks.h"
#include "cli/view/median_spread.h"
#include "engine/host/repack_head.h"
#include "tiers/bandwidth.h"

enum { RUNS = 5, MAX_TOKENS = 4096, MAX_SIDE = 1 << 24 };

typedef struct kernels_options {
    const char *types, *isas, *shape, *tokens;
    bench_memory_args run;
} kernels_options;

#define FIELD(f) offsetof(kernels_options, f)
static const arg_option options[] = {
    { "type", 0, ARG_TEXT, FIELD(types), "T[,T]", NULL, 0, 0,
      "Weight types, or all. Default: the sixteen usual ones" },
    { "isa", 0, ARG_TEXT, FIELD(isas), "NAME[,NAME]", NULL, 0, 0,
      "Instruction sets, or all. Default: the fastest here" },
    { "shape", 0, ARG_TEXT, FIELD(shape), "ROWSxCOLS", NULL, 0, 0,
      "Default: 2880x2880 (gpt-oss) for MXFP4 and Q8_0, else 512x2048 (Qwen3-Next)" },
    { "tokens", 0, ARG_TEXT, FIELD(tokens), "N[,N]", NULL, 0, 0,
      "Tokens per product. Default: 1,64" },
};

static const arg_group groups[] = {
    { "Measuring:", bench_memory_options, BENCH_MEMORY_N_OPTION, FIELD(run) },
};

static const arg_spec spec = {
    .usage = "moe-bench kernels [options]",
    .about = "Measures the products of weights with activations, with the kernel that the engine\n"
             "would take: from memory with all threads, and from the L2 cache with one.",
    .options = options, .n_option = ARRAY_LEN(options), .groups = groups,
    .n_group = ARRAY_LEN(groups),
    .epilogue =
        "kernel     dot for few tokens, wide for many; repacked: dot, in the order that output\n"
        "           matrices are copied to; reference: no fast one for this type yet\n"
        "GB/s       bytes of weights, each counted once however many tokens there are\n"
        "of limit   GB/s as a share of what these threads can read at best (moe-bench machine)\n"
        "With --json each row is an object on a line of its own.",
};

/* ---- what to measure ------------------------------------------------------------------------- */

typedef struct kernels_plan {
    int n_type, n_set;
    quant_type types[QT_COUNT];
    const kernel_set *sets[KERNELS_MAX_SETS];
    bench_counts tokens;
    int rows, cols;                      /* 0: by type */
} kernels_plan;

static const quant_type usual_types[] = {
    QT_MXFP4, QT_Q4_K, QT_Q5_K, QT_Q6_K, QT_Q8_0, QT_IQ4_NL, QT_IQ4_XS, QT_Q4_0, QT_Q5_0, QT_Q5_1,
    QT_Q2_K, QT_Q3_K, QT_NVFP4, QT_BF16, QT_F16, QT_F32,
};

static bool has_kernel(uint32_t type)
{
    const quant_traits *q = quant_traits_of(type);
    return q && q->decode && kernels_contract()->of[type].dot;
}

static int unknown_type(const char *word)
{
    char known[512] = "", shown[64];
    size_t used = 0;
    for (uint32_t id = 0; id < QT_COUNT; id++)
        if (has_kernel(id) && used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, " %s", quant_name(id));
    console_error("--type: '%s' is not all and none of%s", ESC(shown, str_from(word)), known);
    return 2;
}

static void add_type(kernels_plan *p, quant_type type)
{
    for (int i = 0; i < p->n_type; i++)
        if (p->types[i] == type) return;
    p->types[p->n_type++] = type;
}

static int plan_types(kernels_plan *p, const char *list)
{
    char word[32];
    quant_type type;
    for (size_t i = 0; !list && i < ARRAY_LEN(usual_types); i++) add_type(p, usual_types[i]);
    while (bench_next_word(word, &list)) {
        if (!strcmp(word, "all")) {
            for (uint32_t id = 0; id < QT_COUNT; id++)
                if (has_kernel(id)) add_type(p, (quant_type)id);
        } else if (quant_from_name(&type, word) && has_kernel(type)) {
            add_type(p, type);
        } else {
            return unknown_type(word);
        }
    }
    return 0;
}

static void add_set(kernels_plan *p, const kernel_set *set)
{
    for (int i = 0; i < p->n_set; i++)
        if (p->sets[i] == set) return;
    p->sets[p->n_set++] = set;
}

static int plan_sets(kernels_plan *p, const char *list)
{
    const kernel_set *sets[KERNELS_MAX_SETS], *set;
    const int n = kernels_here(sets);
    char word[32];
    err_ctx err;
    if (!list) add_set(p, sets[0]);
    while (bench_next_word(word, &list)) {
        if (!strcmp(word, "all")) {
            for (int i = 0; i < n; i++) add_set(p, sets[i]);
        } else if (*word && (set = kernels_named(word, &err))) {
            add_set(p, set);
        } else {
            if (!*word) err_set(&err, ERR_RANGE, "a name is missing");
            console_error("--isa: %s", err.msg);
            return 2;
        }
    }
    return 0;
}

static int plan_shape(kernels_plan *p, const char *text)
{
    char *x, *end, shown[64];
    if (!text) return 0;
    if (!bench_parse_count(&p->rows, text, &x, MAX_SIDE) || *x != 'x' ||
        !bench_parse_count(&p->cols, x + 1, &end, MAX_SIDE) || *end) {
        console_error("--shape: '%s' is not ROWSxCOLS with both within 1..%d",
                      ESC(shown, str_from(text)), MAX_SIDE);
        return 2;
    }
    for (int i = 0; i < p->n_type; i++) {
        const quant_traits *q = quant_traits_of(p->types[i]);
        if (p->cols % q->block_elems == 0) continue;
        console_error("--shape: %d columns are not a multiple of %d, the block of %s", p->cols,
                      q->block_elems, q->name);
        return 2;
    }
    return 0;
}

static int make_plan(kernels_plan *p, const kernels_options *opt)
{
    int rc = plan_types(p, opt->types);
    if (rc == 0) rc = plan_sets(p, opt->isas);
    if (rc == 0)
        rc = bench_read_counts(&p->tokens, "--tokens", opt->tokens ? opt->tokens : "1,64", 1,
                               MAX_TOKENS);
    return rc == 0 ? plan_shape(p, opt->shape) : rc;
}

/* The stack of one type: as many matrices of the shape as the buffer holds, at least one. */
static matrix stack_of(const kernels_plan *p, quant_type type, size_t buffer)
{
    const bool gptoss = type == QT_MXFP4 || type == QT_Q8_0;
    const int rows = p->rows ? p->rows : gptoss ? 2880 : 512;
    const int cols = p->cols ? p->cols : gptoss ? 2880 : 2048;
    const uint64_t row_bytes = quant_row_bytes(quant_traits_of(type), (uint64_t)cols);
    uint64_t n = buffer / (row_bytes * (uint64_t)rows);
    if (n > (uint64_t)(INT_MAX / rows)) n = (uint64_t)(INT_MAX / rows);
    return (matrix){ .type = type, .rows = rows * (int)(n ? n : 1), .cols = cols,
                     .row_bytes = row_bytes, .scale = 1.0f };
}

/* ---- measuring ------------------------------------------------------------------------------- */

typedef struct kernel_bench {
    const kernels_options *opt;
    kernels_plan plan;
    topology t;
    pool *team;
    bandwidth limit;
    size_t buffer;                       /* bytes wanted for the stack of each type */
    void *stack;
    size_t stack_bytes;                  /* the largest one's */
    float *x;                            /* [MAX of counts, MAX of cols] */
    void *acts_storage;
    acts a;
    float *y;                            /* [threads][OPS_SUMS] */
    size_t l2_bytes;                     /* of weights that stay in L2 */
} kernel_bench;

/* One row of the table. */
typedef struct kernel_row {
    const kernel_set *set;
    matrix w;
    int n_token;
    double memory[RUNS], l2[RUNS];       /* GB/s */
} kernel_row;

/* Rows of the stack for one loop of the team. */
typedef struct span {
    kernel_bench *b;
    const kernel_row *row;
    const ops *o;
    int first;
} span;

static int least(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

static void multiply(const span *s, int begin, int end, int thread, token_pack *pack)
{
    const acts *a = &s->b->a;
    const int height = a->n < OPS_TOKENS ? OPS_SUMS / a->n : ops_rows(a->n);
    float *y = s->b->y + (size_t)thread * OPS_SUMS;
    for (int t = 0; t < a->n; t += OPS_TOKENS)
        for (int r = begin; r < end; r += height) {
            const int n_row = least(end - r, height);
            product_rows(y, (size_t)n_row, s->o, &s->row->w, s->first + r, n_row, a->rows + t,
                         least(a->n - t, OPS_TOKENS), pack);
        }
}

/* A separate function, so that few tokens need less stack. */
__attribute__((noinline))
static void multiply_packed(const span *s, int begin, int end, int thread)
{
    token_pack pack;
    pack.x = NULL;
    multiply(s, begin, end, thread, &pack);
}

static void multiply_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const span *s = ctx;
    if (ops_packs(s->b->a.n)) multiply_packed(s, (int)begin, (int)end, thread);
    else multiply(s, (int)begin, (int)end, thread, NULL);
}

/* The measured step: n rows, cyclically within the first n_all rows of the stack, on the team or,
 * without one, on this thread. */
typedef struct walk {
    span at;
    pool *team;
    int n, n_all;
} walk;

static void walk_step(walk *w)
{
    const kernel_row *row = w->at.row;
    if (w->at.first > w->n_all - w->n) w->at.first = 0;
    if (w->team)
        pool_run(w->team, w->n,
                 ops_rows(row->n_token) * pool_grain((int64_t)OPS_ROWS * row->w.cols),
                 multiply_rows, &w->at);
    else
        multiply_rows(&w->at, 0, w->n, 0);
    w->at.first += w->n;
}

/* Chooses n so that a step takes about a quarter of ns. Also warms up caches and threads. */
static void walk_find_step(walk *w, uint64_t ns)
{
    for (;;) {
        const uint64_t start = clock_ns();
        walk_step(w);
        if (clock_ns() - start >= ns / 4 || w->n == w->n_all) return;
        w->n = w->n < w->n_all / 2 ? 2 * w->n : w->n_all;
    }
}

/* GB/s of weights in RUNS measurements of ns each. */
static int walk_measure(double runs[RUNS], walk *w, uint64_t ns, err_ctx *err)
{
    walk_find_step(w, ns);
    for (int i = 0; i < RUNS; i++) {
        const uint64_t start = clock_ns();
        uint64_t now, bytes = 0;
        if (interrupted()) return err_set(err, ERR_STOPPED, "stopped");
        do {
            walk_step(w);
            bytes += (uint64_t)w->n * w->at.row->w.row_bytes;
            now = clock_ns();
        } while (now - start < ns);
        runs[i] = (double)bytes / (double)(now - start);
    }
    return 0;
}

static ops ops_of(const kernel_bench *b, const kernel_row *row)
{
    return (ops){ .team = b->team, .kernels = row->set, .loops = loops_for(row->set->isa) };
}

static int measure_row(kernel_bench *b, kernel_row *row, err_ctx *err)
{
    const ops o = ops_of(b, row);
    const uint64_t ns = (uint64_t)(b->opt->run.seconds * 1e9 / RUNS);
    const int64_t fit = (int64_t)(b->l2_bytes / row->w.row_bytes), few = fit > 0 ? fit : 1;
    const int n_l2 = least(few, row->w.rows);
    walk memory = { { b, row, &o, 0 }, b->team, least(OPS_ROWS, row->w.rows), row->w.rows };
    walk l2 = { { b, row, &o, 0 }, NULL, least(OPS_ROWS, n_l2), n_l2 };
    int rc;

    acts_set(&b->a, b->x, row->n_token, row->w.cols);
    if (row->set->of[row->w.type].quantised) ops_quantise(&o, &b->a);
    rc = walk_measure(row->memory, &memory, ns, err);
    return rc == 0 ? walk_measure(row->l2, &l2, ns, err) : rc;
}

/* ---- weights --------------------------------------------------------------------------------- */

typedef struct filling {
    const synth_blocks *maker;
    uint8_t *out;
} filling;

static void fill_blocks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const filling *f = ctx;
    (void)thread;
    synth_blocks_fill(f->maker, f->out + (size_t)begin * (size_t)f->maker->block_bytes,
                      (uint64_t)begin, (size_t)(end - begin), 1);
}

/* Random weights of a usual magnitude, because denormal numbers would be slower. */
static void fill_stack(kernel_bench *b, const matrix *w)
{
    synth_blocks maker;
    filling f = { &maker, b->stack };
    synth_blocks_init(&maker, w->type, 0.02);
    pool_run(b->team, (int64_t)((uint64_t)w->rows * w->row_bytes / (uint64_t)maker.block_bytes),
             1024, fill_blocks, &f);
}

static int prepare(kernel_bench *b, err_ctx *err)
{
    const size_t y_floats = (size_t)pool_threads(b->team) * OPS_SUMS;
    const uint64_t l2 = topology_cache_bytes(&b->t, 2);
    int tokens = 0, cols = 0, rc;
    uint64_t acts_need, x_floats;

    for (int i = 0; i < b->plan.tokens.n; i++)
        if (b->plan.tokens.of[i] > tokens) tokens = b->plan.tokens.of[i];
    for (int i = 0; i < b->plan.n_type; i++) {
        const matrix w = stack_of(&b->plan, b->plan.types[i], b->buffer);
        const size_t bytes = (size_t)w.rows * (size_t)w.row_bytes;
        if (bytes > b->stack_bytes) b->stack_bytes = bytes;
        if (w.cols > cols) cols = w.cols;
    }
    acts_need = acts_bytes(tokens, cols);
    x_floats = (uint64_t)tokens * (uint64_t)cols;
    rc = bench_memory_fits(b->stack_bytes + acts_need + x_floats * sizeof(float), "weights");
    if (rc != 0) return rc;
    b->l2_bytes = (size_t)(l2 ? l2 : (uint64_t)1 << 20) / 4;     /* the rest is for activations */
    b->x = mem_array(x_floats, sizeof *b->x);
    b->acts_storage = mem_zalloc(acts_need);
    b->y = mem_array(y_floats, sizeof *b->y);
    if (!b->x || !b->acts_storage || !b->y)
        err_set(err, ERR_NOMEM, "out of memory for %d tokens of %d values", tokens, cols);
    else if (pages_map(&b->stack, b->stack_bytes, PAGES_HUGE, err) == 0) {
        for (uint64_t i = 0; i < x_floats; i++)
            b->x[i] = (float)(int32_t)(random_word(2, i) >> 32) * 0x1p-31f;
        acts_init(&b->a, b->acts_storage, tokens, cols);
        return 0;
    }
    return console_fail("weights", err);
}

static void release(kernel_bench *b)
{
    pages_unmap(b->stack, b->stack_bytes);
    mem_free(b->x);
    mem_free(b->acts_storage);
    mem_free(b->y);
    pool_free(b->team);
}

/* ---- output ---------------------------------------------------------------------------------- */

static const char *kernel_name(const kernel_row *row)
{
    const kernel *k = &row->set->of[row->w.type];
    if (k->wide && least(row->n_token, OPS_TOKENS) >= k->wide_from) return "wide";
    if (row->w.repacked) return "repacked";
    return kernel_is_reference(row->set, row->w.type) ? "reference" : "dot";
}

/* Converts GB/s to GFLOP/s: a multiplication and an addition for each weight and token. */
static double flops(const kernel_row *row, double gb_s)
{
    return gb_s / (double)row->w.row_bytes * 2 * row->w.cols * row->n_token;
}

static void print_heading(const kernel_bench *b)
{
    char bytes[32], l2[32];
    const int n = pool_threads(b->team);
    printf("%s, %d thread%s; limit: reading at %.1f GB/s (%.1f without prefetching)\n",
           b->t.cpu[0] ? b->t.cpu : "unknown processor", n, n == 1 ? "" : "s", b->limit.gb_s,
           b->limit.plain.gb_s);
    printf("weights: %s in memory, %s in L2; medians of %d\n\n",
           text_bytes(bytes, sizeof bytes, b->buffer), text_bytes(l2, sizeof l2, b->l2_bytes),
           RUNS);
    printf("%46s memory, %d thread%-12s L2, one core\n", "", n, n == 1 ? "" : "s");
    printf("type     isa      kernel     cols tokens     GB/s  of limit  GFLOP/s     GB/s "
           " GFLOP/s\n");
    fflush(stdout);
}

static void print_row(const kernel_bench *b, const kernel_row *row)
{
    const double memory = spread_of(row->memory, RUNS).median, l2 = spread_of(row->l2, RUNS).median;
    char part[16] = "-";
    if (row->n_token == 1) snprintf(part, sizeof part, "%.0f%%", 100 * memory / b->limit.gb_s);
    printf("%-8s %-8s %-9s %5d %6d %8.2f %9s %8.1f %8.2f %8.1f\n", quant_name(row->w.type),
           row->set->isa, kernel_name(row), row->w.cols, row->n_token, memory, part,
           flops(row, memory), l2, flops(row, l2));
    fflush(stdout);
}

static json_t *rates_json(const kernel_row *row, const double runs[RUNS])
{
    const spread s = spread_of(runs, RUNS);
    return json_pack("{s:o, s:f}", "gb_s", spread_json(&s, runs), "gflop_s", flops(row, s.median));
}

static int print_json(const kernel_bench *b, const kernel_row *row)
{
    const double memory = spread_of(row->memory, RUNS).median;
    json_t *v = json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:o, s:o, s:f, s:o}",
                          "type", quant_name(row->w.type), "isa", row->set->isa,
                          "kernel", kernel_name(row), "rows", row->w.rows, "cols", row->w.cols,
                          "tokens", row->n_token, "threads", pool_threads(b->team),
                          "memory", rates_json(row, row->memory), "l2", rates_json(row, row->l2),
                          "limit_gb_s", b->limit.gb_s,
                          "percent_of_limit", row->n_token == 1
                              ? json_real(100 * memory / b->limit.gb_s) : json_null());
    const int rc = console_report(v, REPORT_FLAGS, "");
    fflush(stdout);
    return rc;
}

/* ---- the verb -------------------------------------------------------------------------------- */

static int show_row(const kernel_bench *b, const kernel_row *row)
{
    console_status_clear();
    if (b->opt->run.json) return print_json(b, row);
    print_row(b, row);
    return 0;
}

static int run_row(kernel_bench *b, kernel_row *row)
{
    err_ctx err;
    const int rc = measure_row(b, row, &err);
    return rc < 0 ? bench_model_fail("kernels", rc, &err) : show_row(b, row);
}

/* One token with repacked weights, if the set has such a layout and memory suffices. */
static int run_repacked(kernel_bench *b, kernel_row *row)
{
    const ops o = ops_of(b, row);
    const char *whose;
    uint64_t room;
    err_ctx err;
    int rc = 0;
    if (row->n_token > 1 || available_memory(&room, &whose, &err) < 0 ||
        repack_head_bytes(&row->w, row->set) > room || repack_head(&row->w, &o, &err) < 0)
        return 0;
    if (row->w.repacked) rc = run_row(b, row);
    repack_head_free(&row->w);
    return rc;
}

/* All rows of one type. *done counts them, for the line on the terminal. */
static int run_type(kernel_bench *b, quant_type type, int *done)
{
    const kernels_plan *p = &b->plan;
    const int n_all = p->n_type * p->n_set * p->tokens.n;
    kernel_row row = { .w = stack_of(p, type, b->buffer) };
    int rc;

    row.w.data = b->stack;
    console_status("making weights of type %s", quant_name(type));
    fill_stack(b, &row.w);
    for (int s = 0; s < p->n_set; s++)
        for (int i = 0; i < p->tokens.n; i++) {
            row.set = p->sets[s];
            row.n_token = p->tokens.of[i];
            console_status("%d of %d: %s, %s, %d token%s", ++*done, n_all, quant_name(type),
                           row.set->isa, row.n_token, row.n_token == 1 ? "" : "s");
            if ((rc = run_row(b, &row)) != 0 || (rc = run_repacked(b, &row)) != 0) return rc;
        }
    return 0;
}

static int run(kernel_bench *b)
{
    int rc, done = 0;
    err_ctx err;

    topology_read(&b->t, "");
    if ((rc = bench_memory_team(&b->team, &b->opt->run)) != 0) return rc;
    if ((rc = bench_memory_bytes(&b->buffer, &b->opt->run, &b->t)) != 0) return rc;
    if ((rc = prepare(b, &err)) != 0) return rc;
    interrupt_install();
    console_status("reading memory");
    rc = bandwidth_measure(&b->limit, b->team, b->buffer, b->opt->run.seconds, interrupt_watch,
                           NULL, &err);
    console_status_clear();
    if (rc < 0) return bench_model_fail("kernels", rc, &err);
    if (!b->opt->run.json) print_heading(b);
    for (int i = 0; i < b->plan.n_type && rc == 0; i++) rc = run_type(b, b->plan.types[i], &done);
    return rc ? rc : console_finish();
}

int cmd_bench_kernels(int argc, char **argv)
{
    kernels_options opt = { .run.seconds = 0.2 };
    kernel_bench b = { .opt = &opt };
    int rc = args_parse(&spec, &opt, NULL, NULL, argc, argv);

    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if ((rc = make_plan(&b.plan, &opt)) == 0) rc = run(&b);
    release(&b);
    return rc;
}
