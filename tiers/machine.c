/* machine.c - asks the operating system and the GPU driver what the machine has.
 *
 * Memory is MemAvailable, never MemFree: a page cache full of the model file can be reclaimed. */
#include "tiers/machine.h"

#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

#include "tiers/topology.h"

/* With OMP_PROC_BIND or OMP_PLACES the OpenMP runtime has tied this thread to one CPU before main
 * began; its places are what the process may use. */
static void add_places(cpu_set_t *set)
{
    for (int i = 0; i < omp_get_num_places(); i++) {
        int ids[CPU_SETSIZE];
        const int n = omp_get_place_num_procs(i);
        if (n > CPU_SETSIZE) continue;
        omp_get_place_proc_ids(i, ids);
        for (int k = 0; k < n; k++)
            if (ids[k] >= 0 && ids[k] < CPU_SETSIZE) CPU_SET(ids[k], set);
    }
}

void machine_cpus(cpu_set_t *set)
{
    CPU_ZERO(set);
    if (sched_getaffinity(0, sizeof *set, set) < 0) CPU_SET(0, set);
    add_places(set);
}

int machine_cores(int *core_of, int cap, int *n_cpu)
{
    int index[CPU_SETSIZE], n_core = 0;  /* 1 + number of the core whose first sibling this is */
    cpu_set_t set;
    memset(index, 0, sizeof index);
    machine_cpus(&set);
    *n_cpu = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (cpu < cap) core_of[cpu] = -1;
        if (!CPU_ISSET(cpu, &set)) continue;
        const int first = topology_first_sibling("", cpu);
        ++*n_cpu;
        if (index[first] == 0) index[first] = ++n_core;
        if (cpu < cap) core_of[cpu] = index[first] - 1;
    }
    return n_core;
}

/* The number of kB after "name:" at the start of a line, in bytes; false if there is none. */
static bool find_field(uint64_t *out, const char *text, const char *name)
{
    const size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        uint64_t kb;
        if (*line == '\n') line++;
        if (strncmp(line, name, n) != 0 || line[n] != ':') continue;
        return sscanf(line + n + 1, "%" SCNu64 " kB", &kb) == 1 && size_mul(out, kb, 1024);
    }
    return false;
}

int machine_parse_meminfo(uint64_t *total, uint64_t *available, const char *text, err_ctx *err)
{
    if (!find_field(total, text, "MemTotal"))
        return err_set(err, ERR_FORMAT, "/proc/meminfo: no MemTotal");
    if (!find_field(available, text, "MemAvailable"))
        return err_set(err, ERR_FORMAT, "/proc/meminfo: no MemAvailable");
    return 0;
}

int machine_ram(uint64_t *total, uint64_t *available, err_ctx *err)
{
    char text[8192];
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return err_sys(err, "/proc/meminfo");
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    return machine_parse_meminfo(total, available, text, err);
}

int machine_probe(machine *out, err_ctx *err)
{
    const int n_gpu = gpu_count();
    *out = (machine){ 0 };
    out->n_core = machine_cores(NULL, 0, &out->n_cpu);
    for (int i = 0; i < n_gpu && out->n_gpu < MACHINE_MAX_GPUS; i++)
        if (gpu_describe(&out->gpus[out->n_gpu], i, NULL) == 0) out->n_gpu++;
    return machine_ram(&out->ram_total, &out->ram_available, err);
}
