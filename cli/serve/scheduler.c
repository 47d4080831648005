/* scheduler.c - passes of the slots that draw, chunks of prompts between them, both round robin.
 *
 * Only the status and the counts of steps are under the lock; the rest is the engine thread's. */
#include "cli/serve/scheduler.h"

#include <pthread.h>

#include "moe/trial.h"

enum {
    MOST_WAIT_NS = 40000000,             /* of an answer for a pass, while a prompt is computed */
    FIRST_DRAFTS = 4                     /* the first number that a trial compares with none */
};

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
    int last_answer, last_prompt;        /* the last slot of the last pass; of the last chunk */
    int64_t prompt_debt_ns;              /* time that prompts had of the answers' half */
    trial_levels joint;                  /* 1: several answers in one pass, 0: in turns */
    trial_levels drafts;                 /* most of each of several answers in one pass */
    uint64_t n_assigned, n_released;
    uint64_t keepalive_ns;               /* the last scheduler_keepalive */
    uint64_t pass_ns;                    /* the end of the last pass */
    uint64_t inner_ns;                   /* time of passes within the chunk under way */
    ended_request *ended;                /* [n_slot]: in this step */
    int n_ended;
    pthread_mutex_t lock;                /* of every slot's status, and the next one */
    scheduler_totals totals;
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
    s->ended = mem_array((size_t)n_slot, sizeof *s->ended);
    if (!s->ended) {
        scheduler_free(s);
        *out = NULL;
        return err_set(err, ERR_NOMEM, "scheduler: %d slots", n_slot);
    }
    for (int i = 0; i < n_slot; i++) s->slots[i].s = sessions[i];
    trial_levels_begin(&s->joint, 1, 1, true, false);
    const bool can = runner_most_drafting(session_runner(sessions[0])) > 0;
    trial_levels_begin(&s->drafts, can ? FIRST_DRAFTS : 0, can ? DRAFTS_MOST : 0, false, false);
    return 0;
}

