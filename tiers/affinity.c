/* affinity.c - pins the threads of a team to cores, and keeps them off the caller's core.
 *
 * After the start only the caller's thread changes affinity, so the array of cores needs no lock;
 * members write only their own thread ids. */
#include "tiers/affinity.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tiers/machine.h"

struct affinity {
    int core_of[CPU_SETSIZE];            /* by CPU; -1: not ours. Set once */
    int home;                            /* thread 0's core, as last seen; its thread only */
    int n_thread;
    struct pinned {
        int core;                        /* written before the team starts, then by thread 0 */
        _Atomic int tid;                 /* 0 until the thread has written it */
    } of[];
};

/* All CPUs of a core: siblings share it, and the thread may use any of them. */
static void pin(const affinity *s, int tid, int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (s->core_of[cpu] == core) CPU_SET(cpu, &set);
    (void)sched_setaffinity(tid, sizeof set, &set);      /* if refused, it stays unpinned */
}

static int current_core(const affinity *s)
{
    const int cpu = sched_getcpu();
    return cpu >= 0 && cpu < CPU_SETSIZE ? s->core_of[cpu] : -1;
}

int affinity_create(affinity **out, int n_thread, err_ctx *err)
{
    const size_t bytes = sizeof(affinity) + (size_t)n_thread * sizeof(struct pinned);
    int n_cpu;
    *out = NULL;
    affinity *s = mem_zalloc(bytes);
    if (!s) return err_set(err, ERR_NOMEM, "affinity: %zu bytes", bytes);
    const int n_core = machine_cores(s->core_of, CPU_SETSIZE, &n_cpu);
    if (n_thread > n_core) {
        mem_free(s);
        return 0;
    }
    const int core = current_core(s);
    s->n_thread = n_thread;
    s->home = core < 0 ? 0 : core;
    for (int t = 0; t < n_thread; t++) s->of[t].core = (s->home + t) % n_core;
    *out = s;
    return 0;
}

void affinity_free(affinity *s) { mem_free(s); }

void affinity_pin(affinity *s, int thread)
{
    if (!s) return;
    pin(s, 0, s->of[thread].core);
    atomic_store_explicit(&s->of[thread].tid, (int)gettid(), memory_order_release);
}

void affinity_yield_core(affinity *s)
{
    if (!s) return;
    const int core = current_core(s);
    if (core < 0 || core == s->home) return;
    for (int t = 1; t < s->n_thread; t++) {
        const int tid = atomic_load_explicit(&s->of[t].tid, memory_order_acquire);
        if (s->of[t].core != core) continue;
        if (tid == 0) return;            /* not yet written: retry before the next loop */
        s->of[t].core = s->home;
        pin(s, tid, s->home);
    }
    s->home = core;
}
