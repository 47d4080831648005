/* split_border.c - the border between experts that cross the bus and those that the cores compute.
 *
 * All experts of a layer have the same size, so copying the expert with most slots saves the cores
 * most time: in a list sorted by slots the best division is a border. Moving it by one expert makes
 * one side longer and the other shorter, so the best border is where both times are equal. */
#include "moe/split_border.h"

#include <math.h>
#include <stdlib.h>

/* Weight of a new measurement: four layers replace most of the old estimate, and one disturbed
 * layer moves the border little. */
#define NEWS 0.4
/* Limit of a single layer's change: a page fault or a sleeping thread is not a speed. */
#define FARTHEST 4.0
/* A bus that finishes before the cores gets more bytes: its speed can only be measured when it is
 * the slower side. */
#define A_LITTLE_MORE 1.05
/* Fraction of the difference to the plan's speed, for each idle layer. */
#define BACK 0.05

double split_border_cores_s(const split_layer *l, const split_speeds *r, int n, double slots)
{
    if (n == 0) return 0.0;
    if (!(r->read > 0) || !(r->many > 0)) return INFINITY;
    return n * l->bytes / r->read + slots * l->macs / r->many;
}

double split_border_device_s(const split_layer *l, const split_speeds *r, int n, double slots)
{
    const double products = r->gpu > 0 ? (l->vram_slots + slots) * l->macs / r->gpu : 0.0;
    if (n == 0) return products;
    if (!(r->bus > 0)) return INFINITY;
    return fmax(n * l->bytes / r->bus, products);
}

static int by_key(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int split_border_sort(int32_t *list, const int32_t *counts, const bool *in_vram, int n_expert)
{
    /* the count, turned round, above the number: at most 1024 experts, 2^20 slots */
    enum { NUMBER = 1 << 10, MOST = (1 << 20) - 1 };
    int n = 0;
    for (int e = 0; e < n_expert; e++)
        if (counts[e] > 0 && !in_vram[e])
            list[n++] = (MOST - min_int(counts[e], MOST)) * NUMBER + e;
    qsort(list, (size_t)n, sizeof *list, by_key);
    for (int i = 0; i < n; i++) list[i] %= NUMBER;
    return n;
}

int split_border_of(const split_layer *l, const split_speeds *r, const int32_t *list,
                    const int32_t *counts, int n)
{
    const bool cores = r->read > 0 && r->many > 0, bus = r->bus > 0;
    double left = 0, sent = 0, best = INFINITY;
    int at = cores ? 0 : n;
    if (!cores || !bus) return at;
    for (int i = 0; i < n; i++) left += counts[list[i]];
    for (int b = 0;; b++) {              /* b experts cross */
        const double device = split_border_device_s(l, r, b, sent);
        const double t = fmax(device, split_border_cores_s(l, r, n - b, left));
        if (left <= (double)l->most_slots && t < best) {
            best = t;
            at = b;
        }
        if (b == n || (isfinite(best) && device >= best)) return at;
        left -= counts[list[b]];
        sent += counts[list[b]];
    }
}

/* ---- what a layer taught --------------------------------------------------------------------- */

/* Moves a speed towards what was seen: `factor` times as fast. */
static double learnt(double speed, double factor)
{
    return speed * exp(NEWS * log(fmin(fmax(factor, 1 / FARTHEST), FARTHEST)));
}

void split_border_saw_cores(split_speeds *r, const split_layer *l, int n, double slots, double s)
{
    const double expected = split_border_cores_s(l, r, n, slots);
    if (n == 0 || !(s > 0) || !(expected > 0) || !isfinite(expected)) return;
    r->read = learnt(r->read, expected / s);
    r->many = learnt(r->many, expected / s);
}

void split_border_saw_bus(split_speeds *r, double bytes, double s, bool exact)
{
    if (!(bytes > 0) || !(s > 0) || !(r->bus > 0)) return;
    const double seen = learnt(r->bus, bytes / s / r->bus);
    r->bus = exact ? seen : fmax(seen, r->bus * A_LITTLE_MORE);
}

static double towards(double speed, double plan)
{
    return speed > 0 && plan > 0 ? speed * exp(BACK * log(plan / speed)) : speed;
}

void split_border_rested(split_speeds *r, const split_speeds *plan, bool bus, bool cores)
{
    if (bus) r->bus = towards(r->bus, plan->bus);
    if (cores) r->read = towards(r->read, plan->read);
    if (cores) r->many = towards(r->many, plan->many);
}
