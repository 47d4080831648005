/* sim_gpu_token.c - the two ends of a token's path and the router in between: embedding, rotation
 * tables, router logits; the likeliest token, and what a sampler asks about a row of logits. */
#include "tests/sim_gpu_internal.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "engine/models/rope.h"
#include "moe/router.h"

/* ---- the embedding --------------------------------------------------------------------------- */

typedef struct embed_args {
    float *x;
    gpu_matrix table;
    const int32_t *ids;
    int n;
} embed_args;

static void run_embed(gpu *g, void *args)
{
    const embed_args *a = args;
    const matrix table = sim_matrix(&a->table);
    for (int t = 0; t < a->n; t++)
        if (a->ids[t] < 0 || a->ids[t] >= table.rows) {
            sim_fail(g, "embedding: token %d has id %d of %d", t, a->ids[t], table.rows);
            return;
        }
    ops_embed(sim_ops(), a->x, &table, a->ids, a->n);
}

void gpu_embed(gpu *g, float *x, const gpu_matrix *table, const int32_t *ids, int n)
{
    const embed_args a = { x, *table, ids, n };
    sim_call c = sim_begin(g, "embed");
    if (!gpu_type_fits(table->type)) sim_fail(g, "embedding: type %d", table->type);
    /* the table may be in page-locked RAM: engine/gpu/weights_gpu.h */
    sim_reads_any(&c, "table", table->data, (uint64_t)table->rows * table->row_bytes);
    sim_reads(&c, "ids", ids, (uint64_t)n * sizeof *ids);
    sim_writes(&c, "x", x, (uint64_t)n * (uint64_t)table->cols * sizeof *x);
    sim_end(&c, run_embed, &a, sizeof a);
}

/* ---- rotation -------------------------------------------------------------------------------- */

typedef struct rope_args {
    float *cosine, *sine;
    const double *freq;
    double magnitude;
    int half, n;
    const gpu_cursor *at;
} rope_args;

static void run_rope(gpu *g, void *args)
{
    const rope_args *a = args;
    const gpu_cursor *row = a->at;
    for (int left = a->n, n; left > 0; left -= n, row++) {
        const size_t at = (size_t)(a->n - left) * (size_t)a->half;
        n = sim_row_tokens(row, left);
        if (row->pos < 0) sim_fail(g, "rotation: position %d", row->pos);
        else rope_table(a->cosine + at, a->sine + at, a->freq, a->magnitude, 2 * a->half, row->pos,
                        n);
    }
}

void gpu_rope_table(gpu *g, float *cosine, float *sine, const double *freq, double magnitude,
                    int half, const gpu_cursor *at, int n)
{
    const rope_args a = { cosine, sine, freq, magnitude, half, n, at };
    const uint64_t bytes = (uint64_t)n * (uint64_t)half * sizeof *cosine;
    sim_call c = sim_begin(g, "rope");
    sim_reads(&c, "frequencies", freq, (uint64_t)half * sizeof *freq);
    sim_reads(&c, "cursor", at, sizeof *at);
    sim_writes(&c, "cosine", cosine, bytes);
    sim_writes(&c, "sine", sine, bytes);
    sim_end(&c, run_rope, &a, sizeof a);
}

/* ---- the router ------------------------------------------------------------------------------ */

typedef struct route_args {
    gpu_input in;
    gpu_route_args r;
    bool leaves;                         /* the finished forms, for the experts */
    int n_also;
    gpu_input also[2];                   /* others that get theirs */
} route_args;

/* As a choice among one sees it. */
static float choice_key(float logit, float bias)
{
    const router_rule sigmoid = { .score = ROUTER_SIGMOID, .as_scored = true };
    float score;
    int32_t id;
    router_select(&id, &score, &logit, 1, 1, &sigmoid);
    return score + bias;
}

