/* experts_cpu.c - routed experts on the CPU's threads.
 *
 * Two kinds of pieces. Ups (expert, some rows of gate and up): both products, the activation, and
 * its int8 form, of which 32 rows are one block. Where there are few ups they are parts of blocks,
 * so that all threads end together; then the int8 form is left to whoever completes the block.
 * Downs (expert, some rows of down), which wait for the ups of their expert: ups and downs are
 * lists of one loop, with no barrier in between. Weights are read once for up to OPS_TOKENS tokens
 * that chose the expert.
 *
 * Where experts have to be read first, they are computed in the order in which they come in, a few
 * at a time. Neither order nor number changes a bit: no product involves two experts. Reading them
 * and making room for them is left to the store.
 *
 * A single token's experts are all cut alike, and a thread has the same rows of each of them: it
 * can read these ahead into its cache (read_ahead.h) before it is known which experts it will be,
 * and all threads have as much to do. Tokens of a batch choose many experts: pieces of these are
 * handed out one expert after another, and where more than OPS_TOKENS tokens chose one, so many of
 * them at a time. A thread packs tokens once for all pieces that it has of them. */
#include "engine/host/experts_cpu.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum {
    FEW_ITEMS = 64,                      /* a batch of few tokens: all experts wanted at once */
    SPIN_UPS = 1000,                     /* looks at an item before yielding the core */
    LEAST_HEIGHT = 8,                    /* rows: less is too short a run of memory */
    MOST_SPLIT = 1024,                   /* blocks of a list whose ups are parts of blocks */
    LONG_RUN = 1 << 16                   /* multiplications: ~4 us, and worth reading at once */
};

/* Up to OPS_TOKENS slots of an item, from slot `first` in work order on. */
typedef struct item_part { int item, first, n; } item_part;

/* The pieces of some parts of items: n_piece of each, one part after another; across: piece i of
 * all parts, then the next. */
typedef struct piece_list {
    const item_part *parts;
    int n_part, n_piece;
    int n_row, height;                   /* rows of an item, and of a piece */
    bool across;
} piece_list;

/* A count that all threads write, in a cache line of its own. */
typedef struct row_count { _Alignas(64) _Atomic int rows; } row_count;

/* Of an item's ups. Those who wait look at a word that is written once, so that they do not take
 * the count from those who work. (Cache lines come in pairs.) */
typedef struct up_count {
    _Alignas(64) _Atomic int64_t values; /* of mid that downs may read */
    char apart_1[128 - sizeof(int64_t)];
    _Atomic bool all;
    char apart_2[128 - sizeof(bool)];
} up_count;

struct experts_cpu {
    const ops *o;
    expert_store *store;                 /* NULL: the mapping */
    router_ahead *ahead;                 /* or NULL */
    expert_job now;                      /* the job under way */
    int height;                          /* rows of a piece where there are many: whole blocks */
    piece_list ups, downs;               /* under way */
    up_count *up_done;                   /* [item] */
    row_count *block_done;               /* [MOST_SPLIT]: rows of a block of mid; 0 between lists */
    bool quantise_mid;                   /* down rows read the int8 form */
    float *mid;                          /* [slot in work order, n_ff]: after the activation */
    acts mid_x;
    int max_slot;
    int padded_for;                      /* n_ff for which the ends of all rows of mid_x are 0 */
    act_row *rows;                       /* [slot in work order]: the slot's token */
    expert_slabs *slabs;                 /* [item]: where its weights are */
    int *ids, *n_slot;                   /* [item]: experts, and how many tokens chose each */
    int *which, *some;                   /* [item]: items that came in; of those, some */
    item_part *parts;                    /* of the items under way */
    int most_item;
    bool *taken;                         /* [item]: its down is computed elsewhere */
    void *storage;
};

/* Rows first .. first + n - 1 of an expert with the slots of a part, which is at `place` in the
 * list: n_piece successive pieces. */
typedef struct piece {
    const work_item *it;
    item_part part;
    int place, first, n, n_piece;
} piece;

/* Tokens of which there are many are shared out too: else those of an expert that is chosen much
 * more than others would be a few long pieces, for which all wait in the end. */
