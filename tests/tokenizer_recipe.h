/* tokenizer_recipe.h - files with a small vocabulary, in words, for tests of tokenizers.
 *
 * A recipe is a model, gpt2, llama or gemma4, then words. Its vocabulary is the 256 bytes, of which
 * id and byte are equal for gpt2; for the others they follow 0 <unk>, 1 <s>, 2 </s>. Words:
 *
 *   +TEXT:TYPE:SCORE     one more token, "~" for a space; type 1 and score 0 if not given
 *   =LEFT~RIGHT          one more merge
 *   -KEY                 model, pre, tokens, token_type, scores or merges is not written
 *   KEY=VALUE            pre, bos, eos; byte: the text of byte 0x41; space=0, add_bos=0;
 *                        more_types, more_scores: entries beyond the tokens;
 *                        types, scores, tokens: the type of the elements, which are then numbers */
#ifndef TESTS_TOKENIZER_RECIPE_H
#define TESTS_TOKENIZER_RECIPE_H

#include "engine/text/tokenizer/tokenizer.h"
#include "loader/gguf_write.h"

gguf_writer *tokenizer_recipe(const char *text);
int tokenizer_of_recipe(tokenizer **t, const char *text, err_ctx *err);

/* The token of a byte in gpt2 and its relatives. */
const char *tokenizer_byte_text(char dst[8], int byte);

#endif
