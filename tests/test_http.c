/* test_http.c - cli/serve/http.c on real sockets: requests, streams, disconnects, bad requests. */
#include "tests/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "cli/serve/http.h"

enum { LIMIT_MS = 20000, MAX_BODY_BYTES = 100000 };

/* ---- a server -------------------------------------------------------------------------------- */

/* /now is answered at once with the body's length. /later, /stream, /break and /silent are kept and
 * answered by a thread. /nothing is not answered. */
static struct queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    http_exchange *waiting[256];
    int n;
    bool stop;
    atomic_int n_gone, n_done, n_bad;    /* n_bad: checks of threads that failed */
} queue = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

static void handle_request(void *ctx, http_exchange *x)
{
    char text[160];
    const char *reason;
    const int problem = http_problem(x, &reason);
    (void)ctx;
    if (problem) {
        http_reply(x, problem, "text/plain", reason, strlen(reason));
    } else if (!strcmp(http_path(x), "/now")) {
        const char *own = http_header(x, "X-Own"), *q = http_query(x, "q");
        snprintf(text, sizeof text, "%s %zu %s %s", http_method(x), http_body(x).len,
                 own ? own : "-", q ? q : "-");
        http_add_header(x, "X-Added", "yes");
        http_reply(x, 200, "text/plain", text, strlen(text));
    } else if (strcmp(http_path(x), "/nothing") != 0) {
        http_keep(x);
        pthread_mutex_lock(&queue.lock);
        if (queue.n < (int)ARRAY_LEN(queue.waiting)) queue.waiting[queue.n++] = x;
        pthread_cond_broadcast(&queue.changed);
        pthread_mutex_unlock(&queue.lock);
    }
}

static void on_done(void *ctx, const http_exchange *x, int status)
{
    (void)ctx, (void)x, (void)status;
    atomic_fetch_add(&queue.n_done, 1);
}

/* A stream of 50 events; /silent waits for the client to leave. */
static void respond(http_exchange *x)
{
    const char *path = http_path(x);
    if (!strcmp(path, "/later")) {
        sleep_ms(30);
        http_reply(x, 202, "text/plain", "late", 4);
        return;
    }
    http_stream(x, 200, "text/event-stream");
    if (!strcmp(path, "/silent")) {
        http_write(x, "data: first\n\n", 13);
        for (int i = 0; i < LIMIT_MS && !http_gone(x); i++) sleep_ms(1);
        if (http_gone(x)) atomic_fetch_add(&queue.n_gone, 1);
        if (http_write(x, "x", 1) >= 0) atomic_fetch_add(&queue.n_bad, 1);
        return;
    }
    for (int i = 0; i < 50; i++) {
        char text[64];
        snprintf(text, sizeof text, "data: %d\n\n", i);
        http_write(x, text, strlen(text));
        if (i % 10 == 0) sleep_ms(2);
        if (i == 20 && !strcmp(path, "/break")) {
            http_break(x);
            return;
        }
    }
    http_end(x);
}

static void *answer_kept(void *ctx)
{
    (void)ctx;
    for (;;) {
        pthread_mutex_lock(&queue.lock);
        while (queue.n == 0 && !queue.stop) pthread_cond_wait(&queue.changed, &queue.lock);
        http_exchange *x = queue.n > 0 ? queue.waiting[--queue.n] : NULL;
        pthread_mutex_unlock(&queue.lock);
        if (!x) return NULL;
        respond(x);
        http_release(x);
    }
}

/* ---- a client -------------------------------------------------------------------------------- */

static http_server *server;
static char socket_path[96];

static int connect_tcp(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_port = htons((uint16_t)http_port(server));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        perror("connect");
        exit(1);
    }
    return fd;
}

static int connect_unix(void)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", socket_path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        perror("connect");
        exit(1);
    }
    return fd;
}

static void send_text(int fd, const char *text)
{
    for (size_t n = strlen(text); n > 0;) {
        const ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
        if (sent <= 0) return;
        text += sent;
        n -= (size_t)sent;
    }
}

/* Reads up to the end, or up to `until`. Returns the length; -1 after LIMIT_MS. */
static int receive(int fd, char *dst, size_t cap, const char *until)
{
    size_t n = 0;
    dst[0] = '\0';
    while (n + 1 < cap && !(until && strstr(dst, until))) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        if (poll(&p, 1, LIMIT_MS) <= 0) return -1;
        const ssize_t got = recv(fd, dst + n, cap - 1 - n, 0);
        if (got <= 0) break;
        n += (size_t)got;
        dst[n] = '\0';
    }
    return (int)n;
}

