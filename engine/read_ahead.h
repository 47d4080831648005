/* read_ahead.h - gate and up of experts that will probably be wanted, into the cores' caches while
 * there is nothing else to do.
 *
 * Between an answer and the next question the device mixes, and all cores wait. Meanwhile pieces of
 * the experts that are guessed are handed out to the threads, which bring them into their own
 * caches; and it is kept who has which, because another core's cache is hardly nearer than RAM.
 * Whoever computes claims pieces, those of its own first. A wrong guess costs nothing but the
 * reading, and no result depends on it. */
#ifndef ENGINE_READ_AHEAD_H
#define ENGINE_READ_AHEAD_H

#include <stdatomic.h>

#include "tiers/pool.h"

enum { AHEAD_EXPERTS = 32, AHEAD_RUNS = 2 };             /* RUNS: gate, up */

typedef struct ahead_expert {
    int expert;
    const uint8_t *at[AHEAD_RUNS];
} ahead_expert;

typedef struct ahead_count { _Alignas(64) _Atomic int pieces; } ahead_count;

typedef struct read_ahead {
    int layer;                           /* that it is about; -1: none */
    int n, n_piece;                      /* experts; pieces of each */
    ahead_expert experts[AHEAD_EXPERTS]; /* the likeliest first */
    uint64_t bytes[AHEAD_RUNS], step[AHEAD_RUNS];        /* of a run, of a piece of it */
    _Atomic int16_t *state;              /* [n, n_piece]: the thread that has it, or neither */
    ahead_count *own;                    /* [threads]: pieces read and not yet looked for */
    _Atomic int next;                    /* piece that nobody reads yet */
    int most;                            /* pieces to read; behind a run, that were begun */
    const volatile uint32_t *word;       /* and the time is over when it says: */
    uint32_t stop;
} read_ahead;

uint64_t read_ahead_state_bytes(int most_piece);
uint64_t read_ahead_own_bytes(int n_thread);

/* Reads what r says, with all threads, in order, until there is no more, or *word is stop. */
void read_ahead_run(read_ahead *r, pool *team);

/* Number of an expert in r, or -1. */
int read_ahead_find(const read_ahead *r, int layer, int expert);

/* Each piece can be claimed once, by whoever computes it. */
bool read_ahead_claim(read_ahead *r, int number, int piece);

/* The next piece from this one on, counted over all experts, that this thread has read and may
 * compute: it is claimed. -1: there is none. */
int read_ahead_claim_own(read_ahead *r, int from, int thread);

#endif
