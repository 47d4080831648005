/* bench_profile.c - moe-bench decode --profile: GPU time by class of kernels, for the token after
 * the prompt and for the prompt's first chunk.
 *
 * Every kernel records when its first block started, when its input was complete and when its last
 * block ended. A kernel's time starts with its complete input; a gap is the time from the end of
 * one kernel to the complete input of the next. The sum of both is about 1% above the time without
 * recording. */
#include "cli/bench/bench_profile.h"

#include <stdio.h>
#include <string.h>

#include "cuda/gpu_measure.h"

enum { MAX_SPANS = 4096, MAX_CLASSES = 32 };

typedef struct class_row {
    const char *name;
    int n;
    double us, gap_us;
    uint64_t bytes;
} class_row;

static class_row *row_of(class_row *rows, int *n, const char *name)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    if (*n == MAX_CLASSES) return &rows[MAX_CLASSES - 1];
    rows[*n] = (class_row){ .name = name };
    return &rows[(*n)++];
}

static void print_row(const char *name, int n, double us, double gap_us, uint64_t bytes,
                      double token_us, double limit)
{
    const double rate = us > 0 ? (double)bytes / us * 1e6 : 0;
    printf("%-14s %7d %9.1f %6.1f%% %8.2f", name, n, us, 100 * us / token_us, gap_us);
    if (bytes > 0)
        printf(" %9.1f %7.0f %7.1f%%", (double)bytes * 1e-6, rate * 1e-9, 100 * rate / limit);
    printf("\n");
}

int bench_profile(session *s, const char *title, const int32_t *ids, int n_id, err_ctx *err)
{
    static gpu_span spans[MAX_SPANS];
    class_row rows[MAX_CLASSES], all = { 0 };
    double limit = 1;
    int n_row = 0;
    const int n = session_profile(s, spans, MAX_SPANS, ids, n_id, &limit, err);
    if (n < 0) return n;

    for (int i = 0; i < n; i++) {
        const gpu_span *x = &spans[i];
        class_row *r = row_of(rows, &n_row, x->name);
        const double us = (double)(x->end_ns - x->ready_ns) * 1e-3;
        const double gap = i > 0 ? ((double)x->ready_ns - (double)spans[i - 1].end_ns) * 1e-3 : 0;
        r->n++;
        r->us += us;
        r->gap_us += gap;
        r->bytes += x->bytes;
        all.us += us;
        all.gap_us += gap;
        all.bytes += x->bytes;
    }
    const double token_us = all.us + all.gap_us;
    printf("\n%s\n", title);
    printf("class          kernels        us   share   gap us        MB    GB/s  of limit\n");
    for (int i = 0; i < n_row; i++)
        print_row(rows[i].name, rows[i].n, rows[i].us, rows[i].gap_us, rows[i].bytes, token_us,
                  limit);
    print_row("gaps", n, all.gap_us, 0, 0, token_us, limit);
    print_row("all", n, token_us, all.gap_us, all.bytes, token_us, limit);
    printf("limit          a kernel that only reads: %.0f GB/s\n", limit * 1e-9);
    return 0;
}
