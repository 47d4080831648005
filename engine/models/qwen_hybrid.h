/* qwen_hybrid.h - models that alternate DeltaNet and attention; for the files of their families. */
#ifndef ENGINE_MODELS_QWEN_HYBRID_H
#define ENGINE_MODELS_QWEN_HYBRID_H

#include "engine/models/model_bind.h"

/* Binds all of a model; the tensors of a DeltaNet layer are the family's own business. */
typedef int bind_delta_fn(binder *b, int layer);
int bind_hybrid(binder *b, bind_delta_fn *deltanet);

#endif
