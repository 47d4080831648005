/* http.c - exchanges on libmicrohttpd: network threads, and a thread that watches for disconnects.
 *
 * A connection with nothing to send is suspended, because the library would poll it in a loop; the
 * thread that writes resumes it. Both happen under the exchange's lock, so that no wake-up is lost.
 * The library does not look at a suspended connection. The watcher therefore waits in an epoll set
 * for the end of every connection. */
#include "cli/serve/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/serve/listen.h"
#include "tiers/thread.h"

enum {
    CONNECTION_BYTES = 128 << 10,        /* headers and buffers of a connection */
    STREAM_BLOCK = 16 << 10,             /* of a stream, sent at once */
    REFUSED_REST = 1 << 20,              /* of a refused body: read and dropped */
    TIMEOUT_S = 60,                      /* without progress of a request */
    ID_BYTES = 12
};

typedef enum http_phase {
    UNANSWERED, REPLIED, STREAMED, ENDED, BROKEN
} http_phase;

struct http_exchange {
    http_server *server;
    http_exchange *next, *previous;      /* in the server's list */
    uint64_t serial;
    atomic_int refs;
    char id[2 * ID_BYTES + 1];
    char *method, *path;
    textbuf body;
    int problem;
    const char *problem_text;
    bool handled;                        /* the handler was called, or the head answered */
    size_t n_dropped;                    /* bytes of a refused body */
    int fd;
    pthread_mutex_t lock;                /* guards all below */
    struct MHD_Connection *connection;   /* NULL: it has ended */
    bool suspended, kept, sent_head;
    atomic_bool gone;
    http_phase phase;
    int status;
    char type[64], remark[HTTP_REMARK];
    textbuf out, headers;                /* "name\0value\0..." */
    size_t n_sent;                       /* bytes of out */
    uint64_t counted_bytes;              /* of the body, as the server counts them */
};

struct http_server {
    http_options o;
    struct MHD_Daemon *daemon[2];        /* TCP; unix */
    char *unix_path;
    int port;
    int epoll, stop;                     /* stop: an eventfd that ends the watcher */
    pthread_t watcher;
    bool watching;
    pthread_mutex_t lock;                /* guards the next four */
    pthread_cond_t idle;                 /* signalled when the list becomes empty */
    http_exchange *first;
    uint64_t serial;
    bool stopping;
    pthread_mutex_t handling;            /* serialises the handlers of both sockets */
    atomic_bool refuses_new;             /* no new connections */
    atomic_uint_fast64_t counted_bytes;  /* bytes of all bodies in memory */
};

/* ---- life of an exchange --------------------------------------------------------------------- */

static void exchange_free(http_exchange *x)
{
    if (!x) return;
    pthread_mutex_destroy(&x->lock);
    textbuf_free(&x->body);
    textbuf_free(&x->out);
    textbuf_free(&x->headers);
    mem_free(x->method);
    mem_free(x->path);
    mem_free(x);
}

static void exchange_drop(http_exchange *x)
{
    if (atomic_fetch_sub(&x->refs, 1) == 1) exchange_free(x);
}

static void make_id(char *id)
{
    uint8_t bytes[ID_BYTES];
    static atomic_uint_fast64_t counter;
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        const uint64_t n = atomic_fetch_add(&counter, 1) ^ clock_ns() << 20;
        memset(bytes, 0, sizeof bytes);
        memcpy(bytes, &n, sizeof n);
    }
    for (int i = 0; i < ID_BYTES; i++) snprintf(id + 2 * i, 3, "%02x", bytes[i]);
}

