/* sigbus_guard.c - the mapped ranges, and the handler of SIGBUS that looks for an address in them.
 *
 * A signal handler can only use globals. Entries are written under a lock and read without one, so
 * an entry is never freed; a new file reuses the entry of a closed one. An entry is valid while its
 * base is set; the other fields are written before base. */
#include "loader/sigbus_guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

typedef struct entry entry;
struct entry {
    _Atomic uintptr_t base;              /* 0: free; stored last, see on_bus_error */
    uint64_t bytes;
    char path[512];                      /* printable */
    entry *next;                         /* set once, before the entry is in the list */
};

static _Atomic(entry *) first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while entries are written */
static sigbus_guard_fn *report_fault;    /* set once, before the handler is installed */
static struct sigaction old_action;      /* likewise */
static atomic_flag reporting = ATOMIC_FLAG_INIT; /* threads may fault together; only one reports */

static const entry *find(uintptr_t at)
{
    for (const entry *e = atomic_load_explicit(&first, memory_order_acquire); e; e = e->next) {
        const uintptr_t base = atomic_load_explicit(&e->base, memory_order_acquire);
        if (base != 0 && at >= base && at - base < e->bytes) return e;
    }
    return NULL;
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    const entry *e = info->si_code == BUS_ADRERR ? find((uintptr_t)info->si_addr) : NULL;
    (void)context;
    while (e && atomic_flag_test_and_set(&reporting)) pause();
    if (e) report_fault(e->path);
    /* not a mapped file: the earlier handler gets the signal when the instruction is retried */
    sigaction(number, &old_action, NULL);
    if (info->si_code <= 0) raise(number);       /* sent with kill: no instruction is retried */
}

void sigbus_guard_install(sigbus_guard_fn *fn)
{
    struct sigaction act = { 0 };
    if (report_fault) return;
    report_fault = fn;
    act.sa_sigaction = on_bus_error;
    act.sa_flags = SA_SIGINFO;
    sigemptyset(&act.sa_mask);
    if (sigaction(SIGBUS, NULL, &old_action) == 0) sigaction(SIGBUS, &act, NULL);
}

/* Returns a free or new entry, or NULL if out of memory. The caller holds the lock. */
static entry *take_entry(void)
{
    entry *head = atomic_load_explicit(&first, memory_order_relaxed), *e = head;
    while (e && atomic_load_explicit(&e->base, memory_order_relaxed) != 0) e = e->next;
    if (e || !(e = mem_zalloc(sizeof *e))) return e;
    e->next = head;
    atomic_store_explicit(&first, e, memory_order_release);      /* pairs with find */
    return e;
}

int sigbus_guard_add(const void *base, uint64_t bytes, const char *path, err_ctx *err)
{
    pthread_mutex_lock(&lock);
    entry *e = take_entry();
    if (e) {
        e->bytes = bytes;
        ESC(e->path, str_from(path));
        atomic_store_explicit(&e->base, (uintptr_t)base, memory_order_release);  /* find */
    }
    pthread_mutex_unlock(&lock);
    return e ? 0 : err_set(err, ERR_NOMEM, "out of memory: %zu bytes", sizeof *e);
}

void sigbus_guard_remove(const void *base)
{
    pthread_mutex_lock(&lock);
    for (entry *e = atomic_load_explicit(&first, memory_order_relaxed); e; e = e->next)
        if (atomic_load_explicit(&e->base, memory_order_relaxed) == (uintptr_t)base)
            atomic_store_explicit(&e->base, 0, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}
