/* chat_grammar.h - the form of answers that call tools, in the words of each chat format.
 *
 * For a request whose calls are held (chat.h). In ChatML, GLM and Gemma the grammar is that of all
 * of the answer after its reasoning, tags included; in harmony it has a part for the body of each
 * message, and chat_parser_key chooses. Arguments obey the tool's schema if the
 * tool is strict or the call is forced. Of a forced call whose tool is not strict, keywords that
 * are not supported are passed over; else they are refused. */
#ifndef ENGINE_TEXT_CHAT_CHAT_GRAMMAR_H
#define ENGINE_TEXT_CHAT_CHAT_GRAMMAR_H

#include "engine/text/chat/chat.h"
#include "engine/text/grammar/grammar.h"

/* text: the schema that the answer's text obeys if it does not call, where req->formed says that
 * there is one; strict as in grammar_from_schema. Errors name the tool. ERR_UNSUPPORTED: this
 * format has no calls, or a schema needs what there is not. */
int chat_grammar(grammar **out, const chat *c, const chat_request *req, const json_t *text,
                 bool strict, err_ctx *err);

#endif
