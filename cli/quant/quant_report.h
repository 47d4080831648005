/* quant_report.h - what was, or would be, made of a model: a table, or one JSON object, on stdout;
 * lines about what stayed as it was, on stderr. */
#ifndef CLI_QUANT_QUANT_REPORT_H
#define CLI_QUANT_QUANT_REPORT_H

#include "cli/quant/quant_check.h"
#include "cli/quant/quant_file.h"

typedef struct quant_report {
    const char *from, *to;               /* paths */
    uint64_t old_bytes;
    const quant_plan *plan;
    const quant_result *result;
    const quant_check *check;            /* NULL: nobody asked */
    bool written;                        /* false: nothing was, so there are no errors */
    bool weighted;                       /* by an importance file */
} quant_report;

/* Why matrices of an asked class are kept: a line for each class whose rows do not fit, and one
 * about all that have the type already. */
void quant_report_kept(const quant_plan *p);

/* The exit code. */
int quant_report_print(const quant_report *r, bool json);

#endif
