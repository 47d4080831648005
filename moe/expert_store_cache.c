/* expert_store_cache.c - RAM frames for some experts; the others are in the file.
 *
 * A frame has three slabs, each in its own pages and at the same offset in its page as in the
 * file's. It is held while its expert is requested or reads into it are in flight, so that it is
 * not evicted. An expert is dropped if a slab is missing and no read of it is left. expert_cache.c
 * decides which expert is evicted. */
#include "moe/expert_store_internal.h"

#include <assert.h>
#include <string.h>

enum {
    MOST_TAGS = 64,
    EARLY_BYTES = 4 << 20                /* about a millisecond of a drive; not measured */
};

/* ---- frames ---------------------------------------------------------------------------------- */

uint64_t store_frame_layout(uint64_t slab_start[SLAB_COUNT], const expert_banks *b,
                            const bool *served)
{
    uint64_t at = 0;
    for (int i = 0; i < SLAB_COUNT; i++) {
        uint64_t most = 0;
        for (int l = 0; l < b->n_layer; l++) {
            const uint64_t bytes = expert_slab_bytes(&b->of[l], (expert_slab)i);
            if ((!served || served[l]) && bytes > most) most = bytes;
        }
        slab_start[i] = at;
        at += size_align(most + READER_PAGE - 1, READER_PAGE);   /* for any offset in a page */
    }
    return at;
}

static uint64_t least_frames(const expert_banks *b)
{
    return 2 * (uint64_t)b->n_used;
}

uint64_t expert_store_least(const expert_banks *b)
{
    uint64_t slab_start[SLAB_COUNT];
    return least_frames(b) * store_frame_layout(slab_start, b, NULL);
}

int store_cache_create(expert_store *s, uint64_t cache_bytes, cache_policy policy, err_ctx *err)
{
    const expert_banks *b = s->banks;
    uint64_t most = 0;
    int rc;
    s->frame_bytes = store_frame_layout(s->slab_start, b, s->served);
    for (int l = 0; l < b->n_layer; l++) most += s->served[l] ? (uint64_t)b->n_expert : 0;
    const uint64_t least = least_frames(b) < most ? least_frames(b) : most;
    const uint64_t n = cache_bytes / s->frame_bytes < most ? cache_bytes / s->frame_bytes : most;
    if (n < least)
        return err_set(err, ERR_RANGE, "a cache for experts needs %.3f GB at least, not %.3f GB",
                       (double)(least * s->frame_bytes) * 1e-9, (double)cache_bytes * 1e-9);
    if (n > INT32_MAX / SLAB_COUNT)
        return err_set(err, ERR_RANGE, "a cache for %llu experts", (unsigned long long)n);
    s->n_frame = (int)n;
    s->last_layer = -1;
    const size_t room = (size_t)max_int(s->n_frame, 1);
    s->frames = mem_array(room, sizeof *s->frames);
    s->wants = mem_array(room, sizeof *s->wants);
    s->list = mem_array(room, sizeof *s->list);
    s->jobs = mem_array(room * SLAB_COUNT, sizeof *s->jobs);
    if (!s->frames || !s->wants || !s->list || !s->jobs)
        return err_set(err, ERR_NOMEM, "a cache for %d experts", s->n_frame);
    for (int i = 0; i < s->n_frame; i++) s->frames[i] = (store_frame){ .layer = -1 };
    const cache_shape shape = { .n_layer = b->n_layer, .n_expert = b->n_expert, .n_pool = 1,
                                .n_frame = { s->n_frame }, .policy = policy };
    rc = expert_cache_create(&s->cache, &shape, err);
    if (rc < 0 || (rc = store_map(s, n * s->frame_bytes, err)) < 0) return rc;
    if (!s->arena) return 0;
    store_touch(s, 0, s->arena_bytes);
    store_lock(s);
    if (s->r) reader_register(s->r, s->arena, s->arena_bytes);
    return 0;
}

void store_cache_free(expert_store *s)
{
    expert_cache_free(s->cache);
    mem_free(s->frames);
    mem_free(s->wants);
    mem_free(s->list);
    mem_free(s->jobs);
}

int expert_store_room(const expert_store *s) { return s->n_frame; }

/* The offset of a slab in the file; slab_at: its address in the frame. */
static uint64_t file_offset(const expert_store *s, const store_frame *p, expert_slab slab)
{
    const expert_bank *b = store_bank(s, p->layer);
    return b->weight[slab]->offset + slab_offset(b, slab, p->expert);
}

