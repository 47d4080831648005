/* soak_client.c - many clients at once, for long: complete, aborted and malformed requests.
 *
 *   soak_client PORT REQUESTS CLIENTS SEED [may-fail]
 *
 * Each question is first asked alone; later answers to it, whatever else runs, must be the same.
 * 200 more clients never finish a request and send a byte of it every 0.1 s. At the end every slot
 * must be idle. may-fail: reads of the server's drive fail at times, so an error is accepted;
 * another answer is not. Prints one line. Exit code: 0 passed. */
#include <arpa/inet.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "loader/base.h"

enum { MAX_CLIENTS = 64, LIMIT_S = 300, SLOW_CLIENTS = 200 };

/* ---- what is asked --------------------------------------------------------------------------- */

typedef struct question {
    const char *path, *body;             /* %s stands for n_word words */
    int n_word;
} question;

#define CHAT "/v1/chat/completions"
#define ONE(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define TALK "\"messages\":[{\"role\":\"system\",\"content\":\"Be brief. %s\"},"               \
             "{\"role\":\"user\",\"content\":\"Hello\"},"                                       \
             "{\"role\":\"assistant\",\"content\":\"Hi there.\"},"                              \
             "{\"role\":\"user\",\"content\":\"Count.\"}]"
static const question questions[] = {
    { CHAT, "{" ONE("Hello") ",\"max_tokens\":12,\"temperature\":0,\"stream\":true}", 0 },
    { CHAT, "{" ONE("Hello") ",\"max_tokens\":12,\"temperature\":0}", 0 },
    { CHAT, "{" ONE("Tell me of %s") ",\"max_tokens\":20,\"seed\":3,\"stream\":true}", 40 },
    { CHAT, "{" ONE("Tell me of %s") ",\"max_tokens\":8,\"seed\":4,\"n\":2}", 90 },
    { CHAT, "{" TALK ",\"max_tokens\":24,\"seed\":5,\"stream\":true,"
            "\"stream_options\":{\"include_usage\":true}}", 60 },
    { CHAT, "{" TALK ",\"max_tokens\":10,\"seed\":6,\"stop\":[\"e\"]}", 60 },
    { CHAT, "{" TALK ",\"max_tokens\":10,\"temperature\":0}", 120 },
    { CHAT, "{" ONE("A form") ",\"max_tokens\":60,\"seed\":7,\"response_format\":{\"type\":"
            "\"json_schema\",\"json_schema\":{\"name\":\"x\",\"strict\":true,\"schema\":{\"type\":"
            "\"object\",\"properties\":{\"n\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"}},"
            "\"required\":[\"n\",\"b\"],\"additionalProperties\":false}}}}", 0 },
    { "/v1/completions", "{\"prompt\":\"Once upon\",\"max_tokens\":16,\"seed\":8}", 0 },
    { "/v1/completions", "{\"prompt\":\"%s\",\"max_tokens\":6,\"seed\":9,\"stream\":true}", 300 },
    { "/v1/completions", "{\"prompt\":[\"One\",\"Two\",\"Three\"],\"max_tokens\":4,"
                         "\"temperature\":0}", 0 },
    { "/v1/messages", "{\"model\":\"x\"," ONE("Hello %s") ",\"max_tokens\":14,\"temperature\":0,"
                      "\"stream\":true}", 20 },
    { "/v1/messages", "{\"model\":\"x\"," ONE("Hello %s") ",\"max_tokens\":14,\"temperature\":0}",
      20 },
    { "/v1/responses", "{\"model\":\"x\",\"input\":\"Hello %s\",\"max_output_tokens\":16,"
                       "\"temperature\":0,\"stream\":true}", 30 },
    { "/v1/responses", "{\"model\":\"x\",\"input\":\"Hello\",\"max_output_tokens\":16,"
                       "\"temperature\":0}", 0 },
    { "/api/chat", "{\"model\":\"x\"," ONE("Hello") ",\"options\":{\"num_predict\":10,"
                   "\"temperature\":0}}", 0 },
    { "/api/generate", "{\"model\":\"x\",\"prompt\":\"Hello %s\",\"stream\":false,\"options\":"
                       "{\"num_predict\":10,\"seed\":2}}", 10 },
};
enum { N_QUESTION = ARRAY_LEN(questions) };

