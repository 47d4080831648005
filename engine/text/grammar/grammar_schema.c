/* grammar_schema.c - compiles a JSON schema to a grammar.
 *
 * Supported: type (one or a list), enum, const, properties, required, additionalProperties, items,
 * prefixItems, minItems, maxItems, anyOf, oneOf (as anyOf), allOf, $ref within the schema, with
 * recursion, minLength, maxLength, format date, time, date-time and uuid, minimum, maximum and
 * their exclusive forms. Annotations are ignored. Other keywords are refused by name and path.
 *
 * The texts are a subset of those that the schema allows: properties come in the schema's order;
 * additional properties have names without escapes; numbers have at most 18 digits; \u0000 and lone
 * surrogates do not occur. A schema without a type but with keywords of one type has that type. */
#include "engine/text/grammar/grammar_rules.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/text/grammar/grammar_merge.h"
#include "engine/text/grammar/grammar_number.h"
#include "engine/text/grammar/grammar_value.h"
#include "engine/text/textbuf_json.h"

enum { MAX_REFS = 1024, MAX_DEPTH = 64, MAX_VISITS = 1 << 16, MAX_NAME = 256, MAX_FIXED = 256 };

enum {
    T_OBJECT = 1, T_ARRAY = 2, T_STRING = 4, T_NUMBER = 8, T_INTEGER = 16, T_BOOLEAN = 32,
    T_NULL = 64
};
static const struct { const char *name; int bit; } type_names[] = {
    { "object", T_OBJECT }, { "array", T_ARRAY }, { "string", T_STRING }, { "number", T_NUMBER },
    { "integer", T_INTEGER }, { "boolean", T_BOOLEAN }, { "null", T_NULL },
};

/* Keywords and the types that they apply to; 0: all types. */
static const struct { const char *name; int types; } keywords[] = {
    { "type", 0 }, { "enum", 0 }, { "const", 0 }, { "anyOf", 0 }, { "oneOf", 0 }, { "allOf", 0 },
    { "$ref", 0 },
    { "properties", T_OBJECT }, { "required", T_OBJECT }, { "additionalProperties", T_OBJECT },
    { "items", T_ARRAY }, { "prefixItems", T_ARRAY }, { "minItems", T_ARRAY },
    { "maxItems", T_ARRAY },
    { "minLength", T_STRING }, { "maxLength", T_STRING }, { "format", T_STRING },
    { "minimum", T_NUMBER }, { "maximum", T_NUMBER }, { "exclusiveMinimum", T_NUMBER },
    { "exclusiveMaximum", T_NUMBER },
};

typedef struct schema_reader reader;
struct schema_reader {
    rules *r;
    const json_t *root;
    bool strict, lenient;
    value_rules v;                       /* shared rules */
    struct { const json_t *target; int rule; } refs[MAX_REFS];
    int n_ref;
    json_t *merged;                      /* owned array of merged schemas */
    int n_visit;
    char path[256];                      /* path of the current schema, for messages */
    int rc;
    err_ctx *err;
};

static rules_expr read_schema(reader *d, const json_t *s, int depth);

/* ---- errors ---------------------------------------------------------------------------------- */

/* Sets the error, except ERR_UNSUPPORTED if lenient: then the keyword is ignored. */
static void fail(reader *d, int code, const char *problem, const char *thing)
{
    char esc[96];
    if (d->rc < 0 || (d->lenient && code == ERR_UNSUPPORTED)) return;
    d->rc = err_set(d->err, code, "#%s: %s%s%s%s", d->path, problem, thing ? " \"" : "",
                    thing ? ESC(esc, str_from(thing)) : "", thing ? "\"" : "");
}

/* Appends a step to the path. Returns the old length, which the caller restores. */
static size_t enter(reader *d, const char *step, size_t index)
{
    const size_t n = strlen(d->path);
    char esc[64];
    if (step) snprintf(d->path + n, sizeof d->path - n, "/%s", ESC(esc, str_from(step)));
    else snprintf(d->path + n, sizeof d->path - n, "/%zu", index);
    return n;
}

