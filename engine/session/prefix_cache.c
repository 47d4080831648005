/* prefix_cache.c - the tree of kept states, and who makes room.
 *
 *   root (no token) -- system, tools -- first message -- its answer -- second message ...
 *                          |               `-- another answer
 *                          `-- another first message ...
 *
 * A node is a state: the ids and rows of the tokens after its parent's position, and the mark of
 * its own. Rows are only added where the session is known to hold the bits of the parent:
 * state_internal.h's kept and kept_pos say so. That is why two nodes may stand for the same tokens,
 * and why a search looks at all branches.
 *
 * Invariants: whatever is in RAM has its parent in RAM; what is on the drive has its parent on the
 * drive; every node is in one of them or in both; none was used later than its parent. */
#include "engine/session/prefix_cache.h"

#include <assert.h>
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

#include "engine/engine_internal.h"
#include "engine/session/prefix_file.h"
#include "engine/session/state_internal.h"

enum { STALE_S = 3600 };                 /* a temporary file of that age is nobody's any more */

typedef struct node node;
struct node {
    node *parent, *child, *next;         /* child: the first of them; next: of the same parent */
    node *step;                          /* the child on the path that is walked right now */
    int from, to;                        /* its tokens; from is the parent's to */
    int32_t *ids;                        /* [to - from] */
    uint8_t *body;                       /* rows, then the mark; NULL: on the drive alone */
    uint64_t body_sum, stamp;            /* of its file, as prefix_file.h has them */
    bool on_drive;
    uint64_t rows_bytes, mark_bytes;
    uint64_t number;                     /* never used twice */
    uint64_t used;                       /* the clock's time */
};

struct prefix_cache {
    prefix_cache_options o;              /* folder is ours */
    const model *m;                      /* borrowed */
    kv_type kv;
    uint64_t key;                        /* of the sessions it serves */
    bool any;                            /* any beginning of a state's rows is a state */
    node root;
    uint64_t clock, last_number;
    prefix_cache_stats n;
};

/* ---- the tree -------------------------------------------------------------------------------- */

/* All nodes, parents first: the one after k, without those below k unless into. */
static node *next_node(node *k, bool into)
{
    if (into && k->child) return k->child;
    while (k && !k->next) k = k->parent;
    return k ? k->next : NULL;
}

