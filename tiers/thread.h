/* thread.h - a thread that works for the program and takes no signals. */
#ifndef TIERS_THREAD_H
#define TIERS_THREAD_H

#include <pthread.h>

/* pthread_create, for all threads below cli/. A signal for the process goes to any thread that does
 * not block it: Ctrl-C would be counted there, but would not end the program's wait for a key. So
 * this one, and those that it starts, block all but what their own instructions raise, which must
 * reach the handler (loader/map_guard.h). The caller's mask stays as it is. Returns 0, or an error
 * number. */
int thread_start(pthread_t *out, void *(*run)(void *), void *ctx);

#endif
