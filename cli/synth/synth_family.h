/* synth_family.h - what synthetic files of a family hold: one file for each, with its shapes, its
 * tensors and its keys. Another family is another file, and a line here and in synth_family.c. */
#ifndef CLI_SYNTH_SYNTH_FAMILY_H
#define CLI_SYNTH_SYNTH_FAMILY_H

#include "cli/synth/synth_plan.h"
#include "cli/synth/synth_vocab.h"

/* What can hold a topic, for drift: synth_popularity.h. */
typedef enum synth_latch {
    SYNTH_LATCH_NONE,
    SYNTH_LATCH_BIAS,                    /* attention with biases */
    SYNTH_LATCH_COMMON,                  /* attention without them; with common */
    SYNTH_LATCH_DELTANET                 /* with common */
} synth_latch;

struct synth_family {
    const char *arch;                    /* general.architecture, and prefix of the keys */
    const synth_shape *shapes;
    int n_shape;
    const synth_vocab *vocab;
    bool common;                         /* skew: embeddings begin alike, and routers read that */
    double growth;                       /* variance that a layer adds to the residual, measured */
    synth_latch latch;
    int latch_layer;                     /* the first that can: it sees all tokens */
    bool neighbours;                     /* dimensions of a head turn in pairs 2i, 2i + 1 */
    bool tiled;                          /* DeltaNet's value head h is of key head h % n_k_head, and
                                          * the betas have a matrix of their own */
    bool tied;                           /* no output.weight: the embedding is the head, and
                                          * sqrt(n_embd) smaller than others' */
    void (*add_layer)(synth_plan *p, int l);
    void (*add_globals)(synth_plan *p);  /* beside embedding, norm and head; NULL: none */
    void (*list_keys)(synth_plan *p);    /* all but the tokenizer's */
};

extern const synth_family synth_gptoss, synth_qwen3next, synth_qwen3moe, synth_qwen35moe,
                          synth_glm4moe, synth_gemma4, synth_llama, synth_olmoe;

/* What qwen3next and qwen35moe have in common. */
void synth_qwen3next_attention(synth_plan *p, int l);
void synth_qwen3next_ffn(synth_plan *p, int l);
void synth_qwen3next_keys(synth_plan *p);

#endif
