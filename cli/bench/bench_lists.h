/* bench_lists.h - lists in the options of moe-bench: "Q8_0,MXFP4" and "1,64".
 *
 * Functions that return int return 0, or the exit code 2 after one line on stderr. */
#ifndef CLI_BENCH_BENCH_LISTS_H
#define CLI_BENCH_BENCH_LISTS_H

#include "loader/quant.h"

enum { BENCH_MAX_COUNTS = 16 };

typedef struct bench_counts {
    int n, of[BENCH_MAX_COUNTS];
} bench_counts;

/* Copies the next word of a comma-separated list, cut after 31 bytes, and advances *list. False at
 * the end of the list, where *list is NULL. */
bool bench_next_word(char word[32], const char **list);

/* Whole numbers from least to most; option, such as --tokens, is for the message. */
int bench_read_counts(bench_counts *out, const char *option, const char *list, int least,
                      int most);

/* A whole number from 1 to most at the beginning of text; *end points behind it. */
bool bench_parse_count(int *out, const char *text, char **end, int most);

#endif
