/* topology.h - the machine's cores, caches and memory nodes, as Linux reports them.
 *
 * Read from files below a root, which is "" except in tests. All online CPUs count, also those that
 * this process may not use (machine_cores has the others). Unknown values are 0 or empty; no
 * function fails. */
#ifndef TIERS_TOPOLOGY_H
#define TIERS_TOPOLOGY_H

#include <sched.h>

#include "loader/base.h"

enum { TOPOLOGY_MAX_CACHES = 24, TOPOLOGY_MAX_NODES = 64 };

/* Caches of one kind: a hybrid processor has two kinds of some levels. */
typedef struct topology_cache {
    int level;                           /* 1 .. 4; for data, or data and instructions */
    uint64_t bytes;                      /* of one cache */
    int n_core;                          /* physical cores that share one cache */
    int n;                               /* number of these caches */
} topology_cache;

typedef struct topology_node {
    int id;
    int n_cpu;                           /* 0: memory without processors */
    char cpus[128];                      /* "0-15,32-47" */
    uint64_t bytes, free_bytes;
} topology_node;

typedef struct topology {
    char cpu[128];                       /* "Neoverse-V1"; several kinds are joined by " + " */
    int n_cpu, n_core;
    int smt;                             /* most CPUs of a core */
    bool smt_off;                        /* the cores have SMT, but it is switched off */
    int n_cache;
    topology_cache caches[TOPOLOGY_MAX_CACHES];  /* by level, then by descending size */
    int n_node;
    topology_node nodes[TOPOLOGY_MAX_NODES];
    char huge_pages[16];                 /* of anonymous memory: "always", "madvise", "never" */
} topology;

void topology_read(topology *out, const char *root);
void topology_read_nodes(topology *out, const char *root);       /* only n_node and nodes */

/* Parses "0-3,8"; returns the number of CPUs in the set. CPUs beyond CPU_SETSIZE are left out. */
int topology_parse_list(cpu_set_t *set, const char *text);

/* All caches of the last level together; 0 if unknown. */
uint64_t topology_last_cache_bytes(const topology *t);

/* The smallest cache of this level; 0 if there is none. */
uint64_t topology_cache_bytes(const topology *t, int level);

/* The first CPU of cpu's core, or cpu itself if unknown. */
int topology_first_sibling(const char *root, int cpu);

#endif
