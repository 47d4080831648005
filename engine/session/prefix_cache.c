/* prefix_cache.c - exports states from sessions, imports them, and evicts them from RAM.
 *
 * A node gets a session's node as its parent only if the session has the same bits: kept and
 * kept_pos of state_internal.h. prefix_tree.h draws the tree, prefix_drive.c has the files. */
#include "engine/session/prefix_cache.h"

#include <inttypes.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "engine/session/prefix_tree.h"
#include "engine/session/state_internal.h"
#include "tiers/page_advice.h"

/* The node with the same bits as s up to its position, not above pos; the root if there is none. */
static prefix_node *origin(prefix_cache *c, session *s, int pos)
{
    const state *st = session_state(s);
    prefix_node *k = &c->root;
    while (k && k->number != st->kept) k = prefix_tree_next(k, true);
    if (!k) return &c->root;
    while (k->to > min_int(st->kept_pos, pos)) k = k->parent;
    return prefix_tree_leads_to(k, session_ids(s)) ? k : &c->root;       /* not by number alone */
}

/* ---- eviction from RAM ----------------------------------------------------------------------- */

static bool has_child_in_ram(const prefix_node *k)
{
    for (const prefix_node *a = k->child; a; a = a->next)
        if (a->body) return true;
    return false;
}

/* Evicts a state to the drive. False: it could not be written and is removed. */
static bool drop_from_ram(prefix_cache *c, prefix_node *k)
{
    err_ctx err = { 0 };
    if (k == c->writing) prefix_drive_end(c, true);
    c->n.dropped++;
    if (c->o.folder && prefix_drive_save(c, k, &err) < 0) prefix_drive_note(c, err.msg, "");
    if (!k->on_drive) {
        prefix_tree_remove(c, k);
        return false;
    }
    c->n.ram_bytes -= prefix_tree_ram(k);
    mem_free(k->body);
    k->body = NULL;
    return true;
}

/* Evicts the least recently used leaves until this many bytes are free. States in use right now
 * stay. False, and evicts nothing, if these leave too few bytes. */
