/* prefix_tree.h - the states of a prefix cache as a tree; for prefix_cache.c and prefix_drive.c.
 *
 *   root (no token) -- system, tools -- first message -- its answer -- second message ...
 *                          |               `-- another answer
 *                          `-- another first message ...
 *
 * A node is a state: the ids and rows of the tokens after its parent's position, and the checkpoint
 * of its own. Two nodes may have the same tokens with other bits, so a search visits all branches.
 *
 * Invariants: the parent of a node in RAM is in RAM; the parent of a node on the drive is on the
 * drive; every node is in RAM, on the drive or in both; no node was used later than its parent. */
#ifndef ENGINE_SESSION_PREFIX_TREE_H
#define ENGINE_SESSION_PREFIX_TREE_H

#include "engine/session/prefix_cache.h"
#include "engine/session/prefix_writer.h"

typedef struct prefix_node prefix_node;
struct prefix_node {
    prefix_node *parent, *child, *next;  /* child: the first one; next: the next sibling */
    prefix_node *step;                   /* scratch: the child on the path of a search */
    int from, to;                        /* its tokens; from is the parent's to */
    int32_t *ids;                        /* [to - from] */
    uint8_t *body;                       /* rows, then the checkpoint; NULL: on the drive alone */
    uint64_t rows_bytes, checkpoint_bytes;
    uint64_t body_sum, stamp;            /* of its file: prefix_file.h */
    bool on_drive;                       /* it has a file; n.drive_bytes includes it */
    uint64_t skipped_at;                 /* n.kept when its file had no space; 0: never */
    uint64_t number;                     /* unique */
    uint64_t used;                       /* last use: ns since 1970, as in file times */
};

struct prefix_cache {
    prefix_cache_options o;              /* the cache owns folder */
    const model *m;                      /* borrowed */
    kv_type kv;
    uint64_t key;                        /* state_layout_key of its sessions */
    bool any_length;                     /* no checkpoints: each beginning of a state is a state */
    prefix_node root;
    uint64_t clock, last_number;         /* clock: the latest use of a node, in ns */
    bool read_only;                      /* another program writes the folder */
    int lock;                            /* the key's lock file, or -1 */
    bool deferred;                       /* prefix_cache_keep takes snapshots, */
    int positions[PREFIX_DEFERRED], n_position;  /* at these positions */
    prefix_writer *writer;               /* NULL: not needed yet, or no thread available */
    prefix_node *writing;                /* the writer borrows its body; or NULL */
    uint64_t all_written;                /* n.kept when no file was left to write, or one failed */
    bool failure_noted;                  /* a failed write was reported */
    prefix_cache_stats n;
};

/* ---- prefix_tree.c ---- */

/* Whether these ids [k->to] are the tokens from the root to k. */
bool prefix_tree_leads_to(const prefix_node *k, const int32_t *ids);

/* The next node in the order parents first; into: also the descendants of k. NULL: the end. */
prefix_node *prefix_tree_next(prefix_node *k, bool into);

/* The state of the longest beginning of these tokens, the latest of equals; its length in *pos. */
prefix_node *prefix_tree_longest(prefix_cache *c, const int32_t *ids, int n, int *pos);

/* Sets the last use of k and its ancestors to now. */
void prefix_tree_touch(prefix_cache *c, prefix_node *k);

/* A node for tokens from .. to - 1, without ids and body. */
prefix_node prefix_tree_shape(const prefix_cache *c, int from, int to);
/* RAM that it takes with its body. */
uint64_t prefix_tree_ram(const prefix_node *k);
static inline uint64_t prefix_tree_body(const prefix_node *k)
{
    return k->rows_bytes + k->checkpoint_bytes;
}

/* A node of that shape, not in the tree, with a copy of its ids; ids [shape->to]. with_body:
 * allocates the body. NULL without memory. */
prefix_node *prefix_tree_make(const prefix_node *shape, const int32_t *ids, bool with_body);
void prefix_tree_free(prefix_node *k);   /* not in the tree; NULL is fine */

void prefix_tree_add(prefix_cache *c, prefix_node *parent, prefix_node *k);
void prefix_tree_remove(prefix_cache *c, prefix_node *k);        /* a leaf; frees it */

/* ---- prefix_drive.c ---- */

/* Takes the lock and finds the files of earlier programs. The cache is read_only if another program
 * has the lock, and without a drive, with a note, if the folder cannot be used. */
int prefix_drive_open(prefix_cache *c, err_ctx *err);
void prefix_drive_close(prefix_cache *c);        /* waits for a file under way; unlocks */

/* Writes k, and before it those of its ancestors that have no file. 1: no space, and nothing of
 * lower value to evict, or the cache is read_only. */
int prefix_drive_save(prefix_cache *c, prefix_node *k, err_ctx *err);

/* Lets the background thread begin the next file. False: no file is left to write. True without
 * c->writing: this one failed or had no space, call again. */
bool prefix_drive_begin(prefix_cache *c);

/* Ends the file under way. False: it is not finished; only without wait. */
bool prefix_drive_end(prefix_cache *c, bool wait);

/* Reads the body of k; the caller frees it. NULL: no memory, or the file is missing or damaged. A
 * missing or damaged file removes its node and the node's descendants, and their files unless the
 * cache is read_only. */
uint8_t *prefix_drive_read(prefix_cache *c, prefix_node *k, pool *team);

/* Sets the file's time to now: later programs take it as the last use. */
void prefix_drive_refresh(const prefix_cache *c, const prefix_node *k);

void prefix_drive_note(const prefix_cache *c, const char *problem, const char *action);

#endif
