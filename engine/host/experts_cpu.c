/* experts_cpu.c - routed experts on the CPU's threads.
 *
 * There are two kinds of tiles. Ups (expert, some rows of gate and up): both products, the
 * activation, and its int8 form in blocks of 32 rows. If there are few ups, their tiles are smaller
 * than a block, so that all threads end together; the thread that completes a block makes its int8
 * form. Downs (expert, some rows of down) wait for the ups of their expert. Both are lists of one
 * loop without a barrier. Weights are read once for up to OPS_TOKENS tokens of an expert.
 *
 * Experts from a drive are computed in the order of their arrival, a few at a time. That changes no
 * bit, because no product involves two experts. The store reads and evicts.
 *
 * For a single token all experts are cut alike, and a thread has the same rows of each: it can
 * prefetch these rows (read_ahead.h), and all threads have equal work. A batch chooses many
 * experts: the tiles of one expert follow those of another, with at most OPS_TOKENS tokens at a
 * time. A thread packs tokens once for all of its tiles with them. */
#include "engine/host/experts_cpu.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum {
    FEW_ITEMS = 64,                      /* items of few tokens: requested from the store at once */
    SPIN_UPS = 1000,                     /* polls of an item before the thread yields the core */
    LEAST_HEIGHT = 8,                    /* rows: fewer are too few adjacent bytes */
    MOST_SPLIT = 1024,                   /* blocks of a list whose tiles are smaller than a block */
    LONG_RUN = 1 << 16                   /* multiplications: ~4 us; the most for several tiles */
};

/* Up to OPS_TOKENS slots of an item, from slot `first` in work order on. */
typedef struct item_range { int item, first, n; } item_range;

/* The tiles of some ranges: n_tile of each, one range after another; with `across` tile i of all
 * ranges, then tile i + 1. */
typedef struct tile_list {
    const item_range *ranges;
    int n_range, n_tile;
    int n_row, height;                   /* rows of an item, and of a tile */
    bool across;
} tile_list;

/* A count that all threads write, in a cache line of its own. */
typedef struct row_count { _Alignas(64) _Atomic int rows; } row_count;

/* Finished values of an item's ups. Waiting threads poll `all`, which is written once and is in
 * another pair of cache lines than the count, so that they do not slow down the working threads. */
typedef struct up_count {
    _Alignas(64) _Atomic int64_t values; /* of mid that downs may read */
    char padding_1[128 - sizeof(int64_t)];
    _Atomic bool all;
    char padding_2[128 - sizeof(bool)];
} up_count;

struct experts_cpu {
    const ops *o;
    expert_store *store;                 /* NULL: the mapping */
    router_ahead *ahead;                 /* or NULL */
    expert_job job;                      /* under way */
    int height;                          /* rows of a tile in a batch: whole blocks */
    tile_list ups, downs;                /* under way */
    up_count *up_done;                   /* [item] */
    row_count *block_done;               /* [MOST_SPLIT]: rows of a block of mid; 0 between lists */
    bool quantise_mid;                   /* down rows read the int8 form */
    float *mid;                          /* [slot in work order, n_ff]: after the activation */
    acts mid_x;
    int max_slot;
    int padded_for;                      /* n_ff for which the ends of all rows of mid_x are 0 */
    act_row *rows;                       /* [slot in work order]: the slot's token */
    expert_slabs *slabs;                 /* [item]: addresses of its weights */
    int *ids, *n_slot;                   /* [item]: experts, and how many tokens chose each */
    int *arrived, *rest;                 /* [item]: items to compute; items whose down is left */
    item_range *ranges;                  /* of the items under way */
    int most_item;
    bool *taken;                         /* [item]: another processor computes its down */
    void *storage;
};

/* n_tile adjacent tiles: rows first .. first + n - 1 of an expert with the slots of a range, which
 * has this index in the list. */
typedef struct tile_run {
    const work_item *it;
    item_range range;
    int index, first, n, n_tile;
} tile_run;

/* Ranges of at most OPS_TOKENS slots. Otherwise an expert that is chosen much more often than
 * others would have few long tiles, for which all threads wait in the end. */
