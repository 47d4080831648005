/* test_thread.c - threads that work for the program leave its signals alone and take those that
 * their own instructions raise (the team's are in test_pool.c); timed waits ignore a step of the
 * wall clock. */
#include "tests/test.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/session/prefix_writer.h"
#include "tiers/background_worker.h"
#include "tiers/reader.h"
#include "tiers/thread.h"

enum { MOST = 256 };

/* ---- who is there ---------------------------------------------------------------------------- */

static int list_threads(int *tids)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d && n < MOST && (e = readdir(d));)
        if (e->d_name[0] != '.') tids[n++] = atoi(e->d_name);
    if (d) closedir(d);
    return n;
}

static bool is_in(const int *tids, int n, int tid)
{
    for (int i = 0; i < n; i++)
        if (tids[i] == tid) return true;
    return false;
}

/* Bit s - 1: it blocks signal s. */
static uint64_t blocked(int tid)
{
    char path[64], line[256];
    uint64_t mask = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "SigBlk:", 7)) mask = strtoull(line + 7, NULL, 16);
    if (f) fclose(f);
    return mask;
}

/* The C library lets a thread begin with all signals blocked and sets its mask then: that is waited
 * for. */
static bool has_right_mask(int tid)
{
    static const int taken[] = { SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGTRAP, SIGSYS };
    static const int left[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGWINCH, SIGXFSZ };
    uint64_t own = 0, others = 0, mask = 0;
    for (size_t i = 0; i < ARRAY_LEN(taken); i++) own |= 1ull << (taken[i] - 1);
    for (size_t i = 0; i < ARRAY_LEN(left); i++) others |= 1ull << (left[i] - 1);
    for (int ms = 0; ms < 2000; ms++) {
        mask = blocked(tid);
        if ((mask & own) == 0) return (mask & others) == others;
        usleep(1000);
    }
    return false;
}

/* ---- who starts them ------------------------------------------------------------------------- */

static pthread_t one;

static void *sit(void *ctx)
{
    pthread_mutex_lock(ctx);
    pthread_mutex_unlock(ctx);
    return NULL;
}

static pthread_mutex_t chair = PTHREAD_MUTEX_INITIALIZER;

static void *start_one(void)
{
    pthread_mutex_lock(&chair);
    return thread_start(&one, sit, &chair) == 0 ? &one : NULL;
}

static void stop_one(void *it)
{
    pthread_mutex_unlock(&chair);
    if (it) pthread_join(one, NULL);
}

static bool nothing(void *ctx)
{
    (void)ctx;
    return false;
}

static void *start_worker(void)
{
    background_worker *s;
    return background_worker_create(&s, nothing, NULL, NULL) == 0 ? s : NULL;
}

static void stop_worker(void *it) { background_worker_free(it); }

static void *start_reader(void)
{
    static const char *const path[] = { "/proc/self/exe" };
    const reader_options as = { .kind = READER_PREAD };
    reader *r;
    return reader_open(&r, path, 1, &as, NULL, NULL) == 0 ? r : NULL;
}

static void stop_reader(void *it) { reader_close(it); }

static void *start_writer(void) { return prefix_writer_create("/nonexistent"); }

static void stop_writer(void *it) { prefix_writer_free(it); }

static const struct {
    void *(*start)(void);
    void (*stop)(void *it);
    const char *what;
} rows[] = {
    { start_one, stop_one, "thread_start" },
    { start_worker, stop_worker, "background_worker" },
    { start_reader, stop_reader, "reader by threads" },
    { start_writer, stop_writer, "prefix_writer" },
};

static bool same_mask(const sigset_t *a, const sigset_t *b)
{
    for (int s = 1; s < SIGRTMAX; s++)
        if (sigismember(a, s) != sigismember(b, s)) return false;
    return true;
}

static void test_masks(void)
{
    int old[MOST], now[MOST];
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        sigset_t before, after;
        int n_new = 0;
        const int n_old = list_threads(old);
        pthread_sigmask(SIG_BLOCK, NULL, &before);
        void *it = rows[i].start();
        pthread_sigmask(SIG_BLOCK, NULL, &after);
        CHECK_MSG(it != NULL, "%s: did not start", rows[i].what);
        CHECK_MSG(same_mask(&before, &after), "%s: the caller's mask", rows[i].what);
        const int n_now = list_threads(now);
        for (int t = 0; t < n_now; t++) {
            if (is_in(old, n_old, now[t])) continue;
            n_new++;
            CHECK_MSG(has_right_mask(now[t]), "%s: thread %d blocks %llx", rows[i].what, n_new,
                      (unsigned long long)blocked(now[t]));
        }
        CHECK_MSG(n_new > 0, "%s: no thread", rows[i].what);
        rows[i].stop(it);
    }
}

/* ---- timed waits ----------------------------------------------------------------------------- */

static time_t wall_step_s;

/* Takes the place of the C library's, so that a wall-clock time is wrong by the step. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
    const int rc = (int)syscall(SYS_clock_gettime, clock, t);
    if (clock == CLOCK_REALTIME) t->tv_sec += wall_step_s;
    return rc;
}

static void test_timed_waits(void)
{
    static const struct { time_t step_s; const char *why; } steps[] = {
        { 0, "no step" }, { 3600, "an hour back while it waits" }, { -3600, "an hour ahead" },
    };
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    CHECK(thread_cond_init(&cond) == 0);
    alarm(20);                           /* a wait of an hour ends the test */
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        wall_step_s = steps[i].step_s;
        const uint64_t deadline_ns = clock_ns() + 20000000;
        int rc = 0;
        while (rc == 0) rc = thread_cond_wait_until(&cond, &lock, deadline_ns);
        CHECK_MSG(rc == ETIMEDOUT, "%s: %d", steps[i].why, rc);
        CHECK_MSG(clock_ns() >= deadline_ns, "%s: it ended early", steps[i].why);
    }
    CHECK(thread_cond_wait_until(&cond, &lock, 0) == ETIMEDOUT);
    pthread_mutex_unlock(&lock);
    alarm(0);
    pthread_cond_destroy(&cond);
}

int main(int argc, char **argv)
{
    sigset_t some;
    test_begin("thread", argc, argv);
    stop_one(start_one());               /* a sanitizer's own thread comes with the first */
    test_masks();
    sigemptyset(&some);                  /* the same for a caller who blocks some already */
    sigaddset(&some, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &some, NULL);
    test_masks();
    test_timed_waits();
    return test_end();
}
