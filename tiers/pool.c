/* pool.c - the thread team: OpenMP's threads, our own way of waiting.
 *
 * One parallel region is open for the life of the pool, on a thread of its own; its members wait
 * for loops. A fork and join for each loop would be simpler, but libgomp's threads spin for each
 * other: when two of them share a core, a token takes ten times as long (measured).
 *
 * The caller works too, and waits only for members that have joined the current loop, so it never
 * waits for a sleeping one. After a loop, members spin for a few microseconds, then sleep.
 *
 * In a loop no word is written by all threads: on a large processor each such write takes 80 ns,
 * and they are serialised. Each thread owns a range of every list, and a cache line that says how
 * much of the range is claimed, by the owner or by thieves, and whether the thread is inside the
 * loop. Only the caller writes the gate. A member sets `inside` and then reads the gate again; the
 * caller closes the gate and then reads all `inside`: one of the two sees the other's write. */
#include "tiers/pool.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tiers/affinity.h"
#include "tiers/machine.h"
#include "tiers/thread.h"

enum {
    APART = 128,                         /* cache lines come in pairs */
    COPY_CHUNK = 256 << 10,              /* bytes: several for each thread of a slab */
    SPIN_IDLE = 4000,                    /* polls of the gate before a member sleeps: ~20 us */
    SPIN_CLOSE = 1000,                   /* polls of members before the caller yields its core */
    SPIN_CROWDED = 20                    /* either, where members share cores: a spinning thread
                                          * delays a working one */
};

/* Number of the first loop: close to the largest, so that every run tests the wrap to 1. 0 is not
 * a number. */
#define FIRST_NUMBER (UINT32_MAX - 1000)

/* A list of the current loop, in grains: each of the first `more` threads owns each + 1 consecutive
 * grains, each other thread `each`. */
typedef struct shared_list {
    pool_fn *fn;
    void *ctx;
    int64_t n, grain;
    uint32_t each, more;
    uint32_t n_part;                     /* an owner claims 1 / n_part of its remaining grains */
} shared_list;

/* The gate's cache line: waiting members poll it, and it has the loop's arguments. */
typedef struct loop {
    _Alignas(APART) _Atomic uint32_t gate;       /* number of the current loop; 0: closed */
    /* Written while the gate is closed and no member is inside, read by members inside. */
    int n_list;
    shared_list lists[POOL_LISTS];
} loop;

/* A thread's cache line. */
typedef struct thread_line {
    _Alignas(APART) _Atomic uint32_t inside;     /* written by the thread; 0: not in a loop */
    /* Written by members inside: number of a loop in the upper half, claimed grains of the thread's
     * range in the lower. Another number means no claimed grains, so no reset is needed. */
    _Atomic uint64_t claimed[POOL_LISTS];
} thread_line;

static_assert(sizeof(loop) == APART && sizeof(thread_line) == APART, "one cache line pair each");

struct pool {
    int n_thread;                        /* set once, as all fields down to lines */
    int n_help;                          /* threads that can run at the same time */
    int spin_idle, spin_close;
    pthread_t host;                      /* runs the parallel region; exists if n_thread > 1 */
    affinity *cores;                     /* NULL: threads run where the system puts them */
    void *storage;
    loop *now;
    thread_line *lines;                  /* [n_thread] */

    char apart_1[APART];
    uint32_t number;                     /* of the last loop; the caller's */
    _Atomic uint32_t n_wake_up;          /* number of wake-ups; futex */
    _Atomic int n_asleep;                /* members that may wait for n_wake_up to change */
    char apart_2[APART];
    _Atomic bool quit;                   /* read with each poll of the gate, written once */
    _Atomic bool awake;                  /* no member sleeps, unless members share cores */
    _Atomic int n_come, n_gone;          /* members that began and ended; equal after the join */
};

/* ---- waiting --------------------------------------------------------------------------------- */

/* Call after opening the gate or setting quit. A member that increments n_asleep after the load
 * here sees that change before it sleeps. */
static void wake_sleepers(pool *p)
{
    if (atomic_load_explicit(&p->n_asleep, memory_order_seq_cst) == 0) return;
    atomic_fetch_add_explicit(&p->n_wake_up, 1, memory_order_seq_cst);
    syscall(SYS_futex, &p->n_wake_up, FUTEX_WAKE_PRIVATE, POOL_MAX_THREADS, NULL, NULL, 0);
}

