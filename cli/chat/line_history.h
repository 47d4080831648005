/* line_history.h - the file that remembers what was typed, between one chat and the next.
 *
 * One line of text each, oldest first. Chats that run at the same time add to the same file. Only
 * its owner may read it. Nothing here is an error: without a history one can still talk. */
#ifndef CLI_CHAT_LINE_HISTORY_H
#define CLI_CHAT_LINE_HISTORY_H

#include "loader/base.h"

enum { LINE_HISTORY_MAX = 1000 };        /* lines that are kept */

/* Where it belongs: moe-run/history in $XDG_STATE_HOME or ~/.local/state. False if there is no
 * home, or it does not exist, or the path is too long. */
bool line_history_path(char *dst, size_t cap);

/* Calls fn for each of the last LINE_HISTORY_MAX lines; line is terminated. */
void line_history_load(const char *path, void (*fn)(void *ctx, const char *line), void *ctx);

/* Makes the file, and the folders it is in, if they are not there. */
void line_history_add(const char *path, const char *line);

/* Leaves the last LINE_HISTORY_MAX lines in the file. */
void line_history_trim(const char *path);

#endif
