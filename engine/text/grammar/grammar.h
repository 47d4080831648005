/* grammar.h - which bytes may come next in a text that obeys a grammar.
 *
 * A grammar is immutable after it is compiled and may be shared by threads. Its rules over bytes
 * may call each other (JSON nests), so it is a nondeterministic pushdown automaton. A grammar_state
 * is the set of the automaton's positions after some bytes. It is a small number that belongs to a
 * grammar_run; equal numbers are equal states, so it can be a cache key.
 *
 * A run has tables of fixed size, allocated by grammar_run_create. It computes a transition when it
 * is first used; later it costs one table look-up. When a table is full the caller keeps some
 * states and clears the rest with grammar_run_keep. Not thread-safe.
 *
 * Nesting is bounded by GRAMMAR_DEPTH calls. Positions from which the text cannot end within that
 * depth are dropped, so from every live state some bytes lead to the end. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_H

#include <jansson.h>

#include "loader/base.h"

enum {
    GRAMMAR_DEPTH = 128,                 /* nested calls */
    GRAMMAR_MAX_STATES = 16384,          /* of a run, until grammar_run_keep */
    GRAMMAR_MAX_TEXT = 1 << 20           /* bytes of a grammar's or a schema's text */
};

typedef struct grammar grammar;
typedef struct grammar_run grammar_run;
typedef int32_t grammar_state;
enum {
    GRAMMAR_DEAD = -1,                   /* no text of the grammar begins with these bytes */
    GRAMMAR_FULL = -2                    /* a table is full: call grammar_run_keep and retry */
};

/* Compiles llama.cpp's notation (GBNF): rules NAME ::= ..., starting from root; literals, character
 * classes, groups, |, repetitions * + ? {m} {m,} {m,n}, # comments. A character is its UTF-8 bytes.
 * Errors name line and column. Refuses left recursion and grammars without a finite text. */
int grammar_from_gbnf(grammar **out, str_view text, err_ctx *err);

/* Compiles a JSON schema. A text is one value without white space, except one optional space after
 * ':' and ','. strict: objects with named properties have no others, unless the schema has
 * additionalProperties. An unsupported keyword that narrows is an error that names it;
 * grammar_schema.c lists the supported ones. */
int grammar_from_schema(grammar **out, const json_t *schema, bool strict, err_ctx *err);

/* Compiles the grammar of any JSON object. */
int grammar_any_object(grammar **out, err_ctx *err);

void grammar_free(grammar *g);           /* NULL is fine */
/* Returns true if its texts contain tags of a chat format, which may be USER tokens. */
bool grammar_has_markup(const grammar *g);

/* Borrows g. */
int grammar_run_create(grammar_run **out, const grammar *g, err_ctx *err);
void grammar_run_free(grammar_run *r);

/* Returns the state before the first byte, GRAMMAR_FULL, or GRAMMAR_DEAD if it has too many
 * positions. */
grammar_state grammar_run_start(grammar_run *r);

/* Returns the state after one more byte; s < 0 is returned unchanged. A state with too many
 * positions (of a very ambiguous grammar) counts as dead. */
grammar_state grammar_run_step(grammar_run *r, grammar_state s, uint8_t byte);

/* Returns true if the text may end in s, which must be >= 0. */
bool grammar_run_may_end(const grammar_run *r, grammar_state s);

/* Returns the byte that alone may come next in s, which must be >= 0. -1: the text may end, or
 * several bytes may come. */
int grammar_run_only_byte(const grammar_run *r, grammar_state s);

/* Returns a representative state that the next n_bytes bytes cannot distinguish from s: the same
 * bytes lead to live, dead and final states. Counts of repetitions far from their bounds become
 * one, so that caches are shared. May return GRAMMAR_FULL. */
grammar_state grammar_run_near(grammar_run *r, grammar_state s, int n_bytes);

/* Clears all states but these n, at most GRAMMAR_MAX_KEPT, of which some may be equal. Replaces
 * them by their new numbers. */
enum { GRAMMAR_MAX_KEPT = 16 };
void grammar_run_keep(grammar_run *r, grammar_state *list, int n);

/* Returns true if some state was declared dead because it has too many positions. */
bool grammar_run_crowded(const grammar_run *r);

int grammar_run_n_state(const grammar_run *r);   /* states are 0 .. n - 1 */

#endif
