/* chosen_experts.h - which experts a model chooses: noted in programs that are linked with
 * --wrap=router_select, as long as there is room. */
#ifndef TESTS_CHOSEN_EXPERTS_H
#define TESTS_CHOSEN_EXPERTS_H

#include "loader/base.h"

typedef struct chosen_experts {
    int32_t *ids;                        /* in the order of choice */
    size_t n, cap;
} chosen_experts;
extern chosen_experts chosen;

#endif
