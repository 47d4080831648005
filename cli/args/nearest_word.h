/* nearest_word.h - the known word that a mistyped one is most similar to. */
#ifndef CLI_ARGS_NEAREST_WORD_H
#define CLI_ARGS_NEAREST_WORD_H

#include "loader/base.h"

typedef struct nearest_word {
    str_view typed;
    const char *best;                    /* of the words tried so far; NULL: none is similar */
    int least;                           /* letters; a better word differs in fewer */
} nearest_word;

nearest_word nearest_word_begin(str_view typed);

/* Tries a known word, which is borrowed. The first of equals is best. */
void nearest_word_try(nearest_word *n, const char *word);

#endif
