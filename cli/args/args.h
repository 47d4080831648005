/* args.h - one table per verb: options, variables, defaults, --help.
 *
 * Options override variables, which override defaults (the struct's values before the call). --help
 * is generated from the table. In all verbs, the value of an option "model" may be the first word
 * without a flag, and may be a name of models.txt (cli/model_name.h). Names of other programs'
 * options are in cli/args/args_known.h. */
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
    const char *name;                    /* long name without dashes; NULL: set by the variable
                                          * alone, not in --help */
    char letter;                         /* short name, or 0 */
    arg_type type;
    size_t offset;                       /* of the field in the options struct */
    const char *value;                   /* its name in --help; NULL for flags */
    const char *env;                     /* variable that sets it, or NULL */
    double lo, hi;                       /* for numbers; both 0: no limits */
    const char *help;
} arg_option;

/* Options that several verbs share. Their struct is a member of each verb's. */
typedef struct arg_group {
    const char *title;                   /* a line above in --help; NULL: continues the group
                                          * before it */
    const arg_option *options;
    int n_option;
    size_t offset;                       /* of the shared struct in the options struct */
} arg_group;

typedef struct arg_spec {
    const char *usage;                   /* "moe-run inspect FILE [options]" */
    const char *about;                   /* one or more lines */
    const arg_option *options;
    int n_option;
    int min_operands, max_operands;
    const char *operands;                /* their name in messages: "FILE"; "-": only a dash;
                                          * NULL if max_operands is 0 */
    const arg_group *groups;             /* after the verb's own options; may be NULL */
    int n_group;
    const char *epilogue;                /* lines at the end of --help, or NULL */
} arg_spec;

enum { ARGS_RUN = 0, ARGS_HELP = 1, ARGS_BAD = 2 };

/* Fills *into, operands[max_operands] and *n_operand. ARGS_HELP: help went to stdout, exit with
 * console_finish(). ARGS_BAD: one line went to stderr, exit with 2. "--" ends the options. */
int args_parse(const arg_spec *spec, void *into, const char **operands, int *n_operand, int argc,
               char **argv);

/* Whether a word in the place of a verb or operand is a model: it ends in .gguf, or names a file or
 * a downloaded model. */
bool arg_is_model(const char *word);

/* "512", "64K", "1.5G" to bytes; false for anything else. */
bool arg_parse_size(uint64_t *out, const char *text);

#endif
