/* synth_family.h - shapes, tensors and keys of the synthetic files of each family. Similar families
 * share a source file. A new family is a line here and in synth_family.c. */
#ifndef CLI_SYNTH_SYNTH_FAMILY_H
#define CLI_SYNTH_SYNTH_FAMILY_H

#include "cli/synth/synth_plan.h"
#include "cli/synth/synth_vocab.h"

struct synth_family {
    const char *arch;                    /* general.architecture, and prefix of the keys */
    const synth_shape *shapes;
    int n_shape;
    const synth_vocab *vocab;
    bool common;                         /* skew: via channels that all embeddings share, not via
                                          * a bias of the router */
    double growth;                       /* variance that a layer adds to the residual, measured */
    bool tied;                           /* no output.weight: the embedding is the head, with
                                          * weights divided by sqrt(n_embd) */
    void (*add_layer)(synth_plan *p, int l);
    void (*add_globals)(synth_plan *p);  /* tensors except embedding, norm and head; or NULL */
    void (*list_keys)(synth_plan *p);    /* all but the tokenizer's */
};

extern const synth_family synth_gptoss, synth_qwen3next, synth_qwen3moe, synth_qwen35moe,
                          synth_glm4moe, synth_gemma4, synth_llama, synth_olmoe;

#endif
