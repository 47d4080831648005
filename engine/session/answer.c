/* answer.c - the loop over tokens of an answer: prompt in, tokens drawn, text out.
 *
 * A token passes the grammar's mask, the sampler, the chat parser (or plain UTF-8), the stop
 * strings and then the caller. A stage may hold text back; at the end of an answer the stages are
 * flushed in that order, except after a stop string and after the caller ended the answer. */
#include "engine/session/answer.h"

#include <limits.h>
#include <string.h>

#include "engine/session/kept_inputs.h"
#include "engine/session/prefix_cache.h"
#include "engine/session/runner.h"

const char *answer_end_name(answer_end e)
{
    static const char *const names[] = {
        [ANSWER_STOP] = "stop", [ANSWER_STOP_TEXT] = "stop string", [ANSWER_LENGTH] = "length",
        [ANSWER_CONTEXT] = "context full", [ANSWER_INTERRUPTED] = "interrupted",
    };
    return (size_t)e < ARRAY_LEN(names) ? names[e] : "?";
}

/* ---- from token to caller ------------------------------------------------------------------ */

typedef struct stream {
    const answer_options *o;
    const answer_hooks *hooks;           /* each of them may be NULL */
    chat_parser *parser;                 /* NULL: raw text */
    utf8_stream utf8;                    /* of raw text */
    char *text;                          /* buffer for the text of one token */
    int n_vocab;
    uint64_t *mask;                      /* with a form: the tokens that may come next */
    int mask_key;                        /* chat_parser_mask_key of the mask; 0: none */
    bool in_form;                        /* the form governs the next token */
    bool found;                          /* a stop string was found */
    bool quit;                           /* the caller ended the answer */
} stream;

static int emit(stream *st, const chat_event *ev)
{
    if (!st->hooks->text || st->hooks->text(st->hooks->ctx, ev) >= 0) return 0;
    st->quit = true;
    return ERR_STOPPED;
}

static int emit_answer(void *ctx, str_view text)
{
    return emit(ctx, &(chat_event){ .kind = CHAT_ANSWER, .text = text });
}

/* The answer's text ends, or another event interrupts it: passes on the text held back, unless it
 * contains a stop string. */
static int end_text(stream *st)
{
    const int rc = stop_strings_end(st->o->stop, emit_answer, st);
    if (rc != 1) return rc;
    st->found = true;
    return ERR_STOPPED;
}

/* Stop strings are looked for in the answer only; any other event comes after the text that might
 * have become one. */
static int on_event(void *ctx, const chat_event *ev)
{
    stream *st = ctx;
    stop_strings *stop = st->o->stop;
    int rc;
    if (!stop) return emit(st, ev);
    if (ev->kind == CHAT_ANSWER) {
        rc = stop_strings_push(stop, ev->text, emit_answer, st);
        if (rc != 1) return rc;
        st->found = true;
        return ERR_STOPPED;
    }
    if ((rc = end_text(st)) < 0) return rc;
    stop_strings_reset(stop);
    return emit(st, ev);
}

static int raw_text(stream *st, size_t len)
{
    return len == 0 ? 0 : on_event(st, &(chat_event){ .kind = CHAT_ANSWER,
                                                      .text = { st->text, len } });
}

/* 1: the token ended the turn. */
static int stream_push(stream *st, int32_t id, err_ctx *err)
{
    const answer_options *o = st->o;
    int rc;
    if (st->hooks->token &&
        st->hooks->token(st->hooks->ctx, id, !st->parser || chat_parser_in_text(st->parser)) < 0) {
        st->quit = true;
        return ERR_STOPPED;
    }
    if (st->parser) return chat_parser_push(st->parser, id, on_event, st, err);
    if (!tokenizer_is_stop(o->tok, id)) {
        const str_view bytes = tokenizer_bytes(o->tok, id, o->show_special);
        return raw_text(st, utf8_stream_push(&st->utf8, st->text, bytes));
    }
    if ((rc = raw_text(st, utf8_stream_end(&st->utf8, st->text))) < 0) return rc;
    if ((rc = on_event(st, &(chat_event){ .kind = CHAT_DONE })) < 0) return rc;
    return 1;
}

