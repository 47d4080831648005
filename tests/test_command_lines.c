/* test_command_lines.c - what the programs answer to a command line, and what memory options set.
 *
 * A row of cases/command_lines.txt runs main() in a child that has the files of make_files() in its
 * folder, no GPU, and a cache with speeds alone. A code other than 0 also means: nothing on stdout,
 * and one line on stderr that is an error. A row of cases/tier_options.txt is parsed alone. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/args/engine_args.h"
#include "cli/args/tier_args.h"
#include "tests/case_file.h"

int run_main(int argc, char **argv);
int bench_main(int argc, char **argv);
int quant_main(int argc, char **argv);
#define main run_main
#define ops_table run_verbs
#include "cli/moe_run.c"
#undef main
#undef ops_table
#define main bench_main
#define ops_table bench_verbs
#include "cli/moe_bench.c"
#undef main
#undef ops_table
#define main quant_main
#include "cli/moe_quant.c"
#undef main

enum { MOST_WORDS = 40, MOST_SAID = 1 << 16, MOST_OPTIONS = 45 };
static char folder[256];

static void put(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(name, "wb");
    CHECK_MSG(f && fwrite(data, 1, n, f) == n && fclose(f) == 0, "cannot write %s", name);
}

static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

/* A name in the folder for a file of the tree, or of the folder that the build has unpacked. */
static void link_to(const char *root, const char *file, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s%s%s", file[0] == '/' ? "" : root, file[0] == '/' ? "" : "/",
             file);
    CHECK_MSG(symlink(path, name) == 0, "cannot link %s", name);
}

static bool make_files(void)
{
    char root[512], unpacked[700], path[900];
    size_t n;
    if (!CHECK(getcwd(root, sizeof root)) || !CHECK(mkdtemp(test_temp(folder, sizeof folder))))
        return false;
    snprintf(unpacked, sizeof unpacked, "%s", test_unpacked());
    uint8_t *bytes = test_read_file("tests/models/demo-qwen3next-mtp.gguf", &n);
    if (!bytes || !CHECK(chdir(folder) == 0)) return false;
    link_to(root, "tests/models/demo-qwen3next-mtp.gguf", "qwen.gguf");
    link_to(root, "tests/models/demo-gptoss-MXFP4.gguf", "gptoss.gguf");
    link_to(root, "LICENSE", "LICENSE");
    link_to(root, "models.txt", "models.txt");
    link_to(root, unpacked, "golden");
    snprintf(path, sizeof path, "%s/models/tiny-qwen3next-f32.gguf", unpacked);
    link_to(root, path, "tiny.gguf");
    snprintf(path, sizeof path, "%s/models/tiny-gptoss-f32.gguf", unpacked);
    link_to(root, path, "tinyoss.gguf");
    put("head.gguf", bytes, 100000);
    put("cut.gguf", bytes, n - 1000);
    mem_free(bytes);
    if (CHECK(mkdir("cache", 0700) == 0 && mkdir("cache/moe", 0700) == 0))
        link_to(root, "tests/golden/speeds.json", "cache/moe/speeds.json");   /* nothing measures */
    put_text("page.gguf", "<!DOCTYPE html><html>page not found</html>");
    put_text("five.gguf", "GGUF\001");
    put_text("empty.gguf", "");
    put_text("empty.txt", "");
    put_text("latin.txt", "caf\351");
    put_text("req.json", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi <|im_end|>\"}]}");
    put_text(
        "call.json",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"tool_calls\":"
        "[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":0.1,\"y\":[1e-5,2]}}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"ok\"}]}");
    put_text("half.json", "{\"a\":\n");
    put_text("bare.json", "{\"messages\":[{\"content\":\"Hi\"}]}");
    put_text("not.json", "{\"properties\": {\"a\": {\"not\": {}}}}");
    put_text("yes.gbnf", "root ::= \"yes\" | \"no\"\n");
    put_text("left.gbnf", "root ::= root \"x\"\n");
    put_text("open.gbnf", "root ::= \"yes\" |\n  (no\n");
    return true;
}

