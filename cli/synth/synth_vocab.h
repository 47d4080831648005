/* synth_vocab.h - a made-up byte-level BPE vocabulary of a real model's size. */
#ifndef CLI_SYNTH_SYNTH_VOCAB_H
#define CLI_SYNTH_SYNTH_VOCAB_H

#include "loader/gguf_write.h"

/* Which special tokens follow the merged ones. */
typedef enum synth_family { SYNTH_GPTOSS, SYNTH_QWEN3NEXT } synth_family;

enum { SYNTH_MERGED_MAX = 256 * 256 + 53 * 53 * 53 };

/* Adds all tokenizer.* keys to w. Ids: 256 bytes, first_special - 256 merged tokens (at most
 * SYNTH_MERGED_MAX), the family's special tokens, padding up to n_vocab, which must leave room. */
int synth_vocab_write(gguf_writer *w, synth_family family, int n_vocab, int first_special,
                      err_ctx *err);

int synth_vocab_n_special(synth_family family);

#endif
