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
 * Invariants: whatever is in RAM has its parent in RAM; no node was used later than its parent. */
#include "engine/session/prefix_cache.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "engine/session/state_internal.h"

typedef struct node node;
struct node {
    node *parent, *child, *next;         /* child: the first of them; next: of the same parent */
    node *step;                          /* the child on the path that is walked right now */
    int from, to;                        /* its tokens; from is the parent's to */
    int32_t *ids;                        /* [to - from] */
    uint8_t *body;                       /* rows, then the mark */
    uint64_t rows_bytes, mark_bytes;
    uint64_t number;                     /* never used twice */
    uint64_t used;                       /* the clock's time */
};

struct prefix_cache {
    prefix_cache_options o;
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

/* ---- room ------------------------------------------------------------------------------------ */

static bool has_child_in_ram(const node *k)
{
    for (const node *a = k->child; a; a = a->next)
        if (a->body) return true;
    return false;
}

static void drop_from_ram(prefix_cache *c, node *k)
{
    c->n.dropped++;
    remove_node(c, k);
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
    c->m = st->m;
    c->kv = st->o.kv;
    c->key = key_of(like);
    c->any = state_mark_bytes(c->m, c->kv, c->m->hp.ctx_train) == 0;
    c->last_number = clock_ns();         /* what another cache kept of a session is not ours */
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
    mem_free(c);
}

prefix_cache_stats prefix_cache_counts(const prefix_cache *c)
{
    prefix_cache_stats n = c->n;
    for (const node *k = c->root.child; k; k = next_node((node *)(uintptr_t)k, true)) {
        n.n_state++;
        n.n_ram += k->body != NULL;
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

int prefix_cache_load(prefix_cache *c, session *s, const int32_t *ids, int n, err_ctx *err)
{
    state *st = session_state(s);
    int pos, rc = check_session(c, s, err);
    if (rc < 0) return rc;
    node *best = longest(c, ids, min_int(n, session_ctx(s)), &pos);
    if (pos == 0) return 0;
    touch(c, best);
    state_import_begin(st);
    for (const node *k = best; k->parent; k = k->parent)
        state_import_rows(st, k->body, k->from, k->to, min_int(pos, k->to) - k->from);
    if ((rc = state_import_end(st, pos, best->body + best->rows_bytes, err)) < 0) pos = 0;
    session_replaced(s, ids, pos);
    st->kept = best->number;
    st->kept_pos = pos;
    c->n.loaded += rc == 0;
    return rc < 0 ? rc : pos;
}

/* ---- keep ------------------------------------------------------------------------------------ */

int prefix_cache_keep(prefix_cache *c, session *s, err_ctx *err)
{
    state *st = session_state(s);
    const int pos = session_pos(s);
    const int32_t *ids = session_ids(s);
    int found, rc;

    if ((rc = check_session(c, s, err)) < 0 || (rc = session_check_state(s, err)) < 0) return rc;
    if (pos == 0) return 0;
    node *same = longest(c, ids, pos, &found);
    if (found == pos) {                  /* as good as ours for whoever has neither */
        touch(c, same);
        return 0;
    }
    node *parent = origin(c, s);
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
