/* grammar_value.h - rules for values in a notation; for grammar_schema.c and chat_grammar.c.
 *
 * The notation is JSON or that of Gemma's calls: verbatim strings between two <|"|>, unquoted keys
 * if they are words, no spaces. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_VALUE_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_VALUE_H

#include <jansson.h>

#include "engine/text/grammar/grammar_rules.h"

typedef struct value_rules {
    rules *r;
    value_notation as;
    int value, object, string, number;   /* rules: any value, object, ... */
    int letter;                          /* rule: a character of a string of limited length; Gemma:
                                          * none that could begin the closing quote */
    int key_end;                         /* rule, JSON: rest of a key without escapes, and '"' */
} value_rules;

int value_rules_init(value_rules *v, rules *r, value_notation as, err_ctx *err);

rules_expr value_quote(const value_rules *v);            /* on either side of a string */
rules_expr value_mark(const value_rules *v, const char *sign);   /* ':' or ','; JSON: with an
                                                                  * optional space */
/* min .. max items, separated by commas; item is not NOTHING. */
rules_expr value_list(const value_rules *v, rules_expr item, int min, int max);
rules_expr value_word(const value_rules *v);             /* Gemma: a key of letters, digits, _ */

/* The text of a given key or value, unique except for optional spaces. Return < 0 if out of memory
 * or if the notation cannot represent a string. */
int value_key(rules_expr *out, const value_rules *v, const char *name, err_ctx *err);
int value_literal(rules_expr *out, const value_rules *v, const json_t *value, err_ctx *err);

#endif
