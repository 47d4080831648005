/* sim_gpu_experts_with_host.c - a layer with cold experts on the host: the device's side of the
 * mailbox.
 *
 * The steps of cuda/experts_with_host.cu, one after the other on the stream's thread, while the
 * host has its own: ask, pull, up, answer, down. The device writes `asked` after the whole
 * question, and reads nothing of the reply before `answered` has the same number. A quiet layer
 * writes only its vectors and its number, and does not wait. Predictions are made at a layer's end;
 * one in five comes too late. */
#include "tests/sim_gpu_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "moe/router.h"

enum { LINE = 128, SPINS = 200, YIELDS = 2000 };

/* ---- mail ------------------------------------------------------------------------------------ */

static uint64_t round_up(uint64_t bytes) { return size_align(bytes, 256); }

int gpu_mailbox_create(gpu_mailbox **out, gpu *g, int n_embd, int n_ff, int k, err_ctx *err)
{
    const uint64_t slots = (uint64_t)GPU_MAIL * (uint64_t)k;
    const uint64_t x = round_up(sizeof(gpu_mailbox));
    const uint64_t y = x + round_up((uint64_t)GPU_MAIL * (uint64_t)n_embd * sizeof(float));
    const uint64_t rows = y + round_up(slots * (uint64_t)n_embd * sizeof(float));
    const uint64_t mid = rows + round_up(slots * (uint64_t)n_ff * sizeof(float));
    const uint64_t bytes = mid + round_up(slots * gpu_blocks_bytes(n_ff));
    uint8_t *p = gpu_alloc_host(g, bytes, err);

    *out = NULL;
    if (!p) return ERR_NOMEM;
    gpu_mailbox *m = memset(p, 0, (size_t)bytes);
    m->x = (float *)(void *)(p + x);
    m->y = (float *)(void *)(p + y);
    m->mid_rows = (float *)(void *)(p + rows);
    m->mid = p + mid;
    m->n_embd = n_embd;
    m->n_ff = n_ff;
    *out = m;
    return 0;
}

void gpu_mailbox_free(gpu *g, gpu_mailbox *m) { gpu_free_host(g, m); }

void gpu_mailbox_put_mid(gpu_mailbox *m, int slot, const int8_t *q, const float *dx,
                         const int16_t *sums)
{
    sim_blocks_put(m->mid + (size_t)slot * gpu_blocks_bytes(m->n_ff), m->n_ff, q, dx, sums);
}

/* ---- rooms ----------------------------------------------------------------------------------- */

/* The pad for fetched slabs: first whole experts, then down slabs alone. A slab begins at the same
 * offset within a line as in RAM. */
typedef struct pad_view { uint64_t gate, up, down; } pad_view;   /* bytes of a slab in the pad */

static uint64_t slab_bytes(const gpu_bank *b) { return (uint64_t)b->rows * b->row_bytes; }
static uint64_t slab_room(uint64_t bytes) { return round_up(bytes + LINE - 1 + 15); }

static pad_view pad_of(const gpu_expert_args *a)
{
    return (pad_view){ slab_room(slab_bytes(&a->gate)), slab_room(slab_bytes(&a->up)),
                       slab_room(slab_bytes(&a->down)) };
}

size_t gpu_with_host_pad(const gpu_expert_args *a, int pad_down, int pad_all)
{
    const pad_view p = pad_of(a);
    return (size_t)((uint64_t)pad_all * (p.gate + p.up + p.down) + (uint64_t)pad_down * p.down);
}

bool gpu_prediction_fits(int router_type) { return sim_is_float(router_type); }

/* Nothing is kept in these two here; they have sizes so that a caller that gives too little
 * fails. */
size_t gpu_prediction_state(int n_expert, int n_embd, int n_layer)
{
    (void)n_embd, (void)n_layer;
    return (size_t)round_up((uint64_t)n_expert * sizeof(float));
}

size_t gpu_with_host_scratch(int k, int n_ff, int n_embd)
{
    (void)n_ff;
    return (size_t)round_up((uint64_t)GPU_MAIL * (uint64_t)k * (uint64_t)n_embd * sizeof(float));
}

/* ---- a question ------------------------------------------------------------------------------ */

typedef struct slot {                    /* one choice of one token */
    int id;
    gpu_where where;
    const uint8_t *at[3];                /* gate, up, down in VRAM, if the device reads them */
    const uint8_t *from[3];              /* page-locked RAM that they are fetched from */
    float weight;
    bool host_made;                      /* the vector is in the mailbox */
} slot;

