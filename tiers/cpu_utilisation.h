/* cpu_utilisation.h - how much of this machine's processor time is in use, no matter by whom.
 *
 * Other virtual machines count, too: what they take is missing here. */
#ifndef TIERS_CPU_UTILISATION_H
#define TIERS_CPU_UTILISATION_H

#include <sched.h>

#include "loader/base.h"

/* Ticks since the system's start, summed over some CPUs. */
typedef struct cpu_ticks { uint64_t busy, all; } cpu_ticks;

/* Adds up the lines of /proc/stat, seen from the folder root ("" except in tests), for the CPUs of
 * the set. False if there are none. */
bool cpu_ticks_read(cpu_ticks *out, const char *root, const cpu_set_t *set);

/* The share of the time between two readings that was in use, 0 to 1; -1 if no time went by. */
double cpu_utilisation(const cpu_ticks *from, const cpu_ticks *to);

/* The share of the CPUs of this process that is in use now, -1 if the system does not say. Sleeps
 * for a tenth of a second, so that the caller does not count. */
double cpu_utilisation_now(void);

#endif