static void run_route(gpu *g, void *args)
{
    const route_args *a = args;
    const gpu_route_args *r = &a->r;
    const matrix router = sim_matrix(&r->router), gate = sim_matrix(&r->shared_gate);
    const size_t n = (size_t)a->in.n, n_expert = (size_t)router.rows, k = (size_t)r->k;
    const router_rule rule = sim_rule(&r->rule);
    float *rows = sim_finished(g, &a->in);
    if (!rows) return;
    sim_vectors x = sim_vectors_make(rows, a->in.n, a->in.cols);
    sim_multiply_all(r->logits, n_expert, &router, &x);
    if (gate.data) sim_multiply_all(r->sigma, 1, &gate, &x);
    for (size_t t = 0; t < n; t++) {
        if (gate.data) r->sigma[t] = sigmoid_f32(r->sigma[t]);
        for (size_t e = 0; e < n_expert && r->keys && !r->ids; e++)
            r->keys[t * n_expert + e] = choice_key(r->logits[t * n_expert + e], rule.bias[e]);
        if (r->ids)
            router_select(r->ids + t * k, r->gates + t * k, r->logits + t * n_expert,
                          (int)n_expert, r->k, &rule);
    }
    if (a->leaves) sim_leave_few(&a->in, rows);
    sim_vectors_free(&x);
    free(rows);
    for (int i = 0; i < a->n_also; i++) {
        rows = sim_finished(g, &a->also[i]);
        if (!rows) return;
        sim_leave_few(&a->also[i], rows);
        free(rows);
    }
}

static void claim_forms(sim_call *c, const gpu_input *in)
{
    const uint64_t n = (uint64_t)in->n;
    sim_writes(c, "rows", in->rows, n * (uint64_t)in->cols * sizeof *in->rows);
    sim_writes(c, "blocks", in->blocks, n * gpu_blocks_bytes(in->cols));
}

void gpu_route(gpu *g, gpu_input *in, const gpu_route_args *r)
{
    const uint64_t n = (uint64_t)in->n, k = (uint64_t)r->k;
    const bool shared = r->shared_gate.data != NULL;
    const bool floats = sim_is_float(r->router.type) &&
                        (!shared || sim_is_float(r->shared_gate.type));
    sim_call c = sim_begin(g, "router");
    if (r->router.rows > 1024 || r->k > GPU_MOST_USED || r->k > r->router.rows ||
        r->router.cols != in->cols || (shared && r->shared_gate.rows != 1) || in->n < 1) {
        sim_fail(g, "router: %d of %d experts, %d tokens", r->k, r->router.rows, in->n);
        return;
    }
    if (!gpu_is_few(in->n, in->in_pass))
        sim_prepare_many(g, in, r->router.type == QT_F32 ||
                         (shared && r->shared_gate.type == QT_F32), r->router.type != QT_F32 ||
                         (shared && r->shared_gate.type != QT_F32));
    const bool few = gpu_is_few(in->n, in->in_pass) && floats;
    route_args a = { .in = *in, .r = *r, .leaves = few && in->blocks };
    for (int i = 0; i < 2 && few; i++) {
        gpu_input *other = r->also[i];
        if (!other || other->has_blocks) continue;
        if (other->n != in->n || !other->blocks || !other->rows) {
            sim_fail(g, "router: another input, of %d vectors", other->n);
            return;
        }
        a.also[a.n_also++] = *other;
        sim_claim_input(&c, other);
        claim_forms(&c, other);
        other->has_rows = other->has_blocks = true;
    }
    sim_claim_input(&c, in);
    sim_claim_matrix(&c, "router", &r->router);
    sim_reads(&c, "bias of the choice", r->rule.bias, (uint64_t)r->router.rows * sizeof(float));
    if (shared) sim_claim_matrix(&c, "shared gate", &r->shared_gate);
    sim_writes(&c, "logits", r->logits, n * (uint64_t)r->router.rows * sizeof *r->logits);
    if (shared) sim_writes(&c, "sigma", r->sigma, n * sizeof *r->sigma);
    if (r->keys && !r->ids) {
        if (!r->rule.sigmoid || !r->rule.bias) sim_fail(g, "router: keys");
        sim_writes(&c, "keys", r->keys, n * (uint64_t)r->router.rows * sizeof *r->keys);
    }
    if (r->ids) {
        sim_writes(&c, "ids", r->ids, n * k * sizeof *r->ids);
        sim_writes(&c, "gates", r->gates, n * k * sizeof *r->gates);
    }
    if (a.leaves) claim_forms(&c, in);
    sim_end(&c, run_route, &a, sizeof a);
    if (a.leaves) in->has_rows = in->has_blocks = true;
}

/* ---- the next token -------------------------------------------------------------------------- */

typedef struct largest_args {
    const float *logits;
    int n;
    gpu_cursor *at;
    uint64_t *seen;
    uint32_t *best, *counter;
} largest_args;

