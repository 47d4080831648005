/* layer_overhead.c - times three recordings of a token: without layers, with each layer up to the
 * choice of experts, and with whole layers.
 *
 * The differences, less the time of the weights' bytes, are the overhead. Weights are zeros, so
 * the first experts are always chosen. All banks overlap in one allocation, each offset by the
 * experts of one token, so that layers read different bytes, as in real use. If whole banks are too
 * large, they have fewer experts. As many layers as fit are recorded, so that caches have no larger
 * share of them than in real use. */
#include "engine/plan/layer_overhead.h"

#include <math.h>

#include "engine/engine_internal.h"
#include "engine/gpu/gpu_steps.h"

enum {
    LAYERS_MOST = 32,
    LEAST_PLAYS = 3, MOST_PLAYS = 20,    /* of a recording, after WARM_UP ones */
    WARM_UP = 2
};
#define DENSE_MOST ((uint64_t)512 << 20)
#define BANKS_MOST ((uint64_t)512 << 20)
static const double PLAYS_S = 0.02;      /* for plays beyond LEAST_PLAYS */

enum { NO_LAYERS, DENSE_LAYERS, WHOLE_LAYERS, CHAINS };

typedef struct layer_bench {
    model m;                             /* with fewer experts */
    engine e;                            /* what gpu_steps reads of one */
    batch_row row;                       /* the token that is played */
    gpu *g;
    int n_layer;
    weights_gpu *w;
    uint8_t *banks;
    mem_space *vram;
    state *st;
    gpu_steps *s;
} layer_bench;

/* ---- bytes ----------------------------------------------------------------------------------- */

static double matrix_bytes(const gpu_matrix *m)
{
    return m->data ? (double)m->rows * (double)m->row_bytes : 0;
}

static double dense_bytes(const layer_weights_gpu *y)
{
    const gpu_matrix *const list[] = {
        &y->attn.q, &y->attn.k, &y->attn.v, &y->attn.out, &y->delta.qkv, &y->delta.z,
        &y->delta.out, &y->delta.ba, &y->delta.beta, &y->delta.alpha, &y->router,
        &y->shared_gate_inp,
    };
    double sum = 0;
    for (size_t i = 0; i < ARRAY_LEN(list); i++) sum += matrix_bytes(list[i]);
    return sum;
}

/* Bytes of the chosen experts, and of the shared network. */
static double hot_bytes(const layer_weights_gpu *y, int n_used)
{
    const gpu_bank *const banks[] = { &y->gate, &y->up, &y->down };
    double sum = matrix_bytes(&y->shared_gate) + matrix_bytes(&y->shared_up) +
                 matrix_bytes(&y->shared_down);
    for (size_t i = 0; i < ARRAY_LEN(banks); i++)
        if (banks[i]->data) sum += n_used * (double)banks[i]->slab_bytes;
    return sum;
}

/* ---- experts --------------------------------------------------------------------------------- */

static uint64_t bank_bytes(const layer_weights_gpu *y, int n_expert)
{
    const uint64_t n = (uint64_t)n_expert;
    return size_align(n * y->gate.slab_bytes, 256) + size_align(n * y->up.slab_bytes, 256) +
           size_align(n * y->down.slab_bytes, 256);
}

static void place_bank(layer_weights_gpu *y, uint8_t *data, int n_expert)
{
    gpu_bank *const banks[] = { &y->gate, &y->up, &y->down };
    y->router.rows = n_expert;
    for (size_t i = 0; i < ARRAY_LEN(banks); i++) {
        banks[i]->data = data;
        data += size_align((uint64_t)n_expert * banks[i]->slab_bytes, 256);
    }
}

/* The largest bank takes half of the memory; every bank begins in the first half. */
static int make_banks(layer_bench *b, err_ctx *err)
{
    model_hparams *hp = &b->m.hp;
    layer_weights_gpu *layers = b->w->layers;
    uint64_t one = 0, largest = 0, offset = 0;
    for (int l = 0; l < b->n_layer; l++) {
        const uint64_t bytes = bank_bytes(&layers[l], 1);
        if (bytes > one) one = bytes;
    }
    if (one == 0) return 0;              /* these layers have no experts */
    const int fit = (int)(BANKS_MOST / 2 / one);
    hp->n_expert = min_int(hp->n_expert, max_int(hp->n_expert_used, fit));
    for (int l = 0; l < b->n_layer; l++) {
        const uint64_t bytes = bank_bytes(&layers[l], hp->n_expert);
        if (bytes > largest) largest = bytes;
    }
    b->banks = gpu_alloc(b->g, 2 * largest, "measuring", err);
    if (!b->banks) return ERR_NOMEM;
    for (int l = 0; l < b->n_layer; l++) {
        if (layers[l].gate.rows == 0) continue;
        place_bank(&layers[l], b->banks + offset, hp->n_expert);
        offset = (offset + bank_bytes(&layers[l], hp->n_expert_used)) % (largest + 1) / 256 * 256;
    }
    return gpu_zero(b->g, b->banks, 2 * largest, err);
}

/* ---- recordings ------------------------------------------------------------------------------ */

