/* drafts.h - guesses of an answer's next tokens, which one pass verifies.
 *
 * A pass takes in the answer's last token and some drafts. The tokens are then drawn one after the
 * other, each from its own row of logits with the usual random numbers; the first that is not the
 * draft ends the pass, and the session goes back to it. So drafts cannot change an answer, whether
 * it is greedy or sampled (docs/design.md).
 *
 * Their number is chosen before each pass: the one with the most expected tokens per second, by the
 * share of drafts that were right lately in this answer and the times that its runner has measured.
 * Where none pays, single tokens are computed, and drafts are tried again from time to time. One
 * thread. */
#ifndef ENGINE_SESSION_DRAFTS_H
#define ENGINE_SESSION_DRAFTS_H

#include "loader/base.h"

enum { DRAFTS_MOST = 7 };                /* a pass has up to 8 tokens of one session */

/* Writes up to `most` guesses of the tokens after ids [n]. Returns their number. */
typedef struct draft_source {
    void *ctx;
    int (*guess)(void *ctx, int32_t *out, int most, const int32_t *ids, int n);
} draft_source;

/* Guesses that the tokens after the longest repetition of the last ones come again: for every
 * model. At least DRAFT_LOOKUP_LEAST tokens must be equal. Needs no ctx. */
enum { DRAFT_LOOKUP_LEAST = 3 };
int draft_lookup(void *ctx, int32_t *out, int most, const int32_t *ids, int n);
extern const draft_source draft_by_lookup;

/* Measured times, for all answers of a runner. All zero: nothing is known yet. */
typedef struct draft_times {
    double pass_s[1 + DRAFTS_MOST];      /* of passes with this many drafts, */
    int n_timed[1 + DRAFTS_MOST];        /* known once two were timed */
    int age[1 + DRAFTS_MOST];            /* passes since the last of them */
    double guess_s;                      /* of the next-token block, for each draft; */
    int n_guessed;                       /* known once two calls were timed */
} draft_times;

/* A pass with n drafts took this long, without the time to make them; n drafts were made in this
 * time. */
void draft_times_pass(draft_times *t, int n, double seconds);
void draft_times_guess(draft_times *t, int n, double seconds);

/* The drafts of one source in one answer. All zero but the first two: nothing is known yet. */
typedef struct draft_control {
    const draft_times *times;            /* borrowed */
    bool of_block;                       /* each draft takes guess_s */
    double wrong;                        /* share of verified drafts that were wrong, lately */
    int limit;                           /* most drafts of the next pass, less one: doubled while
                                          * all are right */
    bool was_right;                      /* some draft */
    int misses;                          /* passes in a row whose first draft was wrong; then some */
    int wait;                            /* without: 0, 0, 1, 3, 7 .. 63; at first 3, 7 .. 63 */
} draft_control;

/* The best number of drafts, 0 .. most; and the tokens per second that are expected with so many,
 * 0 as long as nothing is known. */
int draft_control_choose(const draft_control *c, int most);
double draft_control_rate(const draft_control *c, int n);
/* The same for a pass of several answers, whose time says nothing about one of them: as many as are
 * all right more likely than not. */
int draft_control_likely(const draft_control *c, int most);
/* A pass had n drafts, of which n_right were right before the first wrong one. */
void draft_control_note(draft_control *c, int n, int n_right);

#endif
