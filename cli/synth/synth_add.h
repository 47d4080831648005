/* synth_add.h - adds tensors and keys to a plan that is being made; for the files of families.
 *
 * l: the layer, or -1. Failures stay in the plan: synth_plan_internal.h. These rules keep a network
 * sane that was never trained:
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

/* A matrix of blocks, or n_stack of them if n_dims is 3. */
synth_part *synth_add_matrix(synth_plan *p, int l, const char *name, quant_type type, double gain,
                             int n_dims, int n_in, int n_out, int n_stack);

/* Another standard deviation for the first DIR_COLS columns of a matrix of blocks. */
void synth_add_front(synth_plan *p, synth_part *t, double sigma);

/* A dense matrix. */
void synth_add_dense(synth_plan *p, int l, const char *name, double gain, int n_in, int n_out);

/* A dense matrix whose rows may be cut into blocks of another type, as synth_add_fit says. */
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

/* The router, for inputs of the root mean square 1 / gain; with skew, of families with common
 * channels, popularity is in it. */
void synth_add_router(synth_plan *p, int l, double gain);

/* ffn_gate_exps, ffn_up_exps, ffn_down_exps. */
void synth_add_experts(synth_plan *p, int l, double down_gain);

/* attn_q, attn_k, attn_v, attn_output, of one size of heads in all layers. */
void synth_add_attention(synth_plan *p, int l);

/* The matrix that values come from. What embeddings have in common must not come through: it would
 * be added to all tokens, and make some experts of later layers popular. */
void synth_add_values(synth_plan *p, int l, const char *name, int n_out);

/* The type that public files have where rows of cols weights do not fit: type itself if they do. */
quant_type synth_add_fit(quant_type type, int cols);

/* ---- keys, with the family's prefix ---- */

void synth_key_u32(synth_plan *p, const char *name, int v);
void synth_key_f32(synth_plan *p, const char *name, double v);
void synth_key_bool(synth_plan *p, const char *name, bool v);
void synth_key_array(synth_plan *p, const char *name, gguf_type type, const void *data, int n);

/* What all have: general.*, sizes, counts. lengths: and how long heads are and how wide experts,
 * which not all files have, or not by these keys. */
void synth_key_common(synth_plan *p, bool lengths);

/* context_length, attention.layer_norm_rms_epsilon, rope.freq_base. */
void synth_key_context(synth_plan *p, double eps);

#endif
