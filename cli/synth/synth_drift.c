/* synth_drift.c - popularity that wanders: topics, latches and routers as tensors.
 *
 * synth_popularity.h tells the idea. Matrices may be of any type, so nothing here writes a weight:
 * parts of some matrices get another standard deviation (next to 0 to switch something off), or
 * blocks of another stream. What those decode to is then looked at, and F32 tensors (biases,
 * convolution, routers) are computed to fit.
 *
 *   channels      0 .. 255  alike in all tokens (but gpt-oss, glm4moe)
 *               256 .. 511  the token's topic: of token id, topic id mod 16
 *               512 .. 767  held: where latches write
 *
 * A row of a matrix that repeats the blocks of topic i, larger or smaller, gives a large product
 * with tokens of that topic and a small one with all others: rows of the latches' values do so for
 * one topic after the other.
 *
 * Attention with biases: in layer 1 of gpt-oss, the first that sees more than a window, so layer 0
 * has a fixed popularity; in layer 0 of glm4moe, which has no experts. Attention without biases
 * has rows of weights in their place that give the same for every token, by the channels that all
 * tokens have alike; where queries and keys are normed, the norm's weights undo that.
 *
 * DeltaNet in layer 0: its state is S <- S + beta k (v - S k), with q and k alike for all tokens,
 * so S k is replaced by v to a share of beta; beta is close to 0 for most tokens and close to 1
 * for the one in T that opens the latch. The norm after it makes what is held independent of how
 * much was written; the gate after that is constant. */
#include <assert.h>
#include <math.h>

#include "cli/synth/synth_plan_internal.h"

enum { TOPIC_AT = 256, HELD_AT = 512, PLAIN_AT = 768 };

#define HELD_EMBD 0.25                   /* of embeddings in the held channels: noise */
#define HELD_STD 0.5                     /* of what one latch writes there */
#define VALUE_STD 0.0625                 /* of weights: a token's topic has the value 16 in gpt-oss,
                                          * and in DeltaNet ... */
#define VALUE_STD_DELTA 16.0             /* ... 4,000: the first tokens, written with a beta of
                                          * 1e-4, must be large against the norm's epsilon */
#define OPENING 10.0                     /* standard deviation of the logit of beta */
#define CONSTANT 10.0                    /* q, k and gate of DeltaNet, against noise of 1 */
#define SHUT -100.0f                     /* bias of its decay: there is none */
#define SOFTNESS 1.1                     /* a latch holds a little of other tokens, too */

typedef struct synth_drift {
    uint64_t topic_key;
    float topic[DRIFT_TOPICS * DRIFT_COLS];
    float common[DIR_COLS];              /* what all tokens have there, after the latches' norm */
    float held[DRIFT_HELD * DRIFT_COLS], readers[DRIFT_HELD * DRIFT_COLS];
    struct row_makers {                  /* of the rows of queries and keys of latches */
        const synth_blocks *of[DRIFT_LATCHES * DRIFT_DIM_MAX];
    } queries, keys, scores;
} synth_drift;

/* ---- life -------------------------------------------------------------------------------- */

int synth_drift_check(const synth_options *o, err_ctx *err)
{
    const synth_shape *s = o->shape;
    const int latch_layer = s->family->latch_layer;
    if (o->drift == 0) return 0;
    if (o->drift < DRIFT_MIN || o->drift > DRIFT_MAX)
        return err_set(err, ERR_RANGE, "drift over %d tokens is out of range %d..%d", o->drift,
                       DRIFT_MIN, DRIFT_MAX);
    if (!(o->skew > 0))
        return err_set(err, ERR_RANGE, "drift needs skew: experts that are all alike have no "
                       "popularity that could change");
    if (s->family->latch == SYNTH_LATCH_NONE)
        return err_set(err, ERR_RANGE, "%s: popularity cannot drift in models of this family",
                       s->name);
    if (o->n_layer <= latch_layer)
        return err_set(err, ERR_RANGE, "%s: drift begins in layer %d, so %d layers are needed",
                       s->name, latch_layer, latch_layer + 1);
    if (s->n_embd < PLAIN_AT + DRIFT_COLS)
        return err_set(err, ERR_RANGE, "%s: drift needs an embedding of %d channels, this has %d",
                       s->name, PLAIN_AT + DRIFT_COLS, s->n_embd);
    return 0;
}

