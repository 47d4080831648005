/* request_queue.c - two prepare threads, the engine thread, and the lists between them.
 *
 * A request belongs to the thread that took it from a list. In the ready list the lock guards it,
 * and the first prepare thread sends its keep-alives. The second prepare thread alone takes large
 * bodies: parsing and tokenizing 32 MiB takes seconds, and neither small requests nor keep-alives
 * wait for it. A small body takes less than half a second, its schema included (grammar_rules.c
 * limits those). */
#include "cli/serve/request_queue.h"

#include <errno.h>
#include <pthread.h>

#include "cli/serve/error_reply.h"
#include "tiers/thread.h"

enum { N_LANE = 2, LARGE_BODY_BYTES = 256 << 10 };       /* larger bodies take the second lane */

typedef struct pending_call {
    struct pending_call *next;
    engine_call_when when;
    engine_call_fn *fn;
    void *ctx;
} pending_call;

typedef struct request_list { job_request *first, *last; int n; } request_list;

typedef struct prepare_lane {
    request_queue *q;                    /* set once, as the next three */
    bool sends_keepalives;
    bool started;
    pthread_t thread;
    encoder *enc;                        /* this thread only */
    request_list submitted;              /* guarded by the queue's lock */
} prepare_lane;

struct request_queue {
    engine_context engine;
    int max_waiting;
    job_run_hooks hooks;
    prepare_shared shared;
    prepare_lane lanes[N_LANE];
    scheduler *slots;                    /* engine thread only, but for status and steps */
    pthread_t engine_thread;
    bool has_engine_thread;
    atomic_bool finish_now;              /* running answers end; set by queue_close */
    atomic_int n_call;                   /* length of calls; read without the lock before a token */
    pthread_mutex_t lock;                /* guards all below, and the lanes' lists */
    pthread_cond_t changed;
    request_list ready;                  /* prepared, waiting for a slot */
    bool closing;
    queue_stats stats;
    pending_call *calls;                 /* in order of arrival */
};

/* ---- lists: the caller holds the lock -------------------------------------------------------- */

static void push(request_list *l, job_request *r)
{
    r->next = NULL;
    if (l->last) l->last->next = r;
    else l->first = r;
    l->last = r;
    l->n++;
}

static job_request *pop(request_list *l)
{
    job_request *r = l->first;
    if (!r) return NULL;
    l->first = r->next;
    if (!l->first) l->last = NULL;
    l->n--;
    return r;
}

static int n_waiting(const request_queue *q)
{
    int n = q->ready.n;
    for (int i = 0; i < N_LANE; i++) n += q->lanes[i].submitted.n;
    return n;
}

static void refuse_list(request_list *l)
{
    for (job_request *r; (r = pop(l));) {
        job_request_fail(r, API_BUSY, "the server is stopping");
        job_request_free(r);
    }
}

