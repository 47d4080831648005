/* make_schema.c - a small validator, written without a look at the grammars, and schemas made of
 * all that is supported. */
#include "tests/make_schema.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the validator --------------------------------------------------------------------------- */

static bool is_type(const json_t *v, const char *name)
{
    if (strcmp(name, "object") == 0) return json_is_object(v);
    if (strcmp(name, "array") == 0) return json_is_array(v);
    if (strcmp(name, "string") == 0) return json_is_string(v);
    if (strcmp(name, "integer") == 0) return json_is_integer(v);
    if (strcmp(name, "number") == 0) return json_is_number(v);
    if (strcmp(name, "boolean") == 0) return json_is_boolean(v);
    return json_is_null(v);
}

static bool has_type(const json_t *v, const json_t *type)
{
    if (json_is_string(type)) return is_type(v, json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        if (is_type(v, json_string_value(json_array_get(type, i)))) return true;
    return false;
}

/* Digits where a picture has 0, hexadecimal ones where it has x, else its own characters. */
static bool looks_like(const char *s, const char *picture)
{
    for (; *picture; s++, picture++)
        if (*picture == '0' ? !(*s >= '0' && *s <= '9')
            : *picture == 'x' ? !*s || !strchr("0123456789abcdef", *s) : *s != *picture)
            return false;
    return *s == '\0';
}

static bool has_format(const char *s, const char *format)
{
    int y, m, d;
    if (strcmp(format, "uuid") == 0) return looks_like(s, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx");
    return looks_like(s, "0000-00-00") && sscanf(s, "%d-%d-%d", &y, &m, &d) == 3 && m >= 1 &&
           m <= 12 && d >= 1 &&
           d <= (m == 2 ? 29 : m == 4 || m == 6 || m == 9 || m == 11 ? 30 : 31);
}

static size_t n_char(const char *s)
{
    size_t n = 0;
    for (; *s; s++) n += (*s & 0xC0) != 0x80;
    return n;
}

bool schema_lists(const json_t *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), name) == 0) return true;
    return false;
}

/* What the schema says about the value itself; root has the $defs. Objects that name properties
 * have no others if strict and nothing is said, except within allOf. */
bool schema_valid(const json_t *s, const json_t *v, const json_t *root, bool strict)
{
    const json_t *x, *y, *p;
    const char *key;
    if (json_is_boolean(s)) return json_is_true(s);
    if ((x = json_object_get(s, "$ref")))
        return schema_valid(json_object_get(json_object_get(root, "$defs"),
                                     strrchr(json_string_value(x), '/') + 1), v, root, strict);
    if ((x = json_object_get(s, "allOf"))) {
        for (size_t i = 0; i < json_array_size(x); i++) {
            json_t *open = json_copy(json_array_get(x, i));
            json_object_set_new(open, "additionalProperties", json_true());
            const bool ok = schema_valid(open, v, root, strict);
            json_decref(open);
            if (!ok) return false;
        }
        json_object_foreach((json_t *)v, key, p) {
            bool known = !strict;
            for (size_t i = 0; i < json_array_size(x); i++)
                known |= json_object_get(json_object_get(json_array_get(x, i), "properties"),
                                         key) !=
                         NULL;
            if (!known) return false;
        }
        return true;
    }
    if ((x = json_object_get(s, "anyOf")) || (x = json_object_get(s, "oneOf"))) {
        for (size_t i = 0; i < json_array_size(x); i++)
            if (schema_valid(json_array_get(x, i), v, root, strict)) return true;
        return false;
    }
    if ((x = json_object_get(s, "const"))) return json_equal(x, v);
    if ((x = json_object_get(s, "enum"))) {
        for (size_t i = 0; i < json_array_size(x); i++)
            if (json_equal(json_array_get(x, i), v)) return true;
        return false;
    }
    if ((x = json_object_get(s, "type")) && !has_type(v, x)) return false;
    if ((x = json_object_get(s, "format")) && json_is_string(v) &&
        !has_format(json_string_value(v), json_string_value(x))) return false;
    const double n = json_number_value(v);
    if (json_is_number(v)) {
        if ((x = json_object_get(s, "minimum")) && n < json_number_value(x)) return false;
        if ((x = json_object_get(s, "maximum")) && n > json_number_value(x)) return false;
        if ((x = json_object_get(s, "exclusiveMinimum")) && n <= json_number_value(x)) return false;
        if ((x = json_object_get(s, "exclusiveMaximum")) && n >= json_number_value(x)) return false;
    }
    if (json_is_string(v)) {
        const size_t len = n_char(json_string_value(v));
        if ((x = json_object_get(s, "minLength")) &&
            len < (size_t)json_integer_value(x)) return false;
        if ((x = json_object_get(s, "maxLength")) &&
            len > (size_t)json_integer_value(x)) return false;
    }
    if (json_is_array(v)) {
        const size_t len = json_array_size(v), fixed = json_array_size(json_object_get(s,
            "prefixItems"));
        if ((x = json_object_get(s, "minItems")) &&
            len < (size_t)json_integer_value(x)) return false;
        if ((x = json_object_get(s, "maxItems")) &&
            len > (size_t)json_integer_value(x)) return false;
        for (size_t i = 0; i < len; i++) {
            x = i < fixed ? json_array_get(json_object_get(s, "prefixItems"), i)
                          : json_object_get(s, "items");
            if (x && !schema_valid(x, json_array_get(v, i), root, strict)) return false;
        }
    }
    if (json_is_object(v)) {
        const json_t *properties = json_object_get(s, "properties");
        y = json_object_get(s, "additionalProperties");
        if (!y) y = strict && properties ? json_false() : json_true();
        for (size_t i = 0; i < json_array_size(json_object_get(s, "required")); i++)
            if (!json_object_get(v, json_string_value(json_array_get(json_object_get(s,
                "required"), i))))
                return false;
        json_object_foreach((json_t *)v, key, p) {
            x = json_object_get(properties, key);
            if (!schema_valid(x ? x : y, p, root, strict)) return false;
        }
    }
    return true;
}

