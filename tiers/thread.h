/* thread.h - threads that take no signals, and timed waits that ignore the wall clock. */
#ifndef TIERS_THREAD_H
#define TIERS_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>

/* pthread_create for every thread of the program. A process-directed signal goes to any thread
 * that does not block it: Ctrl-C would be counted there, but would not end the main thread's
 * wait. The new thread and the threads that it starts therefore block all signals but those that
 * their own instructions raise, which must reach the handler (loader/sigbus_guard.h). The
 * caller's mask does not change. Returns 0, or an error number. */
int thread_start(pthread_t *out, void *(*run)(void *), void *ctx);

/* The same mask for threads that a library starts: begin, call the library, end. */
void thread_mask_begin(sigset_t *before);
void thread_mask_end(const sigset_t *before);

/* Initialises a condition variable for thread_cond_wait_until. Returns 0, or an error number. */
int thread_cond_init(pthread_cond_t *c);

/* Waits for a wake-up until clock_ns() reaches deadline_ns; any uint64_t is valid. The caller holds
 * m. The clock is CLOCK_MONOTONIC: a step of the wall clock neither ends nor prolongs the wait.
 * Returns 0, also for a spurious wake-up, or ETIMEDOUT. */
int thread_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, uint64_t deadline_ns);

#endif
