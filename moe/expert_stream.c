/* expert_stream.c - sends banks through two buffers in VRAM, one part ahead of the kernels that
 * read them.
 *
 * When a chunk begins, the experts in VRAM are known, so all parts and their addresses are known:
 * the schedule. A layer's first part has the experts with VRAM frames, which are not sent; the
 * others follow in parts that fit a buffer. From RAM, neighbours are copied together, one copy for
 * each kind of slab; from the drive, each expert is copied when its read completes.
 *
 * The device has the counts of chosen experts when the layer's first part begins. The host reads
 * them while the second part is computed, without a wait. frame_table.c decides which experts get
 * frames. */
#include "moe/expert_stream.h"

enum { SEND_EXPERTS = 64 };              /* read from the file together */
/* Least number of parts for picked experts: kernels wait for the first part, and the last part's
 * kernels run when the bus is idle. */
enum { PICK_PARTS = 6 };

/* Experts first .. first + count - 1 of a layer's order. */
typedef struct stream_part {
    int layer, first, count;
    int buffer;                          /* -1: in VRAM frames */
    uint64_t at[SLAB_COUNT], stride[SLAB_COUNT];         /* in the buffer: where slabs begin, how
                                                          * far apart */
} stream_part;

/* The tables of gpu_expert_args for all layers, in page-locked RAM and in VRAM. */
typedef struct stream_tables {
    uint64_t *at;                        /* [n_layer, n_expert, SLAB_COUNT] */
    int32_t *order, *rank;               /* [n_layer, n_expert] */
} stream_tables;

struct expert_stream {
    gpu *g;
    expert_banks banks;
    expert_store *store;
    vram_cache *places;
    const plan *p;
    bool moved;                          /* experts have slots: neighbours are not side by side */
    gpu_stage *stage;
    uint64_t room;                       /* of a buffer */
    void *memory, *memory_there;
    stream_tables here, there;
    int32_t *counts;                     /* [n_expert] page-locked: slots of the layer's experts */
    gpu_events *marks;
    stream_part *parts;                  /* of the chunk */
    int n_part, most_parts;
    int *first_part;                     /* [n_layer + 1] */
    int next;                            /* the part to be sent next */
    int n_sent;                          /* parts so far: buffers take turns */
    int last_buffer;                     /* of the last experts that were picked, or -1 */
};

/* ---- life ------------------------------------------------------------------------------------ */

static stream_tables tables_in(mem_layout *a, const expert_banks *b)
{
    const uint64_t n_layer = (uint64_t)b->n_layer, n_expert = (uint64_t)b->n_expert;
    stream_tables t;
    t.at = mem_layout_take(a, n_layer, n_expert * SLAB_COUNT, sizeof *t.at);
    t.order = mem_layout_take(a, n_layer, n_expert, sizeof *t.order);
    t.rank = mem_layout_take(a, n_layer, n_expert, sizeof *t.rank);
    return t;
}

uint64_t expert_stream_bytes(const expert_banks *b)
{
    mem_layout a = mem_layout_count(256);
    (void)tables_in(&a, b);
    return a.used;
}

static int make(expert_stream *b, err_ctx *err)
{
    const expert_banks *banks = &b->banks;
    const uint64_t tables = expert_stream_bytes(banks);
    const uint64_t counts = (uint64_t)banks->n_expert * sizeof *b->counts;
    int rc;
    b->most_parts = banks->n_layer * (b->p->stage_ranges + 2) + PICK_PARTS;
    b->parts = mem_array((size_t)b->most_parts, sizeof *b->parts);
    b->first_part = mem_array((size_t)banks->n_layer + 1, sizeof *b->first_part);
    if (!b->parts || !b->first_part)
        return err_set(err, ERR_NOMEM, "streaming: %d parts", b->most_parts);
    b->memory = gpu_alloc_host(b->g, tables + counts, err);
    if (!b->memory) return ERR_NOMEM;
    mem_layout here = mem_layout_over(b->memory, 256);
    b->here = tables_in(&here, banks);
    b->counts = (int32_t *)((uint8_t *)b->memory + tables);
    b->memory_there = gpu_alloc(b->g, tables, "tables of experts", err);
    if (!b->memory_there) return ERR_NOMEM;
    mem_layout there = mem_layout_over(b->memory_there, 256);
    b->there = tables_in(&there, banks);
    if ((rc = gpu_events_create(&b->marks, b->g, 1, err)) < 0) return rc;
    b->room = b->p->vram.stage / 2;
    return gpu_stage_create(&b->stage, b->g, 2, b->room, err);
}

