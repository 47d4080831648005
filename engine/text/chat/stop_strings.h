/* stop_strings.h - ends a text stream at the first stop string.
 *
 * The first is the one that starts earliest in the stream, independent of its division into pieces.
 * Bytes are compared, so a piece may end inside a character. Text that may become a stop string is
 * buffered, always less than the longest stop string; earlier text passes at once. A complete stop
 * string inside an earlier, incomplete one is buffered until that one is decided. Not
 * thread-safe. */
#ifndef ENGINE_TEXT_CHAT_STOP_STRINGS_H
#define ENGINE_TEXT_CHAT_STOP_STRINGS_H

#include "loader/base.h"

typedef struct stop_strings stop_strings;

enum { STOP_STRING_MAX_BYTES = 1024 };         /* of one stop string */

/* Copies the strings. Refuses strings that are empty, too long or not UTF-8, which could split a
 * character of the text. With n = 0 all text passes. Returns 0, or < 0 with *err filled and *out
 * NULL. The other functions do not allocate. */
int stop_strings_create(stop_strings **out, const char *const *strings, int n, err_ctx *err);
void stop_strings_free(stop_strings *s);               /* NULL is fine */
void stop_strings_reset(stop_strings *s);              /* for the next stream */

/* Receives text in non-empty pieces of any size, valid only during the call. */
typedef int stop_strings_fn(void *ctx, str_view text);          /* < 0 ends the stream */

/* Passes the decided text to fn. Returns 1 after a stop string, which is not passed, nor is the
 * text after it; 0 to continue; or fn's result if < 0. A result other than 0 is repeated until
 * stop_strings_reset. */
int stop_strings_push(stop_strings *s, str_view text, stop_strings_fn *fn, void *ctx);
/* Ends the stream: passes the buffered text to fn. Returns as above; 1 if the buffered text has a
 * stop string. */
int stop_strings_end(stop_strings *s, stop_strings_fn *fn, void *ctx);

/* Returns the index of the first string that ended the stream, or -1. */
int stop_strings_which(const stop_strings *s);

#endif
