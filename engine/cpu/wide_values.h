/* wide_values.h - converts the integer sums of a block to its values, in the vectors of an
 * instruction set. Files that include wide.h include it after the definition of
 *
 *     ROW_VECTORS, vec          number of vectors with the sums of a panel and a strip
 *     vec_mul(a, b), vec_fma(a, b, c) = a * b + c in one rounding
 *     rows_at(p, i), rows_put   the i-th vector of the rows' numbers at p
 *     tokens_at(p, k)           the numbers of strip k of a tile, in the layout of rows_at
 *
 * Everything is inlined, for a constant kind and number of strips w, so that vectors stay in
 * registers. */
#ifndef ENGINE_CPU_WIDE_VALUES_H
#define ENGINE_CPU_WIDE_VALUES_H

typedef vec tile_vecs[TILE_STRIPS][ROW_VECTORS];

WIDE_INLINE void lanes_load(tile_vecs v, const strip_lanes *from, int lane, int w)
{
    for (int k = 0; k < w; k++)
        for (int i = 0; i < ROW_VECTORS; i++) v[k][i] = rows_at(from[k].of[lane], i);
}

WIDE_INLINE void lanes_store(strip_lanes *dst, const tile_vecs v, int lane, int w)
{
    for (int k = 0; k < w; k++)
        for (int i = 0; i < ROW_VECTORS; i++) rows_put(dst[k].of[lane], i, v[k][i]);
}

/* Computes hi * I_hi for WIDE_HALVES. */
WIDE_INLINE void high_products(tile_vecs v, const panel *p, int slot, int w)
{
    for (int k = 0; k < w; k++)
        for (int i = 0; i < ROW_VECTORS; i++) v[k][i] = vec_mul(rows_at(p->hi[slot], i), v[k][i]);
}

/* Adds the block at `slot` to the sums of its lane, from the block's integer sums or, for
 * WIDE_HALVES, those of its lower half and the high products. pos: act_at() of the first strip. */
WIDE_INLINE void add_block(tile_vecs lane_sum, const tile_vecs sum, const tile_vecs high,
                           const panel *p, const act_chunk *a, int pos, int slot, int w,
                           wide_kind kind)
{
    const float *t = p->t[slot], *c = p->c[slot], *lo = p->lo[slot], *hi = p->hi[slot];
    const float *dx = a->dx[pos], *s = a->s[pos], *s_hi = a->s_hi[pos];

    for (int k = 0; k < w; k++) {
        for (int i = 0; i < ROW_VECTORS; i++) {
            const vec scale = rows_at(t, i);
            vec v;
            if (kind == WIDE_PLAIN || kind == WIDE_SCALED_HALVES) {
                v = vec_mul(scale, sum[k][i]);
            } else if (kind_has_minimum(kind)) {
                v = vec_mul(rows_at(c, i), tokens_at(s, k));
                v = vec_fma(scale, sum[k][i], v);
            } else if (kind == WIDE_HALF_MINIMUMS) {
                v = vec_mul(rows_at(hi, i), tokens_at(s_hi, k));
                v = vec_fma(rows_at(lo, i), tokens_at(s, k), v);
                v = vec_mul(rows_at(c, i), v);
                v = vec_fma(scale, sum[k][i], v);
            } else {
                v = vec_fma(rows_at(lo, i), sum[k][i], high[k][i]);
                v = vec_mul(scale, v);
            }
            lane_sum[k][i] = vec_fma(tokens_at(dx, k), v, lane_sum[k][i]);
        }
    }
}

#endif
