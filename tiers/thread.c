/* thread.c - signal masks around pthread_create, and condition variables on CLOCK_MONOTONIC.
 *
 * A thread inherits its creator's mask, so the mask is set around the creation. All timed waits of
 * the program go through thread_cond_wait_until; tools/check_layers.sh enforces it. */
#include "tiers/thread.h"

#include <time.h>

#include "loader/base.h"

void thread_mask_begin(sigset_t *before)
{
    static const int own[] = { SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGTRAP, SIGSYS };
    sigset_t others;
    sigfillset(&others);
    for (size_t i = 0; i < ARRAY_LEN(own); i++) sigdelset(&others, own[i]);
    pthread_sigmask(SIG_BLOCK, &others, before);
}

void thread_mask_end(const sigset_t *before) { pthread_sigmask(SIG_SETMASK, before, NULL); }

int thread_start(pthread_t *out, void *(*run)(void *), void *ctx)
{
    sigset_t before;
    thread_mask_begin(&before);
    const int error = pthread_create(out, NULL, run, ctx);
    thread_mask_end(&before);
    return error;
}

int thread_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attributes;
    int error = pthread_condattr_init(&attributes);
    if (error) return error;
    error = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    if (error == 0) error = pthread_cond_init(c, &attributes);
    pthread_condattr_destroy(&attributes);
    return error;
}

int thread_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, uint64_t deadline_ns)
{
    const struct timespec deadline = { (time_t)(deadline_ns / 1000000000),
                                       (long)(deadline_ns % 1000000000) };
    return pthread_cond_timedwait(c, m, &deadline);
}