static bool must_wake(const pool *p, uint32_t gate, uint32_t done)
{
    return (gate != 0 && gate != done) || atomic_load_explicit(&p->quit, memory_order_seq_cst);
}

/* Waits for a loop with another number than `done`, or for quit; may return early. */
static void await_loop(pool *p, uint32_t done)
{
    const int n = p->spin_idle;
    for (int i = 0; i < n; i++) {
        if (must_wake(p, atomic_load_explicit(&p->now->gate, memory_order_relaxed), done)) return;
        if (i == n - 1 && p->cores && atomic_load_explicit(&p->awake, memory_order_relaxed)) i = 0;
        pool_relax();
    }
    /* a wake-up after n_asleep was incremented changes n_wake_up; an earlier one is visible */
    atomic_fetch_add_explicit(&p->n_asleep, 1, memory_order_seq_cst);
    const uint32_t n_seen = atomic_load_explicit(&p->n_wake_up, memory_order_seq_cst);
    if (!must_wake(p, atomic_load_explicit(&p->now->gate, memory_order_seq_cst), done))
        syscall(SYS_futex, &p->n_wake_up, FUTEX_WAIT_PRIVATE, n_seen, NULL, NULL, 0);
    atomic_fetch_sub_explicit(&p->n_asleep, 1, memory_order_seq_cst);
}

/* ---- claiming -------------------------------------------------------------------------------- */

/* Claims 1 / n_part, at least one, of the unclaimed grains of a range of `all` grains. Returns
 * their number; *first: the grains claimed before. */
static uint32_t claim_grains(_Atomic uint64_t *claimed, uint32_t *first, uint32_t number,
                             uint32_t all, uint32_t n_part)
{
    uint64_t old = atomic_load_explicit(claimed, memory_order_relaxed), next;
    uint32_t left, n;
    do {
        *first = old >> 32 == number ? (uint32_t)old : 0;
        if ((left = all - *first) == 0) return 0;
        n = left / n_part + (left % n_part > 0);
        next = (uint64_t)number << 32 | (*first + n);
    } while (!atomic_compare_exchange_weak_explicit(claimed, &old, next, memory_order_relaxed,
                                                    memory_order_relaxed));
    return n;
}

/* Grains of the owner's range in *n; returns the number of grains before it. */
static int64_t own_range(const shared_list *l, int owner, uint32_t *n)
{
    const uint32_t o = (uint32_t)owner;
    *n = l->each + (o < l->more);
    return (int64_t)l->each * owner + (o < l->more ? o : l->more);
}

/* Runs the unclaimed grains of the owner's range of list i. The owner claims half of them, because
 * long ranges are read fastest, then half of the rest and so on, in case it is slow; for uneven
 * lists a quarter each time. A thief claims 1 / n_help, because other thieves may follow. */
static void run_range(pool *p, const shared_list *l, int i, uint32_t number, int owner, int thread)
{
    uint32_t all;
    const int64_t before = own_range(l, owner, &all);
    const uint32_t n_part = owner == thread ? l->n_part : (uint32_t)p->n_help;
    uint32_t first, n;
    while ((n = claim_grains(&p->lines[owner].claimed[i], &first, number, all, n_part)) > 0) {
        const int64_t begin = (before + first) * l->grain, end = begin + n * l->grain;
        l->fn(l->ctx, begin, end < l->n ? end : l->n, thread);
    }
}

/* For each list the thread's own range first, then the ranges of the next threads, so that thieves
 * spread. Afterwards all grains are claimed. The list is copied, because the caller may overwrite
 * the gate's line after closing. */
static void work(pool *p, uint32_t number, int thread)
{
    const int n_list = p->now->n_list;
    for (int i = 0; i < n_list; i++) {
        const shared_list l = p->now->lists[i];
        const int n_owner = l.each > 0 ? p->n_thread : (int)l.more, from = thread % n_owner;
        for (int owner = from; owner < n_owner; owner++)
            run_range(p, &l, i, number, owner, thread);
        for (int owner = 0; owner < from; owner++) run_range(p, &l, i, number, owner, thread);
    }
}

