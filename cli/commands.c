/* commands.c - what both mains share: pick the verb, print help and version. */
#include "cli/commands.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/console.h"
#include "cuda/gpu.h"

#ifndef MOE_VERSION
#define MOE_VERSION "unknown"
#endif

static int print_help(const char *program, const char *about, const char *examples, const command *table,
                      int n_command)
{
    printf("Usage: %s VERB [options]\n%s\n", program, about);
    for (int i = 0; i < n_command; i++) printf("  %-11s %s\n", table[i].name, table[i].about);
    printf("\n%s VERB --help tells more about each.\n%s", program, examples);
    return console_finish();
}

static int print_version(const char *program)
{
    const int n = gpu_count();
    printf("%s %s, GPU support: %s", program, MOE_VERSION, gpu_backend());
    for (int i = 0; i < n; i++) {
        char vram[32];
        gpu_info info;
        err_ctx err;
        if (gpu_describe(&info, i, &err) < 0) printf("\n  %s", err.msg);
        else printf("\n  GPU %d: %s, sm_%d%d, %s", i, info.name, info.cc_major, info.cc_minor,
                    text_bytes(vram, sizeof vram, info.vram_total));
    }
    if (n == 0) printf(", no GPU found: CPU only");
    printf("\n");
    return console_finish();
}

int commands_main(const char *program, const char *about, const char *examples, const command *table,
                  int n_command, int argc, char **argv)
{
    console_init(program);
    signal(SIGPIPE, SIG_IGN);            /* a closed pipe is an error to report, not a death */
    if (argc < 2) {
        console_error("no verb given (%s --help lists them)", program);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
        return print_help(program, about, examples, table, n_command);
    if (!strcmp(argv[1], "--version")) return print_version(program);
    for (int i = 0; i < n_command; i++)
        if (!strcmp(argv[1], table[i].name)) return table[i].run(argc - 1, argv + 1);
    console_error("unknown verb '%s' (%s --help lists them)", argv[1], program);
    return 2;
}
