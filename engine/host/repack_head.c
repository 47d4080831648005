/* repack_head.c - copies bundles of rows, all threads at once. Each thread writes rows of which it
 * will later read a part, so pages spread over the memory of all nodes. */
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
    const repacking *how;
    uint8_t *to;
} repack_args;

static void repack_bundles(void *ctx, int64_t begin, int64_t end, int thread)
{
    const repack_args *a = ctx;
    const int bundle = a->how->bundle;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int first = (int)i * bundle, left = a->m->rows - first;
        const uint64_t at = (uint64_t)first * a->m->row_bytes;
        a->how->repack(a->to + at, a->m->data + at, a->m->row_bytes, left < bundle ? left : bundle,
                        a->m->cols);
    }
}

int repack_head(matrix *m, const ops *o, err_ctx *err)
{
    repack_args a = { .m = m, .how = &o->kernels->of[m->type].repacked };
    const uint64_t bytes = repack_head_bytes(m, o->kernels);
    void *to;
    int rc;

    if (bytes == 0) return 0;
    if ((rc = pages_map(&to, bytes, PAGES_HUGE, err)) < 0) return rc;   /* *m as it was */
    a.to = to;
    pool_run(o->team, (int64_t)bundles_of(m, a.how->bundle), 64, repack_bundles, &a);
    m->repacked = to;
    m->repacked_bytes = bytes;
    return 0;
}

void repack_head_free(matrix *m)
{
    pages_unmap((void *)m->repacked, m->repacked_bytes);
    m->repacked = NULL;
    m->repacked_bytes = 0;
}
