/* api_fields.c - a body to JSON, and JSON to fields: the checks that all APIs share.
 *
 * After a failure *error names the field and its fault. null counts as absent. A field of the wrong
 * type is never used. */
#include "cli/serve/api_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

/* ---- errors -------------------------------------------------------------------------------- */

api_path api_path_of(const char *fmt, ...)
{
    api_path p;
    va_list args;
    va_start(args, fmt);
    vsnprintf(p.text, sizeof p.text, fmt, args);
    va_end(args);
    return p;
}

api_path api_path_in(const char *path, const char *key)
{
    return api_path_of("%s%s%s", path, path[0] ? "." : "", key);
}

static int refuse(api_error *error, api_error_type type, const char *param, const char *fmt,
                  va_list args)
{
    char message[sizeof error->message];
    vsnprintf(message, sizeof message, fmt, args);
    api_error_make(error, type, API_CHAT, "%s%s%s", param, param[0] ? ": " : "", message);
    snprintf(error->param, sizeof error->param, "%s", param);
    return -1;
}

int api_refuse(api_error *error, const char *param, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    refuse(error, API_BAD_REQUEST, param, fmt, args);
    va_end(args);
    return -1;
}

int api_refuse_field(api_error *error, const char *path, const char *key, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    refuse(error, API_BAD_REQUEST, api_path_in(path, key).text, fmt, args);
    va_end(args);
    return -1;
}

int api_no_support(api_error *error, const char *param, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    refuse(error, API_UNSUPPORTED, param, fmt, args);
    va_end(args);
    return -1;
}

int api_no_memory(api_error *error)
{
    api_error_make(error, API_BROKEN, API_CHAT, "out of memory for the request");
    return -1;
}

/* ---- JSON ---------------------------------------------------------------------------------- */

/* The end of the number at i. *big: an integer beyond 64 bits. */
static size_t number_end(bool *big, const char *s, size_t i, size_t n)
{
    const size_t from = i;
    bool whole = true;
    char text[24];

    while (i < n && s[i] && strchr("+-.0123456789eE", s[i])) {
        if (strchr(".eE", s[i])) whole = false;
        i++;
    }
    *big = whole && i - from >= sizeof text;
    if (whole && i - from > 18 && !*big) {
        memcpy(text, s + from, i - from);
        text[i - from] = '\0';
        errno = 0;
        strtoll(text, NULL, 10);
        *big = errno == ERANGE;
    }
    return i;
}

/* Checks the depth, which the library limits at a higher level. The library refuses integers beyond
 * 64 bits, which schemas have: *copy gets the text with ".0" after each; empty: there are none. */
static int scan(textbuf *copy, const char *s, size_t n, api_error *error)
{
    size_t from = 0;
    bool in_string = false, big;
    int depth = 0;

    for (size_t i = 0; i < n; i++) {
        const char c = s[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > API_MAX_DEPTH)
                return api_refuse(error, "", "the body is nested deeper than %d levels",
                                  API_MAX_DEPTH);
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == '-' || (c >= '0' && c <= '9')) {
            i = number_end(&big, s, i, n) - 1;
            if (!big) continue;
            textbuf_put(copy, (str_view){ s + from, i + 1 - from });
            textbuf_str(copy, ".0");
            from = i + 1;
        }
    }
    if (from) textbuf_put(copy, (str_view){ s + from, n - from });
    return copy->failed ? api_no_memory(error) : 0;
}

/* Without the library's quotation of the body: the message is logged, and the log has no text of
 * requests. */
static void refuse_syntax(api_error *error, const json_error_t *position)
{
    const char *quote = strstr(position->text, " near '");
    const size_t n = quote ? (size_t)(quote - position->text) : strlen(position->text);
    api_refuse(error, "", "the body is not JSON: line %d, column %d: %.*s", position->line,
               position->column, (int)n, position->text);
}

json_t *api_json_read(const char *text, size_t n, api_error *error)
{
    textbuf copy = { 0 };
    json_error_t position;
    json_t *v = NULL;

    if (!n) {
        api_refuse(error, "", "the body is empty; a JSON object is expected");
    } else if (scan(&copy, text, n, error) == 0) {
        v = json_loadb(copy.len ? copy.ptr : text, copy.len ? copy.len : n, JSON_ALLOW_NUL,
                       &position);
        if (!v) refuse_syntax(error, &position);
    }
    textbuf_free(&copy);
    return v;
}

/* ---- memory -------------------------------------------------------------------------------- */

typedef struct api_block {
    struct api_block *next;
    max_align_t data[];
} api_block;

void *api_alloc(api_request *r, size_t n, size_t size)
{
    uint64_t bytes;
    api_block *b;
    if (!size_mul(&bytes, n, size) || !size_add(&bytes, bytes, sizeof *b)) return NULL;
    if (!(b = mem_zalloc(bytes))) return NULL;
    b->next = r->arena;
    r->arena = b;
    return b->data;
}