/* Sends one request on a connection of its own; the answer is in dst. */
static const char *ask(char *dst, size_t cap, const char *request, const char *until)
{
    const int fd = connect_tcp();
    send_text(fd, request);
    if (receive(fd, dst, cap, until) < 0) atomic_fetch_add(&queue.n_bad, 1);
    close(fd);
    return dst;
}

static bool starts(const char *s, const char *with) { return !strncmp(s, with, strlen(with)); }

/* ---- tests ----------------------------------------------------------------------------------- */

#define TO "HTTP/1.1\r\nHost: x\r\n"
static char text[1 << 18];

static void test_answers(void)
{
    CHECK(starts(ask(text, sizeof text, "GET /now?q=a%20b " TO "X-Own: 7\r\n\r\n",
                     "a b"), "HTTP/1.1 200"));
    CHECK(strstr(text, "\r\n\r\nGET 0 7 a b") && strstr(text, "X-Added: yes") &&
          strstr(text, "x-request-id: "));
    CHECK(starts(ask(text, sizeof text, "POST /now " TO "Content-Length: 5\r\n\r\nhello",
                     "POST"), "HTTP/1.1 200") && strstr(text, "POST 5 - -"));
    CHECK(strstr(ask(text, sizeof text, "POST /now " TO "Transfer-Encoding: chunked"
                     "\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n", "POST"), "POST 7 - -"));
    CHECK(starts(ask(text, sizeof text, "HEAD /now " TO "Connection: close\r\n\r\n",
                     NULL), "HTTP/1.1 200") && !strstr(text, "HEAD 0"));
    CHECK(starts(ask(text, sizeof text, "GET /later " TO "\r\n", "late"), "HTTP/1.1 202"));
    CHECK(starts(ask(text, sizeof text, "GET /nothing " TO "\r\n", "\r\n\r\n"), "HTTP/1.1 500"));
    const int fd = connect_tcp();               /* many requests on one connection, streams among them */
    for (int i = 0; i < 5; i++) {
        send_text(fd, "POST /now " TO "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n");
        CHECK(receive(fd, text, sizeof text, "\r\n\r\n") > 0 && starts(text, "HTTP/1.1 100"));
        send_text(fd, "ab");
        CHECK(receive(fd, text, sizeof text, "POST 2") > 0);
        send_text(fd, "GET /stream " TO "\r\n");
        CHECK(receive(fd, text, sizeof text, "\r\n0\r\n\r\n") > 0 && strstr(text, "data: 49\n"));
    }
    close(fd);
}

static void test_streams(void)
{
    ask(text, sizeof text, "GET /stream " TO "\r\n", "\r\n0\r\n\r\n");
    CHECK(starts(text, "HTTP/1.1 200") && strstr(text, "text/event-stream") &&
          strstr(text, "Cache-Control: no-cache\r\n") &&
          strstr(text, "data: 0\n\n") && strstr(text, "data: 49\n\n"));
    ask(text, sizeof text, "GET /break " TO "\r\n", NULL);
    CHECK(strstr(text, "data: 20\n\n") && !strstr(text, "data: 21\n\n") &&
          !strstr(text, "\r\n0\r\n\r\n"));
}

static bool reaches(atomic_int *count, int n)
{
    for (int i = 0; i < LIMIT_MS && atomic_load(count) < n; i++) sleep_ms(1);
    return atomic_load(count) >= n;
}

/* A client disconnects while nothing is sent, by closing or by shutting down its side. */
static void test_leaving(void)
{
    const int before = atomic_load(&queue.n_gone);
    for (int i = 0; i < 6; i++) {
        const int fd = i % 3 == 2 ? connect_unix() : connect_tcp();
        send_text(fd, "GET /silent " TO "\r\n");
        CHECK(receive(fd, text, sizeof text, "data: first") > 0);
        if (i % 2) shutdown(fd, SHUT_WR);
        else close(fd);
        CHECK_MSG(reaches(&queue.n_gone, before + i + 1), "the end of client %d was not noticed",
                  i);
        if (i % 2) close(fd);
    }
}

