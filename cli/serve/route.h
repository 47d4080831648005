/* route.h - paths, methods, keys and origins: the handler of http.h.
 *
 * While the model loads, only /health, the page and /api/version answer; other paths get 503.
 * Requests for answers go to the queue. Comparing a key takes a time that does not depend on the
 * key. On a loopback address Host must be a local name, so that a foreign page cannot reach the
 * server under a name of its own (DNS rebinding). Called from the network threads, one call at a
 * time. */
#ifndef CLI_SERVE_ROUTE_H
#define CLI_SERVE_ROUTE_H

#include "cli/serve/server_context.h"

/* ctx of both: a server_context. route_head refuses requests without permission before their
 * body. */
void route_head(void *ctx, http_exchange *x);
void route_request(void *ctx, http_exchange *x);

/* Counts the exchange under its route and status; 0: no status went out. */
void route_done(server_context *c, const http_exchange *x, int status);

#endif
