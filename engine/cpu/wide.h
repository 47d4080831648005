/* wide.h - products of weight rows with many tokens: the loops around the tiles of an instruction
 * set. Included by the files with such tiles, and compiled with their flags.
 *
 * A panel has PANEL_ROWS rows and a chunk of K. Its weights are unpacked once, to int8 and the few
 * floats that scale a block, and then multiplied by all tokens, one tile of tokens at a time.
 * Tokens are packed in strips of STRIP_TOKENS; a tile is one or several strips.
 *
 * Integer sums of a block are exact in any order. The contract orders each lane's chain of fmas,
 * over blocks j, j + 8, j + 16, ... So in a chunk the blocks of lane 0 are stored first, then those
 * of lane 1, and so on; a tile reads memory sequentially with the sums of one lane in registers. If
 * K is longer than a chunk, the lanes of all tiles stay in memory until the next one. At the end
 * they are folded as in contract.c. So a token's sums never depend on other tokens.
 *
 * Before the include a file defines the constants that are used but not defined here (PANEL_ROWS
 * and so on), and after it the functions under "provided by an instruction set". Then it includes
 * wide_types.h, for a kernel of each type. */
#ifndef ENGINE_CPU_WIDE_H
#define ENGINE_CPU_WIDE_H

#include <stdalign.h>
#include <string.h>

#include "engine/cpu/contract_blocks_body.h"
#include "engine/cpu/isa_sets.h"

#define WIDE_INLINE static inline __attribute__((always_inline))

/* Stops compilers from moving later loads before it. Otherwise they load as early as possible and
 * run out of registers. */
WIDE_INLINE void in_order(void)
{
    __asm__ volatile("" ::: "memory");
}

/* ---- chunks and slots ---------------------------------------------------------------------- */

enum {
    LANES = 8,
    CHUNK_BLOCKS = 96,                   /* the whole K of gpt-oss, so tokens are packed once */
    GROUP_TOKENS = 64,                   /* tokens that share an unpacked panel */
    GROUP_ROWS = 128,                    /* rows whose lanes stay in memory between chunks */
    GROUP_STRIPS = GROUP_TOKENS / STRIP_TOKENS,
    GROUP_PANELS = GROUP_ROWS / PANEL_ROWS,
    STRIP_SUMS = PANEL_ROWS * STRIP_TOKENS,
};
static_assert((int)LANES == (int)SEGMENT_BLOCKS && CHUNK_BLOCKS % LANES == 0,
              "a chunk begins with a block of lane 0");

/* Returns the number of a lane's blocks among the first n. */
static inline int lane_blocks(int n, int lane)
{
    return (n - lane + LANES - 1) / LANES;
}

/* Returns the slot of block b in a chunk of n blocks. Each lane has as many slots as lane 0. */
static inline int slot_of(int n, int b)
{
    return b % LANES * lane_blocks(n, 0) + b / LANES;
}

/* ---- panels -------------------------------------------------------------------------------- */

/* The value of a block, from the integer sums of its halves, I = I_lo + I_hi, and the sums of the
 * activations, s = s_lo + s_hi. Each has the one or two roundings of the contract: t, c, their
 * products with small integers, and the sums in brackets are exact. */
typedef enum wide_kind {
    WIDE_PLAIN,                          /* t * I */
    WIDE_MINIMUM,                        /* fma(t, I, c * s) */
    WIDE_HALF_MINIMUMS,                  /* fma(t, I, c * (lo * s_lo + hi * s_hi)) */
    WIDE_HALVES,                         /* t * fma(lo, I_lo, hi * I_hi) */
    /* For tiles of unsigned weights (x86_unsigned8.h): */
    WIDE_LONG_MINIMUM,                   /* as WIDE_MINIMUM, but I needs two sums of 16 bits */
    WIDE_SCALED_HALVES,                  /* t * (lo * I_lo + hi * I_hi), all integers but t; lo and
                                          * hi are in the form of put_byte_scales() */
} wide_kind;

static inline bool kind_has_minimum(wide_kind kind)
{
    return kind == WIDE_MINIMUM || kind == WIDE_LONG_MINIMUM;
}

static inline bool kind_is_of_halves(wide_kind kind)
{
    return kind == WIDE_HALVES || kind == WIDE_SCALED_HALVES;
}

/* One number for each row, repeated SCALE_COPIES times. */
typedef float row_floats[PANEL_ROWS * SCALE_COPIES];