/* Adds an exchange to the server's list and to the watcher's set. */
static http_exchange *exchange_create(http_server *s, struct MHD_Connection *c, const char *method,
                                      const char *path)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    http_exchange *x = mem_zalloc(sizeof *x);
    if (!x) return NULL;
    pthread_mutex_init(&x->lock, NULL);
    x->server = s;
    x->connection = c;
    x->fd = info ? info->connect_fd : -1;
    atomic_init(&x->refs, 1);
    x->method = mem_strdup_n(method, strlen(method));
    x->path = mem_strdup_n(path, strlen(path));
    make_id(x->id);
    if (!x->method || !x->path) {
        exchange_free(x);
        return NULL;
    }
    pthread_mutex_lock(&s->lock);
    x->serial = ++s->serial;
    atomic_init(&x->gone, s->stopping);
    x->next = s->first;
    if (x->next) x->next->previous = x;
    s->first = x;
    pthread_mutex_unlock(&s->lock);
    struct epoll_event e = { .events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = x->serial };
    if (x->fd >= 0) epoll_ctl(s->epoll, EPOLL_CTL_ADD, x->fd, &e);
    return x;
}

/* The connection has ended, or goes on to its next request. */
static void on_completed(void *ctx, struct MHD_Connection *c, void **request_ctx,
                         enum MHD_RequestTerminationCode cause)
{
    http_server *s = ctx;
    http_exchange *x = *request_ctx;
    (void)c;
    if (!x) return;
    *request_ctx = NULL;
    if (x->fd >= 0) epoll_ctl(s->epoll, EPOLL_CTL_DEL, x->fd, NULL);
    atomic_fetch_sub(&s->counted_bytes, x->counted_bytes);
    pthread_mutex_lock(&s->lock);
    if (x->next) x->next->previous = x->previous;
    if (x->previous) x->previous->next = x->next;
    else s->first = x->next;
    if (!s->first) pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&x->lock);
    x->connection = NULL;
    x->suspended = false;
    if (cause != MHD_REQUEST_TERMINATED_COMPLETED_OK || x->phase != ENDED)
        atomic_store(&x->gone, true);
    const int status = x->sent_head ? x->status : 0;
    pthread_mutex_unlock(&x->lock);
    if (s->o.done) s->o.done(s->o.ctx, x, status);
    exchange_drop(x);
}

/* ---- disconnects ----------------------------------------------------------------------------- */

/* The caller holds the exchange's lock. */
static void resume(http_exchange *x)
{
    if (!x->suspended || !x->connection) return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

static void mark_gone(http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    atomic_store(&x->gone, true);
    resume(x);
    pthread_mutex_unlock(&x->lock);
}

/* Returns it with a reference, or NULL. */
static http_exchange *find_exchange(http_server *s, uint64_t serial)
{
    pthread_mutex_lock(&s->lock);
    http_exchange *x = s->first;
    while (x && x->serial != serial) x = x->next;
    if (x) atomic_fetch_add(&x->refs, 1);
    pthread_mutex_unlock(&s->lock);
    return x;
}

static void *watch(void *ctx)
{
    http_server *s = ctx;
    struct epoll_event events[16];
    for (;;) {
        const int n = epoll_wait(s->epoll, events, ARRAY_LEN(events), -1);
        if (n < 0 && errno != EINTR) return NULL;
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == 0) return NULL;       /* stop */
            http_exchange *x = find_exchange(s, events[i].data.u64);
            if (!x) continue;
            mark_gone(x);
            exchange_drop(x);
        }
    }
}

/* ---- the request ----------------------------------------------------------------------------- */

typedef struct header_check {
    int n_length, n_coding, n_host;
    bool bad, other_coding;
    uint64_t length;
} header_check;

static bool read_length(uint64_t *out, const char *s)
{
    uint64_t n = 0;
    if (!*s) return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || n > UINT64_MAX / 10 - 1) return false;
        n = n * 10 + (uint64_t)(*s - '0');
    }
    *out = n;
    return true;
}

static enum MHD_Result check_header(void *ctx, enum MHD_ValueKind kind, const char *name,
                                    size_t n_name, const char *value, size_t n_value)
{
    header_check *c = ctx;
    (void)kind;
    if (memchr(name, 0, n_name) || (value && memchr(value, 0, n_value))) c->bad = true;
    if (!value) return MHD_YES;
    if (!strcasecmp(name, "Host")) c->n_host++;
    if (!strcasecmp(name, "Transfer-Encoding")) {
        c->n_coding++;
        c->bad |= strcasecmp(value, "chunked") != 0;     /* the library would not find the end of
                                                          * the body */
    }
    if (!strcasecmp(name, "Content-Length")) {
        c->n_length++;
        c->bad |= !read_length(&c->length, value);
    }
    if (!strcasecmp(name, "Content-Encoding"))
        c->other_coding |= strcasecmp(value, "identity") != 0;
    return MHD_YES;
}

