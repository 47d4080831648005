/* case_file.c - cuts a file of cases into strings, in place. */
#include "tests/case_file.h"

#include <string.h>

bool case_file_read(case_file *f, const char *name)
{
    char path[512];
    size_t n = 0;
    memset(f, 0, sizeof *f);
    f->text = test_read_file(test_path(path, sizeof path, "tests/cases/%s", name), &n);
    if (n > 0 && f->text[n - 1] == '\n') f->text[n - 1] = '\0';
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
