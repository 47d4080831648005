/* available_memory.h - how much memory a model may take: what the machine has left, or a
 * container's limit if that is less. */
#ifndef TIERS_AVAILABLE_MEMORY_H
#define TIERS_AVAILABLE_MEMORY_H

#include "loader/base.h"

/* Bytes that can be allocated without swapping. *whose names what limits it, for messages: "this
 * machine" or "this container". */
int available_memory(uint64_t *bytes, const char **whose, err_ctx *err);

/* The lowest room that the control groups of this process leave, seen from the folder root (""
 * except in tests): limit less what is used and cannot be given back. False if none limits. */
bool available_memory_cgroup(uint64_t *bytes, const char *root);

/* Largest resident memory of this process so far, mapped files included. */
uint64_t peak_memory_bytes(void);

/* What of it is resident now. */
uint64_t resident_memory_bytes(void);

/* The same, counted page by page: many kernels keep a sum that lacks some pages of each CPU, and
 * not the same ones in the next run. Takes time for every page: while little is resident. */
uint64_t resident_memory_counted(void);

#endif
