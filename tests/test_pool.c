/* test_pool.c - the thread team: every index once, on any thread, and nothing afterwards. */
#include "tiers/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "tests/test.h"

/* ---- every index once ------------------------------------------------------------------------ */

enum { POOL_ITEMS = 1000 };

typedef struct tally {
    int n_thread;
    pool_list lists[POOL_LISTS];
    int times[POOL_LISTS][POOL_ITEMS];   /* no atomics: each index belongs to one piece only */
    _Atomic int64_t begun[POOL_LISTS];   /* indices of pieces that were handed out */
    _Atomic int busy[POOL_MAX_THREADS];  /* calls under way with this thread index */
    _Atomic int wrong;
} tally;

static void count_list(tally *c, int i, int64_t begin, int64_t end, int thread)
{
    const int64_t n = c->lists[i].n, grain = c->lists[i].grain;
    const bool own = thread >= 0 && thread < c->n_thread;
    if (!own || atomic_fetch_add(&c->busy[thread], 1) != 0 || begin < 0 || end > n ||
        begin >= end || begin % grain != 0 || (end != n && (end - begin) % grain != 0))
        atomic_fetch_add(&c->wrong, 1);
    atomic_fetch_add(&c->begun[i], end - begin);
    for (int64_t k = begin; k < end; k++) c->times[i][k]++;
    /* nothing of earlier lists is left to take, though others may not have begun with it: what they
     * have taken they do, so this wait ends */
    for (int e = 0; e < i; e++)
        while (atomic_load(&c->begun[e]) < c->lists[e].n) sched_yield();
    if (own) atomic_fetch_sub(&c->busy[thread], 1);
}

static void count_first(void *ctx, int64_t begin, int64_t end, int thread)
{
    count_list(ctx, 0, begin, end, thread);
}

static void count_second(void *ctx, int64_t begin, int64_t end, int thread)
{
    count_list(ctx, 1, begin, end, thread);
}

static void begin_tally(tally *c, const pool *p)
{
    memset(c, 0, sizeof *c);
    c->n_thread = pool_threads(p);
}

static void check_tally(const tally *c, int n_list)
{
    for (int i = 0; i < n_list; i++) {
        int bad = 0;
        for (int k = 0; k < POOL_ITEMS; k++) bad += c->times[i][k] != (k < c->lists[i].n);
        CHECK_MSG(bad == 0 && c->wrong == 0,
                  "%d threads, list %d of %d, %d items by %d: %d not done once, %d odd pieces",
                  c->n_thread, i, n_list, (int)c->lists[i].n, (int)c->lists[i].grain, bad,
                  c->wrong);
    }
}

static const int64_t sizes[] = { 0, 1, 2, 7, 31, 32, 33, 999, POOL_ITEMS };
static const int64_t grains[] = { 1, 3, 32, 5000 };

static void check_sizes(pool *p)
{
    static tally c;
    for (size_t i = 0; i < ARRAY_LEN(sizes) * ARRAY_LEN(grains); i++) {
        begin_tally(&c, p);
        c.lists[0] = (pool_list){ sizes[i / ARRAY_LEN(grains)], grains[i % ARRAY_LEN(grains)],
                                  count_first, false };
        pool_run(p, c.lists[0].n, c.lists[0].grain, count_first, &c);
        check_tally(&c, 1);
    }
}

/* Lists of all sizes after one another. Later ones wait for earlier ones. */
/* Own ranges: one after another, all of it, in whole grains, and as even as can be. */
static void check_own(int n_thread)
{
    for (size_t i = 0; i < ARRAY_LEN(sizes) * ARRAY_LEN(grains); i++) {
        const int64_t n = sizes[i % ARRAY_LEN(sizes)], grain = grains[i / ARRAY_LEN(sizes)];
        int64_t last = 0, least = INT64_MAX, most = 0;
        for (int t = 0; t < n_thread; t++) {
            int64_t begin, end;
            pool_own(&begin, &end, n, grain, n_thread, t);
            CHECK_MSG(begin == last && end >= begin && (end == n || end % grain == 0),
                      "%d of %d threads: %d to %d of %d after %d", t, n_thread, (int)begin,
                      (int)end, (int)n, (int)last);
            const int64_t own = (end - begin + grain - 1) / grain;
            if (own < least) least = own;
            if (own > most) most = own;
            last = end;
        }
        CHECK_MSG(last == n && most - least <= 1, "%d threads: %d of %d, %d to %d grains",
                  n_thread, (int)last, (int)n, (int)least, (int)most);
    }
}