static uint8_t *slab_at(const expert_store *s, const store_frame *p, expert_slab slab)
{
    const uint64_t frame = (uint64_t)(p - s->frames) * s->frame_bytes;
    return s->arena + frame + s->slab_start[slab] + file_offset(s, p, slab) % READER_PAGE;
}

bool store_cache_find(const expert_store *s, int layer, int expert, expert_slabs *out)
{
    const int i = expert_cache_find(s->cache, layer, expert);
    if (i < 0 || s->frames[i].present == 0) return false;
    const store_frame *p = &s->frames[i];
    for (int k = 0; k < SLAB_COUNT; k++)
        out->at[k] = p->present >> k & 1 ? slab_at(s, p, (expert_slab)k) : NULL;
    return true;
}

/* ---- reads ----------------------------------------------------------------------------------- */

/* Called after a read of the frame or its request has ended. If none is left, releases the frame,
 * and publishes the expert or drops it. */
static void settle(expert_store *s, store_frame *p)
{
    const int i = (int)(p - s->frames);
    expert_slabs at;
    if (p->requested != p->present || (p->present != ALL_SLABS && p->wanted > 0)) return;
    if (p->kept) expert_cache_release(s->cache, i);
    p->kept = false;
    s->n_ahead -= p->ahead;
    p->ahead = false;
    if (p->present != ALL_SLABS) {
        expert_cache_drop(s->cache, i);
        p->layer = -1;
        return;
    }
    for (int k = 0; k < SLAB_COUNT; k++) at.at[k] = slab_at(s, p, (expert_slab)k);
    store_publish(s, p->layer, p->expert, &at);
}

static void arrived(expert_store *s, uint64_t tag)
{
    const expert_slab slab = (expert_slab)(tag % SLAB_COUNT);
    store_frame *p = &s->frames[tag / SLAB_COUNT];
    p->present |= (uint8_t)(1 << slab);
    s->stats.read_bytes += expert_slab_bytes(store_bank(s, p->layer), slab);
    settle(s, p);
}

/* The slab is neither present nor being read. */
static void cancel_request(expert_store *s, uint64_t tag)
{
    s->frames[tag / SLAB_COUNT].requested &= (uint8_t)~(1 << tag % SLAB_COUNT);
}

static void copy_slabs(void *ctx, int64_t begin, int64_t end, int thread)
{
    const expert_store *s = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const read_job *j = &s->jobs[i];
        const store_frame *p = &s->frames[j->tag / SLAB_COUNT];
        const expert_slab slab = (expert_slab)(j->tag % SLAB_COUNT);
        memcpy(j->to, expert_slab_data(store_bank(s, p->layer), slab, p->expert), (size_t)j->bytes);
    }
}

/* Starts the missing reads of the n frames in list; gate and up first. */
static int start_reads(expert_store *s, int n, err_ctx *err)
{
    int n_job = 0;
    for (int down = 0; down < 2; down++)
        for (int i = 0; i < n; i++) {
            store_frame *p = &s->frames[s->list[i]];
            for (int k = 0; k < SLAB_COUNT; k++) {
                const expert_slab slab = (expert_slab)k;
                if ((slab == SLAB_DOWN) != down || p->requested >> k & 1) continue;
                s->jobs[n_job++] = (read_job){
                    .file = store_bank(s, p->layer)->weight[k]->part,
                    .offset = file_offset(s, p, slab),
                    .bytes = expert_slab_bytes(store_bank(s, p->layer), slab),
                    .to = slab_at(s, p, slab),
                    .tag = (uint64_t)s->list[i] * SLAB_COUNT + (uint64_t)k,
                };
                p->requested |= (uint8_t)(1 << k);
            }
        }
    if (n_job == 0) return 0;
    if (s->r) {
        const int rc = reader_submit(s->r, s->jobs, n_job, err);
        for (int i = 0; rc < 0 && i < n_job; i++) cancel_request(s, s->jobs[i].tag);
        return rc;
    }
    pool_run(s->team, n_job, 1, copy_slabs, s);
    for (int i = 0; i < n_job; i++) arrived(s, s->jobs[i].tag);
    return 0;
}

