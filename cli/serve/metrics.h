/* metrics.h - the desk's counts as Prometheus reads them, under the names that dashboards for local
 * servers already know. */
#ifndef CLI_SERVE_METRICS_H
#define CLI_SERVE_METRICS_H

#include "cli/serve/desk.h"

void metrics_write(textbuf *to, const desk_counts *c);

#endif
