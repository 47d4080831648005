/* host_experts.c - replies to the device's questions about experts that are not in VRAM.
 *
 * The device decides which expert is computed where, from tables that are written here; the host
 * does what the question says. Everything a question touches is allocated at creation.
 * fetch_levels.c decides how much is fetched: that changes tables, never a result. */
#include "engine/gpu/host_experts.h"

#include <limits.h>
#include <string.h>

#include "engine/gpu/fetch_levels.h"
#include "engine/gpu/fetch_log.h"
#include "tiers/fault.h"

enum { SPIN_LOOKS = 1 << 14 };          /* at the mail between checks that the device is alive */

/* The last question that has slabs fetched. How long that took is known when the device has gone
 * on. */
typedef struct last_fetch {
    bool open;                           /* not counted yet */
    bool ended;                          /* before the reply */
    int layer;
    uint64_t reply;                      /* clock */
    double busy_s, unsure_s;             /* perf_overlap */
} last_fetch;

struct host_experts {
    gpu *g;
    const model *m;
    expert_store *store;
    vram_places *places;
    const ops *o;
    const plan *p;
    int n_layer;                         /* of the GPU */
    postfetch_options post;
    experts_cpu *cpu;
    worklist *work;
    work_item *items;                    /* those of the work that the host computes */
    acts x;
    void *x_storage;
    float *slots;                        /* [HOST_EXPERTS_TOKENS * k, n_embd] of prompts;
                                          * page-locked */

    gpu_mail *mail;
    uint32_t *log;                       /* [n_layer, GPU_FEW * k] page-locked: what was chosen;
                                          * NULL without places */
    uint32_t *wanted;                    /* the same, of what would have been; or NULL */
    int n_logged;                        /* tokens in it; 0: the places have seen all */
    int n_noted, cold_noted;             /* layers of these that they have seen, and how many of the
                                          * choices were not in VRAM */
    bool turned;                         /* they have changed since the last token */
    double *layer_s;                     /* [n_layer]: from a question to its reply, since then */
    uint32_t number;                     /* of the last question replied to */
    bool broken;                         /* a failure has been told */
    uint8_t *arena;                      /* VRAM: */
    uint8_t *fetch_table;
    gpu_split *split;                    /* [n_layer]; mail NULL: no experts, or all in VRAM */
    int n_asking;                        /* layers with mail */
    const expert_bank *bank;             /* of the first layer that asks: the others are much
                                          * alike */
    fetch_levels levels;
    bool can_guess;
    read_ahead *reader;                  /* NULL: can_guess is false */
    bool nothing_locked;                 /* slabs would be fetched if they were in page-locked
                                          * RAM */

    int layer;                           /* of the question under way */
    int n;                               /* tokens of the batch */
    uint64_t patient_until;              /* clock; 0: nothing has been late yet */
    uint64_t token_from;                 /* clock */
    double token_s;                      /* that the last one took */
    uint64_t not_asked;                  /* clock: the question under way had not come then */
    double waited_s;                     /* of the question under way: for late slabs */
    last_fetch fetch;
    fetch_log *notes;                    /* NULL: nobody wants to know */
    uint64_t cold_from;                  /* cold experts before the token */
    perf_level perf;
    perf_layer *layers;                  /* [n_layer] */
    router_ahead *guesser;               /* for recall; both or neither are NULL */
    guess_recall *recall;
    host_experts_stats s;
};

/* ---- post-fetch: which, and whether ---------------------------------------------------------- */

static double seconds(uint64_t ns) { return (double)ns * 1e-9; }

/* To the device, between tokens. A failure shows at the next wait. */
static void send_levels(host_experts *c)
{
    err_ctx ignored;
    (void)gpu_write(c->g, c->fetch_table, c->levels.table, FETCH_TABLE, &ignored);
}

static uint64_t cold_experts(const host_experts *c)
{
    return c->s.on_cpu + c->s.down_fetched + c->s.all_fetched + c->s.guessed;
}

/* After each single token, which took s seconds. */
static void try_out(host_experts *c, double s)
{
    const int n_cold = (int)(cold_experts(c) - c->cold_from);
    if (fetch_levels_token(&c->levels, s, n_cold)) send_levels(c);
}

void host_experts_pause_fetching(host_experts *c, bool paused)
{
    fetch_levels_pause(&c->levels, paused);
    send_levels(c);
}

/* ---- what was fetched ------------------------------------------------------------------------ */

/* The clock of layers; stands still if nobody counts. */
static uint64_t now(const host_experts *c) { return c->perf == PERF_OFF ? 0 : clock_ns(); }

/* The device has gone on: whatever the last question had fetched is there, and seen is when the
 * host saw it. */
static void settle_fetch(host_experts *c, uint64_t seen)
{
    last_fetch *f = &c->fetch;
    double least, most;
    if (!f->open) return;
    const double pull = seconds(__atomic_exchange_n(&c->mail->fetch_ns, 0, __ATOMIC_RELAXED));
    perf_overlap(&least, &most, pull, f->busy_s,
                 f->unsure_s + (f->ended ? 0.0 : seconds(seen - f->reply)));
    c->s.pull_s += pull;
    c->s.hidden_least_s += least;
    c->s.hidden_most_s += most;
    if (c->notes) fetch_log_took(c->notes, f->layer, pull);
    f->open = false;
}

/* The device is idle. */
static void tell_fetches(host_experts *c)
{
    if (!c->notes) return;
    settle_fetch(c, now(c));
    fetch_log_tell(c->notes);
}

/* ---- questions ------------------------------------------------------------------------------- */

