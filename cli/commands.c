/* commands.c - what the mains share: pick the verb, print help and version. */
#include "cli/commands.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/args/args.h"
#include "cli/args/nearest_word.h"
#include "cli/console.h"
#include "cli/output_file.h"
#include "cuda/gpu.h"
#include "loader/sigbus_guard.h"
#include "tiers/fault_injection.h"
#include "tiers/machine.h"

#ifndef MOE_VERSION
#define MOE_VERSION "unknown"
#endif

static const command *find_verb(const command *table, int n_command, const char *name)
{
    for (int i = 0; i < n_command; i++)
        if (!strcmp(name, table[i].name)) return &table[i];
    return NULL;
}

static int print_help(const char *program, const char *about, const char *examples,
                      const command *table, int n_command)
{
    printf("Usage: %s %s [options]\n%s\n", program,
           find_verb(table, n_command, "run") ? "[VERB]" : "VERB", about);
    for (int i = 0; i < n_command; i++) printf("  %-11s %s\n", table[i].name, table[i].about);
    printf("\n%s VERB --help describes a verb; -V, --version prints version and machine.\n%s",
           program, examples);
    return console_finish();
}

const char *commands_version_text(void) { return MOE_VERSION; }

int commands_version(const char *program)
{
    char total[32], available[32], vram[32];
    machine m;
    err_ctx err;

    printf("%s %s, GPU support: %s\n", program, MOE_VERSION, gpu_backend());
    if (machine_probe(&m, &err) < 0) printf("  memory unknown: %s\n", err.msg);
    else printf("  %d cores, %s RAM, %s available\n", m.n_core,
                text_bytes(total, sizeof total, m.ram_total),
                text_bytes(available, sizeof available, m.ram_available));
    for (int i = 0; i < m.n_gpu; i++)
        printf("  GPU %d: %s, sm_%d%d, %s%s\n", i, m.gpus[i].name, m.gpus[i].cc_major,
               m.gpus[i].cc_minor, text_bytes(vram, sizeof vram, m.gpus[i].vram_total),
               m.gpus[i].watchdog ? ", display watchdog" : "");
    if (m.n_gpu == 0) printf("  no GPU: CPU only\n");
    return console_finish();
}

static void on_lost_file(const char *path)
{
    output_file_abandon();
    console_lost_file(path);
}

/* Opens closed standard streams, because the next file would take their numbers. Reading and
 * writing still fail. */
static void fill_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
}

int commands_begin(const char *program)
{
    fill_closed_streams();
    console_init(program);
    log_set_sink(console_note_line, NULL);
    sigbus_guard_install(on_lost_file);
    signal(SIGXFSZ, SIG_IGN);            /* write() reports a file that grows too long */
    if (!getenv("MOE_FAULT") || fault_arm_text(getenv("MOE_FAULT"))) return 0;    /* for tests */
    console_error("MOE_FAULT: unknown fault");
    return 2;
}

bool commands_asks_version(int argc, char **argv)
{
    return argc > 1 && (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V"));
}

static void unknown_verb(const char *program, const command *table, int n_command, const char *name)
{
    nearest_word n = nearest_word_begin(str_from(name));
    for (int i = 0; i < n_command; i++) nearest_word_try(&n, table[i].name);
    if (n.best)
        console_error("unknown verb '%s': did you mean %s? (%s --help lists the verbs)", name,
                      n.best, program);
    else
        console_error("unknown verb '%s'%s (%s --help lists the verbs)", name,
                      find_verb(table, n_command, "run") ? ": a prompt follows -p" : "", program);
}

int commands_main(const char *program, const char *about, const char *examples,
                  const command *table, int n_command, int argc, char **argv)
{
    static char help_flag[] = "--help";
    const command *standard = find_verb(table, n_command, "run"), *verb;
    if (commands_begin(program) != 0) return 2;
    if (argc < 2) {
        console_error("no verb %sgiven (%s --help lists the verbs)",
                      standard ? "and no prompt " : "", program);
        return 2;
    }
    const bool help = !strcmp(argv[1], "help");
    if (help && argc > 2) {              /* "help inspect": "inspect --help" */
        argv[1] = argv[2];
        argv[2] = help_flag;
    } else if (help || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        return print_help(program, about, examples, table, n_command);
    }
    if (commands_asks_version(argc, argv)) return commands_version(program);
    if ((verb = find_verb(table, n_command, argv[1]))) return verb->run(argc - 1, argv + 1);
    const bool model = argv[1][0] != '-' && arg_is_model(argv[1]);
    if ((argv[1][0] == '-' || model) && standard) return standard->run(argc, argv);
    if (argv[1][0] == '-') {
        console_error("a verb must come before %s (%s --help lists them)", argv[1], program);
        return 2;
    }
    if (model)
        console_error("a verb must come before the model: %s %s %s (%s --help lists them)", program,
                      table[0].name, argv[1], program);
    else
        unknown_verb(program, table, n_command, argv[1]);
    return 2;
}
