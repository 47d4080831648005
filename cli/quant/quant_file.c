/* quant_file.c - writes the head, then each tensor with padding up to the next one.
 *
 * Everything is written in order, companions directly after their matrices, so the file grows
 * without gaps. Pages of the old file are released after use, so that they do not fill RAM. */
#include "cli/quant/quant_file.h"


#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/output_file.h"
#include "tiers/page_advice.h"

enum { COPY_BYTES = 8 << 20 };

typedef struct writing {
    const quant_plan *p;
    output_file out;
    quant_convert *convert;
    progress bar;
    uint64_t done;                       /* bytes of the old file that are converted */
    const uint8_t *old;                  /* the old bytes after these */
    uint64_t offset;                     /* in the new file */
    int index;                           /* of the new file's next tensor */
    bool at_output;                      /* see quant_file_write */
} writing;

void quant_result_expect(quant_result *r, const quant_plan *p)
{
    *r = (quant_result){ .ns = 0 };
    for (int i = 0; i < p->n_item; i++) {
        const quant_item *it = &p->items[i];
        const tensor *t = it->from;
        if (it->fate != QUANT_REWRITE) continue;
        quant_class *k = &r->of[it->use];
        if (k->n++ == 0) k->from = t->type;
        k->mixed |= k->from != t->type;
        k->to = it->to;
        k->weights += t->elems;
        k->old_bytes += t->bytes + (it->scale ? it->scale->bytes : 0);
        k->new_bytes += quant_row_bytes(quant_traits_of((uint32_t)it->to), t->elems) +
                        (it->new_scale ? 4 * t->slabs : 0);
    }
}

static int put(writing *w, const void *data, size_t bytes, err_ctx *err)
{
    const int rc = output_file_write(&w->out, data, bytes, err);
    w->at_output = rc < 0;
    w->offset += bytes;
    return rc;
}

/* Writes new bytes, which replace `done` bytes of the old file. */
static int put_converted(void *ctx, const void *data, size_t bytes, uint64_t done, err_ctx *err)
{
    writing *w = ctx;
    if (interrupted()) return err_set(err, ERR_STOPPED, "interrupted");
    const int rc = put(w, data, bytes, err);
    pages_forget(w->old, done);
    w->old += done;
    w->done += done;
    progress_update(&w->bar, w->done);
    return rc;
}

/* Writes zeros up to the next tensor, or to the end of the file. */
static int put_padding(writing *w, err_ctx *err)
{
    static const uint8_t zeros[4096];
    const uint64_t to = w->index < w->p->n_out ? gguf_write_data_at(w->p->head, w->index)
                                               : w->p->file_bytes;
    int rc = 0;
    while (rc == 0 && w->offset < to) {
        const uint64_t left = to - w->offset;
        rc = put(w, zeros, left < sizeof zeros ? (size_t)left : sizeof zeros, err);
    }
    return rc;
}

static int copy_tensor(writing *w, const tensor *t, err_ctx *err)
{
    for (uint64_t at = 0; at < t->bytes; at += COPY_BYTES) {
        const uint64_t left = t->bytes - at, n = left < COPY_BYTES ? left : COPY_BYTES;
        const int rc = put_converted(w, t->data + at, (size_t)n, n, err);
        if (rc < 0) return rc;
    }
    return 0;
}

static int rewrite_tensor(writing *w, const quant_item *it, quant_result *r, err_ctx *err)
{
    const uint64_t n = it->new_scale ? it->from->slabs : 0;
    float *scales = mem_array((size_t)n + 1, sizeof *scales);
    if (!scales) return err_set(err, ERR_NOMEM, "no memory for the scales of a tensor");
    int rc = quant_convert_run(w->convert, it, &r->of[it->use].error, scales, put_converted, w,
                               err);
    if (rc == 0) w->index++;
    if (rc == 0 && n > 0 && (rc = put_padding(w, err)) == 0) {
        rc = put(w, scales, (size_t)n * sizeof *scales, err);
        w->index++;
    }
    mem_free(scales);
    return rc;
}

static int write_tensors(writing *w, quant_result *r, err_ctx *err)
{
    int rc = put(w, w->p->head_data, w->p->head_bytes, err);
    for (int i = 0; i < w->p->n_item && rc == 0; i++) {
        const quant_item *it = &w->p->items[i];
        if (it->fate == QUANT_DROP) continue;
        w->old = it->from->data;
        if (it->fate == QUANT_REWRITE) rc = rewrite_tensor(w, it, r, err);
        else if ((rc = copy_tensor(w, it->from, err)) == 0) w->index++;
        if (rc == 0) rc = put_padding(w, err);
    }
    return rc;
}

int quant_file_write(quant_result *r, bool *at_output, const char *path, const quant_plan *p,
                     const quant_importance *importance, pool *team, err_ctx *err)
{
    const uint64_t start = clock_ns();
    writing w = { .p = p };
    int rc = quant_convert_create(&w.convert, p, importance, team, err);
    if (rc == 0) w.at_output = (rc = output_file_open_new(&w.out, path, p->file_bytes, err)) < 0;
    if (rc == 0) {
        progress_begin(&w.bar, "quantising", p->read_bytes);
        rc = write_tensors(&w, r, err);
        progress_end(&w.bar);
    }
    if (rc == 0) w.at_output = (rc = output_file_finish(&w.out, err)) < 0;
    output_file_drop(&w.out);
    quant_convert_free(w.convert);
    r->ns = clock_ns() - start;
    *at_output = w.at_output;
    return rc;
}
