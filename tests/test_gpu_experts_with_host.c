/* test_gpu_experts_with_host.c - layers with hot experts on the device and cold ones on the host.
 *
 * A thread is the host: it checks every question, computes the cold experts by plain loops over the
 * contract's products, and replies. For any placement, the stream and every expert's vector have
 * the bits of gpu_experts with all experts in VRAM, and the vectors have those of the CPU. Parts of
 * a reply that the device must not read are full of NaNs. With predictions, every second question
 * is the next layer's. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "cuda/gpu_experts.h"
#include "moe/router.h"
#include "tests/gpu_fixture.h"
#include "tests/sim_gpu.h"

enum { GATE, UP, DOWN, SLABS };
enum { MAX_EXPERT = 64, FETCH_TABLE = 2 * GPU_FETCH_COUNTS, QUESTIONS = 4, MAX_LOCKED = 8 };

typedef struct split_case {
    quant_type up, down;                 /* up: of gate, too */
    int n_embd, n_ff, n_expert, k;
    gpu_activation act;
    bool bias, norm;
    bool by_logits;                      /* the choice is not made yet */
    bool scored;                         /* predictions are by sigmoids and a bias, choices by
                                          * logits by sigmoids */
    int shared_ff;                       /* width of the shared expert; 0: none */
    quant_type shared_up, shared_down;
    int partial_ff;                      /* width of a network computed meanwhile; 0: none */
} split_case;

/* ---- page-locked memory of a case ------------------------------------------------------------ */

static struct {
    void *at[MAX_LOCKED];
    int n;
} locked;

static void *locked_room(size_t bytes)
{
    err_ctx err = { 0 };
    void *p = locked.n < MAX_LOCKED ? gpu_alloc_host(device(), bytes, &err) : NULL;
    if (!expect(p != NULL, "%s", err.msg)) return host_room(bytes, 1);
    memset(p, 0xFF, bytes);
    return locked.at[locked.n++] = p;
}

static void locked_drop(void)
{
    while (locked.n > 0) gpu_free_host(device(), locked.at[--locked.n]);
}

/* ---- a layer --------------------------------------------------------------------------------- */

typedef struct layer {
    const split_case *c;
    matrix slab[MAX_EXPERT][SLABS];      /* page-locked, at addresses as rows of blocks give them */
    gpu_bank all[SLABS];                 /* experts in their order */
    gpu_bank mixed[SLABS];               /* expert e at place[e] */
    int place[MAX_EXPERT];
} layer;

static size_t block_bytes(quant_type type) { return quant_traits_of(type)->block_bytes; }

static void make_slabs(layer *l, int s, test_rng *rng)
{
    const split_case *c = l->c;
    const quant_type type = s == DOWN ? c->down : c->up;
    const int rows = s == DOWN ? c->n_embd : c->n_ff, cols = s == DOWN ? c->n_ff : c->n_embd;
    const size_t n_expert = (size_t)c->n_expert;
    const size_t row_bytes = (size_t)quant_row_bytes(quant_traits_of(type), (uint64_t)cols);
    const size_t bytes = (size_t)rows * row_bytes;
    const size_t room = (bytes + 8 * block_bytes(type) + 63) / 64 * 64;
    uint8_t *ram = locked_room(n_expert * room);
    uint8_t *all = host_room(n_expert, bytes), *mixed = host_room(n_expert, bytes);
    float *scale = host_room(n_expert, sizeof *scale), *bias = NULL;
    gpu_bank *bank = &l->all[s];

    if (c->bias) bias = host_floats(n_expert * (size_t)rows, 0.5f, rng);
    for (size_t e = 0; e < n_expert; e++) {
        uint8_t *data = ram + e * room + test_below(rng, 8) * block_bytes(type);
        for (size_t r = 0; r < (size_t)rows; r++)
            weight_row_make(data + r * row_bytes, type, cols, WEIGHTS_PLAUSIBLE, rng);
        scale[e] = (3.0f + (float)e / (float)n_expert) * unit_scale(data, type, cols);
        l->slab[e][s] = (matrix){ .type = type, .rows = rows, .cols = cols, .data = data,
                                  .row_bytes = row_bytes, .scale = scale[e],
                                  .bias = bias ? bias + e * (size_t)rows : NULL };
        memcpy(all + e * bytes, data, bytes);
        memcpy(mixed + (size_t)l->place[e] * bytes, data, bytes);
    }
    *bank = (gpu_bank){ .type = (int)type, .rows = rows, .cols = cols, .row_bytes = row_bytes,
                        .slab_bytes = bytes, .data = vram_copy(all, n_expert * bytes),
                        .scale = vram_floats(scale, n_expert) };
    if (bias) bank->bias = vram_floats(bias, n_expert * (size_t)rows);
    l->mixed[s] = *bank;
    l->mixed[s].data = vram_copy(mixed, n_expert * bytes);
}

static layer *layer_make(const split_case *c, test_rng *rng)
{
    layer *l = host_room(1, sizeof *l);
    l->c = c;
    for (int e = 0; e < c->n_expert; e++) {              /* a random order */
        const int other = (int)test_below(rng, (uint32_t)e + 1);
        l->place[e] = l->place[other];
        l->place[other] = e;
    }
    for (int s = 0; s < SLABS; s++) make_slabs(l, s, rng);
    return l;
}

/* ---- the host's arithmetic ------------------------------------------------------------------- */

/* Room of one expert's computation. */
typedef struct bench {
    float *g, *u;                        /* [n_ff] */
    acts mid;
} bench;

static bench bench_make(const split_case *c)
{
    bench b = { .g = host_room((size_t)c->n_ff, sizeof(float)),
                .u = host_room((size_t)c->n_ff, sizeof(float)) };
    acts_init(&b.mid, host_room(acts_bytes(1, c->n_ff), 1), 1, c->n_ff);
    return b;
}

