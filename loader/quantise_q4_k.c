/* quantise_q4_k.c - Q4_K: 256 weights with two binary16 scales, and eight pairs of 6-bit factors.
 *
 *   y = d * scale[j] * n - dmin * min[j]
 *
 * Three steps. First each sub-block is fitted alone, with real factors: for each of several code
 * ranges it rounds to codes and fits the line with the least error. The largest factors give the
 * initial d and dmin. Each further round chooses integer factors near the real ones, then solves d
 * and dmin by least squares over all 256 weights; a round without gain ends the search. */
#include <math.h>

#include "loader/bytes.h"
#include "loader/quantise_internal.h"

enum { SUBS = 8, SUB = 32, CODE_MOST = 15, FACTOR_MOST = 63, WIDTHS = 19, TURNS = 3 };

/* ---- one sub-block, in real numbers --------------------------------------------------------- */

typedef struct line { float scale, min; } line;  /* y = scale * n - min, min >= 0 */

/* Writes the nearest codes for a line, whose scale may be 0. */
static inline void codes_for(float *restrict n, const float *restrict x, line f)
{
    const float inverse = f.scale > 0.0f ? 1.0f / f.scale : 0.0f;
    for (int i = 0; i < SUB; i++) {
        const float v = (x[i] + f.min) * inverse;
        n[i] = nearest_whole(v < 0.0f ? 0.0f : v > CODE_MOST ? CODE_MOST : v);
    }
}

static inline float cost_of(const float *x, const float *w, line f)
{
    const float inverse = f.scale > 0.0f ? 1.0f / f.scale : 0.0f;
    float terms[SUB];
    for (int i = 0; i < SUB; i++) {
        const float v = (x[i] + f.min) * inverse;
        const float n = nearest_whole(v < 0.0f ? 0.0f : v > CODE_MOST ? CODE_MOST : v);
        const float diff = x[i] - (f.scale * n - f.min);
        terms[i] = w[i] * diff * diff;
    }
    return sum_terms(terms, SUB);
}

/* Returns the line with the least error for given codes, or `otherwise` if there is none. */
static line fit_line(const float *n, const float *x, const float *w, line otherwise)
{
    float t[5][SUB];
    for (int i = 0; i < SUB; i++) {
        const float wn = w[i] * n[i];
        t[0][i] = w[i];
        t[1][i] = wn;
        t[2][i] = wn * n[i];
        t[3][i] = w[i] * x[i];
        t[4][i] = wn * x[i];
    }
    const double sw = (double)sum_terms(t[0], SUB), sn = (double)sum_terms(t[1], SUB);
    const double snn = (double)sum_terms(t[2], SUB), sx = (double)sum_terms(t[3], SUB);
    const double snx = (double)sum_terms(t[4], SUB), det = sw * snn - sn * sn;
    if (!(det > 1e-6 * sw * snn)) return otherwise;      /* all codes are the same */
    const double scale = (sw * snx - sn * sx) / det, min = (sn * snx - snn * sx) / det;
    if (min >= 0.0 && scale > 0.0) return (line){ (float)scale, (float)min };
    if (!(snn > 0.0) || !(snx > 0.0)) return otherwise;
    return (line){ (float)(snx / snn), 0.0f };           /* the format has no minimum above 0 */
}

