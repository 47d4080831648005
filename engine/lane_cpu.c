/* lane_cpu.c - routed experts on the CPU's threads.
 *
 * Two lists of pieces with one barrier between them. First (expert, some rows of gate and up): both
 * products, the activation, and its int8 form, since 32 rows are one block of it. Then (expert,
 * some rows of down). Weights are read once for all tokens that chose the expert. */
#include "engine/lane.h"

#include <string.h>

typedef struct lane_cpu {
    lane base;
    const ops *o;
    lane_share now;                      /* the share under way */
    int height;                          /* rows of a piece, whole blocks of activations */
    int n_piece;                         /* pieces of one expert, in the list under way */
    bool quantise_mid;                   /* down rows read the int8 form */
    float *mid;                          /* [slot in work order, n_ff]: behind the activation */
    acts mid_x;
    act_row *rows;                       /* [slot in work order]: the slot's token */
    void *storage;
} lane_cpu;

/* Rows first .. first + n - 1 of expert item it: n_piece pieces in succession. */
typedef struct piece { const work_item *it; int first, n, n_piece; } piece;

/* Piece i, with as many of the next ones as belong to the same call: gate and up rows lie far
 * apart, and every change from one to the other costs. */
static piece piece_at(const lane_cpu *c, int64_t i, int64_t end, int n_row)
{
    const int own = (int)(i % c->n_piece), left = c->n_piece - own;
    const int most = OPS_ROWS_WIDE / c->height;
    piece p = { .it = &c->now.items[i / c->n_piece], .first = own * c->height,
                .n_piece = left < most ? left : most };
    if (p.n_piece > end - i) p.n_piece = (int)(end - i);
    p.n = p.n_piece * c->height;
    if (p.n > n_row - p.first) p.n = n_row - p.first;
    return p;
}

/* ---- gate, up, activation -------------------------------------------------------------------- */

static void activate(const lane_cpu *c, float *g, const float *u, int n)
{
    if (c->now.act == ACT_SWIGLU) c->o->loops->swiglu(g, g, u, n);
    else c->o->loops->swiglu_clamped(g, g, u, n);
}

/* Rows p->first .. of the activation for n slots from work order i. */
static void up_tile(lane_cpu *c, const piece *p, const matrix *gate, const matrix *up, int i, int n)
{
    const size_t n_ff = (size_t)c->now.bank->n_ff, first = (size_t)p->first;
    const acts *x = &c->mid_x;
    float g[OPS_SUMS], u[OPS_SUMS];

    product_rows(g, (size_t)p->n, c->o, gate, p->first, p->n, c->rows + i, n);
    product_rows(u, (size_t)p->n, c->o, up, p->first, p->n, c->rows + i, n);
    activate(c, g, u, n * p->n);
    for (int t = 0; t < n; t++) {
        const size_t slot = (size_t)(i + t), block = slot * (size_t)x->n_block + first / ACT_BLOCK;
        float *mid = c->mid + slot * n_ff + first;
        memcpy(mid, g + t * p->n, (size_t)p->n * sizeof *mid);
        if (c->quantise_mid)
            c->o->loops->quantise(x->q + block * ACT_BLOCK, x->dx + block, x->s + 2 * block, mid,
                                  p->n / ACT_BLOCK);
    }
}

static void up_pieces(void *ctx, int64_t begin, int64_t end, int thread)
{
    lane_cpu *c = ctx;
    (void)thread;
    for (int64_t i = begin; i < end;) {
        const piece p = piece_at(c, i, end, (int)c->now.bank->n_ff);
        const matrix gate = expert_matrix(c->now.bank, SLAB_GATE, p.it->expert);
        const matrix up = expert_matrix(c->now.bank, SLAB_UP, p.it->expert);
        for (int t = 0; t < p.it->n; t += OPS_TOKENS)
            up_tile(c, &p, &gate, &up, p.it->first + t,
                    p.it->n - t < OPS_TOKENS ? p.it->n - t : OPS_TOKENS);
        i += p.n_piece;
    }
}

/* ---- down ------------------------------------------------------------------------------------ */

