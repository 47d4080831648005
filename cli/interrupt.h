/* interrupt.h - Ctrl-C and a closed pipe, turned into something a program can look at.
 *
 * The first SIGINT or SIGTERM only sets a flag: the code that computes looks at it and ends
 * cleanly. The second one ends the program at once, as if nothing were installed, unless
 * interrupt_patience says otherwise. A signal that was ignored when we started stays ignored.
 * SIGPIPE is ignored, so a write to a closed pipe fails with EPIPE. Blocking calls return with
 * EINTR. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>

void interrupt_install(void);            /* once, before anything below */
bool interrupted(void);                  /* since the last interrupt_clear; from any thread */
bool interrupt_watch(void *ctx);         /* !interrupted(), for code that asks whether to go on */

/* That many signals only set the flag; the next one ends the program, unless interrupt_clear was
 * called before it. 1 unless this was called. For a program in which a person has something to
 * lose. */
void interrupt_patience(int n);

/* The signal was dealt with: forgets it, and the next one is a first one again. */
void interrupt_clear(void);

/* Waits until fd can be read: true. fd -1: only for a signal. False: a signal came first, to whichever thread, and however
 * little before the call: what it did is to be looked at. interrupt_wake tells of another handler's
 * signal, and is for handlers. */
bool interrupt_wait(int fd);
void interrupt_wake(void);

/* 130 after SIGINT, 143 after SIGTERM, 0 if there was none. */
int interrupt_exit_code(void);

#endif
