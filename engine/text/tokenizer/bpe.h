/* bpe.h - the byte-pair vocabulary: token bytes to id, pair to merged id, and merging a piece.
 *
 * Merging starts from the bytes of a piece or, in vocabularies by_char, from its characters; a
 * character that is no token then is its bytes. Works on raw bytes and ids only: how the file
 * writes them, kinds of tokens and special tokens are tokenizer.c's. Filled once (bpe_init,
 * bpe_add_token for each id in order, bpe_seal, bpe_add_merge for each entry in order or
 * bpe_add_splits for each token, bpe_seal_merges), then immutable and shared by threads; what
 * merging needs besides lives in a bpe_work, one per thread. */
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

/* key is the token itself, and its length in the top byte, if it has at most seven bytes; else it
 * is the hash with the top bit set, and the bytes must be compared. id -1 is empty. */
typedef struct bpe_slot { uint64_t key; int32_t id; uint32_t len; } bpe_slot;

typedef struct bpe_triple { int32_t left, right, merged; } bpe_triple;

typedef struct bpe {
    int n_token, n_added;
    bool by_char;                        /* merging starts from characters, not from bytes */
    uint8_t *bytes;                      /* all tokens, back to back, and padding for wide loads */
    uint32_t *start;                     /* [n_token + 1] into bytes */
    size_t bytes_cap;
    size_t longest;                      /* bytes of the longest token that can be found */

    bpe_slot *slots;                     /* open addressing */
    uint32_t slot_mask;
    uint8_t *is_found;                   /* [n_token] bpe_find gives this id; while building only */

    uint64_t *pairs;                     /* left << 42 | right << 21 | merged, or BPE_NO_PAIR */
    uint32_t *pair_rank;                 /* [pair_mask + 1] index in the list; NULL: rank by id */
    uint32_t pair_mask;
    int pair_shift;
    uint64_t *maybe;                     /* one bit per hash of a pair: clear says there is none */
    uint32_t maybe_mask;
    bpe_triple *list;                    /* [n_merge] as it is in the file; only while building */
    uint32_t n_merge, n_merge_added;

    uint8_t *unmade;                     /* [n_token] no merge makes it; NULL: there are none */

    int32_t byte_id[256];                /* -1: the vocabulary lacks the byte */
    uint64_t *byte_pair;                 /* [256 * 256] bpe_pair of two single bytes; not by_char */
    int32_t ascii_id[128];               /* by_char only: of the character, else of the byte */
} bpe;

/* ---- building ---- */

/* n_token and n_merge, which is the most merges there will be, were checked against the file that
 * holds them; bytes is an upper bound on the length of all tokens together. On failure bpe_free is
 * still due. */
int bpe_init(bpe *b, bool by_char, int n_token, uint32_t n_merge, size_t bytes, err_ctx *err);
void bpe_free(bpe *b);

/* The next token's bytes. Only if findable can text become this token; if the same bytes came
 * before, the earlier id stays the one that is found. Empty tokens are never found. */
void bpe_add_token(bpe *b, str_view bytes, bool findable);

/* by_char only: token id is this byte of a character that is no token. The first one counts. */
void bpe_set_byte(bpe *b, uint8_t byte, int id);

/* After the last token: ERR_FORMAT if one of the 256 bytes has no token. */
int bpe_seal(bpe *b, err_ctx *err);

/* Says that these bytes will be looked up soon. */
void bpe_prefetch(const bpe *b, const uint8_t *p, size_t len);

/* The next entry of the merge list, left and right side back to back. Both sides and what they make
 * must be findable tokens. A pair that came before keeps its earlier rank. */
int bpe_add_merge(bpe *b, const uint8_t *p, size_t left_len, size_t right_len, err_ctx *err);

/* by_char only, instead of a list of merges: every way to cut token id between two characters into
 * two tokens is a merge. Refuses a token of several characters if one of them is no token. */
int bpe_add_splits(bpe *b, int id, err_ctx *err);

/* After the last merge. A piece that is a token as it stands becomes that token without merging if
 * always_whole, as gpt-oss asks; else only if some merge makes the token, which in the published
 * vocabularies means that merging would end there too. rank [n_token], where it is given, says how
 * early each token is made, lowest first, and the order of the merges says nothing. */
int bpe_seal_merges(bpe *b, bool always_whole, const uint32_t *rank, err_ctx *err);

/* ---- looking up ---- */

/* A piece of up to BPE_KEY_BYTES as words, zero padded, with the hash that both the token table and
 * a cache of pieces can use. Words 2 and 3 are zero for pieces of up to 16 bytes. */
typedef struct bpe_key { uint64_t w[4], hash; size_t len; } bpe_key;

static inline uint64_t bpe_mix(uint64_t h, uint64_t w0, uint64_t w1)
{
    h = (h ^ w0) * 0x9e3779b97f4a7c15u;
    h = ((h ^ h >> 32) + w1) * 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}

/* The n low bytes of the word at p, 8 bytes of which can be read; n may be above 8, or negative. */
static inline uint64_t bpe_word(const uint8_t *p, long n)
{
    const uint64_t x = load_u64(p);
    return n >= 8 ? x : n <= 0 ? 0 : x & (~(uint64_t)0 >> (64 - 8 * n));
}

/* p has len bytes, 1 to BPE_KEY_BYTES; readable says how many may be loaded from p. */
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

/* The id of the findable token with these bytes, or -1. hash is bpe_hash of them, which for up to
 * BPE_KEY_BYTES is what bpe_key_load computes. */
uint64_t bpe_hash(const uint8_t *p, size_t len);
int32_t bpe_find(const bpe *b, const uint8_t *p, size_t len, uint64_t hash);

/* Rank in the high half (lower merges first), merged id in the low half; BPE_NO_PAIR if the two do
 * not merge. */
uint64_t bpe_pair(const bpe *b, uint32_t left, uint32_t right);

static inline str_view bpe_bytes(const bpe *b, int id)
{
    return (str_view){ (const char *)b->bytes + b->start[id], b->start[id + 1] - b->start[id] };
}

/* ---- merging ---- */

enum { BPE_TREE_LEVELS = 12 };           /* 16 * 8^11 bytes: more than a piece may have */

/* What a long piece needs while it is merged; see bpe_merge_long. */
typedef struct bpe_work {
    uint32_t *rank;                      /* [cap] of the pair that starts at this byte */
    uint64_t *alive;                     /* bit i: a symbol starts at byte i */
    uint64_t *tree;                      /* lowest (rank, byte) of 16 bytes, of 8 of those, ... */
    size_t cap;                          /* bytes, a multiple of 64 */
    uint64_t steps;                      /* merges and renewed nodes so far: how tests see work */
} bpe_work;
void bpe_work_free(bpe_work *w);

/* Merges the len bytes at p, whole characters if by_char, and writes the ids to out, which has room
 * for len of them. Returns how many, or < 0. The two ways below give the same ids; this one picks
 * by length. */
int64_t bpe_merge(const bpe *b, bpe_work *w, int32_t *out, const uint8_t *p, size_t len,
                  err_ctx *err);

/* Quadratic, for len up to BPE_SHORT_PIECE. */
size_t bpe_merge_short(const bpe *b, int32_t *out, const uint8_t *p, size_t len);

/* len log len, for any length. */
int64_t bpe_merge_long(const bpe *b, bpe_work *w, int32_t *out, const uint8_t *p, size_t len,
                       err_ctx *err);

#endif
