/* pool.h - the thread team: one loop at a time, cut into pieces, on OpenMP's threads.
 *
 * Which thread runs which piece is not fixed, so a piece must not care: everything computed here
 * gives the same bits for any number of threads. Owned and called by one thread at a time. */
#ifndef TIERS_POOL_H
#define TIERS_POOL_H

#include "loader/base.h"

typedef struct pool pool;

enum { POOL_MAX_THREADS = 1024 };

/* The most threads that a team may have on this machine: four for each CPU, or 64, and
 * POOL_MAX_THREADS at most. */
int pool_most_threads(void);

/* n_thread 0: one per physical core; at most pool_most_threads(). Returns 0, or < 0 with *err
 * filled and *out NULL. */
int pool_create(pool **out, int n_thread, err_ctx *err);
void pool_free(pool *p);                 /* NULL is fine */
int pool_threads(const pool *p);

/* Calls fn for ranges [begin, end) that together cover 0 .. n-1 once, each a multiple of grain long
 * except the last, from all threads at once, and returns when all is done. Each thread begins
 * with its own part of 0 .. n-1; what others have not done when it is ready, it does with them.
 * thread is below pool_threads() and differs between calls that run at the same time: an index for
 * scratch. */
typedef void pool_fn(void *ctx, int64_t begin, int64_t end, int thread);
void pool_run(pool *p, int64_t n, int64_t grain, pool_fn *fn, void *ctx);

/* The range of such a loop that a thread begins with. */
void pool_own(int64_t *begin, int64_t *end, int64_t n, int64_t grain, int n_thread, int thread);

/* The same for several lists in one loop, without a wait between them: no thread gets a range of a
 * list before all of the earlier ones is handed out, though it may still be under way elsewhere. So
 * a call may wait for what calls of earlier lists do, if these wait for nothing. */
enum { POOL_LISTS = 2 };                 /* at most */
typedef struct pool_list {
    int64_t n, grain;
    pool_fn *fn;
    bool uneven;                         /* some take much longer than others: less at a time */
} pool_list;
void pool_run_lists(pool *p, const pool_list *lists, int n_list, void *ctx);

/* memcpy by all threads of a team (a pool *): what gpu_upload calls. */
void pool_copy(void *team, void *to, const void *from, size_t n);

/* While on, members wait for the next loop without sleeping, however long it takes: for callers
 * that have a loop every few microseconds and something to wait for in between. A team with more
 * threads than cores sleeps anyway. */
void pool_stay_awake(pool *p, bool on);

/* Between two polls of a word that another thread will change. */
static inline void pool_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");        /* yield is a no-op on most Arm cores */
#endif
}

/* A grain worth handing to another thread, for items of about that many multiplications each. */
static inline int64_t pool_grain(int64_t work)
{
    return 1 + 4096 / (work > 0 ? work : 1);
}

#endif