static int ranges_of(item_range *out, const experts_cpu *c, const int *items, int n)
{
    int m = 0;
    for (int i = 0; i < n; i++) {
        const work_item *it = &c->job.items[items[i]];
        for (int t = 0; t < it->n; t += OPS_TOKENS)
            out[m++] = (item_range){ items[i], it->first + t, min_int(it->n - t, OPS_TOKENS) };
    }
    return m;
}

static tile_list list_of(const item_range *ranges, int n, uint64_t rows, int height)
{
    const uint64_t h = (uint64_t)height;
    return (tile_list){ .ranges = ranges, .n_range = n, .n_tile = (int)((rows + h - 1) / h),
                        .n_row = (int)rows, .height = height };
}

/* Tiles own .. last - 1 of a range, or the first of them that fit in one call. A call computes
 * several tiles, because the rows of gate and of up are far apart and every switch costs time. */
static tile_run run_at(const experts_cpu *c, const tile_list *l, int index, int own, int last)
{
    const item_range *range = &l->ranges[index];
    tile_run p = { .it = &c->job.items[range->item], .range = *range, .index = index,
                   .first = own * l->height,
                   .n_tile = min_int(last - own, OPS_ROWS_WIDE / l->height) };
    p.n = min_int(p.n_tile * l->height, l->n_row - p.first);
    return p;
}

/* pack: NULL for few tokens. */
typedef void tile_fn(experts_cpu *c, const tile_run *p, token_pack *pack);

static void range_tiles(experts_cpu *c, const tile_list *l, int index, int own, int last,
                        tile_fn *fn, token_pack *pack)
{
    while (own < last) {
        const tile_run p = run_at(c, l, index, own, last);
        fn(c, &p, pack);
        own += p.n_tile;
    }
}

/* Indices begin .. end - 1 of a loop over the list. */
static void each_tile(experts_cpu *c, const tile_list *l, int64_t begin, int64_t end, tile_fn *fn,
                      token_pack *pack)
{
    const int64_t n = l->n_tile;
    for (int index = 0; index < l->n_range && l->across; index++)
        range_tiles(c, l, index, (int)begin, (int)end, fn, pack);
    for (int64_t i = begin, next; i < end && !l->across; i = next) {
        next = i / n * n + n < end ? i / n * n + n : end;
        range_tiles(c, l, (int)(i / n), (int)(i % n), (int)(i % n + next - i), fn, pack);
    }
}

/* The same with packed tokens, which take 1 MiB of stack. */
__attribute__((noinline))
static void each_tile_packed(experts_cpu *c, const tile_list *l, int64_t begin, int64_t end,
                             tile_fn *fn)
{
    token_pack pack;
    pack.x = NULL;
    each_tile(c, l, begin, end, fn, &pack);
}

/* Packs tokens if an expert may have enough of them. */
static void run_tiles(experts_cpu *c, const tile_list *l, int64_t begin, int64_t end, tile_fn *fn)
{
    if (ops_packs(c->job.x->n)) each_tile_packed(c, l, begin, end, fn);
    else each_tile(c, l, begin, end, fn, NULL);
}

/* Number of indices of a loop over the list. */
static int64_t loop_length(const tile_list *l)
{
    return l->across ? l->n_tile : (int64_t)l->n_range * l->n_tile;
}

static matrix slab_matrix(const experts_cpu *c, expert_slab s, const tile_run *p)
{
    matrix m = expert_matrix(c->job.bank, s, p->it->expert);
    m.data = c->slabs[p->range.item].at[s];
    return m;
}

/* ---- gate, up, activation -------------------------------------------------------------------- */

/* The int8 form of n_block blocks of a slot's activation. */
static void quantise_blocks(experts_cpu *c, int slot, int first, int n_block)
{
    const acts *x = &c->mid_x;
    const size_t block = (size_t)slot * (size_t)x->n_block + (size_t)first;
    c->o->loops->quantise(x->q + block * ACT_BLOCK, x->dx + block, x->s + 2 * block,
                          x->rows[slot].x + first * ACT_BLOCK, n_block);
}

/* Whether the ups under way are smaller than blocks, which are quantised when they are complete. */
static bool splits_blocks(const experts_cpu *c)
{
    return c->quantise_mid && c->ups.height % ACT_BLOCK != 0;
}