static void refuse_waiting(request_queue *q)
{
    for (int i = 0; i < N_LANE; i++) refuse_list(&q->lanes[i].submitted);
    refuse_list(&q->ready);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Removes the calls that may run now and returns them in order. The caller holds the lock. */
static pending_call *remove_calls(request_queue *q, engine_call_when now)
{
    pending_call *removed = NULL, **end = &removed;
    for (pending_call **link = &q->calls; *link;) {
        pending_call *c = *link;
        if (c->when > now) {
            link = &c->next;
            continue;
        }
        *link = c->next;
        c->next = NULL;
        *end = c;
        end = &c->next;
        atomic_fetch_sub(&q->n_call, 1);
    }
    return removed;
}

static void run_calls(pending_call *c, const engine_context *ec)
{
    while (c) {
        pending_call *next = c->next;
        c->fn(c->ctx, ec);
        mem_free(c);
        c = next;
    }
}

/* On the engine thread, without the lock. */
static void poll_calls(request_queue *q, engine_call_when now)
{
    if (atomic_load(&q->n_call) == 0) return;
    pthread_mutex_lock(&q->lock);
    pending_call *c = remove_calls(q, now);
    pthread_mutex_unlock(&q->lock);
    run_calls(c, &q->engine);
}

/* Before a chunk of a prompt and after each of its layers, on the engine thread. */
static void queue_poll(void *ctx)
{
    request_queue *q = ctx;
    scheduler_keepalive(q->slots);
    poll_calls(q, CALL_READ);
    scheduler_between_layers(q->slots);
}

bool engine_call(request_queue *q, engine_call_when when, engine_call_fn *fn, void *ctx)
{
    pending_call *c = mem_zalloc(sizeof *c), **end = &q->calls;
    if (!c) return false;
    *c = (pending_call){ .when = when, .fn = fn, .ctx = ctx };
    pthread_mutex_lock(&q->lock);
    const bool closing = q->closing;
    if (!closing) {
        while (*end) end = &(*end)->next;
        *end = c;
        atomic_fetch_add(&q->n_call, 1);
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    if (closing) mem_free(c);
    return !closing;
}

/* ---- prepare threads ------------------------------------------------------------------------- */

/* Sends keep-alives to waiting streams and drops requests whose client has left. The caller holds
 * the lock. */
static void keepalive_ready(request_queue *q)
{
    request_list kept = { 0 };
    for (job_request *r; (r = pop(&q->ready));) {
        if (job_request_keepalive(r)) {
            push(&kept, r);
        } else {
            q->stats.cancelled++;
            job_request_free(r);
        }
    }
    q->ready = kept;
}

static void *prepare_thread(void *ctx)
{
    prepare_lane *lane = ctx;
    request_queue *q = lane->q;
    uint64_t keepalive_ns = 0;           /* when the next ones are due */
    pthread_mutex_lock(&q->lock);
    for (;;) {
        const bool keeps_alive = lane->sends_keepalives && q->ready.first;
        if (keeps_alive && clock_ns() >= keepalive_ns) {
            keepalive_ready(q);
            keepalive_ns = clock_ns() + 1000000000;
        }
        job_request *r = pop(&lane->submitted);
        if (!r && q->closing) break;
        if (!r) {
            if (keeps_alive) thread_cond_wait_until(&q->changed, &q->lock, keepalive_ns);
            else pthread_cond_wait(&q->changed, &q->lock);
            continue;
        }
        pthread_mutex_unlock(&q->lock);
        r->wrote_ns = clock_ns();
        const bool ready = job_request_prepare(r, lane->enc);
        if (!ready) job_request_free(r);
        pthread_mutex_lock(&q->lock);
        if (ready) push(&q->ready, r);
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* ---- the engine thread ----------------------------------------------------------------------- */

static void count_answer(void *ctx, const answer_stats *s)
{
    request_queue *q = ctx;
    const uint64_t n_tokens = (uint64_t)(s->n_prompt + s->n_answer);
    pthread_mutex_lock(&q->lock);
    q->stats.prompt_tokens += (uint64_t)(s->n_taken - s->n_reused);
    q->stats.cached_tokens += (uint64_t)s->n_reused;
    q->stats.answer_tokens += (uint64_t)s->n_answer;
    q->stats.prompt_s += (double)s->prompt_ns * 1e-9;
    q->stats.answer_s += (double)s->answer_ns * 1e-9;
    if (n_tokens > q->stats.longest_tokens) q->stats.longest_tokens = n_tokens;
    pthread_mutex_unlock(&q->lock);
}

/* One step of some slots. */
static void compute(request_queue *q)
{
    const ended_request *ended;
    const int n = scheduler_step(q->slots, &ended);
    scheduler_keepalive(q->slots);
    for (int i = 0; i < n; i++) job_request_free(ended[i].request);
    if (n == 0) return;
    pthread_mutex_lock(&q->lock);
    for (int i = 0; i < n; i++) {
        if (ended[i].rc == ERR_STOPPED) q->stats.cancelled++;
        else if (ended[i].rc < 0) q->stats.failed++;
    }
    q->stats.running -= n;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

/* The caller holds the lock. */
static bool has_idle_call(const request_queue *q)
{
    const pending_call *c = q->calls;
    while (c && c->when != CALL_IDLE) c = c->next;
    return c != NULL;
}

/* The caller holds the lock. */
static void assign_ready(request_queue *q)
{
    while (!q->closing && scheduler_n_idle(q->slots) > 0 && q->ready.first) {
        job_request *r = pop(&q->ready);
        q->stats.queue_s += clock_since(r->arrived_ns);
        scheduler_assign(q->slots, r);
        q->stats.running++;
    }
}

/* A CALL_IDLE call blocks new requests until the running ones have ended. After it waiting
 * requests are assigned before the next such call, so that neither blocks the other for ever.
 * While no request runs, new states of the prefix cache go to the drive; a killed server loses
 * those that did not. */
static void *run_engine(void *ctx)
{
    const uint64_t drive_poll_ns = 5000000;
    request_queue *q = ctx;
    bool unsaved = false, ran_idle_calls = false;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        if (ran_idle_calls || !has_idle_call(q)) assign_ready(q);
        ran_idle_calls = false;
        const bool busy = scheduler_is_busy(q->slots);
        if (q->calls) {
            pthread_mutex_unlock(&q->lock);
            poll_calls(q, busy ? CALL_BETWEEN_STEPS : CALL_IDLE);
            pthread_mutex_lock(&q->lock);
            if (!busy) {
                ran_idle_calls = true;
                continue;                /* requests may have come */
            }
        }
        if (!busy && !unsaved && q->closing) break;
        if (!busy && !unsaved) {
            pthread_cond_wait(&q->changed, &q->lock);
            continue;
        }
        if (!busy && !q->closing)
            thread_cond_wait_until(&q->changed, &q->lock, clock_ns() + drive_poll_ns);
        const bool last = !busy && q->closing;
        pthread_mutex_unlock(&q->lock);
        if (busy) compute(q);
        if (last) (void)prefix_cache_flush(q->engine.cache, NULL);
        unsaved = q->engine.cache && !last && prefix_cache_poll(q->engine.cache);
        pthread_mutex_lock(&q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* ---- the queue ------------------------------------------------------------------------------- */

static int start_lane(request_queue *q, int i, err_ctx *err)
{
    prepare_lane *lane = &q->lanes[i];
    lane->q = q;
    lane->sends_keepalives = i == 0;
    const int rc = encoder_create(&lane->enc, q->engine.model->tok, err);
    if (rc < 0) return rc;
    lane->started = thread_start(&lane->thread, prepare_thread, lane) == 0;
    return lane->started ? 0 : err_set(err, ERR_NOMEM, "request queue: no more threads");
}

int queue_open(request_queue **out, const engine_context *ec, int max_waiting, err_ctx *err)
{
    request_queue *q = mem_zalloc(sizeof *q);
    *out = NULL;
    if (!q) return err_set(err, ERR_NOMEM, "request queue: %zu bytes", sizeof *q);
    q->engine = *ec;
    q->max_waiting = max_waiting;
    q->hooks = (job_run_hooks){ .ctx = q, .finish_now = &q->finish_now, .prompt_layer = queue_poll,
                                .count = count_answer };
    pthread_mutex_init(&q->lock, NULL);
    pthread_mutex_init(&q->shared.lock, NULL);
    thread_cond_init(&q->changed);
    int rc = scheduler_create(&q->slots, ec->sessions, ec->n_session, &q->hooks, err);
    for (int i = 0; i < N_LANE && rc == 0; i++) rc = start_lane(q, i, err);
    if (rc == 0 && !(q->has_engine_thread = thread_start(&q->engine_thread, run_engine, q) == 0))
        rc = err_set(err, ERR_NOMEM, "request queue: no more threads");
    if (rc == 0) {
        *out = q;
    } else {
        queue_close(q, 0);
        queue_free(q);
    }
    return rc;
}

void queue_submit(request_queue *q, http_exchange *x, api_kind kind, bool count_only)
{
    job_request *r = mem_zalloc(sizeof *r);
    http_keep(x);
    pthread_mutex_lock(&q->lock);
    const bool closing = q->closing;
    /* requests that an idle slot runs as soon as they are prepared do not count as waiting */
    const int n_idle = q->engine.n_session - q->stats.running;
    const bool full = n_waiting(q) >= q->max_waiting + n_idle;
    if (r && !closing && !full) {
        *r = (job_request){ .engine = &q->engine, .shared = &q->shared, .exchange = x,
                            .kind = kind, .count_only = count_only, .arrived_ns = clock_ns() };
        q->stats.requests++;
        push(&q->lanes[http_body(x).len > LARGE_BODY_BYTES].submitted, r);
        pthread_cond_broadcast(&q->changed);
        pthread_mutex_unlock(&q->lock);
        return;
    }
    q->stats.refused++;
    pthread_mutex_unlock(&q->lock);
    error_reply_text(x, kind, API_BUSY, closing ? "the server is stopping" :
                     "the request queue is full: try again");
    http_release(x);
    mem_free(r);
}

queue_stats queue_get_stats(request_queue *q)
{
    pthread_mutex_lock(&q->lock);
    queue_stats stats = q->stats;
    stats.waiting = n_waiting(q);
    stats.work = scheduler_counts(q->slots);
    pthread_mutex_unlock(&q->lock);
    return stats;
}

slot_status queue_slot_status(request_queue *q, int slot)
{
    return scheduler_status(q->slots, slot);
}

void queue_close(request_queue *q, double limit_s)
{
    if (!q) return;
    const uint64_t deadline_ns = clock_ns() + (uint64_t)(limit_s * 1e9);
    pthread_mutex_lock(&q->lock);
    q->closing = true;
    refuse_waiting(q);
    pthread_cond_broadcast(&q->changed);
    while (q->stats.running && limit_s > 0 &&
           thread_cond_wait_until(&q->changed, &q->lock, deadline_ns) != ETIMEDOUT) { }
    atomic_store(&q->finish_now, true);
    pthread_mutex_unlock(&q->lock);
    for (int i = 0; i < N_LANE; i++)
        if (q->lanes[i].started) pthread_join(q->lanes[i].thread, NULL);
    if (q->has_engine_thread) pthread_join(q->engine_thread, NULL);
    pthread_mutex_lock(&q->lock);
    refuse_waiting(q);
    pending_call *calls = remove_calls(q, CALL_IDLE);
    pthread_mutex_unlock(&q->lock);
    run_calls(calls, NULL);
}

void queue_free(request_queue *q)
{
    if (!q) return;
    for (int i = 0; i < N_LANE; i++) encoder_free(q->lanes[i].enc);
    scheduler_free(q->slots);
    form_tries_release(&q->shared.tries);
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->shared.lock);
    pthread_mutex_destroy(&q->lock);
    mem_free(q);
}
