/* interrupt.c - the signal handler and its flags.
 *
 * The handler stores, counts, and ends the program above the limit. Its state must be global and is
 * all here. Signals that were ignored at the start get no handler. */
#include "cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

static volatile sig_atomic_t caught;     /* 0, or the latest SIGINT or SIGTERM */
static volatile sig_atomic_t n_caught;   /* since interrupt_clear */
static volatile sig_atomic_t wait_limit = 1;
static volatile sig_atomic_t stop_asked, resized;
static volatile sig_atomic_t terminal = -1;      /* whose mode is kept; -1: none */
static struct termios kept_mode;         /* set before terminal is */
static int wake[2] = { -1, -1 };         /* a pipe: the handler writes, interrupt_wait reads */

static void on_signal(int number)
{
    const int before = errno;
    ssize_t n;
    if (number == SIGTSTP) {
        stop_asked = 1;
    } else if (number == SIGWINCH) {
        resized = 1;
    } else if (n_caught < wait_limit) {
        caught = number;
        n_caught = n_caught + 1;
    } else {                             /* even if no code reads the flag */
        interrupt_restore_terminal();
        signal(number, SIG_DFL);
        raise(number);                   /* takes effect when this handler returns */
    }
    n = write(wake[1], "", 1);           /* a full pipe wakes the reader, too */
    (void)n;
    errno = before;
}

static void take(int number, int flags)
{
    struct sigaction old, act = { .sa_handler = on_signal, .sa_flags = flags };
    sigemptyset(&act.sa_mask);
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
        sigaction(number, &act, NULL);
}

void interrupt_install(void)
{
    signal(SIGPIPE, SIG_IGN);
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) < 0) wake[0] = wake[1] = -1;
    take(SIGINT, 0);                     /* no SA_RESTART: a blocked read must return */
    take(SIGTERM, 0);
}

void interrupt_set_limit(int n) { wait_limit = n; }

bool interrupted(void) { return caught != 0; }

bool interrupt_watch(void *ctx)
{
    (void)ctx;
    return !interrupted();
}

void interrupt_clear(void)
{
    caught = 0;
    n_caught = 0;
}

int interrupt_exit_code(void) { return caught ? 128 + caught : 0; }

/* ---- Ctrl-Z -------------------------------------------------------------------------------- */

static void give_back_stop(void)
{
    struct sigaction old;
    if (sigaction(SIGTSTP, NULL, &old) == 0 && old.sa_handler == on_signal)
        signal(SIGTSTP, SIG_DFL);
}

void interrupt_hold_stop(bool hold)
{
    if (hold) take(SIGTSTP, SA_RESTART);
    else give_back_stop();
    if (!hold && stop_asked) interrupt_stop();
}

bool interrupt_stop_asked(void) { return stop_asked; }

void interrupt_stop(void)
{
    struct sigaction ours;
    struct termios mode;
    const int fd = terminal;
    const bool keep = fd >= 0 && tcgetattr(fd, &mode) == 0;

    stop_asked = 0;
    if (keep) interrupt_restore_terminal();
    sigaction(SIGTSTP, NULL, &ours);
    if (ours.sa_handler != SIG_IGN) signal(SIGTSTP, SIG_DFL);
    raise(SIGTSTP);
    sigaction(SIGTSTP, &ours, NULL);
    if (keep) {
        tcgetattr(fd, &kept_mode);       /* the shell may have changed it meanwhile */
        while (tcsetattr(fd, TCSADRAIN, &mode) < 0 && errno == EINTR) continue;
    }
}

/* ---- the terminal -------------------------------------------------------------------------- */

void interrupt_keep_terminal(int fd)
{
    if (tcgetattr(fd, &kept_mode) == 0) terminal = fd;
    take(SIGWINCH, SA_RESTART);
}

/* TCSANOW and TCSADRAIN keep what was typed; TCSAFLUSH would discard it. */
void interrupt_restore_terminal(void)
{
    if (terminal >= 0) tcsetattr(terminal, TCSANOW, &kept_mode);
}

void interrupt_release_terminal(void)
{
    interrupt_restore_terminal();
    terminal = -1;
}

/* The pipe holds a signal that comes between a test of its flag and a blocking read. */
bool interrupt_wait(int fd)
{
    struct pollfd of[2] = { { .fd = fd, .events = POLLIN }, { .fd = wake[0], .events = POLLIN } };
    char some[64];
    if (poll(of, 2, -1) < 0) return false;
    if (!of[1].revents) return true;
    while (read(wake[0], some, sizeof some) > 0) continue;
    return false;
}

bool interrupt_resized(void)
{
    const bool was = resized;
    resized = 0;
    return was;
}
