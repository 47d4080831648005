/* commands.h - the verbs of the programs. Each parses its own arguments (argv[0] is the verb) and
 * returns the exit code: 0 done, 1 failed, 2 bad usage, 130 interrupted. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include <stdbool.h>

/* moe-run */
int cmd_run(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_render(int argc, char **argv);
int cmd_models(int argc, char **argv);
int cmd_serve(int argc, char **argv);            /* and moe-serve */
int cmd_pull(int argc, char **argv);

/* moe-bench */
int cmd_bench_batch(int argc, char **argv);
int cmd_bench_decode(int argc, char **argv);
int cmd_bench_gemm(int argc, char **argv);
int cmd_bench_logits(int argc, char **argv);
int cmd_bench_kernels(int argc, char **argv);
int cmd_bench_machine(int argc, char **argv);
int cmd_bench_synth(int argc, char **argv);
int cmd_bench_tiers(int argc, char **argv);

/* moe-quant has no verbs: its arguments are these. */
int cmd_quant(int argc, char **argv);

/* The table a program's main dispatches on; --help prints it. */
typedef struct command {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} command;

/* Runs the verb argv[1] names, or prints help, version or a usage error. A verb named "run" may be
 * left out: options alone, or a model followed by options, go to it. */
int commands_main(const char *program, const char *about, const char *examples,
                  const command *table, int n_command, int argc, char **argv);

/* For a program without verbs: what commands_main does first. 0, or 2 after an error line. */
int commands_begin(const char *program);
bool commands_asks_version(int argc, char **argv);       /* -V, --version */
int commands_version(const char *program);               /* prints it; the exit code */
const char *commands_version_text(void);

#endif