static void leave(reader *d, size_t n) { d->path[n] = '\0'; }

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Every year has a 29th of February. */
#define DATE "[0-9]{4} \"-\" ((\"0\" [13578] | \"1\" [02]) \"-\" (\"0\" [1-9] | [12] [0-9] | " \
             "\"3\" [01]) | (\"0\" [469] | \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\") | " \
             "\"02-\" (\"0\" [1-9] | [12] [0-9]))"
#define HOUR "([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9]"
#define TIME HOUR " \":\" [0-5] [0-9] (\".\" [0-9]{1,9})? (\"Z\" | [+-] " HOUR ")"
static const struct { const char *name, *text; } formats[] = {
    { "date", "root ::= " DATE },
    { "time", "root ::= " TIME },
    { "date-time", "root ::= " DATE " \"T\" " TIME },
    { "uuid", "root ::= h{8} \"-\" h{4} \"-\" h{4} \"-\" h{4} \"-\" h{12}\nh ::= [0-9a-f]" },
};

static rules_expr literal(reader *d, const json_t *v)
{
    rules_expr x = RULES_NOTHING;
    if (d->rc == 0) d->rc = value_literal(&x, &d->v, v, d->err);
    return x;
}

/* ---- strings, numbers, arrays ---------------------------------------------------------------- */

/* Returns the whole number of a keyword, or `other` if the keyword is absent. */
static int read_count(reader *d, const json_t *s, const char *key, int other)
{
    const json_t *v = json_object_get(s, key);
    if (!v) return other;
    const double n = json_number_value(v);
    if (!json_is_number(v) || n < 0 || n != floor(n)) {
        fail(d, ERR_FORMAT, "this is not a whole number:", key);
        return 0;
    }
    if (n > RULES_MAX_REPEAT && strncmp(key, "min", 3) == 0)
        fail(d, ERR_RANGE, "more than 1048576:", key);
    return n > RULES_MAX_REPEAT ? RULES_NO_LIMIT : (int)n;
}

/* Returns the text of a format, without quotes, or NOTHING for an unknown format. */
static rules_expr read_format(reader *d, const json_t *format)
{
    const char *name = json_is_string(format) ? json_string_value(format) : "?";
    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        if (strcmp(name, formats[i].name) != 0) continue;
        const int rule = rules_add_gbnf(d->r, str_from(formats[i].text), d->err);
        if (rule < 0) d->rc = rule;
        return rule < 0 ? RULES_NOTHING : rules_call(d->r, rule);
    }
    fail(d, ERR_UNSUPPORTED, "there are date, time, date-time and uuid, not the format", name);
    return RULES_NOTHING;
}

/* Returns the text between the quotes, built from `letter`, or NOTHING if any string is allowed. */
static rules_expr read_letters(reader *d, const json_t *s, rules_expr letter)
{
    const json_t *format = json_object_get(s, "format");
    const int min = read_count(d, s, "minLength", 0);
    const int max = read_count(d, s, "maxLength", RULES_NO_LIMIT);
    const bool any = min == 0 && max == RULES_NO_LIMIT;
    const rules_expr x = format ? read_format(d, format) : RULES_NOTHING;
    if (format && !any) fail(d, ERR_UNSUPPORTED, "a length together with", "format");
    return x != RULES_NOTHING || any ? x : rules_repeat(d->r, letter, min, max);
}

static rules_expr read_string(reader *d, const json_t *s)
{
    rules *r = d->r;
    const rules_expr quote = value_quote(&d->v);
    const rules_expr x = read_letters(d, s, rules_call(r, d->v.letter));
    return x == RULES_NOTHING ? rules_call(r, d->v.string) : rules_seq3(r, quote, x, quote);
}

/* Returns the narrower of the inclusive and the exclusive bound, or NULL if there is none. */
static const json_t *find_bound(reader *d, const json_t *s, bool low, bool *strict)
{
    const char *with = low ? "minimum" : "maximum";
    const char *less = low ? "exclusiveMinimum" : "exclusiveMaximum";
    const json_t *a = json_object_get(s, with), *b = json_object_get(s, less);
    if (a && !json_is_number(a)) fail(d, ERR_FORMAT, "this is not a number:", with);
    if (b && !json_is_number(b)) fail(d, ERR_FORMAT, "this is not a number:", less);
    const double x = json_number_value(a), y = json_number_value(b);
    *strict = b && (!a || (low ? y >= x : y <= x));
    return *strict ? b : a;
}