/* line is cut up; words[] ends with NULL. */
static int split(char **words, char *line)
{
    int n = 0;
    for (char *p = line; *p && n < MOST_WORDS;) {
        char end = ' ';
        if (*p == '\'') end = *p++;
        words[n++] = p;
        p += strcspn(p, end == ' ' ? " " : "'");
        if (*p) *p++ = '\0';
        if (end != ' ' && *p == ' ') p++;
    }
    words[n] = NULL;
    return n;
}

static _Noreturn void run_child(const char *words)
{
    static char line[1024];
    char *argv[MOST_WORDS + 1];
    snprintf(line, sizeof line, "%s", words);
    int n = split(argv, line), first = 0, rc = 99;
    for (; first < n && strchr(argv[first], '='); first++) putenv(argv[first]);
    if (freopen("/dev/null", "r", stdin) && freopen("out", "w", stdout) &&
        freopen("err", "w", stderr)) {
        const char *program = argv[first];
        n -= first;
        if (!strcmp(program, "run")) rc = run_main(n, argv + first);
        else if (!strcmp(program, "bench")) rc = bench_main(n, argv + first);
        else if (!strcmp(program, "quant")) rc = quant_main(n, argv + first);
        fflush(NULL);
    }
    _exit(rc);
}

static const char *read_said(char *text, const char *name)
{
    FILE *f = fopen(name, "rb");
    const size_t n = f ? fread(text, 1, MOST_SAID - 1, f) : 0;
    if (f) fclose(f);
    text[n] = '\0';
    return text;
}

static bool is_one_error(const char *err)
{
    const char *end = strchr(err, '\n');
    return !strncmp(err, "moe-", 4) && strstr(err, ": error: ") && end && end[1] == '\0';
}

/* Lines of --help that describe an option: "  -m, --model FILE ..." or "      --kv TYPE ...". */
static int count_options(const char *text)
{
    int n = 0;
    for (const char *p = text; p; p = strchr(p, '\n'), p += p != NULL) {
        const size_t at = strspn(p, " ");
        const bool letter = at == 2 && p[2] == '-' && p[3] != '-' && !strncmp(p + 4, ", --", 4);
        n += letter || (at == 6 && p[6] == '-' && p[7] == '-');
    }
    return n;
}

static void test_rows(const case_rows *rows)
{
    static char out[MOST_SAID], err[MOST_SAID];
    for (int i = 0; i < rows->n; i++) {
        const int want = atoi(rows->cells[i][0]);
        const char *words = rows->cells[i][1], *text = rows->cells[i][2];
        int status = -1;
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) run_child(words);
        if (!CHECK(child > 0 && waitpid(child, &status, 0) == child)) return;
        read_said(out, "out");
        read_said(err, "err");
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        CHECK_MSG(count_options(out) <= MOST_OPTIONS, "%s: %d options", words, count_options(out));
        test_check(code == want && (strstr(out, text) || strstr(err, text)) &&
                       (code == 0 || (out[0] == '\0' && is_one_error(err))),
                   "row", i, "%s: exit code %d instead of %d, or no '%s': %.300s", words, code,
                   want, text, err);
    }
}

/* ---- what options of memory set -------------------------------------------------------------- */

typedef struct options {
    tier_args tiers;
    engine_args engine;
} options;

static const arg_group groups[] = {
    { "Memory:", tier_options, TIER_N_OPTION, offsetof(options, tiers) },
    { "Model:", engine_arg_options, ENGINE_N_OPTION, offsetof(options, engine) },
};
static const arg_spec spec = { .usage = "moe-test verb", .operands = "", .groups = groups,
                               .n_group = ARRAY_LEN(groups) };

