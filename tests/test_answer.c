/* test_answer.c - one answer after the other: how they end, what is shown, what a session does not
 * compute twice.
 *
 * The tiny models talk noise, but fast: what they say does not matter here; what matters is that
 * the same seed says the same again, however it is cut for computing and showing. Only the test of
 * reasoning needs a model that learned its format. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session/answer.h"
#include "engine/session/runner.h"
#include "tests/model_fixture.h"
#include "tests/test.h"

enum { CTX = 192, PROMPT = 12 };

typedef model_fixture fixture;

static bool fixture_open(fixture *r, const char *path)
{
    const engine_options eo = { .threads = test_n_thread(1) };
    return model_fixture_open(r, path) && model_fixture_chat(r) && model_fixture_engine(r, &eo);
}

/* Such a model can go back to a snapshot only. */
static bool is_recurrent(const fixture *r) { return r->m->hp.arch == ARCH_QWEN3NEXT; }

static session *fixture_session(const fixture *r, int ctx)
{
    const session_options so = { .ctx = ctx, .chunk = 16, .kv = KV_F16, .n_snapshot = 3 };
    session *s;
    err_ctx err = { 0 };
    CHECK_MSG(session_create(&s, r->e, &so, &err) == 0, "session: %s", err.msg);
    return s;
}

/* Everything one run says, and how to make it stop. */
typedef struct run {
    /* how */
    int max_tokens, n_stable;
    uint64_t seed;
    double temperature, frequency_penalty, presence_penalty;
    const logit_bias *biases;
    int n_bias;
    const char *stop[2];
    stop_strings *kept;                         /* used instead, and not freed */
    bool raw, show_special;
    int quit_text, quit_token, quit_watch;       /* after this many calls; 0: never */
    bool guard;                          /* no allocation once tokens flow */
    /* what came */
    answer_stats stats;
    char text[8192], reasoning[8192];
    size_t n_text, n_reasoning;
    int n_event, n_asked, n_watch, n_done;
    bool late;                           /* an event after the hook said stop, or after the end */
    double watched;                      /* last done_tokens */
    int watched_of;
} run;

static void keep(char *dst, size_t *n, size_t cap, str_view s)
{
    if (*n + s.len >= cap) return;
    memcpy(dst + *n, s.ptr, s.len);
    *n += s.len;
    dst[*n] = '\0';
}

static int on_text(void *ctx, const chat_event *ev)
{
    run *u = ctx;
    u->n_event++;
    if ((u->quit_text && u->n_event > u->quit_text) || u->n_done) u->late = true;
    if (ev->kind == CHAT_ANSWER) keep(u->text, &u->n_text, sizeof u->text, ev->text);
    if (ev->kind == CHAT_REASONING)
        keep(u->reasoning, &u->n_reasoning, sizeof u->reasoning, ev->text);
    if (ev->kind == CHAT_DONE) u->n_done++;
    return u->quit_text && u->n_event >= u->quit_text ? -77 : 0;
}

static bool on_token(void *ctx)
{
    run *u = ctx;
    if (u->guard) mem_guard(true);
    return !u->quit_token || ++u->n_asked <= u->quit_token;
}

static bool on_prompt(void *ctx, double done_tokens, double n_tokens)
{
    run *u = ctx;
    if (done_tokens < u->watched) u->late = true;
    u->watched = done_tokens;
    u->watched_of = n_tokens;
    return !u->quit_watch || ++u->n_watch < u->quit_watch;
}

static int go(run *u, const fixture *r, session *s, const int32_t *ids, int n, err_ctx *err)
{
    const answer_hooks hooks = { u, on_text, on_token, on_prompt, NULL };
    const sampler_options so = {
        .temperature = u->temperature, .top_p = 1, .repeat_penalty = 1, .seed = u->seed,
        .frequency_penalty = u->frequency_penalty, .presence_penalty = u->presence_penalty,
        .penalty_window = -1, .biases = u->biases, .n_bias = u->n_bias,
    };
    answer_options ao = {
        .tok = r->t, .format = u->raw ? NULL : r->c, .max_tokens = u->max_tokens,
        .n_stable = u->n_stable, .show_special = u->show_special,
    };
    int n_stop = 0;
    sampler *smp = NULL;
    int rc = sampler_create(&smp, &so, r->m->hp.n_vocab, CTX, err);

    while (n_stop < 2 && u->stop[n_stop]) n_stop++;
    if (rc == 0 && n_stop) rc = stop_strings_create(&ao.stop, u->stop, n_stop, err);
    stop_strings *own = ao.stop;
    if (u->kept) ao.stop = u->kept;
    if (rc == 0) rc = answer_run(&u->stats, s, smp, ids, n, &ao, &hooks, err);
    mem_guard(false);
    stop_strings_free(own);
    sampler_free(smp);
    return rc;
}