static int64_t integer_bound(reader *d, const json_t *s, bool low)
{
    bool strict;
    const json_t *v = find_bound(d, s, low, &strict);
    const int64_t most = GRAMMAR_MAX_INT;
    if (!v) return low ? -most : most;
    if (json_is_integer(v)) {
        const int64_t n = json_integer_value(v);
        if (n > most) return low ? most + 1 : most;
        if (n < -most) return low ? -most : -most - 1;
        return strict ? (low ? n + 1 : n - 1) : n;
    }
    const double x = json_real_value(v), whole = low ? ceil(x) : floor(x);
    if (whole > (double)most) return low ? most + 1 : most;
    if (whole < -(double)most) return low ? -most : -most - 1;
    return (int64_t)whole + (strict && whole == x ? (low ? 1 : -1) : 0);
}

static rules_expr read_integer(reader *d, const json_t *s)
{
    const int64_t most = GRAMMAR_MAX_INT;
    const int64_t lo = integer_bound(d, s, true), hi = integer_bound(d, s, false);
    return rules_integers(d->r, lo > -most ? lo : -most, hi < most ? hi : most);
}

static decimal decimal_bound(reader *d, const json_t *s, bool low)
{
    decimal out = { 0 };
    bool strict;
    char *text;
    size_t n;
    const json_t *v = find_bound(d, s, low, &strict);
    if (!v || d->rc < 0) return out;
    if ((d->rc = textbuf_json_text(&text, &n, v, d->err)) < 0) return out;
    if (!decimal_read(&out, text))
        fail(d, ERR_RANGE, "18 digits before the point and 24 after it are the most for a bound:",
             text);
    if (strict && decimal_digits(&out) > 15)
        fail(d, ERR_RANGE, "15 digits are the most for an exclusive bound, not", text);
    out.strict = strict;
    mem_free(text);
    return out;
}

static rules_expr read_number(reader *d, const json_t *s)
{
    const decimal lo = decimal_bound(d, s, true), hi = decimal_bound(d, s, false);
    return lo.given || hi.given ? rules_decimals(d->r, lo, hi) : rules_call(d->r, d->v.number);
}

/* Returns a call of a new rule for a schema that is used in several places. */
static rules_expr as_rule(reader *d, const json_t *s, const char *step, size_t index, int depth)
{
    const size_t back = enter(d, step, index);
    const int rule = rules_new(d->r, str_from(d->path));
    rules_define(d->r, rule, read_schema(d, s, depth + 1));
    leave(d, back);
    return rules_call(d->r, rule);
}

/* Builds from the last fixed item to the first: the rest of the array after i items. */
static rules_expr read_array(reader *d, const json_t *s, int depth)
{
    rules *r = d->r;
    const json_t *items = json_object_get(s, "items"), *fixed = json_object_get(s, "prefixItems");
    const int min = read_count(d, s, "minItems", 0);
    const int max = read_count(d, s, "maxItems", RULES_NO_LIMIT);
    const int n = (int)json_array_size(fixed);
    if (fixed && !json_is_array(fixed)) fail(d, ERR_FORMAT, "this is not an array:", "prefixItems");
    if (n > MAX_FIXED) fail(d, ERR_RANGE, "more than 256 schemas in", "prefixItems");
    if (json_is_array(items))
        fail(d, ERR_UNSUPPORTED, "use \"prefixItems\" for a list of schemas, not", "items");
    if (d->rc < 0 || (max != RULES_NO_LIMIT && min > max)) return RULES_NOTHING;
    const rules_expr item = items ? as_rule(d, items, "items", 0, depth)
                                  : rules_call(r, d->v.value);
    rules_expr x = RULES_NOTHING;
    if (n == 0 && json_is_false(items)) {
        x = min > 0 ? RULES_NOTHING : RULES_EMPTY;
    } else if (n == 0) {
        x = value_list(&d->v, item, min, max);
    } else {
        const rules_expr next = json_is_false(items) ? RULES_NOTHING
                                                     : rules_seq(r, value_mark(&d->v, ","), item);
        const int most = max == RULES_NO_LIMIT ? RULES_NO_LIMIT : max_int(max - n, 0);
        x = rules_repeat(r, next, max_int(min - n, 0), most);
        if (json_is_false(items) && min > n) x = RULES_NOTHING;
        for (int i = n - 1; i >= 0; i--) {
            const size_t back = enter(d, "prefixItems", 0);
            const rules_expr one = as_rule(d, json_array_get(fixed, (size_t)i), NULL, (size_t)i,
                                           depth);
            leave(d, back);
            x = rules_seq3(r, i ? value_mark(&d->v, ",") : RULES_EMPTY, one, x);
            if (max != RULES_NO_LIMIT && i >= max) x = RULES_NOTHING;
            if (i >= min) x = rules_alt(r, RULES_EMPTY, x);
        }
    }
    return rules_seq3(r, rules_text(r, "["), x, rules_text(r, "]"));
}