static bool free_ram(prefix_cache *c, uint64_t bytes)
{
    uint64_t needed = bytes;
    for (prefix_node *k = &c->root; (k = prefix_tree_next(k, true));)
        if (k->body && k->used == c->clock) needed += prefix_tree_ram(k);
    if (needed > c->o.ram_bytes) return false;
    while (c->n.ram_bytes > c->o.ram_bytes - bytes) {
        prefix_node *victim = NULL;
        for (prefix_node *k = &c->root; (k = prefix_tree_next(k, true));)
            if (k->body && k->used < c->clock && (!victim || k->used < victim->used) &&
                !has_child_in_ram(k))
                victim = k;
        if (!victim) return false;
        drop_from_ram(c, victim);
    }
    return true;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Reads the header of every tensor of the file: once for each session. */
static uint64_t key_of(session *s)
{
    state *st = session_state(s);
    if (st->key == 0) {
        const state_tag tag = session_tag(s);
        st->key = state_layout_key(st->m, st->o.kv, &tag);
    }
    return st->key;
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
    c->any_length = state_checkpoint_bytes(c->m, c->kv, c->m->hp.ctx_train) == 0;
    c->lock = -1;
    c->last_number = clock_ns();         /* differs from the numbers of another cache */
    if (o->folder) {
        c->o.folder = mem_strdup_n(o->folder, strlen(o->folder));
        const int rc = c->o.folder ? prefix_drive_open(c, err)
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
    prefix_drive_close(c);
    prefix_writer_free(c->writer);
    while (c->root.child) {
        prefix_node *k = c->root.child;
        while (k->child) k = k->child;
        prefix_tree_remove(c, k);
    }
    mem_free((char *)(uintptr_t)c->o.folder);
    mem_free(c);
}

prefix_cache_stats prefix_cache_counts(const prefix_cache *c)
{
    prefix_cache_stats n = c->n;
    for (prefix_node *k = c->root.child; k; k = prefix_tree_next(k, true)) {
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
    prefix_tree_longest(c, ids, n, &pos);
    return pos;
}

int prefix_cache_held(prefix_cache *c, session *s, int n)
{
    return c->deferred ? 0 : origin(c, s, n)->to;
}

/* Keeps a body read from the drive in RAM, if the parent is in RAM and it fits. */
static bool keep_in_ram(prefix_cache *c, prefix_node *k, uint8_t *body)
{
    if ((k->parent->parent && !k->parent->body) || !free_ram(c, prefix_tree_ram(k))) return false;
    k->body = body;
    c->n.ram_bytes += prefix_tree_ram(k);
    return true;
}

/* Imports the rows from the root to best, up to position *pos, and the checkpoint of the last node
 * that could be read. Sets *pos to its position and *number to its number; 0 if there is none. */
static int import_path(prefix_cache *c, session *s, prefix_node *best, int *pos, uint64_t *number,
                       err_ctx *err)
{
    state *st = session_state(s);
    const int limit = *pos;
    const uint8_t *checkpoint = NULL;
    uint8_t *own = NULL;                 /* the last body, if it is not in the tree */
    *pos = 0;
    *number = 0;
    for (prefix_node *k = best; k->parent; k = k->parent) k->parent->step = k;
    state_import_begin(st);
    const int room = state_reserve(st, limit, err);
    if (room < 0) return room;
    for (prefix_node *k = &c->root; k != best;) {
        k = k->step;
        uint8_t *body = k->body;
        if (!body && c->o.most_bytes > 0 && prefix_tree_body(k) > c->o.most_bytes) break;
        if (!body && !(body = prefix_drive_read(c, k, session_team(s)))) break;
        const int to = min_int(limit, k->to);
        state_import_rows(st, body, k->from, k->to, to - k->from);
        mem_free(own);
        own = k->body || keep_in_ram(c, k, body) ? NULL : body;
        checkpoint = body + k->rows_bytes;
        *pos = to;
        *number = k->number;
        prefix_drive_refresh(c, k);
    }
    const int rc = checkpoint ? state_import_end(st, *pos, checkpoint, err) : 0;
    state_trim(st);
    mem_free(own);
    return rc;
}

int prefix_cache_load(prefix_cache *c, session *s, const int32_t *ids, int n, err_ctx *err)
{
    state *st = session_state(s);
    uint64_t number;
    int pos, rc = check_session(c, s, err);
    if (rc < 0) return rc;
    prefix_node *best = prefix_tree_longest(c, ids, min_int(n, session_ctx(s)), &pos);
    if (pos == 0) return 0;
    prefix_tree_touch(c, best);
    if ((rc = import_path(c, s, best, &pos, &number, err)) < 0) pos = 0;
    session_replaced(s, ids, pos);
    st->kept = number;
    st->kept_pos = pos;
    c->n.loaded += pos > 0;
    return rc < 0 ? rc : pos;
}

/* ---- keep ------------------------------------------------------------------------------------ */

static int does_not_fit(const prefix_cache *c, const prefix_node *shape, err_ctx *err)
{
    return err_set(err, ERR_NOMEM, "prefix cache: a state of %" PRIu64 " bytes does not fit into "
                   "%" PRIu64 "%s", prefix_tree_ram(shape), c->o.ram_bytes,
                   c->o.folder ? ", nor on the drive" : "");
}

/* Touches new memory in parallel: a single thread is slow, page by page. */
static void touch_body(const prefix_node *k, pool *team)
{
    if (prefix_tree_body(k) < HUGE_PAGE) return;
    pages_few_faults(k->body, prefix_tree_body(k));
    pages_touch(k->body, (size_t)prefix_tree_body(k), team);
}

/* Keeps the state at the present position, or at that of a snapshot. A state that does not fit in
 * RAM together with its ancestors is written at once and removed from RAM. */
static int keep_at(prefix_cache *c, session *s, int pos, err_ctx *err)
{
    state *st = session_state(s);
    const int32_t *ids = session_ids(s);
    int n_same, rc;

    prefix_node *same = prefix_tree_longest(c, ids, pos, &n_same), *parent;
    if (n_same == pos) {                 /* a session that has neither can use either */
        prefix_tree_touch(c, same);
        return 0;
    }
    parent = origin(c, s, pos);
    prefix_node *in_ram = parent;
    prefix_tree_touch(c, parent);
    while (in_ram->parent && !in_ram->body) in_ram = in_ram->parent;     /* s has these rows, too */
    prefix_node shape = prefix_tree_shape(c, in_ram->to, pos);
    const bool fits = free_ram(c, prefix_tree_ram(&shape));
    if (fits) parent = in_ram;
    else shape = prefix_tree_shape(c, parent->to, pos);
    if (!fits && (!c->o.folder || c->read_only ||
                  (c->o.most_bytes > 0 && prefix_tree_body(&shape) > c->o.most_bytes)))
        return does_not_fit(c, &shape, err);
    prefix_node *k = prefix_tree_make(&shape, ids, true);
    if (!k) return err_set(err, ERR_NOMEM, "prefix cache: no memory for %" PRIu64 " bytes",
                           prefix_tree_ram(&shape));
    touch_body(k, session_team(s));
    uint8_t *checkpoint = k->body + k->rows_bytes;
    rc = pos == session_pos(s) ? state_export(st, k->body, parent->to, checkpoint, err)
                               : state_export_snapshot(st, pos, k->body, parent->to, checkpoint,
                                                       err);
    if (rc < 0) {
        prefix_tree_free(k);
        return rc;
    }
    prefix_tree_add(c, parent, k);
    const uint64_t number = k->number;
    if (!fits && !drop_from_ram(c, k)) return does_not_fit(c, &shape, err);
    c->n.kept++;
    if (pos < session_pos(s) && pos < st->kept_pos) return 0;    /* s continued from a later one */
    st->kept = number;
    st->kept_pos = pos;
    return 0;
}

int prefix_cache_keep(prefix_cache *c, session *s, err_ctx *err)
{
    const int pos = session_pos(s);
    int rc;
    if ((rc = check_session(c, s, err)) < 0 || (rc = session_check_state(s, err)) < 0) return rc;
    if (pos == 0) return 0;
    if (!c->deferred) return keep_at(c, s, pos, err);
    if (state_next_snapshot(session_state(s), pos - 1) == pos) return 0; /* it exists */
    for (int i = 0; i < c->n_position; i++)
        if (c->positions[i] == pos) {
            session_snapshot(s);
            break;
        }
    return 0;
}

void prefix_cache_defer(prefix_cache *c, const int *positions, int n)
{
    c->deferred = true;
    c->n_position = min_int(n, PREFIX_DEFERRED);
    if (n > 0) memcpy(c->positions, positions, (size_t)c->n_position * sizeof *positions);
}

int prefix_cache_settle(prefix_cache *c, session *s, int least, int least_last, err_ctx *err)
{
    const state *st = session_state(s);
    int n_same, first = 0, rc;
    if ((rc = check_session(c, s, err)) < 0 || (rc = session_check_state(s, err)) < 0) return rc;
    for (int pos = 0; (pos = state_next_snapshot(st, pos)) > 0;) {
        err_ctx own = { 0 };
        prefix_tree_longest(c, session_ids(s), pos, &n_same);
        if (pos - n_same < (state_next_snapshot(st, pos) > 0 ? least : least_last)) continue;
        if ((rc = keep_at(c, s, pos, &own)) < 0 && first == 0) {
            first = rc;
            if (err) *err = own;
        }
    }
    return first;
}

bool prefix_cache_poll(prefix_cache *c)
{
    if (c->writing && !prefix_drive_end(c, false)) return true;
    if (!c->o.folder || c->all_written == c->n.kept) return false;
    if (prefix_drive_begin(c)) return true;
    c->all_written = c->n.kept;
    return false;
}

int prefix_cache_flush(prefix_cache *c, err_ctx *err)
{
    int first = 0;
    for (prefix_node *k = &c->root; c->o.folder && (k = prefix_tree_next(k, true));) {
        err_ctx own = { 0 };
        const int rc = prefix_drive_save(c, k, &own);
        if (rc < 0 && first == 0) first = err_set(err, rc, "prefix cache: %s", own.msg);
    }
    return first;
}
