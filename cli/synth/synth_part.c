/* synth_part.c - any bytes of a tensor, from its recipe. */
#include "cli/synth/synth_part.h"

#include <string.h>

#include "loader/bytes.h"

static void fill_blocks(const synth_part *t, uint8_t *out, uint64_t first, uint64_t n)
{
    const uint64_t elems = (uint64_t)quant_traits_of((uint32_t)t->maker->type)->block_elems;
    const uint64_t per_row = t->cols / elems, front = t->n_front / elems;

    while (n && front) {
        const uint64_t c = first % per_row, left = (c < front ? front : per_row) - c;
        const uint64_t take = n < left ? n : left;
        const bool alike = c < front && t->front_key;
        synth_blocks_fill(c < front ? t->front_maker : t->maker, out, alike ? c : first,
                          (size_t)take, alike ? t->front_key : t->key);
        out += take * t->unit;
        first += take;
        n -= take;
    }
    if (n) synth_blocks_fill(t->maker, out, first, (size_t)n, t->key);
}

static void fill_floats(const synth_part *t, uint8_t *out, uint64_t first, uint64_t n)
{
    const double step = ((double)t->hi - (double)t->lo) * 0x1p-32;
    const uint64_t cols = t->cols;

    synth_bytes(out, first * 4, (size_t)n * 4, t->key);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t index = first + i;
        float v = (float)((double)t->lo + step * (load_u32(out + 4 * i) + 0.5));
        if (t->kind == FILL_TABLE) v = t->table[index];
        if (t->kind == FILL_ROUTER && index % cols < t->n_front)
            v = t->table[index / cols] * t->front[index % cols];
        memcpy(out + 4 * i, &v, 4);
    }
}

static void fill_units(const synth_part *t, uint8_t *out, uint64_t first, uint64_t n)
{
    if (t->kind == FILL_BLOCKS) fill_blocks(t, out, first, n);
    else fill_floats(t, out, first, n);
}

/* Blocks that are only partly in the range are made in a buffer and cut. */
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
