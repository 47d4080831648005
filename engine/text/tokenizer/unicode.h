/* unicode.h - character classes, UTF-8 scanning and repair, canonical composition (NFC).
 *
 * The tables are compiled in and independent of the locale. Classes are those of Unicode 16.0.
 * Functions that require valid UTF-8 do not check it; utf8_valid_prefix does. */
#ifndef ENGINE_TEXT_TOKENIZER_UNICODE_H
#define ENGINE_TEXT_TOKENIZER_UNICODE_H

#include "loader/base.h"

/* Every code point has exactly one class, so a mask is a set of classes. */
enum {
    CLASS_OTHER = 1,
    CLASS_LETTER = 2,                    /* Lm, Lo: letters without case */
    CLASS_UPPER = 4,                     /* Lu, Lt */
    CLASS_LOWER = 8,                     /* Ll */
    CLASS_MARK = 16,                     /* Mn, Mc, Me */
    CLASS_NUMBER = 32,                   /* Nd, Nl, No */
    CLASS_SPACE = 64,                    /* White_Space other than CR and LF */
    CLASS_NEWLINE = 128                  /* CR, LF */
};

/* ---- tables, see unicode_tables.c ---- */

enum { NFC_LOOK = 1, NFC_DECOMPOSES = 2 };
typedef struct nfc_kind { uint8_t flags, combining_class; } nfc_kind;
typedef struct nfc_decomposition { uint32_t cp; uint16_t n, start; } nfc_decomposition;
typedef struct nfc_composition { uint32_t first, second, composed; } nfc_composition;

extern const uint8_t unicode_ascii[128];
extern const uint8_t unicode_class_index[], unicode_class_pages[];
extern const uint16_t unicode_class_blocks[];
extern const nfc_kind unicode_nfc_kinds[];
extern const uint8_t unicode_nfc_index[], unicode_nfc_blocks[], unicode_nfc_pages[];
extern const nfc_decomposition unicode_nfc_decompositions[];
extern const int unicode_n_nfc_decomposition;
extern const uint32_t unicode_nfc_pool[];
extern const nfc_composition unicode_nfc_compositions[];
extern const int unicode_n_nfc_composition;

/* ---- code points ---- */

/* cp must not exceed 10FFFF. */
static inline unsigned unicode_class(uint32_t cp)
{
    const size_t block = unicode_class_index[cp >> 10];
    const size_t page = unicode_class_blocks[block << 6 | (cp >> 4 & 63)];
    return unicode_class_pages[page << 4 | (cp & 15)];
}

/* Reads one code point of valid UTF-8; returns its length. */
static inline size_t utf8_read(uint32_t *cp, const uint8_t *p)
{
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    if (p[0] < 0xE0) {
        *cp = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (p[0] < 0xF0) {
        *cp = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        return 3;
    }
    *cp = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}

/* Writes cp (a scalar value) as 1 to 4 bytes; returns how many. */
size_t utf8_write(uint8_t *dst, uint32_t cp);

/* Returns how many bytes at p are whole, valid UTF-8 characters. */
size_t utf8_valid_prefix(const uint8_t *p, size_t n);

/* ---- growing text ---- */

/* A growing buffer, reused between calls. Zero-initialise; byte_buf_free releases it. */
typedef struct byte_buf { uint8_t *ptr; size_t n, cap; } byte_buf;
void byte_buf_free(byte_buf *b);
int byte_buf_append(byte_buf *b, const uint8_t *p, size_t n, err_ctx *err);

/* Appends the n bytes at p to *out; each byte outside a valid sequence becomes U+FFFD. */
int utf8_repair(byte_buf *out, const uint8_t *p, size_t n, err_ctx *err);

/* ---- NFC ---- */

/* Scratch of nfc_append, reused between calls. Zero-initialise; nfc_scratch_free releases it. */
typedef struct nfc_scratch { uint32_t *item; size_t n, cap; } nfc_scratch;
void nfc_scratch_free(nfc_scratch *s);

/* Returns the length of a prefix of the valid UTF-8 at p that is NFC and does not combine with the
 * rest; n if all of it is certainly NFC. */
size_t nfc_prefix(const uint8_t *p, size_t n);

/* Appends the NFC form of the valid UTF-8 at p. Always linear in n. */
int nfc_append(byte_buf *out, nfc_scratch *s, const uint8_t *p, size_t n, err_ctx *err);

#endif
