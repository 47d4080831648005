/* grammar_rules.h - builds a grammar from expressions; for grammar_*.c and chat_grammar.c.
 *
 * Expressions are numbers. NOTHING matches no text, not even the empty one: x | NOTHING is x, and
 * x NOTHING is NOTHING. rules_finish reports earlier failures (memory, too many expressions), so
 * callers need no checks before it. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_RULES_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_RULES_H

#include "engine/text/grammar/grammar.h"

/* ---- building ---- */

typedef struct rules rules;
typedef int32_t rules_expr;
enum { RULES_NOTHING = 0, RULES_EMPTY = 1, RULES_NO_LIMIT = -1, RULES_MAX_REPEAT = 1 << 20 };

rules *rules_create(void);               /* NULL if out of memory */
void rules_free(rules *r);

rules_expr rules_range(rules *r, int lo, int hi);        /* one byte */
rules_expr rules_chars(rules *r, uint32_t lo, uint32_t hi);      /* one character as UTF-8, no
                                                                  * surrogates */
rules_expr rules_bytes(rules *r, str_view s);
rules_expr rules_text(rules *r, const char *terminated);
rules_expr rules_seq(rules *r, rules_expr a, rules_expr b);
rules_expr rules_seq3(rules *r, rules_expr a, rules_expr b, rules_expr c);
rules_expr rules_alt(rules *r, rules_expr a, rules_expr b);
/* x repeated min .. max times, both at most RULES_MAX_REPEAT; max may be RULES_NO_LIMIT. */
rules_expr rules_repeat(rules *r, rules_expr x, int min, int max);
rules_expr rules_option(rules *r, rules_expr x);

/* A rule may be called before it is defined; each is defined once. The name is for messages and is
 * copied. */
int rules_new(rules *r, str_view name);
rules_expr rules_call(rules *r, int rule);
void rules_define(rules *r, int rule, rules_expr x);

/* Adds a rule of text up to and including one of the tags, followed by that tag's `then`. If
 * may_end the text may also end without a tag. At most two tags; each contains one '<', its first
 * byte, and their second bytes differ. Returns the rule. */
typedef struct rules_tag { const char *text; rules_expr then; } rules_tag;
int rules_text_until(rules *r, const rules_tag *tags, int n, bool may_end);

/* Compiles the grammar whose texts are those of the rule root. The caller still owns r. */
int rules_finish(grammar **out, const rules *r, int root, err_ctx *err);

/* Adds the rules of a GBNF text, which must define all rules that it uses. Returns the rule "root",
 * or < 0. */
int rules_add_gbnf(rules *r, str_view text, err_ctx *err);

/* Compiles JSON schemas to rules; rules for common values are shared. Borrows r. */
typedef struct schema_reader schema_reader;
typedef enum value_notation { VALUE_JSON, VALUE_GEMMA } value_notation;  /* grammar_value.h */
int schema_reader_create(schema_reader **out, rules *r, value_notation as, err_ctx *err);
void schema_reader_free(schema_reader *d);       /* NULL is fine */

/* Whether an object with named properties may have others if its schema does not say: only in OPEN.
 * LENIENT also ignores unsupported keywords. */
typedef enum schema_strictness { SCHEMA_OPEN, SCHEMA_CLOSED, SCHEMA_LENIENT } schema_strictness;

/* Returns a rule for schema, which is root or a part of it and may refer to other parts. root must
 * outlive d. Returns < 0 with a message that names keyword and path. */
int schema_reader_add(schema_reader *d, const json_t *root, const json_t *schema,
                      schema_strictness strictness,
                      err_ctx *err);

/* Sets *out to the text of a string without its quotes, built from `letter`; NOTHING if the schema
 * allows any string. */
int schema_reader_letters(rules_expr *out, schema_reader *d, const json_t *s, rules_expr letter,
                          schema_strictness strictness, err_ctx *err);

/* ---- the compiled grammar; for grammar.c ---- */

typedef enum node_kind { NODE_RANGE, NODE_SPLIT, NODE_CALL, NODE_REPEAT, NODE_RETURN } node_kind;

/* The nodes of a rule end at a RETURN. CALL runs `alternative` up to its RETURN, then continues at
 * next. REPEAT does so min .. max times; if min > 0 the repeated part is never empty. */
typedef struct grammar_node {
    uint8_t kind, lo, hi;                /* RANGE: lo .. hi, then next */
    int32_t next;
    int32_t alternative;                 /* SPLIT: second successor; CALL, REPEAT: called node */
    int32_t min, max;
    int32_t need;                        /* nested calls on the shortest path to RETURN;
                                          * > GRAMMAR_DEPTH: none exists */
} grammar_node;

struct grammar {
    grammar_node *nodes;                 /* 0 is a RETURN */
    int n_node;
    int32_t start;
    bool markup;                         /* see grammar_has_markup */
};

#endif
