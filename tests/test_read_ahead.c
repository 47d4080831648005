/* test_read_ahead.c - pieces that are read ahead: each is somebody's, and is claimed once. */
#include "engine/read_ahead.h"
#include "tests/test.h"

enum { MOST_PIECE = 9, BYTES = 4000, PIECES = AHEAD_EXPERTS * MOST_PIECE };

typedef struct desk {
    pool *team;
    read_ahead r;
    uint8_t *weights;                    /* of every expert the same */
    void *storage;
    uint32_t word;
    int16_t reader[PIECES];              /* what the states were before the claims */
    _Atomic int own[PIECES], other[PIECES];              /* how often claimed */
    _Atomic int foreign;                 /* claimed as its own by another */
} desk;

static bool desk_open(desk *d, int n_thread)
{
    const size_t states = (size_t)read_ahead_state_bytes(MOST_PIECE);
    *d = (desk){ .weights = test_alloc(BYTES, AHEAD_RUNS),
                 .storage = test_alloc((size_t)read_ahead_own_bytes(n_thread) + states + 64, 1) };
    uint8_t *at = (uint8_t *)(((uintptr_t)d->storage + 63) / 64 * 64);
    d->r.own = (ahead_count *)(void *)at;
    d->r.state = (_Atomic int16_t *)(void *)(at + read_ahead_own_bytes(n_thread));
    d->r.word = &d->word;
    return CHECK(pool_create(&d->team, n_thread, NULL) == 0);
}

static void desk_close(desk *d)
{
    pool_free(d->team);
    mem_free(d->weights);
    mem_free(d->storage);
}

/* n experts, numbered backwards from 100, of runs that end within their last piece. */
static void fill(desk *d, int layer, int n, int n_piece, int most)
{
    read_ahead *r = &d->r;
    r->layer = layer;
    r->n = n;
    r->n_piece = n_piece;
    r->most = most;
    r->stop = 1;
    for (int i = 0; i < n; i++)
        r->experts[i] = (ahead_expert){ 100 - i, { d->weights, d->weights + BYTES } };
    for (int i = 0; i < AHEAD_RUNS; i++) {
        r->bytes[i] = BYTES;
        r->step[i] = (uint64_t)((BYTES + n_piece - 1) / n_piece);
    }
}

/* What a thread that computes does. */
static void claim_all(void *ctx, int64_t begin, int64_t end, int thread)
{
    desk *d = ctx;
    for (int i = -1; (i = read_ahead_claim_own(&d->r, i + 1, thread)) >= 0;) {
        d->own[i]++;
        if (d->reader[i] != thread) d->foreign++;
    }
    for (int64_t i = begin; i < end; i++)
        if (read_ahead_claim(&d->r, (int)i / d->r.n_piece, (int)i % d->r.n_piece)) d->other[i]++;
}

static void check_run(desk *d, int n, int n_piece, int most, bool over)
{
    const int all = n * n_piece, want = over ? 0 : most < all ? most : all;
    int n_own = 0, n_other = 0, n_read = 0;
    fill(d, 3, n, n_piece, most);
    d->word = over;
    read_ahead_run(&d->r, d->team);
    CHECK_MSG(d->r.most == want, "%d pieces begun, not %d", d->r.most, want);
    d->foreign = 0;
    for (int i = 0; i < all; i++) {
        d->reader[i] = d->r.state[i];
        d->own[i] = d->other[i] = 0;
        CHECK_MSG((d->reader[i] >= 0) == (i < want) && d->reader[i] < pool_threads(d->team),
                  "piece %d of %d: thread %d", i, want, d->reader[i]);
        n_read += d->reader[i] >= 0;
    }
    for (int twice = 0; twice < 2; twice++) pool_run(d->team, all, 1, claim_all, d);
    for (int i = 0; i < all; i++) {
        CHECK_MSG(d->own[i] + d->other[i] == 1, "piece %d: claimed %d times", i,
                  d->own[i] + d->other[i]);
        n_own += d->own[i];
        n_other += d->other[i];
    }
    CHECK_MSG(d->foreign == 0 && n_own <= n_read, "%d of %d, %d of others", n_own, n_read,
              d->foreign);
    if (pool_threads(d->team) == 1) CHECK_MSG(n_own == want, "%d of %d own", n_own, want);
}

static void check_find(desk *d)
{
    fill(d, 5, 4, 2, 8);
    CHECK(read_ahead_find(&d->r, 5, 100) == 0 && read_ahead_find(&d->r, 5, 97) == 3);
    CHECK(read_ahead_find(&d->r, 5, 96) == -1 && read_ahead_find(&d->r, 4, 100) == -1);
}

int main(int argc, char **argv)
{
    test_begin("read ahead", argc, argv);
    for (int n_thread = 1; n_thread <= 4; n_thread++) {
        desk d;
        if (desk_open(&d, n_thread)) {
            for (int round = 0; round < 40; round++) {
                const int n = round % (AHEAD_EXPERTS + 1), n_piece = 1 + round % MOST_PIECE;
                check_run(&d, n, n_piece, round % 3 ? PIECES : n * n_piece / 2, round % 7 == 6);
            }
            check_find(&d);
        }
        desk_close(&d);
    }
    return test_end();
}
