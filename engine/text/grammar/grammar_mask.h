/* grammar_mask.h - which tokens may come next in a text that obeys a grammar.
 *
 * A mask follows one text, token by token. A token is allowed if the grammar accepts all its bytes:
 * it must not continue after the end of the text, but it may end inside an allowed character. Of
 * the special tokens only stops are allowed, where the text may end.
 *
 * Computing a mask visits the whole vocabulary, so masks of recent states are cached. All memory is
 * allocated by grammar_mask_create. Not thread-safe. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_MASK_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_MASK_H

#include "engine/text/grammar/grammar.h"
#include "engine/text/tokenizer/token_trie.h"

typedef struct grammar_mask grammar_mask;

/* Borrows g and v. n_vocab is the number of logits; tokens beyond it or beyond v are never allowed.
 * Fails if out of memory, or if the grammar has too many positions before the first byte. */
int grammar_mask_create(grammar_mask **out, const grammar *g, const token_trie *v, int n_vocab,
                        err_ctx *err);
void grammar_mask_free(grammar_mask *m); /* NULL is fine */
void grammar_mask_reset(grammar_mask *m);        /* restarts the text; the cache stays */

/* Restarts the text after the bytes of key, which are not part of it: they select one of the
 * grammar's parts. */
int grammar_mask_begin(grammar_mask *m, str_view key, err_ctx *err);

/* Returns one bit for each token, bit id % 64 of word id / 64, valid until the next call. Returns
 * NULL with *err filled if the grammar's tables are too small for this state, or if no token is
 * allowed; both happen only with very ambiguous grammars. */
const uint64_t *grammar_mask_bits(grammar_mask *m, err_ctx *err);

/* Writes up to `most` tokens that spell the bytes to come, as far as the grammar leaves no choice
 * of bytes, each the longest that fits. Other tokens may spell them, too, so these are guesses.
 * Returns their number. */
int grammar_mask_forced(grammar_mask *m, int32_t *out, int most);

/* Advances by a token. Returns ERR_RANGE without advancing if the token is not allowed. An allowed
 * stop does not advance. */
int grammar_mask_accept(grammar_mask *m, int32_t id, err_ctx *err);

/* Takes back the last n accepted tokens: n is at most GRAMMAR_MASK_BACK, and at most the number
 * accepted since the text began. */
enum { GRAMMAR_MASK_BACK = 8 };
void grammar_mask_back(grammar_mask *m, int n);

bool grammar_mask_may_end(const grammar_mask *m);

#endif