static void check_head(http_exchange *x, const char *version)
{
    header_check c = { 0 };
    MHD_get_connection_values_n(x->connection, MHD_HEADER_KIND, check_header, &c);
    if (c.bad || c.n_length > 1 || c.n_coding > 1 || (c.n_length > 0 && c.n_coding > 0) ||
        c.n_host > 1 || (c.n_host == 0 && !strcmp(version, "HTTP/1.1"))) {
        x->problem = 400;
        x->problem_text = "malformed or ambiguous headers";
    } else if (c.other_coding) {
        x->problem = 415;
        x->problem_text = "Content-Encoding is not supported";
    } else if (c.length > x->server->o.max_body_bytes) {
        x->problem = 413;
        x->problem_text = "the body is too large";
    }
}

/* The caller holds the exchange's lock. Returns r. */
static struct MHD_Response *add_headers(http_exchange *x, struct MHD_Response *r)
{
    if (!r) return NULL;
    MHD_add_response_header(r, "x-request-id", x->id);
    if (x->type[0]) MHD_add_response_header(r, "Content-Type", x->type);
    for (size_t i = 0; i < x->headers.len;) {
        const char *name = x->headers.ptr + i, *value = name + strlen(name) + 1;
        MHD_add_response_header(r, name, value);
        i += strlen(name) + strlen(value) + 2;
    }
    return r;
}

static ssize_t read_stream(void *ctx, uint64_t pos, char *dst, size_t size)
{
    http_exchange *x = ctx;
    ssize_t n = 0;
    (void)pos;
    pthread_mutex_lock(&x->lock);
    if (atomic_load(&x->gone)) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (x->out.len > x->n_sent) {
        const size_t left = x->out.len - x->n_sent;
        n = (ssize_t)(left < size ? left : size);
        memcpy(dst, x->out.ptr + x->n_sent, (size_t)n);
        x->n_sent += (size_t)n;
        if (x->n_sent == x->out.len) x->out.len = x->n_sent = 0;
    } else if (x->phase == ENDED) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (x->phase == BROKEN) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}

/* Sends the response, or suspends the connection until there is one. */
static enum MHD_Result send_response(http_exchange *x)
{
    struct MHD_Response *r = NULL;
    enum MHD_Result rc = MHD_YES;
    pthread_mutex_lock(&x->lock);
    if (x->phase == UNANSWERED && x->kept && !atomic_load(&x->gone)) {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
        pthread_mutex_unlock(&x->lock);
        return MHD_YES;
    }
    if (atomic_load(&x->gone)) {
        pthread_mutex_unlock(&x->lock);
        return MHD_NO;
    }
    if (x->phase == UNANSWERED) {
        x->phase = REPLIED;
        x->status = 500;
    }
    if (x->phase == REPLIED) {
        r = MHD_create_response_from_buffer(x->out.len, x->out.ptr ? x->out.ptr : "",
                                            MHD_RESPMEM_MUST_COPY);
        x->phase = ENDED;
    } else {
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, x, NULL);
    }
    if (!add_headers(x, r)) rc = MHD_NO;
    const unsigned status = (unsigned)x->status;
    pthread_mutex_unlock(&x->lock);
    if (rc == MHD_YES) rc = MHD_queue_response(x->connection, status, r);
    x->sent_head = rc == MHD_YES;
    if (r) MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result call_handler(http_exchange *x)
{
    http_server *s = x->server;
    if (!x->handled && atomic_load(&x->gone)) return MHD_NO;
    if (!x->handled) {
        x->handled = true;
        pthread_mutex_lock(&s->handling);
        s->o.handler(s->o.ctx, x);
        pthread_mutex_unlock(&s->handling);
    }
    return send_response(x);
}

