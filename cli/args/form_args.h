/* form_args.h - the flags that give an answer a form: a JSON schema or a grammar.
 *
 * Put a form_args into the verb's options, add { "Form of the answer:", form_options,
 * FORM_N_OPTION, offsetof(..., form) } to its groups, call form_args_read before a model is opened
 * and form_mask once there is one. */
#ifndef CLI_ARGS_FORM_ARGS_H
#define CLI_ARGS_FORM_ARGS_H

#include "cli/args/args.h"
#include "engine/text/grammar/grammar_mask.h"

typedef struct form_args { const char *schema, *grammar; } form_args;

enum { FORM_N_OPTION = 2 };
extern const arg_option form_options[FORM_N_OPTION];

/* The form that was asked for, or NULL. 0, or the exit code after one line on stderr: 2. The caller
 * frees *out. */
int form_args_read(grammar **out, const form_args *a);

/* The vocabulary as forms read it, made when it is first needed: it takes a while, so whoever has
 * many answers keeps it. Begins zeroed. */
typedef struct form_tries { token_trie *of[2]; } form_tries;

/* What g needs, if it is not there already; g may be NULL. Borrows tok. */
int form_tries_make(form_tries *t, const grammar *g, const tokenizer *tok, err_ctx *err);
void form_tries_release(form_tries *t);

/* What an answer is held to, or NULL without a form; what it needs has been made. Borrows both. */
int form_mask(grammar_mask **out, const form_tries *t, const grammar *g, int n_vocab, err_ctx *err);

#endif
