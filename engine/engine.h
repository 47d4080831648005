/* engine.h - the public interface: an engine prepares a model, a session takes tokens in.
 *
 * An engine borrows the model (and its mapped file) until engine_close. A session holds everything
 * that one conversation needs; session_create allocates all of it. Sessions of one engine share its
 * threads: one call at a time. A session's results do not depend on calls for other sessions. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/models/model.h"
#include "engine/session/kv.h"
#include "engine/session/sampler.h"
#include "moe/cache_policy.h"

typedef struct engine engine;
typedef struct session session;
typedef struct runner runner;            /* engine/session/runner.h */

typedef struct engine_options {
    int threads;                         /* 0: one per physical core */
    const char *isa;                     /* kernels of this instruction set; NULL or "": fastest */
    bool exact;                          /* F32 activations throughout, instead of int8 blocks where
                                          * weights are quantised */
    bool yarn_rounded;                   /* gpt-oss: llama.cpp's rounded YaRN range, to compare */
} engine_options;

/* On the CPU, with experts in the mapped file, until engine_place says otherwise. */
int engine_open(engine **out, const model *m, const engine_options *o, err_ctx *err);

/* Tiers and devices. */
typedef struct engine_placement {
    bool gpu;                            /* the first GPU computes; exact and isa have no meaning */
    const struct plan *plan;             /* tiers/plan.h; copied. NULL: all in VRAM */
    const struct postfetch_options *postfetch;   /* moe/postfetch.h; copied. NULL: the defaults */
    const struct gpu_gemm *gemm;         /* cuda/gpu.h; copied. NULL: our kernels alone */
    cache_policy cache;                  /* values the experts in VRAM, and in RAM before a drive */
    const int *experts;                  /* first contents of a VRAM cache: layer * n_expert
                                          * + expert, the most valuable first; or NULL */
    int n_expert;
    progress_fn *watch;                  /* called with the bytes moved so far; or NULL */
    void *watch_ctx;
} engine_placement;

/* Moves weights to VRAM and experts to page-locked RAM, or creates a cache of experts. Once, before
 * the first session. A failure changes nothing. */
int engine_place(engine *e, const engine_placement *p, err_ctx *err);

void engine_close(engine *e);            /* NULL is fine; close its sessions first */
int engine_threads(const engine *e);
const char *engine_kernels(const engine *e);     /* "avx2", "exact", "cuda": for plan lines */

bool engine_on_gpu(const engine *e);     /* at least some layers */
int engine_gpu_layers(const engine *e);  /* the number of first layers on the GPU */
const char *engine_gpu_name(const engine *e);    /* "NVIDIA H200"; "" on the CPU */
const char *engine_gemm(const engine *e);        /* of prompts: "own", "cuBLASLt 13.0"; "" on the
                                                 * CPU */
uint64_t engine_gpu_bytes(const engine *e);      /* of weights in VRAM */

/* Experts in RAM that the engine allocated: bytes, page-locked bytes of these, the reader's name,
 * and a note if a fallback is used (else ""). All 0 and "" if there are none. */
typedef struct engine_experts {
    uint64_t bytes, locked;
    const char *reader, *note;
} engine_experts;
engine_experts engine_expert_store(const engine *e);

bool engine_caches(const engine *e);     /* VRAM is a cache of experts: its contents change */

/* The experts in that cache, as in engine_placement, the most valuable first. Returns their number,
 * at most cap; 0 without a cache. */
int engine_resident(const engine *e, int *list, int cap);

/* Copies these experts to VRAM, between two calls of a session. Returns how many were copied, < 0
 * on failure; ERR_UNSUPPORTED without a cache. */
int engine_apply(engine *e, const int *experts, int n, err_ctx *err);

/* The same for at most `most` experts that the policy prefers to those in VRAM: after an answer,
 * when no token waits. 0 without a cache. */
int engine_update(engine *e, int most, err_ctx *err);

/* Pins the first of these experts, up to half of the frames, and unpins all others. */
void engine_pin(engine *e, const int *experts, int n);

/* Counts of the experts that all sessions chose (moe/usage_profile.h); NULL: not counted. */
const struct usage_profile *engine_profile(const engine *e);

/* The types of this model's matrices without a kernel for one token: these use the scalar reference
 * or the kernel for many tokens. Returns their number. */
int engine_slow_types(const engine *e, quant_type types[QT_COUNT]);

/* Makes a second copy of the output matrix, repacked for the kernels, where that makes decoding
 * faster: planning_copy_bytes has its size. Results are the same. Without memory for it nothing
 * changes. No session of the engine may compute meanwhile. */
