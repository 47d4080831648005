/* grammar_number.h - JSON numbers between bounds, as rules over digits; for grammar_schema.c.
 *
 * An unbounded number has at most GRAMMAR_DIGITS digits before and after the point together. A
 * bounded one has at most that many before the point, so integers fit in 64 bits. */
#ifndef ENGINE_TEXT_GRAMMAR_GRAMMAR_NUMBER_H
#define ENGINE_TEXT_GRAMMAR_GRAMMAR_NUMBER_H

#include "engine/text/grammar/grammar_rules.h"

enum { GRAMMAR_DIGITS = 18 };
#define GRAMMAR_MAX_INT 999999999999999999       /* of GRAMMAR_DIGITS digits */

/* Integers from lo to hi, both within +-GRAMMAR_MAX_INT, without "+", "-0" or leading zeros. */
rules_expr rules_integers(rules *r, int64_t lo, int64_t hi);

/* Any number, with an optional point and an optional exponent of one or two digits. */
rules_expr rules_number(rules *r);

enum { DECIMAL_FRACTION = 24 };
typedef struct decimal {
    bool given;
    bool strict;                         /* the bound itself is excluded */
    bool negative;
    uint64_t whole;
    char fraction[DECIMAL_FRACTION + 1]; /* digits after the point, without trailing zeros */
} decimal;

/* Parses a number's JSON text. Returns false if it has too many digits or is above
 * GRAMMAR_MAX_INT. */
bool decimal_read(decimal *out, const char *text);
int decimal_digits(const decimal *d);    /* without leading zeros */

/* Numbers between two bounds, either of which may be missing; no exponents. The number of digits
 * after the point is so small that rounding to double cannot reach a strict bound. */
rules_expr rules_decimals(rules *r, decimal lo, decimal hi);

#endif
