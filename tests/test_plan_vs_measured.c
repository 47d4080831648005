/* test_plan_vs_measured.c - the line about a speed below the plan's, and its reason. */
#include "cli/view/plan_vs_measured.h"

#include <stdio.h>
#include <string.h>

#include "tests/case_file.h"

enum { N = 50 };                         /* tokens seen */
#define MS 1e-3
#define GB 1000000000u

/* 50 tok/s: 8 ms on the device, 10 ms on the CPU at 90 GB/s with a busy bus, hops. */
static const plan split = {
    .gpu = true, .ram.experts = 40 * (uint64_t)GB, .decode_tok_s = 50, .t_dense = 6 * MS,
    .t_hot = 2 * MS, .t_cpu = 10 * MS, .t_pull = 9 * MS, .t_hop = 1 * MS,
    .rate = { .cpu = 100e9, .cpu_busy = 90e9, .pull_busy = 45e9, .disk = 5e9 },
};
/* The same with all in VRAM: 125 tok/s. */
static const plan resident = {
    .gpu = true, .decode_tok_s = 125, .t_dense = 6 * MS, .t_hot = 2 * MS,
    .rate = { .cpu = 100e9, .cpu_busy = 90e9, .pull_busy = 45e9, .disk = 5e9 },
};
/* 20 tok/s: half of the experts on the drive, 40 ms for them, of which 10 are hidden. */
static const plan drive = {
    .ram.experts = 10 * (uint64_t)GB, .drive.experts = 10 * (uint64_t)GB, .decode_tok_s = 20,
    .t_dense = 10 * MS, .t_cpu = 10 * MS, .t_disk = 40 * MS,
    .rate = { .cpu = 100e9, .cpu_busy = 90e9, .pull_busy = 45e9, .disk = 5e9 },
};
/* The GPU and the drive. */
static const plan three = {
    .gpu = true, .ram.experts = 10 * (uint64_t)GB, .drive.experts = 10 * (uint64_t)GB,
    .decode_tok_s = 20, .t_dense = 6 * MS, .t_hot = 2 * MS, .t_cpu = 10 * MS, .t_disk = 45 * MS,
    .t_hop = 1 * MS,
    .rate = { .cpu = 100e9, .cpu_busy = 90e9, .pull_busy = 45e9, .disk = 5e9 },
};

static void check_row(char *const *cells)
{
    static const struct { const char *name; const plan *p; } plans[] = {
        { "split", &split }, { "resident", &resident }, { "drive", &drive }, { "three", &three },
    };
    char got[PLAN_VS_MEASURED_CAP], fetching[4] = "";
    double ms, ask_ms, cpu_ms, pull_ms, cpu_mb, pull_mb, down, late, wait_ms, read_mb, hits, misses;
    size_t p = 0;
    while (p < ARRAY_LEN(plans) && strcmp(cells[0], plans[p].name) != 0) p++;
    if (!CHECK_MSG(p < ARRAY_LEN(plans) &&
                   sscanf(cells[1], "%lf %lf %lf %lf %lf %lf %lf %lf %3s %lf %lf %lf %lf", &ms,
                          &ask_ms, &cpu_ms, &pull_ms, &cpu_mb, &pull_mb, &down, &late, fetching,
                          &wait_ms, &read_mb, &hits, &misses) == 13, "%s: no 13 cells", cells[3]))
        return;
    const plan_counts seen = {
        .tokens = N, .seconds = N * ms * MS,
        .host = { .questions = ask_ms > 0 ? 48 * N : 0,
                  .down_fetched = (uint64_t)down, .late = (uint64_t)late,
                  .cpu_bytes = (uint64_t)(N * cpu_mb * 1e6),
                  .pull_bytes = (uint64_t)(N * pull_mb * 1e6), .ask_s = N * ask_ms * MS,
                  .cpu_s = N * cpu_ms * MS, .pull_s = N * pull_ms * MS,
                  .fetching = !strcmp(fetching, "on") },
        .store = { .hits = (uint64_t)hits, .misses = (uint64_t)misses,
                   .read_bytes = (uint64_t)(N * read_mb * 1e6), .wait_s = N * wait_ms * MS },
    };
    plan_vs_measured_line(got, sizeof got, plans[p].p, &seen);
    CHECK_MSG(cells[2][0] ? strstr(got, cells[2]) != NULL : got[0] == '\0', "%s: '%s', not '%s'",
              cells[3], got, cells[2]);
    CHECK_MSG(!strchr(got, '\n'), "%s: one line", cells[3]);
}

