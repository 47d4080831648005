/* part_file.h - a resumable download: the bytes are in FILE.part until the file is complete.
 *
 * FILE.part.from has one line: size and ETag of the file on the server. A later run resumes only if
 * both still match. The .part is locked while it is open. Downloaded bytes stay after any failure,
 * unless part_file_restart or part_file_drop is called. An empty .part and the folders made for it
 * are removed. Zero-initialise; call part_file_close in any case. */
#ifndef CLI_PULL_PART_FILE_H
#define CLI_PULL_PART_FILE_H

#include <limits.h>

#include "cli/pull/fetch.h"

typedef struct part_file {
    char final[PATH_MAX], part[PATH_MAX + 8], from[PATH_MAX + 16];
    size_t made;                         /* result of cache_directory_make(final) */
    bool is_open;
    int fd;
    uint64_t bytes;                      /* in the .part */
    sha256 sum;                          /* of these bytes */
    uint64_t total;                      /* bytes of the complete file, or FETCH_UNKNOWN */
    char etag[FETCH_ETAG_CAP];           /* "" if unknown */
    bool has_source;                     /* the .from file has total and etag */
} part_file;

/* Makes the folders, opens and locks the .part and hashes its bytes. Refuses if FILE exists or
 * another process has locked the .part. ERR_STOPPED if watch returns false. */
int part_file_open(part_file *f, const char *final, progress_fn *watch, void *ctx, err_ctx *err);

int part_file_restart(part_file *f, err_ctx *err);       /* empties the .part */

/* Writes size and ETag of the file on the server to the .from file. */
int part_file_set_source(part_file *f, uint64_t total, const char *etag, err_ctx *err);

int part_file_add(part_file *f, const void *data, size_t n, err_ctx *err);

/* Waits until all bytes are on the disk and renames the .part; refuses if FILE exists. */
int part_file_finish(part_file *f, err_ctx *err);

void part_file_drop(part_file *f);                       /* removes .part and .from */
void part_file_close(part_file *f);

/* Bytes of FILE, or else of FILE.part; 0 if neither exists. *done: FILE exists. */
uint64_t part_file_size(const char *final, bool *done);

/* Free bytes of the disk that path is on; the path need not exist. */
int part_file_disk_free(uint64_t *left, const char *path, err_ctx *err);

#endif
