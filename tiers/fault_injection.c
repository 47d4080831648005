/* fault_injection.c - counts the calls for each point and fails those that were armed.
 *
 * An unarmed point costs one load of a word that no thread writes. The caller simulates the
 * fault. */
#include "tiers/fault_injection.h"

#include <stdatomic.h>
#include <string.h>

typedef struct fault_state {
    _Atomic int64_t calls;               /* since it was armed */
    _Atomic int64_t from, until;         /* calls from .. until - 1 fail, ... */
    _Atomic int64_t every;               /* ... and again after each `every` calls; 0: never. All
                                          * are written before the bit in armed is set, and read
                                          * after it. While a point is armed again a call may get
                                          * either result */
} fault_state;

static fault_state points[FAULT_COUNT];
static _Atomic uint32_t armed;           /* bit p: point p */

static const char *const names[FAULT_COUNT] = {
    [FAULT_READ_ERROR] = "read-error", [FAULT_READ_SHORT] = "read-short",
    [FAULT_READ_END] = "read-end",     [FAULT_DIRECT] = "direct",
    [FAULT_URING] = "io-uring",        [FAULT_PAGE_LOCK] = "page-lock",
    [FAULT_VRAM] = "vram",             [FAULT_GPU_LOST] = "gpu-lost",
};

static void arm_every(fault_point p, int skip, int n, int every)
{
    fault_state *s = &points[p];
    atomic_fetch_and_explicit(&armed, ~(UINT32_C(1) << p), memory_order_relaxed);
    const int64_t from = skip > 0 ? skip : 0;
    const int64_t until = n == FAULT_ALWAYS ? INT64_MAX : from + (n > 0 ? n : 0);
    atomic_store_explicit(&s->from, from, memory_order_relaxed);
    atomic_store_explicit(&s->until, until, memory_order_relaxed);
    atomic_store_explicit(&s->every, every, memory_order_relaxed);
    atomic_store_explicit(&s->calls, 0, memory_order_relaxed);
    atomic_fetch_or_explicit(&armed, UINT32_C(1) << p, memory_order_release);  /* fault_hits */
}

void fault_arm(fault_point p, int skip, int n) { arm_every(p, skip, n, 0); }

void fault_disarm_all(void)
{
    atomic_store_explicit(&armed, 0, memory_order_relaxed);
}

bool fault_hits(fault_point p)
{
    fault_state *s = &points[p];
    /* pairs with fault_arm */
    if (!(atomic_load_explicit(&armed, memory_order_acquire) >> p & 1)) return false;
    const int64_t from = atomic_load_explicit(&s->from, memory_order_relaxed);
    const int64_t every = atomic_load_explicit(&s->every, memory_order_relaxed);
    int64_t i = atomic_fetch_add_explicit(&s->calls, 1, memory_order_relaxed);
    if (every > 0 && i >= from) i = from + (i - from) % every;
    return i >= from && i < atomic_load_explicit(&s->until, memory_order_relaxed);
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* ":N" with up to 9 digits, if there is one. False if a colon is not followed by such a number. */
static bool take_number(int *out, const char **at)
{
    int n = 0, digits = 0;
    if (**at != ':') return true;
    for (++*at; **at >= '0' && **at <= '9' && digits < 9; ++*at, digits++)
        n = 10 * n + (**at - '0');
    *out = n;
    return digits > 0;
}

/* One fault and the comma after it, if there is one; the text must go on after a comma. */
static bool take_fault(fault_point *p, int *skip, int *n, int *every, const char **at)
{
    const size_t len = strcspn(*at, ":,");
    int i = 0;
    while (i < FAULT_COUNT && !str_is((str_view){ *at, len }, names[i])) i++;
    if (i == FAULT_COUNT) return false;
    *p = (fault_point)i;
    *skip = 0;
    *n = FAULT_ALWAYS;
    *every = 0;
    *at += len;
    if (!take_number(skip, at) || !take_number(n, at) || !take_number(every, at)) return false;
    if (**at == ',') return *++*at != '\0';
    return **at == '\0';
}

bool fault_arm_text(const char *text)
{
    fault_point p;
    int skip, n, every;
    for (const char *at = text; *at;)
        if (!take_fault(&p, &skip, &n, &every, &at)) return false;
    for (const char *at = text; *at && take_fault(&p, &skip, &n, &every, &at);)
        arm_every(p, skip, n, every);
    return true;
}