/* The settings that are not the defaults, as in tier_options.txt. */
static void describe(char *text, size_t cap, const placement_options *o, int64_t threads)
{
    const postfetch_options *p = &o->post;
    const plan_wish *w = &o->wish;
    const struct { const char *name; uint64_t value; int shift; } numbers[] = {
        { "hot", w->hot_most, 20 }, { "vram", w->vram, 20 }, { "ram", w->ram, 20 },
        { "prefill", o->prefill_m ? (uint64_t)o->prefill_m : UINT64_MAX, 0 },
        { "prompts", w->strategy_wanted ? (uint64_t)w->strategy : UINT64_MAX, 0 },
        { "transfers", p->max_transfers ? (uint64_t)p->max_transfers : UINT64_MAX, 0 },
        { "pad", p->pad_bytes ? p->pad_bytes : UINT64_MAX, 20 },
        { "threads", threads ? (uint64_t)threads : UINT64_MAX, 0 },
    };
    const struct { const char *name; bool on; } flags[] = {
        { "no_hot", w->no_hot }, { "banks", w->whole_banks }, { "off", p->off && w->no_postfetch },
        { "half_off", p->off != w->no_postfetch }, { "always", p->always },
        { "force_cpu", p->force_cpu }, { "block", p->block }, { "one_stream", p->one_stream },
        { "debug", p->debug }, { "no_prediction", p->no_prediction },
        { "prediction", p->prediction_always },
    };
    size_t n = 0;
    text[0] = '\0';
    if (o->cache != CACHE_FADE)
        n += (size_t)snprintf(text, cap, " cache=%s", cache_policy_name(o->cache));
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        if (flags[i].on) n += (size_t)snprintf(text + n, cap - n, " %s", flags[i].name);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        if (numbers[i].value != UINT64_MAX)
            n += (size_t)snprintf(text + n, cap - n, " %s=%llu%s", numbers[i].name,
                                  (unsigned long long)(numbers[i].value >> numbers[i].shift),
                                  numbers[i].shift ? "M" : "");
}

static void test_options(const case_rows *rows)
{
    for (int i = 0; i < rows->n; i++) {
        char *const *cells = rows->cells[i];
        char line[1024], *words[MOST_WORDS + 1], *name = words[0], got[512];
        options o = { 0 };
        placement_options placed = { 0 };
        snprintf(line, sizeof line, "verb %s", cells[0]);
        const int n = split(words, line);
        int first = 1;
        for (; first < n && words[first][0] != '-'; first++) {
            char *value = strchr(words[first], '=');
            *value = '\0';
            setenv(words[first], value + 1, 1);
        }
        engine_args_init(&o.engine);
        tier_args_init(&o.tiers);
        words[first - 1] = name = words[0];
        const bool read = args_parse(&spec, &o, NULL, NULL, n - first + 1, words + first - 1) ==
                              ARGS_RUN && tier_args_read(&placed, &o.tiers) == 0;
        describe(got, sizeof got, &placed, o.engine.threads);
        test_check(read && !strcmp(got + (got[0] == ' '), cells[1]), "option", i,
                   "%s: '%s' instead of '%s'; %s", cells[0], got, cells[1], cells[2]);
        snprintf(line, sizeof line, "verb %s", cells[0]);
        split(words, line);
        for (int k = 1; k < first; k++) {
            *strchr(words[k], '=') = '\0';
            unsetenv(words[k]);
        }
    }
}

int main(int argc, char **argv)
{
    static case_rows rows, settings;
    test_begin("command_lines", argc, argv);
    setenv("MOE_DEVICE", "cpu", 1);
    if (case_rows_read(&settings, "tier_options.txt")) test_options(&settings);
    if (case_rows_read(&rows, "command_lines.txt") && make_files()) {
        char path[512];
        setenv("HOME", folder, 1);
        setenv("XDG_CACHE_HOME", test_path(path, sizeof path, "%s/cache", folder), 1);
        setenv("XDG_STATE_HOME", test_path(path, sizeof path, "%s/state", folder), 1);
        test_rows(&rows);
        test_remove(folder);
    }
    case_rows_free(&rows);
    case_rows_free(&settings);
    return test_end();
}
