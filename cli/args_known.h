/* args_known.h - names of options and variables that people know from llama.cpp and its relatives.
 *
 * Some are other names for options here. Others have no meaning here: a message says what to do
 * instead, and nothing is guessed. */
#ifndef CLI_ARGS_KNOWN_H
#define CLI_ARGS_KNOWN_H

#include "cli/args.h"

typedef struct arg_alias {
    const char *name, *ours;             /* "ctx-size", "ctx": both without dashes */
    arg_type type;                       /* that ours must have to count as a match */
    const char *value;                   /* a flag, and this is the value of ours; or NULL */
    bool mib;                            /* counts in MiB, and -1 means auto */
} arg_alias;

/* NULL: there is none. */
const arg_alias *args_known_alias(str_view name);

/* The aliases one by one, for --help; NULL after the last. */
const arg_alias *args_known_alias_at(int i);

/* The value of a variable of ours, or of one that is known for it if ours is not set; NULL: none
 * is. *name is what the one that was found is called. */
const char *args_known_variable(const char **name, const char *ours);

/* What to say about a flag as it was typed, dashes included ("-ngl", "--jinja"), or NULL. */
const char *args_known_foreign(const char *flag);

#endif
