/* rope.c - rotary positions: plain, linear and YaRN.
 *
 * An angle is position times frequency, computed and reduced in double: at position 131071 an F32
 * product would be off by up to 0.004 rad. Only the final sines and cosines are F32. The
 * frequencies do not depend on the context length. */
#include "engine/models/rope.h"

#include <math.h>

#include "loader/bytes.h"

/* YaRN keeps the frequency of pairs that turn more than turns_fast times over the original context,
 * and scales those below turns_slow fully. Known implementations ignore the file's values. */
static const double turns_fast = 32.0, turns_slow = 1.0;

static const double two_pi = 6.283185307179586476925;

rope_spec rope_spec_of(const model_hparams *hp, bool windowed, bool rounded)
{
    const rope_spec s = {
        .dim = hparams_attn(hp, windowed).rope_dim,
        .base = windowed ? hp->rope_base_window : hp->rope_base, .factor = hp->rope_factor,
        .scaling = hp->rope_scaling, .ctx_orig = hp->rope_ctx_orig,
        .attn_factor = hp->rope_attn_factor, .rounded = rounded,
    };
    return s;
}

/* Returns the real-valued index of the pair that makes this many turns over the original
 * context. */
static double pair_of_turns(const rope_spec *s, double turns)
{
    return s->dim * log(s->ctx_orig / (two_pi * turns)) / (2.0 * log(s->base));
}

/* Multiplies freq by 1 for fast pairs, by 1/factor for slow ones, linearly interpolated between. */
static void scale_yarn(double *freq, const rope_spec *s)
{
    double lo = pair_of_turns(s, turns_fast), hi = pair_of_turns(s, turns_slow);
    if (s->rounded) {
        lo = floor(lo);
        hi = ceil(hi);
    }
    lo = fmax(lo, 0.0);
    hi = fmin(hi, s->dim - 1);
    for (int i = 0; i < s->dim / 2; i++) {
        const double ramp = fmin(fmax((i - lo) / fmax(hi - lo, 0.001), 0.0), 1.0);
        freq[i] *= (1.0 - ramp) + ramp / s->factor;
    }
}

void rope_frequencies(double *freq, double *magnitude, const rope_spec *s)
{
    for (int i = 0; i < s->dim / 2; i++) freq[i] = pow(s->base, -2.0 * i / s->dim);
    *magnitude = s->attn_factor;
    if (s->scaling == ROPE_LINEAR)
        for (int i = 0; i < s->dim / 2; i++) freq[i] /= s->factor;
    if (s->scaling == ROPE_YARN) {
        scale_yarn(freq, s);
        *magnitude *= 1.0 + 0.1 * log(s->factor);
    }
}

void rope_table(float *cosine, float *sine, const double *freq, double magnitude, int dim,
                int pos, int n)
{
    const int half = dim / 2;
    for (int t = 0; t < n; t++, cosine += half, sine += half)
        for (int i = 0; i < half; i++) {
            const double angle = (double)(pos + t) * freq[i];
            cosine[i] = (float)(magnitude * cos(angle));
            sine[i] = (float)(magnitude * sin(angle));
        }
}

/* Divides by F32 factors; a huge factor stops the rotation of its pair. */
static void divide(double *freq, const tensor *factors)
{
    for (uint64_t i = 0; i < factors->elems; i++)
        freq[i] /= load_f32(factors->data + i * sizeof(float));
}

int rope_tables_init(rope_tables *t, const model *m, bool rounded, err_ctx *err)
{
    const bool alike = m->hp.rope_base_window == m->hp.rope_base && m->hp.windowed.n_head == 0 &&
                       !m->rope_factors.t;
    *t = (rope_tables){ .n_table = alike ? 1 : 2 };
    for (int i = 0; i < t->n_table; i++) {
        const rope_spec s = rope_spec_of(&m->hp, i == 1, rounded || m->family->yarn_rounded);
        t->dim[i] = s.dim;
        t->freq[i] = mem_array((size_t)s.dim / 2, sizeof(double));
        if (!t->freq[i]) return err_set(err, ERR_NOMEM, "rope: %d frequencies", s.dim / 2);
        rope_frequencies(t->freq[i], &t->magnitude[i], &s);
        if (i == 0 && m->rope_factors.t) divide(t->freq[i], m->rope_factors.t);
    }
    return 0;
}

void rope_tables_release(rope_tables *t)
{
    mem_free(t->freq[0]);
    mem_free(t->freq[1]);
    *t = (rope_tables){ 0 };
}
