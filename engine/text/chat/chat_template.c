/* chat_template.c - iterates over the literals in a file's chat template.
 *
 * The template is scanned, not executed: conditions and loops are ignored, so the literals of all
 * branches appear, in source order. */
#include "engine/text/chat/chat_internal.h"

#include <string.h>

static bool starts_at(str_view s, size_t pos, const char *prefix)
{
    const size_t n = strlen(prefix);
    return pos <= s.len && s.len - pos >= n && memcmp(s.ptr + pos, prefix, n) == 0;
}

/* Returns the position after the quoted string at pos; appends its unescaped text to lit unless
 * NULL. */
static size_t quoted(str_view s, size_t pos, textbuf *lit)
{
    const char quote = s.ptr[pos++];
    for (; pos < s.len && s.ptr[pos] != quote; pos++) {
        char ch = s.ptr[pos];
        if (ch == '\\' && pos + 1 < s.len) {
            ch = s.ptr[++pos];
            if (ch == 'n') ch = '\n';
            else if (ch == 't') ch = '\t';
            else if (ch == 'r') ch = '\r';
            else if (ch != '\\' && ch != '"' && ch != '\'' && lit) textbuf_str(lit, "\\");
        }
        if (lit) textbuf_put(lit, (str_view){ &ch, 1 });
    }
    return pos + 1;
}

/* Returns the position after a {% %} or {# #}; only in {% %} can a string contain the close tag. */
static size_t skip_block(str_view s, size_t pos, const char *close)
{
    while (pos < s.len && !starts_at(s, pos, close)) {
        if (close[0] == '%' && (s.ptr[pos] == '"' || s.ptr[pos] == '\''))
            pos = quoted(s, pos, NULL);
        else pos++;
    }
    return pos + 2;
}

bool template_next(literal_scan *k, textbuf *lit)
{
    const str_view s = k->s;
    lit->len = 0;
    while (k->pos < s.len) {
        k->found_at = k->pos;
        if (k->in_output) {
            if (starts_at(s, k->pos, "}}")) {
                k->in_output = false;
                k->pos += 2;
            } else if (s.ptr[k->pos] == '"' || s.ptr[k->pos] == '\'') {
                k->pos = quoted(s, k->pos, lit);
                return true;
            } else {
                k->pos++;
            }
        } else if (starts_at(s, k->pos, "{{")) {
            k->in_output = true;
            k->pos += 2;
        } else if (starts_at(s, k->pos, "{%")) {
            k->pos = skip_block(s, k->pos + 2, "%}");
        } else if (starts_at(s, k->pos, "{#")) {
            k->pos = skip_block(s, k->pos + 2, "#}");
        } else {
            size_t end = k->pos + 1;
            while (end < s.len && !starts_at(s, end, "{{") && !starts_at(s, end, "{%") &&
                   !starts_at(s, end, "{#")) end++;
            const str_view text = { s.ptr + k->pos, end - k->pos };
            k->pos = end;
            if (!view_strip(text, VIEW_SPACE, true, true).len) continue;
            textbuf_put(lit, text);
            return true;
        }
    }
    return false;
}