static int record_chain(layer_bench *b, int chain, err_ctx *err)
{
    const batch one = { .n = 1, .rows = &b->row, .n_row = 1, .last = gpu_steps_reach(0) };
    const layer_steps *live = gpu_steps_live(b->s);
    const int rc = gpu_steps_record_begin(b->s, err);
    if (rc < 0) return rc;
    (void)live->begin(live->self, &one, NULL);           /* recording cannot fail before its end */
    for (int l = 0; l < b->n_layer && chain != NO_LAYERS; l++) {
        live->mix(live->self, l);
        live->route(live->self, l);
        if (chain == DENSE_LAYERS) continue;
        (void)live->experts_local(live->self, l, NULL);
        live->join(live->self, l);
    }
    const int ended = gpu_steps_record_end(b->s, &one, err);
    if (ended < 0 || gpu_steps_is_recorded(b->s, &one)) return ended;
    return err_set(err, ERR_NOMEM, "measuring: VRAM is too small for a recording");
}

static int play_once(double *seconds, layer_bench *b, err_ctx *err)
{
    const int32_t id = 0;
    const batch one = { .ids = &id, .n = 1, .rows = &b->row, .n_row = 1,
                        .last = gpu_steps_reach(0) };
    const layer_steps *replay_table = gpu_steps_replay(b->s);
    const uint64_t from = clock_ns();
    int rc = replay_table->begin(replay_table->self, &one, err);
    if (rc == 0) rc = replay_table->end(replay_table->self, err);
    if (rc < 0) return gpu_steps_give_up(b->s, rc, err);
    rc = gpu_steps_wait(b->s, err);
    *seconds = clock_since(from);
    return rc;
}

/* The fastest play: disturbances only make it slower. */
static int time_chain(double *best, layer_bench *b, int chain, err_ctx *err)
{
    uint64_t from = 0;
    double s = 0;
    int rc = record_chain(b, chain, err);
    *best = INFINITY;
    for (int i = -WARM_UP; i < MOST_PLAYS && rc == 0; i++) {
        if (i == 0) from = clock_ns();
        if (i >= LEAST_PLAYS && clock_since(from) > PLAYS_S) break;
        rc = play_once(&s, b, err);
        if (i >= 0) *best = fmin(*best, s);
    }
    return rc;
}

/* ---- the measurement ------------------------------------------------------------------------- */

/* As many layers as fit, at least one. */
static weights_choice choose_layers(const model *m, const weights *w)
{
    static const int none[LAYERS_MOST];
    weights_choice c = { .n_layer = min_int(m->hp.n_layer, LAYERS_MOST), .hot = none,
                         .zeros = true };
    while (c.n_layer > 1 && weights_gpu_bytes(m, w, &c) > DENSE_MOST) c.n_layer--;
    return c;
}

static int make_bench(layer_bench *b, const weights *w, const rope_tables *rope, err_ctx *err)
{
    const weights_choice choice = choose_layers(&b->m, w);
    int rc;
    b->n_layer = choice.n_layer;
    if ((rc = weights_gpu_create(&b->w, b->g, &b->m, w, &choice, NULL, NULL, NULL, err)) < 0 ||
        (rc = make_banks(b, err)) < 0 || (rc = mem_space_vram_create(&b->vram, b->g, err)) < 0)
        return rc;
    state_options so = { .ctx = gpu_steps_reach(0), .slack = 1, .kv = KV_F16 };
    segments_add(&so.in, b->n_layer, b->vram);
    segments_add(&so.in, b->m.hp.n_layer, mem_space_ram());
    b->e = (engine){ .m = &b->m, .devices = { { .g = b->g, .w = b->w } }, .n_device = 1,
                     .rope = *rope };
    if ((rc = state_create(&b->st, &b->m, &so, err)) < 0 ||
        (rc = gpu_steps_create(&b->s, &b->e, NULL, false, (batch_sizes){ 1, GPU_FEW }, err)) < 0)
        return rc;
    b->row = (batch_row){ .st = b->st, .next = state_recurrent(b->st), .n = 1 };
    return 0;
}

static void free_bench(layer_bench *b)
{
    gpu_steps_free(b->s);
    state_free(b->st);
    mem_space_vram_free(b->vram);
    gpu_free(b->g, b->banks);
    weights_gpu_free(b->w);
}

double layer_overhead_within(double s)
{
    return fmin(fmax(s, LAYER_OVERHEAD_LEAST_S), LAYER_OVERHEAD_MOST_S);
}

int measure_layer_overhead(layer_overhead *out, gpu *g, const model *m, const weights *w,
                           const rope_tables *rope, double vram_read, err_ctx *err)
{
    layer_bench b = { .m = *m, .g = g };
    double seconds[CHAINS], dense = 0, experts = 0;
    b.m.hp.uses_mtp = false;
    int rc = make_bench(&b, w, rope, err);
    for (int i = 0; i < CHAINS && rc == 0; i++) rc = time_chain(&seconds[i], &b, i, err);
    for (int l = 0; l < b.n_layer && rc == 0; l++) {
        dense += dense_bytes(&b.w->layers[l]) / vram_read;
        experts += hot_bytes(&b.w->layers[l], m->hp.n_expert_used) / vram_read;
    }
    if (rc == 0)
        *out = (layer_overhead){
            .dense = layer_overhead_within((seconds[DENSE_LAYERS] - seconds[NO_LAYERS] - dense) /
                                           b.n_layer),
            .hot = layer_overhead_within((seconds[WHOLE_LAYERS] - seconds[DENSE_LAYERS] - experts) /
                                         b.n_layer),
        };
    free_bench(&b);
    return rc;
}