/* Called before the body. */
static enum MHD_Result handle_head(http_exchange *x, const char *version)
{
    http_server *s = x->server;
    check_head(x, version);
    if (x->problem) return call_handler(x);
    if (!s->o.head) return MHD_YES;
    pthread_mutex_lock(&s->handling);
    s->o.head(s->o.ctx, x);
    pthread_mutex_unlock(&s->handling);
    x->handled = x->phase != UNANSWERED;
    return x->handled ? send_response(x) : MHD_YES;
}

/* False: all bodies together pass the limit. */
static bool count_body_bytes(http_exchange *x, uint64_t n)
{
    http_server *s = x->server;
    x->counted_bytes += n;
    const uint64_t all = atomic_fetch_add(&s->counted_bytes, n) + n;
    return s->o.max_bodies_bytes == 0 || all <= s->o.max_bodies_bytes;
}

/* Answers while the body still arrives. The library takes no response then, so this writes it to
 * the socket and ends our side of the connection: the client can read a complete response. */
static void refuse_rest(http_exchange *x)
{
    http_server *s = x->server;
    textbuf text = { 0 };
    x->handled = true;
    pthread_mutex_lock(&s->handling);
    s->o.handler(s->o.ctx, x);
    pthread_mutex_unlock(&s->handling);
    pthread_mutex_lock(&x->lock);
    if (x->phase == REPLIED) {
        textbuf_printf(&text, "HTTP/1.1 %d %s\r\nConnection: close\r\nx-request-id: %s\r\n"
                       "Content-Type: %s\r\nContent-Length: %zu\r\n", x->status,
                       MHD_get_reason_phrase_for((unsigned)x->status), x->id, x->type, x->out.len);
        for (size_t i = 0; i < x->headers.len;) {
            const char *name = x->headers.ptr + i, *value = name + strlen(name) + 1;
            textbuf_printf(&text, "%s: %s\r\n", name, value);
            i += strlen(name) + strlen(value) + 2;
        }
        textbuf_str(&text, "\r\n");
        textbuf_put(&text, textbuf_view(&x->out));
        x->phase = ENDED;
    }
    x->sent_head = !text.failed && text.len > 0 &&
                   send(x->fd, text.ptr, text.len, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
    pthread_mutex_unlock(&x->lock);
    shutdown(x->fd, SHUT_WR);
    textbuf_free(&text);
}

/* Appends n bytes to the body. A body that passes a limit is refused at once. Up to 1 MiB of its
 * rest is read, because closing a socket with unread bytes may discard the response. */
static enum MHD_Result take_body(http_exchange *x, const char *data, size_t n)
{
    if (!x->problem && x->body.len + n > x->server->o.max_body_bytes) {
        x->problem = 413;
        x->problem_text = "the body is too large";
    } else if (!x->problem && !count_body_bytes(x, n)) {
        x->problem = 503;
        x->problem_text = "the bodies of all requests exceed the limit: try again";
    }
    if (!x->problem) {
        textbuf_put(&x->body, (str_view){ data, n });
        return x->body.failed ? MHD_NO : MHD_YES;
    }
    if (!x->handled) {
        textbuf_free(&x->body);
        refuse_rest(x);
    }
    x->n_dropped += n;
    return x->n_dropped > REFUSED_REST ? MHD_NO : MHD_YES;
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n_data, void **request_ctx)
{
    http_exchange *x = *request_ctx;
    if (!x) {
        if (!(x = exchange_create(ctx, c, method, url))) return MHD_NO;
        *request_ctx = x;
        return handle_head(x, version);
    }
    if (*n_data > 0) {
        const size_t n = *n_data;
        *n_data = 0;
        return take_body(x, data, n);
    }
    return x->n_dropped > 0 ? MHD_NO : call_handler(x);
}

int http_problem(const http_exchange *x, const char **text)
{
    if (text) *text = x->problem_text;
    return x->problem;
}

const char *http_method(const http_exchange *x) { return x->method; }
const char *http_path(const http_exchange *x) { return x->path; }
const char *http_id(const http_exchange *x) { return x->id; }

str_view http_body(const http_exchange *x)
{
    return x->body.len > 0 ? textbuf_view(&x->body) : str_from("");
}

const char *http_header(const http_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

const char *http_query(const http_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, name);
}

/* ---- the answer ------------------------------------------------------------------------------ */

void http_add_header(http_exchange *x, const char *name, const char *value)
{
    pthread_mutex_lock(&x->lock);
    textbuf_put(&x->headers, (str_view){ name, strlen(name) + 1 });
    textbuf_put(&x->headers, (str_view){ value, strlen(value) + 1 });
    if (x->headers.failed) textbuf_free(&x->headers);
    pthread_mutex_unlock(&x->lock);
}

/* The lock is held. */
static void set_head(http_exchange *x, http_phase phase, int status, const char *type)
{
    x->phase = phase;
    x->status = status;
    snprintf(x->type, sizeof x->type, "%s", type ? type : "");
}

void http_reply(http_exchange *x, int status, const char *type, const char *body, size_t n)
{
    pthread_mutex_lock(&x->lock);
    if (x->phase == UNANSWERED) {
        if (n > 0) textbuf_put(&x->out, (str_view){ body, n });
        set_head(x, REPLIED, x->out.failed ? 500 : status, x->out.failed ? NULL : type);
        if (x->out.failed) textbuf_free(&x->out);
        resume(x);
    }
    pthread_mutex_unlock(&x->lock);
}

void http_reply_json(http_exchange *x, int status, const char *json)
{
    http_reply(x, json ? status : 500, "application/json", json, json ? strlen(json) : 0);
}

void http_reply_text(http_exchange *x, const char *type, textbuf *text)
{
    const bool ok = !text->failed;
    http_reply(x, ok ? 200 : 500, type, ok ? text->ptr : NULL, ok ? text->len : 0);
    textbuf_free(text);
}

void http_stream(http_exchange *x, int status, const char *type)
{
    http_add_header(x, "Cache-Control", "no-cache");
    http_add_header(x, "X-Accel-Buffering", "no");
    pthread_mutex_lock(&x->lock);
    if (x->phase == UNANSWERED) {
        set_head(x, STREAMED, status, type);
        resume(x);
    }
    pthread_mutex_unlock(&x->lock);
}

int http_write(http_exchange *x, const char *bytes, size_t n)
{
    int rc = 0;
    pthread_mutex_lock(&x->lock);
    if (atomic_load(&x->gone) || x->phase != STREAMED) {
        rc = ERR_IO;
    } else if (n > 0) {
        textbuf_put(&x->out, (str_view){ bytes, n });
        if (x->out.failed) {
            x->phase = BROKEN;
            rc = ERR_NOMEM;
        }
        resume(x);
    }
    pthread_mutex_unlock(&x->lock);
    return rc;
}

static void end_stream(http_exchange *x, http_phase phase)
{
    pthread_mutex_lock(&x->lock);
    if (x->phase == STREAMED) {
        x->phase = phase;
        resume(x);
    }
    pthread_mutex_unlock(&x->lock);
}

void http_end(http_exchange *x) { end_stream(x, ENDED); }
void http_break(http_exchange *x) { end_stream(x, BROKEN); }

void http_remark(http_exchange *x, const char *text)
{
    pthread_mutex_lock(&x->lock);
    if (x->connection)                   /* else http_done may be reading it */
        snprintf(x->remark, sizeof x->remark, "%s", text);
    pthread_mutex_unlock(&x->lock);
}

const char *http_get_remark(const http_exchange *x) { return x->remark; }

void http_keep(http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->kept = true;
    pthread_mutex_unlock(&x->lock);
    atomic_fetch_add(&x->refs, 1);
}

void http_release(http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->kept = false;
    if (x->phase == STREAMED) x->phase = BROKEN;
    resume(x);
    pthread_mutex_unlock(&x->lock);
    exchange_drop(x);
}

bool http_gone(const http_exchange *x) { return atomic_load(&x->gone); }

uint64_t http_unread_bytes(const http_exchange *x)
{
    http_exchange *locked = (http_exchange *)x;
    pthread_mutex_lock(&locked->lock);
    const uint64_t n = locked->out.len - locked->n_sent;
    pthread_mutex_unlock(&locked->lock);
    return n;
}

/* ---- the server ------------------------------------------------------------------------------ */

/* The library's own function to stop listening is not safe while its thread runs. */
static enum MHD_Result accept_client(void *ctx, const struct sockaddr *a, socklen_t n)
{
    http_server *s = ctx;
    (void)a, (void)n;
    return atomic_load(&s->refuses_new) ? MHD_NO : MHD_YES;
}

static struct MHD_Daemon *start_daemon(http_server *s, int fd)
{
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC;
    sigset_t before;
    thread_mask_begin(&before);          /* the library's thread inherits the mask */
    struct MHD_Daemon *d =
        MHD_start_daemon(flags, 0, accept_client, s, on_request, s, MHD_OPTION_LISTEN_SOCKET, fd,
                         MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
                         MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->o.max_connections,
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S, MHD_OPTION_END);
    thread_mask_end(&before);
    return d;
}

static int start_watching(http_server *s, err_ctx *err)
{
    struct epoll_event e = { .events = EPOLLIN, .data.u64 = 0 };
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->stop = eventfd(0, EFD_CLOEXEC);
    if (s->epoll < 0 || s->stop < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->stop, &e) != 0)
        return err_set(err, ERR_IO, "cannot watch connections: %s", strerror(errno));
    const int rc = thread_start(&s->watcher, watch, s);
    if (rc != 0) return err_set(err, ERR_NOMEM, "cannot watch connections: %s", strerror(rc));
    s->watching = true;
    return 0;
}

