/* predict_log.c - counts of right guesses as JSON.
 *
 * A share of nothing is null, never 0. Who guesses and who counts is the engine's business. */
#include "cli/predict_log.h"

#include <jansson.h>
#include <limits.h>

#include "cli/console.h"
#include "cli/sink.h"
#include "engine/instruments.h"
#include "moe/guess_recall.h"

int predict_log_begin(predict_log *p, session *s, const model *m, const char *path, err_ctx *err)
{
    *p = (predict_log){ 0 };
    if (!path || !*path) return 0;
    int rc = guess_recall_create(&p->counts, m->hp.n_layer, m->hp.n_expert_used, err);
    if (rc == 0) rc = session_watch_guesses(s, p->counts, err);
    if (rc < 0) {
        guess_recall_free(p->counts);
        p->counts = NULL;
        return rc;
    }
    p->path = path;
    p->s = s;
    return 0;
}

/* ---- at the end ------------------------------------------------------------------------------ */

/* Adds the figures of layers first .. end - 1 together to an object. */
static bool put(json_t *to, const guess_recall *g, int first, int end)
{
    const int k = guess_recall_ranks(g);
    uint64_t tokens = 0, in_vram = 0, all = 0;
    json_t *ranks = json_array();
    bool ok = ranks != NULL;
    for (int l = first; l < end; l++) {
        tokens += guess_recall_counts(g, l).tokens;
        in_vram += guess_recall_counts(g, l).in_vram;
    }
    for (int r = 0; r < k; r++) {
        uint64_t right = 0;
        for (int l = first; l < end; l++) right += guess_recall_counts(g, l).right[r];
        ok = json_array_append_new(ranks, json_integer((json_int_t)right)) == 0 && ok;
        all += right;
    }
    json_t *recall = tokens ? json_real((double)all / ((double)tokens * k)) : json_null();
    ok = json_object_set_new(to, "tokens", json_integer((json_int_t)tokens)) == 0 && ok;
    ok = json_object_set_new(to, "right", ranks) == 0 && ok;
    ok = json_object_set_new(to, "recall", recall) == 0 && ok;
    return json_object_set_new(to, "in_vram", json_integer((json_int_t)in_vram)) == 0 && ok;
}

/* NULL without memory. */
static json_t *counts_json(const guess_recall *g, const char *model_path)
{
    const int n_layer = guess_recall_layers(g);
    char path[4 * PATH_MAX];
    json_t *layers = json_array();
    json_t *root = json_pack("{s:s, s:i, s:o}", "model", ESC(path, str_from(model_path)),
                             "experts_used", guess_recall_ranks(g), "layers", layers);
    bool ok = root != NULL;
    for (int l = 1; l < n_layer && ok; l++) {
        json_t *one = json_pack("{s:i}", "layer", l);
        ok = put(one, g, l, l + 1);
        ok = json_array_append_new(layers, one) == 0 && ok;
    }
    if (ok && put(root, g, 0, n_layer)) return root;
    json_decref(root);
    return NULL;
}

int predict_log_end(predict_log *p, const char *model_path)
{
    err_ctx err = { 0 };
    if (!p->path) return 0;
    (void)session_watch_guesses(p->s, NULL, NULL);
    json_t *root = counts_json(p->counts, model_path);
    const int rc = sink_json(p->path, root, &err);
    const int code = rc < 0 ? console_fail(p->path, &err) : 0;
    json_decref(root);
    guess_recall_free(p->counts);
    *p = (predict_log){ 0 };
    return code;
}