/* The activation's rows of these tiles. */
static void compute_ups(experts_cpu *c, const tile_run *p, token_pack *pack)
{
    const matrix gate = slab_matrix(c, SLAB_GATE, p), up = slab_matrix(c, SLAB_UP, p);
    const size_t n_ff = (size_t)c->job.bank->n_ff;
    const bool whole = c->quantise_mid && !splits_blocks(c);
    const int i = p->range.first, n = p->range.n;
    float g[OPS_SUMS], u[OPS_SUMS];

    product_rows(g, (size_t)p->n, c->o, &gate, p->first, p->n, c->rows + i, n, pack);
    product_rows(u, (size_t)p->n, c->o, &up, p->first, p->n, c->rows + i, n, pack);
    ops_activate(c->o, c->job.act, g, u, n * p->n);
    for (int t = 0; t < n; t++) {
        float *mid = c->mid + (size_t)(i + t) * n_ff + p->first;
        memcpy(mid, g + t * p->n, (size_t)p->n * sizeof *mid);
        if (whole) quantise_blocks(c, i + t, p->first / ACT_BLOCK, p->n / ACT_BLOCK);
    }
}

/* Adds rows to a block's count. True for the thread that completes the block: it sees the rows of
 * all other threads, and resets the count for the next list. */
static bool completes(row_count *done, int rows)
{
    if (rows == ACT_BLOCK) return true;
    if (atomic_fetch_add_explicit(&done->rows, rows, memory_order_acq_rel) + rows < ACT_BLOCK)
        return false;
    atomic_store_explicit(&done->rows, 0, memory_order_relaxed);
    return true;
}

/* Quantises the blocks that the rows of p complete. Returns the number of rows in them. */
static int close_blocks(experts_cpu *c, const tile_run *p)
{
    row_count *done = c->block_done + p->index * (c->ups.n_row / ACT_BLOCK);
    const int end = p->first + p->n;
    int ready = 0;
    for (int r = p->first, next; r < end; r = next) {
        const int block = r / ACT_BLOCK;
        next = min_int((block + 1) * ACT_BLOCK, end);
        if (!completes(&done[block], next - r)) continue;
        for (int t = 0; t < p->range.n; t++) quantise_blocks(c, p->range.first + t, block, 1);
        ready += ACT_BLOCK;
    }
    return ready;
}

/* The thread that adds the last values of an item sees those of all other threads, and releases the
 * item's downs. */
static void add_ready(experts_cpu *c, const tile_run *p, int rows)
{
    up_count *done = &c->up_done[p->range.item];
    const int64_t all = (int64_t)c->job.bank->n_ff * p->it->n, more = (int64_t)rows * p->range.n;
    if (rows > 0 &&
        atomic_fetch_add_explicit(&done->values, more, memory_order_acq_rel) + more >= all)
        atomic_store_explicit(&done->all, true, memory_order_release);   /* pairs with await_ups */
}

static void up_tile(experts_cpu *c, const tile_run *p, token_pack *pack)
{
    compute_ups(c, p, pack);
    add_ready(c, p, splits_blocks(c) ? close_blocks(c, p) : p->n);
}

static void up_tiles(void *ctx, int64_t begin, int64_t end, int thread)
{
    experts_cpu *c = ctx;
    (void)thread;
    run_tiles(c, &c->ups, begin, end, up_tile);
}

/* ---- down ------------------------------------------------------------------------------------ */

static void await_ups(const experts_cpu *c, int item)
{
    for (int i = 1; !atomic_load_explicit(&c->up_done[item].all, memory_order_acquire); i++)
        if (i % SPIN_UPS == 0) sched_yield();
        else pool_relax();
}

static void down_tile(experts_cpu *c, const tile_run *p, token_pack *pack)
{
    const size_t n_embd = (size_t)c->job.bank->n_embd;
    const int slot = p->range.first;
    float tile[OPS_SUMS];
    await_ups(c, p->range.item);
    const matrix down = slab_matrix(c, SLAB_DOWN, p);
    product_rows(tile, (size_t)p->n, c->o, &down, p->first, p->n, c->mid_x.rows + slot,
                 p->range.n, pack);
    for (int s = 0; s < p->range.n; s++) {
        const int row = c->job.by_position ? slot + s : c->job.work->slots[slot + s];
        memcpy(c->job.y + (size_t)row * n_embd + p->first, tile + s * p->n,
               (size_t)p->n * sizeof *tile);
    }
}

