/* pool.c - the thread team: OpenMP's threads, our own way of waiting.
 *
 * One parallel region is open for the life of the pool, on a thread of its own; its members wait
 * for loops. A fork and join for each loop would be simpler, but was measured: libgomp's threads
 * spin for each other, and when two share a core a token costs ten times as much.
 *
 * The caller works too, and waits only for members that have joined the loop under way: one that
 * sleeps costs nothing but its help. After a loop, members spin for a few microseconds, then sleep.
 *
 * In a loop no word is written by all threads: on a large processor these writes take 80 ns each,
 * one after the other. Each thread has a share of every list, and a line of its own that says how
 * much of it is taken, by itself or by others who have nothing left to do, and whether it is
 * inside. Only the caller writes the gate. A member says that it is inside before it looks at the
 * gate once more, and the caller closes the gate before it looks who is inside: one of the two sees
 * the other. */
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
    COPY_PIECE = 256 << 10,              /* bytes: some for each thread of a slab */
    SPIN_IDLE = 4000,                    /* looks at the gate before a member sleeps: ~20 us */
    SPIN_CLOSE = 1000,                   /* ... at members before the caller yields its core */
    SPIN_CROWDED = 20                    /* either, where members share cores: a thread that spins
                                          * keeps another from working */
};

/* Where the numbers of loops begin: so shortly before their end, after which 1 follows, that this
 * is nothing rare. 0 is no number. */
#define FIRST_NUMBER (UINT32_MAX - 1000)

/* A list of the loop under way, in grains: the first `more` threads own each + 1 of them, the
 * others each, one after another. */
typedef struct shared_list {
    pool_fn *fn;
    void *ctx;
    int64_t n, grain;
    uint32_t each, more;
    uint32_t n_part;                     /* an owner takes one of so many of what is left */
} shared_list;

/* Members that wait look at the gate, and get with it what they need next. */
typedef struct loop {
    _Alignas(APART) _Atomic uint32_t gate;       /* number of the loop under way; 0: closed */
    /* Written while the gate is closed and nobody is inside, read by those inside. */
    int n_list;
    shared_list lists[POOL_LISTS];
} loop;

/* A thread's line. */
typedef struct share {
    _Alignas(APART) _Atomic uint32_t inside;     /* written by the thread; 0: it is not */
    /* Written by those inside: the number of a loop, and below it how many grains of the share are
     * taken. Of another number: none; so nobody has to write it before a loop. */
    _Atomic uint64_t taken[POOL_LISTS];
} share;

static_assert(sizeof(loop) == APART && sizeof(share) == APART, "lines of their own");

struct pool {
    int n_thread;                        /* set once, as are all down to shares */
    int n_help;                          /* threads that can run at the same time */
    int spin_idle, spin_close;
    pthread_t host;                      /* runs the parallel region; exists if n_thread > 1 */
    affinity *cores;                     /* NULL: threads run where the system puts them */
    void *storage;
    loop *now;
    share *shares;                       /* [n_thread] */

    char apart_1[APART];
    uint32_t number;                     /* of the last loop; the caller's */
    _Atomic uint32_t bell;               /* changes when sleepers are woken; futex */
    _Atomic int n_asleep;                /* members that may wait for the bell */
    char apart_2[APART];
    _Atomic bool quit;                   /* looked at with each poll of the gate, hardly written */
    _Atomic bool awake;                  /* nobody sleeps, unless members share cores */
    _Atomic int n_come, n_gone;          /* members that began and ended; equal after the join */
};

/* ---- waiting --------------------------------------------------------------------------------- */

/* After the news. Whoever raises n_asleep later than it is looked at here sees the news. */
static void ring(pool *p)
{
    if (atomic_load_explicit(&p->n_asleep, memory_order_seq_cst) == 0) return;
    atomic_fetch_add_explicit(&p->bell, 1, memory_order_seq_cst);
    syscall(SYS_futex, &p->bell, FUTEX_WAKE_PRIVATE, POOL_MAX_THREADS, NULL, NULL, 0);
}

static bool is_news(const pool *p, uint32_t gate, uint32_t done)
{
    return (gate != 0 && gate != done) || atomic_load_explicit(&p->quit, memory_order_seq_cst);
}