int expert_stream_create(expert_stream **out, gpu *g, const expert_banks *banks,
                         expert_store *store, vram_cache *places, const plan *p, err_ctx *err)
{
    expert_stream *b = mem_zalloc(sizeof *b);
    *out = NULL;
    if (!b) return err_set(err, ERR_NOMEM, "streaming: %zu bytes", sizeof *b);
    *b = (expert_stream){ .g = g, .banks = *banks, .store = store, .places = places, .p = p,
                        .moved = store && expert_store_ram_frames(store), .last_buffer = -1 };
    const int rc = make(b, err);
    if (rc < 0) {
        expert_stream_free(b);
        return rc;
    }
    *out = b;
    return 0;
}

void expert_stream_free(expert_stream *b)
{
    if (!b) return;
    gpu_stage_free(b->g, b->stage);
    gpu_events_free(b->marks);
    gpu_free(b->g, b->memory_there);
    gpu_free_host(b->g, b->memory);
    mem_free(b->first_part);
    mem_free(b->parts);
    mem_free(b);
}

/* ---- the schedule ---------------------------------------------------------------------------- */

static size_t row_of(const expert_stream *b, int layer)
{
    return (size_t)layer * (size_t)b->banks.n_expert;
}

static uint64_t *addresses_of(const expert_stream *b, int layer, int expert)
{
    return b->here.at + (row_of(b, layer) + (size_t)expert) * SLAB_COUNT;
}

/* An expert's next place in its layer's order. */
static void append(expert_stream *b, int l, int e, int *n)
{
    b->here.rank[row_of(b, l) + (size_t)e] = *n;
    b->here.order[row_of(b, l) + (size_t)(*n)++] = e;
}

/* Where an expert is, if it has a place. */
static bool find_place(const expert_stream *b, int l, int e, uint64_t at[SLAB_COUNT])
{
    const int place = b->places ? frame_table_find(vram_cache_table(b->places), l, e) : -1;
    for (int s = 0; s < SLAB_COUNT && place >= 0; s++)
        at[s] = vram_cache_address(b->places, place, (expert_slab)s);
    return place >= 0;
}

/* The layer's experts in the order of their parts: those in VRAM first. Returns how many these
 * are. */
static int order_layer(expert_stream *b, int l)
{
    int n = 0, n_there = 0;
    for (int there = 1; there >= 0; there--)
        for (int e = 0; e < b->banks.n_expert; e++) {
            if (find_place(b, l, e, addresses_of(b, l, e)) != there) continue;
            n_there += there;
            append(b, l, e, &n);
        }
    return n_there;
}

/* Gate and up of a fused tensor stay side by side where the bank is in RAM as it is in the file:
 * not where experts have slots. */
static bool is_paired(const expert_stream *b, int l)
{
    const expert_bank *bank = &b->banks.of[l];
    return bank->fused && expert_store_kind(b->store) != STORE_CACHED && !b->moved &&
           expert_slab_bytes(bank, SLAB_GATE) % GPU_SLAB_ALIGN == 0;
}

/* Where the slabs of count experts go in a buffer. Returns the bytes. */
static uint64_t lay_out(stream_part *p, const expert_stream *b, int l, int count)
{
    const expert_bank *bank = &b->banks.of[l];
    const bool paired = is_paired(b, l);
    uint64_t used = 0;
    for (int s = 0; s < SLAB_COUNT; s++) {
        const uint64_t bytes = size_align(expert_slab_bytes(bank, (expert_slab)s), GPU_SLAB_ALIGN);
        p->stride[s] = paired && s != SLAB_DOWN ? 2 * bytes : bytes;
        p->at[s] = paired && s == SLAB_UP ? bytes : used;
        if (!(paired && s == SLAB_UP)) used += size_align((uint64_t)count * p->stride[s], 256);
    }
    return used;
}

static void schedule_part(expert_stream *b, stream_part p)
{
    lay_out(&p, b, p.layer, p.count);
    p.buffer = b->n_sent++ % 2;
    const uint64_t base = (uint64_t)(uintptr_t)gpu_stage_buffer(b->stage, p.buffer);
    for (int i = 0; i < p.count; i++) {
        const int e = b->here.order[row_of(b, p.layer) + (size_t)(p.first + i)];
        for (int s = 0; s < SLAB_COUNT; s++)
            addresses_of(b, p.layer, e)[s] = base + p.at[s] + (uint64_t)i * p.stride[s];
    }
    b->parts[b->n_part++] = p;
}

