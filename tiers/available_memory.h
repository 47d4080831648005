/* available_memory.h - RAM that a model may take: the machine's available memory, or a container's
 * limit if that is less. Any thread. */
#ifndef TIERS_AVAILABLE_MEMORY_H
#define TIERS_AVAILABLE_MEMORY_H

#include "loader/base.h"

/* Bytes that can be allocated without swapping. *whose names what limits it, for messages: "this
 * machine" or "this container". */
int available_memory(uint64_t *bytes, const char **whose, err_ctx *err);

/* The fewest bytes that a control group of this process leaves: its limit less used memory that
 * cannot be reclaimed. False if no group has a limit. root: "" except in tests. */
bool available_memory_cgroup(uint64_t *bytes, const char *root);

/* Largest resident memory of this process so far, mapped files included. */
uint64_t peak_memory_bytes(void);

/* Resident memory now, counted page by page: the kernel's own sum lacks some pages of each CPU, and
 * other ones in the next run. Takes time for each page: call it while little is resident. */
uint64_t resident_memory_bytes(void);

#endif