typedef struct split_call {
    gpu_input in;
    gpu_expert_args a;
    gpu_with_host s;
    bool fetches, predicts;
} split_call;

/* The state of a question. */
typedef struct question {
    const split_call *c;
    uint32_t number;
    slot slots[GPU_MOST_CHOICES];
    float *mid;                          /* [slot, n_ff] of those that the device computes */
    float *y;                            /* [slot, n_embd] */
    bool quiet;
} question;

static int slot_count(const split_call *c) { return c->in.n * c->a.k; }

/* The first cold ones are fetched whole, of the next ones the down slab, as far as slabs are in
 * page-locked RAM and the pad has room. */
static void decide_fetch(slot *slots, const split_call *c)
{
    const gpu_with_host *s = &c->s;
    const pad_view pad = pad_of(&c->a);
    const uint64_t whole = pad.gate + pad.up + pad.down;
    int m = 0, rank_all = 0, rank_down = 0;
    for (int r = 0; r < c->a.k; r++) m += slots[r].where == GPU_COLD;
    if (m == 0) return;
    const int n_all = min_int(s->fetch[GPU_FETCH_COUNTS + m], s->pad_all);
    const int n_down = min_int(s->fetch[m], s->pad_down);
    for (int r = 0; r < c->a.k; r++) {
        slot *p = &slots[r];
        if (p->where != GPU_COLD) continue;
        const uint64_t *from = s->slabs + (size_t)p->id * 3;
        for (int i = 0; i < 3; i++) p->from[i] = (const uint8_t *)(uintptr_t)from[i];
        if (from[0] && from[1] && from[2] && rank_all < n_all) {
            const uint8_t *room = s->pad + (uint64_t)rank_all++ * whole;
            p->where = GPU_FETCHED;
            p->at[0] = room + from[0] % LINE;
            p->at[1] = room + pad.gate + from[1] % LINE;
            p->at[2] = room + pad.gate + pad.up + from[2] % LINE;
        } else if (from[2] && rank_down < n_down) {
            p->where = GPU_COLD_FETCHED;
            p->at[2] = s->pad + (uint64_t)s->pad_all * whole + (uint64_t)rank_down++ * pad.down +
                       from[2] % LINE;
        }
    }
}

/* Where a hot expert's slabs are. False: not in VRAM. */
static bool find_hot(gpu *g, slot *p, const gpu_expert_args *a, int place)
{
    const gpu_bank *banks[3] = { &a->gate, &a->up, &a->down };
    for (int i = 0; i < 3; i++) {
        p->at[i] = banks[i]->data + (uint64_t)place * banks[i]->slab_bytes;
        if (!banks[i]->data || !sim_in_vram(g, p->at[i], slab_bytes(banks[i]))) {
            sim_fail(g, "split layer: expert %d is at place %d, which is not in VRAM", p->id,
                     place);
            return false;
        }
    }
    return true;
}

static bool place_token(gpu *g, slot *slots, const split_call *c, int t)
{
    int32_t ids[GPU_MOST_USED];
    float gates[GPU_MOST_USED];
    if (!sim_choose(g, ids, gates, &c->a, t)) return false;
    for (int r = 0; r < c->a.k; r++) {
        const int place = c->s.hot ? c->s.hot[ids[r]] : -1;
        slots[r] = (slot){ .id = ids[r], .where = place < 0 ? GPU_COLD : GPU_HOT,
                           .weight = gates[r] };
        if (place >= 0 && !find_hot(g, &slots[r], &c->a, place)) return false;
    }
    if (c->fetches) decide_fetch(slots, c);
    return true;
}

static void log_choices(const question *q)
{
    const split_call *c = q->c;
    for (int i = 0; i < slot_count(c) && c->s.chosen; i++)
        c->s.chosen[i] = (uint32_t)q->slots[i].id | (uint32_t)q->slots[i].where << 16;
}