static void down_pieces(void *ctx, int64_t begin, int64_t end, int thread)
{
    lane_cpu *c = ctx;
    const size_t n_embd = (size_t)c->now.bank->n_embd;
    float tile[OPS_SUMS];
    (void)thread;
    for (int64_t i = begin; i < end;) {
        const piece p = piece_at(c, i, end, (int)n_embd);
        const matrix down = expert_matrix(c->now.bank, SLAB_DOWN, p.it->expert);
        for (int t = 0; t < p.it->n; t += OPS_TOKENS) {
            const int n = p.it->n - t < OPS_TOKENS ? p.it->n - t : OPS_TOKENS;
            const int at = p.it->first + t;
            product_rows(tile, (size_t)p.n, c->o, &down, p.first, p.n, c->mid_x.rows + at, n);
            for (int s = 0; s < n; s++)
                memcpy(c->now.y + (size_t)c->now.work->slots[at + s] * n_embd + p.first,
                       tile + s * p.n, (size_t)p.n * sizeof *tile);
        }
        i += p.n_piece;
    }
}

/* ---- the lane -------------------------------------------------------------------------------- */

static int pieces_of(const lane_cpu *c, uint64_t rows)
{
    const uint64_t height = (uint64_t)c->height;
    return (int)((rows + height - 1) / height);
}

static bool reads_int8(const lane_cpu *c, expert_slab s)
{
    return c->o->kernels->of[c->now.bank->weight[s]->type].quantised;
}

static void launch(lane *self, const lane_share *share)
{
    lane_cpu *c = (lane_cpu *)self;
    const worklist *w = share->work;
    const expert_bank *bank = share->bank;

    c->now = *share;
    if (reads_int8(c, SLAB_GATE) || reads_int8(c, SLAB_UP)) ops_quantise(c->o, share->x);
    c->quantise_mid = reads_int8(c, SLAB_DOWN);
    for (int i = 0; i < w->n_slot; i++) c->rows[i] = share->x->rows[w->slots[i] / w->k];
    acts_set(&c->mid_x, c->mid, w->n_slot, (int)bank->n_ff);
    if (c->quantise_mid) acts_clear_padding(&c->mid_x);

    c->height = share->n_item > 0 ? ops_rows(w->n_slot / share->n_item) : OPS_ROWS;
    c->n_piece = pieces_of(c, bank->n_ff);
    pool_run(c->o->team, (int64_t)share->n_item * c->n_piece,
             pool_grain(2 * c->height * (int64_t)bank->n_embd), up_pieces, c);
    c->n_piece = pieces_of(c, bank->n_embd);
    pool_run(c->o->team, (int64_t)share->n_item * c->n_piece,
             pool_grain(c->height * (int64_t)bank->n_ff), down_pieces, c);
}

static void finish(lane *self)
{
    (void)self;                          /* all done in launch */
}

static void lane_cpu_free(lane *self)
{
    lane_cpu *c = (lane_cpu *)self;
    if (!c) return;
    mem_free(c->storage);
    mem_free(c);
}

/* Sizes of the three parts of storage; false if their sum is too much to count. */
static bool storage_sizes(uint64_t *total, uint64_t part[3], const model_hparams *hp, int max_slot)
{
    const uint64_t n = (uint64_t)max_slot;
    part[0] = size_align(n * (uint64_t)hp->n_ff_expert * sizeof(float), 64);
    part[1] = size_align(acts_bytes(max_slot, hp->n_ff_expert), 64);
    part[2] = size_align(n * sizeof(act_row), 64);
    return size_add(total, part[0], part[1]) && size_add(total, *total, part[2] + 64);
}

uint64_t lane_cpu_bytes(const model_hparams *hp, int max_slot)
{
    uint64_t part[3], total;
    return storage_sizes(&total, part, hp, max_slot) ? total : UINT64_MAX;
}

int lane_cpu_create(lane **out, const ops *o, const model_hparams *hp, int max_slot, err_ctx *err)
{
    static const lane base = { "cpu", launch, finish, lane_cpu_free };
    uint64_t part[3], total = 0;
    lane_cpu *c = mem_zalloc(sizeof *c);
    *out = NULL;
    if (c && storage_sizes(&total, part, hp, max_slot) && total <= SIZE_MAX)
        c->storage = mem_zalloc((size_t)total);
    if (!c || !c->storage) {
        mem_free(c);
        return err_set(err, ERR_NOMEM, "experts on the CPU, %d at a time: %llu bytes", max_slot,
                       (unsigned long long)total);
    }
    c->base = base;
    c->o = o;
    uint8_t *p = (uint8_t *)(((uintptr_t)c->storage + 63) / 64 * 64);
    c->mid = (float *)p;
    acts_init(&c->mid_x, p + part[0], max_slot, hp->n_ff_expert);
    c->rows = (act_row *)(p + part[0] + part[1]);
    *out = &c->base;
    return 0;
}
