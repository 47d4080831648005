/* args_known.h - options and variables of llama.cpp and its forks.
 *
 * An alias is another name for an option of ours. A foreign option has no counterpart: it is
 * ignored with a note if that changes no answer, else refused with advice. */
#ifndef CLI_ARGS_ARGS_KNOWN_H
#define CLI_ARGS_ARGS_KNOWN_H

#include "cli/args/args.h"

typedef struct arg_alias {
    const char *name, *ours;             /* "ctx-size", "ctx": both without dashes */
    arg_type type;                       /* that ours must have */
    bool mib;                            /* a number of MiB; -1: auto */
    bool one_dash;                       /* -sys, not --sys */
} arg_alias;

/* NULL: none. */
const arg_alias *args_known_alias(str_view name);

/* Alias i; NULL after the last. */
const arg_alias *args_known_alias_at(int i);

/* The value of our variable, else of the first of its aliases that is set, else NULL. *name is the
 * variable that was found. */
const char *args_known_variable(const char **name, const char *ours);

typedef enum foreign_kind {
    FOREIGN_REFUSED,
    FOREIGN_ALONE, FOREIGN_VALUE,        /* ignored, alone or with its value */
    FOREIGN_SWITCH                       /* a value follows if it is on, off, auto, 0 or 1 */
} foreign_kind;

typedef struct arg_foreign {
    foreign_kind kind;
    const char *flags;                   /* a blank before and after each */
    const char *advice;                  /* why it is ignored, or what to use instead */
} arg_foreign;

/* For a flag as typed, with its dashes ("-ngl", "--jinja"), or NULL. */
const arg_foreign *args_known_foreign(const char *flag);

/* Whether word is the value of such a flag. */
bool args_known_is_value(const arg_foreign *f, const char *flag, const char *word);

#endif
