/* router_ahead.c - copies of the next layer's routers, modified to read this layer's vectors.
 *
 * The input of a layer's experts is x = h / rms(h) * norm. The next layer's router has a norm of
 * its own, so column c of its copy is multiplied by next_norm[c] / norm[c]. 16 bits are enough for
 * a prediction, and rms(h), which scales all scores alike, does not matter. Biases do not
 * change. */
#include "engine/host/router_ahead.h"

#include <string.h>

#include "moe/router.h"

struct router_ahead {
    const ops *o;
    const weights *w;                    /* borrowed */
    int n_layer, n_expert, k;
    router_rule rule;
    matrix *routers;                     /* [n_layer]: of the layer after; data NULL: none */
    uint16_t *rows;                      /* their data */
    float *scores, *gates;
    int32_t *ids;
    expert_predictor predictor;
};

/* ---- routers --------------------------------------------------------------------------------- */

static bool can_predict(const model_hparams *hp, const bool *layers, int layer)
{
    return layer + 1 < hp->n_layer && layers[layer] && layers[layer + 1];
}

static uint64_t router_elems(const model_hparams *hp)
{
    return (uint64_t)hp->n_expert * (uint64_t)hp->n_embd;
}

static uint64_t all_elems(const model_hparams *hp, const bool *layers)
{
    uint64_t n = 0;
    for (int l = 0; l < hp->n_layer; l++) n += can_predict(hp, layers, l);
    return n * router_elems(hp);
}

uint64_t router_ahead_bytes(const model_hparams *hp, const bool *layers)
{
    return all_elems(hp, layers) * sizeof(uint16_t) + (uint64_t)hp->n_layer * sizeof(matrix) +
           (uint64_t)(hp->n_expert + 2 * hp->n_expert_used) * sizeof(float);
}

/* BF16 by truncation: precise enough for a prediction. */
static uint16_t upper_half(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (uint16_t)(bits >> 16);
}

typedef struct fill_job {
    const matrix *router;
    const float *norm, *next_norm;
    uint16_t *copy;
} fill_job;

static void fill_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const fill_job *j = ctx;
    const quant_traits *q = quant_traits_of(j->router->type);
    const size_t n = (size_t)j->router->cols;
    float some[256];
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const uint8_t *row = j->router->data + (uint64_t)r * j->router->row_bytes;
        uint16_t *copy = j->copy + (size_t)r * n;
        for (size_t i = 0; i < n; i += ARRAY_LEN(some)) {
            const size_t m = n - i < ARRAY_LEN(some) ? n - i : ARRAY_LEN(some);
            q->decode(some, row + quant_row_bytes(q, i), m / (size_t)q->block_elems);
            for (size_t c = 0; c < m; c++) {
                const float norm = j->norm[i + c];
                copy[i + c] = norm == 0.0f ? 0 : upper_half(some[c] * (j->next_norm[i + c] / norm));
            }
        }
    }
}

static void make_router(router_ahead *r, int layer, const weights *w, uint16_t *copy)
{
    const matrix *from = &w->layers[layer + 1].router;
    fill_job j = { from, w->layers[layer].experts_norm, w->layers[layer + 1].router_norm, copy };
    pool_run(r->o->team, from->rows, pool_grain(from->cols), fill_rows, &j);
    r->routers[layer] = (matrix){
        .type = QT_BF16, .rows = from->rows, .cols = from->cols, .data = (const uint8_t *)copy,
        .row_bytes = (uint64_t)from->cols * sizeof *copy, .scale = from->scale, .bias = from->bias,
    };
}

/* ---- life ------------------------------------------------------------------------------------ */

int router_ahead_create(router_ahead **out, const ops *o, const weights *w, const model_hparams *hp,
                        const bool *layers, err_ctx *err)
{
    router_ahead *r = mem_zalloc(sizeof *r);
    *out = NULL;
    if (!r) return err_set(err, ERR_NOMEM, "routers of the next layers: %zu bytes", sizeof *r);
    *r = (router_ahead){ .o = o, .w = w, .n_layer = hp->n_layer, .n_expert = hp->n_expert,
                         .k = hp->n_expert_used, .rule = hp->router };
    expert_predictor_init(&r->predictor);
    r->routers = mem_array((size_t)hp->n_layer, sizeof *r->routers);
    r->rows = mem_array((size_t)all_elems(hp, layers) + 1, sizeof *r->rows);
    r->scores = mem_array((size_t)hp->n_expert, sizeof *r->scores);
    r->gates = mem_array((size_t)hp->n_expert_used, sizeof *r->gates);
    r->ids = mem_array((size_t)hp->n_expert_used, sizeof *r->ids);
    if (!r->routers || !r->rows || !r->scores || !r->gates || !r->ids) {
        router_ahead_free(r);
        return err_set(err, ERR_NOMEM, "routers of the next layers: %llu bytes",
                       (unsigned long long)router_ahead_bytes(hp, layers));
    }
    memset(r->routers, 0, (size_t)hp->n_layer * sizeof *r->routers);
    uint16_t *copy = r->rows;
    for (int l = 0; l < hp->n_layer; l++) {
        if (!can_predict(hp, layers, l)) continue;
        make_router(r, l, w, copy);
        copy += router_elems(hp);
    }
    *out = r;
    return 0;
}

void router_ahead_free(router_ahead *r)
{
    if (!r) return;
    mem_free(r->routers);
    mem_free(r->rows);
    mem_free(r->scores);
    mem_free(r->gates);
    mem_free(r->ids);
    mem_free(r);
}

/* ---- predictions ----------------------------------------------------------------------------- */

int router_ahead_predict(router_ahead *r, int layer, acts *x, const int32_t **experts)
{
    if (layer >= r->n_layer || !r->routers[layer].data) return 0;
    ops_matmul(r->o, r->scores, &r->routers[layer], x);
    r->rule.bias = r->w->layers[layer + 1].choice_bias;
    router_select(r->ids, r->gates, r->scores, r->n_expert, r->k, &r->rule);
    *experts = r->ids;
    return r->k;
}

void router_ahead_read(router_ahead *r, expert_store *s, int layer, acts *x)
{
    const int32_t *likely;
    int lacking[PREDICTOR_PICKS];
    const int n_likely = router_ahead_predict(r, layer, x, &likely);
    if (n_likely == 0) return;           /* layer + 1 may not exist */
    const int n = expert_store_lacking(s, layer + 1, likely, n_likely, lacking, PREDICTOR_PICKS);
    expert_store_read_early(s, layer + 1, lacking,
                            expert_predictor_pick(&r->predictor, layer + 1, lacking, n));
}

void router_ahead_report(router_ahead *r, int layer, const int *chosen, int n)
{
    expert_predictor_check(&r->predictor, layer, chosen, n);
}
