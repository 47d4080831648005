/* isa.h - names of what is compiled once for each instruction set.
 *
 * The Makefile compiles some files several times, with -DISA=avx2 and the like and the flags that
 * go with it, and once without: plain C for any processor, "scalar". Such a file keeps everything
 * static but for functions whose name it makes with ISA_NAME. */
#ifndef ENGINE_CPU_ISA_H
#define ENGINE_CPU_ISA_H

#ifdef ISA
#define ISA_VECTORS 1                    /* may use the vectors of the flags */
#else
#define ISA scalar
#define ISA_VECTORS 0
#endif

#define ISA_PASTE2(a, b) a##_##b
#define ISA_PASTE(a, b) ISA_PASTE2(a, b)
#define ISA_NAME(f) ISA_PASTE(f, ISA)    /* f_avx2 */

#endif
