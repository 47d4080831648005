/* sampler.h - logits to one token: seeded, repeatable, the same on every machine.
 *
 * The steps of a pick, in this order:
 *
 *   bans, biases   a banned token is out, and so is one that is not allowed; a bias is added. A
 *                  logit that is NaN is banned.
 *   penalties      over the last penalty_window accepted tokens: first repeat, then presence and
 *                  frequency.
 *   temperature    divides the logits; weight = exp((logit - largest) / temperature), so the
 *                  largest weight is 1.
 *   top_k          keeps the k tokens with the largest logits.
 *   top_p          keeps the shortest beginning of those whose weights sum to at least top_p of the
 *                  weights of all that top_k kept.
 *   min_p          keeps tokens whose weight is at least min_p times the largest weight.
 *   draw           one number u of 53 random bits, uniform in (0, 1], picks the first token at
 *                  which the sum of weights reaches u times the weights of all that are left.
 *
 * Tokens are ordered by descending logit, equal ones by ascending id. At least one is always left.
 * exp and the sums are doubles computed in a fixed order without a library, and the random numbers
 * are our own (xoshiro256**, its state filled by splitmix64 from the seed), so a seed means the
 * same everywhere.
 *
 * A sampler belongs to one conversation and is used from one thread at a time. */
#ifndef ENGINE_SESSION_SAMPLER_H
#define ENGINE_SESSION_SAMPLER_H

#include "engine/models/model.h"
#include "engine/session/token_scores.h"

typedef struct logit_bias { int32_t id; float bias; } logit_bias;        /* -INFINITY bans */

typedef struct sampler_options {
    double temperature;                  /* 0 .. 100; below 1e-5 greedy: the first in order,
                                          * without a draw */
    int top_k;                           /* 0: all */
    double top_p;                        /* (0, 1]; 1: all */
    double min_p;                        /* 0 .. 1; 0: all */
    double repeat_penalty;               /* (0, 10]; 1: off; logits of recent tokens are divided by
                                          * it (if positive) or multiplied (if negative) */
    double presence_penalty;             /* -2 .. 2; 0: off; subtracted once from recent tokens */
    double frequency_penalty;            /* -2 .. 2; 0: off; subtracted for each occurrence */
    int penalty_window;                  /* how many recent tokens count; -1: all, 0: none */
    uint64_t seed;
    const logit_bias *biases;            /* -1e4 .. 1e4 or -INFINITY; those of one id add up; copied
                                          * by sampler_create */
    int n_bias;
} sampler_options;

/* The model's defaults: its architecture's published settings, overridden by the file's
 * general.sampling.* keys (temp, top_k, top_p, min_p, penalty_repeat, penalty_last_n; a top_k of -1
 * means 0). seed is 0, no biases. Fails on a key of the wrong type or an impossible value, naming
 * it. */
int sampler_defaults(sampler_options *out, const model *m, err_ctx *err);

/* 0, or ERR_RANGE naming the first impossible value and the possible range. */
int sampler_check(const sampler_options *o, int n_vocab, err_ctx *err);

typedef struct sampler sampler;

/* Checks the options and allocates all memory. ctx: most tokens that penalties may count. Returns
 * 0, or < 0 with *err filled and *out NULL. */
int sampler_create(sampler **out, const sampler_options *o, int n_vocab, int ctx, err_ctx *err);
void sampler_free(sampler *s);           /* NULL is fine */

/* An id outside the vocabulary is ignored by both. */
void sampler_ban(sampler *s, int32_t id);        /* never sampled: padding, unused tokens */
/* From now on only tokens with their bit set are picked (bit id % 64 of word id / 64, for all
 * n_vocab). NULL: all. Borrowed until the next call. */
void sampler_allow(sampler *s, const uint64_t *bits);
/* From now on each pick writes the log probabilities of its token and of the n_top (0 ..
 * TOKEN_SCORES_MOST) likeliest ones to *scores, which is borrowed. NULL: no more. It needs a pass
 * over all logits, which a source then has to copy to RAM. */
