/* expert_server.c - replies to the device's questions about cold experts.
 *
 * The device decides which processor computes an expert, from tables that expert_server_create.c
 * makes; the host computes what the question lists. A question allocates nothing.
 * postfetch_levels.c decides how much is fetched: that changes tables, never a result. */
#include "engine/gpu/expert_server_internal.h"

#include <limits.h>
#include <string.h>

#include "tiers/fault_injection.h"

/* ---- post-fetch: which, and whether ---------------------------------------------------------- */

static double seconds(uint64_t ns) { return (double)ns * 1e-9; }

void expert_server_send_levels(expert_server *c)
{
    err_ctx ignored;
    (void)gpu_write(c->g, c->fetch_table, c->levels.table, FETCH_TABLE, &ignored);
}

static uint64_t cold_experts(const expert_server *c)
{
    return c->s.on_cpu + c->s.down_fetched + c->s.all_fetched;
}

/* After each single token, which took s seconds. */
static void report_token(expert_server *c, double s)
{
    const int n_cold = (int)(cold_experts(c) - c->cold_before);
    if (postfetch_levels_token(&c->levels, s, n_cold)) expert_server_send_levels(c);
}

void expert_server_pause_fetching(expert_server *c, bool paused)
{
    postfetch_levels_pause(&c->levels, paused);
    expert_server_send_levels(c);
}

/* ---- what was fetched ------------------------------------------------------------------------ */

/* The clock of layers; 0 if they are not counted. */
static uint64_t now(const expert_server *c) { return c->perf == PERF_OFF ? 0 : clock_ns(); }

/* The device has passed the last question, so its fetches have ended. seen: when the host saw
 * that. */
static void settle_fetch(expert_server *c, uint64_t seen)
{
    last_fetch *f = &c->fetch;
    double least, most;
    if (!f->open) return;
    const double pull = seconds(__atomic_exchange_n(&c->mailbox->fetch_ns, 0, __ATOMIC_RELAXED));
    perf_overlap(&least, &most, pull, f->busy_s,
                 f->unsure_s + (f->ended ? 0.0 : seconds(seen - f->reply)));
    c->s.pull_s += pull;
    c->s.hidden_least_s += least;
    c->s.hidden_most_s += most;
    if (c->fetch_log) postfetch_log_time(c->fetch_log, f->layer, pull);
    f->open = false;
}

void expert_server_log_fetches(expert_server *c)
{
    if (!c->fetch_log) return;
    settle_fetch(c, now(c));
    postfetch_log_write(c->fetch_log);
}

/* ---- questions ------------------------------------------------------------------------------- */

