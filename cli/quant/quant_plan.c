/* quant_plan.c - decides for every tensor, then lays out the new file.
 *
 * The old file's order is kept, so that two new files can be compared tensor by tensor. A split
 * model becomes one file. */
#include "cli/quant/quant_plan.h"

#include <stdio.h>
#include <string.h>


/* ---- copy, rewrite or drop ------------------------------------------------------------------- */

typedef struct decision_context {
    quant_plan *p;
    const model *m;
    const quant_types *types;
} decision_context;

static quant_item *item_of(const quant_plan *p, const tensor *t)
{
    for (int i = 0; i < p->n_item; i++)
        if (p->items[i].from == t) return &p->items[i];
    return NULL;
}

static const quant_type *requested_type(const decision_context *d, model_use use)
{
    switch (use) {
    case USE_EXPERT_GATE:
    case USE_EXPERT_UP:
    case USE_EXPERT_GATE_UP:
    case USE_EXPERT_DOWN: return d->types->experts;
    case USE_HEAD: return d->types->head;
    case USE_EMBED: return d->m->head_tied && d->types->head ? d->types->head : d->types->dense;
    default: return d->types->dense;
    }
}

static void decide(void *ctx, const tensor *t, const tensor *scale, model_use use)
{
    decision_context *d = ctx;
    quant_item *it = item_of(d->p, t);
    const quant_type *to = requested_type(d, use);
    it->use = use;
    it->scale = scale;
    if (!to) return;
    const bool fits = t->cols % (uint64_t)quant_traits_of((uint32_t)*to)->block_elems == 0;
    const bool table = use == USE_EMBED && *to == QT_NVFP4;
    if (t->type == *to || !fits || table) {
        quant_kept *k = &d->p->kept[use][t->type == *to ? KEPT_SAME : table ? KEPT_EMBEDDING :
                                         KEPT_COLUMNS];
        if (k->n++ == 0) k->first = t;
        k->wanted = *to;
        return;
    }
    it->fate = QUANT_REWRITE;
    it->to = *to;
    it->new_scale = *to == QT_NVFP4;
    /* NVFP4 weights are rewritten with their companion. Other companions are factors of the model
     * (gemma4), which other programs read. */
    it->own_scale = scale && t->type != QT_NVFP4 && !it->new_scale;
    if (it->own_scale) it->scale = NULL;
    d->p->n_rewrite++;
}

static int stem_of(const tensor *t)
{
    const int len = (int)t->name.len;
    return str_ends(t->name, ".weight") ? len - (int)strlen(".weight") : len;
}

const char *quant_scale_name(char *dst, const tensor *t)
{
    snprintf(dst, QUANT_NAME_CAP, "%.*s.scale", stem_of(t), t->name.ptr);
    return dst;
}

/* Companions of the old weights do not apply to the new ones. */
static void drop_companions(const quant_plan *p, const gguf *g, const quant_item *it)
{
    static const char *const endings[] = { ".input_scale", ".scale" };
    const size_t n = it->own_scale ? 1 : ARRAY_LEN(endings);
    const tensor *t = it->from;
    const int stems[] = { stem_of(t), (int)t->name.len };
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < ARRAY_LEN(stems); k++) {
            char name[QUANT_NAME_CAP];
            snprintf(name, sizeof name, "%.*s%s", stems[k], t->name.ptr, endings[i]);
            const tensor *c = gguf_tensor(g, name);
            if (c) item_of(p, c)->fate = QUANT_DROP;
        }
}

/* ---- the new file's head --------------------------------------------------------------------- */

/* general.file_type of a file that is mostly of this type, or -1. All Q4_K is the format's "small"
 * mix. */
static int file_type_of(quant_type type)
{
    switch (type) {
    case QT_Q8_0: return 7;
    case QT_Q4_K: return 14;
    case QT_BF16: return 32;
    case QT_MXFP4: return 38;
    case QT_NVFP4: return 39;
    default: return -1;
    }
}

/* The type of most weights of the new file. */
static quant_type main_type(const quant_plan *p)
{
    uint64_t weights[QT_COUNT] = { 0 };
    int most = 0;
    for (int i = 0; i < p->n_item; i++)
        if (p->items[i].use != USE_COUNT) weights[p->items[i].to] += p->items[i].from->elems;
    for (int t = 1; t < QT_COUNT; t++) if (weights[t] > weights[most]) most = t;
    return (quant_type)most;
}

