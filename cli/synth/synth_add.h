/* synth_add.h - adds tensors and keys to an unfinished plan; for the files of families.
 *
 * l: the layer, or -1. The plan keeps the first failure (synth_plan_internal.h). These rules keep
 * the activations of an untrained network in range:
 *
 *   embedding rows                             standard deviation 1
 *   matrices that read a normalised vector     1 / sqrt(n_in): outputs have standard deviation 1
 *   matrices that write to the residual        0.25 / sqrt(n_in): a layer adds a few percent
 *   norms                                      0.9 .. 1.1
 *   router                                     logits of standard deviation 1
 *
 * so the residual's root mean square grows from 1 to less than 2 over 48 layers. */
#ifndef CLI_SYNTH_SYNTH_ADD_H
#define CLI_SYNTH_SYNTH_ADD_H

#include "cli/synth/synth_plan_internal.h"

#define WRITE_GAIN 0.25

/* ---- tensors ---- */

/* A quantised matrix, or n_stack matrices if n_dims is 3. */
synth_part *synth_add_matrix(synth_plan *p, int l, const char *name, quant_type type, double gain,
                             int n_dims, int n_in, int n_out, int n_stack);

/* Another standard deviation for the first DIR_COLS columns of a quantised matrix. */
void synth_add_front(synth_plan *p, synth_part *t, double sigma);

/* A dense matrix. */
void synth_add_dense(synth_plan *p, int l, const char *name, double gain, int n_in, int n_out);

/* A dense matrix of type synth_add_fit(dense type, n_in). */
void synth_add_down(synth_plan *p, int l, const char *name, double gain, int n_in, int n_out);

/* F32, uniform in lo..hi. */
synth_part *synth_add_range(synth_plan *p, int l, const char *name, double lo, double hi,
                            int n_dims, int n0, int n1);
void synth_add_norm(synth_plan *p, int l, const char *name, int n);

/* F32 matrix or vector whose product with a normalised vector has standard deviation 1. */
synth_part *synth_add_probe(synth_plan *p, int l, const char *name, int n_dims, int n_in,
                            int n_out);

/* F32, n numbers that the caller writes into the result; NULL after a failure. */
float *synth_add_table(synth_plan *p, int l, const char *name, int n);

/* The router, for inputs of root mean square 1 / gain. In families with common channels its weights
 * also carry the skew. */
void synth_add_router(synth_plan *p, int l, double gain);

/* ffn_gate_exps, ffn_up_exps, ffn_down_exps. */
void synth_add_experts(synth_plan *p, int l, double down_gain);

/* attn_q, attn_k, attn_v, attn_output; heads have one size in all layers. */
void synth_add_attention(synth_plan *p, int l);

/* The value matrix. Its weights on the common channels of embeddings are nearly 0: otherwise they
 * would add the same vector to all tokens and change the popularity in later layers. */
void synth_add_values(synth_plan *p, int l, const char *name, int n_out);

/* The type for rows of cols weights: `type` if its block divides cols, else the substitute that
 * public files have. */
quant_type synth_add_fit(quant_type type, int cols);

/* ---- keys, with the family's prefix ---- */

void synth_key_u32(synth_plan *p, const char *name, int v);
void synth_key_f32(synth_plan *p, const char *name, double v);
void synth_key_bool(synth_plan *p, const char *name, bool v);
void synth_key_array(synth_plan *p, const char *name, gguf_type type, const void *data, int n);

/* Keys of all families: general.*, sizes, counts. lengths: also the lengths of heads and experts,
 * which some families lack or name otherwise. */
void synth_key_common(synth_plan *p, bool lengths);

/* context_length, attention.layer_norm_rms_epsilon, rope.freq_base. */
void synth_key_context(synth_plan *p, double eps);

#endif
