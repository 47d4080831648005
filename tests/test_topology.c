/* test_topology.c - cores, caches, nodes and names, on small file trees like those of real
 * machines, and on damaged ones. */
#include <ftw.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/test.h"
#include "tiers/machine.h"
#include "tiers/numa.h"

static char root[300];

/* ---- trees ----------------------------------------------------------------------------------- */

static void put(const char *text, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void put(const char *text, const char *fmt, ...)
{
    char full[512];
    const int n = snprintf(full, sizeof full, "%s/", root);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(full + n, sizeof full - (size_t)n, fmt, ap);
    va_end(ap);
    for (char *p = full + n; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        mkdir(full, 0700);
    }
    FILE *f = fopen(full, "w");
    if (!CHECK_MSG(f != NULL, "cannot write %s", full)) return;
    fputs(text, f);
    fclose(f);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type;
    return at->level == 0 ? 0 : remove(path);
}

static void clear_tree(void) { CHECK(nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0); }

#define CPU "sys/devices/system/cpu"
#define NODE "sys/devices/system/node"

static void put_cpu(int cpu, const char *siblings)
{
    put(siblings, CPU "/cpu%d/topology/thread_siblings_list", cpu);
}

static void put_cache(int cpu, int index, const char *level, const char *type, const char *size,
                      const char *shared)
{
    put(level, CPU "/cpu%d/cache/index%d/level", cpu, index);
    put(type, CPU "/cpu%d/cache/index%d/type", cpu, index);
    put(size, CPU "/cpu%d/cache/index%d/size", cpu, index);
    put(shared, CPU "/cpu%d/cache/index%d/shared_cpu_list", cpu, index);
}

static void put_node(int id, const char *cpus, const char *memory)
{
    put(cpus, NODE "/node%d/cpulist", id);
    put(memory, NODE "/node%d/meminfo", id);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* As on a Neoverse-V1 with two cores. */
static void make_arm(void)
{
    put("processor\t: 0\nBogoMIPS\t: 2100.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n\n"
        "processor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "proc/cpuinfo");
    put("0-1\n", CPU "/online");
    put("notimplemented\n", CPU "/smt/control");
    for (int cpu = 0; cpu < 2; cpu++) {
        const char *self = cpu == 0 ? "0\n" : "1\n";
        put_cpu(cpu, self);
        put_cache(cpu, 0, "1\n", "Data\n", "64K\n", self);
        put_cache(cpu, 1, "1\n", "Instruction\n", "64K\n", self);
        put_cache(cpu, 2, "2\n", "Unified\n", "1024K\n", self);
        put_cache(cpu, 3, "3\n", "Unified\n", "32768K\n", "0-1\n");
    }
    put("0\n", NODE "/online");
    put_node(0, "0-1\n",
             "\nNode 0 MemTotal:       24643328 kB\nNode 0 MemFree:        17937660 kB\n");
    put("always [madvise] never\n", "sys/kernel/mm/transparent_hugepage/enabled");
}

/* Two sockets of two cores with SMT, CPU n + 4 on the core of CPU n, and memory behind a link. */
static void make_sockets(void)
{
    static const char *const pairs[] = { "0,4\n", "1,5\n", "2,6\n", "3,7\n" };
    put("model name\t: Xeon 8481C\nmodel name\t: Xeon 8481C\n", "proc/cpuinfo");
    put("0-7\n", CPU "/online");
    put("on\n", CPU "/smt/control");
    for (int cpu = 0; cpu < 8; cpu++) {
        put_cpu(cpu, pairs[cpu % 4]);
        put_cache(cpu, 0, "1\n", "Data\n", "48K\n", pairs[cpu % 4]);
        put_cache(cpu, 1, "2\n", "Unified\n", "2048K\n", pairs[cpu % 4]);
        put_cache(cpu, 2, "3\n", "Unified\n", "105M\n", cpu % 4 < 2 ? "0-1,4-5\n" : "2-3,6-7\n");
    }
    put("0-1,4\n", NODE "/online");
    put_node(0, "0-1,4-5\n", "Node 0 MemTotal: 1000 kB\nNode 0 MemFree: 600 kB\n");
    put_node(1, "2-3,6-7\n", "Node 1 MemTotal: 2000 kB\nNode 1 MemFree: 700 kB\n");
    put_node(4, "\n", "Node 4 MemTotal: 9000 kB\nNode 4 MemFree: 9000 kB\n");
    put("[always] madvise never\n", "sys/kernel/mm/transparent_hugepage/enabled");
}

/* The same first socket with SMT switched off: the siblings are not online. */
static void make_smt_off(void)
{
    put("0-1\n", CPU "/online");
    put("forceoff\n", CPU "/smt/control");
    for (int cpu = 0; cpu < 2; cpu++) {
        put_cpu(cpu, cpu == 0 ? "0\n" : "1\n");
        put_cache(cpu, 0, "3\n", "Unified\n", "105M\n", "0-1\n");
    }
    put("always madvise [never]\n", "sys/kernel/mm/transparent_hugepage/enabled");
}

/* Two large cores with SMT, four small ones that share an L2. */
static void make_hybrid(void)
{
    put("model name\t: 12th Gen Core\n", "proc/cpuinfo");
    put("0-7\n", CPU "/online");
    put("on\n", CPU "/smt/control");
    for (int cpu = 0; cpu < 8; cpu++) {
        char self[8];
        const bool large = cpu < 4;
        snprintf(self, sizeof self, "%d\n", cpu);
        const char *core = large ? cpu < 2 ? "0-1\n" : "2-3\n" : self;
        put_cpu(cpu, core);
        put_cache(cpu, 0, "1\n", "Data\n", large ? "48K\n" : "32K\n", core);
        put_cache(cpu, 1, "2\n", "Unified\n", large ? "1280K\n" : "2048K\n",
                  large ? core : "4-7\n");
        put_cache(cpu, 2, "3\n", "Unified\n", "12288K\n", "0-7\n");
    }
}

/* A phone: three kinds of cores, nothing about caches; one name is the beginning of another. */
static void make_phone(void)
{
    put("model name\t: ARMv8 Processor rev 0 (v8l)\nCPU implementer\t: 0x41\nCPU part\t: 0xd81\n"
        "CPU implementer\t: 0x41\nCPU part\t: 0xd08\nCPU implementer\t: 0x41\nCPU part\t: 0xd81\n"
        "CPU implementer\t: 0x51\nCPU part\t: 0x001\n", "proc/cpuinfo");
    put("0-3\n", CPU "/online");
}

/* CPU 1 is switched off; only the caches still list it. */
static void make_gap(void)
{
    put("0,2-3\n", CPU "/online");
    put("off\n", CPU "/smt/control");
    for (int cpu = 0; cpu < 4; cpu++)
        put_cache(cpu, 0, "2\n", "Unified\n", "512K\n", cpu < 2 ? "0-1" : "1-3");
}

static void make_nothing(void)
{
}

static void make_damaged(void)
{
    put("CPU part\nmodel name\n: :\n", "proc/cpuinfo");
    put("3-1,x\n", CPU "/online");
    put("0-1,9999999999999999999999,77777\n", NODE "/online");
    put_node(0, "zero\n", "Node 0 MemTotal: many kB\nMemFree: 5 kB\n");
    put("always madvise never\n", "sys/kernel/mm/transparent_hugepage/enabled");
}

static void make_damaged_caches(void)
{
    put("0-1\n", CPU "/online");
    put_cpu(0, "-7\n");
    put_cpu(1, "99999\n");
    put_cache(0, 0, "9\n", "Data\n", "64K\n", "0\n");
    put_cache(0, 1, "1\n", "Data\n", "large\n", "0\n");
    put_cache(0, 2, "2\n", "Unified\n", "99999999999999999999G\n", "0\n");
    put_cache(0, 3, "3\n", "", "8192K", "");
    put_cache(0, 5, "4\n", "Unified\n", "64K\n", "0\n");         /* 4 is missing: ignored */
}

static const struct {
    void (*make)(void);
    const char *why, *cpu;
    int n_cpu, n_core, smt;
    bool smt_off;
    topology_cache caches[6];
    topology_node nodes[4];
    const char *huge_pages;
    uint64_t last_cache, l2;
} rows[] = {
    { make_arm, "two Arm cores", "Neoverse-V1", 2, 2, 1, false,
      { { 1, 65536, 1, 2 }, { 2, 1 << 20, 1, 2 }, { 3, 32 << 20, 2, 1 } },
      { { 0, 2, "0-1", 24643328ull << 10, 17937660ull << 10 } }, "madvise", 32 << 20, 1 << 20 },
    { make_sockets, "two nodes, SMT, and a node without CPUs", "Xeon 8481C", 8, 4, 2, false,
      { { 1, 48 << 10, 1, 4 }, { 2, 2 << 20, 1, 4 }, { 3, 105 << 20, 2, 2 } },
      { { 0, 4, "0-1,4-5", 1000 << 10, 600 << 10 }, { 1, 4, "2-3,6-7", 2000 << 10, 700 << 10 },
        { 4, 0, "", 9000 << 10, 9000 << 10 } }, "always", 210 << 20, 2 << 20 },
    { make_smt_off, "SMT off", "", 2, 2, 1, true, { { 3, 105 << 20, 2, 1 } }, { { 0 } }, "never",
      105 << 20, 0 },
    { make_hybrid, "hybrid", "12th Gen Core", 8, 6, 2, false,
      { { 1, 48 << 10, 1, 2 }, { 1, 32 << 10, 1, 4 }, { 2, 2 << 20, 4, 1 }, { 2, 1280 << 10, 1, 2 },
        { 3, 12 << 20, 6, 1 } }, { { 0 } }, "", 12 << 20, 1280 << 10 },
    { make_phone, "three kinds of Arm cores",
      "Cortex-A720 + Cortex-A72 + Arm core 0x1 of maker 0x51", 4, 4, 1, false, { { 0 } },
      { { 0 } }, "", 0, 0 },
    { make_gap, "a CPU is off", "", 3, 3, 1, true,
      { { 2, 512 << 10, 2, 1 }, { 2, 512 << 10, 1, 1 } }, { { 0 } }, "", 1 << 20, 512 << 10 },
    { make_nothing, "no files at all", "", 0, 0, 0, false, { { 0 } }, { { 0 } }, "", 0, 0 },
    { make_damaged, "files without sense", "", 0, 0, 0, false, { { 0 } },
      { { 0, 0, "zero", 0, 0 }, { 1, 0, "", 0, 0 } }, "", 0, 0 },
    { make_damaged_caches, "siblings and caches without sense", "", 2, 2, 1, false,
      { { 3, 8 << 20, 1, 1 } }, { { 0 } }, "", 8 << 20, 0 },
};

/* ---- comparing ------------------------------------------------------------------------------- */

static void check_caches(const topology *t, const topology_cache *want, const char *why)
{
    int n = 0;
    for (; want[n].level; n++) {
        const topology_cache *a = &t->caches[n], *b = &want[n];
        CHECK_MSG(a->level == b->level && a->bytes == b->bytes && a->n_core == b->n_core &&
                  a->n == b->n, "%s: cache %d: L%d, %llu bytes, %d x for %d cores", why, n,
                  a->level, (unsigned long long)a->bytes, a->n, a->n_core);
    }
    CHECK_MSG(t->n_cache == n, "%s: %d kinds of caches", why, t->n_cache);
}

static void check_nodes(const topology *t, const topology_node *want, const char *why)
{
    int n = 0;
    for (; want[n].cpus[0] || want[n].id; n++) {
        const topology_node *a = &t->nodes[n], *b = &want[n];
        CHECK_MSG(a->id == b->id && a->n_cpu == b->n_cpu && !strcmp(a->cpus, b->cpus) &&
                  a->bytes == b->bytes && a->free_bytes == b->free_bytes,
                  "%s: node %d: %d CPUs '%s', %llu of %llu free", why, a->id, a->n_cpu, a->cpus,
                  (unsigned long long)a->free_bytes, (unsigned long long)a->bytes);
    }
    CHECK_MSG(t->n_node == n, "%s: %d nodes", why, t->n_node);
}

/* A list longer than the room for it, and more nodes than there is room for. */
static void test_large(void)
{
    static topology t;
    char list[2048], cpu[8];
    size_t used = 0;
    for (int i = 1; i < 1000; i += 3)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", i > 1 ? "," : "", i);
    put(list, CPU "/online");
    put("0-99\n", NODE "/online");
    for (int i = 0; i < 100; i++) put_node(i, list, "");
    for (int i = 1; i < 1000; i += 3) {
        snprintf(cpu, sizeof cpu, "%dK\n", i);
        put_cache(i, 0, "1\n", "Data\n", cpu, "");
    }
    topology_read(&t, root);
    CHECK_MSG(t.n_cpu == 333 && t.n_core == 333, "large: %d CPUs, %d cores", t.n_cpu, t.n_core);
    CHECK(t.n_cache == TOPOLOGY_MAX_CACHES && t.n_node == TOPOLOGY_MAX_NODES);
    CHECK(t.nodes[63].n_cpu == 333 && strlen(t.nodes[63].cpus) < sizeof t.nodes[63].cpus);
    clear_tree();
}

/* The policy of this thread, as the system has it. */
static int policy_now(void)
{
    int policy = -1;
    return syscall(SYS_get_mempolicy, &policy, NULL, 0, NULL, 0) < 0 ? -1 : policy;
}

/* A single node with processors of ours is left alone; of two, the system may know only one. A
 * policy that was chosen stays. */
static void test_numa(void)
{
    const topology_node own = { .id = 0, .n_cpu = 4, .cpus = "0-4095", .bytes = 1 << 30 };
    topology t = { .n_node = 1, .nodes = { own } };
    const int before = policy_now();

    CHECK(numa_spread(&t) == 0 && policy_now() == before);
    t.nodes[t.n_node++] = (topology_node){ .id = 1, .bytes = 1 << 30 };          /* memory only */
    t.nodes[t.n_node++] = (topology_node){ .id = 2, .cpus = "5000", .bytes = 1 << 30 };
    t.nodes[t.n_node++] = (topology_node){ .id = 5000, .cpus = "0-4095", .bytes = 1 << 30 };
    CHECK(numa_spread(&t) == 0 && policy_now() == before);
    t.nodes[1] = own;
    t.nodes[1].id = 1;
    const int n = numa_spread(&t);
    if (before != MPOL_DEFAULT) return;
    CHECK_MSG((n == 2 && policy_now() == MPOL_INTERLEAVE) || (n == 0 && policy_now() == before),
              "%d nodes, policy %d", n, policy_now());
    if (n == 2) CHECK(numa_spread(&t) == 0);
    syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
}

int main(int argc, char **argv)
{
    static topology t;
    int n_cpu;

    test_begin("topology", argc, argv);
    test_numa();
    if (!CHECK(mkdtemp(test_temp(root, sizeof root)) != NULL)) return test_end();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *why = rows[i].why;
        rows[i].make();
        topology_read(&t, root);
        CHECK_MSG(!strcmp(t.cpu, rows[i].cpu), "%s: name '%s'", why, t.cpu);
        CHECK_MSG(t.n_cpu == rows[i].n_cpu && t.n_core == rows[i].n_core && t.smt == rows[i].smt &&
                  t.smt_off == rows[i].smt_off, "%s: %d CPUs, %d cores, SMT %d, off %d", why,
                  t.n_cpu, t.n_core, t.smt, t.smt_off);
        check_caches(&t, rows[i].caches, why);
        check_nodes(&t, rows[i].nodes, why);
        CHECK_MSG(!strcmp(t.huge_pages, rows[i].huge_pages), "%s: huge pages '%s'", why,
                  t.huge_pages);
        CHECK_MSG(topology_last_cache_bytes(&t) == rows[i].last_cache &&
                  topology_cache_bytes(&t, 2) == rows[i].l2, "%s: last caches %llu, L2 %llu", why,
                  (unsigned long long)topology_last_cache_bytes(&t),
                  (unsigned long long)topology_cache_bytes(&t, 2));
        clear_tree();
    }
    test_large();
    topology_read(&t, root);             /* empty */
    CHECK(t.n_cpu == 0 && t.n_cache == 0 && t.n_node == 0);
    CHECK(rmdir(root) == 0);

    topology_read(&t, "");               /* this machine, whatever it says */
    const int n_core = machine_cores(NULL, 0, &n_cpu);
    CHECK(t.n_cpu == 0 || (t.n_cpu >= n_cpu && t.n_core >= n_core));
    topology_read(&t, root);             /* gone */
    CHECK(t.n_cpu == 0 && t.n_cache == 0 && t.n_node == 0);
    return test_end();
}
