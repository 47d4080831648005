/* thread.c - pthread_create with the mask that the new thread is to have: it inherits the
 * caller's. */
#include "tiers/thread.h"

#include <signal.h>

#include "loader/base.h"

int thread_start(pthread_t *out, void *(*run)(void *), void *ctx)
{
    static const int own[] = { SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGTRAP, SIGSYS };
    sigset_t others, before;
    sigfillset(&others);
    for (size_t i = 0; i < ARRAY_LEN(own); i++) sigdelset(&others, own[i]);
    pthread_sigmask(SIG_BLOCK, &others, &before);
    const int why = pthread_create(out, NULL, run, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return why;
}
