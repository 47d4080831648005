/* chat_turn.c - answers one question: render, run, print, add to the conversation.
 *
 * Invariant: printed text of an answer becomes part of the conversation, whatever ended the
 * answer. A question stays open only if it was stopped before any text. Each turn renders the
 * whole conversation; answer_run skips the part that the session holds. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/chat/chat_session.h"
#include "cli/console.h"
#include "cli/interrupt.h"
#include "cli/prompt_cache.h"

/* ---- output -------------------------------------------------------------------------------- */

typedef struct turn {
    chat_session *t;
    bool earlier;                        /* an earlier answer stays if this one has no text */
    textbuf answer, reasoning;
    progress bar;
    answer_view shown;
    bool stop;                           /* Ctrl-C, SIGTERM, or a closed output */
    bool ctrl_c;                         /* at a terminal */
} turn;

/* An empty line separates answers in a file or pipe, and follows each on a screen. */
static answer_view view_of(const chat_session *t)
{
    answer_view v = answer_view_of(t->show_reasoning);
    v.lead = t->n_shown > 0 && !v.on_screen ? "\n" : NULL;
    return v;
}

static int on_text(void *ctx, const chat_event *ev)
{
    turn *u = ctx;
    const uint64_t from = clock_ns();
    int rc;
    if (ev->kind == CHAT_REASONING) textbuf_put(&u->reasoning, ev->text);
    if (ev->kind == CHAT_ANSWER) textbuf_put(&u->answer, ev->text);
    rc = answer_view_event(&u->shown, ev);
    plan_watch_output_wait(&u->t->speed, clock_ns() - from);
    if (rc < 0) return -1;
    return u->answer.failed || u->reasoning.failed ? -1 : 0;
}

/* answered: an empty answer prints an empty line in a pipe, so that scripts can count answers. */
static void end_output(turn *u, bool answered)
{
    chat_session *t = u->t;
    answer_view_end(&u->shown, answered && !t->interactive);
    if (u->ctrl_c) fputs("^C\n", stderr);
    else if (u->shown.begun && u->shown.on_screen) answer_view_str(&u->shown, "\n");
    t->n_shown += u->shown.begun;
    if (u->shown.write_errno != EINTR) t->lost = u->shown.write_errno;
}

/* ---- stopping ------------------------------------------------------------------------------ */

/* Ctrl-C at a terminal ends the answer and is cleared at once, so that a second one does not end
 * the program. */
static bool on_go_on(void *ctx)
{
    turn *u = ctx;
    plan_watch_output_wait(&u->t->speed, answer_view_stop(&u->shown));
    if (interrupted()) {
        u->stop = true;
        u->ctrl_c = u->t->interactive && interrupt_exit_code() == 130;
        if (u->ctrl_c) interrupt_clear();
    }
    return !u->stop;
}

static bool on_token(void *ctx)
{
    turn *u = ctx;
    const bool go_on = on_go_on(u);
    plan_watch_token(&u->t->speed);
    answer_view_token(&u->shown);
    return go_on;
}

static bool on_watch(void *ctx, double done_tokens, double n_tokens)
{
    turn *u = ctx;
    if (u->bar.total == 0) progress_begin_tokens(&u->bar, "reading the prompt", (uint64_t)n_tokens);
    progress_update(&u->bar, (uint64_t)done_tokens);
    if (done_tokens >= n_tokens) progress_end(&u->bar);
    return on_go_on(u);
}

/* ---- the turn ------------------------------------------------------------------------------ */

static chat_request request_of(const chat_session *t)
{
    return (chat_request){ .messages = t->conv.messages, .n_message = t->conv.n_message,
                           .effort = t->set.effort, .thinking = t->set.thinking,
                           .date = str_from(t->set.date) };
}

/* The prompt; *n_stable is the part that the next turn's prompt begins with, or /retry's if that is
 * unknown. */
