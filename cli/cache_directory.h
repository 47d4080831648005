/* cache_directory.h - what the programs may leave in a user's folders: measured speeds, what was
 * typed, what was said before.
 *
 * A home that is not there (a service account, a container) is never made: then nothing is
 * remembered, and nobody is told, because nothing is lost but time. */
#ifndef CLI_CACHE_DIRECTORY_H
#define CLI_CACHE_DIRECTORY_H

#include "loader/base.h"

/* False if path lies in $HOME, and that is no folder. */
bool cache_directory_allows(const char *path);

/* Makes the folders that the path of a file goes through, if cache_directory_allows it. Returns how
 * many bytes of path are the first that it made; 0: none was missing. */
size_t cache_directory_make(const char *path);

/* Removes those that it made, unless something is in them. */
void cache_directory_unmake(const char *path, size_t made);

/* True the first time that it is asked about name on this machine (a word without slashes), and
 * each time where nothing can be remembered: in $XDG_CACHE_HOME/moe or ~/.cache/moe. */
bool cache_directory_first_time(const char *name);
void cache_directory_forget(const char *name);   /* the next time is a first one again */

#endif