static int common(const int32_t *a, const int32_t *b, int n)
{
    int i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* The state of the longest beginning of these tokens, the latest of equals; its length in *pos. */
static node *longest(prefix_cache *c, const int32_t *ids, int n, int *pos)
{
    node *best = &c->root;
    bool into = true;
    *pos = 0;
    for (node *k = &c->root; (k = next_node(k, into));) {
        const int most = min_int(n, k->to) - k->from;
        const int same = most > 0 ? common(k->ids, ids + k->from, most) : 0;
        into = same == k->to - k->from;
        if (same == 0 || (!into && !c->any)) continue;
        const int reach = k->from + same;
        if (reach < *pos || (reach == *pos && k->used <= best->used)) continue;
        best = k;
        *pos = reach;
    }
    return best;
}

/* The state that s went on from, with the bits it has: root if that is not kept (any more). */
static node *origin(prefix_cache *c, session *s)
{
    const state *st = session_state(s);
    const int32_t *ids = session_ids(s);
    node *k = &c->root;
    while (k && k->number != st->kept) k = next_node(k, true);
    if (!k) return &c->root;
    while (k->to > st->kept_pos) k = k->parent;
    for (const node *a = k; a->parent; a = a->parent)    /* they are; but no number decides alone */
        if (common(a->ids, ids + a->from, a->to - a->from) < a->to - a->from) return &c->root;
    return k;
}

static void touch(prefix_cache *c, node *k)
{
    c->clock++;
    for (; k; k = k->parent) k->used = c->clock;
}

static uint64_t body_bytes(const node *k) { return k->rows_bytes + k->mark_bytes; }

/* All that a node takes while its body is in RAM. */
static uint64_t ram_of(const node *k)
{
    return sizeof *k + (uint64_t)(k->to - k->from) * sizeof *k->ids + body_bytes(k);
}

/* The node of these tokens, without ids and body. */
static node node_shape(const prefix_cache *c, int from, int to)
{
    return (node){ .from = from, .to = to, .rows_bytes = state_rows_bytes(c->m, c->kv, to - from),
                   .mark_bytes = state_mark_bytes(c->m, c->kv, to) };
}

static void node_free(node *k)
{
    if (!k) return;
    mem_free(k->ids);
    mem_free(k->body);
    mem_free(k);
}

static void note(const prefix_cache *c, const char *what, const char *then)
{
    char line[1000];
    snprintf(line, sizeof line, "prefix cache: %s%s", what, then);
    if (c->o.note) c->o.note(c->o.note_ctx, line);
}

/* Takes a node that has no child out of the tree. */
static void remove_node(prefix_cache *c, node *k)
{
    node **at = &k->parent->child;
    assert(!k->child);
    while (*at != k) at = &(*at)->next;
    *at = k->next;
    if (k->body) c->n.ram_bytes -= ram_of(k);
    node_free(k);
}

static void add_node(prefix_cache *c, node *parent, node *k)
{
    k->parent = parent;
    k->next = parent->child;
    parent->child = k;
    k->number = ++c->last_number;
    k->used = c->clock;
    if (k->body) c->n.ram_bytes += ram_of(k);
}

/* A node of that shape, with its ids, those of all tokens being given, and with room for its body
 * if that is wanted. NULL without memory. */
static node *make_node(const node *shape, const int32_t *ids, bool with_body)
{
    const size_t n = (size_t)(shape->to - shape->from);
    node *k = mem_alloc(sizeof *k);
    if (!k) return NULL;
    *k = *shape;
    k->ids = mem_array(n, sizeof *k->ids);
    if (k->ids) memcpy(k->ids, ids + k->from, n * sizeof *ids);
    if (k->ids && with_body) k->body = mem_alloc((size_t)body_bytes(k) + 1);
    if (k->ids && !with_body == !k->body) return k;
    node_free(k);
    return NULL;
}

/* ---- the drive ------------------------------------------------------------------------------- */

static prefix_file file_of(const prefix_cache *c, const node *k)
{
    return (prefix_file){
        .key = c->key, .parent = k->parent->stamp, .from = k->from, .to = k->to,
        .rows_bytes = k->rows_bytes, .mark_bytes = k->mark_bytes, .body_sum = k->body_sum,
        .stamp = k->stamp,
    };
}

static uint64_t drive_of(const prefix_cache *c, const node *k)
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
static void remove_file(prefix_cache *c, node *k)
{
    const prefix_file f = file_of(c, k);
    char name[PREFIX_NAME];
    remove_name(c, prefix_file_name(name, &f));
    c->n.drive_bytes -= drive_of(c, k);
    k->on_drive = false;
    if (!k->body) remove_node(c, k);
}

/* A file that is of no use, and all that goes on from it. */
static void remove_branch(prefix_cache *c, node *top)
{
    for (bool last = false; !last;) {
        node *k = top;
        while (k->child) k = k->child;
        last = k == top;
        remove_file(c, k);               /* none of them is in RAM: top is not */
    }
}

static bool has_child_on_drive(const node *k)
{
    for (const node *a = k->child; a; a = a->next)
        if (a->on_drive) return true;
    return false;
}

static bool is_above(const node *a, const node *k)
{
    while (k && k != a) k = k->parent;
    return k != NULL;
}

/* Room for so many bytes for the sake of k, NULL: at any price. Only what was not used after k
 * makes room for it, and nothing that it goes on from. */
static bool make_drive_room(prefix_cache *c, uint64_t bytes, const node *k)
{
    if (bytes > c->o.drive_bytes) return false;
    while (c->n.drive_bytes > c->o.drive_bytes - bytes) {
        node *victim = NULL;
        for (node *a = &c->root; (a = next_node(a, true));)
            if (a->on_drive && (!victim || a->used < victim->used) && !has_child_on_drive(a) &&
                (!k || (a->used <= k->used && !is_above(a, k))))
                victim = a;
        if (!victim) return false;
        remove_file(c, victim);
    }
    return true;
}

/* The ids of all tokens up to k's end; NULL without memory. */
static int32_t *ids_of(const node *k)
{
    int32_t *ids = mem_array((size_t)k->to, sizeof *ids);
    for (; ids && k->parent; k = k->parent)
        memcpy(ids + k->from, k->ids, (size_t)(k->to - k->from) * sizeof *ids);
    return ids;
}

/* Its parent is there. 1: there is no room that it is worth. */
static int write_node(prefix_cache *c, node *k, err_ctx *err)
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

/* Has k on the drive, and before it all that it goes on from. */
static int save_node(prefix_cache *c, node *k, err_ctx *err)
{
    while (!k->on_drive) {
        node *a = k;
        while (a->parent->parent && !a->parent->on_drive) a = a->parent;
        const int rc = write_node(c, a, err);
        if (rc != 0) return rc;
    }
    return 0;
}

/* Read, as a copy for the caller. NULL: not there any more, or no memory. A file that is wrong is
 * removed, and so are those after it. */
static uint8_t *read_body(prefix_cache *c, node *k)
{
    const prefix_file f = file_of(c, k);
    err_ctx err = { 0 };
    uint8_t *body = mem_alloc((size_t)body_bytes(k) + 1);
    if (!body) return NULL;
    const int rc = prefix_file_read_body(body, &f, c->o.folder, &err);
    if (rc == 0) return body;
    mem_free(body);
    if (rc == ERR_NOMEM) return NULL;
    c->n.damaged++;
    note(c, err.msg, "; removed");
    remove_branch(c, k);
    return NULL;
}

/* The next program goes by the times of files. */
static void refresh_file(const prefix_cache *c, const node *k)
{
    const prefix_file f = file_of(c, k);
    char path[4400], name[PREFIX_NAME];
    struct timespec now[2];
    if (!k->on_drive || !path_in(path, sizeof path, c, prefix_file_name(name, &f))) return;
    clock_gettime(CLOCK_REALTIME, &now[0]);              /* finer than what the system would set */
    now[1] = now[0];
    utimensat(AT_FDCWD, path, now, 0);
}

/* ---- room ------------------------------------------------------------------------------------ */

static bool has_child_in_ram(const node *k)
{
    for (const node *a = k->child; a; a = a->next)
        if (a->body) return true;
    return false;
}

static void drop_from_ram(prefix_cache *c, node *k)
{
    err_ctx err = { 0 };
    c->n.dropped++;
    if (c->o.folder && save_node(c, k, &err) < 0) note(c, err.msg, "");
    if (!k->on_drive) {
        remove_node(c, k);
        return;
    }
    c->n.ram_bytes -= ram_of(k);
    mem_free(k->body);
    k->body = NULL;
}

/* Of those that nothing in RAM goes on from the one used longest ago, but none used right now. */
static bool make_room(prefix_cache *c, uint64_t bytes)
{
    if (bytes > c->o.ram_bytes) return false;
    while (c->n.ram_bytes > c->o.ram_bytes - bytes) {
        node *victim = NULL;
        for (node *k = &c->root; (k = next_node(k, true));)
            if (k->body && k->used < c->clock && (!victim || k->used < victim->used) &&
                !has_child_in_ram(k))
                victim = k;
        if (!victim) return false;
        drop_from_ram(c, victim);
    }
    return true;
}

/* ---- files of earlier programs --------------------------------------------------------------- */

typedef struct found {
    node *k;                             /* not yet in the tree */
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
        node_free(l->list[i].k);
        mem_free(l->list[i].ids);
    }
    mem_free(l->list);
}

