/* pull_server.c - an HTTP server for tests/test_cli_pull.sh that misbehaves on request.
 *
 *   pull_server FILE LOG     serves FILE's bytes for every address, on a free port of 127.0.0.1
 *
 * Prints the port. What is done is in the address, /OWNER/MODE[-N]/resolve/main/NAME: see modes[].
 * LOG gets a line for each request: mode, host, range, if-range, and whether a token came along.
 * Requests are answered one after the other; each closes its connection. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "loader/base.h"

typedef struct request {
    char mode[64];                       /* without its number */
    long n;                              /* that number */
    char name[256];                      /* last part of the address */
    char host[128], range[64], if_range[128], token[128];
    long from;                           /* of the range; 0: none */
    int count;                           /* requests of this mode so far, this one included */
} request;

typedef struct server {
    int port, log;
    char *data;
    long bytes;
} server;

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

static bool put(int fd, const char *p, long n)
{
    while (n > 0) {
        const ssize_t k = send(fd, p, (size_t)n, MSG_NOSIGNAL);
        if (k <= 0) return false;
        p += k;
        n -= k;
    }
    return true;
}

static bool say(int fd, const char *fmt, ...) PRINTF_LIKE(2, 3);
static bool say(int fd, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return put(fd, text, n);
}

/* ---- answers --------------------------------------------------------------------------------- */

static const char *etag_of(const request *r)
{
    if (!strcmp(r->mode, "noetag")) return NULL;
    if (!strcmp(r->mode, "changed") && r->count > 1) return "\"v2\"";
    return "\"v1\"";
}

/* The head of a good answer. Returns where the bytes begin. total: what is claimed of the whole. */
static long head(int fd, const request *r, long total, long length)
{
    const char *etag = etag_of(r);
    const bool ranges = strcmp(r->mode, "norange") && strcmp(r->mode, "changed");
    const bool same = !r->if_range[0] || (etag && !strcmp(r->if_range, etag));
    char tag[64] = "";
    if (etag) snprintf(tag, sizeof tag, "ETag: %s\r\n", etag);
    if (r->from == 0 || !ranges || !same) {
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: %ld\r\n%sConnection: close\r\n\r\n", length,
            tag);
        return 0;
    }
    say(fd, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes %ld-%ld/%ld\r\nContent-Length: "
        "%ld\r\n%sConnection: close\r\n\r\n", r->from, total - 1, total, length - r->from, tag);
    return r->from;
}

/* All of it, or n bytes of the body and then the end. */
static void serve(int fd, const server *s, const request *r, long n)
{
    const long from = head(fd, r, s->bytes, s->bytes);
    put(fd, s->data + from, n > 0 && n < s->bytes - from ? n : s->bytes - from);
}

static void do_ok(int fd, const server *s, const request *r) { serve(fd, s, r, 0); }
static void do_cut(int fd, const server *s, const request *r) { serve(fd, s, r, r->n); }
static void do_cut_once(int fd, const server *s, const request *r)
{
    serve(fd, s, r, r->count == 1 ? r->n : 0);
}

/* A byte in the middle is another one. */
static void do_other(int fd, const server *s, const request *r)
{
    const long from = head(fd, r, s->bytes, s->bytes), mid = s->bytes / 2;
    if (from < mid) {
        put(fd, s->data + from, mid - from);
        put(fd, &(char){ (char)(s->data[mid] ^ 1) }, 1);
        put(fd, s->data + mid + 1, s->bytes - mid - 1);
    } else {
        put(fd, s->data + from, s->bytes - from);
    }
}