/* A run that must work, in a session of its own if s is NULL. */
static void must(run *u, const fixture *r, session *s, const id_list *ids, const char *why)
{
    err_ctx err = { 0 };
    session *own = s ? NULL : fixture_session(r, CTX);
    const int rc = go(u, r, s ? s : own, ids->ids, (int)ids->n, &err);
    CHECK_MSG(rc == 0, "%s: %s", why, err.msg);
    CHECK_MSG(u->stats.n_prompt == (int)ids->n, "%s: n_prompt %d", why, u->stats.n_prompt);
    CHECK_MSG(!u->late, "%s: an event came too late or out of order", why);
    session_free(own);
}

static void encode(id_list *out, const fixture *r, const char *text)
{
    err_ctx err = { 0 };
    out->n = 0;
    CHECK_MSG(encoder_encode(r->enc, out, str_from(text), true, &err) == 0, "%s", err.msg);
}

static void render(id_list *out, const fixture *r, const char *text)
{
    const chat_message m = { .role = CHAT_USER, .content = str_from(text) };
    const chat_request q = { .messages = &m, .n_message = 1 };
    err_ctx err = { 0 };
    out->n = 0;
    CHECK_MSG(chat_render(out, r->c, r->enc, &q, &err) == 0, "%s", err.msg);
}

/* ---- how an answer ends --------------------------------------------------------------------- */

/* Keeps the model from ending its turn, so that lengths are known. */
static int no_stops(logit_bias *out, const fixture *r)
{
    int ids[16];
    const int n = tokenizer_stops(r->t, ids, 16);
    for (int i = 0; i < n; i++) out[i] = (logit_bias){ ids[i], -INFINITY };
    return n;
}

static void test_ends(const fixture *r)
{
    static const struct {
        int max_tokens, ctx_left, quit_text, quit_token, quit_watch;
        answer_end end;
        int n_answer;
        const char *why;
    } rows[] = {
        { 0, 50, 0, 0, 0, ANSWER_LENGTH, 0, "nothing asked for: the prompt alone" },
        { 1, 50, 0, 0, 0, ANSWER_LENGTH, 1, "one token" },
        { 7, 50, 0, 0, 0, ANSWER_LENGTH, 7, "a few" },
        { -1, 5, 0, 0, 0, ANSWER_CONTEXT, 5, "until the context is full" },
        { 6, 5, 0, 0, 0, ANSWER_CONTEXT, 5, "the context ends before the limit" },
        { 5, 5, 0, 0, 0, ANSWER_LENGTH, 5, "both at once: the limit was kept" },
        { -1, 1, 0, 0, 0, ANSWER_CONTEXT, 1, "room for one" },
        { 9, 50, 0, 3, 0, ANSWER_INTERRUPTED, 3, "asked before the fourth token" },
        { 9, 50, 2, 0, 0, ANSWER_INTERRUPTED, -1, "the second text was enough" },
        { 9, 50, 0, 0, 1, ANSWER_INTERRUPTED, 0, "in the prompt" },
    };
    logit_bias bans[16];
    const int n_ban = no_stops(bans, r);
    id_list ids = { 0 };

    encode(&ids, r, "It was the best of times");
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        run u = { .max_tokens = rows[i].max_tokens, .temperature = 0.7, .seed = 3, .raw = true,
                  .quit_text = rows[i].quit_text, .quit_token = rows[i].quit_token,
                  .quit_watch = rows[i].quit_watch, .biases = bans, .n_bias = n_ban,
                  .guard = true };
        session *s = fixture_session(r, (int)ids.n + rows[i].ctx_left);
        must(&u, r, s, &ids, rows[i].why);
        CHECK_MSG(u.stats.end == rows[i].end, "%s: %s", rows[i].why, answer_end_name(u.stats.end));
        CHECK_MSG(rows[i].n_answer < 0 || u.stats.n_answer == rows[i].n_answer, "%s: %d tokens",
                  rows[i].why, u.stats.n_answer);
        /* the last token sampled is not taken in */
        const int want = (int)ids.n + (u.stats.n_answer > 0 ? u.stats.n_answer - 1 : 0);
        CHECK_MSG(u.stats.n_taken == (session_pos(s) < (int)ids.n ? session_pos(s) : (int)ids.n),
                  "%s: %d taken, session at %d of %zu", rows[i].why, u.stats.n_taken,
                  session_pos(s), ids.n);
        CHECK_MSG(rows[i].quit_watch ? session_pos(s) < (int)ids.n : session_pos(s) == want,
                  "%s: position %d", rows[i].why, session_pos(s));
        CHECK_MSG(u.n_done == 0, "%s: no stop token came", rows[i].why);
        session_free(s);
    }
    ids_free(&ids);
}

