/* x86_amx_wide.c - tiles of 16 rows and 16 tokens for processors with AMX.
 *
 * One instruction multiplies 32 activations of each of 16 tokens by 32 weights of each of 16 rows
 * and gives 256 integer sums. It is slow but runs in parallel with other instructions. So first all
 * blocks of a lane are multiplied and stored to memory, two at a time in separate registers. Then
 * AVX-512 scales and adds them, for eight tokens at a time. */
#include <immintrin.h>
#include <stdint.h>

enum {
    PANEL_ROWS = 16, ROW_VECTORS = 1,
    WEIGHT_BYTES = 32 * PANEL_ROWS,      /* [step][row][4] */
    SCALE_COPIES = 1,
    STRIP_TOKENS = 1, TILE_STRIPS = 16,
    ACT_BYTES = 32,
    ACT_FLOATS = 1,
    PART = 8,                            /* strips that are scaled together */
};

#define WIDE_ACTS_AS_THEY_ARE
#include "engine/cpu/wide.h"
#include "engine/cpu/x86_wide.h"

/* ---- layouts ------------------------------------------------------------------------------- */

static void put_weights(int8_t *restrict w, const block_parts *restrict parts, int j)
{
    __m512i step[STEPS];
    transpose_rows(step, parts, j);
    for (int s = 0; s < STEPS; s++) _mm512_store_si512((void *)(w + STEP_BYTES * s), step[s]);
}

static int tile_strips(wide_kind kind, int left)
{
    (void)kind, (void)left;
    return TILE_STRIPS;
}

/* ---- the matrix unit ----------------------------------------------------------------------- */

/* Registers 0 and 1 are sums, 2 and 3 activations, 4 and 5 weights. */
typedef struct unit_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} unit_config;
static_assert(sizeof(unit_config) == 64, "as the instruction reads it");

static void tiles_begin(wide_kind kind)
{
    const int depth = kind == WIDE_HALVES ? 16 : 32;
    unit_config c = { .palette = 1 };
    for (int i = 0; i < 6; i++) {
        c.rows[i] = (uint8_t)(i < 4 ? TILE_STRIPS : depth / 4);
        c.row_bytes[i] = (uint16_t)(i / 2 == 1 ? depth : 4 * PANEL_ROWS);
    }
    _tile_loadconfig(&c);
}

static void tiles_end(void) { _tile_release(); }

/* [token][row] */
typedef int32_t block_sums[TILE_STRIPS][PANEL_ROWS];

WIDE_INLINE void multiply_two(block_sums to0, const int8_t *q0, const int8_t *w0, block_sums to1,
                              const int8_t *q1, const int8_t *w1)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(2, q0, ACT_BYTES);
    _tile_loadd(4, w0, STEP_BYTES);
    _tile_dpbssd(0, 2, 4);
    _tile_loadd(3, q1, ACT_BYTES);
    _tile_loadd(5, w1, STEP_BYTES);
    _tile_dpbssd(1, 3, 5);
    _tile_stored(0, to0, sizeof to0[0]);
    _tile_stored(1, to1, sizeof to1[0]);
}

/* Sums of a lane, of half or of whole blocks. */
typedef struct lane_sums {
    alignas(64) block_sums of[CHUNK_BLOCKS / LANES][2];
} lane_sums;

WIDE_INLINE void multiply_lane(lane_sums *sums, const panel *p, const act_chunk *a, int first,
                               int begin, int end, wide_kind kind)
{
    in_order();                          /* the compiler does not see the unit's reads of memory */
    if (kind == WIDE_HALVES) {
        for (int slot = begin; slot < end; slot++) {
            const int8_t *q = a->q[act_at(first, TILE_STRIPS, 0, slot)], *w = p->w[slot];
            multiply_two(sums->of[slot - begin][0], q, w,
                         sums->of[slot - begin][1], q + 16, w + 4 * STEP_BYTES);
        }
    } else {
        for (int slot = begin; slot < end; slot += 2) {
            const int next = min_int(slot + 1, end - 1);
            multiply_two(sums->of[slot - begin][0], a->q[act_at(first, TILE_STRIPS, 0, slot)],
                         p->w[slot],
                         sums->of[next - begin][0], a->q[act_at(first, TILE_STRIPS, 0, next)],
                         p->w[next]);
        }
    }
}

/* ---- tiles --------------------------------------------------------------------------------- */

#include "engine/cpu/wide_values.h"

WIDE_INLINE void load_sums(tile_vecs v, const block_sums from, int k0)
{
    for (int k = 0; k < PART; k++)
        v[k][0] = _mm512_cvtepi32_ps(_mm512_load_si512((const void *)from[k0 + k]));
}

WIDE_INLINE void tile(strip_lanes *lanes, const strip_lanes *from, const panel *p,
                      const act_chunk *a, int first, int n, wide_kind kind)
{
    lane_sums sums;
    for (int lane = 0; lane < LANES; lane++) {
        const int begin = slot_of(n, lane), end = begin + lane_blocks(n, lane);
        multiply_lane(&sums, p, a, first, begin, end, kind);
        for (int k0 = 0; k0 < TILE_STRIPS; k0 += PART) {
            tile_vecs lane_sum, sum, high;
            lanes_load(lane_sum, from + k0, lane, PART);
            for (int slot = begin; slot < end; slot++) {
                if (kind == WIDE_HALVES) {
                    load_sums(high, sums.of[slot - begin][1], k0);
                    high_products(high, p, slot, PART);
                }
                load_sums(sum, sums.of[slot - begin][0], k0);
                add_block(lane_sum, sum, high, p, a, act_at(first, TILE_STRIPS, k0, slot), slot,
                          PART, kind);
            }
            lanes_store(lanes + k0, lane_sum, lane, PART);
        }
    }
}

__attribute__((noinline))
static void tile_run(strip_lanes *lanes, const strip_lanes *from, const panel *p,
                     const act_chunk *a, int first, int w, int n, wide_kind kind)
{
    (void)w;                             /* is TILE_STRIPS */
    switch (kind) {
    case WIDE_PLAIN: tile(lanes, from, p, a, first, n, WIDE_PLAIN); break;
    case WIDE_MINIMUM: tile(lanes, from, p, a, first, n, WIDE_MINIMUM); break;
    case WIDE_HALF_MINIMUMS: tile(lanes, from, p, a, first, n, WIDE_HALF_MINIMUMS); break;
    case WIDE_HALVES: tile(lanes, from, p, a, first, n, WIDE_HALVES); break;
    case WIDE_LONG_MINIMUM: case WIDE_SCALED_HALVES: break;     /* no type here has them */
    }
}

#include "engine/cpu/wide_types.h"

void put_amx_wide(kernel_set *s) { wide_put(s, 10, 16); }
