/* textbuf_json.c - JSON values as text on one line, appended to a textbuf. */
#include "engine/text/textbuf_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

str_view json_view(const json_t *string)
{
    return (str_view){ json_string_value(string), json_string_length(string) };
}

int textbuf_check(const textbuf *b, err_ctx *err)
{
    if (b->failed) return err_set(err, ERR_NOMEM, "chat: text of more than %zu bytes", b->len);
    return 0;
}

void textbuf_json_string(textbuf *b, str_view s)
{
    static const char escapes[] = "\"\"\\\\\bb\ff\nn\rr\tt";     /* pairs: byte, letter */
    textbuf_str(b, "\"");
    for (size_t i = 0, from = 0; i <= s.len; i++) {
        char out[8];
        const char *e = NULL;
        if (i < s.len && (unsigned char)s.ptr[i] >= 0x20 && s.ptr[i] != '"' && s.ptr[i] != '\\')
            continue;
        if (i > from) textbuf_put(b, (str_view){ s.ptr + from, i - from });
        from = i + 1;
        if (i == s.len) break;
        for (size_t k = 0; k + 1 < sizeof escapes; k += 2)
            if (escapes[k] == s.ptr[i]) e = &escapes[k + 1];
        if (e) snprintf(out, sizeof out, "\\%c", *e);
        else snprintf(out, sizeof out, "\\u%04x", (unsigned)(unsigned char)s.ptr[i]);
        textbuf_str(b, out);
    }
    textbuf_str(b, "\"");
}

/* Writes the shortest digits that read back as v, in the layout of Python's repr or of serde. Both
 * write 100.0 and 0.1; they differ in 1e-05 / 0.00001, 1e-07 / 1e-7 and 1e+16 / 1e16. */
static void put_real(textbuf *b, double v, json_style style)
{
    char digits[40], out[64];
    int prec = 1, exp10, n;
    if (v == 0.0) {
        textbuf_str(b, signbit(v) ? "-0.0" : "0.0");
        return;
    }
    for (; prec <= 17; prec++) {
        snprintf(digits, sizeof digits, "%.*e", prec - 1, v);
        if (strtod(digits, NULL) == v) break;
    }
    exp10 = atoi(strchr(digits, 'e') + 1);
    if (exp10 >= (style == JSON_TIGHT ? -5 : -4) && exp10 < 16) {
        snprintf(out, sizeof out, "%.*f", prec - 1 > exp10 ? prec - 1 - exp10 : 1, v);
    } else {
        n = (int)(strchr(digits, 'e') - digits);
        snprintf(out, sizeof out, style == JSON_TIGHT ? "%.*se%d" : "%.*se%+03d", n, digits, exp10);
    }
    textbuf_str(b, out);
}

void textbuf_json(textbuf *b, const json_t *v, json_style style)
{
    const char *comma = style == JSON_TIGHT ? "," : ", ", *key;
    char num[32];
    size_t i;
    json_t *item;

    switch (json_typeof(v)) {
    case JSON_OBJECT:
        textbuf_str(b, "{");
        i = 0;
        json_object_foreach((json_t *)v, key, item) {
            if (i++) textbuf_str(b, comma);
            textbuf_json_string(b, str_from(key));
            textbuf_str(b, style == JSON_TIGHT ? ":" : ": ");
            textbuf_json(b, item, style);
        }
        textbuf_str(b, "}");
        break;
    case JSON_ARRAY:
        textbuf_str(b, "[");
        json_array_foreach(v, i, item) {
            if (i) textbuf_str(b, comma);
            textbuf_json(b, item, style);
        }
        textbuf_str(b, "]");
        break;
    case JSON_STRING:
        textbuf_json_string(b, json_view(v));
        break;
    case JSON_INTEGER:
        snprintf(num, sizeof num, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        textbuf_str(b, num);
        break;
    case JSON_REAL:
        put_real(b, json_real_value(v), style);
        break;
    case JSON_TRUE:
        textbuf_str(b, "true");
        break;
    case JSON_FALSE:
        textbuf_str(b, "false");
        break;
    case JSON_NULL:
        textbuf_str(b, "null");
        break;
    }
}

/* Strings in a list get quotes, but their content is not escaped. */
void textbuf_python(textbuf *b, const json_t *v)
{
    size_t i;
    json_t *item;

    if (json_is_string(v)) {
        textbuf_put(b, json_view(v));
    } else if (json_is_boolean(v)) {
        textbuf_str(b, json_is_true(v) ? "True" : "False");
    } else if (json_is_null(v)) {
        textbuf_str(b, "None");
    } else if (json_is_array(v)) {
        textbuf_str(b, "[");
        json_array_foreach(v, i, item) {
            textbuf_str(b, i ? ", " : "");
            if (json_is_string(item)) textbuf_str(b, "'");
            textbuf_python(b, item);
            if (json_is_string(item)) textbuf_str(b, "'");
        }
        textbuf_str(b, "]");
    } else {
        textbuf_json(b, v, JSON_SPACED);
    }
}

int textbuf_json_text(char **out, size_t *len, const json_t *v, err_ctx *err)
{
    textbuf b = { 0 };
    int rc;

    *out = NULL;
    textbuf_json(&b, v, JSON_SPACED);
    textbuf_put(&b, (str_view){ "", 1 });        /* the terminator */
    if ((rc = textbuf_check(&b, err)) < 0) {
        textbuf_free(&b);
        return rc;
    }
    *out = b.ptr;
    *len = b.len - 1;
    return 0;
}