static void down_tiles(void *ctx, int64_t begin, int64_t end, int thread)
{
    experts_cpu *c = ctx;
    (void)thread;
    run_tiles(c, &c->downs, begin, end, down_tile);
}

/* ---- lists of items -------------------------------------------------------------------------- */

/* The most rows of an item that one thread has in a list across items. */
static int most_rows(uint64_t rows, int height, int n_thread)
{
    const int n_tile = ((int)rows + height - 1) / height;
    return (n_tile + n_thread - 1) / n_thread * height;
}

/* Lowers the height of tiles if that saves a ninth of the longest thread's rows: with 16 tiles for
 * 12 threads some threads would have twice as much work as others. */
static tile_list list_across(const experts_cpu *c, const item_range *ranges, int n, uint64_t rows)
{
    const int n_thread = pool_threads(c->o->team);
    int height = OPS_ROWS;
    for (int h = height / 2; h >= LEAST_HEIGHT; h /= 2)
        if (9 * most_rows(rows, h, n_thread) < 8 * most_rows(rows, height, n_thread)) height = h;
    tile_list l = list_of(ranges, n, rows, height);
    l.across = true;
    return l;
}

static bool is_single(const experts_cpu *c) { return c->job.x->n == 1; }

/* The ups of the first n of c->ranges. */
static tile_list list_of_ups(const experts_cpu *c, int n)
{
    const uint64_t rows = c->job.bank->n_ff;
    if (is_single(c)) {
        const tile_list l = list_across(c, c->ranges, n, rows);
        const int n_block = l.n_range * (l.n_row / ACT_BLOCK);
        if (l.height % ACT_BLOCK == 0 || n_block <= MOST_SPLIT) return l;
    }
    return list_of(c->ranges, n, rows, c->height);
}

static tile_list list_of_downs(const experts_cpu *c, int n)
{
    const uint64_t rows = c->job.bank->n_embd;
    return is_single(c) ? list_across(c, c->ranges, n, rows)
                        : list_of(c->ranges, n, rows, c->height);
}

/* Tiles that a thread claims at a time: several, if all threads still get equal work, because they
 * are adjacent in memory. work: multiplications of a tile. */
static int64_t grain_of(const experts_cpu *c, const tile_list *l, uint64_t work)
{
    const int64_t least = pool_grain((int64_t)work), n_thread = pool_threads(c->o->team);
    int64_t n = OPS_ROWS_WIDE / l->height;
    while (n > least && (n * (int64_t)work > LONG_RUN || loop_length(l) % (n * n_thread) != 0)) n--;
    return n > least ? n : least;
}

static uint64_t up_work(const tile_list *l, const expert_bank *b)
{
    return 2 * (uint64_t)l->height * b->n_embd;
}

static uint64_t down_work(const tile_list *l, const expert_bank *b)
{
    return (uint64_t)l->height * b->n_ff;
}

static int64_t grain_of_ups(const experts_cpu *c)
{
    return grain_of(c, &c->ups, up_work(&c->ups, c->job.bank));
}

static int64_t grain_of_downs(const experts_cpu *c)
{
    return grain_of(c, &c->downs, down_work(&c->downs, c->job.bank));
}

/* The ups of the first n arrived items and the downs of the first n_down, without a barrier. A
 * thread that waits in a down always ends: threads claim downs after all ups, and the thread that
 * claimed an up computes it without waiting. */
static void run_mixed(experts_cpu *c, int n, int n_down)
{
    const int n_range = ranges_of(c->ranges, c, c->arrived, n);
    c->ups = list_of_ups(c, n_range);
    c->downs = list_of_downs(c, n_down == n ? n_range
                                            : ranges_of(c->ranges, c, c->arrived, n_down));
    const pool_list lists[] = {
        { loop_length(&c->ups), grain_of_ups(c), up_tiles, !is_single(c) },
        { n_down > 0 ? loop_length(&c->downs) : 0, grain_of_downs(c), down_tiles, !is_single(c) },
    };
    pool_run_lists(c->o->team, lists, ARRAY_LEN(lists), c);
}

static void run_downs(experts_cpu *c, const int *items, int n)
{
    if (n == 0) return;
    c->downs = list_of_downs(c, ranges_of(c->ranges, c, items, n));
    const pool_list list = { loop_length(&c->downs), grain_of_downs(c), down_tiles,
                             !is_single(c) };
    pool_run_lists(c->o->team, &list, 1, c);
}

