/* fim.h - fill in the middle: a prompt of the text before a gap and the text after it.
 *
 * For vocabularies with the tokens of Qwen's coder models; the model continues with the middle:
 *
 *   <|fim_prefix|> before <|fim_suffix|> after <|fim_middle|>
 */
#ifndef ENGINE_TEXT_CHAT_FIM_H
#define ENGINE_TEXT_CHAT_FIM_H

#include "engine/text/tokenizer/tokenizer.h"

bool fim_is_known(const tokenizer *t);

/* *prompt has the text before the gap; adds the tokens and the text after it. Returns 0, or < 0;
 * ERR_UNSUPPORTED, with *prompt unchanged, if the vocabulary has no such tokens. */
int fim_wrap(id_list *prompt, const tokenizer *t, encoder *e, str_view after, err_ctx *err);

#endif
