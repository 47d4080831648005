/* request_queue.h - requests between the network and the engine, and the threads that work on
 * them.
 *
 *   network thread --queue_submit--> prepare threads --> engine thread --> the exchange's buffer
 *
 * A prepare thread parses a request, renders and tokenizes its prompts, and sends the head of a
 * stream; a request that cannot be answered gets its error status there. The engine thread assigns
 * prepared requests to slots in order (scheduler.h). Before each token and each chunk of a prompt
 * it checks whether the client is still connected. After 10 s without output the client gets its
 * API's keep-alive event.
 *
 * Every function is for any thread, except queue_open, queue_close and queue_free. */
#ifndef CLI_SERVE_REQUEST_QUEUE_H
#define CLI_SERVE_REQUEST_QUEUE_H

#include "cli/serve/api.h"
#include "cli/serve/engine_context.h"
#include "cli/serve/http.h"
#include "cli/serve/scheduler.h"

typedef struct request_queue request_queue;

/* Starts the threads. Copies the context and borrows what it points to. Until queue_close returns,
 * only these threads use the model. max_waiting: requests that no slot runs; more are refused. */
int queue_open(request_queue **out, const engine_context *ec, int max_waiting, err_ctx *err);

/* Answers the exchange in any case; never blocks. count_only: the response is the number of tokens
 * of the prompt. */
void queue_submit(request_queue *q, http_exchange *x, api_kind kind, bool count_only);

/* When the engine thread may run a call. READ: between any two steps, also between chunks of one
 * prompt; the call changes nothing. BETWEEN_STEPS: between steps of requests. IDLE: while no
 * request runs; it holds back waiting requests until the running ones have ended. */
typedef enum engine_call_when { CALL_READ, CALL_BETWEEN_STEPS, CALL_IDLE } engine_call_when;

/* Runs on the engine thread and answers its own client. ec NULL: the server stops, and the model
 * must not be used. */
typedef void engine_call_fn(void *ctx, const engine_context *ec);

/* Queues fn for the engine thread; never blocks. False: fn is not called, because the server stops
 * or memory is short. */
bool engine_call(request_queue *q, engine_call_when when, engine_call_fn *fn, void *ctx);

/* Totals since queue_open; running and waiting are of now. */
typedef struct queue_stats {
    uint64_t requests, cancelled, failed, refused;
    uint64_t prompt_tokens;              /* computed */
    uint64_t cached_tokens, answer_tokens;
    double prompt_s, answer_s;
    scheduler_totals work;
    double queue_s;                      /* from arrival to a slot, summed over requests */
    int running, waiting;
    uint64_t longest_tokens;             /* of one conversation */
} queue_stats;
queue_stats queue_get_stats(request_queue *q);

slot_status queue_slot_status(request_queue *q, int slot);       /* 0 .. n_session - 1 */

/* Refuses waiting requests, lets running ones go on for up to limit_s seconds, then ends their
 * answers as if their length were reached, and joins the threads. NULL is fine. */
void queue_close(request_queue *q, double limit_s);

/* After queue_close; no other thread may hold a reference. NULL is fine. */
void queue_free(request_queue *q);

#endif
