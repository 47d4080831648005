/* bench_quant.c - moe-bench quant: decodes a file of raw blocks, and measures the decoder.
 *
 * The input is read in pieces of whole blocks, so its size does not matter. The output appears
 * under its name only when it is complete (cli/sink.h).
 * Values come from loader/quant.h; nothing is computed here. */
#include "cli/commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/args.h"
#include "cli/console.h"
#include "cli/sink.h"
#include "loader/quant.h"

/* Floats decoded at a time: a multiple of every block, and few enough (1 MiB) to stay in a cache,
 * so that the rate is the decoder's and not the memory's. */
enum { PIECE_VALUES = 1 << 18 };

typedef struct quant_options {
    bool list, json;
} quant_options;

static const arg_option options[] = {
    { "list", 'l', ARG_FLAG, offsetof(quant_options, list), NULL, NULL, 0, 0,
      "Show all types with their block sizes instead" },
    { "json", 0, ARG_FLAG, offsetof(quant_options, json), NULL, NULL, 0, 0,
      "With --list: one JSON object per row" },
};

static const arg_spec spec = {
    .usage = "moe-bench quant TYPE IN OUT | --list",
    .about = "Decodes a file of raw blocks to little-endian binary32 values and says how fast.\n"
             "IN and OUT are files, or - for standard input and output.",
    .options = options,
    .n_option = ARRAY_LEN(options),
    .min_operands = 0,
    .max_operands = 3,
    .operands = "TYPE IN OUT",
};

/* ---- --list -------------------------------------------------------------------------------- */

static int list_types(bool json)
{
    if (!json) printf("type       id  weights  bytes  bits/weight  decoder\n");
    for (uint32_t id = 0; id < QT_COUNT; id++) {
        const quant_traits *t = quant_traits_of(id);
        if (!t) continue;
        const double bits = 8.0 * t->block_bytes / t->block_elems;
        const char *decoder = t->decode ? "yes" : quant_is_storable(id) ? "no: not for weights"
                                                                        : "no: not in files";
        if (json)
            printf("{\"type\":\"%s\",\"id\":%" PRIu32 ",\"block_elems\":%d,\"block_bytes\":%d,"
                   "\"bits_per_weight\":%g,\"decoder\":%s}\n", t->name, id, t->block_elems,
                   t->block_bytes, bits, t->decode ? "true" : "false");
        else
            printf("%-8s %4" PRIu32 " %8d %6d %12g  %s\n", t->name, id, t->block_elems,
                   t->block_bytes, bits, decoder);
    }
    return console_finish();
}

static int unknown_type(const char *name)
{
    char known[512] = "", shown[64];
    size_t used = 0;
    for (uint32_t id = 0; id < QT_COUNT; id++) {
        const quant_traits *t = quant_traits_of(id);
        if (t && t->decode && used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, " %s", t->name);
    }
    console_error("no decoder for type '%s'; known types:%s", ESC(shown, str_from(name)), known);
    return 2;
}

/* ---- decoding ------------------------------------------------------------------------------ */

typedef struct quant_run {
    const quant_traits *traits;
    uint64_t n_blocks, decode_ns, total_ns;
} quant_run;

static int ragged(const quant_traits *t, uint64_t bytes, err_ctx *err)
{
    const uint64_t block = (uint64_t)t->block_bytes;
    return err_set(err, ERR_FORMAT, "%" PRIu64 " bytes are not a multiple of %d, the block of %s "
                   "(%" PRIu64 " blocks and %" PRIu64 " bytes)", bytes, t->block_bytes, t->name,
                   bytes / block, bytes % block);
}

/* Opens IN and, where its size is known beforehand, refuses a ragged one before any output. */
static int input_open(FILE **out, const char *path, const quant_traits *t, err_ctx *err)
{
    struct stat st;

    *out = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (!*out) return err_sys(err, "cannot open");
    if (*out != stdin && fstat(fileno(*out), &st) == 0 && S_ISREG(st.st_mode) &&
        st.st_size % t->block_bytes != 0) {
        fclose(*out);
        *out = NULL;
        return ragged(t, (uint64_t)st.st_size, err);
    }
    return 0;
}