/* Nothing to compare, or a small buffer. */
static void check_edges(void)
{
    char got[PLAN_VS_MEASURED_CAP] = "x";
    plan_counts seen = { .tokens = N, .seconds = 10 };
    plan none = split;
    none.decode_tok_s = 0;
    CHECK(plan_vs_measured_line(got, sizeof got, &none, &seen)[0] == '\0');
    seen.tokens = 0;
    CHECK(plan_vs_measured_line(got, sizeof got, &split, &seen)[0] == '\0');
    seen = (plan_counts){ .tokens = N };
    CHECK(plan_vs_measured_line(got, sizeof got, &split, &seen)[0] == '\0');
    seen.seconds = 100;
    plan_vs_measured_line(got, 20, &split, &seen);
    CHECK_MSG(strcmp(got, "slower than expecte") == 0, "cut: '%s'", got);
}

/* Counts from before the measured tokens are subtracted. */
static void check_less(void)
{
    const plan_counts before = {
        .host = { .questions = 1, .down_fetched = 2, .late = 3, .cpu_bytes = 4, .pull_bytes = 5,
                  .ask_s = 6, .cpu_s = 7, .pull_s = 8 },
        .store = { .hits = 9, .misses = 10, .read_bytes = 11, .wait_s = 12 },
    };
    plan_counts seen = {
        .tokens = N, .seconds = 3,
        .host = { .questions = 101, .down_fetched = 202, .late = 303, .cpu_bytes = 404,
                  .pull_bytes = 505, .ask_s = 606, .cpu_s = 707, .pull_s = 808, .fetching = true },
        .store = { .hits = 909, .misses = 1010, .read_bytes = 1111, .wait_s = 1212 },
    };
    const expert_server_stats *h = &seen.host;
    const store_stats *st = &seen.store;
    plan_counts_subtract(&seen, &before);
    CHECK(h->questions == 100 && h->down_fetched == 200 && h->late == 300 && h->cpu_bytes == 400 &&
          h->pull_bytes == 500 && h->ask_s == 600 && h->cpu_s == 700 && h->pull_s == 800);
    CHECK(st->hits == 900 && st->misses == 1000 && st->read_bytes == 1100 && st->wait_s == 1200);
    CHECK(h->fetching && seen.tokens == N && seen.seconds == 3);
}

/* A plan that is not to be compared: no session is asked. */
static void check_watch(void)
{
    static const plan ram = { .ram.experts = GB, .decode_tok_s = 9 };
    static const struct { const plan *p; bool measured, watched; const char *why; } cases[] = {
        { &split, true, true, "a GPU" },
        { &drive, true, true, "the drive" },
        { &split, false, false, "assumed speeds" },
        { &ram, true, false, "RAM alone" },
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        plan_watch w;
        plan_watch_begin(&w, cases[i].p, cases[i].measured, NULL);
        CHECK_MSG((w.p != NULL) == cases[i].watched, "%s", cases[i].why);
        for (int t = 0; !w.p && t < 2 * PLAN_WATCH_TOKENS; t++) plan_watch_token(&w);
        CHECK_MSG(w.line[0] == '\0', "%s: '%s'", cases[i].why, w.line);
    }
}

int main(int argc, char **argv)
{
    static case_rows rows;
    test_begin("plan_vs_measured", argc, argv);
    if (case_rows_read(&rows, "plan_vs_measured.txt"))
        for (int i = 0; i < rows.n; i++) check_row(rows.cells[i]);
    case_rows_free(&rows);
    check_edges();
    check_less();
    check_watch();
    return test_end();
}