/* The answer ended without a stop token: passes on all text held back. */
static int stream_flush(stream *st, err_ctx *err)
{
    const int rc = st->parser ? chat_parser_end(st->parser, on_event, st, err)
                              : raw_text(st, utf8_stream_end(&st->utf8, st->text));
    if (rc < 0 || !st->o->stop) return rc;
    return end_text(st);
}

/* Largest number of bytes that utf8_stream_push writes for a token. */
static size_t token_text_bytes(const answer_options *o)
{
    const int n_token = tokenizer_n_token(o->tok);
    size_t longest = 0;
    for (int id = 0; id < n_token; id++) {
        const size_t len = tokenizer_bytes(o->tok, id, o->show_special).len;
        if (len > longest) longest = len;
    }
    return 3 * (longest + 3) + 3;
}

static size_t mask_words(const stream *st) { return ((size_t)st->n_vocab + 63) / 64; }

static int stream_open(stream *st, const answer_options *o, const answer_hooks *hooks, int n_vocab,
                       err_ctx *err)
{
    *st = (stream){ .o = o, .hooks = hooks, .n_vocab = n_vocab };
    if (o->stop) stop_strings_reset(o->stop);
    if (o->form) {
        grammar_mask_reset(o->form);
        st->mask = mem_array(mask_words(st), sizeof *st->mask);
        if (!st->mask) return err_set(err, ERR_NOMEM, "answer: a mask of %d tokens", n_vocab);
    }
    if (o->format) return chat_parser_create(&st->parser, o->format, o->req, err);
    const size_t bytes = token_text_bytes(o);
    st->text = mem_alloc(bytes);
    return st->text ? 0 : err_set(err, ERR_NOMEM, "answer: %zu bytes", bytes);
}

static void stream_close(stream *st)
{
    chat_parser_free(st->parser);
    mem_free(st->text);
    mem_free(st->mask);
}

/* ---- the form ------------------------------------------------------------------------------ */

/* Outside of the form: the mask of the chat format. */
static void fill_mask(stream *st)
{
    const int key = chat_parser_mask_key(st->parser);
    if (key != 0 && key == st->mask_key) return;
    memset(st->mask, 0, mask_words(st) * sizeof *st->mask);
    chat_parser_fill(st->parser, st->mask, st->n_vocab);
    st->mask_key = key;
}

/* The form's mask with the changes that the chat format requires. */
static int fill_form_mask(stream *st, err_ctx *err)
{
    const uint64_t *bits = grammar_mask_bits(st->o->form, err);
    const int think = st->parser ? chat_parser_think(st->parser) : -1;
    if (!bits) return ERR_RANGE;
    memcpy(st->mask, bits, mask_words(st) * sizeof *bits);
    st->mask_key = 0;
    if (think >= 0) st->mask[think / 64] |= (uint64_t)1 << think % 64;
    if (st->parser) chat_parser_trim(st->parser, st->mask, st->n_vocab);
    return 0;
}

/* Guesses tokens of text that the form leaves no choice about. */
static int guess_form(const stream *st, int32_t *out, int most)
{
    if (!st->in_form || (st->parser && !chat_parser_in_answer(st->parser))) return 0;
    return grammar_mask_forced(st->o->form, out, most);
}

/* Gives the sampler the mask of the next token. */
static int apply_form(stream *st, sampler *smp, err_ctx *err)
{
    const bool was_in = st->in_form;
    int rc = 0;
    if (!st->o->form) return 0;
    st->in_form = !st->parser || chat_parser_in_answer(st->parser);
    const bool free = !st->in_form && chat_parser_is_free(st->parser);
    if (st->in_form && !was_in && st->parser)
        rc = grammar_mask_begin(st->o->form, chat_parser_key(st->parser), err);
    if (rc == 0 && st->in_form) rc = fill_form_mask(st, err);
    else if (rc == 0 && !free) fill_mask(st);
    sampler_allow(smp, free ? NULL : st->mask);
    return rc;
}

