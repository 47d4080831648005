/* test_read_ahead.c - what is read ahead: every thread's part of every run, until a caller says
 * stop. */
#include "engine/host/read_ahead.h"

#include <stdatomic.h>

#include "tests/test.h"

enum { BYTES = 40000 };

static _Atomic int looks;                /* questions whether to go on that are answered yes */

static bool go_on(void *ctx)
{
    (void)ctx;
    return atomic_fetch_sub(&looks, 1) > 0;
}

/* Runs of n_piece pieces, the last of which is shorter. */
static void check_runs(read_ahead *r, pool *team, const uint8_t *weights, int n, int n_tile)
{
    const uint64_t step = (uint64_t)(BYTES / n_tile);
    ahead_run runs[AHEAD_RUNS];
    uint64_t all = 0;
    for (int i = 0; i < n; i++) {
        const uint64_t bytes = step * (uint64_t)n_tile - (uint64_t)i % step;
        runs[i] = (ahead_run){ .data = weights, .bytes = bytes, .step = step, .n_tile = n_tile,
                               .grain = 1 + i % 3 };
        all += runs[i].bytes;
    }
    looks = 1 << 30;
    const uint64_t read = read_ahead_run(r, team, runs, n, go_on, NULL);
    CHECK_MSG(read == all, "%d runs of %d tiles: %d bytes of %d", n, n_tile, (int)read, (int)all);
    looks = 0;
    CHECK(read_ahead_run(r, team, runs, n, go_on, NULL) == 0);
    looks = 2;                           /* 2 kB each */
    const uint64_t some = read_ahead_run(r, team, runs, n, go_on, NULL);
    CHECK_MSG(some <= all && some <= 2 * 2048 && (n == 0 || some > 0), "%d bytes of %d", (int)some,
              (int)all);
}

int main(int argc, char **argv)
{
    uint8_t *weights = test_alloc(BYTES, 1);
    test_begin("read_ahead", argc, argv);
    for (int n_thread = 1; n_thread <= 5; n_thread++) {
        pool *team = NULL;
        read_ahead *r = NULL;
        if (CHECK(pool_create(&team, n_thread, NULL) == 0) &&
            CHECK(read_ahead_create(&r, n_thread, NULL) == 0))
            for (int n = 0; n <= AHEAD_RUNS; n += 1 + n / 2)
                for (int n_piece = 1; n_piece <= 40; n_piece += 3)
                    check_runs(r, team, weights, n, n_piece);
        read_ahead_free(r);
        pool_free(team);
    }
    mem_free(weights);
    return test_end();
}
