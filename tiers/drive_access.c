/* drive_access.c - keeps a queue full, with file offsets and memory addresses in random order. */
#include "tiers/drive_access.h"

#include <math.h>

#include "tiers/page_advice.h"

enum {
    IN_FLIGHT = READER_DEPTH,
    LEAST_PLACES = 4,                    /* read offsets in the file */
    SLICES = 4,                          /* of the time; the watch is asked before each */
    LEAST_ROUNDS = 3, MOST_ROUNDS = 15   /* of waiting for a few reads */
};

static const double ROUNDS_PART = 0.2;   /* of the time, for rounds above LEAST_ROUNDS */

/* Offsets and addresses of the reads. Each read in flight has its own range of the memory. */
typedef struct spread {
    uint64_t one, n_page, n_each;        /* bytes; pages a read may begin at; places per read */
    uint8_t *memory;
    uint64_t n_random;                   /* words used of the random stream */
} spread;

static uint64_t below(spread *s, uint64_t n)
{
    return random_word(2, s->n_random++) % n;
}

static read_job job_of(spread *s, uint64_t part)
{
    return (read_job){ .offset = below(s, s->n_page) * READER_PAGE, .bytes = s->one, .tag = part,
                       .to = s->memory + (part * s->n_each + below(s, s->n_each)) * s->one };
}

/* One slice. No read is in flight before and after it. */
static int read_slice(double *bytes, double *used, reader *r, spread *s, double seconds,
                      err_ctx *err)
{
    const uint64_t from = clock_ns();
    read_job jobs[IN_FLIGHT];
    uint64_t tags[IN_FLIGHT];
    for (int i = 0; i < IN_FLIGHT; i++) jobs[i] = job_of(s, (uint64_t)i);
    int n, rc = reader_submit(r, jobs, IN_FLIGHT, err);
    while (rc == 0 && reader_open_jobs(r) > 0) {
        if ((n = reader_wait(r, tags, IN_FLIGHT, 1, err)) < 0) return n;
        *bytes += (double)n * (double)s->one;
        if (clock_since(from) >= seconds) continue;
        for (int i = 0; i < n; i++) jobs[i] = job_of(s, tags[i]);
        rc = reader_submit(r, jobs, n, err);
    }
    *used += clock_since(from);
    return rc;
}

static int measure_speed(drive_speed *out, const drive_task *t, reader *r, spread *s, err_ctx *err)
{
    double bytes = 0, used = 0;
    for (int i = 0; i < SLICES; i++) {
        if (t->watch && !t->watch(t->ctx)) return err_set(err, ERR_STOPPED, "stopped");
        const int rc = read_slice(&bytes, &used, r, s, t->seconds / SLICES, err);
        if (rc < 0) return rc;
    }
    out->speed = bytes / used;
    return 0;
}

/* Seconds for a few reads, when no other read is in flight. */
static int read_few(double *seconds, reader *r, spread *s, int n, err_ctx *err)
{
    const uint64_t from = clock_ns();
    read_job jobs[IN_FLIGHT];
    uint64_t tags[IN_FLIGHT];
    for (int i = 0; i < n; i++) jobs[i] = job_of(s, (uint64_t)i);
    int rc = reader_submit(r, jobs, n, err);
    while (rc == 0 && reader_open_jobs(r) > 0) {
        const int done = reader_wait(r, tags, IN_FLIGHT, 1, err);
        if (done < 0) rc = done;
    }
    *seconds = clock_since(from);
    return rc;
}

/* The median of some rounds. */
static int measure_wait(drive_speed *out, const drive_task *t, reader *r, spread *s, err_ctx *err)
{
    const uint64_t from = clock_ns();
    double rounds[MOST_ROUNDS];
    int n = 0;
    while (n < LEAST_ROUNDS || (n < MOST_ROUNDS && clock_since(from) < ROUNDS_PART * t->seconds)) {
        const int rc = read_few(&rounds[n++], r, s, t->at_once, err);
        if (rc < 0) return rc;
    }
    sort_doubles(rounds, n);
    out->wait = rounds[n / 2] - t->at_once * (double)s->one / out->speed;
    out->wait = fmin(fmax(out->wait, DRIVE_LEAST_WAIT_S), DRIVE_MOST_WAIT_S);
    return 0;
}

static int measure_open(drive_speed *out, const drive_task *t, spread *s, err_ctx *err)
{
    const reader_options usual = { .kind = READER_AUTO };
    reader *r;
    int rc = reader_open(&r, &t->path, 1, &usual, NULL, err);
    if (rc < 0) return rc;
    reader_register(r, s->memory, IN_FLIGHT * s->n_each * s->one);
    rc = measure_speed(out, t, r, s, err);
    if (rc == 0 && t->at_once > 0) rc = measure_wait(out, t, r, s, err);
    if (rc < 0) *out = (drive_speed){ 0 };
    reader_close(r);
    return rc;
}

uint64_t drive_least_memory(uint64_t one)
{
    return IN_FLIGHT * size_align(one, READER_PAGE);
}

int drive_measure(drive_speed *out, const drive_task *t, err_ctx *err)
{
    const uint64_t one = size_align(t->one, READER_PAGE);
    void *memory;
    *out = (drive_speed){ 0 };
    if (one == 0 || t->file_bytes / one < LEAST_PLACES ||
        t->memory_bytes < drive_least_memory(one))
        return err_set(err, ERR_RANGE, "too little to measure the drive with");
    spread s = { .one = one, .n_page = (t->file_bytes - one) / READER_PAGE + 1,
                 .n_each = t->memory_bytes / one / IN_FLIGHT };
    const size_t bytes = (size_t)(IN_FLIGHT * s.n_each * one);
    int rc = pages_map(&memory, bytes, PAGES_HUGE, err);
    if (rc < 0) return rc;
    s.memory = memory;
    s.n_random = clock_ns();             /* other offsets than last time: those are cached */
    pages_touch(memory, bytes, t->team);
    rc = measure_open(out, t, &s, err);
    pages_unmap(memory, bytes);
    return rc;
}
