/* topology.c - reads topology.h's fields from /sys and /proc/cpuinfo.
 *
 * Any file may be missing, as in containers, small boards and virtual machines. Each CPU that
 * shares a cache describes it; the cache is counted for the first of them. */
#include "tiers/topology.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- small files ----------------------------------------------------------------------------- */

enum { LINE = 4096 };                    /* a list of 1024 CPUs without ranges fits */

static FILE *open_below(const char *root, const char *fmt, va_list ap)
{
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s", root);
    if (n < 0 || n >= (int)sizeof path) return NULL;
    const int m = vsnprintf(path + n, sizeof path - (size_t)n, fmt, ap);
    return m < 0 || m >= (int)sizeof path - n ? NULL : fopen(path, "r");
}

/* The first line of a file, without its end. False, and "" in line, if there is none. */
static bool read_line(char line[LINE], const char *root, const char *fmt, ...) PRINTF_LIKE(3, 4);
static bool read_line(char line[LINE], const char *root, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    FILE *f = open_below(root, fmt, ap);
    va_end(ap);
    line[0] = '\0';
    if (!f) return false;
    const bool ok = fgets(line, LINE, f) != NULL;
    fclose(f);
    if (!ok) line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return line[0] != '\0';
}

int topology_parse_list(cpu_set_t *set, const char *text)
{
    CPU_ZERO(set);
    while (*text >= '0' && *text <= '9') {
        char *end;
        const unsigned long first = strtoul(text, &end, 10);
        const unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        for (unsigned long i = first; i <= last && i < CPU_SETSIZE; i++) CPU_SET(i, set);
        text = *end == ',' ? end + 1 : "";
    }
    return CPU_COUNT(set);
}

static void copy_text(char *dst, size_t cap, const char *text)
{
    str_escape(dst, cap, str_from(text));
}

/* ---- the processor's name -------------------------------------------------------------------- */

/* Arm cores have two numbers: implementer and part. */
static const struct { unsigned maker, part; const char *name; } arm_cores[] = {
    { 0x41, 0xD03, "Cortex-A53" },     { 0x41, 0xD05, "Cortex-A55" },
    { 0x41, 0xD08, "Cortex-A72" },     { 0x41, 0xD0B, "Cortex-A76" },
    { 0x41, 0xD0C, "Neoverse-N1" },    { 0x41, 0xD40, "Neoverse-V1" },
    { 0x41, 0xD41, "Cortex-A78" },     { 0x41, 0xD44, "Cortex-X1" },
    { 0x41, 0xD46, "Cortex-A510" },    { 0x41, 0xD47, "Cortex-A710" },
    { 0x41, 0xD48, "Cortex-X2" },      { 0x41, 0xD49, "Neoverse-N2" },
    { 0x41, 0xD4D, "Cortex-A715" },    { 0x41, 0xD4E, "Cortex-X3" },
    { 0x41, 0xD4F, "Neoverse-V2" },    { 0x41, 0xD80, "Cortex-A520" },
    { 0x41, 0xD81, "Cortex-A720" },    { 0x41, 0xD82, "Cortex-X4" },
    { 0x41, 0xD84, "Neoverse-V3" },    { 0x41, 0xD85, "Cortex-X925" },
    { 0x41, 0xD87, "Cortex-A725" },    { 0x41, 0xD8E, "Neoverse-N3" },
    { 0xC0, 0xAC3, "Ampere-1" },       { 0xC0, 0xAC4, "Ampere-1a" },
};

static void name_arm_core(char name[64], unsigned maker, unsigned part)
{
    snprintf(name, 64, "Arm core %#x of maker %#x", part, maker);
    for (size_t i = 0; i < ARRAY_LEN(arm_cores); i++)
        if (arm_cores[i].maker == maker && arm_cores[i].part == part)
            snprintf(name, 64, "%s", arm_cores[i].name);
}

/* Appends a name that is not yet in the list. */
static void add_name(char *names, size_t cap, const char *name)
{
    const size_t n = strlen(names), len = strlen(name);
    for (const char *p = names; (p = strstr(p, name)); p += len)
        if (p[len] == '\0' || str_starts(str_from(p + len), " + ")) return;
    snprintf(names + n, cap - n, "%s%s", n > 0 ? " + " : "", name);
}

