/* session_internal.h - what session.c, runner.c and runner_counts.c share; for them alone. */
#ifndef ENGINE_SESSION_SESSION_INTERNAL_H
#define ENGINE_SESSION_SESSION_INTERNAL_H

#include "engine/engine_internal.h"
#include "engine/forward_tiered.h"
#include "engine/session/drafts.h"
#include "engine/session/mtp.h"
#include "engine/session/page_pool.h"
#include "engine/session/runner.h"

/* A pass of tokens of several sessions: in flight, or computed since (runner_take). */
typedef struct taken_pass {
    session *s[RUNNER_MOST_ROWS];
    batch_row rows[RUNNER_MOST_ROWS];
    bool keep[RUNNER_MOST_ROWS];
    int32_t ids[RUNNER_MOST_ROWS];       /* of all rows */
    int n_row;
    bool in_flight;
    int rc;                              /* < 0: they were not taken in */
} taken_pass;

struct runner {
    engine *e;                           /* borrowed */
    session_options opt;                 /* of all its sessions */
    int n_holder;                        /* its sessions, and session_create meanwhile */
    forward *f;
    float *logits;                       /* [n_vocab], of session_next and session_pick */
    int32_t *ids;                        /* [chunk], of the batch under way */
    /* since the counts were reset */
    uint64_t n_single, n_taken, n_batched;       /* tokens alone in a pass; of all passes; others */
    uint64_t n_pass, n_pass_row;
    experts_read read;                   /* forward_read at that time */
    perf_level perf;
    taken_pass taken;
    draft_times times;
    recurrent *spares[1 + SESSION_MOST_VERSIONS];     /* versions that no session has */
    int n_spare;
    kept_inputs *kept;                   /* of the last batch with keep; or NULL */
    session *kept_of[SESSION_MOST_VERSIONS];     /* its sessions that have not given it up */
    int n_kept_of;
    page_pool *pages[SEGMENTS_MOST];     /* of segments in VRAM: keys and values of all sessions */
    page_source frames;                  /* of the cache of experts */
};

struct session {
    runner *r;
    state *st;
    bool broken;                         /* the recurrent state belongs to no position */
    int n_recovery;                      /* runner_recoveries when the state began; after a further
                                          * recovery the state is lost */
    int32_t *ids;                        /* [ctx]: the tokens so far */
    recurrent *before;                   /* the version at before_pos; or NULL. With runner.kept
                                          * from kept_first on, it makes that of each later
                                          * position */
    int before_pos, kept_first;
    float *vectors;                      /* [MTP_KEPT, n_embd] of the trunk, for the next-token
                                          * block: that of position p in row p % MTP_KEPT, in the
                                          * memory of the head; NULL: no block */
    int vectors_first, vectors_end;      /* positions that have one; their rows are not computed */
    int rows_end;                        /* the row before it was computed */
};

/* Options are resolved: the chunk is a number. */
int runner_create(runner **out, engine *e, const session_options *o, err_ctx *err);
void runner_release(runner *r);          /* by its creator or a session; the last one frees it */

/* Waits for the tokens in flight of any session: the next token must not write the cursor before
 * the device has read these. */
int runner_settle(runner *r, err_ctx *err);

void runner_go_back(session *s, int n_keep);     /* to before_pos, or a later position */
void runner_forget_version(session *s);  /* gives back the version that the session keeps */

/* Resets a device that has failed and returns rc. */
int runner_recover(const runner *r, int rc);

/* Times that the device was reset after a failure. */
int runner_recoveries(const runner *r);

/* Whether a chunk can end half-way, so that the recurrent state before it has to stay. A model that
 * is all in VRAM is never stopped within a chunk. */
static inline bool engine_keeps_before(const engine *e) { return !engine_on_gpu(e) || e->store; }

/* Whether the choice of experts differs from the model's. */
static inline bool runner_skips_missing(const runner *r)
{
    return r->e->cache && r->opt.skip_missing;
}

state_options session_state_options(const engine *e, const session_options *o);

/* Pages of all sessions in a segment; 0 unless it is in VRAM. All but n_own come from frames of the
 * cache of experts, as contexts grow. */
typedef struct session_pages { uint64_t bytes, n, n_own; } session_pages;
session_pages session_pages_of(const engine *e, const state_options *so, int n_sharing,
                               int segment);

#endif
