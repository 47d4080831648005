/* http.h - the server's network side, on libmicrohttpd: requests in, responses and streams out.
 *
 * Each socket has a network thread, which never waits for the engine. It checks a request when its
 * head is complete and calls the handler when its body is. Other threads write into the exchange's
 * buffer; the network thread sends it as fast as the client reads. A client that disconnects is
 * noticed at once, also while nothing is sent; one that shuts down its own side counts as
 * disconnected. Limits on sizes, times and connections hold before anything is parsed. Malformed
 * and ambiguous requests are refused here.
 *
 * An exchange is one request and its response. The handler answers at once, or keeps the exchange
 * and another thread answers, in one piece or as a stream. */
#ifndef CLI_SERVE_HTTP_H
#define CLI_SERVE_HTTP_H

#include "loader/base.h"

typedef struct http_server http_server;
typedef struct http_exchange http_exchange;

/* Called on a network thread, one call at a time; must not block. x is valid until it returns, or
 * until http_release if it called http_keep. An exchange that is neither answered nor kept gets
 * status 500. */
typedef void http_handler(void *ctx, http_exchange *x);

/* Called like a handler when the head is complete, before the body. It may answer; then no body is
 * read. */
typedef void http_head(void *ctx, http_exchange *x);

/* Called when an exchange has ended, with the status that was sent; 0: none. */
typedef void http_done(void *ctx, const http_exchange *x, int status);

typedef struct http_options {
    const char *address;                 /* "127.0.0.1", "::1", "0.0.0.0"; NULL: no TCP */
    int port;                            /* 0: any free one */
    const char *unix_path;               /* NULL: no unix socket */
    uint64_t max_body_bytes;             /* of one request; more: 413, and the connection closes */
    uint64_t max_bodies_bytes;           /* of all requests in memory; more: 503. 0: no limit */
    int max_connections;
    http_head *head;                     /* or NULL */
    http_handler *handler;
    http_done *done;                     /* or NULL */
    void *ctx;
} http_options;

/* Listens when it returns. Replaces a socket file on which no process listens. */
int http_start(http_server **out, const http_options *o, err_ctx *err);
int http_port(const http_server *s);             /* of TCP; 0: none */

/* Refuses new connections; running exchanges go on. */
void http_quiesce(http_server *s);
/* Waits until every response is sent, or clock_ns() reaches deadline_ns. True: all are sent. */
bool http_wait_idle(http_server *s, uint64_t deadline_ns);
/* Ends all exchanges and joins the threads. Every kept exchange must be released. NULL is fine. */
void http_stop(http_server *s);

/* ---- the request: headers and query only inside the handler ---------------------------------- */

/* 0, or why the request is refused: 400 malformed, 413 too large, 415 a body in another coding, 503
 * too many bodies. Then it has no body and the handler must answer at once. *text: a sentence. */
int http_problem(const http_exchange *x, const char **text);
const char *http_method(const http_exchange *x);         /* "GET" */
const char *http_path(const http_exchange *x);           /* without the query */
const char *http_header(const http_exchange *x, const char *name);       /* or NULL */
const char *http_query(const http_exchange *x, const char *name);        /* or NULL */
str_view http_body(const http_exchange *x);              /* never NULL */
const char *http_id(const http_exchange *x);             /* 24 hexadecimal digits, unique */

/* ---- the response: from any thread, one thread at a time ------------------------------------- */

/* Adds a header; before http_reply or http_stream. */
void http_add_header(http_exchange *x, const char *name, const char *value);

/* The whole response. Copies the body. type: of the content; NULL: no body. */
void http_reply(http_exchange *x, int status, const char *type, const char *body, size_t n);
/* The same for JSON text; NULL: status 500 without a body. */
void http_reply_json(http_exchange *x, int status, const char *json);
/* The same for a text of this type, with status 200. Frees the text. */
void http_reply_text(http_exchange *x, const char *type, textbuf *text);

/* A response in pieces: the head is sent now, each write as soon as the client reads. Its headers
 * ask caches and proxies not to hold it back. */
void http_stream(http_exchange *x, int status, const char *type);
int http_write(http_exchange *x, const char *bytes, size_t n);   /* < 0: the client is gone, or
                                                                  * memory is short */
void http_end(http_exchange *x);                         /* a complete stream */
void http_break(http_exchange *x);                       /* the client sees that it is cut */

/* Text for the log line of this exchange. Ignored after its end. */
enum { HTTP_REMARK = 256 };
void http_remark(http_exchange *x, const char *text);
const char *http_get_remark(const http_exchange *x);     /* in http_done; "": none */

void http_keep(http_exchange *x);
/* Drops the reference. An exchange without a response gets status 500; a stream without an end
 * breaks. */
void http_release(http_exchange *x);
bool http_gone(const http_exchange *x);  /* the client has disconnected */
uint64_t http_unread_bytes(const http_exchange *x);      /* written, and not sent yet */

#endif
