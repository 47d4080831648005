/* grammar_value.h - how values are written, as rules of a grammar; for grammar_schema.c.
 *
 * JSON, or the notation of Gemma's calls: strings stand as they are between two <|"|>, keys bare if
 * they are words, no spaces between the parts. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_VALUE_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_VALUE_H

#include <jansson.h>

#include "engine/text/grammar/grammar_rules.h"

typedef struct value_rules {
    rules *r;
    value_notation as;
    int value, object, string, number;   /* rules: any of them */
    int letter;                          /* a character of a string whose length is bounded; Gemma:
                                          * none that could begin its end */
    int key_end;                         /* JSON: the rest of a key that needs no escape, and '"' */
} value_rules;

int value_rules_init(value_rules *v, rules *r, value_notation as, err_ctx *err);

rules_expr value_quote(const value_rules *v);            /* on either side of a string */
rules_expr value_mark(const value_rules *v, const char *sign);   /* ':' or ',', in JSON with the
                                                                  * space that may follow */
/* Items between commas, min .. max in all; item is not NOTHING. */
rules_expr value_list(const value_rules *v, rules_expr item, int min, int max);
rules_expr value_word(const value_rules *v);             /* Gemma: a key of letters, digits, _ */

/* A key, a value as they are written: one way, but for the spaces. < 0: no memory, or a string that
 * the notation cannot hold. */
int value_key(rules_expr *out, const value_rules *v, const char *name, err_ctx *err);
int value_literal(rules_expr *out, const value_rules *v, const json_t *value, err_ctx *err);

#endif
