/* state_twin.c - the plain model behind state_twin.h. Shares no arithmetic with engine/. */
#include "tests/state_twin.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- models ---------------------------------------------------------------------------------- */

model *twin_model(const char *layers, int n_head_kv, int head_dim, int window)
{
    const size_t n = strlen(layers);
    model *m = mem_zalloc(sizeof *m);
    m->layers = mem_zalloc(n * sizeof *m->layers);
    m->hp.n_vocab = 50;
    m->hp.n_head_kv = n_head_kv;
    m->hp.head_dim = head_dim;
    m->hp.window = window;
    for (size_t l = 0; l < n; l++) {
        m->layers[l].mixer = layers[l] == 'D' ? MIX_DELTANET : MIX_ATTENTION;
        if (layers[l] == 'W') m->layers[l].window = window;
        if (layers[l] == 'M') m->hp.n_mtp++;
        else m->hp.n_layer++;
    }
    if (strchr(layers, 'D')) {
        m->hp.ssm_conv = 4;
        m->hp.ssm_head_dim = 3;
        m->hp.ssm_n_k_head = 2;
        m->hp.ssm_n_v_head = 4;
    }
    return m;
}

void twin_model_free(model *m)
{
    if (!m) return;
    mem_free(m->layers);
    mem_free(m);
}

