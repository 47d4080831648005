/* line_wrap.h - text on its way to a terminal, broken between words instead of at the edge.
 *
 * A word is held back until its end is known, so nothing that is shown has to be taken back. Only
 * blanks at a break are lost. The last column stays empty: a cursor there is in different places on
 * different terminals. Widths are the C library's (wcwidth): the locale should know UTF-8. */
#ifndef CLI_VIEW_LINE_WRAP_H
#define CLI_VIEW_LINE_WRAP_H

#include "loader/base.h"

typedef struct line_wrap {
    int columns;                         /* of the terminal, may change; 0: text passes as it is */
    int indent;                          /* blanks at the start of a line that the wrap begins */
    int col;                             /* where the cursor is, once nothing is held back */
    /* the wrap's own: held[] is n_blank blanks, then a word */
    char held[256];
    size_t n, n_blank;
    int width;                           /* of the word, in columns */
    bool joined;                         /* the next character belongs to the last one */
} line_wrap;                             /* zero, and columns: at the start of a line */

/* What comes out: pieces of the text, line breaks, indents. < 0: line_wrap_put returns it at
 * once. */
typedef int line_wrap_fn(void *ctx, str_view piece);
int line_wrap_to_file(void *file, str_view piece);       /* FILE */

/* The text has no control characters but newline and tab. What is not UTF-8 passes as it is. */
int line_wrap_put(line_wrap *w, str_view text, line_wrap_fn *fn, void *ctx);
int line_wrap_flush(line_wrap *w, line_wrap_fn *fn,
                    void *ctx); /* what is held back, whole word or not */

#endif
