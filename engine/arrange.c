/* arrange.c - copies bundles of rows, all threads at once. Each writes what it will later read part
 * of, so that pages spread over the memory of all nodes. */
#include "engine/arrange.h"

#include "tiers/pages.h"

static uint64_t bundles_of(const matrix *m, int bundle)
{
    return ((uint64_t)m->rows + (uint64_t)bundle - 1) / (uint64_t)bundle;
}

uint64_t arrange_bytes(const matrix *m, const kernel_set *k)
{
    const int bundle = m->data ? k->of[m->type].arranged.bundle : 0;
    return bundle > 0 ? bundles_of(m, bundle) * (uint64_t)bundle * m->row_bytes : 0;
}

typedef struct arrange_args {
    const matrix *m;
    const arrangement *how;
    uint8_t *to;
} arrange_args;

static void arrange_bundles(void *ctx, int64_t begin, int64_t end, int thread)
{
    const arrange_args *a = ctx;
    const int bundle = a->how->bundle;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const int first = (int)i * bundle, left = a->m->rows - first;
        const uint64_t at = (uint64_t)first * a->m->row_bytes;
        a->how->arrange(a->to + at, a->m->data + at, a->m->row_bytes, left < bundle ? left : bundle,
                        a->m->cols);
    }
}

int arrange_matrix(matrix *m, const ops *o, err_ctx *err)
{
    arrange_args a = { .m = m, .how = &o->kernels->of[m->type].arranged };
    const uint64_t bytes = arrange_bytes(m, o->kernels);
    void *to;
    int rc;

    if (bytes == 0) return 0;
    if ((rc = pages_map(&to, bytes, PAGES_HUGE, err)) < 0) return rc;   /* *m as it was */
    a.to = to;
    pool_run(o->team, (int64_t)bundles_of(m, a.how->bundle), 64, arrange_bundles, &a);
    m->arranged = to;
    m->arranged_bytes = bytes;
    return 0;
}

void arrange_free(matrix *m)
{
    pages_unmap((void *)m->arranged, m->arranged_bytes);
    m->arranged = NULL;
    m->arranged_bytes = 0;
}