static int read_wanted(expert_store *s, err_ctx *err)
{
    int n = 0;
    for (int i = 0; i < s->n_want; i++)
        if (s->wants[i].frame >= 0) s->list[n++] = s->wants[i].frame;
    return start_reads(s, n, err);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Releases the request, cancels all reads and drops incomplete experts. */
static int fail_want(expert_store *s, int rc)
{
    if (s->r) reader_cancel(s->r);
    for (int i = 0; i < s->n_want; i++) {
        const int frame = s->wants[i].frame;
        if (frame < 0) continue;
        s->frames[frame].wanted--;
        expert_cache_release(s->cache, frame);
    }
    s->n_want = 0;
    for (int i = 0; i < s->n_frame; i++) {
        store_frame *p = &s->frames[i];
        if (p->layer < 0 || p->present == ALL_SLABS) continue;
        p->requested = p->present;
        settle(s, p);
    }
    return rc;
}

/* Processes complete reads, and waits until there are at least min. A failed read of an expert that
 * is not requested is ignored: a later request reads it again. Any other failure ends the
 * request. */
static int reap(expert_store *s, int min, err_ctx *err)
{
    uint64_t tags[MOST_TAGS];
    err_ctx reason;
    if (!s->r) return 0;
    const int n = reader_wait(s->r, tags, MOST_TAGS, min, &reason);
    for (int i = 0; i < n; i++) arrived(s, tags[i]);
    if (n >= 0) return 0;
    store_frame *p = &s->frames[tags[0] / SLAB_COUNT];
    if (p->wanted > 0) {
        if (err) *err = reason;
        return fail_want(s, n);
    }
    cancel_request(s, tags[0]);
    settle(s, p);
    return 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* A frame for the expert, held; -1 if all frames are held. */
static int take_frame(expert_store *s, int layer, int expert, bool *was_present)
{
    const int n_expert = s->banks->n_expert;
    int evicted;
    const int i = expert_cache_hold(s->cache, layer, expert, was_present, &evicted);
    if (i < 0 || *was_present) return i;
    if (evicted >= 0) store_publish(s, evicted / n_expert, evicted % n_expert, NULL);
    s->frames[i] = (store_frame){ .layer = layer, .expert = expert, .fresh = true };
    return i;
}

/* slots: number of a prompt's tokens that chose it; 0: not transient. */
static void add_want(expert_store *s, int i, int frame, bool was_present, int slots)
{
    store_frame *p = &s->frames[frame];
    const bool predicted = was_present && p->predicted;
    if (slots == 0 || p->fresh || expert_cache_is_transient(s->cache, frame))
        expert_cache_set_transient(s->cache, frame, slots);
    p->fresh = false;
    s->wants[i] = (store_want){ .frame = frame };
    p->wanted++;
    s->n_ahead -= p->ahead;
    p->ahead = false;
    p->predicted = false;
    s->stats.hits += was_present && !predicted;
    s->stats.misses += !was_present || predicted;
    s->stats.predicted += predicted;
}

/* Whether a request for this layer begins another token than the last request. A prompt may request
 * a layer several times in a row: the same layer again means another token only if no other layer
 * is served. */
static bool begins_token(const expert_store *s, int layer)
{
    return layer < s->last_layer || (layer == s->last_layer && expert_store_after(s, -1) == layer &&
                                     expert_store_after(s, layer) < 0);
}

/* Correct predictions have been requested by now; the other early reads count as present. */
static void forget_early(expert_store *s)
{
    for (int i = 0; i < s->n_early; i++) s->frames[s->early[i]].predicted = false;
    s->n_early = 0;
}

static int want(expert_store *s, int layer, const int *experts, const int *slots, int n,
                err_ctx *err)
{
    bool was_present;
    int rc, frame;
    assert(s->kind == STORE_CACHED && s->served[layer] && s->n_want == 0);
    if (n > s->n_frame)
        return err_set(err, ERR_RANGE, "%d experts wanted, but room for %d", n, s->n_frame);
    if (begins_token(s, layer)) expert_cache_tick(s->cache);
    s->last_layer = layer;
    s->n_want = n;
    for (int i = 0; i < n; i++) {        /* present experts first, so that none is evicted */
        s->wants[i] = (store_want){ .frame = -1 };
        if (expert_cache_find(s->cache, layer, experts[i]) < 0) continue;
        frame = take_frame(s, layer, experts[i], &was_present);
        add_want(s, i, frame, was_present, slots ? slots[i] : 0);
    }
    for (int i = 0; i < n; i++) {
        if (s->wants[i].frame >= 0) continue;
        while ((frame = take_frame(s, layer, experts[i], &was_present)) < 0)
            if ((rc = reap(s, 1, err)) < 0) return rc;   /* early reads hold frames */
        add_want(s, i, frame, was_present, slots ? slots[i] : 0);
    }
    forget_early(s);
    return (rc = read_wanted(s, err)) < 0 ? fail_want(s, rc) : 0;
}

int expert_store_want(expert_store *s, int layer, const int *experts, int n, err_ctx *err)
{
    return want(s, layer, experts, NULL, n, err);
}

int expert_store_want_all(expert_store *s, int layer, const int *experts, const int *slots, int n,
                          err_ctx *err)
{
    return want(s, layer, experts, slots, n, err);
}

int expert_store_next(expert_store *s, int *which, store_part part, err_ctx *err)
{
    const unsigned need = part == STORE_UP ? UP_SLABS : ALL_SLABS, bit = part == STORE_UP ? 1 : 2;
    const uint64_t start = clock_ns();
    int n = 0, rc = reap(s, 0, err);
    for (; rc == 0; rc = reap(s, 1, err)) {
        bool lacking = false;
        for (int i = 0; i < s->n_want; i++) {
            store_want *w = &s->wants[i];
            if (w->reported & bit) continue;
            if ((s->frames[w->frame].present & need) == need) {
                w->reported |= bit;
                which[n++] = i;
            } else lacking = true;
        }
        if (n > 0 || !lacking) break;
    }
    s->stats.wait_s += clock_since(start);
    return rc < 0 ? rc : n;
}

void expert_store_release(expert_store *s)
{
    for (int i = 0; i < s->n_want; i++) {
        store_frame *p = &s->frames[s->wants[i].frame];
        p->wanted--;
        if (p->wanted == 0 && p->present != ALL_SLABS && !p->kept) p->kept = true;
        else expert_cache_release(s->cache, s->wants[i].frame);
    }
    s->n_want = 0;
}

void expert_store_go_on(expert_store *s)
{
    if (s->kind == STORE_CACHED && s->r) reader_go_on(s->r);
}

/* Reads experts of a later layer that are neither present nor being read. */
static void read_early(expert_store *s, int layer, const int *experts, int n, bool predicted)
{
    const int most = s->n_frame / 2;
    bool was_present;
    int n_list = 0;
    for (int i = 0; i < n && s->n_ahead < most; i++) {
        if (expert_cache_find(s->cache, layer, experts[i]) >= 0) continue;
        const int frame = take_frame(s, layer, experts[i], &was_present);
        if (frame < 0) break;
        store_frame *p = &s->frames[frame];
        p->kept = p->ahead = true;
        p->predicted = predicted;
        s->n_ahead++;
        s->list[n_list++] = frame;
    }
    for (int i = 0; i < n_list && predicted; i++) s->early[s->n_early++] = s->list[i];
    if (predicted) s->stats.guesses += (uint64_t)n_list;
    if (start_reads(s, n_list, NULL) == 0) return;
    for (int i = 0; i < n_list; i++) settle(s, &s->frames[s->list[i]]);
}

/* Counts a use of a present expert, so that early reads do not evict it. False if it is missing. */
static bool mark_used(expert_store *s, int layer, int expert)
{
    bool was_present;
    if (expert_cache_find(s->cache, layer, expert) < 0) return false;
    expert_cache_release(s->cache, take_frame(s, layer, expert, &was_present));
    return true;
}

void expert_store_ahead(expert_store *s, int layer, const int *experts, int n)
{
    if (s->kind != STORE_CACHED || !s->served[layer] || !s->r) return;
    for (int i = 0; i < n; i++) mark_used(s, layer, experts[i]);
    read_early(s, layer, experts, n, false);
}

int expert_store_lacking(expert_store *s, int layer, const int32_t *likely, int n, int *lacking,
                         int most)
{
    int n_lacking = 0;
    if (s->kind != STORE_CACHED || !s->served[layer] || !s->r) return 0;
    for (int i = 0; i < n; i++)
        if (!mark_used(s, layer, likely[i]) && n_lacking < most) lacking[n_lacking++] = likely[i];
    return n_lacking;
}

void expert_store_read_early(expert_store *s, int layer, const int *experts, int n)
{
    if (s->kind != STORE_CACHED || !s->served[layer] || !s->r) return;
    const int enough = (int)(EARLY_BYTES / (expert_slabs_bytes(store_bank(s, layer)) + 1));
    assert(n <= STORE_MOST_EARLY);
    forget_early(s);
    read_early(s, layer, experts, min_int(n, max_int(enough, 1)), true);
}
