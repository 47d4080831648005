/* bench_lists.c - reads lists of words and numbers. */
#include "cli/bench/bench_lists.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/console.h"

bool bench_next_word(char word[32], const char **list)
{
    if (!*list) return false;
    const size_t n = strcspn(*list, ",");
    snprintf(word, 32, "%.*s", (int)(n < 31 ? n : 31), *list);
    *list = (*list)[n] ? *list + n + 1 : NULL;
    return true;
}

bool bench_parse_count(int *out, const char *text, char **end, int most)
{
    const unsigned long n = strtoul(text, end, 10);      /* too many digits: ULONG_MAX */
    *out = (int)n;
    return *text >= '0' && *text <= '9' && n >= 1 && n <= (unsigned long)most;
}

int bench_read_counts(bench_counts *out, const char *option, const char *list, int least,
                      int most)
{
    char word[32], shown[64], *end;
    while (bench_next_word(word, &list)) {
        if (out->n == BENCH_MAX_COUNTS) {
            console_error("%s: more than %d numbers", option, BENCH_MAX_COUNTS);
            return 2;
        }
        if (!bench_parse_count(&out->of[out->n], word, &end, most) || *end ||
            out->of[out->n++] < least) {
            console_error("%s: '%s' is not a number within %d..%d", option,
                          ESC(shown, str_from(word)), least, most);
            return 2;
        }
    }
    return 0;
}
