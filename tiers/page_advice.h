/* page_advice.h - memory straight from the system, in pages of a chosen size. */
#ifndef TIERS_PAGE_ADVICE_H
#define TIERS_PAGE_ADVICE_H

#include "tiers/pool.h"

/* HUGE requests pages of 2 MiB, which the system may silently refuse (its setting is
 * topology.huge_pages); SMALL forbids them. */
typedef enum page_kind { PAGES_SMALL, PAGES_HUGE } page_kind;

enum { SMALL_PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* bytes of zeros that begin at a multiple of HUGE_PAGE. Each page is allocated on the node of the
 * processor that first writes to it. Returns 0, or < 0 with *err filled and *out NULL. */
int pages_map(void **out, size_t bytes, page_kind kind, err_ctx *err);
void pages_unmap(void *at, size_t bytes);        /* NULL is fine */

/* Writes a zero to every small page, from all threads, so that pages come from the nodes of all
 * processors and later writes cause no page faults. */
void pages_touch(void *at, size_t bytes, pool *team);

/* Requests huge pages for memory of the allocator that was never written to. */
void pages_few_faults(const void *at, uint64_t bytes);

/* For a range of a mapped file of which few bytes are read, at random. After pages_few each read
 * maps at most PAGES_AROUND bytes, not a huge page. pages_forget unmaps the pages until they are
 * read again. Incomplete pages at the edges are not changed. Only for mapped files: other memory
 * would lose its contents. */
enum { PAGES_AROUND = 64 << 10 };        /* the system maps 64 KiB around a page */
void pages_few(const void *at, uint64_t bytes);
void pages_forget(const void *at, uint64_t bytes);

#endif