/* A number that the device writes after the data that it announces. */
static uint32_t word(const volatile uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

static uint32_t next_number(const host_experts *c) { return (c->number + 1) & GPU_NUMBERS; }

/* Whether the device has come to the next question, or past it. It cannot pass one that waits for a
 * reply. */
static bool has_come(const host_experts *c, uint32_t asked)
{
    return ((asked / GPU_CODES - c->number - 1) & GPU_NUMBERS) <= GPU_NUMBERS / 2;
}

static uint32_t *log_of(const host_experts *c, int layer)
{
    return c->log + (size_t)layer * GPU_FEW * (size_t)c->m->hp.n_expert_used;
}

uint32_t *host_experts_wanted(const host_experts *c, int layer)
{
    return c->wanted ? c->wanted + (log_of(c, layer) - c->log) : NULL;
}

/* Slots of a quiet layer that came on a guess: the latest one's are in the word, and what earlier
 * ones chose is in the log by then. */
static int quiet_guesses(const host_experts *c, uint32_t asked, bool latest)
{
    int n = 0;
    if (latest) return (int)(asked % GPU_CODES - GPU_QUIET);
    for (int i = 0; c->can_guess && i < c->m->hp.n_expert_used; i++)
        n += log_of(c, c->layer)[i] >> 16 == GPU_GUESSED;
    return n;
}

typedef struct seen_question {
    bool quiet;                          /* the layer has all that it needs, or is past already */
    bool waited;                         /* it came while somebody looked */
    bool latest;                         /* none after it had come by then */
    int n_guessed;                       /* of a quiet one */
} seen_question;

/* Between questions: for a thread that reads ahead. */
static bool nothing_asked(void *ctx)
{
    const host_experts *c = ctx;
    return !has_come(c, word(&c->mail->asked));
}

/* While the device mixes: what it thinks that this layer will ask for, into the cores' caches.
 * False: it has not said anything yet. */
static bool read_on_guess(host_experts *c)
{
    int32_t ids[GPU_MOST_TOLD];
    const uint64_t told = __atomic_load_n(&c->mail->told, __ATOMIC_ACQUIRE);
    const int n = gpu_told(ids, told, next_number(c));
    if (n > 0)
        c->s.ahead_bytes += experts_cpu_read_ahead(c->cpu, c->reader, c->layer,
                                                   c->m->layers[c->layer].experts, ids, n,
                                                   nothing_asked, c);
    return n > 0;
}

static int await_question(host_experts *c, seen_question *q, err_ctx *err)
{
    uint32_t asked = word(&c->mail->asked);
    bool may_read = c->levels.guessing != GUESS_OFF && c->n == 1;
    q->waited = !has_come(c, asked);
    for (uint32_t i = 1; !has_come(c, asked); i++) {
        if (may_read) may_read = !read_on_guess(c);
        if (i % SPIN_LOOKS == 0 && !gpu_alive(c->g) && !has_come(c, word(&c->mail->asked)))
            return err_set(err, ERR_IO, "the GPU stopped in layer %d", c->layer);
        pool_relax();
        asked = word(&c->mail->asked);
    }
    q->quiet = asked != next_number(c) * GPU_CODES;
    q->latest = asked / GPU_CODES == next_number(c);
    if (q->quiet && c->n == 1) q->n_guessed = quiet_guesses(c, asked, q->latest);
    return 0;
}

static void answer(host_experts *c)
{
    c->number = next_number(c);
    __atomic_store_n(&c->mail->answered, c->number, __ATOMIC_RELEASE);
}

/* The time it would take to compute one more down matrix: that long a question may wait for a slab
 * that is on its way. */
static uint64_t patience_ns(const host_experts *c)
{
    const uint64_t bytes = expert_slab_bytes(c->m->layers[c->layer].experts, SLAB_DOWN);
    const double rate = c->p->rate.cpu_busy > 0.0 ? c->p->rate.cpu_busy : SPEEDS_CPU_BUSY;
    return (uint64_t)((double)bytes / rate * 1e9);
}

/* Whether the slab of a slot is in VRAM, or will be soon enough. All slabs of a question share one
 * time limit. */
static bool arrives(host_experts *c, int slot)
{
    const volatile uint32_t *fetched = &c->mail->fetched[slot];
    if (word(fetched) == next_number(c)) return true;
    const uint64_t from = clock_ns();
    uint64_t at = from;
    if (c->patient_until == 0) c->patient_until = from + patience_ns(c);
    for (uint32_t i = 1; word(fetched) != next_number(c); i++) {
        if (!c->post.block && at > c->patient_until) break;
        if (i % SPIN_LOOKS == 0 && !gpu_alive(c->g)) break;
        pool_relax();
        at = clock_ns();
    }
    c->waited_s += seconds(at - from);
    c->s.wait_s += seconds(at - from);
    return word(fetched) == next_number(c);
}

/* Whether the device does the down of this one. Only single tokens have slabs fetched. */
static bool device_takes(void *ctx, const work_item *it)
{
    host_experts *c = ctx;
    const int slot = c->work->slots[it->first];
    const acts *mid = experts_cpu_mid(c->cpu);
    const size_t row = (size_t)it->first * (size_t)mid->n_block;
    gpu_mail *mail = c->mail;

    if (mail->where[slot] != GPU_COLD_FETCHED) return false;
    mail->by_host[slot] = 1;
    if (c->post.force_cpu) return false;
    if (!arrives(c, slot)) {
        c->s.late++;
        return false;
    }
    mail->by_host[slot] = 0;
    if (mid->quantised)
        gpu_mail_put_mid(mail, slot, mid->q + row * ACT_BLOCK, mid->dx + row, mid->s + 2 * row);
    else
        memcpy(mail->mid_rows + (size_t)slot * (size_t)mail->n_ff,
               mid->x + (size_t)it->first * (size_t)mail->n_ff,
               (size_t)mail->n_ff * sizeof(float));
    return true;
}

/* How many of n_cold experts the device should fetch something of. */
static int meant_to_fetch(const host_experts *c, int n_cold)
{
    return c->nothing_locked ? n_cold : fetch_levels_meant(&c->levels, n_cold);
}

static void count_layer(host_experts *c, int n_hot, int n_cold, bool quiet)
{
    if (c->perf != PERF_FULL) return;
    c->layers[c->layer].calls++;
    c->layers[c->layer].quiet += quiet;
    c->layers[c->layer].hot += (uint64_t)n_hot;
    c->layers[c->layer].cold += (uint64_t)n_cold;
}

/* Returns how many experts have something fetched. */
static int count(host_experts *c, const expert_bank *b)
{
    const uint64_t down = expert_slab_bytes(b, SLAB_DOWN), up = expert_slabs_bytes(b) - down;
    int n_hot = 0, n_fetched = 0, n_guessed = 0;
    host_experts_stats *s = &c->s;
    s->questions++;
    for (int i = 0; i < c->mail->k; i++) {
        switch (c->mail->where[i]) {
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
            s->cpu_bytes += up + (c->mail->by_host[i] ? down : 0);
            s->pull_bytes += down;
            break;
        case GPU_FETCHED:
            n_fetched++;
            s->all_fetched++;
            s->pull_bytes += up + down;
            break;
        case GPU_GUESSED:
            n_guessed++;
            s->guessed++;
            s->pull_bytes += up + down;
            break;
        }
    }
    const int n_cold = c->mail->k - n_hot;
    s->not_locked += (uint64_t)max_int(meant_to_fetch(c, n_cold - n_guessed) - n_fetched, 0);
    count_layer(c, n_hot, n_cold, false);
    return n_fetched;
}

/* A layer without a question; its time is the device's own. */
static void count_quiet(host_experts *c, const expert_bank *b, int n_guessed, double s)
{
    const int n_hot = c->m->hp.n_expert_used - n_guessed;
    c->s.quiet++;
    c->s.hot += (uint64_t)n_hot;
    c->s.guessed += (uint64_t)n_guessed;
    c->s.hot_bytes += (uint64_t)n_hot * expert_slabs_bytes(b);
    c->s.pull_bytes += (uint64_t)n_guessed * expert_slabs_bytes(b);
    c->s.ask_s += s;
    count_layer(c, n_hot, n_guessed, true);
}

/* Of a single token's question. */
static void count_times(host_experts *c, double ask_s, double cpu_s)
{
    c->s.ask_s += ask_s;
    c->s.cpu_s += cpu_s;
    if (c->perf == PERF_FULL) c->layers[c->layer].cold_s += cpu_s;
}

/* Appends the items of the work whose expert is at `where` to the n in items; returns how many
 * there are then. */
static int gather(host_experts *c, int n, gpu_where where)
{
    for (int i = 0; i < c->work->n_item; i++) {
        const work_item *it = &c->work->items[i];
        if (c->mail->where[c->work->slots[it->first]] == where) c->items[n++] = *it;
    }
    return n;
}

static int compute(host_experts *c, err_ctx *err)
{
    const gpu_mail *mail = c->mail;
    c->patient_until = 0;
    worklist_fill(c->work, mail->ids, mail->n, mail->k);
    const int n_sure = gather(c, 0, GPU_COLD), n_item = gather(c, n_sure, GPU_COLD_FETCHED);
    if (n_item == 0) return 0;
    acts_set(&c->x, mail->x, mail->n, mail->n_embd);
    const expert_job job = {
        .bank = c->m->layers[c->layer].experts, .act = c->m->family->act, .x = &c->x,
        .work = c->work, .items = c->items, .n_item = n_item, .y = mail->y, .layer = c->layer,
        .taken = device_takes, .taken_ctx = c, .n_sure = n_sure,
    };
    return experts_cpu_run(c->cpu, &job, err);
}

/* ---- guesses that are counted ---------------------------------------------------------------- */

/* What the map says, in the books. */
static bool is_hot(const host_experts *c, int layer, int expert)
{
    if (!c->places) return expert < c->p->hot[layer];
    return residency_find(vram_places_books(c->places), layer, expert) >= 0;
}

/* Before the reply: what was guessed for this layer is judged, and its vector is kept, because the
 * mail is the device's afterwards; the slots are a prompt's, and idle now. Returns whether. */
static bool judge_guess(host_experts *c)
{
    if (!c->recall || c->n != 1 || c->broken) return false;
    guess_recall_chosen(c->recall, c->layer, c->mail->ids);
    memcpy(c->slots, c->mail->x, (size_t)c->mail->n_embd * sizeof *c->slots);
    return true;
}

/* After the reply, while the device goes on. Only layers that may ask are judged, so only these are
 * guessed. */
static void guess_next(host_experts *c)
{
    const int next = c->layer + 1;
    const int32_t *likely;
    int n_vram = 0;
    if (next >= c->n_layer || !host_experts_layer(c, next)) return;
    acts_set(&c->x, c->slots, 1, c->mail->n_embd);
    const int n = router_ahead_guess(c->guesser, c->layer, &c->x, &likely);
    for (int i = 0; i < n; i++) n_vram += is_hot(c, next, likely[i]);
    if (n > 0) guess_recall_guess(c->recall, next, likely, n_vram);
}

/* The device is idle: guesses about layers of the last token that asked for nothing. */
static void judge_quiet(host_experts *c)
{
    const int k = c->m->hp.n_expert_used;
    int32_t chosen[GPU_MOST_USED];
    if (!c->recall || !c->log || c->n_logged != 1) return;
    for (int l = 0; l < c->n_layer; l++) {
        if (!host_experts_layer(c, l)) continue;
        for (int i = 0; i < k; i++) chosen[i] = (int32_t)(log_of(c, l)[i] & 0xFFFF);
        guess_recall_chosen(c->recall, l, chosen);
    }
}

void host_experts_watch_guesses(host_experts *c, router_ahead *by, guess_recall *to)
{
    err_ctx ignored;                     /* a failure shows at the next token */
    if (c->recall && gpu_wait(c->g, &ignored) == 0) judge_quiet(c);
    c->guesser = by;
    c->recall = to;
}

/* ---- a layer --------------------------------------------------------------------------------- */

static int cold_in(const uint32_t *log, int n)
{
    int cold = 0;
    for (int i = 0; i < n; i++) cold += log[i] >> 16 != GPU_HOT;
    return cold;
}

/* The books get the choices of layers up to `end`, which are in RAM: those before a question are,
 * and all when the last layer has a number. A layer's take some microseconds. */
static void note_choices(host_experts *c, int end)
{
    const int n = c->n_logged * c->m->hp.n_expert_used;
    for (; c->n_noted < end && n > 0; c->n_noted++) {
        const int l = c->n_noted;
        if (!host_experts_layer(c, l)) continue;
        const uint32_t *log = log_of(c, l), *wanted = c->wanted ? host_experts_wanted(c, l) : log;
        vram_places_chosen(c->places, l, wanted, n);
        if (c->perf != PERF_OFF) vram_places_call(c->places, l, cold_in(log, n), c->layer_s[l]);
        c->layer_s[l] = 0;
        c->cold_noted += cold_in(wanted, n);
    }
}

static int change_places(host_experts *c, err_ctx *err)
{
    const int all = c->n_asking * c->m->hp.n_expert_used;
    note_choices(c, c->n_layer);
    if (c->n_logged == 1)
        vram_places_token(c->places, c->token_s, all - c->cold_noted, all);
    c->n_logged = 0;
    return vram_places_turn(c->places, err);
}

/* Copies of experts begin one by one, while nobody waits for the host: setting one up takes it some
 * ten microseconds. */
static void send_some(host_experts *c)
{
    if (c->places && !c->broken) vram_places_send(c->places, 1);
}

int host_experts_serve(host_experts *c, int layer, err_ctx *err)
{
    const expert_bank *bank = c->m->layers[layer].experts;
    const uint64_t from = now(c);
    seen_question q = { false, false, false, 0 };
    int rc, n_fetched = 0;
    c->layer = layer;
    if ((rc = await_question(c, &q, err)) < 0) {         /* nobody waits for a reply */
        c->broken = true;
        return rc;
    }
    const uint64_t seen = now(c);
    const double unseen_s = q.waited ? 0.0 : seconds(from - c->not_asked);
    settle_fetch(c, seen);
    if (q.waited || q.latest) c->not_asked = seen;
    if (q.quiet) {
        c->number = next_number(c);
        if (q.latest) send_some(c);      /* else somebody may be waiting */
        if (c->n == 1) count_quiet(c, bank, q.n_guessed, seconds(seen - from));
        return 0;
    }
    if (fault_hits(FAULT_GPU_LOST)) {
        c->broken = true;
        rc = err_set(err, ERR_IO, "the GPU stopped in layer %d", c->layer);
    }
    c->waited_s = 0.0;
    if (c->broken) memset(c->mail->by_host, 1, sizeof c->mail->by_host);
    else if ((rc = compute(c, err)) < 0) c->broken = true;
    if (c->n == 1) n_fetched = count(c, bank);
    const bool ended = __atomic_load_n(&c->mail->fetch_ns, __ATOMIC_RELAXED) != 0;
    if (n_fetched > 0 && c->notes) fetch_log_note(c->notes, layer, c->mail);
    const bool judged = judge_guess(c);
    answer(c);
    const uint64_t reply = c->not_asked = now(c);
    send_some(c);
    const double cpu_s = seconds(reply - seen);
    c->layer_s[layer] += cpu_s;
    if (c->places && !c->broken) note_choices(c, layer + 1);
    if (c->n != 1) return rc;
    count_times(c, seconds(seen - from), cpu_s);
    c->fetch = (last_fetch){ .open = n_fetched > 0, .ended = ended, .layer = layer, .reply = reply,
                             .busy_s = cpu_s - c->waited_s, .unsure_s = unseen_s + c->waited_s };
    if (judged) guess_next(c);
    return rc;
}

int host_experts_turn(host_experts *c, err_ctx *err)
{
    int rc = 0;
    if ((c->places || c->notes || c->recall) && gpu_alive(c->g)) rc = gpu_wait(c->g, err);
    if (rc < 0) return rc;
    tell_fetches(c);
    judge_quiet(c);
    if (c->places && !c->turned) rc = change_places(c, err);
    else if (c->places) vram_places_publish(c->places);  /* what prompts have changed since */
    c->turned = false;
    c->not_asked = now(c);
    return rc;
}

void host_experts_begin(host_experts *c, int n)
{
    c->n = n;
    c->n_logged = n;
    c->n_noted = c->cold_noted = 0;
    c->layer = -1;
    c->broken = false;
    if (c->recall) guess_recall_forget(c->recall);
    pool_stay_awake(c->o->team, true);
    c->cold_from = cold_experts(c);
    c->token_from = clock_ns();
}

/* While the device computes the rest of the token. Guesses that are counted are judged first, when
 * it is idle. */
static void turn_early(host_experts *c)
{
    err_ctx ignored;                     /* a failure shows at the next wait */
    if (!c->places || c->recall || c->broken) return;
    vram_places_send(c->places, INT_MAX);
    (void)change_places(c, &ignored);
    c->turned = true;
}

void host_experts_end(host_experts *c)
{
    pool_stay_awake(c->o->team, false);
    /* of a batch that was stopped, not all layers have chosen */
    const bool all = c->layer >= 0 && c->split[c->layer].closes;
    if (c->broken || !all) c->n_logged = 0;
    if (c->n == 1 && !c->broken) {
        c->s.tokens++;
        c->token_s = clock_since(c->token_from);
        try_out(c, c->token_s);
    }
    turn_early(c);
}

/* ---- prompts --------------------------------------------------------------------------------- */

typedef struct join_job {
    const host_experts *c;
    float *sums;
    const float *gates;
} join_job;

static void join_tokens(void *ctx, int64_t begin, int64_t end, int thread)
{
    const join_job *j = ctx;
    const int k = j->c->m->hp.n_expert_used, n_embd = j->c->m->hp.n_embd;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *sum = j->sums + (size_t)t * (size_t)n_embd;
        memset(sum, 0, (size_t)n_embd * sizeof *sum);
        j->c->o->loops->join(sum, j->c->slots + (size_t)t * (size_t)k * (size_t)n_embd,
                             j->gates + t * k, k, NULL, 0.0f, n_embd);
    }
}

