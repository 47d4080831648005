/* prefix_drive.c - kept states on the drive: written, read, found again, and who makes room there.
 *
 * A branch is written from its root on and given up from its leaves, so no file lacks what it goes
 * on from. Other programs may use the same folder: a file that is gone is a state less. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/session/prefix_file.h"
#include "engine/session/prefix_tree.h"

enum { STALE_S = 3600 };                 /* a temporary file of that age is nobody's any more */

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

/* The node itself goes, too, if that was all there is of it. */
static void remove_file(prefix_cache *c, prefix_node *k)
{
    const prefix_file f = file_of(c, k);
    char name[PREFIX_NAME];
    remove_name(c, prefix_file_name(name, &f));
    c->n.drive_bytes -= drive_of(c, k);
    k->on_drive = false;
    if (!k->body) prefix_tree_remove(c, k);
}

/* A file that is of no use, and all that goes on from it. */
static void remove_branch(prefix_cache *c, prefix_node *top)
{
    for (bool last = false; !last;) {
        prefix_node *k = top;
        while (k->child) k = k->child;
        last = k == top;
        remove_file(c, k);               /* none of them is in RAM: top is not */
    }
}

static bool has_child_on_drive(const prefix_node *k)
{
    for (const prefix_node *a = k->child; a; a = a->next)
        if (a->on_drive) return true;
    return false;
}

static bool is_above(const prefix_node *a, const prefix_node *k)
{
    while (k && k != a) k = k->parent;
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
            if (a->on_drive && (!victim || a->used < victim->used) && !has_child_on_drive(a) &&
                (!k || (a->used <= k->used && !is_above(a, k))))
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

/* Its parent is there. 1: there is no room that it is worth. */
static int write_node(prefix_cache *c, prefix_node *k, err_ctx *err)
{
    prefix_file f = file_of(c, k);
    if (!make_drive_room(c, prefix_file_bytes(&f), k)) return 1;
    int32_t *ids = ids_of(k);
    if (!ids) return err_set(err, ERR_NOMEM, "no memory for %d ids", k->to);
    const int rc = prefix_file_write(&f, c->o.folder, ids, k->body, err);
    mem_free(ids);
    if (rc < 0) return rc;
    k->body_sum = f.body_sum;
    k->stamp = f.stamp;
    k->on_drive = true;
    c->n.drive_bytes += prefix_file_bytes(&f);
    return 0;
}

int prefix_drive_save(prefix_cache *c, prefix_node *k, err_ctx *err)
{
    while (!k->on_drive) {
        prefix_node *a = k;
        while (a->parent->parent && !a->parent->on_drive) a = a->parent;
        const int rc = write_node(c, a, err);
        if (rc != 0) return rc;
    }
    return 0;
}

uint8_t *prefix_drive_read(prefix_cache *c, prefix_node *k)
{
    const prefix_file f = file_of(c, k);
    err_ctx err = { 0 };
    uint8_t *body = mem_alloc((size_t)prefix_tree_body(k) + 1);
    if (!body) return NULL;
    const int rc = prefix_file_read_body(body, &f, c->o.folder, &err);
    if (rc == 0) return body;
    mem_free(body);
    if (rc == ERR_NOMEM) return NULL;
    c->n.damaged++;
    prefix_drive_note(c, err.msg, "; removed");
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
    int rc = prefix_file_read_head(&f, &ids, c->o.folder, name, c->key, &err);
    if (rc == 0 && (rc = check_head(c, &f, ids, &err)) < 0) err_prefix(&err, rc, "%s", name);
    if (rc == 0) {
        const uint64_t used = (uint64_t)st.st_mtim.tv_sec * 1000000000u +
                              (uint64_t)st.st_mtim.tv_nsec;
        if ((rc = add_found(l, c, &f, ids, used)) == 0) return 0;
    }
    mem_free(ids);
    if (rc == ERR_NOMEM) return rc;
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

static void link_found(prefix_cache *c, found_list *l)
{
    char what[64];
    int n_lost = 0;
    if (l->n > 0) qsort(l->list, l->n, sizeof *l->list, by_position);
    for (size_t i = 0; i < l->n; i++) {
        prefix_node *k = l->list[i].k, *parent = parent_of(c, &l->list[i]);
        if (!parent) {
            const prefix_file f = { .key = c->key, .stamp = k->stamp };
            char name[PREFIX_NAME];
            remove_name(c, prefix_file_name(name, &f));
            n_lost++;
            continue;
        }
        const uint64_t used = k->used;
        l->list[i].k = NULL;
        k->on_drive = true;
        prefix_tree_add(c, parent, k);
        k->used = used;
        c->n.drive_bytes += drive_of(c, k);
        for (; k; k = k->parent)
            if (k->used < used) k->used = used;
        if (c->clock < used) c->clock = used;
    }
    if (n_lost == 0) return;
    c->n.damaged += (uint64_t)n_lost;
    snprintf(what, sizeof what, "%d files go on from one that is not there", n_lost);
    prefix_drive_note(c, what, "; removed");
}

int prefix_drive_open(prefix_cache *c, err_ctx *err)
{
    found_list l = { 0 };
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
    }
    for (const struct dirent *e; d && rc == 0 && (e = readdir(d));)
        rc = look_at(&l, c, e->d_name);
    if (d) closedir(d);
    if (rc == 0) link_found(c, &l);
    else err_set(err, rc, "prefix cache: no memory for what is in %.400s", c->o.folder);
    found_free(&l);
    if (rc == 0) make_drive_room(c, 0, NULL);
    return rc;
}
