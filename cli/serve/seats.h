/* seats.h - conversations that are computed at the same time, and who is next.
 *
 * Each seat has a session; the sessions share everything else (engine.h). Answers draw a token each
 * in turn. Prompts are computed in pieces between them, and take no more than half of the time
 * while others draw, so that a long one does not freeze them. What is computed does not depend on
 * the order: nobody can tell from an answer who else was there. One thread uses them; any may
 * look. */
#ifndef CLI_SERVE_SEATS_H
#define CLI_SERVE_SEATS_H

#include "cli/serve/job.h"

typedef struct seats seats;

int seats_open(seats **out, session *const *sessions, int n, err_ctx *err);      /* borrowed */
void seats_free(seats *s);               /* with nobody on them; NULL is fine */

int seats_n(const seats *s);
int seats_busy(const seats *s);

/* On a free one, of which there is at least one: that whose session holds most of the prompt
 * already, else the one that was left longest ago. */
void seats_take(seats *s, job *j);

/* One step of somebody's, of whom there is at least one. Returns the job if it has ended, with
 * *rc as job_step returned it, else NULL. */
job *seats_step(seats *s, int *rc, job_count_fn *count, void *ctx);

/* Those whose turn does not come for long hear that they are still here. At any time. */
void seats_stay(seats *s);

/* From any thread, both. Steps so far, and the same, once for each seat that was taken. */
seat_view seats_view(seats *s, int i);
void seats_steps(seats *s, uint64_t *steps, uint64_t *busy);

#endif
