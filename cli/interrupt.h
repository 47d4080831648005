/* interrupt.h - signals as flags.
 *
 * The first SIGINT or SIGTERM sets a flag, at which computations end. The second ends the program
 * at once, unless interrupt_set_limit raised the limit. Signals that were ignored at the start stay
 * ignored. SIGPIPE is ignored, so a write to a closed pipe fails with EPIPE. Blocking calls return
 * EINTR after SIGINT and SIGTERM. */
#ifndef CLI_INTERRUPT_H
#define CLI_INTERRUPT_H

#include <stdbool.h>

void interrupt_install(void);            /* once, before anything below */
bool interrupted(void);                  /* since the last interrupt_clear; from any thread */
bool interrupt_watch(void *ctx);         /* !interrupted(), as a progress callback */

/* The first n signals since interrupt_clear set the flag, the next one ends the program.
 * Default: 1. A chat allows more. */
void interrupt_set_limit(int n);

/* Clears flag and count. */
void interrupt_clear(void);

/* 130 after SIGINT, 143 after SIGTERM, 0 if there was none. */
int interrupt_exit_code(void);

/* ---- Ctrl-Z ---- */

/* While held, SIGTSTP sets a flag, which interrupt_stop_asked returns. The process stops between
 * tokens, because a GPU must not wait for a stopped process. */
void interrupt_hold_stop(bool hold);
bool interrupt_stop_asked(void);

/* Stops the process as SIGTSTP does. The shell gets the terminal's original mode; after SIGCONT the
 * terminal has the mode from before this call. */
void interrupt_stop(void);

/* ---- the terminal ---- */

/* Saves fd's mode before the caller changes it. A signal that ends or stops the process restores
 * it. interrupt_restore_terminal does, too, and is async-signal-safe. No input is discarded. */
void interrupt_keep_terminal(int fd);
void interrupt_release_terminal(void);   /* restores it for the last time */
void interrupt_restore_terminal(void);

/* Waits until fd can be read: true. False: a signal came first, to any thread, or since the last
 * call; see interrupted(), interrupt_stop_asked() and interrupt_resized(). fd -1: waits for a
 * signal alone. */
bool interrupt_wait(int fd);
bool interrupt_resized(void);            /* the window, since the last call; after keep_terminal */

#endif
