/* page_pool.c - blocks of pages and a stack of free ones. */
#include "engine/session/page_pool.h"

#include <assert.h>

typedef struct block {
    uint8_t *at;
    uint64_t n_page, n_taken;
    bool lent;                           /* by the source */
} block;

struct page_pool {
    page_pool_options o;
    uint64_t own_bytes;
    block *blocks;                       /* [n_block], its own first if there is one */
    size_t n_block, most_blocks;
    uint8_t **free;                      /* [n_free] */
    size_t n_free, most_free;
};

static void add_block(page_pool *p, uint8_t *at, uint64_t n_page, bool lent)
{
    p->blocks[p->n_block++] = (block){ at, n_page, 0, lent };
    for (uint64_t i = n_page; i-- > 0;) p->free[p->n_free++] = at + i * p->o.page_bytes;
}

int page_pool_create(page_pool **out, const page_pool_options *o, err_ctx *err)
{
    const uint64_t each = o->more ? o->more->block_bytes / o->page_bytes : 0;
    page_pool *p = mem_zalloc(sizeof *p);
    void *own = NULL;
    int rc = 0;
    *out = NULL;
    if (!p) return err_set(err, ERR_NOMEM, "pages: %zu bytes", sizeof *p);
    assert(o->page_bytes % 64 == 0 && (each > 0 || o->n_own >= o->n_page));
    p->o = *o;
    p->own_bytes = o->n_own * o->page_bytes;
    p->most_blocks = 1 + (each > 0 ? (size_t)(o->n_page / each) + 1 : 0);
    p->most_free = (size_t)(o->n_own + p->most_blocks * each);
    p->blocks = mem_array(p->most_blocks, sizeof *p->blocks);
    p->free = mem_array(p->most_free + 1, sizeof *p->free);
    if (!p->blocks || !p->free)
        rc = err_set(err, ERR_NOMEM, "pages: a list of %zu", p->most_free);
    if (rc == 0 && o->n_own > 0)
        rc = o->where->alloc(&own, o->where, p->own_bytes, MEM_SPARSE, "keys and values (--ctx)",
                             err);
    if (own) add_block(p, own, o->n_own, false);
    if (rc == 0) *out = p;
    else page_pool_free(p);
    return rc;
}

void page_pool_free(page_pool *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->n_block; i++) {
        const block *b = &p->blocks[i];
        if (b->lent) p->o.more->give(p->o.more->ctx, b->at);
        else p->o.where->free(p->o.where, b->at, p->own_bytes);
    }
    mem_free(p->blocks);
    mem_free(p->free);
    mem_free(p);
}

static block *block_of(page_pool *p, const uint8_t *page)
{
    block *b = p->blocks;
    while ((uintptr_t)page - (uintptr_t)b->at >= b->n_page * p->o.page_bytes) b++;
    assert(b < p->blocks + p->n_block);
    return b;
}

static int grow(page_pool *p, err_ctx *err)
{
    const page_source *more = p->o.more;
    void *at;
    if (!more || p->n_block == p->most_blocks)
        return err_set(err, ERR_NOMEM, "the memory for contexts is full: all %llu pages of 64 "
                       "positions of a layer are in use; end or shorten other conversations",
                       (unsigned long long)page_pool_taken(p));
    const int rc = more->take(more->ctx, &at, err);
    if (rc == 0) add_block(p, at, more->block_bytes / p->o.page_bytes, true);
    return rc;
}

int page_pool_take(page_pool *p, uint8_t **page, err_ctx *err)
{
    const int rc = p->n_free > 0 ? 0 : grow(p, err);
    *page = NULL;
    if (rc < 0) return rc;
    *page = p->free[--p->n_free];
    block_of(p, *page)->n_taken++;
    return 0;
}

/* Gives back a block without pages in use. */
static void give_back(page_pool *p, block *b)
{
    const block gone = *b;
    size_t n = 0;
    for (size_t i = 0; i < p->n_free; i++)
        if ((uintptr_t)p->free[i] - (uintptr_t)gone.at >= gone.n_page * p->o.page_bytes)
            p->free[n++] = p->free[i];
    p->n_free = n;
    *b = p->blocks[--p->n_block];
    p->o.more->give(p->o.more->ctx, gone.at);
}

void page_pool_give(page_pool *p, uint8_t *page)
{
    block *b = block_of(p, page);
    assert(b->n_taken > 0);
    p->free[p->n_free++] = page;
    if (--b->n_taken == 0 && b->lent) give_back(p, b);
}

uint64_t page_pool_taken(const page_pool *p)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < p->n_block; i++) sum += p->blocks[i].n_taken;
    return sum;
}