/* Of a layer's order, the first n_there are in VRAM and the n_sends after them come, in this many
 * parts at least. */
static void schedule_layer(expert_stream *b, int l, int n_there, int n_sends, int least_parts)
{
    stream_part p = { .layer = l };
    int most = b->banks.n_expert, n;
    if (n_there > 0)
        b->parts[b->n_part++] = (stream_part){ .layer = l, .count = n_there, .buffer = -1 };
    while (most > 1 && lay_out(&p, b, l, most) > b->room) most--;
    const int n_run = max_int((n_sends + most - 1) / most, min_int(least_parts, n_sends));
    for (int i = 0, done = 0; i < n_run; i++, done += n) {       /* alike in size */
        n = (int)((int64_t)n_sends * (i + 1) / n_run) - done;
        schedule_part(b, (stream_part){ .layer = l, .first = n_there + done, .count = n });
    }
}

static void make_schedule(expert_stream *b)
{
    b->n_part = b->n_sent = 0;
    for (int l = 0; l < b->banks.n_layer; l++) {
        b->first_part[l] = b->n_part;
        if (b->banks.of[l].n_expert == 0 || b->p->hot[l] >= b->banks.n_expert) continue;
        const int n_there = order_layer(b, l);
        schedule_layer(b, l, n_there, b->banks.n_expert - n_there, 1);
    }
    b->first_part[b->banks.n_layer] = b->n_part;
}

/* ---- sending --------------------------------------------------------------------------------- */

static const int32_t *experts_of(const expert_stream *b, const stream_part *p)
{
    return b->here.order + row_of(b, p->layer) + (size_t)p->first;
}

/* From banks that are in RAM as they are in the file: neighbours go together; from slots, experts
 * one by one. */
static void send_runs(expert_stream *b, const stream_part *p)
{
    const expert_bank *bank = &b->banks.of[p->layer];
    const int32_t *experts = experts_of(b, p);
    for (int i = 0, n; i < p->count; i += n) {
        expert_slabs from = { { NULL } };
        for (n = 1; i + n < p->count && experts[i + n] == experts[i] + n && !b->moved;) n++;
        expert_store_find(b->store, p->layer, experts[i], &from);
        for (int s = 0; s < SLAB_COUNT; s++) {
            const uint64_t bytes = expert_slab_bytes(bank, (expert_slab)s);
            const uint64_t at = p->at[s] + (uint64_t)i * p->stride[s];
            const bool paired = p->stride[s] == 2 * bytes && is_paired(b, p->layer);
            if (paired && s == SLAB_UP) continue;        /* came with gate */
            if (paired || p->stride[s] == bytes) {
                gpu_stage_copy(b->g, b->stage, p->buffer, at, from.at[s],
                               (uint64_t)n * p->stride[s]);
                continue;
            }
            for (int e = 0; e < n; e++) {
                expert_store_find(b->store, p->layer, experts[i] + e, &from);
                gpu_stage_copy(b->g, b->stage, p->buffer, at + (uint64_t)e * p->stride[s],
                               from.at[s], bytes);
            }
            expert_store_find(b->store, p->layer, experts[i], &from);
        }
    }
}

static void read_ahead(expert_stream *b, const stream_part *p, int first, int n)
{
    int ids[SEND_EXPERTS];
    for (int e = 0; e < n; e++) ids[e] = experts_of(b, p)[first + e];
    if (n > 0) expert_store_ahead(b->store, p->layer, ids, n);
}

/* What follows the first `done` experts of the part that is being sent, up to `most` of them: of
 * the next part, too, so that the drive has something to do between parts. */
static void read_following(expert_stream *b, const stream_part *p, int done, int most)
{
    const int n = min_int(p->count - done, most);
    int i = b->next;
    read_ahead(b, p, done, n);
    while (i < b->n_part && b->parts[i].buffer < 0) i++;
    if (i < b->n_part) read_ahead(b, &b->parts[i], 0, min_int(b->parts[i].count, most - n));
}

/* From the cache, and through it from the file. A place is free again once its copy has been
 * sent. */
