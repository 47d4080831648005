/* grammar_merge.h - two JSON schemas to one that asks for both; for grammar_schema.c. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_MERGE_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_MERGE_H

#include "engine/text/grammar/grammar.h"

/* A keyword that says something to people only. */
bool schema_is_remark(const char *keyword);

/* A new schema with what a (less the keyword `without`, unless that is NULL) and b ask for; they
 * are objects. Properties keep their order, a's first. What cannot be put together is refused by
 * name. NULL: *err says why. */
json_t *schema_merge(const json_t *a, const char *without, const json_t *b, err_ctx *err);

#endif
