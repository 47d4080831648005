/* moe_routes.h - questions about experts over HTTP: /moe-layer-perf, what was counted, and how much
 * is; /moe-hot-cache, which experts are in VRAM, and those that should be.
 *
 * The network's thread looks at the request; the engine's does the rest (desk_call) and answers. */
#ifndef CLI_SERVE_MOE_ROUTES_H
#define CLI_SERVE_MOE_ROUTES_H

#include "cli/serve/route.h"

enum { MOE_PERF, MOE_SET_PERF, MOE_CACHE, MOE_APPLY };
void moe_route(server_context *c, http_exchange *x, int which);

#endif