static int send_cached(expert_stream *b, const stream_part *p, err_ctx *err)
{
    const expert_bank *bank = &b->banks.of[p->layer];
    const int32_t *experts = experts_of(b, p);
    expert_store *store = b->store;
    const int most = min_int(max_int(expert_store_room(store) / 2, 1), SEND_EXPERTS);
    int ids[SEND_EXPERTS], slots[SEND_EXPERTS], which[SEND_EXPERTS], n, rc;

    for (int done = 0; done < p->count; done += n) {
        n = min_int(p->count - done, most);
        for (int e = 0; e < n; e++) {
            ids[e] = experts[done + e];
            slots[e] = 1;                /* only the device knows */
        }
        if ((rc = expert_store_want_all(store, p->layer, ids, slots, n, err)) < 0) return rc;
        read_following(b, p, done + n, most);
        while ((rc = expert_store_next(store, which, STORE_ALL, err)) > 0) {
            for (int w = 0; w < rc; w++) {
                const uint64_t i = (uint64_t)(done + which[w]);
                expert_slabs from;
                expert_store_find(store, p->layer, ids[which[w]], &from);
                for (int s = 0; s < SLAB_COUNT; s++)
                    gpu_stage_copy(b->g, b->stage, p->buffer, p->at[s] + i * p->stride[s],
                                   from.at[s], expert_slab_bytes(bank, (expert_slab)s));
            }
        }
        if (rc < 0) return rc;
        expert_store_go_on(store);       /* until the next request */
        rc = gpu_stage_sent(b->g, b->stage, p->buffer, err);
        expert_store_release(store);
        if (rc < 0) return rc;
    }
    return 0;
}

/* Sends the next part, if there is one, to its buffer, which no kernel reads any more. */
static int send_next(expert_stream *b, err_ctx *err)
{
    while (b->next < b->n_part && b->parts[b->next].buffer < 0) b->next++;
    if (b->next == b->n_part) return 0;
    const stream_part *p = &b->parts[b->next++];
    if (expert_store_kind(b->store) == STORE_CACHED) return send_cached(b, p, err);
    send_runs(b, p);
    return 0;
}

int expert_stream_begin(expert_stream *b, err_ctx *err)
{
    make_schedule(b);
    gpu_copy(b->g, b->memory_there, b->memory, expert_stream_bytes(&b->banks));
    b->next = 0;
    const int rc = send_next(b, err);
    return rc < 0 ? rc : send_next(b, err);
}

/* ---- using ----------------------------------------------------------------------------------- */

static void run_part(expert_stream *b, const stream_part *p, gpu_input *in, gpu_expert_args *a)
{
    const size_t row = row_of(b, p->layer);
    a->batch.addresses = b->there.at + row * SLAB_COUNT;
    a->batch.order = b->there.order + row;
    a->batch.rank = b->there.rank + row;
    a->batch.first = p->first;
    a->batch.count = p->count;
    gpu_experts(b->g, in, a);
}

/* Of the part that was just computed, what the prompt wants most stays. */
static int keep_some(expert_stream *b, const stream_part *p, bool *chosen, err_ctx *err)
{
    if (!b->places) return 0;
    if (!*chosen) {
        const int rc = gpu_events_wait(b->g, b->marks, 0, err);
        if (rc < 0) return rc;
        vram_cache_pick(b->places, p->layer, b->counts, NULL);
        *chosen = true;
    }
    if (p->buffer >= 0)
        vram_cache_keep(b->places, experts_of(b, p), p->count, addresses_of(b, p->layer, 0));
    return 0;
}

int expert_stream_run(expert_stream *b, int layer, gpu_input *in, gpu_expert_args *a, bool in_step,
                      err_ctx *err)
{
    const int last = b->first_part[layer + 1];
    bool chosen = false;
    int rc = 0;
    for (int i = b->first_part[layer]; i < last && rc == 0; i++) {
        const stream_part *p = &b->parts[i];
        const bool comes = p->buffer >= 0;
        if (comes && in_step && (rc = gpu_stage_sent(b->g, b->stage, p->buffer, err)) < 0) break;
        if (comes) gpu_stage_ready(b->g, b->stage, p->buffer);
        a->batch.counts = b->places && p->first == 0 ? b->counts : NULL;
        run_part(b, p, in, a);
        if (a->batch.counts) gpu_events_record(b->g, b->marks, 0);
        if (comes || i + 1 == last) rc = keep_some(b, p, &chosen, err);
        if (comes) gpu_stage_done(b->g, b->stage, p->buffer);
        if (comes && rc == 0) rc = send_next(b, err);
    }
    if (chosen) vram_cache_end_picks(b->places);
    return rc;
}

