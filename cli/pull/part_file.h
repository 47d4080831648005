/* part_file.h - a download that can be gone on with: FILE.part until it is complete.
 *
 * Beside it lies FILE.part.from, one line with the size and the ETag of what the bytes are part of:
 * a later run goes on only with the same. The .part is locked while it is open. Whatever happens,
 * what has come stays, unless part_file_restart or part_file_drop says that it is of no use; a
 * .part without bytes does not stay, nor do folders that were made for it. Zero-initialise;
 * part_file_close in any case. */
#ifndef CLI_PULL_PART_FILE_H
#define CLI_PULL_PART_FILE_H

#include <limits.h>

#include "cli/pull/fetch.h"

typedef struct part_file {
    char final[PATH_MAX], part[PATH_MAX + 8], from[PATH_MAX + 16];
    size_t made;                         /* of final: what cache_directory_make says */
    bool is_open;
    int fd;
    uint64_t bytes;                      /* that are there */
    sha256 sum;                          /* of them */
    uint64_t total;                      /* of the file they are part of; FETCH_UNKNOWN */
    char etag[FETCH_ETAG_CAP];           /* "" if unknown */
    bool known;                          /* the line was there */
} part_file;

/* Makes the folders, opens and locks the .part and hashes what is in it. Refuses if something is at
 * the file's place, or another process has the .part. ERR_STOPPED if watch says so. */
int part_file_open(part_file *f, const char *final, progress_fn *watch, void *ctx, err_ctx *err);

int part_file_restart(part_file *f, err_ctx *err);       /* no byte is kept */

/* What the bytes are part of from now on. */
int part_file_note(part_file *f, uint64_t total, const char *etag, err_ctx *err);

int part_file_add(part_file *f, const void *data, size_t n, err_ctx *err);

/* Waits until all is on the disk and gives the file its name; refuses if something is there now. */
int part_file_finish(part_file *f, err_ctx *err);

void part_file_drop(part_file *f);                       /* removes it */
void part_file_close(part_file *f);

/* Bytes of FILE or FILE.part, whichever is there; 0 if neither is. *done: it is FILE. */
uint64_t part_file_have(const char *final, bool *done);

/* Bytes that the disk of a path has left; the path need not exist. */
int part_file_room(uint64_t *left, const char *path, err_ctx *err);

#endif