/* One chunk of PANEL_ROWS rows. Indices are slots. */
typedef struct panel {
    alignas(64) int8_t w[CHUNK_BLOCKS][WEIGHT_BYTES];    /* in the tile's layout */
    alignas(64) row_floats t[CHUNK_BLOCKS], c[CHUNK_BLOCKS], lo[CHUNK_BLOCKS], hi[CHUNK_BLOCKS];
} panel;

/* The activations of one chunk of up to GROUP_TOKENS tokens, indexed by act_at(). The gaps make the
 * arrays start in different sets of L1; without them it is 10% slower. */
typedef struct act_chunk {
    alignas(64) int8_t q[GROUP_STRIPS * CHUNK_BLOCKS][ACT_BYTES];     /* in the tile's layout */
    alignas(64) char gap[4096];
    alignas(64) float dx[GROUP_STRIPS * CHUNK_BLOCKS][ACT_FLOATS];
    alignas(64) char second_gap[4096];
    alignas(64) float s[GROUP_STRIPS * CHUNK_BLOCKS][ACT_FLOATS];     /* or s_lo */
    alignas(64) char third_gap[4096];
    alignas(64) float s_hi[GROUP_STRIPS * CHUNK_BLOCKS][ACT_FLOATS];
} act_chunk;

/* Returns the index of strip k of the tile of w strips that begins with strip `first`. The slots of
 * the strips are interleaved, so that a tile reads one stream. */
static inline int act_at(int first, int w, int k, int slot)
{
    return first * CHUNK_BLOCKS + slot * w + k;
}

/* Stores the floats of block b of token x at index pos, for strips of one token. */
static inline void put_act_floats(act_chunk *a, int pos, const act_row *x, int b, wide_kind kind)
{
    const int16_t *s = x->s + 2 * b;
    a->dx[pos][0] = x->dx[b];
    if (kind_has_minimum(kind)) a->s[pos][0] = (float)(s[0] + s[1]);
    if (kind == WIDE_HALF_MINIMUMS) {
        a->s[pos][0] = s[0];
        a->s_hi[pos][0] = s[1];
    }
}

/* The lanes of one panel with one strip: [row][token]. */
typedef struct strip_lanes {
    alignas(64) float of[LANES][STRIP_SUMS];
} strip_lanes;

/* ---- provided by an instruction set -------------------------------------------------------- */

/* Returns the number of strips of the next tile, 1 to TILE_STRIPS, if `left` strips remain. If it
 * is more than `left`, the last strip is repeated and its sums are not read. */
static int tile_strips(wide_kind kind, int left);

/* Packs n_token tokens as strip k of the tile of w strips that begins with `first`: blocks b0 to b0
 * + n - 1; it may read whole segments. For strips of one token with bytes in their original order
 * define WIDE_ACTS_AS_THEY_ARE instead. */
static void pack_strip(act_chunk *a, int first, int k, int w, const act_row *x, int n_token,
                       int b0, int n, wide_kind kind);

#ifdef WIDE_ACTS_AS_THEY_ARE
static void pack_strip(act_chunk *a, int first, int k, int w, const act_row *x, int n_token,
                       int b0, int n, wide_kind kind)
{
    (void)n_token;                       /* is 1 */
    for (int j = 0; j < n; j++) {
        const int pos = act_at(first, w, k, slot_of(n, j));
        memcpy(a->q[pos], x->q + 32 * (b0 + j), 32);
        put_act_floats(a, pos, x, b0 + j, kind);
    }
}
#endif

/* Stores block j of PANEL_ROWS rows in the tile's layout; that of row r is parts[r].w[32 * j
 * ..]. */
static void put_weights(int8_t *restrict w, const block_parts *restrict parts, int j);

/* Called before and after all tiles of a call. */
static void tiles_begin(wide_kind kind);
static void tiles_end(void);

/* Computes the tile of w strips that begins with `first`: lanes[k] = from[k] + a chunk of n
 * blocks. */
static void tile_run(strip_lanes *lanes, const strip_lanes *from, const panel *p,
                     const act_chunk *a, int first, int w, int n, wide_kind kind);

/* ---- filling a panel ----------------------------------------------------------------------- */

/* Floats of one segment, by row and lane. */
typedef struct segment_floats {
    float t[PANEL_ROWS][LANES], c[PANEL_ROWS][LANES];
    float lo[PANEL_ROWS][LANES], hi[PANEL_ROWS][LANES];
} segment_floats;

/* Sets the floats of row r from its unpacked blocks. May change the weights. */
typedef void scales_fn(segment_floats *restrict f, int r, block_parts *restrict p);

