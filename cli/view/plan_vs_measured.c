/* plan_vs_measured.c - finds the term of the plan that a slow answer exceeds most.
 *
 * Compares each measured part of a token (device, CPU, wait for the drive) with the plan's term for
 * it. The largest excess is named if it explains a quarter of the missing time. */
#include "cli/view/plan_vs_measured.h"
#include "engine/session/runner.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

static const double SLOWER = 0.75;       /* of the expected speed: less is not noise */
static const double UNEVEN = 1.25;       /* times the misses of a uniform choice of experts */
static const double EXPLAINS = 0.25;     /* of the missing time: a cause accounts for as much */
static const double MANY_LATE = 0.25;    /* of the fetched matrices */

/* The best explanation so far. */
typedef struct cause {
    double excess_s;                     /* per token, beyond the plan */
    char text[200];
} cause;

static void consider(cause *best, double excess_s, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void consider(cause *best, double excess_s, const char *fmt, ...)
{
    va_list ap;
    if (excess_s <= best->excess_s) return;
    best->excess_s = excess_s;
    va_start(ap, fmt);
    vsnprintf(best->text, sizeof best->text, fmt, ap);
    va_end(ap);
}

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

/* Tokens whose questions were counted: those computed one at a time. */
static double asked_tokens(const plan_counts *counts)
{
    return counts->host.tokens > 0 ? (double)counts->host.tokens : counts->tokens;
}

static void consider_cpu(cause *best, double excess_s, double rate, double planned)
{
    consider(best, excess_s, "the CPU read weights at %.1f GB/s instead of %.1f (other programs "
             "may use its memory or cores)", rate * 1e-9, planned * 1e-9);
}

static void consider_device(cause *best, double s, double planned_s)
{
    consider(best, s - planned_s, "the GPU took %.1f ms per token for its part instead of %.1f "
             "(a long context, or other programs on it)", s * 1e3, planned_s * 1e3);
}

/* The CPU computed more of the experts' bytes than planned. */
static void consider_share(cause *best, double excess_s, const plan *p, const plan_counts *counts)
{
    const expert_server_stats *c = &counts->host;
    const double late = ratio((double)c->late, (double)c->down_fetched);
    if (late > MANY_LATE)
        consider(best, excess_s,
                 "%.0f%% of the fetched matrices came too late: the bus carried "
                 "%.1f GB/s instead of %.1f",
                 late * 100, ratio((double)c->pull_bytes, c->pull_s) * 1e-9,
                 p->rate.pull_busy * 1e-9);
    else if (p->t_pull > 0 && !c->fetching)
        consider(best, excess_s, "post-fetch is off after its trial");
    else
        consider(best, excess_s, "the CPU computed %.0f MB of experts per token, %.0f were "
                 "expected", (double)c->cpu_bytes / asked_tokens(counts) * 1e-6,
                 p->t_cpu * (p->t_pull > 0 ? p->rate.cpu_busy : p->rate.cpu) * 1e-6);
}

/* With a GPU: the time of its questions separates device and CPU. */
static void consider_both(cause *best, const plan *p, const plan_counts *counts)
{
    const expert_server_stats *c = &counts->host;
    const double n = asked_tokens(counts);
    const double planned_rate = c->pull_bytes > 0 ? p->rate.cpu_busy : p->rate.cpu;
    const double waited_s = fmin(counts->store.wait_s, c->cpu_s);
    const double cpu_s = (c->cpu_s - waited_s) / n, bytes = (double)c->cpu_bytes / n;
    const double usual_s = ratio(bytes, planned_rate);   /* for the measured bytes */
    consider_device(best, c->ask_s / n, p->t_dense + p->t_hot + p->t_hop);
    consider_share(best, usual_s - p->t_cpu, p, counts);
    consider_cpu(best, cpu_s - usual_s, ratio(bytes, cpu_s), planned_rate);
}

/* The CPU alone: all time except waiting for the drive. */
static void consider_alone(cause *best, const plan *p, const plan_counts *counts)
{
    const double planned_s = p->t_dense + p->t_cpu;
    const double s = (counts->seconds - counts->store.wait_s) / counts->tokens;
    consider_cpu(best, s - planned_s, ratio(planned_s * p->rate.cpu, s), p->rate.cpu);
}

/* The CPU's work hides a part of the drive's time; the rest is waiting. */
static void consider_drive(cause *best, const plan *p, const plan_counts *counts)
{
    const store_stats *st = &counts->store;
    const double wait_s = st->wait_s / counts->tokens, planned_s = fmax(0, p->t_disk - p->t_cpu);
    const double missed = ratio((double)st->misses, (double)(st->hits + st->misses));
    const double cold = (double)(p->drive.experts + p->ram.experts);
    const double even = ratio((double)p->drive.experts, cold);
    const double rate = ratio((double)st->read_bytes, st->wait_s);       /* at most */
    if (missed > UNEVEN * even)
        consider(best, wait_s - planned_s,
                 "%.0f%% of the experts were read from the drive, %.0f%% were "
                 "expected",
                 missed * 100, even * 100);
    else if (rate < p->rate.disk)
        consider(best, wait_s - planned_s, "the drive gave %.2f GB/s instead of %.2f", rate * 1e-9,
                 p->rate.disk * 1e-9);
    else
        consider(best, wait_s - planned_s,
                 "each token waited %.1f ms for the drive instead of %.1f", wait_s * 1e3,
                 planned_s * 1e3);
}

const char *plan_vs_measured_line(char *dst, size_t cap, const plan *p, const plan_counts *counts)
{
    cause best = { 0 };
    dst[0] = '\0';
    if (counts->tokens < 1 || !(counts->seconds > 0) || !(p->decode_tok_s > 0)) return dst;
    const double rate = counts->tokens / counts->seconds, want = p->decode_tok_s;
    if (rate >= SLOWER * want) return dst;
    if (!p->gpu) consider_alone(&best, p, counts);
    else if (counts->host.questions > 0) consider_both(&best, p, counts);
    else consider_device(&best, counts->seconds / counts->tokens, p->t_dense + p->t_hot);
    if (p->drive.experts > 0) consider_drive(&best, p, counts);
    if (best.excess_s < EXPLAINS * (1 / rate - 1 / want))
        snprintf(best.text, sizeof best.text, "of a long context or other programs: no "
                 "measured part is much slower than planned");
    snprintf(dst, cap, "slower than expected: %.1f instead of %.1f tok/s, because %s", rate, want,
             best.text);
    return dst;
}

bool plan_vs_measured_has_tiers(const plan *p)
{
    return p->gpu || p->drive.experts > 0;
}

/* ---- watching an answer ---------------------------------------------------------------------- */

void plan_counts_subtract(plan_counts *counts, const plan_counts *before)
{
    expert_server_stats *h = &counts->host;
    store_stats *st = &counts->store;
    h->questions -= before->host.questions;
    h->down_fetched -= before->host.down_fetched;
    h->late -= before->host.late;
    h->cpu_bytes -= before->host.cpu_bytes;
    h->pull_bytes -= before->host.pull_bytes;
    h->ask_s -= before->host.ask_s;
    h->cpu_s -= before->host.cpu_s;
    h->pull_s -= before->host.pull_s;
    st->hits -= before->store.hits;
    st->misses -= before->store.misses;
    st->read_bytes -= before->store.read_bytes;
    st->wait_s -= before->store.wait_s;
}

void plan_watch_begin(plan_watch *w, const plan *p, bool measured, session *s)
{
    *w = (plan_watch){ .p = measured && plan_vs_measured_has_tiers(p) ? p : NULL, .s = s };
}

void plan_watch_output_wait(plan_watch *w, uint64_t ns)
{
    w->output_wait_ns += ns;
}

void plan_watch_token(plan_watch *w)
{
    if (!w->p || ++w->n_token > PLAN_WATCH_TOKENS) return;
    if (w->n_token == PLAN_WATCH_FROM) {
        runner_counts(session_runner(w->s), &w->before.host, &w->before.store);
        w->output_wait_ns = 0;
        w->from_ns = clock_ns();
    }
    if (w->n_token < PLAN_WATCH_TOKENS) return;
    plan_counts counts = { .tokens = PLAN_WATCH_TOKENS - PLAN_WATCH_FROM };
    counts.seconds = (double)(clock_ns() - w->from_ns - w->output_wait_ns) * 1e-9;
    runner_counts(session_runner(w->s), &counts.host, &counts.store);
    plan_counts_subtract(&counts, &w->before);
    plan_vs_measured_line(w->line, sizeof w->line, w->p, &counts);
}