static void complain(twin *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void complain(twin *t, const char *fmt, ...)
{
    va_list ap;
    if (t->why[0]) return;               /* the first one is the one to look at */
    va_start(ap, fmt);
    vsnprintf(t->why, sizeof t->why, fmt, ap);
    va_end(ap);
}

/* ---- right values ---------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h)
{
    h ^= h >> 31;
    h *= UINT64_C(0xD6E8FEB86659FD93);
    return h ^ h >> 32;
}

/* which: 0 keys, 1 values, 2 convolution window, 3 recurrent state. 16 bits, so exact in F32. */
static float value(uint64_t sum, int layer, int which, size_t i)
{
    const uint64_t h = mix(sum + UINT64_C(0x9E3779B97F4A7C15) * (uint64_t)(4 * layer + which) +
                           UINT64_C(0xC2B2AE3D27D4EB4F) * (i + 1));
    return (float)((int)(h & 0xFFFF) - 32768) * 0x1p-12f;
}

static int kv_width(const twin *t)
{
    return t->m->hp.n_head_kv * t->m->hp.head_dim;
}

static int rows_of(const twin *t, int l)
{
    const int want = t->m->layers[l].window + t->o.slack;
    return t->m->layers[l].window > 0 && want < t->o.ctx ? want : t->o.ctx;
}

/* First position a token at pos may look at. */
static int first_seen(const twin *t, int l, int pos)
{
    const int window = t->m->layers[l].window;
    return window > 0 && pos + 1 > window ? pos + 1 - window : 0;
}

/* How far a stored value may be from x, one of a head's values x[0 .. head_dim-1] at index i. */
static double tolerance(kv_type type, const float *x, int i)
{
    double amax = 0;
    if (type == KV_F32) return 0;
    if (type == KV_F16) return fabs(x[i]) * 0x1p-11;
    for (int k = i / 32 * 32; k < i / 32 * 32 + 32; k++) amax = fmax(amax, fabs(x[k]));
    return 0.501 * amax / 127;
}

/* One head's keys or values at positions pos .. pos+n-1. Returns the first wrong position or -1. */
static int wrong_row(const twin *t, int l, int which, int head, int pos, int n)
{
    const int dim = t->m->hp.head_dim;
    const kv_store *c = state_kv(t->s);
    float tile[64 * 64], want[64];
    const float *have = which == 0 ? kv_keys(c, l, head, pos, n, tile)
                                   : kv_values(c, l, head, pos, n, tile);
    for (int p = pos; p < pos + n; p++, have += dim) {
        for (int i = 0; i < dim; i++)
            want[i] = value(t->sums[p + 1], l, which, (size_t)(head * dim + i));
        for (int i = 0; i < dim; i++)
            if (!(fabs((double)have[i] - want[i]) <= tolerance(t->o.kv, want, i))) return p;
    }
    return -1;
}

/* All that a token at pos may look at in a layer, its own key (if self) included. */
static void check_layer(twin *t, test_rng *rng, int l, int pos, bool self)
{
    const int end = pos + self;
    for (int i = 0; i < 2 * t->m->hp.n_head_kv; i++) {
        for (int p = first_seen(t, l, pos); p < end;) {
            int n = 1 + (int)test_below(rng, 40);
            if (n > end - p) n = end - p;
            const int bad = wrong_row(t, l, i % 2, i / 2, p, n);
            if (bad >= 0) complain(t, "layer %d head %d: wrong %s at %d, seen from %d", l, i / 2,
                                   i % 2 ? "value" : "key", bad, pos);
            p += n;
        }
    }
}

static size_t rec_floats(const twin *t, int which)
{
    const model_hparams *hp = &t->m->hp;
    if (which == 3) return (size_t)(hp->ssm_n_v_head * hp->ssm_head_dim * hp->ssm_head_dim);
    return (size_t)((hp->ssm_conv - 1) * (2 * hp->ssm_n_k_head + hp->ssm_n_v_head) *
                    hp->ssm_head_dim);
}

static float *rec_part(const twin *t, int l, int which)
{
    recurrent *r = state_recurrent(t->s);
    return which == 2 ? recurrent_conv(r, l) : recurrent_state(r, l);
}

static float rec_value(const twin *t, int l, int which, size_t i)
{
    return t->pos == 0 ? 0.0f : value(t->sums[t->pos], l, which, i);
}

/* ---- open, close ----------------------------------------------------------------------------- */

void twin_open(twin *t, const model *m, const state_options *o)
{
    err_ctx err = { 0 };
    *t = (twin){ .m = m, .o = *o };
    CHECK_MSG(state_create(&t->s, m, o, &err) == 0, "state_create: %s", err.msg);
    t->ids = mem_zalloc((size_t)o->ctx * sizeof *t->ids);
    t->sums = mem_zalloc(((size_t)o->ctx + 1) * sizeof *t->sums);
    t->cells = mem_zalloc((size_t)m->hp.n_layer * (size_t)o->ctx * sizeof *t->cells);
    t->snaps = mem_zalloc((size_t)(o->n_snapshot + 1) * sizeof *t->snaps);
}

void twin_close(twin *t)
{
    state_free(t->s);
    mem_free(t->ids);
    mem_free(t->sums);
    mem_free(t->cells);
    mem_free(t->snaps);
    *t = (twin){ 0 };
}

/* ---- what a session does --------------------------------------------------------------------- */

static twin_cell *cell(const twin *t, int l, int pos)
{
    return &t->cells[l * t->o.ctx + pos % rows_of(t, l)];
}

static void write_layer(twin *t, test_rng *rng, int l, int n)
{
    const size_t width = (size_t)kv_width(t);
    float *k = mem_array((size_t)n * width * 2, sizeof *k), *v = k + (size_t)n * width;
    for (int p = 0; p < n; p++) {
        for (size_t i = 0; i < width; i++) {
            k[(size_t)p * width + i] = value(t->sums[t->pos + p + 1], l, 0, i);
            v[(size_t)p * width + i] = value(t->sums[t->pos + p + 1], l, 1, i);
        }
        *cell(t, l, t->pos + p) = (twin_cell){ t->pos + p, t->sums[t->pos + p + 1] };
    }
    mem_guard(true);
    kv_write(state_kv(t->s), l, t->pos, n, k, v);
    check_layer(t, rng, l, t->pos, true);
    check_layer(t, rng, l, t->pos + n - 1, true);
    mem_guard(false);
    mem_free(k);
}

void twin_run(twin *t, test_rng *rng, int n, bool aborted)
{
    const int n_layer = aborted ? (t->m->hp.n_layer + 1) / 2 : t->m->hp.n_layer;
    for (int p = t->pos; p < t->pos + n; p++) {
        t->ids[p] = (int32_t)test_below(rng, (uint32_t)t->m->hp.n_vocab);
        t->sums[p + 1] = mix(t->sums[p] * 31 + (uint64_t)t->ids[p] + 1);
    }
    for (int l = 0; l < n_layer; l++)
        if (t->m->layers[l].mixer == MIX_ATTENTION) write_layer(t, rng, l, n);
    if (aborted) return;
    t->pos += n;
    for (int l = 0; l < n_layer; l++) {
        for (int which = 2; which < 4 && t->m->layers[l].mixer == MIX_DELTANET; which++) {
            float *x = rec_part(t, l, which);
            for (size_t i = 0; i < rec_floats(t, which); i++) x[i] = rec_value(t, l, which, i);
        }
    }
    mem_guard(true);
    state_advance(t->s, n);
    mem_guard(false);
}

void twin_snapshot(twin *t)
{
    int place = 0;
    mem_guard(true);
    state_snapshot(t->s);
    mem_guard(false);
    if (t->o.n_snapshot == 0 || t->pos == 0) return;
    for (int i = 0; i < t->o.n_snapshot; i++)            /* a free place was never used: 0 */
        if (t->snaps[i].used < t->snaps[place].used) place = i;
    for (int i = 0; i < t->o.n_snapshot; i++)
        if (t->snaps[i].pos == t->pos) place = i;
    t->snaps[place] = (twin_snap){ t->pos, ++t->clock };
}

/* Is every key that a token at pos may look at in its cell, and the right one? */
static bool rings_hold(const twin *t, int pos)
{
    for (int l = 0; l < t->m->hp.n_layer; l++) {
        if (t->m->layers[l].mixer != MIX_ATTENTION || t->m->layers[l].window == 0) continue;
        for (int p = first_seen(t, l, pos); p < pos; p++) {
            const twin_cell *c = cell(t, l, p);
            if (c->pos != p || c->sum != t->sums[p + 1]) return false;
        }
    }
    return true;
}

static void fill_rings(twin *t)
{
    for (int l = 0; l < t->m->hp.n_layer; l++)
        for (int p = first_seen(t, l, t->pos); p < t->pos; p++)
            *cell(t, l, p) = (twin_cell){ p, t->sums[p + 1] };
}

void twin_rewind(twin *t, int pos)
{
    const int from = t->pos;
    int want = 0, place = -1;
    const int at = pos < 0 ? 0 : pos > t->pos ? t->pos : pos;
    for (int i = 0; i < t->o.n_snapshot; i++) {
        if (t->snaps[i].pos == 0 || t->snaps[i].pos > at || t->snaps[i].pos <= want) continue;
        want = t->snaps[i].pos;
        place = i;
    }
    if (at == t->pos || (t->m->hp.ssm_conv == 0 && rings_hold(t, at))) {
        want = at;
        place = -1;
    }
    mem_guard(true);
    const int target = state_rewind_target(t->s, pos), have = state_rewind(t->s, pos);
    mem_guard(false);
    if (target != want || have != want || state_pos(t->s) != want)
        complain(t, "rewind from %d to %d: target %d, went to %d, want %d", from, pos, target, have,
                 want);
    t->pos = want;
    if (place >= 0) {
        t->snaps[place].used = ++t->clock;
        fill_rings(t);
    }
    for (int i = 0; i < t->o.n_snapshot; i++)
        if (t->snaps[i].pos > want) t->snaps[i] = (twin_snap){ 0, 0 };
}

void twin_loaded(twin *t, const twin *from)
{
    t->pos = from->pos;
    memcpy(t->ids, from->ids, (size_t)t->pos * sizeof *t->ids);
    memcpy(t->sums, from->sums, ((size_t)t->pos + 1) * sizeof *t->sums);
    memset(t->cells, 0, (size_t)t->m->hp.n_layer * (size_t)t->o.ctx * sizeof *t->cells);
    memset(t->snaps, 0, (size_t)t->o.n_snapshot * sizeof *t->snaps);
    fill_rings(t);
}

bool twin_holds(twin *t, test_rng *rng)
{
    if (state_pos(t->s) != t->pos)
        complain(t, "position is %d, want %d", state_pos(t->s), t->pos);
    mem_guard(true);
    for (int l = 0; l < t->m->hp.n_layer && !t->why[0]; l++) {
        if (t->m->layers[l].mixer == MIX_ATTENTION) {
            check_layer(t, rng, l, t->pos, false);
            continue;
        }
        for (int which = 2; which < 4; which++) {
            const float *x = rec_part(t, l, which);
            for (size_t i = 0; i < rec_floats(t, which); i++) {
                const float want = rec_value(t, l, which, i);
                if (x[i] != want)
                    complain(t, "layer %d at %d: %s [%zu] is %g, want %g", l, t->pos,
                             which == 2 ? "conv" : "state", i, (double)x[i], (double)want);
            }
        }
    }
    mem_guard(false);
    return !t->why[0];
}