static int follow_form(stream *st, int32_t id, err_ctx *err)
{
    if (!st->o->form || !st->in_form) return 0;
    if (st->parser && id == chat_parser_think(st->parser)) return 0;
    return grammar_mask_accept(st->o->form, id, err);
}

/* ---- prompt -------------------------------------------------------------------------------- */

/* Rewinds the session to the longest beginning of the prompt, or loads a longer one from the cache;
 * at least one token is left to compute. Returns its length. With a cache the session is rewound to
 * a kept state, even if a later position could be reached: results must not depend on which tokens
 * happened to stay in memory. */
static int reach(session *s, const int32_t *prompt, int n_prompt, const answer_options *o,
                 err_ctx *err)
{
    const int most = min_int(session_common(s, prompt, n_prompt), n_prompt - 1);
    if (!o->cache) return session_rewind(s, most);
    const int kept = most < session_pos(s) ? prefix_cache_held(o->cache, s, most) : 0;
    const int own = session_rewind_target(s, kept > 0 ? kept : most);
    if (prefix_cache_find(o->cache, prompt, n_prompt - 1) <= own) return session_rewind(s, own);
    return prefix_cache_load(o->cache, s, prompt, n_prompt - 1, err);
}

/* The next position after pos at which the prompt is cut: a cut of the options, the end of the
 * stable tokens, or the end of the prompt. */
static int next_cut(const answer_options *o, int pos, int stable, int n_prompt)
{
    int cut = pos < stable ? stable : n_prompt;
    for (int i = 0; i < o->n_cut; i++)
        if (o->cuts[i] > pos && o->cuts[i] < cut) cut = o->cuts[i];
    if (o->cut_every > 0 && o->cut_every - pos % o->cut_every < cut - pos)
        cut = pos + (o->cut_every - pos % o->cut_every);
    return cut;
}

/* ---- an answer under way ------------------------------------------------------------------- */

struct running_answer {
    session *s;
    sampler *smp;
    const int32_t *prompt;
    int n_prompt, stable;                /* stable: position of the snapshot */
    answer_options o;
    answer_hooks hooks;
    stream st;
    float *logits;                       /* [n_vocab], after the prompt */
    int32_t pass[1 + DRAFTS_MOST];       /* the latest token, to be taken in, and drafts after it */
    int n_pass, n_right;                 /* of the pass under way; drafts of it, so far */
    int before;                          /* the session's position before it */
    enum { BY_SOURCE, BY_FORM, BY_BLOCK, N_DRAFTING } drafted;   /* what made its drafts */
    draft_control drafting[N_DRAFTING];
    answer_stats stats;
    int n_computed;                      /* tokens of the prompt */
    enum { TO_REACH, TO_TAKE, TO_DRAW, ENDED } next;
};

/* Converts the progress of a chunk to that of the prompt. */
static bool watch_chunk(void *ctx, double done_tokens, double n_tokens)
{
    const running_answer *a = ctx;
    (void)n_tokens;
    return a->hooks.watch(a->hooks.ctx, a->n_computed + done_tokens,
                          a->n_prompt - a->stats.n_reused);
}

/* Takes in the next chunk of the prompt. At least the last token is computed, for its logits. */
static int take_chunk(running_answer *a, err_ctx *err)
{
    const answer_options *o = &a->o;
    const int pos = session_pos(a->s), cut = next_cut(o, pos, a->stable, a->n_prompt);
    const int end = pos + session_first_chunk(a->s, cut - pos);
    const bool last = end == a->n_prompt;
    const int rc = session_eval(a->s, a->prompt + pos, end - pos, last ? a->logits : NULL, last,
                                a->hooks.watch ? watch_chunk : NULL, a, err);
    if (rc < 0) return rc;
    if (end == a->stable) session_snapshot(a->s);
    if (o->cache && end == cut && (!last || end == a->stable))
        prefix_cache_keep(o->cache, a->s, NULL);
    a->n_computed += end - pos;
    if (!last) return 0;
    for (int i = 0; i < a->n_prompt; i++) sampler_accept(a->smp, a->prompt[i]);
    a->next = TO_DRAW;
    return 0;
}