int http_start(http_server **out, const http_options *o, err_ctx *err)
{
    http_server *s = mem_zalloc(sizeof *s);
    int rc = 0, fd = -1;
    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "server: %zu bytes", sizeof *s);
    s->o = *o;
    s->epoll = s->stop = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->handling, NULL);
    thread_cond_init(&s->idle);
    rc = start_watching(s, err);
    for (int i = 0; i < 2 && rc == 0; i++) {
        if (!(i == 0 ? o->address : o->unix_path)) continue;
        rc = i == 0 ? listen_tcp(&fd, &s->port, o->address, o->port, err)
                    : listen_unix(&fd, o->unix_path, err);
        if (rc < 0) break;
        if (i == 1 && !(s->unix_path = mem_strdup_n(o->unix_path, strlen(o->unix_path))))
            rc = err_set(err, ERR_NOMEM, "server: its path");
        if (!(s->daemon[i] = start_daemon(s, fd))) {
            close(fd);
            rc = err_set(err, ERR_NOMEM, "cannot start the HTTP library");
        }
    }
    if (rc < 0) http_stop(s);
    else *out = s;
    return rc;
}

int http_port(const http_server *s) { return s->port; }

void http_quiesce(http_server *s) { atomic_store(&s->refuses_new, true); }

bool http_wait_idle(http_server *s, uint64_t deadline_ns)
{
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    while (s->first && rc == 0) rc = thread_cond_wait_until(&s->idle, &s->lock, deadline_ns);
    const bool idle = s->first == NULL;
    pthread_mutex_unlock(&s->lock);
    return idle;
}

/* The library requires that all connections are resumed before it stops. Exchanges that begin later
 * find `stopping` set. */
static void mark_all_gone(http_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    for (http_exchange *x = s->first; x; x = x->next) mark_gone(x);
    pthread_mutex_unlock(&s->lock);
}

void http_stop(http_server *s)
{
    const uint64_t one = 1;
    if (!s) return;
    http_quiesce(s);
    mark_all_gone(s);
    for (int i = 0; i < 2; i++)
        if (s->daemon[i]) MHD_stop_daemon(s->daemon[i]);
    if (s->unix_path) unlink(s->unix_path);
    if (s->watching && write(s->stop, &one, sizeof one) == (ssize_t)sizeof one)
        pthread_join(s->watcher, NULL);
    if (s->epoll >= 0) close(s->epoll);
    if (s->stop >= 0) close(s->stop);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->handling);
    mem_free(s->unix_path);
    mem_free(s);
}
