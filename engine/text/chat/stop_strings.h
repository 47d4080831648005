/* stop_strings.h - ends a text stream at the first of some stop strings.
 *
 * The first is the one that starts earliest in the whole stream, whatever the division into pieces.
 * Bytes are compared, so a piece may end inside a character. Text that may still become a stop
 * string is held back, always less than the longest stop string; all text before it passes at once.
 * A complete stop string inside an incomplete one that started earlier waits for that one. One
 * thread at a time. */
#ifndef ENGINE_TEXT_CHAT_STOP_STRINGS_H
#define ENGINE_TEXT_CHAT_STOP_STRINGS_H

#include "loader/base.h"

typedef struct stop_strings stop_strings;

enum { STOP_STRING_MAX_BYTES = 1024 };         /* of one stop string */

/* Copies the strings and allocates all memory. Refuses empty and longer strings, and strings that
 * are not UTF-8, which could cut a character of the text in two. n 0 is fine: all text passes.
 * Returns 0, or < 0 with *err filled and *out NULL. */
int stop_strings_create(stop_strings **out, const char *const *strings, int n, err_ctx *err);
void stop_strings_free(stop_strings *s);               /* NULL is fine */
void stop_strings_reset(stop_strings *s);              /* for the next stream */

/* Gets text in pieces of any size, none empty; valid only during the call. */
typedef int stop_strings_fn(void *ctx, str_view text);          /* < 0 ends the stream */

/* Passes on the text that cannot become a stop string. Returns 1 once a stop string was found (it
 * and all text after it are dropped), 0 if none was, or the result of fn. A result other than 0
 * stays until stop_strings_reset. */
int stop_strings_push(stop_strings *s, str_view text, stop_strings_fn *fn, void *ctx);
/* The stream ended: passes on the text held back. Same results; 1 also for a stop string that
 * waited for another. */
int stop_strings_end(stop_strings *s, stop_strings_fn *fn, void *ctx);

/* The index of the string that ended the stream, the lowest of equals; -1: none. */
int stop_strings_which(const stop_strings *s);

#endif
