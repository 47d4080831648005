/* sentencepiece_scores.h - SentencePiece's way to order merges: by the score of the token they
 * make. */
#ifndef ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_SCORES_H
#define ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_SCORES_H

#include "engine/text/tokenizer/bpe.h"
#include "loader/gguf.h"

/* Reads tokenizer.ggml.scores and completes b, whose tokens are sealed: the pair whose text is the
 * token with the highest score merges first, the leftmost of equals. Refuses scores that are not
 * finite numbers, one for each token, and tokens too long to be real. */
int sentencepiece_scores_read(bpe *b, const gguf *g, err_ctx *err);

#endif