void synth_drift_release(synth_plan *p)
{
    mem_free(p->drift);
}

/* The n floats of an F32 tensor, to be changed; NULL after a failure. */
static float *take_table(synth_plan *p, int l, const char *name, int n)
{
    synth_part *t = synth_plan_part(p, l, name);
    float *table = synth_plan_table(p, n);
    if (!table) return NULL;
    synth_part_fill(t, (uint8_t *)table, 0, (uint64_t)n * sizeof *table);
    t->kind = FILL_TABLE;
    t->table = table;
    return table;
}

/* ---- topics ------------------------------------------------------------------------------ */

static void repeat_topics(const synth_plan *p, synth_patch *rows)
{
    rows->key = p->drift->topic_key;
    rows->period = DRIFT_TOPICS;
}

void synth_drift_embedding(synth_plan *p, synth_part *t)
{
    const int n_row = p->o.shape->n_vocab;
    if (p->rc < 0 || !p->o.drift) return;
    if (!(p->drift = mem_zalloc(sizeof *p->drift))) {
        p->rc = err_set(p->err, ERR_NOMEM, "out of memory for drift");
        return;
    }
    p->drift->topic_key = random_word(t->key, 2);
    repeat_topics(p, synth_plan_patch(p, t, 0, n_row, TOPIC_AT, DRIFT_COLS, 1));
    synth_plan_patch(p, t, 0, n_row, HELD_AT, DRIFT_COLS, HELD_EMBD);
    for (int i = 0; i < DRIFT_TOPICS && p->rc == 0; i++)
        synth_part_decode(p->drift->topic + i * DRIFT_COLS, t, i, TOPIC_AT, DRIFT_COLS);
}

/* ---- latches ----------------------------------------------------------------------------- */

