/* gpu_steps.c - one batch on the GPU: its begin, its end, its logits, and the memory of all of it.
 * gpu_layers.c has the layers, gpu_recordings.c recorded passes. */
#include "engine/gpu/gpu_steps_internal.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

/* ---- begin and end --------------------------------------------------------------------------- */

static gpu_cursor cursor_of(const batch_row *row, int n, int32_t token)
{
    return (gpu_cursor){
        .pos = row->pos, .n = n, .token = token, .pages = kv_segment_table(state_kv(row->st), 0),
        .recurrent = recurrent_memory(state_recurrent(row->st))->of[0].data,
        .recurrent_next = recurrent_memory(row->next)->of[0].data,
    };
}

gpu_cursor gpu_steps_cursor(const gpu_steps *s, int32_t token)
{
    return cursor_of(s->rows, 0, token);
}

/* The copy reads the mailbox later. No earlier copy may be in flight: each batch ends with a wait,
 * and a pass in flight is waited for before the next (forward_take). */
void gpu_steps_set_cursors(gpu_steps *s, int32_t token)
{
    gpu_cursor *to = s->mailbox->cursors;
    const int last = s->n_row - 1;
    for (int i = 0; i <= last; i++)
        to[i] = cursor_of(&s->rows[i], i < last ? s->rows[i].n : 0, token);
    s->device_cursor = to[0];
    gpu_copy(s->g, s->b.cursor, to, (uint64_t)s->n_row * sizeof *to);
}

void gpu_steps_send_ids(gpu_steps *s, const int32_t *ids, int n)
{
    const size_t bytes = (size_t)n * sizeof *ids;
    memcpy(s->mailbox->ids, ids, bytes);
    gpu_copy(s->g, s->b.ids, s->mailbox->ids, bytes);
}

/* Whether the device's experts follow the contract, so that results do not depend on the processor
 * of an expert. The plan, the strategy and the number of tokens decide it, never the contents of
 * VRAM or a measured speed. All layers of a batch are alike, also those with all experts in
 * VRAM. */
static bool by_contract(const gpu_steps *s, prompt_strategy strategy, int n)
{
    if (s->e->post.frozen || !s->has_cold) return s->e->post.frozen;
    return strategy != PROMPT_BUS || n <= s->e->p->contract_to;
}

void gpu_steps_take_batch(gpu_steps *s, const batch *b)
{
    s->of_mtp = b->hidden != NULL;
    s->contract = !gpu_is_few(b->n, b->is_pass) && !s->of_mtp && by_contract(s, b->strategy, b->n);
    assert(b->n_row == 1 || b->n <= GPU_FEW || (b->is_pass && b->n <= GPU_RECORDED));
    memcpy(s->rows, b->rows, (size_t)b->n_row * sizeof *b->rows);
    s->n_row = b->n_row;
    s->n = b->n;
    s->in_pass = b->is_pass;
    s->last = b->last;
    s->keep = b->keep;
    s->watched = b->watch != NULL;
    s->has_questions = s->has_logits = false;
    s->failed = 0;
    gpu_sampling_forget(&s->sampling);
}

static int send_batch(gpu_steps *s, const batch *b, err_ctx *err)
{
    int rc = 0;
    if (gpu_is_few(b->n, b->is_pass)) gpu_steps_send_ids(s, b->ids, b->n);
    else rc = gpu_write(s->g, s->b.ids, b->ids, (uint64_t)b->n * sizeof *b->ids, err);
    gpu_steps_set_cursors(s, -1);
    return rc;
}

static void make_rope_tables(gpu_steps *s)
{
    const rope_tables *rope = &s->e->rope;
    for (int i = 0; i < rope->n_table; i++)
        gpu_rope_table(s->g, s->b.rope_cos[i], s->b.rope_sin[i], s->b.freq[i],
                       rope->magnitude[i], rope->dim[i] / 2, s->b.cursor, s->n);
}

/* x = eh_proj [norm(embedding); norm(norm(hidden))]. Then the buffer of hidden has the
 * embedding. */