/* The text after "key : ", or NULL. */
static const char *value_of(const char *line, const char *key)
{
    const size_t n = strlen(key);
    if (strncmp(line, key, n) != 0) return NULL;
    line += n + strspn(line + n, " \t");
    return *line == ':' ? line + 1 + strspn(line + 1, " \t") : NULL;
}

static void read_name(topology *t, const char *root)
{
    char path[PATH_MAX], line[LINE], name[64];
    unsigned maker = 0;
    snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *v;
        line[strcspn(line, "\n")] = '\0';
        if ((v = value_of(line, "model name")) && !str_starts(str_from(v), "ARMv")) {
            copy_text(name, sizeof name, v);
            add_name(t->cpu, sizeof t->cpu, name);
        } else if ((v = value_of(line, "CPU implementer"))) {
            maker = (unsigned)strtoul(v, NULL, 0);
        } else if ((v = value_of(line, "CPU part"))) {
            name_arm_core(name, maker, (unsigned)strtoul(v, NULL, 0));
            add_name(t->cpu, sizeof t->cpu, name);
        }
    }
    if (f) fclose(f);
}

/* ---- cores and caches ------------------------------------------------------------------------ */

#define CPU_FOLDER "/sys/devices/system/cpu"

int topology_first_sibling(const char *root, int cpu)
{
    char line[LINE];
    int first;
    read_line(line, root, CPU_FOLDER "/cpu%d/topology/thread_siblings_list", cpu);
    return sscanf(line, "%d", &first) == 1 && first >= 0 && first < CPU_SETSIZE ? first : cpu;
}

typedef struct cores {
    cpu_set_t online;
    int first[CPU_SETSIZE];              /* of the same core; of CPUs that are online */
} cores;

static void read_cores(topology *t, cores *c, const char *root)
{
    int n_sibling[CPU_SETSIZE] = { 0 };
    char line[LINE];
    read_line(line, root, CPU_FOLDER "/online");
    t->n_cpu = topology_parse_list(&c->online, line);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &c->online)) continue;
        const int first = c->first[cpu] = topology_first_sibling(root, cpu);
        if (n_sibling[first]++ == 0) t->n_core++;
        if (n_sibling[first] > t->smt) t->smt = n_sibling[first];
    }
    read_line(line, root, CPU_FOLDER "/smt/control");
    t->smt_off = !strcmp(line, "off") || !strcmp(line, "forceoff");
}

static int count_cores(const cores *c, const cpu_set_t *set)
{
    cpu_set_t firsts;
    CPU_ZERO(&firsts);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, set) && CPU_ISSET(cpu, &c->online)) CPU_SET(c->first[cpu], &firsts);
    return CPU_COUNT(&firsts);
}

/* "1024K" or "32M" */
static uint64_t parse_cache_bytes(const char *text)
{
    char *end;
    const uint64_t n = strtoull(text, &end, 10);
    const int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    return n < (uint64_t)1 << 30 ? n << shift : 0;
}

static void add_cache(topology *t, const topology_cache *one)
{
    int at = 0;
    for (int i = 0; i < t->n_cache; i++) {
        topology_cache *c = &t->caches[i];
        if (c->level == one->level && c->bytes == one->bytes && c->n_core == one->n_core) {
            c->n++;
            return;
        }
        if (c->level < one->level || (c->level == one->level && c->bytes > one->bytes)) at = i + 1;
    }
    if (t->n_cache == TOPOLOGY_MAX_CACHES) return;
    memmove(&t->caches[at + 1], &t->caches[at], (size_t)(t->n_cache - at) * sizeof *one);
    t->caches[at] = *one;
    t->n_cache++;
}

