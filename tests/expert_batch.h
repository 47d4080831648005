/* expert_batch.h - what tests of experts on the GPU share: a layer's experts and a batch of tokens
 * on both sides, and what the CPU makes of them.
 *
 *   expert_case_begin(&c, n);
 *   expert_batch b = expert_batch_make(&c, reference_banks_make(&c, &rng), n, &rng);
 *   gpu_experts(device(), &b.in, &b.args);
 *   expert_batch_expect(&b, &c, contract_ops());
 *   expect_bits("experts", host_copy(b.args.y, all), b.want_y, all);
 *   case_end();
 *
 * All memory is the case's, as in gpu_fixture.h. */
#ifndef TESTS_EXPERT_BATCH_H
#define TESTS_EXPERT_BATCH_H

#include "cuda/gpu_experts.h"
#include "moe/expert.h"
#include "moe/router.h"
#include "tests/gpu_fixture.h"

typedef struct expert_case {
    quant_type up, down;                 /* up: of gate, too */
    int n_embd, n_ff, n_expert, k;
    gpu_activation act;
    bool bias;
    int shared_ff;                       /* width of the shared expert; 0: none */
    quant_type shared_up, shared_down;
    bool alike;                          /* all tokens choose the same experts; by_logits: most
                                          * logits are equal */
    bool by_logits;                      /* the choice is not made yet; up to GPU_FEW tokens */
    router_rule rule;                    /* of that choice, without a bias */
    bool choice_bias;                    /* ... with one, for sigmoids */
    bool lows;                           /* the input has them */
} expert_case;

void expert_case_begin(const expert_case *c, int n);     /* case_begin, for n tokens */
bool expert_case_usual(const expert_case *c);            /* its rule: softmax, weights of sum 1 */
/* For expect_close, of the experts' vectors and of the stream, with any number of tokens. */
double expert_case_bound(const expert_case *c);

typedef struct reference_banks {         /* one layer's experts on both sides */
    tensor weight[SLAB_COUNT], bias[SLAB_COUNT], scale[SLAB_COUNT];
    expert_bank cpu;
    gpu_bank gpu[SLAB_COUNT];
} reference_banks;

/* With a scale for every expert, so that its activations are where the nonlinearity is. */
reference_banks *reference_banks_make(const expert_case *c, test_rng *rng);
gpu_bank bank_on_gpu(const expert_bank *b, expert_slab s);

typedef struct shared_expert {
    reference gate, up, down;
} shared_expert;

typedef struct expert_batch {            /* n tokens of a case, on both sides */
    int n;
    float *x, *residual, *gates, *sigma, *logits;
    int32_t *ids;
    const reference_banks *bank;
    shared_expert shared;
    gpu_input in;
    gpu_expert_args args;
    float *want_y, *want;                /* [n, k, n_embd]; [n, n_embd]: the stream after it */
} expert_batch;

/* Random tokens, and VRAM for all that gpu_experts reads and writes. */
expert_batch expert_batch_make(const expert_case *c, const reference_banks *bank, int n,
                               test_rng *rng);
/* want_y and want, from x, residual, ids, gates and sigma. */
void expert_batch_expect(expert_batch *b, const expert_case *c, const ops *o);

#endif
