/* moe_routes.h - experts over HTTP: /moe-layer-perf and /moe-hot-cache.
 *
 * GET /moe-layer-perf reports uses and times for each layer; POST sets what is counted. GET
 * /moe-hot-cache lists the experts in VRAM; POST replaces them by a list. A network thread checks
 * the request; the engine thread does the rest (engine_call) and answers. */
#ifndef CLI_SERVE_MOE_ROUTES_H
#define CLI_SERVE_MOE_ROUTES_H

#include "cli/serve/server_context.h"

enum { MOE_PERF, MOE_SET_PERF, MOE_CACHE, MOE_APPLY };
void moe_route(server_context *c, http_exchange *x, int action);

#endif
