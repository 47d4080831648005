/* scheduler.c - round robin over slots that draw, chunks of prompts between their tokens.
 *
 * Only the status and the counts of steps are under the lock; the rest is the engine thread's. */
#include "cli/serve/scheduler.h"

#include <pthread.h>

typedef struct scheduler_slot {
    session *s;
    job_run run;                         /* run.request NULL: idle */
    uint64_t released;                   /* sequence number of the last release; 0: never used */
    slot_status status;                  /* guarded by lock, as the next */
    uint64_t assigned_ns;
} scheduler_slot;

struct scheduler {
    const job_run_hooks *hooks;
    int n_slot, n_busy;
    int last;                            /* the slot of the last step */
    int64_t prompt_debt_ns;              /* time that prompts had of the answers' half */
    uint64_t n_assigned, n_released;
    uint64_t keepalive_ns;               /* the last scheduler_keepalive */
    pthread_mutex_t lock;                /* of every slot's status, and the next two */
    uint64_t steps, busy_steps;
    scheduler_slot slots[];
};

int scheduler_create(scheduler **out, session *const *sessions, int n_slot,
                     const job_run_hooks *hooks, err_ctx *err)
{
    scheduler *s = mem_zalloc(sizeof *s + (size_t)n_slot * sizeof *s->slots);
    *out = s;
    if (!s) return err_set(err, ERR_NOMEM, "scheduler: %d slots", n_slot);
    pthread_mutex_init(&s->lock, NULL);
    s->hooks = hooks;
    s->n_slot = n_slot;
    for (int i = 0; i < n_slot; i++) s->slots[i].s = sessions[i];
    return 0;
}

void scheduler_free(scheduler *s)
{
    if (!s) return;
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

int scheduler_n_idle(const scheduler *s) { return s->n_slot - s->n_busy; }
bool scheduler_is_busy(const scheduler *s) { return s->n_busy > 0; }

/* ---- assignment ------------------------------------------------------------------------------ */

static scheduler_slot *choose_idle(scheduler *s, const job_request *r)
{
    scheduler_slot *best = NULL;
    int best_prefix = 0;
    for (int i = 0; i < s->n_slot; i++) {
        scheduler_slot *slot = &s->slots[i];
        if (slot->run.request) continue;
        const int prefix = r->n_prompt > 0 ? session_common(slot->s, r->prompts[0].ids,
                                                            (int)r->prompts[0].n) : 0;
        if (best && (prefix < best_prefix ||
                     (prefix == best_prefix && slot->released >= best->released))) continue;
        best = slot;
        best_prefix = prefix;
    }
    return best;
}

void scheduler_assign(scheduler *s, job_request *r)
{
    scheduler_slot *slot = choose_idle(s, r);
    job_run_begin(&slot->run, r, slot->s, s->hooks);
    s->n_busy++;
    pthread_mutex_lock(&s->lock);
    slot->assigned_ns = clock_ns();
    slot->status = (slot_status){ .busy = true, .job = ++s->n_assigned, .n_prompt = r->n_tokens };
    pthread_mutex_unlock(&s->lock);
}

slot_status scheduler_status(scheduler *s, int slot)
{
    pthread_mutex_lock(&s->lock);
    slot_status status = s->slots[slot].status;
    status.age_s = status.busy ? clock_since(s->slots[slot].assigned_ns) : 0.0;
    pthread_mutex_unlock(&s->lock);
    return status;
}

void scheduler_steps(scheduler *s, uint64_t *steps, uint64_t *busy_steps)
{
    pthread_mutex_lock(&s->lock);
    *steps = s->steps;
    *busy_steps = s->busy_steps;
    pthread_mutex_unlock(&s->lock);
}

/* ---- the next step --------------------------------------------------------------------------- */

/* The first slot after the last one that draws, or, with draws false, that computes a prompt. */
static scheduler_slot *next_slot(scheduler *s, bool draws)
{
    for (int i = 1; i <= s->n_slot; i++) {
        scheduler_slot *slot = &s->slots[(s->last + i) % s->n_slot];
        if (slot->run.request && job_run_draws(&slot->run) == draws) return slot;
    }
    return NULL;
}

static scheduler_slot *choose_busy(scheduler *s)
{
    scheduler_slot *answer = next_slot(s, true), *prompt = next_slot(s, false);
    if (!answer) return prompt;
    return prompt && s->prompt_debt_ns <= 0 ? prompt : answer;
}

/* A chunk of a prompt is paid back with as much time for answers, while any slot draws. */
static void account(scheduler *s, bool drew, uint64_t step_ns)
{
    if (!drew) s->prompt_debt_ns += (int64_t)step_ns;
    else if ((s->prompt_debt_ns -= (int64_t)step_ns) < 0) s->prompt_debt_ns = 0;
    if (!next_slot(s, true)) s->prompt_debt_ns = 0;
}

static void publish(scheduler *s, scheduler_slot *slot, int n_busy)
{
    pthread_mutex_lock(&s->lock);
    s->steps++;
    s->busy_steps += (uint64_t)n_busy;
    slot->status.busy = slot->run.request != NULL;
    if (slot->run.request) {
        slot->status.n_cached = job_run_cached(&slot->run);
        slot->status.n_drawn = slot->run.request->usage.n_answer;
    }
    pthread_mutex_unlock(&s->lock);
}

/* A client that has left is found by the next step of its slot. */
void scheduler_keepalive(scheduler *s)
{
    const uint64_t second_ns = 1000000000, now_ns = clock_ns();
    if (now_ns - s->keepalive_ns < second_ns) return;
    s->keepalive_ns = now_ns;
    for (int i = 0; i < s->n_slot; i++)
        if (s->slots[i].run.request) (void)job_request_keepalive(s->slots[i].run.request);
}

job_request *scheduler_step(scheduler *s, int *rc)
{
    scheduler_slot *slot = choose_busy(s);
    job_request *r = slot->run.request;
    const bool drew = job_run_draws(&slot->run);
    const uint64_t start_ns = clock_ns();
    const int n_busy = s->n_busy;
    s->last = (int)(slot - s->slots);
    *rc = job_run_step(&slot->run);
    const bool ended = *rc <= 0;
    if (ended) {
        slot->run.request = NULL;
        slot->released = ++s->n_released;
        s->n_busy--;
    }
    account(s, drew, clock_ns() - start_ns);
    publish(s, slot, n_busy);
    return ended ? r : NULL;
}
