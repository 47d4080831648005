/* cpu_utilisation.c - reads /proc/stat twice.
 *
 * Not the load average: that covers the last minute, and so the run that ended just before. */
#include "tiers/cpu_utilisation.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tiers/machine.h"

/* "cpu3 user nice system idle iowait irq softirq steal ...". The line of all CPUs has no number,
 * and whatever follows "steal" is part of "user". */
static void add_line(cpu_ticks *sum, const char *line, const cpu_set_t *set)
{
    uint64_t user, nice, system, idle, iowait, irq, softirq, steal;
    int cpu;
    if (sscanf(line, "cpu%d %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
               " %" SCNu64 " %" SCNu64, &cpu, &user, &nice, &system, &idle, &iowait, &irq, &softirq,
               &steal) != 9 || cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, set))
        return;
    const uint64_t busy = user + nice + system + irq + softirq + steal;
    sum->busy += busy;
    sum->all += busy + idle + iowait;
}

bool cpu_ticks_read(cpu_ticks *out, const char *root, const cpu_set_t *set)
{
    char path[PATH_MAX], line[512];
    *out = (cpu_ticks){ 0 };
    snprintf(path, sizeof path, "%s/proc/stat", root);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    while (fgets(line, sizeof line, f) && strncmp(line, "cpu", 3) == 0) add_line(out, line, set);
    fclose(f);
    return out->all > 0;
}

double cpu_utilisation(const cpu_ticks *from, const cpu_ticks *to)
{
    if (to->all <= from->all || to->busy < from->busy) return -1;
    const double share = (double)(to->busy - from->busy) / (double)(to->all - from->all);
    return share < 1 ? share : 1;
}

double cpu_utilisation_now(void)
{
    const struct timespec moment = { .tv_nsec = 100 * 1000 * 1000 };
    cpu_ticks from, to;
    cpu_set_t set;
    machine_cpus(&set);
    if (!cpu_ticks_read(&from, "", &set)) return -1;
    nanosleep(&moment, NULL);            /* a signal may cut it short: the share is just as true */
    return cpu_ticks_read(&to, "", &set) ? cpu_utilisation(&from, &to) : -1;
}
