/* fim.h - fill in the middle: makes a prompt from the texts before and after a gap. Any thread.
 *
 * For vocabularies with the tokens of Qwen's coder models:
 *
 *   <|fim_prefix|> before <|fim_suffix|> after <|fim_middle|>
 *
 * The model continues with the text of the gap. */
#ifndef ENGINE_TEXT_CHAT_FIM_H
#define ENGINE_TEXT_CHAT_FIM_H

#include "engine/text/tokenizer/tokenizer.h"

bool fim_is_known(const tokenizer *t);

/* Turns *prompt, the text before the gap, into a prompt for the middle. ERR_UNSUPPORTED, with
 * *prompt unchanged: the vocabulary has no such tokens. */
int fim_wrap(id_list *prompt, const tokenizer *t, encoder *e, str_view after, err_ctx *err);

#endif