static line fit_sub(const float *x, const float *w)
{
    float low = 0.0f, high = -INFINITY, n[SUB];
    for (int i = 0; i < SUB; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    line best = { high > low ? (high - low) / CODE_MOST : 0.0f, -low };
    if (best.scale == 0.0f) return best;
    float least = cost_of(x, w, best);
    for (int i = 0; i < WIDTHS && least > 0.0f; i++) {
        const float widest = (float)CODE_MOST - 1.0f + 0.15f * (float)i;
        const line start = { (high - low) / widest, -low };
        codes_for(n, x, start);
        const line f = fit_line(n, x, w, start);
        const float cost = cost_of(x, w, f);
        if (cost < least) least = cost, best = f;
    }
    return best;
}

/* ---- whole factors --------------------------------------------------------------------------- */

typedef struct super {
    uint16_t d, dmin;
    uint8_t scale[SUBS], min[SUBS];
    double cost;
} super;

static line line_of(const super *s, int j)
{
    return (line){ f16_to_f32(s->d) * s->scale[j], f16_to_f32(s->dmin) * s->min[j] };
}

static int factor(float v, float unit)
{
    if (!(unit > 0.0f)) return 0;
    const float f = v / unit;
    return f >= FACTOR_MOST ? FACTOR_MOST : (int)(f + 0.5f);
}

/* Chooses the integer factors of sub-block j near a line. Returns their error. */
static float choose_factors(super *s, int j, const float *x, const float *w, line f)
{
    const float d = f16_to_f32(s->d), dmin = f16_to_f32(s->dmin);
    const int scale = factor(f.scale, d), min = factor(f.min, dmin);
    float least = INFINITY;
    for (int a = scale - 1; a <= scale + 1; a++) {
        if (a < 0 || a > FACTOR_MOST) continue;
        for (int m = min - 1; m <= min + 1; m++) {
            if (m < 0 || m > FACTOR_MOST) continue;
            const float cost = cost_of(x, w, (line){ d * (float)a, dmin * (float)m });
            if (!(cost < least)) continue;
            least = cost;
            s->scale[j] = (uint8_t)a;
            s->min[j] = (uint8_t)m;
        }
    }
    return least;
}

static void choose_all(super *s, const float *x, const float *w, const line *f)
{
    s->cost = 0.0;
    for (int j = 0; j < SUBS; j++)
        s->cost += (double)choose_factors(s, j, x + SUB * j, w + SUB * j, f[j]);
}

/* Sets d and dmin with the least error for the factors and codes of s; false: no solution. */
static bool fit_scales(float *d, float *dmin, const super *s, const float *x, const float *w)
{
    double uu = 0, uv = 0, vv = 0, ux = 0, vx = 0;       /* u = scale * n, v = -min */
    for (int j = 0; j < SUBS; j++, x += SUB, w += SUB) {
        float n[SUB];
        codes_for(n, x, line_of(s, j));
        const double v = -(double)s->min[j], a = s->scale[j];
        for (int i = 0; i < SUB; i++) {
            const double u = a * (double)n[i], wi = (double)w[i], xi = (double)x[i];
            uu += wi * u * u;
            uv += wi * u * v;
            vv += wi * v * v;
            ux += wi * u * xi;
            vx += wi * v * xi;
        }
    }
    const double det = uu * vv - uv * uv;
    if (det > 1e-9 * uu * vv) {
        *d = (float)((vv * ux - uv * vx) / det);
        *dmin = (float)((uu * vx - uv * ux) / det);
    } else {
        if (!(uu > 0)) return false;
        *d = (float)(ux / uu);
        *dmin = f16_to_f32(s->dmin);
    }
    return *d > 0.0f && *dmin >= 0.0f;
}

/* ---- the block ------------------------------------------------------------------------------- */

static void put_block(block_q4_k *b, const super *s, const float *x)
{
    store_u16(b->d, s->d);
    store_u16(b->dmin, s->dmin);
    for (int k = 0; k < 4; k++) {
        b->scales[k] = (uint8_t)(s->scale[k] | s->scale[k + 4] >> 4 << 6);
        b->scales[k + 4] = (uint8_t)(s->min[k] | s->min[k + 4] >> 4 << 6);
        b->scales[k + 8] = (uint8_t)((s->scale[k + 4] & 15) | (s->min[k + 4] & 15) << 4);
    }
    for (int p = 0; p < 4; p++) {
        float low[SUB], high[SUB];
        codes_for(low, x + 64 * p, line_of(s, 2 * p));
        codes_for(high, x + 64 * p + SUB, line_of(s, 2 * p + 1));
        for (int k = 0; k < SUB; k++)
            b->nibbles[p][k] = (uint8_t)((int)low[k] | (int)high[k] << 4);
    }
}

static uint16_t scale_code(float v)
{
    const uint16_t code = f32_to_f16(v);
    return code < 0x7BFF ? code : 0x7BFF;                /* never infinite */
}

static super begin(const float *x, const float *w, const line *f, float scale, float min)
{
    super s = { .d = scale_code(scale / FACTOR_MOST), .dmin = scale_code(min / FACTOR_MOST) };
    choose_all(&s, x, w, f);
    return s;
}

void quantise_q4_k(block_q4_k *b, const float *x, const float *w)
{
    line f[SUBS];
    float scale = 0.0f, min = 0.0f;
    for (int j = 0; j < SUBS; j++) {
        f[j] = fit_sub(x + SUB * j, w + SUB * j);
        scale = f[j].scale > scale ? f[j].scale : scale;
        min = f[j].min > min ? f[j].min : min;
    }
    super best = begin(x, w, f, scale, min);
    for (int t = 0; t < TURNS && best.cost > 0.0; t++) {
        super s = best;
        float d, dmin;
        if (!fit_scales(&d, &dmin, &s, x, w)) break;
        for (int j = 0; j < SUBS; j++) f[j] = line_of(&best, j);
        s.d = scale_code(d);
        s.dmin = scale_code(dmin);
        if (s.d == best.d && s.dmin == best.dmin && t > 0) break;
        choose_all(&s, x, w, f);
        if (!(s.cost < best.cost)) break;
        best = s;
    }
    put_block(b, &best, x);
}
