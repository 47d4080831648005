/* form_args.h - the flags that give an answer a form: a JSON schema or a grammar.
 *
 * Put a form_args into the verb's options, add { "Form of the answer:", form_options,
 * FORM_N_OPTION, offsetof(..., form) } to its groups, call form_args_read before a model is opened
 * and form_open once there is one. */
#ifndef CLI_FORM_ARGS_H
#define CLI_FORM_ARGS_H

#include "cli/args.h"
#include "engine/text/grammar_mask.h"

typedef struct form_args { const char *schema, *grammar; } form_args;

enum { FORM_N_OPTION = 2 };
extern const arg_option form_options[FORM_N_OPTION];

/* The form that was asked for, or NULL. 0, or the exit code after one line on stderr: 2. The caller
 * frees *out. */
int form_args_read(grammar **out, const form_args *a);

/* What an answer is held to. */
typedef struct form {
    token_trie *trie;
    grammar_mask *mask;                  /* NULL: no form */
} form;

/* Borrows g, which may be NULL, and tok. 0, or < 0 with err filled and *out empty. */
int form_open(form *out, const grammar *g, const tokenizer *tok, int n_vocab, err_ctx *err);
void form_close(form *f);                /* accepts a zeroed one */

#endif
