/* arm_dotprod_k_quants.c - super-blocks, for cores with sdot but without smmla; see
 * arm_dotprod_blocks.c. */
enum { SAVE_VECTOR_PIPES = 1 };

#include "engine/cpu/arm_k_quants_body.h"

void put_dotprod_k_quants(kernel_set *s) { put_k_quants(s); }