/* Leaves the activations of expert e in b->mid. */
static void host_up(bench *b, const layer *l, int e, const act_row *x)
{
    contract_multiply(b->g, &l->slab[e][GATE], x);
    contract_multiply(b->u, &l->slab[e][UP], x);
    cpu_activate(b->g, b->u, l->c->n_ff, contract_ops(), l->c->act);
    contract_acts(&b->mid, b->g, 1, l->c->n_ff, l->c->down);
}

static void host_down(float *y, const bench *b, const layer *l, int e)
{
    contract_multiply(y, &l->slab[e][DOWN], b->mid.rows);
}

/* ---- what is asked --------------------------------------------------------------------------- */

typedef struct division {                /* of one question */
    int32_t hot[MAX_EXPERT];
    uint8_t fetch[FETCH_TABLE];
    uint8_t where[GPU_MOST_CHOICES];     /* what follows */
    bool quiet;
    int32_t predicted[GPU_MOST_PREDICTED];       /* for it */
    int n_predicted;
} division;

typedef struct batch {
    const layer *l;
    int n;
    int32_t *ids;
    float *gates, *residual, *sigma;
    gpu_input in;
    gpu_expert_args args;                /* with all experts */
    /* each question has its own memory, which shows results of an earlier one */
    float *input[QUESTIONS];             /* [n, n_embd] */
    float *rows[QUESTIONS], *y[QUESTIONS];       /* what gpu_experts makes of it: [n, n_embd],
                                                  * [n, k, n_embd] */
    float *x;                            /* [n, n_embd] after all of them */
    uint64_t *slabs;                     /* page-locked */
    bool has_hot;
    gpu_with_host split;
    division asked[QUESTIONS];
    gpu_predict next;                    /* after every other question, if there are predictions */
    router_rule rule;                    /* its own, in RAM, as are these: */
    float *router, *norm, *next_norm;
    gpu_input parallel_in;
    gpu_network_args parallel;           /* y NULL: none */
    float *parallel_y;                   /* [n, n_embd], its output without experts */
} batch;

/* The rules, choice by choice. */
static void expect_where(division *d, const batch *b)
{
    const int k = b->l->c->k;
    for (int t = 0; t < b->n; t++) {
        const int32_t *ids = b->ids + t * k;
        uint8_t *where = d->where + t * k;
        int m = 0;
        for (int r = 0; r < k; r++) {
            where[r] = b->has_hot && d->hot[ids[r]] >= 0 ? GPU_HOT : GPU_COLD;
            m += where[r] == GPU_COLD;
        }
        if (b->n > 1 || !b->split.slabs) continue;
        int all = d->fetch[GPU_FETCH_COUNTS + m], down = d->fetch[m];
        if (all > b->split.pad_all) all = b->split.pad_all;
        if (down > b->split.pad_down) down = b->split.pad_down;
        for (int r = 0; r < k && all > 0; r++) {
            const uint64_t *at = b->slabs + 3 * ids[r];
            if (where[r] == GPU_COLD && at[0] && at[1] && at[2]) where[r] = GPU_FETCHED, all--;
        }
        for (int r = 0; r < k && down > 0; r++)
            if (where[r] == GPU_COLD && b->slabs[3 * ids[r] + 2])
                where[r] = GPU_COLD_FETCHED, down--;
    }
    d->quiet = true;
    for (int i = 0; i < b->n * k; i++) d->quiet &= d->where[i] == GPU_HOT;
}

/* ---- the host's thread ----------------------------------------------------------------------- */

typedef struct host {
    const batch *b;
    test_rng rng;
    bench work;
    acts x;
    int n_fetched, n_by_host;            /* down slabs used and not */
    char complaint[256];                 /* the first */
} host;

static void complain(host *h, uint32_t number, const char *what, int slot, long got, long want)
{
    if (h->complaint[0] == 0)
        snprintf(h->complaint, sizeof h->complaint, "question %u, slot %d: %s %ld, expected %ld",
                 (unsigned)number, slot, what, got, want);
}

static void check_question(host *h, uint32_t number, const division *d)
{
    const batch *b = h->b;
    const gpu_mailbox *m = b->split.mailbox;
    const int k = b->l->c->k;
    if (m->n != b->n) complain(h, number, "tokens", -1, m->n, b->n);
    if (m->k != k) complain(h, number, "choices", -1, m->k, k);
    for (int i = 0; i < b->n * k; i++) {
        if (m->ids[i] != b->ids[i]) complain(h, number, "expert", i, m->ids[i], b->ids[i]);
        if (m->where[i] != d->where[i]) complain(h, number, "place", i, m->where[i], d->where[i]);
    }
    for (int i = 0; i < b->n * b->l->c->n_embd; i++)
        if (memcmp(&m->x[i], &b->rows[number - 1][i], sizeof(float)) != 0) {
            complain(h, number, "another value of x, at", -1, i, -1);
            break;
        }
}