static int render(id_list *out, int *n_stable, const chat_session *t, err_ctx *err)
{
    const chat_request req = request_of(t);
    const int rc = chat_render(out, t->l.format, t->l.enc, &req, err);
    *n_stable = rc == 0 ? prompt_cache_stable(out, t->l.format, t->l.enc, &req) : 0;
    if (rc == 0 && *n_stable == 0) *n_stable = (int)out->n - 1;
    return rc;
}

int chat_count_tokens(int *out, const chat_session *t, err_ctx *err)
{
    chat_request req = request_of(t);
    id_list ids = { 0 };
    int rc = 0;
    req.no_cue = true;
    if (req.n_message > 0) rc = chat_render(&ids, t->l.format, t->l.enc, &req, err);
    *out = (int)ids.n;
    ids_free(&ids);
    return rc;
}

/* The seed of an answer: the first is drawn as by moe-run run with the same seed; /retry draws
 * another. */
static uint64_t turn_seed(const conversation_settings *s)
{
    uint64_t x = (uint64_t)s->n_answer * 0xD6E8FEB86659FD93u;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    return (uint64_t)s->seed ^ (x ^ x >> 32);
}

static void count(chat_session *t, const answer_stats *st)
{
    t->last = *st;
    t->total.n_turn++;
    t->total.n_prompt += (uint64_t)st->n_taken;
    t->total.n_reused += (uint64_t)st->n_reused;
    t->total.n_answer += (uint64_t)st->n_answer;
    t->total.prompt_ns += st->prompt_ns;
    t->total.answer_ns += st->answer_ns;
}

/* Ways to free context other than /undo; the model may have no larger context. */
static const char *reset_or_more(const chat_session *t)
{
    return session_ctx(t->s) < t->l.m->hp.ctx_train ? ", /reset, or start with a larger --ctx"
                                                    : " or /reset";
}

/* Notes about the end of the answer. */
static void note_end(const turn *u, const answer_stats *st)
{
    chat_session *t = u->t;
    char line[256];
    if (st->end == ANSWER_CONTEXT)
        console_note("the context of %d tokens is full: /undo%s", session_ctx(t->s),
                     reset_or_more(t));
    else if (st->end == ANSWER_LENGTH && t->interactive)
        console_note("cut after %d tokens (-n)%s", st->n_answer, u->answer.len > 0 ? "" :
                     u->reasoning.len > 0 ? " while reasoning" : " before any text");
    else if (conversation_is_open(&t->conv) && t->interactive)
        console_note("stopped before the answer began: %s", u->earlier ? "the earlier one stays" :
                     "/retry asks again, a new message replaces it");
    else if (u->answer.len == 0 && t->interactive)
        console_note("the model gave an empty answer");
    if (t->verbose)
        fprintf(stderr, "%s%s%s\n", u->shown.dim ? "\033[2m" : "",
                chat_turn_summary(line, sizeof line, t), u->shown.dim ? "\033[0m" : "");
    if (!t->speed.line[0] || t->speed_printed) return;
    console_note("%s", t->speed.line);
    t->speed_printed = true;
}