static int by_position(const void *a, const void *b)
{
    const node *x = ((const found *)a)->k, *y = ((const found *)b)->k;
    return (x->from > y->from) - (x->from < y->from);
}

/* Does the head describe a state of these sessions? */
static int check_head(const prefix_cache *c, const prefix_file *f, const int32_t *ids, err_ctx *err)
{
    const node shape = node_shape(c, f->from, f->to);
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
    const node shape = node_shape(c, f->from, f->to);
    node *k = make_node(&shape, ids, false);
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
    note(c, err.msg, rc == ERR_FORMAT ? "; removed" : "");
    if (rc == ERR_FORMAT) unlink(path);
    return 0;
}

/* The node that a file goes on from: the stamp says which, the ids must agree. NULL: not there. */
static node *parent_of(prefix_cache *c, const found *a)
{
    if (a->k->from == 0) return a->parent == 0 ? &c->root : NULL;
    for (node *k = &c->root; (k = next_node(k, true));) {
        const node *b = k;
        if (k->stamp != a->parent || k->to != a->k->from) continue;
        while (b->parent && common(b->ids, a->ids + b->from, b->to - b->from) == b->to - b->from)
            b = b->parent;
        if (!b->parent) return k;
    }
    return NULL;
}

static void link_found(prefix_cache *c, found_list *l)
{
    char what[64];
    int n_lost = 0;
    if (l->n > 0) qsort(l->list, l->n, sizeof *l->list, by_position);
    for (size_t i = 0; i < l->n; i++) {
        node *k = l->list[i].k, *parent = parent_of(c, &l->list[i]);
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
        add_node(c, parent, k);
        k->used = used;
        c->n.drive_bytes += drive_of(c, k);
        for (; k; k = k->parent)
            if (k->used < used) k->used = used;
        if (c->clock < used) c->clock = used;
    }
    if (n_lost == 0) return;
    c->n.damaged += (uint64_t)n_lost;
    snprintf(what, sizeof what, "%d files go on from one that is not there", n_lost);
    note(c, what, "; removed");
}