/* ---- some of a layer's experts --------------------------------------------------------------- */

bool expert_stream_can_pick(const expert_stream *b)
{
    return expert_store_kind(b->store) != STORE_CACHED;
}

/* Where an expert is, if it is in VRAM: in its place, or in a bank that stays there. */
static bool find_there(const expert_stream *b, int l, int e, const gpu_expert_args *a,
                       uint64_t at[SLAB_COUNT])
{
    const gpu_bank *banks[SLAB_COUNT] = { &a->gate, &a->up, &a->down };
    if (b->places) return find_place(b, l, e, at);
    if (e >= b->p->hot[l]) return false;
    for (int s = 0; s < SLAB_COUNT; s++) {
        at[s] = (uint64_t)(uintptr_t)banks[s]->data + (uint64_t)e * banks[s]->slab_bytes;
        if (!banks[s]->data || at[s] % GPU_SLAB_ALIGN != 0) return false;
    }
    return true;
}

void expert_stream_in_vram(const expert_stream *b, int layer, const gpu_expert_args *a, bool *there)
{
    uint64_t at[SLAB_COUNT];
    for (int e = 0; e < b->banks.n_expert; e++) there[e] = find_there(b, layer, e, a, at);
}

/* Those in VRAM, then those that were picked, then the others. */
static void schedule_picked(expert_stream *b, int l, const gpu_expert_args *a, const bool *picked)
{
    uint64_t at[SLAB_COUNT];
    int n = 0;
    for (int e = 0; e < b->banks.n_expert; e++)
        if (find_there(b, l, e, a, addresses_of(b, l, e))) append(b, l, e, &n);
    const int n_there = n;
    for (int e = 0; e < b->banks.n_expert; e++)
        if (picked[e]) append(b, l, e, &n);
    const int n_picked = n - n_there;
    for (int e = 0; e < b->banks.n_expert; e++)
        if (!picked[e] && !find_there(b, l, e, a, at)) append(b, l, e, &n);
    b->n_part = b->next = 0;
    schedule_layer(b, l, n_there, n_picked, PICK_PARTS);
}

/* The layer's rows alone: those of others may be in use. */
static void send_tables(expert_stream *b, int l)
{
    const size_t row = row_of(b, l), n = (size_t)b->banks.n_expert;
    gpu_copy(b->g, b->there.at + row * SLAB_COUNT, b->here.at + row * SLAB_COUNT,
             n * SLAB_COUNT * sizeof *b->here.at);
    gpu_copy(b->g, b->there.order + row, b->here.order + row, n * sizeof *b->here.order);
    gpu_copy(b->g, b->there.rank + row, b->here.rank + row, n * sizeof *b->here.rank);
}

int expert_stream_pick(expert_stream *b, int layer, gpu_input *in, gpu_expert_args *a,
                       const bool *picked, const int32_t *counts, err_ctx *err)
{
    bool chosen = false;
    schedule_picked(b, layer, a, picked);
    send_tables(b, layer);               /* before the bus has more to carry */
    int rc = send_next(b, err);
    if (rc == 0) rc = send_next(b, err);
    b->last_buffer = -1;
    a->batch.counts = NULL;              /* the host knows */
    for (int i = 0; i < b->n_part && rc == 0; i++) {
        const stream_part *p = &b->parts[i];
        const bool comes = p->buffer >= 0;
        if (comes) gpu_stage_ready(b->g, b->stage, p->buffer);
        run_part(b, p, in, a);
        if (!comes) continue;
        if (b->places && !chosen) vram_cache_pick(b->places, layer, counts, picked);
        chosen = b->places != NULL;
        if (chosen) vram_cache_keep(b->places, experts_of(b, p), p->count,
                                    addresses_of(b, layer, 0));
        gpu_stage_done(b->g, b->stage, p->buffer);
        b->last_buffer = p->buffer;
        rc = send_next(b, err);
    }
    if (b->places && !chosen) vram_cache_pick(b->places, layer, counts, picked);
    if (b->places) vram_cache_end_picks(b->places);
    return rc < 0 ? rc : a->batch.first + a->batch.count == a->n_expert;
}

int expert_stream_arrived(expert_stream *b, err_ctx *err)
{
    const int buffer = b->last_buffer;
    b->last_buffer = -1;
    return buffer < 0 ? 0 : gpu_stage_sent(b->g, b->stage, buffer, err);
}