/* Finds out which of items first .. first + n - 1 have their down computed by another processor.
 * Returns the number of the others. */
static int ask_taken(experts_cpu *c, int first, int n)
{
    int left = n;
    for (int i = first; i < first + n; i++) {
        c->taken[i] = i >= c->job.n_sure && c->job.taken &&
                      c->job.taken(c->job.taken_ctx, &c->job.items[i]);
        left -= c->taken[i];
    }
    return left;
}

/* Writes those of n items that are not taken to rest. Returns their number. */
static int not_taken(experts_cpu *c, const int *list, int n)
{
    int m = 0;
    for (int i = 0; i < n; i++)
        if (!c->taken[list[i]]) c->rest[m++] = list[i];
    return m;
}

/* ---- experts in RAM -------------------------------------------------------------------------- */

static void slabs_of(expert_slabs *out, const experts_cpu *c, const expert_bank *bank, int layer,
                     int expert)
{
    if (c->store && !c->job.mapped) expert_store_find(c->store, layer, expert, out);
    else for (int s = 0; s < SLAB_COUNT; s++)
        out->at[s] = expert_slab_data(bank, (expert_slab)s, expert);
}

static void run_present(experts_cpu *c)
{
    const expert_job *job = &c->job;
    const int sure = job->taken ? job->n_sure : job->n_item;
    for (int i = 0; i < job->n_item; i++) {
        c->arrived[i] = i;
        slabs_of(&c->slabs[i], c, job->bank, job->layer, job->items[i].expert);
    }
    run_mixed(c, job->n_item, sure);
    ask_taken(c, sure, job->n_item - sure);
    run_downs(c, c->rest, not_taken(c, c->arrived + sure, job->n_item - sure));
}

/* ---- experts from a drive -------------------------------------------------------------------- */

/* Waits for more of the items from first on. Writes them to arrived, and the addresses of their
 * slabs to slabs. Returns their number. */
static int wait_items(experts_cpu *c, int first, store_part part, err_ctx *err)
{
    const int n = expert_store_next(c->store, c->arrived, part, err);
    for (int i = 0; i < n; i++) {
        const int item = c->arrived[i] += first;
        expert_store_find(c->store, c->job.layer, c->job.items[item].expert, &c->slabs[item]);
    }
    return n;
}

/* Lets the store submit further reads while the threads compute. Not for a single token, where
 * waking its thread takes longer than it saves. */
static void read_in_background(const experts_cpu *c)
{
    if (!is_single(c)) expert_store_go_on(c->store);
}

/* Computes items first .. first + n - 1, which were requested from the store. */
static int run_wanted(experts_cpu *c, int first, int n, err_ctx *err)
{
    int got;
    while ((got = wait_items(c, first, STORE_UP, err)) > 0) {
        read_in_background(c);
        run_mixed(c, got, 0);
    }
    if (got < 0) return got;
    for (int left = ask_taken(c, first, n); left > 0;) {
        if ((got = wait_items(c, first, STORE_ALL, err)) < 0) return got;
        const int m = not_taken(c, c->arrived, got);
        read_in_background(c);
        run_downs(c, c->rest, m);
        left -= m;
    }
    expert_store_release(c->store);
    read_in_background(c);
    return 0;
}

/* Whether there are enough slots to use nearly all experts of a layer. */
static bool uses_all(const experts_cpu *c)
{
    return c->job.work->n_slot >= 2 * (int)c->job.bank->n_expert;
}

static int want_items(experts_cpu *c, int first, int n, err_ctx *err)
{
    const int *ids = c->ids + first;
    return uses_all(c) ? expert_store_want_all(c->store, c->job.layer, ids, c->n_slot + first, n,
                                               err)
                       : expert_store_want(c->store, c->job.layer, ids, n, err);
}

/* Requests the next group while one is computed. After the last group: the first group of the next
 * layer, if nearly all experts of that layer will be used. */
static void request_next(experts_cpu *c, int next, int group)
{
    const expert_job *job = &c->job;
    const int n_expert = job->bank->n_expert;
    if (next < job->n_item) {
        expert_store_ahead(c->store, job->layer, c->ids + next, min_int(group, job->n_item - next));
        return;
    }
    const int layer = expert_store_after(c->store, job->layer);
    const int n = min_int(min_int(group, n_expert), c->most_item);
    if (layer < 0 || !uses_all(c)) return;
    for (int e = 0; e < n; e++) c->arrived[e] = e;
    expert_store_ahead(c->store, layer, c->arrived, n);
}