static void test_bad_requests(void)
{
    static const struct { const char *request; int status; } rows[] = {
        { "GET /now HTTP/1.1\r\n\r\n", 400 },
        { "GET /now " TO "Host: y\r\n\r\n", 400 },
        { "POST /now " TO "Content-Length: 2\r\nContent-Length: 3\r\n\r\nab", 400 },
        { "POST /now " TO "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
          "3\r\nabc\r\n0\r\n\r\n", 400 },
        { "POST /now " TO "Transfer-Encoding: gzip\r\n\r\nabc", 400 },
        { "POST /now " TO "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\na", 415 },
        { "POST /now " TO "Content-Length: 100001\r\n\r\n", 413 },
        { "POST /now " TO "Content-Length: 99999999999999999999999\r\n\r\n", 0 },
        { "nonsense\r\n\r\n", 0 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const int fd = connect_tcp();
        char want[32];
        snprintf(want, sizeof want, "HTTP/1.1 %d", rows[i].status);
        send_text(fd, rows[i].request);
        if (rows[i].status == 0) shutdown(fd, SHUT_WR);
        CHECK_MSG(receive(fd, text, sizeof text, rows[i].status > 0 ? "\r\n\r\n" : NULL) >= 0,
                  "%s: no answer", rows[i].request);
        if (rows[i].status > 0)
            CHECK_MSG(starts(text, want), "%s: %.40s", rows[i].request, text);
        else
            CHECK_MSG(!text[0] || starts(text, "HTTP/1.1 4"), "%s: %.40s", rows[i].request, text);
        close(fd);
    }
    /* a chunked body has no length in its head */
    char *large = malloc(3 * MAX_BODY_BYTES);
    if (!CHECK(large)) return;
    memset(large, 'a', 3 * MAX_BODY_BYTES);
    const int n = snprintf(large, 200, "POST /now " TO "Transfer-Encoding: chunked"
                           "\r\n\r\n%x\r\n", 2 * MAX_BODY_BYTES);
    large[n] = 'a';
    snprintf(large + n + 2 * MAX_BODY_BYTES, 20, "\r\n0\r\n\r\n");
    CHECK_MSG(starts(ask(text, sizeof text, large, "large"), "HTTP/1.1 413"), "%.40s", text);
    free(large);
}

/* A body without an end: the server answers while the client still sends, and then ends the
 * connection instead of reading all 64 MiB. */
static void test_endless_body(void)
{
    enum { CHUNK = 64 << 10, MAX_SENT_BYTES = 64 << 20 };
    static char chunk[CHUNK + 16];
    const int n_head = sprintf(chunk, "%x\r\n", CHUNK);
    memset(chunk + n_head, 'a', CHUNK);
    memcpy(chunk + n_head + CHUNK, "\r\n", 2);
    for (int i = 0; i < 2; i++) {
        const int fd = i ? connect_unix() : connect_tcp();
        size_t n_sent = 0;
        send_text(fd, "POST /now " TO "Transfer-Encoding: chunked\r\n\r\n");
        while (n_sent < MAX_SENT_BYTES && send(fd, chunk, (size_t)n_head + CHUNK + 2,
                                               MSG_NOSIGNAL) > 0)
            n_sent += CHUNK;
        CHECK_MSG(n_sent < MAX_SENT_BYTES, "the server took %zu bytes", n_sent);
        close(fd);
    }
    const int fd = connect_tcp();               /* a client that reads while it sends */
    struct pollfd answer = { .fd = fd, .events = POLLIN };
    size_t n_sent = 0;
    send_text(fd, "POST /now " TO "Transfer-Encoding: chunked\r\n\r\n");
    while (n_sent < MAX_SENT_BYTES && poll(&answer, 1, 0) == 0 &&
           send(fd, chunk, (size_t)n_head + CHUNK + 2, MSG_NOSIGNAL) > 0)
        n_sent += CHUNK;
    CHECK_MSG(receive(fd, text, sizeof text, NULL) > 0 && starts(text, "HTTP/1.1 413 ") &&
              strstr(text, "\r\n\r\nthe body is too large"), "%.60s", text);
    CHECK_MSG(n_sent < MAX_SENT_BYTES, "the server took %zu bytes", n_sent);
    close(fd);
}

/* Streams are served while many clients never finish a request. */
static void test_slow_clients(void)
{
    enum { N = 150 };
    int fd[N];
    for (int i = 0; i < N; i++) {
        fd[i] = connect_tcp();
        send_text(fd[i], i % 2 ? "POST /now " TO "Content-Length: 50\r\n\r\nab"
                         : "GET /now HTTP/1.1\r\nHo");
    }
    test_streams();
    for (int i = 0; i < N; i++) close(fd[i]);
}

static void *one_of_many(void *ctx)
{
    char *own = malloc(1 << 16);
    for (int i = 0; own && i < 20; i++) {
        ask(own, 1 << 16, i % 2 ? "GET /stream " TO "\r\n" : "GET /later " TO "\r\n", i % 2 ?
            "\r\n0\r\n\r\n" : "late");
        if (i % 2 ? strstr(own, "data: 49\n\n") != NULL : strstr(own, "late") != NULL)
            atomic_fetch_add((atomic_int *)ctx, 1);
    }
    free(own);
    return NULL;
}

static void test_many(void)
{
    pthread_t t[8];
    atomic_int ok = 0;
    for (size_t i = 0; i < ARRAY_LEN(t); i++) pthread_create(&t[i], NULL, one_of_many, &ok);
    for (size_t i = 0; i < ARRAY_LEN(t); i++) pthread_join(t[i], NULL);
    CHECK_MSG(atomic_load(&ok) == 160, "%d of 160", atomic_load(&ok));
}

static void test_sockets(void)
{
    struct stat st;
    http_server *other = NULL;
    err_ctx err = { 0 };
    http_options o = { .address = "127.0.0.1", .port = http_port(server), .max_connections = 4,
                       .handler = handle_request };
    CHECK(http_start(&other, &o, &err) < 0 && !other && strstr(err.msg, "in use"));
    o.address = "localhost";
    CHECK(http_start(&other, &o, &err) < 0 && strstr(err.msg, "not an address"));
    o = (http_options){ .unix_path = socket_path, .max_connections = 4, .handler = handle_request };
    CHECK(http_start(&other, &o, &err) < 0 && strstr(err.msg, "in use"));
    CHECK(stat(socket_path, &st) == 0 && (st.st_mode & 0777) == 0600);
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    const char *stale = a.sun_path;
    snprintf(a.sun_path, sizeof a.sun_path, "%s.old", socket_path);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    close(fd);                           /* as after a kill of the server */
    o.unix_path = stale;
    CHECK(http_start(&other, &o, &err) == 0);
    http_stop(other);
    CHECK(stat(stale, &st) != 0);
    o.unix_path = "/a/path/that/is/much/too/long/for/the/address/of/a/socket/of/this/kind/and/so/"
                  "is/refused/with/a/line/that/says/so";
    CHECK(http_start(&other, &o, &err) < 0 && strstr(err.msg, "longer"));
}

int main(int argc, char **argv)
{
    pthread_t workers[4];
    err_ctx err = { 0 };
    test_begin("http", argc, argv);
    signal(SIGPIPE, SIG_IGN);
    snprintf(socket_path, sizeof socket_path, "%s/moe-http-%d", getenv("TMPDIR") ? getenv("TMPDIR")
             : "/tmp", (int)getpid());
    if (strlen(socket_path) > 80)
        snprintf(socket_path, sizeof socket_path, "moe-http-%d", (int)getpid());
    for (size_t i = 0; i < ARRAY_LEN(workers); i++)
        pthread_create(&workers[i], NULL, answer_kept, NULL);
    const http_options o = { .address = "127.0.0.1", .unix_path = socket_path,
                             .max_body_bytes = MAX_BODY_BYTES, .max_connections = 300,
                             .handler = handle_request, .done = on_done };
    if (CHECK_MSG(http_start(&server, &o, &err) == 0, "%s", err.msg)) {
        test_answers();
        test_streams();
        test_leaving();
        test_bad_requests();
        test_endless_body();
        test_slow_clients();
        test_many();
        test_sockets();
        CHECK(atomic_load(&queue.n_done) > 200);
        /* http_stop in the middle of a stream and of a request */
        const int a = connect_tcp(), b = connect_tcp();
        send_text(a, "GET /silent " TO "\r\n");
        CHECK(receive(a, text, sizeof text, "first") > 0);
        send_text(b, "GET /now HTTP/1.1\r\nHo");
        http_stop(server);
        close(a);
        close(b);
    }
    pthread_mutex_lock(&queue.lock);
    queue.stop = true;
    pthread_cond_broadcast(&queue.changed);
    pthread_mutex_unlock(&queue.lock);
    for (size_t i = 0; i < ARRAY_LEN(workers); i++) pthread_join(workers[i], NULL);
    CHECK(atomic_load(&queue.n_bad) == 0);
    return test_end();
}
