/* tokenizer.h - byte-level BPE as the GGUF file describes it: text to ids and back.
 *
 * A tokenizer is immutable after tokenizer_create and may be shared by threads. What encoding needs
 * besides (scratch, a small cache of recent pieces) lives in an encoder: one per thread. Nothing is
 * ever added to the text: no BOS, no EOS, no space. */
#ifndef ENGINE_TEXT_TOKENIZER_H
#define ENGINE_TEXT_TOKENIZER_H

#include "loader/gguf.h"

typedef struct tokenizer tokenizer;
typedef struct encoder encoder;

/* Token types of the file format. */
typedef enum token_kind {
    TOKEN_NORMAL = 1, TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
} token_kind;

/* Ordinary tokens and merges are written in the file with one printable character per byte. These
 * bytes stand for the character of the same number; the others, in ascending order, for U+0100 and
 * up. */
static inline bool token_byte_is_itself(int byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* Reads tokenizer.ggml.* . Copies what it keeps, so g may be closed afterwards. Refuses a model or
 * pre-tokenizer that is not implemented, arrays of unequal length, characters outside the byte
 * alphabet, merges of unknown tokens, and a vocabulary that lacks one of the 256 bytes. */
int tokenizer_create(tokenizer **out, const gguf *g, err_ctx *err);
void tokenizer_free(tokenizer *t);

int tokenizer_n_token(const tokenizer *t);
int tokenizer_n_merge(const tokenizer *t);
const char *tokenizer_pre_name(const tokenizer *t);      /* "qwen2", "gpt-4o", "qwen35" */
token_kind tokenizer_kind(const tokenizer *t, int id);   /* id must be in range */

/* The id of a CONTROL or USER token by its text; -1 if there is none. */
int tokenizer_special(const tokenizer *t, const char *text);

/* Ids that end a generation, found by text among the CONTROL tokens, plus the file's eos_token_id
 * if that is a CONTROL token (never <|end|>, which only closes a harmony message). */
bool tokenizer_is_stop(const tokenizer *t, int id);
int tokenizer_stops(const tokenizer *t, int *ids, int cap);      /* returns how many there are */
int tokenizer_bos(const tokenizer *t);                   /* -1 if the file names none */
int tokenizer_eos(const tokenizer *t);

/* ---- text to ids ---- */

/* A growing list of ids. Zero-initialise; ids_free releases. */
typedef struct id_list { int32_t *ids; size_t n, cap; } id_list;
int ids_push(id_list *l, int32_t id, err_ctx *err);
void ids_free(id_list *l);

int encoder_create(encoder **out, const tokenizer *t, err_ctx *err);     /* borrows t */
void encoder_free(encoder *e);

/* Appends the ids of text to *out. USER tokens in the text become their ids always, CONTROL tokens
 * only if parse_special. Any bytes are accepted: each byte outside a valid UTF-8 sequence counts as
 * U+FFFD. Fails only when memory runs out; *out then holds what was encoded so far. */
int encoder_encode(encoder *e, id_list *out, str_view text, bool parse_special, err_ctx *err);

/* ---- ids to text ---- */

/* Bytes of one token: NORMAL its bytes, USER its text, CONTROL its text if with_special, else
 * empty, UNUSED empty. The bytes may be part of a character. id must be in range. */
str_view tokenizer_bytes(const tokenizer *t, int id, bool with_special);

/* Turns a stream of token bytes into valid UTF-8: holds back an incomplete tail of at most three
 * bytes, replaces what cannot become a character by U+FFFD at once. Zero-initialise. */
typedef struct utf8_stream { uint8_t tail[4]; int n_tail; } utf8_stream;

/* Writes what may be shown now to dst and returns its length. dst needs room for
 * 3 * (bytes.len + 3) + 3 bytes. */
size_t utf8_stream_push(utf8_stream *s, char *dst, str_view bytes);
size_t utf8_stream_end(utf8_stream *s, char *dst);       /* a tail that never completed: U+FFFD */

#endif
