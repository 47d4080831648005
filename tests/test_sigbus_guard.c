/* test_sigbus_guard.c - files that shrink while they are mapped: the program learns which one,
 * and no other SIGBUS is mistaken for it. Each case is a process of its own. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loader/sigbus_guard.h"
#include "tests/test.h"

enum { N_PAGE = 4, REPORTED = 7, UNHARMED = 8 };

static int report_fd;                      /* where the child writes the path */
static volatile uint8_t seen;

static void tell(const char *path)
{
    const size_t n = strlen(path);
    _exit(write(report_fd, path, n) == (ssize_t)n ? REPORTED : 1);
}

typedef struct files {                   /* two, mapped, of N_PAGE pages; a is guarded as "a" */
    uint8_t *a, *b;
    int fd_a, fd_b;
    size_t page;
} files;

static void touch(const uint8_t *at) { seen = *(const volatile uint8_t *)at; }

static void cut_first(files *f)
{
    if (ftruncate(f->fd_a, (off_t)f->page) < 0) _exit(1);
    touch(f->a);                         /* what is left of it is fine */
    touch(f->a + 2 * f->page);
}

static void cut_last_byte(files *f)
{
    if (ftruncate(f->fd_a, (off_t)(3 * f->page)) < 0) _exit(1);
    touch(f->a + N_PAGE * f->page - 1);
}

static void cut_other(files *f)
{
    if (ftruncate(f->fd_b, 0) < 0) _exit(1);
    touch(f->b);
}

static void cut_removed(files *f)
{
    sigbus_guard_remove(f->a);
    sigbus_guard_remove(f->b);           /* never added */
    if (ftruncate(f->fd_a, 0) < 0) _exit(1);
    touch(f->a);
}

/* An entry that was given back is reused for another file. */
static void cut_second(files *f)
{
    sigbus_guard_remove(f->a);
    if (sigbus_guard_add(f->b, N_PAGE * f->page, "b\n", NULL) < 0 ||
        sigbus_guard_add(f->a, N_PAGE * f->page, "a", NULL) < 0) _exit(1);
    if (ftruncate(f->fd_b, 0) < 0) _exit(1);
    touch(f->b);
}

static void send_signal(files *f)
{
    (void)f;
    kill(getpid(), SIGBUS);
}

static void nothing(files *f)
{
    touch(f->a);
    touch(f->b);
}

static const struct row {
    void (*what)(files *f);
    const char *reported;                    /* the path; "": no report */
    int killed;                          /* the signal that it dies of, or 0 */
    const char *why;
} rows[] = {
    { cut_first, "a", 0, "a page past the new end" },
    { cut_last_byte, "a", 0, "the last byte" },
    { cut_other, "", SIGBUS, "a mapping of another module" },
    { cut_removed, "", SIGBUS, "a file that was closed" },
    { cut_second, "b\\x0A", 0, "the second of two, in a used entry" },
    { send_signal, "", SIGBUS, "a signal that was sent" },
    { nothing, "", 0, "no fault at all" },
};

static uint8_t *map_new(int *fd, size_t bytes)
{
    char path[512];
    *fd = mkstemp(test_temp(path, sizeof path));
    if (*fd < 0) return NULL;
    unlink(path);
    if (ftruncate(*fd, (off_t)bytes) < 0) return NULL;
    void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, *fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void child(const struct row *r)
{
    const struct rlimit none = { 0, 0 };
    files f = { .page = (size_t)sysconf(_SC_PAGESIZE) };
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGBUS, SIG_DFL);             /* a sanitizer has its own handler */
    f.a = map_new(&f.fd_a, N_PAGE * f.page);
    f.b = map_new(&f.fd_b, N_PAGE * f.page);
    if (!f.a || !f.b || sigbus_guard_add(f.a, N_PAGE * f.page, "a", NULL) < 0) _exit(1);
    sigbus_guard_install(tell);
    sigbus_guard_install(NULL);          /* the first one stays */
    r->what(&f);
    _exit(UNHARMED);
}

static void test_row(const struct row *r)
{
    char reported[64] = "";
    int ends[2], status = 0;
    if (!CHECK(pipe(ends) == 0)) return;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        report_fd = ends[1];
        child(r);
    }
    close(ends[1]);
    const ssize_t n = pid > 0 ? read(ends[0], reported, sizeof reported - 1) : 0;
    close(ends[0]);
    if (n > 0) reported[n] = '\0';
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    const int killed = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    CHECK_MSG(!strcmp(reported, r->reported), "%s: reported '%s' instead of '%s'", r->why, reported,
              r->reported);
    CHECK_MSG(killed == r->killed && (killed || code == (r->reported[0] ? REPORTED : UNHARMED)),
              "%s: exit code %d, signal %d", r->why, code, killed);
}

int main(int argc, char **argv)
{
    err_ctx err = { 0 };
    test_begin("map_guard", argc, argv);
    mem_fail_after(1);
    CHECK(sigbus_guard_add(rows, 1, "x", &err) == ERR_NOMEM);
    mem_fail_after(0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) test_row(&rows[i]);
    return test_end();
}
