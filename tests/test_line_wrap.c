/* test_line_wrap.c - where lines break, and that nothing but blanks at a break is lost. */
#include "cli/view/line_wrap.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/case_file.h"

typedef struct got { char text[256]; size_t n; int until; } got;

static int take(void *ctx, str_view piece)
{
    got *g = ctx;
    if (g->until-- == 0) return ERR_IO;
    if (g->n + piece.len >= sizeof g->text) return ERR_RANGE;
    memcpy(g->text + g->n, piece.ptr, piece.len);
    g->n += piece.len;
    g->text[g->n] = '\0';
    return 0;
}

static int feed(got *g, line_wrap *w, const char *text)
{
    int rc = 0;
    while (*text && rc >= 0) {
        const size_t n = strcspn(text, "|");
        rc = line_wrap_put(w, (str_view){ text, n }, take, g);
        text += n + (text[n] == '|');
    }
    return rc < 0 ? rc : line_wrap_flush(w, take, g);
}

int main(int argc, char **argv)
{
    static case_rows rows;
    test_begin("wrap", argc, argv);
    const bool wide = setlocale(LC_CTYPE, "C.UTF-8") || setlocale(LC_CTYPE, "en_US.UTF-8");
    if (!case_rows_read(&rows, "line_wrap.txt")) return test_end();
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i];
        line_wrap w = { .columns = atoi(cells[0]), .indent = atoi(cells[1]) };
        got g = { .until = -1 };
        const int rc = feed(&g, &w, cells[2]);
        if (!wide && (uint8_t)cells[3][0] > 0x7F) continue;      /* no such locale here */
        CHECK_MSG(rc == 0 && !strcmp(g.text, cells[3]), "%s: '%s'", cells[4], g.text);
    }
    case_rows_free(&rows);
    line_wrap w = { .columns = 20 };
    got held = { .until = -1 }, broken = { .until = 1 };
    CHECK(line_wrap_put(&w, str_from("one tw"), take, &held) == 0 && !strcmp(held.text, "one"));
    w = (line_wrap){ .columns = 20 };
    CHECK(feed(&broken, &w, "one two three") == ERR_IO && !strcmp(broken.text, "one"));
    return test_end();
}