/* A number that the device writes after the data to which it belongs. */
static uint32_t word(const volatile uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

static uint32_t next_number(const expert_server *c) { return (c->number + 1) & GPU_NUMBERS; }

/* Whether the device has reached the next question, or is past it. It cannot pass a question that
 * waits for a reply. */
static bool is_asked(const expert_server *c, uint32_t asked)
{
    return ((asked / GPU_CODES - c->number - 1) & GPU_NUMBERS) <= GPU_NUMBERS / 2;
}

uint32_t *expert_server_wanted(const expert_server *c, int layer)
{
    return c->wanted ? c->wanted + (expert_server_log(c, layer) - c->log) : NULL;
}

typedef struct question {
    bool quiet;                          /* all experts of the layer hit: no reply is needed */
    bool waited;                         /* it came while the host polled */
    bool latest;                         /* the device had not reached a later one */
} question;

/* keep_going_fn of a thread that reads ahead between questions. */
static bool nothing_asked(void *ctx)
{
    const expert_server *c = ctx;
    return !is_asked(c, word(&c->mailbox->asked));
}

/* Reads the experts that the device predicts for this layer into the CPU's caches, while the device
 * computes the mixer. False: no prediction yet. */
static bool read_predicted(expert_server *c)
{
    int32_t ids[GPU_MOST_PREDICTED];
    const uint64_t word = __atomic_load_n(&c->mailbox->predicted, __ATOMIC_ACQUIRE);
    const int n = gpu_predicted(ids, word, next_number(c));
    if (n > 0)
        c->s.ahead_bytes += experts_cpu_read_ahead(c->cpu, c->reader, c->layer,
                                                   c->m->layers[c->layer].experts, ids, n,
                                                   nothing_asked, c);
    return n > 0;
}

/* Whether the i-th poll of the mailbox is followed by a check that the device is alive. */
static bool is_check(const expert_server *c, uint32_t i) { return (i & (c->n_poll - 1)) == 0; }

static int await_question(expert_server *c, question *q, err_ctx *err)
{
    uint32_t asked = word(&c->mailbox->asked);
    bool may_read = c->levels.reads_ahead && c->n == 1;
    q->waited = !is_asked(c, asked);
    for (uint32_t i = 1; !is_asked(c, asked); i++) {
        if (may_read) may_read = !read_predicted(c);
        if (is_check(c, i) && !gpu_alive(c->g) && !is_asked(c, word(&c->mailbox->asked)))
            return err_set(err, ERR_IO, "the GPU stopped in layer %d", c->layer);
        pool_relax();
        asked = word(&c->mailbox->asked);
    }
    q->quiet = asked != next_number(c) * GPU_CODES;
    q->latest = asked / GPU_CODES == next_number(c);
    return 0;
}

static void answer(expert_server *c)
{
    c->number = next_number(c);
    __atomic_store_n(&c->mailbox->answered, c->number, __ATOMIC_RELEASE);
}

/* How long a question may wait for a slab that is on its way: as long as the CPU takes to compute
 * one down matrix itself. */
static uint64_t wait_limit_ns(const expert_server *c)
{
    const uint64_t bytes = expert_slab_bytes(c->m->layers[c->layer].experts, SLAB_DOWN);
    const double rate = c->p->rate.cpu_busy > 0.0 ? c->p->rate.cpu_busy : SPEEDS_CPU_BUSY;
    return (uint64_t)((double)bytes / rate * 1e9);
}

/* Whether the slab of a slot arrives in VRAM in time. All slabs of a question share one time
 * limit. */
static bool arrives(expert_server *c, int slot)
{
    const volatile uint32_t *fetched = &c->mailbox->fetched[slot];
    if (word(fetched) == next_number(c)) return true;
    const uint64_t from = clock_ns();
    uint64_t time = from;
    if (c->wait_until == 0) c->wait_until = from + wait_limit_ns(c);
    for (uint32_t i = 1; word(fetched) != next_number(c); i++) {
        if (!c->post.block && time > c->wait_until) break;
        if (is_check(c, i) && !gpu_alive(c->g)) break;
        pool_relax();
        time = clock_ns();
    }
    c->waited_s += seconds(time - from);
    c->s.wait_s += seconds(time - from);
    return word(fetched) == next_number(c);
}

/* Whether the device computes the down of this item. Only single tokens have slabs fetched. */
static bool device_takes(void *ctx, const work_item *it)
{
    expert_server *c = ctx;
    const int slot = c->work->slots[it->first];
    const acts *mid = experts_cpu_mid(c->cpu);
    const size_t row = (size_t)it->first * (size_t)mid->n_block;
    gpu_mailbox *mailbox = c->mailbox;

    if (mailbox->where[slot] != GPU_COLD_FETCHED) return false;
    mailbox->by_host[slot] = 1;
    if (c->post.force_cpu) return false;
    if (!arrives(c, slot)) {
        c->s.late++;
        return false;
    }
    mailbox->by_host[slot] = 0;
    if (mid->quantised)
        gpu_mailbox_put_mid(mailbox, slot, mid->q + row * ACT_BLOCK, mid->dx + row,
                            mid->s + 2 * row);
    else
        memcpy(mailbox->mid_rows + (size_t)slot * (size_t)mailbox->n_ff,
               mid->x + (size_t)it->first * (size_t)mailbox->n_ff,
               (size_t)mailbox->n_ff * sizeof(float));
    return true;
}

/* Of n_cold experts, those of which the device should fetch a slab. */
static int meant_to_fetch(const expert_server *c, int n_cold)
{
    return c->nothing_locked ? n_cold : postfetch_levels_meant(&c->levels, n_cold);
}

static void count_layer(expert_server *c, int n_hot, int n_cold, bool quiet)
{
    if (c->perf != PERF_FULL) return;
    c->layers[c->layer].calls++;
    c->layers[c->layer].quiet += quiet;
    c->layers[c->layer].hot += (uint64_t)n_hot;
    c->layers[c->layer].cold += (uint64_t)n_cold;
}

/* Returns the number of experts with a fetched slab. */
static int count(expert_server *c, const expert_bank *b)
{
    const uint64_t down = expert_slab_bytes(b, SLAB_DOWN), up = expert_slabs_bytes(b) - down;
    int n_hot = 0, n_fetched = 0;
    expert_server_stats *s = &c->s;
    s->questions++;
    for (int i = 0; i < c->mailbox->k; i++) {
        switch (c->mailbox->where[i]) {
        case GPU_HOT:
            n_hot++;
            s->hot++;
            s->hot_bytes += up + down;
            break;
        case GPU_COLD:
            s->on_cpu++;
            s->cpu_bytes += up + down;
            break;
        case GPU_COLD_FETCHED:
            n_fetched++;
            s->down_fetched++;
            s->cpu_bytes += up + (c->mailbox->by_host[i] ? down : 0);
            s->pull_bytes += down;
            break;
        case GPU_FETCHED:
            n_fetched++;
            s->all_fetched++;
            s->pull_bytes += up + down;
            break;
        }
    }
    const int n_cold = c->mailbox->k - n_hot;
    s->not_locked += (uint64_t)max_int(meant_to_fetch(c, n_cold) - n_fetched, 0);
    count_layer(c, n_hot, n_cold, false);
    return n_fetched;
}

/* A layer without a question; its time is the device's own. */
static void count_quiet(expert_server *c, const expert_bank *b, double s)
{
    const int n_hot = c->m->hp.n_expert_used;
    c->s.quiet++;
    c->s.hot += (uint64_t)n_hot;
    c->s.hot_bytes += (uint64_t)n_hot * expert_slabs_bytes(b);
    c->s.ask_s += s;
    count_layer(c, n_hot, 0, true);
}

/* Seconds of a single token's question. */
static void count_times(expert_server *c, double ask_s, double cpu_s)
{
    c->s.ask_s += ask_s;
    c->s.cpu_s += cpu_s;
    if (c->perf == PERF_FULL) c->layers[c->layer].cold_s += cpu_s;
}

/* Appends the work items whose expert is at `where` to the n in items. Returns the new number. */
static int gather(expert_server *c, int n, gpu_where where)
{
    for (int i = 0; i < c->work->n_item; i++) {
        const work_item *it = &c->work->items[i];
        if (c->mailbox->where[c->work->slots[it->first]] == where) c->items[n++] = *it;
    }
    return n;
}

static int compute(expert_server *c, err_ctx *err)
{
    const gpu_mailbox *mailbox = c->mailbox;
    c->wait_until = 0;
    worklist_fill(c->work, mailbox->ids, mailbox->n, mailbox->k);
    const int n_sure = gather(c, 0, GPU_COLD), n_item = gather(c, n_sure, GPU_COLD_FETCHED);
    if (n_item == 0) return 0;
    acts_set(&c->x, mailbox->x, mailbox->n, mailbox->n_embd);
    const expert_job job = {
        .bank = c->m->layers[c->layer].experts, .act = c->m->family->act, .x = &c->x,
        .work = c->work, .items = c->items, .n_item = n_item, .y = mailbox->y, .layer = c->layer,
        .taken = device_takes, .taken_ctx = c, .n_sure = n_sure,
    };
    return experts_cpu_run(c->cpu, &job, err);
}

/* ---- a layer --------------------------------------------------------------------------------- */

static int cold_in(const uint32_t *log, int n)
{
    int cold = 0;
    for (int i = 0; i < n; i++) cold += log[i] >> 16 != GPU_HOT;
    return cold;
}

/* Reports the choices of layers before `end` to the cache. A layer's choices are in RAM when the
 * device asks a later question. Some microseconds for each layer. */
static void count_logged(expert_server *c, int end)
{
    const int n = c->n_logged * c->m->hp.n_expert_used;
    for (; c->n_counted < end && n > 0; c->n_counted++) {
        const int l = c->n_counted;
        if (!expert_server_has_cold(c, l)) continue;
        const uint32_t *log = expert_server_log(c, l);
        const uint32_t *wanted = c->wanted ? expert_server_wanted(c, l) : log;
        vram_cache_chosen(c->cache, l, wanted, n);
        if (c->perf != PERF_OFF)
            vram_cache_count_call(c->cache, l, cold_in(log, n), c->layer_s[l]);
        c->layer_s[l] = 0;
        c->cold_counted += cold_in(wanted, n);
    }
}

static int exchange_experts(expert_server *c, err_ctx *err)
{
    const int all = c->n_asking * c->m->hp.n_expert_used;
    count_logged(c, c->n_layer);
    if (c->n_logged == 1)
        vram_cache_token(c->cache, c->token_s, all - c->cold_counted, all);
    c->n_logged = 0;
    return vram_cache_exchange(c->cache, err);
}

/* Submits one copy of an expert, at a time when the device does not wait for the host: a call takes
 * some ten microseconds. */
static void submit_copy(expert_server *c)
{
    if (c->cache && !c->broken) vram_cache_submit(c->cache, 1);
}

int expert_server_serve(expert_server *c, int layer, err_ctx *err)
{
    const expert_bank *bank = c->m->layers[layer].experts;
    const uint64_t from = now(c);
    question q = { false };
    int rc, n_fetched = 0;
    c->layer = layer;
    if ((rc = await_question(c, &q, err)) < 0) {         /* the device waits for no reply */
        c->broken = true;
        return rc;
    }
    const uint64_t seen = now(c);
    const double unseen_s = q.waited ? 0.0 : seconds(from - c->last_empty_poll);
    settle_fetch(c, seen);
    if (q.waited || q.latest) c->last_empty_poll = seen;
    if (q.quiet) {
        c->number = next_number(c);
        if (q.latest) submit_copy(c);    /* else the device may wait at a later question */
        if (c->n == 1) count_quiet(c, bank, seconds(seen - from));
        return 0;
    }
    if (fault_hits(FAULT_GPU_LOST)) {
        c->broken = true;
        rc = err_set(err, ERR_IO, "the GPU stopped in layer %d", c->layer);
    }
    c->waited_s = 0.0;
    if (c->broken) memset(c->mailbox->by_host, 1, sizeof c->mailbox->by_host);
    else if ((rc = compute(c, err)) < 0) c->broken = true;
    if (c->n == 1) n_fetched = count(c, bank);
    const bool ended = __atomic_load_n(&c->mailbox->fetch_ns, __ATOMIC_RELAXED) != 0;
    if (n_fetched > 0 && c->fetch_log) postfetch_log_note(c->fetch_log, layer, c->mailbox);
    answer(c);
    const uint64_t reply = c->last_empty_poll = now(c);
    submit_copy(c);
    const double cpu_s = seconds(reply - seen);
    c->layer_s[layer] += cpu_s;
    if (c->cache && !c->broken) count_logged(c, layer + 1);
    if (c->n != 1) return rc;
    count_times(c, seconds(seen - from), cpu_s);
    c->fetch = (last_fetch){ .open = n_fetched > 0, .ended = ended, .layer = layer, .reply = reply,
                             .busy_s = cpu_s - c->waited_s, .unsure_s = unseen_s + c->waited_s };
    return rc;
}

int expert_server_prepare(expert_server *c, err_ctx *err)
{
    int rc = 0;
    if ((c->cache || c->fetch_log) && gpu_alive(c->g)) rc = gpu_wait(c->g, err);
    if (rc < 0) return rc;
    expert_server_log_fetches(c);
    if (c->cache && !c->exchanged) rc = exchange_experts(c, err);
    else if (c->cache) vram_cache_publish(c->cache);     /* changes by prompts since then */
    c->exchanged = false;
    c->last_empty_poll = now(c);
    return rc;
}

void expert_server_begin(expert_server *c, int n)
{
    c->n = n;
    c->n_logged = n;
    c->n_counted = c->cold_counted = 0;
    c->layer = -1;
    c->broken = false;
    pool_stay_awake(c->o->team, true);
    c->cold_before = cold_experts(c);
    c->token_from = clock_ns();
}

/* While the device computes the rest of the token. */
static void exchange_begin(expert_server *c)
{
    err_ctx ignored;                     /* the next wait returns the failure */
    if (!c->cache || c->broken) return;
    vram_cache_submit(c->cache, INT_MAX);
    (void)exchange_experts(c, &ignored);
    c->exchanged = true;
}

void expert_server_end(expert_server *c)
{
    pool_stay_awake(c->o->team, false);
    /* in a stopped batch not all layers have chosen */
    const bool all = c->layer >= 0 && c->args[c->layer].closes;
    if (c->broken || !all) c->n_logged = 0;
    if (c->n == 1 && !c->broken) {
        c->s.tokens++;
        c->token_s = clock_since(c->token_from);
        report_token(c, c->token_s);
    }
    exchange_begin(c);
}

/* ---- state and counts ------------------------------------------------------------------------ */

bool expert_server_has_cold(const expert_server *c, int layer)
{
    return c->args[layer].mailbox != NULL;
}

bool expert_server_fetches(const expert_server *c)
{
    return c->levels.level > 0;
}

bool expert_server_reads_ahead(const expert_server *c) { return c->levels.reads_ahead; }

gpu_with_host expert_server_args(const expert_server *c, int layer)
{
    gpu_with_host s = c->args[layer];
    if (!expert_server_fetches(c)) s.slabs = NULL;       /* saves the launch of the fetch kernel */
    if (!c->levels.reads_ahead) s.prediction_state = NULL;
    return s;
}

expert_server_stats expert_server_counts(const expert_server *c)
{
    expert_server_stats s = c->s;
    s.fetching = c->levels.fetch.level > 0 && !c->levels.paused;  /* a trial may differ */
    return s;
}

void expert_server_reset_counts(expert_server *c)
{
    c->s = (expert_server_stats){ .pad_bytes = c->s.pad_bytes };
    memset(c->layers, 0, (size_t)c->m->hp.n_layer * sizeof *c->layers);
}

void expert_server_count(expert_server *c, perf_level level) { c->perf = level; }

const perf_layer *expert_server_layers(const expert_server *c)
{
    return c->perf == PERF_FULL ? c->layers : NULL;
}
