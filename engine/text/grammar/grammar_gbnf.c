/* grammar_gbnf.c - parses llama.cpp's grammar notation.
 *
 *   root  ::= "yes" | "no" | list     # a comment
 *   list  ::= "[" item ("," item)* "]"
 *   item  ::= [a-z0-9_]{1,20} | [^\x00-\x1F"]+
 *
 * Recursive descent over the text. A rule ends with its line, except within parentheses, after
 * "::=" and around "|". Names may be used before they are defined; an undefined name is an error
 * at its first use. */
#include "engine/text/grammar/grammar_rules.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAMES = 4096, MAX_GROUPS = 64, MAX_CLASS = 1024 };

typedef struct name { str_view text; int rule; size_t used_at; bool defined; } name;

typedef struct reader {
    rules *r;
    const char *begin, *pos, *end;
    name *names;
    int n_name;
    int depth;                           /* open groups */
    int rc;                              /* the first failure; later calls are no-ops */
    err_ctx *err;
} reader;

/* ---- errors, space --------------------------------------------------------------------------- */

static void fail_at(reader *d, const char *where, const char *message)
{
    int line = 1, column = 1;
    if (d->rc < 0) return;
    for (const char *p = d->begin; p < where; p++) {
        if (*p == '\n') line++, column = 1;
        else if ((*p & 0xC0) != 0x80) column++;
    }
    d->rc = err_set(d->err, ERR_FORMAT, "line %d, column %d: %s", line, column, message);
    d->pos = d->end;
}

static void fail(reader *d, const char *message) { fail_at(d, d->pos, message); }

static bool next_is(const reader *d, char c) { return d->pos < d->end && *d->pos == c; }

static void skip_space(reader *d, bool newlines)
{
    while (d->pos < d->end) {
        const char c = *d->pos;
        if (c == '#') {
            while (d->pos < d->end && *d->pos != '\n' && *d->pos != '\r') d->pos++;
        } else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r'))) {
            d->pos++;
        } else {
            return;
        }
    }
}

/* ---- names ----------------------------------------------------------------------------------- */

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static str_view read_name(reader *d)
{
    const char *from = d->pos;
    while (d->pos < d->end && is_name_char(*d->pos)) d->pos++;
    return (str_view){ from, (size_t)(d->pos - from) };
}

static name *find_name(reader *d, str_view text)
{
    for (int i = 0; i < d->n_name; i++)
        if (str_eq(d->names[i].text, text)) return &d->names[i];
    if (d->n_name == MAX_NAMES) {
        fail(d, "more than 4096 rules");
        return NULL;
    }
    d->names[d->n_name] = (name){ text, rules_new(d->r, text), (size_t)(text.ptr - d->begin),
                                  false };
    return &d->names[d->n_name++];
}

/* ---- characters ------------------------------------------------------------------------------ */

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static uint32_t read_hex(reader *d, int n)
{
    uint32_t cp = 0;
    for (int i = 0; i < n; i++) {
        const int v = d->pos < d->end ? hex_value(*d->pos) : -1;
        if (v < 0) {
            fail(d, n == 2 ? "\\x needs 2 hexadecimal digits" :
                    n == 4 ? "\\u needs 4 hexadecimal digits" : "\\U needs 8 hexadecimal digits");
            return 0;
        }
        cp = cp << 4 | (uint32_t)v;
        d->pos++;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) fail(d, "there is no such character");
    return cp;
}

static uint32_t read_escape(reader *d)
{
    const char c = d->pos + 1 < d->end ? d->pos[1] : '\0';
    d->pos += d->end - d->pos < 2 ? 1 : 2;
    switch (c) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case '\\': case '"': case '[': case ']': case '-': case '^': return (uint8_t)c;
    case 'x': return read_hex(d, 2);
    case 'u': return read_hex(d, 4);
    case 'U': return read_hex(d, 8);
    default:
        d->pos -= d->pos < d->end;
        fail(d, "unknown escape: there are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH "
                "\\UHHHHHHHH");
        return 0;
    }
}

static uint32_t read_char(reader *d)
{
    uint32_t cp = 0;
    if (d->pos < d->end && *d->pos == '\\') return read_escape(d);
    const int n = utf8_decode(&cp, (const uint8_t *)d->pos, (size_t)(d->end - d->pos));
    if (n == 0) fail(d, d->pos < d->end ? "not UTF-8" : "the text ends here");
    d->pos += n;
    return cp;
}

