/* wide_tile.h - tiles that compute the sums of the blocks one by one. Include it after the
 * definitions that wide_values.h needs and
 *
 *     TILE_WIDTHS(X, ...)       X(w, ...) for every number of strips that tile_strips() returns
 *
 * and before the definition of sum_halves(). With TILE_KINDS, a list of other kinds, define
 * sum_block() instead. */
#ifndef ENGINE_CPU_WIDE_TILE_H
#define ENGINE_CPU_WIDE_TILE_H

#include "engine/cpu/wide_values.h"

/* Computes the operands of add_block() for the block at `slot`; pos is act_at() of its first
 * strip. */
WIDE_INLINE void sum_block(tile_vecs sum, tile_vecs high, const panel *p, const act_chunk *a,
                           int pos, int slot, int w, wide_kind kind);

#ifndef TILE_KINDS
#define TILE_KINDS(X)                                                                              \
    X(plain, WIDE_PLAIN) X(minimum, WIDE_MINIMUM) X(half_minimums, WIDE_HALF_MINIMUMS)             \
    X(halves, WIDE_HALVES)

/* The integer sums of n halves of a block from half `first` on, as floats. */
WIDE_INLINE void sum_halves(tile_vecs sum, const int8_t *weights, const int8_t *q, int w, int first,
                            int n);

WIDE_INLINE void sum_block(tile_vecs sum, tile_vecs high, const panel *p, const act_chunk *a,
                           int pos, int slot, int w, wide_kind kind)
{
    if (kind == WIDE_HALVES) {
        sum_halves(high, p->w[slot], a->q[pos], w, 1, 1);
        high_products(high, p, slot, w);
        in_order();
    }
    sum_halves(sum, p->w[slot], a->q[pos], w, 0, kind == WIDE_HALVES ? 1 : 2);
}
#endif

WIDE_INLINE void tile(strip_lanes *lanes, const strip_lanes *from, const panel *p,
                      const act_chunk *a, int first, int n, int w, wide_kind kind)
{
    for (int lane = 0; lane < LANES; lane++) {
        const int begin = slot_of(n, lane), end = begin + lane_blocks(n, lane);
        tile_vecs lane_sum, sum, high;
        lanes_load(lane_sum, from, lane, w);
        for (int slot = begin; slot < end; slot++) {
            const int pos = act_at(first, w, 0, slot);
            sum_block(sum, high, p, a, pos, slot, w, kind);
            in_order();
            add_block(lane_sum, sum, high, p, a, pos, slot, w, kind);
        }
        lanes_store(lanes, lane_sum, lane, w);
    }
}

typedef void tile_fn(strip_lanes *lanes, const strip_lanes *from, const panel *p,
                     const act_chunk *a, int first, int n);

#define DEFINE_TILE(w, name, kind)                                                                 \
    static void name##_##w(strip_lanes *lanes, const strip_lanes *from, const panel *p,            \
                           const act_chunk *a, int first, int n)                                   \
    {                                                                                              \
        tile(lanes, from, p, a, first, n, w, kind);                                                \
    }
#define DEFINE_TILES(name, kind) TILE_WIDTHS(DEFINE_TILE, name, kind)
TILE_KINDS(DEFINE_TILES)

#define TILE_ENTRY(w, name, kind) [kind][w] = name##_##w,
#define TILE_ENTRIES(name, kind) TILE_WIDTHS(TILE_ENTRY, name, kind)

static void tile_run(strip_lanes *lanes, const strip_lanes *from, const panel *p,
                     const act_chunk *a, int first, int w, int n, wide_kind kind)
{
    static tile_fn *const tiles[][TILE_STRIPS + 1] = {
        TILE_KINDS(TILE_ENTRIES)
    };
    tiles[kind][w](lanes, from, p, a, first, n);
}

/* Nothing to set up. */
static void tiles_begin(wide_kind kind) { (void)kind; }

static void tiles_end(void)
{
}

#endif
