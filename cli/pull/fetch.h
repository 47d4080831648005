/* fetch.h - one HTTP transfer: the bytes of an address from some offset on.
 *
 * Follows redirects itself, so that it can keep the token to the origin (scheme, host and port) of
 * the address asked for: whatever that redirects to never sees it. A redirect from https to http is
 * refused. One transfer at a time. fetch_stub.c stands in where there is no libcurl. */
#ifndef CLI_PULL_FETCH_H
#define CLI_PULL_FETCH_H

#include "cli/pull/sha256.h"
#include "loader/base.h"

#define FETCH_UNKNOWN UINT64_MAX

enum { FETCH_ETAG_CAP = 256 };

/* What the server said before the first byte. */
typedef struct fetch_head {
    long status;
    uint64_t from;                       /* where its bytes begin */
    uint64_t total;                      /* of the whole file; FETCH_UNKNOWN if it does not tell */
    char etag[FETCH_ETAG_CAP];           /* with its quotes; "" if there is none, or a weak one */
    char sha256[SHA256_TEXT];            /* that huggingface.co's X-Linked-Etag names; or "" */
    int retry_after_s;                   /* 0: not said */
} fetch_head;

typedef struct fetch_request {
    const char *url;
    const char *token;                   /* for the origin of url alone; NULL: none */
    uint64_t from;                       /* 0: the whole file */
    const char *if_range;                /* ETag of what is there already; "": unknown */
    int timeout_s;                       /* without a byte */

    /* Called once, before the first byte, if the status is 200 or 206; then data for each piece.
     * < 0 with err filled ends the transfer with that. */
    int (*begin)(void *ctx, const fetch_head *head, err_ctx *err);
    int (*data)(void *ctx, const void *bytes, size_t n, err_ctx *err);
    keep_going_fn *keep_going;           /* several times a second; false: ERR_STOPPED */
    void *ctx;
} fetch_request;

/* NULL if addresses can be fetched; otherwise what to do about it. */
const char *fetch_missing(void);

/* Whether text is an address of http or https that a path can be added to. */
bool fetch_is_base(const char *text);

/* Whether a token may travel to this address: over https, or to this machine. */
bool fetch_may_send_token(const char *url);

/* 0 if all that the server announced has come. Otherwise < 0 with err filled; *again says whether
 * the same request may do better later (a cut connection, a server that is busy). *head holds what
 * was said; its status is 0 if nothing was. */
int fetch_get(fetch_head *head, bool *again, const fetch_request *r, err_ctx *err);

#endif
