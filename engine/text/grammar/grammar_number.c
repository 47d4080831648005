/* grammar_number.c - numbers between bounds, digit by digit.
 *
 * Digits are compared from the left. While all digits equal those of a bound, the next one must not
 * exceed the bound's digit; after a difference any digits may follow. Negative numbers use the same
 * rules with the bounds exchanged. */
#include "engine/text/grammar/grammar_number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static rules_expr digits(rules *r, int min, int max)
{
    return rules_repeat(r, rules_range(r, '0', '9'), min, max);
}

/* ---- integers -------------------------------------------------------------------------------- */

/* Returns the strings of n digits from lo to hi; a NULL bound is open. */
static rules_expr same_length(rules *r, const char *lo, const char *hi, int n)
{
    if (n == 0) return RULES_EMPTY;
    if (!lo && !hi) return digits(r, n, n);
    int first = lo ? lo[0] : '0', last = hi ? hi[0] : '9';
    rules_expr x = RULES_NOTHING;
    if (lo && hi && first == last)
        return rules_seq(r, rules_range(r, first, last), same_length(r, lo + 1, hi + 1, n - 1));
    if (lo) {
        x = rules_seq(r, rules_range(r, first, first), same_length(r, lo + 1, NULL, n - 1));
        first++;
    }
    if (hi) {
        x = rules_alt(r, x, rules_seq(r, rules_range(r, last, last),
                                      same_length(r, NULL, hi + 1, n - 1)));
        last--;
    }
    return rules_alt(r, x, rules_seq(r, rules_range(r, first, last), digits(r, n - 1, n - 1)));
}

static rules_expr wholes(rules *r, uint64_t lo, uint64_t hi)
{
    rules_expr x = RULES_NOTHING;
    uint64_t least = 0, most = 9;        /* numbers of n digits */
    for (int n = 1; n <= GRAMMAR_DIGITS; n++, least = most + 1, most = most * 10 + 9) {
        const uint64_t from = lo > least ? lo : least, to = hi < most ? hi : most;
        char a[24], b[24];
        if (from > to) continue;
        snprintf(a, sizeof a, "%llu", (unsigned long long)from);
        snprintf(b, sizeof b, "%llu", (unsigned long long)to);
        x = rules_alt(r, x, same_length(r, a, b, n));
    }
    return x;
}

rules_expr rules_integers(rules *r, int64_t lo, int64_t hi)
{
    rules_expr x = RULES_NOTHING;
    if (lo > hi) return x;
    if (hi >= 0) x = wholes(r, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi);
    if (lo < 0)
        x = rules_alt(r, x, rules_seq(r, rules_text(r, "-"),
                                      wholes(r, hi < 0 ? (uint64_t)-hi : 1, (uint64_t)-lo)));
    return x;
}

/* ---- any number ------------------------------------------------------------------------------ */

/* One rule for each remaining number of digits, before and after the point. */
rules_expr rules_number(rules *r)
{
    const rules_expr digit = rules_range(r, '0', '9');
    const rules_expr sign = rules_alt(r, rules_text(r, "+"), rules_text(r, "-"));
    const rules_expr exponent_sign = rules_alt(r, rules_text(r, "e"), rules_text(r, "E"));
    const rules_expr end = rules_option(
        r, rules_seq(r, rules_seq(r, exponent_sign, rules_option(r, sign)), digits(r, 1, 2)));
    rules_expr after = RULES_NOTHING, before = end, most_after = RULES_NOTHING;
    for (int left = 1; left < GRAMMAR_DIGITS; left++) {
        const int a = rules_new(r, str_from("digits after the point"));
        const int b = rules_new(r, str_from("digits before the point"));
        rules_define(r, a, rules_seq(r, digit, rules_alt(r, end, after)));
        after = most_after = rules_call(r, a);
        rules_define(r, b, rules_alt(r, rules_seq(r, digit, before),
                                     rules_alt(r, end, rules_seq(r, rules_text(r, "."), after))));
        before = rules_call(r, b);
    }
    const rules_expr small = rules_seq(
        r, rules_text(r, "0"), rules_alt(r, end, rules_seq(r, rules_text(r, "."), most_after)));
    return rules_seq(r, rules_option(r, rules_text(r, "-")),
                     rules_alt(r, small, rules_seq(r, rules_range(r, '1', '9'), before)));
}

/* ---- decimals -------------------------------------------------------------------------------- */

/* The digits of "-12.50e-3" are "1250"; its point is at position 2 - 3. */
bool decimal_read(decimal *out, const char *text)
{
    char all[64] = "";
    int n = 0, point = -1;
    *out = (decimal){ .given = true, .negative = *text == '-' };
    text += out->negative;
    for (; (*text >= '0' && *text <= '9') || *text == '.'; text++) {
        if (*text == '.') {
            point = n;
        } else {
            if (n == (int)sizeof all - 1) return false;
            all[n++] = *text;
        }
    }
    if (point < 0) point = n;
    if (*text == 'e' || *text == 'E') point += (int)strtol(text + 1, NULL, 10);
    while (n > 0 && all[n - 1] == '0') n--;
    int begin = 0;
    while (begin < n && all[begin] == '0') begin++;
    if (begin == n) return true;         /* 0 */
    if (point - begin > GRAMMAR_DIGITS || n - point > DECIMAL_FRACTION) return false;
    for (int i = begin; i < point; i++)
        out->whole = out->whole * 10 + (uint64_t)(i < n ? all[i] - '0' : 0);
    int n_fraction = 0;
    for (int i = point; i < n; i++) out->fraction[n_fraction++] = i < begin ? '0' : all[i];
    return true;
}

