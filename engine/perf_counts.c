/* perf_counts.c - bounds for an overlap that no clock measures directly. */
#include "engine/perf_counts.h"

#include <math.h>

void perf_overlap(double *least, double *most, double fetch_s, double busy_s, double unsure_s)
{
    *most = fmax(0, fmin(fetch_s, busy_s));
    *least = fmin(*most, fmax(0, fetch_s - fmax(0, unsure_s)));
}