static inline void plain_scales(segment_floats *restrict f, int r, block_parts *restrict p)
{
    for (int j = 0; j < LANES; j++) f->t[r][j] = p->d[j] * (float)p->sc[0][j];
}

static inline void minimum_scales(segment_floats *restrict f, int r, block_parts *restrict p)
{
    for (int j = 0; j < LANES; j++) f->t[r][j] = p->d[j] * (float)p->sc[0][j];
    for (int j = 0; j < LANES; j++) f->c[r][j] = p->c[j] * (float)p->m[0][j];
}

static inline void half_scales(segment_floats *restrict f, int r, block_parts *restrict p)
{
    for (int j = 0; j < LANES; j++) f->t[r][j] = p->d[j];
    for (int j = 0; j < LANES; j++) f->lo[r][j] = (float)p->sc[0][j];
    for (int j = 0; j < LANES; j++) f->hi[r][j] = (float)p->sc[1][j];
}

static inline void float_half_scales(segment_floats *restrict f, int r, block_parts *restrict p)
{
    for (int j = 0; j < LANES; j++) f->t[r][j] = 1.0f;
    for (int j = 0; j < LANES; j++) f->lo[r][j] = p->f[0][j];
    for (int j = 0; j < LANES; j++) f->hi[r][j] = p->f[1][j];
}

/* Multiplies small weights by the scale of their half, so that a block needs one sum: at most 3 *
 * 15 for Q2_K. The products are negated, because Q3_K's -4 * -32 = 128 exceeds int8. */
static inline void scaled_weights(segment_floats *restrict f, int r, block_parts *restrict p)
{
    for (int j = 0; j < LANES; j++) {
        for (int h = 0; h < 2; h++) {
            int8_t *w = p->w + 32 * j + 16 * h;
            store16(w, load16(w) * (uint8_t)-p->sc[h][j]);
        }
        f->t[r][j] = -p->d[j];
    }
}

static inline void scaled_weights_minimum(segment_floats *restrict f, int r,
                                          block_parts *restrict p)
{
    scaled_weights(f, r, p);
    for (int j = 0; j < LANES; j++) f->c[r][j] = p->c[j];
    for (int j = 0; j < LANES; j++) f->lo[r][j] = (float)p->m[0][j];
    for (int j = 0; j < LANES; j++) f->hi[r][j] = (float)p->m[1][j];
}

/* Fills n blocks of a whole panel, one segment at most, directly from the bytes of its rows: block
 * j to slot + stride * j. Reads only from the segment of the first row to that of the last row, and
 * prefetches those of the next panel. */
typedef void fill_fn(panel *p, int slot, int stride, const uint8_t *blocks, size_t row_bytes,
                     int n);

typedef struct wide_format {
    const block_format *blocks;
    scales_fn *put_scales;
    wide_kind kind;
    fill_fn *fill;                       /* a faster function for whole panels, or NULL */
} wide_format;

/* Stores one float of every row, for n blocks of a segment, to their slots. */
static inline void put_floats(row_floats *dst, float from[PANEL_ROWS][LANES], int per_lane, int n)
{
    for (int j = 0; j < n; j++, dst += per_lane)
        for (int r = 0; r < PANEL_ROWS; r++)
            for (int i = 0; i < SCALE_COPIES; i++) (*dst)[r * SCALE_COPIES + i] = from[r][j];
}

/* Prefetches the next panel's bytes while this one's are read. A prefetch cannot fault. */
static inline void prefetch_bytes(const uint8_t *p, size_t ahead, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch((const void *)((uintptr_t)p + ahead + i), 0, 2);
}

/* Fills a chunk of n blocks that begins at `first` in the first of n_row rows. A short panel
 * repeats its last row; the sums of repeated rows are not read. (With gcc 12 it is 10% slower if
 * inlined.) */