/* ---- objects --------------------------------------------------------------------------------- */

/* Returns the names that differ from all given ones, which are equal up to byte pos. Names have
 * only characters that need no escape. */
static rules_expr other_names(reader *d, const char *const *names, int n, size_t pos)
{
    rules *r = d->r;
    uint32_t cp = 0, from = 0x20, least;
    bool ends = false;
    rules_expr x = RULES_NOTHING;
    for (int i = 0; i < n; i++) ends |= names[i][pos] == '\0';
    if (!ends) x = rules_text(r, "\"");
    for (;; from = least + 1) {          /* for each next character of a name, ascending */
        const char *among[MAX_FIXED];
        int n_among = 0, len = 0;
        least = 0x110000;
        for (int i = 0; i < n; i++) {
            const uint8_t *p = (const uint8_t *)names[i] + pos;
            if (*p && utf8_decode(&cp, p, strlen((const char *)p)) && cp >= from && cp < least)
                least = cp;
        }
        /* characters between two of them differ from all names */
        const uint32_t cuts[] = { from, '"', '\\', least };
        uint32_t begin = from;
        for (size_t k = 1; k < ARRAY_LEN(cuts); k++) {
            if (cuts[k] < begin || (cuts[k] > least)) continue;
            if (cuts[k] > begin)
                x = rules_alt(r, x, rules_seq(r, rules_chars(r, begin, cuts[k] - 1),
                                              rules_call(r, d->v.key_end)));
            begin = cuts[k] + 1;
        }
        if (least == 0x110000) return x;
        if (least == '"' || least == '\\') continue;     /* needs an escape */
        for (int i = 0; i < n; i++) {
            const uint8_t *p = (const uint8_t *)names[i] + pos;
            const int k = *p ? utf8_decode(&cp, p, strlen((const char *)p)) : 0;
            if (k == 0 || cp != least) continue;
            among[n_among++] = names[i];
            len = k;
        }
        x = rules_alt(r, x, rules_seq(r, rules_chars(r, least, least),
                                      other_names(d, among, n_among, pos + (size_t)len)));
    }
}

typedef struct member { const char *name; rules_expr x; bool required; } member;

static rules_expr member_expr(reader *d, const char *name, const json_t *s, int depth)
{
    const size_t back = enter(d, "properties", 0);
    rules_expr key = RULES_NOTHING;
    const int rule = rules_new(d->r, str_from(name));
    if (strlen(name) > MAX_NAME) fail(d, ERR_RANGE, "a name of more than 256 bytes:", name);
    const rules_expr value = as_rule(d, s, name, 0, depth);
    if (d->rc == 0) d->rc = value_key(&key, &d->v, name, d->err);
    rules_define(d->r, rule, rules_seq3(d->r, key, value_mark(&d->v, ":"), value));
    leave(d, back);
    return rules_call(d->r, rule);
}

/* Builds the members in order, from the last to the first; `more` are additional ones. */
static rules_expr members_expr(reader *d, const member *m, int n, rules_expr more)
{
    rules *r = d->r;
    const rules_expr comma = value_mark(&d->v, ",");
    rules_expr some = rules_repeat(r, rules_seq(r, comma, more), 0, RULES_NO_LIMIT);
    rules_expr none = rules_option(r, rules_seq(r, more, some));
    for (int i = n - 1; i >= 0; i--) {
        const int after_none = rules_new(r, str_from(m[i].name));
        const int after_some = rules_new(r, str_from(m[i].name));
        const rules_expr this_first = rules_seq(r, m[i].x, some);
        rules_define(r, after_none, m[i].required ? this_first : rules_alt(r, this_first, none));
        const rules_expr this_next = rules_seq(r, comma, this_first);
        rules_define(r, after_some, m[i].required ? this_next : rules_alt(r, this_next, some));
        none = rules_call(r, after_none);
        some = rules_call(r, after_some);
    }
    return none;
}

