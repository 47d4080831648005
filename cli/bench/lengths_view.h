/* lengths_view.h - speed over the length of a prompt: as a table, as lines of numbers, as a
 * picture. */
#ifndef CLI_BENCH_LENGTHS_VIEW_H
#define CLI_BENCH_LENGTHS_VIEW_H

#include "cli/report.h"
#include "loader/base.h"

enum { LENGTHS_MOST = 40, LENGTHS_MOST_RUNS = 15 };

/* Who computes experts that are not in VRAM; the others are tiers/plan.h's. */
typedef enum lengths_way { LENGTHS_AUTO, LENGTHS_BUS, LENGTHS_CORES, LENGTHS_SPLIT, LENGTHS_WAYS }
    lengths_way;
const char *lengths_way_name(int way);   /* "auto" */

typedef struct length_row {
    int tokens;
    spread rate[LENGTHS_WAYS];           /* tok/s; n 0: not measured */
    int sent_percent;                    /* auto: of the used experts outside VRAM, those that
                                          * crossed the bus one by one; -1: none were shared out */
} length_row;

typedef struct lengths_table {
    const char *model;                   /* its name */
    char place[160];                     /* what is where, in words */
    bool ways[LENGTHS_WAYS];
    length_row rows[LENGTHS_MOST];
    int n_row;
} lengths_table;

/* The speed at this length is lower than at a shorter one by more than noise. Up to eight tokens
 * are computed in another way: the shortest that counts has nine. */
bool lengths_falls(const lengths_table *t, int row, int way);

void lengths_print(const lengths_table *t);      /* to stdout */
void lengths_csv(textbuf *b, const lengths_table *t);
void lengths_plot(textbuf *b, const lengths_table *t);   /* SVG, both axes logarithmic */

#endif
