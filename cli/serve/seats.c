/* seats.c - a token each in turn, prompts in pieces between them. */
#include "cli/serve/seats.h"

#include <pthread.h>

typedef struct seat {
    session *s;
    job *j;                              /* NULL: it is free */
    uint64_t left;                       /* when: the how-manieth leaving; 0: nobody sat here */
    seat_view shown;                     /* under the lock, as the next */
    uint64_t since_ns;
} seat;

struct seats {
    int n, busy;
    int turn;                            /* the seat that had the latest step */
    int64_t owed_ns;                     /* that prompts have had of the answers' half */
    uint64_t n_taken, n_left;
    uint64_t stayed_ns;                  /* when all were last looked after */
    pthread_mutex_t lock;                /* of what is shown */
    uint64_t steps, busy_steps;
    seat all[];
};

int seats_open(seats **out, session *const *sessions, int n, err_ctx *err)
{
    seats *s = mem_zalloc(sizeof *s + (size_t)n * sizeof *s->all);
    *out = s;
    if (!s) return err_set(err, ERR_NOMEM, "%d seats", n);
    pthread_mutex_init(&s->lock, NULL);
    s->n = n;
    for (int i = 0; i < n; i++) s->all[i].s = sessions[i];
    return 0;
}

void seats_free(seats *s)
{
    if (!s) return;
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

int seats_n(const seats *s) { return s->n; }
int seats_busy(const seats *s) { return s->busy; }

/* ---- where one sits -------------------------------------------------------------------------- */

static seat *best_seat(seats *s, const job *j)
{
    seat *best = NULL;
    int most = 0;
    for (int i = 0; i < s->n; i++) {
        seat *at = &s->all[i];
        if (at->j) continue;
        const int held = j->n_prompt > 0 ? session_common(at->s, j->prompts[0].ids,
                                                          (int)j->prompts[0].n) : 0;
        if (best && (held < most || (held == most && at->left >= best->left))) continue;
        best = at;
        most = held;
    }
    return best;
}

void seats_take(seats *s, job *j)
{
    seat *at = best_seat(s, j);
    at->j = j;
    s->busy++;
    job_sit(j, at->s);
    pthread_mutex_lock(&s->lock);
    at->since_ns = clock_ns();
    at->shown = (seat_view){ .busy = true, .job = ++s->n_taken, .n_prompt = j->n_all };
    pthread_mutex_unlock(&s->lock);
}

seat_view seats_view(seats *s, int i)
{
    pthread_mutex_lock(&s->lock);
    seat_view v = s->all[i].shown;
    v.age_s = v.busy ? clock_since(s->all[i].since_ns) : 0.0;
    pthread_mutex_unlock(&s->lock);
    return v;
}

void seats_steps(seats *s, uint64_t *steps, uint64_t *busy)
{
    pthread_mutex_lock(&s->lock);
    *steps = s->steps;
    *busy = s->busy_steps;
    pthread_mutex_unlock(&s->lock);
}

/* ---- whose turn it is ------------------------------------------------------------------------ */

/* The next after the one that had the latest turn: of those that draw, or of the others. */
static seat *next_one(seats *s, bool draws)
{
    for (int i = 1; i <= s->n; i++) {
        seat *at = &s->all[(s->turn + i) % s->n];
        if (at->j && job_draws(at->j) == draws) return at;
    }
    return NULL;
}

static seat *choose(seats *s)
{
    seat *answer = next_one(s, true), *prompt = next_one(s, false);
    if (!answer) return prompt;
    return prompt && s->owed_ns <= 0 ? prompt : answer;
}

/* Prompts owe answers as much time as they have had, as long as somebody waits for it. */
static void book(seats *s, bool drew, uint64_t took_ns)
{
    if (!drew) s->owed_ns += (int64_t)took_ns;
    else if ((s->owed_ns -= (int64_t)took_ns) < 0) s->owed_ns = 0;
    if (!next_one(s, true)) s->owed_ns = 0;
}

static void show(seats *s, seat *at, int busy)
{
    pthread_mutex_lock(&s->lock);
    s->steps++;
    s->busy_steps += (uint64_t)busy;
    at->shown.busy = at->j != NULL;
    if (at->j) {
        at->shown.n_cached = job_cached(at->j);
        at->shown.n_drawn = at->j->usage.n_answer;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Whoever has left is found out at his own next step. */
void seats_stay(seats *s)
{
    const uint64_t second = 1000000000, now = clock_ns();
    if (now - s->stayed_ns < second) return;
    s->stayed_ns = now;
    for (int i = 0; i < s->n; i++)
        if (s->all[i].j) (void)job_stays(s->all[i].j);
}

job *seats_step(seats *s, int *rc, job_count_fn *count, void *ctx)
{
    seat *at = choose(s);
    job *j = at->j;
    const bool drew = job_draws(j);
    const uint64_t from = clock_ns();
    const int busy = s->busy;
    s->turn = (int)(at - s->all);
    *rc = job_step(j, count, ctx);
    const bool ended = *rc <= 0;
    if (ended) {
        at->j = NULL;
        at->left = ++s->n_left;
        s->busy--;
    }
    book(s, drew, clock_ns() - from);
    show(s, at, busy);
    return ended ? j : NULL;
}