/* Gemma was trained on keys in alphabetical order, ignoring case. */
static void sort_members(member *m, int n)
{
    for (int i = 1; i < n; i++) {
        const member x = m[i];
        int pos = i;
        for (; pos > 0 && strcasecmp(m[pos - 1].name, x.name) > 0; pos--) m[pos] = m[pos - 1];
        m[pos] = x;
    }
}

/* Reads the properties in the schema's order, then names that are only in required. */
static int read_members(reader *d, member *m, const json_t *s, const json_t *more, int depth)
{
    json_t *properties = json_object_get(s, "properties"), *p;
    const json_t *required = json_object_get(s, "required");
    const char *key;
    size_t i;
    int n = 0;
    if (properties && !json_is_object(properties))
        fail(d, ERR_FORMAT, "this is not an object:", "properties");
    if (required && !json_is_array(required))
        fail(d, ERR_FORMAT, "this is not an array:", "required");
    if (json_object_size(properties) + json_array_size(required) > MAX_FIXED)
        fail(d, ERR_RANGE, "more than 256 names in", "properties");
    if (d->rc < 0) return 0;
    json_object_foreach(properties, key, p)
        m[n++] = (member){ key, member_expr(d, key, p, depth), schema_array_has(required, key) };
    json_array_foreach(required, i, p) {
        const char *name = json_string_value(p);
        bool supported = false;
        if (!name) fail(d, ERR_FORMAT, "this is not a list of names:", "required");
        for (int k = 0; k < n && name; k++) supported |= strcmp(m[k].name, name) == 0;
        if (!name || supported) continue;
        if (json_is_false(more)) fail(d, ERR_FORMAT, "required, but not allowed:", name);
        m[n++] = (member){ name, member_expr(d, name, more, depth), true };
    }
    if (d->v.as == VALUE_GEMMA) sort_members(m, n);
    return n;
}

static rules_expr read_object(reader *d, const json_t *s, int depth)
{
    rules *r = d->r;
    member m[MAX_FIXED];
    const char *names[MAX_FIXED];
    const json_t *more = json_object_get(s, "additionalProperties");
    const bool closed = d->strict && json_object_get(s, "properties");
    if (!more) more = closed ? json_false() : json_true();
    if (json_is_true(more) && !json_object_get(s, "properties") && !json_object_get(s, "required"))
        return rules_call(r, d->v.object);
    const int n = read_members(d, m, s, more, depth);
    rules_expr extra = RULES_NOTHING;
    if (!json_is_false(more) && d->rc == 0) {
        const rules_expr value = as_rule(d, more, "additionalProperties", 0, depth);
        for (int i = 0; i < n; i++) names[i] = m[i].name;
        const int rule = rules_new(r, str_from("additionalProperties"));
        /* a bare name has no closing quote, so a known name cannot be excluded */
        const rules_expr name = d->v.as == VALUE_JSON
            ? rules_seq(r, rules_text(r, "\""), other_names(d, names, n, 0))
            : n == 0 ? value_word(&d->v) : RULES_NOTHING;
        rules_define(r, rule, rules_seq3(r, name, value_mark(&d->v, ":"), value));
        if (name != RULES_NOTHING) extra = rules_call(r, rule);
    }
    return rules_seq3(r, rules_text(r, "{"), members_expr(d, m, n, extra), rules_text(r, "}"));
}

/* ---- choices --------------------------------------------------------------------------------- */

