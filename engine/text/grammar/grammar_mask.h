/* grammar_mask.h - which tokens may come next in a text of a given form.
 *
 * A mask follows one text, token by token, and says for the place where it is which tokens can come
 * there: those all of whose bytes the grammar can go along with. A token that would go on after the
 * end of the form is not among them; one that ends within a character is, where the character may
 * stand. Special tokens never come, except those that end a turn where the text may end.
 *
 * Finding that out goes through the whole vocabulary, so it is remembered for the last places. All
 * memory is taken by grammar_mask_create. One thread at a time. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_MASK_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_MASK_H

#include "engine/text/grammar/grammar.h"
#include "engine/text/tokenizer/token_trie.h"

typedef struct grammar_mask grammar_mask;

/* Borrows g and v. n_vocab: of the logits; tokens that only one side knows never come. Fails if
 * memory runs out or the grammar is in too many places at once before the first byte. */
int grammar_mask_create(grammar_mask **out, const grammar *g, const token_trie *v, int n_vocab,
                        err_ctx *err);
void grammar_mask_free(grammar_mask *m); /* NULL is fine */
void grammar_mask_reset(grammar_mask *m);        /* back to the beginning; keeps what it knows */

/* Back to the beginning, after these bytes, which no token stands for: they choose one of several
 * texts of which the grammar is made. */
int grammar_mask_begin(grammar_mask *m, str_view key, err_ctx *err);

/* One bit for each token: bit id % 64 of word id / 64. Good until the next call. NULL, with *err
 * filled: the grammar's tables are too small for this place, or no token fits (neither happens with
 * a grammar that is not very ambiguous). */
const uint64_t *grammar_mask_bits(grammar_mask *m, err_ctx *err);

/* The token came. Fails with ERR_RANGE, and stays where it is, if it may not. A token that ends the
 * turn leaves the place as it is. */
int grammar_mask_accept(grammar_mask *m, int32_t id, err_ctx *err);

bool grammar_mask_may_end(const grammar_mask *m);

typedef struct grammar_mask_stats {
    uint64_t hits, made;                /* masks that were there; that were worked out */
    uint64_t forgot;                     /* times that the grammar's tables ran full */
} grammar_mask_stats;
grammar_mask_stats grammar_mask_counts(const grammar_mask *m);

#endif
