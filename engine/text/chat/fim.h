/* fim.h - fill in the middle: a prompt of what stands before a gap and what stands after it.
 *
 * For vocabularies that have the tokens that Qwen's coder models were taught:
 *
 *   <|fim_prefix|> before <|fim_suffix|> after <|fim_middle|>
 *
 * and the model goes on with what belongs between. */
#ifndef ENGINE_TEXT_CHAT_FIM_H
#define ENGINE_TEXT_CHAT_FIM_H

#include "engine/text/tokenizer/tokenizer.h"

bool fim_is_known(const tokenizer *t);

/* Has *prompt, which is what stands before, ask for the middle. ERR_UNSUPPORTED, with *prompt as it
 * was: the vocabulary has no such tokens. */
int fim_wrap(id_list *prompt, const tokenizer *t, encoder *e, str_view after, err_ctx *err);

#endif
