/* chat_form.c - where in the model's stream the answer's text begins, and which tokens lead there.
 *
 * For answers of a given form: only their text has it. Reasoning before it stays free, except that
 * the turn cannot end in it; markup is what the format needs to get to the answer. No token may
 * carry both a tag's end and some of the answer, whose first bytes nobody would have checked. */
#include "engine/text/chat_internal.h"

#include <string.h>

/* Bytes at the end of held that begin the tag which ends reasoning. */
static size_t begun_end(const chat_parser *p)
{
    const str_view s = textbuf_view(&p->held);
    size_t n = strlen(CHATML_THINK_END) - 1;
    if (n > s.len) n = s.len;
    while (n && memcmp(s.ptr + s.len - n, CHATML_THINK_END, n) != 0) n--;
    return n;
}

/* Nothing but newlines, which are structure, may follow the tag within a token. */
static bool ends_cleanly(str_view bytes, size_t begun)
{
    const size_t tag = strlen(CHATML_THINK_END);
    size_t after = SIZE_MAX;
    if (begun && bytes.len >= tag - begun &&
        memcmp(bytes.ptr, &CHATML_THINK_END[begun], tag - begun) == 0) {
        after = tag - begun;
    } else if (bytes.len >= tag) {
        const size_t at = view_find(bytes, 0, CHATML_THINK_END);
        if (at != SIZE_MAX) after = at + tag;
    }
    for (; after < bytes.len; after++)
        if (bytes.ptr[after] != '\n') return false;
    return true;
}

/* Does the header so far, with some more bytes, begin one that leads to the answer? whole: is it
 * one? */
static bool leads_on(const chat_parser *p, str_view more, bool whole)
{
    static const char *const channels[] = { "final", "analysis" };
    const harmony_state *m = &p->harmony;
    const size_t n = p->held.len + more.len;
    for (int i = 0; i < (m->ended ? 1 : 2); i++) {       /* reasoning comes once, and first */
        char want[64] = "";
        if (m->in_header_role) strcat(want, "assistant");
        strcat(want, "\1");
        strcat(want, channels[i]);
        const size_t len = strlen(want);
        if (n > len || (whole && n != len)) continue;
        if (memcmp(want, p->held.ptr, p->held.len) == 0 &&
            memcmp(want + p->held.len, more.ptr, more.len) == 0) return true;
    }
    return false;
}

static bool may_come_in_header(const chat_parser *p, int id)
{
    const chat *c = p->c;
    const char channel = MARK_CHANNEL;
    if (p->harmony.ended && !p->harmony.in_header_role) return id == c->h_start;
    if (id == c->h_channel) return leads_on(p, (str_view){ &channel, 1 }, false);
    if (id == c->h_message) return leads_on(p, (str_view){ "", 0 }, true);
    const str_view bytes = tokenizer_bytes(c->t, id, false);
    return bytes.len > 0 && leads_on(p, bytes, false);
}

bool chat_parser_in_answer(const chat_parser *p)
{
    if (p->c->format == CHAT_HARMONY) return p->harmony.route == ROUTE_ANSWER;
    return p->c->format != CHAT_CHATML || p->chatml.where != CHATML_REASONING;
}

int chat_parser_think(const chat_parser *p)
{
    if (p->c->format != CHAT_CHATML || !p->c->knows_reasoning || p->chatml.started ||
        p->chatml.strip || p->held.len || p->utf8.n_tail) return -1;
    return tokenizer_special(p->c->t, CHATML_THINK);
}

bool chat_parser_may_come(const chat_parser *p, int id)
{
    const chat *c = p->c;
    const token_kind kind = tokenizer_kind(c->t, id);
    if (tokenizer_is_stop(c->t, id) || kind == TOKEN_UNUSED) return false;
    if (c->format == CHAT_HARMONY) {
        if (p->harmony.route == ROUTE_HEADER) return p->calls || may_come_in_header(p, id);
        return kind != TOKEN_CONTROL || id == c->h_end;
    }
    const str_view bytes = tokenizer_bytes(c->t, id, false);
    return bytes.len > 0 && ends_cleanly(bytes, begun_end(p));
}

int chat_parser_moment(const chat_parser *p)
{
    if (p->c->format == CHAT_HARMONY) return p->harmony.route == ROUTE_HEADER ? 0 : 1;
    return 1 + (int)begun_end(p);
}