void sampler_score(sampler *s, token_scores *scores, int n_top);
/* Reports a token to the penalties: those of the prompt, then each sampled one. */
void sampler_accept(sampler *s, int32_t id);

/* Takes back the last n accepted tokens and what was drawn for them and since, as if they had never
 * come: n is at most SAMPLER_BACK, and at most the number accepted since the last reset. */
enum { SAMPLER_BACK = 8 };
void sampler_back(sampler *s, int n);

/* Removes the accepted tokens and restarts the draws. Bans, biases and the mask stay. */
void sampler_reset(sampler *s, uint64_t seed);

/* Picks one of the n_vocab logits, which do not change. Does not accept the token. Fails with
 * ERR_FORMAT, "logits are not numbers", if no token has a finite logit or one that is not banned is
 * +Inf (an overflow, so the others are wrong, too), and with ERR_RANGE if all tokens with a logit
 * are banned. A failed pick draws nothing. */
int sampler_pick(int32_t *out, sampler *s, const float *logits, err_ctx *err);

/* ---- logits on a device ---------------------------------------------------------------------- */

/* The arithmetic of the pick, for a source of logits that does its part with the same bits. */
enum {
    SAMPLER_BLOCK = 64,                  /* ids that share a maximum and a mass */
    SAMPLER_LANES = 8,                   /* a block's mass: lane j sums its ids j, j + 8, ..., then
                                          * the lanes are added up, from 0 on */
    SAMPLER_STEPS = 256                  /* of exp; see sampler_rules.steps */
};

static inline int sampler_blocks(int n_vocab) { return (n_vocab - 1) / SAMPLER_BLOCK + 1; }

/* The changes to logits before they are compared, and their weights. */
typedef struct sampler_rules {
    const float *bias;                   /* [n_vocab]; -INFINITY: banned */
    uint64_t bias_version;               /* changes with the biases */
    const uint64_t *allowed;             /* [blocks]: bit i of word b is of id 64 b + i; ids without
                                          * their bit are banned. NULL: all are allowed */
    double repeat, presence, frequency;  /* penalties for the ids below */
    const int32_t *penalised, *count;    /* [n_penalised] ids; [n_vocab] how often each occurred */
    int n_penalised;
    double per_temperature;              /* 1 / temperature; 0: greedy, no weights */
    const double *steps;                 /* [SAMPLER_STEPS]: 2^(k / SAMPLER_STEPS) */
} sampler_rules;

typedef struct sampler_pair { int32_t id; float logit; } sampler_pair;

/* The owner of one row of logits, e.g. in VRAM. */
typedef struct sampler_source {
    void *ctx;
    /* Applies biases, mask and penalties and keeps the results. Writes the largest result of each
     * block to block_max and, unless mass is NULL, each block's sum of weights to mass: 0 if no
     * token of the block can be picked. */
    int (*prepare)(void *ctx, const sampler_rules *rules, float *block_max, double *mass,
                   err_ctx *err);
    /* Writes all of these results that are not below bound and not -INFINITY, in any order. Returns
     * their number; if it exceeds cap, pairs is not filled. */
    int (*gather)(void *ctx, sampler_pair *pairs, int cap, float bound, err_ctx *err);
    /* Begins a prepare with these rules and returns at once; weigh: it will want masses. NULL:
     * prepare does everything. */
    int (*ask)(void *ctx, const sampler_rules *rules, bool weigh, err_ctx *err);
} sampler_source;

/* Begins the next sampler_pick_from of this source, so that several picks wait together. The sampler
 * must not change before that pick. */
int sampler_ask(const sampler *s, const sampler_source *source, err_ctx *err);

/* sampler_pick from a source; it picks the same token. 1: the source does not suffice (too many
 * candidates, logits that are not numbers, scores are on). Then nothing was drawn, and the caller
 * copies the row to RAM and calls sampler_pick. */
int sampler_pick_from(int32_t *out, sampler *s, const sampler_source *source, err_ctx *err);

#endif
