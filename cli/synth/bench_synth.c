/* bench_synth.c - moe-bench synth: writes a GGUF of a real model's shapes with random weights.
 *
 * Arguments, progress bar, interruption and report; synth.h does the work. */
#include "cli/commands.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/args/args.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/synth/synth.h"

typedef struct settings {
    const char *output, *experts, *dense, *head;
    int64_t layers, seed, threads;
    double skew;
    bool json;
} settings;

static const arg_option options[] = {
    { "output", 'o', ARG_TEXT, offsetof(settings, output), "FILE", NULL, 0, 0,
      "File to write; it must not exist. Written as FILE.part, then renamed" },
    { "layers", 0, ARG_INT, offsetof(settings, layers), "N", NULL, 1, 1024,
      "Write the first N layers only. Default: all" },
    { "experts", 0, ARG_TEXT, offsetof(settings, experts), "TYPE", NULL, 0, 0,
      "Type of the experts, e.g. Q4_K. Default: MXFP4 for gpt-oss, Q4_K for the others" },
    { "dense", 0, ARG_TEXT, offsetof(settings, dense), "TYPE", NULL, 0, 0,
      "Type of the other matrices. Default: Q8_0, Q4_K" },
    { "head", 0, ARG_TEXT, offsetof(settings, head), "TYPE", NULL, 0, 0,
      "Type of the output matrix. Default: Q8_0, Q6_K" },
    { "skew", 0, ARG_FLOAT, offsetof(settings, skew), "S", NULL, 0, 4,
      "Popularity of experts falls as 1 / rank^S, 0 to 4. Default: 0, all equal" },
    { "seed", 's', ARG_INT, offsetof(settings, seed), "N", NULL, 0, 9e15,
      "Seed of the weights, 0 or more. Default: 1" },
    { "threads", 't', ARG_THREADS, offsetof(settings, threads), "N", NULL, 0, 0,
      "Threads; the file does not depend on them. Default: all cores" },
    { "json", 0, ARG_FLAG, offsetof(settings, json), NULL, NULL, 0, 0,
      "Print the report as JSON" },
};

static const arg_spec spec = {
    .usage = "moe-bench synth SHAPE -o FILE [options]",
    .options = options, .n_option = ARRAY_LEN(options),
    .min_operands = 1, .max_operands = 1, .operands = "SHAPE",
};

/* "gpt-oss-20b, gpt-oss-120b, ...", with a newline after each `few` shapes. */
static const char *list_shapes(char *dst, size_t cap, int few)
{
    const synth_shape *s;
    size_t n = 0;
    for (int i = 0; (s = synth_shape_at(i)) && n < cap; i++)
        n += (size_t)snprintf(dst + n, cap - n, "%s%s",
                              i == 0 ? "" : few && i % few == 0 ? ",\n" : ", ", s->name);
    return dst;
}

static int parse(settings *s, const char **name, int argc, char **argv)
{
    char shapes[512], about[768];
    arg_spec whole = spec;
    snprintf(about, sizeof about,
             "Writes a GGUF file with the shapes of a real model and random weights: it loads and\n"
             "runs like the real one, and its answers are nonsense. SHAPE is one of\n%s.",
             list_shapes(shapes, sizeof shapes, 5));
    whole.about = about;
    return args_parse(&whole, s, name, NULL, argc, argv);
}

static bool on_progress(void *ctx, double done, double total)
{
    progress *bar = ctx;
    if (bar->total == 0) bar->total = total;
    progress_update(bar, done);
    return !interrupted();
}

static bool read_type(quant_type *out, const char *flag, const char *name)
{
    if (!name || quant_from_name(out, name)) return true;
    console_error("--%s: '%s' is not a type that weights can have", flag, name);
    return false;
}

static int print_report(const char *path, const synth_report *r, bool json)
{
    const double seconds = (double)r->ns * 1e-9, rate = (double)r->bytes / (double)r->ns;
    char bytes[32], shown[1024];
    json_t *row;

    console_note("%s: %s bytes, %d tensors, %.2f s, %.2f GB/s", path,
                 text_count(bytes, sizeof bytes, r->bytes), r->n_tensor, seconds, rate);
    if (!json) return console_finish();
    row = json_pack("{s:s, s:I, s:i, s:f, s:f}", "file", ESC(shown, str_from(path)),
                    "bytes", (json_int_t)r->bytes, "tensors", r->n_tensor,
                    "seconds", seconds, "gb_per_s", rate);
    return console_report(row, REPORT_FLAGS, " for the report") != 0 ? 1 : console_finish();
}

static int run(const settings *s, const synth_options *o)
{
    progress bar;
    synth_report report;
    err_ctx err;
    int rc;

    interrupt_install();
    progress_begin(&bar, "writing", 0);
    rc = synth_write(&report, s->output, o, (int)s->threads, on_progress, &bar, &err);
    progress_end(&bar);
    if (rc == 0) return print_report(s->output, &report, s->json);
    if (interrupted()) {
        console_error("%s: interrupted, no file is left", s->output);
        return interrupt_exit_code();
    }
    console_fail(s->output, &err);
    return rc == ERR_UNSUPPORTED || rc == ERR_RANGE ? 2 : 1;
}

int cmd_bench_synth(int argc, char **argv)
{
    settings s = { .seed = 1 };
    const char *name;
    const synth_shape *shape;
    synth_options o;
    int rc;

    rc = parse(&s, &name, argc, argv);
    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if (!(shape = synth_shape_find(name))) {
        char shapes[512];
        console_error("no shape '%s' (known: %s)", name, list_shapes(shapes, sizeof shapes, 0));
        return 2;
    }
    if (!s.output || !*s.output) {
        console_error("-o FILE missing (usage: %s)", spec.usage);
        return 2;
    }
    o = synth_options_of(shape);
    if (!read_type(&o.experts, "experts", s.experts) || !read_type(&o.dense, "dense", s.dense) ||
        !read_type(&o.head, "head", s.head)) return 2;
    if (s.layers) o.n_layer = (int)s.layers;
    if (o.n_layer < shape->interval)
        console_note("fewer than %d layers include no full attention: other programs may refuse "
                     "the file", shape->interval);
    o.skew = s.skew;
    o.seed = (uint64_t)s.seed;
    return run(&s, &o);
}
