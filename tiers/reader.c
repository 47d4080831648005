/* reader.c - shared by both backends: files, the queue of jobs, splitting jobs into requests and
 * joining their results, and short reads.
 *
 * A job is free, or waiting (some of its bytes are not yet sent), or out (all are sent, or no more
 * will be), or complete (no request of it is left; its bytes have arrived, or it has failed). A
 * request belongs to one job. Its memory is the backend's until the backend returns the request.
 * The backends do the reading: reader_uring.c, reader_pread.c. */
#include "tiers/reader_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/background_worker.h"
#include "tiers/fault_injection.h"

enum {
    ENDED = -1,                          /* job.why: the file ends before the job does */
    MAX_AGAIN = 1000,                    /* "later" this often for one request is a failure */
    JOB_BLOCK = 1024,                    /* jobs that can be kept without another allocation */
    MAX_PIECE = 1 << 30
};

typedef struct job {
    struct job *next;
    read_job want;
    uint64_t at, end;                    /* of the file, whole pages: what is not yet sent */
    int n_request;                       /* with the backend */
    int why;                             /* errno of the first failure, or ENDED; 0: none */
    uint64_t where;                      /* the byte of the file at which it failed */
} job;

typedef struct job_list { job *first, *last; } job_list;

/* Jobs do not move: requests point at them. */
typedef struct job_block {
    struct job_block *next;
    int n;
    job jobs[];
} job_block;

typedef struct reader_file {
    char *path;
    int fd;
    bool direct;
} reader_file;

struct reader {
    const reader_backend *backend;
    void *self;                          /* the backend's; NULL: not started */
    reader_file *files;
    int n_file;
    uint32_t piece;
    char name[32];
    bool registered;

    job_block *blocks;
    job_list free, waiting, complete, failed;
    int n_free, n_open, n_complete;      /* n_complete counts both of the last two lists */

    read_request *requests;
    read_request *idle;
    int n_busy;                          /* with the backend: all others are idle */
    background_worker *aside;            /* reader_go_on; or NULL */
};

/* ---- lists ----------------------------------------------------------------------------------- */

static void list_put(job_list *l, job *j)
{
    j->next = NULL;
    if (l->first) l->last->next = j;
    else l->first = j;
    l->last = j;
}

static job *list_take(job_list *l)
{
    job *j = l->first;
    l->first = j->next;
    return j;
}

static void free_job(reader *r, job *j)
{
    list_put(&r->free, j);
    r->n_free++;
    r->n_open--;
}

