/* isa_sets.h - functions that add the kernels of an instruction set. Private to engine/cpu.
 *
 * Every function replaces the kernels for which it has faster ones. dispatch.c builds a set from
 * the contract's by calling several of them. They are compiled for their instruction set: call them
 * only if the processor has it. */
#ifndef ENGINE_CPU_ISA_SETS_H
#define ENGINE_CPU_ISA_SETS_H

#include "engine/cpu/kernels.h"

#if defined(__aarch64__)
void put_dotprod_blocks(kernel_set *s);  /* 32 weights and one scale or two: Q4_0 ... NVFP4 */
void put_dotprod_k_quants(kernel_set *s);
void put_dotprod_repacked(kernel_set *s);
void put_neon_floats(kernel_set *s);
void put_dotprod_wide(kernel_set *s);
void put_i8mm_blocks(kernel_set *s);     /* these two: as for dotprod, tuned for other cores */
void put_i8mm_k_quants(kernel_set *s);
void put_i8mm_wide(kernel_set *s);
#elif defined(__x86_64__)
void put_avx2_blocks(kernel_set *s);
void put_avx2_k_quants(kernel_set *s);
void put_avx2_floats(kernel_set *s);
void put_avx2_wide(kernel_set *s);       /* types with weights of 8 bits, and floats */
void put_avx2_small(kernel_set *s);      /* the others */
void put_avxvnni_blocks(kernel_set *s);  /* types with weights of 8 bits */
void put_avxvnni_wide(kernel_set *s);
void put_avx512_blocks(kernel_set *s);
void put_avx512_k_quants(kernel_set *s);
void put_avx512_floats(kernel_set *s);
void put_avx512_wide(kernel_set *s);
void put_amx_wide(kernel_set *s);
#endif

#endif
