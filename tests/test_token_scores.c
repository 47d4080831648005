/* test_token_scores.c - log probabilities against a softmax in long doubles and a full sort; a
 * sampler that scores draws what it would have drawn. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session/sampler.h"
#include "tests/test.h"

static int by_logit(const void *a, const void *b)
{
    const token_score *x = a, *y = b;
    if (x->logprob != y->logprob) return x->logprob > y->logprob ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static void test_softmax(void)
{
    test_rng rng = { 3 };
    for (int round = 0; round < 200; round++) {
        const int n = 1 + (int)test_below(&rng, 3000), id = (int)test_below(&rng, (uint32_t)n);
        const int want = (int)test_below(&rng, 21), spread = 1 + (int)test_below(&rng, 60);
        float *logits = test_alloc((size_t)n, sizeof *logits);
        token_score *all = test_alloc((size_t)n, sizeof *all);
        token_scores got;
        long double sum = 0, largest = -INFINITY;
        for (int i = 0; i < n; i++) {
            /* some are equal, some have no chance */
            logits[i] = (float)((int)test_below(&rng, 1000) - 500) * (float)spread / 500;
            if (test_below(&rng, 50) == 0) logits[i] = -INFINITY;
            if (i == 0) logits[i] = 1;
            all[i] = (token_score){ i, logits[i] };
            if ((long double)logits[i] > largest) largest = logits[i];
        }
        for (int i = 0; i < n; i++) sum += expl((long double)logits[i] - largest);
        qsort(all, (size_t)n, sizeof *all, by_logit);
        token_scores_make(&got, logits, n, id, want);
        const long double of_id = (long double)logits[id] - largest - logl(sum);
        const double right = (double)(of_id > -9999.0L ? of_id : -9999.0L);
        CHECK_MSG(fabs((double)got.logprob - right) < 1e-5, "%g, not %g", (double)got.logprob,
                  right);
        CHECK_MSG(got.n_top <= want && got.n_top <= n, "%d of %d", got.n_top, want);
        for (int i = 0; i < got.n_top; i++) {
            const double p = (double)((long double)all[i].logprob - largest - logl(sum));
            CHECK_MSG(got.top[i].id == all[i].id &&
                      (isinf(p) || fabs((double)got.top[i].logprob - p) < 1e-5),
                      "%d: %d, %g, not %d, %g", i, got.top[i].id, (double)got.top[i].logprob,
                      all[i].id, p);
        }
        mem_free(logits);
        mem_free(all);
    }
}

/* The scores are of the logits as they came; the draws are the same, and a source has to hand the
 * row over. */
static void test_sampler(void)
{
    const logit_bias bias = { 4, 3 };
    const sampler_options o = { .temperature = 2, .top_p = 0.9, .repeat_penalty = 1.5,
                                .penalty_window = 8, .seed = 5, .biases = &bias, .n_bias = 1 };
    const sampler_source from = { 0 };
    sampler *a, *b;
    token_scores scores;
    err_ctx err = { 0 };
    float logits[100];
    for (int i = 0; i < 100; i++) logits[i] = (float)(i % 9);
    if (!CHECK(sampler_create(&a, &o, 100, 8, &err) == 0 &&
               sampler_create(&b, &o, 100, 8, &err) == 0)) return;
    sampler_score(a, &scores, 5);
    for (int i = 0; i < 100; i++) {
        int32_t x = -1, y = -2;
        token_scores right;
        CHECK(sampler_pick(&x, a, logits, &err) == 0 && sampler_pick(&y, b, logits, &err) == 0);
        token_scores_make(&right, logits, 100, x, 5);
        CHECK(x == y && scores.logprob == right.logprob && scores.n_top == 5 &&
              memcmp(scores.top, right.top, 5 * sizeof *right.top) == 0);
        sampler_accept(a, x);
        sampler_accept(b, y);
    }
    int32_t id;
    CHECK(sampler_pick_from(&id, a, &from, &err) == 1);
    sampler_free(a);
    sampler_free(b);
}

int main(int argc, char **argv)
{
    test_begin("token_scores", argc, argv);
    test_softmax();
    test_sampler();
    return test_end();
}