static int run_arriving(experts_cpu *c, err_ctx *err)
{
    const int n = c->job.n_item, room = expert_store_room(c->store);
    const bool at_once = n <= room / 2 || (n <= FEW_ITEMS && n <= room);
    const int group = at_once ? n : max_int(room / 2, 1);
    for (int i = 0; i < n; i++) {
        c->ids[i] = c->job.items[i].expert;
        c->n_slot[i] = c->job.items[i].n;
    }
    for (int i = 0; i < n; i += group) {
        const int m = min_int(group, n - i);
        if (c->ahead) router_ahead_report(c->ahead, c->job.layer, c->ids + i, m);
        int rc = want_items(c, i, m, err);
        if (rc < 0) return rc;
        request_next(c, i + m, max_int(room / 2, 1));
        if (c->ahead && c->job.x->n == 1)
            router_ahead_read(c->ahead, c->store, c->job.layer, c->job.x);
        if ((rc = run_wanted(c, i, m, err)) < 0) return rc;
    }
    return 0;
}

/* ---- a job ----------------------------------------------------------------------------------- */

static bool reads_int8(const experts_cpu *c, expert_slab s)
{
    return c->o->kernels->of[c->job.bank->weight[s]->type].quantised;
}

/* Slots per expert of the job. */
static int slots_per_item(const expert_job *job)
{
    int n = 0;
    for (int i = 0; i < job->n_item; i++) n += job->items[i].n;
    return n / max_int(job->n_item, 1);
}

/* Only this function writes after the last block of a row. */
static void set_mid(experts_cpu *c, int n_slot, int n_ff)
{
    if (c->quantise_mid && c->padded_for != n_ff) {
        acts_set(&c->mid_x, c->mid, c->max_slot, n_ff);
        acts_clear_padding(&c->mid_x);
        c->padded_for = n_ff;
    }
    acts_set(&c->mid_x, c->mid, n_slot, n_ff);
    c->mid_x.quantised = c->quantise_mid;
}

static bool must_read(const experts_cpu *c)
{
    return c->store && !c->job.mapped && expert_store_kind(c->store) == STORE_CACHED &&
           expert_store_after(c->store, c->job.layer - 1) == c->job.layer;
}

int experts_cpu_run(experts_cpu *c, const expert_job *job, err_ctx *err)
{
    const worklist *w = job->work;

    c->job = *job;
    if (reads_int8(c, SLAB_GATE) || reads_int8(c, SLAB_UP)) ops_quantise(c->o, job->x);
    c->quantise_mid = reads_int8(c, SLAB_DOWN);
    for (int i = 0; i < job->n_item; i++) {
        atomic_store_explicit(&c->up_done[i].values, 0, memory_order_relaxed);
        atomic_store_explicit(&c->up_done[i].all, false, memory_order_relaxed);
    }
    for (int i = 0; i < w->n_slot; i++) c->rows[i] = job->x->rows[w->slots[i] / w->k];
    set_mid(c, w->n_slot, (int)job->bank->n_ff);
    c->height = ops_rows(slots_per_item(job));
    if (must_read(c)) return run_arriving(c, err);
    run_present(c);
    return 0;
}

void experts_cpu_free(experts_cpu *c)
{
    if (!c) return;
    mem_free(c->storage);
    mem_free(c);
}

static int most_items(const model_hparams *hp, int max_slot)
{
    return min_int(hp->n_expert, max_slot);
}