static int step_prompt(running_answer *a, err_ctx *err)
{
    const uint64_t from = clock_ns();
    int rc = 0;
    if (a->next == TO_REACH) {
        rc = reach(a->s, a->prompt, a->n_prompt, &a->o, err);
        if (rc >= 0) a->stats.n_reused = rc;
        a->next = TO_TAKE;
    }
    if (rc >= 0) rc = take_chunk(a, err);
    a->stats.n_taken = session_pos(a->s);
    a->stats.prompt_ns += clock_ns() - from;
    if (rc != ERR_STOPPED) return rc;
    a->next = ENDED;                     /* stats.end is ANSWER_INTERRUPTED from the start */
    return 0;
}

static answer_end end_of(const stream *st, answer_end otherwise)
{
    return st->quit ? ANSWER_INTERRUPTED : st->found ? ANSWER_STOP_TEXT : otherwise;
}

/* Whether the answer ends before its next token; sets stats.end. */
static bool is_over(running_answer *a)
{
    if (a->o.max_tokens >= 0 && a->stats.n_answer >= a->o.max_tokens) a->stats.end = ANSWER_LENGTH;
    else if (a->n_prompt + a->stats.n_answer >= session_ctx(a->s)) a->stats.end = ANSWER_CONTEXT;
    else if (a->hooks.go_on && !a->hooks.go_on(a->hooks.ctx)) a->stats.end = ANSWER_INTERRUPTED;
    else return false;
    return true;
}

/* 1: the answer goes on, and *id is to be taken in, or -1 if the session has taken in all tokens.
 * 0: it has ended. */
static int begin_token(running_answer *a, int32_t *id, err_ctx *err)
{
    stream *st = &a->st;
    answer_stats *out = &a->stats;
    *id = out->n_answer > 0 ? a->pass[0] : -1;
    if (!is_over(a)) return 1;
    a->next = ENDED;
    const int rc = stream_flush(st, err);
    out->end = end_of(st, out->end);
    return st->quit || st->found ? 0 : rc;
}

/* Takes the token that was drawn. 1: the answer goes on, 0: it has ended. */
static int accept_token(running_answer *a, int32_t id, err_ctx *err)
{
    stream *st = &a->st;
    answer_stats *out = &a->stats;
    int rc = follow_form(st, id, err);
    if (rc < 0) return rc;
    a->pass[0] = id;
    sampler_accept(a->smp, id);
    out->n_answer++;
    rc = stream_push(st, id, err);
    out->end = end_of(st, ANSWER_STOP);
    if (rc == 1 || st->quit || st->found) a->next = ENDED;
    return a->next == ENDED ? 0 : rc < 0 ? rc : 1;
}

/* The first token is drawn from the logits after the prompt. */
static int draw_first(running_answer *a, err_ctx *err)
{
    int32_t id;
    int rc = apply_form(&a->st, a->smp, err);
    if (rc == 0) rc = sampler_pick(&id, a->smp, a->logits, err);
    return rc < 0 ? rc : accept_token(a, id, err);
}

/* Answers whose last tokens are taken in, in one pass. */
typedef struct joint_pass {
    running_answer *a[RUNNER_MOST_ROWS];
    runner_row rows[RUNNER_MOST_ROWS];
    int at[RUNNER_MOST_ROWS];            /* in the caller's list */
    int n;
} joint_pass;

static void leave(joint_pass *p, int i)
{
    for (p->n--; i < p->n; i++) {
        p->a[i] = p->a[i + 1];
        p->rows[i] = p->rows[i + 1];
        p->at[i] = p->at[i + 1];
    }
}

