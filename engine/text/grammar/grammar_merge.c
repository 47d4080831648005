/* grammar_merge.c - conjunction of two schemas: allOf, and keywords next to $ref and anyOf.
 *
 * A keyword of only one schema is copied. If both have it: properties and required are united,
 * bounds become the narrower one, types the common ones; $ref, anyOf, oneOf and allOf are collected
 * in a new allOf. All other keywords must be equal. */
#include "engine/text/grammar/grammar_merge.h"

#include <string.h>

bool schema_is_remark(const char *keyword)
{
    static const char *const remarks[] = {
        "title", "description", "default", "examples", "$schema", "deprecated", "$id", "$comment",
        "readOnly", "writeOnly", "$defs", "definitions", "contentMediaType", "contentEncoding",
    };
    for (size_t i = 0; i < ARRAY_LEN(remarks); i++)
        if (strcmp(keyword, remarks[i]) == 0) return true;
    return false;
}

bool schema_array_has(const json_t *array, const char *string)
{
    size_t i;
    json_t *x;
    json_array_foreach(array, i, x)
        if (json_is_string(x) && strcmp(json_string_value(x), string) == 0) return true;
    return false;
}

static bool has_type(const json_t *types, const char *name)
{
    if (json_is_string(types)) return strcmp(json_string_value(types), name) == 0;
    return schema_array_has(types, name);
}

/* Returns the common types; an integer is a number. */
static json_t *common_types(const json_t *a, const json_t *b)
{
    static const char *const names[] = {
        "object", "array", "string", "number", "boolean", "null"
    };
    json_t *both = json_array();
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (has_type(a, names[i]) && has_type(b, names[i]))
            json_array_append_new(both, json_string(names[i]));
    const bool in_a = has_type(a, "integer"), in_b = has_type(b, "integer");
    if ((in_a && (in_b || has_type(b, "number"))) || (in_b && has_type(a, "number")))
        if (!has_type(both, "number")) json_array_append_new(both, json_string("integer"));
    return both;
}

static json_t *both_properties(const json_t *a, const json_t *b)
{
    json_t *all = json_copy((json_t *)a), *x;
    const char *key;
    json_object_foreach((json_t *)b, key, x) {
        json_t *have = json_object_get(all, key);
        if (!have) json_object_set(all, key, x);
        else if (!json_equal(have, x))
            json_object_set_new(all, key, json_pack("{s:[O,O]}", "allOf", have, x));
    }
    return all;
}

static json_t *both_required(const json_t *a, const json_t *b)
{
    json_t *all = json_copy((json_t *)a);
    json_array_extend(all, (json_t *)b);         /* duplicate names have no effect */
    return all;
}

/* Returns true if `closed` forbids a property that `other` names. */
static bool closes_out(const json_t *closed, const json_t *other)
{
    const json_t *more = json_object_get(closed, "additionalProperties"), *x;
    const json_t *properties = json_object_get(closed, "properties");
    const char *key;
    if (!more || json_is_true(more)) return false;
    json_object_foreach(json_object_get(other, "properties"), key, x)
        if (!json_object_get(properties, key)) return true;
    return false;
}

static const char *conflict(const json_t *a, const json_t *b)
{
    if (closes_out(a, b) || closes_out(b, a)) return "additionalProperties";
    if ((json_object_get(a, "items") && json_object_get(b, "prefixItems")) ||
        (json_object_get(b, "items") && json_object_get(a, "prefixItems"))) return "prefixItems";
    return NULL;
}

static bool is_choice(const char *key)
{
    return strcmp(key, "$ref") == 0 || strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0 ||
           strcmp(key, "allOf") == 0;
}

static bool is_bound(const char *key, const char *less, const char *more)
{
    const size_t n = strlen(less);
    return strncmp(key, less, n) == 0 || strncmp(key, more, strlen(more)) == 0;
}

/* Returns the merged value of a keyword that both have, or NULL if the two conflict. */
static json_t *both_values(const char *key, json_t *a, json_t *b)
{
    if (json_equal(a, b)) return json_incref(a);
    if (strcmp(key, "properties") == 0 && json_is_object(a) && json_is_object(b))
        return both_properties(a, b);
    if (strcmp(key, "required") == 0 && json_is_array(a) && json_is_array(b))
        return both_required(a, b);
    if (strcmp(key, "type") == 0) return common_types(a, b);
    if (json_is_number(a) && json_is_number(b)) {
        const bool a_less = json_number_value(a) < json_number_value(b);
        if (is_bound(key, "min", "exclusiveMin")) return json_incref(a_less ? b : a);
        if (is_bound(key, "max", "exclusiveMax")) return json_incref(a_less ? a : b);
    }
    return NULL;
}

static int merge_into(json_t *all, const json_t *b, err_ctx *err)
{
    const char *key;
    json_t *x;
    char esc[96];
    json_object_foreach((json_t *)b, key, x) {
        json_t *have = json_object_get(all, key);
        if (schema_is_remark(key)) continue;
        if (!have) {
            json_object_set(all, key, x);
        } else if (is_choice(key) && !json_equal(have, x)) {
            json_t *list = json_copy(json_object_get(all, "allOf"));
            if (!json_is_array(list)) {
                json_decref(list);
                list = json_array();
            }
            json_array_append_new(list, json_pack("{s:O}", key, x));
            json_object_set_new(all, "allOf", list);
        } else {
            json_t *both = both_values(key, have, x);
            if (!both)
                return err_set(err, ERR_UNSUPPORTED, "\"%s\" has two values that conflict",
                               ESC(esc, str_from(key)));
            json_object_set_new(all, key, both);
        }
    }
    return 0;
}

json_t *schema_merge(const json_t *a, const char *without, const json_t *b, err_ctx *err)
{
    json_t *all = json_copy((json_t *)a);
    if (!all) {
        err_set(err, ERR_NOMEM, "out of memory for a schema");
        return NULL;
    }
    if (without) json_object_del(all, without);
    const char *conflicting = conflict(all, b);
    if (conflicting)
        err_set(err, ERR_UNSUPPORTED, "\"%s\" in one of two combined schemas", conflicting);
    if (conflicting || merge_into(all, b, err) < 0) {
        json_decref(all);
        return NULL;
    }
    return all;
}
