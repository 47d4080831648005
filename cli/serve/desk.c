/* desk.c - queues and threads: two threads prepare requests, one computes answers.
 *
 * A job belongs to the thread that has taken it out of a queue. While it waits for the engine the
 * lock guards it: the first preparing thread keeps its stream alive. So no two threads use its writer
 * at a time. The second preparing thread has the large requests alone: reading, rendering and
 * tokenizing 32 MiB takes seconds, and small requests and keep-alives do not wait for it. A small
 * request takes less than half a second, schemas included (grammar_rules.c limits them). */
#include "cli/serve/desk.h"

#include <errno.h>
#include <pthread.h>

#include "cli/serve/seats.h"
#include "tiers/thread.h"

typedef struct call {
    struct call *next;
    desk_when when;
    desk_call_fn *fn;
    void *ctx;
} call;

typedef struct job_list { job *first, *last; int n; } job_list;

enum { N_LANE = 2, LARGE_BODY = 256 << 10 };     /* bytes; smaller ones take the first lane */

/* A thread that prepares requests. */
typedef struct prepare_lane {
    desk *d;                             /* set once, as the next three */
    bool keeps_alive;                    /* the streams that wait for the engine */
    pthread_t thread;
    bool started;
    encoder *enc;                        /* the thread's own */
    job_list fresh;                      /* under the desk's lock */
} prepare_lane;

struct desk {
    desk_options o;
    prepare_shared shared;
    prepare_lane lanes[N_LANE];
    seats *at;                           /* the engine's thread's own, but for looking */
    pthread_t engine;
    bool has_engine;
    pthread_mutex_t lock;                /* of all below */
    pthread_cond_t more;
    job_list ready;
    bool closing;
    atomic_bool hurry;                   /* those that run end now */
    desk_counts counts;
    call *calls;                         /* in order of arrival */
    atomic_int n_call;                   /* so that a token need not take the lock to see: none */
};

/* ---- jobs ------------------------------------------------------------------------------------ */

static void push(job_list *l, job *j)
{
    j->next = NULL;
    if (l->last) l->last->next = j;
    else l->first = j;
    l->last = j;
    l->n++;
}