int api_keep(str_view *out, api_request *r, const textbuf *b, api_error *error)
{
    char *p = b->failed ? NULL : api_alloc(r, b->len + 1, 1);
    if (!p) return api_no_memory(error);
    if (b->len) memcpy(p, b->ptr, b->len);
    *out = (str_view){ p, b->len };
    return 0;
}

void api_request_free(api_request *r)
{
    if (!r) return;
    while (r->arena) {
        api_block *b = r->arena;
        r->arena = b->next;
        mem_free(b);
    }
    json_decref(r->root);
    json_decref(r->built);
    mem_free(r);
}

/* ---- fields -------------------------------------------------------------------------------- */

const json_t *api_field(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

int api_bool(bool *out, const json_t *o, const char *path, const char *key, api_error *error)
{
    const json_t *v = api_field(o, key);
    if (!v) return 0;
    if (!json_is_boolean(v)) return api_refuse_field(error, path, key, "true or false is expected");
    *out = json_is_true(v);
    return 0;
}

int api_float(float *out, const json_t *o, const char *path, const char *key, double min,
              double max, api_error *error)
{
    const json_t *v = api_field(o, key);
    double x;
    if (!v) return 0;
    if (!json_is_number(v)) return api_refuse_field(error, path, key, "a number is expected");
    x = json_number_value(v);
    if (!(x >= min && x <= max))
        return api_refuse_field(error, path, key, "%g is outside of %g to %g", x, min, max);
    *out = (float)x;
    return 0;
}

int api_int(int64_t *out, bool *given, const json_t *o, const char *path, const char *key,
            int64_t min, int64_t max, api_error *error)
{
    const json_t *v = api_field(o, key);
    *given = false;
    if (!v) return 0;
    if (json_is_real(v) && json_real_value(v) == trunc(json_real_value(v)) &&
        fabs(json_real_value(v)) < 9e15) {
        *out = (int64_t)json_real_value(v);
    } else if (json_is_integer(v)) {
        *out = json_integer_value(v);
    } else {
        return api_refuse_field(error, path, key, "a whole number is expected");
    }
    if (*out < min || *out > max)
        return api_refuse_field(error, path, key, "%lld is outside of %lld to %lld",
                                (long long)*out, (long long)min, (long long)max);
    *given = true;
    return 0;
}

int api_string(const char **out, const json_t *v, const char *param, api_error *error)
{
    if (!v) return 0;
    if (!json_is_string(v)) return api_refuse(error, param, "a string is expected");
    if (strlen(json_string_value(v)) != json_string_length(v))
        return api_refuse(error, param, "a zero byte is not allowed");
    *out = json_string_value(v);
    return 0;
}

int api_text(const char **out, const json_t *o, const char *path, const char *key,
             api_error *error)
{
    return api_string(out, api_field(o, key), api_path_in(path, key).text, error);
}

int api_list(const json_t **out, const json_t *o, const char *path, const char *key,
             api_error *error)
{
    const json_t *v = api_field(o, key);
    if (v && !json_is_array(v)) return api_refuse_field(error, path, key, "an array is expected");
    *out = v;
    return 0;
}

int api_object(const json_t **out, const json_t *o, const char *path, const char *key,
               api_error *error)
{
    const json_t *v = api_field(o, key);
    if (v && !json_is_object(v)) return api_refuse_field(error, path, key, "an object is expected");
    *out = v;
    return 0;
}

/* ---- groups of fields ---------------------------------------------------------------------- */

static int read_seed(api_request *r, const json_t *o, const char *path, api_error *error)
{
    const json_t *v = api_field(o, "seed");
    const double x = json_number_value(v);
    if (!v) return 0;
    if (json_is_integer(v)) r->seed = (uint64_t)json_integer_value(v);
    /* beyond int64 digits are rounded; equal seeds stay equal */
    else if (json_is_real(v) && x == trunc(x) && x > -9.3e18 && x <= 1.8446744073709552e19)
        r->seed = x < 0 ? (uint64_t)(int64_t)fmax(x, (double)INT64_MIN)
                : x >= 18446744073709551615.0 ? UINT64_MAX : (uint64_t)x;
    else return api_refuse_field(error, path, "seed", "a 64-bit integer is expected");
    r->has_seed = true;
    return 0;
}

int api_sampling(api_request *r, const json_t *o, const char *path, api_error *error)
{
    const struct { const char *key; float *out; double min, max; } fields[] = {
        { "temperature", &r->temperature, 0, 2 },
        { "top_p", &r->top_p, 1e-9, 1 },
        { "min_p", &r->min_p, 0, 1 },
        { "frequency_penalty", &r->frequency_penalty, -2, 2 },
        { "presence_penalty", &r->presence_penalty, -2, 2 },
        { "repeat_penalty", &r->repeat_penalty, 1e-9, 10 },
    };
    int64_t v;
    bool given;

    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if (api_float(fields[i].out, o, path, fields[i].key, fields[i].min, fields[i].max,
                      error) < 0) return -1;
    if (api_int(&v, &given, o, path, "top_k", 0, INT_MAX, error) < 0) return -1;
    if (given) r->top_k = (int)v;
    return read_seed(r, o, path, error);
}

int api_stops(api_request *r, const json_t *o, const char *path, const char *key, api_error *error)
{
    const json_t *v = api_field(o, key), *item;
    const size_t n = json_is_array(v) ? json_array_size(v) : v != NULL;

    if (!v) return 0;
    if (!json_is_array(v) && !json_is_string(v))
        return api_refuse_field(error, path, key, "a string or an array of strings is expected");
    if (n > 64) return api_refuse_field(error, path, key, "%zu stop strings are more than 64", n);
    if (!(r->stop = api_alloc(r, n + 1, sizeof *r->stop))) return api_no_memory(error);
    for (size_t i = 0; i < n; i++) {
        item = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(item))
            return api_refuse_field(error, path, key, "a string is expected");
        if (!json_string_length(item)) continue;
        if (strlen(json_string_value(item)) != json_string_length(item))
            return api_refuse_field(error, path, key, "a zero byte is not allowed");
        if (json_string_length(item) > STOP_STRING_MAX_BYTES)
            return api_refuse_field(error, path, key, "a stop string of %zu bytes is longer than "
                                    "%d", json_string_length(item), STOP_STRING_MAX_BYTES);
        r->stop[r->n_stop++] = json_string_value(item);
    }
    return 0;
}

