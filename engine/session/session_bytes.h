/* session_bytes.h - the memory that the sessions of one runner allocate. session_plan and the
 * planner both add up these figures, so that a plan and a session cannot disagree. A figure of
 * UINT64_MAX is too large to count. Any thread. */
#ifndef ENGINE_SESSION_SESSION_BYTES_H
#define ENGINE_SESSION_SESSION_BYTES_H

#include "engine/engine.h"
#include "engine/session/state.h"

typedef struct session_bytes {
    uint64_t state, snapshots;           /* of all sessions; state includes the snapshots, further
                                          * versions and kept inputs */
    uint64_t ids;                        /* of all sessions */
    uint64_t recordings, logits, spare;  /* of the runner, as is host_work without a GPU. spare: a
                                          * version of the recurrent state */
    uint64_t host_work;
} session_bytes;

/* Tokens of the largest pass on a GPU: one of each session, and drafts. */
int session_pass_tokens(const session_options *o);
/* Tokens of a pass between the layers of a chunk: none unless sessions share a runner. */
int session_inner_tokens(const session_options *o);

/* One session and o->n_sharing others, with chunks of so->slack tokens. */
session_bytes session_bytes_of(const model *m, const state_options *so, const session_options *o,
                               int n_thread);
/* Their state of layer l, without snapshots; of a next-token block also the vectors for it. */
uint64_t session_bytes_layer(const model *m, const state_options *so, const session_options *o,
                             int l);

#endif
