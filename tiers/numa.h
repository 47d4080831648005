/* numa.h - memory of several nodes, used as one. */
#ifndef TIERS_NUMA_H
#define TIERS_NUMA_H

#include "tiers/topology.h"

/* From now on pages of this thread, and of threads that it starts, come alternately from all nodes
 * whose CPUs this process may use, including pages of files that it reads: any core reads any
 * weight, so the memory of all nodes should serve all. Without this everything lies on the node of
 * the thread that read the file, and the machine has the bandwidth of one node. Does nothing if
 * there is only one such node, or if a policy was already set when we were started. Returns the
 * number of nodes asked for, 0 if nothing was done. */
int numa_spread(const topology *t);

#endif
