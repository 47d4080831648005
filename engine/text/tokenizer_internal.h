/* tokenizer_internal.h - what tokenizer.c fills and encoder.c reads. */
#ifndef ENGINE_TEXT_TOKENIZER_INTERNAL_H
#define ENGINE_TEXT_TOKENIZER_INTERNAL_H

#include "engine/text/bpe.h"
#include "engine/text/pretokenize.h"
#include "engine/text/tokenizer.h"

enum { N_STOP_MAX = 5 };

/* A token that is looked for in raw text, before anything else happens to it. */
typedef struct special_token { str_view text; int id; bool user; } special_token;

struct tokenizer {                       /* set once, by tokenizer_create */
    bpe vocab;
    pretokenizer pre;
    uint8_t *kind;                       /* [n_token] token_kind */
    special_token *specials;             /* by text, then id */
    int n_special;
    int first[257];                      /* first[c] .. first[c + 1] start with byte c */
    int first_byte;                      /* the byte all of them start with, or -1 */
    int bos, eos;
    int stops[N_STOP_MAX], n_stop;
};

/* The longest special token at p, CONTROL ones only if with_control; NULL if none. */
const special_token *tokenizer_match(const tokenizer *t, const uint8_t *p, size_t n,
                                     bool with_control);

#endif
