/* args_known.h - names of options that people know from llama.cpp.
 *
 * Some are other names for options here. Others have no meaning here: a message says what to do
 * instead, and nothing is guessed. */
#ifndef CLI_ARGS_KNOWN_H
#define CLI_ARGS_KNOWN_H

#include "cli/args.h"

/* Our name ("ctx") for a long name ("ctx-size"), both without dashes, and the type that ours must
 * have to count as a match; NULL: there is none. */
const char *args_known_alias(str_view name, arg_type *type);

/* The aliases one by one, for --help; NULL after the last. */
const char *args_known_alias_at(int i);

/* What to say about a flag as it was typed, dashes included ("-ngl", "--jinja"), or NULL. */
const char *args_known_foreign(const char *flag);

#endif
