/* reader_internal.h - between reader.c, which knows jobs, and the two ways to read, which know
 * requests.
 *
 * A backend is handed requests and gives each back once, in any order, with what the system said;
 * reader.c decides what that means (go on, again, failed). Called by one thread at a time. */
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
    uint64_t reached;                    /* byte of the file that a read got to; 0: none yet */
    int n_again;                         /* times that the system said "later" */
    bool direct;                         /* the file was open for direct reads when it was sent */
} read_request;

typedef struct reader_backend {
    const char *name;
    int depth;                           /* the good number */
    bool built;                          /* false: this build does not have it, and start fails */

    /* depth is within 1..READER_MAX_DEPTH. *room is how many requests it takes at a time.
     * ERR_UNSUPPORTED: the system does not let us; something else may still work. */
    int (*start)(void **self, int depth, int *room, err_ctx *err);
    void (*stop)(void *self);            /* when all requests have been given back */
    void (*keep)(void *self, void *base, uint64_t bytes);        /* reader_register */

    void (*send)(void *self, read_request *rq);
    void (*flush)(void *self);           /* after some sends: submits them */
    /* A request that is complete. NULL if there is none; with wait, which needs at least one that
     * was sent, never NULL. */
    read_request *(*reap)(void *self, bool wait);
} reader_backend;

extern const reader_backend reader_uring, reader_pread;

#endif
