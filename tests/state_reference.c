/* state_reference.c - the plain model of state_reference.h. Shares no arithmetic with engine/. */
#include "tests/state_reference.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "loader/quant.h"

/* ---- models ---------------------------------------------------------------------------------- */

model *reference_model(const char *layers, int n_head_kv, int head_dim, int window)
{
    const size_t n = strlen(layers);
    model *m = mem_zalloc(sizeof *m);
    m->layers = mem_zalloc(n * sizeof *m->layers);
    m->hp.n_vocab = 50;
    m->hp.n_head_kv = n_head_kv;
    m->hp.head_dim = head_dim;
    m->hp.window = window;
    int last[2] = { 0 };                 /* F, W */
    for (size_t l = 0; l < n; l++) {
        if (strchr("FW", layers[l])) last[layers[l] == 'W'] = (int)l;
        if (strchr("fw", layers[l])) m->layers[l].kv_back = (int)l - last[layers[l] == 'w'];
        m->layers[l].mixer = layers[l] == 'D' ? MIX_DELTANET : MIX_ATTENTION;
        if (strchr("WVUw", layers[l])) m->layers[l].window = window;
        if (layers[l] == 'V') m->hp.windowed = (attn_shape){ 1, n_head_kv + 1, 64, 64 };
        if (layers[l] == 'U')
            m->hp.windowed = (attn_shape){ 1, 2 * n_head_kv, head_dim / 2, head_dim / 2 };
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

void reference_model_free(model *m)
{
    if (!m) return;
    mem_free(m->layers);
    mem_free(m);
}

layer_segments reference_segments(const model *m, mem_space *where, int n_ram)
{
    layer_segments s = { .n = 0 };
    if (where) segments_add(&s, m->hp.n_layer - n_ram, where);
    segments_add(&s, m->hp.n_layer, mem_space_ram());
    return s;
}

/* ---- the far space --------------------------------------------------------------------------- */

typedef struct far_block {
    uint8_t *addresses;                  /* [bytes], not accessible; NULL: this place is free */
    uint8_t *content;                    /* [bytes] */
    size_t bytes;
} far_block;

static struct {
    far_block blocks[32];
    long fail_in;                        /* the call that brings it to 0 fails */
    err_ctx first;
} far;

static bool far_fails(const char *what)
{
    if (far.fail_in == 0 || --far.fail_in > 0) return false;
    if (far.first.code == 0) err_set(&far.first, ERR_IO, "far space: %s failed", what);
    return true;
}

/* Where n bytes at an address of the space really are. */
static uint8_t *far_at(const void *p, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(far.blocks); i++) {
        const far_block *b = &far.blocks[i];
        const uintptr_t at = (uintptr_t)p - (uintptr_t)b->addresses;
        if (b->addresses && at < b->bytes && n <= b->bytes - at) return b->content + at;
    }
    CHECK_MSG(false, "far space: %zu bytes at %p are in no block", n, p);
    return NULL;
}

static int far_alloc(void **out, mem_space *self, uint64_t bytes, mem_space_use use,
                     const char *what, err_ctx *err)
{
    far_block *b = far.blocks;           /* a free one */
    (void)self;
    *out = NULL;
    while (b->addresses && b < far.blocks + ARRAY_LEN(far.blocks) - 1) b++;
    CHECK(bytes > 0 && !b->addresses && (use == MEM_DENSE || use == MEM_SPARSE));
    if (bytes <= 1u << 30 && !far_fails("alloc")) b->content = mem_zalloc((size_t)bytes);
    if (!b->content) return err_set(err, ERR_NOMEM, "no room for %s", what);
    b->bytes = (size_t)bytes;
    b->addresses = mmap(NULL, b->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(b->addresses != MAP_FAILED);
    *out = b->addresses;
    return 0;
}

static void far_free(mem_space *self, void *p, uint64_t bytes)
{
    (void)self;
    if (!p) return;
    for (size_t i = 0; i < ARRAY_LEN(far.blocks); i++) {
        far_block *b = &far.blocks[i];
        if (b->addresses != p) continue;
        CHECK(b->bytes == bytes);
        munmap(b->addresses, b->bytes);
        mem_free(b->content);
        *b = (far_block){ 0 };
        return;
    }
    CHECK_MSG(false, "far space: %p is no block", p);
}

static void far_read(mem_space *self, void *to, const void *from, size_t n)
{
    (void)self;
    const uint8_t *p = n > 0 ? far_at(from, n) : NULL;
    if (!p) return;
    if (far_fails("read")) memset(to, 0xEE, n);
    else memcpy(to, p, n);
}

static void far_write(mem_space *self, void *to, const void *from, size_t n)
{
    (void)self;
    uint8_t *p = n > 0 ? far_at(to, n) : NULL;
    if (p && !far_fails("write")) memcpy(p, from, n);
}

static void far_zero(mem_space *self, void *to, size_t n)
{
    (void)self;
    uint8_t *p = n > 0 ? far_at(to, n) : NULL;
    if (p && !far_fails("zero")) memset(p, 0, n);
}

static int far_check(mem_space *self, err_ctx *err)
{
    (void)self;
    if (far.first.code != 0 && err) *err = far.first;
    return far.first.code;
}

mem_space *far_space(void)
{
    static mem_space s = { "far", false, far_alloc, far_free, far_read, far_read, far_write,
                           far_zero, far_check };
    return &s;
}

void far_fail_after(long n)
{
    far.fail_in = n;
    if (n == 0) far.first = (err_ctx){ 0 };
}

int far_blocks(void)
{
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(far.blocks); i++) n += far.blocks[i].addresses != NULL;
    return n;
}

/* ---- right values ---------------------------------------------------------------------------- */

static void complain(reference *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void complain(reference *t, const char *fmt, ...)
{
    va_list ap;
    if (t->why[0]) return;               /* the first one is the one to look at */
    va_start(ap, fmt);
    vsnprintf(t->why, sizeof t->why, fmt, ap);
    va_end(ap);
}

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

static int n_head_of(const reference *t, int l)
{
    const model_hparams *hp = &t->m->hp;
    const bool other = t->m->layers[l].window > 0 && hp->windowed.n_head > 0;
    return other ? hp->windowed.n_head_kv : hp->n_head_kv;
}

static int head_dim_of(const reference *t, int l)
{
    const model_hparams *hp = &t->m->hp;
    const bool other = t->m->layers[l].window > 0 && hp->windowed.n_head > 0;
    return other ? hp->windowed.head_dim : hp->head_dim;
}

static int kv_width(const reference *t, int l)
{
    return n_head_of(t, l) * head_dim_of(t, l);
}

/* Keys and values of its own. */
static bool has_rows(const reference *t, int l)
{
    return t->m->layers[l].mixer == MIX_ATTENTION && t->m->layers[l].kv_back == 0;
}

static int rows_of(const reference *t, int l)
{
    const int want = t->m->layers[l].window + t->o.slack;
    const int n = t->m->layers[l].window > 0 && want < t->o.ctx ? want : t->o.ctx;
    return (n + 63) / 64 * 64;           /* whole pages */
}

/* First position a token at pos may look at. */
static int first_seen(const reference *t, int l, int pos)
{
    const int window = t->m->layers[l].window;
    return window > 0 && pos + 1 > window ? pos + 1 - window : 0;
}

/* The largest of a block of 32 values, none of which is NaN. */
static float largest(const float *x)
{
    float amax = 0;
    for (int k = 0; k < 32; k++) amax = fabsf(x[k]) > amax ? fabsf(x[k]) : amax;
    return amax;
}

/* How far a stored value may be from x; amax is the largest of its block. */
static double tolerance(kv_type type, float x, float amax)
{
    if (type == KV_F32) return 0;
    return type == KV_F16 ? fabs(x) * 0x1p-11 : 0.501 * (double)amax / 127;
}

/* ---- rows, wherever they are ----------------------------------------------------------------- */

static bool is_near(const reference *t, int l)
{
    return state_layer_space(t->s, l)->addressable;
}

/* The address of one head's key (which 0) or value (1). */
static uint8_t *row_at(const reference *t, int l, int which, int head, int pos)
{
    const kv_store *c = state_kv(t->s);
    const kv_view v = kv_layer_view(c, l);
    return kv_row(&v, which == 0 ? KV_KEYS : KV_VALUES, head, pos);
}

void kv_row_decode(float *out, const kv_store *c, int layer, int head, int pos, bool is_value)
{
    static const quant_type stored[] = { QT_F32, QT_F16, QT_Q8_0 };
    const kv_view v = kv_layer_view(c, layer);
    const quant_traits *traits = quant_traits_of(stored[v.type]);
    traits->decode(out, kv_row(&v, is_value ? KV_VALUES : KV_KEYS, head, pos),
                   v.row_bytes / (size_t)traits->block_bytes);
}

/* One head's keys or values at positions pos .. pos+n-1 as F32. */
static const float *rows_at(const reference *t, int l, int which, int head, int pos, int n,
                            float *tile)
{
    static const quant_type stored[] = { QT_F32, QT_F16, QT_Q8_0 };
    const kv_store *c = state_kv(t->s);
    const quant_traits *traits = quant_traits_of(stored[t->o.kv]);
    const int dim = head_dim_of(t, l);
    mem_space *where = state_layer_space(t->s, l);
    uint8_t row[64 * sizeof(float)];
    for (int i = 0; i < n; i++) {
        if (is_near(t, l)) {
            kv_row_decode(tile + i * dim, c, l, head, pos + i, which == 1);
            continue;
        }
        where->read(where, row, row_at(t, l, which, head, pos + i),
                    kv_layer_view(c, l).row_bytes);
        traits->decode(tile + i * dim, row, (size_t)(dim / traits->block_elems));
    }
    return tile;
}

/* Stores n rows of a layer from the present position on. */
static void store_rows(reference *t, int l, int n, const float *k, const float *v)
{
    kv_store *c = state_kv(t->s);
    mem_space *where = state_layer_space(t->s, l);
    if (is_near(t, l)) {
        kv_write(c, l, t->pos, n, k, v, NULL);
        return;
    }
    for (int p = 0; p < n; p++, k += kv_width(t, l), v += kv_width(t, l)) {
        const kv_view from = kv_layer_view(t->scribe, l);
        kv_write(t->scribe, l, 0, 1, k, v, NULL);
        for (int h = 0; h < n_head_of(t, l); h++) {
            where->write(where, row_at(t, l, 0, h, t->pos + p), kv_row(&from, KV_KEYS, h, 0),
                         from.row_bytes);
            where->write(where, row_at(t, l, 1, h, t->pos + p), kv_row(&from, KV_VALUES, h, 0),
                         from.row_bytes);
        }
    }
    kv_wrote(c, l, t->pos, n);
}

/* ---- what must be there ---------------------------------------------------------------------- */

/* One head's keys or values at positions pos .. pos+n-1. Returns the first wrong position or -1. */
static int wrong_row(const reference *t, int l, int which, int head, int pos, int n)
{
    const int dim = head_dim_of(t, l);
    float tile[64 * 64], want[64];
    const float *have = rows_at(t, l, which, head, pos, n, tile);
    for (int p = pos; p < pos + n; p++, have += dim) {
        for (int i = 0; i < dim; i++)
            want[i] = value(t->sums[p + 1], l, which, (size_t)(head * dim + i));
        float amax = 0;
        for (int i = 0; i < dim; i++) {
            if (t->o.kv == KV_Q8_0 && i % 32 == 0) amax = largest(want + i);
            if (!(fabs((double)have[i] - want[i]) <= tolerance(t->o.kv, want[i], amax))) return p;
        }
    }
    return -1;
}

/* All that a token at pos may look at in a layer, its own key (if self) included. */
static void check_layer(reference *t, test_rng *rng, int l, int pos, bool self)
{
    const int end = pos + self;
    for (int i = 0; i < 2 * n_head_of(t, l); i++) {
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

enum { REC_FLOATS = 128 };               /* room for one layer's window, or state */

static size_t rec_floats(const reference *t, int which)
{
    const model_hparams *hp = &t->m->hp;
    if (which == 3) return (size_t)(hp->ssm_n_v_head * hp->ssm_head_dim * hp->ssm_head_dim);
    return (size_t)((hp->ssm_conv - 1) * (2 * hp->ssm_n_k_head + hp->ssm_n_v_head) *
                    hp->ssm_head_dim);
}

static float *rec_part(const reference *t, int l, int which)
{
    recurrent *r = state_recurrent(t->s);
    return which == 2 ? recurrent_conv(r, l) : recurrent_state(r, l);
}

static float rec_value(const reference *t, int l, int which, size_t i)
{
    return t->pos == 0 ? 0.0f : value(t->sums[t->pos], l, which, i);
}

/* ---- open, close ----------------------------------------------------------------------------- */

void reference_open(reference *t, const model *m, const state_options *o)
{
    err_ctx err = { 0 };
    *t = (reference){ .m = m, .o = *o };
    CHECK_MSG(state_create(&t->s, m, o, &err) == 0, "state_create: %s", err.msg);
    CHECK(rec_floats(t, 2) <= REC_FLOATS && rec_floats(t, 3) <= REC_FLOATS);
    const kv_options one = { .in = reference_segments(m, NULL, 0), .type = o->kv, .ctx = 1,
                             .slack = 1 };
    if (!state_layer_space(t->s, 0)->addressable)
        CHECK(kv_create(&t->scribe, m, &one, &err) == 0);
    t->ids = mem_zalloc((size_t)o->ctx * sizeof *t->ids);
    t->sums = mem_zalloc(((size_t)o->ctx + 1) * sizeof *t->sums);
    t->cells = mem_zalloc((size_t)m->hp.n_layer * (size_t)(o->ctx + 63) * sizeof *t->cells);
    t->snaps = mem_zalloc((size_t)(o->n_snapshot + 1) * sizeof *t->snaps);
}

void reference_close(reference *t)
{
    state_free(t->s);
    kv_free(t->scribe);
    mem_free(t->ids);
    mem_free(t->sums);
    mem_free(t->cells);
    mem_free(t->snaps);
    *t = (reference){ 0 };
}

/* ---- what a session does --------------------------------------------------------------------- */

static reference_cell *cell(const reference *t, int l, int pos)
{
    return &t->cells[l * (t->o.ctx + 63) + pos % rows_of(t, l)];
}

static void write_layer(reference *t, test_rng *rng, int l, int n)
{
    const size_t width = (size_t)kv_width(t, l);
    float *k = mem_array((size_t)n * width * 2, sizeof *k), *v = k + (size_t)n * width;
    for (int p = 0; p < n; p++) {
        for (size_t i = 0; i < width; i++) {
            k[(size_t)p * width + i] = value(t->sums[t->pos + p + 1], l, 0, i);
            v[(size_t)p * width + i] = value(t->sums[t->pos + p + 1], l, 1, i);
        }
        *cell(t, l, t->pos + p) = (reference_cell){ t->pos + p, t->sums[t->pos + p + 1] };
    }
    mem_guard(true);
    store_rows(t, l, n, k, v);
    check_layer(t, rng, l, t->pos, true);
    check_layer(t, rng, l, t->pos + n - 1, true);
    mem_guard(false);
    mem_free(k);
}

void reference_run(reference *t, test_rng *rng, int n, bool aborted)
{
    const int n_layer = aborted ? (t->m->hp.n_layer + 1) / 2 : t->m->hp.n_layer;
    err_ctx err = { 0 };
    CHECK_MSG(state_reserve(t->s, t->pos + n, &err) == 0, "%s", err.msg);
    for (int p = t->pos; p < t->pos + n; p++) {
        t->ids[p] = (int32_t)test_below(rng, (uint32_t)t->m->hp.n_vocab);
        t->sums[p + 1] = mix(t->sums[p] * 31 + (uint64_t)t->ids[p] + 1);
    }
    for (int l = 0; l < n_layer; l++)
        if (has_rows(t, l)) write_layer(t, rng, l, n);
    if (aborted) return;
    t->pos += n;
    for (int l = 0; l < n_layer; l++) {
        mem_space *where = state_layer_space(t->s, l);
        for (int which = 2; which < 4 && t->m->layers[l].mixer == MIX_DELTANET; which++) {
            const size_t n_rec = rec_floats(t, which);
            float x[REC_FLOATS];
            for (size_t i = 0; i < n_rec; i++) x[i] = rec_value(t, l, which, i);
            where->write(where, rec_part(t, l, which), x, n_rec * sizeof *x);
        }
    }
    mem_guard(true);
    state_advance(t->s, n);
    mem_guard(false);
}

void reference_snapshot(reference *t)
{
    int place = 0;
    mem_guard(true);
    state_snapshot(t->s, NULL);
    mem_guard(false);
    if (t->o.n_snapshot == 0 || t->pos == 0) return;
    for (int i = 0; i < t->o.n_snapshot; i++)            /* a free place was never used: 0 */
        if (t->snaps[i].used < t->snaps[place].used) place = i;
    for (int i = 0; i < t->o.n_snapshot; i++)
        if (t->snaps[i].pos == t->pos) place = i;
    t->snaps[place] = (reference_snap){ t->pos, ++t->clock };
}

/* Is every key that a token at pos may look at in its cell, and the right one? */
static bool rings_hold(const reference *t, int pos)
{
    for (int l = 0; l < t->m->hp.n_layer; l++) {
        if (!has_rows(t, l) || t->m->layers[l].window == 0) continue;
        for (int p = first_seen(t, l, pos); p < pos; p++) {
            const reference_cell *c = cell(t, l, p);
            if (c->pos != p || c->sum != t->sums[p + 1]) return false;
        }
    }
    return true;
}

static void fill_rings(reference *t)
{
    for (int l = 0; l < t->m->hp.n_layer; l++)
        for (int p = first_seen(t, l, t->pos); p < t->pos; p++)
            *cell(t, l, p) = (reference_cell){ p, t->sums[p + 1] };
}

void reference_rewind(reference *t, int pos)
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
        if (t->snaps[i].pos > want) t->snaps[i] = (reference_snap){ 0, 0 };
}

void reference_loaded(reference *t, const reference *from)
{
    t->pos = from->pos;
    memcpy(t->ids, from->ids, (size_t)t->pos * sizeof *t->ids);
    memcpy(t->sums, from->sums, ((size_t)t->pos + 1) * sizeof *t->sums);
    memset(t->cells, 0, (size_t)t->m->hp.n_layer * (size_t)(t->o.ctx + 63) * sizeof *t->cells);
    memset(t->snaps, 0, (size_t)t->o.n_snapshot * sizeof *t->snaps);
    fill_rings(t);
}

bool reference_holds(reference *t, test_rng *rng)
{
    mem_space *there = state_layer_space(t->s, 0);
    err_ctx err = { 0 };
    if (state_pos(t->s) != t->pos)
        complain(t, "position is %d, want %d", state_pos(t->s), t->pos);
    mem_guard(true);
    for (int l = 0; l < t->m->hp.n_layer && !t->why[0]; l++) {
        if (has_rows(t, l)) check_layer(t, rng, l, t->pos, false);
        if (t->m->layers[l].mixer == MIX_ATTENTION) continue;
        mem_space *where = state_layer_space(t->s, l);
        for (int which = 2; which < 4; which++) {
            const size_t n_rec = rec_floats(t, which);
            float x[REC_FLOATS];
            where->read(where, x, rec_part(t, l, which), n_rec * sizeof *x);
            for (size_t i = 0; i < n_rec; i++) {
                const float want = rec_value(t, l, which, i);
                if (x[i] != want)
                    complain(t, "layer %d at %d: %s [%zu] is %g, want %g", l, t->pos,
                             which == 2 ? "conv" : "state", i, (double)x[i], (double)want);
            }
        }
    }
    mem_guard(false);
    if (there->check(there, &err) < 0) complain(t, "%s", err.msg);
    return !t->why[0];
}
