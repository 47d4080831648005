/* token_bytes.c - the byte alphabet, and U+2581 for spaces. */
#include "engine/text/tokenizer/token_bytes.h"

#include <string.h>

#include "engine/text/tokenizer/tokenizer.h"
#include "engine/text/tokenizer/unicode.h"

void token_bytes_init(token_bytes *s, bool by_char)
{
    int next = 0x100;
    s->by_char = by_char;
    s->widest = by_char ? 3 : 2;
    memset(s->byte_of, 0xFF, sizeof s->byte_of);
    for (int c = 0; c < 256; c++) s->byte_of[token_byte_is_itself(c) ? c : next++] = (int16_t)c;
}

static int64_t alphabet_decode(uint8_t *dst, const int16_t byte_of[N_ALPHABET], str_view text)
{
    const uint8_t *p = (const uint8_t *)text.ptr, *const end = p + text.len;
    uint8_t *const begin = dst;
    while (p < end) {
        uint32_t cp = *p++;
        if (cp >= 0x80) {                /* the alphabet ends far below U+0800: two bytes */
            if (cp < 0xC2 || cp >= 0xE0 || p == end || (*p & 0xC0) != 0x80) return -1;
            cp = (cp & 0x1F) << 6 | (*p++ & 0x3Fu);
        }
        if (cp >= N_ALPHABET || byte_of[cp] < 0) return -1;
        *dst++ = (uint8_t)byte_of[cp];
    }
    return dst - begin;
}

size_t token_bytes_spaces(uint8_t *p, size_t n)
{
    uint8_t *out = p;
    for (const uint8_t *from = p, *const end = p + n; from < end;) {
        if (*from == 0xE2 && end - from >= 3 && memcmp(from, SPACE_SIGN, 3) == 0) {
            *out++ = ' ';
            from += 3;
        } else {
            *out++ = *from++;
        }
    }
    return (size_t)(out - p);
}

int64_t token_bytes_read(uint8_t *dst, const token_bytes *s, str_view text)
{
    if (!s->by_char) return alphabet_decode(dst, s->byte_of, text);
    if (text.len == 0) return 0;
    if (utf8_valid_prefix((const uint8_t *)text.ptr, text.len) != text.len) return -1;
    memcpy(dst, text.ptr, text.len);
    return (int64_t)token_bytes_spaces(dst, text.len);
}

const char *token_bytes_fault(const token_bytes *s)
{
    return s->by_char ? "is not UTF-8" : "has a character outside the byte alphabet";
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int token_bytes_byte(str_view text)
{
    if (text.len != 6 || memcmp(text.ptr, "<0x", 3) != 0 || text.ptr[5] != '>') return -1;
    const int high = hex_digit(text.ptr[3]), low = hex_digit(text.ptr[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}
