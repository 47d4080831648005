/* bpe.h - the byte-pair vocabulary: token bytes to id, pair to merged id, and merging a piece.
 *
 * Merging starts from the bytes of a piece or, if by_char, from its characters; a character without
 * a token is replaced by its bytes. Works on raw bytes and ids only: tokenizer.c handles the file's
 * notation, kinds of tokens and special tokens. Order of calls: bpe_init, bpe_add_token for each
 * id, bpe_seal, bpe_add_merge for each entry or bpe_add_splits for each token, bpe_seal_merges.
 * After that it is immutable and may be shared by threads; each thread has its own bpe_work. */
#ifndef ENGINE_TEXT_TOKENIZER_BPE_H
#define ENGINE_TEXT_TOKENIZER_BPE_H

#include <string.h>

#include "loader/base.h"
#include "loader/bytes.h"

enum {
    BPE_MAX_TOKEN = 1 << 21,             /* three ids fit in one 64-bit pair entry */
    BPE_KEY_BYTES = 32,                  /* pieces up to this length are compared as four words */
    BPE_SHORT_PIECE = 48                 /* merged by scanning an array; longer ones with a tree */
};

#define BPE_NO_PAIR UINT64_MAX

/* For tokens of at most seven bytes key is the token, with its length in the top byte. For others
 * it is the hash with the top bit set, and look-ups also compare the bytes. id -1: an empty
 * slot. */
typedef struct bpe_slot { uint64_t key; int32_t id; uint32_t len; } bpe_slot;

typedef struct bpe_triple { int32_t left, right, merged; } bpe_triple;

typedef struct bpe {
    int n_token, n_added;
    bool by_char;                        /* merging starts from characters, not from bytes */
    uint8_t *bytes;                      /* all tokens, contiguous, plus padding for wide loads */
    uint32_t *start;                     /* [n_token + 1] into bytes */
    size_t bytes_cap;
    size_t longest;                      /* bytes of the longest findable token */

    bpe_slot *slots;                     /* open addressing */
    uint32_t slot_mask;
    uint8_t *is_found;                   /* [n_token] bpe_find gives this id; while building only */

    uint64_t *pairs;                     /* left << 42 | right << 21 | merged, or BPE_NO_PAIR */
    uint32_t *pair_rank;                 /* [pair_mask + 1] index in the list; NULL: rank by id */
    uint32_t pair_mask;
    int pair_shift;
    uint64_t *maybe;                     /* bit filter by hash: a clear bit means no such pair */
    uint32_t maybe_mask;
    bpe_triple *list;                    /* [n_merge] in file order; while building only */
    uint32_t n_merge, n_merge_added;

    uint8_t *unmade;                     /* [n_token] 1: no merge makes the token; NULL: all 0 */

    int32_t byte_id[256];                /* -1: the vocabulary lacks the byte */
    uint64_t *byte_pair;                 /* [256 * 256] bpe_pair of two single bytes; not by_char */
    int32_t ascii_id[128];               /* by_char only: id of the character, else of the byte */
} bpe;

/* ---- building ---- */

/* Allocates for n_token tokens and at most n_merge merges; the caller has checked both against the
 * file. bytes is an upper bound on the sum of all token lengths. Call bpe_free after a failure
 * too. */
int bpe_init(bpe *b, bool by_char, int n_token, uint32_t n_merge, size_t bytes, err_ctx *err);
void bpe_free(bpe *b);

/* Adds the next token. Encoding produces it only if it is findable. Of equal tokens the first id is
 * found. Empty tokens are never found. */
void bpe_add_token(bpe *b, str_view bytes, bool findable);

/* by_char only: token id stands for this byte of characters without a token. The first call for a
 * byte counts. */
void bpe_set_byte(bpe *b, uint8_t byte, int id);

/* Call after the last token. Returns ERR_FORMAT if one of the 256 bytes has no token. */
int bpe_seal(bpe *b, err_ctx *err);

/* Prefetches the table entry of these bytes. */
void bpe_prefetch(const bpe *b, const uint8_t *p, size_t len);

/* Adds the next entry of the merge list; p has the left side, then the right. Both sides and their
 * concatenation must be findable tokens. A duplicate pair keeps its earlier rank. */
int bpe_add_merge(bpe *b, const uint8_t *p, size_t left_len, size_t right_len, err_ctx *err);

/* by_char only, instead of a merge list: adds a merge for every split of token id into two tokens
 * at a character boundary. Refuses a token of several characters if one of them has no token. */
