/* arm_dotprod_blocks.c - 32 weights and a scale, for cores that have sdot but no smmla: Neoverse
 * N1, Cortex-A76 and the like. They have two pipes for vectors. */
enum { SAVE_VECTOR_PIPES = 1 };

#include "engine/cpu/arm_blocks_body.h"

void put_dotprod_blocks(kernel_set *s) { put_blocks(s); }