static void test_stop_token(const fixture *r)
{
    const logit_bias want = { tokenizer_eos(r->t), 1000 };
    id_list ids = { 0 };
    render(&ids, r, "Hello.");
    for (int raw = 0; raw < 2; raw++) {
        run u = { .max_tokens = 5, .raw = raw, .biases = &want, .n_bias = 1 };
        must(&u, r, NULL, &ids, "stop token");
        CHECK_MSG(u.stats.end == ANSWER_STOP && u.stats.n_answer == 1, "stop token: %s after %d",
                  answer_end_name(u.stats.end), u.stats.n_answer);
        CHECK_MSG(u.n_done == 1 && u.n_text == 0, "stop token: done %d, text '%s'", u.n_done,
                  u.text);
    }
    ids_free(&ids);
}

/* ---- what is shown -------------------------------------------------------------------------- */

/* Where the character that contains byte `at` begins: stop strings are whole characters. */
static size_t whole(const char *text, size_t at)
{
    while (((uint8_t)text[at] & 0xC0) == 0x80) at--;
    return at;
}

static void test_stop_strings(const fixture *r)
{
    logit_bias bans[16];
    const run plain = { .max_tokens = 24, .temperature = 0.7, .seed = 5, .raw = true,
                        .biases = bans, .n_bias = no_stops(bans, r) };
    run all = plain, u;
    id_list ids = { 0 };
    char stop[64], waits[64];

    encode(&ids, r, "The old man");
    must(&all, r, NULL, &ids, "without stop strings");
    if (!CHECK_MSG(all.n_text > 24, "too short to cut: '%s'", all.text)) goto done;

    for (size_t at = 1; at + 9 < all.n_text; at += 9) {  /* found wherever it begins and ends */
        const size_t from = whole(all.text, at), to = whole(all.text, from + 7);
        u = plain;
        snprintf(stop, sizeof stop, "%.*s", (int)(to - from), all.text + from);
        u.stop[0] = "never said \x01";
        u.stop[1] = stop;
        must(&u, r, NULL, &ids, "stop string");
        const size_t first = (size_t)(strstr(all.text, stop) - all.text);
        CHECK_MSG(u.stats.end == ANSWER_STOP_TEXT, "'%s': %s", stop, answer_end_name(u.stats.end));
        CHECK_MSG(u.n_text == first && memcmp(u.text, all.text, first) == 0,
                  "'%s': shown '%s' of '%s'", stop, u.text, all.text);
        CHECK_MSG(u.stats.n_answer <= all.stats.n_answer, "'%s': %d tokens", stop,
                  u.stats.n_answer);
    }

    u = plain;                           /* what might have become one is shown at the end */
    snprintf(waits, sizeof waits, "%s\x01\x01", all.text + whole(all.text, all.n_text - 6));
    u.stop[0] = waits;
    must(&u, r, NULL, &ids, "half a stop string");
    CHECK_MSG(u.stats.end == ANSWER_LENGTH && strcmp(u.text, all.text) == 0,
              "held back text is lost: '%s' of '%s'", u.text, all.text);

    u = plain;                           /* the end decides for a shorter one inside it */
    const size_t tail = whole(all.text, all.n_text - 16), inner = whole(all.text, tail + 4);
    snprintf(stop, sizeof stop, "%.*s", (int)(whole(all.text, all.n_text - 2) - inner),
             all.text + inner);
    snprintf(waits, sizeof waits, "%s\x01", all.text + tail);
    u.stop[0] = waits;
    u.stop[1] = stop;
    must(&u, r, NULL, &ids, "a stop string inside half a stop string");
    CHECK_MSG(u.stats.end == ANSWER_STOP_TEXT && u.n_text == inner, "%s: '%s' of '%s'",
              answer_end_name(u.stats.end), u.text, all.text);

    u = plain;
    u.stop[0] = waits;
    u.quit_token = 24;                   /* go_on says no after the last one */
    u.max_tokens = 60;
    must(&u, r, NULL, &ids, "half a stop string, interrupted");
    CHECK_MSG(u.stats.end == ANSWER_INTERRUPTED && strcmp(u.text, all.text) == 0,
              "held back text is lost: '%s' of '%s'", u.text, all.text);

    /* stop strings that ended one answer are fresh for the next */
    const char *strings[1] = { stop };
    stop_strings *kept;
    CHECK(stop_strings_create(&kept, strings, 1, NULL) == 0);
    for (int turn = 0; turn < 2; turn++) {
        u = plain;
        u.kept = kept;
        must(&u, r, NULL, &ids, "stop strings used again");
        CHECK_MSG(u.stats.end == ANSWER_STOP_TEXT && u.n_text == (size_t)(strstr(all.text, stop) -
                  all.text), "turn %d: '%s' of '%s'", turn, u.text, all.text);
    }
    stop_strings_free(kept);
done:
    ids_free(&ids);
}