/* An answer whose session cannot take its drafts in goes on without; one that cannot take its token
 * in leaves the pass. */
static void take_tokens(joint_pass *p, int *rc, err_ctx *err)
{
    err_ctx why;
    while (p->n > 0) {
        int failed;
        const int taken = runner_take(session_runner(p->rows[0].s), p->rows, p->n, &failed, &why);
        if (taken == 0) return;
        if (failed >= 0 && p->rows[failed].n > 1) {
            p->rows[failed].n = p->a[failed]->n_pass = 1;
            p->rows[failed].keep = false;
            continue;
        }
        for (int i = 0; i < p->n; i++) {
            if (failed >= 0 && i != failed) continue;
            rc[p->at[i]] = taken;
            err[p->at[i]] = why;
        }
        if (failed < 0) p->n = 0;
        else leave(p, failed);
    }
}

static int drafts_wanted(const running_answer *a, int by, int most, bool alone)
{
    const draft_control *c = &a->drafting[by];
    if (a->o.n_draft > 0) return min_int(most, a->o.n_draft);
    return alone ? draft_control_choose(c, most) : draft_control_likely(c, most);
}

/* Replaces the n drafts of the source by those of the block if these promise more tokens per
 * second. The answer is alone in its pass. Returns the number of drafts, < 0 on failure. */
static int guess_by_block(running_answer *a, int n, int most)
{
    runner *r = session_runner(a->s);
    const int n_block = drafts_wanted(a, BY_BLOCK, most, true);
    const uint64_t from = clock_ns();
    if (n_block <= 0 || (n > 0 && (a->o.n_draft > 0 ||
                                   draft_control_rate(&a->drafting[BY_SOURCE], n) >=
                                       draft_control_rate(&a->drafting[BY_BLOCK], n_block))))
        return n;
    const int found = runner_guess(a->s, a->pass + 1, n_block, a->pass[0], NULL);
    if (found == 0) return n;            /* it lacks a vector, and has written nothing */
    a->drafted = BY_BLOCK;
    draft_times_guess(runner_draft_times(r), found, clock_since(from));
    return found;
}

/* Guesses what comes after the latest token: at most so many drafts. Text that the form forces goes
 * before all else. */
static void guess(running_answer *a, int most, bool alone)
{
    const answer_options *o = &a->o;
    const int pos = session_pos(a->s);
    a->n_pass = 1;
    most = min_int(most, session_ctx(a->s) - pos - 1);
    if (o->max_tokens >= 0) most = min_int(most, o->max_tokens - a->stats.n_answer - 1);
    if (!o->drafts || most <= 0) return;
    int n = o->form ? guess_form(&a->st, a->pass + 1, most) : 0;
    if (n > 0) {
        a->drafted = BY_FORM;
        a->n_pass += drafts_wanted(a, BY_FORM, n, alone);
        return;
    }
    a->drafted = BY_SOURCE;
    n = drafts_wanted(a, BY_SOURCE, most, alone);
    if (n > 0)
        n = o->drafts->guess(o->drafts->ctx, a->pass + 1, n, session_with(a->s, a->pass[0]),
                             pos + 1);
    /* the block does not draft in company: it computes one session at a time */
    if (alone && runner_guesses(session_runner(a->s)))
        n = guess_by_block(a, n, min_int(most, MTP_DRAFTS));
    a->n_pass += max_int(n, 0);          /* the pass will fail where guesses do */
}

