/* reader_internal.h - the interface of reader.c, which has jobs, and the two backends, which have
 * requests.
 *
 * A backend receives requests and returns each one once, in any order, with the system's result;
 * reader.c then continues, retries or fails the job. Called by one thread at a time. */
#ifndef TIERS_READER_INTERNAL_H
#define TIERS_READER_INTERNAL_H

#include "tiers/reader.h"

struct job;

typedef struct read_request {
    struct read_request *next;           /* for the lists of its current holder */
    int fd;
    uint32_t bytes;                      /* whole pages, at most 1 GiB */
    uint64_t offset;                     /* a multiple of READER_PAGE, like to */
    uint8_t *to;
    int result;                          /* set by the backend: bytes, or -errno */

    /* reader.c's */
    struct job *job;
    uint64_t reached;                    /* end of the bytes read so far in the file; 0: none */
    int n_again;                         /* number of EAGAIN results */
    bool direct;                         /* the file was open for direct reads when it was sent */
} read_request;

typedef struct reader_backend {
    const char *name;
    int depth;                           /* the default */
    bool built;                          /* false: not in this build, and start fails */

    /* depth is within 1..READER_MAX_DEPTH. *room: requests that it accepts at a time.
     * ERR_UNSUPPORTED: the system refuses it; the other backend may work. */
    int (*start)(void **self, int depth, int *room, err_ctx *err);
    void (*stop)(void *self);            /* when all requests have been given back */
    void (*keep)(void *self, void *base, uint64_t bytes);        /* reader_register */

    void (*send)(void *self, read_request *rq);
    void (*flush)(void *self);           /* after some sends: submits them */
    /* A complete request, or NULL. With wait at least one request must be in flight, and the result
     * is not NULL. */
    read_request *(*reap)(void *self, bool wait);
} reader_backend;

extern const reader_backend reader_uring, reader_pread;

#endif
