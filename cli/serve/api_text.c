/* api_text.c - JSON as text, base64, dates.
 *
 * Output is valid JSON on one line for any input bytes, so that it fits into an event or a line of
 * NDJSON. */
#include "cli/serve/api_internal.h"

#include <time.h>

void api_put_text(textbuf *b, const char *s)
{
    if (s) textbuf_json_string(b, str_from(s));
    else textbuf_str(b, "null");
}

void api_put_field(textbuf *b, const char *head, const char *s)
{
    textbuf_str(b, head);
    api_put_text(b, s);
}

void api_put_string(textbuf *b, const char *head, str_view s)
{
    textbuf_str(b, head);
    textbuf_json_string(b, s);
}

static int put_bytes(const char *bytes, size_t n, void *ctx)
{
    textbuf_put(ctx, (str_view){ bytes, n });
    return 0;
}

void api_put_json(textbuf *b, const json_t *v)
{
    if (!v) textbuf_str(b, "null");
    else if (json_dump_callback(v, put_bytes, b, JSON_COMPACT | JSON_ENCODE_ANY) != 0)
        b->failed = true;
}

void api_put_float(textbuf *b, double v)
{
    if (isnan(v)) textbuf_str(b, "null");
    else textbuf_printf(b, "%.9g", isinf(v) ? (v < 0 ? -9999.0 : 9999.0) : v);
}

void api_put_lossy(textbuf *b, str_view bytes)
{
    textbuf text = { 0 };
    for (size_t i = 0; i < bytes.len;) {
        uint32_t cp;
        const int n = utf8_decode(&cp, (const uint8_t *)bytes.ptr + i, bytes.len - i);
        if (n) textbuf_put(&text, (str_view){ bytes.ptr + i, (size_t)n });
        else textbuf_str(&text, "\xEF\xBF\xBD");
        i += n ? (size_t)n : 1;
    }
    if (text.failed) b->failed = true;
    else textbuf_json_string(b, textbuf_view(&text));
    textbuf_free(&text);
}

/* Copies valid JSON without white space between tokens; numbers keep their digits. */
static void put_minified(textbuf *b, str_view s)
{
    bool in_string = false;
    size_t from = 0;
    for (size_t i = 0; i < s.len; i++) {
        const char c = s.ptr[i];
        if (in_string && c == '\\') {
            i++;
        } else if (c == '"') {
            in_string = !in_string;
        } else if (!in_string && strchr(" \t\r\n", c)) {
            if (i > from) textbuf_put(b, (str_view){ s.ptr + from, i - from });
            from = i + 1;
        }
    }
    textbuf_put(b, (str_view){ s.ptr + from, s.len - from });
}

void api_put_object(textbuf *b, str_view text)
{
    json_t *v = text.len ? json_loadb(text.ptr, text.len,
                                      JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL) : NULL;
    if (json_is_object(v)) {
        put_minified(b, text);
    } else if (!text.len) {
        textbuf_str(b, "{}");
    } else {
        api_put_string(b, "{\"arguments\":", text);
        textbuf_str(b, "}");
    }
    json_decref(v);
}

void api_put_date(textbuf *b, int64_t seconds)
{
    const time_t t = (time_t)seconds;
    struct tm tm;
    char text[40];
    if (!gmtime_r(&t, &tm) || !strftime(text, sizeof text, "\"%Y-%m-%dT%H:%M:%SZ\"", &tm))
        snprintf(text, sizeof text, "\"1970-01-01T00:00:00Z\"");
    textbuf_str(b, text);
}

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void api_base64(textbuf *b, str_view bytes)
{
    char *dst = textbuf_room(b, (bytes.len + 2) / 3 * 4);
    if (!dst) return;
    for (size_t i = 0; i < bytes.len; i += 3, dst += 4) {
        const size_t left = bytes.len - i;
        const uint8_t *p = (const uint8_t *)bytes.ptr + i;
        const uint32_t v = (uint32_t)p[0] << 16 | (left > 1 ? (uint32_t)p[1] << 8 : 0) |
                           (left > 2 ? p[2] : 0);
        dst[0] = digits[v >> 18];
        dst[1] = digits[v >> 12 & 63];
        dst[2] = left > 1 ? digits[v >> 6 & 63] : '=';
        dst[3] = left > 2 ? digits[v & 63] : '=';
    }
    b->len += (bytes.len + 2) / 3 * 4;
}

bool api_base64_read(textbuf *out, str_view text)
{
    const size_t start = out->len;
    uint32_t v = 0, cp;
    int n_bit = 0;

    if (text.len % 4 != 0) return false;
    for (int k = 0; k < 2 && text.len && text.ptr[text.len - 1] == '='; k++) text.len--;
    for (size_t i = 0; i < text.len; i++) {
        const char *digit = text.ptr[i] ? strchr(digits, text.ptr[i]) : NULL;
        if (!digit) goto fail;
        v = v << 6 | (uint32_t)(digit - digits);
        if ((n_bit += 6) < 8) continue;
        n_bit -= 8;
        textbuf_put(out, (str_view){ (const char[]){ (char)(v >> n_bit & 255) }, 1 });
    }
    for (size_t i = start; i < out->len;) {
        const int n = utf8_decode(&cp, (const uint8_t *)out->ptr + i, out->len - i);
        if (!n) goto fail;
        i += (size_t)n;
    }
    return true;
fail:
    out->len = start;
    return false;
}

char *api_take(textbuf *b)
{
    char *text;
    textbuf_put(b, (str_view){ "", 1 });
    text = b->failed ? NULL : b->ptr;
    if (!text) textbuf_free(b);
    *b = (textbuf){ 0 };
    return text;
}