/* The vectors of those slots whose experts are among the first n_item of c->items. */
static int compute_slots(host_experts *c, int layer, const float *x, int n, int n_item,
                         err_ctx *err)
{
    if (n_item == 0) return 0;
    acts_set(&c->x, x, n, c->m->hp.n_embd);
    const expert_job job = {
        .bank = c->m->layers[layer].experts, .act = c->m->family->act, .x = &c->x,
        .work = c->work, .items = c->items, .n_item = n_item, .y = c->slots, .layer = layer,
    };
    return experts_cpu_run(c->cpu, &job, err);
}

int host_experts_prompt(host_experts *c, int layer, float *sums, const float *x, const int32_t *ids,
                        const float *gates, int n, err_ctx *err)
{
    const size_t n_embd = (size_t)c->m->hp.n_embd, k = (size_t)c->m->hp.n_expert_used;
    for (int done = 0; done < n;) {
        const int some = min_int(n - done, HOST_EXPERTS_TOKENS);
        const size_t at = (size_t)done;
        worklist_fill(c->work, ids + at * k, some, (int)k);
        memcpy(c->items, c->work->items, (size_t)c->work->n_item * sizeof *c->items);
        const int rc = compute_slots(c, layer, x + at * n_embd, some, c->work->n_item, err);
        if (rc < 0) return rc;
        join_job j = { c, sums + at * n_embd, gates + at * k };
        pool_run(c->o->team, some, pool_grain((int64_t)(k * n_embd)), join_tokens, &j);
        done += some;
    }
    return 0;
}

