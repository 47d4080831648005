/* synth_vocab.h - an artificial vocabulary of a real model's size.
 *
 * Special tokens are those of the real vocabularies, all others are artificial. The family's file
 * chooses kind and special tokens. */
#ifndef CLI_SYNTH_SYNTH_VOCAB_H
#define CLI_SYNTH_SYNTH_VOCAB_H

#include "loader/gguf_write.h"

/* The tokenization. Ids, in ascending order:
 *   bytes            256 bytes, merged tokens, special tokens from first_special on, padding
 *   scores, ranks    special tokens, 256 bytes, merged tokens, single characters */
typedef enum synth_vocab_kind {
    SYNTH_BYTES,                         /* byte-level BPE: gpt2 */
    SYNTH_SCORES,                        /* SentencePiece, joins by scores: llama */
    SYNTH_RANKS                          /* BPE on UTF-8: gemma4 */
} synth_vocab_kind;

typedef struct synth_special {
    const char *text;                    /* NULL: <|reserved_ID|> */
    int kind;                            /* as in tokenizer.ggml.token_type; 0: control */
} synth_special;

typedef struct synth_vocab {
    synth_vocab_kind kind;
    const char *pre;                     /* NULL: no such key */
    const synth_special *special;
    int n_special;
    int bos, eos, pad, eot, eom, unknown;        /* counted from the first special token; -1: no
                                                  * such key */
    bool add_bos;
    const char *chat_template;
} synth_vocab;

enum {
    SYNTH_SINGLES = 95,                  /* printable ASCII characters, with the space */
    SYNTH_LETTERS = 64,                  /* the characters of triples */
    SYNTH_TRIPLES = SYNTH_LETTERS * SYNTH_LETTERS * SYNTH_LETTERS,
    SYNTH_MERGED_MAX = 256 * 256 + SYNTH_TRIPLES         /* of bytes; of characters: */,
    SYNTH_PIECES_MAX = SYNTH_SINGLES * SYNTH_SINGLES + SYNTH_TRIPLES
};

/* Adds all tokenizer.* keys to w. first_special, for SYNTH_BYTES: id of the first special token,
 * 256 or more, after at most SYNTH_MERGED_MAX merged tokens; n_vocab must include the special
 * tokens. 0 for the other kinds, which have at most SYNTH_PIECES_MAX merged tokens. */
int synth_vocab_write(gguf_writer *w, const synth_vocab *v, int n_vocab, int first_special,
                      err_ctx *err);

/* Qwen's, from Qwen2 on. */
extern const synth_special synth_qwen_special[];
enum { SYNTH_QWEN_SPECIAL = 26, SYNTH_QWEN_EOS = 2 };
#define SYNTH_CHATML                                                                               \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"   \
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

#endif
