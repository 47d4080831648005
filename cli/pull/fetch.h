/* fetch.h - one HTTP transfer: the bytes of a URL from an offset on.
 *
 * Redirects are followed here, not by libcurl, so that only the origin (scheme, host and port) of
 * the first URL gets the token. A redirect from https to http is refused. One transfer at a time.
 * Builds without libcurl use fetch_stub.c. */
#ifndef CLI_PULL_FETCH_H
#define CLI_PULL_FETCH_H

#include "cli/pull/sha256.h"
#include "loader/base.h"

#define FETCH_UNKNOWN UINT64_MAX

enum { FETCH_ETAG_CAP = 256 };

/* The response's status and headers. */
typedef struct fetch_head {
    long status;
    uint64_t offset;                     /* of the body's first byte in the file */
    uint64_t total;                      /* bytes of the whole file, or FETCH_UNKNOWN */
    char etag[FETCH_ETAG_CAP];           /* with quotes; "": none, or a weak one */
    char sha256[SHA256_TEXT];            /* X-Linked-Etag of huggingface.co, or "" */
    int retry_after_s;                   /* 0: no such header */
} fetch_head;

typedef struct fetch_request {
    const char *url;
    const char *token;                   /* for the origin of url alone; NULL: none */
    uint64_t offset;                     /* 0: the whole file */
    const char *if_range;                /* ETag of the bytes before offset; "": unknown */
    int timeout_s;                       /* without a byte */

    /* With status 200 or 206, begin is called once before the first byte, then data for each
     * buffer of the body. < 0 with err filled ends the transfer with that. */
    int (*begin)(void *ctx, const fetch_head *head, err_ctx *err);
    int (*data)(void *ctx, const void *bytes, size_t n, err_ctx *err);
    keep_going_fn *keep_going;           /* several times a second; false: ERR_STOPPED */
    void *ctx;
} fetch_request;

/* NULL if this build has libcurl; otherwise an error message with the remedy. */
const char *fetch_missing(void);

/* Whether text is a URL of http or https without a query or a fragment. */
bool fetch_is_base(const char *text);

/* Whether a token may be sent to this URL: over https, or to this machine. */
bool fetch_may_send_token(const char *url);

/* 0 if all announced bytes have arrived. Otherwise < 0 with err filled; *again: a retry may succeed
 * (a cut connection, a busy server). head->status is 0 if no response arrived. */
int fetch_get(fetch_head *head, bool *again, const fetch_request *r, err_ctx *err);

#endif
