/* sha256.h - incremental SHA-256 (FIPS 180-4), which identifies downloaded files.
 *
 * The caller owns the state, which has no pointers: a copy gives the sum of the bytes so far. Not
 * for secrets, because its time may depend on the data. */
#ifndef CLI_PULL_SHA256_H
#define CLI_PULL_SHA256_H

#include "loader/base.h"

enum { SHA256_BYTES = 32, SHA256_TEXT = 2 * SHA256_BYTES + 1 };

typedef struct sha256 {
    uint32_t h[8];
    uint64_t n_byte;                     /* so far */
    uint8_t tail[64];                    /* the last n_byte % 64 bytes, an incomplete block */
} sha256;

void sha256_init(sha256 *s);
void sha256_add(sha256 *s, const void *data, size_t bytes);

/* The sum as 64 lower-case hex digits and a zero; returns text. Call sha256_init before reuse. */
const char *sha256_end(char text[SHA256_TEXT], sha256 *s);

/* Whether s is 64 lower-case hex digits. */
bool sha256_is_text(str_view s);

#endif
