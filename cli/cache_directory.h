/* cache_directory.h - folders for measured speeds, history, and marks of notes already printed.
 *
 * Never creates a missing home (a service account, a container). Nothing is stored then, without a
 * message, because only time is lost. */
#ifndef CLI_CACHE_DIRECTORY_H
#define CLI_CACHE_DIRECTORY_H

#include "loader/base.h"

/* False if path is inside $HOME and $HOME is no folder. */
bool cache_directory_allows(const char *path);

/* Makes the folders of a file's path if cache_directory_allows it. Returns the length of the first
 * folder that it made; 0: none was missing. */
size_t cache_directory_make(const char *path);

/* Removes the folders that it made if they are empty. */
void cache_directory_unmake(const char *path, size_t made);

/* True on the first call for name (a word without slashes) on this machine, and on each call if
 * nothing can be stored in $XDG_CACHE_HOME/moe or ~/.cache/moe. */
bool cache_directory_first_time(const char *name);
void cache_directory_forget(const char *name);   /* the next call is a first one */

#endif
