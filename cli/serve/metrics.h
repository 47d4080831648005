/* metrics.h - /metrics in the text format of Prometheus.
 *
 * Names that dashboards for llama.cpp know keep them; all others begin with moe_. */
#ifndef CLI_SERVE_METRICS_H
#define CLI_SERVE_METRICS_H

#include "cli/serve/request_queue.h"
#include "engine/perf_counts.h"

/* Requests by route and status. Any thread. */
typedef struct route_counts route_counts;
int route_counts_create(route_counts **out, err_ctx *err);
void route_counts_free(route_counts *c);         /* NULL is fine */
void route_counts_add(route_counts *c, const char *route, int status);   /* keeps the pointer */

/* perf: the engine's counts; NULL: not available, because the server stops. */
void metrics_write(textbuf *out, const queue_stats *q, const perf_counts *perf,
                   route_counts *routes);

#endif