/* Returns when there is a loop other than the one done last, or the end; perhaps sooner. */
static void await_news(pool *p, uint32_t done)
{
    const int n = p->spin_idle;
    for (int i = 0; i < n; i++) {
        if (is_news(p, atomic_load_explicit(&p->now->gate, memory_order_relaxed), done)) return;
        if (i == n - 1 && p->cores && atomic_load_explicit(&p->awake, memory_order_relaxed)) i = 0;
        pool_relax();
    }
    /* Whoever rings after n_asleep was raised changes the bell; what came before shows. */
    atomic_fetch_add_explicit(&p->n_asleep, 1, memory_order_seq_cst);
    const uint32_t heard = atomic_load_explicit(&p->bell, memory_order_seq_cst);
    if (!is_news(p, atomic_load_explicit(&p->now->gate, memory_order_seq_cst), done))
        syscall(SYS_futex, &p->bell, FUTEX_WAIT_PRIVATE, heard, NULL, NULL, 0);
    atomic_fetch_sub_explicit(&p->n_asleep, 1, memory_order_seq_cst);
}

/* ---- handing out ----------------------------------------------------------------------------- */

/* Takes one of n_part parts of the grains that are left of a share, which has `all`, at least one.
 * Returns how many; *first: how many were taken before. */
static uint32_t take_grains(_Atomic uint64_t *taken, uint32_t *first, uint32_t number, uint32_t all,
                            uint32_t n_part)
{
    uint64_t seen = atomic_load_explicit(taken, memory_order_relaxed), next;
    uint32_t left, n;
    do {
        *first = seen >> 32 == number ? (uint32_t)seen : 0;
        if ((left = all - *first) == 0) return 0;
        n = left / n_part + (left % n_part > 0);
        next = (uint64_t)number << 32 | (*first + n);
    } while (!atomic_compare_exchange_weak_explicit(taken, &seen, next, memory_order_relaxed,
                                                    memory_order_relaxed));
    return n;
}

/* Grains of a share, and how many there are before it. */
static int64_t share_of(const shared_list *l, int owner, uint32_t *n)
{
    const uint32_t o = (uint32_t)owner;
    *n = l->each + (o < l->more);
    return (int64_t)l->each * owner + (o < l->more ? o : l->more);
}

/* All that is left of a share of list i. The owner takes half of it, because memory is read fastest
 * in long runs, then half of the rest and so on, in case it is slow; or a quarter each time, where
 * half of one share may be more work than all of another. When helpers come, all the others may:
 * each leaves something for them. */
static void work_off(pool *p, const shared_list *l, int i, uint32_t number, int owner, int thread)
{
    uint32_t all;
    const int64_t before = share_of(l, owner, &all);
    const uint32_t n_part = owner == thread ? l->n_part : (uint32_t)p->n_help;
    uint32_t first, n;
    while ((n = take_grains(&p->shares[owner].taken[i], &first, number, all, n_part)) > 0) {
        const int64_t begin = (before + first) * l->grain, end = begin + n * l->grain;
        l->fn(l->ctx, begin, end < l->n ? end : l->n, thread);
    }
}

/* Of each list the thread's own share first, then those of the others from the next one on, so that
 * not all helpers begin with the same one: then all of it is taken. What it needs to know it
 * copies: the gate's line is lost when the gate closes. */
static void work(pool *p, uint32_t number, int thread)
{
    const int n_list = p->now->n_list;
    for (int i = 0; i < n_list; i++) {
        const shared_list l = p->now->lists[i];
        const int n_owner = l.each > 0 ? p->n_thread : (int)l.more, from = thread % n_owner;
        for (int owner = from; owner < n_owner; owner++)
            work_off(p, &l, i, number, owner, thread);
        for (int owner = 0; owner < from; owner++) work_off(p, &l, i, number, owner, thread);
    }
}

/* ---- members --------------------------------------------------------------------------------- */

