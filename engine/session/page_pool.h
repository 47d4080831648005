/* page_pool.h - memory for pages of keys and values, shared by the sessions of a runner.
 *
 * Pages have one size. A part of the memory is the pool's own; further blocks come from a source,
 * when pages are needed, and go back when all their pages are free. Nothing else is allocated after
 * creation. One thread at a time. */
#ifndef ENGINE_SESSION_PAGE_POOL_H
#define ENGINE_SESSION_PAGE_POOL_H

#include "tiers/mem_space.h"

/* Lends blocks of one size. */
typedef struct page_source {
    void *ctx;
    uint64_t block_bytes;
    int (*take)(void *ctx, void **block, err_ctx *err);
    void (*give)(void *ctx, void *block);
} page_source;

typedef struct page_pool_options {
    mem_space *where;                    /* borrowed */
    uint64_t page_bytes;                 /* a multiple of 64 */
    uint64_t n_page;                     /* most pages that are needed at a time */
    uint64_t n_own;                      /* of these, allocated at once */
    const page_source *more;             /* for the others; NULL if n_own is n_page. Borrowed */
} page_pool_options;

typedef struct page_pool page_pool;

int page_pool_create(page_pool **out, const page_pool_options *o, err_ctx *err);
void page_pool_free(page_pool *p);       /* NULL is fine; gives all blocks back */

/* ERR_NOMEM if no page is free and the source has no block; the message names the remedy. */
int page_pool_take(page_pool *p, uint8_t **page, err_ctx *err);
void page_pool_give(page_pool *p, uint8_t *page);

uint64_t page_pool_taken(const page_pool *p);    /* pages that are in use */

#endif
