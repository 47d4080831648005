/* scheduler.h - slots for requests that run at the same time, and which slots get the next step.
 *
 * Each slot has a session; the sessions share all else (engine.h). Slots that draw get a token each
 * in one pass, or in turns if they are more than a pass holds; and in turns, where drafts work, if
 * trials show that these give more tokens a second. Several slots in one pass have drafts only if
 * trials show that these give more. Chunks of prompts come between passes and get at most half of
 * the time while any slot draws; on a CPU passes also come between the layers of a chunk. Results
 * do not depend on any of this. The engine thread calls these functions; scheduler_status and
 * scheduler_counts are for any thread. */
#ifndef CLI_SERVE_SCHEDULER_H
#define CLI_SERVE_SCHEDULER_H

#include "cli/serve/job_run.h"
#include "engine/session/runner.h"

typedef struct scheduler scheduler;

/* Borrows sessions and hooks. */
int scheduler_create(scheduler **out, session *const *sessions, int n_slot,
                     const job_run_hooks *hooks, err_ctx *err);
void scheduler_free(scheduler *s);       /* all slots idle; NULL is fine */

int scheduler_n_idle(const scheduler *s);
bool scheduler_is_busy(const scheduler *s);

/* Assigns r to the idle slot with the longest common prefix, else the least recently used. At least
 * one slot must be idle. Borrows r until scheduler_step returns it. */
void scheduler_assign(scheduler *s, job_request *r);

typedef struct ended_request {
    job_request *request;
    int rc;                              /* of job_run_step */
} ended_request;

/* A token for each of some slots that draw, or a chunk of one prompt; at least one slot must be
 * busy. Returns the number of requests that have ended, and lists them until the next step. */
int scheduler_step(scheduler *s, const ended_request **ended);

/* Called between two layers of a prompt: a pass of the slots that draw, if the last one was a while
 * ago and the engine allows it. */
void scheduler_between_layers(scheduler *s);

/* Sends keep-alives to the clients of all slots that have written nothing for 10 s. At most once a
 * second; earlier calls return at once. */
void scheduler_keepalive(scheduler *s);

typedef struct slot_status {
    bool busy;
    uint64_t job;                        /* number of its request, current or last; 0: never used */
    int n_prompt, n_cached, n_drawn;     /* tokens */
    int n_draft, n_right;                /* verified drafts, right ones */
    int n_together;                      /* answers in its last step; 1: it was alone */
    double age_s;                        /* since the request was assigned; 0: idle */
} slot_status;
slot_status scheduler_status(scheduler *s, int slot);

/* So far. Drafts are verified ones. */
typedef struct scheduler_totals {
    uint64_t steps, busy_steps;          /* busy_steps: busy slots, summed over steps */
    uint64_t tokens, drafts, right_drafts;
} scheduler_totals;
scheduler_totals scheduler_counts(scheduler *s);

#endif
