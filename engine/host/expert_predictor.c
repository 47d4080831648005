/* expert_predictor.c - routers of the next layer, made to read this layer's vectors.
 *
 * What a layer's experts see is x = h / rms(h) * norm. The next layer's router wants its own norm
 * instead, so its columns are divided by this one's and multiplied by that: for a guess they are
 * kept in 16 bits, and rms(h) changes all scores alike. Biases are left as they are. */
#include "engine/host/expert_predictor.h"

#include <string.h>

#include "moe/router.h"

static const float right_at_first = 0.9f, right_enough = 0.8f, learning = 1.0f / 32;

struct expert_predictor {
    const ops *o;
    int n_layer, n_expert, k;
    matrix *routers;                     /* [n_layer]: of the layer behind; data NULL: none */
    uint16_t *rows;                      /* their data */
    float *scores, *gates;
    int32_t *ids;
    int layer;                           /* that picks are open for; -1: none */
    int picks[PREDICTOR_PICKS], n_pick;
    float right[PREDICTOR_PICKS];         /* how often the pick of that rank was right of late */
};

/* ---- routers --------------------------------------------------------------------------------- */

static bool can_guess(const model_hparams *hp, const bool *layers, int layer)
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
    for (int l = 0; l < hp->n_layer; l++) n += can_guess(hp, layers, l);
    return n * router_elems(hp);
}

uint64_t expert_predictor_bytes(const model_hparams *hp, const bool *layers)
{
    return all_elems(hp, layers) * sizeof(uint16_t) + (uint64_t)hp->n_layer * sizeof(matrix) +
           (uint64_t)(hp->n_expert + 2 * hp->n_expert_used) * sizeof(float);
}

/* To the nearest is not worth the trouble: the sign and the upper bits. */
static uint16_t upper_half(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (uint16_t)(bits >> 16);
}

typedef struct fill_job {
    const matrix *from;
    const float *norm, *next_norm;
    uint16_t *to;
} fill_job;

static void fill_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const fill_job *j = ctx;
    const quant_traits *q = quant_traits_of(j->from->type);
    const size_t n = (size_t)j->from->cols;
    float some[256];
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const uint8_t *row = j->from->data + (uint64_t)r * j->from->row_bytes;
        uint16_t *to = j->to + (size_t)r * n;
        for (size_t i = 0; i < n; i += ARRAY_LEN(some)) {
            const size_t m = n - i < ARRAY_LEN(some) ? n - i : ARRAY_LEN(some);
            q->decode(some, row + quant_row_bytes(q, i), m / (size_t)q->block_elems);
            for (size_t c = 0; c < m; c++) {
                const float norm = j->norm[i + c];
                to[i + c] = norm == 0.0f ? 0 : upper_half(some[c] * (j->next_norm[i + c] / norm));
            }
        }
    }
}

static void make_router(expert_predictor *f, int layer, const weights *w, uint16_t *to)
{
    const matrix *from = &w->layers[layer + 1].router;
    fill_job j = { from, w->layers[layer].post_attn_norm, w->layers[layer + 1].post_attn_norm, to };
    pool_run(f->o->team, from->rows, pool_grain(from->cols), fill_rows, &j);
    f->routers[layer] = (matrix){
        .type = QT_BF16, .rows = from->rows, .cols = from->cols, .data = (const uint8_t *)to,
        .row_bytes = (uint64_t)from->cols * sizeof *to, .scale = from->scale, .bias = from->bias,
    };
}

/* ---- life ------------------------------------------------------------------------------------ */

int expert_predictor_create(expert_predictor **out, const ops *o, const weights *w, const model_hparams *hp,
                     const bool *layers, err_ctx *err)
{
    expert_predictor *f = mem_zalloc(sizeof *f);
    *out = NULL;
    if (!f) return err_set(err, ERR_NOMEM, "expert_predictor: %zu bytes", sizeof *f);
    *f = (expert_predictor){ .o = o, .n_layer = hp->n_layer, .n_expert = hp->n_expert,
                      .k = hp->n_expert_used, .layer = -1 };
    for (int i = 0; i < PREDICTOR_PICKS; i++) f->right[i] = right_at_first;
    f->routers = mem_array((size_t)hp->n_layer, sizeof *f->routers);
    f->rows = mem_array((size_t)all_elems(hp, layers) + 1, sizeof *f->rows);
    f->scores = mem_array((size_t)hp->n_expert, sizeof *f->scores);
    f->gates = mem_array((size_t)hp->n_expert_used, sizeof *f->gates);
    f->ids = mem_array((size_t)hp->n_expert_used, sizeof *f->ids);
    if (!f->routers || !f->rows || !f->scores || !f->gates || !f->ids) {
        expert_predictor_free(f);
        return err_set(err, ERR_NOMEM, "expert_predictor: %llu bytes",
                       (unsigned long long)expert_predictor_bytes(hp, layers));
    }
    memset(f->routers, 0, (size_t)hp->n_layer * sizeof *f->routers);
    uint16_t *to = f->rows;
    for (int l = 0; l < hp->n_layer; l++) {
        if (!can_guess(hp, layers, l)) continue;
        make_router(f, l, w, to);
        to += router_elems(hp);
    }
    *out = f;
    return 0;
}

void expert_predictor_free(expert_predictor *f)
{
    if (!f) return;
    mem_free(f->routers);
    mem_free(f->rows);
    mem_free(f->scores);
    mem_free(f->gates);
    mem_free(f->ids);
    mem_free(f);
}

/* ---- guessing -------------------------------------------------------------------------------- */

int expert_predictor_guess(expert_predictor *f, int layer, acts *x, const int32_t **experts)
{
    if (layer >= f->n_layer || !f->routers[layer].data) return 0;
    ops_matmul(f->o, f->scores, &f->routers[layer], x);
    router_select(f->ids, f->gates, f->scores, f->n_expert, f->k);
    *experts = f->ids;
    return f->k;
}

int expert_predictor_pick(expert_predictor *f, int layer, const int *experts, int n)
{
    int worth = 0;
    f->layer = layer;
    f->n_pick = min_int(n, PREDICTOR_PICKS);
    memcpy(f->picks, experts, (size_t)f->n_pick * sizeof *f->picks);
    while (worth < f->n_pick && f->right[worth] >= right_enough) worth++;
    return worth;
}

void expert_predictor_tell(expert_predictor *f, int layer, const int *chosen, int n)
{
    if (layer == f->layer)
        for (int i = 0; i < f->n_pick; i++) {
            bool right = false;
            for (int c = 0; c < n; c++) right |= chosen[c] == f->picks[i];
            f->right[i] += learning * ((float)right - f->right[i]);
        }
    f->layer = -1;
}