__attribute__((noinline))
static void panel_fill(panel *p, const wide_format *f, const uint8_t *first, size_t row_bytes,
                       int n_row, int n)
{
    const int per_lane = lane_blocks(n, 0);
    const size_t segment_bytes = (size_t)f->blocks->segment_bytes;
    block_parts parts[PANEL_ROWS];
    segment_floats floats;

    if (n % LANES) memset(parts, 0, sizeof parts);   /* the last segment is short */
    for (int i = 0; i < per_lane; i++, first += segment_bytes) {
        const int n_here = min_int(n - LANES * i, LANES);
        for (int r = 0; r < PANEL_ROWS; r++) {
            const uint8_t *blocks = first + (size_t)min_int(r, n_row - 1) * row_bytes;
            prefetch_bytes(blocks, PANEL_ROWS * row_bytes, segment_bytes);
            f->blocks->unpack(&parts[r], blocks, n_here);
            f->put_scales(&floats, r, &parts[r]);
        }
        put_floats(p->t + i, floats.t, per_lane, n_here);
        if (kind_has_minimum(f->kind) || f->kind == WIDE_HALF_MINIMUMS)
            put_floats(p->c + i, floats.c, per_lane, n_here);
        if (kind_is_of_halves(f->kind) || f->kind == WIDE_HALF_MINIMUMS) {
            put_floats(p->lo + i, floats.lo, per_lane, n_here);
            put_floats(p->hi + i, floats.hi, per_lane, n_here);
        }
        for (int j = 0; j < n_here; j++) put_weights(p->w[j * per_lane + i], parts, j);
    }
}

/* panel_fill() for a whole panel of a format with a fill function. */
__attribute__((noinline))
static void panel_fill_directly(panel *p, const wide_format *f, const uint8_t *first,
                                size_t row_bytes, int n)
{
    const int per_lane = lane_blocks(n, 0);
    const size_t segment_bytes = (size_t)f->blocks->segment_bytes;

    for (int i = 0; i < per_lane; i++, first += segment_bytes)
        f->fill(p, i, per_lane, first, row_bytes, min_int(n - LANES * i, LANES));
}

/* ---- products ------------------------------------------------------------------------------ */

/* Folds the lanes of a strip in the tree of the contract. gcc 12 does not vectorise it if
 * inlined. */
__attribute__((noinline))
static void fold_lanes(float *restrict sums, const strip_lanes *restrict l)
{
    for (int i = 0; i < STRIP_SUMS; i++) {
        const float p0 = l->of[0][i] + l->of[4][i], p1 = l->of[1][i] + l->of[5][i];
        const float p2 = l->of[2][i] + l->of[6][i], p3 = l->of[3][i] + l->of[7][i];
        const float low = p0 + p1, high = p2 + p3;
        const float sum = low + high;
        sums[i] = sum + 0.0f;
    }
}

/* Stores the sums of n_r rows and n_t tokens of a strip; sums has n_row rows per token. */
static inline void put_sums(float *sums, size_t n_row, const strip_lanes *lanes, int n_r, int n_t)
{
    float folded[STRIP_SUMS];
    fold_lanes(folded, lanes);
    for (int t = 0; t < n_t; t++)
        for (int r = 0; r < n_r; r++)
            sums[(size_t)t * n_row + (size_t)r] = folded[r * STRIP_TOKENS + t];
}

static void acts_pack(act_chunk *a, const act_row *x, int n_t, int b0, int n, wide_kind kind)
{
    const int n_strip = (n_t + STRIP_TOKENS - 1) / STRIP_TOKENS;
    for (int i = 0, w; i < n_strip; i += w) {
        w = tile_strips(kind, n_strip - i);
        for (int k = 0; k < w; k++) {
            const int t = min_int(i + k, n_strip - 1) * STRIP_TOKENS;
            pack_strip(a, i, k, w, x + t, min_int(n_t - t, STRIP_TOKENS), b0, n, kind);
        }
    }
}

/* Blocks b0 .. b0 + n - 1 of K. */
typedef struct chunk {
    int b0, n;
    bool first, last;
} chunk;

/* Multiplies a panel of n_r rows by n_t packed tokens. If another chunk follows, each strip has its
 * own lanes; otherwise all tiles use the same ones, which stay in L1. */
static void panel_run(float *sums, size_t n_row, strip_lanes *lanes, const panel *p,
                      const act_chunk *a, int n_r, int n_t, chunk c, wide_kind kind)
{
    static const strip_lanes zeros[TILE_STRIPS];
    const int n_strip = (n_t + STRIP_TOKENS - 1) / STRIP_TOKENS;

    for (int i = 0, w; i < n_strip; i += w) {
        strip_lanes *l = c.first && c.last ? lanes : lanes + i;
        w = tile_strips(kind, n_strip - i);
        tile_run(l, c.first ? zeros : l, p, a, i, w, c.n, kind);
        for (int k = 0; c.last && k < min_int(w, n_strip - i); k++) {
            const int t = (i + k) * STRIP_TOKENS, n_here = min_int(n_t - t, STRIP_TOKENS);
            float *dst = sums + (size_t)t * n_row;
            if (n_r == PANEL_ROWS && n_here == STRIP_TOKENS)
                put_sums(dst, n_row, &l[k], PANEL_ROWS, STRIP_TOKENS);
            else
                put_sums(dst, n_row, &l[k], n_r, n_here);
        }
    }
}