/* The rows of a pass with their drafts, in company at most n_draft each. */
static void fill_rows(joint_pass *p, int n_draft)
{
    const runner *r = session_runner(p->a[0]->s);
    const bool alone = p->n == 1, keeps = runner_keeps(r);
    int room = min_int(runner_most_taken(r), keeps ? KEPT_TOKENS : INT_MAX) - p->n;
    int n_drafting = runner_most_drafting(r);
    for (int i = 0; i < p->n; i++) {
        running_answer *a = p->a[i];
        const int n_left = p->n - i, share = (room + n_left - 1) / n_left;
        a->before = session_pos(a->s);
        a->n_right = 0;
        guess(a, n_drafting == 0 ? 0 : alone ? min_int(DRAFTS_MOST, room) : min_int(n_draft, share),
              alone);
        room -= a->n_pass - 1;
        n_drafting -= a->n_pass > 1;
        p->rows[i] = (runner_row){ .s = a->s, .ids = a->pass, .n = a->n_pass,
                                   .keep = a->n_pass > 1 && keeps };
    }
}

/* seconds: of the pass, for an answer that is alone in it; in company they say nothing about one
 * answer. Passes without drafts shorten the waits of all controls. */
static void note_pass(running_answer *a, bool alone, double seconds)
{
    const int n = a->n_pass - 1;
    if (!a->o.drafts) return;
    if (alone) draft_times_pass(runner_draft_times(session_runner(a->s)), n, seconds);
    for (int i = 0; i < N_DRAFTING; i++)
        if (n == 0 || i == (int)a->drafted) draft_control_note(&a->drafting[i], n, a->n_right);
}

/* Draws the tokens of a pass from its rows, up to the first that is not the draft. 1: the answer
 * goes on, 0: it has ended. */
static int draw_verified(running_answer *a, err_ctx *err)
{
    const int n = a->n_pass;
    int32_t id, drafts[DRAFTS_MOST], unused;
    int t = 0, rc;
    memcpy(drafts, a->pass + 1, (size_t)(n - 1) * sizeof *drafts);
    for (;; t++) {
        if ((rc = runner_pick(a->s, t, &id, a->smp, err)) == 0) rc = accept_token(a, id, err);
        if (rc <= 0 || t == n - 1 || id != drafts[t]) break;
        if ((rc = begin_token(a, &unused, err)) <= 0) break;
        if ((rc = apply_form(&a->st, a->smp, err)) < 0) break;
    }
    a->n_right = t;
    a->stats.n_draft += n - 1;
    a->stats.n_right += t;
    return rc;
}

/* Takes the wrong drafts out of the session, once all answers of the pass have drawn. */
static int drop_wrong(running_answer *a, int rc, err_ctx *err)
{
    const int end = a->before + 1 + a->n_right;
    if (session_pos(a->s) <= end || session_rewind(a->s, end) == end || rc < 0) return rc;
    return err_set(err, ERR_IO, "the session cannot go back to token %d", end);
}

static void draw_pass(joint_pass *p, int n_draft, int *rc, err_ctx *err)
{
    const bool alone = p->n == 1;
    fill_rows(p, n_draft);
    const uint64_t from = clock_ns();
    take_tokens(p, rc, err);
    /* the masks of the next tokens are computed while the GPU computes these */
    for (int i = 0; i < p->n; i++) {
        const int at = p->at[i];
        rc[at] = apply_form(&p->a[i]->st, p->a[i]->smp, &err[at]);
        if (rc[at] == 0) runner_ask(p->a[i]->s, 0, p->a[i]->smp);
    }
    for (int i = 0; i < p->n; i++) {
        const int at = p->at[i];
        if (rc[at] == 0) rc[at] = draw_verified(p->a[i], &err[at]);
    }
    for (int i = 0; i < p->n; i++) {
        const int at = p->at[i];
        rc[at] = drop_wrong(p->a[i], rc[at], &err[at]);
        note_pass(p->a[i], alone, clock_since(from));
    }
}

static void draw_together(running_answer *const *list, int n, int n_draft, int *rc, err_ctx *err)
{
    joint_pass p = { .n = 0 };
    for (int i = 0; i < n; i++) {
        int32_t id;
        rc[i] = begin_token(list[i], &id, &err[i]);
        if (rc[i] > 0 && id < 0) {
            rc[i] = draw_first(list[i], &err[i]);
        } else if (rc[i] > 0) {
            p.a[p.n] = list[i];
            p.at[p.n++] = i;
        }
    }
    if (p.n > 0) draw_pass(&p, n_draft, rc, err);
}