static const struct { const char *path, *body; } bad_requests[] = {
    { CHAT, "" }, { CHAT, "{" }, { CHAT, "[]" }, { CHAT, "{\"messages\":7}" },
    { CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}" },
    { CHAT, "{" ONE("x") ",\"temperature\":\"hot\"}" }, { CHAT, "{" ONE("x") ",\"n\":-1}" },
    { "/v1/completions", "{\"prompt\":[99999999,1],\"max_tokens\":2}" },
    { "/v1/messages", "{\"max_tokens\":3}" }, { "/v1/responses", "{\"input\":{}}" },
    { "/api/chat", "nothing" }, { "/nowhere", "{}" },
};

static char *bodies[N_QUESTION];         /* with words instead of %s */
static char *expected[N_QUESTION];           /* the answer to each alone */

/* ---- one exchange ---------------------------------------------------------------------------- */

static int port;

static int connect_tcp(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    const struct timeval wait_limit = { .tv_sec = LIMIT_S };
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait_limit, sizeof wait_limit);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    close(fd);
    return -1;
}

/* Returns the status and fills *got with all that came, or leaves after so many bytes of it: 0. */
static int ask(textbuf *got, const char *method, const char *path, const char *body, long leave)
{
    textbuf request = { 0 };
    char piece[4096];
    const int fd = connect_tcp();
    if (fd < 0) return -1;
    textbuf_printf(&request, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                   "Content-Length: %zu\r\n\r\n%s", method, path, strlen(body), body);
    for (size_t at = 0; at < request.len;) {
        const ssize_t n = send(fd, request.ptr + at, request.len - at, MSG_NOSIGNAL);
        if (n <= 0) break;
        at += (size_t)n;
    }
    textbuf_free(&request);
    for (ssize_t n; leave != 0 && (n = recv(fd, piece, sizeof piece, 0)) > 0;) {
        textbuf_put(got, (str_view){ piece, (size_t)n });
        if (leave > 0 && got->len >= (size_t)leave) leave = 0;
    }
    close(fd);
    textbuf_put(got, (str_view){ "", 1 });
    if (leave == 0) return 0;
    return got->ptr && !strncmp(got->ptr, "HTTP/1.1 ", 9) ? atoi(got->ptr + 9) : -1;
}

/* ---- what was said --------------------------------------------------------------------------- */

static const char *const said_keys[] = {
    "content", "text", "delta", "thinking", "reasoning_content", "arguments", "partial_json",
    "response", "finish_reason", "stop_reason", "done_reason", "message",
};

typedef struct said {
    textbuf of[ARRAY_LEN(said_keys)];
    bool error;
} said;

static void collect(said *s, const json_t *v)
{
    const char *key;
    json_t *member;
    size_t i;
    if (json_is_array(v)) json_array_foreach(v, i, member) collect(s, member);
    if (!json_is_object(v)) return;
    json_object_foreach((json_t *)v, key, member) {
        if (!strcmp(key, "error") && !json_is_null(member)) s->error = true;
        for (i = 0; i < ARRAY_LEN(said_keys); i++)
            if (!strcmp(key, said_keys[i]) && json_is_string(member))
                textbuf_str(&s->of[i], json_string_value(member));
        collect(s, member);
    }
}

/* Chunks are joined in place; false: the end is missing. */
static bool join_chunks(char *body, char *end)
{
    char *to = body;
    for (char *p = body; p < end;) {
        char *after;
        const unsigned long n = strtoul(p, &after, 16);
        if (strncmp(after, "\r\n", 2) != 0) return false;
        after += 2;
        if (n == 0) {
            *to = '\0';
            return true;
        }
        if ((unsigned long)(end - after) < n + 2) return false;
        memmove(to, after, n);
        to += n;
        p = after + n + 2;
    }
    return false;
}

