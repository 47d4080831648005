/* test_reader.c - files read in pieces, by io_uring and by threads: the same bytes, each tag once,
 * and every way in which a read can go wrong. Also the faults injected for that. */
#include "tests/case_file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tiers/fault_injection.h"
#include "tiers/page_advice.h"
#include "tiers/reader.h"

enum { N_FILE = 3, CUT = 3, MAX_JOBS = 1500, MEMORY = 32 << 20, UNTOUCHED = 0xA5 };

/* Each test that cuts the last one rewrites it. */
static const uint64_t file_bytes[N_FILE + 1] = { (5 << 20) + 1234, 8192, 70001, 100000 };

static char dir_path[256];
static struct {
    char names[N_FILE + 1][300];
    const char *paths[N_FILE + 1];
    uint8_t *content[N_FILE + 1];
    uint8_t *memory;                     /* MEMORY bytes, from a page on */
    bool direct;                         /* the file system of dir_path can do it */
} at;

static case_rows rows;                   /* of cases/reader.txt */

/* ---- files ----------------------------------------------------------------------------------- */

static bool write_file(int i)
{
    FILE *f = fopen(at.paths[i], "wb");
    bool ok = f && fwrite(at.content[i], 1, file_bytes[i], f) == file_bytes[i];
    if (f && fclose(f) != 0) ok = false;
    return CHECK_MSG(ok, "cannot write %s", at.paths[i]);
}

static bool make_files(void)
{
    bool ok = true;
    void *p;
    if (!CHECK(mkdtemp(test_temp(dir_path, sizeof dir_path)) != NULL)) return false;
    for (int i = 0; i <= N_FILE; i++) {
        snprintf(at.names[i], sizeof at.names[i], "%s/%d.bin", dir_path, i);
        at.paths[i] = at.names[i];
        at.content[i] = test_alloc(file_bytes[i], 1);
        for (uint64_t b = 0; b < file_bytes[i]; b++)
            at.content[i][b] = (uint8_t)(random_word((uint64_t)i, b / 8) >> b % 8 * 8);
        ok = ok && write_file(i);
    }
    ok = ok && CHECK(pages_map(&p, MEMORY, PAGES_SMALL, NULL) == 0);
    if (ok) at.memory = p;
    return ok;
}

