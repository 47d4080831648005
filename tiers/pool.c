/* pool.c - the thread team: OpenMP's threads, our own way of waiting.
 *
 * One parallel region is open for the life of the pool, on a thread of its own; its members wait
 * for loops. A fork and join for each loop would be simpler, but was measured: libgomp's threads
 * spin for each other, and when two share a core a token costs ten times as much.
 *
 * The caller works too, and waits only for members that have joined the loop under way: one that
 * sleeps costs nothing but its help. Joining, leaving and closing go through one word, the gate.
 * Members count themselves in before they check whether they are in time, and out again if not: one
 * addition each, where a compare-and-swap among many would mostly fail. After a loop, members spin
 * for a few microseconds, then sleep. */
#include "tiers/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tiers/machine.h"
#include "tiers/affinity.h"

/* gate: number of the loop in the upper half, below it OPEN and the count of members inside. */
#define GATE_OPEN 0x80000000u
#define GATE_COUNT 0x7FFFFFFFu

enum {
    APART = 128,
    SPIN_IDLE = 4000,                    /* looks at the gate before a member sleeps: ~20 us */
    SPIN_CLOSE = 1000,                   /* ... at the count before the caller yields its core */
    SPIN_CROWDED = 20                    /* either, where members share cores: a thread that spins
                                          * keeps another from working */
};

struct pool {
    int n_thread;                        /* set once */
    int spin_idle, spin_close;           /* set once */
    pthread_t host;                      /* runs the parallel region; exists if n_thread > 1 */
    affinity *cores;                     /* NULL: threads run where the system puts them */

    /* The loop under way: written while the gate is closed, read by those inside. */
    pool_fn *fn;
    void *ctx;
    int64_t n, grain;
    double per_share;                    /* one by twice the threads' grains */

    /* Words that all threads write have cache lines (which come in pairs) of their own. */
    char apart_1[APART];
    _Atomic int64_t next;                /* number of the first range not handed out */
    char apart_2[APART];
    _Atomic uint64_t gate;
    char apart_3[APART];
    _Atomic uint32_t bell;               /* changes with each loop, and at the end; futex */
    _Atomic int n_asleep;                /* members that may wait for the bell */
    char apart_4[APART];
    _Atomic bool quit;                   /* looked at with each poll of the gate, hardly written */
    _Atomic bool awake;                  /* nobody sleeps, unless members share cores */
    _Atomic int n_come, n_gone;          /* members that began and ended; equal after the join */
};

/* ---- waiting --------------------------------------------------------------------------------- */

static void ring(pool *p)
{
    atomic_fetch_add_explicit(&p->bell, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&p->n_asleep, memory_order_seq_cst) > 0)
        syscall(SYS_futex, &p->bell, FUTEX_WAKE_PRIVATE, POOL_MAX_THREADS, NULL, NULL, 0);
}

static bool is_news(const pool *p, uint64_t gate, uint64_t done)
{
    return ((gate & GATE_OPEN) && gate >> 32 != done) ||
           atomic_load_explicit(&p->quit, memory_order_acquire);
}

/* Returns when there is a loop other than the one done last, or the end. */
static void await_news(pool *p, uint64_t done)
{
    const int n = p->spin_idle;
    for (int i = 0; i < n; i++) {
        if (is_news(p, atomic_load_explicit(&p->gate, memory_order_acquire), done)) return;
        if (i == n - 1 && p->cores && atomic_load_explicit(&p->awake, memory_order_relaxed)) i = 0;
        pool_relax();
    }
    /* Whoever rings after n_asleep was raised sees it; whoever rang before changed the bell. */
    atomic_fetch_add_explicit(&p->n_asleep, 1, memory_order_seq_cst);
    const uint32_t heard = atomic_load_explicit(&p->bell, memory_order_seq_cst);
    if (!is_news(p, atomic_load_explicit(&p->gate, memory_order_seq_cst), done))
        syscall(SYS_futex, &p->bell, FUTEX_WAIT_PRIVATE, heard, NULL, NULL, 0);
    atomic_fetch_sub_explicit(&p->n_asleep, 1, memory_order_seq_cst);
}