static job *pop(job_list *l)
{
    job *j = l->first;
    if (!j) return NULL;
    l->first = j->next;
    if (!l->first) l->last = NULL;
    l->n--;
    return j;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* The lock is held. Those that may run now, out of the list. */
static call *pick_calls(desk *d, desk_when now)
{
    call *picked = NULL, **end = &picked;
    for (call **at = &d->calls; *at;) {
        call *c = *at;
        if (c->when > now) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        c->next = NULL;
        *end = c;
        end = &c->next;
        atomic_fetch_sub(&d->n_call, 1);
    }
    return picked;
}

static void run_calls(call *c, const desk_options *o)
{
    while (c) {
        call *next = c->next;
        c->fn(c->ctx, o);
        mem_free(c);
        c = next;
    }
}

/* On the engine's thread, without the lock. */
static void take_calls(desk *d, desk_when now)
{
    if (atomic_load(&d->n_call) == 0) return;
    pthread_mutex_lock(&d->lock);
    call *c = pick_calls(d, now);
    pthread_mutex_unlock(&d->lock);
    run_calls(c, &d->o);
}

void desk_pause(desk *d, desk_when now)
{
    seats_stay(d->at);
    take_calls(d, now);
}

bool desk_call(desk *d, desk_when when, desk_call_fn *fn, void *ctx)
{
    call *c = mem_zalloc(sizeof *c), **end = &d->calls;
    if (!c) return false;
    *c = (call){ .when = when, .fn = fn, .ctx = ctx };
    pthread_mutex_lock(&d->lock);
    const bool closing = d->closing;
    if (!closing) {
        while (*end) end = &(*end)->next;
        *end = c;
        atomic_fetch_add(&d->n_call, 1);
        pthread_cond_broadcast(&d->more);
    }
    pthread_mutex_unlock(&d->lock);
    if (closing) mem_free(c);
    return !closing;
}

/* ---- preparing ------------------------------------------------------------------------------- */

/* The lock is held. Streams that wait say so; clients who left make room. */
static void look_after(desk *d)
{
    job_list rest = { 0 };
    for (job *j; (j = pop(&d->ready));) {
        if (job_stays(j)) {
            push(&rest, j);
        } else {
            d->counts.cancelled++;
            job_free(j);
        }
    }
    d->ready = rest;
}

static void *prepare_thread(void *ctx)
{
    prepare_lane *lane = ctx;
    desk *d = lane->d;
    uint64_t next_look_ns = 0;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        const bool watches = lane->keeps_alive && d->ready.first;
        if (watches && clock_ns() >= next_look_ns) {
            look_after(d);
            next_look_ns = clock_ns() + 1000000000;
        }
        job *j = pop(&lane->fresh);
        if (!j && d->closing) break;
        if (!j) {
            if (watches) thread_cond_wait_until(&d->more, &d->lock, next_look_ns);
            else pthread_cond_wait(&d->more, &d->lock);
            continue;
        }
        pthread_mutex_unlock(&d->lock);
        j->wrote_ns = clock_ns();
        const bool ready = job_prepare(j, lane->enc);
        if (!ready) job_free(j);
        pthread_mutex_lock(&d->lock);
        if (ready) push(&d->ready, j);
        pthread_cond_broadcast(&d->more);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- the engine ------------------------------------------------------------------------------ */

static void add_counts(void *ctx, const answer_stats *s)
{
    desk *d = ctx;
    pthread_mutex_lock(&d->lock);
    d->counts.prompt_tokens += (uint64_t)(s->n_taken - s->n_reused);
    d->counts.cached_tokens += (uint64_t)s->n_reused;
    d->counts.answer_tokens += (uint64_t)s->n_answer;
    d->counts.prompt_s += (double)s->prompt_ns * 1e-9;
    d->counts.answer_s += (double)s->answer_ns * 1e-9;
    if ((uint64_t)(s->n_prompt + s->n_answer) > d->counts.most_tokens)
        d->counts.most_tokens = (uint64_t)(s->n_prompt + s->n_answer);
    pthread_mutex_unlock(&d->lock);
}

/* One step of somebody's. */
static void compute(desk *d)
{
    int rc;
    job *j = seats_step(d->at, &rc, add_counts, d);
    seats_stay(d->at);
    if (!j) return;
    job_free(j);
    pthread_mutex_lock(&d->lock);
    if (rc == ERR_STOPPED) d->counts.cancelled++;
    else if (rc < 0) d->counts.failed++;
    d->counts.running--;
    pthread_cond_broadcast(&d->more);
    pthread_mutex_unlock(&d->lock);
}

/* The lock is held. Somebody waits until no request runs. */
static bool wants_quiet(const desk *d)
{
    const call *c = d->calls;
    while (c && c->when != DESK_IDLE) c = c->next;
    return c != NULL;
}

/* The lock is held. */
static void seat_those_who_wait(desk *d)
{
    while (!d->closing && seats_busy(d->at) < seats_n(d->at) && d->ready.first) {
        job *j = pop(&d->ready);
        d->counts.queue_s += clock_since(j->arrived_ns);
        seats_take(d->at, j);
        d->counts.running++;
    }
}

/* The lock is held. Until there is more to do, or the drive may have done what it is asked for. */
static void wait_a_little(desk *d)
{
    thread_cond_wait_until(&d->more, &d->lock, clock_ns() + 5000000);
}

/* Whoever waits for quiet gets it: no new requests are seated until those that run have ended. But
 * after each such time requests come first, so that neither keeps the other waiting for ever. */
static void *engine_thread(void *ctx)
{
    desk *d = ctx;
    bool unsaved = false, was_quiet = false;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        if (was_quiet || !wants_quiet(d)) seat_those_who_wait(d);
        was_quiet = false;
        const bool busy = seats_busy(d->at) > 0;
        if (d->calls) {
            pthread_mutex_unlock(&d->lock);
            take_calls(d, busy ? DESK_BETWEEN : DESK_IDLE);
            pthread_mutex_lock(&d->lock);
            if (!busy) {
                was_quiet = true;
                continue;                /* there may be more by now */
            }
        }
        if (!busy && !unsaved && d->closing) break;
        if (!busy && !unsaved) {
            pthread_cond_wait(&d->more, &d->lock);
            continue;
        }
        if (!busy && !d->closing) wait_a_little(d);
        const bool over = !busy && d->closing;
        pthread_mutex_unlock(&d->lock);
        if (busy) compute(d);
        if (over) (void)prefix_cache_flush(d->o.cache, NULL);
        unsaved = d->o.cache && !over && prefix_cache_tend(d->o.cache);  /* a kill would lose it */
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- the desk -------------------------------------------------------------------------------- */

static int start_lane(desk *d, int i, err_ctx *err)
{
    prepare_lane *lane = &d->lanes[i];
    lane->d = d;
    lane->keeps_alive = i == 0;
    const int rc = encoder_create(&lane->enc, d->o.model->tok, err);
    if (rc < 0) return rc;
    lane->started = thread_start(&lane->thread, prepare_thread, lane) == 0;
    return lane->started ? 0 : err_set(err, ERR_NOMEM, "no more threads");
}

int desk_open(desk **out, const desk_options *o, err_ctx *err)
{
    desk *d = mem_zalloc(sizeof *d);
    *out = NULL;
    if (!d) return err_set(err, ERR_NOMEM, "desk: %zu bytes", sizeof *d);
    d->o = *o;
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->shared.lock, NULL);
    thread_cond_init(&d->more);
    int rc = seats_open(&d->at, o->sessions, o->n_session, err);
    for (int i = 0; i < N_LANE && rc == 0; i++) rc = start_lane(d, i, err);
    if (rc == 0 && !(d->has_engine = thread_start(&d->engine, engine_thread, d) == 0))
        rc = err_set(err, ERR_NOMEM, "no more threads");
    if (rc == 0) {
        *out = d;
    } else {
        desk_close(d, 0);
        desk_free(d);
    }
    return rc;
}

/* The lock is held. */
static int n_waiting(const desk *d)
{
    int n = d->ready.n;
    for (int i = 0; i < N_LANE; i++) n += d->lanes[i].fresh.n;
    return n;
}

void desk_take(desk *d, http_exchange *x, api_kind kind, bool count)
{
    api_error why;
    job *j = mem_zalloc(sizeof *j);
    http_keep(x);
    pthread_mutex_lock(&d->lock);
    const bool closing = d->closing;
    /* Those who will have a seat as soon as they have been read do not wait for others. */
    const int n_free = d->o.n_session - d->counts.running;
    const bool full = n_waiting(d) >= d->o.most_waiting + n_free;
    if (j && !closing && !full) {
        *j = (job){ .d = d, .o = &d->o, .hurry = &d->hurry, .x = x, .kind = kind, .count = count,
                    .shared = &d->shared, .arrived_ns = clock_ns() };
        d->counts.requests++;
        push(&d->lanes[http_body(x).len > LARGE_BODY].fresh, j);
        pthread_cond_broadcast(&d->more);
        pthread_mutex_unlock(&d->lock);
        return;
    }
    d->counts.refused++;
    pthread_mutex_unlock(&d->lock);
    api_error_make(&why, API_BUSY, kind, closing ? "the server is stopping" :
                   "too many requests wait already: try again");
    job_refuse(x, kind, &why);
    http_release(x);
    mem_free(j);
}

desk_counts desk_count(desk *d)
{
    pthread_mutex_lock(&d->lock);
    desk_counts c = d->counts;
    c.waiting = n_waiting(d);
    seats_steps(d->at, &c.steps, &c.busy_steps);
    pthread_mutex_unlock(&d->lock);
    return c;
}

seat_view desk_seat(desk *d, int i) { return seats_view(d->at, i); }

static void dismiss(job_list *l)
{
    for (job *j; (j = pop(l));) {
        job_fail(j, API_BUSY, "the server is stopping");
        job_free(j);
    }
}

/* The lock is held. */
static void dismiss_all(desk *d)
{
    for (int i = 0; i < N_LANE; i++) dismiss(&d->lanes[i].fresh);
    dismiss(&d->ready);
}

void desk_close(desk *d, double patience_s)
{
    if (!d) return;
    const uint64_t until_ns = clock_ns() + (uint64_t)(patience_s * 1e9);
    pthread_mutex_lock(&d->lock);
    d->closing = true;
    dismiss_all(d);
    pthread_cond_broadcast(&d->more);
    while (d->counts.running && patience_s > 0 &&
           thread_cond_wait_until(&d->more, &d->lock, until_ns) != ETIMEDOUT) { }
    atomic_store(&d->hurry, true);
    pthread_mutex_unlock(&d->lock);
    for (int i = 0; i < N_LANE; i++)
        if (d->lanes[i].started) pthread_join(d->lanes[i].thread, NULL);
    if (d->has_engine) pthread_join(d->engine, NULL);
    pthread_mutex_lock(&d->lock);
    dismiss_all(d);
    call *rest = pick_calls(d, DESK_IDLE);
    pthread_mutex_unlock(&d->lock);
    run_calls(rest, NULL);
}

void desk_free(desk *d)
{
    if (!d) return;
    for (int i = 0; i < N_LANE; i++) encoder_free(d->lanes[i].enc);
    seats_free(d->at);
    form_tries_release(&d->shared.tries);
    pthread_mutex_destroy(&d->shared.lock);
    pthread_cond_destroy(&d->more);
    pthread_mutex_destroy(&d->lock);
    mem_free(d);
}
