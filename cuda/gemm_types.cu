/* gemm_types.cu - gemm_tile.cuh's kernels for F16 and BF16, and ANY, for all remaining types. */
#include "cuda/gemm_tile.cuh"

/* Whether each row is whole chunks at multiples of 16 bytes. */
static bool is_aligned(const gemm *p, const gemm_matrix *m)
{
    return (uintptr_t)m->data % 16 == 0 && m->row_bytes % 16 == 0 && m->slab_bytes % 16 == 0 &&
           (uintptr_t)p->x % 16 == 0 && (uintptr_t)p->x_low % 16 == 0 && p->cols % 8 == 0;
}

/* F16 and BF16. LOWS: activations are x + x_low. */
template <bool LOWS> static void run_halves(gpu *g, const gemm *p, bool aligned)
{
    if (p->type == QT_F16 && aligned) run_type<QT_F16, LOWS>(g, p);
    else if (p->type == QT_BF16 && aligned) run_type<QT_BF16, LOWS>(g, p);
    else run_type<ANY, LOWS>(g, p);
}

void gemm_run_more(gpu *g, const gemm *p)
{
    const bool aligned = is_aligned(p, &p->w) && (!p->up.data || is_aligned(p, &p->up));

    if (p->x_low) run_halves<true>(g, p, aligned);
    else run_halves<false>(g, p, aligned);
}
