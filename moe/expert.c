/* expert.c - the arithmetic of slabs: how large an expert is and where its bytes begin.
 *
 * Every size comes from the bound tensors, never from a product of hyper-parameters: the experts
 * of a layer add up to exactly the bytes of its tensors, whatever their types, fused or not.
 * Reading and moving the bytes is left to others. */
#include "moe/expert.h"

uint64_t expert_slab_rows(const expert_bank *b, expert_slab s)
{
    return s == SLAB_DOWN ? b->n_embd : b->n_ff;
}

uint64_t expert_slab_bytes(const expert_bank *b, expert_slab s)
{
    return b->weight[s] ? expert_slab_rows(b, s) * b->weight[s]->row_bytes : 0;
}

uint64_t expert_frame_slab_bytes(const expert_bank *b, expert_slab s)
{
    return size_align(expert_slab_bytes(b, s), FRAME_ALIGN);
}

uint64_t expert_slabs_bytes(const expert_bank *b)
{
    uint64_t bytes = 0;
    for (int s = 0; s < SLAB_COUNT; s++) bytes += expert_slab_bytes(b, (expert_slab)s);
    return bytes;
}

uint64_t expert_bytes(const expert_bank *b)
{
    uint64_t bytes = expert_slabs_bytes(b);
    for (int s = 0; s < SLAB_COUNT; s++) {
        const bool shared_with_gate = b->fused && s == SLAB_UP;
        if (b->bias[s]) bytes += b->bias[s]->row_bytes;
        if (b->scale[s] && !shared_with_gate) bytes += sizeof(float);
    }
    return bytes;
}

uint64_t expert_bank_bytes(const expert_bank *b)
{
    return (uint64_t)b->n_expert * expert_bytes(b);
}

bool expert_bank_has_floats(const expert_bank *b)
{
    for (int s = 0; s < SLAB_COUNT; s++)
        if (b->weight[s] && quant_traits_of(b->weight[s]->type)->block_elems == 1) return true;
    return false;
}

const uint8_t *expert_slab_data(const expert_bank *b, expert_slab s, int index)
{
    const uint64_t first_row = b->fused && s == SLAB_UP ? b->n_ff : 0;
    return tensor_row(b->weight[s], (uint64_t)index, first_row);
}
