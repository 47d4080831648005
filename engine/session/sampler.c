/* sampler.c - picks a token from logits without sorting the vocabulary.
 *
 * The vocabulary is cut into blocks. One pass finds the largest logit of each block; the k-th
 * largest of these is a lower bound of the k-th largest logit. The logits that are not below the
 * bound are gathered and sorted: they are the beginning of the order. Truncations and draw read
 * that beginning and extend it on demand, so their results do not depend on its length.
 *
 * Invariant: order[0 .. n_order) is the beginning of the order, weight[0 .. n_weight) are its
 * weights, work holds no NaN and no -0. All sums run in a fixed order: along the order, or, for the
 * mass of the whole vocabulary, by id. */
#include "engine/session/sampler.h"

#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

enum {
    BLOCK = SAMPLER_BLOCK, LANES = SAMPLER_LANES,
    STEPS = SAMPLER_STEPS,               /* entries in the table of exp: a power of two */
    MAX_PAIRS = 8192,                    /* most from a source; with more the row is needed */
    MAX_VOCAB = 1 << 28,                 /* block arithmetic stays within int */
    FIRST_ORDER = 64, GROW_ORDER = 6     /* tokens of the order made at first; how it grows */
};
#define LN_2 0x1.62e42fefa39efp-1
#define GREEDY_BELOW 1e-5                /* temperatures that leave the largest logits only */

typedef struct ranked { uint32_t key; int32_t id; } ranked;      /* the larger logit first */

/* For sampler_back. */
typedef struct accepted {
    int32_t id;                          /* -1: the penalties do not count it */
    int32_t left;                        /* the token that left the window; -1: none */
    uint64_t rng[4];                     /* before it was drawn */
} accepted;

struct sampler {
    sampler_options o;                   /* o.biases is NULL: they are in bias */
    int n_vocab, n_block;
    double per_temperature;              /* 1 / temperature; unused if greedy */
    double exp_steps[STEPS];
    uint64_t rng[4];
    float *bias;                         /* [n_vocab] -INFINITY: banned */
    uint64_t bias_version;
    const uint64_t *allowed;             /* bits; NULL: all */
    token_scores *scores;                /* of each pick, or NULL */
    int n_top;

    /* the last n_recent of at most window accepted tokens, the oldest at recent[oldest] */
    int32_t *recent;                     /* [window] */
    int window, n_recent, oldest;
    int32_t *count;                      /* [n_vocab] how often an id is in recent */
    int32_t *penalised;                  /* [n_penalised] ids with a count above 0 */
    int32_t *penalised_at;               /* [n_vocab] the id's index in penalised */
    int n_penalised;
    accepted past[SAMPLER_BACK];         /* token i of all accepted at i % SAMPLER_BACK */
    uint64_t n_accepted;
    int n_past;                          /* of these that can be taken back */
    uint64_t rng_accepted[4];            /* after the last one was drawn */

    /* of the pick under way */
    float *work;                         /* [n_block * BLOCK] logits after biases and penalties;
                                          * -INFINITY after the last */
    float *block_max;                    /* [n_block] */
    double *block_mass;                  /* [n_block], only from a source */
    const sampler_source *source;        /* NULL: the logits are in work */
    sampler_pair *pairs;                 /* [MAX_PAIRS] */
    bool unusual;                        /* the source does not suffice */
    float largest;
    ranked *order, *scratch;             /* [n_vocab] each */
    double *weight;                      /* [n_vocab + BLOCK]: made in blocks */
    int n_order, n_weight;
    bool order_full;                     /* no token that could be picked is missing from order */
};

/* ---- options --------------------------------------------------------------------------------- */

