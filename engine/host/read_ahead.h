/* read_ahead.h - gate and up of experts that will probably be wanted, into the cores' caches while
 * there is nothing else to do.
 *
 * Between a reply and the next question the device mixes, and all cores wait. Meanwhile pieces of
 * the experts that are guessed are handed out to the threads, which bring them into their own
 * caches; and it is kept which thread has which, because another core's cache is hardly nearer than
 * RAM. Threads that compute claim pieces, each its own first. A wrong guess costs nothing but the
 * reading, and no result depends on it. read_ahead_begin and read_ahead_run are for the owner of
 * the team; claims are for its threads, inside one loop of it. */
#ifndef ENGINE_HOST_READ_AHEAD_H
#define ENGINE_HOST_READ_AHEAD_H

#include "tiers/pool.h"

typedef struct read_ahead read_ahead;

enum { AHEAD_EXPERTS = 32, AHEAD_RUNS = 2 };             /* RUNS: gate, up */

/* For experts of up to most_piece pieces and a team of n_thread. */
int read_ahead_create(read_ahead **out, int most_piece, int n_thread, err_ctx *err);
void read_ahead_free(read_ahead *r);     /* NULL is fine */
uint64_t read_ahead_bytes(int most_piece, int n_thread);

/* Nothing has been read yet for this layer, whose experts have runs of these bytes in pieces of
 * step bytes each, the last of which may be shorter. */
typedef struct ahead_shape {
    uint64_t bytes[AHEAD_RUNS], step[AHEAD_RUNS];
    int n_piece;
} ahead_shape;
void read_ahead_begin(read_ahead *r, int layer, const ahead_shape *shape);

/* One more expert, the likeliest first; those beyond AHEAD_EXPERTS are left out. */
void read_ahead_add(read_ahead *r, int expert, const uint8_t *const at[AHEAD_RUNS]);

/* Reads with all threads, in order, until there is no more, or it has been most_bytes, or go_on,
 * which every thread asks every 2 kB, says stop. Returns the bytes of the pieces that were
 * begun. */
uint64_t read_ahead_run(read_ahead *r, pool *team, uint64_t most_bytes, keep_going_fn *go_on,
                        void *ctx);

/* After that nobody finds anything. */
void read_ahead_forget(read_ahead *r);

/* Number of an expert, or -1 if it is none of those that were added for the layer. */
int read_ahead_find(const read_ahead *r, int layer, int expert);
int read_ahead_pieces(const read_ahead *r);      /* of an expert */

/* Each piece can be claimed once, by the thread that computes it. */
bool read_ahead_claim(read_ahead *r, int number, int piece);

/* The next piece from this one on, counted over all experts, that this thread has read and may
 * compute: it is claimed. -1: there is none. */
int read_ahead_claim_own(read_ahead *r, int from, int thread);

#endif
