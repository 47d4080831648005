/* arm_i8mm_blocks.c - 32 weights and a scale, for cores with smmla. They have four vector pipes
 * (Neoverse V1), or two and zeros that take no pipe slot. */
enum { SAVE_VECTOR_PIPES = 0 };

#include "engine/cpu/arm_blocks_body.h"

void put_i8mm_blocks(kernel_set *s) { put_blocks(s); }
