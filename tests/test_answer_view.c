/* test_answer_view.c - what parts of an answer become on standard output, byte by byte. */
#include "cli/view/answer_view.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/test.h"

enum { PLAIN, DIM, HIDDEN };
#define BEGIN "\033[2m<think>\n"
#define END "</think>\033[0m\n"

/* Events: r text = reasoning, a text = answer, d = done. */
static const struct { const char *events[6]; int how; const char *want, *why; } rows[] = {
    { { "aHi" }, PLAIN, "Hi\n", "an answer" },
    { { "aHi\n" }, PLAIN, "Hi\n", "that ends its line itself" },
    { { "rhm", "aHi", "d" }, PLAIN, "<think>\nhm\n</think>\n\nHi\n", "thought before it" },
    { { "rhm\n", "aHi" }, PLAIN, "<think>\nhm\n</think>\n\nHi\n", "thought that ends its line" },
    { { "rh", "rm" }, PLAIN, "<think>\nhm\n</think>\n", "nothing but thought" },
    { { "aA", "rhm", "aB" }, PLAIN, "A\n<think>\nhm\n</think>\n\nB\n", "thought in between" },
    { { "aA\n", "rhm" }, PLAIN, "A\n<think>\nhm\n</think>\n", "thought at the end" },
    { { "ra", "aA", "rb", "aB" }, PLAIN,
      "<think>\na\n</think>\n\nA\n<think>\nb\n</think>\n\nB\n", "twice" },
    { { "rhm", "r", "a", "rha" }, PLAIN, "<think>\nhmha\n</think>\n", "empty pieces are none" },
    { { "d" }, PLAIN, "", "nothing" },
    { { "rhm" }, HIDDEN, "", "hidden thought" },
    { { "aA", "rhm", "aB" }, HIDDEN, "AB\n", "hidden thought in between" },
    { { "aA", "rhm", "aB" }, DIM, "A\n" BEGIN "hm\n" END "\nB\n", "in a fainter colour" },
    { { "rx\033[31m", "a\033y" }, DIM, BEGIN "x\xEF\xBF\xBD[31m\n" END "\n\xEF\xBF\xBDy\n",
      "nothing that a terminal would obey" },
    { { "a\033[31m" }, PLAIN, "\033[31m\n", "but a file gets it" },
};

static void feed(answer_view *v, const char *const *events, size_t n)
{
    for (size_t i = 0; i < n && events[i]; i++) {
        const chat_event ev = { .kind = events[i][0] == 'r' ? CHAT_REASONING :
                                        events[i][0] == 'a' ? CHAT_ANSWER : CHAT_DONE,
                                .text = str_from(events[i] + 1) };
        answer_view_event(v, &ev);
    }
}

/* Standard output goes to fd until it is given back. */
static int divert(int fd)
{
    fflush(stdout);
    const int old = dup(1);
    dup2(fd, 1);
    return old;
}

static void give_back(int old)
{
    dup2(old, 1);
    close(old);
}

static void test_parts(FILE *f)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (int lead = 0; lead < 2; lead++) {
            char got[256] = "", want[256];
            answer_view v = { .show_reasoning = rows[i].how != HIDDEN, .quiet = true,
                              .on_screen = rows[i].how == DIM, .dim = rows[i].how == DIM,
                              .lead = lead ? "==" : NULL };
            if (ftruncate(fileno(f), 0) != 0) CHECK(false);
            lseek(fileno(f), 0, SEEK_SET);
            const int old = divert(fileno(f));
            feed(&v, rows[i].events, ARRAY_LEN(rows[i].events));
            answer_view_end(&v, lead);
            give_back(old);
            const ssize_t n = pread(fileno(f), got, sizeof got - 1, 0);
            snprintf(want, sizeof want, "%s%s", lead ? "==" : "", rows[i].want);
            if (lead && !*rows[i].want) snprintf(want, sizeof want, "==\n");
            CHECK_MSG(n == (ssize_t)strlen(want) && !strcmp(got, want), "%s, lead %d: '%s'",
                      rows[i].why, lead, got);
            CHECK_MSG(v.begun == (*want != '\0') && v.write_errno == 0, "%s", rows[i].why);
        }
    }
}

/* After a write that failed there is no other. */
static void test_failure(void)
{
    static const char *const events[] = { "aHi" };
    const int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    answer_view v = { .show_reasoning = true };
    if (fd < 0) {
        test_skip("no /dev/full");
        return;
    }
    const int old = divert(fd);
    feed(&v, events, 1);
    const int why = v.write_errno;
    const chat_event ev = { .kind = CHAT_REASONING, .text = str_from("hm") };
    give_back(old);                      /* anything written now would show */
    const int rc = answer_view_event(&v, &ev), rc_end = answer_view_end(&v, true);
    CHECK(why == ENOSPC && v.write_errno == ENOSPC && rc < 0 && rc_end < 0);
    close(fd);
}

int main(int argc, char **argv)
{
    FILE *f = tmpfile();
    test_begin("answer_view", argc, argv);
    if (CHECK(f != NULL)) test_parts(f);
    test_failure();
    if (f) fclose(f);
    return test_end();
}