#define AT(field) offsetof(sampler_options, field)
static const struct option {
    const char *name;
    size_t at;
    bool is_int;
    double lo, hi;
    bool above_lo;                       /* lo itself is not possible */
    const char *key;                     /* in a file, or NULL */
} options[] = {
    { "temperature", AT(temperature), false, 0, 100, false, "general.sampling.temp" },
    { "top-k", AT(top_k), true, 0, INT_MAX, false, "general.sampling.top_k" },
    { "top-p", AT(top_p), false, 0, 1, true, "general.sampling.top_p" },
    { "min-p", AT(min_p), false, 0, 1, false, "general.sampling.min_p" },
    { "repeat penalty", AT(repeat_penalty), false, 0, 10, true, "general.sampling.penalty_repeat" },
    { "presence penalty", AT(presence_penalty), false, -2, 2, false, NULL },
    { "frequency penalty", AT(frequency_penalty), false, -2, 2, false, NULL },
    { "penalty window", AT(penalty_window), true, -1, INT_MAX, false,
      "general.sampling.penalty_last_n" },
};
#undef AT

static int check_option(const sampler_options *o, const struct option *what, err_ctx *err)
{
    const char *at = (const char *)o + what->at;
    const double v = what->is_int ? *(const int *)at : *(const double *)at;

    if (v >= what->lo && v <= what->hi && !(what->above_lo && v == what->lo)) return 0;
    if (what->is_int)
        return err_set(err, ERR_RANGE, "%s %.0f is not %.0f or more", what->name, v, what->lo);
    return err_set(err, ERR_RANGE, "%s %g is not within %s%g, %g]", what->name, v,
                   what->above_lo ? "(" : "[", what->lo, what->hi);
}

int sampler_check(const sampler_options *o, int n_vocab, err_ctx *err)
{
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        const int rc = check_option(o, &options[i], err);
        if (rc < 0) return rc;
    }
    if (o->n_bias < 0 || (o->n_bias > 0 && !o->biases))
        return err_set(err, ERR_RANGE, "%d logit biases", o->n_bias);
    for (int i = 0; i < o->n_bias; i++) {
        const logit_bias b = o->biases[i];
        if (b.id < 0 || b.id >= n_vocab)
            return err_set(err, ERR_RANGE, "logit bias of token %d: the vocabulary has %d tokens",
                           b.id, n_vocab);
        if (!(b.bias >= -1e4f && b.bias <= 1e4f) && b.bias != -INFINITY)
            return err_set(err, ERR_RANGE,
                           "logit bias %g of token %d is not within [-10000, 10000] or -inf",
                           (double)b.bias, b.id);
    }
    return 0;
}

/* One option from its key in the file, if that is there. */
static int read_option(sampler_options *o, const gguf *g, const struct option *what, err_ctx *err)
{
    char *at = (char *)o + what->at;
    int rc;

    if (what->is_int) {
        int64_t v = 0;
        rc = gguf_get_int(&v, g, what->key, INT_MIN, INT_MAX, err);
        if (v == -1 && what->at == offsetof(sampler_options, top_k)) v = 0;
        if (rc > 0) *(int *)at = (int)v;
    } else {
        rc = gguf_get_float((double *)at, g, what->key, -DBL_MAX, DBL_MAX, err);
    }
    if (rc > 0 && (rc = check_option(o, what, err)) < 0)
        return err_prefix(err, rc, "key %s", what->key);
    return rc < 0 ? rc : 0;
}

int sampler_defaults(sampler_options *out, const model *m, err_ctx *err)
{
    *out = (sampler_options){
        .temperature = m->family->sampling.temperature, .top_k = m->family->sampling.top_k,
        .top_p = m->family->sampling.top_p, .repeat_penalty = 1, .penalty_window = 64,
    };
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        const int rc = options[i].key ? read_option(out, m->file, &options[i], err) : 0;
        if (rc < 0) return rc;
    }
    return 0;
}

/* ---- random numbers, table of exp ------------------------------------------------------------ */

static void rng_seed(uint64_t rng[4], uint64_t seed)
{
    for (int i = 0; i < 4; i++) rng[i] = random_word(seed, (uint64_t)i);     /* never four zeros */
}

