/* synth.c - writes a synthetic model file.
 *
 * The file is cut into windows of 4 MiB. Threads claim windows in order from a counter, compute
 * them in their own buffers and write them in place, with O_DIRECT where the file system allows
 * it (on a virtual disk 3.0 GB/s, 0.9 through the page cache). Threads share the counters and
 * the first error; the atomics here order memory, so nothing depends on the OpenMP library's
 * barriers. */
#include "cli/synth/synth.h"

#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cli/output_file.h"

enum { WINDOW = 4 << 20, ALIGN = 4096, THREADS_MAX = 32 };

typedef struct job {
    const synth_plan *plan;
    int fd;
    uint64_t bytes;
    atomic_ullong next;            /* bytes claimed; its store in write_windows publishes the job */
    atomic_int finished;                 /* threads that have ended; write_windows waits for all */
    atomic_int rc;                       /* first failure, or 0 */
    err_ctx *err;                        /* written by the thread that sets rc */
    pthread_mutex_t lock;
    uint64_t done;                       /* guarded by lock */
    progress_fn *fn;                     /* called under lock */
    void *ctx;
} job;

/* ---- one window -------------------------------------------------------------------------- */

static void fail(job *j, int rc, const err_ctx *e)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&j->rc, &none, rc) && j->err) *j->err = *e;
}

/* Some file systems accept O_DIRECT and then refuse the writes. */
static bool leave_direct(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

static int write_at(int fd, const uint8_t *data, uint64_t at, size_t n, err_ctx *err)
{
    while (n) {
        const ssize_t got = pwrite(fd, data, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EINVAL && leave_direct(fd)) continue;
        if (got < 0)
            return err_sys(err, "write of %zu bytes at byte %llu", n, (unsigned long long)at);
        if (got == 0)
            return err_set(err, ERR_IO, "nothing written at byte %llu", (unsigned long long)at);
        if (got % ALIGN) leave_direct(fd);
        data += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

static void report_progress(job *j, uint64_t n)
{
    bool go_on;
    err_ctx e;
    pthread_mutex_lock(&j->lock);
    j->done += n;
    go_on = !j->fn || j->fn(j->ctx, j->done, j->bytes);
    if (!go_on)
        err_set(&e, ERR_IO, "stopped after %llu of %llu bytes", (unsigned long long)j->done,
                (unsigned long long)j->bytes);
    pthread_mutex_unlock(&j->lock);
    if (!go_on) fail(j, ERR_IO, &e);
}

/* Writes windows until none is left. The last one ends at a multiple of ALIGN; the file is cut to
 * its size afterwards. */
static void write_some(job *j, uint8_t *window)
{
    for (;;) {
        const uint64_t at = atomic_fetch_add(&j->next, WINDOW);
        const uint64_t left = at < j->bytes ? j->bytes - at : 0;
        const size_t n = left < WINDOW ? (size_t)left : WINDOW;
        err_ctx e;
        int rc;
        if (n == 0 || atomic_load(&j->rc) < 0) return;
        synth_plan_fill(j->plan, window, at, (size_t)size_align(n, ALIGN));
        rc = write_at(j->fd, window, at, (size_t)size_align(n, ALIGN), &e);
        if (rc < 0) fail(j, rc, &e);
        else report_progress(j, n);
    }
}

static void work(job *j, uint8_t *window)
{
    write_some(j, window);
    atomic_fetch_add(&j->finished, 1);               /* pairs with the wait in write_windows */
}

/* The thread sanitizer does not see how OpenMP passes variables to the region, hence the attribute.
 * next and finished order everything that they point to. */
__attribute__((no_sanitize("thread")))
static int run_threads(job *j, uint8_t *windows, int n_thread)
{
    int n = 0;
#pragma omp parallel num_threads(n_thread)
    {
#pragma omp single
        n = omp_get_num_threads();                   /* may be fewer than asked for */
        work(j, windows + (size_t)omp_get_thread_num() * WINDOW);
    }
    return n;
}

static int write_windows(job *j, int n_thread, err_ctx *err)
{
    const uint64_t n_window = (j->bytes + WINDOW - 1) / WINDOW;
    uint8_t *raw;

    if (n_thread < 1) n_thread = omp_get_max_threads();
    if (n_thread > THREADS_MAX) n_thread = THREADS_MAX;
    if ((uint64_t)n_thread > n_window) n_thread = (int)n_window;
    raw = mem_alloc((size_t)n_thread * WINDOW + ALIGN);
    if (!raw)
        return err_set(err, ERR_NOMEM, "out of memory for %d windows of %d bytes", n_thread,
                       WINDOW);
    atomic_store(&j->next, 0);
    const int n = run_threads(j, raw + (ALIGN - (uintptr_t)raw % ALIGN), n_thread);
    while (atomic_load(&j->finished) < n) continue;  /* they are: the region has ended */
    mem_free(raw);
    return atomic_load(&j->rc);
}

/* ---- the file ---------------------------------------------------------------------------- */

static int set_size(const job *j, uint64_t bytes, err_ctx *err)
{
    if (ftruncate(j->fd, (off_t)bytes) == 0) return 0;
    return err_sys(err, "setting the size to %llu bytes", (unsigned long long)bytes);
}

static int write_file(job *j, const char *path, int n_thread, err_ctx *err)
{
    output_file out = { 0 };
    int rc = output_file_open_new(&out, path, j->bytes, err);
    if (rc == 0) {
        j->fd = out.fd;
        (void)fcntl(j->fd, F_SETFL, fcntl(j->fd, F_GETFL) | O_DIRECT);   /* where that exists */
        rc = set_size(j, size_align(j->bytes, ALIGN), err);      /* no write extends the file */
    }
    if (rc == 0) rc = write_windows(j, n_thread, err);
    if (rc == 0) rc = set_size(j, j->bytes, err);
    if (rc == 0) rc = output_file_finish(&out, err);
    output_file_drop(&out);
    return rc;
}

int synth_write(synth_report *out, const char *path, const synth_options *o, int n_thread,
                progress_fn *fn, void *ctx, err_ctx *err)
{
    const uint64_t start = clock_ns();
    synth_plan *plan;
    int rc = synth_plan_create(&plan, o, err);

    if (rc < 0) return rc;
    job j = { .plan = plan, .fd = -1, .bytes = synth_plan_bytes(plan), .fn = fn, .ctx = ctx,
              .err = err };
    pthread_mutex_init(&j.lock, NULL);
    rc = write_file(&j, path, n_thread, err);
    *out = (synth_report){ j.bytes, clock_ns() - start, synth_plan_n_tensor(plan) };
    pthread_mutex_destroy(&j.lock);
    synth_plan_free(plan);
    return rc;
}
