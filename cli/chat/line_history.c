/* line_history.c - one write with O_APPEND per line, so that lines of two chats stay whole.
 * Trimming renames a shorter file over the old one. */
#include "cli/chat/line_history.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cache_directory.h"
#include "cli/console.h"

bool line_history_path(char *dst, size_t cap)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n;

    if (state && state[0] == '/')
        n = snprintf(dst, cap, "%s/moe-run/history", state);
    else if (home && home[0] == '/')
        n = snprintf(dst, cap, "%s/.local/state/moe-run/history", home);
    else
        return false;
    return n > 0 && (size_t)n < cap && cache_directory_allows(dst);
}

/* The file's text, or NULL; *from is where the last LINE_HISTORY_MAX lines begin. */
static char *read_tail(size_t *from, size_t *len, const char *path)
{
    char *text;
    err_ctx err;
    int n_line = 0;

    if (read_whole_file(&text, len, path, &err) < 0) return NULL;
    *from = *len;
    while (*from > 0) {
        if (*from < *len && text[*from - 1] == '\n' && ++n_line == LINE_HISTORY_MAX) break;
        --*from;
    }
    return text;
}

void line_history_load(const char *path, void (*fn)(void *ctx, const char *line), void *ctx)
{
    size_t from, len;
    char *text = read_tail(&from, &len, path);

    while (text && from < len) {
        char *end = memchr(text + from, '\n', len - from);
        if (!end) end = text + len;
        *end = '\0';
        if (end > text + from) fn(ctx, text + from);
        from = (size_t)(end - text) + 1;
    }
    mem_free(text);
}

void line_history_add(const char *path, const char *line)
{
    const size_t len = strlen(line);
    cache_directory_make(path);
    const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    char *copy = fd < 0 ? NULL : mem_alloc(len + 1);

    if (copy) {
        memcpy(copy, line, len);
        copy[len] = '\n';
        const ssize_t n = write(fd, copy, len + 1);      /* a full disk costs this line */
        (void)n;
    }
    mem_free(copy);
    if (fd >= 0) close(fd);
}

void line_history_trim(const char *path)
{
    char part[4096 + 8];
    size_t from, len;
    char *text = read_tail(&from, &len, path);
    int fd;

    if (text && from > 0 && (size_t)snprintf(part, sizeof part, "%s.part", path) < sizeof part &&
        (fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)) >= 0) {
        const bool whole = write(fd, text + from, len - from) == (ssize_t)(len - from);
        if (close(fd) != 0 || !whole || rename(part, path) != 0) unlink(part);
    }
    mem_free(text);
}