/* A letter of three bytes whose tokens are one byte each is shown at once, and what never became
 * one is shown as U+FFFD. */
static void test_bytes(const fixture *r)
{
    id_list ids = { 0 }, letter = { 0 };
    encode(&letter, r, "\xe2\x82\xac");
    encode(&ids, r, "It costs one");
    if (letter.n > 1) {
        const logit_bias first = { letter.ids[0], 1000 };
        run u = { .max_tokens = 1, .raw = true, .biases = &first, .n_bias = 1 };
        must(&u, r, NULL, &ids, "half a character");
        CHECK_MSG(strcmp(u.text, "\xef\xbf\xbd") == 0, "half a character: '%s'", u.text);
    } else {
        test_skip("the vocabulary has the euro sign as one token");
    }
    ids_free(&ids);
    ids_free(&letter);
}

static void test_special(const fixture *r)
{
    const char *name = is_recurrent(r) ? "<|im_start|>" : "<|start|>";
    const logit_bias want = { tokenizer_special(r->t, name), 1000 };
    id_list ids = { 0 };
    encode(&ids, r, "Then");
    for (int show = 0; show < 2; show++) {
        run u = { .max_tokens = 2, .raw = true, .show_special = show, .biases = &want,
                  .n_bias = 1 };
        char both[64];
        snprintf(both, sizeof both, "%s%s", name, name);
        must(&u, r, NULL, &ids, "control tokens");
        CHECK_MSG(strcmp(u.text, show ? both : "") == 0, "control tokens, shown %d: '%s'", show,
                  u.text);
    }
    ids_free(&ids);
}

/* Harmony's channels: reasoning is not the answer, and stop strings do not look there. */
static void test_reasoning(const fixture *r)
{
    id_list ids = { 0 };
    run u = { .max_tokens = 30, .temperature = 0.6, .seed = 2 };
    session *s = fixture_session(r, CTX);
    encode(&ids, r, "<|start|>user<|message|>Hello.<|end|><|start|>assistant");
    must(&u, r, s, &ids, "reasoning");
    CHECK_MSG(u.n_reasoning > 4 && u.n_text > 4, "reasoning '%s', answer '%s'", u.reasoning,
              u.text);
    CHECK(!strstr(u.text, "<|") && !strstr(u.reasoning, "<|"));
    run again = { .max_tokens = 30, .temperature = 0.6, .seed = 2 };
    char stop[8];
    snprintf(stop, sizeof stop, "%.3s", u.reasoning);
    again.stop[0] = stop;
    must(&again, r, s, &ids, "a stop string that is thought, not said");
    CHECK_MSG(strcmp(again.reasoning, u.reasoning) == 0, "reasoning cut: '%s'", again.reasoning);
    session_free(s);
    ids_free(&ids);
}

/* ---- what the sampler gets ----------------------------------------------------------------- */

