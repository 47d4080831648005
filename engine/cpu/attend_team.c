/* attend_team.c - distributes an attention layer over the threads.
 *
 * With enough blocks for all threads, each thread computes a few blocks of a KV head with all their
 * keys. Otherwise, as in decoding one token, tiles of keys are distributed too, and the parts are
 * then joined by query head. A long context takes several rounds, each of as many tiles as the
 * scratch has space for. Both ways give the same bits. */
#include <assert.h>

#include "engine/cpu/loops.h"

enum {
    PART_FLOATS = 1 << 15,               /* scratch for parts per thread: 128 KiB, */
    MIN_PARTS = 4,                       /* but at least this many parts */
    MIN_TILES = 8                        /* shorter contexts are not distributed by tiles */
};

/* ---- tiles ----------------------------------------------------------------------------------- */

static int first_tile(const attend_block *b) { return b->first / ATTEND_TILE; }

static int tiles_of(const attend_block *b)
{
    return b->last / ATTEND_TILE - first_tile(b) + 1;
}

/* ---- the team -------------------------------------------------------------------------------- */

typedef struct attend_job {
    const loops *f;
    const attend_args *a;
    int n_block;                         /* blocks of a KV head */
    int each;                            /* blocks in one call */
    float *work;
    size_t work_floats;

    /* if keys are distributed: */
    float *totals, *parts;               /* [all blocks]; [all blocks][round_tiles] */
    size_t part_floats;
    int round_tiles;                     /* tiles of a round */
    int begin;                           /* first tile of the round, from the block's first */
} attend_job;

size_t attend_scratch(int head_dim)
{
    const size_t parts = MIN_PARTS * attend_part_floats(head_dim);
    return attend_work_floats(head_dim) + (parts > PART_FLOATS ? parts : PART_FLOATS);
}

static float *work_of(const attend_job *j, int thread)
{
    return j->work + (size_t)thread * j->work_floats;
}

static void run_blocks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const attend_job *j = ctx;
    const int pieces = (j->n_block + j->each - 1) / j->each;
    for (int64_t i = begin; i < end; i++) {
        const int first = (int)(i % pieces) * j->each;
        j->f->attend_blocks(j->a, (int)(i / pieces), first, min_int(j->n_block - first, j->each),
                            work_of(j, thread));
    }
}

/* Returns part i of this round. */
static float *part_of(const attend_job *j, int64_t i)
{
    return j->parts + (size_t)i * j->part_floats;
}

/* Returns the number of the block's tiles in this round. */
static int tiles_now(const attend_job *j, const attend_block *b)
{
    return max_int(0, min_int(tiles_of(b) - j->begin, j->round_tiles));
}

static void run_parts(void *ctx, int64_t begin, int64_t end, int thread)
{
    const attend_job *j = ctx;
    for (int64_t i = begin; i < end; i++) {
        const int block = (int)(i / j->round_tiles), tile = (int)(i % j->round_tiles);
        const int head_kv = block / j->n_block, own = block % j->n_block;
        const attend_block b = attend_block_at(j->a, head_kv, own);
        if (tile < tiles_now(j, &b))
            j->f->attend_part(part_of(j, i), j->a, head_kv, own,
                              (first_tile(&b) + j->begin + tile) * ATTEND_TILE, work_of(j, thread));
    }
}

static void run_joins(void *ctx, int64_t begin, int64_t end, int thread)
{
    const attend_job *j = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int block = (int)(i / ATTEND_HEADS), row = (int)(i % ATTEND_HEADS);
        const int head_kv = block / j->n_block, own = block % j->n_block;
        const attend_block b = attend_block_at(j->a, head_kv, own);
        if (row < b.n_head)
            j->f->attend_join(j->totals + (size_t)block * j->part_floats,
                              part_of(j, (int64_t)block * j->round_tiles), tiles_now(j, &b), j->a,
                              head_kv, own, row, j->begin == 0);
    }
}

static void hand_out_keys(attend_job *j, pool *team, int n_block, int n_tile)
{
    const int64_t columns = j->a->head_dim;
    for (j->begin = 0; j->begin < n_tile; j->begin += j->round_tiles) {
        pool_run(team, (int64_t)n_block * j->round_tiles, 1, run_parts, j);
        pool_run(team, (int64_t)n_block * ATTEND_HEADS, pool_grain(columns * j->round_tiles),
                 run_joins,
                 j);
    }
}

void attend(const loops *f, pool *team, const attend_args *a, float *scratch, size_t thread_floats)
{
    const int n_thread = pool_threads(team);
    attend_job j = {
        .f = f, .a = a, .n_block = a->n * attend_token_blocks(a), .work = scratch,
        .work_floats = attend_work_floats(a->head_dim),
        .part_floats = attend_part_floats(a->head_dim),
    };
    const int n_block = j.n_block * a->n_head_kv;
    const attend_block longest = attend_block_at(a, 0, j.n_block - 1);
    const int n_tile = tiles_of(&longest) + 1;           /* a window may touch one tile more */

    assert(thread_floats >= attend_scratch(a->head_dim));
    if (n_thread > 1 && n_block < 2 * n_thread && n_tile > MIN_TILES) {
        const size_t left = (size_t)n_thread * (thread_floats - j.work_floats);
        const int round_tiles = (int)(left / j.part_floats) / n_block - 1;
        j.totals = scratch + (size_t)n_thread * j.work_floats;
        j.parts = j.totals + (size_t)n_block * j.part_floats;
        j.round_tiles = min_int(round_tiles, n_tile);
        hand_out_keys(&j, team, n_block, n_tile);
    } else {
        j.each = max_int(1, min_int(n_block / (4 * n_thread), ATTEND_BLOCKS));
        pool_run(team, (int64_t)a->n_head_kv * ((j.n_block + j.each - 1) / j.each), 1, run_blocks,
                 &j);
    }
}
