/* args_known.h - names of options that people's fingers know from llama.cpp.
 *
 * Some are other names of options here. Others have no meaning here: they are answered with what to
 * do instead, not guessed at. */
#ifndef CLI_ARGS_KNOWN_H
#define CLI_ARGS_KNOWN_H

#include "cli/args.h"

/* Our name ("ctx") for a long name ("ctx-size"), both without dashes, and the type that ours
 * must have to be meant; NULL: there is none. */
const char *args_known_alias(str_view name, arg_type *type);

/* The aliases one by one, for --help; NULL after the last. */
const char *args_known_alias_at(int i);

/* What to say about a flag as it was typed, dashes included ("-ngl", "--jinja"), or NULL. */
const char *args_known_foreign(const char *flag);

#endif
