/* line_wrap.h - breaks text for a terminal between words.
 *
 * A word is buffered until its end is known, so printed text is never erased. Only blanks at a
 * break are lost. The last column stays empty, because terminals differ in the cursor's position
 * after it. Widths are the C library's (wcwidth), which needs a UTF-8 locale. */
#ifndef CLI_VIEW_LINE_WRAP_H
#define CLI_VIEW_LINE_WRAP_H

#include "loader/base.h"

typedef struct line_wrap {
    int columns;                         /* of the terminal, may change; 0: text is unchanged */
    int indent;                          /* blanks after a line break that was added */
    int col;                             /* column of the cursor, without the buffered text */
    /* private: held[] is n_blank blanks, then a word */
    char held[256];
    size_t n, n_blank;
    int width;                           /* of the word, in columns */
    bool joined;                         /* the next character belongs to the last one */
} line_wrap;                             /* zero, and columns: at the start of a line */

/* Receives ranges of the text, line breaks and indents. line_wrap_put returns a result < 0 at
 * once. */
typedef int line_wrap_fn(void *ctx, str_view piece);
int line_wrap_to_file(void *file, str_view piece);       /* FILE */

/* The only control characters in the text are newline and tab. Invalid UTF-8 is not changed. */
int line_wrap_put(line_wrap *w, str_view text, line_wrap_fn *fn, void *ctx);
/* Prints the buffered text, also an incomplete word. */
int line_wrap_flush(line_wrap *w, line_wrap_fn *fn, void *ctx);

#endif
