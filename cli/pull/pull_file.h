/* pull_file.h - downloads one file of a model.
 *
 * Resumes an earlier run's download, retries after temporary errors, and checks size and SHA-256
 * before the file gets its name. */
#ifndef CLI_PULL_PULL_FILE_H
#define CLI_PULL_PULL_FILE_H

#include "cli/console.h"
#include "cli/pull/part_file.h"

typedef struct pull_request {
    const char *url, *path;
    const char *token;                   /* NULL: none */
    str_view sha256;                     /* expected; empty: the server's, if it sends one */
    uint64_t bytes;                      /* expected; 0: not known exactly */
    uint64_t most_bytes;                 /* limit of the file's size */
    bool accept_changed;                 /* sha256, bytes and most_bytes may differ */
    int retries;                         /* in a row without progress */
    int timeout_s;
    progress *bar;                       /* borrowed; shows before + bytes of this file */
    uint64_t before;                     /* bytes of the model's earlier files */
} pull_request;

typedef enum pull_check { PULL_UNCHECKED, PULL_BY_SERVER, PULL_BY_LIST } pull_check;

typedef struct pull_result {
    uint64_t bytes, downloaded;          /* of the file; of this run */
    char sha256[SHA256_TEXT];
    pull_check check;                    /* whose SHA-256 the sum was compared with */
    uint64_t kept;                       /* after a failure: bytes in PATH.part */
} pull_result;

/* 0: the file is at its path. < 0: a later call resumes after result->kept bytes. ERR_STOPPED if
 * interrupted(). Existing files are never overwritten. */
int pull_file(pull_result *result, const pull_request *w, err_ctx *err);

#endif
