/* token_bytes.h - the file's notation for the bytes of ordinary tokens.
 *
 * Byte-level vocabularies write one printable character per byte. Vocabularies of characters write
 * UTF-8 with U+2581 for each space, and "<0xNN>" for single bytes. The engine works on raw bytes:
 * tokens and merges are converted once, when a file is read. */
#ifndef ENGINE_TEXT_TOKENIZER_TOKEN_BYTES_H
#define ENGINE_TEXT_TOKENIZER_TOKEN_BYTES_H

#include "loader/base.h"

enum { N_ALPHABET = 0x144 };

#define SPACE_SIGN "\xE2\x96\x81"        /* U+2581 */

typedef struct token_bytes {
    bool by_char;
    int widest;                          /* most bytes in the file for one byte of a token */
    int16_t byte_of[N_ALPHABET];         /* code point to byte; -1: outside the alphabet */
} token_bytes;

void token_bytes_init(token_bytes *s, bool by_char);

/* Decodes text to dst, which has space for text.len bytes. Returns the number of bytes, or -1 if
 * text is invalid; token_bytes_fault then returns the reason for a message. */
int64_t token_bytes_read(uint8_t *dst, const token_bytes *s, str_view text);
const char *token_bytes_fault(const token_bytes *s);

/* Returns the byte of "<0xNN>", or -1. */
int token_bytes_byte(str_view text);

/* Replaces each U+2581 in the n bytes at p with a space. Returns the new length. */
size_t token_bytes_spaces(uint8_t *p, size_t n);

#endif
