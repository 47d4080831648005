/* pretokenize.h - cuts text into the pieces that byte-pair merging may not cross.
 *
 * Each rule is what its model's published regular expression does, as a hand-written scanner: one
 * forward pass, no backtracking, time linear in the text. Every byte lands in exactly one piece.
 * The last three are for vocabularies of characters, which name no rule. */
#ifndef ENGINE_TEXT_TOKENIZER_PRETOKENIZE_H
#define ENGINE_TEXT_TOKENIZER_PRETOKENIZE_H

#include "loader/base.h"

/* The rules, by the names GGUF files use for them. */
typedef enum pretokenizer {
    PRE_QWEN2, PRE_GPT4O, PRE_QWEN35, PRE_GLM4, PRE_CHATGLM, PRE_DBRX, PRE_SMAUG, PRE_LLAMA3,
    PRE_OLMO,
    N_PRE_NAMED,
    PRE_WHOLE = N_PRE_NAMED,             /* the text is one piece */
    PRE_LINES,                           /* runs of LF, and what is between them */
    PRE_WORDS,                           /* lines, cut before each space that follows a non-space */
    N_PRETOKENIZER
} pretokenizer;

const char *pretokenizer_name(pretokenizer pre);
bool pretokenizer_find(pretokenizer *out, str_view name);        /* of those with a name in files */

/* "qwen2, gpt-4o, ...": all that pretokenizer_find knows. Returns dst. */
const char *pretokenizer_names(char *dst, size_t cap);

/* What a model needs besides the cuts: text in Unicode NFC; a piece that is a token taken as it
 * stands, without merging; BOS before a text where the file does not say; no BOS whatever the file
 * says, since the chat template writes what comes first. */
bool pretokenizer_wants_nfc(pretokenizer pre);
bool pretokenizer_takes_whole(pretokenizer pre);
bool pretokenizer_wants_bos(pretokenizer pre);
bool pretokenizer_forbids_bos(pretokenizer pre);

/* Cuts pieces off the n bytes of valid UTF-8 at p until the text or the room for cap lengths is
 * used up; returns how many. The end of the text is what look-ahead sees: pass the whole stretch,
 * and go on after the pieces that came back. */
size_t pretokenize(pretokenizer pre, size_t *lens, size_t cap, const uint8_t *p, size_t n);

#endif
