/* http.h - the server's network side: requests in, answers and streams out, on libmicrohttpd.
 *
 * Each socket has a thread for all of its network, which never waits for the engine: a request is
 * looked at when its head is there, and handed to the handler when its body is complete, one at a
 * time. What others write to it goes into a buffer that the network sends as fast as the client
 * takes it. A client that leaves is noticed at once, also while nothing is sent, and its exchange
 * says so to whoever works for it; one that only closes its own side counts as one that leaves.
 * Limits hold before anything is parsed: sizes, times, connections; malformed or ambiguous requests
 * are refused here.
 *
 * An exchange is one request and its answer. The handler answers it at once, or keeps it and
 * answers from another thread, in one piece or as a stream. */
#ifndef CLI_SERVE_HTTP_H
#define CLI_SERVE_HTTP_H

#include "loader/base.h"

typedef struct http_server http_server;
typedef struct http_exchange http_exchange;

/* Called on the network's thread: it must not wait. x is good until it returns, or until
 * http_release if http_keep was called. Without an answer and without http_keep it is a 500. */
typedef void http_handler(void *ctx, http_exchange *x);

/* Called on it when the head is complete, before any of the body is taken; it may answer, and then
 * there is no body. */
typedef void http_head(void *ctx, http_exchange *x);

/* Called when an exchange has ended, with the status that went out; 0: nothing did. */
typedef void http_done(void *ctx, const http_exchange *x, int status);

typedef struct http_options {
    const char *address;                 /* "127.0.0.1", "::1", "0.0.0.0"; NULL: no TCP */
    int port;                            /* 0: any that is free */
    const char *unix_path;               /* NULL: no such socket */
    uint64_t most_body;                  /* bytes; larger bodies are 413 */
    uint64_t most_bodies;                /* of all bodies that are held; 0: no limit. More: 503 */
    int most_connections;
    int patience_s;                      /* without progress of a request; 0: 60 */
    http_head *head;                     /* or NULL */
    http_handler *handler;
    http_done *done;                     /* or NULL */
    void *ctx;
} http_options;

/* Listens when it returns. A socket file that nobody listens on is replaced. */
int http_start(http_server **out, const http_options *o, err_ctx *err);
int http_port(const http_server *s);             /* of TCP; 0: none */
int http_connections(const http_server *s);

/* No new connections. Running exchanges go on. */
void http_quiesce(http_server *s);
/* Waits until every answer is sent, or clock_ns() reaches deadline_ns. True: all are sent. */
bool http_wait_idle(http_server *s, uint64_t deadline_ns);
/* Ends all of them, and everything else. NULL is fine. Kept exchanges must have been released. */
void http_stop(http_server *s);

/* ---- the request: headers and query in the handler alone ------------------------------------- */

/* 0, or why it cannot be taken: 400 malformed, 413 too large, 415 a body in another coding, 503 too
 * many bodies. Then it has no body, and the handler has to answer at once. what: a sentence. */
int http_problem(const http_exchange *x, const char **what);
const char *http_method(const http_exchange *x);         /* "GET" */
const char *http_path(const http_exchange *x);           /* without the query */
const char *http_header(const http_exchange *x, const char *name);       /* or NULL */
const char *http_query(const http_exchange *x, const char *name);        /* or NULL */
str_view http_body(const http_exchange *x);
const char *http_id(const http_exchange *x);             /* 24 characters, unlike any other's */

/* ---- the answer: from any thread, one at a time ---------------------------------------------- */

/* Another header of the answer, before it begins. */
void http_add_header(http_exchange *x, const char *name, const char *value);

/* The whole answer. Copies the body; type: of the content, NULL: there is none. */
void http_reply(http_exchange *x, int status, const char *type, const char *body, size_t n);

/* An answer in pieces: the head goes out now, each write as soon as the client takes it. */
void http_stream(http_exchange *x, int status, const char *type);
int http_write(http_exchange *x, const char *bytes, size_t n);   /* < 0: the client has left, or
                                                                  * memory is short */
void http_end(http_exchange *x);                         /* in order */
void http_break(http_exchange *x);                       /* without an end that looks like one */

/* Something about the answer for whoever logs it, in a few words; too late once it has ended. */
enum { HTTP_REMARK = 96 };
void http_remark(http_exchange *x, const char *text);
const char *http_remarked(const http_exchange *x);       /* "" if nobody did; when it has ended */

void http_keep(http_exchange *x);
void http_release(http_exchange *x);     /* an unanswered one is a 500, a stream that was not ended
                                          * breaks */
bool http_gone(const http_exchange *x);  /* the client has left: nobody reads what is written */
uint64_t http_waiting(const http_exchange *x);   /* bytes written that the client has not taken */

#endif
