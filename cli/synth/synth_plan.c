/* synth_plan.c - the contents of a synthetic model file: keys, tensors and their recipes.
 *
 * The family's file chooses tensors and keys. This file lists them, computes the logits b that make
 * experts popular, and fills bytes. Each layer has its own random permutation of experts to
 * popularity ranks.
 *
 * A tensor's bytes depend on seed and name alone: the first layers are the same in files of 4 and
 * of 48 layers. */
#include "cli/synth/synth_plan.h"

#include <math.h>
#include <string.h>

#include "cli/synth/synth_add.h"
#include "cli/synth/synth_popularity.h"

synth_options synth_options_of(const synth_shape *shape)
{
    return (synth_options){ .shape = shape, .n_layer = shape->n_layer, .experts = shape->experts,
                            .dense = shape->dense, .head = shape->head, .seed = 1 };
}

/* ---- skew -------------------------------------------------------------------------------- */

/* logits[l, e]: b of the rank that a permutation gives to e. */
static int make_logits(synth_plan *p)
{
    const int n = p->o.shape->n_expert;
    double *b = mem_array((size_t)n, sizeof *b);
    const uint64_t ranks = random_word(p->o.seed, str_hash(str_from("ranks of layers")));
    p->logits = mem_array((size_t)n * (size_t)p->o.n_layer, sizeof *p->logits);
    if (!b || !p->logits) {
        mem_free(b);
        return err_set(p->err, ERR_NOMEM, "out of memory for %d routers", p->o.n_layer);
    }
    synth_shares(b, n, p->o.shape->n_used, p->o.skew);
    for (int r = 0; r < n; r++) b[r] = -synth_quantile(b[r]);
    for (int l = 0; l < p->o.n_layer; l++) {
        const uint64_t key = ranks + (uint64_t)l;
        float *row = p->logits + (size_t)l * (size_t)n;
        for (int e = 0; e < n; e++) {                /* inside-out shuffle */
            const int k = (int)((random_word(key, (uint64_t)e) >> 32) * (uint64_t)(e + 1) >> 32);
            if (k != e) row[e] = row[k];
            row[k] = (float)b[e];
        }
    }
    mem_free(b);
    return 0;
}

/* ---- all tensors ------------------------------------------------------------------------- */

/* A tied head has small weights, because the model multiplies embedding rows by sqrt(n_embd). With
 * skew and common channels all rows begin with the same values. */
static void add_embedding(synth_plan *p)
{
    const synth_shape *s = p->o.shape;
    const bool tied = s->family->tied;
    const double std = tied ? 1 / sqrt(s->n_embd) : 1;
    synth_part *t = synth_add_matrix(p, -1, "token_embd.weight", tied ? p->o.head : p->o.dense,
                                     tied ? 1 : sqrt(s->n_embd), 2, s->n_embd, s->n_vocab, 1);
    if (p->logits && s->family->common) {
        synth_add_front(p, t, DIR_STD * std);
        t->front_key = random_word(t->key, 1);
        if (p->rc == 0) synth_part_decode(p->dir, t, 0, 0, DIR_COLS);
        for (int c = 0; c < DIR_COLS && tied; c++) p->dir[c] /= (float)std;
    }
}

static int list_tensors(synth_plan *p)
{
    const synth_shape *s = p->o.shape;
    const synth_family *f = s->family;
    if (p->o.skew > 0 && f->common && s->n_embd < 2 * DIR_COLS)
        return err_set(p->err, ERR_RANGE, "%s: skew needs an embedding of %d channels, this has %d",
                       s->name, 2 * DIR_COLS, s->n_embd);
    if (p->o.skew > 0) p->rc = make_logits(p);
    if (p->rc == 0) add_embedding(p);
    for (int l = 0; l < p->o.n_layer + s->n_mtp && p->rc == 0; l++) f->add_layer(p, l);
    if (p->rc < 0) return p->rc;
    if (f->tied)                         /* a norm near 1 would repeat the last token forever */
        synth_add_range(p, -1, "output_norm.weight", -1.7, 1.7, 1, s->n_embd, 1);
    else synth_add_norm(p, -1, "output_norm.weight", s->n_embd);
    if (!f->tied)
        synth_add_matrix(p, -1, "output.weight", p->o.head, 1, 2, s->n_embd, s->n_vocab, 1);
    if (f->add_globals) f->add_globals(p);
    return p->rc;
}

