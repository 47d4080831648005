/* http_client.c - a client for the server's tests: one request, the answer on standard output.
 *
 *   http_client PORT METHOD PATH [-H HEADER]... [-d BODY | -f FILE | -c MIB] [-q EVENTS]
 *
 * The first line is the status, then the headers, an empty line, and the body, whose chunks are
 * joined. -c: a body of so many MiB in chunks, without its end, until an answer comes. -q: leave
 * after so many events of a stream; each is a line on standard error. Exit code: 0 answered, 1 not.
 *
 *   http_client value FILE PATH    a value of a JSON file: choices.0.message.content; null is ""
 *   http_client join FILE PATH     the same of each "data: {...}" line, and of each line that is an
 *                                  object, one after the other */
#include <arpa/inet.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/console.h"

static int dial(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    perror("http_client: connect");
    exit(1);
}

static void send_all(int fd, str_view text)
{
    for (size_t n = 0; n < text.len;) {
        const ssize_t sent = send(fd, text.ptr + n, text.len - n, MSG_NOSIGNAL);
        if (sent <= 0) return;           /* the answer may be there all the same */
        n += (size_t)sent;
    }
}

static void send_chunks(int fd, long mib)
{
    static char chunk[8 + (64 << 10) + 2] = "010000\r\n";
    struct pollfd answer = { .fd = fd, .events = POLLIN };
    memset(chunk + 8, 'a', 64 << 10);
    memcpy(chunk + sizeof chunk - 2, "\r\n", 2);
    for (long i = 0; i < 16 * mib && poll(&answer, 1, 0) == 0; i++)
        if (send(fd, chunk, sizeof chunk, MSG_NOSIGNAL) <= 0) return;
}

static int count_events(const textbuf *t)
{
    int n = 0;
    for (size_t i = 0; i + 1 < t->len; i++) n += t->ptr[i] == '\n' && t->ptr[i + 1] == '\n';
    return n;
}

static void print_chunks(const char *p, const char *end)
{
    while (p < end) {
        char *after;
        const unsigned long n = strtoul(p, &after, 16);
        const char *line = strstr(after, "\r\n");
        if (!line || n == 0 || (size_t)(end - line - 2) < n) {
            if (n != 0 || !line) fputs("\n[cut]\n", stdout);
            return;
        }
        fwrite(line + 2, 1, n, stdout);
        p = line + 2 + n + 2;
    }
    fputs("\n[cut]\n", stdout);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void print_value(const json_t *v, const char *path)
{
    char key[64];
    while (v && *path) {
        const size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(key)) : json_object_get(v, key);
        path += n + (path[n] == '.');
    }
    if (json_is_string(v)) {
        fwrite(json_string_value(v), 1, json_string_length(v), stdout);
    } else if (v && !json_is_null(v)) {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        fputs(text ? text : "", stdout);
        free(text);
    }
}

static int print_values(const char *file, const char *path, bool join)
{
    char *text;
    size_t n;
    err_ctx err;
    if (read_whole_file(&text, &n, file, &err) < 0) return 1;
    for (char *save, *line = join ? strtok_r(text, "\n", &save) : text; line;
         line = join ? strtok_r(NULL, "\n", &save) : NULL) {
        if (join && !strncmp(line, "data: ", 6)) line += 6;
        if (join && *line != '{') continue;
        json_t *root = join ? json_loads(line, 0, NULL) : json_loadb(text, n, 0, NULL);
        if (!root) fputs("[no JSON]", stdout);
        print_value(root, path);
        json_decref(root);
    }
    mem_free(text);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && (!strcmp(argv[1], "value") || !strcmp(argv[1], "join")))
        return print_values(argv[2], argv[3], argv[1][0] == 'j');

    textbuf request = { 0 }, headers = { 0 }, body = { 0 }, got = { 0 };
    int leave = -1, n_event = 0;
    long chunked_mib = 0;
    if (argc < 4) return 1;
    for (int i = 4; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "-H")) textbuf_printf(&headers, "%s\r\n", argv[i + 1]);
        if (!strcmp(argv[i], "-d")) textbuf_str(&body, argv[i + 1]);
        if (!strcmp(argv[i], "-c")) chunked_mib = atol(argv[i + 1]);
        if (!strcmp(argv[i], "-q")) leave = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "-f")) {
            char *text;
            size_t n;
            err_ctx err;
            if (read_whole_file(&text, &n, argv[i + 1], &err) < 0) return 1;
            textbuf_put(&body, (str_view){ text, n });
            mem_free(text);
        }
    }
    const bool has_host = headers.ptr && strstr(headers.ptr, "Host:");
    textbuf_printf(&request, "%s %s HTTP/1.1\r\n%sConnection: close\r\n", argv[2], argv[3],
                   has_host ? "" : "Host: localhost\r\n");
    if (headers.ptr) textbuf_put(&request, textbuf_view(&headers));
    if (chunked_mib > 0) textbuf_str(&request, "Transfer-Encoding: chunked\r\n");
    else if (body.len > 0 || !strcmp(argv[2], "POST"))
        textbuf_printf(&request, "Content-Length: %zu\r\n", body.len);
    textbuf_str(&request, "\r\n");
    textbuf_put(&request, textbuf_view(&body));
    const int fd = dial(atoi(argv[1]));
    send_all(fd, textbuf_view(&request));
    send_chunks(fd, chunked_mib);
    for (;;) {
        char piece[4096];
        const ssize_t n = recv(fd, piece, sizeof piece, 0);
        if (n <= 0) break;
        textbuf_put(&got, (str_view){ piece, (size_t)n });
        if (leave < 0) continue;
        for (const int n_now = count_events(&got); n_event < n_now; n_event++)
            fputs("event\n", stderr);
        if (n_event >= leave) break;
    }
    close(fd);
    textbuf_put(&got, (str_view){ "", 1 });
    const char *end = got.ptr ? strstr(got.ptr, "\r\n\r\n") : NULL;
    if (!end) return 1;
    for (const char *p = got.ptr; p < end + 2; p++)
        if (*p != '\r') putchar(*p);
    putchar('\n');
    const bool chunked = strcasestr(got.ptr, "\r\nTransfer-Encoding: chunked") != NULL;
    if (chunked) print_chunks(end + 4, got.ptr + got.len - 1);
    else fwrite(end + 4, 1, got.len - 1 - (size_t)(end + 4 - got.ptr), stdout);
    textbuf_free(&request);
    textbuf_free(&headers);
    textbuf_free(&body);
    textbuf_free(&got);
    return 0;
}
