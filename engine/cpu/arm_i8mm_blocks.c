/* arm_i8mm_blocks.c - 32 weights and a scale, for cores of the time of smmla: four pipes for
 * vectors (Neoverse V1), or two, but a zero takes no place in them. */
enum { SAVE_VECTOR_PIPES = 0 };

#include "engine/cpu/arm_blocks_body.h"

void put_i8mm_blocks(kernel_set *s) { put_blocks(s); }
