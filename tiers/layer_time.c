/* layer_time.c - a layer's time from its experts' places: what overlaps, and what waits. The bytes
 * of the dense weights are the caller's to add: they are the same for every token. */
#include "tiers/layer_time.h"

#include <math.h>

#include "tiers/plan.h"

/* Until the host has answered for n_cold experts: alone, or sharing them with the bus. */
static double cold_time(const layer_experts *e, int n_cold, const speeds *rate)
{
    const double all = n_cold * (double)e->bytes;
    int n_down, n_all;
    plan_fetch(&n_down, &n_all, n_cold, e->bytes, e->down_bytes, rate);
    if (n_down + n_all == 0) return all / rate->cpu;
    const double pulled = n_down * (double)e->down_bytes + n_all * (double)e->bytes;
    return fmax((all - pulled) / rate->cpu_busy, pulled / rate->pull_busy);
}

double layer_time_gpu(const layer_experts *e, int n_cold, const speeds *rate)
{
    const double hot = (e->n_used - n_cold) * (double)e->bytes / rate->vram_read +
                       rate->layer_hot;
    if (n_cold == 0) return rate->layer_dense + hot;
    return rate->layer_dense + fmax(hot, rate->hop + cold_time(e, n_cold, rate));
}

double layer_time_cpu(const layer_experts *e, int n_missed, const speeds *rate)
{
    const double computed = e->n_used * (double)e->bytes / rate->cpu;
    const double read = n_missed * (double)e->bytes / rate->disk;
    return rate->layer_cpu + fmax(computed, read) + (n_missed > 0 ? rate->disk_wait : 0);
}