/* All strings of the response as one text, to be freed; NULL: it was cut. */
static char *collect_all(textbuf *got, bool *error)
{
    said s = { 0 };
    textbuf all = { 0 };
    char *body = strstr(got->ptr, "\r\n\r\n"), *save;
    if (!body) return NULL;
    body += 4;
    if (strstr(got->ptr, "Transfer-Encoding: chunked") &&
        !join_chunks(body, got->ptr + got->len - 1))
        return NULL;
    json_t *one = json_loads(body, 0, NULL);
    if (one) collect(&s, one);
    json_decref(one);
    for (char *line = one ? NULL : strtok_r(body, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        json_t *v = json_loads(!strncmp(line, "data: ", 6) ? line + 6 : line, 0, NULL);
        if (v) collect(&s, v);
        json_decref(v);
    }
    for (size_t i = 0; i < ARRAY_LEN(said_keys); i++) {
        textbuf_printf(&all, "%s=%.*s;", said_keys[i], (int)s.of[i].len,
                       s.of[i].ptr ? s.of[i].ptr : "");
        textbuf_free(&s.of[i]);
    }
    *error = s.error;
    textbuf_put(&all, (str_view){ "", 1 });
    return all.ptr;
}

/* ---- clients --------------------------------------------------------------------------------- */

static struct {
    atomic_int left, asked, busy, gone, refused, failed, wrong;
} count;
static bool may_fail;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void complain(const char *what, const char *path, const char *got, const char *want)
{
    if (atomic_fetch_add(&count.wrong, 1) >= 5) return;
    pthread_mutex_lock(&lock);
    fprintf(stderr, "%s: %s\n  got  %.600s\n  want %.600s\n", path, what, got, want);
    pthread_mutex_unlock(&lock);
}

static void ask_question(int q)
{
    textbuf got = { 0 };
    bool error = false;
    const int status = ask(&got, "POST", questions[q].path, bodies[q], -1);
    char *heard = status == 200 ? collect_all(&got, &error) : NULL;
    atomic_fetch_add(&count.asked, 1);
    if (status == 503 || status == 529) atomic_fetch_add(&count.busy, 1);
    else if (may_fail && (status == 500 || error)) atomic_fetch_add(&count.failed, 1);
    else if (!heard || strcmp(heard, expected[q]) != 0)
        complain(status == 200 ? "another answer" : "no answer", questions[q].path,
                 heard ? heard : got.ptr, expected[q]);
    mem_free(heard);
    textbuf_free(&got);
}

static void leave_early(int q, uint64_t dice)
{
    textbuf got = { 0 };
    ask(&got, "POST", questions[q].path, bodies[q], (long)(dice % 1500));
    atomic_fetch_add(&count.gone, 1);
    textbuf_free(&got);
}

static void send_nonsense(size_t i)
{
    textbuf got = { 0 };
    const int status = ask(&got, "POST", bad_requests[i].path, bad_requests[i].body, -1);
    if (status < 400 || status >= 600 || (status >= 500 && status != 503 && status != 529))
        complain("a bad request was accepted", bad_requests[i].path, got.ptr ? got.ptr : "", "4xx");
    atomic_fetch_add(&count.refused, 1);
    textbuf_free(&got);
}

static void get_status(uint64_t dice)
{
    static const char *const paths[] = { "/health", "/slots", "/metrics", "/v1/models", "/props" };
    const char *path = paths[dice % ARRAY_LEN(paths)];
    textbuf got = { 0 };
    if (ask(&got, "GET", path, "", -1) != 200) complain("not 200", path, got.ptr, "200");
    textbuf_free(&got);
}

static void *client(void *ctx)
{
    const uint64_t seed = *(const uint64_t *)ctx;
    for (uint64_t i = 0; atomic_fetch_sub(&count.left, 1) > 0; i++) {
        const uint64_t dice = random_word(seed, 2 * i), more = random_word(seed, 2 * i + 1);
        const int q = (int)(more % N_QUESTION);
        if (dice % 100 < 70) ask_question(q);
        else if (dice % 100 < 85) leave_early(q, dice / 100);
        else if (dice % 100 < 95) send_nonsense(more % ARRAY_LEN(bad_requests));
        else get_status(more);
    }
    return NULL;
}

static atomic_bool over;

/* The slow clients, on one thread. */
static void *send_slowly(void *ctx)
{
    static const char begin[] = "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nX-Slow: ";
    int fds[SLOW_CLIENTS];
    (void)ctx;
    for (int i = 0; i < SLOW_CLIENTS; i++) {
        fds[i] = connect_tcp();
        if (fds[i] >= 0) (void)!send(fds[i], begin, sizeof begin - 1, MSG_NOSIGNAL);
    }
    while (!atomic_load(&over)) {
        for (int i = 0; i < SLOW_CLIENTS; i++)
            if (fds[i] >= 0) (void)!send(fds[i], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
    }
    for (int i = 0; i < SLOW_CLIENTS; i++)
        if (fds[i] >= 0) close(fds[i]);
    return NULL;
}

/* A text of so many words, the same each time. */
static void put_words(textbuf *to, int n, int seed)
{
    static const char *const words[] = { "fox", "river", "seven", "blue", "stone", "garden" };
    for (int i = 0; i < n; i++)
        textbuf_printf(to, "%s%s", i > 0 ? " " : "",
                       words[random_word((uint64_t)seed, (uint64_t)i) % ARRAY_LEN(words)]);
}

static bool prepare(void)
{
    for (int q = 0; q < N_QUESTION; q++) {
        const char *from = questions[q].body, *hole = strstr(from, "%s");
        textbuf body = { 0 }, got = { 0 };
        bool error = false;
        textbuf_put(&body, (str_view){ from, hole ? (size_t)(hole - from) : strlen(from) });
        if (hole) {
            put_words(&body, questions[q].n_word, q);
            textbuf_str(&body, hole + 2);
        }
        textbuf_put(&body, (str_view){ "", 1 });
        bodies[q] = body.ptr;
        for (int tries = 0; tries < 20 && !expected[q]; tries++) {
            got.len = 0;
            const int status = ask(&got, "POST", questions[q].path, bodies[q], -1);
            expected[q] = status == 200 ? collect_all(&got, &error) : NULL;
            if (error) {
                mem_free(expected[q]);
                expected[q] = NULL;
            }
            if (!expected[q] && !may_fail) break;
        }
        if (!expected[q]) fprintf(stderr, "question %d: %.300s\n", q,
                                  got.ptr ? got.ptr : "no answer");
        textbuf_free(&got);
        if (!expected[q]) return false;
    }
    return true;
}

/* All clients have left: every slot must be idle within 30 s. */
static bool all_slots_idle(void)
{
    for (int i = 0; i < 600; i++) {
        textbuf got = { 0 };
        const int status = ask(&got, "GET", "/slots", "", -1);
        const bool ok = status == 200 && !strstr(got.ptr, "\"is_processing\":true");
        if (!ok && i == 599) fprintf(stderr, "stuck: %d %s\n", status, got.ptr ? got.ptr : "");
        textbuf_free(&got);
        if (ok) return true;
        nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
    }
    return false;
}

int main(int argc, char **argv)
{
    pthread_t threads[MAX_CLIENTS], slow;
    uint64_t seeds[MAX_CLIENTS];
    if (argc < 5) return 2;
    port = atoi(argv[1]);
    may_fail = argc > 5;
    const int n = min_int(atoi(argv[3]), MAX_CLIENTS);
    if (!prepare()) return 1;
    atomic_store(&count.left, atoi(argv[2]));
    if (pthread_create(&slow, NULL, send_slowly, NULL) != 0) return 1;
    for (int i = 0; i < n; i++) {
        seeds[i] = (uint64_t)atoi(argv[4]) * 1000 + (uint64_t)i;
        if (pthread_create(&threads[i], NULL, client, &seeds[i]) != 0) return 1;
    }
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    atomic_store(&over, true);
    pthread_join(slow, NULL);
    const bool free_again = all_slots_idle();
    printf("%d asked, %d left early, %d malformed, %d busy, %d failed, %d wrong%s\n",
           atomic_load(&count.asked), atomic_load(&count.gone), atomic_load(&count.refused),
           atomic_load(&count.busy), atomic_load(&count.failed), atomic_load(&count.wrong),
           free_again ? "" : ", a slot is stuck");
    for (int q = 0; q < N_QUESTION; q++) {
        mem_free(bodies[q]);
        mem_free(expected[q]);
    }
    return atomic_load(&count.wrong) == 0 && free_again ? 0 : 1;
}