/* Returns the types that the schema allows, as bits. */
static int read_types(reader *d, const json_t *s)
{
    const json_t *type = json_object_get(s, "type"), *v = type;
    int bits = 0;
    for (size_t i = 0; type && i < (json_is_array(type) ? json_array_size(type) : 1); i++) {
        int bit = 0;
        if (json_is_array(type)) v = json_array_get(type, i);
        for (size_t k = 0; k < ARRAY_LEN(type_names) && json_is_string(v); k++)
            if (strcmp(json_string_value(v), type_names[k].name) == 0) bit = type_names[k].bit;
        if (bit == 0)
            fail(d, ERR_FORMAT, "there is no type", json_is_string(v) ? json_string_value(v) : "?");
        bits |= bit;
    }
    if (type) return bits;
    for (size_t k = 0; k < ARRAY_LEN(keywords); k++)
        if (json_object_get(s, keywords[k].name)) bits |= keywords[k].types;
    return bits;
}

static int type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return T_OBJECT;
    case JSON_ARRAY: return T_ARRAY;
    case JSON_STRING: return T_STRING;
    case JSON_INTEGER: return T_NUMBER | T_INTEGER;
    case JSON_REAL: return T_NUMBER;
    case JSON_NULL: return T_NULL;
    default: return T_BOOLEAN;
    }
}

static rules_expr read_values(reader *d, const json_t *s, const json_t *values, const char *problem)
{
    const json_t *type = json_object_get(s, "type");
    const int types = read_types(d, s);
    rules_expr x = RULES_NOTHING;
    size_t i;
    json_t *v;
    for (size_t k = 0; k < ARRAY_LEN(keywords); k++)
        if (strcmp(keywords[k].name, "type") != 0 && strcmp(keywords[k].name, problem) != 0 &&
            json_object_get(s, keywords[k].name))
            fail(d, ERR_UNSUPPORTED, "not supported together with enum or const:",
                 keywords[k].name);
    if (!json_is_array(values)) fail(d, ERR_FORMAT, "this is not an array:", problem);
    json_array_foreach(values, i, v)
        if (!type || (types & type_of(v))) x = rules_alt(d->r, x, literal(d, v));
    return x;
}

static rules_expr read_type(reader *d, const json_t *s, int types, int depth)
{
    rules *r = d->r;
    rules_expr x = RULES_NOTHING;
    if (types & T_OBJECT) x = rules_alt(r, x, read_object(d, s, depth));
    if (types & T_ARRAY) x = rules_alt(r, x, read_array(d, s, depth));
    if (types & T_STRING) x = rules_alt(r, x, read_string(d, s));
    if (types & T_NUMBER) x = rules_alt(r, x, read_number(d, s));
    else if (types & T_INTEGER) x = rules_alt(r, x, read_integer(d, s));
    if (types & T_BOOLEAN) x = rules_alt(r, x, rules_alt(r, rules_text(r, "true"),
                                                          rules_text(r, "false")));
    if (types & T_NULL) x = rules_alt(r, x, rules_text(r, "null"));
    return x;
}

/* Reads the conjunction of b and a, except a's keyword `without`. */
static rules_expr read_both(reader *d, const json_t *a, const char *without, const json_t *b,
                            int depth)
{
    json_t *all;
    if (json_is_true(b)) b = json_object_get(d->merged, "empty");
    if (json_is_false(b)) return RULES_NOTHING;
    if (!json_is_object(b)) {
        fail(d, ERR_FORMAT, "a schema is an object or a boolean, unlike one of", without);
        return RULES_NOTHING;
    }
    err_ctx reason = { 0 };
    if (!(all = schema_merge(a, without, b, &reason))) {
        fail(d, reason.code, reason.msg, NULL);
        return RULES_NOTHING;
    }
    json_array_append_new(json_object_get(d->merged, "all"), all);
    return read_schema(d, all, depth + 1);
}

static rules_expr read_any_of(reader *d, const json_t *s, const char *key, int depth)
{
    const json_t *list = json_object_get(s, key);
    rules_expr x = RULES_NOTHING;
    if (json_array_size(list) == 0) fail(d, ERR_FORMAT, "this is not a list of schemas:", key);
    for (size_t i = 0; i < json_array_size(list) && d->rc == 0; i++) {
        const size_t back = enter(d, key, 0), back_too = enter(d, NULL, i);
        x = rules_alt(d->r, x, read_both(d, s, key, json_array_get(list, i), depth));
        leave(d, back_too);
        leave(d, back);
    }
    return x;
}

