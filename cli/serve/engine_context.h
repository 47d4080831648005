/* engine_context.h - what code on the engine thread may use.
 *
 * The engine thread alone uses sessions, the prefix cache and the engine. Other threads read only
 * what is constant after loading: the tokenizer, the chat format, sizes and the name. */
#ifndef CLI_SERVE_ENGINE_CONTEXT_H
#define CLI_SERVE_ENGINE_CONTEXT_H

#include "cli/model_handle.h"
#include "engine/session/prefix_cache.h"

typedef struct engine_context {
    model_handle *model;                 /* its weights are placed */
    session *const *sessions;            /* [n_session]; each runs one request at a time */
    int n_session;
    prefix_cache *cache;                 /* for sessions of this shape; NULL: none */
    const char *name;                    /* of the model, as clients know it */
} engine_context;

#endif