static int parts_of(item_part *out, const experts_cpu *c, const int *items, int n)
{
    int m = 0;
    for (int i = 0; i < n; i++) {
        const work_item *it = &c->now.items[items[i]];
        for (int t = 0; t < it->n; t += OPS_TOKENS)
            out[m++] = (item_part){ items[i], it->first + t, min_int(it->n - t, OPS_TOKENS) };
    }
    return m;
}

static piece_list list_of(const item_part *parts, int n, uint64_t rows, int height)
{
    const uint64_t h = (uint64_t)height;
    return (piece_list){ .parts = parts, .n_part = n, .n_piece = (int)((rows + h - 1) / h),
                         .n_row = (int)rows, .height = height };
}

/* Pieces own .. last - 1 of the part at `place`, or as many of them as belong to one call: gate and
 * up rows lie far apart, and every change from one to the other costs. */
static piece piece_at(const experts_cpu *c, const piece_list *l, int place, int own, int last)
{
    const item_part *part = &l->parts[place];
    piece p = { .it = &c->now.items[part->item], .part = *part, .place = place,
                .first = own * l->height,
                .n_piece = min_int(last - own, OPS_ROWS_WIDE / l->height) };
    p.n = min_int(p.n_piece * l->height, l->n_row - p.first);
    return p;
}

/* pack: NULL for few tokens. */
typedef void piece_fn(experts_cpu *c, const piece *p, token_pack *pack);

static void part_pieces(experts_cpu *c, const piece_list *l, int place, int own, int last,
                        piece_fn *fn, token_pack *pack)
{
    while (own < last) {
        const piece p = piece_at(c, l, place, own, last);
        fn(c, &p, pack);
        own += p.n_piece;
    }
}

/* A range of a loop over the list. */
static void each_piece(experts_cpu *c, const piece_list *l, int64_t begin, int64_t end,
                       piece_fn *fn, token_pack *pack)
{
    const int64_t n = l->n_piece;
    for (int place = 0; place < l->n_part && l->across; place++)
        part_pieces(c, l, place, (int)begin, (int)end, fn, pack);
    for (int64_t i = begin, next; i < end && !l->across; i = next) {
        next = i / n * n + n < end ? i / n * n + n : end;
        part_pieces(c, l, (int)(i / n), (int)(i % n), (int)(i % n + next - i), fn, pack);
    }
}

/* The same with room for packed tokens, which is a megabyte of stack. */
__attribute__((noinline))
static void each_piece_packed(experts_cpu *c, const piece_list *l, int64_t begin, int64_t end,
                              piece_fn *fn)
{
    token_pack pack;
    pack.x = NULL;
    each_piece(c, l, begin, end, fn, &pack);
}

/* Tokens are packed where some experts may have enough of them for that. */
static void run_pieces(experts_cpu *c, const piece_list *l, int64_t begin, int64_t end,
                       piece_fn *fn)
{
    if (ops_packs(c->now.x->n)) each_piece_packed(c, l, begin, end, fn);
    else each_piece(c, l, begin, end, fn, NULL);
}

/* Indices of a loop over it. */
static int64_t loop_length(const piece_list *l)
{
    return l->across ? l->n_piece : (int64_t)l->n_part * l->n_piece;
}

