/* grammar_number.h - JSON numbers between bounds, as rules over their digits; for
 * grammar_schema.c.
 *
 * A number has at most GRAMMAR_DIGITS digits before and after the point together where nothing
 * bounds it, and as many before the point where something does: integers fit 64 bits. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_NUMBER_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_NUMBER_H

#include "engine/text/grammar/grammar_rules.h"

enum { GRAMMAR_DIGITS = 18 };
#define GRAMMAR_MAX_INT 999999999999999999       /* of GRAMMAR_DIGITS digits */

/* Integers from lo to hi, both within +-GRAMMAR_MAX_INT, without sign or zeros that say nothing. */
rules_expr rules_integers(rules *r, int64_t lo, int64_t hi);

/* Any number, with a point or an exponent of one or two digits if it likes. */
rules_expr rules_number(rules *r);

enum { DECIMAL_FRACTION = 24 };
typedef struct decimal {
    bool given;
    bool strict;                         /* the bound itself is out */
    bool negative;
    uint64_t whole;
    char fraction[DECIMAL_FRACTION + 1]; /* digits after the point, without zeros at the end */
} decimal;

/* A number's JSON text. False: more digits than fit, or larger than GRAMMAR_MAX_INT. */
bool decimal_read(decimal *out, const char *text);
int decimal_digits(const decimal *d);    /* without zeros in front */

/* Numbers between two bounds, either of which may be missing; no exponents. Digits after the point
 * are so few that reading the text as a double cannot move it onto a strict bound. */
rules_expr rules_decimals(rules *r, decimal lo, decimal hi);

#endif