static void place_all(experts_cpu *c, mem_layout *a, const model_hparams *hp, int max_slot)
{
    const uint64_t n = (uint64_t)max_slot, items = (uint64_t)most_items(hp, max_slot);
    c->mid = mem_layout_floats(a, max_slot, hp->n_ff_expert);
    void *mid_x = mem_layout_take(a, acts_bytes(max_slot, hp->n_ff_expert), 1, 1);
    if (mid_x) acts_init(&c->mid_x, mid_x, max_slot, hp->n_ff_expert);
    c->rows = mem_layout_take(a, n, 1, sizeof *c->rows);
    c->slabs = mem_layout_take(a, items, 1, sizeof *c->slabs);
    c->ids = mem_layout_take(a, items, 1, sizeof *c->ids);
    c->n_slot = mem_layout_take(a, items, 1, sizeof *c->n_slot);
    c->arrived = mem_layout_take(a, items, 1, sizeof *c->arrived);
    c->rest = mem_layout_take(a, items, 1, sizeof *c->rest);
    c->ranges = mem_layout_take(a, items + n / OPS_TOKENS, 1, sizeof *c->ranges);
    c->taken = mem_layout_take(a, items, 1, sizeof *c->taken);
    c->up_done = mem_layout_take(a, items, 1, sizeof *c->up_done);
    c->block_done = mem_layout_take(a, MOST_SPLIT, 1, sizeof *c->block_done);
}

uint64_t experts_cpu_bytes(const model_hparams *hp, int max_slot)
{
    experts_cpu unused = { .o = NULL };
    mem_layout a = mem_layout_count(64);
    place_all(&unused, &a, hp, max_slot);
    return size_plus(a.used, 64);
}

int experts_cpu_create(experts_cpu **out, const ops *o, const model_hparams *hp,
                       expert_store *store, router_ahead *ahead, int max_slot, err_ctx *err)
{
    const uint64_t bytes = experts_cpu_bytes(hp, max_slot);
    experts_cpu *c = mem_zalloc(sizeof *c);
    *out = NULL;
    if (c && bytes < SIZE_MAX) c->storage = mem_zalloc((size_t)bytes);
    if (!c || !c->storage) {
        mem_free(c);
        return err_set(err, ERR_NOMEM, "experts on the CPU, %d at a time: %llu bytes", max_slot,
                       (unsigned long long)bytes);
    }
    c->o = o;
    c->store = store;
    c->ahead = ahead;
    c->most_item = most_items(hp, max_slot);
    c->max_slot = max_slot;
    mem_layout a = mem_layout_over((void *)(((uintptr_t)c->storage + 63) / 64 * 64), 64);
    place_all(c, &a, hp, max_slot);
    *out = c;
    return 0;
}

const acts *experts_cpu_mid(const experts_cpu *c) { return &c->mid_x; }

/* ---- reading ahead --------------------------------------------------------------------------- */

/* The bytes of a slab in a loop over such a list; its address is not set. */
static ahead_run run_of(const tile_list *l, const expert_bank *bank, expert_slab s, int64_t grain)
{
    const uint64_t row = bank->weight[s]->row_bytes;
    return (ahead_run){ .bytes = (uint64_t)l->n_row * row, .step = (uint64_t)l->height * row,
                        .n_tile = l->n_tile, .grain = grain };
}

uint64_t experts_cpu_read_ahead(const experts_cpu *c, read_ahead *r, int layer,
                                const expert_bank *bank, const int32_t *experts, int n,
                                keep_going_fn *go_on, void *ctx)
{
    const tile_list ups = list_across(c, NULL, 1, bank->n_ff);
    const tile_list downs = list_across(c, NULL, 1, bank->n_embd);
    const int64_t up_grain = grain_of(c, &ups, up_work(&ups, bank));
    const int64_t down_grain = grain_of(c, &downs, down_work(&downs, bank));
    const ahead_run like[SLAB_COUNT] = {
        [SLAB_GATE] = run_of(&ups, bank, SLAB_GATE, up_grain),
        [SLAB_UP] = run_of(&ups, bank, SLAB_UP, up_grain),
        [SLAB_DOWN] = run_of(&downs, bank, SLAB_DOWN, down_grain),
    };
    ahead_run runs[AHEAD_RUNS];
    int n_run = 0;
    /* downs last: they are read last, and the GPU may compute them */
    for (int last = 0; last < 2; last++)
        for (int i = 0; i < n; i++) {
            expert_slabs slabs;
            slabs_of(&slabs, c, bank, layer, experts[i]);
            for (int s = 0; s < SLAB_COUNT && n_run < AHEAD_RUNS; s++) {
                if ((s == SLAB_DOWN) != last) continue;
                runs[n_run] = like[s];
                runs[n_run++].data = slabs.at[s];
            }
        }
    return read_ahead_run(r, c->o->team, runs, n_run, go_on, ctx);
}