int bpe_add_splits(bpe *b, int id, err_ctx *err);

/* Call after the last merge. If always_whole (gpt-oss), a piece that equals a token becomes that
 * token without merging. Otherwise this shortcut applies only to tokens that some merge makes; in
 * published vocabularies merging gives the same result. If rank [n_token] is not NULL it replaces
 * the order of the merges: pairs whose token has the lowest rank merge first. */
int bpe_seal_merges(bpe *b, bool always_whole, const uint32_t *rank, err_ctx *err);

/* ---- looking up ---- */

/* A piece of up to BPE_KEY_BYTES as zero-padded words, with the hash for the token table and the
 * encoder's cache. Words 2 and 3 are zero for pieces of up to 16 bytes. */
typedef struct bpe_key { uint64_t w[4], hash; size_t len; } bpe_key;

static inline uint64_t bpe_mix(uint64_t h, uint64_t w0, uint64_t w1)
{
    h = (h ^ w0) * 0x9e3779b97f4a7c15u;
    h = ((h ^ h >> 32) + w1) * 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}

/* Returns the n low bytes of the word at p. 8 bytes must be readable; n may exceed 8 or be < 0. */
static inline uint64_t bpe_word(const uint8_t *p, long n)
{
    const uint64_t x = load_u64(p);
    return n >= 8 ? x : n <= 0 ? 0 : x & (~(uint64_t)0 >> (64 - 8 * n));
}

/* len is 1 to BPE_KEY_BYTES; `readable` bytes may be loaded from p. */
static inline void bpe_key_load(bpe_key *k, const uint8_t *p, size_t len, size_t readable)
{
    uint8_t copy[BPE_KEY_BYTES];
    const long n = (long)len;
    if (readable < BPE_KEY_BYTES) {
        memset(copy, 0, sizeof copy);
        memcpy(copy, p, len);
        p = copy;
    }
    k->len = len;
    k->w[0] = bpe_word(p, n);
    k->w[1] = bpe_word(p + 8, n - 8);
    k->w[2] = k->w[3] = 0;
    k->hash = bpe_mix(len, k->w[0], k->w[1]);
    if (len > 16) {
        k->w[2] = bpe_word(p + 16, n - 16);
        k->w[3] = bpe_word(p + 24, n - 24);
        k->hash = bpe_mix(k->hash, k->w[2], k->w[3]);
    }
}

/* bpe_find returns the id of the findable token with these bytes, or -1. hash is their bpe_hash,
 * which bpe_key_load also computes. */
uint64_t bpe_hash(const uint8_t *p, size_t len);
int32_t bpe_find(const bpe *b, const uint8_t *p, size_t len, uint64_t hash);

/* Returns the rank in the high half (the lowest merges first) and the merged id in the low half, or
 * BPE_NO_PAIR if the two do not merge. */
uint64_t bpe_pair(const bpe *b, uint32_t left, uint32_t right);

static inline str_view bpe_bytes(const bpe *b, int id)
{
    return (str_view){ (const char *)b->bytes + b->start[id], b->start[id + 1] - b->start[id] };
}

/* ---- merging ---- */

enum { BPE_TREE_LEVELS = 12 };           /* for 16 * 8^11 symbols, more than any piece has */

/* Scratch of bpe_merge_long. Zero-initialise. */
typedef struct bpe_work {
    uint32_t *rank;                      /* [cap] rank of the pair that starts at symbol i */
    uint64_t *alive;                     /* bit i: a symbol starts at i */
    uint64_t *tree;                      /* lowest (rank, i) of 16 symbols, of 8 such nodes, ... */
    size_t cap;                          /* symbols, a multiple of 64 */
    uint64_t steps;                      /* merges and updated nodes so far, for tests */
} bpe_work;
void bpe_work_free(bpe_work *w);

/* Merges the len bytes at p (whole characters if by_char) and writes at most len ids to out.
 * Returns their number, or < 0. Calls one of the two functions below by length; both give the same
 * ids. */
int64_t bpe_merge(const bpe *b, bpe_work *w, int32_t *out, const uint8_t *p, size_t len,
                  err_ctx *err);

/* O(len^2), for len up to BPE_SHORT_PIECE. */
size_t bpe_merge_short(const bpe *b, int32_t *out, const uint8_t *p, size_t len);

/* O(len log len), for any length. */
int64_t bpe_merge_long(const bpe *b, bpe_work *w, int32_t *out, const uint8_t *p, size_t len,
                       err_ctx *err);

#endif