static matrix slab_matrix(const experts_cpu *c, expert_slab s, const piece *p)
{
    matrix m = expert_matrix(c->now.bank, s, p->it->expert);
    m.data = c->slabs[p->part.item].at[s];
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

/* Whether the ups under way are parts of blocks, which are quantised when they are complete. */
static bool splits_blocks(const experts_cpu *c)
{
    return c->quantise_mid && c->ups.height % ACT_BLOCK != 0;
}

/* Rows of the activation. */
static void up_tile(experts_cpu *c, const piece *p, token_pack *pack)
{
    const matrix gate = slab_matrix(c, SLAB_GATE, p), up = slab_matrix(c, SLAB_UP, p);
    const size_t n_ff = (size_t)c->now.bank->n_ff;
    const bool whole = c->quantise_mid && !splits_blocks(c);
    const int i = p->part.first, n = p->part.n;
    float g[OPS_SUMS], u[OPS_SUMS];

    product_rows(g, (size_t)p->n, c->o, &gate, p->first, p->n, c->rows + i, n, pack);
    product_rows(u, (size_t)p->n, c->o, &up, p->first, p->n, c->rows + i, n, pack);
    ops_activate(c->o, c->now.act, g, u, n * p->n);
    for (int t = 0; t < n; t++) {
        float *mid = c->mid + (size_t)(i + t) * n_ff + p->first;
        memcpy(mid, g + t * p->n, (size_t)p->n * sizeof *mid);
        if (whole) quantise_blocks(c, i + t, p->first / ACT_BLOCK, p->n / ACT_BLOCK);
    }
}

/* Adds rows to a block that has `before`. True for the thread that completes it: it sees what the
 * others wrote, and leaves a count of 0 for the next list. */
static bool completes(row_count *before, int rows)
{
    if (rows == ACT_BLOCK) return true;
    if (atomic_fetch_add_explicit(&before->rows, rows, memory_order_acq_rel) + rows < ACT_BLOCK)
        return false;
    atomic_store_explicit(&before->rows, 0, memory_order_relaxed);
    return true;
}

/* Quantises the blocks that the rows of p complete. Returns how many rows are ready by that. */
static int close_blocks(experts_cpu *c, const piece *p)
{
    row_count *done = c->block_done + p->place * (c->ups.n_row / ACT_BLOCK);
    const int end = p->first + p->n;
    int ready = 0;
    for (int r = p->first, next; r < end; r = next) {
        const int block = r / ACT_BLOCK;
        next = min_int((block + 1) * ACT_BLOCK, end);
        if (!completes(&done[block], next - r)) continue;
        for (int t = 0; t < p->part.n; t++) quantise_blocks(c, p->part.first + t, block, 1);
        ready += ACT_BLOCK;
    }
    return ready;
}

/* Whoever adds the last values of an item sees what the others wrote, and lets downs see it. */
static void add_ready(experts_cpu *c, const piece *p, int rows)
{
    up_count *done = &c->up_done[p->part.item];
    const int64_t all = (int64_t)c->now.bank->n_ff * p->it->n, more = (int64_t)rows * p->part.n;
    if (rows > 0 &&
        atomic_fetch_add_explicit(&done->values, more, memory_order_acq_rel) + more >= all)
        atomic_store_explicit(&done->all, true, memory_order_release);   /* pairs with await_ups */
}

static void up_piece(experts_cpu *c, const piece *p, token_pack *pack)
{
    up_tile(c, p, pack);
    add_ready(c, p, splits_blocks(c) ? close_blocks(c, p) : p->n);
}

static void up_pieces(void *ctx, int64_t begin, int64_t end, int thread)
{
    experts_cpu *c = ctx;
    (void)thread;
    run_pieces(c, &c->ups, begin, end, up_piece);
}

/* ---- down ------------------------------------------------------------------------------------ */

static void await_ups(const experts_cpu *c, int item)
{
    for (int i = 1; !atomic_load_explicit(&c->up_done[item].all, memory_order_acquire); i++)
        if (i % SPIN_UPS == 0) sched_yield();
        else pool_relax();
}

static void down_piece(experts_cpu *c, const piece *p, token_pack *pack)
{
    const size_t n_embd = (size_t)c->now.bank->n_embd;
    const int at = p->part.first;
    float tile[OPS_SUMS];
    await_ups(c, p->part.item);
    const matrix down = slab_matrix(c, SLAB_DOWN, p);
    product_rows(tile, (size_t)p->n, c->o, &down, p->first, p->n, c->mid_x.rows + at, p->part.n,
                 pack);
    for (int s = 0; s < p->part.n; s++) {
        const int row = c->now.by_position ? at + s : c->now.work->slots[at + s];
        memcpy(c->now.y + (size_t)row * n_embd + p->first, tile + s * p->n,
               (size_t)p->n * sizeof *tile);
    }
}

static void down_pieces(void *ctx, int64_t begin, int64_t end, int thread)
{
    experts_cpu *c = ctx;
    (void)thread;
    run_pieces(c, &c->downs, begin, end, down_piece);
}

/* ---- lists of items -------------------------------------------------------------------------- */

/* Of a list across items: the most rows that a thread has of each then. */
static int most_rows(uint64_t rows, int height, int n_thread)
{
    const int n_piece = ((int)rows + height - 1) / height;
    return (n_piece + n_thread - 1) / n_thread * height;
}

/* Lower pieces only where threads end noticeably sooner by that: with 16 pieces for 12 threads some
 * would have twice as much to do as the others. */
static piece_list list_across(const experts_cpu *c, const item_part *parts, int n, uint64_t rows)
{
    const int n_thread = pool_threads(c->o->team);
    int height = OPS_ROWS;
    for (int h = height / 2; h >= LEAST_HEIGHT; h /= 2)
        if (9 * most_rows(rows, h, n_thread) < 8 * most_rows(rows, height, n_thread)) height = h;
    piece_list l = list_of(parts, n, rows, height);
    l.across = true;
    return l;
}

static bool is_single(const experts_cpu *c) { return c->now.x->n == 1; }

/* The first n of the parts under way. */
static piece_list list_of_ups(const experts_cpu *c, int n)
{
    const uint64_t rows = c->now.bank->n_ff;
    if (is_single(c)) {
        const piece_list l = list_across(c, c->parts, n, rows);
        const int n_block = l.n_part * (l.n_row / ACT_BLOCK);
        if (l.height % ACT_BLOCK == 0 || n_block <= MOST_SPLIT) return l;
    }
    return list_of(c->parts, n, rows, c->height);
}

static piece_list list_of_downs(const experts_cpu *c, int n)
{
    const uint64_t rows = c->now.bank->n_embd;
    return is_single(c) ? list_across(c, c->parts, n, rows)
                        : list_of(c->parts, n, rows, c->height);
}

/* Pieces to hand out at a time: several, for a long run of memory, where all threads then still get
 * the same. work: multiplications of a piece. */
static int64_t grain_of(const experts_cpu *c, const piece_list *l, uint64_t work)
{
    const int64_t least = pool_grain((int64_t)work), n_thread = pool_threads(c->o->team);
    int64_t n = OPS_ROWS_WIDE / l->height;
    while (n > least && (n * (int64_t)work > LONG_RUN || loop_length(l) % (n * n_thread) != 0)) n--;
    return n > least ? n : least;
}

static uint64_t up_work(const piece_list *l, const expert_bank *b)
{
    return 2 * (uint64_t)l->height * b->n_embd;
}

static uint64_t down_work(const piece_list *l, const expert_bank *b)
{
    return (uint64_t)l->height * b->n_ff;
}

static int64_t grain_of_ups(const experts_cpu *c)
{
    return grain_of(c, &c->ups, up_work(&c->ups, c->now.bank));
}

static int64_t grain_of_downs(const experts_cpu *c)
{
    return grain_of(c, &c->downs, down_work(&c->downs, c->now.bank));
}

/* The ups of the first n items of which and the downs of the first n_down, without a barrier in
 * between. No down waits in vain: a thread gets one only when all ups are taken, and whoever takes
 * an up computes it without waiting for anything. */
static void run_mixed(experts_cpu *c, int n, int n_down)
{
    const int n_part = parts_of(c->parts, c, c->which, n);
    c->ups = list_of_ups(c, n_part);
    c->downs = list_of_downs(c, n_down == n ? n_part : parts_of(c->parts, c, c->which, n_down));
    const pool_list lists[] = {
        { loop_length(&c->ups), grain_of_ups(c), up_pieces, !is_single(c) },
        { n_down > 0 ? loop_length(&c->downs) : 0, grain_of_downs(c), down_pieces, !is_single(c) },
    };
    pool_run_lists(c->o->team, lists, ARRAY_LEN(lists), c);
}

static void run_downs(experts_cpu *c, const int *items, int n)
{
    if (n == 0) return;
    c->downs = list_of_downs(c, parts_of(c->parts, c, items, n));
    const pool_list list = { loop_length(&c->downs), grain_of_downs(c), down_pieces,
                             !is_single(c) };
    pool_run_lists(c->o->team, &list, 1, c);
}

/* Asks for items first .. first + n - 1 whether their down is computed elsewhere. Returns how many
 * are left to do here. */
static int ask_taken(experts_cpu *c, int first, int n)
{
    int left = n;
    for (int i = first; i < first + n; i++) {
        c->taken[i] = i >= c->now.n_sure && c->now.taken &&
                      c->now.taken(c->now.taken_ctx, &c->now.items[i]);
        left -= c->taken[i];
    }
    return left;
}

/* Puts those of n items that are not taken into some. */
static int not_taken(experts_cpu *c, const int *list, int n)
{
    int m = 0;
    for (int i = 0; i < n; i++)
        if (!c->taken[list[i]]) c->some[m++] = list[i];
    return m;
}

/* ---- experts that are there ------------------------------------------------------------------ */

static void slabs_of(expert_slabs *out, const experts_cpu *c, const expert_bank *bank, int layer,
                     int expert)
{
    if (c->store) expert_store_find(c->store, layer, expert, out);
    else for (int s = 0; s < SLAB_COUNT; s++)
        out->at[s] = expert_slab_data(bank, (expert_slab)s, expert);
}

static void run_present(experts_cpu *c)
{
    const expert_job *now = &c->now;
    const int sure = now->taken ? now->n_sure : now->n_item;
    for (int i = 0; i < now->n_item; i++) {
        c->which[i] = i;
        slabs_of(&c->slabs[i], c, now->bank, now->layer, now->items[i].expert);
    }
    run_mixed(c, now->n_item, sure);
    ask_taken(c, sure, now->n_item - sure);
    run_downs(c, c->some, not_taken(c, c->which + sure, now->n_item - sure));
}

/* ---- experts that come in -------------------------------------------------------------------- */

/* Waits for more of the items from first on. Puts them into which, and the addresses of the slabs
 * that have come in into slabs. */
static int wait_items(experts_cpu *c, int first, store_part part, err_ctx *err)
{
    const int n = expert_store_next(c->store, c->which, part, err);
    for (int i = 0; i < n; i++) {
        const int item = c->which[i] += first;
        expert_store_find(c->store, c->now.layer, c->now.items[item].expert, &c->slabs[item]);
    }
    return n;
}

/* The threads compute for a while: the drive need not wait for the end of it. Not worth waking
 * somebody for a single token. */
static void leave_reading(const experts_cpu *c)
{
    if (!is_single(c)) expert_store_go_on(c->store);
}

/* Items first .. first + n - 1, which are wanted. */
static int run_wanted(experts_cpu *c, int first, int n, err_ctx *err)
{
    int got;
    while ((got = wait_items(c, first, STORE_UP, err)) > 0) {
        leave_reading(c);
        run_mixed(c, got, 0);
    }
    if (got < 0) return got;
    for (int left = ask_taken(c, first, n); left > 0;) {
        if ((got = wait_items(c, first, STORE_ALL, err)) < 0) return got;
        const int m = not_taken(c, c->which, got);
        leave_reading(c);
        run_downs(c, c->some, m);
        left -= m;
    }
    expert_store_release(c->store);
    leave_reading(c);
    return 0;
}

/* Whether there are enough slots to use nearly all experts of a layer. */
static bool uses_all(const experts_cpu *c)
{
    return c->now.work->n_slot >= 2 * (int)c->now.bank->n_expert;
}

static int want_items(experts_cpu *c, int first, int n, err_ctx *err)
{
    const int *ids = c->ids + first;
    return uses_all(c) ? expert_store_want_all(c->store, c->now.layer, ids, c->n_slot + first, n,
                                               err)
                       : expert_store_want(c->store, c->now.layer, ids, n, err);
}

/* While a group is computed, the next one is read; after the last group, the first of the next
 * layer, if nearly all of that layer's will be used. */
static void read_on(experts_cpu *c, int next, int group)
{
    const expert_job *now = &c->now;
    const int n_expert = now->bank->n_expert;
    if (next < now->n_item) {
        expert_store_ahead(c->store, now->layer, c->ids + next, min_int(group, now->n_item - next));
        return;
    }
    const int layer = expert_store_after(c->store, now->layer);
    const int n = min_int(min_int(group, n_expert), c->most_item);
    if (layer < 0 || !uses_all(c)) return;
    for (int e = 0; e < n; e++) c->which[e] = e;
    expert_store_ahead(c->store, layer, c->which, n);
}

static int run_arriving(experts_cpu *c, err_ctx *err)
{
    const int n = c->now.n_item, room = expert_store_room(c->store);
    const bool at_once = n <= room / 2 || (n <= FEW_ITEMS && n <= room);
    const int group = at_once ? n : max_int(room / 2, 1);
    for (int i = 0; i < n; i++) {
        c->ids[i] = c->now.items[i].expert;
        c->n_slot[i] = c->now.items[i].n;
    }
    for (int i = 0; i < n; i += group) {
        const int m = min_int(group, n - i);
        if (c->ahead) router_ahead_tell(c->ahead, c->now.layer, c->ids + i, m);
        int rc = want_items(c, i, m, err);
        if (rc < 0) return rc;
        read_on(c, i + m, max_int(room / 2, 1));
        if (c->ahead && c->now.x->n == 1)
            router_ahead_read(c->ahead, c->store, c->now.layer, c->now.x);
        if ((rc = run_wanted(c, i, m, err)) < 0) return rc;
    }
    return 0;
}

/* ---- a job ----------------------------------------------------------------------------------- */

static bool reads_int8(const experts_cpu *c, expert_slab s)
{
    return c->o->kernels->of[c->now.bank->weight[s]->type].quantised;
}

/* Slots per expert, of those computed here: the rest of a token's selection may be elsewhere. */
static int slots_per_item(const expert_job *job)
{
    int n = 0;
    for (int i = 0; i < job->n_item; i++) n += job->items[i].n;
    return n / max_int(job->n_item, 1);
}

/* Nothing but this ever writes after the last block of a row. */
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
    return c->store && expert_store_kind(c->store) == STORE_CACHED &&
           expert_store_after(c->store, c->now.layer - 1) == c->now.layer;
}

