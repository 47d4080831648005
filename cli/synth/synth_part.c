/* synth_part.c - any bytes of a tensor, from its recipe. */
#include "cli/synth/synth_part.h"

#include <string.h>

#include "loader/bytes.h"

/* The patch that makes block c of row r, or NULL, and in *n how many blocks from there on are made
 * in the same way; at first those that are left in the row. */
static const synth_patch *find_patch(const synth_part *t, uint64_t r, uint64_t c, uint64_t elems,
                                     uint64_t *n)
{
    for (int i = 0; i < t->n_patch; i++) {
        const synth_patch *p = &t->patch[i];
        const uint64_t from = p->col / elems, to = from + p->n_col / elems;
        if (r < p->row || r - p->row >= p->n_row || c >= to) continue;
        const uint64_t left = (c < from ? from : to) - c;
        if (*n > left) *n = left;
        if (c >= from) return p;
    }
    return NULL;
}

static void fill_blocks(const synth_part *t, uint8_t *out, uint64_t first, uint64_t n)
{
    const uint64_t elems = (uint64_t)quant_traits_of((uint32_t)t->maker->type)->block_elems;
    const uint64_t per_row = t->cols / elems;

    while (n && t->n_patch) {
        const uint64_t r = first / per_row, c = first % per_row;
        uint64_t take = n < per_row - c ? n : per_row - c;
        const synth_patch *p = find_patch(t, r, c, elems, &take);
        const synth_blocks *maker = !p ? t->maker : p->makers ? p->makers[r - p->row] : p->maker;
        if (p && p->period)
            synth_blocks_fill(maker, out, (r - p->row) % p->period * (p->n_col / elems) + c -
                              p->col / elems, (size_t)take, p->key);
        else
            synth_blocks_fill(maker, out, first, (size_t)take, t->key);
        out += take * t->unit;
        first += take;
        n -= take;
    }
    if (n) synth_blocks_fill(t->maker, out, first, (size_t)n, t->key);
}

/* Element (r, c) of a router; v is what it would be in an ordinary column. */
static float router_weight(const synth_part *t, uint64_t r, uint64_t c, float v)
{
    if (c < t->n_zero) return 0;
    if (c < t->front_at || c - t->front_at >= t->n_front) return v;
    v = t->table[r] * t->front[c - t->front_at];
    for (uint64_t i = 1; i < t->n_sum; i++)
        v += t->table[i * t->rows + r] * t->front[i * t->n_front + c - t->front_at];
    return v;
}

static void fill_floats(const synth_part *t, uint8_t *out, uint64_t first, uint64_t n)
{
    const double step = ((double)t->hi - (double)t->lo) * 0x1p-32;
    const uint64_t cols = t->cols;

    synth_bytes(out, first * 4, (size_t)n * 4, t->key);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = first + i;
        float v = (float)((double)t->lo + step * (load_u32(out + 4 * i) + 0.5));
        if (t->kind == FILL_TABLE) v = t->table[at];
        if (t->kind == FILL_ROUTER) v = router_weight(t, at / cols, at % cols, v);
        memcpy(out + 4 * i, &v, 4);
    }
}

static void fill_units(const synth_part *t, uint8_t *out, uint64_t first, uint64_t n)
{
    if (t->kind == FILL_BLOCKS) fill_blocks(t, out, first, n);
    else fill_floats(t, out, first, n);
}

/* Blocks that lie only partly inside are made aside and cut. */
void synth_part_fill(const synth_part *t, uint8_t *out, uint64_t from, uint64_t n)
{
    while (n) {
        const uint64_t i = from / t->unit, skip = from % t->unit;
        uint64_t done;
        if (skip || n < t->unit) {
            uint8_t one[SYNTH_BLOCK_BYTES_MAX];
            fill_units(t, one, i, 1);
            done = n < t->unit - skip ? n : t->unit - skip;
            memcpy(out, one + skip, (size_t)done);
        } else {
            done = n - n % t->unit;
            fill_units(t, out, i, n / t->unit);
        }
        out += done;
        from += done;
        n -= done;
    }
}

void synth_part_decode(float *out, const synth_part *t, int row, int col, int n)
{
    const quant_traits *q = quant_traits_of((uint32_t)t->maker->type);
    const uint64_t elems = (uint64_t)q->block_elems;
    const uint64_t first = ((uint64_t)row * t->cols + (uint64_t)col) / elems;
    for (uint64_t i = 0; i < (uint64_t)n / elems; i++) {
        uint8_t block[SYNTH_BLOCK_BYTES_MAX];
        fill_blocks(t, block, first + i, 1);
        q->decode(out + i * elems, block, 1);
    }
}
