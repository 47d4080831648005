/* reader_uring.c - requests by io_uring: one queue pair, no threads of our own.
 *
 * Every request is in exactly one place: prepared (in the queue, not yet taken by the kernel; the
 * kernel takes them in order), inside (the kernel may write to its memory), or given back. Nothing
 * is given back while it is inside, whatever fails. */
#include "tiers/reader_internal.h"

#include <errno.h>
#include <liburing.h>
#include <sched.h>
#include <sys/uio.h>
#include <time.h>

enum {
    KEEP_PART = 1 << 30,                 /* the most that the kernel registers in one entry ... */
    KEEP_MAX_PARTS = 1024,               /* ... and the most entries on older systems */
    OPEN_TRIES = 25,
    MAX_REFUSALS = 1000                  /* in a row, with nothing inside to wait for */
};

typedef struct uring {
    struct io_uring ring;
    bool ring_open;
    read_request *first, *last;          /* prepared */
    int n_inside;
    int n_refused;                       /* times in a row that the kernel took none */
    int dead;                            /* errno that ended asking the kernel; 0: none */
    uint8_t *kept;                       /* registered memory; NULL: none */
    uint64_t kept_bytes;
} uring;

/* ---- life ------------------------------------------------------------------------------------ */

static void uring_stop(void *self)
{
    uring *u = self;
    if (!u) return;
    if (u->ring_open) io_uring_queue_exit(&u->ring);
    mem_free(u);
}

/* Linux has had queues since 5.1, but plain reads into them since 5.6. */
static bool can_read(uring *u)
{
    struct io_uring_probe *p = io_uring_get_probe_ring(&u->ring);
    const bool can = p && io_uring_opcode_supported(p, IORING_OP_READ);
    if (p) io_uring_free_probe(p);
    return can;
}

/* Queues count as locked memory, and a closed queue's memory is given back a little later: with a
 * low limit the next queue may have to wait for it. */
static int open_queue(uring *u, int depth)
{
    const struct timespec a_little = { .tv_nsec = 2000000 };
    int rc = io_uring_queue_init((unsigned)depth, &u->ring, 0);
    for (int i = 0; rc == -ENOMEM && i < OPEN_TRIES; i++) {
        nanosleep(&a_little, NULL);
        rc = io_uring_queue_init((unsigned)depth, &u->ring, 0);
    }
    u->ring_open = rc == 0;
    return rc == 0 && !can_read(u) ? -ENOSYS : rc;
}

static int uring_start(void **self, int depth, int *room, err_ctx *err)
{
    uring *u = mem_zalloc(sizeof *u);
    int rc;
    *self = NULL;
    if (!u) return err_set(err, ERR_NOMEM, "reader: %zu bytes", sizeof *u);
    if ((rc = open_queue(u, depth)) < 0) {
        errno = -rc;
        err_sys(err, "io_uring: a queue for %d requests", depth);
        if (err) err->code = ERR_UNSUPPORTED;
        uring_stop(u);
        return ERR_UNSUPPORTED;
    }
    *room = depth;
    *self = u;
    return 0;
}

/* If locked memory is limited or used up, each read just maps its pages itself. */
static void uring_keep(void *self, void *base, uint64_t bytes)
{
    uring *u = self;
    const uint64_t n = (bytes + KEEP_PART - 1) / KEEP_PART;
    struct iovec *parts = n > 0 && n <= KEEP_MAX_PARTS ? mem_array(n, sizeof *parts) : NULL;
    if (!parts) return;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = i * KEEP_PART, left = bytes - at;
        parts[i].iov_base = (uint8_t *)base + at;
        parts[i].iov_len = (size_t)(left < KEEP_PART ? left : KEEP_PART);
    }
    if (io_uring_register_buffers(&u->ring, parts, (unsigned)n) == 0) {
        u->kept = base;
        u->kept_bytes = bytes;
    }
    mem_free(parts);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The registered part that holds all of the request, or -1. */
static int part_of(const uring *u, const read_request *rq)
{
    const uintptr_t base = (uintptr_t)u->kept, to = (uintptr_t)rq->to;
    if (!u->kept || to < base || to - base >= u->kept_bytes ||
        rq->bytes > u->kept_bytes - (to - base)) return -1;
    const uint64_t first = (to - base) / KEEP_PART, last = (to - base + rq->bytes - 1) / KEEP_PART;
    return first == last ? (int)first : -1;
}

static void uring_send(void *self, read_request *rq)
{
    uring *u = self;
    rq->next = NULL;
    if (u->first) u->last->next = rq;
    else u->first = rq;
    u->last = rq;
    if (u->dead) return;                 /* uring_reap gives it back */
    struct io_uring_sqe *e = io_uring_get_sqe(&u->ring);         /* there is one: see *room */
    const int part = part_of(u, rq);
    if (part < 0) io_uring_prep_read(e, rq->fd, rq->to, rq->bytes, rq->offset);
    else io_uring_prep_read_fixed(e, rq->fd, rq->to, rq->bytes, rq->offset, part);
    io_uring_sqe_set_data(e, rq);
}

static read_request *take_first(uring *u)
{
    read_request *rq = u->first;
    u->first = rq->next;
    return rq;
}

/* The kernel may be short of something for a moment: then the rest stays prepared, and the next
 * wait comes here again. */
static void uring_flush(void *self)
{
    uring *u = self;
    while (u->first && !u->dead) {
        const int n = io_uring_submit(&u->ring);
        if (n == -EINTR) continue;
        if (n < 0 && n != -EAGAIN && n != -EBUSY && n != -ENOMEM) u->dead = -n;
        if (n <= 0) {
            u->n_refused++;
            return;
        }
        for (int i = 0; i < n; i++) take_first(u);
        u->n_inside += n;
        u->n_refused = 0;
    }
}

static read_request *uring_reap(void *self, bool wait)
{
    uring *u = self;
    struct io_uring_cqe *c;
    for (;;) {
        if (u->n_inside > 0 && io_uring_peek_cqe(&u->ring, &c) == 0) break;
        if (u->dead && u->first) {
            read_request *rq = take_first(u);
            rq->result = -u->dead;
            return rq;
        }
        if (!wait) return NULL;
        uring_flush(u);
        if (u->n_inside > 0) {
            /* EINTR and whatever else: look again, it is still inside */
            if (io_uring_wait_cqe(&u->ring, &c) == 0) break;
        } else {
            if (u->n_refused > MAX_REFUSALS) u->dead = EAGAIN;
            sched_yield();
        }
    }
    read_request *rq = io_uring_cqe_get_data(c);
    rq->result = c->res;
    io_uring_cqe_seen(&u->ring, c);
    u->n_inside--;
    return rq;
}

const reader_backend reader_uring = {
    .name = "io_uring", .depth = READER_DEPTH, .built = true, .start = uring_start,
    .stop = uring_stop, .keep = uring_keep, .send = uring_send, .flush = uring_flush,
    .reap = uring_reap,
};