/* False if this CPU has no cache of that index. */
static bool read_cache(topology *t, const cores *c, const char *root, int cpu, int index)
{
    char line[LINE];
    topology_cache one = { .n = 1, .n_core = 1 };
    cpu_set_t sharers;
    if (!read_line(line, root, CPU_FOLDER "/cpu%d/cache/index%d/level", cpu, index)) return false;
    one.level = atoi(line);
    read_line(line, root, CPU_FOLDER "/cpu%d/cache/index%d/type", cpu, index);
    if (one.level < 1 || one.level > 4 || !strcmp(line, "Instruction")) return true;
    read_line(line, root, CPU_FOLDER "/cpu%d/cache/index%d/size", cpu, index);
    if ((one.bytes = parse_cache_bytes(line)) == 0) return true;
    read_line(line, root, CPU_FOLDER "/cpu%d/cache/index%d/shared_cpu_list", cpu, index);
    if (topology_parse_list(&sharers, line) > 0) {
        for (int i = 0; i < cpu; i++)
            if (CPU_ISSET(i, &sharers) && CPU_ISSET(i, &c->online)) return true;   /* counted */
        one.n_core = count_cores(c, &sharers);
    }
    add_cache(t, &one);
    return true;
}

static void read_caches(topology *t, const cores *c, const char *root)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        for (int i = 0; CPU_ISSET(cpu, &c->online) && read_cache(t, c, root, cpu, i); i++)
            continue;
}

uint64_t topology_last_cache_bytes(const topology *t)
{
    uint64_t all = 0;
    for (int i = 0; i < t->n_cache; i++)
        if (t->caches[i].level == t->caches[t->n_cache - 1].level)
            all += t->caches[i].bytes * (uint64_t)t->caches[i].n;
    return all;
}

uint64_t topology_cache_bytes(const topology *t, int level)
{
    uint64_t bytes = 0;                  /* the larger come first */
    for (int i = 0; i < t->n_cache; i++)
        if (t->caches[i].level == level) bytes = t->caches[i].bytes;
    return bytes;
}

/* ---- memory ---------------------------------------------------------------------------------- */

#define NODE_FOLDER "/sys/devices/system/node"

/* "Node 0 MemTotal:  24643328 kB" */
static void read_node_memory(topology_node *n, const char *root)
{
    char path[PATH_MAX], line[LINE], key[32];
    uint64_t kb;
    snprintf(path, sizeof path, "%s" NODE_FOLDER "/node%d/meminfo", root, n->id);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "Node %*d %31[^:]: %" SCNu64 " kB", key, &kb) != 2) continue;
        if (!strcmp(key, "MemTotal")) n->bytes = kb * 1024;
        else if (!strcmp(key, "MemFree")) n->free_bytes = kb * 1024;
    }
    if (f) fclose(f);
}

void topology_read_nodes(topology *t, const char *root)
{
    char line[LINE];
    cpu_set_t ids, cpus;
    t->n_node = 0;
    read_line(line, root, NODE_FOLDER "/online");
    topology_parse_list(&ids, line);
    for (int id = 0; id < CPU_SETSIZE && t->n_node < TOPOLOGY_MAX_NODES; id++) {
        topology_node *n = &t->nodes[t->n_node];
        if (!CPU_ISSET(id, &ids)) continue;
        *n = (topology_node){ .id = id };
        read_line(line, root, NODE_FOLDER "/node%d/cpulist", id);
        n->n_cpu = topology_parse_list(&cpus, line);
        copy_text(n->cpus, sizeof n->cpus, line);
        read_node_memory(n, root);
        t->n_node++;
    }
}

/* "always [madvise] never": the chosen one is in brackets. */
static void read_huge_pages(topology *t, const char *root)
{
    char line[LINE];
    read_line(line, root, "/sys/kernel/mm/transparent_hugepage/enabled");
    const char *chosen = strchr(line, '[');
    if (chosen) sscanf(chosen, "[%15[a-z]", t->huge_pages);
}

void topology_read(topology *out, const char *root)
{
    cores c;
    memset(&c, 0, sizeof c);
    memset(out, 0, sizeof *out);
    read_name(out, root);
    read_cores(out, &c, root);
    read_caches(out, &c, root);
    topology_read_nodes(out, root);
    read_huge_pages(out, root);
}
