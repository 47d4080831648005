/* server_context.h - what the routes know about the server.
 *
 * The command fills in the first part before the port opens. The rest is written while the model
 * loads and read only after `ready` is true. The network threads read it. */
#ifndef CLI_SERVE_SERVER_CONTEXT_H
#define CLI_SERVE_SERVER_CONTEXT_H

#include <stdatomic.h>

#include "cli/serve/live_events.h"
#include "cli/serve/metrics.h"
#include "cli/serve/request_queue.h"
#include "engine/perf_counts.h"

typedef struct server_context {
    const char *const *keys;             /* [n_key]: requests must carry one; none: no key needed */
    int n_key;
    const char *const *origins;          /* [n_origin]: pages that may use the server, besides local
                                          * ones; "*": all pages */
    int n_origin;
    bool loopback;                       /* Host must be a name of this machine */
    bool quiet;                          /* no log line for each request */
    route_counts *counts;
    atomic_bool ready, stopping;
    /* good once ready is true */
    request_queue *queue;
    live_events *events;
    const tokenizer *tok;
    const chat *format;
    encoder *enc;                        /* network thread only */
    api_model model;
    perf_level perf;                     /* engine thread only: what the sessions count */
} server_context;

#endif
