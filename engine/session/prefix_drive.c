/* prefix_drive.c - writes, reads, finds and evicts the files of kept states.
 *
 * A branch is written from its root and evicted from its leaves, so the parent of every file is on
 * the drive. The states of one key have one writer: the program that holds the key's lock file,
 * from prefix_drive_open to prefix_drive_close. Any other program that opens the folder meanwhile
 * reads the states that it finds, and writes and removes nothing. Readers take no lock; a missing
 * file is a cache miss. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/session/prefix_file.h"
#include "engine/session/prefix_tree.h"
#include "tiers/page_advice.h"

enum {
    STALE_S = 3600                       /* an older temporary file has no writer any more */
};

void prefix_drive_note(const prefix_cache *c, const char *problem, const char *action)
{
    char line[1000];
    snprintf(line, sizeof line, "prefix cache: %s%s", problem, action);
    if (c->o.note) c->o.note(c->o.note_ctx, line);
}

/* ---- files ----------------------------------------------------------------------------------- */

static prefix_file file_of(const prefix_cache *c, const prefix_node *k)
{
    return (prefix_file){
        .key = c->key, .parent = k->parent->stamp, .from = k->from, .to = k->to,
        .rows_bytes = k->rows_bytes, .checkpoint_bytes = k->checkpoint_bytes,
        .body_sum = k->body_sum, .stamp = k->stamp,
    };
}

static uint64_t drive_of(const prefix_cache *c, const prefix_node *k)
{
    const prefix_file f = file_of(c, k);
    return prefix_file_bytes(&f);
}

/* The path of a file in the folder; false if it is too long. */
static bool path_in(char *dst, size_t cap, const prefix_cache *c, const char *name)
{
    const int n = snprintf(dst, cap, "%s/%s", c->o.folder, name);
    return n > 0 && (size_t)n < cap;
}

static void remove_name(const prefix_cache *c, const char *name)
{
    char path[4400];
    if (path_in(path, sizeof path, c, name)) unlink(path);
}

static bool name_exists(const prefix_cache *c, const char *name)
{
    char path[4400];
    struct stat st;
    return path_in(path, sizeof path, c, name) && lstat(path, &st) == 0;
}

static bool file_exists(const prefix_cache *c, const prefix_node *k)
{
    const prefix_file f = file_of(c, k);
    char name[PREFIX_NAME];
    return name_exists(c, prefix_file_name(name, &f));
}

/* Removes the file of k, and the node, too, unless it is in RAM. */
static void remove_file(prefix_cache *c, prefix_node *k)
{
    char name[PREFIX_NAME];
    if (k == c->writing) prefix_drive_end(c, true);
    const prefix_file f = file_of(c, k);
    if (k->on_drive) {
        if (!c->read_only) remove_name(c, prefix_file_name(name, &f));
        c->n.drive_bytes -= drive_of(c, k);
    }
    k->on_drive = false;
    k->stamp = 0;
    if (!k->body) prefix_tree_remove(c, k);
}

/* Removes the files of a node and its descendants. Bodies in RAM stay. */
static void remove_branch(prefix_cache *c, prefix_node *top)
{
    for (prefix_node *k = top->child, *next; k; k = next) {
        next = k->next;
        remove_branch(c, k);
    }
    remove_file(c, top);
}

/* Files to evict are sorted by their last use, the oldest first. No node was used later than its
 * parent, so this order takes leaves first; of equals the longer one goes first. */
static bool is_older(const prefix_node *a, const prefix_node *b)
{
    return a->used < b->used || (a->used == b->used && a->to > b->to);
}

/* Evicts files until this many bytes are free: only files used before k, so none of k's ancestors;
 * k NULL: any file. Visits the whole tree once for each evicted file. False: too few bytes. */
static bool free_drive(prefix_cache *c, uint64_t bytes, const prefix_node *k)
{
    if (bytes > c->o.drive_bytes) return false;
    while (c->n.drive_bytes > c->o.drive_bytes - bytes) {
        prefix_node *victim = NULL;
        for (prefix_node *a = &c->root; (a = prefix_tree_next(a, true));)
            if (a->on_drive && (!k || a->used < k->used) && (!victim || is_older(a, victim)))
                victim = a;
        if (!victim) return false;
        remove_file(c, victim);
    }
    return true;
}