static bool beats(float a, float b) { return a > b || (isnan(b) && !isnan(a)); }

static void advance(gpu_cursor *at, int n)
{
    uint8_t *written = at->recurrent_next;
    at->pos += n;
    at->recurrent_next = (uint8_t *)(uintptr_t)at->recurrent;
    at->recurrent = written;
}

static void run_largest(gpu *g, void *args)
{
    const largest_args *a = args;
    int best = 0;
    if (*a->counter != 0) {
        sim_fail(g, "pick: the counter is %u", (unsigned)*a->counter);
        return;
    }
    for (int i = 1; i < a->n; i++)
        if (beats(a->logits[i], a->logits[best])) best = i;
    sim_clobber(a->best, GPU_LARGEST_WORDS * sizeof *a->best);
    a->at->token = best;
    advance(a->at, 1);
    if (a->seen)
        *a->seen = (uint64_t)((uint32_t)a->at->pos & 0x7FFFFFFFu) << 32 | (uint32_t)best;
}

void gpu_largest(gpu *g, const float *logits, int n, gpu_cursor *at, uint64_t *seen, uint32_t *best,
                 uint32_t *counter)
{
    const largest_args a = { logits, n, at, seen, best, counter };
    sim_call c = sim_begin(g, "pick");
    sim_reads(&c, "logits", logits, (uint64_t)n * sizeof *logits);
    sim_writes(&c, "cursor", at, sizeof *at);
    sim_writes_any(&c, "witness", seen, sizeof *seen);
    sim_writes(&c, "best", best, GPU_LARGEST_WORDS * sizeof *best);
    sim_writes(&c, "counter", counter, sizeof *counter);
    sim_end(&c, run_largest, &a, sizeof a);
}

typedef struct advance_args { gpu_cursor *at; int n; } advance_args;

static void run_advance(gpu *g, void *args)
{
    const advance_args *a = args;
    (void)g;
    advance(a->at, a->n);
}

void gpu_advance(gpu *g, gpu_cursor *at, int n)
{
    const advance_args a = { at, n };
    sim_call c = sim_begin(g, "pick");
    sim_writes(&c, "cursor", at, sizeof *at);
    sim_end(&c, run_advance, &a, sizeof a);
}

/* ---- sampling: the arithmetic of cuda/sample.cu, in its order -------------------------------- */

enum { BLOCK = GPU_SHORTLIST_BLOCK, LANES = GPU_SHORTLIST_LANES, STEPS = GPU_SHORTLIST_STEPS };

static int block_count(int n) { return (n + BLOCK - 1) / BLOCK; }

static bool penalise(gpu *g, const gpu_shortlist *s)
{
    for (int i = 0; i < s->n_seen; i++) {
        const int id = s->seen[2 * i], count = s->seen[2 * i + 1];
        if (id < 0 || id >= s->n) {
            sim_fail(g, "sampling: id %d of %d is penalised", id, s->n);
            return false;
        }
        if (!isfinite(s->work[id])) continue;
        double x = s->work[id];
        x = x > 0 ? x / s->repeat : x * s->repeat;
        x = x - (s->presence + (double)count * s->frequency);
        x = x > (double)FLT_MAX ? (double)FLT_MAX : x < -(double)FLT_MAX ? -(double)FLT_MAX : x;
        s->work[id] = (float)x + 0.0f;
    }
    return true;
}

static double weight_of(float v, double largest, const gpu_shortlist *s)
{
    const double ln_2 = 0x1.62e42fefa39efp-1, magic = 0x1.8p52;
    double z = ((double)v - largest) * s->per_temperature, made;
    uint64_t n, bits;
    z = z < -700 ? -700 : z;
    const double t = z * (STEPS / ln_2) + magic;
    const double r = z - (t - magic) * (ln_2 / STEPS);
    double p = 0.5 + r * (1.0 / 6);
    p = 1.0 + r * p;
    p = 1.0 + r * p;
    memcpy(&n, &t, sizeof n);
    memcpy(&bits, &s->steps[n % STEPS], sizeof bits);
    bits += n / STEPS << 52;
    memcpy(&made, &bits, sizeof made);
    return made * p;
}

static double block_mass(const float *work, double largest, const gpu_shortlist *s)
{
    double mass = 0.0;
    for (int lane = 0; lane < LANES; lane++) {
        double sum = 0.0;
        for (int k = 0; k < BLOCK; k += LANES) sum += weight_of(work[k + lane], largest, s);
        mass += sum;
    }
    return mass;
}