static bool ask(gpu *g, question *q, const float *rows)
{
    const split_call *c = q->c;
    gpu_mailbox *m = c->s.mailbox;
    for (int t = 0; t < c->in.n; t++)
        if (!place_token(g, q->slots + t * c->a.k, c, t)) return false;
    q->number = *c->s.number = (*c->s.number + 1) & GPU_NUMBERS;
    q->quiet = true;
    for (int i = 0; i < slot_count(c); i++) q->quiet &= q->slots[i].where == GPU_HOT;
    const bool early = !q->quiet || c->s.closes;         /* otherwise the host may not read yet */
    if (early) log_choices(q);
    memcpy(m->x, rows, (size_t)c->in.n * (size_t)c->in.cols * sizeof *rows);
    if (q->quiet) {
        __atomic_store_n(&m->asked, q->number * GPU_CODES + GPU_QUIET, __ATOMIC_RELEASE);
        if (!early) log_choices(q);
        return true;
    }
    for (int i = 0; i < slot_count(c); i++) {
        m->ids[i] = q->slots[i].id;
        m->where[i] = (uint8_t)q->slots[i].where;
    }
    m->n = c->in.n;
    m->k = c->a.k;
    __atomic_store_n(&m->asked, q->number * GPU_CODES, __ATOMIC_RELEASE);
    return true;
}

/* ---- fetching -------------------------------------------------------------------------------- */

static bool pull_slab(gpu *g, const slot *p, int i, uint64_t bytes)
{
    if (!sim_is_reachable(g, p->from[i], bytes)) {
        sim_fail(g, "split layer: slab %d of expert %d is not in page-locked RAM", i, p->id);
        return false;
    }
    memcpy((uint8_t *)p->at[i], p->from[i], (size_t)bytes);
    return true;
}

/* Down slabs first: the host looks for those as soon as it is done with their gate and up. */
static bool pull(gpu *g, const question *q)
{
    const split_call *c = q->c;
    const uint64_t bytes[3] = { slab_bytes(&c->a.gate), slab_bytes(&c->a.up),
                                slab_bytes(&c->a.down) };
    static const gpu_where order[] = { GPU_COLD_FETCHED, GPU_FETCHED };
    const uint64_t from = clock_ns();
    int n = 0;
    for (int w = 0; w < 2; w++)
        for (int r = 0; r < c->a.k; r++) {
            const slot *p = &q->slots[r];
            if (p->where != order[w]) continue;
            for (int i = p->where == GPU_FETCHED ? 0 : 2; i < 3; i++)
                if (!pull_slab(g, p, i, bytes[i])) return false;
            __atomic_store_n(&c->s.mailbox->fetched[r], q->number, __ATOMIC_RELEASE);
            n++;
        }
    if (n) __atomic_store_n(&c->s.mailbox->fetch_ns, clock_ns() - from + 1, __ATOMIC_RELEASE);
    return true;
}

/* ---- gate and up ----------------------------------------------------------------------------- */

static void run_up(const question *q, const sim_vectors *x)
{
    const split_call *c = q->c;
    for (int i = 0; i < slot_count(c); i++) {
        const slot *p = &q->slots[i];
        if (p->where == GPU_COLD || p->where == GPU_COLD_FETCHED) continue;
        const sim_expert e = { sim_slab(&c->a.gate, p->id, p->at[0]),
                               sim_slab(&c->a.up, p->id, p->at[1]), { 0 } };
        float *mid = q->mid + (size_t)i * (size_t)c->a.gate.rows;
        sim_expert_up(&mid, &e, x->a.rows + i / c->a.k, 1, c->a.act);
    }
}

/* ---- the reply ------------------------------------------------------------------------------- */

/* After the limit the device uses an old reply. */
static bool await_answer(gpu *g, const question *q)
{
    const uint64_t from = clock_ns();
    const struct timespec nap = { 0, 20000 };
    for (int i = 1; __atomic_load_n(&q->c->s.mailbox->answered, __ATOMIC_ACQUIRE) != q->number;
         i++) {
        if (i < SPINS) {
            pool_relax();
            continue;
        }
        if (i < YIELDS) sched_yield();   /* the host may need this core */
        else nanosleep(&nap, NULL);
        if (sim_is_closing(g))
            sim_fail(g, "split layer: the host did not reply to question %u", (unsigned)q->number);
        if (sim_failed(g)) return false;
        if (sim_host_is_late(g, from)) return true;
    }
    return true;
}

static void take_answer(question *q)
{
    const split_call *c = q->c;
    const gpu_mailbox *m = c->s.mailbox;
    const size_t n_embd = (size_t)c->in.cols;
    for (int i = 0; i < slot_count(c); i++) {
        slot *p = &q->slots[i];
        p->host_made = p->where == GPU_COLD || (p->where == GPU_COLD_FETCHED && m->by_host[i]);
        if (p->host_made)
            memcpy(q->y + (size_t)i * n_embd, m->y + (size_t)i * n_embd, n_embd * sizeof *q->y);
    }
}

