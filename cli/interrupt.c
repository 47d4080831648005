/* interrupt.c - the signal handlers behind interrupt.h.
 *
 * The handler stores one number and gives the signals back to the system; everything else happens
 * outside of it. The number is the only state, and the only global of the programs besides the name
 * in console.c. */
#include "cli/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t caught;     /* 0, or the signal that came first */

static void on_signal(int number)
{
    caught = number;
    signal(SIGINT, SIG_DFL);             /* a second one must work even if nobody looks */
    signal(SIGTERM, SIG_DFL);
}

static void arm(int number)
{
    struct sigaction act = { 0 }, old;
    act.sa_handler = on_signal;          /* no SA_RESTART: a read that waits must return */
    sigemptyset(&act.sa_mask);
    /* whoever started us in the background with the signal switched off meant it */
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler == SIG_IGN) return;
    sigaction(number, &act, NULL);
}

void interrupt_install(void)
{
    caught = 0;
    arm(SIGINT);
    arm(SIGTERM);
    signal(SIGPIPE, SIG_IGN);
}

bool interrupted(void)
{
    return caught != 0;
}

void interrupt_clear(void)
{
    if (caught) interrupt_install();
}

int interrupt_exit_code(void)
{
    return caught ? 128 + caught : 0;
}
