/* case_file.h - tables of test cases whose texts are better read as they are than as C strings.
 *
 *   == HEAD          a case begins; what stands before the first is a comment
 *   BODY             any number of lines
 *   >> WANT          to the end of the case, without its last newline
 *
 * or, with case_rows_read, a case a line: cells that "|" between spaces separates, with \n for a
 * newline and \xHH for a byte. Lines that begin with "# " are comments. */
#ifndef TESTS_CASE_FILE_H
#define TESTS_CASE_FILE_H

#include "tests/test.h"

enum { MOST_CASES = 256, MOST_ROWS = 512, MOST_CELLS = 6 };
typedef struct test_case { char *head, *body, *want; } test_case;
typedef struct case_file {
    char *text;
    test_case cases[MOST_CASES];
    int n;
} case_file;

typedef struct case_rows {
    char *text;
    char *cells[MOST_ROWS][MOST_CELLS];  /* decoded; "" after the last */
    int n;
} case_rows;

bool case_file_read(case_file *f, const char *name);     /* of tests/cases; false: a failed check */
void case_file_free(case_file *f);
bool case_rows_read(case_rows *r, const char *name);     /* the same */
/* A failed check for each row whose first cell is none of these words. */
void case_rows_kinds(const case_rows *r, const char *kinds);
void case_rows_free(case_rows *r);
/* dst = text with the first `from` replaced, or all of it if from is empty. */
const char *case_replace(char *dst, size_t cap, const char *text, const char *from, const char *to);
int case_word(const char *words, const char *word);      /* "a b c", "b": 1; -1: a failed check */
bool case_begins(const char *text, const char *name, char end);  /* text is name, then end */
char *case_unescape(char *s);            /* makes newlines of each \n, in place; returns s */

#endif
