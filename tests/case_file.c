/* case_file.c - cuts a file of cases into strings, in place. */
#include "tests/case_file.h"

#include <stdio.h>
#include <string.h>

static char *read_text(char *path, size_t cap, const char *name)
{
    size_t n = 0;
    char *text = test_read_file(test_path(path, cap, "tests/cases/%s", name), &n);
    if (n > 0 && text[n - 1] == '\n') text[n - 1] = '\0';
    return text;
}

bool case_file_read(case_file *f, const char *name)
{
    char path[512];
    memset(f, 0, sizeof *f);
    f->text = read_text(path, sizeof path, name);
    for (char *p = f->text ? strstr(f->text, "\n== ") : NULL, *next; p; p = next) {
        next = strstr(++p, "\n== ");
        if (next) *next = '\0';
        char *body = strchr(p, '\n'), *want = body ? strstr(body, "\n>>") : NULL;
        if (!CHECK_MSG(want && f->n < MOST_CASES, "%s: case %d, %.40s", path, f->n + 1, p))
            return false;
        *body = *want = '\0';
        f->cases[f->n++] = (test_case){ p + 3, body < want ? body + 1 : body,
                                        want + 3 + (want[3] == ' ') };
    }
    return CHECK_MSG(f->n > 0, "%s: no cases", path);
}

void case_file_free(case_file *f) { mem_free(f->text); }

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* \n and \xHH, in place. */
static void decode(char *s)
{
    char *to = s;
    for (const char *p = s; *p; p++) {
        const bool hex = p[0] == '\\' && p[1] == 'x' && hex_digit(p[2]) >= 0;
        if (hex && hex_digit(p[3]) >= 0) {
            *to++ = (char)(16 * hex_digit(p[2]) + hex_digit(p[3]));
            p += 3;
        } else if (p[0] == '\\' && p[1] == 'n') {
            *to++ = '\n';
            p++;
        } else {
            *to++ = *p;
        }
    }
    *to = '\0';
}

/* The next "|" between spaces, or NULL. */
static char *find_bar(char *p)
{
    while ((p = strstr(p, " |")) && p[2] && p[2] != ' ') p += 2;
    return p;
}

/* Cuts a line at each bar. Returns false if there are too many. */
static bool cut_cells(char **cells, char *line)
{
    for (int i = 0; i < MOST_CELLS; i++) {
        char *bar = find_bar(line), *end = bar ? bar : line + strlen(line);
        while (line < end && *line == ' ') line++;
        cells[i] = line;
        line = bar ? bar + 2 : end;
        while (end > cells[i] && end[-1] == ' ') *--end = '\0';
        *end = '\0';
        decode(cells[i]);
    }
    return line[0] == '\0';
}

bool case_rows_read(case_rows *r, const char *name)
{
    char path[512];
    memset(r, 0, sizeof *r);
    r->text = read_text(path, sizeof path, name);
    for (char *p = r->text, *next; p; p = next) {
        next = strchr(p, '\n');
        if (next) *next++ = '\0';
        if (p[0] == '\0' || !strcmp(p, "#") || case_begins(p, "#", ' ')) continue;
        if (!CHECK_MSG(r->n < MOST_ROWS && cut_cells(r->cells[r->n], p), "%s: row %d", path, r->n))
            return false;
        r->n++;
    }
    return CHECK_MSG(r->n > 0, "%s: no rows", path);
}

void case_rows_kinds(const case_rows *r, const char *kinds)
{
    for (int i = 0; i < r->n; i++) (void)case_word(kinds, r->cells[i][0]);
}

void case_rows_free(case_rows *r) { mem_free(r->text); }

const char *case_replace(char *dst, size_t cap, const char *text, const char *from, const char *to)
{
    const char *found = strstr(text, from), *rest = from[0] && found ? found + strlen(from) : "";
    CHECK_MSG(found != NULL, "the row is wrong: no %s", from);
    if (!found) found = text;
    snprintf(dst, cap, "%.*s%s%s", (int)(found - text), text, to, rest);
    return dst;
}

int case_word(const char *words, const char *word)
{
    const size_t n = strcspn(word, " ");
    for (int i = 0; *words; i++, words += strcspn(words, " "), words += *words == ' ')
        if (strcspn(words, " ") == n && strncmp(words, word, n) == 0) return i;
    return CHECK_MSG(false, "the row is wrong: %s", word) - 1;
}

bool case_begins(const char *text, const char *name, char end)
{
    const size_t n = strlen(name);
    return strncmp(text, name, n) == 0 && text[n] == end;
}

char *case_unescape(char *s)
{
    char *to = s;
    for (const char *p = s; *p; p++)
        *to++ = p[0] == '\\' && p[1] == 'n' ? p++, '\n' : *p;
    *to = '\0';
    return s;
}
