/* arm_dotprod_blocks.c - 32 weights and a scale, for cores with sdot but without smmla: Neoverse
 * N1, Cortex-A76. They have two vector pipes. */
enum { SAVE_VECTOR_PIPES = 1 };

#include "engine/cpu/arm_blocks_body.h"

void put_dotprod_blocks(kernel_set *s) { put_blocks(s); }
