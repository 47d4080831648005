/* qwen_hybrid.h - models that alternate DeltaNet and attention; for the files of their families. */
#ifndef ENGINE_MODELS_QWEN_HYBRID_H
#define ENGINE_MODELS_QWEN_HYBRID_H

#include "engine/models/model_bind.h"

/* Binds a whole model; the family's function binds the tensors of a DeltaNet layer. */
typedef int bind_delta_fn(binder *b, int layer);
int bind_hybrid(binder *b, bind_delta_fn *deltanet);

#endif
