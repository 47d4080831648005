/* predict_log.h - --predict-log FILE: how often a run's guesses about experts were right.
 *
 * While a layer is computed, the next layer's router is applied to its vector: the first choices
 * are the guess (engine/host/router_ahead.h). The file is one JSON object:
 *
 *   model         path
 *   experts_used  k: experts that a token chooses in a layer, and that are guessed for it
 *   layers        [{ layer, tokens, right [k], recall, in_vram }], from the second layer on
 *   tokens, right [k], recall, in_vram     of all layers together
 *
 * tokens are those generated (or fed one by one) for which there was a guess, in a bench those of
 * all runs and of the warm-up; right[r]: how often the expert of rank r, 0 the likeliest, was
 * chosen; recall: the share of chosen experts that were among the guessed, null without tokens;
 * in_vram: experts guessed that were in VRAM already. On a GPU a layer with nothing to ask the host
 * for tells it no vector, so there is no guess about the layer after it. Guesses that the GPU makes
 * for itself (--guess) follow the same rule, but none of these is counted here. */
#ifndef CLI_PREDICT_LOG_H
#define CLI_PREDICT_LOG_H

#include "engine/engine.h"

#define PREDICT_LOG_HELP "Write how often experts were guessed a layer early, as JSON; takes time"

struct guess_recall;

typedef struct predict_log {
    const char *path;                    /* borrowed; NULL: nobody asked for it */
    struct guess_recall *counts;
    session *s;                          /* borrowed */
} predict_log;

/* Counts what s does from now on. path NULL or "": nothing. 0, or < 0 with *err filled, and nothing
 * counts. */
int predict_log_begin(predict_log *p, session *s, const model *m, const char *path, err_ctx *err);

/* Replaces the file in one step, before the session is freed. 0, or 1, the exit code, after one
 * line on stderr. Accepts a zeroed one, and one that did not begin. */
int predict_log_end(predict_log *p, const char *model_path);

#endif
