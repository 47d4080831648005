/* logprob_rows.c - a queue of tokens that wait for their text.
 *
 * `text` holds the text of all pending tokens, made valid UTF-8 as the parser does it. Text of an
 * answer is searched in it. Pending text before the match was a tag or white space that the
 * parser dropped. */
#include "cli/serve/logprob_rows.h"

#include <math.h>
#include <string.h>

typedef struct pending {
    int32_t id;
    size_t len;                          /* bytes of its text */
    size_t skip, written;                /* of them, dropped at the beginning, and written */
    token_scores scores;
} pending;

struct logprob_rows {
    const tokenizer *tok;
    api_writer *w;
    token_scores next;
    utf8_stream utf8;
    textbuf text;
    pending *list;
    int n, cap;
};

int logprob_rows_create(logprob_rows **out, const tokenizer *tok, api_writer *w, err_ctx *err)
{
    logprob_rows *r = mem_zalloc(sizeof *r);
    *out = r;
    if (!r) return err_set(err, ERR_NOMEM, "%zu bytes for logprobs", sizeof *r);
    r->tok = tok;
    r->w = w;
    return 0;
}

void logprob_rows_free(logprob_rows *r)
{
    if (!r) return;
    textbuf_free(&r->text);
    mem_free(r->list);
    mem_free(r);
}

token_scores *logprob_rows_scores(logprob_rows *r) { return &r->next; }

static void forget(logprob_rows *r)
{
    r->n = 0;
    r->text.len = 0;
    r->utf8 = (utf8_stream){ { 0 }, 0 };
}

static int write_row(api_writer *w, const tokenizer *tok, str_view bytes, float logprob,
                     const token_scores *s)
{
    api_top top[TOKEN_SCORES_MOST];
    for (int i = 0; i < s->n_top; i++)
        top[i] = (api_top){ tokenizer_bytes(tok, s->top[i].id, true), s->top[i].logprob };
    return api_writer_token(w, &(api_token){ bytes, logprob, top, s->n_top });
}

/* Writes the token's row. Its bytes can be cut where they equal its text. */
static int write_token(const logprob_rows *r, const pending *t)
{
    str_view bytes = tokenizer_bytes(r->tok, t->id, false);
    if (bytes.len == t->len) bytes = (str_view){ bytes.ptr + t->skip, t->written };
    return write_row(r->w, r->tok, bytes, t->scores.logprob, &t->scores);
}

/* A token that was written in part was cut by a stop string. */
int logprob_rows_end(logprob_rows *r)
{
    if (!r) return 0;
    const int rc = r->n > 0 && r->list[0].written > 0 ? write_token(r, &r->list[0]) : 0;
    forget(r);
    return rc;
}

int logprob_rows_token(logprob_rows *r, int32_t id, bool in_text)
{
    if (!r || !in_text || tokenizer_is_stop(r->tok, id)) return 0;
    const str_view bytes = tokenizer_bytes(r->tok, id, false);
    const size_t old_len = r->text.len;
    if (bytes.len == 0) return logprob_rows_end(r);      /* a control token ends a header, which is
                                                          * no text */
    pending *list = mem_grow(r->list, r->n, &r->cap, sizeof *list);
    if (!list) return ERR_NOMEM;
    r->list = list;
    textbuf_room(&r->text, 3 * (bytes.len + 3) + 3);
    if (r->text.failed) return ERR_NOMEM;
    r->text.len += utf8_stream_push(&r->utf8, r->text.ptr + old_len, bytes);
    r->list[r->n++] = (pending){ .id = id, .len = r->text.len - old_len, .scores = r->next };
    return 0;
}

/* The position of the longest suffix of text that the pending text contains; *len 0: none. */
static size_t find(const logprob_rows *r, str_view text, size_t *len)
{
    for (; text.len > 0; text.ptr++, text.len--) {
        const char *match = r->text.len ? memmem(r->text.ptr, r->text.len, text.ptr,
                                                 text.len) : NULL;
        *len = text.len;
        if (match) return (size_t)(match - r->text.ptr);
    }
    *len = 0;
    return 0;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static int on_text(logprob_rows *r, str_view text)
{
    size_t len, begin = find(r, text, &len), pos = 0;
    const size_t end = begin + len;
    int done = 0, rc = 0;
    if (len == 0) return 0;
    for (int i = 0; i < r->n && pos <= end; i++) {
        pending *t = &r->list[i];
        const size_t left = t->len - t->skip - t->written;
        const size_t n_drop = pos < begin ? smaller(begin - pos, left) : 0;
        const size_t start = pos + n_drop;
        if (left == 0 && pos >= end) break;       /* the token is the first part of a character */
        t->skip += n_drop;
        if (start < end) t->written += smaller(end - start, left - n_drop);
        pos += left;
        if (t->skip + t->written < t->len) break;
        if (rc == 0 && (t->written > 0 || t->len == 0)) rc = write_token(r, t);
        done = i + 1;
    }
    memmove(r->list, r->list + done, (size_t)(r->n - done) * sizeof *r->list);
    r->n -= done;
    textbuf_drop(&r->text, end);
    return rc;
}

int logprob_rows_event(logprob_rows *r, const chat_event *ev)
{
    if (!r) return 0;
    if (ev->kind == CHAT_ANSWER) return on_text(r, ev->text);
    if (ev->kind == CHAT_CALL_END || ev->kind == CHAT_REASONING) forget(r);
    return 0;
}

/* ---- prompts --------------------------------------------------------------------------------- */

enum { CHUNK = 16 };                     /* rows of logits in memory */

static int first_row(api_writer *w, const tokenizer *tok, int n_vocab, const int32_t *ids, int n,
                     err_ctx *err)
{
    const token_scores none = { .n_top = 0 };
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= min_int(n_vocab, tokenizer_n_token(tok)))
            return err_set(err, ERR_RANGE, "prompt: there is no token %d", (int)ids[i]);
    return write_row(w, tok, tokenizer_bytes(tok, ids[0], true), NAN, &none);
}

int logprob_rows_prompt(api_writer *w, const tokenizer *tok, session *s, const int32_t *ids, int n,
                        int done, int n_top, err_ctx *err)
{
    const int n_vocab = session_vocab(s), chunk = min_int(CHUNK, n - 1 - done);
    float *logits = mem_array((size_t)CHUNK * (size_t)n_vocab, sizeof *logits);
    token_scores scores;
    int rc = logits ? 0 : err_set(err, ERR_NOMEM, "logits of %d tokens", CHUNK);
    if (done == 0) session_rewind(s, 0);
    if (rc == 0 && done == 0) rc = first_row(w, tok, n_vocab, ids, n, err);
    if (rc == 0) rc = session_eval(s, ids + done, chunk, logits, chunk, NULL, NULL, err);
    for (int i = 0; i < chunk && rc == 0; i++) {
        const int32_t id = ids[done + i + 1];
        token_scores_make(&scores, logits + (size_t)i * (size_t)n_vocab, n_vocab, id, n_top);
        rc = write_row(w, tok, tokenizer_bytes(tok, id, true), scores.logprob, &scores);
    }
    if (rc < 0 || done + chunk == n - 1) session_rewind(s, 0);
    mem_free(logits);
    return rc < 0 ? rc : done + chunk;
}
