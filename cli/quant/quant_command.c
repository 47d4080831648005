/* quant_command.c - moe-quant: arguments, the order of the steps, exit codes.
 *
 * Errors of arguments and files are found before the first weight is read. */
#include "cli/commands.h"

#include "cli/args/args.h"
#include "cli/interrupt.h"
#include "cli/output_file.h"
#include "cli/quant/quant_report.h"
#include "loader/quantise.h"

#define TYPES "nvfp4, mxfp4, q8_0, q4_k and bf16"

typedef struct settings {
    const char *experts, *dense, *head, *importance, *check;
    engine_args engine;                  /* threads and device */
    bool dry_run, json;
} settings;

static const arg_option options[] = {
    { "experts", 'e', ARG_TEXT, offsetof(settings, experts), "TYPE", NULL, 0, 0,
      "Type of the routed experts: nvfp4, mxfp4, q8_0, q4_k or bf16" },
    { "dense", 'd', ARG_TEXT, offsetof(settings, dense), "TYPE", NULL, 0, 0,
      "Type of the other matrices: attention, DeltaNet, shared expert, embedding" },
    { "head", 0, ARG_TEXT, offsetof(settings, head), "TYPE", NULL, 0, 0,
      "Type of the output matrix" },
    { "importance", 'i', ARG_TEXT, offsetof(settings, importance), "FILE", NULL, 0, 0,
      "Importance of columns, a GGUF of llama-imatrix; weights the rounding errors" },
    { "check", 0, ARG_TEXT, offsetof(settings, check), "TEXT", NULL, 0, 0,
      "Compare both models on TEXT, or the file of that name: prints the KL divergence" },
    { "device", 0, ARG_TEXT, offsetof(settings, engine.device), "NAME", "MOE_DEVICE", 0, 0,
      "Where --check runs them: cpu, cuda or auto. Default: auto" },
    { "threads", 't', ARG_THREADS, offsetof(settings, engine.threads), "N", "MOE_THREADS", 0, 0,
      "Threads; the file does not depend on them. Default: one per physical core" },
    { "dry-run", 'n', ARG_FLAG, offsetof(settings, dry_run), NULL, NULL, 0, 0,
      "Show the new type of each class and the new size; write nothing" },
    { "json", 0, ARG_FLAG, offsetof(settings, json), NULL, NULL, 0, 0,
      "Report as a JSON object on stdout" },
};

static const arg_spec spec = {
    .usage = "moe-quant IN.gguf OUT.gguf --experts TYPE [options]",
    .about = "Writes a model file with its weights in other types. IN may have any type that\n"
             "moe-run loads, and be split. OUT is one file, written as OUT.part and renamed at\n"
             "the end; it must not exist. Metadata, tokenizer, norms, biases and the router are\n"
             "copied.",
    .options = options, .n_option = ARRAY_LEN(options),
    .min_operands = 2, .max_operands = 2, .operands = "IN.gguf or OUT.gguf",
    .epilogue =
        "Types, bits per weight, and the expected error of normally distributed weights:\n"
        "  nvfp4   4.5     8.1e-2   4-bit floats, a scale for every 16, one for every expert\n"
        "  mxfp4   4.25    1.1e-1   4-bit floats, a power of two for every 32\n"
        "  q4_k    4.5     7.0e-2   4-bit integers with a minimum; rows of a multiple of 256 only\n"
        "  q8_0    8.5     4.7e-3   8-bit integers, a scale for every 32\n"
        "  bf16    16      1.7e-3   for weights that are F32 now\n"
        "MXFP4 becomes NVFP4 or Q8_0 without any loss. Otherwise weights that were rounded once\n"
        "are rounded again: begin with BF16, F16 or F32 where you can. NVFP4 has scales in\n"
        "separate tensors, which llama.cpp (August 2026) does not expect in DeltaNet and does\n"
        "not apply to gpt-oss's experts. For files that llama.cpp runs, choose another type for\n"
        "--dense of a Qwen3-Next, or --experts of a gpt-oss.\n"
        "\n"
        "Examples:\n"
        "  moe-quant model-bf16.gguf model-nvfp4.gguf --experts nvfp4 --dense q8_0 --head q8_0\n"
        "  moe-quant model.gguf small.gguf --experts q4_k --importance imatrix.gguf\n"
        "  moe-quant model.gguf out.gguf --experts mxfp4 --check book.txt\n"
        "  moe-quant model.gguf out.gguf --experts nvfp4 --dry-run",
};

/* ---- arguments ------------------------------------------------------------------------------- */

typedef struct type_values {
    quant_type experts, dense, head;
} type_values;

static bool read_type(const quant_type **out, quant_type *type, const char *flag, const char *name)
{
    char shown[64];
    if (!name) return true;
    if (quant_from_name(type, name) && quantise_can(*type)) {
        *out = type;
        return true;
    }
    console_error("--%s: '%s' is none of " TYPES, flag, ESC(shown, str_from(name)));
    return false;
}

/* ---- importance ------------------------------------------------------------------------------ */