const int32_t *host_experts_map(const host_experts *c, int layer) { return c->split[layer].hot; }

void host_experts_prompt_begin(host_experts *c)
{
    if (c->places) vram_places_publish(c->places);
}

static void tell_places(host_experts *c, int layer, const int32_t *ids, int n)
{
    const int k = c->m->hp.n_expert_used;
    for (int t = 0; c->places && t < n; t++, ids += k) {
        uint32_t chosen[GPU_MOST_USED];
        for (int r = 0; r < k; r++)
            chosen[r] = (uint32_t)ids[r] |
                        (uint32_t)(is_hot(c, layer, ids[r]) ? GPU_HOT : GPU_COLD) << 16;
        vram_places_chosen(c->places, layer, chosen, k);
    }
}

int host_experts_cold(host_experts *c, int layer, const float **y, const float *x,
                      const int32_t *ids, int n, err_ctx *err)
{
    int n_item = 0;
    worklist_fill(c->work, ids, n, c->m->hp.n_expert_used);
    for (int i = 0; i < c->work->n_item; i++)
        if (!is_hot(c, layer, c->work->items[i].expert)) c->items[n_item++] = c->work->items[i];
    const int rc = compute_slots(c, layer, x, n, n_item, err);
    if (rc == 0) tell_places(c, layer, ids, n);
    *y = c->slots;
    return rc;
}