static void do_page(int fd, const server *s, const request *r)
{
    (void)s, (void)r;
    say(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<!DOCTYPE html><title>Log in</title>");
}

/* Claims n bytes more (or fewer) than there are, and closes. */
static void do_claim(int fd, const server *s, const request *r)
{
    const long from = head(fd, r, s->bytes + r->n, s->bytes + r->n);
    put(fd, s->data + from, s->bytes - from);
}
static void do_less(int fd, const server *s, const request *r)
{
    const long from = head(fd, r, s->bytes - r->n, s->bytes - r->n);
    put(fd, s->data + from, s->bytes - from);
}

/* No length, and no end; "nolength" without one, but with an end. */
static void do_endless(int fd, const server *s, const request *r)
{
    (void)r;
    say(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    while (put(fd, s->data, s->bytes)) continue;
}
static void do_nolength(int fd, const server *s, const request *r)
{
    (void)r;
    say(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    put(fd, s->data, s->bytes - r->n);
}

/* Says 206, but of other bytes than were asked for. */
static void do_wrongrange(int fd, const server *s, const request *r)
{
    if (r->from == 0) {
        serve(fd, s, r, r->n);
        return;
    }
    say(fd, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-%ld/%ld\r\nContent-Length: %ld"
        "\r\nETag: \"v1\"\r\nConnection: close\r\n\r\n", s->bytes - 1, s->bytes, s->bytes);
    put(fd, s->data, s->bytes);
}

/* The first range is answered, but with half of it. */
static void do_half(int fd, const server *s, const request *r)
{
    const long n = (s->bytes - r->from + 1) / 2;
    if (r->count != 2) {
        serve(fd, s, r, r->count == 1 ? r->n : 0);
        return;
    }
    say(fd, "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes %ld-%ld/%ld\r\nContent-Length: "
        "%ld\r\nETag: \"v1\"\r\nConnection: close\r\n\r\n", r->from, r->from + n - 1, s->bytes, n);
    put(fd, s->data + r->from, n);
}

static void do_status(int fd, const server *s, const request *r)
{
    (void)s;
    say(fd, "HTTP/1.1 %ld No\r\nContent-Length: 5\r\nConnection: close\r\n\r\nsorry", r->n);
}
static void do_busy(int fd, const server *s, const request *r)
{
    if (r->count > r->n) serve(fd, s, r, 0);
    else say(fd, "HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n"
             "Connection: close\r\n\r\n");
}

/* n bytes, then nothing; or a piece now and then, n milliseconds apart. */
static void do_stall(int fd, const server *s, const request *r)
{
    serve(fd, s, r, r->n);
    if (r->count == 1) pause_ms(2500);
}
static void do_drip(int fd, const server *s, const request *r)
{
    const long piece = 65536;
    for (long at = head(fd, r, s->bytes, s->bytes); at < s->bytes; at += piece) {
        if (!put(fd, s->data + at, s->bytes - at < piece ? s->bytes - at : piece)) return;
        pause_ms(r->n);
    }
}

static void redirect(int fd, const char *more, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void redirect(int fd, const char *more, const char *fmt, ...)
{
    char to[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(to, sizeof to, fmt, ap);
    va_end(ap);
    say(fd, "HTTP/1.1 302 Found\r\nLocation: %s\r\n%sContent-Length: 4\r\nConnection: close\r\n\r\n"
        "over", to, more);
}
static void do_away(int fd, const server *s, const request *r)
{
    redirect(fd, "", "http://localhost:%d/t/cut_once-%ld/resolve/main/%s", s->port, r->n, r->name);
}
static void do_near(int fd, const server *s, const request *r)
{
    (void)s;
    redirect(fd, "", "/t/ok/resolve/main/%s", r->name);
}
static void do_round(int fd, const server *s, const request *r)
{
    (void)s;
    redirect(fd, "", "/t/round/resolve/main/%s", r->name);
}
static void do_file(int fd, const server *s, const request *r)
{
    (void)s, (void)r;
    redirect(fd, "", "file:///etc/passwd");
}
/* As huggingface.co does it: the hash is in the redirect. 1: the true one is in the name. */
static void do_linked(int fd, const server *s, const request *r)
{
    char more[160];
    snprintf(more, sizeof more, "X-Linked-Etag: \"%.64s\"\r\n", r->name);
    redirect(fd, more, "http://localhost:%d/t/%s/resolve/main/x", s->port, r->n ? "ok" : "other");
}

static const struct {
    const char *name;
    void (*answer)(int fd, const server *s, const request *r);
} modes[] = {
    { "ok", do_ok }, { "noetag", do_cut_once }, { "cut", do_cut }, { "cut_once", do_cut_once },
    { "norange", do_cut_once }, { "changed", do_cut_once }, { "other", do_other },
    { "page", do_page }, { "claim", do_claim }, { "less", do_less }, { "endless", do_endless },
    { "nolength", do_nolength }, { "wrongrange", do_wrongrange }, { "half", do_half },
    { "status", do_status }, { "busy", do_busy }, { "stall", do_stall }, { "drip", do_drip },
    { "away", do_away }, { "near", do_near }, { "round", do_round }, { "file", do_file },
    { "linked", do_linked },
};

/* ---- requests -------------------------------------------------------------------------------- */

static void take_header(char *dst, size_t cap, const char *line, const char *name)
{
    const size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':') return;
    snprintf(dst, cap, "%s", line + n + 1 + strspn(line + n + 1, " "));
}

/* The head of a request; false if it does not come whole. */
static bool read_request(request *r, int fd)
{
    char text[16384], path[1024], *line, *save;
    size_t n = 0;
    *r = (request){ .n = 0 };
    for (text[0] = '\0'; !strstr(text, "\r\n\r\n");) {
        const ssize_t k = n + 1 < sizeof text ? recv(fd, text + n, sizeof text - n - 1, 0) : -1;
        if (k <= 0) return false;
        text[n += (size_t)k] = '\0';
    }
    if (sscanf(text, "GET %1023s HTTP/1.1", path) != 1) return false;
    for (line = strtok_r(text, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save)) {
        take_header(r->host, sizeof r->host, line, "Host");
        take_header(r->range, sizeof r->range, line, "Range");
        take_header(r->if_range, sizeof r->if_range, line, "If-Range");
        take_header(r->token, sizeof r->token, line, "Authorization");
    }
    sscanf(r->range, "bytes=%ld-", &r->from);
    snprintf(r->name, sizeof r->name, "%s", strrchr(path, '/') + 1);
    if (sscanf(path, "/%*[^/]/%63[^-/]-%ld", r->mode, &r->n) < 1) return false;
    return true;
}

static void answer(int fd, const server *s, request *r, int counts[])
{
    for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
        if (strcmp(r->mode, modes[i].name) != 0) continue;
        char line[512];
        r->count = ++counts[i];
        const int n = snprintf(line, sizeof line, "%s host=%s range=%s if=%s token=%s\n", r->mode,
                               r->host, r->range, r->if_range, r->token);
        if (write(s->log, line, (size_t)n) != n) exit(1);
        modes[i].answer(fd, s, r);
        return;
    }
    say(fd, "HTTP/1.1 404 No such mode\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

static bool load(server *s, const char *path)
{
    struct stat st;
    const int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) != 0) return false;
    s->bytes = st.st_size;
    s->data = malloc((size_t)s->bytes);
    const bool ok = s->data && read(fd, s->data, (size_t)s->bytes) == s->bytes;
    close(fd);
    return ok;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int counts[ARRAY_LEN(modes)] = { 0 };
    server s = { 0 };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (argc != 3 || !load(&s, argv[1])) return 2;
    s.log = open(argv[2], O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (s.log < 0 || fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 ||
        listen(fd, 16) != 0 || getsockname(fd, (struct sockaddr *)&at, &len) != 0) return 1;
    s.port = ntohs(at.sin_port);
    printf("%d\n", s.port);
    fflush(stdout);
    alarm(600);                          /* a test that dies leaves no server for long */
    for (;;) {
        const int peer = accept(fd, NULL, NULL);
        request r;
        if (peer < 0) continue;
        if (read_request(&r, peer)) answer(peer, &s, &r, counts);
        shutdown(peer, SHUT_WR);
        close(peer);
    }
}
