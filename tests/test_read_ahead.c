/* test_read_ahead.c - pieces that are read ahead: each is some thread's, and is claimed once. */
#include "engine/host/read_ahead.h"

#include <stdatomic.h>

#include "tests/test.h"

enum { MOST_PIECE = 9, BYTES = 4000, PIECES = AHEAD_EXPERTS * MOST_PIECE };

typedef struct desk {
    pool *team;
    read_ahead *r;
    uint8_t *weights;                    /* of every expert the same */
    _Atomic int looks;                   /* questions whether to go on that are answered yes */
    int n_piece, n_read;
    _Atomic int own[PIECES], other[PIECES];              /* how often claimed */
    _Atomic int by[PIECES];              /* by which thread, as its own */
} desk;

static bool desk_open(desk *d, int n_thread)
{
    *d = (desk){ .weights = test_alloc(BYTES, AHEAD_RUNS) };
    return CHECK(pool_create(&d->team, n_thread, NULL) == 0) &&
           CHECK(read_ahead_create(&d->r, MOST_PIECE, n_thread, NULL) == 0);
}

static void desk_close(desk *d)
{
    read_ahead_free(d->r);
    pool_free(d->team);
    mem_free(d->weights);
}

static bool go_on(void *ctx) { return atomic_fetch_sub(&((desk *)ctx)->looks, 1) > 0; }

/* n experts, numbered backwards from 100, of runs that end within their last piece. */
static void fill(desk *d, int layer, int n, int n_piece)
{
    const uint64_t step = (uint64_t)((BYTES + n_piece - 1) / n_piece);
    const ahead_shape shape = { .bytes = { BYTES, BYTES }, .step = { step, step },
                                .n_piece = n_piece };
    d->n_piece = n_piece;
    read_ahead_begin(d->r, layer, &shape);
    for (int i = 0; i < n; i++)
        read_ahead_add(d->r, 100 - i, (const uint8_t *const[]){ d->weights, d->weights + BYTES });
}

/* What a thread that computes does. */
static void claim_all(void *ctx, int64_t begin, int64_t end, int thread)
{
    desk *d = ctx;
    for (int i = -1; (i = read_ahead_claim_own(d->r, i + 1, thread)) >= 0;) {
        d->own[i]++;
        d->by[i] = thread;
    }
    for (int64_t i = begin; i < end; i++)
        if (read_ahead_claim(d->r, (int)i / d->n_piece, (int)i % d->n_piece)) d->other[i]++;
}

static void check_run(desk *d, int n, int n_piece, int most, int looks)
{
    const int all = n * n_piece, want = most < all ? most : all, team = pool_threads(d->team);
    int n_own = 0, wrong = 0;
    fill(d, 3, n, n_piece);
    const uint64_t each = 2 * (uint64_t)((BYTES + n_piece - 1) / n_piece);
    d->looks = looks;
    const int n_read = (int)(read_ahead_run(d->r, d->team, (uint64_t)most * each, go_on, d) / each);
    CHECK_MSG(n_read <= want && (looks < 1 << 20 || n_read == want) && (looks > 0 || n_read == 0),
              "%d pieces begun of %d, %d looks", n_read, want, looks);
    for (int i = 0; i < all; i++) {
        d->own[i] = d->other[i] = 0;
        d->by[i] = -1;
    }
    for (int twice = 0; twice < 2 && n_read > 0; twice++) pool_run(d->team, all, 1, claim_all, d);
    for (int i = 0; i < all && n_read > 0; i++) {
        CHECK_MSG(d->own[i] + d->other[i] == 1, "piece %d: claimed %d times", i,
                  d->own[i] + d->other[i]);
        wrong += (d->own[i] > 0 && i >= n_read) || (d->own[i] > 0) != (d->by[i] >= 0) ||
                 d->by[i] >= team;
        n_own += d->own[i];
    }
    CHECK_MSG(wrong == 0 && n_own <= n_read, "%d of %d, %d wrong", n_own, n_read, wrong);
    if (team == 1) CHECK_MSG(n_own == n_read, "%d of %d own", n_own, n_read);
}

static void check_find(desk *d)
{
    fill(d, 5, 4, 2);
    CHECK(read_ahead_find(d->r, 5, 100) == -1);          /* nothing was read yet */
    d->looks = 1 << 30;
    CHECK(read_ahead_run(d->r, d->team, UINT64_MAX, go_on, d) > 0);
    CHECK(read_ahead_find(d->r, 5, 100) == 0 && read_ahead_find(d->r, 5, 97) == 3);
    CHECK(read_ahead_find(d->r, 5, 96) == -1 && read_ahead_find(d->r, 4, 100) == -1);
    read_ahead_forget(d->r);
    CHECK(read_ahead_find(d->r, 5, 100) == -1);
    fill(d, 5, 4, MOST_PIECE + 1);       /* more than there is room for: not at all */
    CHECK(read_ahead_run(d->r, d->team, UINT64_MAX, go_on, d) == 0);
    CHECK(read_ahead_find(d->r, 5, 100) == -1);
    fill(d, 5, AHEAD_EXPERTS + 3, 1);
    CHECK(read_ahead_run(d->r, d->team, UINT64_MAX, go_on, d) > 0);
    CHECK(read_ahead_find(d->r, 5, 100 - AHEAD_EXPERTS + 1) == AHEAD_EXPERTS - 1);
    CHECK(read_ahead_find(d->r, 5, 100 - AHEAD_EXPERTS) == -1);
}

int main(int argc, char **argv)
{
    static desk d;
    test_begin("read_ahead", argc, argv);
    for (int n_thread = 1; n_thread <= 4; n_thread++) {
        if (desk_open(&d, n_thread)) {
            for (int round = 0; round < 60; round++) {
                const int n = round % (AHEAD_EXPERTS + 1), n_piece = 1 + round % MOST_PIECE;
                const int looks = round % 5 == 4 ? 0 : round % 7 == 6 ? 1 + round : 1 << 30;
                check_run(&d, n, n_piece, round % 3 ? PIECES : n * n_piece / 2, looks);
            }
            check_find(&d);
        }
        desk_close(&d);
    }
    return test_end();
}
