/* sentencepiece_scores.h - merge order of SentencePiece: by the score of the merged token. */
#ifndef ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_SCORES_H
#define ENGINE_TEXT_TOKENIZER_SENTENCEPIECE_SCORES_H

#include "engine/text/tokenizer/bpe.h"
#include "loader/gguf.h"

/* Reads tokenizer.ggml.scores and completes b, which must be sealed by bpe_seal. The pair whose
 * merged token has the highest score merges first, the leftmost of equals. Refuses missing or
 * non-finite scores and tokens above 256 bytes. */
int sentencepiece_scores_read(bpe *b, const gguf *g, err_ctx *err);

#endif
