/* drive.c - a queue that is always full, places of the file and of memory in no order. */
#include "tiers/drive.h"

#include "tiers/pages.h"

enum {
    IN_FLIGHT = 16,
    STEP = 7919                          /* a prime: places from one read to the next */
};

static const double WORTH = 1.1;

typedef struct spread {                  /* places that reads come from and go to */
    uint64_t one, n_file, n_memory;
    uint8_t *memory;
    uint64_t n;                          /* reads so far: none of the file comes twice in a row */
} spread;

static double seconds_since(uint64_t from) { return (double)(clock_ns() - from) * 1e-9; }

static read_job next_job(spread *s)
{
    const uint64_t n = s->n++;
    return (read_job){ .offset = n * STEP % s->n_file * s->one, .bytes = s->one, .tag = n,
                       .to = s->memory + n * STEP % s->n_memory * s->one };
}

static int measure_open(double *out, reader *r, spread *s, double seconds, err_ctx *err)
{
    const uint64_t from = clock_ns();
    uint64_t tags[IN_FLIGHT], bytes = 0;
    int rc = 0;
    while (rc >= 0 && seconds_since(from) < seconds) {
        while (reader_open_jobs(r) < IN_FLIGHT && rc >= 0) {
            const read_job job = next_job(s);
            rc = reader_submit(r, &job, 1, err);
        }
        if (rc >= 0) rc = reader_wait(r, tags, IN_FLIGHT, 1, err);
        if (rc > 0) bytes += (uint64_t)rc * s->one;
    }
    if (rc < 0) return rc;
    *out = (double)bytes / seconds_since(from);
    return 0;
}

/* One way: team NULL is straight. A dock that could not be made is no figure. */
static int measure_way(double *out, const char *path, spread *s, pool *team, double seconds,
                       err_ctx *err)
{
    const reader_options o = { .kind = READER_AUTO, .team = team };
    reader *r;
    int rc = reader_open(&r, &path, 1, &o, NULL, err);
    *out = 0;
    if (rc < 0) return rc;
    if (!team) reader_register(r, s->memory, s->n_memory * s->one);
    if (!team || reader_docked(r)) rc = measure_open(out, r, s, seconds, err);
    reader_close(r);
    return rc;
}

static void touch(void *ctx, int64_t begin, int64_t end, int thread)
{
    volatile uint8_t *pages = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) pages[i * READER_PAGE] = 0;
}

/* Twice, since an odd one may be left out. */
uint64_t drive_least_memory(uint64_t one)
{
    return 2 * IN_FLIGHT * size_align(one, READER_PAGE);
}

/* As many as there is room for, but not a multiple of STEP: that would be the same place always. */
static uint64_t places(uint64_t bytes, uint64_t one)
{
    const uint64_t n = bytes / one;
    return n > 0 && n % STEP == 0 ? n - 1 : n;
}

int drive_measure(drive_speed *out, const char *path, uint64_t file_bytes, uint64_t one,
                  uint64_t memory_bytes, pool *team, double seconds, err_ctx *err)
{
    spread s = { .one = size_align(one, READER_PAGE) };
    void *memory;
    *out = (drive_speed){ 0 };
    if (s.one == 0) return err_set(err, ERR_RANGE, "the drive: reads of no bytes");
    s.n_file = places(file_bytes, s.one);
    s.n_memory = places(memory_bytes, s.one);
    if (s.n_file < 4 || s.n_memory < IN_FLIGHT)
        return err_set(err, ERR_RANGE, "the drive: too little to measure with");
    int rc = pages_map(&memory, (size_t)(s.n_memory * s.one), PAGES_HUGE, err);
    if (rc < 0) return rc;
    s.memory = memory;
    pool_run(team, (int64_t)(s.n_memory * s.one / READER_PAGE), HUGE_PAGE / READER_PAGE, touch,
             memory);
    rc = measure_way(&out->straight, path, &s, NULL, seconds, err);
    if (rc == 0) rc = measure_way(&out->docked, path, &s, team, seconds, err);
    pages_unmap(memory, (size_t)(s.n_memory * s.one));
    return rc;
}

bool drive_wants_dock(const drive_speed *s)
{
    return s->docked > WORTH * s->straight;
}
