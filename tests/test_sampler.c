/* test_sampler.c - the sampler against a plain one that sorts everything. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session/sampler.h"
#include "loader/gguf_write.h"
#include "tests/case_file.h"

#define PLAIN .top_p = 1, .repeat_penalty = 1            /* nothing switched on */

static case_rows rows;                   /* of cases/sampler.txt */

/* Holds until the next call. */
static sampler_options options_of(const char *text)
{
    static logit_bias bias;
    sampler_options o = { PLAIN };
    char name[16];
    double v;
    for (int n; sscanf(text, " %15[a-z_]=%lf%n", name, &v, &n) == 2; text += n)
        switch (case_word("temp top_p min_p repeat presence frequency top_k last n_bias token bias",
                          name)) {
        case 0: o.temperature = v; break;
        case 1: o.top_p = v; break;
        case 2: o.min_p = v; break;
        case 3: o.repeat_penalty = v; break;
        case 4: o.presence_penalty = v; break;
        case 5: o.frequency_penalty = v; break;
        case 6: o.top_k = (int)v; break;
        case 7: o.penalty_window = (int)v; break;
        case 8: o.n_bias = (int)v; break;
        case 9: bias.id = (int)v; o.biases = &bias; o.n_bias = 1; break;
        case 10: bias.bias = (float)v; break;
        }
    CHECK_MSG(*text == '\0', "the row is wrong: %s", text);
    return o;
}

/* The cells of the next row of a kind from *i on, or NULL, and its options. */
static char *const *next_row(int *i, const char *kind, sampler_options *o)
{
    while (*i < rows.n) {
        char *const *cells = rows.cells[(*i)++];
        if (strcmp(cells[0], kind) != 0) continue;
        *o = options_of(cells[1]);
        return cells;
    }
    return NULL;
}

static sampler *make(const sampler_options *o, int n_vocab, int ctx)
{
    err_ctx err = { 0 };
    sampler *s;
    const int rc = sampler_create(&s, o, n_vocab, ctx, &err);
    CHECK_MSG(rc == 0, "sampler_create: %s", err.msg);
    return s;
}

/* One pick, without any allocation; -1 after an error. */
static int32_t pick(sampler *s, const float *logits)
{
    int32_t id = -1;
    mem_guard(true);
    if (sampler_pick(&id, s, logits, NULL) < 0) id = -1;
    mem_guard(false);
    return id;
}

/* ---- the plain sampler ----------------------------------------------------------------------- */

typedef struct draws { uint64_t s[4]; } draws;

static uint64_t rotl(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

static uint64_t draws_next(draws *d)
{
    uint64_t *s = d->s;
    const uint64_t result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0]; s[3] ^= s[1]; s[1] ^= s[2]; s[0] ^= s[3]; s[2] ^= t; s[3] = rotl(s[3], 45);
    return result;
}

