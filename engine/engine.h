/* engine.h - the public face: a model made ready to compute, and sessions that feed it tokens.
 *
 * An engine borrows the model (and the mapped file under it) until engine_close. A session holds
 * everything one conversation needs; all of it is allocated by session_create, nothing while tokens
 * flow. Sessions of one engine share its threads: one call at a time, whose results are the same
 * whatever the others do between its calls. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/models/model.h"
#include "engine/session/kv.h"
#include "engine/session/sampler.h"
#include "moe/cache_policy.h"

typedef struct engine engine;
typedef struct session session;

typedef struct engine_options {
    int threads;                         /* 0: one per physical core */
    const char *isa;                     /* kernels of this instruction set; NULL or "": fastest */
    bool exact;                          /* F32 activations throughout, instead of int8 blocks where
                                          * weights are quantised */
    bool yarn_rounded;                   /* gpt-oss: llama.cpp's rounded YaRN range, to compare */
} engine_options;

/* On the CPU, with experts in the mapped file, until engine_place says otherwise. */
int engine_open(engine **out, const model *m, const engine_options *o, err_ctx *err);

/* Where things go. */
typedef struct engine_placement {
    bool gpu;                            /* the first GPU computes; exact and isa have no meaning */
    const struct plan *plan;             /* tiers/plan.h; copied. NULL: all in VRAM */
    const struct postfetch_options *postfetch;   /* moe/postfetch.h; copied. NULL: as usual */
    const struct gpu_gemm *gemm;         /* cuda/gpu.h; copied. NULL: our kernels alone */
    cache_policy cache;                  /* which expert is evicted, in VRAM and in RAM before the
                                          * drive */
    const int *experts; /* there to begin with, if they may change: layer * n_expert
                                          * + expert, the most wanted first; or NULL */
    int n_expert;
    progress_fn *watch;                 /* told of the bytes that are moved; or
                                          * NULL */
    void *watch_ctx;
} engine_placement;

/* Moves weights to VRAM and experts to page-locked RAM, or makes a cache of experts. Once, before
 * the first session. On failure all is as before. */
int engine_place(engine *e, const engine_placement *p, err_ctx *err);

void engine_close(engine *e);            /* NULL is fine; close its sessions first */
int engine_threads(const engine *e);
const char *engine_kernels(const engine *e);     /* "avx2", "exact", "cuda": for plan lines */

bool engine_on_gpu(const engine *e);     /* at least some layers */
int engine_gpu_layers(const engine *e);  /* how many: the first ones */
const char *engine_gpu_name(const engine *e);    /* "NVIDIA H200"; "" on the CPU */
const char *engine_gemm(const engine *e);        /* of prompts: "own", "cuBLASLt 13.0"; "" on the
                                                 * CPU */
uint64_t engine_gpu_bytes(const engine *e);      /* of weights in VRAM */

/* Experts in RAM of our own: bytes, of these page-locked, how they are read, and what had to be
 * replaced ("": nothing). All 0 and "" if there are none. */
typedef struct engine_experts {
    uint64_t bytes, locked;
    const char *reader, *note;
} engine_experts;
engine_experts engine_expert_store(const engine *e);

/* The experts that are in VRAM now, where they may change: as in engine_placement, the most wanted
 * first. Returns how many, at most cap. */
int engine_resident(const engine *e, int *list, int cap);

bool engine_caches(const engine *e);     /* whether they may */

/* Has these experts in VRAM, at once: between two calls of a session. Returns how many were brought
 * there, < 0 on failure; ERR_UNSUPPORTED where experts do not change places. */
int engine_apply(engine *e, const int *experts, int n, err_ctx *err);

/* The same for those that the books find worth a copy by now, at most this many: after an answer,
 * when there is time. 0 where experts do not change places. */
int engine_update(engine *e, int most, err_ctx *err);

/* These and no others never make room once they are in VRAM: the first ones, up to half of what
 * there is room for. */
void engine_pin(engine *e, const int *experts, int n);

/* What all sessions saw of the router so far; moe/usage_profile.h. NULL if nobody counts. */
const struct usage_profile *engine_profile(const engine *e);

/* The types of this model's matrices that have no kernel made for one token: the scalar reference
 * serves instead, or the kernel for many. Returns their number. */
int engine_slow_types(const engine *e, quant_type types[QT_COUNT]);

/* Makes a second copy of the output matrix, repacked for the kernels, where that makes decoding
 * faster: planning_copy_bytes has its size. Results are the same. Without memory for it everything
 * stays as it was. No session of the engine may compute meanwhile. */
