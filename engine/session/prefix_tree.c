/* prefix_tree.c - creates, finds, links and removes nodes. prefix_cache.c decides what is
 * evicted. */
#include "engine/session/prefix_tree.h"

#include <assert.h>
#include <string.h>
#include <time.h>

#include "engine/session/state.h"

prefix_node *prefix_tree_next(prefix_node *k, bool into)
{
    if (into && k->child) return k->child;
    while (k && !k->next) k = k->parent;
    return k ? k->next : NULL;
}

/* Length of the common beginning. */
static int common(const int32_t *a, const int32_t *b, int n)
{
    int i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

bool prefix_tree_leads_to(const prefix_node *k, const int32_t *ids)
{
    for (; k->parent; k = k->parent)
        if (common(k->ids, ids + k->from, k->to - k->from) < k->to - k->from) return false;
    return true;
}

prefix_node *prefix_tree_longest(prefix_cache *c, const int32_t *ids, int n, int *pos)
{
    prefix_node *best = &c->root;
    bool into = true;
    *pos = 0;
    for (prefix_node *k = &c->root; (k = prefix_tree_next(k, into));) {
        const int most = min_int(n, k->to) - k->from;
        const int same = most > 0 ? common(k->ids, ids + k->from, most) : 0;
        into = same == k->to - k->from;
        if (same == 0 || (!into && !c->any_length)) continue;
        const int reach = k->from + same;
        if (reach < *pos || (reach == *pos && k->used <= best->used)) continue;
        best = k;
        *pos = reach;
    }
    return best;
}

void prefix_tree_touch(prefix_cache *c, prefix_node *k)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    c->clock = ns > c->clock ? ns : c->clock + 1;
    for (; k; k = k->parent) k->used = c->clock;
}

uint64_t prefix_tree_ram(const prefix_node *k)
{
    return sizeof *k + (uint64_t)(k->to - k->from) * sizeof *k->ids + prefix_tree_body(k);
}

prefix_node prefix_tree_shape(const prefix_cache *c, int from, int to)
{
    return (prefix_node){
        .from = from, .to = to, .rows_bytes = state_rows_bytes(c->m, c->kv, to - from),
        .checkpoint_bytes = state_checkpoint_bytes(c->m, c->kv, to),
    };
}

void prefix_tree_free(prefix_node *k)
{
    if (!k) return;
    mem_free(k->ids);
    mem_free(k->body);
    mem_free(k);
}

void prefix_tree_remove(prefix_cache *c, prefix_node *k)
{
    prefix_node **link = &k->parent->child;
    assert(!k->child);
    while (*link != k) link = &(*link)->next;
    *link = k->next;
    if (k->body) c->n.ram_bytes -= prefix_tree_ram(k);
    prefix_tree_free(k);
}

void prefix_tree_add(prefix_cache *c, prefix_node *parent, prefix_node *k)
{
    k->parent = parent;
    k->next = parent->child;
    parent->child = k;
    k->number = ++c->last_number;
    k->used = c->clock;
    if (k->body) c->n.ram_bytes += prefix_tree_ram(k);
}

prefix_node *prefix_tree_make(const prefix_node *shape, const int32_t *ids, bool with_body)
{
    const size_t n = (size_t)(shape->to - shape->from);
    prefix_node *k = mem_alloc(sizeof *k);
    if (!k) return NULL;
    *k = *shape;
    k->ids = mem_array(n, sizeof *k->ids);
    if (k->ids) memcpy(k->ids, ids + k->from, n * sizeof *ids);
    if (k->ids && with_body) k->body = mem_alloc((size_t)prefix_tree_body(k) + 1);
    if (k->ids && !with_body == !k->body) return k;
    prefix_tree_free(k);
    return NULL;
}
