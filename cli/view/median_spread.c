/* median_spread.c - median and spread of a few measurements. */
#include "cli/view/median_spread.h"

#include <string.h>

#include "cli/console.h"

spread spread_of(const double *values, int n)
{
    double v[MEDIAN_MAX_RUNS];
    spread s = { .n = n };

    memcpy(v, values, (size_t)n * sizeof *v);
    sort_doubles(v, n);
    s.min = v[0];
    s.max = v[n - 1];
    s.median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    return s;
}

double spread_percent(const spread *s)
{
    return s->median > 0 ? 100 * (s->max - s->min) / s->median : 0;
}

json_t *spread_json(const spread *s, const double *values)
{
    json_t *runs = json_array();

    for (int i = 0; i < s->n; i++) runs = console_append(runs, json_real(values[i]));
    return json_pack("{s:f, s:f, s:f, s:f, s:o}", "median", s->median, "min", s->min,
                     "max", s->max, "spread_percent", spread_percent(s), "runs", runs);
}