int engine_repack_head(engine *e, err_ctx *err);
uint64_t engine_repacked_bytes(const engine *e);         /* of the copy, or 0 */

enum {
    SESSION_CHUNK = 512, SESSION_GPU_CHUNK = 2048,       /* default chunk: CPU, GPU */
    SESSION_MAX_CHUNK = 8192,
    SESSION_MAX_SHARING = 255
};

typedef struct session_options {
    int ctx;                             /* tokens; 1 .. the model's */
    int chunk;                           /* most tokens computed at a time; 0: the default */
    kv_type kv;
    int n_snapshot;                      /* how many snapshots can be kept */
    int n_sharing;                       /* so many more sessions are to come beside this one: for
                                          * plans, which count all of them */
    /* Other answers than the model's, for speed, where experts in VRAM change places (elsewhere it
     * has no effect), in batches of up to 8 tokens: longer prompts have all experts anyway.
     * What that costs in quality is for the caller to find out, and to say. */
    bool skip_missing;                   /* of a token's experts those that are not in VRAM are left
                                          * out, unless all would be; the others' weights still add
                                          * up to 1 */
} session_options;

/* Whether the model allows these options; memory is not checked. */
int session_check(const model *m, const session_options *o, err_ctx *err);
int session_create(session **out, engine *e, const session_options *o, err_ctx *err);
/* One more conversation, with the options of first and all that it computes with: a state and the
 * tokens are all that it takes. It goes before first does. */
int session_create_sharing(session **out, session *first, err_ctx *err);
void session_free(session *s);

/* Bytes of a session and of those beside it: KV store, recurrent state and snapshots, workspace. In
 * *vram those of them that are in VRAM. Nothing is allocated. */
int session_plan(uint64_t *bytes, uint64_t *vram, const engine *e, const session_options *o,
                 err_ctx *err);

int session_ctx(const session *s);
int session_chunk(const session *s);
int session_vocab(const session *s);             /* logits in a row */
int session_pos(const session *s);               /* tokens taken in so far */
const int32_t *session_ids(const session *s);    /* the session_pos() of them */
/* How many of these are those that it begins with. */
int session_common(const session *s, const int32_t *ids, int n);

/* Takes in n tokens, in chunks, and writes the logits of the last n_row of them to logits [n_row,
 * n_vocab]; n_row may be 0. An id outside the vocabulary or more tokens than the context has left
 * are refused before anything is computed. Stopped by the watcher it returns ERR_STOPPED; the
 * chunks done until then stay. watch, or NULL, is told of tokens before each chunk and after each
 * layer. */
int session_eval(session *s, const int32_t *ids, int n, float *logits, int n_row,
                 progress_fn *watch, void *ctx, err_ctx *err);

/* How many of the next n tokens, of n that are to be taken in by one call, it computes at a time:
 * calls for as many as this says, one after the other, do the same. */
int session_piece(const session *s, int n);

/* The likeliest token of one row of logits; the first of equals. */
int32_t session_likeliest(const session *s, const float *logits);

/* Takes in one token and gives the likeliest one after it. On a GPU nothing else leaves the
 * device. */
int session_next(session *s, int32_t *next, int32_t id, err_ctx *err);

/* Takes in one token and draws the next one, which smp does not accept by itself. On a GPU with the
 * whole model session_take does not wait for the token, so the caller can find out meanwhile which
 * tokens may come next; the logits stay there unless the sampler needs more of them. The position
 * moves when the token has ended: session_pick waits for that, and so does any other call for a
 * session of the same runner. A token that fails was not taken. */
int session_take(session *s, int32_t id, err_ctx *err);
int session_pick(session *s, int32_t *next, sampler *smp, err_ctx *err);

/* Remembers the present position, for session_rewind. */
void session_snapshot(session *s);

/* Goes back so that at most n_keep tokens remain, and returns how many do: n_keep, or the highest
 * snapshot below it, or 0. Feed the rest again. */
int session_rewind(session *s, int n_keep);
int session_rewind_target(const session *s, int n_keep);         /* what it would return */

/* The whole session to a file and back; extra is the caller's own. A file of another model, of
 * another KV type or longer than this context is refused and s stays as it is. Free *extra with
 * mem_free. */
int session_save(const session *s, const char *path, str_view extra, err_ctx *err);
int session_load(session *s, const char *path, char **extra, size_t *n_extra, err_ctx *err);

#endif
