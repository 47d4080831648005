/* tokenizer_internal.h - struct tokenizer; tokenizer.c fills it, encoder.c reads it. */
#ifndef ENGINE_TEXT_TOKENIZER_TOKENIZER_INTERNAL_H
#define ENGINE_TEXT_TOKENIZER_TOKENIZER_INTERNAL_H

#include "engine/text/tokenizer/bpe.h"
#include "engine/text/tokenizer/pretokenize.h"
#include "engine/text/tokenizer/tokenizer.h"

enum { N_STOP_MAX = 8 };

/* A value of tokenizer.ggml.model. */
typedef struct vocabulary_model {
    const char *name;
    bool by_char;                        /* merging starts from characters, not from bytes */
    bool by_score;                       /* tokens have scores; else the file lists the merges */
    bool add_bos, always_bos;            /* default if the file has no key; overrides the file */
    bool space_prefix;                   /* default if the file has no key */
    bool newlines_whole;                 /* a run of newlines that equals a token is not merged */
} vocabulary_model;

/* A token that is searched for in raw text, before normalization. */
typedef struct special_token { str_view text; int id; bool user; } special_token;

struct tokenizer {                       /* set once, by tokenizer_create */
    bpe vocab;
    const vocabulary_model *model;
    pretokenizer pre;
    uint8_t *kind;                       /* [n_token] token_kind */
    special_token *specials;             /* by text, then id */
    int n_special;
    int first[257];                      /* first[c] .. first[c + 1] start with byte c */
    int first_byte;                      /* the common first byte of all specials, or -1 */
    int bos, eos;
    bool add_bos, add_eos, space_prefix;
    int stops[N_STOP_MAX], n_stop;
};

/* Returns the longest special token at p, or NULL; CONTROL tokens count only if with_control. */
const special_token *tokenizer_match(const tokenizer *t, const uint8_t *p, size_t n,
                                     bool with_control);

#endif
