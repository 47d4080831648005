/* text_reading.c - evaluates the text twice and compares the last rows of logits. */
#include "cli/cost/text_reading.h"

#include <math.h>

#include "cli/cost/logit_stats.h"

int text_reading_begin_with(text_reading *r, const model_handle *l, str_view text, int n_token,
                            int n_row, err_ctx *err)
{
    *r = (text_reading){ .n = 0 };
    const int rc = encoder_encode_whole(l->enc, &r->ids, text, false, false, err);
    if (rc < 0) {
        text_reading_release(r);
        return rc;
    }
    r->n = (int)r->ids.n < n_token ? (int)r->ids.n : n_token;
    r->n_row = min_int(r->n, n_row);
    const size_t floats = (size_t)r->n_row * (size_t)l->m->hp.n_vocab;
    r->rows[READING_OWN] = mem_array(READINGS * floats, sizeof **r->rows);
    if (!r->rows[READING_OWN]) {
        text_reading_release(r);
        return err_set(err, ERR_NOMEM, "no memory for %d rows of logits", READINGS * r->n_row);
    }
    r->rows[READING_OTHER] = r->rows[READING_OWN] + floats;
    return 0;
}

int text_reading_begin(text_reading *r, const model_handle *l, int ctx, err_ctx *err)
{
    return text_reading_begin_with(r, l, str_from(text_reading_text),
                                   min_int(TEXT_READING_TOKENS, ctx), TEXT_READING_ROWS, err);
}

void text_reading_release(text_reading *r)
{
    mem_free(r->rows[READING_OWN]);
    ids_free(&r->ids);
    *r = (text_reading){ .n = 0 };
}

/* All but the last n_single tokens as a prompt, these one by one. */
static int take_in(float *rows, text_reading *r, session *s, int n_single, err_ctx *err)
{
    const int n_together = r->n - n_single;
    int rc = session_eval(s, r->ids.ids, n_together, rows, r->n_row - n_single, progress_watch,
                          &r->bar, err);
    rows += (size_t)(r->n_row - n_single) * (size_t)session_vocab(s);
    for (int t = n_together; t < r->n && rc == 0; t++) {
        r->bar.done = (uint64_t)t;
        rc = session_eval(s, r->ids.ids + t, 1, rows, 1, progress_watch, &r->bar, err);
        rows += session_vocab(s);
    }
    return rc;
}

int text_reading_read(text_reading *r, reading_of which, const model_handle *l,
                      const session_options *so, bool as_answer, const char *label, err_ctx *err)
{
    session_options small = *so;
    session *s = NULL;
    small.ctx = r->n;
    small.n_snapshot = 0;
    int rc = session_create(&s, l->e, &small, err);
    if (rc < 0) return rc;
    progress_begin_tokens(&r->bar, label, (uint64_t)r->n);
    rc = take_in(r->rows[which], r, s, as_answer ? r->n_row : 0, err);
    progress_end(&r->bar);
    session_free(s);
    return rc;
}

int text_reading_compare(double *kl, const text_reading *r, int n_vocab, err_ctx *err)
{
    double sum = 0;
    for (int t = 0; t < r->n_row; t++)
        sum += logit_stats_kl(r->rows[READING_OWN] + (size_t)t * (size_t)n_vocab,
                              r->rows[READING_OTHER] + (size_t)t * (size_t)n_vocab, n_vocab);
    *kl = sum / r->n_row;
    return isfinite(*kl) ? 0 : err_set(err, ERR_FORMAT, "a logit is not a number");
}
