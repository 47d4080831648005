/* sim_gpu.h - a GPU made of threads: cuda/gpu.h on the CPU, for tests on machines without one.
 *
 * Test programs whose names begin with test_sim_ have the same sources as those without the prefix,
 * linked with the sim_gpu files instead of cuda/gpu_stub.c. A device is a thread that runs
 * operations from a queue, one after the other; a stage has one more for its copies; VRAM is plain
 * memory. Arithmetic is the engine's own for the CPU, so results have the bits of the CPU, whatever
 * the number of tokens. Experts of more than GPU_FEW tokens are the exception: as on a real device
 * they round differently unless they follow the contract.
 *
 * These errors, which a real device does not report, are failures that gpu_wait reports here:
 *   - an operation reads or writes outside live allocations of its device; VRAM is full of NaNs to
 *     begin with
 *   - data that may be read ahead (tables, the cursor) was written by the operation just before
 *   - a gpu_input's finished vectors were overwritten, or its x has changed, before the last use
 *   - a buffer of a stage is read before it is ready, or copied to before its readers are done
 *   - memory is page-locked twice, or unlocked without having been locked
 *   - ids, indices of experts and addresses of slabs point outside their tables
 *   - counters that must be zero are not
 *   - page-locked RAM is written before a queued copy has read it
 * Speeds mean nothing here. */
#ifndef TESTS_SIM_GPU_H
#define TESTS_SIM_GPU_H

#include <string.h>

#include "cuda/gpu.h"
#include "tests/test.h"

#define SIM_GPU_BACKEND "simulated"

/* Whether this program's GPU is the simulated one. In every test program. */
static inline bool sim_gpu(void) { return strcmp(gpu_backend(), SIM_GPU_BACKEND) == 0; }

static inline bool has_real_gpu(void) { return !sim_gpu() && gpu_count() > 0; }

/* Threads of an engine with this program's GPU: a simulated one needs a core, too. */
static inline int sim_n_thread(void) { return test_n_thread(sim_gpu() ? 1 : 2); }

/* Steps through a table of cases: all of them on a real GPU; some on a simulated one, whose kernels
 * are the CPU's; fewer if sanitizers make those fifteen times slower. */
static inline int sim_gpu_step(int some, int few)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    some = few;
#else
    (void)few;
#endif
    return sim_gpu() ? some : 1;
}

/* Skips all but one of `of` cases on a simulated GPU, unless LONG is set: for cases that another
 * program has, too. */
static inline bool sim_gpu_skips(int i, int of)
{
    return sim_gpu() && !test_is_long() && i % of != 0;
}

/* The rest is for programs that are linked with the simulated GPU. */

/* Number of devices: one unless set. Their memory is apart. */
enum { SIM_GPU_DEVICES = 4 };
void sim_gpu_set_devices(int n);
/* VRAM of each device, 2 GB unless set; what is allocated stays. */
void sim_gpu_set_vram(uint64_t bytes);
uint64_t sim_gpu_vram_used(void);        /* on all devices */
/* While on, a device runs nothing before a thread waits for it. Set it while devices are idle. */
void sim_gpu_lazy(bool on);
/* Refuses the nth allocation of page-locked RAM from now on, counted from 1; 0: none. Returns whether
 * the last call has refused one. */
bool sim_gpu_refuse_locked(int nth);

#endif