int host_experts_some(host_experts *c, int layer, const float **y, int32_t *row, const float *x,
                      const int32_t *ids, int n, const bool *mine, err_ctx *err)
{
    const int k = c->m->hp.n_expert_used;
    worklist_fill_some(c->work, ids, n, k, mine);
    for (int i = 0; i < n * k; i++) row[i] = -1;
    for (int i = 0; i < c->work->n_slot; i++) row[c->work->slots[i]] = i;
    *y = c->slots;
    if (c->work->n_item == 0) return 0;
    acts_set(&c->x, x, n, c->m->hp.n_embd);
    const expert_job job = {
        .bank = c->m->layers[layer].experts, .act = c->m->family->act, .x = &c->x,
        .work = c->work, .items = c->work->items, .n_item = c->work->n_item, .y = c->slots,
        .by_position = true, .layer = layer,
    };
    return experts_cpu_run(c->cpu, &job, err);
}

/* ---- life ------------------------------------------------------------------------------------ */

static gpu_expert_args shapes_of(const weights_gpu *w, int l)
{
    return (gpu_expert_args){ .gate = w->layers[l].gate, .up = w->layers[l].up,
                              .down = w->layers[l].down };
}

/* Not from a cache before a drive, where a slab could be overwritten while it is fetched. A slot
 * that an expert has left is written when the device has ended its token. */