/* Merges the first schema; the others stay in a shorter allOf. */
static rules_expr read_all_of(reader *d, const json_t *s, int depth)
{
    const json_t *list = json_object_get(s, "allOf");
    const size_t n = json_array_size(list);
    if (n == 0) {
        fail(d, ERR_FORMAT, "this is not a list of schemas:", "allOf");
        return RULES_NOTHING;
    }
    json_t *rest = json_copy((json_t *)s), *left = json_array();
    for (size_t i = 1; i < n; i++) json_array_append(left, json_array_get(list, i));
    if (n > 1) json_object_set(rest, "allOf", left);
    else json_object_del(rest, "allOf");
    json_decref(left);
    json_array_append_new(json_object_get(d->merged, "all"), rest);
    return read_both(d, rest, NULL, json_array_get(list, 0), depth);
}

/* ---- references ------------------------------------------------------------------------------ */

/* Resolves "#", "#/$defs/name" or "#/properties/a/items". Returns NULL if it does not exist. */
static const json_t *find_ref(const reader *d, const char *ref)
{
    const json_t *pos = d->root;
    char step[MAX_NAME];
    if (*ref++ != '#') return NULL;
    while (*ref == '/' && pos) {
        size_t n = 0;
        for (ref++; *ref && *ref != '/'; ref++) {
            char c = *ref;
            if (c == '~' && (ref[1] == '0' || ref[1] == '1')) c = *++ref == '0' ? '~' : '/';
            if (n < sizeof step - 1) step[n++] = c;
        }
        step[n] = '\0';
        if (json_is_array(pos)) {
            size_t i = 0;
            for (const char *p = step; *p >= '0' && *p <= '9' && i < 100000; p++)
                i = i * 10 + (size_t)(*p - '0');
            pos = json_array_get(pos, i);
        } else {
            pos = json_object_get(pos, step);
        }
    }
    return *ref ? NULL : pos;
}

static rules_expr read_ref(reader *d, const json_t *s, int depth)
{
    const json_t *ref = json_object_get(s, "$ref");
    const char *text = json_is_string(ref) ? json_string_value(ref) : "?", *key;
    const json_t *target = find_ref(d, text), *v;
    bool alone = true;
    json_object_foreach((json_t *)s, key, v)
        alone &= strcmp(key, "$ref") == 0 || schema_is_remark(key);
    if (!target) {
        fail(d, ERR_FORMAT, "the schema has no target for the reference", text);
        return RULES_NOTHING;
    }
    if (!alone) return read_both(d, s, "$ref", target, depth);
    for (int i = 0; i < d->n_ref; i++)
        if (d->refs[i].target == target) return rules_call(d->r, d->refs[i].rule);
    if (d->n_ref == MAX_REFS) {
        fail(d, ERR_RANGE, "more than 1024 different references:", text);
        return RULES_NOTHING;
    }
    d->refs[d->n_ref].target = target;   /* read_pending reads it */
    d->refs[d->n_ref].rule = rules_new(d->r, str_from(text));
    return rules_call(d->r, d->refs[d->n_ref++].rule);
}

/* ---- the schema ------------------------------------------------------------------------------ */

/* Returns true for a keyword that does not narrow the schema. */
static bool is_harmless(const char *key, const json_t *v)
{
    return schema_is_remark(key) || (strcmp(key, "uniqueItems") == 0 && json_is_false(v)) ||
           (strcmp(key, "minProperties") == 0 && json_is_integer(v) && json_integer_value(v) == 0);
}

static void check_keywords(reader *d, const json_t *s)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)s, key, v) {
        bool supported = is_harmless(key, v);
        for (size_t k = 0; k < ARRAY_LEN(keywords); k++)
            supported |= strcmp(key, keywords[k].name) == 0;
        if (!supported) fail(d, ERR_UNSUPPORTED, "unsupported keyword", key);
    }
}

