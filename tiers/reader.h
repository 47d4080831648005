/* reader.h - reads pieces of files into RAM, many at a time, past the page cache where that works.
 *
 * Two kinds with the same results: io_uring, and threads that call pread, which is the fallback and
 * the reference. Jobs complete in any order. Owned and called by one thread at a time.
 *
 * The system has a few requests at a time; as they complete, queued ones are sent, but only inside
 * the calls below. A caller with much queued and other work to do calls reader_go_on, or sometimes
 * reader_wait with min 0. */
#ifndef TIERS_READER_H
#define TIERS_READER_H

#include "loader/base.h"

typedef enum reader_kind { READER_AUTO, READER_URING, READER_PREAD } reader_kind;

enum {
    READER_PAGE = 4096,                  /* direct reads begin and end at multiples of it */
    READER_MAX_DEPTH = 256,
    /* Good numbers: drives are at full speed with 2 to 8 reads of 256 KiB or more in flight. */
    READER_DEPTH = 16,                   /* of io_uring */
    READER_THREADS = 8,                  /* of pread: as many are in flight */
    READER_PIECE = 1 << 20
};

typedef struct reader_options {
    reader_kind kind;                    /* AUTO: io_uring if it is permitted, else pread */
    int depth;                           /* requests in flight; 0: a good number */
    uint32_t piece;                      /* largest request in bytes; 0: a good number */
    bool buffered;                       /* through the page cache: for files that are in it */
    bool goes_on;                        /* has a thread for reader_go_on */
} reader_options;

/* Bytes offset .. offset + bytes - 1 of a file to memory at to. Whole pages around them are read:
 * `to` must lie in its page as offset does in its own (to % READER_PAGE == offset % READER_PAGE),
 * and the memory from the beginning of the first page to the end of the last one is overwritten. */
typedef struct read_job {
    int file;                            /* index into the paths */
    uint64_t offset, bytes;
    uint8_t *to;
    uint64_t tag;                        /* handed back */
} read_job;

typedef struct reader reader;

/* Opens all files. What does not work is replaced, and *note (NULL is fine), a static text or "",
 * says so: io_uring by pread, unless it was asked for by name; direct reads by buffered ones. */
int reader_open(reader **out, const char *const *paths, int n_path, const reader_options *o,
                const char **note, err_ctx *err);
void reader_close(reader *r);            /* NULL is fine; waits for what is in flight */

const char *reader_name(const reader *r);        /* "io_uring, direct": for plan lines */

/* Memory that most jobs read into: the kernel keeps it mapped where that is possible and useful.
 * Call it once; the memory must stay until the reader is closed. */
void reader_register(reader *r, void *base, uint64_t bytes);

/* Any number of jobs: those that do not fit are kept and sent as others complete, in the order of
 * the calls. Fails only if there is no memory to keep them in, and then takes none. */
int reader_submit(reader *r, const read_job *jobs, int n, err_ctx *err);

/* Waits until at least min jobs (0: none; at most those open) are complete, and gives the tags of
 * up to cap of them; returns how many. A job that failed is an error that names the file, the
 * offset and the reason, once, and before any tags; tags[0] is then its tag, if cap allows, and it
 * is no longer open. */
int reader_wait(reader *r, uint64_t *tags, int cap, int min, err_ctx *err);
int reader_open_jobs(const reader *r);   /* submitted and not yet handed back */

/* Until the next call, queued jobs are sent by a thread of the reader's own: for a caller that has
 * other work for a while. Does nothing for a reader without goes_on, or whose thread the system
 * refused. */
void reader_go_on(reader *r);

/* Waits for all that is in flight and forgets it, failures included. */
void reader_cancel(reader *r);

#endif