int experts_cpu_run(experts_cpu *c, const expert_job *job, err_ctx *err)
{
    const worklist *w = job->work;

    c->now = *job;
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
    c->which = mem_layout_take(a, items, 1, sizeof *c->which);
    c->some = mem_layout_take(a, items, 1, sizeof *c->some);
    c->parts = mem_layout_take(a, items + n / OPS_TOKENS, 1, sizeof *c->parts);
    c->taken = mem_layout_take(a, items, 1, sizeof *c->taken);
    c->up_done = mem_layout_take(a, items, 1, sizeof *c->up_done);
    c->block_done = mem_layout_take(a, MOST_SPLIT, 1, sizeof *c->block_done);
}

uint64_t experts_cpu_bytes(const model_hparams *hp, int max_slot)
{
    experts_cpu unused = { .o = NULL };
    mem_layout a = mem_layout_count(64);
    uint64_t bytes;
    place_all(&unused, &a, hp, max_slot);
    return size_add(&bytes, a.used, 64) ? bytes : UINT64_MAX;
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

const acts *experts_cpu_mid(const experts_cpu *c)
{
    return &c->mid_x;
}

/* ---- reading ahead --------------------------------------------------------------------------- */

/* What threads have to do of a slab in a loop over such a list. */
static ahead_run run_of(const piece_list *l, const expert_bank *bank, expert_slab s, int64_t grain)
{
    const uint64_t row = bank->weight[s]->row_bytes;
    return (ahead_run){ .bytes = (uint64_t)l->n_row * row, .step = (uint64_t)l->height * row,
                        .n_piece = l->n_piece, .grain = grain };
}

uint64_t experts_cpu_read_ahead(const experts_cpu *c, read_ahead *r, int layer,
                                const expert_bank *bank, const int32_t *experts, int n,
                                keep_going_fn *go_on, void *ctx)
{
    const piece_list ups = list_across(c, NULL, 1, bank->n_ff);
    const piece_list downs = list_across(c, NULL, 1, bank->n_embd);
    const int64_t up_grain = grain_of(c, &ups, up_work(&ups, bank));
    const int64_t down_grain = grain_of(c, &downs, down_work(&downs, bank));
    const ahead_run like[SLAB_COUNT] = {
        [SLAB_GATE] = run_of(&ups, bank, SLAB_GATE, up_grain),
        [SLAB_UP] = run_of(&ups, bank, SLAB_UP, up_grain),
        [SLAB_DOWN] = run_of(&downs, bank, SLAB_DOWN, down_grain),
    };
    ahead_run runs[AHEAD_RUNS];
    int n_run = 0;
    /* downs last: they are wanted last, and may be computed elsewhere */
    for (int last = 0; last < 2; last++)
        for (int i = 0; i < n; i++) {
            expert_slabs at;
            slabs_of(&at, c, bank, layer, experts[i]);
            for (int s = 0; s < SLAB_COUNT && n_run < AHEAD_RUNS; s++) {
                if ((s == SLAB_DOWN) != last) continue;
                runs[n_run] = like[s];
                runs[n_run++].at = at.at[s];
            }
        }
    return read_ahead_run(r, c->o->team, runs, n_run, go_on, ctx);
}
