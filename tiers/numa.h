/* numa.h - interleaves memory across nodes. */
#ifndef TIERS_NUMA_H
#define TIERS_NUMA_H

#include "tiers/topology.h"

/* Interleaves later pages of this thread, and of threads that it starts, over all nodes whose CPUs
 * this process may use, file pages included. Any core reads any weight, so all nodes should serve
 * all cores; without this all weights are on the node of the thread that read the file, and
 * decoding has the bandwidth of one node. Has no effect with one node, or if the process inherited
 * a policy. Returns the number of nodes, 0 without effect. */
int numa_spread(const topology *t);

#endif
