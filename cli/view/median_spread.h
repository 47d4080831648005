/* median_spread.h - median and spread of repeated measurements. */
#ifndef CLI_VIEW_MEDIAN_SPREAD_H
#define CLI_VIEW_MEDIAN_SPREAD_H

#include <jansson.h>

#include "loader/base.h"

enum { MEDIAN_MAX_RUNS = 1000 };

typedef struct spread {
    int n;
    double median, min, max;
} spread;

/* Of n values, 1 .. MEDIAN_MAX_RUNS, whose order is not changed. */
spread spread_of(const double *values, int n);

/* (max - min) in percent of the median. */
double spread_percent(const spread *s);

/* {"median": , "min": , "max": , "spread_percent": , "runs": [all values]}; NULL without memory. */
json_t *spread_json(const spread *s, const double *values);

#endif
