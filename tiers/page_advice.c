/* page_advice.c - mmap with an alignment that huge pages can use. */
#include "tiers/page_advice.h"

#include <sys/mman.h>
#include <unistd.h>

/* The system aligns to small pages only: map one huge page more and give back the rest. */
static void *map_aligned(size_t bytes)
{
    uint8_t *p = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    const size_t before = (size_t)(-(uintptr_t)p & (HUGE_PAGE - 1)), after = HUGE_PAGE - before;
    if (before) munmap(p, before);
    munmap(p + before + bytes, after);
    return p + before;
}

/* Whole huge pages; 0 if there are none, or more than can be counted. */
static size_t round_up(size_t bytes)
{
    return (size_t)size_align(bytes, HUGE_PAGE);
}

int pages_map(void **out, size_t bytes, page_kind kind, err_ctx *err)
{
    const size_t whole = round_up(bytes);
    *out = whole > 0 ? map_aligned(whole) : NULL;
    if (!*out) return err_set(err, ERR_NOMEM, "out of memory for %zu bytes", bytes);
    /* advice: a kernel without huge pages does not know it */
    (void)madvise(*out, whole, kind == PAGES_HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return 0;
}

void pages_unmap(void *at, size_t bytes)
{
    if (at) munmap(at, round_up(bytes));
}

static void touch(void *ctx, int64_t begin, int64_t end, int thread)
{
    volatile uint8_t *pages = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) pages[i * SMALL_PAGE] = 0;
}

void pages_touch(void *at, size_t bytes, pool *team)
{
    pool_run(team, (int64_t)((bytes + SMALL_PAGE - 1) / SMALL_PAGE), HUGE_PAGE / SMALL_PAGE, touch,
             at);
}

/* Whole pages. */
static void advise(const void *at, uint64_t bytes, int advice)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = ((uintptr_t)at + page - 1) / page * page;
    const uintptr_t to = ((uintptr_t)at + bytes) / page * page;
    if (from < to) (void)madvise((void *)from, to - from, advice);
}

void pages_few_faults(const void *at, uint64_t bytes) { advise(at, bytes, MADV_HUGEPAGE); }

void pages_few(const void *at, uint64_t bytes) { advise(at, bytes, MADV_NOHUGEPAGE); }

void pages_forget(const void *at, uint64_t bytes) { advise(at, bytes, MADV_DONTNEED); }
