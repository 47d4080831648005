/* pool.h - the thread team: runs one loop at a time, split into ranges, on OpenMP's threads.
 *
 * The assignment of ranges to threads varies, so results must not depend on it: every loop of the
 * engine computes the same bits for any number of threads. Owned and called by one thread at a
 * time. */
#ifndef TIERS_POOL_H
#define TIERS_POOL_H

#include "loader/base.h"

typedef struct pool pool;

enum { POOL_MAX_THREADS = 1024 };

/* The largest team on this machine: four threads per CPU, at least 64, at most
 * POOL_MAX_THREADS. */
int pool_most_threads(void);

/* n_thread 0: one per physical core; at most pool_most_threads(). Returns 0, or < 0 with *err
 * filled and *out NULL. */
int pool_create(pool **out, int n_thread, err_ctx *err);
void pool_free(pool *p);                 /* NULL is fine */
int pool_threads(const pool *p);

/* Calls fn from all threads for ranges [begin, end) that together cover 0 .. n-1 once, and returns
 * when all calls have returned. Lengths are multiples of grain, except the last one. Each thread
 * starts with its own range of 0 .. n-1, then helps the others. `thread`, below pool_threads(), is
 * unique among concurrent calls: an index for scratch memory. */
typedef void pool_fn(void *ctx, int64_t begin, int64_t end, int thread);
void pool_run(pool *p, int64_t n, int64_t grain, pool_fn *fn, void *ctx);

/* The range with which a thread starts in such a loop. */
void pool_own(int64_t *begin, int64_t *end, int64_t n, int64_t grain, int n_thread, int thread);

/* The same for several lists in one loop, without a barrier. Ranges of a list are assigned after
 * all ranges of earlier lists, which other threads may still be running. So a call may wait for
 * calls of earlier lists, if these wait for none. */
enum { POOL_LISTS = 2 };                 /* at most */
typedef struct pool_list {
    int64_t n, grain;
    pool_fn *fn;
    bool uneven;                         /* items differ much in cost: shorter ranges */
} pool_list;
void pool_run_lists(pool *p, const pool_list *lists, int n_list, void *ctx);

/* memcpy by all threads of a team (a pool *): what gpu_upload calls. */
void pool_copy(void *team, void *to, const void *from, size_t n);

/* While on, members spin until the next loop instead of sleeping. For callers that run a loop every
 * few microseconds and wait in between. No effect for a team with more threads than cores. */
void pool_stay_awake(pool *p, bool on);

/* Call between two polls of a word that another thread changes. */
static inline void pool_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");        /* yield is a no-op on most Arm cores */
#endif
}

/* The smallest useful grain for items of `work` multiplications each. */
static inline int64_t pool_grain(int64_t work)
{
    return 1 + 4096 / (work > 0 ? work : 1);
}

#endif