static int run(turn *u, const id_list *prompt, int n_stable, err_ctx *err)
{
    chat_session *t = u->t;
    const chat_request req = request_of(t);
    answer_options o = { .tok = t->l.tok, .format = t->l.format, .req = &req,
                               .stop = t->draw.stop, .max_tokens = t->max_tokens,
                               .n_stable = n_stable, .drafts = &draft_by_lookup };
    const answer_hooks hooks = { .ctx = u, .text = on_text, .go_on = on_token, .watch = on_watch };
    const bool has_system = req.n_message > 0 && req.messages[0].role == CHAT_SYSTEM;
    const prompt_parts parts = {
        .n_prompt = (int)prompt->n, .n_stable = n_stable,
        .n_system = has_system && prompt->n >= PROMPT_CACHE_LEAST ?
                    prompt_cache_tokens(prompt, t->l.format, t->l.enc, &req, 1) : 0,
    };
    answer_stats st;
    int rc;

    prompt_cache_begin(&t->kept, &o, t->s, &t->room, &parts);
    sampler_reset(t->draw.smp, turn_seed(&t->set));
    u->shown = view_of(t);
    plan_watch_begin(&t->speed, &t->l.where->p, t->l.where->measured, t->s);
    rc = answer_run(&st, t->s, t->draw.smp, prompt->ids, (int)prompt->n, &o, &hooks, err);
    progress_end(&u->bar);
    on_go_on(u);                         /* for a signal that ended a write */
    end_output(u, rc == 0 && st.n_answer > 0);
    if (rc < 0) return rc;
    count(t, &st);
    t->set.n_answer += st.n_answer > 0;
    if (u->answer.failed || u->reasoning.failed)
        return err_set(err, ERR_NOMEM, "out of memory for the answer");
    if (st.end != ANSWER_INTERRUPTED || u->answer.len > 0)
        rc = conversation_answer(&t->conv, textbuf_view(&u->answer), textbuf_view(&u->reasoning),
                                 err);
    if (rc == 0) note_end(u, &st);
    return rc;
}

/* Between answers, VRAM gets experts that the last answer used. */
static void update_cache(const chat_session *t)
{
    err_ctx err;
    if (engine_update(t->l.e, t->l.asked.cache_update, &err) < 0)
        console_note("experts in VRAM are unchanged: %s", err.msg);
}

enum { LEAST_NEW_TOKENS = 256 };         /* since the last file */

/* earlier: an answer to the same question; NULL if the question is new. */
static int take(chat_session *t, const chat_message *earlier, err_ctx *err)
{
    turn u = { .t = t, .earlier = earlier && earlier->content.ptr };
    id_list prompt = { 0 };
    int n_stable, rc = render(&prompt, &n_stable, t, err);

    if (rc == 0 && prompt.n >= (size_t)session_ctx(t->s)) {
        if (!earlier) conversation_undo(&t->conv);
        rc = err_set(err, ERR_RANGE, "with this message the conversation has %zu tokens, the "
                     "context holds %d: %s/undo%s", prompt.n, session_ctx(t->s),
                     earlier ? "" : "the message was not added; ", reset_or_more(t));
    }
    if (rc == 0) rc = run(&u, &prompt, n_stable, err);
    if (rc == 0) update_cache(t);
    if (rc == 0) prompt_cache_end(&t->kept, t->s, LEAST_NEW_TOKENS);
    textbuf_free(&u.answer);
    textbuf_free(&u.reasoning);
    ids_free(&prompt);
    return rc;
}

int chat_turn(chat_session *t, err_ctx *err) { return take(t, NULL, err); }

int chat_turn_again(chat_session *t, err_ctx *err)
{
    chat_message earlier;
    if (!conversation_reopen(&t->conv, &earlier))
        return err_set(err, ERR_RANGE, "the conversation is empty");
    const int rc = take(t, &earlier, err);
    conversation_put_back(&t->conv, &earlier);
    return rc;
}

/* ---- figures ------------------------------------------------------------------------------- */

const char *chat_turn_summary(char *dst, size_t cap, const chat_session *t)
{
    const answer_stats *st = &t->last;
    char of[32] = "";
    if (st->n_taken < st->n_prompt) snprintf(of, sizeof of, " of %d", st->n_prompt);
    snprintf(dst, cap, "prompt %d%s tokens (%d reused), %.1f tok/s; answer %d tokens, %.1f tok/s "
             "(%s)", st->n_taken, of, st->n_reused,
             text_rate((uint64_t)(st->n_taken - st->n_reused), st->prompt_ns), st->n_answer,
             text_rate((uint64_t)st->n_answer, st->answer_ns), answer_end_name(st->end));
    return dst;
}
