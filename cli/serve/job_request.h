/* job_request.h - one request for an answer: its body, its prompts, and where its response goes.
 *
 * A request belongs to one thread at a time. queue_submit creates it, a prepare thread calls
 * job_request_prepare, and the engine thread runs it (job_run.h). While it waits for the engine,
 * the queue's lock guards it. The writer is therefore never used by two threads at the same
 * time. */
#ifndef CLI_SERVE_JOB_REQUEST_H
#define CLI_SERVE_JOB_REQUEST_H

#include <pthread.h>

#include "cli/args/form_args.h"
#include "cli/serve/api.h"
#include "cli/serve/conversation_dates.h"
#include "cli/serve/engine_context.h"
#include "cli/serve/http.h"

/* What all prepare threads share. */
typedef struct prepare_shared {
    pthread_mutex_t lock;                /* guards dates, and the creation of tries */
    conversation_dates dates;
    form_tries tries;                    /* never changed or freed before the queue */
} prepare_shared;

typedef struct job_request {
    struct job_request *next;            /* in a list of the queue */
    const engine_context *engine;        /* set once, as all down to arrived_ns */
    prepare_shared *shared;
    http_exchange *exchange;             /* kept until job_request_free */
    api_kind kind;
    bool count_only;                     /* the response is the number of prompt tokens */
    uint64_t arrived_ns;
    uint64_t wrote_ns;                   /* the last write to the client */
    /* job_request_prepare fills in the rest; NULL and 0 before */
    api_request *api;
    api_writer *writer;
    textbuf body;                        /* of a response that is not a stream */
    id_list *prompts;                    /* [n_prompt]; more than 1 only for completions */
    int n_prompt;
    int n_tokens;                        /* of all prompts */
    int n_stable;                        /* tokens of prompts[0] that the next turn repeats; 0:
                                          * unknown */
    int n_system;                        /* tokens of its system message and tools; 0: none */
    grammar *form;                       /* of the answer's text; NULL: any */
    chat_request parsing;                /* how the answer is parsed: which calls may come */
    api_usage usage;
} job_request;

/* Reads and renders the request, compiles its form, and sends the head of a stream. True: the
 * engine can run it. False: the response is complete. enc belongs to the calling thread. */
bool job_request_prepare(job_request *r, encoder *enc);

/* Frees it and releases its exchange. NULL is fine. */
void job_request_free(job_request *r);

/* Reports an error: in the stream if there is one, else with the error's status. */
void job_request_fail(job_request *r, api_error_type type, const char *text);

/* Sends the API's keep-alive event if nothing was written for 10 s. False: the client has left, or
 * has not read the last 16 MiB. */
bool job_request_keepalive(job_request *r);

/* Fills in form and parsing; job_form.c. */
int job_request_form(job_request *r, err_ctx *err);

#endif
