/* bounce_buffer.c - loads cut into pieces, so that many threads can carry even a single one. */
#include "tiers/bounce_buffer.h"

#include <assert.h>
#include <string.h>

#include "tiers/page_advice.h"

enum { PIECE = 32 << 10 };               /* bytes that a thread carries at a time */

typedef struct load {
    const uint8_t *from;
    uint8_t *to;
    uint64_t bytes;
} load;

struct bounce_buffer {
    pool *team;
    uint8_t *memory;
    uint64_t cell_bytes;
    int n_cell;
    load *loads;                         /* [n_cell]: those to carry */
    int n_load;
    int64_t pieces;                      /* of the largest of them: all are counted like it */
};

static uint64_t memory_bytes(const bounce_buffer *d)
{
    return (uint64_t)d->n_cell * d->cell_bytes;
}

static int fill(bounce_buffer *d, err_ctx *err)
{
    void *memory;
    d->loads = mem_array((size_t)d->n_cell, sizeof *d->loads);
    if (!d->loads) return err_set(err, ERR_NOMEM, "%d cells for reads", d->n_cell);
    const int rc = pages_map(&memory, (size_t)memory_bytes(d), PAGES_HUGE, err);
    if (rc < 0) return rc;
    d->memory = memory;
    pages_touch(memory, (size_t)memory_bytes(d), d->team);
    return 0;
}

int bounce_buffer_create(bounce_buffer **out, pool *team, int n, uint32_t cell_bytes, err_ctx *err)
{
    bounce_buffer *d = mem_zalloc(sizeof *d);
    assert(cell_bytes % SMALL_PAGE == 0);
    *out = NULL;
    if (!d) return err_set(err, ERR_NOMEM, "reads: %zu bytes", sizeof *d);
    *d = (bounce_buffer){ .team = team, .n_cell = n, .cell_bytes = cell_bytes };
    const int rc = fill(d, err);
    if (rc < 0) bounce_buffer_free(d);
    else *out = d;
    return rc;
}

void bounce_buffer_free(bounce_buffer *d)
{
    if (!d) return;
    if (d->memory) pages_unmap(d->memory, (size_t)memory_bytes(d));
    mem_free(d->loads);
    mem_free(d);
}

uint8_t *bounce_buffer_cell(const bounce_buffer *d, int i)
{
    return d->memory + (uint64_t)i * d->cell_bytes;
}

void *bounce_buffer_memory(const bounce_buffer *d, uint64_t *bytes)
{
    *bytes = memory_bytes(d);
    return d->memory;
}

void bounce_buffer_assign(bounce_buffer *d, int cell, uint64_t from, uint64_t bytes, uint8_t *to)
{
    const int64_t pieces = (int64_t)((bytes + PIECE - 1) / PIECE);
    assert(d->n_load < d->n_cell && from + bytes <= d->cell_bytes);
    d->loads[d->n_load++] = (load){ bounce_buffer_cell(d, cell) + from, to, bytes };
    if (pieces > d->pieces) d->pieces = pieces;
}

static void copy_pieces(void *ctx, int64_t begin, int64_t end, int thread)
{
    const bounce_buffer *d = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const load *l = &d->loads[i / d->pieces];
        const uint64_t at = (uint64_t)(i % d->pieces) * PIECE;
        if (at >= l->bytes) continue;
        memcpy(l->to + at, l->from + at, (size_t)(l->bytes - at < PIECE ? l->bytes - at : PIECE));
    }
}

void bounce_buffer_flush(bounce_buffer *d, bool alone)
{
    const int64_t n = d->n_load * d->pieces;
    if (n > 0 && alone) copy_pieces(d, 0, n, 0);
    else if (n > 0) pool_run(d->team, n, 1, copy_pieces, d);
    d->n_load = 0;
    d->pieces = 0;
}
