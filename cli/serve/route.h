/* route.h - what a request asks for: paths, methods, keys, origins; answers that need no engine.
 *
 * The handler of http.h. While the model loads, all but /health is told to come back; then requests
 * for answers go to the desk. Keys are compared in a time that does not depend on them. On a
 * loopback address only its own names are accepted as Host, so that no page from elsewhere can talk
 * to it by a name of its own. */
#ifndef CLI_SERVE_ROUTE_H
#define CLI_SERVE_ROUTE_H

#include <stdatomic.h>

#include "cli/serve/desk.h"
#include "cli/serve/live.h"
#include "engine/perf_counts.h"

typedef struct front {
    const char *const *keys;             /* one of them has to come along; none: anybody asks */
    int n_key;
    const char *const *origins;          /* of pages that may ask, beside localhost's; "*": all */
    int n_origin;
    bool loopback;                       /* Host is checked */
    bool quiet;                          /* requests are not logged */
    atomic_bool ready, stopping;         /* ready: all below is there */
    atomic_int loaded;                   /* thousandths */
    desk *d;
    live *live;
    struct route_counts *counts;
    const tokenizer *tok;                /* these three for text_routes.c */
    const chat *talk;
    encoder *enc;                        /* the network's own */
    api_model model;
    perf_level perf;                     /* what sessions count; the engine's thread alone */
} front;

/* The error object of the kind, with the error's status. */
void route_refuse(http_exchange *x, api_kind kind, const api_error *why);

void route_head(void *ctx, http_exchange *x);            /* ctx of both: a front */
void route_request(void *ctx, http_exchange *x);
void route_done(front *f, const http_exchange *x, int status);   /* counts it */

#endif
