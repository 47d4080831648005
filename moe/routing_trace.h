/* routing_trace.h - which experts every token of a run chose: a small file of its own.
 *
 * Little-endian, without gaps:
 *
 *   header    ROUTING_HEADER_BYTES: magic, version, shape and name of the model, number of tokens
 *   layers    n_layer times u64 bytes of one expert, u64 of that its down slab
 *   tokens    u32 position, u32 flags (ROUTING_PROMPT), u16 ids [n_layer, n_used] in the router's
 *             order
 *
 * A trace is recorded once and replayed often (moe-bench cache): what a cache of experts would have
 * done needs no weights, only this. Sizes are in it so that a replay needs no model either. */
#ifndef MOE_ROUTING_TRACE_H
#define MOE_ROUTING_TRACE_H

#include "loader/base.h"

#define ROUTING_MAGIC "MOEROUTE"
enum {
    ROUTING_VERSION = 1,
    ROUTING_NAME_CAP = 64,
    ROUTING_HEADER_BYTES = 112,
    ROUTING_PROMPT = 1,                  /* flag: the token was given, not generated */
    ROUTING_MOST_LAYERS = 4096, ROUTING_MOST_EXPERTS = 65536, ROUTING_MOST_USED = 255
};

/* What a trace says of its model. */
typedef struct routing_model {
    uint64_t fingerprint;                /* model_fingerprint() */
    int n_layer, n_expert, n_used;       /* layers: those that have experts */
    uint64_t dense_bytes;                /* read for every token besides experts */
    const uint64_t *expert_bytes;        /* [n_layer]: one expert */
    const uint64_t *down_bytes;          /* [n_layer]: of that the down slab */
    char name[ROUTING_NAME_CAP];         /* for people; terminated */
} routing_model;

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct routing_record routing_record;    /* a trace that is being written */

/* Begins a file beside path, which appears there only when the trace is complete. Everything of m
 * is copied. chunk: the most tokens that go through the layers together. */
int routing_record_begin(routing_record **out, const char *path, const routing_model *m, int chunk,
                         err_ctx *err);

/* The experts ids [n_token, n_used] that tokens from position pos on chose in a layer; layers of a
 * batch come in order, and a batch whose last layer never came does not count. A write that fails
 * is remembered for routing_record_end. No allocation. */
void routing_record_layer(routing_record *r, int layer, int pos, int n_token, const int32_t *ids,
                          bool prompt);

uint64_t routing_record_tokens(const routing_record *r);         /* whole ones so far */
uint64_t routing_record_bytes(const routing_record *r);          /* of the file so far */

/* Puts the file in its place; a trace without tokens is refused. r has to be dropped in any
 * case. */
int routing_record_end(routing_record *r, err_ctx *err);
void routing_record_drop(routing_record *r);     /* frees, and removes what was not ended; NULL is
                                                  * fine */

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct routing_trace {
    routing_model model;                 /* its arrays are the trace's */
    int n_token, n_prompt;               /* all; of these given */
    const uint32_t *pos;                 /* [n_token] */
    const bool *prompt;                  /* [n_token] */
    const uint16_t *ids;                 /* [n_token, n_layer, n_used]: below n_expert, different
                                          * within a layer */
} routing_trace;

/* Refuses whatever a recording could not have written: another kind of file or version, sizes and
 * ids that cannot be, tokens that are missing or too many. Messages do not name the file. */
int routing_trace_load(routing_trace **out, const char *path, err_ctx *err);
void routing_trace_free(routing_trace *t);       /* NULL is fine */

/* The n_used experts that token t chose in layer l. */
static inline const uint16_t *routing_trace_ids(const routing_trace *r, int t, int l)
{
    return r->ids + ((size_t)t * (size_t)r->model.n_layer + (size_t)l) * (size_t)r->model.n_used;
}

#endif
