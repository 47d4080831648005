/* cache_view.h - what replays of a trace came to: tables for people, CSV and JSON for scripts, and
 * the input of the plot (cache_plot.h). */
#ifndef CLI_BENCH_CACHE_VIEW_H
#define CLI_BENCH_CACHE_VIEW_H

#include "cli/bench/cache_replay.h"

enum { CACHE_VIEW_SIZES = 33 };          /* 32 that a person may ask for, and one token's worth */

typedef struct cache_column {
    replay_size size;
    double percent;                      /* of all experts' bytes */
    bool one_token;                      /* as many places as a token chooses */
} cache_column;

typedef struct cache_table {
    const char *path;                    /* of the trace */
    const routing_trace *trace;
    uint64_t all_bytes;                  /* of all experts */
    int n_upload;
    char speeds[REPLAY_MODES][96];       /* whose they are: "assumed speeds ..." */
    bool gpu_measured, cpu_measured, disk_measured;
    bool mode[REPLAY_MODES];             /* that were replayed, */
    bool rule[REPLAY_RULES];             /* and for what */
    int n_size;
    cache_column sizes[CACHE_VIEW_SIZES];        /* ascending */
    replay_figures at[REPLAY_MODES][CACHE_VIEW_SIZES][REPLAY_RULES];
} cache_table;

/* Whether there are figures: fixed is for VRAM alone. */
bool cache_has(const cache_table *t, replay_mode mode, int rule);

/* The rules in the order in which they are shown, from the worst to hope for to the best: i from 0
 * to REPLAY_RULES - 1. */
int cache_rule_at(int i);

/* "VRAM: replaced between tokens, at most 8 uploads a token" */
const char *cache_mode_text(char *dst, size_t cap, const cache_table *t, replay_mode mode);

void cache_print(const cache_table *t);          /* on stdout */
bool cache_print_json(const cache_table *t);     /* one object on stdout; false without memory */

/* A line of names, then one for each mode, size and rule. b->failed without memory. */
void cache_csv(textbuf *b, const cache_table *t);

#endif
