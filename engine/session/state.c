/* state.c - a session's position, its snapshots, rewinds, export and import.
 *
 * Invariant: the KV store has all positions that the token at pos may read, and the recurrent
 * blocks summarise exactly the tokens before pos. A snapshot is never above pos, so the rows of
 * full layers below it have not changed since it was taken. state_file.c reads and writes files. */
#include "engine/session/state.h"

#include <assert.h>
#include <string.h>

#include "engine/session/state_internal.h"
#include "tiers/page_advice.h"

/* ---- create, free --------------------------------------------------------------------------- */

/* Bytes of one snapshot. UINT64_MAX: too much. */
static uint64_t snapshot_bytes(const model *m, const state_options *o)
{
    return size_plus(recurrent_bytes(m), kv_ring_bytes(m, o->kv, o->ctx, o->slack));
}

kv_options state_kv_options(const state_options *o)
{
    return (kv_options){ .in = o->in, .type = o->kv, .ctx = o->ctx, .slack = o->slack };
}

uint64_t state_layer_bytes(const model *m, const state_options *o, int l)
{
    const kv_options kv = state_kv_options(o);
    return size_plus(kv_layer_bytes(m, &kv, l), recurrent_layer_bytes(m, l));
}

uint64_t state_snapshot_bytes(const model *m, const state_options *o)
{
    return size_times(snapshot_bytes(m, o), (uint64_t)o->n_snapshot);
}

uint64_t state_bytes(const model *m, const state_options *o)
{
    uint64_t sum = state_snapshot_bytes(m, o);
    for (int l = 0; l < hparams_layers(&m->hp); l++)
        sum = size_plus(sum, state_layer_bytes(m, o, l));
    return sum;
}

static int create_snapshots(state *s, err_ctx *err)
{
    const int n = s->o.n_snapshot;
    s->rec_bytes = recurrent_bytes(s->m);
    s->snap_bytes = snapshot_bytes(s->m, &s->o);
    if (n < 0) return err_set(err, ERR_RANGE, "%d snapshots", n);
    if (n == 0) return 0;
    s->snap_pos = mem_zalloc((size_t)n * sizeof *s->snap_pos);
    if (s->snap_pos) s->snap_mem = mem_array((size_t)n, (size_t)s->snap_bytes);
    if (!s->snap_mem)
        return err_set(err, ERR_NOMEM, "no memory for %d snapshots of %llu bytes (%.1f MB)", n,
                       (unsigned long long)s->snap_bytes, (double)s->snap_bytes * 1e-6);
    if (s->snap_bytes >= HUGE_PAGE) pages_few_faults(s->snap_mem, (uint64_t)n * s->snap_bytes);
    return 0;
}

