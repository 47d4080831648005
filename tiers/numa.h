/* numa.h - memory of several nodes, used as one. */
#ifndef TIERS_NUMA_H
#define TIERS_NUMA_H

#include "tiers/topology.h"

/* From now on pages of this thread, and of threads that it starts, come from all nodes in turn, those
 * of files that it reads included: every weight is read by any core, so the memory of all nodes
 * serves all. Without this everything lies where the thread happened to run that read the file, and
 * the machine has the bandwidth of one node. Does nothing if there is one node, or if whoever
 * started us (numactl) has chosen otherwise. Returns the number of nodes used, 0 if nothing was done. */
int numa_spread(const topology *t);

#endif
