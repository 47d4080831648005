/* expert_store_cache.c - places for some experts, in front of the file.
 *
 * A place has room for three slabs, each in whole pages of its own and at the same offset in its
 * page as in the file's. It is held while someone wants its expert or reads into it are under way,
 * so that nobody else gets it. An expert that lacks a slab which no read will bring is dropped.
 * expert_cache.c decides which expert has to go. */
#include "moe/expert_store_internal.h"

#include <assert.h>
#include <string.h>

enum {
    MOST_TAGS = 64,
    EARLY_BYTES = 4 << 20                /* a guess: about a millisecond's work for a drive */
};

/* ---- places ---------------------------------------------------------------------------------- */

uint64_t store_slot(uint64_t room_at[SLAB_COUNT], const expert_banks *b, const bool *served)
{
    uint64_t at = 0;
    for (int i = 0; i < SLAB_COUNT; i++) {
        uint64_t most = 0;
        for (int l = 0; l < b->n_layer; l++) {
            const uint64_t bytes = expert_slab_bytes(&b->of[l], (expert_slab)i);
            if ((!served || served[l]) && bytes > most) most = bytes;
        }
        room_at[i] = at;
        at += size_align(most + READER_PAGE - 1, READER_PAGE);   /* wherever in a page it begins */
    }
    return at;
}

static uint64_t least_places(const expert_banks *b)
{
    return 2 * (uint64_t)b->n_used;
}

uint64_t expert_store_least(const expert_banks *b)
{
    uint64_t room_at[SLAB_COUNT];
    return least_places(b) * store_slot(room_at, b, NULL);
}

int store_cache_create(expert_store *s, uint64_t cache_bytes, cache_policy policy, err_ctx *err)
{
    const expert_banks *b = s->banks;
    uint64_t most = 0;
    int rc;
    s->slot_bytes = store_slot(s->room_at, b, s->served);
    for (int l = 0; l < b->n_layer; l++) most += s->served[l] ? (uint64_t)b->n_expert : 0;
    const uint64_t least = least_places(b) < most ? least_places(b) : most;
    const uint64_t n = cache_bytes / s->slot_bytes < most ? cache_bytes / s->slot_bytes : most;
    if (n < least)
        return err_set(err, ERR_RANGE, "a cache for experts needs %.3f GB at least, not %.3f GB",
                       (double)(least * s->slot_bytes) * 1e-9, (double)cache_bytes * 1e-9);
    if (n > INT32_MAX / SLAB_COUNT)
        return err_set(err, ERR_RANGE, "a cache for %llu experts", (unsigned long long)n);
    s->n_frame = (int)n;
    s->last_layer = -1;
    const size_t room = (size_t)max_int(s->n_frame, 1);
    s->places = mem_array(room, sizeof *s->places);
    s->wishes = mem_array(room, sizeof *s->wishes);
    s->list = mem_array(room, sizeof *s->list);
    s->jobs = mem_array(room * SLAB_COUNT, sizeof *s->jobs);
    if (!s->places || !s->wishes || !s->list || !s->jobs)
        return err_set(err, ERR_NOMEM, "a cache for %d experts", s->n_frame);
    for (int i = 0; i < s->n_frame; i++) s->places[i] = (store_place){ .layer = -1 };
    const cache_shape shape = { .n_layer = b->n_layer, .n_expert = b->n_expert, .n_pool = 1,
                                .n_frame = { s->n_frame }, .policy = policy };
    rc = expert_cache_create(&s->cache, &shape, err);
    if (rc < 0 || (rc = store_map(s, n * s->slot_bytes, err)) < 0) return rc;
    if (!s->arena) return 0;
    store_touch(s, 0, s->arena_bytes);
    store_lock(s);
    if (s->r) reader_register(s->r, s->arena, s->arena_bytes);
    return 0;
}

void store_cache_free(expert_store *s)
{
    expert_cache_free(s->cache);
    mem_free(s->places);
    mem_free(s->wishes);
    mem_free(s->list);
    mem_free(s->jobs);
}

int expert_store_room(const expert_store *s) { return s->n_frame; }

