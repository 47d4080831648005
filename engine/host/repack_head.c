/* repack_head.c - copies bundles of rows with all threads. A thread later reads some of the rows
 * that it writes, so pages spread over the memory of all nodes. */
#include "engine/host/repack_head.h"

#include "tiers/page_advice.h"

static uint64_t bundles_of(const matrix *m, int bundle)
{
    return ((uint64_t)m->rows + (uint64_t)bundle - 1) / (uint64_t)bundle;
}

uint64_t repack_head_bytes(const matrix *m, const kernel_set *k)
{
    const int bundle = m->data ? k->of[m->type].repacked.bundle : 0;
    return bundle > 0 ? bundles_of(m, bundle) * (uint64_t)bundle * m->row_bytes : 0;
}

typedef struct repack_args {
    const matrix *m;
    const repacking *layout;
    uint8_t *copy;
} repack_args;

static void repack_bundles(void *ctx, int64_t begin, int64_t end, int thread)
{
    const repack_args *a = ctx;
    const int bundle = a->layout->bundle;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int first = (int)i * bundle, left = a->m->rows - first;
        const uint64_t offset = (uint64_t)first * a->m->row_bytes;
        a->layout->repack(a->copy + offset, a->m->data + offset, a->m->row_bytes,
                          left < bundle ? left : bundle, a->m->cols);
    }
}

int repack_head(matrix *m, const ops *o, err_ctx *err)
{
    repack_args a = { .m = m, .layout = &o->kernels->of[m->type].repacked };
    const uint64_t bytes = repack_head_bytes(m, o->kernels);
    void *copy;
    int rc;

    if (bytes == 0) return 0;
    if ((rc = pages_map(&copy, bytes, PAGES_HUGE, err)) < 0) return rc;
    a.copy = copy;
    pool_run(o->team, (int64_t)bundles_of(m, a.layout->bundle), 64, repack_bundles, &a);
    m->repacked = copy;
    m->repacked_bytes = bytes;
    return 0;
}

void repack_head_free(matrix *m)
{
    pages_unmap((void *)m->repacked, m->repacked_bytes);
    m->repacked = NULL;
    m->repacked_bytes = 0;
}
