/* dispatch.c - detects the instruction sets of this processor and builds their kernel sets.
 *
 * Sets are built once, at the first call. Each starts as a copy of the contract's set: types
 * without a kernel for the instruction set use the reference. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "engine/cpu/isa_sets.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef void put_fn(kernel_set *s);

enum { MAX_PUTS = 12 };

typedef struct isa {
    const char *name;
    bool (*runs)(void);
    put_fn *put[MAX_PUTS];               /* in this order, up to NULL */
} isa;

/* ---- detection ------------------------------------------------------------------------------- */

#if defined(__aarch64__)

static bool has_dotprod(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }

static bool has_i8mm(void)
{
    return has_dotprod() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM);
}

#define DOTPROD put_dotprod_blocks, put_dotprod_k_quants, put_neon_floats, put_dotprod_wide,       \
                put_dotprod_repacked

static const isa isas[] = {              /* fastest first */
    { "i8mm",    has_i8mm,    { DOTPROD, put_i8mm_blocks, put_i8mm_k_quants, put_i8mm_wide } },
    { "dotprod", has_dotprod, { DOTPROD } },
};
enum { N_ISA = sizeof isas / sizeof isas[0] };

#elif defined(__x86_64__)

static bool has_avx2(void)
{
    unsigned a, b, c, d;                 /* older compilers lack the name f16c */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* AVX-VNNI without AVX-512: most desktops. Not every compiler has its name. */
static bool has_avxvnni(void)
{
    enum { AVX_VNNI = 1 << 4 };
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX_VNNI);
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

/* A process must request permission for the large registers of the matrix unit. */
static bool has_amx(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (d & AMX_TILE) && (d & AMX_INT8) &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

#define AVX2 put_avx2_blocks, put_avx2_k_quants, put_avx2_floats, put_avx2_wide, put_avx2_small
#define AVX512 AVX2, put_avx512_blocks, put_avx512_k_quants, put_avx512_floats, put_avx512_wide

static const isa isas[] = {              /* fastest first */
    { "amx",    has_amx,    { AVX512, put_amx_wide } },
    { "avx512", has_avx512, { AVX512 } },
    { "avxvnni", has_avxvnni, { AVX2, put_avxvnni_blocks, put_avxvnni_wide } },
    { "avx2",   has_avx2,   { AVX2 } },
};
enum { N_ISA = sizeof isas / sizeof isas[0] };

#else

static const isa isas[1];
enum { N_ISA = 0 };

#endif

/* ---- sets ------------------------------------------------------------------------------------ */

static kernel_set built[KERNELS_MAX_SETS];
static const kernel_set *available[KERNELS_MAX_SETS];
static int n_here;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void build(void)
{
    for (int i = 0; i < N_ISA; i++) {
        kernel_set *s = &built[n_here];
        if (!isas[i].runs()) continue;
        *s = *kernels_contract();
        s->isa = isas[i].name;
        for (int k = 0; k < MAX_PUTS && isas[i].put[k]; k++) isas[i].put[k](s);
        available[n_here++] = s;
    }
    available[n_here++] = kernels_contract();
}

int kernels_here(const kernel_set *sets[KERNELS_MAX_SETS])
{
    pthread_once(&once, build);
    memcpy(sets, available, sizeof available);
    return n_here;
}

const kernel_set *kernels_named(const char *name, err_ctx *err)
{
    char shown[64], names[KERNELS_MAX_SETS * 16];
    size_t used = 0;

    pthread_once(&once, build);
    if (!name || !*name) return available[0];
    for (int i = 0; i < n_here; i++) {
        if (strcmp(available[i]->isa, name) == 0) return available[i];
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "",
                                 available[i]->isa);
    }
    err_set(err, ERR_UNSUPPORTED, "instruction set '%s': this processor runs %s",
            ESC(shown, str_from(name)), names);
    return NULL;
}

bool kernel_is_reference(const kernel_set *set, quant_type type)
{
    const kernel_set *contract = kernels_contract();
    return set != contract && set->of[type].dot == contract->of[type].dot;
}