static bool wants_to_fetch(const host_experts *c)
{
    return !c->post.off && c->p->vram_pad > 0 && expert_store_kind(c->store) == STORE_LOADED;
}

static bool can_fetch(const host_experts *c)
{
    return wants_to_fetch(c) && expert_store_locked(c->store) > 0;
}

static uint64_t table_bytes(const model_hparams *hp)
{
    return (uint64_t)hp->n_expert * SLAB_COUNT * sizeof(uint64_t);
}

/* What lies in the arena. */
typedef struct vram_parts {
    uint32_t *number;
    uint8_t *fetch;
    void *scratch;
    int32_t *hot;                        /* [n_layer, n_expert] */
    uint64_t *slabs;                     /* [n_layer, n_expert, SLAB_COUNT] */
    void *guess_state;
    uint8_t *pad, *guess_pad;
} vram_parts;

static vram_parts place_all(mem_layout *a, const model_hparams *hp, uint64_t pad_bytes,
                            uint64_t guess_bytes)
{
    const uint64_t n_layer = (uint64_t)hp->n_layer, n_expert = (uint64_t)hp->n_expert;
    vram_parts v;
    v.number = mem_layout_take(a, 1, 1, sizeof *v.number);
    v.fetch = mem_layout_take(a, FETCH_TABLE, 1, 1);
    v.scratch = mem_layout_take(a, gpu_split_scratch(hp->n_expert_used, hp->n_ff_expert,
                                                     hp->n_embd), 1, 1);
    v.hot = mem_layout_take(a, n_layer, n_expert, sizeof *v.hot);
    v.slabs = mem_layout_take(a, n_layer, table_bytes(hp), 1);
    v.guess_state = mem_layout_take(a, gpu_guess_state(hp->n_expert, hp->n_embd, hp->n_layer),
                                    1, 1);
    v.pad = mem_layout_take(a, pad_bytes, 1, 1);
    v.guess_pad = mem_layout_take(a, guess_bytes, 1, 1);
    return v;
}

static uint64_t vram_bytes(const model_hparams *hp, uint64_t pad_bytes, uint64_t guess_bytes)
{
    mem_layout a = mem_layout_count(256);
    (void)place_all(&a, hp, pad_bytes, guess_bytes);
    return a.used;
}

/* Room for as many slabs as options allow, in the layer where they are largest. */
static uint64_t choose_pad(host_experts *c, const weights_gpu *w)
{
    int *n_down = &c->levels.pad_down, *n_all = &c->levels.pad_all;
    const uint64_t most = c->post.pad_bytes;
    if (!can_fetch(c)) return 0;
    *n_down = c->m->hp.n_expert_used;
    *n_all = min_int(*n_down, PLAN_PAD_WHOLE);
    for (;;) {
        uint64_t pad = 0;
        for (int l = 0; l < c->n_layer; l++) {
            const gpu_expert_args shapes = shapes_of(w, l);
            const uint64_t bytes = gpu_split_pad(&shapes, *n_down, *n_all);
            if (bytes > pad) pad = bytes;
        }
        if (most == 0 || pad <= most || *n_down + *n_all == 0) return pad;
        if (*n_all > 0) --*n_all;
        else --*n_down;
    }
}

/* What a layer's guess needs to know of the layer after it; nothing if that one has no slab to be
 * fetched. */
static gpu_guess guess_of(const host_experts *c, const weights_gpu *w, int l)
{
    gpu_guess next = { .norm = w->layers[l].experts_norm };
    if (l + 1 >= c->n_layer || !c->split[l].slabs || !c->split[l + 1].slabs ||
        !gpu_guess_fits(w->layers[l + 1].router.type))
        return next;
    next.router = w->layers[l + 1].router;
    next.rule = weights_gpu_rule(&c->m->hp.router, w->layers[l + 1].choice_bias);
    next.next_norm = w->layers[l + 1].router_norm;
    next.hot = c->split[l + 1].hot;
    next.slabs = c->split[l + 1].slabs;
    for (int s = 0; s < SLAB_COUNT; s++)
        next.bytes[s] = expert_slab_bytes(c->m->layers[l + 1].experts, (expert_slab)s);
    return next;
}

/* Room for the guesses of one layer, in the layer where experts are largest. */
static uint64_t choose_guess_room(host_experts *c)
{
    uint64_t room = 0;
    const int most = c->can_guess ? min_int(c->p->guesses, GPU_MOST_GUESSES) : 0;
    c->levels.most_guesses = c->can_guess ? most : -1;
    for (int l = 0; l < c->n_layer && most > 0; l++) {
        uint64_t bytes[SLAB_COUNT];
        for (int s = 0; s < SLAB_COUNT; s++)
            bytes[s] = expert_slab_bytes(c->m->layers[l].experts, (expert_slab)s);
        if (gpu_guess_pad(bytes) > room) room = gpu_guess_pad(bytes);
    }
    return (uint64_t)most * room;
}

