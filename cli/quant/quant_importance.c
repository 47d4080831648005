/* quant_importance.c - a strict reader of importance matrices. Data stays in the mapped file. */
#include "cli/quant/quant_importance.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "loader/bytes.h"

struct quant_importance {
    gguf *file;
};

enum { NAME_CAP = TENSOR_MAX_NAME + 16 };
static const char sums[] = ".in_sum2", counts[] = ".counts";

/* A matrix's tensor with that ending, or NULL. */
static const tensor *entry(const quant_importance *q, str_view name, const char *ending)
{
    char text[NAME_CAP];
    if (name.len > TENSOR_MAX_NAME || memchr(name.ptr, '\0', name.len)) return NULL;
    snprintf(text, sizeof text, "%.*s%s", (int)name.len, name.ptr, ending);
    return gguf_tensor(q->file, text);
}

/* ---- checking -------------------------------------------------------------------------------- */

static int check_values(const tensor *t, err_ctx *err)
{
    char shown[128];
    for (uint64_t i = 0; i < t->elems; i++) {
        const float v = load_f32(t->data + 4 * i);
        if (isfinite(v) && v >= 0.0f) continue;
        return err_set(err, ERR_FORMAT, "tensor %s: value %" PRIu64 " is %g; it must be finite and "
                       "not negative", ESC(shown, t->name), i, (double)v);
    }
    return 0;
}

static int check_tensor(const quant_importance *q, const tensor *t, err_ctx *err)
{
    const bool is_sums = str_ends(t->name, sums), is_counts = str_ends(t->name, counts);
    const char *ending = is_sums ? sums : counts, *partner = is_sums ? counts : sums;
    char shown[128];
    ESC(shown, t->name);
    if (!is_sums && !is_counts)
        return err_set(err, ERR_FORMAT, "tensor %s: an importance matrix has only NAME.in_sum2 and "
                       "NAME.counts", shown);
    if (t->type != QT_F32)
        return err_set(err, ERR_FORMAT, "tensor %s is %s, expected F32", shown,
                       quant_name((uint32_t)t->type));
    const str_view stem = { t->name.ptr, t->name.len - strlen(ending) };
    const tensor *other = entry(q, stem, partner);
    if (!other)
        return err_set(err, ERR_FORMAT, "tensor %s comes without its %s", shown, partner);
    if (t->slabs != 1)
        return err_set(err, ERR_FORMAT, "tensor %s has %d dimensions, expected 2", shown,
                       t->n_dims);
    if (is_sums && other->elems != t->rows)
        return err_set(err, ERR_FORMAT, "tensor %s has %" PRIu64 " rows and %" PRIu64 " counts",
                       shown, t->rows, other->elems);
    return check_values(t, err);
}

static int check(const quant_importance *q, err_ctx *err)
{
    const int n = gguf_n_tensor(q->file);
    str_view type = { "", 0 };
    int rc = gguf_get_str(&type, q->file, "general.type", err);
    char shown[64];
    if (rc < 0) return rc;
    if (!str_is(type, "imatrix"))
        return err_set(err, ERR_FORMAT, "not an importance matrix: general.type is '%s', expected "
                       "'imatrix'", ESC(shown, type));
    if (n == 0) return err_set(err, ERR_FORMAT, "an importance matrix without tensors");
    for (int i = 0; i < n; i++)
        if ((rc = check_tensor(q, gguf_tensor_at(q->file, i), err)) < 0) return rc;
    return 0;
}

int quant_importance_open(quant_importance **out, const char *path, err_ctx *err)
{
    quant_importance *q = mem_zalloc(sizeof *q);
    *out = NULL;
    if (!q) return err_set(err, ERR_NOMEM, "no memory for an importance matrix");
    int rc = gguf_open(&q->file, path, err);
    if (rc == 0) rc = check(q, err);
    if (rc == 0) *out = q;
    else quant_importance_close(q);
    return rc;
}

void quant_importance_close(quant_importance *q)
{
    if (!q) return;
    gguf_close(q->file);
    mem_free(q);
}

/* ---- reading --------------------------------------------------------------------------------- */

int quant_importance_has(const quant_importance *q, const tensor *t, err_ctx *err)
{
    const tensor *s = entry(q, t->name, sums);
    char shown[128];
    if (!s) return 0;
    if (s->cols == t->cols && s->rows == t->slabs) return 1;
    return err_set(err, ERR_FORMAT, "%s has %" PRIu64 " columns in %" PRIu64 " matrices, the "
                   "model's has %" PRIu64 " in %" PRIu64 ": made for another model?",
                   ESC(shown, s->name), s->cols, s->rows, t->cols, t->slabs);
}

bool quant_importance_row(float *dst, const quant_importance *q, const tensor *t, uint64_t slab)
{
    const tensor *s = entry(q, t->name, sums), *n = entry(q, t->name, counts);
    double total = 0;
    if (!s || load_f32(n->data + 4 * slab) == 0.0f) return false;
    const uint8_t *row = s->data + slab * s->row_bytes;
    for (uint64_t c = 0; c < t->cols; c++) total += (double)load_f32(row + 4 * c);
    if (!(total > 0)) return false;
    for (uint64_t c = 0; c < t->cols; c++)
        dst[c] = (float)((double)load_f32(row + 4 * c) * (double)t->cols / total);
    return true;
}