/* Copies all blocks of in, decoded, to out. A failure sets *at_output if it is about out. */
static int decode_stream(quant_run *run, FILE *in, sink *out, bool *at_output, err_ctx *err)
{
    const quant_traits *t = run->traits;
    const size_t piece = PIECE_VALUES / (size_t)t->block_elems, block = (size_t)t->block_bytes;
    uint8_t *blocks = mem_array(piece, block);
    float *values = mem_array(PIECE_VALUES, sizeof *values);
    uint64_t bytes = 0;
    int rc = 0;

    if (!blocks || !values) rc = err_set(err, ERR_NOMEM, "out of memory for %zu blocks", piece);
    else memset(values, 0, PIECE_VALUES * sizeof *values);   /* page faults come before the clock */
    while (rc == 0) {
        const size_t got = fread(blocks, 1, piece * block, in), n = got / block;
        bytes += got;
        if (ferror(in)) {
            rc = err_sys(err, "cannot read");
        } else if (got % block != 0) {
            rc = ragged(t, bytes, err);  /* fread() stops short only at the end */
        } else if (n == 0) {
            break;
        } else {
            const uint64_t start = clock_ns();
            t->decode(values, blocks, n);
            run->decode_ns += clock_ns() - start;
            run->n_blocks += n;
            rc = sink_write(out, values, n * (size_t)t->block_elems * sizeof *values, err);
            *at_output = rc < 0;
        }
    }
    mem_free(blocks);
    mem_free(values);
    return rc;
}

static void report(const quant_run *run)
{
    const quant_traits *t = run->traits;
    const uint64_t values = run->n_blocks * (uint64_t)t->block_elems;
    const double ns = run->decode_ns ? (double)run->decode_ns : 1.0;     /* bytes per ns are GB/s */
    char blocks[32], count[32];

    console_note("%s: %s blocks, %s values, %.2f GB/s of blocks in, %.2f GB/s of floats out "
                 "(decoding %.1f ms, with files %.1f ms)", t->name,
                 text_count(blocks, sizeof blocks, run->n_blocks),
                 text_count(count, sizeof count, values),
                 (double)run->n_blocks * t->block_bytes / ns, (double)values * sizeof(float) / ns,
                 (double)run->decode_ns * 1e-6, (double)run->total_ns * 1e-6);
}

static int decode_file(quant_type type, const char *in_path, const char *out_path)
{
    quant_run run = { .traits = quant_traits_of(type) };
    const uint64_t start = clock_ns();
    bool at_output = false;
    sink out = { 0 };
    FILE *in;
    err_ctx err;
    int rc = input_open(&in, in_path, run.traits, &err);

    if (rc == 0) at_output = (rc = sink_open(&out, out_path, &err)) < 0;
    if (rc == 0) rc = decode_stream(&run, in, &out, &at_output, &err);
    if (rc == 0) at_output = (rc = sink_finish(&out, &err)) < 0;
    if (in && in != stdin) fclose(in);
    sink_drop(&out);
    run.total_ns = clock_ns() - start;
    if (rc < 0) {
        const char *from = strcmp(in_path, "-") == 0 ? "standard input" : in_path;
        return console_fail(at_output ? sink_name(out_path) : from, &err);
    }
    report(&run);
    return 0;
}

int cmd_bench_quant(int argc, char **argv)
{
    quant_options opt = { 0 };
    const char *operands[3] = { 0 };
    int n = 0;
    const int rc = args_parse(&spec, &opt, operands, &n, argc, argv);
    quant_type type;

    if (rc != ARGS_RUN) return rc == ARGS_HELP ? console_finish() : 2;
    if (opt.list ? n != 0 : n != 3) {
        console_error("quant takes TYPE IN OUT, or --list (usage: %s)", spec.usage);
        return 2;
    }
    if (opt.json && !opt.list) {
        console_error("--json goes with --list");
        return 2;
    }
    if (opt.list) return list_types(opt.json);
    if (!quant_from_name(&type, operands[0])) return unknown_type(operands[0]);
    return decode_file(type, operands[1], operands[2]);
}
