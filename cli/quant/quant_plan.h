/* quant_plan.h - decides for each tensor of a model file: copy, rewrite or drop; and makes the head
 * of the new file.
 *
 * Reads no weights. A matrix gets the type requested for its class, except in three cases
 * (quant_reason). All other tensors are copied. The plan counts matrices of a requested class that
 * are kept, by reason. */
#ifndef CLI_QUANT_QUANT_PLAN_H
#define CLI_QUANT_QUANT_PLAN_H

#include "engine/models/model.h"
#include "loader/gguf_write.h"

typedef struct quant_types {
    const quant_type *experts, *dense, *head;            /* NULL: unchanged */
} quant_types;

typedef enum quant_fate { QUANT_COPY, QUANT_REWRITE, QUANT_DROP } quant_fate;

typedef struct quant_item {
    const tensor *from;
    const tensor *scale;                 /* of a matrix: companion by which the old weights are
                                          * multiplied, or NULL */
    quant_fate fate;                     /* DROP: companion of a rewritten matrix */
    quant_type to;                       /* the old type if COPY */
    model_use use;                       /* USE_COUNT: not a matrix */
    bool new_scale;                      /* a companion follows in the new file: NVFP4 */
    bool own_scale;                      /* its companion belongs to the model and is copied */
} quant_item;

/* Why a matrix keeps its type: rows are no multiple of the block; it has the type already; other
 * programs do not look for the scale of an embedding in NVFP4. */
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
    gguf_writer *head;                   /* tensors in order of items, companions after each */
    const uint8_t *head_data;
    size_t head_bytes;
    uint64_t file_bytes;                 /* of the new file */
    uint64_t read_bytes;                 /* of all tensors not dropped */
    uint32_t file_type;                  /* general.file_type */
} quant_plan;

/* Borrows m and its file. 0, or < 0 with err filled and nothing to release. */
int quant_plan_make(quant_plan *p, const model *m, const quant_types *types, err_ctx *err);
void quant_plan_release(quant_plan *p);

/* The name of a matrix's companion: "<stem>.scale" of "<stem>.weight". */
enum { QUANT_NAME_CAP = TENSOR_MAX_NAME + 32 };
const char *quant_scale_name(char *dst, const tensor *t);

#endif
