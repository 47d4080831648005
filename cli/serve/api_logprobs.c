/* api_logprobs.c - rows of logprobs, in OpenAI's two forms.
 *
 * Rows become JSON at once and wait in the choice for their text. A token is bytes: its text has
 * U+FFFD for invalid UTF-8, and chat also lists the bytes. */
#include "cli/serve/api_internal.h"

/* "token":T,"logprob":L,"bytes":[...] */
static void put_token(textbuf *b, str_view bytes, float logprob)
{
    textbuf_str(b, "\"token\":");
    api_put_lossy(b, bytes);
    textbuf_str(b, ",\"logprob\":");
    api_put_float(b, logprob);
    textbuf_str(b, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.len; i++)
        textbuf_printf(b, i ? ",%u" : "%u", (unsigned)(uint8_t)bytes.ptr[i]);
    textbuf_str(b, "]");
}

static void chat_row(api_answer *c, const api_token *t)
{
    textbuf *b = &c->rows;
    textbuf_str(b, b->len ? ",{" : "{");
    put_token(b, t->bytes, t->logprob);
    textbuf_str(b, ",\"top_logprobs\":[");
    for (int i = 0; i < t->n_top; i++) {
        textbuf_str(b, i ? ",{" : "{");
        put_token(b, t->top[i].bytes, t->top[i].logprob);
        textbuf_str(b, "}");
    }
    textbuf_str(b, "]}");
}

/* Offsets count bytes that begin a character. */
static size_t n_characters(str_view bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes.len; i++) n += ((uint8_t)bytes.ptr[i] & 0xC0) != 0x80;
    return n;
}

static void completion_row(api_answer *c, const api_token *t)
{
    const char *comma = c->rows.len ? "," : "";
    textbuf_str(&c->rows, comma);
    api_put_lossy(&c->rows, t->bytes);
    textbuf_str(&c->row_logprobs, comma);
    api_put_float(&c->row_logprobs, t->logprob);
    textbuf_str(&c->row_tops, comma);
    if (isnan(t->logprob)) {
        textbuf_str(&c->row_tops, "null");
    } else {
        textbuf_str(&c->row_tops, "{");
        for (int i = 0; i < t->n_top; i++) {
            textbuf_str(&c->row_tops, i ? "," : "");
            api_put_lossy(&c->row_tops, t->top[i].bytes);
            textbuf_str(&c->row_tops, ":");
            api_put_float(&c->row_tops, t->top[i].logprob);
        }
        textbuf_str(&c->row_tops, "}");
    }
    textbuf_printf(&c->row_offsets, "%s%zu", comma, c->n_char);
    c->n_char += n_characters(t->bytes);
}

int api_writer_token(api_writer *w, const api_token *t)
{
    api_answer *c = &w->choices[w->current];
    if (w->r->logprobs < 0) return 0;
    if (w->r->kind == API_CHAT || w->r->kind == API_RESPONSES) chat_row(c, t);
    else if (w->r->kind == API_COMPLETION) completion_row(c, t);
    return c->rows.failed || c->row_logprobs.failed || c->row_tops.failed || c->row_offsets.failed
         ? ERR_NOMEM : 0;
}
