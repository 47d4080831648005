/* test_upload_tuner.c - machines that are made up: copies that cost nothing, that pay, that cost
 * and buy nothing, and choices that change after a while. */
#include <math.h>

#include "moe/upload_tuner.h"
#include "tests/test.h"

enum { CHOICES = 100 };

typedef struct machine {
    double cost;                         /* of copies, a part of a token's time */
    double found;                        /* share of choices, at first */
    double per_upload;                   /* more of it for each token with copies */
    double noise;
    int drift_at;                        /* token at which nothing is found any more; 0: never */
} machine;

typedef struct outcome { int n_with, n_rests, n_wakes; double seconds; } outcome;

static outcome run(const machine *m, int n, uint64_t seed)
{
    test_rng rng = { seed };
    upload_tuner t;
    outcome o = { 0 };
    double found = m->found;
    upload_tuner_begin(&t);
    for (int i = 0; i < n; i++) {
        const bool with = upload_tuner_allows(&t);
        const double wobble = m->noise * ((double)test_below(&rng, 1000) / 500 - 1);
        const double slow = test_below(&rng, 40) == 0 ? 3 : 1;   /* somebody else's */
        const double s = (1 + (with ? m->cost : 0) + wobble) * slow;
        if (i == m->drift_at && i > 0) found = m->found / 2;
        if (with) found = fmin(found + m->per_upload, 0.95);
        const upload_event e = upload_tuner_token(&t, s * 1e-3, (int)(found * CHOICES), CHOICES);
        o.n_with += with;
        o.n_rests += e == UPLOAD_RESTS;
        o.n_wakes += e == UPLOAD_WAKES;
        o.seconds += s;
    }
    return o;
}

static void test_machines(void)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        const machine cheap = { .cost = 0.0, .found = 0.8, .noise = 0.05 };
        outcome o = run(&cheap, 4000, seed);
        CHECK_MSG(o.n_with > 3300, "copies that cost nothing: %d of 4000", o.n_with);

        const machine learns = { .cost = 0.1, .found = 0.3, .per_upload = 0.0002, .noise = 0.05 };
        o = run(&learns, 2500, seed);
        CHECK_MSG(o.n_rests == 0, "copies that pay: %d rests", o.n_rests);

        const machine vain = { .cost = 0.1, .found = 0.8, .noise = 0.05 };
        o = run(&vain, 20000, seed);
        CHECK_MSG(o.n_rests > 0 && o.n_with < 7000, "copies in vain: %d of 20000, %d rests",
                  o.n_with, o.n_rests);

        const machine drifts = { .cost = 0.1, .found = 0.9, .per_upload = 0.0002, .noise = 0.05,
                                 .drift_at = 9000 };
        const outcome before = run(&drifts, 9000, seed), after = run(&drifts, 9300, seed);
        CHECK_MSG(before.n_rests > 0 && after.n_with - before.n_with > 150,
                  "choices that change: %d rests, then %d of 300", before.n_rests,
                  after.n_with - before.n_with);
    }
}

/* No choices at all, no time at all: no division by zero, no rest. */
static void test_nothing(void)
{
    upload_tuner t;
    upload_tuner_begin(&t);
    for (int i = 0; i < 3000; i++) CHECK(upload_tuner_token(&t, 0, 0, 0) == UPLOAD_NOTHING);
    CHECK(isfinite(t.price) && isfinite(t.gain) && !t.resting);
}

int main(int argc, char **argv)
{
    test_begin("upload_tuner", argc, argv);
    test_machines();
    test_nothing();
    return test_end();
}
