/* guess_recall.h - how often guesses about the next layer's experts were right, by layer and rank.
 *
 * A guess about a layer waits until it is known what the layer chose; a later guess about the same
 * layer takes its place. Only counts: nothing is decided here. One thread at a time. */
#ifndef MOE_GUESS_RECALL_H
#define MOE_GUESS_RECALL_H

#include "loader/base.h"

typedef struct guess_recall guess_recall;

/* For guesses of k experts: as many as a token chooses. */
int guess_recall_create(guess_recall **out, int n_layer, int k, err_ctx *err);
void guess_recall_free(guess_recall *g); /* NULL is fine */

/* Guessed for a layer: k experts, the likeliest first; n_vram of them are in VRAM already. */
void guess_recall_guess(guess_recall *g, int layer, const int32_t *experts, int n_vram);

/* What the layer chose, k experts in any order. Without a guess that waits, nothing is counted. */
void guess_recall_chosen(guess_recall *g, int layer, const int32_t *chosen);

/* Another token begins: nobody will know what those were worth that still wait. */
void guess_recall_forget(guess_recall *g);

/* Of the guesses that wait no more and were not forgotten. right is g's, and goes on counting. */
typedef struct recall_layer {
    uint64_t tokens;                     /* guesses of k experts each */
    const uint64_t *right;               /* [k]: how often the expert of that rank was chosen */
    uint64_t in_vram;                    /* experts guessed that were in VRAM already */
} recall_layer;
recall_layer guess_recall_counts(const guess_recall *g, int layer);
int guess_recall_layers(const guess_recall *g);
int guess_recall_ranks(const guess_recall *g);   /* k */

#endif
