/* reader.h - reads ranges of files into RAM, many at a time, with O_DIRECT where that works.
 *
 * Two backends give the same results: io_uring, and threads that call pread, the fallback and the
 * reference. Jobs complete in any order. Owned and called by one thread at a time.
 *
 * A few requests are in flight at a time. Queued ones are sent as these complete, but only inside
 * the calls below. A caller with a long queue and other work calls reader_go_on, or now and then
 * reader_wait with min 0. */
#ifndef TIERS_READER_H
#define TIERS_READER_H

#include "loader/base.h"

typedef enum reader_kind { READER_AUTO, READER_URING, READER_PREAD } reader_kind;

enum {
    READER_PAGE = 4096,                  /* direct reads begin and end at multiples of it */
    READER_MAX_DEPTH = 256,
    /* Defaults: drives reach full speed with 2 to 8 reads of 256 KiB or more in flight. */
    READER_DEPTH = 16,                   /* of io_uring */
    READER_THREADS = 8,                  /* of pread, with one read each */
    READER_PIECE = 1 << 20
};

typedef struct reader_options {
    reader_kind kind;                    /* AUTO: io_uring if it is permitted, else pread */
    int depth;                           /* requests in flight; 0: default */
    uint32_t piece;                      /* largest request in bytes; 0: default */
    bool buffered;                       /* through the page cache, for files in it */
    bool goes_on;                        /* has a thread for reader_go_on */
} reader_options;

/* Reads bytes offset .. offset + bytes - 1 of a file to memory at `to`. Whole pages are read, so
 * to % READER_PAGE must equal offset % READER_PAGE, and memory from the start of the first page to
 * the end of the last one is overwritten. */
typedef struct read_job {
    int file;                            /* index into the paths */
    uint64_t offset, bytes;
    uint8_t *to;
    uint64_t tag;                        /* returned by reader_wait */
} read_job;

typedef struct reader reader;

/* Opens all files. If io_uring fails, AUTO uses pread; if direct reads fail, they are buffered.
 * *note (NULL is fine), a static text or "", reports such a replacement. */
int reader_open(reader **out, const char *const *paths, int n_path, const reader_options *o,
                const char **note, err_ctx *err);
void reader_close(reader *r);            /* NULL is fine; waits for reads in flight */

const char *reader_name(const reader *r);        /* "io_uring, direct": for plan lines */

/* The memory for most jobs: io_uring keeps it mapped if possible. Call once; the memory must exist
 * until the reader is closed. */
void reader_register(reader *r, void *base, uint64_t bytes);

/* Queues any number of jobs and sends them in the order of the calls. Fails only without memory for
 * the queue, and then adds no job. */
int reader_submit(reader *r, const read_job *jobs, int n, err_ctx *err);

/* Waits until at least min jobs (0 .. open jobs) are complete, writes the tags of up to cap of them
 * and returns their number. For a failed job the result is < 0, and *err names file, offset and
 * reason; it precedes all tags, is reported once, and tags[0], if cap allows, is its tag. */
int reader_wait(reader *r, uint64_t *tags, int cap, int min, err_ctx *err);
int reader_open_jobs(const reader *r);   /* submitted and not yet returned by reader_wait */

/* Until the next call, the reader's thread sends queued jobs while the caller does other work. No
 * effect without goes_on, or if the system refused the thread. */
void reader_go_on(reader *r);

/* Waits for all reads in flight and drops all jobs, failures included. */
void reader_cancel(reader *r);

#endif
