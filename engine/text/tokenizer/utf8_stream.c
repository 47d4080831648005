/* utf8_stream.c - token bytes to whole, valid UTF-8 characters.
 *
 * The tail holds only a possible beginning of a character, so it has at most three bytes and a
 * stream that is not UTF-8 never stalls. */
#include "engine/text/tokenizer/tokenizer.h"

#include <string.h>

/* Returns true if the n < 4 bytes at p can be the beginning of a valid character. Tests them with
 * the lowest and the highest continuation bytes: validity depends only on the first two bytes, and
 * the valid second bytes are a range. */
static bool is_beginning(const uint8_t *p, size_t n)
{
    const size_t need = p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : p[0] < 0xF5 ? 4 : 0;
    uint8_t low[4], high[4];
    uint32_t cp;
    memset(low, 0x80, sizeof low);
    memset(high, 0xBF, sizeof high);
    memcpy(low, p, n);
    memcpy(high, p, n);
    return utf8_decode(&cp, low, need) || utf8_decode(&cp, high, need);
}

size_t utf8_stream_push(utf8_stream *s, char *dst, str_view bytes)
{
    const uint8_t *src = (const uint8_t *)bytes.ptr;
    size_t left = bytes.len, used = 0;
    while (left > 0) {
        /* the tail and enough new bytes for one character */
        uint8_t window[4];
        size_t n = (size_t)s->n_tail, taken = 0;
        uint32_t cp;
        memcpy(window, s->tail, n);
        while (n < 4 && taken < left) window[n++] = src[taken++];
        const int len = utf8_decode(&cp, window, n);
        if (len == 0 && n < 4 && is_beginning(window, n)) {
            memcpy(s->tail, window, n);
            s->n_tail = (int)n;
            return used;
        }
        size_t eaten = 1;                /* an invalid byte is replaced alone */
        if (len) {
            eaten = (size_t)len;
            memcpy(dst + used, window, eaten);
            used += eaten;
        } else {
            memcpy(dst + used, "\xEF\xBF\xBD", 3);
            used += 3;
        }
        if (eaten >= (size_t)s->n_tail) {
            src += eaten - (size_t)s->n_tail;
            left -= eaten - (size_t)s->n_tail;
            s->n_tail = 0;
        } else {
            s->n_tail -= (int)eaten;
            memmove(s->tail, s->tail + eaten, (size_t)s->n_tail);
        }
    }
    return used;
}

size_t utf8_stream_end(utf8_stream *s, char *dst)
{
    if (s->n_tail == 0) return 0;
    s->n_tail = 0;
    memcpy(dst, "\xEF\xBF\xBD", 3);
    return 3;
}