static rules_expr read_schema(reader *d, const json_t *s, int depth)
{
    if (d->rc < 0) return RULES_NOTHING;
    if (json_is_true(s)) return rules_call(d->r, d->v.value);
    if (json_is_false(s)) return RULES_NOTHING;
    if (!json_is_object(s)) fail(d, ERR_FORMAT, "a schema is an object or a boolean", NULL);
    else check_keywords(d, s);
    if (depth > MAX_DEPTH) fail(d, ERR_RANGE, "more than 64 schemas within each other", NULL);
    if (++d->n_visit > MAX_VISITS) fail(d, ERR_RANGE, "the schema is too large", NULL);
    if (d->rc < 0) return RULES_NOTHING;
    if (json_object_get(s, "$ref")) return read_ref(d, s, depth);
    if (json_object_get(s, "allOf")) return read_all_of(d, s, depth);
    if (json_object_get(s, "anyOf")) return read_any_of(d, s, "anyOf", depth);
    if (json_object_get(s, "oneOf")) return read_any_of(d, s, "oneOf", depth);
    if (json_object_get(s, "const")) {
        json_t *one = json_pack("[O]", json_object_get(s, "const"));
        const rules_expr x = read_values(d, s, one, "const");
        json_decref(one);
        return x;
    }
    if (json_object_get(s, "enum")) return read_values(d, s, json_object_get(s, "enum"), "enum");
    const int types = read_types(d, s);
    return types || d->rc < 0 || json_object_get(s, "type") ? read_type(d, s, types, depth)
                                                            : rules_call(d->r, d->v.value);
}

/* Reads the schema, then all schemas that it refers to, directly or indirectly. */
static int read_all(reader *d, const json_t *schema)
{
    const int first = d->n_ref, root = rules_new(d->r, str_from("#"));
    rules_define(d->r, root, read_schema(d, schema, 0));
    for (int i = first; i < d->n_ref && d->rc == 0; i++) {
        snprintf(d->path, sizeof d->path, " (by $ref)");
        rules_define(d->r, d->refs[i].rule, read_schema(d, d->refs[i].target, 0));
    }
    return d->rc < 0 ? d->rc : root;
}

int schema_reader_create(schema_reader **out, rules *r, value_notation as, err_ctx *err)
{
    reader *d = mem_zalloc(sizeof *d);
    *out = NULL;
    if (!d) return err_set(err, ERR_NOMEM, "out of memory for a schema");
    d->r = r;
    d->err = err;
    d->merged = json_pack("{s:[], s:{}}", "all", "empty");
    const int rc = d->merged ? value_rules_init(&d->v, r, as, err)
                             : err_set(err, ERR_NOMEM, "out of memory for a schema");
    if (rc < 0) schema_reader_free(d);
    else *out = d;
    return rc;
}

void schema_reader_free(schema_reader *d)
{
    if (!d) return;
    json_decref(d->merged);
    mem_free(d);
}

static void begin(reader *d, const json_t *root, schema_strictness strictness, err_ctx *err)
{
    d->root = root;
    d->strict = strictness != SCHEMA_OPEN;
    d->lenient = strictness == SCHEMA_LENIENT;
    d->n_visit = d->rc = 0;
    d->path[0] = '\0';
    d->err = err;
}

int schema_reader_add(schema_reader *d, const json_t *root, const json_t *pos,
                      schema_strictness strictness,
                      err_ctx *err)
{
    begin(d, root, strictness, err);
    return read_all(d, pos);
}

int schema_reader_letters(rules_expr *out, schema_reader *d, const json_t *s, rules_expr letter,
                          schema_strictness strictness, err_ctx *err)
{
    begin(d, s, strictness, err);
    check_keywords(d, s);
    *out = read_letters(d, s, letter);
    return d->rc;
}

int grammar_from_schema(grammar **out, const json_t *schema, bool strict, err_ctx *err)
{
    rules *r = rules_create();
    schema_reader *d = NULL;
    *out = NULL;
    int rc = r ? schema_reader_create(&d, r, VALUE_JSON, err)
               : err_set(err, ERR_NOMEM, "out of memory for a schema");
    if (rc == 0)
        rc = schema_reader_add(d, schema, schema, strict ? SCHEMA_CLOSED : SCHEMA_OPEN, err);
    if (rc >= 0) rc = rules_finish(out, r, rc, err);
    schema_reader_free(d);
    rules_free(r);
    return rc;
}

int grammar_any_object(grammar **out, err_ctx *err)
{
    json_t *schema = json_pack("{s:s}", "type", "object");
    const int rc = grammar_from_schema(out, schema, false, err);
    json_decref(schema);
    return rc;
}