static int begin_mtp(gpu_steps *s, const batch *b, err_ctx *err)
{
    const mtp_gpu *w = &s->w->mtp;
    const gpu_buffers *to = &s->b;
    const int n_embd = s->m->hp.n_embd;
    const gpu_normed once = {
        .x = to->sums, .part = { b->hidden }, .gain = b->chained ? w->head_norm : s->w->out_norm,
        .eps = s->m->hp.rms_eps, .scale = 1.0f, .n = s->n, .cols = n_embd,
    };
    gpu_product p = gpu_layers_product(to->x, &w->of_hidden);
    int rc = send_batch(s, b, err);
    const uint64_t bytes = (uint64_t)s->n * (uint64_t)n_embd * sizeof(float);
    if (rc < 0 || (rc = gpu_zero(s->g, to->sums, bytes, err)) < 0) return rc;
    gpu_add_normed(s->g, &once);
    gpu_input in = gpu_layers_normed(s, "next-token block", to->sums, w->hnorm);
    gpu_project(s->g, &in, &p, 1);
    gpu_embed(s->g, to->hidden, &w->embed, to->ids, s->n);
    p = gpu_layers_product(to->x, &w->of_embed);
    p.add = true;
    in = gpu_layers_normed(s, "next-token block", to->hidden, w->enorm);
    gpu_project(s->g, &in, &p, 1);
    make_rope_tables(s);
    return 0;
}

static int begin(void *self, const batch *b, err_ctx *err)
{
    gpu_steps *s = self;
    int rc;
    gpu_steps_take_batch(s, b);
    if (b->hidden) return begin_mtp(s, b, err);
    if (b->ids) {
        const bool streams = b->n > GPU_MAIL && b->strategy == PROMPT_BUS;
        if ((rc = send_batch(s, b, err)) < 0 ||
            (streams && (rc = expert_stream_begin(s->banks, err)) < 0))
            return rc;
    }
    if (s->server && b->n > GPU_MAIL && b->strategy != PROMPT_BUS)
        expert_server_prompt_begin(s->server);
    if (b->n > GPU_MAIL && b->strategy == PROMPT_SPLIT) prompt_split_begin(s->split);
    if (s->server && b->n <= GPU_MAIL && !s->recording) {
        if ((rc = expert_server_prepare(s->server, err)) < 0) return rc;
        s->has_questions = true;
        expert_server_begin(s->server, b->n);
    }
    /* a recorded token may be the one that the device has picked */
    gpu_embed(s->g, s->b.x, &s->w->embed, b->ids || b->n > 1 ? s->b.ids : &s->b.cursor->token,
              b->n);
    make_rope_tables(s);
    return 0;
}

static int end(void *self, err_ctx *err)
{
    gpu_steps *s = self;
    (void)err;
    if (s->recording) return 0;
    if (s->has_questions) expert_server_end(s->server);
    s->has_questions = false;
    return 0;
}

void gpu_steps_send_vectors(gpu_steps *s)
{
    gpu_copy(s->g, s->host_transfer.x, s->b.x,
             (uint64_t)s->n * (uint64_t)s->m->hp.n_embd * sizeof(float));
}

static int copy_to_host(void *self, const float **x, err_ctx *err)
{
    gpu_steps *s = self;
    gpu_steps_send_vectors(s);
    *x = s->host_transfer.x;
    return gpu_wait(s->g, err);
}

int gpu_steps_wait(gpu_steps *s, err_ctx *err)
{
    const uint64_t from = clock_ns();
    const int rc = gpu_wait(s->g, err);
    if (s->n == 1) s->waited_s += clock_since(from);
    return rc;
}

double gpu_steps_waited(const gpu_steps *s) { return s->waited_s + s->sampling.waited_s; }

void gpu_steps_reset_waited(gpu_steps *s)
{
    s->waited_s = 0.0;
    s->sampling.waited_s = 0.0;
}

int gpu_steps_give_up(gpu_steps *s, int rc, err_ctx *err)
{
    err_ctx first;
    const int failed = gpu_wait(s->g, &first);
    if (s->has_questions) expert_server_end(s->server);
    s->has_questions = false;
    if (failed == 0) return rc;
    if (err) *err = first;
    return failed;
}

/* ---- logits ---------------------------------------------------------------------------------- */

void gpu_steps_head(gpu_steps *s, const float *x, int n)
{
    const mtp_gpu *mtp = &s->w->mtp;
    gpu_input in = gpu_layers_normed(s, "head", x, s->of_mtp ? mtp->head_norm : s->w->out_norm);
    in.n = n;
    in.in_pass = true;                   /* also of tokens that a prompt chooses */
    const gpu_product p = gpu_layers_product(s->b.logits, s->of_mtp ? &mtp->head : &s->w->head);
    const float cap = s->m->hp.logit_cap;
    gpu_project(s->g, &in, &p, 1);
    if (cap > 0.0f)
        gpu_soft_cap(s->g, s->b.logits, (uint64_t)n * (uint64_t)s->m->hp.n_vocab, cap);
}