/* The ids of all tokens up to k's end; NULL without memory. */
static int32_t *ids_of(const prefix_node *k)
{
    int32_t *ids = mem_array((size_t)k->to, sizeof *ids);
    for (; ids && k->parent; k = k->parent)
        memcpy(ids + k->from, k->ids, (size_t)(k->to - k->from) * sizeof *ids);
    return ids;
}

/* The contents of k's file; the parent's file exists. The caller frees *ids. 1: no space, and
 * nothing of lower value to evict. */
static int prepare_file(prefix_file *f, int32_t **ids, prefix_cache *c, const prefix_node *k,
                        err_ctx *err)
{
    *f = file_of(c, k);
    *ids = NULL;
    if (!free_drive(c, prefix_file_bytes(f), k)) return 1;
    *ids = ids_of(k);
    return *ids ? 0 : err_set(err, ERR_NOMEM, "no memory for %d ids", k->to);
}

static void add_file(prefix_cache *c, prefix_node *k, const prefix_file *f)
{
    k->body_sum = f->body_sum;
    k->stamp = f->stamp;
    k->on_drive = true;
    c->n.drive_bytes += drive_of(c, k);
}

static int write_node(prefix_cache *c, prefix_node *k, err_ctx *err)
{
    prefix_file f;
    int32_t *ids;
    int rc = prepare_file(&f, &ids, c, k, err);
    if (rc != 0) return rc;
    rc = prefix_file_write(&f, c->o.folder, ids, k->body, err);
    mem_free(ids);
    if (rc == 0) add_file(c, k, &f);
    return rc;
}

uint8_t *prefix_drive_read(prefix_cache *c, prefix_node *k, pool *team)
{
    const prefix_file f = file_of(c, k);
    err_ctx err = { 0 };
    uint8_t *body = mem_alloc((size_t)prefix_tree_body(k) + 1);
    if (!body) return NULL;
    pages_few_faults(body, prefix_tree_body(k));
    const int rc = prefix_file_read_body(body, &f, c->o.folder, team, &err);
    if (rc == 0) return body;
    mem_free(body);
    if (rc == ERR_NOMEM) return NULL;
    if (file_exists(c, k)) {
        c->n.damaged++;
        prefix_drive_note(c, err.msg, c->read_only ? "" : "; removed");
    }
    remove_branch(c, k);
    return NULL;
}

void prefix_drive_refresh(const prefix_cache *c, const prefix_node *k)
{
    const prefix_file f = file_of(c, k);
    char path[4400], name[PREFIX_NAME];
    struct timespec now[2];
    if (c->read_only || !k->on_drive || !path_in(path, sizeof path, c, prefix_file_name(name, &f)))
        return;
    clock_gettime(CLOCK_REALTIME, &now[0]);      /* finer than the time that the system would set */
    now[1] = now[0];
    utimensat(AT_FDCWD, path, now, 0);
}

/* ---- files of earlier programs --------------------------------------------------------------- */

typedef struct found {
    prefix_node *k;                      /* not yet in the tree */
    int32_t *ids;                        /* of all its tokens */
    uint64_t parent;                     /* the parent's stamp */
} found;

typedef struct found_list {
    found *list;
    int n, cap;
} found_list;

static void found_free(found_list *l)
{
    for (int i = 0; i < l->n; i++) {
        prefix_tree_free(l->list[i].k);
        mem_free(l->list[i].ids);
    }
    mem_free(l->list);
}

static int by_position(const void *a, const void *b)
{
    const prefix_node *x = ((const found *)a)->k, *y = ((const found *)b)->k;
    return (x->from > y->from) - (x->from < y->from);
}

/* Whether the head describes a state of these sessions. */
static int check_head(const prefix_cache *c, const prefix_file *f, const int32_t *ids, err_ctx *err)
{
    const prefix_node shape = prefix_tree_shape(c, f->from, f->to);
    if (shape.rows_bytes != f->rows_bytes || shape.checkpoint_bytes != f->checkpoint_bytes)
        return err_set(err, ERR_FORMAT, "of another layout");
    for (int i = 0; i < f->to; i++)
        if (ids[i] < 0 || ids[i] >= c->m->hp.n_vocab)
            return err_set(err, ERR_FORMAT, "token %d has id %" PRId32, i, ids[i]);
    return 0;
}

