/* quant_check.c - evaluates a text with the old and the new model and compares the logits. */
#include "cli/quant/quant_check.h"

#include <sys/stat.h>

#include "cli/args/tier_args.h"
#include "cli/chat/conversation.h"

/* The text to read: a file's, or the argument itself. */
static int take_text(char **out, str_view *text, const char *argument)
{
    struct stat st;
    err_ctx err;
    size_t len;
    *text = str_from(argument);
    if (stat(argument, &st) == 0 && S_ISREG(st.st_mode)) {
        if (read_whole_file(out, &len, argument, &err) < 0) return console_fail(argument, &err);
        *text = (str_view){ *out, len };
    }
    if (text_check_utf8(*text, &err) == 0) return 0;
    return console_fail(*out ? argument : "--check", &err);
}

/* Evaluates the text with the model at path. The first model's tokenizer encodes it. */
static int read_with(quant_check *c, reading_of which, const char *path, const str_view *text,
                     err_ctx *err)
{
    model_handle l;
    session_options so = c->so;
    c->load.path = path;
    c->load.with_text = text != NULL;
    int rc = model_handle_open(&l, &c->load, err);
    if (rc < 0) return rc;
    if (text) {
        const int most = min_int(QUANT_CHECK_TOKENS, l.m->hp.ctx_train);
        rc = text_reading_begin_with(&c->r, &l, *text, most, QUANT_CHECK_ROWS, err);
        c->n_vocab = l.m->hp.n_vocab;
        if (rc == 0 && c->r.n == 0) rc = err_set(err, ERR_FORMAT, "--check: the text is empty");
    }
    so.ctx = c->r.n;
    if (rc == 0) rc = model_handle_place(&l, &so, err);
    if (rc == 0)
        rc = text_reading_read(&c->r, which, &l, &so, false,
                               text ? "reading with the old weights" :
                               "reading with the new weights", err);
    model_handle_close(&l);
    return rc;
}

int quant_check_begin(quant_check *c, const char *text, const char *path, const engine_args *args)
{
    tier_args tiers;
    char *file = NULL;
    str_view view;
    err_ctx err;
    int rc;

    *c = (quant_check){ .kl = 0 };
    tier_args_init(&tiers);
    if ((rc = engine_args_read(&c->load.where, &c->so, args)) != 0 ||
        (rc = tier_args_read(&c->load.where, &tiers)) != 0)
        return rc;
    rc = take_text(&file, &view, text);
    if (rc == 0 && read_with(c, READING_OWN, path, &view, &err) < 0)
        rc = model_handle_fail(path, &err);
    mem_free(file);
    return rc;
}

static int likeliest(const float *row, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++) if (row[i] > row[best]) best = i;
    return best;
}

int quant_check_end(quant_check *c, const char *path)
{
    err_ctx err;
    int rc = read_with(c, READING_OTHER, path, NULL, &err);
    if (rc == 0) rc = text_reading_compare(&c->kl, &c->r, c->n_vocab, &err);
    if (rc < 0) return model_handle_fail(path, &err);
    for (int t = 0; t < c->r.n_row; t++) {
        const size_t at = (size_t)t * (size_t)c->n_vocab;
        c->same += likeliest(c->r.rows[READING_OWN] + at, c->n_vocab) ==
                   likeliest(c->r.rows[READING_OTHER] + at, c->n_vocab);
    }
    return 0;
}

void quant_check_release(quant_check *c) { text_reading_release(&c->r); }