static void test_penalties(const fixture *r)
{
    id_list ids = { 0 };
    err_ctx err = { 0 };
    session *s = fixture_session(r, CTX);
    float *logits = mem_array((size_t)r->m->hp.n_vocab, sizeof *logits);
    int a, b = 300;

    encode(&ids, r, "The house on the hill");
    a = ids.ids[2];
    while (b == ids.ids[0] || b == ids.ids[1] || tokenizer_is_stop(r->t, b)) b++;
    for (size_t i = 0; i < ids.n; i++) if (ids.ids[i] == b) b++;
    CHECK(session_eval(s, ids.ids, (int)ids.n, logits, 1, NULL, NULL, &err) == 0);
    /* token a of the prompt leads by one; a penalty of two for being there reverses that */
    const logit_bias lead[2] = { { a, 501 - logits[a] }, { b, 500 - logits[b] } };
    for (int on = 0; on < 2; on++) {
        run u = { .max_tokens = 2, .raw = true, .biases = lead, .n_bias = 2,
                  .presence_penalty = on ? 2 : 0 };
        session *own = fixture_session(r, CTX);
        must(&u, r, own, &ids, "presence penalty");
        CHECK_MSG(session_ids(own)[ids.n] == (on ? b : a), "penalty %d: sampled %d of %d, %d", on,
                  (int)session_ids(own)[ids.n], a, b);
        session_free(own);
    }
    /* what was sampled counts, too: one of two favourites cannot win for ever */
    const logit_bias two[2] = { { a, 1000 }, { b, 1000 } };
    run u = { .max_tokens = 24, .raw = true, .biases = two, .n_bias = 2, .frequency_penalty = 2 };
    session *own = fixture_session(r, CTX);
    int n_a = 0, n_b = 0;
    must(&u, r, own, &ids, "frequency penalty");
    for (int i = (int)ids.n; i < session_pos(own); i++) {
        n_a += session_ids(own)[i] == a;
        n_b += session_ids(own)[i] == b;
    }
    CHECK_MSG(n_a > 0 && n_b > 0, "frequency penalty: %d and %d times", n_a, n_b);
    session_free(own);
    session_free(s);
    mem_free(logits);
    ids_free(&ids);
}

/* ---- several answers in one pass ------------------------------------------------------------- */

enum { TALKS = 3, MOST_WORDS = 30 };

/* One answer of several that a caller steps together. */
typedef struct talk {
    session *s;
    sampler *smp;
    running_answer *a;
    bool going;
} talk;

/* A step of every answer that goes on. Prompts are computed one by one. */
static int step_together(talk *talks, err_ctx *err)
{
    running_answer *list[TALKS];
    talk *of[TALKS];
    err_ctx why[TALKS];
    int n = 0, rc[TALKS], worst = 0;
    for (int i = 0; i < TALKS && worst >= 0; i++) {
        talk *t = &talks[i];
        if (!t->going) continue;
        if (answer_draws(t->a)) {
            of[n] = t;
            list[n++] = t->a;
        } else {
            worst = answer_step(t->a, err);
            t->going = worst > 0;
        }
    }
    if (worst < 0 || n == 0) return worst;
    answer_step_together(list, n, 2, rc, why);
    for (int i = 0; i < n; i++) {
        of[i]->going = rc[i] > 0;
        if (rc[i] >= 0) continue;
        worst = rc[i];
        *err = why[i];
    }
    return worst;
}