int gpu_steps_logits(void *self, float *out, int first, int n_row, err_ctx *err)
{
    gpu_steps *s = self;
    const size_t n_embd = (size_t)s->m->hp.n_embd, n_vocab = (size_t)s->m->hp.n_vocab;
    for (int done = 0; done < n_row;) {
        const int n = min_int(n_row - done, s->b.n_logits), at = s->has_logits ? first + done : 0;
        if (!s->has_logits) gpu_steps_head(s, s->b.x + (size_t)(first + done) * n_embd, n);
        const int rc = gpu_read(s->g, out + (size_t)done * n_vocab,
                                s->b.logits + (size_t)at * n_vocab,
                                (size_t)n * n_vocab * sizeof *out, err);
        if (rc < 0) return rc;
        done += n;
    }
    return 0;
}

/* ---- the next-token block -------------------------------------------------------------------- */

static const float *vectors(void *self) { return ((gpu_steps *)self)->b.x; }
static float *hidden(void *self) { return ((gpu_steps *)self)->b.hidden; }

static void copy(void *self, float *to, const float *from, int n)
{
    const gpu_steps *s = self;
    gpu_copy(s->g, to, from, (uint64_t)n * (uint64_t)s->m->hp.n_embd * sizeof *to);
}

static int pick(void *self, int32_t *next, err_ctx *err)
{
    gpu_steps *s = self;
    const gpu_buffers *b = &s->b;
    if (next) {
        gpu_steps_head(s, b->x + (size_t)(s->n - 1) * (size_t)s->m->hp.n_embd, 1);
        gpu_largest(s->g, b->logits, s->m->hp.n_vocab, b->cursor, &s->mailbox->picked, b->best,
                    &b->counters[0]);
        s->device_cursor.token = -1;
    }
    const int rc = gpu_wait(s->g, err);
    if (rc == 0 && next) *next = (int32_t)(uint32_t)s->mailbox->picked;
    return rc;
}

