/* chat_tulu.c - the format of Tulu and its relatives, among them OLMoE: messages to tokens.
 *
 * <|user|> LF TEXT LF <|assistant|> LF TEXT EOS; system turns like user turns. The names in
 * brackets are ordinary text unless the vocabulary has tokens for them. No tools. Formats in which
 * user turns also end with EOS are not supported. */
#include "engine/text/chat/chat_internal.h"

/* Returns the rest of the {{ }} expression after a literal, or of the template if it is cut off. */
static str_view rest_of(const literal_scan *k)
{
    const size_t end = view_find(k->s, k->pos, "}}");
    if (k->pos >= k->s.len) return (str_view){ "", 0 };
    return (str_view){ k->s.ptr + k->pos, (end == SIZE_MAX ? k->s.len : end) - k->pos };
}

/* Returns true if the literal ends its expression and a newline follows, which the template then
 * writes as text. */
static bool ends_line(const literal_scan *k, str_view rest)
{
    const size_t after = k->pos + rest.len + 2;
    return after < k->s.len && k->s.ptr[after] == '\n';
}

/* The newline after a user's text is in the expression or directly after it. */
static bool read_user(chat *c, const literal_scan *k, str_view lit)
{
    const str_view rest = rest_of(k);
    const bool within = view_has(rest, "'\\n'") || view_has(rest, "'\n'") ||
                        view_has(rest, "\"\\n\"") || view_has(rest, "\"\n\"");
    c->tulu_lines = ends_line(k, rest);
    return str_is(lit, "<|user|>\n") && !view_has(rest, "eos_token") && within != c->tulu_lines;
}

static int tulu_setup(chat *c, str_view template, err_ctx *err)
{
    literal_scan k = { .s = template };
    textbuf lit = { 0 };
    bool user = false, answer = false;
    int rc = 0;

    if (tokenizer_eos(c->t) < 0 || view_has(template, "<|end|>")) return 0;
    while (rc == 0 && template_next(&k, &lit)) {
        const str_view s = textbuf_view(&lit);
        rc = textbuf_check(&lit, err);
        if (str_starts(s, "<|user|>")) user = read_user(c, &k, s);
        if (!str_starts(s, "<|assistant|>")) continue;
        if (view_has(rest_of(&k), "eos_token")) answer = true;
        c->tulu_cue = str_is(s, "<|assistant|>") == ends_line(&k, rest_of(&k)) ? "\n"
                    : str_is(s, "<|assistant|>") ? "" : "\n\n";
    }
    textbuf_free(&lit);
    c->first = view_has(template, "bos_token") ? tokenizer_bos(c->t)
             : str_starts(template, "{{ eos_token }}") ? tokenizer_eos(c->t) : -1;
    return rc < 0 ? rc : user && answer;
}

static void open_turn(prompt *p, const char *role)
{
    prompt_tag(p, role);
    prompt_text(p, "\n");
}

static void tulu_render(prompt *p, const chat_request *req)
{
    const chat *c = p->c;

    if (c->first >= 0) prompt_token(p, c->first);
    for (int i = 0; i < req->n_message; i++) {
        const chat_message *m = &req->messages[i];
        const bool answer = m->role == CHAT_ASSISTANT;
        open_turn(p, answer ? "<|assistant|>" : m->role == CHAT_USER ? "<|user|>" : "<|system|>");
        prompt_view(p, m->content);
        if (answer) prompt_token(p, tokenizer_eos(c->t));
        if (!answer || c->tulu_lines || i + 1 < req->n_message) prompt_text(p, "\n");
    }
    if (req->no_cue) return;
    prompt_tag(p, "<|assistant|>");
    prompt_text(p, c->tulu_cue);
}

const chat_ops tulu_ops = {
    .format = CHAT_TULU, .name = "tulu", .setup = tulu_setup, .render = tulu_render,
    .push = plain_push, .end = plain_end,
};