void scheduler_free(scheduler *s)
{
    if (!s) return;
    pthread_mutex_destroy(&s->lock);
    mem_free(s->ended);
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

scheduler_totals scheduler_counts(scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    const scheduler_totals totals = s->totals;
    pthread_mutex_unlock(&s->lock);
    return totals;
}

/* ---- the next step --------------------------------------------------------------------------- */

/* A token of each of up to RUNNER_MOST_ROWS slots, or a chunk of one slot's prompt. */
typedef struct pass {
    scheduler_slot *slots[RUNNER_MOST_ROWS];
    int n;
} pass;

/* The first slots after the last one that draw, or, with draws false, that compute a prompt. */
static pass next_slots(scheduler *s, bool draws, int most)
{
    const int last = draws ? s->last_answer : s->last_prompt;
    pass p = { .n = 0 };
    for (int i = 1; i <= s->n_slot && p.n < most; i++) {
        scheduler_slot *slot = &s->slots[(last + i) % s->n_slot];
        if (slot->run.request && job_run_draws(&slot->run) == draws) p.slots[p.n++] = slot;
    }
    return p;
}

static pass choose_busy(scheduler *s)
{
    const pass prompt = next_slots(s, false, 1);
    const pass answers = next_slots(s, true, job_run_most_together(s->slots[0].s));
    if (answers.n == 0) return prompt;
    return prompt.n > 0 && s->prompt_debt_ns <= 0 ? prompt : answers;
}

/* A chunk of a prompt is paid back with as much time for answers, while any slot draws. */
static void account(scheduler *s, bool drew, uint64_t step_ns)
{
    if (!drew) s->prompt_debt_ns += (int64_t)step_ns;
    else if ((s->prompt_debt_ns -= (int64_t)step_ns) < 0) s->prompt_debt_ns = 0;
    if (next_slots(s, true, 1).n == 0) s->prompt_debt_ns = 0;
}

/* totals: of this step. */
static void publish(scheduler *s, const pass *p, const scheduler_totals *totals)
{
    pthread_mutex_lock(&s->lock);
    s->totals.steps++;
    s->totals.busy_steps += totals->busy_steps;
    s->totals.tokens += totals->tokens;
    s->totals.drafts += totals->drafts;
    s->totals.right_drafts += totals->right_drafts;
    for (int i = 0; i < p->n; i++) {
        scheduler_slot *slot = p->slots[i];
        slot->status.busy = slot->run.request != NULL;
        if (!slot->run.request) continue;
        slot->status.n_cached = job_run_cached(&slot->run);
        slot->status.n_drawn = slot->run.request->usage.n_answer;
        job_run_drafts(&slot->run, &slot->status.n_draft, &slot->status.n_right);
        slot->status.n_together = p->n;
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

/* After a pass of several answers that cost so many seconds a token. One trial at a time. */
static void note_cost(scheduler *s, double cost)
{
    const trial_result *t = &s->joint.switched, *d = &s->drafts.switched;
    if (s->drafts.candidate < 0 && trial_levels_token(&s->joint, cost) == TRIAL_SWITCHED) {
        const int turns = t->candidate == 0;             /* index of their cost */
        log_line("conversations are computed %s: %.2f ms a token together, %.2f in turns",
                 s->joint.level > 0 ? "together" : "in turns", 1e3 * t->cost[!turns],
                 1e3 * t->cost[turns]);
    }
    if (s->joint.candidate < 0 && s->joint.level > 0 &&
        trial_levels_token(&s->drafts, cost) == TRIAL_SWITCHED)
        log_line("conversations that are computed together have %s: %.2f ms a token with drafts, "
                 "%.2f without", s->drafts.level > 0 ? "drafts" : "no drafts",
                 1e3 * d->cost[d->level == 0], 1e3 * d->cost[d->level > 0]);
}

/* The sums of the runs' tokens and drafts. */
static scheduler_totals sums_of(job_run *const *runs, int n)
{
    scheduler_totals sum = { 0 };
    for (int i = 0; i < n; i++) {
        int n_draft, n_right;
        job_run_drafts(runs[i], &n_draft, &n_right);
        sum.tokens += (uint64_t)runs[i]->request->usage.n_answer;
        sum.drafts += (uint64_t)n_draft;
        sum.right_drafts += (uint64_t)n_right;
    }
    return sum;
}

/* A token for each run, or several where drafts are right. */
static void draw(scheduler *s, job_run *const *runs, int n, int *rc)
{
    const int n_draft = trial_levels_now(&s->drafts);
    if (trial_levels_now(&s->joint) > 0) job_run_step_together(runs, n, n_draft, rc);
    else for (int i = 0; i < n; i++) job_run_step_together(&runs[i], 1, 0, &rc[i]);
}

/* What a step added. The end of a run corrects its tokens. */
static scheduler_totals added(const scheduler_totals *after, const scheduler_totals *before)
{
    const bool more = after->tokens > before->tokens;
    return (scheduler_totals){ .tokens = more ? after->tokens - before->tokens : 0,
                               .drafts = after->drafts - before->drafts,
                               .right_drafts = after->right_drafts - before->right_drafts };
}

/* One pass, or one chunk. */
static void run(scheduler *s, const pass *p, bool draws)
{
    const uint64_t start_ns = clock_ns(), n_busy = (uint64_t)s->n_busy;
    job_run *runs[RUNNER_MOST_ROWS];
    int rc[RUNNER_MOST_ROWS];
    for (int i = 0; i < p->n; i++) runs[i] = &p->slots[i]->run;
    const scheduler_totals before = sums_of(runs, p->n);
    *(draws ? &s->last_answer : &s->last_prompt) = (int)(p->slots[p->n - 1] - s->slots);
    if (draws) draw(s, runs, p->n, rc);
    else rc[0] = job_run_step(runs[0]);
    if (draws) s->pass_ns = clock_ns();
    const scheduler_totals after = sums_of(runs, p->n);
    scheduler_totals step = added(&after, &before);
    step.busy_steps = n_busy;
    if (draws && p->n > 1 && step.tokens > 0)
        note_cost(s, clock_since(start_ns) / (double)step.tokens);
    for (int i = 0; i < p->n; i++) {
        if (rc[i] > 0) continue;
        s->ended[s->n_ended++] = (ended_request){ runs[i]->request, rc[i] };
        runs[i]->request = NULL;
        p->slots[i]->released = ++s->n_released;
        s->n_busy--;
    }
    publish(s, p, &step);
}

void scheduler_between_layers(scheduler *s)
{
    const uint64_t start_ns = clock_ns();
    if (start_ns - s->pass_ns < MOST_WAIT_NS) return;
    const pass p = next_slots(s, true, job_run_most_together(s->slots[0].s));
    runner *r = session_runner(s->slots[0].s);
    if (p.n == 0 || !runner_inner_begin(r)) return;
    run(s, &p, true);
    runner_inner_end(r);
    s->inner_ns += clock_ns() - start_ns;
}

int scheduler_step(scheduler *s, const ended_request **ended)
{
    const pass p = choose_busy(s);
    const bool draws = job_run_draws(&p.slots[0]->run);
    const uint64_t start_ns = clock_ns();
    s->n_ended = 0;
    s->inner_ns = 0;
    run(s, &p, draws);
    account(s, draws, clock_ns() - start_ns - s->inner_ns);
    *ended = s->ended;
    return s->n_ended;
}