static uint64_t rotate_left(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

/* xoshiro256**; its upper 53 bits as a number in (0, 1] */
static double rng_draw(uint64_t rng[4])
{
    const uint64_t x = rotate_left(rng[1] * 5, 7) * 9, t = rng[1] << 17;
    rng[2] ^= rng[0];
    rng[3] ^= rng[1];
    rng[1] ^= rng[2];
    rng[0] ^= rng[3];
    rng[2] ^= t;
    rng[3] = rotate_left(rng[3], 45);
    return (double)((x >> 11) + 1) * 0x1p-53;
}

static void seed_draws(sampler *s, uint64_t seed)
{
    rng_seed(s->rng, seed);
    memcpy(s->rng_accepted, s->rng, sizeof s->rng);
    s->n_past = 0;
}

/* exp_steps[k] = 2^(k / STEPS), from the series of exp. */
static void fill_steps(double exp_steps[STEPS])
{
    for (int k = 0; k < STEPS; k++) {
        const double r = k * (LN_2 / STEPS);
        double p = 1;
        for (int j = 20; j > 0; j--) p = 1 + p * r / j;
        exp_steps[k] = p;
    }
}

/* ---- biases ---------------------------------------------------------------------------------- */

/* What a bias adds to the version, which thus depends on all biases and on nothing else. */
static uint64_t bias_mark(int32_t id, float bias)
{
    uint32_t bits;
    memcpy(&bits, &bias, sizeof bits);
    return bias == 0 ? 0 : random_word(bits, (uint64_t)id);
}

static void set_bias(sampler *s, int32_t id, float bias)
{
    s->bias_version += bias_mark(id, bias) - bias_mark(id, s->bias[id]);
    s->bias[id] = bias;
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool allocate(sampler *s)
{
    const size_t n = (size_t)s->n_vocab;

    s->bias = mem_array(n, sizeof *s->bias);
    s->work = mem_array((size_t)s->n_block * BLOCK, sizeof *s->work);
    s->block_max = mem_array((size_t)s->n_block, sizeof *s->block_max);
    s->order = mem_array(n, sizeof *s->order);
    s->scratch = mem_array(n, sizeof *s->scratch);
    s->weight = mem_array(n + BLOCK, sizeof *s->weight);
    s->block_mass = mem_array((size_t)s->n_block, sizeof *s->block_mass);
    s->pairs = mem_array(MAX_PAIRS, sizeof *s->pairs);
    if (!s->bias || !s->work || !s->block_max || !s->order || !s->scratch || !s->weight ||
        !s->block_mass || !s->pairs)
        return false;
    if (s->window == 0) return true;
    s->recent = mem_array((size_t)s->window, sizeof *s->recent);
    s->count = mem_array(n, sizeof *s->count);
    s->penalised = mem_array(s->window < s->n_vocab ? (size_t)s->window : n, sizeof *s->penalised);
    s->penalised_at = mem_array(n, sizeof *s->penalised_at);
    if (!s->recent || !s->count || !s->penalised || !s->penalised_at) return false;
    memset(s->count, 0, n * sizeof *s->count);
    return true;
}

int sampler_create(sampler **out, const sampler_options *o, int n_vocab, int ctx, err_ctx *err)
{
    const bool penalised = o->repeat_penalty != 1 || o->presence_penalty != 0 ||
                           o->frequency_penalty != 0;
    int rc;

    *out = NULL;
    if (n_vocab < 1 || n_vocab > MAX_VOCAB || ctx < 0)
        return err_set(err, ERR_RANGE, "sampler: %d tokens, context %d", n_vocab, ctx);
    if ((rc = sampler_check(o, n_vocab, err)) < 0) return rc;
    sampler *s = mem_zalloc(sizeof *s);
    if (!s) return err_set(err, ERR_NOMEM, "out of memory for a sampler");
    s->o = *o;
    s->o.biases = NULL;
    s->n_vocab = n_vocab;
    s->n_block = sampler_blocks(n_vocab);
    s->window = o->penalty_window < 0 || o->penalty_window > ctx ? ctx : o->penalty_window;
    if (!penalised) s->window = 0;
    if (o->temperature >= GREEDY_BELOW) s->per_temperature = 1 / o->temperature;
    s->bias_version = 1;
    seed_draws(s, o->seed);
    fill_steps(s->exp_steps);
    if (!allocate(s)) {
        sampler_free(s);
        return err_set(err, ERR_NOMEM, "out of memory for a sampler of %d tokens", n_vocab);
    }
    for (int i = n_vocab; i < s->n_block * BLOCK; i++) s->work[i] = -INFINITY;
    for (int i = 0; i < n_vocab; i++) s->bias[i] = 0;
    for (int i = 0; i < o->n_bias; i++)
        set_bias(s, o->biases[i].id, s->bias[o->biases[i].id] + o->biases[i].bias);
    *out = s;
    return 0;
}

void sampler_free(sampler *s)
{
    if (!s) return;
    mem_free(s->bias);
    mem_free(s->recent);
    mem_free(s->count);
    mem_free(s->penalised);
    mem_free(s->penalised_at);
    mem_free(s->work);
    mem_free(s->block_max);
    mem_free(s->order);
    mem_free(s->scratch);
    mem_free(s->weight);
    mem_free(s->block_mass);
    mem_free(s->pairs);
    mem_free(s);
}

void sampler_ban(sampler *s, int32_t id)
{
    if (id < 0 || id >= s->n_vocab) return;
    set_bias(s, id, -INFINITY);
}

void sampler_allow(sampler *s, const uint64_t *bits) { s->allowed = bits; }

void sampler_score(sampler *s, token_scores *to, int n_top)
{
    s->scores = to;
    s->n_top = n_top;
}

/* ---- penalties ------------------------------------------------------------------------------- */

static void count_once(sampler *s, int32_t id)
{
    s->n_recent++;
    if (s->count[id]++ > 0) return;
    s->penalised_at[id] = s->n_penalised;
    s->penalised[s->n_penalised++] = id;
}

static void uncount_once(sampler *s, int32_t id)
{
    s->n_recent--;
    if (--s->count[id] > 0) return;
    const int32_t last = s->penalised[--s->n_penalised];         /* moves to its index */
    s->penalised[s->penalised_at[id]] = last;
    s->penalised_at[last] = s->penalised_at[id];
}

static int32_t forget_oldest(sampler *s)
{
    const int32_t id = s->recent[s->oldest];
    s->oldest = s->oldest + 1 == s->window ? 0 : s->oldest + 1;
    uncount_once(s, id);
    return id;
}

void sampler_accept(sampler *s, int32_t id)
{
    const bool counts = s->window > 0 && id >= 0 && id < s->n_vocab;
    accepted *a = &s->past[s->n_accepted++ % SAMPLER_BACK];
    s->n_past = min_int(s->n_past + 1, SAMPLER_BACK);
    *a = (accepted){ .id = counts ? id : -1, .left = -1 };
    memcpy(a->rng, s->rng_accepted, sizeof a->rng);
    memcpy(s->rng_accepted, s->rng, sizeof s->rng);
    if (!counts) return;
    if (s->n_recent == s->window) a->left = forget_oldest(s);
    const int room = s->window - s->oldest;              /* up to the ring's end */
    s->recent[s->n_recent < room ? s->oldest + s->n_recent : s->n_recent - room] = id;
    count_once(s, id);
}

void sampler_back(sampler *s, int n)
{
    assert(n >= 0 && n <= s->n_past);
    for (; n > 0; n--) {
        const accepted *a = &s->past[--s->n_accepted % SAMPLER_BACK];
        s->n_past--;
        memcpy(s->rng_accepted, a->rng, sizeof a->rng);
        memcpy(s->rng, a->rng, sizeof a->rng);
        if (a->id >= 0) uncount_once(s, a->id);
        if (a->left < 0) continue;
        s->oldest = s->oldest == 0 ? s->window - 1 : s->oldest - 1;
        s->recent[s->oldest] = a->left;
        count_once(s, a->left);
    }
}

void sampler_reset(sampler *s, uint64_t seed)
{
    while (s->n_recent > 0) (void)forget_oldest(s);
    seed_draws(s, seed);
}

/* A finite logit stays finite, so that a penalty never bans. */
static float penalised_logit(const sampler_options *o, float logit, int count)
{
    double x = logit;
    if (!isfinite(x)) return logit;
    x = x > 0 ? x / o->repeat_penalty : x * o->repeat_penalty;
    x -= o->presence_penalty + count * o->frequency_penalty;
    if (x > (double)FLT_MAX) x = (double)FLT_MAX;
    if (x < -(double)FLT_MAX) x = -(double)FLT_MAX;
    return (float)x + 0.0f;              /* no -0 */
}

/* ---- the order ------------------------------------------------------------------------------- */

/* work = logits with biases; no NaN. */
static void load(sampler *s, const float *logits, int from, int n)
{
    const float *x = logits + from, *bias = s->bias + from;
    float *work = s->work + from;
#pragma omp simd
    for (int i = 0; i < n; i++) {
        const float v = x[i] + bias[i];                  /* a bias is never -0: nor is v */
        work[i] = v == v ? v : -INFINITY;
    }
}

static_assert((int)BLOCK == 64, "a block of ids has one word of what is allowed");

/* The mask of a block. */
static uint64_t allowed_of(const sampler *s, int b)
{
    const int n = s->n_vocab - b * BLOCK;
    const uint64_t all = n < BLOCK ? ((uint64_t)1 << n) - 1 : UINT64_MAX;
    return s->allowed ? s->allowed[b] & all : all;
}

/* The same with a mask: word by word, because most words are all ones or zeros, or bit by bit. A
 * block without an allowed id is skipped: its block_max is -INFINITY, and work is not read. */
static void load_allowed(sampler *s, const float *logits)
{
    enum { FEW = 20 };                   /* up to so many bits of a word, one by one is faster */
    for (int b = 0; b < s->n_block; b++) {
        const int from = b * BLOCK;
        float *work = s->work + from;
        uint64_t bits = allowed_of(s, b);
        if (bits == 0) continue;
        if (__builtin_popcountll(bits) > FEW) {
            load(s, logits, from, min_int(BLOCK, s->n_vocab - from));
            for (bits = ~bits; bits; bits &= bits - 1)
                work[__builtin_ctzll(bits)] = -INFINITY;
            continue;
        }
        for (int i = 0; i < BLOCK; i++) work[i] = -INFINITY;
        for (; bits; bits &= bits - 1) load(s, logits, from + __builtin_ctzll(bits), 1);
    }
}

static float block_largest(const float x[BLOCK])
{
    float lane[LANES];
    for (int j = 0; j < LANES; j++) lane[j] = x[j];
    for (int i = LANES; i < BLOCK; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (int j = 1; j < LANES; j++) lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
    return lane[0];
}

/* work = logits with biases and penalties, and the largest of each block. */
static void prepare(sampler *s, const float *logits)
{
    if (s->allowed) load_allowed(s, logits);
    else load(s, logits, 0, s->n_vocab);
    for (int i = 0; i < s->n_penalised; i++) {
        const int32_t id = s->penalised[i];
        if (allowed_of(s, id / BLOCK) >> id % BLOCK & 1)
            s->work[id] = penalised_logit(&s->o, s->work[id], s->count[id]);
    }
    s->largest = -INFINITY;
    for (int b = 0; b < s->n_block; b++) {
        s->block_max[b] = allowed_of(s, b) ? block_largest(s->work + b * BLOCK) : -INFINITY;
        if (s->block_max[b] > s->largest) s->largest = s->block_max[b];
    }
    s->source = NULL;
    s->n_order = s->n_weight = 0;
    s->order_full = false;
}

static sampler_rules rules_of(const sampler *s)
{
    return (sampler_rules){
        .bias = s->bias, .bias_version = s->bias_version, .allowed = s->allowed,
        .repeat = s->o.repeat_penalty, .presence = s->o.presence_penalty,
        .frequency = s->o.frequency_penalty, .penalised = s->penalised, .count = s->count,
        .n_penalised = s->n_penalised, .per_temperature = s->per_temperature, .steps = s->exp_steps,
    };
}

/* Whether mass_of_all may read the blocks' masses. */
static bool weighs(const sampler *s)
{
    return s->per_temperature > 0 && (s->o.top_k <= 0 || s->o.top_k >= s->n_vocab);
}

int sampler_ask(const sampler *s, const sampler_source *source, err_ctx *err)
{
    const sampler_rules rules = rules_of(s);
    return s->scores || !source->ask ? 0 : source->ask(source->ctx, &rules, weighs(s), err);
}

/* The same at a source. */
static int prepare_from(sampler *s, const sampler_source *source, err_ctx *err)
{
    const sampler_rules rules = rules_of(s);
    const int rc = source->prepare(source->ctx, &rules, s->block_max,
                                   weighs(s) ? s->block_mass : NULL, err);
    s->largest = -INFINITY;
    for (int b = 0; b < s->n_block && rc == 0; b++)
        if (s->block_max[b] > s->largest) s->largest = s->block_max[b];
    s->source = source;
    s->unusual = false;
    s->n_order = s->n_weight = 0;
    s->order_full = false;
    return rc;
}

/* A key that is smaller for a larger float: sign and magnitude on one scale, reversed. */
static uint32_t float_key(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u >> 31 ? u : 0x7FFFFFFFu ^ u;
}

static float key_float(uint32_t key)
{
    const uint32_t u = key >> 31 ? key : 0x7FFFFFFFu ^ key;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Sorts a by key; equal keys keep their order. scratch [n]. */
static void sort_ranked(ranked *a, ranked *scratch, int n)
{
    if (n <= 48) {                       /* too few to count digits */
        for (int i = 1; i < n; i++) {
            const ranked x = a[i];
            int j = i;
            for (; j > 0 && a[j - 1].key > x.key; j--) a[j] = a[j - 1];
            a[j] = x;
        }
        return;
    }
    for (int shift = 0; shift < 32; shift += 8) {
        int start[256] = { 0 }, sum = 0;
        for (int i = 0; i < n; i++) start[a[i].key >> shift & 255]++;
        for (int d = 0; d < 256; d++) {
            const int count = start[d];
            start[d] = sum;
            sum += count;
        }
        for (int i = 0; i < n; i++) scratch[start[a[i].key >> shift & 255]++] = a[i];
        ranked *swap = a;                /* after four rounds the result is in a again */
        a = scratch;
        scratch = swap;
    }
}

/* A logit that at least want tokens reach, or -INFINITY. */
static float order_bound(sampler *s, int want)
{
    int n = 0;
    if (want == 1) return s->largest;
    for (int b = 0; b < s->n_block; b++)
        if (s->block_max[b] > -INFINITY)
            s->scratch[n++] = (ranked){ float_key(s->block_max[b]), b };
    if (want >= n) return -INFINITY;
    sort_ranked(s->scratch, s->order, n);
    return s->block_max[s->scratch[want - 1].id];
}

/* The source's results that are not below bound, by id. */
static int gather_from(sampler *s, float bound)
{
    const int cap = s->n_vocab < MAX_PAIRS ? s->n_vocab : MAX_PAIRS;
    const int n = s->unusual ? -1 : s->source->gather(s->source->ctx, s->pairs, cap, bound, NULL);
    if (n < 0 || n > cap) {
        s->unusual = true;
        return 0;
    }
    for (int i = 0; i < n; i++) s->scratch[i] = (ranked){ (uint32_t)s->pairs[i].id, i };
    sort_ranked(s->scratch, s->order, n);
    for (int i = 0; i < n; i++) {
        const sampler_pair *p = &s->pairs[s->scratch[i].id];
        s->order[i] = (ranked){ float_key(p->logit), p->id };
    }
    return n;
}

/* Makes the first `want` or more tokens of the order, if that many exist. The beginning that
 * existed before does not change. */
static void make_order(sampler *s, int want)
{
    const float bound = order_bound(s, want);
    int n = s->source ? gather_from(s, bound) : 0;

    for (int b = 0; b < s->n_block && !s->source; b++) {
        if (s->block_max[b] < bound || s->block_max[b] == -INFINITY) continue;
        for (int i = b * BLOCK; i < (b + 1) * BLOCK; i++)        /* by id: the sort keeps that */
            if (s->work[i] >= bound && s->work[i] > -INFINITY)
                s->order[n++] = (ranked){ float_key(s->work[i]), i };
    }
    sort_ranked(s->order, s->scratch, n);
    s->n_order = n;
    s->order_full = bound == -INFINITY;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* w = exp((x - largest) / temperature), rounded alike on every machine. z STEPS / ln 2 is rounded
 * to n by adding a number so large that no fraction is left; n / STEPS is the result's exponent, n
 * % STEPS selects from the table, and four terms of the series give the remainder, exact to 2e-13.
 * Values below -700 become -700, which keeps the exponent in range and adds practically 0.
 * Compilers vectorise the short loops of fixed length. */
static void weigh_block(double w[BLOCK], const sampler *s, const float x[BLOCK])
{
    const double largest = s->largest, scale = s->per_temperature, magic = 0x1.8p52;
    double t[BLOCK], p[BLOCK];

    for (int i = 0; i < BLOCK; i++) w[i] = x[i];
    for (int i = 0; i < BLOCK; i++) {
        const double z = (w[i] - largest) * scale;
        w[i] = z < -700 ? -700 : z;
    }
    for (int i = 0; i < BLOCK; i++) {
        t[i] = w[i] * (STEPS / LN_2) + magic;
        const double r = w[i] - (t[i] - magic) * (LN_2 / STEPS);
        p[i] = 1 + r * (1 + r * (0.5 + r * (1.0 / 6)));
    }
    for (int i = 0; i < BLOCK; i++) {
        uint64_t n, bits;
        memcpy(&n, &t[i], sizeof n);
        memcpy(&bits, &s->exp_steps[n % STEPS], sizeof bits);
        bits += n / STEPS << 52;         /* modulo 2^64: n is negative, and magic's bits drop out */
        memcpy(&w[i], &bits, sizeof bits);
    }
    for (int i = 0; i < BLOCK; i++) w[i] *= p[i];
}

/* The weights of the next tokens in the order, a block of them. */
static void weigh_more(sampler *s)
{
    const int n = s->n_order - s->n_weight < BLOCK ? s->n_order - s->n_weight : BLOCK;
    float x[BLOCK];

    for (int i = 0; i < BLOCK; i++)
        x[i] = i < n ? key_float(s->order[s->n_weight + i].key) : -INFINITY;
    weigh_block(s->weight + s->n_weight, s, x);
    s->n_weight += n;
}

/* Extends order and weight to index i. False: fewer tokens can be picked. i is 0, or at most one
 * more than in the last call. */
static bool reach(sampler *s, int i)
{
    if (i >= s->n_order && !s->order_full) {
        const int want = i == 0 ? FIRST_ORDER : i < s->n_vocab / GROW_ORDER ? i * GROW_ORDER
                                                                             : s->n_vocab;
        make_order(s, want);
    }
    if (i >= s->n_order) return false;
    if (i == s->n_weight) weigh_more(s);
    return true;
}

/* The sum of a block's weights: lane j sums the ids with id % LANES == j, by ascending id; then the
 * lanes are added up. */
static double block_mass(const sampler *s, int b)
{
    double lane[LANES] = { 0 }, mass = 0, w[BLOCK];

    if (s->source) return s->block_mass[b];
    if (s->block_max[b] == -INFINITY) return 0;          /* most blocks under a strict mask */
    weigh_block(w, s, s->work + b * BLOCK);
    for (int i = 0; i < BLOCK; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] += w[i + j];
    for (int j = 0; j < LANES; j++) mass += lane[j];
    return mass;
}

static double mass_of_all(const sampler *s)
{
    double mass = 0;
    for (int b = 0; b < s->n_block; b++) mass += block_mass(s, b);
    return mass;
}

/* The sum of the weights of the first n tokens, or of fewer if there are no more. */
static double mass_of(sampler *s, int n)
{
    double mass = 0;
    if (n >= s->n_vocab) return mass_of_all(s);
    for (int i = 0; i < n && reach(s, i); i++) mass += s->weight[i];
    return mass;
}

/* The index in the order at which the sum of weights reaches target; the last of the first n if
 * rounding keeps the sum below it. */
static int index_of(sampler *s, int n, double target)
{
    double sum = 0;
    int i = 0;
    for (; i < n && reach(s, i); i++) {
        sum += s->weight[i];
        if (sum >= target) return i;
    }
    return i - 1;
}

/* ---- the pick -------------------------------------------------------------------------------- */

static int32_t first_in_order(const sampler *s)
{
    int b = 0;
    while (s->block_max[b] != s->largest) b++;
    int32_t id = b * BLOCK;
    while (s->work[id] != s->largest) id++;
    return id;
}

/* How many tokens top-k, top-p and min-p leave, all of them a beginning of the order. A truncation
 * that is off costs nothing. */
static int truncate_order(sampler *s)
{
    const bool top_k = s->o.top_k > 0 && s->o.top_k < s->n_vocab;
    int n = s->n_vocab;

    if (top_k) {
        n = s->o.top_k;
        make_order(s, n);
    }
    if (s->o.top_p < 1)
        n = 1 + index_of(s, n, mass_of(s, n) * s->o.top_p);
    if (s->o.min_p > 0) {
        int i = 0;                       /* the first has weight 1: it stays */
        while (i < n && reach(s, i) && s->weight[i] >= s->o.min_p) i++;
        n = i;
    }
    return n;
}

static int refuse(const sampler *s, const float *logits, err_ctx *err)
{
    int n_number = 0;
    for (int i = 0; i < s->n_vocab; i++) n_number += isfinite(logits[i]) != 0;
    if (s->largest > 0)
        return err_set(err, ERR_FORMAT, "logits are not numbers: token %d has +Inf",
                       first_in_order(s));
    if (n_number == 0) return err_set(err, ERR_FORMAT, "logits are not numbers");
    return err_set(err, ERR_RANGE, "all %d tokens with a logit are banned", n_number);
}

static int32_t draw(sampler *s)
{
    const int n = truncate_order(s), i = index_of(s, n, mass_of(s, n) * rng_draw(s->rng));
    return i < 0 ? 0 : s->order[i].id;           /* only a failed source leaves no order */
}

int sampler_pick(int32_t *out, sampler *s, const float *logits, err_ctx *err)
{
    prepare(s, logits);
    if (!isfinite(s->largest)) return refuse(s, logits, err);
    *out = s->o.temperature < GREEDY_BELOW ? first_in_order(s) : draw(s);
    if (s->scores) token_scores_make(s->scores, logits, s->n_vocab, *out, s->n_top);
    return 0;
}

int sampler_pick_from(int32_t *out, sampler *s, const sampler_source *source, err_ctx *err)
{
    uint64_t before[4];
    if (s->scores) return 1;             /* they need the whole row */
    int rc = prepare_from(s, source, err);
    if (rc < 0) return rc;
    if (!isfinite(s->largest)) return 1;
    memcpy(before, s->rng, sizeof before);
    if (s->o.temperature < GREEDY_BELOW) {
        make_order(s, 1);
        if (!s->unusual) *out = s->order[0].id;
    } else {
        *out = draw(s);
    }
    if (s->unusual) memcpy(s->rng, before, sizeof before);
    return s->unusual;
}
