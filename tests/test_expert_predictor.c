/* test_expert_predictor.c - picks follow how often the guess of their rank was right. */
#include "moe/expert_predictor.h"

#include "tests/test.h"

static void test_picks(void)
{
    const int guess[] = { 4, 8, 15, 16, 23 }, right[] = { 4, 1, 2, 15 }, wrong[] = { 1, 2, 3 };
    expert_predictor p, *f = &p;
    expert_predictor_init(f);
    CHECK(expert_predictor_pick(f, 1, guess, 2) == 2);
    CHECK(expert_predictor_pick(f, 1, guess, 5) == PREDICTOR_PICKS);      /* trusted at first */
    for (int i = 0; i < 200; i++) {      /* the second is always wrong: neither it nor the third */
        expert_predictor_pick(f, 2, guess, 3);
        expert_predictor_check(f, 2, right, 4);
    }
    CHECK(expert_predictor_pick(f, 2, guess, 3) == 1);
    expert_predictor_check(f, 2, right, 4);
    for (int i = 0; i < 200; i++)        /* of no pick */
        expert_predictor_check(f, 2 + i % 2, wrong, 3);
    CHECK(expert_predictor_pick(f, 2, guess, 3) == 1);
    for (int i = 0; i < 200; i++) {
        expert_predictor_pick(f, 2, guess, 3);
        expert_predictor_check(f, 2, wrong, 3);
    }
    CHECK(expert_predictor_pick(f, 2, guess, 3) == 0);
    for (int i = 0; i < 200; i++) {      /* guesses become right again, though nothing was read */
        expert_predictor_pick(f, 2, guess, 3);
        expert_predictor_check(f, 2, guess, 3);
    }
    CHECK(expert_predictor_pick(f, 2, guess, 3) == 3);
}

int main(int argc, char **argv)
{
    test_begin("expert_predictor", argc, argv);
    test_picks();
    return test_end();
}