static draws draws_from(uint64_t seed)
{
    draws d;
    for (int i = 0; i < 4; i++) {
        uint64_t z = (seed += 0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        d.s[i] = z ^ (z >> 31);
    }
    return d;
}

/* Published outputs of both generators. */
static void test_draws(void)
{
    draws d = { { 1, 2, 3, 4 } };
    const uint64_t want[] = { 11520, 0, 1509978240, 1215971899390074240 };
    for (int i = 0; i < 4; i++) CHECK(draws_next(&d) == want[i]);
    CHECK(draws_from(0).s[0] == 0xE220A8397B1DCDAF);
}

typedef struct item { double logit, weight; int32_t id; } item;

static int by_logit(const void *a, const void *b)
{
    const item *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Sorts all tokens and truncates one step after the other. Fills items with what is left and
 * returns how many; *mass is the sum of their weights. */
static int survivors(item *items, double *mass, const sampler_options *o, const float *logits,
                     int n, const int32_t *past, int n_past)
{
    int m = 0;
    double sum = 0;

    for (int i = 0; i < n; i++) {
        float x = logits[i];
        int count = 0;
        for (int k = 0; k < o->n_bias; k++) if (o->biases[k].id == i) x += o->biases[k].bias;
        if (isnan(x) || x == -INFINITY) continue;
        for (int k = 0; k < n_past; k++)
            count += past[k] == i && (o->penalty_window < 0 || k >= n_past - o->penalty_window);
        if (count) {
            double y = x;
            y = y > 0 ? y / o->repeat_penalty : y * o->repeat_penalty;
            x = (float)(y - (o->presence_penalty + count * o->frequency_penalty));
        }
        items[m++] = (item){ .logit = x, .id = i };
    }
    qsort(items, (size_t)m, sizeof *items, by_logit);
    for (int i = 0; i < m; i++)
        items[i].weight = exp((items[i].logit - items[0].logit) / o->temperature);
    if (o->top_k > 0 && m > o->top_k) m = o->top_k;
    for (int i = 0; i < m; i++) sum += items[i].weight;
    if (o->top_p < 1) {
        double part = 0;
        for (int i = 0; i < m; i++)
            if ((part += items[i].weight) >= o->top_p * sum) m = i + 1;
    }
    while (m > 1 && items[m - 1].weight < o->min_p * items[0].weight) m--;
    *mass = 0;
    for (int i = 0; i < m; i++) *mass += items[i].weight;
    return m;
}

static int32_t plain_pick(item *items, draws *d, const sampler_options *o, const float *logits,
                          int n, const int32_t *past, int n_past)
{
    double mass, sum = 0;
    sampler_options hot = *o;
    if (o->temperature < 1e-5) hot.temperature = 1;
    const int m = survivors(items, &mass, &hot, logits, n, past, n_past);
    if (o->temperature < 1e-5) return items[0].id;
    const double u = ((double)(draws_next(d) >> 11) + 1) / 9007199254740992.0;
    for (int i = 0; i < m; i++)
        if ((sum += items[i].weight) >= u * mass) return items[i].id;
    return items[m - 1].id;
}

/* ---- every option against the plain sampler -------------------------------------------------- */

static const logit_bias some_biases[] = {
    { 0, 1.5f }, { 5, -INFINITY }, { 2, -3.0f }, { 2, 0.5f }, { 6, 10000.0f }, { 6, -10000.0f },
};

typedef enum terrain { SMOOTH, TIES, FLAT, STEEP, HOLES, ZEROS, N_TERRAIN } terrain;

static void make_logits(float *x, int n, terrain kind, test_rng *r)
{
    for (int i = 0; i < n; i++) {
        double sum = -6;                 /* nearly normal */
        for (int k = 0; k < 12; k++) sum += (double)test_below(r, 1u << 24) / (1 << 24);
        x[i] = (float)(3 * sum);
        if (kind == TIES) x[i] = roundf(x[i]);
        if (kind == FLAT) x[i] = -2.5f;
        if (kind == STEEP) x[i] *= 1e36f;
        if (kind == HOLES && i % 3 != 1) x[i] = i % 2 ? NAN : -INFINITY;
        if (kind == ZEROS) x[i] = i % 3 == 1 ? 0.0f : -0.0f;
    }
    if (kind == HOLES && n < 2) x[0] = 1;
}

static void compare(const sampler_options *setting, terrain kind, int n, int n_pick, bool biased,
                    const char *why)
{
    enum { N_PAST = 40 };
    test_rng r = { (uint64_t)n * 31 + kind };
    sampler_options o = *setting;
    float *x = mem_array((size_t)n, sizeof *x), *before = mem_array((size_t)n, sizeof *x);
    item *items = mem_array((size_t)n, sizeof *items);
    int32_t past[N_PAST], want = 0, got = 0;
    int n_past = 0, i;

    o.seed = test_rand(&r);
    if (biased) {
        o.biases = some_biases;
        o.n_bias = ARRAY_LEN(some_biases);
    }
    sampler *s = make(&o, n, 4096);
    draws d = draws_from(o.seed);
    make_logits(x, n, kind, &r);
    memcpy(before, x, (size_t)n * sizeof *x);
    for (i = 0; i < n_pick; i++) {
        want = plain_pick(items, &d, &o, x, n, past, n_past);
        got = pick(s, x);
        if (got != want) break;
        if (n_past < N_PAST) {
            past[n_past++] = i % 2 ? (int32_t)test_below(&r, (uint32_t)n) : got;
            sampler_accept(s, past[n_past - 1]);
        }
    }
    CHECK_MSG(i == n_pick, "%s, logits %d, %d tokens%s: pick %d is %d, expected %d", why, kind, n,
              biased ? ", biases" : "", i, got, want);
    CHECK(memcmp(before, x, (size_t)n * sizeof *x) == 0);
    sampler_free(s);
    mem_free(x);
    mem_free(before);
    mem_free(items);
}

static void test_settings(void)
{
    static const int sizes[] = { 1, 2, 7, 63, 64, 65, 200, 1000 };
    sampler_options o;
    char *const *cells;
    size_t k = 0;
    for (int i = 0; (cells = next_row(&i, "set", &o)); k++) {
        for (size_t n = test_is_long() ? 0 : k % 4; n < ARRAY_LEN(sizes);
             n += (size_t)test_rounds(1, 4))
            for (terrain t = 0; t < N_TERRAIN; t++) {
                const int n_pick = sizes[n] < 100 ? 60 : 15;
                compare(&o, t, sizes[n], n_pick, false, cells[2]);
                if (sizes[n] >= 7 && t < FLAT) compare(&o, t, sizes[n], n_pick, true, cells[2]);
            }
        /* enough blocks for every way in which the order grows */
        if (test_is_long() || k % 3 == 0)
            compare(&o, k % 2 ? SMOOTH : TIES, 40000, 3, false, cells[2]);
    }
}

/* ---- distribution, repeatability ------------------------------------------------------------- */

static void check_frequencies(const sampler_options *o, const float *x, int n, double limit,
                              const char *why)
{
    enum { N_DRAW = 200000 };
    item items[40];
    int seen[40] = { 0 };
    double mass, chi2 = 0;
    sampler *s = make(o, n, 0);
    const int m = survivors(items, &mass, o, x, n, NULL, 0);
    int inside = 0;

    for (int i = 0; i < N_DRAW; i++) seen[pick(s, x)]++;
    for (int i = 0; i < m; i++) {
        const double expected = N_DRAW * items[i].weight / mass;
        const double off = seen[items[i].id] - expected;
        chi2 += off * off / expected;
        inside += seen[items[i].id];
    }
    CHECK_MSG(inside == N_DRAW, "%s: %d draws of cut tokens", why, N_DRAW - inside);
    CHECK_MSG(chi2 < limit, "%s: chi-square %.1f with %d tokens", why, chi2, m);
    sampler_free(s);
}

static void test_frequencies(void)
{
    float x[40];
    test_rng r = { 5 };
    for (int i = 0; i < 40; i++) x[i] = (float)test_below(&r, 3000) / 1000 - 1;
    /* Limits: one in a thousand exceeds them, for m - 1 degrees of freedom */
    check_frequencies(&(sampler_options){ .temperature = 1, PLAIN, .seed = 1 }, x, 40, 72.1, "all");
    check_frequencies(&(sampler_options){ .temperature = 0.8, .top_k = 25, .top_p = 0.9,
                                          .repeat_penalty = 1, .seed = 2 }, x, 40, 37.7, "cut");
}

/* Weights to eleven digits: of two tokens top-p keeps one if it is slightly below the first one's
 * share, both if it is slightly above. */
static void test_weights(void)
{
    int n_wrong = 0;
    for (int i = 1; i <= 700; i++) {
        const float x[2] = { 3, 3 - (float)i / 350 };
        const double share = 1 / (1 + exp(((double)x[1] - 3) / 0.9));
        for (int above = 0; above < 2; above++) {
            const sampler_options o = { .temperature = 0.9, .repeat_penalty = 1,
                                        .top_p = share * (above ? 1 + 3e-11 : 1 - 3e-11) };
            sampler *s = make(&o, 2, 0);
            int n_second = 0;
            for (int k = 0; k < 100; k++) n_second += pick(s, x) == 1;
            n_wrong += (n_second > 0) != above;
            sampler_free(s);
        }
    }
    CHECK_MSG(n_wrong == 0, "%d of 1400", n_wrong);
}

/* Tokens that were drawn, accepted and taken back leave no trace: `went` accepts up to SAMPLER_BACK
 * others before each token of `stayed`. */
static void test_back(void)
{
    enum { N = 900 };
    static const int windows[] = { 0, 1, 5, 64 };
    static float x[N];
    int wrong = 0;
    for (int i = 0; i < N; i++) x[i] = (float)((i * 7919) % 401) / 100;
    for (size_t w = 0; w < ARRAY_LEN(windows); w++) {
        sampler_options o = { .temperature = 1.1, .top_k = 300, .top_p = 1, .repeat_penalty = 1.3,
                              .frequency_penalty = 0.7, .penalty_window = windows[w], .seed = 9 };
        sampler *stayed = make(&o, N, 100), *went = make(&o, N, 100);
        for (int i = 0; i < 200; i++) {
            const int n = i * 5 % (SAMPLER_BACK + 1);
            for (int k = 0; k < n; k++)
                sampler_accept(went, k % 3 ? pick(went, x) : k % 2 ? -1 : (i + k) % 7);
            sampler_back(went, n);
            const int32_t id = pick(stayed, x);
            wrong += pick(went, x) != id;
            sampler_accept(stayed, id);
            sampler_accept(went, id);
        }
        sampler_free(stayed);
        sampler_free(went);
    }
    CHECK_MSG(wrong == 0, "%d of %zu tokens differ", wrong, 200 * ARRAY_LEN(windows));
}

/* What this sampler drew when it was written: a change here is a change for every user's seed. */
static const int32_t snap_ids[] = {
    2073, 2363, 2846, 1690, 2558, 1834, 1641, 2461, 2075, 2460, 966, 772,
};
static const int32_t snap_all_ids[] = {
    1547, 1742, 579, 1979, 392, 2835, 1256, 775, 877, 1651, 97, 386,
};

static void test_repeatable(void)
{
    enum { N = 3000 };
    static float x[N];
    sampler_options o = { .temperature = 0.9, .top_k = 200, .top_p = 0.98, .min_p = 0.001,
                          .repeat_penalty = 1.1, .penalty_window = 8, .seed = 42 };
    int32_t first[64];

    for (int i = 0; i < N; i++) x[i] = (float)((i * 7919) % 4001) / 400;
    sampler *s = make(&o, N, 100), *all = make(&(sampler_options){ .temperature = 1, PLAIN }, N, 0);
    for (int i = 0; i < 64; i++) {
        first[i] = pick(s, x);
        sampler_accept(s, first[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(snap_ids); i++)
        CHECK_MSG(first[i] == snap_ids[i], "draw %zu: %d", i, first[i]);
    for (size_t i = 0; i < ARRAY_LEN(snap_all_ids); i++) {
        const int32_t id = pick(all, x);
        CHECK_MSG(id == snap_all_ids[i], "draw %zu of all: %d", i, id);
    }
    sampler_free(all);

    sampler_reset(s, 42);
    bool same = true;
    for (int i = 0; i < 64; i++) {
        const int32_t id = pick(s, x);
        sampler_accept(s, id);
        same = same && id == first[i];
    }
    CHECK_MSG(same, "reset: other tokens");
    sampler_reset(s, 43);
    int n_same = 0;
    for (int i = 0; i < 64; i++) n_same += pick(s, x) == first[i];
    CHECK_MSG(n_same < 32, "another seed: %d of 64 the same", n_same);
    sampler_free(s);
}

/* ---- some tokens only ------------------------------------------------------------------------ */

/* Masks that leave all tokens, most, half, few, one block, the last token, none. The bits after the
 * last token mean nothing. */
enum { N_MASK = 7 };
static void fill_mask(uint64_t *bits, int n_vocab, int kind, test_rng *rng)
{
    const int n_word = (n_vocab + 63) / 64;
    for (int i = 0; i < n_word; i++) {
        const uint64_t u = test_rand(rng), v = test_rand(rng), w = test_rand(rng);
        bits[i] = kind == 0 ? UINT64_MAX : kind == 1 ? u | v | w : kind == 2 ? u :
                  kind == 3 && i % 5 == 0 ? u & v & w : 0;
    }
    if (kind == 4) bits[test_below(rng, (uint32_t)n_word)] = UINT64_MAX;
    if (kind == 5) bits[n_word - 1] |= (uint64_t)1 << (n_vocab - 1) % 64;
    if (n_vocab % 64) bits[n_word - 1] |= UINT64_MAX << n_vocab % 64;
}

/* A sampler that gets masks, one after the other, and one whose other tokens are banned. */
static void test_masks(void)
{
    enum { VOCAB = 1000, ROUNDS = 10 * N_MASK };
    static float x[VOCAB];
    static uint64_t bits[VOCAB / 64 + 1];
    test_rng rng = { 31 };
    sampler_options o;
    char *const *cells;
    for (int row = 0; (cells = next_row(&row, "mask", &o));) {
        sampler *masked = make(&o, VOCAB, 200);
        int32_t came[ROUNDS];
        int differ = 0, none = 0;
        for (int round = 0; round < ROUNDS; round++) {
            sampler *banned = make(&o, VOCAB, 200);
            for (int i = 0; i < VOCAB; i++) {
                x[i] = (float)test_below(&rng, 2000) * 0.01f - 8.0f;
                if (round % 4 == 0 && i % 5 == 0) x[i] = NAN;
            }
            fill_mask(bits, VOCAB, round % N_MASK, &rng);
            sampler_allow(masked, bits);
            for (int i = 0; i < VOCAB; i++)
                if (!(bits[i / 64] >> i % 64 & 1)) sampler_ban(banned, i);
            sampler_reset(masked, (uint64_t)round);        /* forgets: both get them once more */
            sampler_reset(banned, (uint64_t)round);
            for (int i = 0; i < round; i++)
                sampler_accept(masked, came[i]), sampler_accept(banned, came[i]);
            const int32_t got = pick(masked, x), want = pick(banned, x);
            differ += got != want;
            none += got < 0;
            came[round] = got < 0 ? 3 : got;
            sampler_free(banned);
        }
        CHECK_MSG(differ == 0, "%s: %d of %d tokens differ", cells[2], differ, ROUNDS);
        CHECK_MSG(none >= ROUNDS / N_MASK && none < ROUNDS / 3, "%s: %d without any", cells[2],
                  none);
        sampler_free(masked);
    }
}

/* ---- logits somewhere else ------------------------------------------------------------------- */

enum { FAR_VOCAB = 3000 };

typedef struct far_row {
    const float *logits;
    float work[FAR_VOCAB];
    int fail_at, n_gather;               /* the gather that fails; 0: none */
} far_row;

/* The weight of a logit, by the header's rules. */
static double far_weight(const sampler_rules *r, float x, float largest)
{
    const double ln_2 = 0x1.62e42fefa39efp-1, z0 = ((double)x - largest) * r->per_temperature;
    const double z = z0 < -700 ? -700 : z0;
    const double n = nearbyint(z * (SAMPLER_STEPS / ln_2)), rest = z - n * (ln_2 / SAMPLER_STEPS);
    const double p = 1 + rest * (1 + rest * (0.5 + rest * (1.0 / 6)));
    const int64_t whole = (int64_t)floor(n / SAMPLER_STEPS);
    return ldexp(r->steps[(int64_t)n - whole * SAMPLER_STEPS], (int)whole) * p;
}

static float far_penalised(const sampler_rules *r, float x, int count)
{
    double v = x;
    if (!isfinite(v)) return x;
    v = v > 0 ? v / r->repeat : v * r->repeat;
    v -= r->presence + count * r->frequency;
    return (float)fmax(fmin(v, (double)FLT_MAX), -(double)FLT_MAX) + 0.0f;
}

static int far_prepare(void *ctx, const sampler_rules *r, float *block_max, double *mass,
                       err_ctx *err)
{
    far_row *f = ctx;
    float largest = -INFINITY;
    (void)err;
    for (int i = 0; i < FAR_VOCAB; i++) {
        const bool may = !r->allowed || r->allowed[i / 64] >> i % 64 & 1;
        const float x = may ? f->logits[i] + r->bias[i] : -INFINITY;
        f->work[i] = isnan(x) ? -INFINITY : x;
    }
    for (int i = 0; i < r->n_penalised; i++) {
        const int32_t id = r->penalised[i];
        f->work[id] = far_penalised(r, f->work[id], r->count[id]);
    }
    for (int i = 0; i < FAR_VOCAB; i++) {
        float *top = &block_max[i / SAMPLER_BLOCK];
        if (i % SAMPLER_BLOCK == 0 || f->work[i] > *top) *top = f->work[i];
        if (f->work[i] > largest) largest = f->work[i];
    }
    for (int b = 0; mass && b * SAMPLER_BLOCK < FAR_VOCAB; b++) {
        mass[b] = 0;
        if (block_max[b] == -INFINITY || largest == INFINITY) continue;      /* refused, then */
        for (int j = 0; j < SAMPLER_LANES; j++) {
            double lane = 0;
            for (int i = j; i < SAMPLER_BLOCK; i += SAMPLER_LANES) {
                const int id = b * SAMPLER_BLOCK + i;
                lane += far_weight(r, id < FAR_VOCAB ? f->work[id] : -INFINITY, largest);
            }
            mass[b] += lane;
        }
    }
    return 0;
}

static int far_gather(void *ctx, sampler_pair *to, int cap, float bound, err_ctx *err)
{
    far_row *f = ctx;
    int n = 0;
    (void)err;
    if (++f->n_gather == f->fail_at) return -1;
    for (int i = FAR_VOCAB; i-- > 0;)    /* any order */
        if (f->work[i] >= bound && f->work[i] > -INFINITY) {
            if (n < cap) to[n] = (sampler_pair){ i, f->work[i] };
            n++;
        }
    return n;
}

/* The same tokens as from a row at hand; a gather that fails leaves everything as it was. */
static void test_from(void)
{
    static float x[FAR_VOCAB];
    static far_row f = { .logits = x };
    static uint64_t bits[FAR_VOCAB / 64 + 1];
    const sampler_source from = { .ctx = &f, .prepare = far_prepare, .gather = far_gather };
    test_rng rng = { 77 };
    sampler_options o;
    char *const *cells;

    for (int row = 0; (cells = next_row(&row, "far", &o));) {
        sampler *near = make(&o, FAR_VOCAB, 200), *far = make(&o, FAR_VOCAB, 200);
        int differ = 0, failed = 0;
        for (int round = 0; round < 200; round++) {
            for (int i = 0; i < FAR_VOCAB; i++) {
                x[i] = (float)test_below(&rng, 4000) * (round % 2 ? 0.01f : 0.002f) - 4.0f;
                if (round % 16 == 0 && i % 5 == 0) x[i] = NAN;
            }
            if (round == 100)
                for (int i = 0; i < FAR_VOCAB; i += 3) sampler_ban(near, i), sampler_ban(far, i);
            fill_mask(bits, FAR_VOCAB, round / 3 % 6, &rng);
            sampler_allow(near, round % 3 ? NULL : bits);
            sampler_allow(far, round % 3 ? NULL : bits);
            int32_t want = -1, got = -1;
            f.fail_at = round % 10 == 3 ? 1 + round / 10 % 3 : 0;
            f.n_gather = 0;
            mem_guard(true);
            const int rc = sampler_pick_from(&got, far, &from, NULL);
            if (rc == 1) {
                failed++;
                CHECK(f.fail_at > 0 && f.n_gather >= f.fail_at);
                CHECK(sampler_pick(&got, far, x, NULL) == 0);
            }
            CHECK(rc >= 0 && sampler_pick(&want, near, x, NULL) == 0);
            mem_guard(false);
            differ += got != want;
            sampler_accept(near, want);
            sampler_accept(far, want);
        }
        CHECK_MSG(differ == 0, "%s: %d of 200 tokens differ", cells[2], differ);
        CHECK_MSG(failed >= 7, "%s: %d failures seen", cells[2], failed);
        sampler_allow(far, NULL);
        x[17] = INFINITY;
        int32_t id;
        CHECK_MSG(sampler_pick_from(&id, far, &from, NULL) == 1, "%s: +Inf", cells[2]);
        sampler_free(near);
        sampler_free(far);
    }
}

/* ---- numbers by hand ------------------------------------------------------------------------- */

/* Four tokens, mostly greedy: the largest one shows what became of the logits. */
static void test_by_hand(void)
{
    sampler_options o;
    char *const *cells;
    for (int i = 0; (cells = next_row(&i, "hand", &o));) {
        sampler *s = make(&o, 4, 6);
        float x[4] = { 0 };
        char *next = cells[2], *past = cells[3];
        for (int k = 0; k < 4; k++) x[k] = strtof(next, &next);
        while (*past) sampler_accept(s, (int32_t)strtol(past, &past, 10));
        const int32_t id = pick(s, x);
        CHECK_MSG(id == atoi(cells[4]), "%s: %d, expected %s", cells[5], id, cells[4]);
        sampler_free(s);
    }
}

static void test_context_window(void)
{
    const float x[4] = { 3, 2.9f, 0, 0 };
    const sampler_options o = { .frequency_penalty = 2, PLAIN, .penalty_window = -1 };
    sampler *s = make(&o, 4, 2);
    sampler_accept(s, 0);
    sampler_accept(s, 2);
    CHECK_MSG(pick(s, x) == 1, "two tokens back is within a context of 2");
    sampler_accept(s, 3);
    CHECK_MSG(pick(s, x) == 0, "three are not");
    sampler_free(s);
}

static void test_bans(void)
{
    const logit_bias biases[] = { { 1, 5 }, { 3, -INFINITY } };
    const float x[4] = { 1, 2, 3, 9 };
    sampler_options o = { PLAIN, .biases = biases, .n_bias = 2 };
    err_ctx err;
    int32_t id = -5;
    sampler *s = make(&o, 4, 0);

    CHECK(pick(s, x) == 1);
    sampler_ban(s, 1);
    sampler_ban(s, -1);
    sampler_ban(s, 4);
    CHECK(pick(s, x) == 2);
    sampler_reset(s, 0);
    CHECK_MSG(pick(s, x) == 2, "bans survive a reset");
    sampler_ban(s, 0);
    sampler_ban(s, 2);
    CHECK(sampler_pick(&id, s, x, &err) == ERR_RANGE && id == -5);
    CHECK_MSG(!strcmp(err.msg, "all 4 tokens with a logit are banned"), "%s", err.msg);
    sampler_free(s);
}

static const struct { float x[4]; const char *msg, *why; } not_numbers[] = {
    { { NAN, NAN, NAN, NAN }, "logits are not numbers", "all NaN" },
    { { NAN, -INFINITY, NAN, -INFINITY }, "logits are not numbers", "none finite" },
    { { 1, 2, INFINITY, NAN }, "logits are not numbers: token 2 has +Inf", "overflow" },
    { { 1, 2, NAN, INFINITY }, NULL, "overflow of a banned token" },
};

static void test_not_numbers(void)
{
    const double temperatures[] = { 0, 1 };
    for (size_t i = 0; i < ARRAY_LEN(not_numbers); i++)
        for (size_t t = 0; t < ARRAY_LEN(temperatures); t++) {
            err_ctx err = { 0 };
            int32_t id = -1;
            sampler *s = make(&(sampler_options){ .temperature = temperatures[t], PLAIN }, 4, 0);
            sampler_ban(s, 3);
            const int rc = sampler_pick(&id, s, not_numbers[i].x, &err);
            if (not_numbers[i].msg)
                CHECK_MSG(rc == ERR_FORMAT && !strcmp(err.msg, not_numbers[i].msg), "%s: %d %s",
                          not_numbers[i].why, rc, err.msg);
            else
                CHECK_MSG(rc == 0 && (id == 0 || id == 1), "%s: %d", not_numbers[i].why, id);
            sampler_free(s);
        }
}

/* ---- options --------------------------------------------------------------------------------- */

static void test_checks(void)
{
    sampler_options o;
    char *const *cells;
    for (int i = 0; (cells = next_row(&i, "check", &o));) {
        err_ctx err = { 0 };
        sampler *s;
        const int want = cells[2][0] ? ERR_RANGE : 0;
        const int rc = sampler_check(&o, 100, &err);
        CHECK_MSG(rc == want && !strcmp(err.msg, cells[2]), "%s: %d '%s'", cells[1], rc, err.msg);
        CHECK(sampler_create(&s, &o, 100, 10, NULL) == want && !s == (want != 0));
        sampler_free(s);
    }
    sampler *s;
    CHECK(sampler_create(&s, &(sampler_options){ PLAIN }, 0, 1, NULL) == ERR_RANGE && !s);
    CHECK(sampler_create(&s, &(sampler_options){ PLAIN }, INT_MAX, 1, NULL) == ERR_RANGE && !s);
    CHECK(sampler_create(&s, &(sampler_options){ PLAIN }, 1, -1, NULL) == ERR_RANGE && !s);
    sampler_free(NULL);
}

static bool same_options(const sampler_options *a, const sampler_options *b)
{
    return a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p &&
           a->min_p == b->min_p && a->repeat_penalty == b->repeat_penalty &&
           a->presence_penalty == b->presence_penalty &&
           a->frequency_penalty == b->frequency_penalty &&
           a->penalty_window == b->penalty_window && a->seed == b->seed &&
           a->biases == b->biases && a->n_bias == b->n_bias;
}

static void test_defaults(void)
{
    const sampler_options gptoss = { 1, 0, 1, 0, 1, 0, 0, 64, 0, NULL, 0 };
    sampler_options want;
    char *const *cells;
    for (int i = 0; (cells = next_row(&i, "file", &want));) {
        gguf_writer *w = gguf_writer_create();
        const uint8_t *head;
        size_t bytes;
        gguf *g = NULL;
        err_ctx err = { 0 };
        sampler_options o;
        char name[20], type = '-', key[40];
        double v = 0;
        const bool has_key = sscanf(cells[2], "%19s %c %lf", name, &type, &v) == 3;

        snprintf(key, sizeof key, "general.sampling.%s", has_key ? name : "");
        gguf_write_str(w, "general.architecture", str_from("qwen3next"));
        if (type == 'f') gguf_write_f32(w, key, (float)v);
        if (type == 'i') gguf_write_kv(w, key, GGUF_I32, &(int32_t){ (int32_t)v }, 4);
        if (type == 's') gguf_write_str(w, key, str_from("warm"));
        CHECK(gguf_write_head(w, &head, &bytes, &err) == 0 &&
              gguf_open_memory(&g, head, bytes, &err) == 0);
        model m = { .file = g, .family = model_family_of(ARCH_QWEN3NEXT) };
        const int rc = sampler_defaults(&o, &m, &err);
        CHECK_MSG(cells[3][0] ? rc < 0 && strstr(err.msg, cells[3]) : rc == 0 &&
                  same_options(&o, &want) && sampler_check(&o, 10, &err) == 0,
                  "%s: %d '%s'", cells[2], rc, err.msg);
        m.family = model_family_of(ARCH_GPTOSS);
        if (!has_key) CHECK(sampler_defaults(&o, &m, &err) == 0 && same_options(&o, &gptoss));
        gguf_close(g);
        gguf_writer_free(w);
    }
}

static void test_memory(void)
{
    const sampler_options o = { .temperature = 1, .top_p = 1, .repeat_penalty = 1.1,
                                .penalty_window = 64 };
    err_ctx err;
    sampler *s = NULL;
    int n = 0, rc;

    do {
        mem_fail_after(++n);
        rc = sampler_create(&s, &o, 1000, 100, &err);
        mem_fail_after(0);
        CHECK(rc == 0 ? s != NULL : rc == ERR_NOMEM && !s);
    } while (rc < 0 && n < 50);
    CHECK_MSG(n == 14, "%d allocations", n - 1);
    sampler_free(s);
}

int main(int argc, char **argv)
{
    test_begin("sampler", argc, argv);
    (void)case_rows_read(&rows, "sampler.txt");
    case_rows_kinds(&rows, "check far file hand mask set");
    test_draws();
    test_settings();
    test_frequencies();
    test_weights();
    test_repeatable();
    test_back();
    test_masks();
    test_from();
    test_by_hand();
    test_context_window();
    test_bans();
    test_not_numbers();
    test_checks();
    test_defaults();
    test_memory();
    case_rows_free(&rows);
    return test_end();
}
