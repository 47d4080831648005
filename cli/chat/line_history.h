/* line_history.h - the history file of chats: one typed line per line, oldest first.
 *
 * Concurrent chats append to the same file. Only its owner may read it. Failures are silent. */
#ifndef CLI_CHAT_LINE_HISTORY_H
#define CLI_CHAT_LINE_HISTORY_H

#include "loader/base.h"

enum { LINE_HISTORY_MAX = 1000 };        /* lines */

/* moe-run/history in $XDG_STATE_HOME or ~/.local/state. False if there is no home or the path is
 * too long. */
bool line_history_path(char *dst, size_t cap);

/* Calls fn for each of the last LINE_HISTORY_MAX lines; line is terminated. */
void line_history_load(const char *path, void (*fn)(void *ctx, const char *line), void *ctx);

/* Creates the file and its folders if missing. */
void line_history_add(const char *path, const char *line);

/* Removes all but the last LINE_HISTORY_MAX lines. */
void line_history_trim(const char *path);

#endif
