/* test_plan_vs_measured.c - the line about a speed below the plan's, and its reason. */
#include "cli/view/plan_vs_measured.h"

#include <stdio.h>
#include <string.h>

#include "tests/test.h"

enum { N = 50 };                         /* tokens seen */
#define MS 1e-3
#define GB 1000000000u

/* 50 tok/s: 8 ms on the device, 10 ms on the CPU at 90 GB/s with a busy bus, hops. */
static const plan split = {
    .gpu = true, .ram_experts = 40 * (uint64_t)GB, .decode_tok_s = 50, .t_dense = 6 * MS,
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
    .ram_experts = 10 * (uint64_t)GB, .disk_experts = 10 * (uint64_t)GB, .decode_tok_s = 20,
    .t_dense = 10 * MS, .t_cpu = 10 * MS, .t_disk = 40 * MS,
    .rate = { .cpu = 100e9, .cpu_busy = 90e9, .pull_busy = 45e9, .disk = 5e9 },
};
/* The GPU and the drive. */
static const plan three = {
    .gpu = true, .ram_experts = 10 * (uint64_t)GB, .disk_experts = 10 * (uint64_t)GB,
    .decode_tok_s = 20, .t_dense = 6 * MS, .t_hot = 2 * MS, .t_cpu = 10 * MS, .t_disk = 45 * MS,
    .t_hop = 1 * MS,
    .rate = { .cpu = 100e9, .cpu_busy = 90e9, .pull_busy = 45e9, .disk = 5e9 },
};

/* Milliseconds and MB are those of one token, experts those of all N. */
static const struct {
    const plan *p;
    double ms;
    double ask_ms, cpu_ms, pull_ms, cpu_mb, pull_mb;
    int down, late;
    bool fetching;
    double wait_ms, read_mb;
    int hits, misses;
    const char *want, *why;
} rows[] = {
    { &split, 20, 9, 10, 9, 900, 400, 500, 0, true, 0, 0, 0, 0, "", "as planned" },
    { &split, 26.6, 9, 16, 9, 900, 400, 500, 0, true, 0, 0, 0, 0, "", "a quarter less" },
    { &split, 27, 9, 16, 9, 900, 400, 500, 0, true, 0, 0, 0, 0,
      "slower than expected: 37.0 instead of 50.0 tok/s, because the CPU read weights at 56.2 GB/s "
      "instead of 90.0",
      "the CPU's memory is shared" },
    { &split, 12, 6, 5, 5, 900, 400, 500, 0, true, 0, 0, 0, 0, "", "faster" },
    { &split, 30, 9, 17, 20, 1500, 400, 500, 300, true, 0, 0, 0, 0,
      "60% of the fetched matrices came too late: the bus carried 20.0 GB/s instead of 45.0",
      "a bus that others use" },
    { &split, 30, 9, 17, 20, 1500, 400, 500, 100, true, 0, 0, 0, 0,
      "the CPU computed 1500 MB of experts per token, 900 were expected", "some are late" },
    { &split, 28, 9, 16, 0, 1600, 0, 0, 0, false, 0, 0, 0, 0,
      "post-fetch is off after its trial", "a trial" },
    { &split, 33, 22, 10, 9, 900, 400, 500, 0, true, 0, 0, 0, 0,
      "the GPU took 22.0 ms per token for its part instead of 9.0 (a long context",
      "another program on the GPU" },
    { &split, 40, 9, 10, 9, 900, 400, 500, 0, true, 0, 0, 0, 0,
      "no measured part is much slower than planned", "no count explains it" },
    { &split, 40, 12, 24, 9, 900, 400, 500, 0, true, 0, 0, 0, 0,
      "the CPU read weights at 37.5 GB/s instead of 90.0", "the larger of two reasons" },
    { &resident, 16, 0, 0, 0, 0, 0, 0, 0, false, 0, 0, 0, 0,
      "slower than expected: 62.5 instead of 125.0 tok/s, because the GPU took 16.0 ms per token for "
      "its part "
      "instead of 8.0", "no questions were asked" },
    { &drive, 50, 0, 0, 0, 0, 0, 0, 0, false, 30, 200, 500, 500, "",
      "the drive as planned" },
    { &drive, 100, 0, 0, 0, 0, 0, 0, 0, false, 80, 200, 500, 500,
      "slower than expected: 10.0 instead of 20.0 tok/s, because the drive gave 2.50 GB/s instead of 5.00",
      "a slow drive" },
    { &drive, 100, 0, 0, 0, 0, 0, 0, 0, false, 80, 360, 100, 900,
      "90% of the experts were read from the drive, 50% were expected",
      "an unlucky choice" },
    { &drive, 100, 0, 0, 0, 0, 0, 0, 0, false, 80, 480, 500, 500,
      "each token waited 80.0 ms for the drive instead of 30.0", "the rate is not why" },
    { &drive, 100, 0, 0, 0, 0, 0, 0, 0, false, 30, 200, 500, 500,
      "the CPU read weights at 28.6 GB/s instead of 100.0", "the CPU, not the drive" },
    { &three, 80, 9, 70, 0, 1000, 0, 0, 0, false, 60, 200, 500, 500,
      "slower than expected: 12.5 instead of 20.0 tok/s, because the drive gave 3.33 GB/s instead of 5.00",
      "waiting for the drive is not the CPU's work" },
    { &three, 80, 9, 70, 0, 1000, 0, 0, 0, false, 35, 200, 500, 500,
      "the CPU read weights at 28.6 GB/s instead of 100.0", "the CPU behind the drive" },
};

static void check_row(size_t i)
{
    char got[PLAN_VS_MEASURED_CAP];
    const plan_counts seen = {
        .tokens = N, .seconds = N * rows[i].ms * MS,
        .host = { .questions = rows[i].ask_ms > 0 ? 48 * N : 0,
                  .down_fetched = (uint64_t)rows[i].down, .late = (uint64_t)rows[i].late,
                  .cpu_bytes = (uint64_t)(N * rows[i].cpu_mb * 1e6),
                  .pull_bytes = (uint64_t)(N * rows[i].pull_mb * 1e6),
                  .ask_s = N * rows[i].ask_ms * MS, .cpu_s = N * rows[i].cpu_ms * MS,
                  .pull_s = N * rows[i].pull_ms * MS, .fetching = rows[i].fetching },
        .store = { .hits = (uint64_t)rows[i].hits, .misses = (uint64_t)rows[i].misses,
                   .read_bytes = (uint64_t)(N * rows[i].read_mb * 1e6),
                   .wait_s = N * rows[i].wait_ms * MS },
    };
    plan_vs_measured_line(got, sizeof got, rows[i].p, &seen);
    CHECK_MSG(rows[i].want[0] ? strstr(got, rows[i].want) != NULL : got[0] == '\0',
              "%s: '%s', not '%s'", rows[i].why, got, rows[i].want);
    CHECK_MSG(!strchr(got, '\n'), "%s: one line", rows[i].why);
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
    static const plan ram = { .ram_experts = GB, .decode_tok_s = 9 };
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
    test_begin("plan_vs_measured", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) check_row(i);
    check_edges();
    check_less();
    check_watch();
    return test_end();
}
