/* arm_i8mm_k_quants.c - super-blocks, for cores with smmla; see arm_i8mm_blocks.c. */
enum { SAVE_VECTOR_PIPES = 0 };

#include "engine/cpu/arm_k_quants_body.h"

void put_i8mm_k_quants(kernel_set *s) { put_k_quants(s); }
