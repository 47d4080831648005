/* dock.c - loads cut into crates, so that many threads carry a single one, too. */
#include "tiers/dock.h"

#include <assert.h>
#include <string.h>

#include "tiers/pages.h"

enum { CRATE = 32 << 10 };               /* bytes that a thread carries at a time */

typedef struct load {
    const uint8_t *from;
    uint8_t *to;
    uint64_t bytes;
} load;

struct dock {
    pool *team;
    uint8_t *memory;
    uint64_t berth_bytes;
    int n_berth;
    load *loads;                         /* [n_berth]: those to carry */
    int n_load;
    int64_t crates;                      /* of the largest of them: all are counted like it */
};

static uint64_t memory_bytes(const dock *d)
{
    return (uint64_t)d->n_berth * d->berth_bytes;
}

static int fill(dock *d, err_ctx *err)
{
    void *memory;
    d->loads = mem_array((size_t)d->n_berth, sizeof *d->loads);
    if (!d->loads) return err_set(err, ERR_NOMEM, "%d berths for reads", d->n_berth);
    const int rc = pages_map(&memory, (size_t)memory_bytes(d), PAGES_HUGE, err);
    if (rc < 0) return rc;
    d->memory = memory;
    pages_touch(memory, (size_t)memory_bytes(d), d->team);
    return 0;
}

int dock_create(dock **out, pool *team, int n, uint32_t berth_bytes, err_ctx *err)
{
    dock *d = mem_zalloc(sizeof *d);
    assert(berth_bytes % SMALL_PAGE == 0);
    *out = NULL;
    if (!d) return err_set(err, ERR_NOMEM, "reads: %zu bytes", sizeof *d);
    *d = (dock){ .team = team, .n_berth = n, .berth_bytes = berth_bytes };
    const int rc = fill(d, err);
    if (rc < 0) dock_free(d);
    else *out = d;
    return rc;
}

void dock_free(dock *d)
{
    if (!d) return;
    if (d->memory) pages_unmap(d->memory, (size_t)memory_bytes(d));
    mem_free(d->loads);
    mem_free(d);
}

uint8_t *dock_berth(const dock *d, int i)
{
    return d->memory + (uint64_t)i * d->berth_bytes;
}

void *dock_memory(const dock *d, uint64_t *bytes)
{
    *bytes = memory_bytes(d);
    return d->memory;
}

void dock_unload(dock *d, int berth, uint64_t from, uint64_t bytes, uint8_t *to)
{
    const int64_t crates = (int64_t)((bytes + CRATE - 1) / CRATE);
    assert(d->n_load < d->n_berth && from + bytes <= d->berth_bytes);
    d->loads[d->n_load++] = (load){ dock_berth(d, berth) + from, to, bytes };
    if (crates > d->crates) d->crates = crates;
}

static void carry_crates(void *ctx, int64_t begin, int64_t end, int thread)
{
    const dock *d = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const load *l = &d->loads[i / d->crates];
        const uint64_t at = (uint64_t)(i % d->crates) * CRATE;
        if (at >= l->bytes) continue;
        memcpy(l->to + at, l->from + at, (size_t)(l->bytes - at < CRATE ? l->bytes - at : CRATE));
    }
}

void dock_carry(dock *d)
{
    if (d->n_load > 0) pool_run(d->team, d->n_load * d->crates, 1, carry_crates, d);
    d->n_load = 0;
    d->crates = 0;
}