/* Where each thread begins. The others wait for the caller, so that no thread helps it before. */
static void note_first(void *ctx, int64_t begin, int64_t end, int thread)
{
    _Atomic int64_t *first = ctx;
    int64_t none = -1;
    (void)end;
    atomic_compare_exchange_strong(&first[thread], &none, begin);
    while (atomic_load(&first[0]) < 0) sched_yield();
}

static void check_own_first(pool *p)
{
    _Atomic int64_t first[POOL_MAX_THREADS];
    const int n_thread = pool_threads(p);
    for (int round = 0; round < 50; round++) {
        int64_t begin, end;
        for (int t = 0; t < n_thread; t++) first[t] = -1;
        pool_run(p, 64 * (int64_t)n_thread, 2, note_first, first);
        pool_own(&begin, &end, 64 * (int64_t)n_thread, 2, n_thread, 0);
        CHECK_MSG(first[0] == begin, "the caller began with %d", (int)first[0]);
    }
}

static void check_copy(pool *p)
{
    static const size_t lengths[] = { 0, 1, (256 << 10) - 1, 256 << 10, (1 << 20) + 3 };
    const size_t most = (1 << 20) + 4;
    uint8_t *from = test_alloc(most, 1), *to = test_alloc(most, 1);
    for (size_t i = 0; i < most; i++) from[i] = (uint8_t)(i * 7 + i / 251);
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        memset(to, 0xAA, most);
        pool_copy(p, to, from, lengths[i]);
        CHECK_MSG(memcmp(to, from, lengths[i]) == 0 && to[lengths[i]] == 0xAA, "%zu bytes",
                  lengths[i]);
    }
    mem_free(from);
    mem_free(to);
}

static void check_lists(pool *p)
{
    static tally c;
    static pool_fn *const fns[POOL_LISTS] = { count_first, count_second };
    for (size_t i = 0; i < 6 * ARRAY_LEN(sizes); i++) {
        const int n_list = (int)(i % (POOL_LISTS + 1));
        begin_tally(&c, p);
        for (int k = 0; k < n_list; k++)
            c.lists[k] = (pool_list){ sizes[(i + (size_t)k * 5) % ARRAY_LEN(sizes)],
                                      grains[(i / 3 + (size_t)k) % ARRAY_LEN(grains)], fns[k],
                                      (i + (size_t)k) % 2 == 1 };
        pool_run_lists(p, c.lists, n_list, &c);
        check_tally(&c, n_list);
    }
}

static void test_every_index(void)
{
    static const int teams[] = { 1, 2, 3, 4, 5, 16, 64 };
    err_ctx err;
    for (size_t i = 0; i < ARRAY_LEN(teams); i++) {
        pool *p = NULL;
        if (!CHECK(pool_create(&p, teams[i], &err) == 0)) return;
        CHECK(pool_threads(p) == teams[i]);
        check_sizes(p);
        check_lists(p);
        check_own(pool_threads(p));
        check_own_first(p);
        check_copy(p);
        pool_free(p);
    }
}

/* More grains than a share can count: they are handed out several at a time. */
static void add_up(void *ctx, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    if (begin % 3 == 0) atomic_fetch_add((_Atomic int64_t *)ctx, end - begin);
}

static void test_many_grains(void)
{
    _Atomic int64_t sum = 0;
    pool *p;
    if (!CHECK(pool_create(&p, 2, NULL) == 0)) return;
    pool_run(p, INT64_MAX / 4, 3, add_up, &sum);
    CHECK_MSG(sum == INT64_MAX / 4, "%lld done", (long long)sum);
    pool_free(p);
}

/* ---- loops in quick succession --------------------------------------------------------------- */

/* Past the end of the pool's numbers of loops. */
enum { N_BURST = 20000 };

/* Short loops in quick succession, so that members come late and find the next one: for the thread
 * sanitizer, mainly. */
typedef struct burst {
    bool open;                           /* written by the caller only, outside the loop */
    int n;
    int times[64];
    _Atomic int wrong;
} burst;

static void count_burst(void *ctx, int64_t begin, int64_t end, int thread)
{
    burst *b = ctx;
    (void)thread;
    if (!b->open || end > b->n) atomic_fetch_add(&b->wrong, 1);
    for (int64_t i = begin; i < end; i++) b->times[i]++;
}

