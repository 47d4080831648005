/* sigbus_guard.h - a clear message if a mapped file shrinks or cannot be read.
 *
 * Reading a page that the file no longer has raises SIGBUS, in any thread and at any instruction.
 * The loader registers each mapping here. The handler calls the program's function with the path of
 * the file, so that the program can end with a message. Faults at other addresses and signals sent
 * with kill go to the earlier handler. */
#ifndef LOADER_SIGBUS_GUARD_H
#define LOADER_SIGBUS_GUARD_H

#include "loader/base.h"

/* Runs inside a signal handler: it may call only async-signal-safe functions and must not return.
 * path is printable. */
typedef void sigbus_guard_fn(const char *path);

/* The program calls it once, at its start. Without it SIGBUS is not handled. */
void sigbus_guard_install(sigbus_guard_fn *fn);

/* Registers the mapping at base for path, which is copied. Returns 0 or ERR_NOMEM. Any thread. */
int sigbus_guard_add(const void *base, uint64_t bytes, const char *path, err_ctx *err);
void sigbus_guard_remove(const void *base);      /* call before munmap; ignores an unknown base */

#endif
