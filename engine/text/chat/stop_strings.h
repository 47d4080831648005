/* stop_strings.h - ends a text stream at the first of some stop strings.
 *
 * The first is the one that starts earliest in the whole stream, however it was cut into pieces.
 * Bytes are compared, so a piece may end inside a character. Text that might still become a stop
 * string is held back, always less than the longest stop string; everything before it passes at
 * once. A stop string that came to its end inside one that started earlier and is still open waits
 * for that one. */
#ifndef ENGINE_TEXT_CHAT_STOP_STRINGS_H
#define ENGINE_TEXT_CHAT_STOP_STRINGS_H

#include "loader/base.h"

typedef struct stop_strings stop_strings;

enum { STOP_STRING_MAX_BYTES = 1024 };         /* of one stop string */

/* Copies the strings. Refuses empty and longer ones, and those that are not UTF-8: they could cut a
 * character of the text in two. n 0 is fine: everything passes. Returns 0, or < 0 with *err filled
 * and *out NULL. All memory is taken here. */
int stop_strings_create(stop_strings **out, const char *const *strings, int n, err_ctx *err);
void stop_strings_free(stop_strings *s);               /* NULL is fine */
void stop_strings_reset(stop_strings *s);              /* for the next stream */

/* Gets text in pieces of its own size, none empty; good only during the call. */
typedef int stop_strings_fn(void *ctx, str_view text);          /* < 0 ends the stream */

/* Passes on what can be shown. Returns 1 once a stop string was found (neither it nor anything
 * after it is passed), 0 to go on, or what fn returned. Once not 0, it stays so until
 * stop_strings_reset. */
int stop_strings_push(stop_strings *s, str_view text, stop_strings_fn *fn, void *ctx);
/* The stream ended: passes on what was held back. Same returns: 1 also if a stop string is in it
 * that had to wait for another. */
int stop_strings_end(stop_strings *s, stop_strings_fn *fn, void *ctx);

/* Which of the strings ended the stream, the first of those that did; -1: none. */
int stop_strings_which(const stop_strings *s);

#endif
