/* grammar.h - which bytes may come next in a text of a given form.
 *
 * A grammar is compiled once and never changes; it may be shared by threads. It is a set of rules
 * over bytes that may call each other (JSON nests), so it is a pushdown automaton, and it may be in
 * several places at once (the names of ten properties begin with the same quote). Where it is after
 * some bytes is a grammar_state, a small number that belongs to a grammar_run: equal numbers are
 * equal places, so the number can serve as a cache key.
 *
 * A run has tables of fixed size and takes all its memory when it is created. It learns a place
 * when it comes there first; after that a step is one look into a table. When a table is full, the
 * caller says which place counts and the rest is forgotten: grammar_run_keep. One thread at a
 * time.
 *
 * Nesting is bounded: a call deeper than GRAMMAR_DEPTH is not entered. A place from which the text
 * could not be ended within that depth is never entered either, so from every live state some bytes
 * lead to the end. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_H

#include <jansson.h>

#include "loader/base.h"

enum {
    GRAMMAR_DEPTH = 128,                 /* calls within calls */
    GRAMMAR_MAX_STATES = 16384,          /* of a run, before it must forget */
    GRAMMAR_MAX_TEXT = 1 << 20           /* bytes of a grammar's or a schema's text */
};

typedef struct grammar grammar;
typedef struct grammar_run grammar_run;
typedef int32_t grammar_state;
enum {
    GRAMMAR_DEAD = -1,                   /* no text begins like this */
    GRAMMAR_FULL = -2                    /* a table is full: grammar_run_keep, then try again */
};

/* From a text in llama.cpp's notation (GBNF): rules NAME ::= ..., begun with root; literals,
 * classes of characters, groups, |, repetitions * + ? {m} {m,} {m,n}, # comments. A character is
 * its UTF-8 bytes. Errors name line and column. Refuses left recursion and grammars that no finite
 * text fits. */
int grammar_from_gbnf(grammar **out, str_view text, err_ctx *err);

/* From a JSON schema: texts that are one value of that form, without white space but for one space
 * that may follow ':' and ','. strict: objects whose schema names properties have no others, unless
 * it says additionalProperties. A keyword that narrows and is not known is an error that names it;
 * see grammar_schema.c for those that are known. */
int grammar_from_schema(grammar **out, const json_t *schema, bool strict, err_ctx *err);

/* Any JSON object. */
int grammar_any_object(grammar **out, err_ctx *err);

void grammar_free(grammar *g);           /* NULL is fine */
/* Do its texts hold tags of a chat format, for which a vocabulary may have tokens (USER)? */
bool grammar_has_markup(const grammar *g);

/* Borrows g. */
int grammar_run_create(grammar_run **out, const grammar *g, err_ctx *err);
void grammar_run_free(grammar_run *r);

/* The state before the first byte. Never dead; full like a step. */
grammar_state grammar_run_start(grammar_run *r);

/* The state after one more byte; of GRAMMAR_DEAD it is GRAMMAR_DEAD. Too many places at once (a
 * grammar that is very ambiguous) count as dead. */
grammar_state grammar_run_step(grammar_run *r, grammar_state s, uint8_t byte);

/* May the text end here? s is alive. */
bool grammar_run_may_end(const grammar_run *r, grammar_state s);

/* The state that stands for s as far as the next n_bytes bytes can tell: the same bytes lead from
 * both to life, death and possible ends. Counted repetitions far from their bounds become one, so
 * that what is remembered about one serves all. May be full. */
grammar_state grammar_run_near(grammar_run *r, grammar_state s, int n_bytes);

/* Forgets all states but s, which gets a new number. */
grammar_state grammar_run_keep(grammar_run *r, grammar_state s);

/* Was a state ever called dead because it has too many places? */
bool grammar_run_crowded(const grammar_run *r);

int grammar_run_n_state(const grammar_run *r);   /* states are 0 .. this - 1 */

#endif