/* Answers whose tokens go through the layers together are those that each gives alone. */
static void test_together(const fixture *r)
{
    static const char *const prompts[TALKS] = { "Hello", "The house on the hill", "Why? Because" };
    const session_options so = { .ctx = CTX, .chunk = 16, .kv = KV_F16, .n_snapshot = 3,
                                 .n_sharing = TALKS - 1 };
    const sampler_options any = { .temperature = 1, .top_p = 1, .repeat_penalty = 1.1, .seed = 3,
                                  .penalty_window = -1 };
    const answer_options ao = { .tok = r->t, .max_tokens = MOST_WORDS };
    id_list ids[TALKS] = { 0 };
    talk talks[TALKS] = { 0 };
    err_ctx err = { 0 };
    int rc = 0, n_left = TALKS;
    for (int i = 0; i < TALKS && rc == 0; i++) {
        talk *t = &talks[i];
        encode(&ids[i], r, prompts[i]);
        rc = i == 0 ? session_create(&t->s, r->e, &so, &err)
                    : session_create_sharing(&t->s, session_runner(talks[0].s), &err);
        if (rc == 0) rc = sampler_create(&t->smp, &any, r->m->hp.n_vocab, CTX, &err);
        if (rc == 0)
            rc = answer_open(&t->a, t->s, t->smp, ids[i].ids, (int)ids[i].n, &ao, NULL, &err);
        t->going = true;
    }
    while (rc >= 0 && n_left > 0) {
        rc = step_together(talks, &err);
        n_left = 0;
        for (int i = 0; i < TALKS; i++) n_left += talks[i].going;
    }
    CHECK_MSG(rc >= 0, "%s", err.msg);
    for (int i = 0; i < TALKS && rc >= 0; i++) {
        session *alone = fixture_session(r, CTX);
        answer_stats stats;
        sampler_reset(talks[i].smp, any.seed);
        rc = answer_run(&stats, alone, talks[i].smp, ids[i].ids, (int)ids[i].n, &ao, NULL, &err);
        const int n = session_pos(alone);
        CHECK_MSG(rc == 0 && n == session_pos(talks[i].s) &&
                  session_common(talks[i].s, session_ids(alone), n) == n &&
                  stats.n_answer == answer_so_far(talks[i].a)->n_answer, "answer %d: %s", i,
                  err.msg);
        session_free(alone);
    }
    for (int i = 0; i < TALKS; i++) {
        answer_free(talks[i].a);
        sampler_free(talks[i].smp);
        session_free(talks[i].s);
        ids_free(&ids[i]);
    }
}

/* ---- what is not computed again ------------------------------------------------------------- */

static void test_reuse(const fixture *r)
{
    enum { STABLE = 9 };
    logit_bias bans[16];
    const int n_ban = no_stops(bans, r);
    const run plain = { .max_tokens = 6, .temperature = 0.7, .seed = 4, .raw = true,
                        .biases = bans, .n_bias = n_ban };
    id_list ids = { 0 }, next = { 0 };
    session *s = fixture_session(r, CTX);
    run fresh = plain, again = plain, third = plain;
    int n;

    encode(&ids, r, "A stranger came along the road that led to the sea, and he");
    n = (int)ids.n;
    must(&fresh, r, s, &ids, "fresh");
    CHECK_MSG(fresh.stats.n_reused == 0, "fresh: %d reused", fresh.stats.n_reused);
    CHECK_MSG(fresh.watched >= n - 1 && fresh.watched_of == n, "watched %g of %d", fresh.watched,
              fresh.watched_of);         /* a single token at the end is not watched */

    /* the next turn: what was said stays in front, so the session just goes on */
    for (int i = 0; i < session_pos(s); i++) ids_push(&next, session_ids(s)[i], NULL);
    const int held = (int)next.n;
    encoder_encode(r->enc, &next, str_from(" Then he turned back"), true, NULL);
    must(&again, r, s, &next, "next turn");
    CHECK_MSG(again.stats.n_reused == held, "next turn: %d of %d reused", again.stats.n_reused,
              held);
    CHECK_MSG(again.watched_of == (int)next.n - held, "next turn: watched %d", again.watched_of);

    /* another next turn, which differs right after the prompt: back to its snapshot */
    next.n = (size_t)n;
    encoder_encode(r->enc, &next, str_from(" never looked back"), true, NULL);
    must(&third, r, s, &next, "other turn");
    CHECK_MSG(third.stats.n_reused == n, "other turn: %d of %d reused", third.stats.n_reused, n);
    run check = plain;
    must(&check, r, NULL, &next, "other turn, fresh");
    CHECK_MSG(strcmp(check.text, third.text) == 0, "other turn: '%s', fresh '%s'", third.text,
              check.text);

    /* the same prompt once more: at least its last token is computed again */
    again = plain;
    must(&again, r, s, &ids, "same prompt");
    CHECK_MSG(again.stats.n_reused == (is_recurrent(r) ? 0 : n - 1), "same prompt: %d reused",
              again.stats.n_reused);
    CHECK_MSG(strcmp(again.text, fresh.text) == 0, "same prompt: '%s', fresh '%s'", again.text,
              fresh.text);

    /* with a snapshot before the end it goes back there */
    again = third = plain;
    again.n_stable = third.n_stable = STABLE;
    session_rewind(s, 0);
    must(&again, r, s, &ids, "snapshot before the end");
    CHECK_MSG(again.watched >= n - 1 && again.watched_of == n, "two pieces: watched %g of %d",
              again.watched, again.watched_of);
    must(&third, r, s, &ids, "back to it");
    CHECK_MSG(third.stats.n_reused == (is_recurrent(r) ? STABLE : n - 1), "back to it: %d reused",
              third.stats.n_reused);
    CHECK_MSG(strcmp(third.text, fresh.text) == 0 && strcmp(again.text, fresh.text) == 0,
              "back to it: '%s', fresh '%s'", third.text, fresh.text);
    session_free(s);
    ids_free(&ids);
    ids_free(&next);
}