/* ---- random schemas -------------------------------------------------------------------------- */

const char *const schema_names[SCHEMA_N_NAME] = { "a", "ab", "abc", "b", "\xC3\xA9", "\xC3\xA9t",
                                                 "x y", "q\"", "" };

static json_t *schema_of(test_rng *rng, int depth, bool object);

static json_t *object_schema(test_rng *rng, int depth, int from, int to)
{
    json_t *s = json_pack("{s:s}", "type", "object"), *p = json_object(), *required = json_array();
    for (int i = from; i < to; i++) {
        if (test_below(rng, 2)) continue;
        json_object_set_new(p, schema_names[i], schema_of(rng, depth - 1, false));
        if (test_below(rng, 2)) json_array_append_new(required, json_string(schema_names[i]));
    }
    json_object_set_new(s, "properties", p);
    if (json_array_size(required)) json_object_set(s, "required", required);
    json_decref(required);
    return s;
}

static json_t *number_schema(test_rng *rng, bool whole)
{
    json_t *s = json_pack("{s:s}", "type", whole ? "integer" : "number");
    static const double scales[] = { 1, 0.01, 10, 1000 };
    const double scale = whole ? scales[2 * test_below(rng, 2)] : scales[test_below(rng, 4)];
    const int first = (int)test_below(rng, 400) - 200;
    const double lo = round(first * scale * 100) / 100;
    const double hi = round((first + 1 + (int)test_below(rng, 300)) * scale * 100) / 100;
    const char *const low = test_below(rng, 2) ? "minimum" : "exclusiveMinimum";
    const char *const high = test_below(rng, 2) ? "maximum" : "exclusiveMaximum";
    if (test_below(rng, 3))
        json_object_set_new(s, low, whole ? json_integer((json_int_t)lo) : json_real(lo));
    if (test_below(rng, 3))
        json_object_set_new(s, high, whole ? json_integer((json_int_t)hi + 1) : json_real(hi));
    return s;
}