void answer_step_together(running_answer *const *list, int n, int n_draft, int *rc, err_ctx *err)
{
    const uint64_t from = clock_ns();
    draw_together(list, n, n_draft, rc, err);
    for (int i = 0; i < n; i++) {
        running_answer *a = list[i];
        if (rc[i] == 0 && a->next == ENDED && a->o.cache && session_pos(a->s) > a->n_prompt)
            prefix_cache_keep(a->o.cache, a->s, NULL);
        if (rc[i] < 0) a->next = ENDED;
        a->stats.answer_ns += clock_ns() - from;
    }
}

int answer_most_together(const session *s) { return runner_most_taken(session_runner(s)); }

int answer_step(running_answer *a, err_ctx *err)
{
    err_ctx unused;
    int rc;
    if (a->next == ENDED) return 0;
    if (a->next == TO_DRAW) answer_step_together(&a, 1, 0, &rc, err ? err : &unused);
    else rc = step_prompt(a, err);
    if (rc < 0) a->next = ENDED;
    return rc < 0 ? rc : a->next != ENDED;
}

bool answer_draws(const running_answer *a) { return a->next == TO_DRAW; }
const answer_stats *answer_so_far(const running_answer *a) { return &a->stats; }

/* ---- life ---------------------------------------------------------------------------------- */

int answer_open(running_answer **out, session *s, sampler *smp, const int32_t *prompt, int n_prompt,
                const answer_options *o, const answer_hooks *hooks, err_ctx *err)
{
    const int n_vocab = session_vocab(s);
    *out = NULL;
    if (n_prompt < 1) return err_set(err, ERR_RANGE, "the prompt is empty");
    if (n_prompt >= session_ctx(s))
        return err_set(err, ERR_RANGE, "the prompt has %d tokens; a context of %d leaves no room "
                       "for an answer", n_prompt, session_ctx(s));
    running_answer *a = mem_zalloc(sizeof *a);
    if (!a) return err_set(err, ERR_NOMEM, "answer: %zu bytes", sizeof *a);
    a->s = s;
    a->smp = smp;
    a->prompt = prompt;
    a->n_prompt = n_prompt;
    a->stable = o->n_stable > 0 && o->n_stable < n_prompt ? o->n_stable : n_prompt;
    a->o = *o;
    if (hooks) a->hooks = *hooks;
    a->stats = (answer_stats){ .n_prompt = n_prompt, .end = ANSWER_INTERRUPTED };
    for (int i = 0; i < N_DRAFTING; i++)
        a->drafting[i] = (draft_control){ .times = runner_draft_times(session_runner(s)),
                                          .of_block = i == BY_BLOCK };
    a->logits = mem_array((size_t)n_vocab, sizeof *a->logits);
    const int rc = a->logits ? stream_open(&a->st, &a->o, &a->hooks, n_vocab, err)
                             : err_set(err, ERR_NOMEM, "answer: logits of %d tokens", n_vocab);
    if (rc == 0) *out = a;
    else answer_free(a);
    return rc;
}

void answer_free(running_answer *a)
{
    if (!a) return;
    if (a->o.form) sampler_allow(a->smp, NULL);
    stream_close(&a->st);
    mem_free(a->logits);
    mem_free(a);
}

int answer_run(answer_stats *out, session *s, sampler *smp, const int32_t *prompt, int n_prompt,
               const answer_options *o, const answer_hooks *hooks, err_ctx *err)
{
    running_answer *a;
    *out = (answer_stats){ .n_prompt = n_prompt, .end = ANSWER_INTERRUPTED };
    int rc = answer_open(&a, s, smp, prompt, n_prompt, o, hooks, err);
    if (rc < 0) return rc;
    while ((rc = answer_step(a, err)) > 0) { }
    *out = *answer_so_far(a);
    answer_free(a);
    return rc;
}