static bool is_ours(str_view key)
{
    return str_is(key, "general.file_type") || str_is(key, "general.quantization_version") ||
           str_starts(key, "split.");
}

/* Copies all keys but those about types and about the parts of a split file. */
static void write_keys(quant_plan *p, const gguf *g)
{
    const gguf_kv *old = gguf_find(g, "general.file_type");
    const int type = file_type_of(main_type(p));
    int64_t file_type = -1;
    for (int i = 0; i < gguf_n_kv(g); i++) {
        const gguf_kv *kv = gguf_kv_at(g, i);
        if (!is_ours(kv->key)) gguf_write_copy(p->head, kv);
    }
    if (old && !old->is_array) gguf_kv_int(&file_type, old, 0);
    if (type >= 0) file_type = type;
    if (file_type >= 0 && file_type <= UINT32_MAX) {
        gguf_write_u32(p->head, "general.file_type", (uint32_t)file_type);
        p->file_type = (uint32_t)file_type;
    }
    gguf_write_u32(p->head, "general.quantization_version", 2);
}

/* ne in GGUF's order: n_dims numbers, contiguous dimension first. */
static void write_tensor(quant_plan *p, const quant_item *it)
{
    const tensor *t = it->from;
    const uint64_t ne[TENSOR_MAX_DIMS] = { t->cols, t->rows, t->slabs / t->outer, t->outer };
    char name[QUANT_NAME_CAP];
    snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.ptr);
    gguf_write_tensor(p->head, name, it->to, ne, t->n_dims);
    p->n_out++;
    if (!it->new_scale) return;
    gguf_write_tensor(p->head, quant_scale_name(name, t), QT_F32, &t->slabs, 1);
    p->n_out++;
}

static int check_names(const quant_plan *p, err_ctx *err)
{
    for (int i = 0; i < p->n_item; i++) {
        const tensor *t = p->items[i].from;
        char shown[128];
        if (memchr(t->name.ptr, '\0', t->name.len))
            return err_set(err, ERR_FORMAT, "tensor %s: a zero byte in its name",
                           ESC(shown, t->name));
        if (p->items[i].new_scale && stem_of(t) + strlen(".scale") > TENSOR_MAX_NAME)
            return err_set(err, ERR_UNSUPPORTED, "tensor %s: its name is too long for a companion",
                           ESC(shown, t->name));
    }
    return 0;
}

static int write_head(quant_plan *p, const gguf *g, err_ctx *err)
{
    int rc = check_names(p, err);
    if (rc < 0) return rc;
    if (!(p->head = gguf_writer_create()))
        return err_set(err, ERR_NOMEM, "no memory for the head of the new file");
    write_keys(p, g);
    for (int i = 0; i < p->n_item; i++) {
        if (p->items[i].fate == QUANT_DROP) continue;
        write_tensor(p, &p->items[i]);
        p->read_bytes += p->items[i].from->bytes;
    }
    rc = gguf_write_head(p->head, &p->head_data, &p->head_bytes, err);
    if (rc == 0) p->file_bytes = gguf_write_file_bytes(p->head);
    return rc;
}

int quant_plan_make(quant_plan *p, const model *m, const quant_types *types, err_ctx *err)
{
    decision_context d = { p, m, types };
    *p = (quant_plan){ .n_item = gguf_n_tensor(m->file) };
    if (!(p->items = mem_array((size_t)p->n_item, sizeof *p->items)))
        return err_set(err, ERR_NOMEM, "no memory for a list of %d tensors", p->n_item);
    for (int i = 0; i < p->n_item; i++) {
        const tensor *t = gguf_tensor_at(m->file, i);
        p->items[i] = (quant_item){ .from = t, .to = t->type, .use = USE_COUNT };
    }
    model_visit_matrices(m, decide, &d);
    for (int i = 0; i < p->n_item; i++)
        if (p->items[i].fate == QUANT_REWRITE) drop_companions(p, m->file, &p->items[i]);
    const int rc = write_head(p, m->file, err);
    if (rc < 0) quant_plan_release(p);
    return rc;
}

void quant_plan_release(quant_plan *p)
{
    gguf_writer_free(p->head);
    mem_free(p->items);
    *p = (quant_plan){ .n_item = 0 };
}