/* ---- what cannot be ------------------------------------------------------------------------- */

static void test_refusals(const fixture *r)
{
    int32_t prompt[PROMPT + 1];
    session *s = fixture_session(r, PROMPT);
    err_ctx err;
    static const struct { int n; int bad_at; const char *message, *why; } rows[] = {
        { 0, -1, "empty", "no token" },
        { PROMPT, -1, "leaves no room", "exactly the context" },
        { PROMPT + 1, -1, "leaves no room", "more than the context" },
        { 5, 3, "512", "an id past the last" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        run u = { .max_tokens = 2, .raw = true };
        for (int k = 0; k <= PROMPT; k++) prompt[k] = 300 + k;
        if (rows[i].bad_at >= 0) prompt[rows[i].bad_at] = r->m->hp.n_vocab;
        const int rc = go(&u, r, s, prompt, rows[i].n, &err);
        CHECK_MSG(rc == ERR_RANGE && strstr(err.msg, rows[i].message), "%s: %d '%s'", rows[i].why,
                  rc, rc < 0 ? err.msg : "");
        CHECK_MSG(u.n_event == 0 && u.stats.n_answer == 0, "%s: something was said", rows[i].why);
    }
    run u = { .max_tokens = 2, .raw = true };
    for (int k = 0; k < 5; k++) prompt[k] = 300 + k;
    CHECK_MSG(go(&u, r, s, prompt, 5, &err) == 0 && u.stats.n_answer > 0, "unusable: %s", err.msg);
    session_free(s);
}

/* Each allocation of an answer fails once; the session works afterwards. */
static void test_no_memory(const fixture *r)
{
    session *s = fixture_session(r, 32);
    const int32_t prompt[3] = { 300, 301, 302 };
    for (int raw = 0; raw < 2; raw++) {
        bool done = false;
        long n = 0;
        while (!done && n < 100) {
            run u = { .max_tokens = 2, .raw = raw, .stop = { "zzz" } };
            err_ctx err = { 0 };
            mem_fail_after(++n);
            const int rc = go(&u, r, s, prompt, 3, &err);
            mem_fail_after(0);
            done = rc == 0;
            CHECK_MSG(rc == 0 || (rc == ERR_NOMEM && err.msg[0]), "allocation %ld: %d '%s'", n, rc,
                      err.msg);
        }
        CHECK_MSG(done && n > 3, "%ld allocations", n);
    }
    session_free(s);
}

int main(int argc, char **argv)
{
    static const char *const models[] = { "qwen3next", "gptoss" };
    fixture demo = { 0 };
    test_begin("answer", argc, argv);
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        char path[512];
        fixture r = { 0 };
        test_path(path, sizeof path, "%s/models/tiny-%s-f32.gguf", test_unpacked(), models[i]);
        if (fixture_open(&r, path)) {
            test_stop_token(&r);
            test_special(&r);
            test_together(&r);
            test_reuse(&r);
            test_no_memory(&r);
            if (is_recurrent(&r)) {           /* the rest does not depend on the model */
                test_stop_strings(&r);
            } else {
                test_ends(&r);
                test_bytes(&r);
                test_penalties(&r);
                test_refusals(&r);
            }
        }
        model_fixture_close(&r);
    }
    if (fixture_open(&demo, "tests/models/demo-gptoss-MXFP4.gguf")) test_reasoning(&demo);
    model_fixture_close(&demo);
    for (int e = ANSWER_STOP; e <= ANSWER_INTERRUPTED; e++)
        CHECK_MSG(strlen(answer_end_name((answer_end)e)) > 2, "end %d has no name", e);
    return test_end();
}
