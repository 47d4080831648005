/* interrupt.h - signals, turned into something a program can look at.
 *
 * The first SIGINT or SIGTERM only sets a flag: the code that computes looks at it and ends
 * cleanly. The second one ends the program at once, unless interrupt_set_limit says otherwise. A
 * signal that was ignored when we started stays ignored. SIGPIPE is ignored, so a write to a closed
 * pipe fails with EPIPE. Blocking calls return with EINTR after SIGINT and SIGTERM. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>

void interrupt_install(void);            /* once, before anything below */
bool interrupted(void);                  /* since the last interrupt_clear; from any thread */
bool interrupt_watch(void *ctx);         /* !interrupted(), for code that asks whether to go on */

/* That many signals only set the flag; the next one ends the program, unless interrupt_clear was
 * called before it. 1 unless this was called. For a program in which a person has something to
 * lose. */
void interrupt_set_limit(int n);

/* The signal was dealt with: forgets it, and the next one is a first one again. */
void interrupt_clear(void);

/* 130 after SIGINT, 143 after SIGTERM, 0 if there was none. */
int interrupt_exit_code(void);

/* ---- Ctrl-Z ---- */

/* While held, SIGTSTP only sets a flag, which interrupt_stop_asked returns. A GPU must not wait for
 * a process that is stopped, so the process stops between tokens. */
void interrupt_hold_stop(bool hold);
bool interrupt_stop_asked(void);

/* Stops the process as SIGTSTP does. The shell finds the terminal in its own mode; after SIGCONT
 * the terminal has the mode from before this call. */
void interrupt_stop(void);

/* ---- the terminal ---- */

/* Remembers fd's mode, which the caller is about to change: a signal that ends or stops the process
 * sets it again. interrupt_restore_terminal does so, too, and may be called from a signal handler.
 * No input is ever discarded. */
void interrupt_keep_terminal(int fd);
void interrupt_release_terminal(void);   /* restores it, and forgets it */
void interrupt_restore_terminal(void);

/* Waits until fd can be read: true. False: a signal came first, to whichever thread, and however
 * little before the call: interrupted(), interrupt_stop_asked() and interrupt_resized() tell.
 * fd -1: waits for a signal alone. */
bool interrupt_wait(int fd);
bool interrupt_resized(void);            /* the window, since the last call; after keep_terminal */

#endif