/* ---- working --------------------------------------------------------------------------------- */

/* The size of a range that begins where `left` indices are left: half of an even share of them, so
 * that ranges get smaller and all threads end together; large ones first, because memory is read
 * fastest in long runs. */
static int64_t range_size(const pool *p, int64_t left)
{
    const int64_t grains = (int64_t)((double)left * p->per_share);   /* sooner than by dividing */
    return (grains > 1 ? grains : 1) * p->grain;
}

/* Ranges are numbered, and each thread works out where those begin that it gets: taking one is a
 * single addition. All threads begin at once, and most compare-and-swaps would fail. */
static void take_pieces(pool *p, int thread)
{
    int64_t number = 0, begin = 0, size = range_size(p, p->n);
    for (;;) {
        const int64_t mine = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        for (; number < mine && size > p->grain; number++) {
            begin += size;
            size = range_size(p, p->n - begin);
        }
        begin += (mine - number) * size;         /* nothing is smaller than a grain */
        number = mine;
        const int64_t left = p->n - begin;
        if (left <= 0) return;
        p->fn(p->ctx, begin, begin + (left < size ? left : size), thread);
    }
}

/* A member's life. Not inlined: the thread sanitizer watches from here on. */
static __attribute__((noinline)) void serve(pool *p, int thread)
{
    uint64_t done = 0;
    atomic_fetch_add_explicit(&p->n_come, 1, memory_order_relaxed);
    affinity_pin(p->cores, thread);
    while (!atomic_load_explicit(&p->quit, memory_order_acquire)) {
        uint64_t gate = atomic_load_explicit(&p->gate, memory_order_relaxed);
        if (!(gate & GATE_OPEN) || gate >> 32 == done) {
            await_news(p, done);
            continue;
        }
        gate = atomic_fetch_add_explicit(&p->gate, 1, memory_order_acquire);
        if (gate & GATE_OPEN) {
            take_pieces(p, thread);
            done = gate >> 32;
        }
        atomic_fetch_sub_explicit(&p->gate, 1, memory_order_release);
    }
    atomic_fetch_add_explicit(&p->n_gone, 1, memory_order_release);
}

/* libgomp hands p over in a way the thread sanitizer cannot follow: hence not instrumented here. */
__attribute__((no_sanitize_thread)) static void *host_team(void *arg)
{
    pool *p = arg;
#pragma omp parallel num_threads(p->n_thread - 1)
    serve(p, 1 + omp_get_thread_num());
    return NULL;
}

void pool_run(pool *p, int64_t n, int64_t grain, pool_fn *fn, void *ctx)
{
    if (n <= 0) return;
    if (p->n_thread == 1 || n <= grain) {
        fn(ctx, 0, n, 0);
        return;
    }
    p->grain = grain;
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->per_share = 1.0 / (2.0 * p->n_thread * (double)grain);
    affinity_make_way(p->cores);
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    /* members on their way out may still be inside: they keep their count */
    atomic_fetch_add_explicit(&p->gate, (UINT64_C(1) << 32) + GATE_OPEN, memory_order_seq_cst);
    ring(p);
    take_pieces(p, 0);
    for (int i = 1;; i++) {              /* nobody may join any more once nobody is inside */
        uint64_t gate = atomic_load_explicit(&p->gate, memory_order_relaxed);
        if ((gate & GATE_COUNT) == 0 &&
            atomic_compare_exchange_weak_explicit(&p->gate, &gate, gate - GATE_OPEN,
                                                  memory_order_acquire, memory_order_relaxed))
            return;
        if (i % p->spin_close == 0) sched_yield();
        else pool_relax();
    }
}

static void no_work(void *ctx, int64_t begin, int64_t end, int thread)
{
    (void)ctx, (void)begin, (void)end, (void)thread;
}