/* Where a slab is in the file, and where in its place. */
static uint64_t file_offset(const expert_store *s, const store_place *p, expert_slab slab)
{
    const expert_bank *b = store_bank(s, p->layer);
    return b->weight[slab]->offset + slab_offset(b, slab, p->expert);
}

static uint8_t *slab_at(const expert_store *s, const store_place *p, expert_slab slab)
{
    const uint64_t place = (uint64_t)(p - s->places) * s->slot_bytes;
    return s->arena + place + s->room_at[slab] + file_offset(s, p, slab) % READER_PAGE;
}

bool store_cache_find(const expert_store *s, int layer, int expert, expert_slabs *out)
{
    const int i = expert_cache_find(s->cache, layer, expert);
    if (i < 0 || s->places[i].here == 0) return false;
    const store_place *p = &s->places[i];
    for (int k = 0; k < SLAB_COUNT; k++)
        out->at[k] = p->here >> k & 1 ? slab_at(s, p, (expert_slab)k) : NULL;
    return true;
}

/* ---- bringing slabs in ----------------------------------------------------------------------- */

/* A read of the place has ended, or a want of it has. If none is left: releases the place, and
 * publishes the expert or drops it. */
static void settle(expert_store *s, store_place *p)
{
    const int i = (int)(p - s->places);
    expert_slabs at;
    if (p->asked != p->here || (p->here != ALL_SLABS && p->wanted > 0)) return;
    if (p->kept) expert_cache_release(s->cache, i);
    p->kept = false;
    s->n_ahead -= p->ahead;
    p->ahead = false;
    if (p->here != ALL_SLABS) {
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
    store_place *p = &s->places[tag / SLAB_COUNT];
    p->here |= (uint8_t)(1 << slab);
    s->stats.read_bytes += expert_slab_bytes(store_bank(s, p->layer), slab);
    settle(s, p);
}

/* The slab is neither present nor being read. */
static void unask(expert_store *s, uint64_t tag)
{
    s->places[tag / SLAB_COUNT].asked &= (uint8_t)~(1 << tag % SLAB_COUNT);
}

static void copy_slabs(void *ctx, int64_t begin, int64_t end, int thread)
{
    const expert_store *s = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const read_job *j = &s->jobs[i];
        const store_place *p = &s->places[j->tag / SLAB_COUNT];
        const expert_slab slab = (expert_slab)(j->tag % SLAB_COUNT);
        memcpy(j->to, expert_slab_data(store_bank(s, p->layer), slab, p->expert), (size_t)j->bytes);
    }
}

/* Starts the reads that the n places in list still lack; gate and up first. */
static int ask(expert_store *s, int n, err_ctx *err)
{
    int n_job = 0;
    for (int down = 0; down < 2; down++)
        for (int i = 0; i < n; i++) {
            store_place *p = &s->places[s->list[i]];
            for (int k = 0; k < SLAB_COUNT; k++) {
                const expert_slab slab = (expert_slab)k;
                if ((slab == SLAB_DOWN) != down || p->asked >> k & 1) continue;
                s->jobs[n_job++] = (read_job){
                    .file = store_bank(s, p->layer)->weight[k]->part,
                    .offset = file_offset(s, p, slab),
                    .bytes = expert_slab_bytes(store_bank(s, p->layer), slab),
                    .to = slab_at(s, p, slab),
                    .tag = (uint64_t)s->list[i] * SLAB_COUNT + (uint64_t)k,
                };
                p->asked |= (uint8_t)(1 << k);
            }
        }
    if (n_job == 0) return 0;
    if (s->r) {
        const int rc = reader_submit(s->r, s->jobs, n_job, err);
        for (int i = 0; rc < 0 && i < n_job; i++) unask(s, s->jobs[i].tag);
        return rc;
    }
    pool_run(s->team, n_job, 1, copy_slabs, s);
    for (int i = 0; i < n_job; i++) arrived(s, s->jobs[i].tag);
    return 0;
}

