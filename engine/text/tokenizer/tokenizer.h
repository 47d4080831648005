/* tokenizer.h - the vocabulary of a GGUF file: text to ids and back.
 *
 * Three kinds: byte-level BPE (model gpt2), SentencePiece by scores (llama), BPE on characters
 * (gemma4). A tokenizer is immutable after tokenizer_create and may be shared by threads. An
 * encoder, one per thread, has scratch memory and a small cache of recent pieces. Encoding adds
 * only the space of tokenizer_adds_space to a text; encoder_encode_whole also adds BOS and EOS. */
#ifndef ENGINE_TEXT_TOKENIZER_TOKENIZER_H
#define ENGINE_TEXT_TOKENIZER_TOKENIZER_H

#include "loader/gguf.h"

typedef struct tokenizer tokenizer;
typedef struct encoder encoder;

/* Token types of the file format. */
typedef enum token_kind {
    TOKEN_NORMAL = 1, TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
} token_kind;

/* Byte-level files write ordinary tokens and merges with one printable character per byte. Returns
 * true for the bytes written as the character of the same number. The others are written, in
 * ascending order, as U+0100 and up. */
static inline bool token_byte_is_itself(int byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* Reads tokenizer.ggml.* and copies it, so g may be closed afterwards. Refuses an unknown model or
 * pre-tokenizer, arrays of unequal length, invalid tokens, merges of unknown tokens, and a
 * vocabulary that lacks one of the 256 bytes. */
int tokenizer_create(tokenizer **out, const gguf *g, err_ctx *err);
void tokenizer_free(tokenizer *t);

int tokenizer_n_token(const tokenizer *t);
int tokenizer_n_merge(const tokenizer *t);
const char *tokenizer_pre_name(const tokenizer *t);      /* pretokenize.h has the names */
token_kind tokenizer_kind(const tokenizer *t, int id);   /* id must be in range */

/* Returns the id of the CONTROL, UNKNOWN or USER token with this text, or -1. */
int tokenizer_special(const tokenizer *t, const char *text);

/* Stops are the ids that end a generation: some special tokens by text, and the file's
 * eos_token_id, eot_token_id and eom_token_id if they are CONTROL tokens (never <|end|>, which only
 * closes a harmony message). */
bool tokenizer_is_stop(const tokenizer *t, int id);
int tokenizer_stops(const tokenizer *t, int *ids, int cap);      /* returns their number */
int tokenizer_bos(const tokenizer *t);                   /* -1 if the file names none */
int tokenizer_eos(const tokenizer *t);

/* Return whether a text needs BOS before it, EOS after it, and a space before each stretch of text
 * (at the start and after each special token). From the file, else from the kind of vocabulary. */
bool tokenizer_adds_bos(const tokenizer *t);
bool tokenizer_adds_eos(const tokenizer *t);
bool tokenizer_adds_space(const tokenizer *t);

/* ---- text to ids ---- */

/* A growing list of ids. Zero-initialise; ids_free releases. */
typedef struct id_list { int32_t *ids; size_t n, cap; } id_list;
int ids_push(id_list *l, int32_t id, err_ctx *err);
void ids_free(id_list *l);

int encoder_create(encoder **out, const tokenizer *t, err_ctx *err);     /* borrows t */
void encoder_free(encoder *e);

/* Appends the ids of text to *out. Texts of USER tokens always become their ids, those of CONTROL
 * and UNKNOWN tokens only if parse_special. Each byte outside a valid UTF-8 sequence is encoded as
 * U+FFFD. Fails only if out of memory; *out then has the ids encoded before that. */
int encoder_encode(encoder *e, id_list *out, str_view text, bool parse_special, err_ctx *err);

/* Encodes the whole input of the model: adds BOS if tokenizer_adds_bos and the text does not begin
 * with it, and EOS if is_complete and tokenizer_adds_eos. */
int encoder_encode_whole(encoder *e, id_list *out, str_view text, bool parse_special,
                         bool is_complete, err_ctx *err);

/* ---- ids to text ---- */

/* Returns the bytes of a NORMAL or BYTE token (perhaps part of a character), the text of a USER
 * token, and that of a CONTROL or UNKNOWN token if with_special. Other tokens are empty. id must be
 * in range. */
str_view tokenizer_bytes(const tokenizer *t, int id, bool with_special);

/* Returns the bytes of ids[i] in the text of the sequence that starts at ids[0]: special tokens
 * have their text, and the space that encoding added is left out. */
str_view tokenizer_bytes_at(const tokenizer *t, const int32_t *ids, size_t i);

/* Converts a stream of token bytes to valid UTF-8. Buffers an incomplete character of at most three
 * bytes; replaces invalid bytes with U+FFFD at once. Zero-initialise. */
typedef struct utf8_stream { uint8_t tail[4]; int n_tail; } utf8_stream;

/* Writes the complete characters so far to dst and returns their bytes. dst must have space for
 * 3 * (bytes.len + 3) + 3 bytes. */
size_t utf8_stream_push(utf8_stream *s, char *dst, str_view bytes);
size_t utf8_stream_end(utf8_stream *s, char *dst);       /* an incomplete tail becomes U+FFFD */

#endif