sampler_source gpu_steps_source(gpu_steps *s, int t)
{
    assert(s->has_logits && t < s->n);
    s->sampling.single = s->n == 1;
    return gpu_sampling_source(&s->sampling, t);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void place_host_transfer(host_transfer *e, mem_layout *a, const model_hparams *hp, int n)
{
    e->x = mem_layout_floats(a, n, hp->n_embd);
    e->sums = mem_layout_floats(a, n, hp->n_embd);
    e->gates = mem_layout_floats(a, n, hp->n_expert_used);
    e->ids = mem_layout_take(a, (uint64_t)n, (uint64_t)hp->n_expert_used, sizeof *e->ids);
}

static uint64_t host_transfer_bytes(const model_hparams *hp, int chunk)
{
    host_transfer unused;
    mem_layout a = mem_layout_count(64);
    place_host_transfer(&unused, &a, hp, chunk);
    return a.used;
}

uint64_t gpu_steps_bytes(const gpu *g, const model *m, batch_sizes most)
{
    return gpu_buffers_bytes(g, m, most);
}

int gpu_steps_most_taken(const gpu_steps *s)
{
    return s->server || !engine_head_on_gpu(s->e) ? min_int(GPU_FEW, s->b.n_logits) : s->b.n_logits;
}

uint64_t gpu_steps_host_bytes(const model *m, batch_sizes most)
{
    return sizeof(mailbox) + gpu_sampling_host_bytes(m->hp.n_vocab, most.pass) +
           host_transfer_bytes(&m->hp, max_int(most.chunk, most.pass)) + prompt_split_bytes(m);
}

prompt_strategy gpu_steps_strategy(const gpu_steps *s, int n)
{
    const prompt_strategy strategy = s->banks ? plan_prompt_strategy(s->e->p, n) : PROMPT_CORES;
    if (strategy == PROMPT_SPLIT && n > PLAN_SPLIT_TOKENS) return PROMPT_BUS;
    return strategy == PROMPT_SPLIT && !s->split ? PROMPT_CORES : strategy;
}

prompt_split_stats gpu_steps_split_counts(const gpu_steps *s)
{
    return s->split ? prompt_split_counts(s->split) : (prompt_split_stats){ 0 };
}

void gpu_steps_reset_split(gpu_steps *s)
{
    if (s->split) prompt_split_reset_counts(s->split);
}

/* Needed unless the device computes everything. */
static int make_host_transfer(gpu_steps *s, int chunk, err_ctx *err)
{
    const model_hparams *hp = &s->m->hp;
    if (s->server) {
        const int rc = gpu_events_create(&s->events, s->g, N_EVENTS, err);
        if (rc < 0) return rc;
    }
    if (!s->server && engine_head_on_gpu(s->e)) return 0;
    s->host_transfer.memory = gpu_alloc_host(s->g, host_transfer_bytes(hp, chunk), err);
    if (!s->host_transfer.memory) return ERR_NOMEM;
    mem_layout a = mem_layout_over(s->host_transfer.memory, 64);
    place_host_transfer(&s->host_transfer, &a, hp, chunk);
    return 0;
}

static int make_banks(gpu_steps *s, err_ctx *err)
{
    expert_banks own = s->m->experts;
    if (!s->server || s->e->p->stage_ranges == 0) return 0;
    own.n_layer = s->w->n_layer;
    const engine *e = s->e;
    const int rc = expert_stream_create(&s->banks, s->g, &own, e->store, e->cache, e->p, err);
    if (rc < 0 || e->p->split_from == INT_MAX || !expert_stream_can_pick(s->banks)) return rc;
    return prompt_split_create(&s->split, e, s->server, s->banks, err);
}

static int make_all(gpu_steps *s, batch_sizes most, err_ctx *err)
{
    const rope_tables *rope = &s->e->rope;
    int rc;
    for (int l = 0; l < s->w->n_layer && s->server; l++)
        s->has_cold |= expert_server_has_cold(s->server, l);
    if ((rc = gpu_buffers_init(&s->b, s->g, s->m, most, err)) < 0) return rc;
    s->mailbox = gpu_alloc_host(s->g, sizeof *s->mailbox, err);
    if (!s->mailbox) return ERR_NOMEM;
    if ((rc = gpu_recordings_create(s, err)) < 0 ||
        (rc = gpu_sampling_init(&s->sampling, s->g, &s->b, s->m->hp.n_vocab, err)) < 0 ||
        (rc = make_host_transfer(s, max_int(most.chunk, most.pass), err)) < 0 ||
        (rc = make_banks(s, err)) < 0)
        return rc;
    for (int i = 0; i < rope->n_table && rc == 0; i++)
        rc = gpu_write(s->g, s->b.freq[i], rope->freq[i],
                       (uint64_t)rope->dim[i] / 2 * sizeof(double), err);
    return rc;
}

int gpu_steps_create(gpu_steps **out, const engine *e, expert_server *server, bool skip_missing,
                     batch_sizes most, err_ctx *err)
{
    gpu_steps *s = mem_zalloc(sizeof *s);
    *out = NULL;
    if (!s) return err_set(err, ERR_NOMEM, "steps on the GPU: %zu bytes", sizeof *s);
    s->e = e;
    s->g = e->devices[0].g;
    s->m = e->m;
    s->w = e->devices[0].w;
    s->server = server;
    s->skip_missing = skip_missing;
    s->device_cursor.token = -1;
    s->live = (layer_steps){ .self = s, .begin = begin, .end = end, .copy_to_host = copy_to_host,
                             .logits = gpu_steps_logits, .vectors = vectors, .hidden = hidden,
                             .copy = copy, .pick = pick };
    gpu_layers_fill(&s->live);
    s->replay_table = (layer_steps){ .self = s };
    gpu_recordings_fill(&s->replay_table);
    const int rc = make_all(s, most, err);
    if (rc < 0) {
        gpu_steps_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void gpu_steps_free(gpu_steps *s)
{
    if (!s) return;
    prompt_split_free(s->split);
    expert_stream_free(s->banks);
    gpu_sampling_release(&s->sampling);
    gpu_recordings_free(s);
    gpu_events_free(s->events);
    if (s->host_transfer.memory) gpu_free_host(s->g, s->host_transfer.memory);
    if (s->mailbox) gpu_free_host(s->g, s->mailbox);
    gpu_buffers_release(&s->b, s->g);
    mem_free(s);
}

const layer_steps *gpu_steps_live(const gpu_steps *s) { return &s->live; }
const layer_steps *gpu_steps_replay(const gpu_steps *s) { return &s->replay_table; }