/* Room for n more jobs. */
static int reserve(reader *r, int n, err_ctx *err)
{
    if (n <= r->n_free) return 0;
    const int more = n - r->n_free > JOB_BLOCK ? n - r->n_free : JOB_BLOCK;
    const size_t bytes = sizeof(job_block) + (size_t)more * sizeof(job);
    job_block *b = mem_zalloc(bytes);
    if (!b) return err_set(err, ERR_NOMEM, "reader: %zu bytes for %d jobs", bytes, more);
    b->n = more;
    b->next = r->blocks;
    r->blocks = b;
    for (int i = 0; i < more; i++) list_put(&r->free, &b->jobs[i]);
    r->n_free += more;
    return 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

static void set_name(reader *r)
{
    bool direct = true;
    for (int i = 0; i < r->n_file; i++) direct &= r->files[i].direct;
    snprintf(r->name, sizeof r->name, "%s, %s", r->backend->name, direct ? "direct" : "buffered");
}

/* What a file system returns that has no direct reads, or none with our page size. */
static bool is_refusal(int why) { return why == EINVAL || why == EOPNOTSUPP; }

static void stop_direct(reader_file *f)
{
    const int flags = fcntl(f->fd, F_GETFL);
    /* if this cannot be undone, the next read fails, and says so */
    if (flags >= 0) (void)fcntl(f->fd, F_SETFL, flags & ~O_DIRECT);
    f->direct = false;
}

/* Some file systems grant O_DIRECT and then refuse the reads: better to know now. Any other failure
 * will come again when it matters. */
static bool refuses_direct_reads(int fd)
{
    _Alignas(READER_PAGE) uint8_t page[READER_PAGE];
    return fault_hits(FAULT_DIRECT) || (pread(fd, page, sizeof page, 0) < 0 && is_refusal(errno));
}

static int open_file(reader_file *f, const char *path, bool direct, err_ctx *err)
{
    struct stat st;
    char shown[400];
    const char *name = ESC(shown, str_from(path));
    f->path = mem_strdup_n(path, strlen(path));
    if (!f->path) return err_set(err, ERR_NOMEM, "reader: out of memory for the name of %s", name);
    if (direct) {
        errno = EINVAL;
        if (!fault_hits(FAULT_DIRECT)) f->fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
        if (f->fd < 0 && !is_refusal(errno)) return err_sys(err, "%s: cannot open", name);
        f->direct = f->fd >= 0;
    }
    if (f->fd < 0) f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0) return err_sys(err, "%s: cannot open", name);
    if (fstat(f->fd, &st) < 0) return err_sys(err, "%s: cannot look at it", name);
    if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
        return err_set(err, ERR_IO, "%s: not a file", name);
    if (f->direct && refuses_direct_reads(f->fd)) stop_direct(f);
    return 0;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void send_request(reader *r, read_request *rq)
{
    rq->direct = r->files[rq->job->want.file].direct;
    r->backend->send(r->self, rq);
    r->n_busy++;
}

/* The next request of a job. All are about equally large: a small last one would not pay. */
static void send_piece(reader *r, job *j)
{
    read_request *rq = r->idle;
    const uint64_t left = j->end - j->at, n = (left + r->piece - 1) / r->piece;
    const uint64_t page = j->want.offset & ~(uint64_t)(READER_PAGE - 1);
    r->idle = rq->next;
    *rq = (read_request){
        .fd = r->files[j->want.file].fd,
        .bytes = (uint32_t)size_align((left + n - 1) / n, READER_PAGE), .offset = j->at,
        .to = j->want.to - (j->want.offset - page) + (j->at - page), .job = j,
    };
    j->at += rq->bytes;
    j->n_request++;
    send_request(r, rq);
}

static void send_waiting(reader *r)
{
    while (r->waiting.first && r->idle) {
        job *j = r->waiting.first;
        send_piece(r, j);
        if (j->at == j->end) list_take(&r->waiting);
    }
    r->backend->flush(r->self);
}

static void finish_if_done(reader *r, job *j)
{
    if (j->n_request > 0 || j->at < j->end) return;
    list_put(j->why ? &r->failed : &r->complete, j);
    r->n_complete++;
}

int reader_submit(reader *r, const read_job *jobs, int n, err_ctx *err)
{
    background_worker_end(r->aside);
    const int rc = reserve(r, n, err);
    if (rc < 0) return rc;
    for (int i = 0; i < n; i++) {
        const read_job *w = &jobs[i];
        assert(w->file >= 0 && w->file < r->n_file && w->offset + w->bytes >= w->offset &&
               (uintptr_t)w->to % READER_PAGE == w->offset % READER_PAGE);
        job *j = list_take(&r->free);
        r->n_free--;
        r->n_open++;
        *j = (job){
            .want = *w, .at = w->offset & ~(uint64_t)(READER_PAGE - 1),
            .end = size_align(w->offset + w->bytes, READER_PAGE),
        };
        if (w->bytes == 0) j->at = j->end;
        if (j->at < j->end) list_put(&r->waiting, j);
        else finish_if_done(r, j);
    }
    send_waiting(r);
    return 0;
}

/* ---- taking in ------------------------------------------------------------------------------- */

/* What tests have armed, in place of what happened. A read made short is spoilt past what it
 * claims, so that the rest must be read; each time it gets at least a page further, except once. */
static void inject(read_request *rq)
{
    const int n = rq->result;
    if (rq->direct && fault_hits(FAULT_DIRECT)) rq->result = -EINVAL;
    if (fault_hits(FAULT_READ_ERROR)) rq->result = -EIO;
    if (fault_hits(FAULT_READ_END)) rq->result = 0;
    if (n > READER_PAGE / 2 && (n > READER_PAGE || rq->reached <= rq->offset) &&
        fault_hits(FAULT_READ_SHORT)) {
        rq->result = n / 2 + (n > READER_PAGE ? READER_PAGE / 2 : 0);
        memset(rq->to + rq->result, 0xDB, (size_t)(n - rq->result));
    }
}

/* Nothing more of the job is sent; what is in flight comes in and is ignored. */
static void fail_job(reader *r, job *j, int why, uint64_t where)
{
    if (j->at < j->end) {
        assert(j == r->waiting.first);   /* requests of one job are sent before the next job's */
        list_take(&r->waiting);
        j->at = j->end;
    }
    if (j->why) return;
    j->why = why;
    j->where = where;
}

/* Judges a read: true if the request is done, false if it must be sent again for the rest. */
static bool judge(reader *r, read_request *rq)
{
    job *j = rq->job;
    const uint64_t job_end = j->want.offset + j->want.bytes, end = rq->offset + rq->bytes;
    const uint64_t need = end < job_end ? end : job_end;         /* the last page may be cut off */

    if (rq->result < 0) {
        const int why = -rq->result;
        if (is_refusal(why) && rq->direct) {
            stop_direct(&r->files[j->want.file]);
            set_name(r);
            return false;
        }
        /* ECANCELED: the thread that sent it has ended */
        if ((why == EINTR || why == EAGAIN || why == ECANCELED) && rq->n_again++ < MAX_AGAIN)
            return false;
        fail_job(r, j, why, rq->offset);
        return true;
    }
    const uint64_t reached = rq->offset + (uint64_t)rq->result;
    if (reached >= need) return true;
    if (rq->result == 0 || reached <= rq->reached) {
        fail_job(r, j, ENDED, reached);
        return true;
    }
    /* Direct reads begin at whole pages. A file that ends inside one ends there again next time. */
    const uint64_t step = (uint64_t)rq->result & ~(uint64_t)(READER_PAGE - 1);
    rq->reached = reached;
    rq->offset += step;
    rq->to += step;
    rq->bytes -= (uint32_t)step;
    return false;
}

static void take_in(reader *r, read_request *rq)
{
    job *j = rq->job;
    r->n_busy--;
    inject(rq);
    if (!judge(r, rq) && !j->why) {      /* nothing more of a failed job is sent */
        send_request(r, rq);
        return;
    }
    rq->next = r->idle;
    r->idle = rq;
    j->n_request--;
    finish_if_done(r, j);
}

/* Takes in what has been read, with wait at least one request if any is out, and sends more. */
static void turn(reader *r, bool wait)
{
    read_request *rq;
    while ((rq = r->backend->reap(r->self, wait && r->n_busy > 0))) {
        wait = false;
        take_in(r, rq);
    }
    send_waiting(r);
}

/* The message for a job that failed. */
static int tell_failure(const reader *r, const job *j, err_ctx *err)
{
    const reader_file *f = &r->files[j->want.file];
    const unsigned long long first = j->want.offset, last = first + j->want.bytes - 1;
    unsigned long long where = j->where;
    char shown[400];
    struct stat st;

    ESC(shown, str_from(f->path));
    if (j->why != ENDED) {
        errno = j->why;
        return err_sys(err, "%s: cannot read at byte %llu (for bytes %llu..%llu)", shown, where,
                       first, last);
    }
    /* the read gave nothing somewhere past the end: the file knows where the end is */
    if (fstat(f->fd, &st) == 0 && S_ISREG(st.st_mode) && (unsigned long long)st.st_size < where)
        where = (unsigned long long)st.st_size;
    return err_set(err, ERR_IO, "%s: ends at byte %llu, but bytes %llu..%llu are wanted: was it "
                   "cut while in use?", shown, where, first, last);
}

int reader_wait(reader *r, uint64_t *tags, int cap, int min, err_ctx *err)
{
    int n = 0;
    background_worker_end(r->aside);
    if (min > r->n_open) min = r->n_open;
    turn(r, false);
    while (r->n_complete < min && !r->failed.first) turn(r, true);
    if (r->failed.first) {
        job *j = list_take(&r->failed);
        const int rc = tell_failure(r, j, err);
        if (cap > 0) tags[0] = j->want.tag;
        r->n_complete--;
        free_job(r, j);
        return rc;
    }
    for (; n < cap && r->complete.first; n++) {
        job *j = list_take(&r->complete);
        tags[n] = j->want.tag;
        r->n_complete--;
        free_job(r, j);
    }
    return n;
}

/* ---- without the caller ---------------------------------------------------------------------- */

static bool go_on(void *self)
{
    reader *r = self;
    if (r->n_busy > 0) turn(r, true);
    return r->n_busy > 0;
}

void reader_go_on(reader *r)
{
    if (r->aside && r->n_open > 0) background_worker_begin(r->aside);
}

void reader_cancel(reader *r)
{
    background_worker_end(r->aside);
    while (r->n_busy > 0) {
        read_request *rq = r->backend->reap(r->self, true);
        r->n_busy--;
        rq->next = r->idle;
        r->idle = rq;
    }
    r->free = r->waiting = r->complete = r->failed = (job_list){ NULL, NULL };
    r->n_free = r->n_open = r->n_complete = 0;
    for (job_block *b = r->blocks; b; b = b->next) {
        for (int i = 0; i < b->n; i++) list_put(&r->free, &b->jobs[i]);
        r->n_free += b->n;
    }
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* Only this file knows which texts go together, and they are static: hence a table. */
#define NOT_PERMITTED "io_uring is not permitted here: reading with threads"
#define NOT_BUILT "this build has no io_uring: reading with threads"
#define NOT_DIRECT "direct reads are refused here: reading through the page cache"
static const char *const notes[3][2] = {
    { "", NOT_DIRECT },
    { NOT_PERMITTED, NOT_PERMITTED "; " NOT_DIRECT },
    { NOT_BUILT, NOT_BUILT "; " NOT_DIRECT },
};

static int start_one(reader *r, const reader_backend *b, const reader_options *o, err_ctx *err)
{
    const int depth = o->depth > 0 ? o->depth : b->depth;
    int n, rc = 0;
    if (b == &reader_uring && fault_hits(FAULT_URING))
        rc = err_set(err, ERR_UNSUPPORTED, "io_uring: Operation not permitted");
    if (rc == 0) rc = b->start(&r->self, depth, &n, err);
    if (rc < 0) return rc;
    r->backend = b;
    r->requests = mem_array((size_t)n, sizeof *r->requests);
    if (!r->requests) return err_set(err, ERR_NOMEM, "reader: out of memory for %d requests", n);
    for (int i = 0; i < n; i++) {
        r->requests[i].next = r->idle;
        r->idle = &r->requests[i];
    }
    return 0;
}

/* *instead: row of notes. */
static int start_backend(reader *r, const reader_options *o, int *instead, err_ctx *err)
{
    *instead = 0;
    if (o->kind != READER_PREAD) {
        const int rc = start_one(r, &reader_uring, o, err);
        if (rc != ERR_UNSUPPORTED || o->kind == READER_URING) return rc;
        *instead = reader_uring.built ? 1 : 2;
    }
    return start_one(r, &reader_pread, o, err);
}

static int open_files(reader *r, const char *const *paths, int n_path, bool direct, err_ctx *err)
{
    r->files = mem_array((size_t)n_path, sizeof *r->files);
    if (!r->files) return err_set(err, ERR_NOMEM, "reader: out of memory for %d files", n_path);
    for (int i = 0; i < n_path; i++) {
        r->files[i] = (reader_file){ .fd = -1 };
        r->n_file = i + 1;
        const int rc = open_file(&r->files[i], paths[i], direct, err);
        if (rc < 0) return rc;
    }
    return 0;
}

int reader_open(reader **out, const char *const *paths, int n_path, const reader_options *o,
                const char **note, err_ctx *err)
{
    bool refused = false;
    int instead, rc;
    *out = NULL;
    if (note) *note = "";
    if (o->depth < 0 || o->depth > READER_MAX_DEPTH)
        return err_set(err, ERR_RANGE, "reader: %d requests in flight are not within 0..%d",
                       o->depth, READER_MAX_DEPTH);
    reader *r = mem_zalloc(sizeof *r);
    if (!r) return err_set(err, ERR_NOMEM, "reader: %zu bytes", sizeof *r);
    r->piece = o->piece == 0 ? READER_PIECE : o->piece < MAX_PIECE ? o->piece : MAX_PIECE;
    r->piece = r->piece < READER_PAGE ? READER_PAGE : r->piece & ~(uint32_t)(READER_PAGE - 1);
    if ((rc = open_files(r, paths, n_path, !o->buffered, err)) < 0) goto fail;
    if ((rc = reserve(r, JOB_BLOCK, err)) < 0) goto fail;
    if ((rc = start_backend(r, o, &instead, err)) < 0) goto fail;
    if (o->goes_on) (void)background_worker_create(&r->aside, go_on, r, NULL);
    set_name(r);
    for (int i = 0; i < n_path; i++) refused |= !o->buffered && !r->files[i].direct;
    if (note) *note = notes[instead][refused];
    *out = r;
    return 0;
fail:
    reader_close(r);
    return rc;
}

void reader_close(reader *r)
{
    if (!r) return;
    if (r->self) {
        reader_cancel(r);
        background_worker_free(r->aside);
        r->backend->stop(r->self);
    }
    for (int i = 0; i < r->n_file; i++) {
        if (r->files[i].fd >= 0) close(r->files[i].fd);
        mem_free(r->files[i].path);
    }
    while (r->blocks) {
        job_block *b = r->blocks;
        r->blocks = b->next;
        mem_free(b);
    }
    mem_free(r->requests);
    mem_free(r->files);
    mem_free(r);
}

const char *reader_name(const reader *r)
{
    background_worker_end(r->aside);
    return r->name;
}

int reader_open_jobs(const reader *r) { return r->n_open; }

void reader_register(reader *r, void *base, uint64_t bytes)
{
    background_worker_end(r->aside);
    assert(!r->registered);
    r->registered = true;
    r->backend->keep(r->self, base, bytes);
}
