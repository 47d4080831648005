/* line_wrap.c - puts one word at a time at the end of a line or on the next one.
 *
 * Invariant: the printed text ends at column col, and col < columns, unless a character is wider
 * than the terminal. Words end at blanks and at characters of two columns, whose scripts have no
 * blanks. */
#include "cli/view/line_wrap.h"

#include <stdio.h>
#include <string.h>
#include <wchar.h>

enum { TAB = 8, JOINER = 0x200D };

static int usable_columns(const line_wrap *w)
{
    return w->columns - 1 > w->indent + 1 ? w->columns - 1 : w->indent + 1;
}

static int begin_line(line_wrap *w, line_wrap_fn *fn, void *ctx)
{
    static const char blanks[] = "                ";
    int rc = fn(ctx, str_from("\n"));
    for (w->col = 0; w->col < w->indent && rc >= 0;) {
        const int n = min_int(w->indent - w->col, (int)sizeof blanks - 1);
        rc = fn(ctx, (str_view){ blanks, (size_t)n });
        w->col += n;
    }
    return rc;
}

int line_wrap_flush(line_wrap *w, line_wrap_fn *fn, void *ctx)
{
    size_t from = 0;
    int rc = 0;
    const size_t n = w->n;
    if (w->columns > 0 && w->col + (int)w->n_blank + w->width > usable_columns(w)) {
        from = w->n_blank;               /* drops the blanks at a break */
        if (w->width > 0 && w->col > w->indent) rc = begin_line(w, fn, ctx);
    }
    w->col += (int)(w->n_blank - from) + w->width;
    w->n = w->n_blank = 0;
    w->width = 0;
    return rc < 0 || n == from ? rc : fn(ctx, (str_view){ w->held + from, n - from });
}

/* Text that is printed without a break. */
static int pass(line_wrap *w, str_view piece, int width, line_wrap_fn *fn, void *ctx)
{
    const int rc = line_wrap_flush(w, fn, ctx);
    w->col += width;
    return rc < 0 ? rc : fn(ctx, piece);
}

static int put_blank(line_wrap *w, line_wrap_fn *fn, void *ctx)
{
    const int rc = w->n > w->n_blank || w->n == sizeof w->held ? line_wrap_flush(w, fn, ctx) : 0;
    w->held[w->n++] = ' ';
    w->n_blank = w->n;
    return rc;
}

static int put_char(line_wrap *w, str_view c, int width, line_wrap_fn *fn, void *ctx)
{
    int rc = 0;
    if (w->n + c.len > sizeof w->held || w->width + width > usable_columns(w) - w->indent)
        rc = line_wrap_flush(w, fn, ctx);
    else if (width > 1 && w->width > 0 && !w->joined)
        rc = line_wrap_flush(w, fn, ctx);
    memcpy(w->held + w->n, c.ptr, c.len);
    w->n += c.len;
    w->width += width;
    return rc;
}

/* Bytes and columns of the character at the start of s. */
static size_t measure(int *width, bool *joins, str_view s)
{
    uint32_t cp = 0;
    const int n = utf8_decode(&cp, (const uint8_t *)s.ptr, s.len);
    *width = n > 0 ? wcwidth((wchar_t)cp) : 1;
    if (*width < 0) *width = 1;
    *joins = cp == JOINER;
    return n > 0 ? (size_t)n : 1;
}

int line_wrap_put(line_wrap *w, str_view text, line_wrap_fn *fn, void *ctx)
{
    int rc = 0;
    if (w->columns <= 0) return pass(w, text, 0, fn, ctx);
    while (text.len > 0 && rc >= 0) {
        str_view c = { text.ptr, 1 };
        if (*c.ptr == '\n') {
            rc = pass(w, c, 0, fn, ctx);
            w->col = 0;
        } else if (*c.ptr == '\t') {
            rc = pass(w, c, 0, fn, ctx);
            w->col = min_int((w->col / TAB + 1) * TAB, usable_columns(w));
        } else if (*c.ptr == ' ') {
            rc = put_blank(w, fn, ctx);
        } else {
            int width;
            bool joins;
            c.len = measure(&width, &joins, text);
            rc = put_char(w, c, w->joined ? 0 : width, fn, ctx);
            w->joined = joins;
            if (rc >= 0 && width > 1) rc = line_wrap_flush(w, fn, ctx);
        }
        text.ptr += c.len;
        text.len -= c.len;
    }
    return rc;
}

int line_wrap_to_file(void *file, str_view piece)
{
    return fwrite(piece.ptr, 1, piece.len, file) == piece.len ? 0 : ERR_IO;
}