/* ---- down ------------------------------------------------------------------------------------ */

/* The activations of a slot whose gate and up the host computed: as it quantised them. */
static sim_vectors host_mid(const question *q, int i)
{
    const split_call *c = q->c;
    const gpu_mailbox *m = c->s.mailbox;
    const int n_ff = c->a.gate.rows;
    sim_vectors v = { .storage = sim_room(acts_bytes(1, n_ff), 1), .few = true };
    acts_init(&v.a, v.storage, 1, n_ff);
    acts_set(&v.a, m->mid_rows + (size_t)i * (size_t)n_ff, 1, n_ff);
    if (sim_is_float(c->a.down.type)) return v;
    acts_clear_padding(&v.a);
    sim_blocks_get(v.a.q, v.a.dx, v.a.s, m->mid + (size_t)i * gpu_blocks_bytes(n_ff), n_ff);
    return v;
}

static void run_down(const question *q)
{
    const split_call *c = q->c;
    const int n_ff = c->a.gate.rows;
    for (int i = 0; i < slot_count(c); i++) {
        const slot *p = &q->slots[i];
        if (p->host_made) continue;
        sim_vectors mid = p->where == GPU_COLD_FETCHED
                              ? host_mid(q, i)
                              : sim_vectors_make(q->mid + (size_t)i * (size_t)n_ff, 1, n_ff);
        const matrix down = sim_slab(&c->a.down, p->id, p->at[2]);
        float *y = q->y + (size_t)i * (size_t)c->in.cols;
        sim_multiply(&y, &down, mid.a.rows, 1);
        sim_vectors_free(&mid);
    }
}

static void join_tokens(const question *q, const float *shared)
{
    const split_call *c = q->c;
    for (int t = 0; t < c->in.n; t++) {
        const slot *p = q->slots + t * c->a.k;
        float gates[GPU_MOST_USED];
        for (int r = 0; r < c->a.k; r++) gates[r] = p[r].weight;
        sim_join(&c->a, t, q->y + (size_t)(t * c->a.k) * (size_t)c->in.cols, gates, shared);
    }
}

/* ---- for the next layer ---------------------------------------------------------------------- */

/* Its router's logits for this layer's vector. */
static void prediction_logits(float *logits, const gpu_predict *next, const float *rows)
{
    const gpu_matrix *m = &next->router;
    float *x = sim_room((size_t)m->cols, sizeof *x);
    for (int c = 0; c < m->cols; c++)
        x[c] = next->norm[c] == 0.0f ? 0.0f : rows[c] / next->norm[c] * next->next_norm[c];
    sim_vectors v = sim_vectors_make(x, 1, m->cols);
    const matrix router = sim_matrix(m);
    sim_multiply(&logits, &router, v.a.rows, 1);
    sim_vectors_free(&v);
    free(x);
}

static void prediction_next(const question *q, const float *rows)
{
    const split_call *c = q->c;
    const gpu_predict *next = &c->s.next;
    const uint64_t number = (q->number + 1) & GPU_NUMBERS;
    const int k = c->a.k;
    int32_t ids[GPU_MOST_USED];
    float gates[GPU_MOST_USED];
    uint64_t word = 0, n = 0;
    if (q->number % 5 == 0) return;      /* too late */
    float *logits = sim_room((size_t)next->router.rows, sizeof *logits);
    prediction_logits(logits, next, rows);
    const router_rule rule = sim_rule(&next->rule);
    router_select(ids, gates, logits, next->router.rows, k, &rule);
    for (int r = 0; r < k && n < GPU_MOST_PREDICTED; r++)
        if (!next->hot || next->hot[ids[r]] < 0)
            word |= (uint64_t)ids[r] << GPU_PREDICTED_BITS * n++;
    __atomic_store_n(&c->s.mailbox->predicted, number << GPU_PREDICTED_NUMBER |
                     n << GPU_PREDICTED_COUNT | word, __ATOMIC_RELEASE);
    free(logits);
}

/* ---- the operation --------------------------------------------------------------------------- */

