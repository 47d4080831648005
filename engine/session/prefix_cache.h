/* prefix_cache.h - session states by their token ids, in RAM and on a drive.
 *
 * Kept states form a tree: a node has the rows since its parent's position and the checkpoint of
 * its own (state.h), so states with a common beginning share its rows. Only a comparison of all ids
 * finds a state. A loaded session has the same bits as if it had stayed in memory: tokens that
 * another session computed, perhaps in other chunks, never extend a node. Rows of a next-token
 * block, on which no answer depends, may differ (mtp.h).
 *
 * The least recently used leaf in RAM is evicted first, to the drive if a folder is set. A state
 * that does not fit in RAM together with its ancestors is kept on the drive alone. Files are
 * bounded in the same way, and later programs with the same model, KV type and arithmetic use them.
 * Damaged files are removed, with a note. Only the first of several programs writes the files of a
 * key; the others read the files that existed when they opened the folder. A state that cannot be
 * kept is computed again. One thread at a time, the one that uses the sessions. */
#ifndef ENGINE_SESSION_PREFIX_CACHE_H
#define ENGINE_SESSION_PREFIX_CACHE_H

#include "engine/engine.h"

typedef struct prefix_cache prefix_cache;

typedef struct prefix_cache_options {
    uint64_t ram_bytes;
    const char *folder;                  /* copied; created if its parent exists; NULL: no drive */
    uint64_t drive_bytes;                /* most bytes of files for the same sessions */
    uint64_t most_bytes;                 /* a larger state is neither written nor read; 0: any */
    log_sink_fn *note;                   /* gets one line for each problem with files; or NULL */
    void *note_ctx;
} prefix_cache_options;

/* For sessions with the model, KV type and arithmetic of like, with any context and chunk; all
 * functions refuse others. Borrows like's model, not like. Reads the heads of all files; a folder
 * that cannot be used is a note, not a failure. */
int prefix_cache_create(prefix_cache **out, session *like, const prefix_cache_options *o,
                        err_ctx *err);
void prefix_cache_free(prefix_cache *c);         /* NULL is fine; states in RAM alone are lost */

/* The length of the longest kept state of these tokens; 0: none. */
int prefix_cache_find(prefix_cache *c, const int32_t *ids, int n);

/* The highest position up to n at which s, if rewound to it, would be a kept state with the same
 * bits; 0: none. */
int prefix_cache_held(prefix_cache *c, session *s, int n);

/* Loads the longest kept state of these tokens into s, without snapshots, and returns its length:
 * less than prefix_cache_find's only if a file turns out to be unusable. 0: none; s is unchanged if
 * nothing was found, else empty. < 0: s is of another kind and unchanged, or its memory failed and
 * it is empty. */
int prefix_cache_load(prefix_cache *c, session *s, const int32_t *ids, int n, err_ctx *err);

/* Keeps the state of s at its present position; no-op at 0 and if it is kept already. A failure may
 * have evicted other states; it changes nothing else. */
int prefix_cache_keep(prefix_cache *c, session *s, err_ctx *err);

/* For a program with one conversation, which needs no second copy of its keys and values. From now
 * on prefix_cache_keep only lets s take a snapshot, at these positions, and prefix_cache_held
 * returns 0, so that rewinds do not depend on the cache. */
enum { PREFIX_DEFERRED = 16 };
void prefix_cache_defer(prefix_cache *c, const int *positions, int n);   /* n <= PREFIX_DEFERRED */

/* Keeps the states of s at its snapshots if that saves `least` tokens or more, at the last snapshot
 * `least_last`. s does not change. Tries all and returns the first failure. */
int prefix_cache_settle(prefix_cache *c, session *s, int least, int least_last, err_ctx *err);

/* Lets a background thread write a state that is only in RAM, if the drive has space or files that
 * were used earlier. The caller polls it. False: no file is being written and none is left to
 * write. After a failure it pauses until another state is kept. */
bool prefix_cache_poll(prefix_cache *c);

/* Writes all of them before it returns. After a failure the next call tries again. */
int prefix_cache_flush(prefix_cache *c, err_ctx *err);

typedef struct prefix_cache_stats {
    int n_state, n_ram, n_drive;         /* kept; in RAM; on the drive. A state may be in both */
    uint64_t ram_bytes, drive_bytes;
    uint64_t kept, loaded, dropped;      /* states, since the start; dropped: evicted from RAM */
    uint64_t damaged;                    /* files that could not be used */
} prefix_cache_stats;
prefix_cache_stats prefix_cache_counts(const prefix_cache *c);

#endif
