/* chat_constraints.c - decides where in the model's output the grammar applies, and which tokens
 * may come before that.
 *
 * A grammar constrains the answer's text, its calls, or both. Reasoning before it is unconstrained,
 * except that the turn cannot end there; markup must lead to the constrained part. No token may
 * contain both the end of a tag and bytes of the answer, because the grammar would miss those
 * bytes. In formats with tags the grammar includes calls and their tags; in harmony a call is a
 * separate message, and the grammar covers only its body. */
#include "engine/text/chat/chat_internal.h"

#include <stdio.h>
#include <string.h>

static bool is_harmony(const chat_parser *p)
{
    return p->c->ops->format == CHAT_HARMONY;
}

/* Returns the bytes at the end of held that are a prefix of the tag that ends reasoning. */
static size_t begun_end(const chat_parser *p)
{
    return p->c->tags ? partial_tag(textbuf_view(&p->held), p->c->tags->think_end) : 0;
}

/* Returns false if bytes complete the tag and have more than newlines after it. */
static bool ends_cleanly(const chat_tags *tags, str_view bytes, size_t begun)
{
    if (!tags) return true;
    const size_t tag = strlen(tags->think_end);
    size_t after = SIZE_MAX;
    if (begun && bytes.len >= tag - begun &&
        memcmp(bytes.ptr, &tags->think_end[begun], tag - begun) == 0) {
        after = tag - begun;
    } else if (bytes.len >= tag) {
        const size_t pos = view_find(bytes, 0, tags->think_end);
        if (pos != SIZE_MAX) after = pos + tag;
    }
    for (; after < bytes.len; after++)
        if (bytes.ptr[after] != '\n') return false;
    return true;
}

/* ---- headers of harmony ---- */

/* chat_grammar limits names to 128 bytes. */
enum { HEADER_ROOM = 256 };

typedef bool header_fn(void *ctx, str_view header);      /* returns true to stop */

static bool try_header(const chat_parser *p, const char *text, header_fn *fn, void *ctx)
{
    char want[HEADER_ROOM];
    const int n = snprintf(want, sizeof want, "%s%s", p->harmony.in_header_role ? "assistant" : "",
                           text);
    return n < HEADER_ROOM && fn(ctx, (str_view){ want, (size_t)n });
}

/* Tries all headers of a call: recipient before or after the channel, with or without a type. */
static bool try_calls(const chat_parser *p, const char *name, header_fn *fn, void *ctx)
{
    const char *const types[] = { "", p->c->h_constrain >= 0 ? " \2json" : " json" };
    char want[HEADER_ROOM];
    for (int i = 0; i < 4; i++) {
        snprintf(want, sizeof want, i < 2 ? "\1commentary to=functions.%s%s"
                                          : " to=functions.%s\1commentary%s", name, types[i % 2]);
        if (try_header(p, want, fn, ctx)) return true;
    }
    return false;
}

/* Calls fn for all allowed headers. Reasoning is allowed once, as the first message, unless calls
 * are free. */
static bool each_header(const chat_parser *p, header_fn *fn, void *ctx)
{
    const char *name;
    json_t *pos;
    if (p->hold != CHAT_CALLS_MUST && try_header(p, "\1final", fn, ctx)) return true;
    if ((!p->harmony.ended || p->hold == CHAT_CALLS_HELD) && try_header(p, "\1analysis", fn, ctx))
        return true;
    if (p->hold == CHAT_CALLS_HELD && !p->formed && try_header(p, "\1commentary", fn, ctx))
        return true;
    json_object_foreach(p->callable, name, pos)
        if (try_calls(p, name, fn, ctx)) return true;
    return false;
}

typedef struct header_match {
    str_view so_far, more;
    bool whole;                          /* they must be the complete header */
    bool *first;                         /* set for each byte that may come next, or NULL */
} header_match;

static bool match_header(void *ctx, str_view header)
{
    const header_match *m = ctx;
    const size_t n = m->so_far.len + m->more.len;
    if (n > header.len || (m->whole && n != header.len) ||
        memcmp(header.ptr, m->so_far.ptr, m->so_far.len) != 0 ||
        memcmp(header.ptr + m->so_far.len, m->more.ptr, m->more.len) != 0) return false;
    if (!m->first) return true;
    if (n < header.len) m->first[(uint8_t)header.ptr[n]] = true;
    return false;
}

/* Returns true if held plus more is a prefix of an allowed header; if whole, a complete one. */
static bool leads_on(const chat_parser *p, str_view more, bool whole)
{
    const str_view held = { p->held.ptr ? p->held.ptr : "", p->held.len };
    header_match m = { held, more, whole, NULL };
    return each_header(p, match_header, &m);
}

static bool mark_leads_on(const chat_parser *p, char mark)
{
    return leads_on(p, (str_view){ &mark, 1 }, false);
}

/* Returns true if text contains a byte that represents <|channel|> or <|constrain|> in held. */
static bool has_mark(str_view bytes)
{
    return memchr(bytes.ptr, MARK_CHANNEL, bytes.len) ||
           memchr(bytes.ptr, MARK_CONSTRAIN, bytes.len);
}