/* A member's life. Not inlined: the thread sanitizer watches from here on. */
static __attribute__((noinline)) void serve(pool *p, int thread)
{
    _Atomic uint32_t *inside = &p->shares[thread].inside;
    uint32_t done = 0;
    atomic_fetch_add_explicit(&p->n_come, 1, memory_order_relaxed);
    affinity_pin(p->cores, thread);
    while (!atomic_load_explicit(&p->quit, memory_order_acquire)) {
        uint32_t gate = atomic_load_explicit(&p->now->gate, memory_order_relaxed);
        if (gate == 0 || gate == done) {
            await_news(p, done);
            continue;
        }
        /* pairs with close_gate; only what the gate says from here on counts */
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

static shared_list share_out(const pool_list *of, void *ctx, int n_thread)
{
    /* a share counts grains in 32 bits */
    const int64_t grain = of->grain * (1 + of->n / of->grain / UINT32_MAX);
    const int64_t n_grain = of->n / grain + (of->n % grain > 0);
    return (shared_list){ .fn = of->fn, .ctx = ctx, .n = of->n, .grain = grain,
                          .each = (uint32_t)(n_grain / n_thread),
                          .more = (uint32_t)(n_grain % n_thread), .n_part = of->uneven ? 4 : 2 };
}

void pool_own(int64_t *begin, int64_t *end, int64_t n, int64_t grain, int n_thread, int thread)
{
    const shared_list l = share_out(&(pool_list){ .n = n, .grain = grain }, NULL, n_thread);
    uint32_t own;
    *begin = share_of(&l, thread, &own) * l.grain;
    *end = *begin + own * l.grain;
    if (*begin > n) *begin = n;
    if (*end > n) *end = n;
}

/* A share that had nothing to take for all these loops would still have its old number. */
static uint32_t next_number(pool *p)
{
    if (++p->number != 0) return p->number;
    for (int t = 0; t < p->n_thread; t++)
        for (int i = 0; i < POOL_LISTS; i++)
            atomic_store_explicit(&p->shares[t].taken[i], 0, memory_order_relaxed);
    return p->number = 1;
}

/* Returns when nobody is inside. A member that comes from now on finds the gate closed, or the next
 * loop. */
static void close_gate(pool *p)
{
    int looks = 0;
    atomic_store_explicit(&p->now->gate, 0, memory_order_seq_cst);       /* pairs with serve */
    for (int t = 1; t < p->n_thread; t++)
        while (atomic_load_explicit(&p->shares[t].inside, memory_order_seq_cst) != 0) {
            if (++looks % p->spin_close == 0) sched_yield();
            else pool_relax();
        }
}

/* Members look at the gate's line all the time: what is in it is written at once. */
static void open_gate(pool *p, const shared_list *lists, int n_list, uint32_t number)
{
    loop *now = p->now;
    now->n_list = n_list;
    for (int i = 0; i < n_list; i++) now->lists[i] = lists[i];
    atomic_store_explicit(&now->gate, number, memory_order_seq_cst);
    ring(p);
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
        some[n_some++] = share_out(&lists[i], ctx, p->n_thread);
    }
    if (p->n_thread == 1 || is_small) {
        for (int i = 0; i < n_some; i++) some[i].fn(ctx, 0, some[i].n, 0);
        return;
    }
    const uint32_t number = next_number(p);
    affinity_make_way(p->cores);
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

static void copy_pieces(void *ctx, int64_t begin, int64_t end, int thread)
{
    const copy_job *j = ctx;
    const size_t first = (size_t)begin * COPY_PIECE, last = (size_t)end * COPY_PIECE;
    (void)thread;
    memcpy(j->to + first, j->from + first, (last < j->bytes ? last : j->bytes) - first);
}

void pool_copy(void *team, void *to, const void *from, size_t n)
{
    copy_job j = { to, from, n };
    pool_run(team, (int64_t)((n + COPY_PIECE - 1) / COPY_PIECE), 1, copy_pieces, &j);
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

/* Pieces keep their working memory on the stack: up to 1.9 MB, products of AVX2 with tokens too
 * long to stay packed. The first thread's stack ends where the limit says. Others get as much by
 * default, and where there is no limit glibc gives them 2 MB: too little to be safe. */
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
    p->shares = (share *)(p->now + 1);
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
        ring(p);
        pthread_join(p->host, NULL);
        while (atomic_load_explicit(&p->n_gone, memory_order_acquire) <
               atomic_load_explicit(&p->n_come, memory_order_acquire)) pool_relax();
    }
    affinity_free(p->cores);
    mem_free(p->storage);
    mem_free(p);
}

int pool_threads(const pool *p) { return p->n_thread; }