static rules_expr read_literal(reader *d)
{
    const char *from = d->pos++;
    rules_expr x = RULES_EMPTY;
    while (d->rc == 0 && d->pos < d->end && *d->pos != '"' && *d->pos != '\n') {
        const uint32_t cp = read_char(d);
        if (d->rc == 0) x = rules_seq(d->r, x, rules_chars(d->r, cp, cp));
    }
    if (!next_is(d, '"')) fail_at(d, from, "this string has no end on its line");
    else d->pos++;
    return x;
}

typedef struct span { uint32_t lo, hi; } span;

static void sort_spans(span *s, int n)
{
    for (int i = 1; i < n; i++) {
        const span x = s[i];
        int k = i;
        for (; k > 0 && s[k - 1].lo > x.lo; k--) s[k] = s[k - 1];
        s[k] = x;
    }
}

/* Returns the expression of one character in the spans, or in none of them if negated. Overlapping
 * spans are merged, so that no character has two alternatives. */
static rules_expr class_of(rules *r, span *s, int n, bool negated)
{
    rules_expr x = RULES_NOTHING;
    uint32_t from = 0;                   /* characters below are done */
    sort_spans(s, n);
    for (int i = 0; i < n; i++) {
        if (negated && s[i].lo > from) x = rules_alt(r, x, rules_chars(r, from, s[i].lo - 1));
        if (!negated && s[i].hi >= from)
            x = rules_alt(r, x, rules_chars(r, s[i].lo > from ? s[i].lo : from, s[i].hi));
        if (s[i].hi >= from) from = s[i].hi + 1;
    }
    return negated && from <= 0x10FFFF ? rules_alt(r, x, rules_chars(r, from, 0x10FFFF)) : x;
}

static rules_expr read_class(reader *d)
{
    const char *from = d->pos++;
    span spans[MAX_CLASS];
    int n = 0;
    const bool negated = next_is(d, '^');
    d->pos += negated;
    while (d->rc == 0 && d->pos < d->end && *d->pos != ']' && *d->pos != '\n') {
        if (n == MAX_CLASS) {
            fail(d, "more than 1024 parts in a class");
            break;
        }
        span *s = &spans[n++];
        const char *start = d->pos;
        s->lo = s->hi = read_char(d);
        if (next_is(d, '-') && d->end - d->pos > 1 && d->pos[1] != ']') {
            d->pos++;
            s->hi = read_char(d);
        }
        if (s->lo > s->hi) fail_at(d, start, "this range ends before it begins");
    }
    if (!next_is(d, ']')) fail_at(d, from, "this class has no ] on its line");
    else d->pos++;
    return d->rc == 0 ? class_of(d->r, spans, n, negated) : RULES_NOTHING;
}

/* ---- expressions ----------------------------------------------------------------------------- */

static int read_count(reader *d)
{
    int n = 0;
    if (d->pos == d->end || *d->pos < '0' || *d->pos > '9') fail(d, "a number is missing");
    for (; d->pos < d->end && *d->pos >= '0' && *d->pos <= '9' && d->rc == 0; d->pos++) {
        n = n * 10 + (*d->pos - '0');
        if (n > RULES_MAX_REPEAT) fail(d, "more than 1048576 repetitions");
    }
    return n;
}

/* {m} {m,} {m,n} */
static rules_expr read_bounds(reader *d, rules_expr x)
{
    const char *from = d->pos++;
    skip_space(d, false);
    const int min = read_count(d);
    int max = min;
    skip_space(d, false);
    if (next_is(d, ',')) {
        d->pos++;
        skip_space(d, false);
        max = next_is(d, '}') ? RULES_NO_LIMIT : read_count(d);
        skip_space(d, false);
    }
    if (!next_is(d, '}')) fail(d, "} is missing");
    else d->pos++;
    if (max != RULES_NO_LIMIT && max < min) fail_at(d, from, "more repetitions at least than most");
    return d->rc == 0 ? rules_repeat(d->r, x, min, max) : RULES_NOTHING;
}

static rules_expr read_repeats(reader *d, rules_expr x)
{
    for (; d->rc == 0; skip_space(d, d->depth > 0)) {
        const char c = d->pos < d->end ? *d->pos : '\0';
        if (c == '{') {
            x = read_bounds(d, x);
            continue;
        }
        if (c != '*' && c != '+' && c != '?') break;
        d->pos++;
        x = rules_repeat(d->r, x, c == '+', c == '?' ? 1 : RULES_NO_LIMIT);
    }
    return x;
}

