/* args_known.h - names of options and variables that people know from llama.cpp and its relatives.
 *
 * Some are other names for options here. Others have no meaning here: they are left out with a note
 * where that changes no answer; else a message says what to do instead, and nothing is guessed. */
#ifndef CLI_ARGS_ARGS_KNOWN_H
#define CLI_ARGS_ARGS_KNOWN_H

#include "cli/args/args.h"

typedef struct arg_alias {
    const char *name, *ours;             /* "ctx-size", "ctx": both without dashes */
    arg_type type;                       /* that ours must have to count as a match */
    bool mib;                            /* counts in MiB, and -1 means auto */
    bool one_dash;                       /* typed as -sys, not as --sys */
} arg_alias;

/* NULL: there is none. */
const arg_alias *args_known_alias(str_view name);

/* The aliases one by one, for --help; NULL after the last. */
const arg_alias *args_known_alias_at(int i);

/* The value of a variable of ours, or of one that is known for it if ours is not set; NULL: none
 * is. *name is what the one that was found is called. */
const char *args_known_variable(const char **name, const char *ours);

/* Flags that are no options here. */
typedef enum foreign_kind {
    FOREIGN_REFUSED,
    FOREIGN_ALONE, FOREIGN_VALUE,        /* left out, alone or with the value that follows */
    FOREIGN_SWITCH                       /* a value follows if it is on, off, auto, 0 or 1 */
} foreign_kind;

typedef struct arg_foreign {
    foreign_kind kind;
    const char *flags;                   /* with a blank before and after each */
    const char *advice;                  /* why it is left out, or what to do instead */
} arg_foreign;

/* Of a flag as it was typed, dashes included ("-ngl", "--jinja"), or NULL. */
const arg_foreign *args_known_foreign(const char *flag);

/* Whether the word after such a flag belongs to it. */
bool args_known_is_value(const arg_foreign *f, const char *flag, const char *word);

#endif
