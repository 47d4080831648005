/* pretokenize.h - cuts text into the pieces that byte-pair merging may not cross.
 *
 * Each rule is what its model's published regular expression does, as a hand-written scanner: one
 * forward pass, no backtracking, time linear in the text. Every byte lands in exactly one piece. */
#ifndef ENGINE_TEXT_PRETOKENIZE_H
#define ENGINE_TEXT_PRETOKENIZE_H

#include "loader/base.h"

/* The rules, by the names GGUF files use for them. */
typedef enum pretokenizer { PRE_QWEN2, PRE_GPT4O, PRE_QWEN35, N_PRETOKENIZER } pretokenizer;

const char *pretokenizer_name(pretokenizer pre);
bool pretokenizer_find(pretokenizer *out, str_view name);

/* Does this rule's model see its text in Unicode NFC? */
bool pretokenizer_wants_nfc(pretokenizer pre);

/* Cuts pieces off the n bytes of valid UTF-8 at p until the text or the room for cap lengths is
 * used up; returns how many. The end of the text is what look-ahead sees: pass the whole stretch,
 * and go on after the pieces that came back. */
size_t pretokenize(pretokenizer pre, size_t *lens, size_t cap, const uint8_t *p, size_t n);

#endif