static void run_shortlist(gpu *g, void *args)
{
    const gpu_shortlist *s = args;
    const int n_block = block_count(s->n);
    float top = -INFINITY;
    for (int i = 0; i < n_block * BLOCK; i++) {
        const bool may = i < s->n && (!s->allowed || s->allowed[i / BLOCK] >> i % BLOCK & 1);
        const float x = may ? s->logits[i] + s->bias[i] : -INFINITY;
        s->work[i] = isnan(x) ? -INFINITY : x;
    }
    if (!penalise(g, s)) return;
    for (int b = 0; b < n_block; b++) {
        float most = -INFINITY;
        for (int i = 0; i < BLOCK; i++) most = fmaxf(most, s->work[b * BLOCK + i]);
        s->maxima[b] = most;
        top = fmaxf(top, most);
    }
    memcpy(s->top, &top, sizeof *s->top);        /* not the device's key */
    for (int b = 0; s->masses && b < n_block; b++)
        s->masses[b] = s->maxima[b] == -INFINITY ? 0
                                                 : block_mass(s->work + b * BLOCK, (double)top, s);
}

void gpu_shortlist_make(gpu *g, const gpu_shortlist *s)
{
    const uint64_t n = (uint64_t)s->n, blocks = (uint64_t)block_count(s->n);
    sim_call c = sim_begin(g, "sampling");
    sim_reads(&c, "logits", s->logits, n * sizeof(float));
    sim_reads(&c, "bias", s->bias, n * sizeof(float));
    sim_reads(&c, "steps", s->steps, STEPS * sizeof(double));
    sim_writes(&c, "work", s->work, blocks * BLOCK * sizeof(float));
    sim_writes(&c, "top", s->top, sizeof *s->top);
    /* what passes between sampler and device is in page-locked RAM */
    if (s->allowed) sim_reads_any(&c, "allowed", s->allowed, blocks * sizeof *s->allowed);
    sim_reads_any(&c, "seen", s->seen, (uint64_t)s->n_seen * 2 * sizeof *s->seen);
    sim_writes_any(&c, "maxima", s->maxima, blocks * sizeof *s->maxima);
    sim_writes_any(&c, "masses", s->masses, blocks * sizeof *s->masses);
    sim_end(&c, run_shortlist, s, sizeof *s);
}

typedef struct gather_args {
    const float *work;
    int n, cap;
    float bound;
    const uint32_t *top;                 /* the bound, or NULL */
    gpu_pair *to;
    uint32_t *count;
} gather_args;

/* In any order: from the last id to the first, so that no test relies on another order. */
static void run_gather(gpu *g, void *args)
{
    const gather_args *a = args;
    float bound = a->bound;
    uint32_t n = 0;
    (void)g;
    if (a->top) memcpy(&bound, a->top, sizeof bound);
    for (int i = a->n - 1; i >= 0; i--) {
        if (!(a->work[i] >= bound && a->work[i] > -INFINITY)) continue;
        if (n < (uint32_t)a->cap) a->to[n] = (gpu_pair){ i, a->work[i] };
        n++;
    }
    *a->count = n;
}

static void gather_from(gpu *g, const gpu_shortlist *s, float bound, const uint32_t *top,
                        gpu_pair *to, int cap, uint32_t *count)
{
    const gather_args a = { s->work, s->n, cap, bound, top, to, count };
    sim_call c = sim_begin(g, "sampling");
    sim_reads(&c, "work", s->work, (uint64_t)s->n * sizeof(float));
    if (top) sim_reads(&c, "top", top, sizeof *top);
    sim_writes_any(&c, "pairs", to, (uint64_t)cap * sizeof *to);
    sim_writes_any(&c, "count", count, sizeof *count);
    sim_end(&c, run_gather, &a, sizeof a);
}

void gpu_shortlist_gather(gpu *g, const gpu_shortlist *s, float bound, gpu_pair *to, int cap,
                          uint32_t *count)
{
    gather_from(g, s, bound, NULL, to, cap, count);
}

void gpu_shortlist_gather_top(gpu *g, const gpu_shortlist *s, gpu_pair *to, int cap,
                              uint32_t *count)
{
    gather_from(g, s, 0.0f, s->top, to, cap, count);
}
