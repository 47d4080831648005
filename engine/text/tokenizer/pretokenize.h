/* pretokenize.h - cuts text into the pieces that byte-pair merging may not cross.
 *
 * Each rule implements its model's published regular expression as a hand-written scanner: one
 * forward pass, no backtracking, linear time. Every byte is in exactly one piece. The last three
 * rules are for vocabularies of characters, whose files name no rule. */
#ifndef ENGINE_TEXT_TOKENIZER_PRETOKENIZE_H
#define ENGINE_TEXT_TOKENIZER_PRETOKENIZE_H

#include "loader/base.h"

/* The rules, named as in GGUF files. */
typedef enum pretokenizer {
    PRE_QWEN2, PRE_GPT4O, PRE_QWEN35, PRE_GLM4, PRE_CHATGLM, PRE_DBRX, PRE_SMAUG, PRE_LLAMA3,
    PRE_OLMO,
    N_PRE_NAMED,
    PRE_WHOLE = N_PRE_NAMED,             /* the text is one piece */
    PRE_LINES,                           /* runs of LF, and the text between them */
    PRE_WORDS,                           /* lines, also cut before each space after a non-space */
    N_PRETOKENIZER
} pretokenizer;

const char *pretokenizer_name(pretokenizer pre);
bool pretokenizer_find(pretokenizer *out, str_view name);        /* by the name in a file */

/* Writes all names that pretokenizer_find accepts, "qwen2, gpt-4o, ...". Returns dst. */
const char *pretokenizer_names(char *dst, size_t cap);

/* Further needs of a rule's models. wants_nfc: text in Unicode NFC. takes_whole: a piece that
 * equals a token is not merged. wants_bos: BOS before a text unless the file says otherwise.
 * forbids_bos: never BOS, because the chat template writes the first token. */
bool pretokenizer_wants_nfc(pretokenizer pre);
bool pretokenizer_takes_whole(pretokenizer pre);
bool pretokenizer_wants_bos(pretokenizer pre);
bool pretokenizer_forbids_bos(pretokenizer pre);

/* Cuts the n bytes of valid UTF-8 at p into pieces until the text or the cap entries of lens are
 * used up. Returns the number of pieces. Look-ahead treats p + n as the end of the text, so pass
 * the whole stretch and continue after the returned pieces. */
size_t pretokenize(pretokenizer pre, size_t *lens, size_t cap, const uint8_t *p, size_t n);

#endif
