/* numa.c - the system calls, without libnuma: two numbers do not need a library. */
#include "tiers/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tiers/machine.h"

enum { MASK_BITS = 1024, WORD_BITS = 8 * sizeof(unsigned long) };

/* Whether a list such as "0-15,32-47" names a CPU that this process may use. */
static bool has_own_cpu(const char *cpus)
{
    cpu_set_t these, own;
    topology_parse_list(&these, cpus);
    machine_cpus(&own);
    CPU_AND(&these, &these, &own);
    return CPU_COUNT(&these) > 0;
}

int numa_spread(const topology *t)
{
    unsigned long mask[MASK_BITS / WORD_BITS] = { 0 };
    int policy = MPOL_DEFAULT, n = 0;

    for (int i = 0; i < t->n_node; i++) {
        const topology_node *node = &t->nodes[i];
        if (node->bytes == 0 || node->id >= MASK_BITS || !has_own_cpu(node->cpus)) continue;
        mask[node->id / WORD_BITS] |= 1ul << node->id % WORD_BITS;
        n++;
    }
    if (n < 2) return 0;
    if (syscall(SYS_get_mempolicy, &policy, NULL, 0, NULL, 0) < 0 || policy != MPOL_DEFAULT)
        return 0;
    if (syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, mask, (unsigned long)MASK_BITS + 1) < 0)
        return 0;                        /* not permitted, or not built in: nothing changes */
    return n;
}