int state_create(state **out, const model *m, const state_options *o, err_ctx *err)
{
    state *s = mem_zalloc(sizeof *s);
    int rc;

    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "session state: no memory for %zu bytes", sizeof *s);
    s->m = m;
    s->o = *o;
    s->o.in = segments_or_ram(&o->in, hparams_layers(&m->hp));
    const kv_options kv = state_kv_options(&s->o);
    if ((rc = kv_create(&s->kv, m, &kv, err)) < 0 ||
        (rc = recurrent_create(&s->rec, m, &s->o.in, err)) < 0 ||
        (rc = create_snapshots(s, err)) < 0) {
        state_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void state_free(state *s)
{
    if (!s) return;
    kv_free(s->kv);
    recurrent_free(s->rec);
    mem_free(s->snap_pos);
    mem_free(s->snap_mem);
    mem_free(s);
}

/* ---- position ------------------------------------------------------------------------------- */

mem_space *state_layer_space(const state *s, int layer)
{
    return s->o.in.of[segment_of(&s->o.in, layer)].where;
}

kv_store *state_kv(state *s) { return s->kv; }

recurrent *state_recurrent(state *s) { return s->rec; }

recurrent *state_exchange_recurrent(state *s, recurrent *next)
{
    recurrent *before = s->rec;
    s->rec = next;
    return before;
}

int state_pos(const state *s) { return s->pos; }

int state_reserve(state *s, int n_pos, err_ctx *err) { return kv_reserve(s->kv, n_pos, err); }
void state_trim(state *s) { kv_release(s->kv, s->pos); }

void state_advance(state *s, int n)
{
    assert(n >= 0 && n <= s->o.slack && n <= s->o.ctx - s->pos);
    s->pos += n;
}

/* Snapshots above pos depend on rows of full layers that may be overwritten from now on. */
static void drop_snapshots(state *s, int pos)
{
    for (int i = 0; i < s->o.n_snapshot; i++)
        if (s->snap_pos[i] > pos) s->snap_pos[i] = 0;
}

void state_go_back(state *s, int pos)
{
    assert(pos <= s->pos && pos >= kv_rewind_limit(s->kv, s->pos));
    drop_snapshots(s, pos);
    s->kept_pos = min_int(s->kept_pos, pos);
    s->pos = pos;
    state_trim(s);
}

void state_clear(state *s)
{
    s->pos = s->kept_pos = 0;
    drop_snapshots(s, 0);
    recurrent_clear(s->rec);
    kv_replaced(s->kv, KV_ALL, 0);
    state_trim(s);
}

/* ---- snapshots ------------------------------------------------------------------------------ */

/* kv_piece_fn: copies a piece to or from a buffer in RAM and advances its pointer, *ctx. A copy
 * from the space is complete after the next check. */
static int copy_out(void *ctx, mem_space *where, void *bytes, size_t n)
{
    uint8_t **buffer = ctx;
    where->read_later(where, *buffer, bytes, n);
    *buffer += n;
    return 0;
}

static int copy_in(void *ctx, mem_space *where, void *bytes, size_t n)
{
    uint8_t **buffer = ctx;
    where->write(where, bytes, *buffer, n);
    *buffer += n;
    return 0;
}

int state_each_block(const state *s, kv_piece_fn *fn, void *ctx)
{
    int rc = 0;
    const layer_blocks *memory = recurrent_memory(s->rec);
    for (int i = 0; i < memory->in.n && rc == 0; i++) {
        const layer_block *b = &memory->of[i];
        if (b->bytes > 0) rc = fn(ctx, b->where, b->data, (size_t)b->bytes);
    }
    return rc;
}

int state_check(const state *s, err_ctx *err)
{
    int rc = 0;
    for (int i = 0; i < s->o.in.n; i++) {
        mem_space *where = s->o.in.of[i].where;
        const int checked = where->check(where, rc < 0 ? NULL : err);
        if (rc == 0) rc = checked;
    }
    return rc;
}

/* The index of this position's snapshot, else a free one, else that of the lowest snapshot. The
 * lowest is the one least recently taken or used: using a snapshot drops all above it, and a new
 * one is above all others. */
static int choose_snapshot(const state *s)
{
    int best = 0;
    for (int i = 0; i < s->o.n_snapshot; i++) {
        if (s->snap_pos[i] == s->pos) return i;
        if (s->snap_pos[i] < s->snap_pos[best]) best = i;
    }
    return best;
}

void state_snapshot(state *s, pool *team)
{
    if (s->o.n_snapshot == 0 || s->pos == 0) return;
    const int i = choose_snapshot(s);
    uint8_t *to = s->snap_mem + (size_t)i * s->snap_bytes;
    if (team && s->snap_pos[i] == 0 && s->snap_bytes >= HUGE_PAGE)
        pages_touch(to, (size_t)s->snap_bytes, team);    /* the memory may be new */
    s->snap_pos[i] = s->pos;
    state_each_block(s, copy_out, &to);
    kv_each_piece(s->kv, KV_RINGS, s->pos, copy_out, &to);
    (void)state_check(s, NULL);          /* the space reports a failure at the next check again */
}

static void restore(state *s, int i)
{
    uint8_t *from = s->snap_mem + (size_t)i * s->snap_bytes;
    s->pos = s->snap_pos[i];
    state_each_block(s, copy_in, &from);
    kv_each_piece(s->kv, KV_RINGS, s->pos, copy_in, &from);
    kv_replaced(s->kv, KV_RINGS, s->pos);
}

/* ---- rewinds -------------------------------------------------------------------------------- */

/* The highest snapshot not above pos, or -1. */
static int find_snapshot(const state *s, int pos)
{
    int best = -1;
    for (int i = 0; i < s->o.n_snapshot; i++) {
        const int p = s->snap_pos[i];
        if (p > 0 && p <= pos && (best < 0 || p > s->snap_pos[best])) best = i;
    }
    return best;
}

/* Whether a rewind to pos only has to set the position. */
static bool is_direct(const state *s, int pos)
{
    return pos == s->pos || (s->rec_bytes == 0 && pos >= kv_rewind_limit(s->kv, s->pos));
}

int state_rewind_target(const state *s, int pos)
{
    if (pos >= s->pos) return s->pos;
    if (pos <= 0) return 0;
    if (is_direct(s, pos)) return pos;
    const int i = find_snapshot(s, pos);
    return i < 0 ? 0 : s->snap_pos[i];
}

int state_rewind(state *s, int pos)
{
    const int target = state_rewind_target(s, pos);
    if (target == 0) {
        state_clear(s);
        return 0;
    }
    drop_snapshots(s, target);
    s->kept_pos = min_int(s->kept_pos, target);
    if (is_direct(s, target)) s->pos = target;
    else restore(s, find_snapshot(s, target));
    state_trim(s);
    return target;
}

/* ---- export and import ---------------------------------------------------------------------- */

uint64_t state_rows_bytes(const model *m, kv_type type, int n)
{
    return kv_full_bytes(m, type, n);
}

uint64_t state_checkpoint_bytes(const model *m, kv_type type, int pos)
{
    return size_plus(recurrent_bytes(m), kv_window_bytes(m, type, pos));
}

int state_export(const state *s, void *rows, int from, void *checkpoint, err_ctx *err)
{
    uint8_t *row = rows, *out = checkpoint;
    assert(from >= 0 && from <= s->pos);
    kv_each_full(s->kv, from, s->pos, copy_out, &row);
    state_each_block(s, copy_out, &out);
    kv_each_piece(s->kv, KV_WINDOWS, s->pos, copy_out, &out);
    return state_check(s, err);
}

static int add_bytes(void *ctx, mem_space *where, void *bytes, size_t n)
{
    uint64_t *sum = ctx;
    (void)where;
    (void)bytes;
    *sum += n;
    return 0;
}

/* A snapshot has the recurrent blocks and the rings in the layout of a checkpoint. A window as long
 * as the context is no ring, so its positions are still in the KV store. */
int state_export_snapshot(const state *s, int pos, void *rows, int from, void *checkpoint,
                          err_ctx *err)
{
    uint64_t in_rings = 0;
    uint8_t *row = rows, *out = checkpoint;
    const int i = find_snapshot(s, pos);
    if (i < 0 || s->snap_pos[i] != pos || from < 0 || from > pos)
        return err_set(err, ERR_RANGE, "no snapshot at %d", pos);
    kv_each_piece(s->kv, KV_RINGS, pos, add_bytes, &in_rings);
    if (in_rings > 0 && in_rings != kv_window_bytes(s->m, s->o.kv, pos))
        return err_set(err, ERR_UNSUPPORTED, "the snapshot at %d lacks some windows", pos);
    kv_each_full(s->kv, from, pos, copy_out, &row);
    memcpy(out, s->snap_mem + (size_t)i * s->snap_bytes, (size_t)(s->rec_bytes + in_rings));
    out += s->rec_bytes;
    if (in_rings == 0) kv_each_piece(s->kv, KV_WINDOWS, pos, copy_out, &out);
    return state_check(s, err);
}

int state_next_snapshot(const state *s, int pos)
{
    int best = 0;
    for (int i = 0; i < s->o.n_snapshot; i++)
        if (s->snap_pos[i] > pos && (best == 0 || s->snap_pos[i] < best)) best = s->snap_pos[i];
    return best;
}

void state_import_begin(state *s) { state_clear(s); }

/* Rows of which each head uses only the first positions. */
typedef struct row_source {
    const uint8_t *next;
    int from, end, pos;                  /* positions used; that of the next piece */
    int n_skipped;                       /* positions of a head that are not used */
} row_source;

static int copy_rows(void *ctx, mem_space *where, void *bytes, size_t n)
{
    row_source *src = ctx;
    const int n_pos = min_int(src->end - src->pos, KV_PAGE - src->pos % KV_PAGE);
    where->write(where, bytes, src->next, n);
    src->next += n;
    src->pos += n_pos;
    if (src->pos < src->end) return 0;
    src->next += n / (size_t)n_pos * (size_t)src->n_skipped;
    src->pos = src->from;
    return 0;
}

void state_import_rows(state *s, const void *rows, int from, int to, int n)
{
    row_source src = { rows, from, from + n, from, to - from - n };
    assert(s->pos == 0 && from >= 0 && n >= 0 && n <= to - from && n <= s->o.ctx - from);
    kv_each_full(s->kv, from, from + n, copy_rows, &src);
}

int state_import_end(state *s, int pos, const void *checkpoint, err_ctx *err)
{
    /* copy_in only reads the buffer */
    uint8_t *in = (uint8_t *)(uintptr_t)checkpoint;
    assert(pos >= 0 && pos <= s->o.ctx);
    state_each_block(s, copy_in, &in);
    kv_each_piece(s->kv, KV_WINDOWS, pos, copy_in, &in);
    const int rc = state_check(s, err);
    if (rc < 0) {
        state_clear(s);
        return rc;
    }
    kv_replaced(s->kv, KV_ALL, pos);
    s->pos = pos;
    return 0;
}
