/* form_args.h - options that restrict an answer to a JSON schema or a grammar.
 *
 * Put a form_args into the verb's options and form_options into its groups. Call form_args_read
 * before the model is opened and form_mask after it. */
#ifndef CLI_ARGS_FORM_ARGS_H
#define CLI_ARGS_FORM_ARGS_H

#include "cli/args/args.h"
#include "engine/text/grammar/grammar_mask.h"

typedef struct form_args { const char *schema, *grammar; } form_args;

enum { FORM_N_OPTION = 2 };
extern const arg_option form_options[FORM_N_OPTION];

/* The grammar, or NULL without one; the caller frees it. 0, or 2, the exit code, after one line on
 * stderr. */
int form_args_read(grammar **out, const form_args *a);

/* Tries of the vocabulary, made on first use and kept for later answers, because making one takes
 * time. Zero-initialise. */
typedef struct form_tries { token_trie *of[2]; } form_tries;

/* Makes the trie that g needs unless it exists; g may be NULL. Borrows tok. */
int form_tries_make(form_tries *t, const grammar *g, const tokenizer *tok, err_ctx *err);
void form_tries_release(form_tries *t);

/* The mask of an answer, or NULL without a grammar. form_tries_make must have been called. Borrows
 * t and g. */
int form_mask(grammar_mask **out, const form_tries *t, const grammar *g, int n_vocab, err_ctx *err);

#endif