int api_max_tokens(api_request *r, const json_t *o, const char *path, const char *key, bool zero,
                   api_error *error)
{
    int64_t v;
    bool given;
    if (api_int(&v, &given, o, path, key, INT64_MIN, INT64_MAX, error) < 0) return -1;
    if (!given) return 0;
    if (v == 0 && !zero) return api_refuse_field(error, path, key, "at least 1 is expected");
    r->max_tokens = v < 0 ? -1 : v > INT_MAX ? INT_MAX : (int)v;
    return 0;
}

int api_effort(api_request *r, const json_t *o, const char *path, const char *key,
               api_error *error)
{
    static const struct { const char *name; chat_effort effort; } names[] = {
        { "none", CHAT_EFFORT_LOW }, { "minimal", CHAT_EFFORT_LOW }, { "low", CHAT_EFFORT_LOW },
        { "medium", CHAT_EFFORT_MEDIUM }, { "high", CHAT_EFFORT_HIGH },
        { "xhigh", CHAT_EFFORT_HIGH }, { "max", CHAT_EFFORT_HIGH },
    };
    const char *text = NULL;
    char esc[48];

    if (api_text(&text, o, path, key, error) < 0) return -1;
    if (!text) return 0;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(names[i].name, text) != 0) continue;
        r->chat.effort = names[i].effort;
        r->chat.thinking = i == 0 ? CHAT_THINK_OFF : CHAT_THINK_ON;
        return 0;
    }
    return api_refuse_field(error, path, key,
                            "\"%s\" is none of none, minimal, low, medium, high, xhigh, max",
                            ESC(esc, str_from(text)));
}

int api_form(api_request *r, const json_t *format, const char *param, bool flat, api_error *error)
{
    const char *type = NULL;
    const json_t *inner = format;
    const api_path nested = api_path_of("%s.json_schema", param);
    const char *path = flat ? param : nested.text;       /* of the object with the schema */
    char esc[48];

    if (!format) return 0;
    if (!json_is_object(format)) return api_refuse(error, param, "an object is expected");
    if (api_text(&type, format, param, "type", error) < 0) return -1;
    if (!type) return api_refuse_field(error, param, "type", "it is missing");
    if (strcmp(type, "text") == 0) return 0;
    if (strcmp(type, "json_object") == 0) {
        if (api_object(&r->schema, format, param, "schema", error) < 0) return -1;
        r->form = r->schema ? FORM_SCHEMA : FORM_JSON;
        return 0;
    }
    if (strcmp(type, "json_schema") != 0)
        return api_refuse_field(error, param, "type", "\"%s\" is none of text, json_object, "
                                "json_schema", ESC(esc, str_from(type)));
    if (!flat && api_object(&inner, format, param, "json_schema", error) < 0) return -1;
    if (!inner) return api_refuse(error, path, "it is missing");
    if (api_object(&r->schema, inner, path, "schema", error) < 0) return -1;
    if (!r->schema) return api_refuse_field(error, path, "schema", "it is missing");
    r->form = FORM_SCHEMA;
    return api_bool(&r->strict, inner, param, "strict", error);
}
