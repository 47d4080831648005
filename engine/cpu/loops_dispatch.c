/* loops_dispatch.c - the tables of loops.h, selected by the name of a kernel set.
 *
 * Tables are filled once, at the first call. dispatch.c detects the processor; this file only uses
 * the names of its sets. */
#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "engine/cpu/kernels.h"
#include "engine/cpu/loops.h"

typedef void put_fn(loops *l);

enum { N_PART = 4, MAX_NAMES = 3 };

#define PUTS(isa) { put_activation_##isa, put_rows_##isa, put_attention_##isa, put_deltanet_##isa }

static const struct {
    const char *isa;
    const char *kernels[MAX_NAMES];      /* kernel sets that use this table */
    put_fn *put[N_PART];
} builds[] = {
#if defined(__aarch64__)
    { "neon", { "i8mm", "dotprod" }, PUTS(neon) },
#elif defined(__x86_64__)
    { "avx512", { "amx", "avx512" }, PUTS(avx512) },
    { "avx2", { "avxvnni", "avx2" }, PUTS(avx2) },
#endif
    { "scalar", { "scalar" }, PUTS(scalar) },
};
enum { N_BUILD = sizeof builds / sizeof builds[0] };
static_assert((int)N_BUILD <= (int)LOOPS_MAX_SETS, "callers have room for all");

static loops tables[N_BUILD];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void)
{
    for (int i = 0; i < N_BUILD; i++) {
        tables[i].isa = builds[i].isa;
        for (int k = 0; k < N_PART; k++) builds[i].put[k](&tables[i]);
    }
}

static bool goes_with(int i, const char *kernels)
{
    for (int k = 0; k < MAX_NAMES && builds[i].kernels[k]; k++)
        if (strcmp(builds[i].kernels[k], kernels) == 0) return true;
    return false;
}

const loops *loops_for(const char *kernels)
{
    int i = 0;
    pthread_once(&once, fill);
    while (i < N_BUILD - 1 && !goes_with(i, kernels)) i++;
    return &tables[i];
}

int loops_here(const loops *sets[LOOPS_MAX_SETS])
{
    const kernel_set *kernels[KERNELS_MAX_SETS];
    const int n_kernels = kernels_here(kernels);
    int n = 0;
    for (int k = 0; k < n_kernels; k++) {
        const loops *l = loops_for(kernels[k]->isa);
        if (n == 0 || sets[n - 1] != l) sets[n++] = l;
    }
    return n;
}
