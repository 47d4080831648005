/* live_events.h - /moe-events: what the engine does, as server-sent events.
 *
 * A stream begins with a hello event about model and plan. Tick events follow, at most five a
 * second, only after a change or 5 s of silence: counts, rates, and where each expert is. Without
 * a watcher no sample is taken. The events thread asks the engine thread for a sample
 * (engine_call), which copies counters; the events thread does the rest. A watcher that reads too
 * slowly misses events. */
#ifndef CLI_SERVE_LIVE_EVENTS_H
#define CLI_SERVE_LIVE_EVENTS_H

#include "cli/serve/request_queue.h"

typedef struct live_events live_events;

/* Describes the model now and starts the thread. Borrows the queue and the engine's statistics. */
int live_events_open(live_events **out, request_queue *q, const model_handle *h, const session *s,
                     const char *name, err_ctx *err);

/* Adds a watcher; answers the exchange in any case. Network threads. */
void live_events_watch(live_events *v, http_exchange *x);

/* Ends all streams and joins the thread; before queue_close. NULL is fine. */
void live_events_close(live_events *v);

/* After live_events_close; no other thread may hold a reference. NULL is fine. */
void live_events_free(live_events *v);

#endif