static json_t *array_schema(test_rng *rng, int depth)
{
    json_t *s = json_pack("{s:s}", "type", "array");
    const int min = (int)test_below(rng, 3);
    if (test_below(rng, 2)) json_object_set_new(s, "items", schema_of(rng, depth - 1, false));
    if (test_below(rng, 3) == 0)
        json_object_set_new(s, "prefixItems", json_pack("[o,o]", schema_of(rng, depth - 1, false),
                                                        schema_of(rng, depth - 1, false)));
    if (test_below(rng, 2)) json_object_set_new(s, "minItems", json_integer(min));
    if (test_below(rng, 2))
        json_object_set_new(s, "maxItems", json_integer(min + (int)test_below(rng, 3)));
    return s;
}

static json_t *schema_of(test_rng *rng, int depth, bool object)
{
    const uint32_t kind = object ? 8 : depth <= 0 ? test_below(rng, 7) : test_below(rng, 13);
    json_t *s;
    switch (kind) {
    case 0: return json_pack("{s:s}", "type", "boolean");
    case 1: return json_pack("{s:s}", "type", "null");
    case 2:
        s = json_pack("{s:s}", "type", "string");
        if (test_below(rng, 2)) json_object_set_new(s, "minLength", json_integer(test_below(rng,
            4)));
        if (test_below(rng, 2)) json_object_set_new(s, "maxLength",
                                                    json_integer(4 + test_below(rng, 4)));
        return s;
    case 3: return number_schema(rng, true);
    case 4: return number_schema(rng, false);
    case 5: return json_pack("{s:[s,s,i]}", "enum", "one", "o", 3);
    case 6: return json_pack("{s:s}", "const", "k\xC3\xA9");
    case 7: return array_schema(rng, depth);
    case 9: return json_pack("{s:[o,o]}", "anyOf", schema_of(rng, depth - 1, false), schema_of(rng,
        depth - 1, false));
    case 10: return json_pack("{s:s}", "$ref", "#/$defs/t");
    case 11: return json_pack("{s:[o,o]}", "allOf", object_schema(rng, depth, 0, 3),
                              object_schema(rng, depth, 3, 7));
    default:
        s = object_schema(rng, depth, 0, SCHEMA_N_NAME);
        if (test_below(rng, 2) == 0) return s;
        json_object_set_new(s, "additionalProperties",
                            test_below(rng, 3) ? json_boolean(test_below(rng, 2)) : schema_of(rng,
                                depth - 1, false));
        return s;
    }
}

json_t *schema_random(test_rng *rng)
{
    json_t *s = schema_of(rng, 3, true);
    json_object_set_new(s, "$defs", json_pack("{s:o}", "t", object_schema(rng, 2, 0, 5)));
    return s;
}

static void widen_string(test_rng *rng, json_t *s)
{
    const bool bare = json_object_size(s) == 1;
    if (!json_object_get(s, "maxLength")) json_object_set_new(s, "maxLength", json_integer(12));
    if (test_below(rng, 4) == 0)
        json_object_set_new(s, "type", json_pack("[s,s]", "string", "null"));
    if (!bare || test_below(rng, 3)) return;
    json_object_del(s, "maxLength");
    json_object_set_new(s, "format", json_string(test_below(rng, 2) ? "date" : "uuid"));
}

void schema_widen(test_rng *rng, json_t *s)
{
    const char *type = json_string_value(json_object_get(s, "type")), *key;
    json_t *x;
    size_t i;
    json_object_foreach(s, key, x) schema_widen(rng, x);
    if (json_is_array(s)) json_array_foreach(s, i, x) schema_widen(rng, x);
    if ((x = json_object_get(s, "anyOf")) && test_below(rng, 2)) {
        json_object_set(s, "oneOf", x);
        json_object_del(s, "anyOf");
    }
    if (type && strcmp(type, "string") == 0) widen_string(rng, s);
    else if (type && strcmp(type, "boolean") == 0 && test_below(rng, 4) == 0)
        json_object_set_new(s, "type", json_pack("[s,s]", "boolean", "integer"));
    else if (type && strcmp(type, "array") == 0) {
        if (!json_object_get(s, "items"))
            json_object_set_new(s, "items", json_pack("{s:s}", "type", "boolean"));
        if (!json_object_get(s, "maxItems")) json_object_set_new(s, "maxItems", json_integer(3));
    } else if (type && strcmp(type, "object") == 0) json_object_del(s, "additionalProperties");
}
