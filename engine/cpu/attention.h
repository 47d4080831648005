/* attention.h - softmax attention over the stored keys.
 *
 * A block is up to eight query heads of one token that share a KV head: every key and value is
 * decoded once for all of them. Tiles of keys begin at multiples of ATTEND_TILE. The part of a
 * block and a tile is the largest score, the sum of the weights and the sum of the weighted values,
 * as if there were no other keys. The parts of a block are joined in the order of positions, so
 * results do not depend on threads or on other tokens of the batch. */
#ifndef ENGINE_CPU_ATTENTION_H
#define ENGINE_CPU_ATTENTION_H

#include "engine/session/kv.h"
#include "tiers/pool.h"

enum {
    ATTEND_TILE = 64,                    /* keys of a part */
    ATTEND_HEADS = 8,                    /* query heads of a block, at most */
    ATTEND_BLOCKS = 4,                   /* most blocks that share a decoded tile */
    ATTEND_KEYS = 8,                     /* keys decoded at a time */
    ATTEND_COLUMNS = 32                  /* columns of values decoded at a time */
};

typedef struct attend_args {
    float *out;                          /* [n, n_head * head_dim] */
    const float *q;                      /* [n, n_head * head_dim], rotated */
    kv_view stored;                      /* in RAM; includes the tokens' own keys and values */
    int n_head, n_head_kv, head_dim;
    int pos, n;                          /* of token 0; tokens */
    int window;                          /* keys visible including the token's own; 0: all */
    float scale;
    const float *sinks;                  /* [n_head] extra logits without a value, or NULL */
} attend_args;

struct loops;

/* Computes all heads of all tokens with the team's threads. scratch has thread_floats floats for
 * each thread, at least attend_scratch(). */
void attend(const struct loops *f, pool *team, const attend_args *a, float *scratch,
            size_t thread_floats);
size_t attend_scratch(int head_dim);

/* ---- the tasks of attend; see struct loops --------------------------------------------------- */

/* The blocks of one KV head are numbered by token. */
typedef struct attend_block {
    int t;
    int head, n_head;                    /* first query head, and how many */
    int first, last;                     /* positions of the keys that it sees */
} attend_block;

/* Returns the number of blocks of one token and one KV head. */
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

/* Floats of a part, and of a thread's scratch: for each block two parts, queries and scores; then
 * decoded values and keys. */
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

/* Computes out for blocks first .. first+n-1 of a KV head, n <= ATTEND_BLOCKS, with all keys. */
typedef void attend_blocks_fn(const attend_args *a, int head_kv, int first, int n, float *work);

/* Computes the part of one block and the tile at a position. */
typedef void attend_part_fn(float *part, const attend_args *a, int head_kv, int block, int tile,
                            float *work);

/* Joins n contiguous parts to the total of query head `row` of a block, and writes the result to
 * out. total is a part for all heads of the block; if begin it is initialised first. */
typedef void attend_join_fn(float *total, float *parts, int n, const attend_args *a,
                            int head_kv, int block, int row, bool begin);

#endif
