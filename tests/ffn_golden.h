/* ffn_golden.h - the golden files of whole experts: weights, inputs and promised bits.
 *
 * A file holds all that tests/golden/numerics/README.md lists; this reads what tests need. */
#ifndef TESTS_FFN_GOLDEN_H
#define TESTS_FFN_GOLDEN_H

#include "moe/expert.h"

typedef struct ffn_golden {
    uint8_t *bytes;                      /* the file: all else points into it */
    size_t size, at;
    expert_activation act;
    int n_embd, n_ff, n_expert, k, n_token;
    tensor weight[SLAB_COUNT], bias[SLAB_COUNT], scale[SLAB_COUNT];
    expert_bank bank;
    const float *x;                      /* [n_token, n_embd] */
    const int32_t *ids;                  /* [n_token, k] */
    const float *gates;
    const float *y;                      /* [n_token, k, n_embd] */
    const float *out;                    /* [n_token, n_embd]: the sums */
} ffn_golden;

/* Names of the files, NULL after the last. */
extern const char *const ffn_golden_names[];

/* False after a failed check. Free with ffn_golden_free, also then. */
bool ffn_golden_read(ffn_golden *g, const char *name);
void ffn_golden_free(ffn_golden *g);

#endif
