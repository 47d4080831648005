/* chosen_experts.c - which experts a model chooses. */
#include "tests/chosen_experts.h"

#include "moe/router.h"

chosen_experts chosen;

void __real_router_select(int32_t *ids, float *weights, const float *logits, int n, int k,
                          const router_rule *rule);
void __wrap_router_select(int32_t *ids, float *weights, const float *logits, int n, int k,
                          const router_rule *rule);

void __wrap_router_select(int32_t *ids, float *weights, const float *logits, int n, int k,
                          const router_rule *rule)
{
    __real_router_select(ids, weights, logits, n, k, rule);
    for (int i = 0; i < k && chosen.n < chosen.cap; i++) chosen.ids[chosen.n++] = ids[i];
}
