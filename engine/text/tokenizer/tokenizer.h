/* tokenizer.h - the vocabulary as the GGUF file describes it: text to ids and back.
 *
 * Three kinds: byte-level BPE (model gpt2), SentencePiece by scores (llama), BPE on characters
 * (gemma4). A tokenizer is immutable after tokenizer_create and may be shared by threads. An
 * encoder has the scratch memory and a small cache of recent words: one per thread. Encoding adds
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

/* Ordinary tokens and merges are written in the file with one printable character per byte. These
 * bytes stand for the character of the same number; the others, in ascending order, for U+0100 and
 * up. */
static inline bool token_byte_is_itself(int byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* Reads tokenizer.ggml.* . Copies what it keeps, so g may be closed afterwards. Refuses a model or
 * pre-tokenizer that is not implemented, arrays of unequal length, tokens that are not written as
 * they should be, merges of unknown tokens, and a vocabulary that lacks one of the 256 bytes. */
int tokenizer_create(tokenizer **out, const gguf *g, err_ctx *err);
void tokenizer_free(tokenizer *t);

int tokenizer_n_token(const tokenizer *t);
int tokenizer_n_merge(const tokenizer *t);
const char *tokenizer_pre_name(const tokenizer *t);      /* pretokenize.h has the names */
token_kind tokenizer_kind(const tokenizer *t, int id);   /* id must be in range */

/* The id of a CONTROL, UNKNOWN or USER token by its text; -1 if there is none. */
int tokenizer_special(const tokenizer *t, const char *text);

/* Ids that end a generation, found by text among the special tokens, plus the file's eos_token_id,
 * eot_token_id and eom_token_id if they are CONTROL tokens (never <|end|>, which only closes a
 * harmony message). */
bool tokenizer_is_stop(const tokenizer *t, int id);
int tokenizer_stops(const tokenizer *t, int *ids, int cap);      /* returns their number */
int tokenizer_bos(const tokenizer *t);                   /* -1 if the file names none */
int tokenizer_eos(const tokenizer *t);

/* Does the model see BOS before a text, and EOS after it? Is a space put before each stretch of
 * text, at the start and after each special token? The file says, or the kind of vocabulary. */
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

/* Appends the ids of text to *out. USER tokens in the text become their ids always, CONTROL and
 * UNKNOWN tokens only if parse_special. Any bytes are accepted: each byte outside a valid UTF-8
 * sequence counts as U+FFFD. Fails only when memory runs out; *out then holds what was encoded so
 * far. */
int encoder_encode(encoder *e, id_list *out, str_view text, bool parse_special, err_ctx *err);

/* The same for a text that is all the model sees: BOS before it where tokenizer_adds_bos and the
 * text does not begin with one, and, if is_complete, EOS after it where tokenizer_adds_eos. */
int encoder_encode_whole(encoder *e, id_list *out, str_view text, bool parse_special,
                         bool is_complete, err_ctx *err);

/* ---- ids to text ---- */

/* Bytes of one token: NORMAL and BYTE its bytes, USER its text, CONTROL and UNKNOWN its text if
 * with_special, else empty, UNUSED empty. The bytes may be part of a character. id must be in
 * range. */
str_view tokenizer_bytes(const tokenizer *t, int id, bool with_special);

/* Bytes of ids[i] in the text that the ids from ids[0] stand for: special tokens with their text,
 * and without the space that encoding put before a stretch of text. */
str_view tokenizer_bytes_at(const tokenizer *t, const int32_t *ids, size_t i);

/* Turns a stream of token bytes into valid UTF-8: holds back an incomplete tail of at most three
 * bytes, replaces what cannot become a character by U+FFFD at once. Zero-initialise. */
typedef struct utf8_stream { uint8_t tail[4]; int n_tail; } utf8_stream;

/* Writes what may be shown now to dst and returns its length. dst needs room for
 * 3 * (bytes.len + 3) + 3 bytes. */
size_t utf8_stream_push(utf8_stream *s, char *dst, str_view bytes);
size_t utf8_stream_end(utf8_stream *s, char *dst);       /* a tail that never completed: U+FFFD */

#endif
