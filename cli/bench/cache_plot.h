/* cache_plot.h - hit rate by cache size as a picture: a line for each policy, a panel for each kind
 * of cache. */
#ifndef CLI_BENCH_CACHE_PLOT_H
#define CLI_BENCH_CACHE_PLOT_H

#include "cli/bench/cache_view.h"

/* Appends a whole SVG document, well-formed XML, readable on light and dark pages. b->failed
 * without memory. */
void cache_plot(textbuf *b, const cache_table *t);

#endif
