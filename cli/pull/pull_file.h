/* pull_file.h - downloads one file of a model: from where an earlier run stopped, with as many
 * tries as it takes, and checked before it gets its name. */
#ifndef CLI_PULL_PULL_FILE_H
#define CLI_PULL_PULL_FILE_H

#include "cli/console.h"
#include "cli/pull/part_file.h"

typedef struct pull_wish {
    const char *url, *path;              /* from, to */
    const char *token;                   /* NULL: none */
    str_view sha256;                     /* that it must have; empty: whatever the server names */
    uint64_t bytes;                      /* that it must have; 0: not known to the byte */
    uint64_t most_bytes;                 /* what comes after these is not taken */
    bool accept_changed;                 /* the two above may differ */
    int retries;                         /* in a row that bring nothing */
    int timeout_s;
    progress *bar;                       /* borrowed; shows before + what is there */
    uint64_t before;
} pull_wish;

typedef enum pull_check { PULL_UNCHECKED, PULL_BY_SERVER, PULL_BY_LIST } pull_check;

typedef struct pull_result {
    uint64_t bytes, downloaded;          /* of the file; of them in this run */
    char sha256[SHA256_TEXT];
    pull_check check;                    /* what the sum was compared with */
    uint64_t kept;                       /* after a failure: bytes in PATH.part */
} pull_result;

/* 0, and the file is at its path. < 0: it is not, and result->kept bytes can be gone on with.
 * ERR_STOPPED if interrupted(). Nothing is ever overwritten. */
int pull_file(pull_result *result, const pull_wish *w, err_ctx *err);

#endif
