/* machine.h - this machine's cores, memory and GPUs, as the system reports them. */
#ifndef TIERS_MACHINE_H
#define TIERS_MACHINE_H

#include <sched.h>

#include "cuda/gpu.h"
#include "loader/base.h"

enum { MACHINE_MAX_GPUS = 16 };

typedef struct machine {
    int n_cpu;                           /* logical CPUs this process may run on */
    int n_core;                          /* physical cores among them: SMT siblings count once */
    uint64_t ram_total;
    uint64_t ram_available;              /* MemAvailable: what can be allocated without swapping */
    int n_gpu;
    gpu_info gpus[MACHINE_MAX_GPUS];
} machine;

/* Fails only if /proc/meminfo cannot be parsed. A GPU that does not respond is left out. Starts the
 * GPU's driver, which takes a second, RAM and VRAM. */
int machine_probe(machine *out, err_ctx *err);

/* The RAM alone; does not start the GPU's driver. */
int machine_ram(uint64_t *total, uint64_t *available, err_ctx *err);

/* The CPUs that this process may use. */
void machine_cpus(cpu_set_t *set);

/* Returns the number of physical cores that the calling thread may run on; *n_cpu gets their
 * logical CPUs. core_of[cpu] is the core's number, 0 and up, or -1, for CPUs below cap. */
int machine_cores(int *core_of, int cap, int *n_cpu);

/* MemTotal and MemAvailable of /proc/meminfo's text; for machine_ram and its test. */
int machine_parse_meminfo(uint64_t *total, uint64_t *available, const char *text, err_ctx *err);

#endif
