/* numa.h - memory of several nodes, used as one. */
#ifndef TIERS_NUMA_H
#define TIERS_NUMA_H

#include "tiers/topology.h"

/* From now on pages of this thread, and of threads that it starts, come in turn from all nodes
 * whose CPUs this process may use, pages of files that it reads included: every weight is read by
 * any core, so the memory of all nodes serves all. Without this everything lies where the thread ran
 * that read the file, and the machine has the bandwidth of one node. Does nothing if there is one
 * such node, or if whoever started us has chosen a policy. Returns the number of nodes asked for, 0
 * if nothing was done. */
int numa_spread(const topology *t);

/* Whether a list such as "0-15,32-47" names a CPU that this process may use. */
bool numa_has_own_cpu(const char *cpus);

#endif
