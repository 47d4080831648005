/* prefix_cache.h - states of conversations, kept by their token ids: a prompt is read once.
 *
 * A kept state is that of a session at one position. States are a tree: each holds the keys and
 * values since the state that its session went on from, and what stands for its own position
 * (state.h: rows and a mark), so a conversation with many kept positions stores its keys and values
 * once, and conversations with a common beginning share it. A state is found by the ids of all its
 * tokens, which are compared one by one; nothing else decides. Putting it into a session gives the
 * bits that the session would have had, had it never left memory: a session that computed the same
 * tokens on its own, perhaps in other chunks, never adds to the rows of another.
 *
 * RAM is bounded: the state least recently used of those that no other in RAM goes on from leaves
 * it first, for the drive if there is a folder; a state that does not fit beside all that it goes
 * on from is kept there alone. Files are bounded in the same way, and are found again by the next
 * program that has the same model, KV type and arithmetic. Those of others stay where they are;
 * damaged ones are removed, with a note. Only the first of several programs writes the files of a
 * key; the others read what was there when they opened the folder. What cannot be kept for lack of room or memory is computed
 * again; nothing else is lost. One thread at a time, the one that uses the sessions. */
#ifndef ENGINE_SESSION_PREFIX_CACHE_H
#define ENGINE_SESSION_PREFIX_CACHE_H

#include "engine/engine.h"

typedef struct prefix_cache prefix_cache;

typedef struct prefix_cache_options {
    uint64_t ram_bytes;
    const char *folder;                  /* copied; made if only its last part is missing; NULL: no
                                          * drive */
    uint64_t drive_bytes;                /* of files for the same sessions */
    uint64_t most_bytes;                 /* of one state, while it is written or read: a larger one
                                          * is neither; 0: any */
    log_sink_fn *note;                   /* told what went wrong with files, in one line; or NULL */
    void *note_ctx;
} prefix_cache_options;

/* For sessions with the model, the options and the arithmetic of like, whatever their context and
 * chunk; others are refused by all that follows. Borrows like's model, not like. Reads the heads of
 * all files; a folder that cannot be used is a note, not a failure. */
int prefix_cache_create(prefix_cache **out, session *like, const prefix_cache_options *o,
                        err_ctx *err);
void prefix_cache_free(prefix_cache *c);         /* NULL is fine; what is in RAM alone is lost */

/* How many of the n tokens a kept state stands for: the longest. 0: none. */
int prefix_cache_find(prefix_cache *c, const int32_t *ids, int n);

/* The same at positions up to n of the tokens in s that s itself went through: s, rewound there, is
 * the state that is kept. */
int prefix_cache_held(prefix_cache *c, session *s, int n);

/* Puts the longest kept state of these tokens into s and returns its length. 0: there is none. s
 * holds what it held before if there is none, else the state, without snapshots: fewer tokens than
 * were found, or none, only if a state turned out to be unusable. < 0: s belongs elsewhere and was
 * left alone, or its memory failed and it is empty. */
int prefix_cache_load(prefix_cache *c, session *s, const int32_t *ids, int n, err_ctx *err);

/* Keeps the state of s at its present position; nothing happens at 0 and if it is there already. On
 * failure all is as before, except that others may have been dropped to make room. */
int prefix_cache_keep(prefix_cache *c, session *s, err_ctx *err);

/* For a program with one conversation, which has its keys and values in memory once and wants no
 * second copy. From now on keep only has s take a snapshot, at these positions, and held says 0, so
 * that s goes back as it would without a cache. */
enum { PREFIX_DEFERRED = 16 };
void prefix_cache_defer(prefix_cache *c, const int *at, int n);  /* at most PREFIX_DEFERRED */

/* Keeps the states of s at its snapshots where that saves `least` tokens or more, at the last one
 * `least_last`; what is not in a snapshot any more is left out. s goes on as if nothing had
 * happened. Returns the first failure, after having tried all. */
int prefix_cache_settle(prefix_cache *c, session *s, int least, int least_last, err_ctx *err);

/* Has states that are only in RAM written to the drive, as far as there is room for them beside
 * those that were used later, one after another by a thread of its own while the caller goes on: to
 * be called now and then. False: nothing is under way, nor left to write. After a failure it rests
 * until another state is kept. */
bool prefix_cache_tend(prefix_cache *c);

/* The same at once: all are there when it returns. After a failure the next call tries again. */
int prefix_cache_flush(prefix_cache *c, err_ctx *err);

typedef struct prefix_cache_stats {
    int n_state, n_ram, n_drive;         /* kept; of these in RAM, on the drive, or in both */
    uint64_t ram_bytes, drive_bytes;
    uint64_t kept, loaded, dropped;      /* states, since the start; dropped from RAM */
    uint64_t damaged;                    /* files that could not be used */
} prefix_cache_stats;
prefix_cache_stats prefix_cache_counts(const prefix_cache *c);

#endif