/* Opens the file and checks that it has entries for this model. */
static int open_importance(quant_importance **out, const char *path, const quant_plan *p)
{
    int n_covered = 0;
    err_ctx err;
    if (quant_importance_open(out, path, &err) < 0) return console_fail(path, &err);
    for (int i = 0; i < p->n_item; i++) {
        if (p->items[i].fate != QUANT_REWRITE) continue;
        const int has = quant_importance_has(*out, p->items[i].from, &err);
        if (has < 0) return console_fail(path, &err);
        n_covered += has;
    }
    if (n_covered == 0) {
        console_error("%s: has no entry for the rewritten matrices: made for another model?", path);
        return 1;
    }
    if (n_covered < p->n_rewrite)
        console_note("%s: has %d of %d matrices; in the others all columns weigh the same", path,
                     n_covered, p->n_rewrite);
    return 0;
}

/* ---- steps ----------------------------------------------------------------------------------- */

typedef struct job {
    const settings *s;
    const char *from, *to;
    gguf *file;
    model *m;
    quant_plan plan;
    quant_importance *importance;
    quant_check check;
    quant_result result;
} job;

static int open_input(job *j, const quant_types *types)
{
    err_ctx err;
    int rc = gguf_open(&j->file, j->from, &err);
    if (rc == 0) rc = model_bind(&j->m, j->file, &err);
    if (rc == 0) rc = quant_plan_make(&j->plan, j->m, types, &err);
    if (rc < 0) return console_fail(j->from, &err);
    quant_result_expect(&j->result, &j->plan);
    return 0;
}

static int nothing_to_do(const job *j)
{
    int n[KEPT_REASONS] = { 0 };
    for (int u = 0; u < USE_COUNT; u++)
        for (int k = 0; k < KEPT_REASONS; k++) n[k] += j->plan.kept[u][k].n;
    console_error("%s: nothing to do: of the requested matrices, %d have the type already, and "
                  "%d have rows that do not fill its blocks", j->from, n[KEPT_SAME],
                  n[KEPT_COLUMNS] + n[KEPT_EMBEDDING]);
    return 1;
}

static int report(const job *j)
{
    quant_report r = { .from = j->from, .to = j->to, .plan = &j->plan, .result = &j->result,
                       .check = j->s->check && !j->s->dry_run ? &j->check : NULL,
                       .written = !j->s->dry_run, .weighted = j->importance != NULL };
    for (int i = 0; i < gguf_n_part(j->file); i++) r.old_bytes += gguf_part_bytes(j->file, i);
    return quant_report_print(&r, j->s->json);
}

static int write_file(job *j)
{
    bool at_output = false;
    pool *team;
    err_ctx err;
    int rc = pool_create(&team, (int)j->s->engine.threads, &err);
    if (rc == 0)
        rc = quant_file_write(&j->result, &at_output, j->to, &j->plan, j->importance, team, &err);
    pool_free(team);
    if (rc == ERR_STOPPED && interrupted()) {
        console_error("%s: interrupted, nothing was kept", j->to);
        return interrupt_exit_code();
    }
    return rc < 0 ? console_fail(at_output ? j->to : j->from, &err) : 0;
}

static int run(job *j, const quant_types *types)
{
    const settings *s = j->s;
    err_ctx err;
    int rc;
    if (output_file_check_new(j->to, &err) < 0) return console_fail(j->to, &err);
    if ((rc = open_input(j, types)) != 0) return rc;
    if (j->plan.n_rewrite == 0) return nothing_to_do(j);
    quant_report_kept(&j->plan);
    if (s->importance && (rc = open_importance(&j->importance, s->importance, &j->plan)) != 0)
        return rc;
    if (s->dry_run) return report(j);
    if (s->check && (rc = quant_check_begin(&j->check, s->check, j->from, &s->engine)) != 0)
        return rc;
    if ((rc = write_file(j)) != 0) return rc;
    if (s->check && (rc = quant_check_end(&j->check, j->to)) != 0) return rc;
    return report(j);
}

int cmd_quant(int argc, char **argv)
{
    settings s = { .experts = NULL };
    job j = { .s = &s };
    quant_types types = { NULL, NULL, NULL };
    const char *files[2];
    type_values t;

    engine_args_init(&s.engine);
    s.engine.kv = "f32";
    int rc = args_parse(&spec, &s, files, NULL, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if (!read_type(&types.experts, &t.experts, "experts", s.experts) ||
        !read_type(&types.dense, &t.dense, "dense", s.dense) ||
        !read_type(&types.head, &t.head, "head", s.head)) return 2;
    if (!types.experts && !types.dense && !types.head) {
        console_error("--experts TYPE missing: one of " TYPES " (usage: %s)", spec.usage);
        return 2;
    }
    j.from = files[0];
    j.to = files[1];
    interrupt_install();
    rc = run(&j, &types);
    quant_check_release(&j.check);
    quant_importance_close(j.importance);
    quant_plan_release(&j.plan);
    model_free(j.m);
    gguf_close(j.file);
    return rc;
}
