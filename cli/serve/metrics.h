/* metrics.h - what has happened so far as Prometheus reads it: the names that dashboards for local
 * servers already know, and ours. */
#ifndef CLI_SERVE_METRICS_H
#define CLI_SERVE_METRICS_H

#include "cli/serve/request_queue.h"
#include "engine/perf_counts.h"

/* How often each route was answered with each status. Any thread. */
typedef struct route_counts route_counts;
int route_counts_create(route_counts **out, err_ctx *err);
void route_counts_free(route_counts *c);         /* NULL is fine */
void route_counts_add(route_counts *c, const char *route, int status);   /* route: kept as it is */

/* perf, of the engine, or NULL: nobody could ask it. */
void metrics_write(textbuf *to, const queue_stats *c, const perf_counts *perf,
                   route_counts *routes);

#endif
