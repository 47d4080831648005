/* interrupt.c - the signal handlers behind interrupt.h.
 *
 * The handler stores and counts, and gives the signals back to the system when it has seen enough;
 * everything else happens outside of it. What a handler shares with the program can only be global:
 * all of it is here. Only signals that we took are given back or taken again. */
#include "cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

enum { N_SIGNAL = 2 };
static const int numbers[N_SIGNAL] = { SIGINT, SIGTERM };
static bool ours[N_SIGNAL];              /* set once, by interrupt_install */

static volatile sig_atomic_t caught;     /* 0, or the latest signal */
static volatile sig_atomic_t n_caught;   /* since interrupt_clear */
static volatile sig_atomic_t patience = 1;
static int wake[2] = { -1, -1 };         /* a pipe: handlers write, who waits reads */

void interrupt_wake(void)
{
    const int before = errno;
    const ssize_t n = write(wake[1], "", 1);     /* a full pipe is as good */
    (void)n;
    errno = before;
}

static void on_signal(int number)
{
    caught = number;
    n_caught = n_caught + 1;
    interrupt_wake();
    if (n_caught < patience) return;
    for (int i = 0; i < N_SIGNAL; i++)   /* the next one must work even if nobody looks */
        if (ours[i]) signal(numbers[i], SIG_DFL);
}

static void arm(void)
{
    struct sigaction act = { 0 };
    act.sa_handler = on_signal;          /* no SA_RESTART: a read that waits must return */
    sigemptyset(&act.sa_mask);
    for (int i = 0; i < N_SIGNAL; i++)
        if (ours[i]) sigaction(numbers[i], &act, NULL);
}

void interrupt_install(void)
{
    struct sigaction old;
    /* whoever started us in the background with a signal switched off meant it */
    for (int i = 0; i < N_SIGNAL; i++)
        ours[i] = sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN;
    signal(SIGPIPE, SIG_IGN);
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) < 0) wake[0] = wake[1] = -1;
    arm();
}

void interrupt_patience(int n)
{
    patience = n;
}

bool interrupted(void)
{
    return caught != 0;
}

/* A signal between a look at its flag and a read that waits would not end the read: the pipe
 * remembers it. */
bool interrupt_wait(int fd)
{
    struct pollfd of[2] = { { .fd = fd, .events = POLLIN }, { .fd = wake[0], .events = POLLIN } };
    char some[64];
    if (poll(of, 2, -1) < 0) return false;
    if (!of[1].revents) return true;
    while (read(wake[0], some, sizeof some) > 0) continue;
    return false;
}

bool interrupt_watch(void *ctx)
{
    (void)ctx;
    return !interrupted();
}

void interrupt_clear(void)
{
    if (!caught) return;
    caught = 0;
    n_caught = 0;
    arm();
}

int interrupt_exit_code(void)
{
    return caught ? 128 + caught : 0;
}
