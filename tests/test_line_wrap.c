/* test_line_wrap.c - where lines break, and that nothing but blanks at a break is lost. */
#include "cli/view/line_wrap.h"

#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "tests/test.h"

/* Texts as they arrive, with | between pieces that arrive one after the other. */
static const struct { int columns, indent; const char *text, *want, *why; } rows[] = {
    { 0, 0, "aaaa bbbb cccc dddd", "aaaa bbbb cccc dddd", "no width: as it is" },
    { 20, 0, "aaaa bbbb cccc dddd", "aaaa bbbb cccc dddd", "just fits: one column stays free" },
    { 20, 0, "aaaa bbbb cccc ddddd", "aaaa bbbb cccc\nddddd", "a word too many" },
    { 20, 0, "aaaa bb|bb cc|cc dd|ddd e", "aaaa bbbb cccc\nddddd e", "the same in pieces" },
    { 20, 2, "aaaa bbbb cccc ddddd", "aaaa bbbb cccc\n  ddddd", "with an indent" },
    { 40, 20, "aaaa bbbb cccc dddd eeee ffff gggg hhhh", "aaaa bbbb cccc dddd eeee ffff gggg hhhh",
      "an indent counts from the second line on" },
    { 40, 20, "aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii",
      "aaaa bbbb cccc dddd eeee ffff gggg hhhh\n                    iiii", "a deep indent" },
    { 20, 0, "aaaa bbbb cccc    ddddd", "aaaa bbbb cccc\nddddd", "blanks at the break" },
    { 20, 0, "aaaa  bbbb\n    cc\n\ndd", "aaaa  bbbb\n    cc\n\ndd", "other blanks stay" },
    { 20, 0, "aaaa bbbb cccc dddd \ne", "aaaa bbbb cccc dddd\ne", "a blank before a newline" },
    { 20, 0, "a\tbbbbbbbbbbbbb c", "a\t\nbbbbbbbbbbbbb c", "a tab counts to the next stop" },
    { 20, 0, "xx 0123456789012345678901234567890", "xx\n0123456789012345678\n901234567890",
      "a word longer than a line" },
    { 20, 0, "    0123456789012345678", "0123456789012345678", "an indent that leaves no room" },
    { 20, 0, "ääää öööö üüüü ßßßß", "ääää öööö üüüü ßßßß", "two bytes, one column" },
    { 20, 0, "a\xCC\x81""aaa bbbb cccc ddddd", "a\xCC\x81""aaa bbbb cccc\nddddd",
      "a combining mark" },
    { 20, 0, "漢字漢字漢字漢字漢字漢字", "漢字漢字漢字漢字漢\n字漢字", "wide: between any two" },
    { 20, 0, "abc 漢字漢字漢字漢字", "abc 漢字漢字漢字漢\n字", "wide after a word" },
    { 20, 0, "012345678901234 \xFF\xFE\xFD|\xFC z", "012345678901234\n\xFF\xFE\xFD\xFC z",
      "not UTF-8: passes" },
};

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
    test_begin("wrap", argc, argv);
    const bool wide = setlocale(LC_CTYPE, "C.UTF-8") || setlocale(LC_CTYPE, "en_US.UTF-8");
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        line_wrap w = { .columns = rows[i].columns, .indent = rows[i].indent };
        got g = { .until = -1 };
        const int rc = feed(&g, &w, rows[i].text);
        if (!wide && (uint8_t)rows[i].want[0] > 0x7F) continue;  /* no such locale here */
        CHECK_MSG(rc == 0 && !strcmp(g.text, rows[i].want), "%s: '%s'", rows[i].why, g.text);
    }
    line_wrap w = { .columns = 20 };
    got held = { .until = -1 }, broken = { .until = 1 };
    CHECK(line_wrap_put(&w, str_from("one tw"), take, &held) == 0 && !strcmp(held.text, "one"));
    w = (line_wrap){ .columns = 20 };
    CHECK(feed(&broken, &w, "one two three") == ERR_IO && !strcmp(broken.text, "one"));
    return test_end();
}
