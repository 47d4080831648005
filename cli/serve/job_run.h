/* job_run.h - a request while its answers are computed: one after the other, step by step.
 *
 * A run is in one scheduler slot from job_run_begin to the last job_run_step. Only the engine
 * thread calls these. */
#ifndef CLI_SERVE_JOB_RUN_H
#define CLI_SERVE_JOB_RUN_H

#include <stdatomic.h>

#include "cli/serve/job_request.h"
#include "cli/serve/logprob_rows.h"
#include "engine/session/answer.h"

typedef struct job_run_hooks {
    void *ctx;
    const atomic_bool *finish_now;       /* true: every run ends as if its length were reached */
    void (*prompt_layer)(void *ctx);     /* before a chunk of a prompt, after each of its layers */
    void (*count)(void *ctx, const answer_stats *s);     /* after each choice */
} job_run_hooks;

typedef struct job_run {
    job_request *request;                /* borrowed; NULL: no run */
    session *s;                          /* the slot's */
    const job_run_hooks *hooks;
    int choice, n_choice;                /* choice i answers prompt i / n */
    int n_drawn;                         /* tokens of the choices that have ended */
    int n_draft, n_right;                /* their drafts */
    answer_stats stats;                  /* of the last choice that has ended */
    const char *stop_text;               /* the stop string that ended it, or NULL */
    /* of the current choice */
    running_answer *answer;              /* NULL: its prompt is not being computed yet */
    sampler *smp;                        /* NULL: the choice is not open */
    stop_strings *stop;                  /* NULL: none, as the next two */
    grammar_mask *mask;
    logprob_rows *rows;
    bool scores_prompt;                  /* tokens of the prompt get logprobs first */
    int n_scored;                        /* of them, so far */
    bool in_reasoning;                   /* the latest text was reasoning */
    bool has_only_call;                   /* a call has ended, and the client wants one at most */
} job_run;

/* Borrows all; request is prepared. */
void job_run_begin(job_run *run, job_request *request, session *s, const job_run_hooks *hooks);

/* Computes a token, or a chunk of a prompt. Returns 1 if there is more. Else the response is
 * complete, all that the run allocated is freed, and the result is 0, ERR_STOPPED if the client
 * has left, or the error that the client got. */
int job_run_step(job_run *run);

/* job_run_step of n runs that draw, in one pass with up to n_draft drafts of each
 * (answer_step_together); at most job_run_most_together. */
void job_run_step_together(job_run *const *runs, int n, int n_draft, int *rc);
int job_run_most_together(const session *s);

bool job_run_draws(const job_run *run);          /* the next step is a token of an answer */
int job_run_cached(const job_run *run);          /* prompt tokens that came from a cache, so far */
/* Verified drafts so far, and the right ones among them; also after the last step. */
void job_run_drafts(const job_run *run, int *n_draft, int *n_right);

#endif