void pool_stay_awake(pool *p, bool on)
{
    atomic_store_explicit(&p->awake, on, memory_order_relaxed);
    if (on) pool_run(p, p->n_thread, 1, no_work, NULL);          /* wakes those that sleep */
}

/* ---- life ------------------------------------------------------------------------------------ */

/* libgomp ends the process when the system refuses a thread: stay well below the limit. */
static int most_threads(int n_cpu)
{
    const int some = 4 * n_cpu > 64 ? 4 * n_cpu : 64;
    return some < POOL_MAX_THREADS ? some : POOL_MAX_THREADS;
}

int pool_most_threads(void)
{
    int n_cpu;
    (void)machine_cores(NULL, 0, &n_cpu);
    return most_threads(n_cpu);
}

/* Pieces keep their working memory on the stack; threads get a stack of the size the limit says. */
static int check_stack(err_ctx *err)
{
    const rlim_t least = 1 << 20;
    struct rlimit have;
    if (getrlimit(RLIMIT_STACK, &have) < 0 || have.rlim_cur >= least) return 0;
    return err_set(err, ERR_NOMEM, "threads: a stack of %llu KiB is too small; use ulimit -s 8192",
                   (unsigned long long)have.rlim_cur / 1024);
}

/* Members inherit the host thread's mask. A signal for the process goes to any thread that does not
 * block it: in a member, Ctrl-C would be counted but would not end the program's wait for a key. A
 * signal raised by a member's own instruction still reaches it. Returns an error number. */
static int start_host(pool *p)
{
    static const int own[] = { SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGTRAP, SIGSYS };
    sigset_t quiet, before;
    sigfillset(&quiet);
    for (size_t i = 0; i < ARRAY_LEN(own); i++) sigdelset(&quiet, own[i]);
    pthread_sigmask(SIG_BLOCK, &quiet, &before);
    const int why = pthread_create(&p->host, NULL, host_team, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return why;
}

int pool_create(pool **out, int n_thread, err_ctx *err)
{
    int n_cpu, rc = 0;
    const int n_core = machine_cores(NULL, 0, &n_cpu), most = most_threads(n_cpu);
    *out = NULL;
    if (n_thread < 0 || n_thread > most)
        return err_set(err, ERR_RANGE, "threads: %d is not within 0..%d", n_thread, most);
    if (n_thread == 0) n_thread = n_core < most ? n_core : most;
    if ((rc = check_stack(err)) < 0) return rc;
    pool *p = mem_zalloc(sizeof *p);
    if (!p) return err_set(err, ERR_NOMEM, "pool: %zu bytes", sizeof *p);
    p->n_thread = 1;                     /* for pool_free, until the host thread exists */
    if (n_thread > 1) {
        if ((rc = affinity_create(&p->cores, n_thread, err)) < 0) goto fail;
        p->n_thread = n_thread;
        p->spin_idle = p->cores ? SPIN_IDLE : SPIN_CROWDED;
        p->spin_close = p->cores ? SPIN_CLOSE : SPIN_CROWDED;
        if ((errno = start_host(p)) != 0) {
            p->n_thread = 1;
            rc = err_sys(err, "pool: no thread for a team of %d", n_thread);
            goto fail;
        }
    }
    *out = p;
    return 0;
fail:
    pool_free(p);
    return rc;
}

void pool_free(pool *p)
{
    if (!p) return;
    if (p->n_thread > 1) {
        atomic_store_explicit(&p->quit, true, memory_order_seq_cst);
        ring(p);
        pthread_join(p->host, NULL);
        while (atomic_load_explicit(&p->n_gone, memory_order_acquire) <
               atomic_load_explicit(&p->n_come, memory_order_acquire)) pool_relax();
    }
    affinity_free(p->cores);
    mem_free(p);
}

int pool_threads(const pool *p)
{
    return p->n_thread;
}