static int scan_folder(prefix_cache *c, err_ctx *err)
{
    found_list l = { 0 };
    char what[600];
    int rc = 0;
    const int made = mkdir(c->o.folder, 0700);
    DIR *d = made == 0 || errno == EEXIST ? opendir(c->o.folder) : NULL;
    if (!d || strlen(c->o.folder) > 4000) {
        snprintf(what, sizeof what, "%.400s: %s; nothing goes to the drive", c->o.folder,
                 d ? "too long a name" : strerror(errno));
        note(c, what, "");
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

/* ---- life ------------------------------------------------------------------------------------ */

static uint64_t key_of(session *s)
{
    const state *st = session_state(s);
    const state_tag tag = session_tag(s);
    return state_layout_key(st->m, st->o.kv, &tag);
}

static int check_session(const prefix_cache *c, session *s, err_ctx *err)
{
    if (key_of(s) == c->key) return 0;
    return err_set(err, ERR_UNSUPPORTED, "prefix cache: made for another model, KV type or device");
}

int prefix_cache_create(prefix_cache **out, session *like, const prefix_cache_options *o,
                        err_ctx *err)
{
    const state *st = session_state(like);
    prefix_cache *c = mem_zalloc(sizeof *c);
    *out = NULL;
    if (!c) return err_set(err, ERR_NOMEM, "prefix cache: no memory for %zu bytes", sizeof *c);
    c->o = *o;
    c->o.folder = NULL;
    c->m = st->m;
    c->kv = st->o.kv;
    c->key = key_of(like);
    c->any = state_mark_bytes(c->m, c->kv, c->m->hp.ctx_train) == 0;
    c->last_number = clock_ns();         /* what another cache kept of a session is not ours */
    if (o->folder) {
        c->o.folder = mem_strdup_n(o->folder, strlen(o->folder));
        const int rc = c->o.folder ? scan_folder(c, err)
                                   : err_set(err, ERR_NOMEM, "prefix cache: no memory for a name");
        if (rc < 0) {
            prefix_cache_free(c);
            return rc;
        }
    }
    *out = c;
    return 0;
}

void prefix_cache_free(prefix_cache *c)
{
    if (!c) return;
    while (c->root.child) {
        node *k = c->root.child;
        while (k->child) k = k->child;
        remove_node(c, k);
    }
    mem_free((char *)(uintptr_t)c->o.folder);
    mem_free(c);
}

prefix_cache_stats prefix_cache_counts(const prefix_cache *c)
{
    prefix_cache_stats n = c->n;
    for (const node *k = c->root.child; k; k = next_node((node *)(uintptr_t)k, true)) {
        n.n_state++;
        n.n_ram += k->body != NULL;
        n.n_drive += k->on_drive;
    }
    return n;
}

/* ---- find, load ------------------------------------------------------------------------------ */

int prefix_cache_find(prefix_cache *c, const int32_t *ids, int n)
{
    int pos;
    longest(c, ids, n, &pos);
    return pos;
}

int prefix_cache_held(prefix_cache *c, session *s, int n)
{
    const node *k = origin(c, s);
    while (k->to > n) k = k->parent;
    return k->to;
}

/* What came from the drive stays in RAM if its parent did and there is room. */
static bool adopt(prefix_cache *c, node *k, uint8_t *body)
{
    if ((k->parent->parent && !k->parent->body) || !make_room(c, ram_of(k))) return false;
    k->body = body;
    c->n.ram_bytes += ram_of(k);
    return true;
}

/* Puts the rows on the way to best into st, up to *pos, and the last mark there that can be had.
 * Then *pos is its position and *number its state's; 0 if there is none. */
static int import_path(prefix_cache *c, state *st, node *best, int *pos, uint64_t *number,
                       err_ctx *err)
{
    const int limit = *pos;
    const uint8_t *mark = NULL;
    uint8_t *lent = NULL;                /* the last body, if it is not in the tree */
    *pos = 0;
    *number = 0;
    for (node *k = best; k->parent; k = k->parent) k->parent->step = k;
    state_import_begin(st);
    for (node *k = &c->root; k != best;) {
        k = k->step;
        uint8_t *body = k->body;
        if (!body && !(body = read_body(c, k))) break;
        const int to = min_int(limit, k->to);
        state_import_rows(st, body, k->from, k->to, to - k->from);
        mem_free(lent);
        lent = k->body || adopt(c, k, body) ? NULL : body;
        mark = body + k->rows_bytes;
        *pos = to;
        *number = k->number;
        refresh_file(c, k);
    }
    const int rc = mark ? state_import_end(st, *pos, mark, err) : 0;
    mem_free(lent);
    return rc;
}

int prefix_cache_load(prefix_cache *c, session *s, const int32_t *ids, int n, err_ctx *err)
{
    state *st = session_state(s);
    uint64_t number;
    int pos, rc = check_session(c, s, err);
    if (rc < 0) return rc;
    node *best = longest(c, ids, min_int(n, session_ctx(s)), &pos);
    if (pos == 0) return 0;
    touch(c, best);
    if ((rc = import_path(c, st, best, &pos, &number, err)) < 0) pos = 0;
    session_replaced(s, ids, pos);
    st->kept = number;
    st->kept_pos = pos;
    c->n.loaded += pos > 0;
    return rc < 0 ? rc : pos;
}

/* ---- keep ------------------------------------------------------------------------------------ */

int prefix_cache_keep(prefix_cache *c, session *s, err_ctx *err)
{
    state *st = session_state(s);
    const int pos = session_pos(s);
    const int32_t *ids = session_ids(s);
    int n_same, rc;

    if ((rc = check_session(c, s, err)) < 0 || (rc = session_check_state(s, err)) < 0) return rc;
    if (pos == 0) return 0;
    node *same = longest(c, ids, pos, &n_same);
    if (n_same == pos) {                  /* as good as ours for whoever has neither */
        touch(c, same);
        return 0;
    }
    node *parent = origin(c, s);         /* the session has its rows, too, if they left RAM */
    while (parent->parent && !parent->body) parent = parent->parent;
    touch(c, parent);
    const node shape = node_shape(c, parent->to, pos);
    if (!make_room(c, ram_of(&shape)))
        return err_set(err, ERR_NOMEM, "prefix cache: a state of %" PRIu64 " bytes does not fit "
                       "into %" PRIu64, ram_of(&shape), c->o.ram_bytes);
    node *k = make_node(&shape, ids, true);
    if (!k) return err_set(err, ERR_NOMEM, "prefix cache: no memory for %" PRIu64 " bytes",
                           ram_of(&shape));
    if ((rc = state_export(st, k->body, parent->to, k->body + k->rows_bytes, err)) < 0) {
        node_free(k);
        return rc;
    }
    add_node(c, parent, k);
    st->kept = k->number;
    st->kept_pos = pos;
    c->n.kept++;
    return 0;
}

int prefix_cache_flush(prefix_cache *c, err_ctx *err)
{
    int first = 0;
    for (node *k = &c->root; c->o.folder && (k = next_node(k, true));) {
        err_ctx own = { 0 };
        const int rc = save_node(c, k, &own);
        if (rc < 0 && first == 0) first = err_set(err, rc, "prefix cache: %s", own.msg);
    }
    return first;
}