static void run_split(gpu *g, void *args)
{
    const split_call *c = args;
    const size_t slots = (size_t)slot_count(c);
    float *rows = sim_finished(g, &c->in);
    if (!rows) return;
    question *q = sim_room(1, sizeof *q);
    sim_vectors x = sim_vectors_make(rows, c->in.n, c->in.cols);
    float *shared = NULL;
    *q = (question){ .c = c, .mid = sim_room(slots * (size_t)c->a.gate.rows, sizeof(float)),
                     .y = sim_room(slots * (size_t)c->in.cols, sizeof(float)) };
    sim_clobber(c->s.scratch, gpu_with_host_scratch(c->a.k, c->a.gate.rows, c->in.cols));
    if (ask(g, q, rows) && (!c->fetches || pull(g, q))) {
        run_up(q, &x);
        shared = sim_shared(&c->a, &x);
        if (q->quiet || await_answer(g, q)) {
            if (!q->quiet) take_answer(q);
            run_down(q);
            join_tokens(q, shared);
            if (c->predicts) prediction_next(q, rows);
        }
    }
    free(shared);
    free(q->y);
    free(q->mid);
    free(q);
    sim_vectors_free(&x);
    free(rows);
}

static bool split_fits(const gpu_input *in, const gpu_expert_args *a, const gpu_with_host *s)
{
    return in->n >= 1 && in->n <= GPU_MAIL && a->k >= 1 && a->k <= GPU_MOST_USED &&
           a->n_expert <= 1024 && in->rows && in->blocks && in->cols == a->down.rows &&
           s->mailbox->n_embd == a->down.rows && s->mailbox->n_ff == a->gate.rows;
}

static void claim_split(sim_call *c, const gpu_expert_args *a, const gpu_with_host *s, bool fetches,
                        bool predicts)
{
    const uint64_t n = (uint64_t)a->n_expert, slots = (uint64_t)GPU_MAIL * (uint64_t)a->k;
    gpu_mailbox *m = s->mailbox;
    sim_writes_any(c, "mail", m, sizeof *m);
    sim_writes_any(c, "mail's x", m->x, (uint64_t)GPU_MAIL * (uint64_t)m->n_embd * sizeof(float));
    sim_reads_any(c, "mail's y", m->y, slots * (uint64_t)m->n_embd * sizeof(float));
    sim_reads_any(c, "mail's mid", m->mid, slots * gpu_blocks_bytes(m->n_ff));
    sim_writes(c, "number", s->number, sizeof *s->number);
    sim_writes_any(c, "log of choices", s->chosen, slots * sizeof *s->chosen / GPU_MAIL);
    sim_reads(c, "hot", s->hot, n * sizeof *s->hot);
    sim_writes(c, "split scratch", s->scratch,
               gpu_with_host_scratch(a->k, a->gate.rows, a->down.rows));
    if (fetches) {
        sim_reads_any(c, "table of slabs", s->slabs, n * 3 * sizeof *s->slabs);
        sim_reads(c, "table of fetches", s->fetch, 2 * GPU_FETCH_COUNTS);
        sim_writes(c, "pad", s->pad, gpu_with_host_pad(a, s->pad_down, s->pad_all));
    }
    if (!predicts) return;
    sim_writes(c, "state of predictions", s->prediction_state,
               gpu_prediction_state(a->n_expert, a->down.rows, s->prediction_layer + 1));
    sim_reads(c, "next router", s->next.router.data,
              (uint64_t)s->next.router.rows * s->next.router.row_bytes);
    sim_reads(c, "next bias of the choice", s->next.rule.bias, n * sizeof(float));
    sim_reads(c, "next hot", s->next.hot, n * sizeof *s->hot);
}

void gpu_experts_with_host(gpu *g, gpu_input *in, const gpu_expert_args *a, const gpu_with_host *s)
{
    sim_call c = sim_begin(g, "split layer");
    if (!split_fits(in, a, s)) {
        sim_fail(g, "split layer: arguments: %d tokens", in->n);
        return;
    }
    if (sim_failed(g)) return;
    sim_prepare_few(g, in);
    split_call call = { *in, *a, *s, false, false };
    call.fetches = in->n == 1 && s->slabs && s->fetch && s->pad && s->pad_down + s->pad_all > 0;
    sim_claim_experts(&c, in, a, false);
    call.predicts = in->n == 1 && s->prediction_state && !s->one_stream && s->next.router.data;
    claim_split(&c, a, s, call.fetches, call.predicts);
    sim_end(&c, run_split, &call, sizeof call);
    if (s->parallel) gpu_network(g, s->parallel_in, s->parallel);
}