/* A number that the device writes after the data that it announces. */
static uint32_t word(const volatile uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

static void answer_slot(host *h, int slot, uint32_t number, int where)
{
    const layer *l = h->b->l;
    gpu_mailbox *m = h->b->split.mailbox;
    const size_t n_embd = (size_t)m->n_embd, n_ff = (size_t)m->n_ff;
    const int e = m->ids[slot];

    memset(m->y + (size_t)slot * n_embd, 0xFF, n_embd * sizeof(float));
    memset(m->mid + (size_t)slot * gpu_blocks_bytes(m->n_ff), 0xFF, gpu_blocks_bytes(m->n_ff));
    memset(m->mid_rows + (size_t)slot * n_ff, 0xFF, n_ff * sizeof(float));
    m->by_host[slot] = 0xFF;
    if (where != GPU_COLD && where != GPU_COLD_FETCHED) return;
    host_up(&h->work, l, e, h->x.rows + slot / m->k);
    if (where == GPU_COLD_FETCHED) {
        m->by_host[slot] = (uint8_t)test_below(&h->rng, 2);
        if (m->by_host[slot]) h->n_by_host++;
        else h->n_fetched++;
    }
    if (where == GPU_COLD || m->by_host[slot]) {
        host_down(m->y + (size_t)slot * n_embd, &h->work, l, e);
        return;
    }
    while (word(&m->fetched[slot]) != number) sched_yield();
    if (contract_reads_int8(l->c->down))
        gpu_mailbox_put_mid(m, slot, h->work.mid.q, h->work.mid.dx, h->work.mid.s);
    else
        memcpy(m->mid_rows + (size_t)slot * n_ff, h->work.g, n_ff * sizeof(float));
}

static void *host_main(void *ctx)
{
    host *h = ctx;
    const batch *b = h->b;
    gpu_mailbox *m = b->split.mailbox;
    for (uint32_t number = 1; number <= QUESTIONS; number++) {
        const division *d = &b->asked[number - 1];
        while (word(&m->asked) / GPU_CODES < number) sched_yield();
        if (word(&m->asked) != number * GPU_CODES) continue;     /* quiet */
        check_question(h, number, d);
        contract_acts(&h->x, b->rows[number - 1], b->n, b->l->c->n_embd, b->l->c->up);
        for (int i = 0; i < b->n * b->l->c->k; i++) answer_slot(h, i, number, d->where[i]);
        __atomic_store_n(&m->answered, number, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* ---- batches --------------------------------------------------------------------------------- */

static int32_t *choose(int n, int k, int n_expert, test_rng *rng)
{
    int32_t *ids = host_room((size_t)(n * k), sizeof *ids);
    for (int t = 0; t < n; t++) {
        int order[MAX_EXPERT];
        for (int e = 0; e < n_expert; e++) {
            const int other = (int)test_below(rng, (uint32_t)e + 1);
            order[e] = order[other];
            order[other] = e;
        }
        for (int r = 0; r < k; r++) ids[t * k + r] = order[r];
    }
    return ids;
}

static reference shared_reference(quant_type type, int rows, int cols, test_rng *rng)
{
    reference t = reference_make(type, rows, cols, WEIGHTS_PLAUSIBLE, 1.0f, false, rng);
    t.gpu.scale = 3.0f * unit_scale(t.cpu.data, type, cols);
    return t;
}

/* The bias of a choice, and the keys that it gives. */
static const float *set_keys(batch *b, const float *logits, size_t n_logit, test_rng *rng)
{
    const router_rule sigmoid = { .score = ROUTER_SIGMOID, .as_scored = true };
    const size_t n_expert = (size_t)b->l->c->n_expert;
    const float *bias = host_floats(n_expert, 0.2f, rng);
    float *keys = host_room(n_logit, sizeof *keys);
    int32_t id;
    for (size_t i = 0; i < n_logit; i++) {
        router_select(&id, &keys[i], &logits[i], 1, 1, &sigmoid);
        keys[i] += bias[i % n_expert];
    }
    b->args.keys = vram_floats(keys, n_logit);
    b->args.rule.bias = vram_floats(bias, n_expert);
    return bias;
}

static void set_choice(batch *b, test_rng *rng)
{
    const split_case *c = b->l->c;
    const size_t slots = (size_t)(b->n * c->k), n_logit = (size_t)(b->n * c->n_expert);
    b->ids = choose(b->n, c->k, c->n_expert, rng);
    b->gates = host_floats(slots, 1.0f, rng);
    if (!c->by_logits) {
        b->args.ids = vram_copy(b->ids, slots * sizeof *b->ids);
        b->args.gates = vram_floats(b->gates, slots);
        return;
    }
    float *logits = host_floats(n_logit, 3.0f, rng);
    router_rule rule = { .score = c->scored ? ROUTER_SIGMOID : ROUTER_SOFTMAX };
    if (c->scored && c->n_expert % 16 == 0) rule.bias = set_keys(b, logits, n_logit, rng);
    for (int t = 0; t < b->n; t++)
        router_select(b->ids + t * c->k, b->gates + t * c->k, logits + t * c->n_expert, c->n_expert,
                      c->k, &rule);
    b->args.logits = vram_floats(logits, n_logit);
    b->args.rule.sigmoid = c->scored;
}

static void batch_make(batch *b, const layer *l, int n, test_rng *rng)
{
    const split_case *c = l->c;
    const size_t width = (size_t)n * (size_t)c->n_embd;
    b->l = l;
    b->n = n;
    b->residual = host_floats(width, 1.0f, rng);
    for (int i = 0; i < QUESTIONS; i++) b->input[i] = host_floats(width, 1.0f, rng);
    b->in = (gpu_input){
        .kind = c->norm ? GPU_NORM : GPU_PLAIN, .n = n, .cols = c->n_embd, .eps = 1e-6f,
        .x = vram_room(width * sizeof(float)),
        .weight = vram_floats(host_floats((size_t)c->n_embd, 1.5f, rng), (size_t)c->n_embd),
        .rows = vram_room(width * sizeof(float)),
        .blocks = vram_room((size_t)n * gpu_blocks_bytes(c->n_embd)),
    };
    b->args = (gpu_expert_args){
        .x = vram_floats(b->residual, width), .gate = l->all[GATE], .up = l->all[UP],
        .down = l->all[DOWN], .act = c->act, .n_expert = c->n_expert, .k = c->k,
        .scratch = vram_room(gpu_expert_scratch(device(), n, c->k, c->n_expert,
                                                c->shared_ff > c->n_ff ? c->shared_ff : c->n_ff,
                                                c->n_embd)),
        .y = vram_room(width * (size_t)c->k * sizeof(float)),
    };
    set_choice(b, rng);
    if (c->shared_ff) {
        b->args.shared_gate = shared_reference(c->shared_up, c->shared_ff, c->n_embd, rng).gpu;
        b->args.shared_up = shared_reference(c->shared_up, c->shared_ff, c->n_embd, rng).gpu;
        b->args.shared_down = shared_reference(c->shared_down, c->n_embd, c->shared_ff, rng).gpu;
        b->args.sigma = vram_floats(host_floats((size_t)n, 1.0f, rng), (size_t)n);
    }
}

/* A network without relation to the experts, and its output without them. */
static void set_parallel(batch *b, test_rng *rng)
{
    const split_case *c = b->l->c;
    const size_t width = (size_t)b->n * (size_t)c->n_embd;
    b->parallel_in = (gpu_input){
        .kind = GPU_PLAIN, .n = b->n, .cols = c->n_embd,
        .x = vram_floats(host_floats(width, 1.0f, rng), width),
        .rows = vram_room(width * sizeof(float)),
        .blocks = vram_room((size_t)b->n * gpu_blocks_bytes(c->n_embd)),
    };
    b->parallel = (gpu_network_args){
        .y = vram_room(width * sizeof(float)), .act = c->act,
        .gate = shared_reference(c->up, c->partial_ff, c->n_embd, rng).gpu,
        .up = shared_reference(c->up, c->partial_ff, c->n_embd, rng).gpu,
        .down = shared_reference(c->down, c->n_embd, c->partial_ff, rng).gpu,
        .scratch = vram_room(gpu_network_scratch(b->n, c->partial_ff, c->n_embd)),
    };
    gpu_network(device(), &b->parallel_in, &b->parallel);
    b->parallel_y = host_copy(b->parallel.y, width);
}

/* Clears the forms of the inputs and the output of the network. */
static void fresh_inputs(batch *b)
{
    const size_t bytes = (size_t)b->n * (size_t)b->l->c->n_embd * sizeof(float);
    b->in.has_rows = b->in.has_blocks = false;
    b->parallel_in.has_rows = b->parallel_in.has_blocks = false;
    if (b->parallel.y) vram_write(b->parallel.y, host_room(bytes, 1), bytes);
}

static void set_input(const batch *b, int i)
{
    vram_write((void *)b->in.x, b->input[i],
               (size_t)b->n * (size_t)b->l->c->n_embd * sizeof(float));
}

/* What it is with all experts in VRAM. */
static void compute_wanted(batch *b)
{
    const size_t width = (size_t)b->n * (size_t)b->l->c->n_embd;
    for (int i = 0; i < QUESTIONS; i++) {
        b->in.has_rows = b->in.has_blocks = false;
        set_input(b, i);
        gpu_experts(device(), &b->in, &b->args);
        b->rows[i] = host_copy(b->in.rows, width);
        b->y[i] = host_copy(b->args.y, width * (size_t)b->l->c->k);
    }
    b->x = host_copy(b->args.x, width);
}

/* ... which is what the CPU has, too, for the first question. */
static void check_wanted(const batch *b, host *h)
{
    const split_case *c = b->l->c;
    float *y = host_room((size_t)(b->n * c->k) * (size_t)c->n_embd, sizeof *y);
    contract_acts(&h->x, b->rows[0], b->n, c->n_embd, c->up);
    for (int i = 0; i < b->n * c->k; i++) {
        host_up(&h->work, b->l, b->ids[i], h->x.rows + i / c->k);
        host_down(y + (size_t)i * (size_t)c->n_embd, &h->work, b->l, b->ids[i]);
    }
    expect_bits("experts in VRAM", b->y[0], y, (size_t)(b->n * c->k) * (size_t)c->n_embd);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* HOT_TURNS: none for one question, all for the next: quiet layers between others. */
typedef enum hot_kind { HOT_ABSENT, HOT_NONE, HOT_SOME, HOT_ALL, HOT_TURNS } hot_kind;

typedef struct plan {                    /* of a case: how its layer is split */
    hot_kind hot;
    int down, all;                       /* cold experts to be fetched, if there are as many */
    int pad_down, pad_all;               /* both 0: no slabs are given */
    bool missing;                        /* some slabs are not in page-locked RAM */
    bool one_stream, table_in_vram;
    bool predicts;
    bool late;                          /* first a question that the host does not answer in time */
} plan;

/* What question i - 1 makes the device expect of question i. */
static void predict(division *d, const batch *b, int i)
{
    const split_case *c = b->l->c;
    const float *x = b->rows[i - 1];
    float logits[MAX_EXPERT], gates[GPU_MOST_USED];
    int32_t ids[GPU_MOST_USED];
    for (int e = 0; e < c->n_expert; e++) {
        double sum = 0;
        for (int j = 0; j < c->n_embd; j++)
            if (b->norm[j] != 0.0f)
                sum += (double)b->router[e * c->n_embd + j] * x[j] / b->norm[j] * b->next_norm[j];
        logits[e] = (float)sum;
    }
    router_select(ids, gates, logits, c->n_expert, c->k, &b->rule);
    for (int r = 0; r < c->k && d->n_predicted < GPU_MOST_PREDICTED; r++)
        if (!b->has_hot || d->hot[ids[r]] < 0) d->predicted[d->n_predicted++] = ids[r];
}

static void divide(batch *b, int i, const plan *p, test_rng *rng)
{
    division *d = &b->asked[i];
    for (int e = 0; e < b->l->c->n_expert; e++) {
        const bool hot = p->hot == HOT_ALL || (p->hot == HOT_SOME && test_below(rng, 2)) ||
                         (p->hot == HOT_TURNS && i % 2);
        d->hot[e] = hot ? b->l->place[e] : -1;
    }
    for (int m = 0; m < GPU_FETCH_COUNTS; m++) {
        d->fetch[GPU_FETCH_COUNTS + m] = (uint8_t)(p->all < m ? p->all : m);
        d->fetch[m] = (uint8_t)(p->down < m ? p->down : m);
    }
    if (p->predicts && i % 2) *d = b->asked[i - 1];      /* one map for both */
    d->n_predicted = 0;
    if (p->predicts && i % 2 && b->n == 1) predict(d, b, i);
    expect_where(d, b);
}

/* Biases that differ by more than scores do, so that small errors do not change the choice. */
static void set_rule(batch *b)
{
    const int n = b->l->c->n_expert;
    float *bias = host_room((size_t)n, sizeof *bias);
    b->rule = (router_rule){ .score = ROUTER_SOFTMAX };
    if (!b->l->c->scored) return;
    for (int e = 0; e < n; e++) bias[e] = 2.0f * (float)((e + n / 2) % n);
    b->rule = (router_rule){ .score = ROUTER_SIGMOID, .factor = 1.5f, .bias = bias };
    b->next.rule = (gpu_router_rule){ .sigmoid = true, .factor = 1.5f,
                                      .bias = vram_floats(bias, (size_t)n) };
}

/* One direction with a different length in every row: no two logits are near each other. */
static void set_predictions(batch *b, test_rng *rng)
{
    const size_t n_expert = (size_t)b->l->c->n_expert, n_embd = (size_t)b->l->c->n_embd;
    const float *along = host_floats(n_embd, 1.0f, rng);
    gpu_with_host *s = &b->split;
    gpu_predict *next = &b->next;
    b->router = host_room(n_expert * n_embd, sizeof *b->router);
    b->norm = host_floats(n_embd, 1.0f, rng);
    b->next_norm = host_floats(n_embd, 1.0f, rng);
    b->norm[test_below(rng, (uint32_t)n_embd)] = 0.0f;
    for (size_t e = 0; e < n_expert; e++)
        for (size_t c = 0; c < n_embd; c++)
            b->router[e * n_embd + c] = along[c] * (1.0f + (float)(e * 5 % n_expert));
    next->router = (gpu_matrix){ .type = QT_F32, .rows = (int)n_expert, .cols = (int)n_embd,
                                 .data = (void *)vram_floats(b->router, n_expert * n_embd),
                                 .row_bytes = n_embd * sizeof(float), .scale = 0.5f };
    set_rule(b);
    next->norm = vram_floats(b->norm, n_embd);
    next->next_norm = vram_floats(b->next_norm, n_embd);
    next->hot = s->hot;
    const size_t state = gpu_prediction_state((int)n_expert, (int)n_embd, 2);
    s->prediction_state = vram_copy(host_room(state, 1), state);
}

static bool set_split(batch *b, const plan *p, test_rng *rng)
{
    const split_case *c = b->l->c;
    const size_t n_expert = (size_t)c->n_expert, table = 3 * n_expert * sizeof *b->slabs;
    gpu_with_host *s = &b->split;
    err_ctx err = { 0 };
    const uint32_t zero = 0;

    if (!expect(gpu_mailbox_create(&s->mailbox, device(), c->n_embd, c->n_ff, c->k, &err) == 0,
                "%s", err.msg))
        return false;
    b->slabs = locked_room(table);
    for (size_t e = 0; e < n_expert; e++)
        for (int i = 0; i < SLABS; i++)
            b->slabs[3 * e + (size_t)i] = p->missing && test_below(rng, 4) == 0
                                              ? 0 : (uint64_t)(uintptr_t)b->l->slab[e][i].data;
    b->has_hot = p->hot != HOT_ABSENT;
    s->number = vram_copy(&zero, sizeof zero);
    s->hot = b->has_hot ? vram_room(n_expert * sizeof *s->hot) : NULL;
    s->chosen = locked_room((size_t)(b->n * c->k) * sizeof *s->chosen);
    s->fetch = vram_room(FETCH_TABLE);
    s->pad_down = p->pad_down;
    s->pad_all = p->pad_all;
    s->one_stream = p->one_stream;
    if (p->pad_down + p->pad_all > 0) {
        s->slabs = p->table_in_vram ? vram_copy(b->slabs, table) : b->slabs;
        s->pad = vram_room(gpu_with_host_pad(&b->args, p->pad_down, p->pad_all));
    }
    const size_t scratch = gpu_with_host_scratch(c->k, c->n_ff, c->n_embd);
    s->scratch = vram_copy(host_room(scratch, 1), scratch);
    if (p->predicts) set_predictions(b, rng);
    for (int i = 0; i < QUESTIONS; i++) divide(b, i, p, rng);
    return true;
}

static void set_division(const batch *b, int i)
{
    const division *d = &b->asked[i];
    set_input(b, i);
    if (b->has_hot)
        vram_write((void *)b->split.hot, d->hot, (size_t)b->l->c->n_expert * sizeof d->hot[0]);
    vram_write((void *)b->split.fetch, d->fetch, sizeof d->fetch);
    b->split.mailbox->fetch_ns = 0;
    memset(b->split.chosen, 0xFF, (size_t)(b->n * b->l->c->k) * sizeof *b->split.chosen);
}

/* The number and the choices are written, quiet or not. */
static void check_log(const batch *b, int i)
{
    const division *d = &b->asked[i];
    const uint32_t number = (uint32_t)i + 1, asked = b->split.mailbox->asked;
    const uint32_t code = d->quiet ? GPU_QUIET : 0;
    expect(asked == number * GPU_CODES + code, "question %d: asked %u", i + 1, (unsigned)asked);
    for (int slot = 0; slot < b->n * b->l->c->k; slot++) {
        const uint32_t want = (uint32_t)b->ids[slot] | (uint32_t)d->where[slot] << 16;
        expect(b->split.chosen[slot] == want, "question %d, slot %d: logged %x, expected %x", i + 1,
               slot, (unsigned)b->split.chosen[slot], (unsigned)want);
    }
}

static void check_fetching(const batch *b, int i)
{
    const gpu_mailbox *m = b->split.mailbox;
    int n = 0;
    if (b->n > 1 || !b->split.slabs) return;
    for (int slot = 0; slot < b->l->c->k; slot++) {
        const bool fetched = b->asked[i].where[slot] == GPU_FETCHED ||
                             b->asked[i].where[slot] == GPU_COLD_FETCHED;
        n += fetched;
        expect((m->fetched[slot] == (uint32_t)i + 1) == fetched, "question %d, slot %d: fetched "
               "says %u", i + 1, slot, (unsigned)m->fetched[slot]);
    }
    expect((m->fetch_ns > 0) == (n > 0), "question %d: %d fetched in %llu ns", i + 1, n,
           (unsigned long long)m->fetch_ns);
}

static void check_result(const batch *b, int i, const char *what, const float *y)
{
    const size_t all = (size_t)(b->n * b->l->c->k) * (size_t)b->l->c->n_embd;
    const size_t width = all / (size_t)b->l->c->k;
    if (y) expect_bits(what, host_copy(y, all), b->y[i], all);
    if (b->parallel.y)
        expect_bits("parallel network", host_copy(b->parallel.y, width), b->parallel_y, width);
}

/* The prediction for the next question arrives within the limit. */
static void check_predicted(const batch *b, const division *d, uint32_t number)
{
    const uint64_t from = clock_ns();
    int32_t ids[GPU_MOST_PREDICTED];
    uint64_t got = 0;
    while (got >> GPU_PREDICTED_NUMBER != number && clock_since(from) < 10) {
        got = __atomic_load_n(&b->split.mailbox->predicted, __ATOMIC_ACQUIRE);
        sched_yield();
    }
    const int n = gpu_predicted(ids, got, number);
    expect(n == d->n_predicted && memcmp(ids, d->predicted, (size_t)n * sizeof *ids) == 0 &&
           gpu_predicted(ids, got, number + 1) == 0, "%d experts predicted, expected %d: %llx", n,
           d->n_predicted, (unsigned long long)got);
}

/* Pairs of questions, of which the second is the next layer's: one pair directly, one recorded and
 * played. */
static void run_pairs(batch *b, gpu_expert_args *args)
{
    gpu_with_host layers[2] = { b->split, b->split };
    gpu_recording *r = NULL;
    err_ctx err = { 0 };
    layers[0].next = b->next;
    layers[1].prediction_layer = 1;
    layers[1].closes = true;
    for (int i = 0; i < 2; i++) {
        set_division(b, i);
        fresh_inputs(b);
        gpu_experts_with_host(device(), &b->in, args, &layers[i]);
        expect(gpu_wait(device(), &err) == 0, "%s", err.msg);
        if (i == 0 && b->n == 1) check_predicted(b, &b->asked[1], 2);
        check_result(b, i, "experts", args->y);
        check_fetching(b, i);
        check_log(b, i);
    }
    int rc = gpu_recording_create(&r, &err);
    if (rc == 0) rc = gpu_record_begin(device(), &err);
    for (int i = 0; i < 2 && rc == 0; i++) {
        b->in.has_rows = b->in.has_blocks = false;
        b->parallel_in.has_rows = b->parallel_in.has_blocks = false;
        gpu_experts_with_host(device(), &b->in, args, &layers[i]);
    }
    if (rc == 0) rc = gpu_record_end(r, device(), &err);
    expect(rc == 0, "%s", err.msg);
    set_division(b, 2);
    gpu_replay(device(), r);
    expect(gpu_wait(device(), &err) == 0, "%s", err.msg);
    check_result(b, 3, "experts, played", args->y);
    check_log(b, 3);
    gpu_recording_free(r);
}

/* Once directly, then recorded and played; the split changes each time. */
static void run_questions(batch *b, gpu_expert_args *args)
{
    const size_t all = (size_t)(b->n * b->l->c->k) * (size_t)b->l->c->n_embd;
    gpu_recording *r = NULL;
    err_ctx err = { 0 };

    set_division(b, 0);
    fresh_inputs(b);
    gpu_experts_with_host(device(), &b->in, args, &b->split);
    expect(gpu_wait(device(), &err) == 0, "%s", err.msg);
    check_result(b, 0, "experts", args->y);
    check_fetching(b, 0);
    check_log(b, 0);

    fresh_inputs(b);
    int rc = gpu_recording_create(&r, &err);
    if (rc == 0) rc = gpu_record_begin(device(), &err);
    if (rc == 0) gpu_experts_with_host(device(), &b->in, args, &b->split);
    if (rc == 0) rc = gpu_record_end(r, device(), &err);
    expect(rc == 0, "%s", err.msg);
    for (int i = 1; i < QUESTIONS; i++) {
        set_division(b, i);
        if (args->y) vram_write(args->y, host_room(all, sizeof(float)), all * sizeof(float));
        gpu_replay(device(), r);
        expect(gpu_wait(device(), &err) == 0, "%s", err.msg);
        check_result(b, i, "experts, played", args->y);
        check_fetching(b, i);
        check_log(b, i);
    }
    gpu_recording_free(r);
}

/* Two questions without a host: the device reports that once it is waited for, and runs on. Then as
 * if nothing had been asked. */
static void ask_in_vain(batch *b, const gpu_expert_args *args, const plan *p)
{
    const uint32_t zero = 0;
    const uint64_t limit_ns = 20000000, default_ns = 20000000000, from = clock_ns();
    const int before = gpu_recoveries(device());
    gpu_expert_args vain = *args;
    err_ctx err = { 0 };
    if (!p->late) return;
    vain.x = vram_floats(b->residual, (size_t)b->n * (size_t)b->l->c->n_embd);
    set_division(b, 0);
    gpu_set_host_limit(device(), limit_ns);
    for (int i = 0; i < 2; i++) {
        fresh_inputs(b);
        gpu_experts_with_host(device(), &b->in, &vain, &b->split);
    }
    expect(gpu_wait(device(), &err) == ERR_IO && strstr(err.msg, "did not answer"),
           "the device waited: %s", err.msg);
    expect(clock_since(from) < 10, "it took %.1f s", clock_since(from));
    expect(b->split.mailbox->asked / GPU_CODES == 2, "asked %u", (unsigned)b->split.mailbox->asked);
    expect(gpu_wait(device(), &err) == ERR_IO, "reported once only");
    gpu_recover(device());
    gpu_set_host_limit(device(), default_ns);
    expect(gpu_wait(device(), &err) == 0 && gpu_recoveries(device()) == before + 1, "%s", err.msg);
    vram_write(b->split.number, &zero, sizeof zero);
    b->split.mailbox->asked = b->split.mailbox->answered = 0;
    memset((void *)b->split.mailbox->fetched, 0, sizeof b->split.mailbox->fetched);
}

static void check_split(const split_case *c, const plan *p, int n, bool with_y, test_rng *rng)
{
    const size_t width = (size_t)n * (size_t)c->n_embd;
    batch *b = host_room(1, sizeof *b);
    host *h = host_room(1, sizeof *h);
    pthread_t thread;

    batch_make(b, layer_make(c, rng), n, rng);
    if (p->predicts) memcpy(b->input[3], b->input[2], width * sizeof(float));    /* one recording */
    compute_wanted(b);
    *h = (host){ .b = b, .rng = { test_rand(rng) }, .work = bench_make(c) };
    acts_init(&h->x, host_room(acts_bytes(n, c->n_embd), 1), n, c->n_embd);
    check_wanted(b, h);
    if (!set_split(b, p, rng)) return;

    gpu_expert_args args = b->args;
    args.gate = b->l->mixed[GATE];
    args.up = b->l->mixed[UP];
    args.down = b->l->mixed[DOWN];
    if (!b->has_hot) args.gate.data = args.up.data = args.down.data = NULL;
    args.x = vram_floats(b->residual, width);
    args.y = with_y ? vram_room(width * (size_t)c->k * sizeof(float)) : NULL;
    args.scratch = vram_room(gpu_expert_scratch(device(), n, c->k, c->n_expert,
                                                c->shared_ff > c->n_ff ? c->shared_ff : c->n_ff,
                                                c->n_embd));
    vram_write(b->in.rows, host_room(width, sizeof(float)), width * sizeof(float));
    if (c->partial_ff) {
        set_parallel(b, rng);
        b->split.parallel_in = &b->parallel_in;
        b->split.parallel = &b->parallel;
    }
    ask_in_vain(b, &args, p);
    if (expect(pthread_create(&thread, NULL, host_main, h) == 0, "no thread")) {
        (p->predicts ? run_pairs : run_questions)(b, &args);
        pthread_join(thread, NULL);
        expect(h->complaint[0] == 0, "%s", h->complaint);
        expect_bits("stream", host_copy(args.x, width), b->x, width);
        expect(!gpu_alive(device()), "nothing runs, but it says so");
    }
    gpu_mailbox_free(device(), b->split.mailbox);
}

static const char *const hot_names[] = { "no places", "none hot", "some hot", "all hot",
                                         "none or all hot" };

static void run_case(const split_case *c, const plan *p, int n, bool with_y, test_rng *rng)
{
    shared_text text;
    const char *shared = shared_name(text, c->shared_up, c->shared_down, c->shared_ff);
    case_begin("%s/%s, %d, %d, %d of %d experts, %d tokens%s%s%s%s%s%s; %s, fetch %d down and %d "
               "of %d and %d%s%s%s%s",
               quant_name(c->up), quant_name(c->down), c->n_embd, c->n_ff, c->k, c->n_expert, n,
               act_name(c->act), c->bias ? ", biases" : "", c->norm ? ", norm" : "",
               c->by_logits ? ", by logits" : "", c->scored ? ", scored" : "", shared,
               hot_names[p->hot], p->down, p->all, p->pad_down, p->pad_all,
               p->missing ? ", some missing" : "", p->one_stream ? ", one stream" : "",
               p->predicts ? ", predictions" : "", p->late ? ", a late host first" : "");
    check_split(c, p, n, with_y, rng);
    locked_drop();
    case_end();
}

static const plan plans[] = {
    { HOT_SOME, 32, 0, 4, 0, .missing = false },
    { HOT_ABSENT, 0, 0, 0, 0, .missing = false },
    { HOT_NONE, 1, 1, 4, 4, .table_in_vram = true },
    { HOT_ALL, 32, 32, 4, 4, .missing = false },
    { HOT_SOME, 0, 32, 0, 4, .one_stream = true },
    { HOT_NONE, 2, 1, 1, 1, .missing = true },
    { HOT_ABSENT, 32, 0, 3, 0, .one_stream = true },
    { HOT_ABSENT, 0, 2, 2, 2, .missing = true },
    { HOT_NONE, 0, 0, 2, 2, .missing = false },
    { HOT_TURNS, 1, 1, 2, 2, .one_stream = true },
    { HOT_NONE, 1, 1, 2, 2, .predicts = true },
    { HOT_SOME, 1, 0, 2, 0, .missing = true, .predicts = true },
    { HOT_ABSENT, 0, 0, 1, 0, .predicts = true },
    { HOT_SOME, 0, 0, 0, 0, .predicts = true },
};

static void set_shape(split_case *c, quant_type type, int i)
{
    expert_shape(&c->n_embd, &c->n_ff, type, i);
    c->up = c->down = type;
    c->n_expert = 8;
    c->k = 4;
}

/* Every type with every plan for one token, and some for more. */
static void test_types(void)
{
    test_rng rng = { 21 };
    for (int i = 0; i < GPU_TYPE_COUNT; i += sim_gpu_step(4, 12)) {
        const quant_type type = gpu_types[i];
        family(test_path((char[64]){ 0 }, 64, "%s experts in two places", quant_name(type)));
        for (int option = 0; option < (int)ARRAY_LEN(plans); option++) {
            if (sim_gpu_skips(option + i / 4, 5)) continue;
            split_case c = { .act = (option + i) % ACT_COUNT, .bias = option & 2,
                             .by_logits = option & 4, .scored = option % 2 == 0,
                             .norm = option % 3 == 0 };
            set_shape(&c, type, option % 2);
            run_case(&c, &plans[option], 1, option % 4 != 3, &rng);
            if (option % 3 == 0)
                run_case(&c, &plans[option], 2 + (i + option) % (GPU_MAIL - 1), true, &rng);
        }
    }
}

/* Mixed types, shared experts as slots and apart, many choices, odd widths. */
static void test_special(void)
{
    static const split_case special[] = {
        { QT_Q4_K, QT_Q6_K, 512, 256, 16, 10, .by_logits = true },
        { QT_Q8_0, QT_F16, 96, 96, 8, 4, .bias = true },
        { QT_F16, QT_Q8_0, 100, 96, 8, 4, .norm = true },
        { QT_F32, QT_BF16, 33, 50, 8, 4, .bias = true },
        { QT_Q8_0, QT_Q8_0, 64, 64, 40, 32, .by_logits = true },
        { QT_Q8_0, QT_Q8_0, 64, 64, 1, 1, .act = GPU_SWIGLU },
        { QT_Q4_K, QT_Q6_K, 512, 256, 8, 4, .shared_ff = 256, .shared_up = QT_Q4_K,
          .shared_down = QT_Q6_K },
        { QT_Q4_K, QT_Q4_K, 256, 256, 8, 4, .shared_ff = 256, .shared_up = QT_Q8_0,
          .shared_down = QT_F16, .by_logits = true },
        { QT_Q8_0, QT_Q8_0, 288, 96, 8, 4, .bias = true, .shared_ff = 192, .shared_up = QT_Q8_0,
          .shared_down = QT_Q8_0 },
        { QT_F32, QT_F32, 100, 70, 8, 4, .shared_ff = 70, .shared_up = QT_F32,
          .shared_down = QT_F32 },
        { QT_F32, QT_F32, 96, 64, 8, 4, .shared_ff = 130, .shared_up = QT_F32,
          .shared_down = QT_F32 },
        { QT_Q8_0, QT_Q8_0, 64, 64, 40, 32, .shared_ff = 64, .shared_up = QT_Q8_0,
          .shared_down = QT_Q8_0 },
        { QT_Q8_0, QT_Q8_0, 256, 96, 8, 4, .act = GPU_GEGLU, .by_logits = true, .partial_ff = 288 },
        { QT_F32, QT_F32, 100, 70, 8, 4, .act = GPU_GEGLU, .norm = true, .partial_ff = 130 },
        { QT_Q4_K, QT_Q4_K, 256, 1280, 8, 4, .by_logits = true, .scored = true },
        { QT_F16, QT_Q4_K, 2117, 1280, 4, 2, .by_logits = true },
        { QT_Q4_K, QT_Q5_0, 256, 1408, 16, 8, .shared_ff = 1408, .shared_up = QT_Q4_K,
          .shared_down = QT_Q5_0, .by_logits = true, .scored = true },
    };
    test_rng rng = { 22 };
    int option = 0;
    family("special experts in two places");
    for (size_t i = 0; i < ARRAY_LEN(special); i += (size_t)sim_gpu_step(test_rounds(1, 6), 6)) {
        for (size_t p = 0; p < ARRAY_LEN(plans); p++, option++)
            if (!sim_gpu_skips((int)(i + p), (int)ARRAY_LEN(plans)))
                run_case(&special[i], &plans[p], 1, option % 4 != 3, &rng);
        for (int n = 2; n <= GPU_MAIL; n += 3, option++)
            if (!sim_gpu_skips((int)i + n / 3, 3))
                run_case(&special[i], &plans[option % (int)ARRAY_LEN(plans)], n, option % 4 != 3,
                         &rng);
    }
}

/* A host that was stopped: with slabs that are fetched in a stream of their own, in one stream, and
 * for more tokens. */
static void test_late(void)
{
    static const plan late[] = {
        { HOT_ABSENT, 0, 0, 0, 0, .late = true },
        { HOT_NONE, 1, 1, 4, 4, .late = true },
        { HOT_NONE, 2, 0, 4, 0, .one_stream = true, .late = true },
    };
    test_rng rng = { 23 };
    family("a late host");
    for (size_t i = 0; i < ARRAY_LEN(late); i++) {
        const split_case c = { QT_Q8_0, QT_Q8_0, 64, 64, 8, 4, .by_logits = i == 0 };
        run_case(&c, &late[i], 1, true, &rng);
        if (i == 0) run_case(&c, &late[i], 3, true, &rng);
    }
}

/* Invalid arguments are refused before a question is asked. */
static void test_refused(void)
{
    static const struct { int n, n_embd, n_ff; const char *why; } bad[] = {
        { GPU_MAIL + 1, 64, 64, "too many tokens" }, { 0, 64, 64, "no token" },
        { 1, 32, 64, "mail for other vectors" }, { 1, 64, 32, "mail for other activations" },
    };
    family("no such split");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        gpu *other = NULL;
        err_ctx err = { 0 };
        float word;
        gpu_with_host s = { 0 };
        gpu_input in = { .n = bad[i].n, .cols = 64, .rows = &word, .blocks = &word };
        gpu_expert_args a = { .n_expert = 8, .k = 2 };
        a.gate.rows = a.up.rows = a.down.cols = a.gate.cols = a.up.cols = a.down.rows = 64;
        case_begin("%s", bad[i].why);
        if (expect(gpu_open(&other, 0, &err) == 0 &&
                       gpu_mailbox_create(&s.mailbox, other, bad[i].n_embd, bad[i].n_ff, 2, &err) ==
                           0,
                   "%s", err.msg)) {
            gpu_experts_with_host(other, &in, &a, &s);
            expect(s.mailbox->asked == 0, "asked");
            expect(!gpu_alive(other), "alive");
            expect(gpu_wait(other, &err) < 0, "not refused");
            gpu_mailbox_free(other, s.mailbox);
        }
        gpu_close(other);
        case_end();
    }
}

int main(int argc, char **argv)
{
    test_begin("gpu experts with host", argc, argv);
    if (device_open()) {
        test_types();
        test_special();
        test_late();
        test_refused();
        device_close();
    }
    return test_end();
}
