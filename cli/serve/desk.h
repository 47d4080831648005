/* desk.h - where requests become answers: a clerk makes prompts of them, one thread computes.
 *
 * The clerk reads them, renders and counts, so that what cannot be answered is refused at once,
 * with a status; then the head of a stream goes out, and the request waits for a seat. The engine's
 * thread gives seats in order of arrival, computes for those who have one in turn (seats.h), and
 * looks before each token and each part of a prompt whether the client is still there. Who waits
 * longer than ten seconds hears the interface's own word for "still here". */
#ifndef CLI_SERVE_DESK_H
#define CLI_SERVE_DESK_H

#include "cli/model_handle.h"
#include "cli/serve/api.h"
#include "cli/serve/http.h"
#include "engine/session/prefix_cache.h"

typedef struct desk desk;

typedef struct desk_options {
    model_handle *model;                 /* placed; used by the desk's threads alone from now on */
    session *const *sessions;            /* [n_session] of the model, beside each other: so many
                                          * requests are computed at the same time */
    int n_session;
    prefix_cache *cache;                 /* for sessions like these, or NULL */
    const char *name;                    /* that is served */
    int most_waiting;                    /* requests */
} desk_options;

int desk_open(desk **out, const desk_options *o, err_ctx *err);

/* Answers it in any case; does not wait. count: only how many tokens the prompt has. */
void desk_take(desk *d, http_exchange *x, api_kind kind, bool count);

/* Model, session and caches belong to the engine's thread: whoever wants something of them has it
 * call a function there, which answers the client by itself. When: while a request is computed, at
 * any of its steps, to look and no more; between two tokens, too; or only when no request runs,
 * and then before the next one begins. At once if none does. */
typedef enum desk_when { DESK_LOOK, DESK_BETWEEN, DESK_IDLE } desk_when;

/* o NULL: the server stops, and the model is not to be used any more. */
typedef void desk_call_fn(void *ctx, const desk_options *o);

/* From any thread; waits for nothing. False: fn will not be called, because the server stops or
 * memory is short. */
bool desk_call(desk *d, desk_when when, desk_call_fn *fn, void *ctx);

/* What has happened so far. */
typedef struct desk_counts {
    uint64_t requests, cancelled, failed, refused;
    uint64_t prompt_tokens, cached_tokens, answer_tokens;        /* prompt_tokens: computed */
    double prompt_s, answer_s;
    uint64_t steps, busy_steps;          /* tokens and pieces of prompts; the same, once for each
                                          * answer that was under way */
    double queue_s;                      /* that requests waited for a seat, in sum */
    int running, waiting;
    uint64_t most_tokens;                /* in one conversation */
} desk_counts;
desk_counts desk_count(desk *d);

/* A seat: who is computed there, or was last. */
typedef struct seat_view {
    bool busy;
    uint64_t job;                        /* the how-manieth; 0: nobody yet */
    int n_prompt, n_cached, n_drawn;     /* tokens */
    double age_s;                        /* since it was taken; 0: it is free */
} seat_view;
seat_view desk_seat(desk *d, int i);     /* 0 .. n_session - 1 */

/* No new requests: those that wait are refused, those that run may go on for so long, then they
 * end as if their length were reached. */
void desk_close(desk *d, double patience_s);     /* NULL is fine, as for the next */
void desk_free(desk *d);                         /* closed, and nobody knows it any more */

#endif
