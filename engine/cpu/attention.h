/* attention.h - softmax attention over the stored keys.
 *
 * A block is up to eight query heads of one token that share a KV head: every key and value is
 * decoded once for all of them. Keys are taken in tiles that begin at multiples of ATTEND_TILE. A
 * block and a tile make a part: the largest score, the sum of the weights and of the weighted
 * values, as if there were no other keys. The parts of a block are joined in the order of
 * positions, whichever thread computed them: the bits depend neither on threads nor on the
 * neighbours in a batch. */
#ifndef ENGINE_CPU_ATTENTION_H
#define ENGINE_CPU_ATTENTION_H

#include "engine/session/kv.h"
#include "tiers/pool.h"

enum {
    ATTEND_TILE = 64,                    /* keys of a part */
    ATTEND_HEADS = 8,                    /* query heads of a block, at most */
    ATTEND_BLOCKS = 4,                   /* blocks that meet a tile together, at most */
    ATTEND_KEYS = 8,                     /* keys decoded at a time */
    ATTEND_COLUMNS = 32                  /* columns of values decoded at a time */
};

typedef struct attend_args {
    float *out;                          /* [n, n_head * head_dim] */
    const float *q;                      /* [n, n_head * head_dim], rotated */
    kv_view stored;                      /* the CPU can address it, and the tokens' own keys and
                                          * values are there already */
    int n_head, n_head_kv, head_dim;
    int pos, n;                          /* of token 0; tokens */
    int window;                          /* keys visible including the token's own; 0: all */
    float scale;
    const float *sinks;                  /* [n_head] extra logits without a value, or NULL */
} attend_args;

struct loops;

/* All heads of all tokens, on the team. scratch: thread_floats for each thread, at least
 * attend_scratch(). */
void attend(const struct loops *f, pool *team, const attend_args *a, float *scratch,
            size_t thread_floats);
size_t attend_scratch(int head_dim);

/* ---- what attend hands out; see struct loops ------------------------------------------------- */

/* Blocks of one KV head are numbered: those of token 0 first. */
typedef struct attend_block {
    int t;
    int head, n_head;                    /* first query head, and how many */
    int first, last;                     /* positions of the keys that it sees */
} attend_block;

/* Blocks of one token and one KV head. */
static inline int attend_token_blocks(const attend_args *a)
{
    return (a->n_head / a->n_head_kv + ATTEND_HEADS - 1) / ATTEND_HEADS;
}

static inline attend_block attend_block_at(const attend_args *a, int head_kv, int i)
{
    const int group = a->n_head / a->n_head_kv, each = attend_token_blocks(a);
    const int t = i / each, from = i % each * ATTEND_HEADS, last = a->pos + t;
    return (attend_block){
        .t = t, .head = head_kv * group + from, .n_head = min_int(group - from, ATTEND_HEADS),
        .first = a->window > 0 && last >= a->window ? last - a->window + 1 : 0, .last = last,
    };
}

/* Floats of a part, and of what one thread needs besides: of each block two parts, its queries and
 * scores, then decoded values and keys. */
static inline size_t attend_part_floats(int head_dim)
{
    return ATTEND_HEADS * (4 + (size_t)size_align((uint64_t)head_dim, ATTEND_COLUMNS));
}

static inline size_t attend_work_floats(int head_dim)
{
    const size_t dim = (size_t)head_dim;
    return ATTEND_BLOCKS * (2 * attend_part_floats(head_dim) + ATTEND_HEADS * (dim + ATTEND_TILE)) +
           ATTEND_TILE * ATTEND_COLUMNS + ATTEND_KEYS * (size_t)size_align((uint64_t)dim, 2);
}

/* Blocks first .. first+n-1 of a KV head, n at most ATTEND_BLOCKS, from the first key to out. */
typedef void attend_blocks_fn(const attend_args *a, int head_kv, int first, int n, float *work);

/* The part of one block and the tile at a position. */
typedef void attend_part_fn(float *part, const attend_args *a, int head_kv, int block, int tile,
                            float *work);

/* Joins n parts, side by side, to what query head `row` of a block has so far. All heads of a block
 * share total, itself a part. begin: there is nothing so far. The result goes to out. */
typedef void attend_join_fn(float *total, float *parts, int n, const attend_args *a,
                            int head_kv, int block, int row, bool begin);

#endif
