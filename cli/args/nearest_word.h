/* nearest_word.h - what a mistyped word may have been meant to be. */
#ifndef CLI_ARGS_NEAREST_WORD_H
#define CLI_ARGS_NEAREST_WORD_H

#include "loader/base.h"

typedef struct nearest_word {
    str_view typed;
    const char *best;                    /* of the words tried so far; NULL: none is close */
    int least;                           /* a word must differ in fewer letters to be better */
} nearest_word;

nearest_word nearest_word_begin(str_view typed);

/* One of the words that there are; borrowed. Of several that are as close, the first is best. */
void nearest_word_try(nearest_word *n, const char *word);

#endif