static int ask_wished(expert_store *s, err_ctx *err)
{
    int n = 0;
    for (int i = 0; i < s->n_wish; i++)
        if (s->wishes[i].place >= 0) s->list[n++] = s->wishes[i].place;
    return ask(s, n, err);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Lets go of all that is wanted, ends all reads and drops what is not complete. */
static int fail_want(expert_store *s, int rc)
{
    if (s->r) reader_cancel(s->r);
    for (int i = 0; i < s->n_wish; i++) {
        const int place = s->wishes[i].place;
        if (place < 0) continue;
        s->places[place].wanted--;
        expert_cache_release(s->cache, place);
    }
    s->n_wish = 0;
    for (int i = 0; i < s->n_frame; i++) {
        store_place *p = &s->places[i];
        if (p->layer < 0 || p->here == ALL_SLABS) continue;
        p->asked = p->here;
        settle(s, p);
    }
    return rc;
}

/* Takes note of what was read, at least min slabs. A failure that nobody waits for is forgotten: if
 * the expert is wanted later, it is read again. After any other failure nothing is wanted any
 * more. */
static int reap(expert_store *s, int min, err_ctx *err)
{
    uint64_t tags[MOST_TAGS];
    err_ctx why;
    if (!s->r) return 0;
    const int n = reader_wait(s->r, tags, MOST_TAGS, min, &why);
    for (int i = 0; i < n; i++) arrived(s, tags[i]);
    if (n >= 0) return 0;
    store_place *p = &s->places[tags[0] / SLAB_COUNT];
    if (p->wanted > 0) {
        if (err) *err = why;
        return fail_want(s, n);
    }
    unask(s, tags[0]);
    settle(s, p);
    return 0;
}

/* ---- wanting --------------------------------------------------------------------------------- */

/* A place for the expert, held; -1 if every place is held. */
static int take_place(expert_store *s, int layer, int expert, bool *was_present)
{
    const int n_expert = s->banks->n_expert;
    int evicted;
    const int i = expert_cache_hold(s->cache, layer, expert, was_present, &evicted);
    if (i < 0 || *was_present) return i;
    if (evicted >= 0) store_publish(s, evicted / n_expert, evicted % n_expert, NULL);
    s->places[i] = (store_place){ .layer = layer, .expert = expert, .fresh = true };
    return i;
}

/* slots: how many tokens of a prompt chose it; 0: it stays. */
static void wish(expert_store *s, int i, int place, bool was_present, int slots)
{
    store_place *p = &s->places[place];
    const bool predicted = was_present && p->guessed;
    if (slots == 0 || p->fresh || expert_cache_is_transient(s->cache, place))
        expert_cache_set_transient(s->cache, place, slots);
    p->fresh = false;
    s->wishes[i] = (store_wish){ .place = place };
    p->wanted++;
    s->n_ahead -= p->ahead;
    p->ahead = false;
    p->guessed = false;
    s->stats.hits += was_present && !predicted;
    s->stats.misses += !was_present || predicted;
    s->stats.predicted += predicted;
}

/* Whether a want of this layer belongs to another token than the last one did. Of a prompt, a layer
 * may be wanted several times in turn, in parts: the same layer again means another token only
 * where no other layer is served. */
static bool begins_token(const expert_store *s, int layer)
{
    return layer < s->last_layer || (layer == s->last_layer && expert_store_after(s, -1) == layer &&
                                     expert_store_after(s, layer) < 0);
}

/* Right guesses are wanted by now; the others count as if they had always been there. */
static void forget_guesses(expert_store *s)
{
    for (int i = 0; i < s->n_guess; i++) s->places[s->guesses[i]].guessed = false;
    s->n_guess = 0;
}

static int want(expert_store *s, int layer, const int *experts, const int *slots, int n,
                err_ctx *err)
{
    bool was_present;
    int rc, place;
    assert(s->kind == STORE_CACHED && s->served[layer] && s->n_wish == 0);
    if (n > s->n_frame)
        return err_set(err, ERR_RANGE, "%d experts wanted, but room for %d", n, s->n_frame);
    if (begins_token(s, layer)) expert_cache_tick(s->cache);
    s->last_layer = layer;
    s->n_wish = n;
    for (int i = 0; i < n; i++) {        /* those present first: they keep their places */
        s->wishes[i] = (store_wish){ .place = -1 };
        if (expert_cache_find(s->cache, layer, experts[i]) < 0) continue;
        place = take_place(s, layer, experts[i], &was_present);
        wish(s, i, place, was_present, slots ? slots[i] : 0);
    }
    for (int i = 0; i < n; i++) {
        if (s->wishes[i].place >= 0) continue;
        while ((place = take_place(s, layer, experts[i], &was_present)) < 0)
            if ((rc = reap(s, 1, err)) < 0) return rc;   /* reads that nobody waits for */
        wish(s, i, place, was_present, slots ? slots[i] : 0);
    }
    forget_guesses(s);
    return (rc = ask_wished(s, err)) < 0 ? fail_want(s, rc) : 0;
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
    const unsigned need = part == STORE_UP ? UP_SLABS : ALL_SLABS, told = part == STORE_UP ? 1 : 2;
    const uint64_t start = clock_ns();
    int n = 0, rc = reap(s, 0, err);
    for (; rc == 0; rc = reap(s, 1, err)) {
        bool lacking = false;
        for (int i = 0; i < s->n_wish; i++) {
            store_wish *w = &s->wishes[i];
            if (w->told & told) continue;
            if ((s->places[w->place].here & need) == need) {
                w->told |= told;
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
    for (int i = 0; i < s->n_wish; i++) {
        store_place *p = &s->places[s->wishes[i].place];
        p->wanted--;
        if (p->wanted == 0 && p->here != ALL_SLABS && !p->kept) p->kept = true;
        else expert_cache_release(s->cache, s->wishes[i].place);
    }
    s->n_wish = 0;
}

void expert_store_go_on(expert_store *s)
{
    if (s->kind == STORE_CACHED && s->r) reader_go_on(s->r);
}

/* Reads experts of a later layer that are neither present nor being read. */
static void read_early(expert_store *s, int layer, const int *experts, int n, bool guessed)
{
    const int most = s->n_frame / 2;
    bool was_present;
    int n_list = 0;
    for (int i = 0; i < n && s->n_ahead < most; i++) {
        if (expert_cache_find(s->cache, layer, experts[i]) >= 0) continue;
        const int place = take_place(s, layer, experts[i], &was_present);
        if (place < 0) break;
        store_place *p = &s->places[place];
        p->kept = p->ahead = true;
        p->guessed = guessed;
        s->n_ahead++;
        s->list[n_list++] = place;
    }
    for (int i = 0; i < n_list && guessed; i++) s->guesses[s->n_guess++] = s->list[i];
    if (guessed) s->stats.guesses += (uint64_t)n_list;
    if (ask(s, n_list, NULL) == 0) return;
    for (int i = 0; i < n_list; i++) settle(s, &s->places[s->list[i]]);
}

/* An expert that is present, or being read, stays: an early read must not take its place. */
static bool keep_there(expert_store *s, int layer, int expert)
{
    bool was_present;
    if (expert_cache_find(s->cache, layer, expert) < 0) return false;
    expert_cache_release(s->cache, take_place(s, layer, expert, &was_present));
    return true;
}

void expert_store_ahead(expert_store *s, int layer, const int *experts, int n)
{
    if (s->kind != STORE_CACHED || !s->served[layer] || !s->r) return;
    for (int i = 0; i < n; i++) keep_there(s, layer, experts[i]);
    read_early(s, layer, experts, n, false);
}

int expert_store_lacking(expert_store *s, int layer, const int32_t *likely, int n, int *lacking,
                         int most)
{
    int n_lacking = 0;
    if (s->kind != STORE_CACHED || !s->served[layer] || !s->r) return 0;
    for (int i = 0; i < n; i++)
        if (!keep_there(s, layer, likely[i]) && n_lacking < most) lacking[n_lacking++] = likely[i];
    return n_lacking;
}

void expert_store_read_early(expert_store *s, int layer, const int *experts, int n)
{
    if (s->kind != STORE_CACHED || !s->served[layer] || !s->r) return;
    const int enough = (int)(EARLY_BYTES / (expert_slabs_bytes(store_bank(s, layer)) + 1));
    assert(n <= STORE_MOST_EARLY);
    forget_guesses(s);
    read_early(s, layer, experts, min_int(n, max_int(enough, 1)), true);
}