static int add_found(found_list *l, const prefix_cache *c, const prefix_file *f, int32_t *ids,
                     uint64_t used)
{
    found *list = mem_grow(l->list, l->n, &l->cap, sizeof *list);
    if (!list) return ERR_NOMEM;
    l->list = list;
    const prefix_node shape = prefix_tree_shape(c, f->from, f->to);
    prefix_node *k = prefix_tree_make(&shape, ids, false);
    if (!k) return ERR_NOMEM;
    k->body_sum = f->body_sum;
    k->stamp = f->stamp;
    k->used = used;
    l->list[l->n++] = (found){ k, ids, f->parent };
    return 0;
}

/* Raises the last use of k and its ancestors to this time. */
static void raise_used(prefix_node *k, uint64_t used)
{
    for (; k; k = k->parent)
        if (k->used < used) k->used = used;
}

/* Reads one file of the folder. < 0: no memory. */
static int scan_file(found_list *l, prefix_cache *c, const char *name)
{
    const prefix_kind kind = prefix_file_kind(name, c->key);
    char path[4400];
    struct stat st;
    prefix_file f;
    err_ctx err = { 0 };
    int32_t *ids;
    if (kind == PREFIX_OTHER || !path_in(path, sizeof path, c, name) || lstat(path, &st) < 0)
        return 0;
    if (kind == PREFIX_TEMPORARY) {
        if (!c->read_only && st.st_mtime < time(NULL) - STALE_S) unlink(path);
        return 0;
    }
    const uint64_t used = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    int rc = prefix_file_read_head(&f, &ids, c->o.folder, name, c->key, &err);
    if (rc == 0 && (rc = check_head(c, &f, ids, &err)) < 0) err_prefix(&err, rc, "%s", name);
    if (rc == 0 && (rc = add_found(l, c, &f, ids, used)) == 0) return 0;
    mem_free(ids);
    if (rc == ERR_NOMEM) return rc;
    if (!name_exists(c, name)) return 0; /* evicted meanwhile */
    const bool remove = rc == ERR_FORMAT && !c->read_only;
    c->n.damaged++;
    prefix_drive_note(c, err.msg, remove ? "; removed" : "");
    if (remove) unlink(path);
    return 0;
}

/* The parent of a found file: its stamp and its ids match. NULL: none. */
static prefix_node *parent_of(prefix_cache *c, const found *a)
{
    if (a->k->from == 0) return a->parent == 0 ? &c->root : NULL;
    for (prefix_node *k = &c->root; (k = prefix_tree_next(k, true));)
        if (k->stamp == a->parent && k->to == a->k->from && prefix_tree_leads_to(k, a->ids))
            return k;
    return NULL;
}

/* Removes a file whose parent is missing. A reader leaves it alone, because the writing program may
 * be adding or evicting it right now. Returns whether it was removed. */
static bool remove_orphan(const prefix_cache *c, const found *a)
{
    const prefix_file f = { .key = c->key, .stamp = a->k->stamp };
    char name[PREFIX_NAME];
    if (c->read_only) return false;
    remove_name(c, prefix_file_name(name, &f));
    return true;
}

static void link_found(prefix_cache *c, found_list *l)
{
    char problem[64];
    int n_orphan = 0;
    if (l->n > 0) qsort(l->list, (size_t)l->n, sizeof *l->list, by_position);
    for (int i = 0; i < l->n; i++) {
        prefix_node *k = l->list[i].k, *parent = parent_of(c, &l->list[i]);
        if (!parent) {
            n_orphan += remove_orphan(c, &l->list[i]);
            continue;
        }
        const uint64_t used = k->used;
        l->list[i].k = NULL;
        k->on_drive = true;
        prefix_tree_add(c, parent, k);
        k->used = 0;
        c->n.drive_bytes += drive_of(c, k);
        raise_used(k, used);
    }
    if (n_orphan == 0) return;
    c->n.damaged += (uint64_t)n_orphan;
    snprintf(problem, sizeof problem, "%d files continue one that is missing", n_orphan);
    prefix_drive_note(c, problem, "; removed");
}

