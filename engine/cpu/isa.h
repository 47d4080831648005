/* isa.h - function names in files that are compiled once for each instruction set.
 *
 * The Makefile compiles some files several times, with -DISA=avx2 and the flags of that instruction
 * set, and once without ISA, as plain C for any processor ("scalar"). In such a file all functions
 * are static except those named with ISA_NAME. */
#ifndef ENGINE_CPU_ISA_H
#define ENGINE_CPU_ISA_H

#ifdef ISA
#define ISA_VECTORS 1                    /* may use the intrinsics of the instruction set */
#else
#define ISA scalar
#define ISA_VECTORS 0
#endif

#define ISA_PASTE2(a, b) a##_##b
#define ISA_PASTE(a, b) ISA_PASTE2(a, b)
#define ISA_NAME(f) ISA_PASTE(f, ISA)    /* f_avx2 */

#endif
