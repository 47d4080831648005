/* prefix_tree.h - the states of a prefix cache as a tree; for prefix_cache.c and prefix_drive.c.
 *
 *   root (no token) -- system, tools -- first message -- its answer -- second message ...
 *                          |               `-- another answer
 *                          `-- another first message ...
 *
 * A node is a state: the ids and rows of the tokens after its parent's position, and the mark of
 * its own. Two nodes may stand for the same tokens with other bits, so a search looks at all
 * branches.
 *
 * Invariants: whatever is in RAM has its parent in RAM; what is on the drive has its parent on the
 * drive; every node is in one of them or in both; none was
 * used later than its parent. */
#ifndef ENGINE_SESSION_PREFIX_TREE_H
#define ENGINE_SESSION_PREFIX_TREE_H

#include "engine/session/prefix_cache.h"
#include "engine/session/prefix_writer.h"

typedef struct prefix_node prefix_node;
struct prefix_node {
    prefix_node *parent, *child, *next;  /* child: the first of them; next: of the same parent */
    prefix_node *step;                   /* the child on the path that is walked right now */
    int from, to;                        /* its tokens; from is the parent's to */
    int32_t *ids;                        /* [to - from] */
    uint8_t *body;                       /* rows, then the mark; NULL: on the drive alone */
    uint64_t rows_bytes, mark_bytes;
    uint64_t body_sum, stamp;            /* of its file, as prefix_file.h has them */
    bool on_drive;                       /* it has a file, whose bytes are counted */
    uint64_t passed_by;                  /* n.kept when there was no room for its file; 0: never */
    uint64_t number;                     /* never used twice */
    uint64_t used;                       /* the clock's time: ns since 1970, as files have it */
};

struct prefix_cache {
    prefix_cache_options o;              /* folder is ours */
    const model *m;                      /* borrowed */
    kv_type kv;
    uint64_t key;                        /* of the sessions it serves */
    bool any;                            /* any beginning of a state's rows is a state */
    prefix_node root;
    uint64_t clock, last_number;         /* clock: when something was last used, in ns */
    bool read_only;                      /* another program writes the folder */
    int lock;                            /* the key's lock file, or -1 */
    bool deferred;                       /* keep takes snapshots, */
    int at[PREFIX_DEFERRED], n_at;       /* here */
    prefix_writer *writer;               /* NULL: not needed yet, or no thread to be had */
    prefix_node *writing;                /* its file is under way: its body stays; or NULL */
    uint64_t all_written;                /* n.kept when nothing was left to write, or that failed */
    bool told;                           /* that a file could not be written */
    prefix_cache_stats n;
};

/* ---- prefix_tree.c ---- */

/* Do these ids, as many as k has tokens, lead from the root to k? */
bool prefix_tree_leads_to(const prefix_node *k, const int32_t *ids);

/* All nodes, parents first: the one after k, without those below k unless into. */
prefix_node *prefix_tree_next(prefix_node *k, bool into);

/* The state of the longest beginning of these tokens, the latest of equals; its length in *pos. */
prefix_node *prefix_tree_longest(prefix_cache *c, const int32_t *ids, int n, int *pos);

/* It is used now, and so is all that it goes on from. */
void prefix_tree_touch(prefix_cache *c, prefix_node *k);

/* The node of these tokens, without ids and body; all that it takes while its body is in RAM. */
prefix_node prefix_tree_shape(const prefix_cache *c, int from, int to);
uint64_t prefix_tree_ram(const prefix_node *k);
static inline uint64_t prefix_tree_body(const prefix_node *k)
{
    return k->rows_bytes + k->mark_bytes;
}

/* A node of that shape, not in the tree, with its ids, those of all tokens being given, and with
 * room for its body if that is wanted. NULL without memory. */
prefix_node *prefix_tree_make(const prefix_node *shape, const int32_t *ids, bool with_body);
void prefix_tree_free(prefix_node *k);   /* one that is not in the tree; NULL is fine */

void prefix_tree_add(prefix_cache *c, prefix_node *parent, prefix_node *k);
void prefix_tree_remove(prefix_cache *c, prefix_node *k);        /* it has no child; is freed */

/* ---- prefix_drive.c ---- */

/* Takes the lock and finds the files of earlier programs. If another program has the lock, the cache
 * is read_only. A folder that cannot be used is given up, with a note. */
int prefix_drive_open(prefix_cache *c, err_ctx *err);
void prefix_drive_close(prefix_cache *c);        /* waits for a file under way, lets go of the lock */

/* Has k on the drive, and before it all that it goes on from. 1: no space, and nothing of lower
 * value to evict, or the cache is read_only. */
int prefix_drive_save(prefix_cache *c, prefix_node *k, err_ctx *err);

/* Begins the next file that is to be written, by the thread for that. False: there is none. True
 * without c->writing: not now. */
bool prefix_drive_begin(prefix_cache *c);

/* Ends the file under way. False: it is not finished, and is not waited for. */
bool prefix_drive_end(prefix_cache *c, bool wait);

/* Its body, read for the caller, who frees it. NULL: no memory, or the file is missing or damaged;
 * then its node goes, with those after it, and so do their files unless the cache is read_only. */
uint8_t *prefix_drive_read(prefix_cache *c, prefix_node *k, pool *team);

/* It was used: the next program goes by the times of files. */
void prefix_drive_refresh(const prefix_cache *c, const prefix_node *k);

void prefix_drive_note(const prefix_cache *c, const char *what, const char *then);

#endif