/* ---- creation ---------------------------------------------------------------------------- */

static int build(synth_plan *p, err_ctx *err)
{
    const synth_shape *s = p->o.shape;
    int rc;
    if (p->o.n_layer < 1 || p->o.n_layer > s->n_layer)
        return err_set(err, ERR_RANGE, "%s has %d layers, not %d", s->name, s->n_layer,
                       p->o.n_layer);
    if (p->o.n_layer <= s->n_dense)
        return err_set(err, ERR_RANGE, "%s has no experts in its first %d layers, so %d or more "
                       "are needed", s->name, s->n_dense, s->n_dense + 1);
    if (!(p->w = gguf_writer_create())) return err_set(err, ERR_NOMEM, "out of memory");
    if ((rc = list_tensors(p)) < 0) return rc;
    s->family->list_keys(p);
    rc = synth_vocab_write(p->w, s->family->vocab, s->n_vocab, s->first_special, err);
    if (rc < 0) return rc;
    if ((rc = gguf_write_head(p->w, &p->head, &p->head_bytes, err)) < 0) return rc;
    for (int i = 0; i < p->n_part; i++) {
        p->parts[i].offset = gguf_write_data_at(p->w, i);
        p->parts[i].bytes = gguf_write_data_bytes(p->w, i);
    }
    p->bytes = gguf_write_file_bytes(p->w);
    return 0;
}

int synth_plan_create(synth_plan **out, const synth_options *o, err_ctx *err)
{
    synth_plan *p = mem_zalloc(sizeof *p);
    int rc;
    *out = NULL;
    if (!p) return err_set(err, ERR_NOMEM, "out of memory");
    p->o = *o;
    p->err = err;
    rc = build(p, err);
    p->err = NULL;
    if (rc < 0) {
        synth_plan_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void synth_plan_free(synth_plan *p)
{
    if (!p) return;
    for (int i = 0; i < p->n_maker; i++) mem_free(p->makers[i]);
    mem_free(p->makers);
    mem_free(p->parts);
    mem_free(p->logits);
    for (int i = 0; i < p->n_table; i++) mem_free(p->tables[i]);
    gguf_writer_free(p->w);
    mem_free(p);
}

uint64_t synth_plan_bytes(const synth_plan *p) { return p->bytes; }

int synth_plan_n_tensor(const synth_plan *p) { return p->n_part; }

/* ---- filling ----------------------------------------------------------------------------- */

/* Index of the first part that ends after offset. */
static int find_part(const synth_plan *p, uint64_t offset)
{
    int lo = 0, hi = p->n_part;
    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;
        if (p->parts[mid].offset + p->parts[mid].bytes > offset) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

void synth_plan_fill(const synth_plan *p, uint8_t *out, uint64_t offset, size_t n)
{
    const uint64_t end = offset + n;
    uint64_t pos = offset;

    if (pos < p->head_bytes) {
        const uint64_t take = p->head_bytes - pos < n ? p->head_bytes - pos : n;
        memcpy(out, p->head + pos, (size_t)take);
        pos += take;
    }
    for (int i = find_part(p, pos); i < p->n_part && pos < end && p->parts[i].offset < end; i++) {
        const synth_part *t = &p->parts[i];
        if (t->offset > pos) {                       /* padding before the tensor */
            memset(out + (pos - offset), 0, (size_t)(t->offset - pos));
            pos = t->offset;
        }
        const uint64_t left = t->offset + t->bytes - pos;
        const uint64_t take = left < end - pos ? left : end - pos;
        synth_part_fill(t, out + (pos - offset), pos - t->offset, take);
        pos += take;
    }
    if (pos < end) memset(out + (pos - offset), 0, (size_t)(end - pos));
}
