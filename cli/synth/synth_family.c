/* synth_family.c - all families of synthetic files, and their shapes by name. */
#include "cli/synth/synth_family.h"

#include <string.h>

static const synth_family *const families[] = {
    &synth_gptoss, &synth_qwen3next, &synth_qwen3moe, &synth_qwen35moe, &synth_glm4moe,
    &synth_gemma4, &synth_llama, &synth_olmoe,
};

const synth_shape *synth_shape_at(int i)
{
    for (size_t f = 0; f < ARRAY_LEN(families); i -= families[f++]->n_shape)
        if (i < families[f]->n_shape) return &families[f]->shapes[i];
    return NULL;
}

const synth_shape *synth_shape_find(const char *name)
{
    const synth_shape *s;
    for (int i = 0; (s = synth_shape_at(i)); i++)
        if (strcmp(s->name, name) == 0) return s;
    return NULL;
}
