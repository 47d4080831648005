/* job.h - one request on its way to its answer.
 *
 * It belongs to one thread at a time: first to the one that makes its prompts and sends the head of
 * a stream, then to the one that computes, from job_sit on. */
#ifndef CLI_SERVE_JOB_H
#define CLI_SERVE_JOB_H

#include <pthread.h>
#include <stdatomic.h>

#include "cli/form_args.h"
#include "cli/serve/desk.h"
#include "cli/serve/first_dates.h"
#include "cli/serve/logprob_rows.h"
#include "engine/session/answer.h"
#include "engine/text/grammar/grammar.h"

/* What the threads that prepare requests share. */
typedef struct prepare_shared {
    pthread_mutex_t lock;                /* of the next two */
    first_dates dates;
    form_tries tries;                    /* for forms of all answers; one that was made stays */
} prepare_shared;

typedef struct job {
    struct job *next;                    /* in a list of the desk's */
    desk *d;
    const desk_options *o;
    const atomic_bool *hurry;            /* the answer ends now */
    http_exchange *x;                    /* kept */
    api_kind kind;
    bool count;                          /* only how many tokens the prompt has */
    api_request *r;                      /* NULL: not read yet; its own, as all below */
    api_writer *w;
    textbuf body;                        /* of an answer in one piece */
    id_list *prompts;                    /* [n_prompt]: several of completions alone */
    int n_prompt, n_all;                 /* n_all: tokens of all of them */
    int n_stable;                        /* of the first; the next turn has them, too; 0: unknown */
    int n_system;                        /* of it, system message and tools: so have others */
    prepare_shared *shared;              /* the desk's */
    grammar *form;                       /* that the answer has, or NULL */
    chat_request shown;                  /* as the parser sees it: which calls may come */
    uint64_t arrived_ns, wrote_ns;
    api_usage usage;
    bool reasons;                        /* the latest text was reasoning */
    bool enough;                         /* a call came, and one is all that is wanted */
    logprob_rows *rows;                  /* of the choice that runs, or NULL */
    const char *stop_text;               /* that ended the choice, or NULL */
    /* while it is computed */
    session *s;                          /* of its seat */
    int choice, n_choice;
    int n_drawn;                         /* tokens of the choices that have ended */
    bool scores;                         /* the prompt gets its rows first; */
    int n_scored;                        /* so many tokens of it have been taken in for that */
    running_answer *a;                   /* the choice under way; NULL: none */
    sampler *smp;                        /* of it, as the next three; made before it is */
    stop_strings *stop;
    grammar_mask *mask;
    answer_stats stats;                  /* of the latest that has ended */
} job;

void job_free(job *j);                   /* and lets its exchange go; NULL is fine */

/* An answer to an exchange to which nothing has gone out yet. */
void job_refuse(http_exchange *x, api_kind kind, const api_error *why);
/* In the stream if there is one, else with the error's status. */
void job_fail(job *j, api_trouble what, const char *text);

/* Says that it is still here if nothing was said for ten seconds. False: the client has left. */
bool job_stays(job *j);

/* desk.c: while a job is computed, on the engine's thread, somebody else may look, or more. */
void desk_pause(desk *d, desk_when now);

/* Reads the body; prompts, form and writer, and the head of a stream. True: it can be answered.
 * False: it has been. */
bool job_prepare(job *j, encoder *enc);

/* form and shown: job_form.c. */
int job_make_form(job *j, err_ctx *err);

/* From now on it is computed with this session. */
void job_sit(job *j, session *s);

/* One step of its answer (answer.h). Of each choice that ends: count(ctx, ...). Returns 1 if there
 * is more, 0 if all has been written, ERR_STOPPED if the client left, or what failed, which the
 * client has been told. */
typedef void job_count_fn(void *ctx, const answer_stats *s);
int job_step(job *j, job_count_fn *count, void *ctx);
bool job_draws(const job *j);            /* the next step is a token */
int job_cached(const job *j);            /* tokens of its prompts that were there, so far */

#endif
