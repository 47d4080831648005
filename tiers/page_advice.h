/* page_advice.h - memory straight from the system, in pages of a chosen size. */
#ifndef TIERS_PAGE_ADVICE_H
#define TIERS_PAGE_ADVICE_H

#include "tiers/pool.h"

/* HUGE asks for pages of 2 MiB, which the system may silently refuse (topology.huge_pages tells
 * what it is set to); SMALL forbids them. */
typedef enum page_kind { PAGES_SMALL, PAGES_HUGE } page_kind;

enum { SMALL_PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* bytes of zeros that begin at a multiple of HUGE_PAGE. Each page lies in the memory of the
 * processor that first writes to it. Returns 0, or < 0 with *err filled and *out NULL. */
int pages_map(void **out, size_t bytes, page_kind kind, err_ctx *err);
void pages_unmap(void *at, size_t bytes);        /* NULL is fine */

/* Writes a zero to every small page, from all threads: then pages come from the memory of all
 * processors, and nobody has to wait for them later. */
void pages_touch(void *at, size_t bytes, pool *team);

/* Memory of the allocator that was never written to: its whole huge pages become such. */
void pages_few_faults(const void *at, uint64_t bytes);

/* For a part of a mapped file that is read now and then, a few bytes here and there. pages_few:
 * each such read takes PAGES_AROUND bytes of memory at most, not a huge page. pages_forget: what
 * was read takes no memory of this process until it is read again. Bytes at the edges that fill no
 * page are left alone. Never for memory without a file: its contents would be lost. */
enum { PAGES_AROUND = 64 << 10 };        /* the system maps what is around a page, too: 64 KiB */
void pages_few(const void *at, uint64_t bytes);
void pages_forget(const void *at, uint64_t bytes);

#endif