static double product(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Root mean square of the residual, `added` to the variance of each channel by layers and `held` to
 * that of the held ones by latches. */
static double rms_of(const synth_plan *p, double added, double held)
{
    const synth_shape *s = p->o.shape;
    const double front = s->family->common ? product(p->dir, p->dir, DIR_COLS) : DIR_COLS;
    return sqrt((front + DRIFT_COLS + DRIFT_COLS * (HELD_EMBD * HELD_EMBD + held) + s->n_embd -
                 PLAIN_AT) / s->n_embd + added);
}

/* The first heads of a mixer, n_head of them, are heard in the held channels alone, and there only
 * those that are latches. What a latch puts out has the root mean square `size`. */
static void add_outputs(synth_plan *p, synth_part *t, int dim, int n_head, double size)
{
    synth_plan_patch(p, t, HELD_AT, DRIFT_COLS, 0, DRIFT_LATCHES * dim,
                     HELD_STD / (size * sqrt(dim)));
    synth_plan_patch(p, t, 0, p->o.shape->n_embd, 0, n_head * dim, NOTHING);
}

/* What each latch writes for each topic. Its values are the products with dim rows of `values`,
 * from first_row on for latch 0 and stride rows later for each further one. They go through its
 * columns of `out`, in DeltaNet after an activation and a norm. */
static void find_held(synth_plan *p, const synth_part *values, int first_row, int stride,
                      const synth_part *out, int dim, bool delta)
{
    synth_drift *d = p->drift;
    const double rms = rms_of(p, 0, 0);
    float row[DRIFT_COLS], columns[DRIFT_LATCHES * DRIFT_DIM_MAX];
    double v[DRIFT_HELD][DRIFT_DIM_MAX];

    for (int i = 0; i < DRIFT_HELD; i++) {
        double sumsq = 0;
        for (int r = 0; r < dim; r++) {
            synth_part_decode(row, values, first_row + i / DRIFT_TOPICS * stride + r, TOPIC_AT,
                              DRIFT_COLS);
            v[i][r] = product(row, d->topic + i % DRIFT_TOPICS * DRIFT_COLS, DRIFT_COLS) / rms;
            if (delta) v[i][r] /= 1 + exp(-v[i][r]);
            sumsq += v[i][r] * v[i][r];
        }
        for (int r = 0; r < dim && delta; r++) v[i][r] *= CONSTANT / sqrt(sumsq / dim);
    }
    for (int c = 0; c < DRIFT_COLS; c++) {
        synth_part_decode(columns, out, HELD_AT + c, 0, DRIFT_LATCHES * dim);
        for (int i = 0; i < DRIFT_HELD; i++) {
            const float *w = columns + i / DRIFT_TOPICS * dim;
            double sum = 0;
            for (int r = 0; r < dim; r++) sum += (double)w[r] * v[i][r];
            d->held[i * DRIFT_COLS + c] = (float)sum;
        }
    }
}

static rope_spec rope_of(const synth_shape *s)
{
    return (rope_spec){ .dim = s->rope_dim ? s->rope_dim : s->head_dim, .base = s->rope_base,
                        .factor = s->rope_factor, .ctx_orig = s->rope_ctx, .attn_factor = 1,
                        .scaling = s->rope_factor > 0 ? ROPE_YARN : ROPE_PLAIN };
}

static void latch_biases(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const int dim = s->head_dim, group = s->n_head / s->n_head_kv;
    const rope_spec rope = rope_of(s);
    synth_part *values = synth_plan_part(p, l, "attn_v.weight");
    synth_part *out = synth_plan_part(p, l, "attn_output.weight");
    float *q = take_table(p, l, "attn_q.bias", s->n_head * dim);
    float *k = take_table(p, l, "attn_k.bias", s->n_head_kv * dim);

    if (p->rc < 0) return;
    assert(group >= DRIFT_LATCHES && dim <= DRIFT_DIM_MAX && dim % DRIFT_TOPICS == 0);
    for (int i = 0; i < DRIFT_LATCHES; i++)
        synth_latch_biases(q + i * dim, k, i, &rope, dim, p->o.drift);
    synth_plan_patch(p, synth_plan_part(p, l, "attn_q.weight"), 0, DRIFT_LATCHES * dim, 0,
                     s->n_embd, NOTHING);
    synth_plan_patch(p, synth_plan_part(p, l, "attn_k.weight"), 0, dim, TOPIC_AT, DRIFT_COLS,
                     NOTHING);          /* no topic is preferred */
    repeat_topics(p, synth_plan_patch(p, values, 0, dim, TOPIC_AT, DRIFT_COLS, VALUE_STD));
    add_outputs(p, out, dim, group, VALUE_STD * DRIFT_COLS / sqrt(DRIFT_TOPICS));
    if (p->rc == 0) find_held(p, values, 0, 0, out, dim, false);
}

/* A stream whose first row of the common channels has this product with what all tokens have there,
 * as closely as one of a thousand does. */
static uint64_t find_stream(const synth_plan *p, const synth_patch *rows, uint64_t key, double want)
{
    synth_part row = { .cols = DIR_COLS, .maker = rows->maker,
                       .unit = (size_t)rows->maker->block_bytes };
    double best = INFINITY;
    uint64_t found = key;
    for (uint64_t i = 0; i < 1000; i++) {
        float w[DIR_COLS];
        row.key = random_word(key, i);
        synth_part_decode(w, &row, 0, 0, DIR_COLS);
        const double miss = fabs(product(w, p->drift->common, DIR_COLS) - want);
        if (miss < best) {
            best = miss;
            found = row.key;
        }
    }
    return found;
}

static void find_common(synth_plan *p, int l)
{
    float *common = p->drift->common;
    if (p->rc < 0) return;
    synth_part_fill(synth_plan_part(p, l, "attn_norm.weight"), (uint8_t *)common, 0,
                    sizeof p->drift->common);
    for (int c = 0; c < DIR_COLS; c++) common[c] *= p->dir[c];
}

/* Rows of t that give about the same number for every token: but for what other channels add. */
static void add_constant(synth_plan *p, synth_part *t, int row, int n_row, double value)
{
    const double want = value * rms_of(p, 0, 0);
    const double sigma = fabs(want) / sqrt(product(p->dir, p->dir, DIR_COLS));
    synth_patch *rows = synth_plan_patch(p, t, row, n_row, 0, DIR_COLS, sigma);
    if (p->rc < 0) return;
    rows->key = find_stream(p, rows, random_word(t->key, 3), want);
    rows->period = 1;
}

/* The rows that say how much of what a latch holds is replaced: of a matrix of their own, or of one
 * that has for each key head the betas of its value heads, then their decays. */
static synth_part *opening_part(synth_plan *p, int l)
{
    return synth_plan_part(p, l, p->o.shape->family->tiled ? "ssm_beta.weight" : "ssm_ba.weight");
}

static int opening_row(const synth_shape *s, int i)
{
    const int ratio = s->n_v_head / s->n_k_head;
    return s->family->tiled ? i : i / ratio * 2 * ratio + i % ratio;
}

/* Key heads of the latches, which are the first value heads: they are the first ones, too. */
static int n_latch_keys(const synth_shape *s)
{
    return s->family->tiled ? min_int(DRIFT_LATCHES, s->n_k_head)
                    : DRIFT_LATCHES * s->n_k_head / s->n_v_head;
}

/* Mean and standard deviation of each latch's logit of beta over some tokens, without the common
 * channels. They are looked at, not computed from those of the weights: in some types weights of
 * one block lean to the same side. */
static void look_at_openings(synth_plan *p, int l, double *mean, double *spread)
{
    enum { TOKENS = 2000 };
    const synth_shape *s = p->o.shape;
    const synth_part *embd = synth_plan_part(p, -1, "token_embd.weight");
    const synth_part *beta = opening_part(p, l);
    const synth_part *norm = synth_plan_part(p, l, "attn_norm.weight");
    const int n_token = s->n_vocab < TOKENS ? s->n_vocab : TOKENS;
    double sumsq[TOKENS] = { 0 }, logit[DRIFT_LATCHES][TOKENS] = { { 0 } };

    for (int c = 0; c < s->n_embd; c += DRIFT_COLS) {
        float gain[DRIFT_COLS], w[DRIFT_LATCHES][DRIFT_COLS], x[DRIFT_COLS];
        synth_part_fill(norm, (uint8_t *)gain, (uint64_t)c * sizeof *gain, sizeof gain);
        for (int i = 0; i < DRIFT_LATCHES; i++) {
            synth_part_decode(w[i], beta, opening_row(s, i), c, DRIFT_COLS);
            for (int k = 0; k < DRIFT_COLS; k++) w[i][k] *= c < DIR_COLS ? 0 : gain[k];
        }
        for (int t = 0; t < n_token; t++) {
            synth_part_decode(x, embd, t, c, DRIFT_COLS);
            sumsq[t] += product(x, x, DRIFT_COLS);
            for (int i = 0; i < DRIFT_LATCHES; i++) logit[i][t] += product(x, w[i], DRIFT_COLS);
        }
    }
    for (int i = 0; i < DRIFT_LATCHES; i++) {
        double sum = 0, squares = 0;
        for (int t = 0; t < n_token; t++) {
            const double x = logit[i][t] / sqrt(sumsq[t] / s->n_embd);
            sum += x / n_token;
            squares += x * x / n_token;
        }
        mean[i] = sum;
        spread[i] = sqrt(squares - sum * sum);
    }
}

/* The logits of beta, and perhaps between them those of decays, which SHUT makes meaningless. */
static void add_openings(synth_plan *p, int l)
{
    const int n_embd = p->o.shape->n_embd;
    const int n_row = p->o.shape->family->tiled ? DRIFT_LATCHES : 2 * DRIFT_LATCHES;
    const double inputs = DRIFT_COLS * HELD_EMBD * HELD_EMBD + n_embd - PLAIN_AT;
    synth_part *t = opening_part(p, l);
    double mean[DRIFT_LATCHES], spread[DRIFT_LATCHES];

    synth_plan_patch(p, t, 0, n_row, TOPIC_AT, DRIFT_COLS, NOTHING);     /* no topic is preferred */
    synth_plan_patch(p, t, 0, n_row, HELD_AT, n_embd - HELD_AT,
                     OPENING * rms_of(p, 0, 0) / sqrt(inputs));
    if (p->rc == 0) look_at_openings(p, l, mean, spread);
    for (int i = 0; i < DRIFT_LATCHES && p->rc == 0; i++)
        add_constant(p, t, opening_row(p->o.shape, i), 1,
                     synth_latch_mean(spread[i], p->o.drift) - mean[i]);
}

/* ---- attention without biases ---- */

/* Rows of t, from the first on, that give these numbers, 0 or more, for every token: all by blocks
 * of the same stream, larger or smaller. */
static void add_constants(synth_plan *p, synth_part *t, struct row_makers *rows, const float *want,
                          int n_row)
{
    const double rms = rms_of(p, 0, 0), unit = rms / sqrt(product(p->dir, p->dir, DIR_COLS));
    double most = 0;
    for (int r = 0; r < n_row; r++) most = fmax(most, (double)want[r]);
    synth_patch *patch = synth_plan_patch(p, t, 0, n_row, 0, DIR_COLS, most * unit);
    for (int r = 0; r < n_row && p->rc == 0; r++)
        rows->of[r] = synth_plan_maker(p, t->maker->type, want[r] > 0 ? (double)want[r] * unit
                                                                      : NOTHING);
    if (p->rc < 0) return;
    patch->key = find_stream(p, patch, random_word(t->key, 3), most * rms);
    patch->period = 1;
    patch->makers = rows->of;
}

/* What a norm of queries or keys would take away from the first n_latch of n_head heads, whose
 * squares sum up to sumsq each, while those of the others sum up to dim. */
static void undo_norm(synth_plan *p, int l, const char *name, int n_head, int n_latch, double sumsq)
{
    const int dim = p->o.shape->head_dim;
    const synth_part *t = synth_plan_part(p, l, name);
    if (t == &p->spare) return;                      /* there is none */
    const bool whole = t->cols > (uint64_t)dim;      /* over all heads */
    const double rms = sqrt(whole ? (n_latch * sumsq / dim + n_head - n_latch) / n_head
                                  : sumsq / dim);
    const int n = whole ? n_head * dim : dim;
    float *gain = take_table(p, l, name, n);
    for (int i = 0; i < n && gain; i++)
        gain[i] = (float)(whole && i >= n_latch * dim ? (double)gain[i] * rms : rms);
}

/* Keys of so many heads: constant in the dimensions that age is read from, a number of the token's
 * own in those of `scored`, nothing in the others. */
static void add_latch_keys(synth_plan *p, int l, const float *constant, const bool *scored,
                           int n_head)
{
    const int dim = p->o.shape->head_dim, n_embd = p->o.shape->n_embd, n_row = n_head * dim;
    const double inputs = DRIFT_COLS * HELD_EMBD * HELD_EMBD + n_embd - PLAIN_AT;
    synth_part *t = synth_plan_part(p, l, "attn_k.weight");
    struct row_makers *scores = &p->drift->scores;
    double sumsq = 0;

    add_constants(p, t, &p->drift->keys, constant, n_row);
    synth_plan_patch(p, t, 0, n_row, TOPIC_AT, DRIFT_COLS, NOTHING);     /* no topic is preferred */
    synth_patch *patch = synth_plan_patch(p, t, 0, n_row, HELD_AT, n_embd - HELD_AT, NOTHING);
    for (int r = 0; r < n_row && p->rc == 0; r++)
        scores->of[r] = synth_plan_maker(p, t->maker->type, scored[r % dim] ?
                                         rms_of(p, 0, 0) / sqrt(inputs) : NOTHING);
    patch->makers = scores->of;
    for (int r = 0; r < dim; r++)
        sumsq += scored[r] ? 1 : (double)constant[r] * (double)constant[r];
    undo_norm(p, l, "attn_k_norm.weight", p->o.shape->n_head_kv, n_head, sumsq);
}

/* Heads that look at many tokens would add the mean of all topics to each of them for ever. */
static void mute_topics(synth_plan *p, int l)
{
    const int n_row = p->o.shape->n_head_kv * p->o.shape->head_dim;
    synth_plan_patch(p, synth_plan_part(p, l, "attn_v.weight"), 0, n_row, TOPIC_AT,
                     PLAIN_AT - TOPIC_AT, NOTHING);
}

/* As latch_biases, with what is constant in all tokens for biases. */
static void latch_common(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const int dim = s->head_dim, half = dim / 2, group = s->n_head / s->n_head_kv;
    const int n_kv = group >= DRIFT_LATCHES ? 1 : DRIFT_LATCHES;         /* heads that they read */
    const rope_spec rope = rope_of(s);
    synth_part *values = synth_plan_part(p, l, "attn_v.weight");
    synth_part *out = synth_plan_part(p, l, "attn_output.weight");
    synth_part *queries = synth_plan_part(p, l, "attn_q.weight");
    float q[DRIFT_LATCHES * DRIFT_DIM_MAX], k[DRIFT_LATCHES * DRIFT_DIM_MAX];
    bool scored[DRIFT_DIM_MAX] = { false };

    assert((group >= DRIFT_LATCHES || group == 1) && rope.dim == dim && dim <= DRIFT_DIM_MAX &&
           dim % DRIFT_TOPICS == 0);
    for (int i = 0; i < DRIFT_LATCHES; i++) {
        float by_half[2][DRIFT_DIM_MAX];
        synth_latch_biases(by_half[0], by_half[1], i, &rope, dim, p->o.drift);
        for (int r = 0; r < dim; r++) {
            const int to = s->family->neighbours ? r % half * 2 + r / half : r;
            q[i * dim + to] = by_half[0][r];
            k[i * dim + to] = by_half[1][r];
            scored[to] |= by_half[0][r] != 0 && by_half[1][r] == 0;
        }
    }
    find_common(p, l);
    add_constants(p, queries, &p->drift->queries, q, DRIFT_LATCHES * dim);
    synth_plan_patch(p, queries, 0, DRIFT_LATCHES * dim, DIR_COLS, s->n_embd - DIR_COLS, NOTHING);
    undo_norm(p, l, "attn_q_norm.weight", s->n_head, DRIFT_LATCHES, product(q, q, dim));
    add_latch_keys(p, l, k, scored, n_kv);
    repeat_topics(p, synth_plan_patch(p, values, 0, n_kv * dim, TOPIC_AT, DRIFT_COLS, VALUE_STD));
    mute_topics(p, l);
    add_outputs(p, out, dim, n_kv == 1 ? group : DRIFT_LATCHES,
                VALUE_STD * DRIFT_COLS / sqrt(DRIFT_TOPICS));
    if (p->rc == 0) find_held(p, values, 0, n_kv == 1 ? 0 : dim, out, dim, false);
}

/* ---- DeltaNet ---- */

static void latch_deltanet(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const int dim = s->ssm_dim, n_qk = s->n_k_head * dim, n_v = s->n_v_head * dim;
    const int n_key = n_latch_keys(s) * dim;         /* rows of latches' keys */
    synth_part *qkv = synth_plan_part(p, l, "attn_qkv.weight");
    synth_part *out = synth_plan_part(p, l, "ssm_out.weight");
    float *conv = take_table(p, l, "ssm_conv1d.weight", (2 * n_qk + n_v) * s->conv);
    float *dt = take_table(p, l, "ssm_dt.bias", s->n_v_head);

    if (p->rc < 0) return;
    assert(n_key > 0 && s->n_v_head >= DRIFT_LATCHES && dim <= DRIFT_DIM_MAX &&
           dim % DRIFT_TOPICS == 0 && s->n_embd % DRIFT_COLS == 0);
    for (int i = 0; i < DRIFT_LATCHES; i++) dt[i] = SHUT;
    for (int i = 0; i < 2 * n_qk + DRIFT_LATCHES * dim; i++) {
        const bool value = i >= 2 * n_qk;    /* of q and k only the first dimension is kept */
        if (!value && i % n_qk >= n_key) continue;
        for (int tap = 0; tap < s->conv; tap++)
            conv[i * s->conv + tap] = tap == s->conv - 1 && (value || i % dim == 0);
    }
    find_common(p, l);
    add_constant(p, qkv, 0, n_key, CONSTANT);
    add_constant(p, qkv, n_qk, n_key, CONSTANT);
    repeat_topics(p, synth_plan_patch(p, qkv, 2 * n_qk, DRIFT_LATCHES * dim, TOPIC_AT, DRIFT_COLS,
                                      VALUE_STD_DELTA));
    add_constant(p, synth_plan_part(p, l, "attn_gate.weight"), 0, DRIFT_LATCHES * dim, CONSTANT);
    add_openings(p, l);
    add_outputs(p, out, dim, DRIFT_LATCHES, CONSTANT);
    if (p->rc == 0) find_held(p, qkv, 2 * n_qk, dim, out, dim, true);
}

void synth_drift_latches(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    if (p->rc < 0 || !p->o.drift) return;
    if (s->family->latch == SYNTH_LATCH_COMMON && l != s->family->latch_layer) mute_topics(p, l);
    if (l != s->family->latch_layer) return;
    if (s->family->latch == SYNTH_LATCH_DELTANET) latch_deltanet(p, l);
    else if (s->family->latch == SYNTH_LATCH_COMMON) latch_common(p, l);
    else latch_biases(p, l);
    if (p->rc == 0 && !synth_latch_readers(p->drift->readers, p->drift->held))
        p->rc = err_set(p->err, ERR_UNSUPPORTED, "%s: weights of type %s cannot tell topics apart",
                        s->name, quant_name(p->o.dense));
}

/* ---- routers ----------------------------------------------------------------------------- */

/* Logits z + b as in synth_add.c. b comes from the held channels: for each topic that the latch of
 * this layer may hold, its reader times the topic's ranking. z comes from the plain channels alone:
 * what is the same in all tokens, or in a sixteenth of them, would make some experts popular for
 * ever. Noise in the held channels adds to z. Layers before the latches have no b here. */
bool synth_drift_router(synth_plan *p, int l)
{
    const synth_shape *s = p->o.shape;
    const bool reads = l >= s->family->latch_layer;
    if (p->rc < 0 || !p->o.drift) return false;
    const int n = s->n_expert;
    const double added = s->family->growth * (l + 0.7);
    const double inputs = (s->n_embd - PLAIN_AT) * (1 + added);
    const double rms = rms_of(p, added, reads ? DRIFT_LATCHES * HELD_STD * HELD_STD : 0);
    const float *readers = p->drift->readers + l % DRIFT_LATCHES * DRIFT_TOPICS * DRIFT_COLS;
    float *b = p->logits + (size_t)(l * DRIFT_TOPICS) * (size_t)n;
    synth_part *t = synth_plan_part(p, l, "ffn_gate_inp.weight");
    double mean = 0, variance = 0;

    for (int e = 0; e < n; e++) mean += (double)b[e] / n;        /* the same set for all topics */
    for (int e = 0; e < n; e++) variance += ((double)b[e] - mean) * ((double)b[e] - mean) / n;
    const double noise = variance * product(readers, readers, DRIFT_TOPICS * DRIFT_COLS) *
                         (HELD_EMBD * HELD_EMBD + added);
    t->kind = FILL_ROUTER;
    t->hi = (float)(rms * sqrt(3.0 * (reads ? fmax(1 - noise, 0.25) : 1) / inputs));
    t->lo = -t->hi;
    t->n_zero = reads ? HELD_AT : PLAIN_AT;
    if (!reads) return false;
    for (int i = 0; i < DRIFT_TOPICS * n; i++)
        b[i] = (float)(((double)b[i] - mean) * rms * SOFTNESS);
    t->table = b;
    t->front = readers;
    t->n_sum = DRIFT_TOPICS;
    t->n_front = DRIFT_COLS;
    t->front_at = HELD_AT;
    t->rows = (uint64_t)n;
    return true;
}
