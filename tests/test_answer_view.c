/* test_answer_view.c - what parts of an answer become on standard output, byte by byte. */
#include "cli/view/answer_view.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/case_file.h"

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
    static case_rows rows;
    if (!case_rows_read(&rows, "answer_view.txt")) return;
    for (int i = 0; i < rows.n; i++) {
        char **cells = rows.cells[i], *next = cells[0];
        const bool dim = !strcmp(cells[1], "dim"), hidden = !strcmp(cells[1], "hidden");
        const char *events[6] = { NULL };
        for (size_t n = 0; next && n < ARRAY_LEN(events); n++) events[n] = strsep(&next, " ");
        for (int lead = 0; lead < 2; lead++) {
            char got[256] = "", want[256];
            answer_view v = { .show_reasoning = !hidden, .quiet = true, .on_screen = dim,
                              .dim = dim, .lead = lead ? "==" : NULL };
            if (ftruncate(fileno(f), 0) != 0) CHECK(false);
            lseek(fileno(f), 0, SEEK_SET);
            const int old = divert(fileno(f));
            feed(&v, events, ARRAY_LEN(events));
            answer_view_end(&v, lead);
            give_back(old);
            const ssize_t n = pread(fileno(f), got, sizeof got - 1, 0);
            snprintf(want, sizeof want, "%s%s", lead ? "==" : "", cells[2]);
            if (lead && !*cells[2]) snprintf(want, sizeof want, "==\n");
            CHECK_MSG(n == (ssize_t)strlen(want) && !strcmp(got, want), "%s, lead %d: '%s'",
                      cells[3], lead, got);
            CHECK_MSG(v.begun == (*want != '\0') && v.write_errno == 0, "%s", cells[3]);
        }
    }
    case_rows_free(&rows);
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