static void test_bursts(int n_thread, int n_burst)
{
    static burst two[2];
    int bad = 0;
    err_ctx err;
    pool *p;
    if (!CHECK(pool_create(&p, n_thread, &err) == 0)) return;
    for (int i = 0; i < n_burst; i++) {
        burst *b = &two[i % 2];
        memset(b->times, 0, sizeof b->times);
        b->n = 2 + i % 59;
        b->open = true;
        pool_run(p, b->n, 1, count_burst, b);
        b->open = false;
        for (int k = 0; k < 64; k++) bad += b->times[k] != (k < b->n);
    }
    CHECK_MSG(bad == 0 && two[0].wrong + two[1].wrong == 0, "%d threads: %d items, %d pieces wrong",
              n_thread, bad, two[0].wrong + two[1].wrong);
    pool_free(p);
}

/* What a loop reads is on a stack that is used again at once: no thread may read it afterwards. The
 * pool passes from thread to thread. */
typedef struct note { int64_t n; _Atomic int64_t sum; _Atomic int wrong; uint8_t fill[200]; } note;

static void add_indices(void *ctx, int64_t begin, int64_t end, int thread)
{
    note *b = ctx;
    (void)thread;
    for (size_t k = 0; k < sizeof b->fill; k++)
        if (b->fill[k] != (uint8_t)b->n) atomic_fetch_add(&b->wrong, 1);
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&b->sum, i);
}

static __attribute__((noinline)) int one_note(pool *p, int n)
{
    note b = { .n = n };
    memset(b.fill, n, sizeof b.fill);
    pool_run(p, n, 1, add_indices, &b);
    const int bad = b.sum != (int64_t)n * (n - 1) / 2 || b.wrong != 0;
    memset(&b, 0xEE, sizeof b);
    __asm__ volatile("" :: "r"(&b) : "memory");
    return bad;
}

typedef struct owner { pool *p; int bad; } owner;

static void *own_for_a_while(void *arg)
{
    owner *o = arg;
    for (int i = 0; i < 100; i++) o->bad += one_note(o->p, 2 + i % 37);
    return NULL;
}

static void test_owners(int n_thread)
{
    owner o = { 0 };
    if (!CHECK(pool_create(&o.p, n_thread, NULL) == 0)) return;
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        own_for_a_while(&o);
        if (CHECK(pthread_create(&thread, NULL, own_for_a_while, &o) == 0))
            pthread_join(thread, NULL);
    }
    CHECK_MSG(o.bad == 0, "%d threads: %d loops wrong", n_thread, o.bad);
    pool_free(o.p);
}

/* ---- late members ---------------------------------------------------------------------------- */

/* The first call of all waits until the others have done all the rest: half of its own share, too,
 * and the ranges of sleeping threads. */
typedef struct late {
    int64_t n;
    int times[POOL_ITEMS];
    _Atomic int64_t done;
    _Atomic bool is_first;
    int64_t own;                         /* indices of the first call */
} late;

static void do_rest(void *ctx, int64_t begin, int64_t end, int thread)
{
    late *l = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) l->times[i]++;
    if (atomic_exchange(&l->is_first, false)) {
        l->own = end - begin;
        while (atomic_load(&l->done) < l->n - l->own) usleep(50);
    }
    atomic_fetch_add(&l->done, end - begin);
}