static void remove_files(void)
{
    for (int i = 0; i <= N_FILE; i++) {
        unlink(at.names[i]);
        mem_free(at.content[i]);
    }
    rmdir(dir_path);
    pages_unmap(at.memory, MEMORY);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Jobs, each with memory of its own, and a page between them that must stay as it is. */
typedef struct batch {
    read_job jobs[MAX_JOBS];
    int seen[MAX_JOBS];                  /* how often the tag was handed back */
    int n;
    uint64_t used;                       /* of at.memory */
} batch;

static uint64_t page_begin(uint64_t n) { return n & ~(uint64_t)(READER_PAGE - 1); }

/* False if there is no room left. Tags are the index and a mark that no other number has. */
static bool add_job(batch *b, int file, uint64_t offset, uint64_t bytes)
{
    const uint64_t in_page = offset - page_begin(offset);
    const uint64_t whole = size_align(in_page + bytes, READER_PAGE);
    if (b->n == MAX_JOBS || b->used + whole + READER_PAGE > MEMORY) return false;
    b->jobs[b->n] = (read_job){ file, offset, bytes, at.memory + b->used + in_page,
                                UINT64_C(0xFACE00000000) + (uint64_t)b->n };
    b->seen[b->n++] = 0;
    b->used += whole + READER_PAGE;
    return true;
}

static void clear_memory(batch *b)
{
    memset(at.memory, UNTOUCHED, (size_t)b->used);
    memset(b->seen, 0, sizeof b->seen);
}

static batch *new_batch(void)
{
    batch *b = test_alloc(1, sizeof *b);
    b->n = 0;
    b->used = 0;
    return b;
}

static void note_tags(batch *b, const uint64_t *tags, int n)
{
    for (int i = 0; i < n; i++) {
        const uint64_t k = tags[i] - UINT64_C(0xFACE00000000);
        if (k < (uint64_t)b->n) b->seen[k]++;
        else CHECK_MSG(false, "tag %llx was never sent", (unsigned long long)tags[i]);
    }
}

/* Random jobs over the first n_file files: some small, some up to most bytes. */
static void add_random(batch *b, test_rng *rng, int n, int n_file, uint32_t most)
{
    for (int i = 0; i < n; i++) {
        const int f = (int)test_below(rng, (uint32_t)n_file);
        const uint64_t offset = test_below(rng, (uint32_t)file_bytes[f]);
        uint64_t bytes = test_below(rng, test_below(rng, 2) ? most : 9000);
        if (bytes > file_bytes[f] - offset) bytes = file_bytes[f] - offset;
        if (!add_job(b, f, offset, bytes)) return;
    }
}

/* Waits for all jobs in one of several ways, and counts tags. False after a failure. */
static bool collect(reader *r, batch *b, int cap, int min, const char *why)
{
    uint64_t tags[MAX_JOBS];
    err_ctx err;
    while (reader_open_jobs(r) > 0) {
        const int before = reader_open_jobs(r), least = min_int(min_int(min, before), cap);
        const int n = reader_wait(r, tags, cap, min, &err);
        if (n < least || n > cap || reader_open_jobs(r) != before - n)
            return CHECK_MSG(false, "%s: %d of %d tags, at least %d: %s", why, n, before, least,
                             n < 0 ? err.msg : "");
        note_tags(b, tags, n);
        if (n == 0) sched_yield();
    }
    return true;
}

static bool all_are(const uint8_t *from, const uint8_t *to, uint8_t value)
{
    const size_t n = (size_t)(to - from);
    return n == 0 || (from[0] == value && memcmp(from, from + 1, n - 1) == 0);
}

/* Each tag once, all bytes right, and no byte changed outside the job's pages. */
static void check_batch(const batch *b, const char *why)
{
    const uint8_t *free_from = at.memory;
    for (int i = 0; i < b->n; i++) {
        const read_job *j = &b->jobs[i];
        const uint64_t in_page = j->offset - page_begin(j->offset);
        const bool same = memcmp(j->to, at.content[j->file] + j->offset, j->bytes) == 0;
        const bool alone = all_are(free_from, j->to - in_page, UNTOUCHED);
        if (b->seen[i] != 1 || !same || !alone) {
            CHECK_MSG(false, "%s: job %d, bytes %llu+%llu of file %d: tag came %d times%s%s", why,
                      i, (unsigned long long)j->offset, (unsigned long long)j->bytes, j->file,
                      b->seen[i], same ? "" : ", bytes differ",
                      alone ? "" : ", memory before it was written to");
            return;
        }
        free_from = j->to - in_page + (j->bytes ? size_align(in_page + j->bytes, READER_PAGE) : 0);
    }
    CHECK_MSG(all_are(free_from, at.memory + b->used, UNTOUCHED),
              "%s: memory after the last job was written to", why);
}

static reader *open_reader(int n_file, const reader_options *o)
{
    reader *r;
    err_ctx err;
    if (!CHECK_MSG(reader_open(&r, at.paths, n_file, o, NULL, &err) == 0, "open: %s", err.msg))
        return NULL;
    return r;
}

/* Submits, waits, compares. */
static void run_batch(reader *r, batch *b, const char *why)
{
    err_ctx err;
    clear_memory(b);
    CHECK_MSG(reader_submit(r, b->jobs, b->n, &err) == 0, "%s: %s", why, err.msg);
    if (collect(r, b, 64, 1, why)) check_batch(b, why);
}

/* ---- what is read ---------------------------------------------------------------------------- */

static void test_mixes(reader_kind kind, const char *name)
{
    batch *b = new_batch();
    test_rng rng = { 7 };
    for (int i = 0; i < rows.n; i++) {
        int depth, n, n_file, cap, min, sent = 0;
        uint32_t piece, most;
        char how, why[100];
        err_ctx err;
        if (strcmp(rows.cells[i][0], "mix") != 0 ||
            !CHECK(sscanf(rows.cells[i][1], "%d %" SCNu32 " %c %d %d %" SCNu32 " %d %d", &depth,
                          &piece, &how, &n, &n_file, &most, &cap, &min) == 8)) continue;
        const reader_options o = { kind, depth, piece, how == 'b', false };
        reader *r = open_reader(N_FILE, &o);
        if (!r) continue;
        snprintf(why, sizeof why, "%s, %s", name, rows.cells[i][2]);
        CHECK_MSG(strstr(reader_name(r), name) &&
                  !strstr(reader_name(r), "direct") == (o.buffered || !at.direct),
                  "%s is called %s", why, reader_name(r));
        if (how == 'k') reader_register(r, at.memory, MEMORY / 3);
        b->n = 0;
        b->used = 0;
        add_random(b, &rng, n, n_file, most);
        CHECK_MSG(b->n > 15, "%s: only %d jobs", why, b->n);
        clear_memory(b);
        while (sent < b->n) {            /* in parts of some size */
            const int now = min_int(b->n - sent, 1 + (int)test_below(&rng, (uint32_t)b->n));
            CHECK(reader_submit(r, b->jobs + sent, now, &err) == 0);
            sent += now;
        }
        CHECK(reader_open_jobs(r) == b->n);
        if (collect(r, b, cap, min, why)) check_batch(b, why);
        reader_close(r);
    }
    mem_free(b);
}

/* Places where off-by-one errors live. */
static void test_edges(reader_kind kind, const char *name)
{
    const reader_options o = { .kind = kind, .depth = 4, .piece = 8192 };
    reader *r = open_reader(N_FILE, &o);
    batch *b = new_batch();
    if (r) {
        for (int f = 0; f < N_FILE; f++) {
            const uint64_t end = file_bytes[f], last = page_begin(end - 1);
            add_job(b, f, 0, end);
            add_job(b, f, 0, 1);
            add_job(b, f, end - 1, 1);
            add_job(b, f, last, end - last);
            add_job(b, f, last - 1, end - last + 1);
            add_job(b, f, last - 1, 1);
            add_job(b, f, last - 1, 2);
            add_job(b, f, 4095, 4097);
            add_job(b, f, 17, 0);
            add_job(b, f, end, 0);
            add_job(b, f, 4096, 0);
        }
        run_batch(r, b, name);
        run_batch(r, b, name);           /* nothing is left over from the first time */
    }
    reader_close(r);
    mem_free(b);
}

/* min and cap; the order in which jobs are sent. */
static void test_waiting(reader_kind kind, const char *name)
{
    const reader_options o = { .kind = kind, .depth = 1 };
    reader *r = open_reader(N_FILE, &o);
    batch *b = new_batch();
    uint64_t tags[20];
    err_ctx err;
    for (int i = 0; i < 9; i++) add_job(b, 0, (uint64_t)i * 300000, i % 2 ? 250000 : 100);
    clear_memory(b);
    if (r) {
        CHECK(reader_wait(r, tags, 20, 5, &err) == 0 && reader_wait(r, NULL, 0, 0, &err) == 0);
        CHECK(reader_submit(r, b->jobs, 0, &err) == 0 && reader_open_jobs(r) == 0);
        CHECK(reader_submit(r, b->jobs, 4, &err) == 0);
        CHECK(reader_submit(r, b->jobs + 4, 5, &err) == 0);
        CHECK(reader_wait(r, tags, 2, 9, &err) == 2 && reader_open_jobs(r) == 7);
        CHECK(reader_wait(r, tags + 2, 0, 2, &err) == 0 && reader_open_jobs(r) == 7);
        CHECK_MSG(reader_wait(r, tags + 2, 18, 0, &err) == 7 && reader_open_jobs(r) == 0,
                  "%s: all were complete after the first wait", name);
        for (int i = 0; i < 9; i++)
            CHECK_MSG(tags[i] == b->jobs[i].tag, "%s: one at a time, but out of order", name);
        note_tags(b, tags, 9);
        check_batch(b, name);
    }
    reader_close(r);
    mem_free(b);
}

typedef struct sending { reader *r; batch *b; int rc; } sending;

static void *send_all(void *arg)
{
    sending *s = arg;
    s->rc = reader_submit(s->r, s->b->jobs, s->b->n, NULL);
    return NULL;
}

/* The thread that submits may be gone when the reads complete. */
static void test_other_thread(reader_kind kind, const char *name)
{
    const reader_options o = { .kind = kind };
    test_rng rng = { 3 };
    sending s = { open_reader(N_FILE, &o), new_batch(), -1 };
    pthread_t t;
    add_random(s.b, &rng, 100, N_FILE, 1000000);
    clear_memory(s.b);
    if (s.r && CHECK(pthread_create(&t, NULL, send_all, &s) == 0)) {
        pthread_join(t, NULL);
        CHECK(s.rc == 0 && reader_open_jobs(s.r) == s.b->n);
        if (collect(s.r, s.b, 64, 1, name)) check_batch(s.b, name);
    }
    reader_close(s.r);
    mem_free(s.b);
}

/* The most jobs of a fresh batch that a single look finds done after the reader was left alone, for
 * longer and longer. One request at a time: a look alone takes in one and sends one. */
static int most_at_a_look(reader *r, batch *b, bool go_on)
{
    uint64_t tags[64];
    int most = 0;
    for (long ms = 1; ms <= (go_on ? 4096 : 16) && most < 8; ms *= 2) {
        const struct timespec a_while = { ms / 1000, ms % 1000 * 1000000 };
        CHECK(reader_submit(r, b->jobs, b->n, NULL) == 0);
        if (go_on) reader_go_on(r);
        nanosleep(&a_while, NULL);
        most = max_int(most, reader_wait(r, tags, 64, 0, NULL));
        reader_cancel(r);
    }
    return most;
}

/* Jobs are done without a call; then everything is as if there had been calls. */
static void test_go_on(reader_kind kind, const char *name)
{
    const reader_options o = { .kind = kind, .depth = 1, .goes_on = true };
    reader *r = open_reader(N_FILE, &o), *not = NULL;
    batch *b = new_batch();
    uint64_t tags[4];
    err_ctx err;
    for (int i = 0; i < 40; i++) add_job(b, 0, (uint64_t)i * 100000, 70000);
    if (!r) goto done;
    const int most = most_at_a_look(r, b, true);
    CHECK_MSG(most >= 8, "%s: at most %d jobs without a call", name, most);
    for (int i = 0; i < test_rounds(50, 15); i++) {      /* at random moments */
        clear_memory(b);
        CHECK(reader_submit(r, b->jobs, b->n, &err) == 0);
        reader_go_on(r);
        reader_go_on(r);
        for (int k = 0; k < i * 37; k++) pool_relax();
        if (collect(r, b, 1 + i % 7, i % 3, name)) check_batch(b, name);
        reader_go_on(r);                 /* nothing is left */
    }
    fault_arm(FAULT_READ_ERROR, 3, 1);
    CHECK(reader_submit(r, b->jobs, b->n, &err) == 0);
    reader_go_on(r);
    int n = 0;
    while (n >= 0 && reader_open_jobs(r) > 0) n = reader_wait(r, tags, 4, 1, &err);
    CHECK_MSG(n == ERR_IO && strstr(err.msg, "cannot read at byte"), "%s: %d", name, n);
    fault_disarm_all();
    reader_cancel(r);
    run_batch(r, b, name);
    CHECK(reader_submit(r, b->jobs, b->n, &err) == 0);
    reader_go_on(r);                     /* and closed meanwhile */
    reader_close(r);
    r = NULL;
    const reader_options alone = { .kind = kind, .depth = 1 };
    if (kind == READER_URING && (not = open_reader(N_FILE, &alone)))
        CHECK(most_at_a_look(not, b, false) < 8);
done:
    reader_close(r);
    reader_close(not);
    mem_free(b);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

static void check_cut(const reader_options *o, const char *name, char *const *cells)
{
    uint64_t tag = 0;
    long cut, offset, bytes;
    char want[100];
    err_ctx err = { 0 };
    batch *b = new_batch();
    reader *r = write_file(CUT) ? open_reader(N_FILE + 1, o) : NULL;
    CHECK(sscanf(cells[1], "%ld %ld %ld", &cut, &offset, &bytes) == 3);
    const bool lost = offset + bytes > cut;
    snprintf(want, sizeof want, "ends at byte %ld, but bytes %ld..%ld are wanted", cut, offset,
             offset + bytes - 1);
    add_job(b, CUT, (uint64_t)offset, (uint64_t)bytes);
    clear_memory(b);
    if (r && CHECK(truncate(at.paths[CUT], cut) == 0) &&
        CHECK(reader_submit(r, b->jobs, 1, &err) == 0)) {
        const int n = reader_wait(r, &tag, 1, 1, &err);
        CHECK_MSG(lost ? n == ERR_IO && strstr(err.msg, want) && strstr(err.msg, at.paths[CUT]) &&
                  strstr(err.msg, "cut while in use?") : n == 1, "%s, cut %s: %d, %s", name,
                  cells[2], n, err.msg);
        CHECK(tag == b->jobs[0].tag && reader_open_jobs(r) == 0);
        note_tags(b, &tag, 1);
        if (!lost) check_batch(b, cells[2]);
    }
    reader_close(r);
    mem_free(b);
}

static void test_cut(reader_kind kind, const char *name)
{
    for (int i = 0; i < 2 * rows.n; i++) {
        const reader_options o = { .kind = kind, .piece = 16384, .buffered = i % 2 };
        if (!strcmp(rows.cells[i / 2][0], "cut")) check_cut(&o, name, rows.cells[i / 2]);
    }
    write_file(CUT);
}

/* Of several jobs the skip-th read fails: that job comes first, once; all others are whole. */
static void fail_one(reader *r, batch *b, fault_point p, int skip, int n, const char *text)
{
    uint64_t tags[64];
    err_ctx err = { 0 };
    int failed = 0, good = 0;
    clear_memory(b);
    fault_arm(p, skip, n);
    CHECK(reader_submit(r, b->jobs, b->n, &err) == 0);
    while (reader_open_jobs(r) > 0) {
        const int got = reader_wait(r, tags, 64, b->n, &err);
        failed += got < 0;
        good += got > 0 ? got : 0;
        if (got < 0 && (got != ERR_IO || !strstr(err.msg, text) || !strstr(err.msg, dir_path) ||
                        good > 0))
            CHECK_MSG(false, "skip %d, after %d tags: %s", skip, good, err.msg);
        note_tags(b, tags, got < 0 ? 1 : got);
        if (got < 0)                     /* what the job got does not count: restore it */
            for (int i = 0; i < b->n; i++)
                if (tags[0] == b->jobs[i].tag)
                    memcpy(b->jobs[i].to, at.content[b->jobs[i].file] + b->jobs[i].offset,
                           b->jobs[i].bytes);
    }
    fault_disarm_all();
    CHECK_MSG(failed >= 1 && failed <= n && failed + good == b->n, "skip %d of %d: %d failed",
              skip, n, failed);
    check_batch(b, text);
}

static void test_failures(reader_kind kind, const char *name)
{
    static const struct { int skip, n; } whens[] = { { 0, 1 }, { 1, 1 }, { 6, 1 }, { 2, 5 },
                                                     { 0, FAULT_ALWAYS } };
    const reader_options o = { .kind = kind, .depth = 3, .piece = 65536 };
    reader *r = open_reader(N_FILE, &o);
    batch *b = new_batch();
    test_rng rng = { 11 };
    add_job(b, 0, 1000, 900000);         /* many pieces */
    add_random(b, &rng, 12, N_FILE, 200000);
    for (int i = 0; i < b->n; i++) b->jobs[i].bytes += b->jobs[i].bytes == 0;
    for (size_t i = 0; r && i < ARRAY_LEN(whens); i++) {
        fail_one(r, b, FAULT_READ_ERROR, whens[i].skip, whens[i].n, "Input/output error");
        fail_one(r, b, FAULT_READ_END, whens[i].skip, whens[i].n, "cut while in use?");
        fault_arm(FAULT_READ_SHORT, whens[i].skip, whens[i].n);
        run_batch(r, b, name);
        fault_disarm_all();
    }
    if (r) run_batch(r, b, name);        /* none the worse for it */
    reader_close(r);
    mem_free(b);
}

/* What the system itself refuses: memory that cannot be written. */
static void test_bad_memory(reader_kind kind, const char *name)
{
    const reader_options o = { .kind = kind };
    reader *r = open_reader(N_FILE, &o);
    void *wall = mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const read_job bad = { 0, 81920, 10000, wall, 5 };
    uint64_t tag = 0;
    err_ctx err = { 0 };
    if (r && CHECK(wall != MAP_FAILED) && CHECK(reader_submit(r, &bad, 1, &err) == 0)) {
        CHECK(reader_wait(r, &tag, 1, 1, &err) == ERR_IO && tag == 5);
        CHECK_MSG(strstr(err.msg, "/0.bin: cannot read at byte 81920 (for bytes 81920..91919): "
                                  "Bad address"), "%s: %s", name, err.msg);
    }
    reader_close(r);
    if (wall != MAP_FAILED) munmap(wall, 65536);
}

static int n_direct_files(void)
{
    int n = 0;
    for (int fd = 3; fd < 64; fd++) {
        const int flags = fcntl(fd, F_GETFL);
        n += flags >= 0 && (flags & O_DIRECT);
    }
    return n;
}

static void test_direct_refused(reader_kind kind, const char *name)
{
    const reader_options o = { .kind = kind };
    batch *b = new_batch();
    test_rng rng = { 5 };
    add_random(b, &rng, 50, N_FILE, 100000);
    /* asked for each file when it is opened and when it is tried, then with each direct read */
    for (int skip = 0; skip < 2 * N_FILE + 20 && at.direct; skip++) {
        const char *note = NULL;
        reader *r;
        err_ctx err;
        fault_arm(FAULT_DIRECT, skip, 1 + skip % 2);
        if (CHECK_MSG(reader_open(&r, at.paths, N_FILE, &o, &note, &err) == 0, "%s", err.msg)) {
            const bool early = skip < 2 * N_FILE;
            CHECK_MSG(!strcmp(note, early ? "direct reads are refused here: reading through the "
                                            "page cache" : ""), "%s, %d: %s", name, skip, note);
            CHECK((strstr(reader_name(r), ", buffered") != NULL) == early);
            CHECK_MSG((n_direct_files() == N_FILE) == !early, "%s, %d: %d files", name, skip,
                      n_direct_files());
            run_batch(r, b, name);
            CHECK_MSG(strstr(reader_name(r), ", buffered") && n_direct_files() < N_FILE,
                      "%s, %d: %s, %d files", name, skip, reader_name(r), n_direct_files());
            reader_close(r);
        }
        fault_disarm_all();
    }
    mem_free(b);
}

static void test_uring_refused(bool built)
{
    const char *const text = built ? "io_uring is not permitted here: reading with threads" :
                                     "this build has no io_uring: reading with threads";
    reader_options o = { .kind = READER_AUTO };
    batch *b = new_batch();
    test_rng rng = { 6 };
    const char *note = NULL;
    reader *r;
    err_ctx err;
    add_random(b, &rng, 50, N_FILE, 100000);
    fault_arm(FAULT_URING, 0, FAULT_ALWAYS);
    if (CHECK(reader_open(&r, at.paths, N_FILE, &o, &note, &err) == 0)) {
        CHECK_MSG(strstr(note, text) == note && !strncmp(reader_name(r), "pread, ", 7), "%s: %s",
                  reader_name(r), note);
        run_batch(r, b, "in place of io_uring");
        reader_close(r);
    }
    fault_arm(FAULT_DIRECT, 0, FAULT_ALWAYS);
    if (CHECK(reader_open(&r, at.paths, N_FILE, &o, &note, &err) == 0)) {
        CHECK_MSG(strstr(note, text) && strstr(note, "; direct reads are refused") &&
                  !strcmp(reader_name(r), "pread, buffered"), "%s: %s", reader_name(r), note);
        reader_close(r);
    }
    o.kind = READER_URING;
    CHECK(reader_open(&r, at.paths, N_FILE, &o, &note, &err) == ERR_UNSUPPORTED && !r);
    CHECK_MSG(strstr(err.msg, "io_uring") && !*note, "%s", err.msg);
    o.kind = READER_PREAD;
    if (CHECK(reader_open(&r, at.paths, N_FILE, &o, NULL, &err) == 0)) reader_close(r);
    fault_disarm_all();
    mem_free(b);
}

static void test_cancel(reader_kind kind, const char *name)
{
    const reader_options o = { .kind = kind, .depth = 4, .piece = 65536 };
    reader *r = open_reader(N_FILE, &o);
    batch *b = new_batch();
    test_rng rng = { 9 };
    uint64_t tags[5];
    err_ctx err;
    add_random(b, &rng, 200, N_FILE, 200000);
    for (int i = 0; r && i < 8; i++) {
        fault_arm(i & 1 ? FAULT_READ_ERROR : FAULT_READ_SHORT, 3, i & 2 ? 20 : 0);
        CHECK(reader_submit(r, b->jobs, b->n, &err) == 0);
        if (i & 4) CHECK(reader_wait(r, tags, 5, 3, &err) != 0);
        reader_cancel(r);
        CHECK(reader_open_jobs(r) == 0 && reader_wait(r, tags, 5, 5, &err) == 0);
        fault_disarm_all();
        run_batch(r, b, name);
    }
    if (r) {
        reader_cancel(r);
        clear_memory(b);
        CHECK(reader_submit(r, b->jobs, b->n, &err) == 0);
    }
    reader_close(r);                     /* with jobs in flight: nothing may be written after it */
    for (int i = 0; i < b->n; i++) b->seen[i] = 1;
    memset(at.memory, UNTOUCHED, (size_t)b->used);
    for (int i = 0; i < 100; i++) sched_yield();
    CHECK_MSG(all_are(at.memory, at.memory + b->used, UNTOUCHED), "%s: written after close", name);
    mem_free(b);
}

static void test_no_memory(reader_kind kind, const char *name)
{
    const reader_options o = { .kind = kind };
    batch *b = new_batch();
    test_rng rng = { 13 };
    reader *r = NULL;
    err_ctx err;
    int refused = 0;
    for (bool done = false; !done && refused < 100;) {
        const char *note = NULL;
        mem_fail_after(refused + 1);
        const int rc = reader_open(&r, at.paths, N_FILE, &o, &note, &err);
        mem_fail_after(0);
        done = rc == 0;
        if (done) break;
        refused++;
        CHECK_MSG(rc == ERR_NOMEM && !r && err.code == ERR_NOMEM && !*note, "%s, %d: %s", name,
                  refused, err.msg);
    }
    CHECK_MSG(refused >= 6 && refused < 100, "%s: %d allocations", name, refused);
    if (r) {
        mem_fail_after(1);               /* of no consequence */
        reader_register(r, at.memory, MEMORY);
        mem_fail_after(0);
        add_random(b, &rng, MAX_JOBS, N_FILE, 5000);
        clear_memory(b);
        mem_guard(true);
        CHECK(reader_submit(r, b->jobs, b->n, &err) == ERR_NOMEM && reader_open_jobs(r) == 0);
        CHECK_MSG(reader_submit(r, b->jobs, 1000, &err) == 0, "a thousand need no memory");
        CHECK(reader_submit(r, b->jobs + 1000, b->n - 1000, &err) == ERR_NOMEM);
        CHECK(reader_open_jobs(r) == 1000);
        mem_guard(false);
        CHECK(reader_submit(r, b->jobs + 1000, b->n - 1000, &err) == 0);
        if (collect(r, b, 100, 50, name)) check_batch(b, name);
    }
    reader_close(r);
    mem_free(b);
}

static void test_refused_files(reader_kind kind)
{
    char missing[300];
    const char *const bad[] = { at.paths[0], missing }, *const dir[] = { dir_path };
    reader_options o = { .kind = kind };
    reader *r = NULL;
    err_ctx err;
    snprintf(missing, sizeof missing, "%s/missing", dir_path);
    CHECK(reader_open(&r, bad, 2, &o, NULL, &err) == ERR_IO && !r);
    CHECK_MSG(strstr(err.msg, missing) && strstr(err.msg, "No such file"), "%s", err.msg);
    CHECK(reader_open(&r, dir, 1, &o, NULL, &err) == ERR_IO && !r);
    CHECK_MSG(strstr(err.msg, "not a file"), "%s", err.msg);
    o.depth = READER_MAX_DEPTH + 1;
    CHECK(reader_open(&r, bad, 1, &o, NULL, &err) == ERR_RANGE && strstr(err.msg, "257"));
    o.depth = -1;
    CHECK(reader_open(&r, bad, 1, &o, NULL, NULL) == ERR_RANGE);
    reader_close(NULL);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static _Atomic int n_yes;

static void *ask(void *arg)
{
    (void)arg;
    for (int i = 0; i < 5000; i++)
        if (fault_hits(FAULT_READ_SHORT)) atomic_fetch_add(&n_yes, 1);
    return NULL;
}

static void test_faults(void)
{
    static const char points[] = "read-error read-short read-end direct io-uring page-lock vram "
                                 "gpu-lost";                     /* as fault_point has them */
    pthread_t t[3];
    for (int i = 0; i < rows.n; i++) {
        char *const *cells = rows.cells[i];
        if (strcmp(cells[0], "fault") != 0) continue;
        const bool ok = cells[2][0] != '\0';
        const fault_point p = ok ? (fault_point)case_word(points, cells[2]) : FAULT_GPU_LOST;
        const char *hits = ok ? strchr(cells[2], ' ') + 1 : "------";
        CHECK_MSG(fault_arm_text(cells[1]) == ok, "'%s'", cells[1]);
        for (int k = 0; k < 6; k++)
            CHECK_MSG(fault_hits(p) == (hits[k] == '+'), "'%s': question %d", cells[1], k);
        fault_disarm_all();
        CHECK(!fault_hits(p));
    }
    fault_arm(FAULT_READ_SHORT, 1000, 777);
    for (int i = 0; i < 3; i++)
        if (!CHECK(pthread_create(&t[i], NULL, ask, NULL) == 0)) return;
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    CHECK_MSG(atomic_load(&n_yes) == 777, "%d of 777 questions hit", atomic_load(&n_yes));
    fault_disarm_all();
}

/* ---------------------------------------------------------------------------------------------- */

static void test_kind(reader_kind kind, const char *name)
{
    test_mixes(kind, name);
    test_edges(kind, name);
    test_waiting(kind, name);
    test_other_thread(kind, name);
    test_go_on(kind, name);
    test_cut(kind, name);
    test_failures(kind, name);
    test_bad_memory(kind, name);
    test_direct_refused(kind, name);
    test_cancel(kind, name);
    test_no_memory(kind, name);
    test_refused_files(kind);
}

int main(int argc, char **argv)
{
    const reader_options threads = { .kind = READER_PREAD }, uring = { .kind = READER_URING };
    reader *r = NULL;
    err_ctx err = { 0 };
    test_begin("reader", argc, argv);
    (void)case_rows_read(&rows, "reader.txt");
    case_rows_kinds(&rows, "cut fault mix");
    test_faults();
    if (make_files() && (r = open_reader(N_FILE, &threads))) {
        at.direct = strstr(reader_name(r), ", direct") != NULL;
        reader_close(r);
        if (!at.direct) test_skip("direct reads: not in this file system");
        test_kind(READER_PREAD, "pread");
        const bool here = reader_open(&r, at.paths, N_FILE, &uring, NULL, &err) == 0;
        if (here) {
            reader_close(r);
            test_kind(READER_URING, "io_uring");
        } else if (CHECK(err.code == ERR_UNSUPPORTED)) {
            test_skip(err.msg);
        }
        test_uring_refused(!strstr(err.msg, "this build"));
    }
    remove_files();
    case_rows_free(&rows);
    return test_end();
}
