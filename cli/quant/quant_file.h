/* quant_file.h - writes the new model file that a plan describes.
 *
 * The file gets its name when it is complete and on the disk. A failure removes the incomplete
 * file. An existing file is never overwritten. */
#ifndef CLI_QUANT_QUANT_FILE_H
#define CLI_QUANT_QUANT_FILE_H

#include "cli/quant/quant_convert.h"

/* The rewritten matrices of one use. */
typedef struct quant_class {
    int n;
    quant_type from, to;
    bool mixed;                          /* from is the first of several types */
    uint64_t weights, old_bytes, new_bytes;
    quant_error error;
} quant_class;

typedef struct quant_result {
    quant_class of[USE_COUNT];
    uint64_t ns;
} quant_result;

/* Fills all fields but the errors from the plan. */
void quant_result_expect(quant_result *r, const quant_plan *p);

/* Writes the file, with a progress bar, and adds the errors to r. ERR_STOPPED if interrupted().
 * *at_output: the failure concerns the new file, not the old one. */
int quant_file_write(quant_result *r, bool *at_output, const char *path, const quant_plan *p,
                     const quant_importance *importance, pool *team, err_ctx *err);

#endif