/* Scratch of a call, for any length of K: 300 KB of stack, plus a chunk of activations unless they
 * are packed. */
typedef struct scratch {
    panel p;
    strip_lanes lanes[GROUP_PANELS][GROUP_STRIPS];
} scratch;

/* Returns the blocks of a chunk of K; the last chunk may be shorter. */
static int chunk_length(int n_block)
{
    const int n_chunk = (n_block + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS;
    return (n_block + LANES * n_chunk - 1) / (LANES * n_chunk) * LANES;
}

/* Multiplies up to GROUP_ROWS rows by up to GROUP_TOKENS tokens. x: the tokens, which are packed
 * chunk by chunk to the same buffer; NULL: acts has all chunks packed. */
static void group_dot(scratch *s, const wide_format *f, float *sums, size_t n_row,
                      const uint8_t *rows, size_t row_bytes, int n_r, act_chunk *acts,
                      const act_row *x, int n_t, int n_block)
{
    const int most = chunk_length(n_block);

    for (int b = 0; b < n_block; b += most) {
        const chunk c = { b, min_int(n_block - b, most), b == 0, b + most >= n_block };
        const uint8_t *pos = rows + (size_t)(b / LANES) * (size_t)f->blocks->segment_bytes;
        if (x) acts_pack(acts, x, n_t, c.b0, c.n, f->kind);
        for (int r = 0; r < n_r; r += PANEL_ROWS) {
            const int n_here = min_int(n_r - r, PANEL_ROWS);
            if (f->fill && n_here == PANEL_ROWS)
                panel_fill_directly(&s->p, f, pos + (size_t)r * row_bytes, row_bytes, c.n);
            else
                panel_fill(&s->p, f, pos + (size_t)r * row_bytes, row_bytes, n_here, c.n);
            panel_run(sums + r, n_row, s->lanes[r / PANEL_ROWS], &s->p, acts, n_here, n_t, c,
                      f->kind);
        }
        if (!x) acts++;
    }
}

static void wide_dot(const wide_format *f, float *sums, const uint8_t *rows, size_t row_bytes,
                     int n_row, const act_row *x, int n_token, int cols)
{
    const int n_block = cols / ACT_BLOCK;
    const bool one_chunk = chunk_length(n_block) >= n_block;     /* packed once for all rows */
    act_chunk acts;
    scratch s;
    tiles_begin(f->kind);
    for (int t = 0; t < n_token; t += GROUP_TOKENS)
        for (int r = 0; r < n_row; r += GROUP_ROWS)
            group_dot(&s, f, sums + (size_t)t * (size_t)n_row + (size_t)r, (size_t)n_row,
                      rows + (size_t)r * row_bytes, row_bytes, min_int(n_row - r, GROUP_ROWS),
                      &acts, r > 0 && one_chunk ? NULL : x + t,
                      min_int(n_token - t, GROUP_TOKENS), n_block);
    tiles_end();
}

/* ---- packed tokens ------------------------------------------------------------------------- */

static_assert((int)GROUP_TOKENS == (int)PACKED_TOKENS, "they are packed as one group");
static_assert(alignof(act_chunk) <= PACKED_ALIGN, "chunks lie side by side where they are packed");

static size_t wide_packed_bytes(int cols)
{
    const int n_block = cols / ACT_BLOCK, most = chunk_length(n_block);
    return (size_t)((n_block + most - 1) / most) * sizeof(act_chunk);
}

static void wide_pack(const wide_format *f, void *packed, const act_row *x, int n_token, int cols)
{
    const int n_block = cols / ACT_BLOCK, most = chunk_length(n_block);
    act_chunk *a = packed;
    for (int b = 0; b < n_block; b += most, a++)
        acts_pack(a, x, n_token, b, min_int(n_block - b, most), f->kind);
}

static void wide_packed_dot(const wide_format *f, float *sums, const uint8_t *rows,
                            size_t row_bytes, int n_row, void *packed, int n_token, int cols)
{
    scratch s;
    tiles_begin(f->kind);
    for (int r = 0; r < n_row; r += GROUP_ROWS)
        group_dot(&s, f, sums + r, (size_t)n_row, rows + (size_t)r * row_bytes, row_bytes,
                  min_int(n_row - r, GROUP_ROWS), packed, NULL, n_token, cols / ACT_BLOCK);
    tiles_end();
}

#endif
