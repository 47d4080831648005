/* nearest_word.c - edit distance: up to two letters of a word of five or more, else one. */
#include "cli/args/nearest_word.h"

#include <string.h>

/* Letters to insert, drop or change to turn a into b; 32 if either is longer than 32. */
static int distance(str_view a, const char *b)
{
    enum { MOST = 32 };
    int row[MOST + 1];
    const size_t n = strlen(b);
    if (a.len > MOST || n > MOST) return MOST;
    for (size_t j = 0; j <= n; j++) row[j] = (int)j;
    for (size_t i = 0; i < a.len; i++) {
        int diagonal = row[0];
        row[0] = (int)i + 1;
        for (size_t j = 0; j < n; j++) {
            const int change = diagonal + (a.ptr[i] != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = min_int(change, 1 + min_int(row[j], diagonal));
        }
    }
    return row[n];
}

nearest_word nearest_word_begin(str_view typed)
{
    return (nearest_word){ .typed = typed, .least = typed.len > 4 ? 3 : 2 };
}

void nearest_word_try(nearest_word *n, const char *word)
{
    const int d = distance(n->typed, word);
    if (d >= n->least) return;
    n->best = word;
    n->least = d;
}
