/* chat_grammar.h - the grammar of answers with tool calls, for each chat format.
 *
 * For requests with calls other than CHAT_CALLS_FREE (chat.h). In ChatML, GLM and Gemma the grammar
 * covers the whole answer after its reasoning, tags included. In harmony it has one part for each
 * kind of message body, selected by chat_parser_key. Arguments obey the tool's schema if the tool
 * is strict or the call is forced. Unsupported keywords are ignored if the call is forced and the
 * tool is not strict; otherwise they are refused. */
#ifndef ENGINE_TEXT_CHAT_CHAT_GRAMMAR_H
#define ENGINE_TEXT_CHAT_CHAT_GRAMMAR_H

#include "engine/text/chat/chat.h"
#include "engine/text/grammar/grammar.h"

/* text: the schema of an answer without calls, used if req->formed; strict as in
 * grammar_from_schema. Errors name the tool. Returns ERR_UNSUPPORTED if the format has no calls or
 * a schema has an unsupported keyword. */
int chat_grammar(grammar **out, const chat *c, const chat_request *req, const json_t *text,
                 bool strict, err_ctx *err);

#endif