static rules_expr read_alternatives(reader *d);

static rules_expr read_group(reader *d)
{
    const char *from = d->pos++;
    if (++d->depth > MAX_GROUPS) fail(d, "more than 64 groups within each other");
    skip_space(d, true);
    const rules_expr x = read_alternatives(d);
    if (!next_is(d, ')')) fail_at(d, from, "this ( is never closed");
    else d->pos++;
    d->depth--;
    return x;
}

static rules_expr read_item(reader *d)
{
    if (*d->pos == '"') return read_literal(d);
    if (*d->pos == '[') return read_class(d);
    if (*d->pos == '(') return read_group(d);
    if (*d->pos == '.') return d->pos++, rules_chars(d->r, 0, 0x10FFFF);
    const name *n = find_name(d, read_name(d));
    return n ? rules_call(d->r, n->rule) : RULES_NOTHING;
}

static rules_expr read_sequence(reader *d)
{
    rules_expr x = RULES_EMPTY;
    while (d->rc == 0 && d->pos < d->end && *d->pos &&
           (strchr("\"[(.", *d->pos) || is_name_char(*d->pos))) {
        rules_expr item = read_item(d);
        skip_space(d, d->depth > 0);
        item = read_repeats(d, item);
        x = rules_seq(d->r, x, item);
    }
    return x;
}

/* Returns true if "|" follows after white space, also on a later line: the rule continues. */
static bool more_alternatives(reader *d)
{
    reader ahead = *d;
    skip_space(&ahead, true);
    if (!next_is(&ahead, '|')) return false;
    d->pos = ahead.pos;
    return true;
}

static rules_expr read_alternatives(reader *d)
{
    rules_expr x = read_sequence(d);
    while (d->rc == 0 && more_alternatives(d)) {
        d->pos++;
        skip_space(d, true);
        x = rules_alt(d->r, x, read_sequence(d));
    }
    return x;
}

static void read_rule(reader *d)
{
    const char *from = d->pos;
    const str_view text = read_name(d);
    if (text.len == 0) {
        fail(d, "the name of a rule is missing");
        return;
    }
    name *n = find_name(d, text);
    if (n && n->defined) fail_at(d, from, "this rule is defined twice");
    skip_space(d, false);
    if (d->end - d->pos < 3 || memcmp(d->pos, "::=", 3) != 0) fail(d, "::= is missing");
    if (d->rc < 0) return;
    const int rule = n->rule;
    n->defined = true;
    d->pos += 3;
    skip_space(d, true);
    const rules_expr x = read_alternatives(d);
    if (d->rc < 0) return;
    rules_define(d->r, rule, x);
    if (d->pos < d->end && *d->pos != '\n' && *d->pos != '\r') fail(d, "this belongs to no rule");
}

int rules_add_gbnf(rules *r, str_view text, err_ctx *err)
{
    reader d = { .r = r, .begin = text.ptr, .pos = text.ptr, .end = text.ptr + text.len,
                 .err = err };
    int root = -1;

    if (text.len > GRAMMAR_MAX_TEXT)
        return err_set(err, ERR_RANGE, "%zu bytes: a grammar has at most %d", text.len,
                       GRAMMAR_MAX_TEXT);
    if (!(d.names = mem_array(MAX_NAMES, sizeof *d.names)))
        return err_set(err, ERR_NOMEM, "out of memory for a grammar");
    for (skip_space(&d, true); d.rc == 0 && d.pos < d.end; skip_space(&d, true)) read_rule(&d);
    for (int i = 0; i < d.n_name && d.rc == 0; i++) {
        char esc[64], message[128];
        if (str_is(d.names[i].text, "root")) root = d.names[i].rule;
        if (d.names[i].defined) continue;
        (void)snprintf(message, sizeof message, "the rule %s is not defined",
                       ESC(esc, d.names[i].text));
        fail_at(&d, d.begin + d.names[i].used_at, message);
    }
    mem_free(d.names);
    if (d.rc == 0 && root < 0) return err_set(err, ERR_FORMAT, "there is no rule named root");
    return d.rc < 0 ? d.rc : root;
}

int grammar_from_gbnf(grammar **out, str_view text, err_ctx *err)
{
    rules *r = rules_create();
    *out = NULL;
    if (!r) return err_set(err, ERR_NOMEM, "out of memory for a grammar");
    int rc = rules_add_gbnf(r, text, err);
    if (rc >= 0) rc = rules_finish(out, r, rc, err);
    rules_free(r);
    return rc;
}