static void fill_header(const chat_parser *p, uint64_t *bits, int n)
{
    const chat *c = p->c;
    const str_view held = { p->held.ptr ? p->held.ptr : "", p->held.len };
    const bool between = p->harmony.ended && !p->harmony.in_header_role;
    bool first[256] = { false };
    header_match m = { held, { "", 0 }, false, first };
    each_header(p, match_header, &m);
    for (int id = 0; id < n; id++) {
        const str_view bytes = tokenizer_bytes(c->t, id, false);
        const bool may = between ? id == c->h_start
                       : id == c->h_channel ? mark_leads_on(p, MARK_CHANNEL)
                       : id == c->h_constrain ? mark_leads_on(p, MARK_CONSTRAIN)
                       : id == c->h_message ? leads_on(p, (str_view){ "", 0 }, true)
                       : bytes.len > 0 && first[(uint8_t)bytes.ptr[0]] && !has_mark(bytes) &&
                         leads_on(p, bytes, false);
        if (may) bits[id / 64] |= (uint64_t)1 << id % 64;
    }
}

/* ---- where the grammar applies ---- */

/* Output before the first header is text if it turns out not to be a header. */
bool chat_parser_in_text(const chat_parser *p)
{
    const harmony_state *m = &p->harmony;
    if (is_harmony(p))
        return m->route == ROUTE_ANSWER ||
               (m->route == ROUTE_HEADER && !m->ended && !m->in_header_role);
    return !p->c->tags || p->tags.where != TAGS_REASONING;
}

bool chat_parser_in_answer(const chat_parser *p)
{
    if (is_harmony(p) && p->hold != CHAT_CALLS_FREE)
        return p->harmony.route == ROUTE_CALL ? p->harmony.key[0] == KEY_CALL
             : p->harmony.route == ROUTE_ANSWER && p->formed;
    if (is_harmony(p)) return p->harmony.route == ROUTE_ANSWER;
    return chat_parser_in_text(p);
}

str_view chat_parser_key(const chat_parser *p)
{
    const harmony_state *m = &p->harmony;
    if (!is_harmony(p) || p->hold == CHAT_CALLS_FREE) return (str_view){ "", 0 };
    return (str_view){ (const char *)m->key, m->key[0] == KEY_CALL ? sizeof m->key : 1 };
}

int chat_parser_think(const chat_parser *p)
{
    if (!p->c->tags || !p->c->knows_reasoning || p->tags.started || p->tags.strip ||
        p->held.len || p->utf8.n_tail) return -1;
    return tokenizer_special(p->c->t, p->c->tags->think);
}

/* In harmony a call ends with <|call|>, a text with any other stop. In other formats tokens that
 * end a turn but are no stops are never text. */
void chat_parser_trim(const chat_parser *p, uint64_t *bits, int n_vocab)
{
    int stops[16];
    for (int i = 0; i < p->c->n_end; i++)
        if (p->c->ends[i] < n_vocab && !tokenizer_is_stop(p->c->t, p->c->ends[i]))
            bits[p->c->ends[i] / 64] &= ~((uint64_t)1 << p->c->ends[i] % 64);
    const int n = min_int(tokenizer_stops(p->c->t, stops, ARRAY_LEN(stops)), ARRAY_LEN(stops));
    const int call = p->c->h_call;
    if (!is_harmony(p) || p->hold == CHAT_CALLS_FREE || call < 0 ||
        !tokenizer_is_stop(p->c->t, call)) return;
    for (int i = 0; i < n; i++)
        if (stops[i] < n_vocab && (stops[i] == call) != (p->harmony.route == ROUTE_CALL))
            bits[stops[i] / 64] &= ~((uint64_t)1 << stops[i] % 64);
}

/* ---- before the grammar ---- */

bool chat_parser_is_free(const chat_parser *p)
{
    return is_harmony(p) && p->hold == CHAT_CALLS_HELD && !p->formed &&
           p->harmony.route != ROUTE_HEADER;
}

void chat_parser_fill(const chat_parser *p, uint64_t *bits, int n_vocab)
{
    const chat *c = p->c;
    const int n = min_int(n_vocab, tokenizer_n_token(c->t));
    const bool harmony = is_harmony(p), header = p->harmony.route == ROUTE_HEADER;
    const size_t begun = begun_end(p);
    if (harmony && header && !(p->calls && p->hold == CHAT_CALLS_FREE)) {
        fill_header(p, bits, n);
        return;
    }
    for (int id = 0; id < n; id++) {
        const token_kind kind = tokenizer_kind(c->t, id);
        if (chat_ends_turn(c, id) || kind == TOKEN_UNUSED) continue;
        const str_view bytes = tags_bytes(c, id);
        const bool may = harmony ? header || kind != TOKEN_CONTROL || id == c->h_end
                                 : bytes.len > 0 && ends_cleanly(c->tags, bytes, begun);
        if (may) bits[id / 64] |= (uint64_t)1 << id % 64;
    }
}

int chat_parser_mask_key(const chat_parser *p)
{
    if (is_harmony(p)) return p->harmony.route == ROUTE_HEADER ? 0 : 1;
    return 1 + (int)begun_end(p);
}
