/* plan_checks.h - made-up machines and models of published sizes for tests of the planner, and what
 * holds for every plan. */
#ifndef TESTS_PLAN_CHECKS_H
#define TESTS_PLAN_CHECKS_H

#include "tests/test.h"
#include "tiers/plan.h"

#define GB UINT64_C(1000000000)
#define MB UINT64_C(1000000)

typedef struct made_model {
    const char *name;
    int n_layer, n_expert, n_used;
    uint64_t expert, down, dense, embed, token_dense;
    double dense_macs, expert_macs;
    uint64_t state;                      /* context of 8192 tokens ... */
    uint64_t ring_token;                 /* ... and for each token of a chunk */
} made_model;

enum { OSS20, OSS120, QWEN4, QWEN8, N_MADE_MODELS };
extern const made_model made_models[N_MADE_MODELS];

extern const speeds made_speeds;         /* of a box with PCIe 4 and two channels of DDR5 */

enum { N_CHUNKS = 5 };

typedef struct made {
    plan_machine machine;
    plan_model model;
    plan_session s;
    plan_wish w;
    uint64_t expert[PLAN_MAX_LAYERS], down[PLAN_MAX_LAYERS], layer_dense[PLAN_MAX_LAYERS];
    uint64_t slot[PLAN_MAX_LAYERS], cached[PLAN_MAX_LAYERS];
    uint64_t layer_state[N_CHUNKS][PLAN_MAX_LAYERS];
} made;

/* vram 0: no GPU. */
void make_case(made *c, const made_model *m, uint64_t vram, uint64_t ram);
void make_layered(made *c, const made_model *m, uint64_t vram, uint64_t ram);   /* dense by layer */
void random_case(made *c, test_rng *rng);        /* machine, model, wishes */

int run_case(plan *p, const made *c);
bool made_plan(plan *p, const made *c, const char *what);        /* must succeed */

uint64_t dense_on_cpu(const made *c, int i);     /* of the embedding table it holds some rows */

void check_plan(const plan *p, const made *c, const char *what);

#endif