/* A layer that asks: where its experts are, as far as the device has to know. map: scratch. */
static int make_split(host_experts *c, const vram_parts *v, int32_t *map, int l, err_ctx *err)
{
    const int n_expert = c->m->hp.n_expert, n_hot = c->p->hot[l];
    const int32_t *hot = c->places ? vram_places_map(c->places, l) : NULL;
    int rc = 0;
    if (!c->places && n_hot > 0) {
        int32_t *own = v->hot + (size_t)l * (size_t)n_expert;
        for (int e = 0; e < n_expert; e++) map[e] = e < n_hot ? e : -1;
        rc = gpu_write(c->g, own, map, (size_t)n_expert * sizeof *map, err);
        hot = own;
    }
    const uint64_t *table = c->s.pad_bytes > 0 ? expert_store_table(c->store, l) : NULL;
    const uint64_t *kept = c->places ? vram_places_slabs(c->places, l) : NULL;
    uint64_t *own = v->slabs + (size_t)l * (size_t)n_expert * SLAB_COUNT;
    const uint64_t *slabs = kept ? kept : own;
    if (table && !kept && rc == 0)
        rc = gpu_write(c->g, own, table, table_bytes(&c->m->hp), err);
    c->split[l] = (gpu_split){
        .mail = c->mail, .number = v->number, .hot = hot, .chosen = c->log ? log_of(c, l) : NULL,
        .slabs = table ? slabs : NULL, .fetch = v->fetch, .pad = v->pad,
        .pad_down = c->levels.pad_down, .pad_all = c->levels.pad_all, .scratch = v->scratch,
        .one_stream = c->post.one_stream,
    };
    return rc;
}

/* All layers that ask. */
static int make_splits(host_experts *c, const vram_parts *v, err_ctx *err)
{
    const int n_expert = c->m->hp.n_expert;
    int32_t *map = mem_array((size_t)n_expert, sizeof *map);
    gpu_split *last = NULL;
    int rc = 0;
    if (!map) return err_set(err, ERR_NOMEM, "%d experts", n_expert);
    for (int l = 0; l < c->n_layer && rc == 0; l++) {
        const expert_bank *bank = c->m->layers[l].experts;
        if (bank->n_expert == 0 || c->p->hot[l] >= n_expert) continue;
        c->n_asking++;
        if (!c->bank) c->bank = bank;
        rc = make_split(c, v, map, l, err);
        last = &c->split[l];
    }
    if (last) last->closes = true;
    mem_free(map);
    return rc;
}

/* room: bytes of one of the two halves of the guesses' pad. */
static void make_guesses(host_experts *c, const weights_gpu *w, const vram_parts *v, uint64_t room)
{
    for (int l = 0; l < c->n_layer && c->can_guess; l++) {
        gpu_split *split = &c->split[l];
        if (!split->slabs) continue;
        split->next = guess_of(c, w, l);
        split->guess_pad = room > 0 ? v->guess_pad : NULL;
        split->guess_room = room;
        split->guess_turn = l % 2;
        split->guess_layer = l;
        split->guess_state = v->guess_state;
    }
}

static int make_vram(host_experts *c, const weights_gpu *w, err_ctx *err)
{
    const model_hparams *hp = &c->m->hp;
    const uint64_t pad = c->s.pad_bytes = choose_pad(c, w);
    c->can_guess = pad > 0 && !c->post.one_stream && !c->post.no_guesses;
    const uint64_t room = choose_guess_room(c);
    const uint64_t bytes = vram_bytes(hp, pad, 2 * room);
    int rc;

    c->arena = gpu_alloc(c->g, bytes, "post-fetched experts", err);
    if (!c->arena) return ERR_NOMEM;
    if ((rc = gpu_zero(c->g, c->arena, bytes, err)) < 0) return rc;
    mem_layout a = mem_layout_over(c->arena, 256);
    const vram_parts v = place_all(&a, hp, pad, 2 * room);
    c->fetch_table = v.fetch;
    if ((rc = make_splits(c, &v, err)) < 0) return rc;
    make_guesses(c, w, &v, room);
    return 0;
}

static uint64_t log_bytes(const model_hparams *hp)
{
    return (uint64_t)hp->n_layer * GPU_FEW * (uint64_t)hp->n_expert_used * sizeof(uint32_t);
}

/* RAM: the vectors of a prompt's slots, and what the CPU's experts work in. */
typedef struct ram_sizes { size_t slots, floats, acts; } ram_sizes;

static ram_sizes ram_of(const model_hparams *hp)
{
    const size_t slots = HOST_EXPERTS_TOKENS * (size_t)hp->n_expert_used;
    return (ram_sizes){ slots, slots * (size_t)hp->n_embd,
                        acts_bytes(PLAN_SPLIT_TOKENS, hp->n_embd) + 64 };
}

uint64_t host_experts_ram_bytes(const model *m)
{
    const ram_sizes r = ram_of(&m->hp);
    const uint64_t mail = (uint64_t)GPU_FEW * (uint64_t)m->hp.n_expert_used *
                          ((uint64_t)m->hp.n_embd + 2 * (uint64_t)m->hp.n_ff_expert) *
                          sizeof(float);
    const uint64_t lists = (uint64_t)m->hp.n_layer * (sizeof(gpu_split) + table_bytes(&m->hp));
    return r.floats * sizeof(float) + r.acts + experts_cpu_bytes(&m->hp, (int)r.slots) + mail +
           lists + log_bytes(&m->hp);
}

uint64_t host_experts_vram_bytes(const model *m) { return vram_bytes(&m->hp, 0, 0); }

