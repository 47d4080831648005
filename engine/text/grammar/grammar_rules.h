/* grammar_rules.h - a grammar under construction; for grammar*.c, which make one out of something.
 *
 * Expressions are numbers; NOTHING matches no text at all and vanishes where it can (x | NOTHING is
 * x, x NOTHING is NOTHING). What fails (memory, too many expressions) is remembered and reported by
 * rules_finish, so code that builds reads top to bottom. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_RULES_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_RULES_H

#include "engine/text/grammar/grammar.h"

/* ---- building ---- */

typedef struct rules rules;
typedef int32_t rules_expr;
enum { RULES_NOTHING = 0, RULES_EMPTY = 1, RULES_NO_LIMIT = -1, RULES_MAX_REPEAT = 1 << 20 };

rules *rules_create(void);               /* NULL without memory */
void rules_free(rules *r);

rules_expr rules_range(rules *r, int lo, int hi);        /* one byte */
rules_expr rules_chars(rules *r, uint32_t lo, uint32_t hi);      /* one character, as UTF-8; without
                                                                  * surrogates */
rules_expr rules_bytes(rules *r, str_view s);
rules_expr rules_text(rules *r, const char *terminated);
rules_expr rules_seq(rules *r, rules_expr a, rules_expr b);
rules_expr rules_alt(rules *r, rules_expr a, rules_expr b);
/* min .. max times, max may be RULES_NO_LIMIT; both at most RULES_MAX_REPEAT. */
rules_expr rules_repeat(rules *r, rules_expr x, int min, int max);
rules_expr rules_option(rules *r, rules_expr x);

/* A rule may be called before it is defined; each is defined once. The name is for errors, and
 * copied. */
int rules_new(rules *r, str_view name);
rules_expr rules_call(rules *r, int rule);
void rules_define(rules *r, int rule, rules_expr x);

/* Text that goes on until one of the tags has come, and then as that says; may_end: or ends before.
 * Tags begin with '<', have no other, and differ in the byte after it; there are at most two.
 * Returns the rule. */
typedef struct rules_tag { const char *text; rules_expr then; } rules_tag;
int rules_text_until(rules *r, const rules_tag *tags, int n, bool may_end);

/* The grammar whose texts are those of the rule root. r stays the caller's. */
int rules_finish(grammar **out, const rules *r, int root, err_ctx *err);

/* Adds the rules of a GBNF text, which must know each other. Returns the rule "root", or < 0. */
int rules_add_gbnf(rules *r, str_view text, err_ctx *err);

/* Reads JSON schemas into rules; what they share is there once. Borrows r. */
typedef struct schema_reader schema_reader;
typedef enum value_notation { VALUE_JSON, VALUE_GEMMA } value_notation;  /* grammar_value.h */
int schema_reader_create(schema_reader **out, rules *r, value_notation as, err_ctx *err);
void schema_reader_free(schema_reader *d);       /* NULL is fine */

/* May an object that names properties have others if its schema does not say? LENIENT: it may not,
 * and keywords that are not known are passed over. */
typedef enum schema_strictness { SCHEMA_OPEN, SCHEMA_CLOSED, SCHEMA_LENIENT } schema_strictness;

/* The rule of what the schema `at` allows, which is root or a part of it that may refer to others;
 * root lives as long as d. < 0: *err names keyword and place. */
int schema_reader_add(schema_reader *d, const json_t *root, const json_t *schema,
                      schema_strictness strictness,
                      err_ctx *err);

/* The text of a string without its quotes, made of letters; NOTHING if it may be any. */
int schema_reader_letters(rules_expr *out, schema_reader *d, const json_t *s, rules_expr letter,
                          schema_strictness strictness, err_ctx *err);

/* ---- what is built; for grammar.c ---- */

typedef enum node_kind { NODE_RANGE, NODE_SPLIT, NODE_CALL, NODE_REPEAT, NODE_RETURN } node_kind;

/* Nodes of a rule end at a RETURN. CALL goes to `other` and, after its RETURN, on to next. REPEAT
 * does so min .. max times; what it repeats is never empty unless min is 0. */
typedef struct grammar_node {
    uint8_t kind, lo, hi;                /* RANGE: lo .. hi, then next */
    int32_t next;
    int32_t alternative;                /* SPLIT: next or this; CALL, REPEAT: what is called */
    int32_t min, max;
    int32_t need;                        /* calls within calls that the shortest way to RETURN
                                          * takes; > GRAMMAR_DEPTH: there is none */
} grammar_node;

struct grammar {
    grammar_node *nodes;                 /* 0 is a RETURN */
    int n_node;
    int32_t start;
    bool markup;                         /* see grammar_has_markup */
};

#endif
