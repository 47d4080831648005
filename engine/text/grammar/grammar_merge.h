/* grammar_merge.h - merges two JSON schemas into their conjunction; reads parts of one schema. For
 * grammar_schema.c and chat_grammar.c. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_MERGE_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_MERGE_H

#include "engine/text/grammar/grammar.h"

/* Returns true for a keyword without effect on validation, such as title. */
bool schema_is_remark(const char *keyword);
/* Returns true if the string is in the array, e.g. a name in that of "required". */
bool schema_array_has(const json_t *array, const char *string);

/* Returns a new schema that requires both a (except its keyword `without`, if not NULL) and b, two
 * objects. Properties keep their order, a's first. Returns NULL with *err filled if two keywords
 * cannot be merged; the message names them. */
json_t *schema_merge(const json_t *a, const char *without, const json_t *b, err_ctx *err);

#endif
