/* args.h - one table per verb: flags, environment, defaults, --help.
 *
 * Flags beat environment beats defaults (whatever the struct held before). --help is generated from
 * the table, so it cannot lie. Three things hold for all verbs: an option "model" may be given
 * without its flag, as the first word; its value may be a name from models.txt, which is replaced
 * by the file's path (cli/model_name.h); and some names that people know from other programs stand
 * for ours (cli/args/args_known.h). */
#ifndef CLI_ARGS_ARGS_H
#define CLI_ARGS_ARGS_H

#include "loader/base.h"

typedef enum arg_type {
    ARG_FLAG,                            /* bool: set true */
    ARG_INT,                             /* int64_t within lo..hi */
    ARG_THREADS,                         /* int64_t from 1 to pool_most_threads() */
    ARG_FLOAT,                           /* double within lo..hi */
    ARG_SIZE,                            /* uint64_t bytes: 512, 64K, 1.5G (powers of 1024) */
    ARG_SIZE_OR_AUTO,                    /* the same; UINT64_MAX for "auto" */
    ARG_TEXT,                            /* const char *, points into argv or the environment */
    ARG_NEEDED_TEXT,                     /* the same, and must be given; has a letter */
    ARG_TEXTS                            /* arg_texts: may be given several times */
} arg_type;

enum { ARG_TEXTS_MAX = 64 };
typedef struct arg_texts {
    const char *text[ARG_TEXTS_MAX];     /* in the order given */
    int n;
} arg_texts;

typedef struct arg_option {
    const char *name;                    /* long name without dashes; NULL: only the variable sets
                                          * it, and --help does not show it */
    char letter;                         /* short name, or 0 */
    arg_type type;
    size_t offset;                       /* of the field in the options struct */
    const char *value;                   /* what --help calls the value; NULL for flags */
    const char *env;                     /* variable that sets it, or NULL */
    double lo, hi;                       /* for numbers; both 0: no limits */
    const char *help;
} arg_option;

/* Options that several verbs share, with a struct of their own inside each verb's. */
typedef struct arg_group {
    const char *title;                   /* a line above them in --help; NULL: they belong to the
                                          * group before */
    const arg_option *options;
    int n_option;
    size_t offset;                       /* of the shared struct in the options struct */
} arg_group;

typedef struct arg_spec {
    const char *usage;                   /* "moe-run inspect FILE [options]" */
    const char *about;                   /* one or more lines under it */
    const arg_option *options;
    int n_option;
    int min_operands, max_operands;
    const char *operands;                /* what a message calls them: "FILE"; "-": nothing else */
    const arg_group *groups;             /* after the verb's own options; may be NULL */
    int n_group;
    const char *epilogue;                /* lines at the end of --help, or NULL */
} arg_spec;

enum { ARGS_RUN = 0, ARGS_HELP = 1, ARGS_BAD = 2 };

/* Fills *into and operands[] (room for max_operands; *n_operand is how many came). ARGS_HELP: help
 * went to stdout, exit with console_finish(). ARGS_BAD: one line went to stderr, exit 2. "--" ends
 * the options. */
int args_parse(const arg_spec *spec, void *into, const char **operands, int *n_operand, int argc,
               char **argv);

/* Whether a word that stands where a verb or an operand would must mean a model: it ends in .gguf,
 * or is the name of a file or of a model that was downloaded. */
bool arg_is_model(const char *word);

/* "512", "64K", "1.5G" to bytes; false for anything else. */
bool arg_parse_size(uint64_t *out, const char *text);

#endif