static int make_ram(host_experts *c, router_ahead *ahead, bool prefers, err_ctx *err)
{
    const model_hparams *hp = &c->m->hp;
    const ram_sizes r = ram_of(hp);
    int rc;
    c->split = mem_array((size_t)hp->n_layer, sizeof *c->split);
    c->layer_s = mem_zalloc((size_t)hp->n_layer * sizeof *c->layer_s);
    c->layers = mem_zalloc((size_t)hp->n_layer * sizeof *c->layers);
    c->items = mem_array((size_t)hp->n_expert, sizeof *c->items);
    c->x_storage = mem_zalloc(r.acts);
    if (!c->split || !c->layer_s || !c->layers || !c->items || !c->x_storage)
        return err_set(err, ERR_NOMEM, "experts on the CPU: %zu bytes", r.acts);
    c->slots = gpu_alloc_host(c->g, r.floats * sizeof *c->slots, err);
    if (!c->slots) return ERR_NOMEM;
    memset(c->split, 0, (size_t)hp->n_layer * sizeof *c->split);
    acts_init(&c->x, (uint8_t *)(((uintptr_t)c->x_storage + 63) / 64 * 64), PLAN_SPLIT_TOKENS,
              hp->n_embd);
    if ((rc = worklist_create(&c->work, hp->n_expert, (int)r.slots, err)) < 0 ||
        (rc = experts_cpu_create(&c->cpu, c->o, hp, c->store, ahead, (int)r.slots, err)) < 0)
        return rc;
    if (c->places || c->p->vram_pad > 0) {
        c->log = gpu_alloc_host(c->g, log_bytes(hp), err);
        if (!c->log) return ERR_NOMEM;
        memset(c->log, 0, (size_t)log_bytes(hp));
    }
    if (prefers) {
        c->wanted = gpu_alloc_host(c->g, log_bytes(hp), err);
        if (!c->wanted) return ERR_NOMEM;
        memset(c->wanted, 0, (size_t)log_bytes(hp));
    }
    return gpu_mail_create(&c->mail, c->g, hp->n_embd, hp->n_ff_expert, hp->n_expert_used, err);
}

int host_experts_create(host_experts **out, const host_experts_parts *parts, err_ctx *err)
{
    host_experts *c = mem_zalloc(sizeof *c);
    int rc;
    *out = NULL;
    if (!c) return err_set(err, ERR_NOMEM, "experts on the CPU: %zu bytes", sizeof *c);
    c->g = parts->g;
    c->m = parts->m;
    c->store = parts->store;
    c->places = parts->places;
    c->o = parts->o;
    c->p = parts->p;
    c->n_layer = parts->n_layer;
    c->post = c->levels.post = *parts->post;
    c->levels.k = parts->m->hp.n_expert_used;
    c->levels.most_guesses = -1;
    if ((rc = make_ram(c, parts->ahead, parts->prefers && c->places, err)) < 0 ||
        (rc = make_vram(c, parts->w, err)) < 0 ||
        (c->post.debug && c->s.pad_bytes > 0 &&
         (rc = fetch_log_create(&c->notes, c->m, parts->w, c->n_layer, c->levels.pad_all,
                                err)) < 0)) {
        host_experts_free(c);
        return rc;
    }
    if (c->can_guess &&
        (rc = read_ahead_create(&c->reader, pool_threads(c->o->team), err)) < 0) {
        host_experts_free(c);
        return rc;
    }
    c->nothing_locked = wants_to_fetch(c) && !can_fetch(c);
    fetch_levels_begin(&c->levels, c->bank, &c->p->rate);
    send_levels(c);
    *out = c;
    return 0;
}

void host_experts_free(host_experts *c)
{
    if (!c) return;
    tell_fetches(c);
    gpu_free(c->g, c->arena);
    gpu_mail_free(c->g, c->mail);
    gpu_free_host(c->g, c->log);
    gpu_free_host(c->g, c->slots);
    gpu_free_host(c->g, c->wanted);
    experts_cpu_free(c->cpu);
    read_ahead_free(c->reader);
    worklist_free(c->work);
    mem_free(c->x_storage);
    mem_free(c->items);
    fetch_log_free(c->notes);
    mem_free(c->layers);
    mem_free(c->layer_s);
    mem_free(c->split);
    mem_free(c);
}

bool host_experts_layer(const host_experts *c, int layer) { return c->split[layer].mail != NULL; }

bool host_experts_fetches(const host_experts *c)
{
    return c->levels.level > 0 || c->levels.guessing >= GUESS_FETCH;
}

int host_experts_guessing(const host_experts *c)
{
    return min_int(c->levels.guessing, GUESS_FETCH);
}

gpu_split host_experts_split(const host_experts *c, int layer)
{
    gpu_split s = c->split[layer];
    /* no kernel that fetches nothing */
    if (!host_experts_fetches(c)) s.slabs = NULL;
    if (c->levels.guessing < GUESS_FETCH) s.guess_pad = NULL;
    if (c->levels.guessing == GUESS_OFF) s.guess_state = NULL;
    return s;
}

host_experts_stats host_experts_counts(const host_experts *c)
{
    host_experts_stats s = c->s;
    /* whatever is being tried out */
    s.fetching = c->levels.tuner.level > 0 && !c->levels.paused;
    return s;
}

void host_experts_reset_counts(host_experts *c)
{
    c->s = (host_experts_stats){ .pad_bytes = c->s.pad_bytes };
    memset(c->layers, 0, (size_t)c->m->hp.n_layer * sizeof *c->layers);
}

void host_experts_count(host_experts *c, perf_level level) { c->perf = level; }

const perf_layer *host_experts_layers(const host_experts *c)
{
    return c->perf == PERF_FULL ? c->layers : NULL;
}