int engine_repack_head(engine *e, err_ctx *err);
uint64_t engine_repacked_bytes(const engine *e);         /* of the copy, or 0 */

enum {
    SESSION_CHUNK = 512, SESSION_GPU_CHUNK = 2048,       /* default chunk: CPU, GPU */
    SESSION_MAX_CHUNK = 8192,
    SESSION_MAX_SHARING = 255, SESSION_MOST_VERSIONS = 32
};

typedef struct session_options {
    int ctx;                             /* tokens; 1 .. the model's */
    int chunk;                           /* most tokens computed at a time; 0: the default */
    kv_type kv;
    int n_snapshot;                      /* most snapshots at a time */
    int n_version;                       /* sessions that at one time can be rewound into their last
                                          * tokens (runner_row.keep), as drafts need it: each takes
                                          * a further version of the recurrent state */
    int n_sharing;                       /* sessions that session_create_sharing will add: for the
                                          * plan, which counts all of them */
    /* Changes the model's answers to gain speed, in batches of up to 8 tokens, where VRAM is a
     * cache of experts; no effect elsewhere. The caller measures the loss of quality. */
    bool skip_missing;                   /* leaves out a token's cold experts, unless all are cold;
                                          * the others' weights still add up to 1 */
} session_options;

/* Whether the model allows these options; memory is not checked. */
int session_check(const model *m, const session_options *o, err_ctx *err);
int session_create(session **out, engine *e, const session_options *o, err_ctx *err);
/* One more conversation with the options and the runner of another: it allocates only a state and
 * ids. */
int session_create_sharing(session **out, runner *r, err_ctx *err);
runner *session_runner(const session *s);
void session_free(session *s);

/* Bytes of a session and of n_sharing others: KV store, recurrent state and snapshots, workspace.
 * *vram: the part in VRAM. Nothing is allocated. */
int session_plan(uint64_t *bytes, uint64_t *vram, const engine *e, const session_options *o,
                 err_ctx *err);

int session_ctx(const session *s);
int session_chunk(const session *s);
int session_vocab(const session *s);             /* logits in a row */
int session_pos(const session *s);               /* tokens taken in so far */
const int32_t *session_ids(const session *s);
/* The same, followed by id, if the context has room for it. Until the next token is taken in. */
const int32_t *session_with(session *s, int32_t id);    /* [session_pos] */
/* The length of the common beginning of the session's tokens and these. */
int session_common(const session *s, const int32_t *ids, int n);

/* Takes in n tokens, in chunks, and writes the logits of the last n_row of them to logits [n_row,
 * n_vocab]; n_row may be 0. Refuses an id outside the vocabulary, and more tokens than the context
 * has left, before it computes anything. watch, or NULL, is called before each chunk and after each
 * layer; if it returns false, the result is ERR_STOPPED and completed chunks stay. */
int session_eval(session *s, const int32_t *ids, int n, float *logits, int n_row,
                 progress_fn *watch, void *ctx, err_ctx *err);

/* Tokens of the first chunk of a session_eval of n tokens. Calls of session_eval for that many
 * tokens, one after another, have the same results as one call for all. */
int session_first_chunk(const session *s, int n);

/* The likeliest token of one row of logits; the first of equals. */
int32_t session_likeliest(const session *s, const float *logits);

/* Takes in one token and gives the likeliest one after it. No logits leave the GPU. */
int session_next(session *s, int32_t *next, int32_t id, err_ctx *err);

/* session_take takes in one token; session_pick draws the next one and does not accept it. On a GPU
 * with the whole model session_take does not wait for the token, so the caller can compute
 * a grammar's mask meanwhile; the logits stay in VRAM unless the sampler needs the whole row. The
 * position advances when the token has ended: session_pick waits for that, and so does any other
 * call for a session of the same runner. A token that fails was not taken in. */
int session_take(session *s, int32_t id, err_ctx *err);
int session_pick(session *s, int32_t *next, sampler *smp, err_ctx *err);

/* Keeps a copy of the state at the present position, for session_rewind. */
void session_snapshot(session *s);

/* Keeps at most n_keep tokens and returns how many remain: n_keep, or the highest snapshot below
 * it, or 0. The caller takes in the others again. */
int session_rewind(session *s, int n_keep);
int session_rewind_target(const session *s, int n_keep);         /* what it would return */

/* Write the whole session to a file, and read it back; extra: bytes of the caller. A file of
 * another model, of another KV type or longer than this context is refused and s does not change.
 * Free *extra with mem_free. */
int session_save(const session *s, const char *path, str_view extra, err_ctx *err);
int session_load(session *s, const char *path, char **extra, size_t *n_extra, err_ctx *err);

#endif
