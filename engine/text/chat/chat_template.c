/* chat_template.c - what a file's chat template would write: its literals, one after the other.
 *
 * The template is scanned, not executed: conditions and loops are passed over, so the literals of
 * all branches come, in the order in which they stand there. */
#include "engine/text/chat/chat_internal.h"

#include <string.h>

static bool starts_at(str_view s, size_t at, const char *what)
{
    const size_t n = strlen(what);
    return at <= s.len && s.len - at >= n && memcmp(s.ptr + at, what, n) == 0;
}

/* Returns the place after the quoted string that begins at `at`; its unescaped text goes to *lit
 * unless NULL. */
static size_t quoted(str_view s, size_t at, textbuf *lit)
{
    const char quote = s.ptr[at++];
    for (; at < s.len && s.ptr[at] != quote; at++) {
        char ch = s.ptr[at];
        if (ch == '\\' && at + 1 < s.len) {
            ch = s.ptr[++at];
            if (ch == 'n') ch = '\n';
            else if (ch == 't') ch = '\t';
            else if (ch == 'r') ch = '\r';
            else if (ch != '\\' && ch != '"' && ch != '\'' && lit) textbuf_str(lit, "\\");
        }
        if (lit) textbuf_put(lit, (str_view){ &ch, 1 });
    }
    return at + 1;
}

/* Returns the place after a {% %} or {# #}; only the former has strings that could hide its end. */
static size_t skip_block(str_view s, size_t at, const char *close)
{
    while (at < s.len && !starts_at(s, at, close)) {
        if (close[0] == '%' && (s.ptr[at] == '"' || s.ptr[at] == '\'')) at = quoted(s, at, NULL);
        else at++;
    }
    return at + 2;
}

bool template_next(literal_scan *k, textbuf *lit)
{
    const str_view s = k->s;
    lit->len = 0;
    while (k->at < s.len) {
        k->found_at = k->at;
        if (k->in_output) {
            if (starts_at(s, k->at, "}}")) {
                k->in_output = false;
                k->at += 2;
            } else if (s.ptr[k->at] == '"' || s.ptr[k->at] == '\'') {
                k->at = quoted(s, k->at, lit);
                return true;
            } else {
                k->at++;
            }
        } else if (starts_at(s, k->at, "{{")) {
            k->in_output = true;
            k->at += 2;
        } else if (starts_at(s, k->at, "{%")) {
            k->at = skip_block(s, k->at + 2, "%}");
        } else if (starts_at(s, k->at, "{#")) {
            k->at = skip_block(s, k->at + 2, "#}");
        } else {
            size_t end = k->at + 1;
            while (end < s.len && !starts_at(s, end, "{{") && !starts_at(s, end, "{%") &&
                   !starts_at(s, end, "{#")) end++;
            const str_view text = { s.ptr + k->at, end - k->at };
            k->at = end;
            if (!view_strip(text, VIEW_SPACE, true, true).len) continue;
            textbuf_put(lit, text);
            return true;
        }
    }
    return false;
}