/* Finds the files of earlier programs. < 0: no memory. */
static int scan_folder(prefix_cache *c, DIR *d)
{
    found_list l = { 0 };
    int rc = 0;
    for (const struct dirent *e; rc == 0 && (e = readdir(d));) rc = scan_file(&l, c, e->d_name);
    for (int i = 0; i < l.n; i++)
        if (c->clock <= l.list[i].k->used) c->clock = l.list[i].k->used + 1;
    if (rc == 0) link_found(c, &l);
    found_free(&l);
    return rc;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* The first node on the path from the root to k that has no file; k has none. */
static prefix_node *first_missing(prefix_node *k)
{
    while (k->parent->parent && !k->parent->on_drive) k = k->parent;
    return k;
}

int prefix_drive_save(prefix_cache *c, prefix_node *k, err_ctx *err)
{
    if (c->read_only) return 1;
    if (c->writing) prefix_drive_end(c, true);
    while (!k->on_drive) {
        const int rc = write_node(c, first_missing(k), err);
        if (rc != 0) return rc;
    }
    return 0;
}

/* ---- writing in the background --------------------------------------------------------------- */

/* Stops writing after a failure, e.g. of a full drive, until another state is kept. */
static void pause_writing(prefix_cache *c, const char *problem)
{
    if (!c->failure_noted) prefix_drive_note(c, problem, "");
    c->failure_noted = true;
    c->all_written = c->n.kept;
}

/* A node without a file that was not skipped since a state was last kept; parents first. */
static prefix_node *next_to_write(prefix_cache *c)
{
    prefix_node *k = &c->root;
    while ((k = prefix_tree_next(k, true)))
        if (k->body && !k->on_drive && k->skipped_at < c->n.kept) return k;
    return NULL;
}

static int begin_file(prefix_cache *c, prefix_node *k, err_ctx *err)
{
    prefix_file f;
    int32_t *ids;
    prefix_node *a = first_missing(k);
    const int rc = prepare_file(&f, &ids, c, a, err);
    if (rc != 0) return rc;
    prefix_writer_begin(c->writer, &f, ids, a->body);
    c->writing = a;
    return 0;
}

bool prefix_drive_begin(prefix_cache *c)
{
    err_ctx err = { 0 };
    prefix_node *k = c->read_only ? NULL : next_to_write(c);
    if (!k) return false;
    if (!c->writer && !(c->writer = prefix_writer_create(c->o.folder))) return false;
    const int rc = begin_file(c, k, &err);
    if (rc < 0) pause_writing(c, err.msg);
    else if (rc > 0) k->skipped_at = c->n.kept;
    return true;
}

bool prefix_drive_end(prefix_cache *c, bool wait)
{
    prefix_file f;
    err_ctx err = { 0 };
    int rc;
    if (!prefix_writer_ended(c->writer, wait, &f, &rc, &err)) return false;
    prefix_node *k = c->writing;
    c->writing = NULL;
    if (rc == 0) add_file(c, k, &f);
    else pause_writing(c, err.msg);
    return true;
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* Takes the lock for as long as the program runs. False: another program has it. Where there are no
 * locks (some network drives), every program writes. */
static bool take_lock(prefix_cache *c)
{
    char path[4400], name[PREFIX_NAME];
    snprintf(name, sizeof name, ".%016" PRIx64 ".lock", c->key);
    if (!path_in(path, sizeof path, c, name)) return true;
    c->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return c->lock < 0 || flock(c->lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

int prefix_drive_open(prefix_cache *c, err_ctx *err)
{
    char problem[600];
    int rc = 0;
    const int made = mkdir(c->o.folder, 0700);
    DIR *d = made == 0 || errno == EEXIST ? opendir(c->o.folder) : NULL;
    if (!d || strlen(c->o.folder) > 4000) {
        snprintf(problem, sizeof problem, "%.400s: %s; nothing goes to the drive", c->o.folder,
                 d ? "too long a name" : strerror(errno));
        prefix_drive_note(c, problem, "");
        mem_free((char *)(uintptr_t)c->o.folder);
        c->o.folder = NULL;
        if (d) closedir(d);
        return 0;
    }
    c->read_only = !take_lock(c);
    if (c->read_only)
        prefix_drive_note(c, "another program keeps states in this folder", "; nothing is written");
    rc = scan_folder(c, d);
    closedir(d);
    if (rc < 0)
        return err_set(err, rc, "prefix cache: no memory for the states in %.400s", c->o.folder);
    if (!c->read_only) free_drive(c, 0, NULL);
    return 0;
}

void prefix_drive_close(prefix_cache *c)
{
    if (c->writing) prefix_drive_end(c, true);
    if (c->lock >= 0) close(c->lock);
    c->lock = -1;
}
