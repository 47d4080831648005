/* quant_report.h - reports a conversion, or a dry run: a table or one JSON object on stdout, and on
 * stderr lines about matrices that keep their type. */
#ifndef CLI_QUANT_QUANT_REPORT_H
#define CLI_QUANT_QUANT_REPORT_H

#include "cli/quant/quant_check.h"
#include "cli/quant/quant_file.h"

typedef struct quant_report {
    const char *from, *to;               /* paths */
    uint64_t old_bytes;
    const quant_plan *plan;
    const quant_result *result;
    const quant_check *check;            /* NULL: not requested */
    bool written;                        /* false: a dry run, whose errors are unknown */
    bool weighted;                       /* by an importance file */
} quant_report;

/* Prints why matrices of a requested class are kept: a line for each class whose rows do not fit,
 * and one for all that have the type already. */
void quant_report_kept(const quant_plan *p);

/* The exit code. */
int quant_report_print(const quant_report *r, bool json);

#endif
