/* token_bytes.h - how a file writes the bytes of its ordinary tokens.
 *
 * Byte-level vocabularies write one printable character per byte. Vocabularies of characters write
 * UTF-8 with U+2581 for each space, and name single bytes "<0xNN>". Either way the engine works on
 * raw bytes: tokens and merges are converted once, when a file is read. */
#ifndef ENGINE_TEXT_TOKENIZER_TOKEN_BYTES_H
#define ENGINE_TEXT_TOKENIZER_TOKEN_BYTES_H

#include "loader/base.h"

enum { N_ALPHABET = 0x144 };

#define SPACE_SIGN "\xE2\x96\x81"        /* U+2581 */

typedef struct token_bytes {
    bool by_char;
    int widest;                          /* bytes one byte of a token may take in the file */
    int16_t byte_of[N_ALPHABET];         /* code point to byte; -1: outside the alphabet */
} token_bytes;

void token_bytes_init(token_bytes *s, bool by_char);

/* Writes the bytes that text stands for to dst, which has room for text.len. Returns how many, or
 * -1 if text is not written as it should be: token_bytes_fault says in what way. */
int64_t token_bytes_read(uint8_t *dst, const token_bytes *s, str_view text);
const char *token_bytes_fault(const token_bytes *s);

/* The byte of "<0xNN>", or -1. */
int token_bytes_byte(str_view text);

/* Replaces each U+2581 in the n bytes at p by a space; returns the new length. */
size_t token_bytes_spaces(uint8_t *p, size_t n);

#endif