static void test_late(int n_thread)
{
    static const int64_t numbers[] = { 2, 5, 64, 333, POOL_ITEMS };
    static late l;
    pool *p;
    if (!CHECK(pool_create(&p, n_thread, NULL) == 0)) return;
    for (size_t i = 0; i < 4 * ARRAY_LEN(numbers); i++) {
        const int64_t n = numbers[i % ARRAY_LEN(numbers)];
        memset(&l, 0, sizeof l);
        l.n = n;
        atomic_store(&l.is_first, true);
        if (i % 2) usleep(2000);         /* members sleep */
        pool_run(p, n, 1, do_rest, &l);
        int bad = 0;
        for (int k = 0; k < POOL_ITEMS; k++) bad += l.times[k] != (k < n);
        CHECK_MSG(bad == 0 && l.done == n, "%d threads, %d items: %d not done once", n_thread,
                  (int)n, bad);
        const int64_t share = (n + n_thread - 1) / n_thread;
        CHECK_MSG(l.own <= (share + 1) / 2, "%d threads, %d items: %d of %d at once", n_thread,
                  (int)n, (int)l.own, (int)share);
    }
    pool_free(p);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void test_create(void)
{
    pool *p = NULL;
    err_ctx err;
    CHECK(pool_create(&p, 0, &err) == 0 && pool_threads(p) >= 1);
    pool_free(p);
    /* on any machine */
    if (CHECK(pool_create(&p, 64, &err) == 0)) CHECK(pool_threads(p) == 64);
    pool_free(p);
    CHECK(pool_create(&p, -1, &err) == ERR_RANGE && !p);
    CHECK(pool_create(&p, POOL_MAX_THREADS + 1, &err) == ERR_RANGE && !p);
    for (int n = 1; n <= 3; n++) {
        mem_fail_after(n);
        CHECK(pool_create(&p, 2, &err) == ERR_NOMEM && !p);
        mem_fail_after(0);
    }
    pool_free(NULL);
}

static void note_least_stack(void *arg, int64_t begin, int64_t end, int thread)
{
    atomic_size_t *least = arg;
    pthread_attr_t own;
    size_t bytes = 0, seen = atomic_load(least);
    (void)begin, (void)end, (void)thread;
    if (pthread_getattr_np(pthread_self(), &own) != 0) return;
    pthread_attr_getstacksize(&own, &bytes);
    pthread_attr_destroy(&own);
    while (bytes < seen && !atomic_compare_exchange_weak(least, &seen, bytes)) {}
    usleep(1000);                        /* so that all of them get some */
}

/* What glibc gives threads where stacks have no limit is raised. */
static void test_stacks(void)
{
    atomic_size_t least = SIZE_MAX;
    pthread_attr_t before, small;
    pool *p;
    if (!CHECK(pthread_getattr_default_np(&before) == 0 && pthread_attr_init(&small) == 0)) return;
    CHECK(pthread_attr_setstacksize(&small, 2 << 20) == 0 &&
          pthread_setattr_default_np(&small) == 0);
    if (CHECK(pool_create(&p, 4, NULL) == 0)) {
        pool_run(p, 64, 1, note_least_stack, &least);
        CHECK_MSG(least >= 3u << 20, "a thread has a stack of %zu bytes", least);
        pool_free(p);
    }
    pthread_setattr_default_np(&before);
    pthread_attr_destroy(&before);
    pthread_attr_destroy(&small);
}

static void test_awake(void)
{
    pool *p;
    if (!CHECK(pool_create(&p, 2, NULL) == 0)) return;
    for (int i = 0; i < 20; i++) {
        pool_stay_awake(p, i % 2 == 0);
        usleep(500);
        CHECK(one_note(p, 30) == 0);
    }
    pool_stay_awake(p, true);
    pool_free(p);
}

/* Ctrl-C is for the thread that waits for a person; an unreadable page is for the thread
 * that reads it. */
typedef struct masks { _Atomic int seen, wrong; } masks;

static void look_at_mask(void *ctx, int64_t begin, int64_t end, int thread)
{
    masks *m = ctx;
    sigset_t set;
    (void)begin, (void)end;
    if (thread == 0) {
        usleep(1000);                    /* so that the others get some */
        return;
    }
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    atomic_fetch_add(&m->seen, 1);
    if (!sigismember(&set, SIGINT) || !sigismember(&set, SIGTERM) || sigismember(&set, SIGBUS))
        atomic_fetch_add(&m->wrong, 1);
}

static void test_signals(void)
{
    masks m = { 0 };
    sigset_t set;
    pool *p;
    if (!CHECK(pool_create(&p, 3, NULL) == 0)) return;
    for (int i = 0; i < 100000 && atomic_load(&m.seen) < 3; i++)
        pool_run(p, 9, 1, look_at_mask, &m);
    pool_free(p);
    CHECK_MSG(m.seen >= 3 && m.wrong == 0, "%d looks, %d wrong", m.seen, m.wrong);
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &set) == 0 && !sigismember(&set, SIGINT));
}

int main(int argc, char **argv)
{
    test_begin("pool", argc, argv);
    test_stacks();                       /* before teams of the library keep threads */
    test_every_index();
    test_many_grains();
    for (int n_thread = 2; n_thread <= 4; n_thread++) {
        test_bursts(n_thread, N_BURST);
        test_owners(n_thread);
        test_late(n_thread);
    }
    test_bursts(64, test_rounds(N_BURST, N_BURST / 4));
    test_owners(16);
    test_late(16);
    test_create();
    test_awake();
    test_signals();
    return test_end();
}
