/* prefix_drive.c - kept states on the drive: written, read, found again, and who makes room there.
 *
 * A branch is written from its root on and given up from its leaves, so no file lacks what it goes
 * on from. Other programs may use the same folder at the same time. Whoever writes or makes room
 * there has its lock, and first looks at what others wrote and gave up, so that the bound is that
 * of all. Nobody waits to read: a file that is gone is a state less. */
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
#include "tiers/pages.h"

enum {
    STALE_S = 3600,                      /* a temporary file of that age is nobody's any more */
    PATIENCE_S = 5,                      /* for another program that writes, */
    NO_PATIENCE_S = 60                   /* but not again so soon after it was in vain */
};
static const double LATER_S = 0.1;       /* until the folder is asked for again */

void prefix_drive_note(const prefix_cache *c, const char *what, const char *then)
{
    char line[1000];
    snprintf(line, sizeof line, "prefix cache: %s%s", what, then);
    if (c->o.note) c->o.note(c->o.note_ctx, line);
}

/* ---- files ----------------------------------------------------------------------------------- */

static prefix_file file_of(const prefix_cache *c, const prefix_node *k)
{
    return (prefix_file){
        .key = c->key, .parent = k->parent->stamp, .from = k->from, .to = k->to,
        .rows_bytes = k->rows_bytes, .mark_bytes = k->mark_bytes, .body_sum = k->body_sum,
        .stamp = k->stamp,
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

static bool is_there(const prefix_cache *c, const char *name)
{
    char path[4400];
    struct stat st;
    return path_in(path, sizeof path, c, name) && lstat(path, &st) == 0;
}

static bool file_is_there(const prefix_cache *c, const prefix_node *k)
{
    const prefix_file f = file_of(c, k);
    char name[PREFIX_NAME];
    return is_there(c, prefix_file_name(name, &f));
}

static void count(prefix_cache *c, prefix_node *k, bool on)
{
    if (k->counted == on) return;
    k->counted = on;
    c->n.drive_bytes += on ? drive_of(c, k) : -drive_of(c, k);
}

/* The node itself goes, too, if that was all there is of it. */
static void remove_file(prefix_cache *c, prefix_node *k)
{
    char name[PREFIX_NAME];
    if (k == c->writing) prefix_drive_end(c, true);
    const prefix_file f = file_of(c, k);
    remove_name(c, prefix_file_name(name, &f));
    count(c, k, false);
    k->on_drive = false;
    k->stamp = 0;
    if (!k->body) prefix_tree_remove(c, k);
}

/* A file, and all that go on from it. What is in RAM stays there. */
static void remove_branch(prefix_cache *c, prefix_node *top)
{
    for (prefix_node *k = top->child, *next; k; k = next) {
        next = k->next;
        remove_branch(c, k);
    }
    remove_file(c, top);
}

/* By stamps: two nodes may have one file, if another program wrote what is in RAM here. */
static bool has_child_on_drive(prefix_cache *c, const prefix_node *k)
{
    for (prefix_node *a = &c->root; (a = prefix_tree_next(a, true));)
        if (a->counted && a->from > 0 && a->parent->stamp == k->stamp) return true;
    return false;
}

bool prefix_drive_has(prefix_cache *c, prefix_node *k)
{
    prefix_node *lost = NULL;
    for (; k->parent; k = k->parent)
        if (!k->body && !file_is_there(c, k)) lost = k;
    if (lost) remove_branch(c, lost);
    return !lost;
}

static bool is_above(const prefix_node *a, const prefix_node *k)
{
    while (k && k != a && (k->stamp == 0 || k->stamp != a->stamp)) k = k->parent;
    return k != NULL;
}

/* Room for so many bytes for the sake of k, NULL: at any price. Only what was not used after k
 * makes room for it, and nothing that it goes on from. */
static bool make_drive_room(prefix_cache *c, uint64_t bytes, const prefix_node *k)
{
    if (bytes > c->o.drive_bytes) return false;
    while (c->n.drive_bytes > c->o.drive_bytes - bytes) {
        prefix_node *victim = NULL;
        for (prefix_node *a = &c->root; (a = prefix_tree_next(a, true));)
            if (a->counted && (!victim || a->used < victim->used) &&
                (!k || (a->used <= k->used && !is_above(a, k))) && !has_child_on_drive(c, a))
                victim = a;
        if (!victim) return false;
        remove_branch(c, victim);        /* others gave up what is below it */
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

/* Another node has the same file. */
static bool twin_of(prefix_cache *c, const prefix_node *k)
{
    for (prefix_node *a = &c->root; (a = prefix_tree_next(a, true));)
        if (a != k && a->counted && a->stamp == k->stamp) return true;
    return false;
}

/* What goes into the file of k, whose parent's is there; *ids is to be freed. 1: there is no room
 * that it is worth. */
static int prepare_file(prefix_file *f, int32_t **ids, prefix_cache *c, const prefix_node *k,
                        err_ctx *err)
{
    *f = file_of(c, k);
    *ids = NULL;
    if (!make_drive_room(c, prefix_file_bytes(f), k)) return 1;
    *ids = ids_of(k);
    return *ids ? 0 : err_set(err, ERR_NOMEM, "no memory for %d ids", k->to);
}

static void file_is_written(prefix_cache *c, prefix_node *k, const prefix_file *f)
{
    k->body_sum = f->body_sum;
    k->stamp = f->stamp;
    k->on_drive = true;
    count(c, k, !twin_of(c, k));
}

static int write_node(prefix_cache *c, prefix_node *k, err_ctx *err)
{
    prefix_file f;
    int32_t *ids;
    int rc = prepare_file(&f, &ids, c, k, err);
    if (rc != 0) return rc;
    rc = prefix_file_write(&f, c->o.folder, ids, k->body, err);
    mem_free(ids);
    if (rc == 0) file_is_written(c, k, &f);
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
    if (file_is_there(c, k)) {
        c->n.damaged++;
        prefix_drive_note(c, err.msg, "; removed");
    }
    remove_branch(c, k);
    return NULL;
}

void prefix_drive_refresh(const prefix_cache *c, const prefix_node *k)
{
    const prefix_file f = file_of(c, k);
    char path[4400], name[PREFIX_NAME];
    struct timespec now[2];
    if (!k->on_drive || !path_in(path, sizeof path, c, prefix_file_name(name, &f))) return;
    clock_gettime(CLOCK_REALTIME, &now[0]);              /* finer than what the system would set */
    now[1] = now[0];
    utimensat(AT_FDCWD, path, now, 0);
}

/* ---- files of earlier programs --------------------------------------------------------------- */

typedef struct found {
    prefix_node *k;                      /* not yet in the tree */
    int32_t *ids;                        /* of all its tokens */
    uint64_t parent;
} found;

typedef struct found_list {
    found *list;
    size_t n, cap;
} found_list;

static void found_free(found_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
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

/* Does the head describe a state of these sessions? */
static int check_head(const prefix_cache *c, const prefix_file *f, const int32_t *ids, err_ctx *err)
{
    const prefix_node shape = prefix_tree_shape(c, f->from, f->to);
    if (shape.rows_bytes != f->rows_bytes || shape.mark_bytes != f->mark_bytes)
        return err_set(err, ERR_FORMAT, "of another layout");
    for (int i = 0; i < f->to; i++)
        if (ids[i] < 0 || ids[i] >= c->m->hp.n_vocab)
            return err_set(err, ERR_FORMAT, "token %d has id %" PRId32, i, ids[i]);
    return 0;
}

static int add_found(found_list *l, const prefix_cache *c, const prefix_file *f, int32_t *ids,
                     uint64_t used)
{
    if (l->n == l->cap) {
        const size_t cap = 2 * l->cap + 16;
        found *more = mem_resize(l->list, cap, sizeof *more);
        if (!more) return ERR_NOMEM;
        l->list = more;
        l->cap = cap;
    }
    const prefix_node shape = prefix_tree_shape(c, f->from, f->to);
    prefix_node *k = prefix_tree_make(&shape, ids, false);
    if (!k) return ERR_NOMEM;
    k->body_sum = f->body_sum;
    k->stamp = f->stamp;
    k->used = used;
    l->list[l->n++] = (found){ k, ids, f->parent };
    return 0;
}

/* The node whose file it is, or NULL. */
static prefix_node *node_named(prefix_cache *c, const char *name)
{
    const uint64_t stamp = prefix_file_stamp(name);
    prefix_node *known = NULL;
    for (prefix_node *k = &c->root; (k = prefix_tree_next(k, true));)
        if (k->on_drive && k->stamp == stamp && (!known || k->counted)) known = k;
    return known;
}

/* It was used at that time, in this program or another, and so was all that it goes on from. Not
 * after what this program uses right now. */
static void was_used(prefix_cache *c, prefix_node *k, uint64_t used)
{
    if (used >= c->clock) used = c->clock > 0 ? c->clock - 1 : 0;
    for (; k; k = k->parent)
        if (k->used < used) k->used = used;
}

/* One name in the folder. < 0: no memory. */
static int look_at(found_list *l, prefix_cache *c, const char *name)
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
        if (st.st_mtime < time(NULL) - STALE_S) unlink(path);
        return 0;
    }
    const uint64_t used = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    prefix_node *known = node_named(c, name);
    if (known) {
        known->seen = true;
        count(c, known, true);           /* again, perhaps */
        was_used(c, known, used);
        return 0;
    }
    int rc = prefix_file_read_head(&f, &ids, c->o.folder, name, c->key, &err);
    if (rc == 0 && (rc = check_head(c, &f, ids, &err)) < 0) err_prefix(&err, rc, "%s", name);
    if (rc == 0 && (rc = add_found(l, c, &f, ids, used)) == 0) return 0;
    mem_free(ids);
    if (rc == ERR_NOMEM) return rc;
    if (!is_there(c, name)) return 0;    /* somebody just gave it up */
    c->n.damaged++;
    prefix_drive_note(c, err.msg, rc == ERR_FORMAT ? "; removed" : "");
    if (rc == ERR_FORMAT) unlink(path);
    return 0;
}

/* The node that a file goes on from: the stamp says which, the ids must agree. NULL: not there. */
static prefix_node *parent_of(prefix_cache *c, const found *a)
{
    if (a->k->from == 0) return a->parent == 0 ? &c->root : NULL;
    for (prefix_node *k = &c->root; (k = prefix_tree_next(k, true));)
        if (k->stamp == a->parent && k->to == a->k->from && prefix_tree_leads_to(k, a->ids))
            return k;
    return NULL;
}

/* A file that goes on from one that is not there, unless that came, or this one went, while the
 * folder was read. True: it was of no use. */
static bool remove_lost(const prefix_cache *c, const found *a)
{
    const prefix_file f = { .key = c->key, .stamp = a->k->stamp };
    const prefix_file before = { .key = c->key, .stamp = a->parent };
    char name[PREFIX_NAME];
    if (is_there(c, prefix_file_name(name, &before))) return false;
    if (!is_there(c, prefix_file_name(name, &f))) return false;
    remove_name(c, name);
    return true;
}

static void link_found(prefix_cache *c, found_list *l)
{
    char what[64];
    int n_lost = 0;
    if (l->n > 0) qsort(l->list, l->n, sizeof *l->list, by_position);
    for (size_t i = 0; i < l->n; i++) {
        prefix_node *k = l->list[i].k, *parent = parent_of(c, &l->list[i]);
        if (!parent) {
            n_lost += remove_lost(c, &l->list[i]);
            continue;
        }
        const uint64_t used = k->used;
        l->list[i].k = NULL;
        k->on_drive = k->seen = true;
        prefix_tree_add(c, parent, k);
        k->used = 0;
        count(c, k, true);
        was_used(c, k, used);
    }
    if (n_lost == 0) return;
    c->n.damaged += (uint64_t)n_lost;
    snprintf(what, sizeof what, "%d files go on from one that is not there", n_lost);
    prefix_drive_note(c, what, "; removed");
}

/* Looks through the folder for files that are not known. < 0: no memory. */
static int look_through(prefix_cache *c, DIR *d)
{
    found_list l = { 0 };
    int rc = 0;
    for (const struct dirent *e; rc == 0 && (e = readdir(d));) rc = look_at(&l, c, e->d_name);
    for (size_t i = 0; i < l.n && c->opening; i++)
        if (c->clock <= l.list[i].k->used) c->clock = l.list[i].k->used + 1;
    if (rc == 0) link_found(c, &l);
    found_free(&l);
    return rc;
}

/* What others did to the folder since. Nodes stay: whoever calls may be on the way to one. */
static void look_again(prefix_cache *c)
{
    DIR *d = opendir(c->o.folder);
    if (!d) return;
    for (prefix_node *k = &c->root; (k = prefix_tree_next(k, true));) k->seen = false;
    if (look_through(c, d) == 0)
        for (prefix_node *k = &c->root; (k = prefix_tree_next(k, true));)
            if (!k->seen) count(c, k, false);
    closedir(d);
}

/* ---- one program at a time ------------------------------------------------------------------- */

/* The lock, to be closed; ERR_STOPPED: another program has it. -1: there is none to be had here
 * (some network drives), then all go on without. */
static int lock_folder(const prefix_cache *c, int patience_s)
{
    enum { STEP_MS = 10 };
    const uint64_t from = clock_ns();
    const int fd = open(c->o.folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -1;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        const bool busy = errno == EWOULDBLOCK;
        if (busy && clock_since(from) < patience_s) {
            nanosleep(&(struct timespec){ 0, STEP_MS * 1000000 }, NULL);
            continue;
        }
        close(fd);
        return busy ? ERR_STOPPED : -1;
    }
    return fd;
}

static void unlock_folder(int fd)
{
    if (fd >= 0) close(fd);
}

/* The first file that is missing on the way to k, which is not on the drive. NULL: another program
 * gave it up, and nothing can go on from it. Whoever made room took leaves first, so a parent that
 * is there has all of its own. */
static prefix_node *first_missing(const prefix_cache *c, prefix_node *k)
{
    while (k->parent->parent && (!k->parent->on_drive || !file_is_there(c, k->parent))) {
        k = k->parent;
        if (!k->body) return NULL;
    }
    return k;
}

static int save_branch(prefix_cache *c, prefix_node *k, err_ctx *err)
{
    while (!k->on_drive) {
        prefix_node *a = first_missing(c, k);
        const int rc = a ? write_node(c, a, err) : 1;
        if (rc != 0) return rc;
    }
    return 0;
}

int prefix_drive_save(prefix_cache *c, prefix_node *k, err_ctx *err)
{
    if (c->writing) prefix_drive_end(c, true);
    if (k->on_drive) return 0;
    const bool in_vain = c->waited_ns > 0 && clock_since(c->waited_ns) < NO_PATIENCE_S;
    const int lock = lock_folder(c, in_vain ? 0 : PATIENCE_S);
    if (lock == ERR_STOPPED) {
        if (!in_vain) c->waited_ns = clock_ns();
        return err_set(err, ERR_IO, "another program has been writing for %d s", PATIENCE_S);
    }
    c->waited_ns = 0;
    look_again(c);
    const int rc = save_branch(c, k, err);
    unlock_folder(lock);
    return rc;
}

/* ---- beside whatever else is done ------------------------------------------------------------ */

/* A drive that is full or worse is left alone until there is something new to write. */
static void rest_after(prefix_cache *c, const char *what)
{
    if (!c->told) prefix_drive_note(c, what, "");
    c->told = true;
    c->all_written = c->n.kept;
}

/* One that has not been tried since a state was last kept; parents first. */
static prefix_node *next_to_write(prefix_cache *c)
{
    prefix_node *k = &c->root;
    while ((k = prefix_tree_next(k, true)))
        if (k->body && !k->on_drive && k->passed_by < c->n.kept) return k;
    return NULL;
}

/* The lock is held, and stays so if 0 is returned: a file is under way. */
static int begin_file(prefix_cache *c, prefix_node *k, err_ctx *err)
{
    prefix_file f;
    int32_t *ids;
    prefix_node *a = first_missing(c, k);
    const int rc = a ? prepare_file(&f, &ids, c, a, err) : 1;
    if (rc != 0) return rc;
    prefix_writer_begin(c->writer, &f, ids, a->body);
    c->writing = a;
    return 0;
}

bool prefix_drive_begin(prefix_cache *c)
{
    err_ctx err = { 0 };
    prefix_node *k = next_to_write(c);
    if (!k) return false;
    if (c->later_ns > 0 && clock_since(c->later_ns) < LATER_S) return true;
    if (!c->writer && !(c->writer = prefix_writer_create(c->o.folder))) return false;
    const int lock = lock_folder(c, 0);
    c->later_ns = lock == ERR_STOPPED ? clock_ns() : 0;
    if (lock == ERR_STOPPED) return true;
    look_again(c);
    const int rc = begin_file(c, k, &err);
    c->lock = lock;
    if (rc == 0) return true;
    if (rc < 0) rest_after(c, err.msg);
    else k->passed_by = c->n.kept;
    unlock_folder(lock);
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
    if (rc == 0) file_is_written(c, k, &f);
    else rest_after(c, err.msg);
    unlock_folder(c->lock);
    return true;
}

/* ---- the folder ------------------------------------------------------------------------------ */

int prefix_drive_open(prefix_cache *c, err_ctx *err)
{
    char what[600];
    int rc = 0;
    const int made = mkdir(c->o.folder, 0700);
    DIR *d = made == 0 || errno == EEXIST ? opendir(c->o.folder) : NULL;
    if (!d || strlen(c->o.folder) > 4000) {
        snprintf(what, sizeof what, "%.400s: %s; nothing goes to the drive", c->o.folder,
                 d ? "too long a name" : strerror(errno));
        prefix_drive_note(c, what, "");
        mem_free((char *)(uintptr_t)c->o.folder);
        c->o.folder = NULL;
        if (d) closedir(d);
        return 0;
    }
    c->opening = true;
    rc = look_through(c, d);
    c->opening = false;
    closedir(d);
    if (rc < 0)
        return err_set(err, rc, "prefix cache: no memory for what is in %.400s", c->o.folder);
    const int lock = lock_folder(c, 0);
    if (lock != ERR_STOPPED) make_drive_room(c, 0, NULL);        /* else the other one does */
    unlock_folder(lock);
    return 0;
}