static int n_digit(uint64_t v)
{
    int n = 1;
    for (; v > 9; v /= 10) n++;
    return n;
}

int decimal_digits(const decimal *d)
{
    const int n = (int)strlen(d->fraction);
    if (d->whole == 0) return n - (int)strspn(d->fraction, "0");
    return n + n_digit(d->whole);
}

/* The digits after the point, at most `most`. */
typedef struct fraction { rules *r; int most; } fraction;

static int digit_at(const decimal *d, int i)
{
    return i < (int)strlen(d->fraction) ? d->fraction[i] : '0';
}

static bool is_over(const decimal *d, int i)     /* only zeros from digit i on */
{
    return i >= (int)strlen(d->fraction);
}

/* Returns true if the number may end after i digits that equal those of the bounds that are not
 * NULL. */
static bool may_stop(const decimal *lo, const decimal *hi, int i)
{
    return (!lo || (is_over(lo, i) && !lo->strict)) && (!hi || !is_over(hi, i) || !hi->strict);
}

/* Returns one or more digits from digit i on; a NULL bound is open. */
static rules_expr more(const fraction *f, const decimal *lo, const decimal *hi, int i)
{
    rules *r = f->r;
    if (i >= f->most) return RULES_NOTHING;
    if (!lo && !hi) return digits(r, 1, f->most - i);
    const int first = lo ? digit_at(lo, i) : '0', last = hi ? digit_at(hi, i) : '9';
    rules_expr x = RULES_NOTHING;
    for (int c = first; c <= last; c++) {
        const decimal *below = lo && c == first ? lo : NULL, *above = hi && c == last ? hi : NULL;
        const rules_expr rest = rules_alt(
            r, may_stop(below, above, i + 1) ? RULES_EMPTY : RULES_NOTHING,
            more(f, below, above, i + 1));
        x = rules_alt(r, x, rules_seq(r, rules_range(r, c, c), rest));
    }
    return x;
}

static rules_expr with_fraction(const fraction *f, rules_expr whole, const decimal *lo,
                                const decimal *hi)
{
    rules *r = f->r;
    const rules_expr point = rules_seq(r, rules_text(r, "."), more(f, lo, hi, 0));
    return rules_seq(r, whole,
                     rules_alt(r, may_stop(lo, hi, 0) ? RULES_EMPTY : RULES_NOTHING, point));
}

/* Returns the numbers without sign from lo to hi, which may be NULL. */
static rules_expr magnitudes(rules *r, const decimal *lo, const decimal *hi)
{
    fraction f = { .r = r };
    const uint64_t most = GRAMMAR_MAX_INT;
    f.most = max_int(1, 15 - n_digit(hi && hi->whole > lo->whole ? hi->whole : lo->whole));
    f.most = max_int(f.most, (int)strlen(lo->fraction));
    if (hi) f.most = max_int(f.most, (int)strlen(hi->fraction));
    if (hi && lo->whole > hi->whole) return RULES_NOTHING;
    if (hi && lo->whole == hi->whole)
        return with_fraction(&f, wholes(r, lo->whole, lo->whole), lo, hi);
    rules_expr x = with_fraction(&f, wholes(r, lo->whole, lo->whole), lo, NULL);
    const uint64_t last = hi ? hi->whole - 1 : most;
    if (lo->whole < last)
        x = rules_alt(r, x, with_fraction(&f, wholes(r, lo->whole + 1, last), NULL, NULL));
    if (hi)
        x = rules_alt(r, x, with_fraction(&f, wholes(r, hi->whole, hi->whole), NULL, hi));
    return x;
}

static bool is_zero(const decimal *d) { return d->whole == 0 && !d->fraction[0]; }

rules_expr rules_decimals(rules *r, decimal lo, decimal hi)
{
    const decimal zero = { .given = true };
    rules_expr x = RULES_NOTHING;
    if (is_zero(&lo)) lo.negative = false;
    if (is_zero(&hi)) hi.negative = false;
    if (!(hi.given && hi.negative))
        x = magnitudes(r, lo.given && !lo.negative ? &lo : &zero, hi.given ? &hi : NULL);
    if (lo.given && !lo.negative && !(is_zero(&lo) && !lo.strict)) return x;
    /* negative numbers: magnitudes -hi .. -lo */
    const rules_expr mirror =
        magnitudes(r, hi.given && (hi.negative || is_zero(&hi)) ? &hi : &zero,
                   lo.given ? &lo : NULL);
    return rules_alt(r, x, rules_seq(r, rules_text(r, "-"), mirror));
}
