/* sigbus_guard.h - what happens to a process whose mapped file shrinks, or fails, while it is read.
 *
 * Reading a page that the file no longer has raises SIGBUS, in any thread and at any instruction.
 * Whoever maps a file says so here; a program that has installed a function is told which file it
 * was, and ends with a line of its own instead of in silence. Faults at other addresses, and
 * signals that somebody sent, go to whoever handled them before. */
#ifndef LOADER_SIGBUS_GUARD_H
#define LOADER_SIGBUS_GUARD_H

#include "loader/base.h"

/* Runs inside a signal handler: only what is async-signal-safe, and it must not return. path is
 * printable. */
typedef void sigbus_guard_fn(const char *path);

/* Once, by the program, at its start. Without it SIGBUS is handled as before. */
void sigbus_guard_install(sigbus_guard_fn *fn);

/* From now on bytes at base belong to the file. Returns 0, or ERR_NOMEM with nothing kept. Any
 * thread. */
int sigbus_guard_add(const void *base, uint64_t bytes, const char *path, err_ctx *err);
void sigbus_guard_remove(const void *base);      /* before it is unmapped; unknown: nothing */

#endif
