/* sha256.h - SHA-256 (FIPS 180-4) of bytes that come in pieces: whether a file is the one that a
 * list names.
 *
 * The state is the caller's and holds no pointers: it may be copied to look at a sum on the way. No
 * secrets are hashed here. */
#ifndef CLI_PULL_SHA256_H
#define CLI_PULL_SHA256_H

#include "loader/base.h"

enum { SHA256_BYTES = 32, SHA256_TEXT = 2 * SHA256_BYTES + 1 };

typedef struct sha256 {
    uint32_t h[8];
    uint64_t n_byte;                     /* so far */
    uint8_t tail[64];                    /* n_byte % 64 of them wait for a whole block */
} sha256;

void sha256_init(sha256 *s);
void sha256_add(sha256 *s, const void *data, size_t bytes);

/* The sum as 64 small hex digits, terminated; returns text. s is used up: init before more. */
const char *sha256_end(char text[SHA256_TEXT], sha256 *s);

/* Whether s is 64 small hex digits. */
bool sha256_is_text(str_view s);

#endif
