/* expert.h - an expert is (layer, index); this file has the addresses and sizes of its slabs.
 *
 * G, U and D are contiguous slices of three stacked tensors. A file may fuse G and U into one
 * tensor; then both point into it and U starts half-way into each slab. */
#ifndef MOE_EXPERT_H
#define MOE_EXPERT_H

#include "loader/gguf.h"

typedef struct expert_id { int layer, index; } expert_id;

typedef enum expert_slab { SLAB_GATE, SLAB_UP, SLAB_DOWN, SLAB_COUNT } expert_slab;

/* One layer's bank, bound and shape-checked by the model. All zeros for a layer without experts. */
typedef struct expert_bank {
    const tensor *weight[SLAB_COUNT];    /* gate and up are the same tensor if fused */
    const tensor *bias[SLAB_COUNT];      /* F32 [n_expert, rows], or NULL */
    const tensor *scale[SLAB_COUNT];     /* F32 [n_expert], the second scale of NVFP4, or NULL: 1 */
    bool fused;                          /* rows 0..n_ff-1 of a slab are gate, the rest up */
    int n_expert;
    uint64_t n_embd, n_ff;
} expert_bank;

/* All routed experts of a model; moe/ uses no other part of the model. */
typedef struct expert_banks {
    const gguf *file;                    /* borrowed */
    int n_layer;                         /* the trunk; some layers may have no experts */
    int n_expert, n_used;                /* experts of a layer; chosen for a token */
    expert_bank *of;                     /* [n_layer] */
} expert_banks;

/* The input of down: silu(gate) * up, gpt-oss's clamped form of it, or gelu(gate) * up. */
typedef enum expert_activation { ACT_SWIGLU, ACT_SWIGLU_CLAMPED, ACT_GEGLU } expert_activation;

uint64_t expert_slab_rows(const expert_bank *b, expert_slab s);
uint64_t expert_slab_bytes(const expert_bank *b, expert_slab s);  /* weights only */
/* Bytes of a slab in a VRAM frame, where slabs begin at multiples of FRAME_ALIGN. Experts with the
 * same three sizes share a pool of frames. */
enum { FRAME_ALIGN = 256 };
uint64_t expert_frame_slab_bytes(const expert_bank *b, expert_slab s);
uint64_t expert_slabs_bytes(const expert_bank *b);       /* one expert's three slabs */
uint64_t expert_bytes(const expert_bank *b);     /* one expert: three slabs, biases and scales */
uint64_t expert_bank_bytes(const expert_bank *b);                 /* all experts of the layer */

bool expert_bank_has_floats(const expert_bank *b);       /* some weights are F32, F16 or BF16 */

/* First byte of an expert's slab in the mapping. index must be in range. */
const uint8_t *expert_slab_data(const expert_bank *b, expert_slab s, int index);

#endif
