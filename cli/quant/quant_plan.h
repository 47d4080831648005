/* quant_plan.h - what becomes of every tensor of a model file, and the head of the new one.
 *
 * Made from the bound model alone: no weight is read. A matrix whose class has an asked type gets
 * it, unless its rows are no multiple of the type's block, or it has the type already, or nobody
 * else could read it (an embedding in NVFP4, whose scale other programs do not look for); all else
 * is copied. What is kept although its class was asked for is counted, with the reason. */
#ifndef CLI_QUANT_QUANT_PLAN_H
#define CLI_QUANT_QUANT_PLAN_H

#include "engine/models/model.h"
#include "loader/gguf_write.h"

typedef struct quant_wish {
    const quant_type *experts, *dense, *head;            /* NULL: as they are */
} quant_wish;

typedef enum quant_fate { QUANT_COPY, QUANT_REWRITE, QUANT_DROP } quant_fate;

typedef struct quant_item {
    const tensor *from;
    const tensor *scale;                 /* companion that the old weights are multiplied by, or
                                          * NULL; of matrices alone */
    quant_fate fate;                     /* DROP: companion of a matrix that is rewritten */
    quant_type to;                       /* the old type if COPY */
    model_use use;                       /* USE_COUNT: no matrix */
    bool new_scale;                      /* a companion follows it in the new file: NVFP4 */
    bool own_scale;                      /* its companion is the model's, and stays as it is */
} quant_item;

typedef enum quant_reason { KEPT_COLUMNS, KEPT_SAME, KEPT_EMBEDDING, KEPT_REASONS } quant_reason;
typedef struct quant_kept {
    int n;                               /* matrices */
    const tensor *first;
    quant_type wanted;
} quant_kept;

typedef struct quant_plan {
    quant_item *items;                   /* every tensor, in file order */
    int n_item, n_rewrite;
    int n_out;                           /* tensors of the new file */
    quant_kept kept[USE_COUNT][KEPT_REASONS];
    gguf_writer *head;                   /* tensors in the order of items, companions after them */
    const uint8_t *head_data;
    size_t head_bytes;
    uint64_t file_bytes;                 /* of the new file */
    uint64_t read_bytes;                 /* of tensors that are rewritten or copied */
    uint32_t file_type;                  /* what general.file_type says */
} quant_plan;

/* Borrows m and its file. 0, or < 0 with err filled and nothing to release. */
int quant_plan_make(quant_plan *p, const model *m, const quant_wish *wish, err_ctx *err);
void quant_plan_release(quant_plan *p);

/* The name of a matrix's companion: "<stem>.scale" of "<stem>.weight". */
enum { QUANT_NAME_CAP = TENSOR_MAX_NAME + 32 };
const char *quant_scale_name(char *dst, const tensor *t);

#endif