/* ---- members --------------------------------------------------------------------------------- */

/* A member's loop. Not inlined, because the thread sanitizer instruments it but not host_team. */
static __attribute__((noinline)) void serve(pool *p, int thread)
{
    _Atomic uint32_t *inside = &p->lines[thread].inside;
    uint32_t done = 0;
    atomic_fetch_add_explicit(&p->n_come, 1, memory_order_relaxed);
    affinity_pin(p->cores, thread);
    while (!atomic_load_explicit(&p->quit, memory_order_acquire)) {
        uint32_t gate = atomic_load_explicit(&p->now->gate, memory_order_relaxed);
        if (gate == 0 || gate == done) {
            await_loop(p, done);
            continue;
        }
        /* pairs with close_gate; the gate is read again after this store */
        atomic_store_explicit(inside, 1, memory_order_seq_cst);
        gate = atomic_load_explicit(&p->now->gate, memory_order_seq_cst);
        if (gate != 0 && gate != done) {
            work(p, gate, thread);
            done = gate;
        }
        atomic_store_explicit(inside, 0, memory_order_release);
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

/* ---- the caller ------------------------------------------------------------------------------ */

static shared_list split_list(const pool_list *of, void *ctx, int n_thread)
{
    /* claimed counts grains in 32 bits */
    const int64_t grain = of->grain * (1 + of->n / of->grain / UINT32_MAX);
    const int64_t n_grain = of->n / grain + (of->n % grain > 0);
    return (shared_list){ .fn = of->fn, .ctx = ctx, .n = of->n, .grain = grain,
                          .each = (uint32_t)(n_grain / n_thread),
                          .more = (uint32_t)(n_grain % n_thread), .n_part = of->uneven ? 4 : 2 };
}

void pool_own(int64_t *begin, int64_t *end, int64_t n, int64_t grain, int n_thread, int thread)
{
    const shared_list l = split_list(&(pool_list){ .n = n, .grain = grain }, NULL, n_thread);
    uint32_t own;
    *begin = own_range(&l, thread, &own) * l.grain;
    *end = *begin + own * l.grain;
    if (*begin > n) *begin = n;
    if (*end > n) *end = n;
}

/* After a wrap, claimed words that no loop has changed could have an old number: they are reset. */
static uint32_t next_number(pool *p)
{
    if (++p->number != 0) return p->number;
    for (int t = 0; t < p->n_thread; t++)
        for (int i = 0; i < POOL_LISTS; i++)
            atomic_store_explicit(&p->lines[t].claimed[i], 0, memory_order_relaxed);
    return p->number = 1;
}

/* Returns when no member is inside. Members that arrive later find the gate closed, or the next
 * loop. */
static void close_gate(pool *p)
{
    int looks = 0;
    atomic_store_explicit(&p->now->gate, 0, memory_order_seq_cst);       /* pairs with serve */
    for (int t = 1; t < p->n_thread; t++)
        while (atomic_load_explicit(&p->lines[t].inside, memory_order_seq_cst) != 0) {
            if (++looks % p->spin_close == 0) sched_yield();
            else pool_relax();
        }
}

/* Members poll the gate's line, so all writes to it are close together. */
static void open_gate(pool *p, const shared_list *lists, int n_list, uint32_t number)
{
    loop *now = p->now;
    now->n_list = n_list;
    for (int i = 0; i < n_list; i++) now->lists[i] = lists[i];
    atomic_store_explicit(&now->gate, number, memory_order_seq_cst);
    wake_sleepers(p);
}

void pool_run_lists(pool *p, const pool_list *lists, int n_list, void *ctx)
{
    shared_list some[POOL_LISTS];
    int n_some = 0;
    bool is_small = true;                /* not worth a team */
    assert(n_list <= POOL_LISTS);
    for (int i = 0; i < n_list; i++) {
        if (lists[i].n <= 0) continue;
        is_small = is_small && n_some == 0 && lists[i].n <= lists[i].grain;
        some[n_some++] = split_list(&lists[i], ctx, p->n_thread);
    }
    if (p->n_thread == 1 || is_small) {
        for (int i = 0; i < n_some; i++) some[i].fn(ctx, 0, some[i].n, 0);
        return;
    }
    const uint32_t number = next_number(p);
    affinity_yield_core(p->cores);
    open_gate(p, some, n_some, number);
    work(p, number, 0);
    close_gate(p);
}

void pool_run(pool *p, int64_t n, int64_t grain, pool_fn *fn, void *ctx)
{
    if (n <= 0) return;
    if (p->n_thread == 1 || n <= grain) fn(ctx, 0, n, 0);
    else pool_run_lists(p, &(pool_list){ n, grain, fn, false }, 1, ctx);
}

typedef struct copy_job {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
} copy_job;

static void copy_chunks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const copy_job *j = ctx;
    const size_t first = (size_t)begin * COPY_CHUNK, last = (size_t)end * COPY_CHUNK;
    (void)thread;
    memcpy(j->to + first, j->from + first, (last < j->bytes ? last : j->bytes) - first);
}

void pool_copy(void *team, void *to, const void *from, size_t n)
{
    copy_job j = { to, from, n };
    pool_run(team, (int64_t)((n + COPY_CHUNK - 1) / COPY_CHUNK), 1, copy_chunks, &j);
}

static void no_work(void *ctx, int64_t begin, int64_t end, int thread)
{
    (void)ctx, (void)begin, (void)end, (void)thread;
}

void pool_stay_awake(pool *p, bool on)
{
    atomic_store_explicit(&p->awake, on, memory_order_relaxed);
    if (on) pool_run(p, p->n_thread, 1, no_work, NULL);          /* wakes sleeping members */
}

/* ---- life ------------------------------------------------------------------------------------ */

/* libgomp ends the process when the system refuses a thread, so the limit is far lower. */
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

/* Loop functions have up to 1.9 MB of working memory on the stack (products of AVX2 with long
 * tokens). RLIMIT_STACK limits the first thread's stack. It is the default of other threads too,
 * but without a limit glibc gives them 2 MB, which is too little. */
static int check_stack(err_ctx *err)
{
    const size_t least = 3 << 20;
    struct rlimit have;
    pthread_attr_t usual;
    size_t bytes;

    if (getrlimit(RLIMIT_STACK, &have) == 0 && have.rlim_cur < least)
        return err_set(err, ERR_NOMEM, "threads: a stack of %llu KiB is too small; "
                       "use ulimit -s 8192", (unsigned long long)have.rlim_cur / 1024);
    if (pthread_getattr_default_np(&usual) != 0) return 0;
    if (pthread_attr_getstacksize(&usual, &bytes) == 0 && bytes < least &&
        pthread_attr_setstacksize(&usual, least) == 0)
        pthread_setattr_default_np(&usual);
    pthread_attr_destroy(&usual);
    return 0;
}

/* The gate's line, and one for each thread. */
static int place_lines(pool *p, int n_thread, err_ctx *err)
{
    const size_t bytes = ((size_t)n_thread + 2) * APART;
    p->storage = mem_zalloc(bytes);
    if (!p->storage) return err_set(err, ERR_NOMEM, "pool: %zu bytes", bytes);
    p->now = (loop *)(((uintptr_t)p->storage + APART - 1) / APART * APART);
    p->lines = (thread_line *)(p->now + 1);
    p->number = FIRST_NUMBER;
    return 0;
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
    if ((rc = place_lines(p, n_thread, err)) < 0) goto fail;
    if (n_thread > 1) {
        if ((rc = affinity_create(&p->cores, n_thread, err)) < 0) goto fail;
        p->n_thread = n_thread;
        p->n_help = n_thread < n_core ? n_thread : n_core;
        p->spin_idle = p->cores ? SPIN_IDLE : SPIN_CROWDED;
        p->spin_close = p->cores ? SPIN_CLOSE : SPIN_CROWDED;
        if ((errno = thread_start(&p->host, host_team, p)) != 0) {
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
        wake_sleepers(p);
        pthread_join(p->host, NULL);
        while (atomic_load_explicit(&p->n_gone, memory_order_acquire) <
               atomic_load_explicit(&p->n_come, memory_order_acquire)) pool_relax();
    }
    affinity_free(p->cores);
    mem_free(p->storage);
    mem_free(p);
}

int pool_threads(const pool *p) { return p->n_thread; }
