/* tiers_view.h - prints the rows of moe-bench tiers as tables or as JSON. */
#ifndef CLI_BENCH_TIERS_VIEW_H
#define CLI_BENCH_TIERS_VIEW_H

#include "cli/placement.h"
#include "engine/gpu/expert_server.h"
#include "moe/expert_store.h"

enum { TIERS_MOST_RUNS = 64 };
/* Budgets: what there is; of VRAM: what there is, but no experts in it. */
#define TIERS_ALL UINT64_MAX
#define TIERS_NO_EXPERTS 0

/* The result of a budget. */
typedef struct tiers_outcome {
    bool done;
    char error[768];                     /* if not done: the reason; "": interrupted */
    plan p;
    bool measured;                       /* the plan's speeds */
    double prompt[TIERS_MOST_RUNS], decode[TIERS_MOST_RUNS];     /* tok/s */
    expert_server_stats host;            /* of the tokens of all runs */
    store_stats store;
    uint64_t hash;                       /* of the tokens */
    bool same;                           /* all runs had this hash */
} tiers_outcome;

typedef struct tiers_row {
    uint64_t vram, ram;                  /* budgets */
    tiers_outcome on;                    /* with post-fetch as requested */
    tiers_outcome off;                   /* without; done only if both were requested */
} tiers_row;

typedef struct tiers_table {
    const char *path, *arch;
    const char *gpu;                     /* name; "": none */
    const placement *unbounded;          /* machine and model */
    const session_options *so;
    int n_thread;
    int n_prompt, n_token, n_run;
    cache_policy cache;
    bool both;                           /* there are outcomes without post-fetch */
    tiers_row *rows;
    int n_row;
} tiers_table;

/* The first row that was done, or NULL. */
const tiers_row *tiers_first_done(const tiers_table *t);

void tiers_print(const tiers_table *t);  /* tables on stdout */

/* One object on stdout. 0, or 1 after one line. */
int tiers_print_json(const tiers_table *t);

#endif
