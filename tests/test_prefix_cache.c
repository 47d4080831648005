/* test_prefix_cache.c - states that come back have the bits they left with and their own tokens.
 *
 * How that is seen: prefix_fixture.h. test_prefix_drive.c is about files. On a GPU, where there
 * is one; real or simulated. */
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session/answer.h"
#include "tests/prefix_fixture.h"
#include "tests/sim_gpu.h"

/* ---- a few conversations --------------------------------------------------------------------- */

/* What is found where tokens part, and what a session goes through itself. */
static void test_one(const fixture *r, bool any)
{
    session *s = fixture_session(r, CTX, 32, KV_F16), *u = fixture_session(r, CTX, 64, KV_F16);
    prefix_cache *c = fixture_cache(s, 64u << 20);
    notes *t = mem_zalloc(sizeof *t);
    int32_t ids[300], other[300];
    err_ctx err = { 0 };

    fixture_ids(ids, 300, 1, r->m);
    CHECK(prefix_cache_find(c, ids, 300) == 0 && prefix_cache_load(c, u, ids, 300, &err) == 0);
    CHECK(prefix_cache_keep(c, s, &err) == 0 && prefix_cache_counts(c).n_state == 0);
    for (int i = 0; i < 3; i++) {        /* 40, 80, 120 */
        fixture_eval(s, ids + 40 * i, 40);
        CHECK_MSG(fixture_keep(c, s, t, &err) == 0, "%s", err.msg);
    }
    const prefix_cache_stats n = prefix_cache_counts(c);
    const uint64_t rows = state_rows_bytes(r->m, KV_F16, 120);
    const uint64_t mark = state_checkpoint_bytes(r->m, KV_F16, 120);
    CHECK(n.n_state == 3 && n.n_ram == 3 && n.kept == 3);
    CHECK_MSG(n.ram_bytes >= rows + mark && n.ram_bytes <= rows + 3 * mark + 3000,
              "rows are stored once: %d bytes, rows %d, a mark %d", (int)n.ram_bytes, (int)rows,
              (int)mark);
    static const struct { int n, found; } finds[] = {
        { 300, 120 }, { 121, 120 }, { 120, 120 }, { 119, 80 }, { 81, 80 }, { 79, 40 }, { 39, 0 },
        { 1, 0 }, { 0, 0 },
    };
    for (size_t i = 0; i < ARRAY_LEN(finds); i++) {
        const int want = any ? min_int(finds[i].n, 120) : finds[i].found;
        CHECK_MSG(prefix_cache_find(c, ids, finds[i].n) == want, "%d of %d tokens, want %d",
                  prefix_cache_find(c, ids, finds[i].n), finds[i].n, want);
    }
    for (int at = 0; at < 121; at += 20) {               /* one token differs */
        memcpy(other, ids, sizeof ids);
        other[at] = (other[at] + 1) % r->m->hp.n_vocab;
        const int want = any ? min_int(at, 120) : min_int(at / 40 * 40, 120);
        CHECK_MSG(prefix_cache_find(c, other, 300) == want, "differs at %d: %d", at,
                  prefix_cache_find(c, other, 300));
    }
    for (int i = 0; i < 3; i++) fixture_load(c, u, ids, 40 * (i + 1), t, "one after the other");
    CHECK(prefix_cache_held(c, u, 300) == 120 && prefix_cache_held(c, u, 119) == 80);
    CHECK(session_rewind(u, 0) == 0 && prefix_cache_held(c, u, 300) == 0);

    /* it goes on from where it was, and adds to the same rows */
    if (any && CHECK(session_rewind(s, 100) == 100)) notes_add(t, s);
    fixture_load(c, u, ids, 100, t, "in the middle");
    fixture_ids(other, 300, 2, r->m);
    memcpy(other, ids, (size_t)session_pos(u) * sizeof *ids);
    fixture_eval(u, other + session_pos(u), 150 - session_pos(u));
    CHECK(fixture_keep(c, u, t, &err) == 0 && prefix_cache_held(c, u, 149) == 80);
    fixture_load(c, s, other, 300, t, "a branch");
    CHECK(session_pos(s) == 150);
    fixture_load(c, s, ids, 300, t, "the older one");

    /* the same tokens from another session are not stored twice */
    const int n_state = prefix_cache_counts(c).n_state;
    fixture_fill(u, ids, 120);
    CHECK(fixture_keep(c, u, t, &err) == 0 && prefix_cache_counts(c).n_state == n_state);
    /* what it computes after them has its own rows */
    fixture_eval(u, ids + 120, 30);
    CHECK(fixture_keep(c, u, t, &err) == 0 && prefix_cache_held(c, u, 149) == 0);
    fixture_load(c, s, ids, 300, t, "rows of its own");
    CHECK(session_pos(s) == 150);

    /* a shorter context gets what fits */
    session *small = fixture_session(r, 100, 16, KV_F16);
    CHECK(prefix_cache_load(c, small, ids, 300, &err) == (any ? 100 : 80));
    session_free(small);
    prefix_cache_free(c);
    prefix_cache_free(NULL);
    notes_free(t);
    session_free(s);
    session_free(u);
}

/* A session that goes back and computes the same tokens in other pieces has other bits after that:
 * it does not go on from the state that it left. */
static void test_own_rows(const fixture *r)
{
    session *s = fixture_session(r, CTX, 64, KV_F16), *u = fixture_session(r, CTX, 64, KV_F16);
    prefix_cache *c = fixture_cache(s, 64u << 20);
    notes *t = mem_zalloc(sizeof *t);
    int32_t ids[150];
    err_ctx err = { 0 };
    fixture_ids(ids, 150, 4, r->m);
    for (int i = 0; i < 3; i++) {        /* 40, 80, 120 */
        fixture_eval(s, ids + 40 * i, 40);
        session_snapshot(s);
        CHECK(prefix_cache_keep(c, s, &err) == 0);
    }
    if (CHECK(session_rewind(s, 80) == 80)) {
        for (int i = 80; i < 150; i += 5) fixture_eval(s, ids + i, 5);
        CHECK(fixture_keep(c, s, t, &err) == 0 && prefix_cache_held(c, s, 149) == 80);
        CHECK(fixture_load(c, u, ids, 150, t, "computed again") == 150);
    }
    prefix_cache_free(c);
    notes_free(t);
    session_free(s);
    session_free(u);
}

/* Sessions that do not belong to it. */
static void test_strangers(const fixture *r, const fixture *other)
{
    session *s = fixture_session(r, CTX, 32, KV_F16);
    session *kv = fixture_session(r, CTX, 32, KV_F32), *m = fixture_session(other, CTX, 32, KV_F16);
    session *list[] = { kv, m };
    prefix_cache *c = fixture_cache(s, 64u << 20);
    int32_t ids[50];
    err_ctx err = { 0 };
    fixture_ids(ids, 50, 1, r->m);
    for (int i = 0; i < 50; i++) ids[i] %= other->m->hp.n_vocab;
    fixture_fill(s, ids, 50);
    CHECK(prefix_cache_keep(c, s, &err) == 0);
    for (int i = 0; i < 2; i++) {
        fixture_fill(list[i], ids, 20);
        const held before = held_by(list[i]);
        CHECK(prefix_cache_keep(c, list[i], &err) == ERR_UNSUPPORTED &&
              strstr(err.msg, "another model"));
        CHECK(prefix_cache_load(c, list[i], ids, 50, &err) == ERR_UNSUPPORTED);
        CHECK(session_pos(list[i]) == 20 && held_same(held_by(list[i]), before));
    }
    CHECK(prefix_cache_counts(c).n_state == 1);
    prefix_cache_free(c);
    session_free(s);
    session_free(kv);
    session_free(m);
}

/* ---- room ------------------------------------------------------------------------------------ */

static void test_least_recent(const fixture *r)
{
    enum { N = 8, LEN = 48 };
    session *s = fixture_session(r, CTX, 32, KV_F16);
    prefix_cache *c = fixture_cache(s, fixture_room(r, N, LEN));
    notes *t = mem_zalloc(sizeof *t);
    int32_t ids[N + 2][LEN], longer[CTX];
    err_ctx err = { 0 };
    for (int i = 0; i < N + 2; i++) fixture_ids(ids[i], LEN, 100 + (uint64_t)i, r->m);
    for (int i = 0; i < N; i++) {
        fixture_fill(s, ids[i], LEN);
        CHECK_MSG(fixture_keep(c, s, t, &err) == 0, "%s", err.msg);
    }
    for (int i = 0; i < N; i++) CHECK(prefix_cache_find(c, ids[i], LEN) == LEN);
    fixture_load(c, s, ids[0], LEN, t, "the first is used");
    for (int i = N; i < N + 2; i++) {
        fixture_fill(s, ids[i], LEN);
        CHECK_MSG(fixture_keep(c, s, t, &err) == 0, "%s", err.msg);
    }
    for (int i = 0; i < N + 2; i++)
        CHECK_MSG((prefix_cache_find(c, ids[i], LEN) == LEN) == (i != 1 && i != 2),
                  "conversation %d", i);
    CHECK(prefix_cache_counts(c).dropped == 2);
    fixture_load(c, s, ids[3], LEN, t, "it is there");

    /* what cannot fit next to its own prefixes evicts none of them */
    fixture_ids(longer, CTX, 7, r->m);
    memcpy(longer, ids[3], sizeof ids[3]);
    fixture_eval(s, longer + LEN, CTX - LEN - 1);
    const held before = held_by(s);
    if (fixture_room(r, 1, CTX - LEN) > fixture_room(r, N - 1, LEN))
        CHECK(fixture_keep(c, s, t, &err) == ERR_NOMEM && strstr(err.msg, "does not fit"));
    CHECK(held_same(held_by(s), before) && prefix_cache_counts(c).n_state >= 1);
    CHECK(prefix_cache_counts(c).kept > N + 2 || prefix_cache_counts(c).dropped == 2);
    CHECK(prefix_cache_find(c, ids[3], LEN) == LEN);
    prefix_cache_free(c);

    c = fixture_cache(s, 0);
    CHECK(prefix_cache_keep(c, s, &err) == ERR_NOMEM && prefix_cache_find(c, longer, CTX) == 0);
    prefix_cache_free(c);
    notes_free(t);
    session_free(s);
}

static void test_no_memory(const fixture *r)
{
    session *s = fixture_session(r, CTX, 32, KV_F16);
    prefix_cache *c = NULL;
    const prefix_cache_options o = { .ram_bytes = 64u << 20 };
    int32_t ids[60];
    err_ctx err = { 0 };
    long n = 0;
    fixture_ids(ids, 60, 3, r->m);
    for (int rc = -1; rc < 0 && n < 10;) {
        mem_fail_after(++n);
        rc = prefix_cache_create(&c, s, &o, &err);
        mem_fail_after(0);
        CHECK_MSG(rc == 0 ? c != NULL : rc == ERR_NOMEM && !c, "%s", err.msg);
    }
    CHECK(n == 2);
    fixture_fill(s, ids, 60);
    n = 0;
    for (int rc = -1; rc < 0 && n < 20;) {
        mem_fail_after(++n);
        rc = prefix_cache_keep(c, s, &err);
        mem_fail_after(0);
        if (rc < 0) CHECK_MSG(rc == ERR_NOMEM && prefix_cache_find(c, ids, 60) == 0 &&
                              prefix_cache_counts(c).ram_bytes == 0, "%s", err.msg);
    }
    CHECK_MSG(n == 4, "%ld allocations", n);
    mem_guard(true);                     /* loading from RAM needs none */
    CHECK(prefix_cache_load(c, s, ids, 60, &err) == 60);
    mem_guard(false);
    prefix_cache_free(c);
    session_free(s);
}

/* ---- many ------------------------------------------------------------------------------------ */

/* The tokens of a new request: a beginning of an earlier one, or none, and something new. */
static int next_request(int32_t *ids, test_rng *rng, const notes *t, const model *m)
{
    int n = 0;
    if (t->n > 0 && test_below(rng, 5) > 0) {
        const struct note *k = &t->list[test_below(rng, (uint32_t)t->n)];
        n = test_below(rng, 3) ? k->n : (int)test_below(rng, (uint32_t)k->n + 1);
        memcpy(ids, k->ids, (size_t)n * sizeof *ids);
    }
    int more = 1 + (int)test_below(rng, 70);
    if (n + more >= CTX) n = 0;
    for (; more > 0; more--) ids[n++] = (int32_t)test_below(rng, (uint32_t)m->hp.n_vocab / 2);
    return n;
}

/* Takes in the rest of a request in some pieces, and keeps some of them. */
static void take_in(prefix_cache *c, session *s, const int32_t *ids, int n, test_rng *rng, notes *t,
                    uint64_t ram)
{
    err_ctx err = { 0 };
    while (session_pos(s) < n) {
        const int pos = session_pos(s), most = min_int(n - pos, 40);
        if (!fixture_eval(s, ids + pos, 1 + (int)test_below(rng, (uint32_t)most))) return;
        if (test_below(rng, 4) == 0) continue;
        const int rc = fixture_keep(c, s, t, &err);
        CHECK_MSG(rc == 0 || rc == ERR_NOMEM, "%s", err.msg);
        CHECK_MSG(rc < 0 || prefix_cache_find(c, ids, session_pos(s)) == session_pos(s), "lost");
        CHECK_MSG(prefix_cache_counts(c).ram_bytes <= ram, "too much RAM");
    }
}

/* With a folder another program goes on now and then, after this one ended with or without saying
 * goodbye. */
static void test_many(const fixture *r, uint64_t seed, uint64_t ram, int rounds)
{
    session *s[3] = { fixture_session(r, CTX, 16, KV_Q8_0), fixture_session(r, CTX, 48, KV_Q8_0),
                      fixture_session(r, CTX + 50, CTX, KV_Q8_0) };
    prefix_cache *c = fixture_cache(s[0], ram);
    notes *t = mem_zalloc(sizeof *t);
    test_rng rng = { seed };
    int32_t ids[CTX];
    int hits = 0;
    for (int i = 0; i < rounds; i++) {
        session *k = s[test_below(&rng, 3)];
        if (files.folder[0] && i % 20 == 19) {
            err_ctx err = { 0 };
            if (i % 40 == 19) CHECK_MSG(prefix_cache_flush(c, &err) == 0, "%s", err.msg);
            prefix_cache_free(c);
            c = fixture_cache(s[1], ram);
            CHECK(prefix_cache_counts(c).drive_bytes <= files.bytes);
        }
        const int n = next_request(ids, &rng, t, r->m);
        const uint32_t dice = test_below(&rng, 10);
        if (dice < 6) {
            if (fixture_load(c, k, ids, n, t, "many") > 0) hits++;
            else session_rewind(k, 0);
        } else {                         /* what it holds itself; without the cache's help */
            int same = 0;
            while (same < n && same < session_pos(k) && session_ids(k)[same] == ids[same]) same++;
            session_rewind(k, dice < 9 ? same : 0);
        }
        take_in(c, k, ids, n, &rng, t, ram);
        for (int j = i % 4; j < 3; j++) prefix_cache_poll(c);    /* and the thread goes on */
    }
    const prefix_cache_stats n = prefix_cache_counts(c);
    CHECK_MSG(hits > rounds / 7, "%d hits in %d rounds", hits, rounds);
    CHECK_MSG(n.dropped > (uint64_t)rounds / 15 || files.folder[0] || SANITIZED, "%d dropped",
              (int)n.dropped);
    CHECK_MSG(n.damaged == 0 && files.n_note == 0, "%d notes, such as '%s'", files.n_note,
              files.note);
    prefix_cache_free(c);
    notes_free(t);
    for (int i = 0; i < 3; i++) session_free(s[i]);
}

/* ---- answers --------------------------------------------------------------------------------- */

enum { SYSTEM = 40, USER = 70, CUE = 3, SAID = 8 };

/* One request: its tokens, with a cue at the end, and where it is cut. */
typedef struct request {
    int32_t ids[CTX];
    int n, cuts[4];
    int from;                            /* tokens that a cache has after the requests before it */
} request;

typedef struct outcome {
    answer_stats stats;
    int32_t ids[CTX];
    int n;
    held h;
} outcome;

static void ask(outcome *out, const fixture *r, const tokenizer *tok, session *s, prefix_cache *c,
                const request *q, int cut_every)
{
    const sampler_options so = { .temperature = 0.8, .top_p = 1, .repeat_penalty = 1, .seed = 3,
                                 .penalty_window = -1 };
    const answer_options ao = { .tok = tok, .max_tokens = SAID, .n_stable = q->n - CUE, .cache = c,
                                .cuts = q->cuts, .n_cut = 4, .cut_every = cut_every };
    sampler *smp = NULL;
    err_ctx err = { 0 };
    CHECK(sampler_create(&smp, &so, r->m->hp.n_vocab, CTX, &err) == 0);
    CHECK_MSG(answer_run(&out->stats, s, smp, q->ids, q->n, &ao, NULL, &err) == 0, "%s", err.msg);
    sampler_free(smp);
    out->n = session_pos(s);
    memcpy(out->ids, session_ids(s), (size_t)out->n * sizeof *out->ids);
    out->h = held_by(s);
}

static bool same_outcome(const outcome *a, const outcome *b)
{
    return a->n == b->n && !memcmp(a->ids, b->ids, (size_t)a->n * sizeof *a->ids) &&
           held_same(a->h, b->h);
}

/* n tokens after the first of another request, or of what became of it. */
static request after(const int32_t *before, int n_before, int n, uint64_t seed, const model *m)
{
    request q = { .n = n_before + n, .cuts = { USER, SYSTEM, n_before + n - CUE, 1000 } };
    if (n_before > 0) memcpy(q.ids, before, (size_t)n_before * sizeof *before);
    fixture_ids(q.ids + n_before, n, seed, m);
    return q;
}

/* Turns of two conversations with a common beginning: in a session that stays in memory, in a new
 * one for each, and, with a folder, in a new program for each. What is computed does not show. */
static void test_answers(const fixture *r, const char *name, int cut_every)
{
    tokenizer *tok = NULL;
    err_ctx err = { 0 };
    outcome first = { 0 }, o[3] = { 0 };
    request q[7] = { 0 };
    if (!CHECK(tokenizer_create(&tok, r->g, &err) == 0)) return;
    files_remove();
    session *stays = fixture_session(r, CTX, 32, KV_F16);
    prefix_cache *one = fixture_cache(stays, 64u << 20);
    char kept[256];
    snprintf(kept, sizeof kept, "%s", files.folder);
    files.folder[0] = '\0';
    prefix_cache *ram = fixture_cache(stays, 64u << 20);
    for (int i = 0; i < 7; i++) {
        if (i == 0) q[0] = after(NULL, 0, USER + CUE, 31, r->m);
        else if (i == 1) q[1] = after(first.ids, first.n, 20 + CUE, 32, r->m);  /* the next turn */
        else if (i == 2) q[2] = after(first.ids, USER, 50 + CUE, 33, r->m);     /* differs there */
        else if (i == 3) q[3] = after(first.ids, SYSTEM, 60 + CUE, 34, r->m);   /* another one */
        else if (i == 4) q[4] = q[1];                                           /* once more */
        else if (i == 5) q[5] = after(first.ids, SYSTEM - 1, 44 + CUE, 35, r->m);
        else q[6] = after(o[0].ids, q[5].n - 8, 20 + CUE, 36, r->m);    /* not at a mark */
        const int wants[7] = { 0, first.n, USER, SYSTEM, q[4].n - CUE,
                               cut_every ? (SYSTEM - 1) / cut_every * cut_every : 0, USER };
        const int want = wants[i];
        session *s = fixture_session(r, CTX, 32, KV_F16), *u = fixture_session(r, CTX, 32, KV_F16);
        ask(&o[0], r, tok, stays, ram, &q[i], cut_every);
        files.folder[0] = '\0';
        ask(&o[1], r, tok, s, one, &q[i], cut_every);
        CHECK(prefix_cache_flush(one, &err) == 0);
        prefix_cache_free(one);
        snprintf(files.folder, sizeof files.folder, "%s", kept);
        one = fixture_cache(s, 64u << 20);
        ask(&o[2], r, tok, u, NULL, &q[i], cut_every);
        CHECK_MSG(o[0].stats.n_reused == want && o[1].stats.n_reused == want, "%s, %d: %d and %d "
                  "reused, want %d", name, i, o[0].stats.n_reused, o[1].stats.n_reused, want);
        CHECK_MSG(o[2].stats.n_reused == 0 && o[0].stats.n_taken == q[i].n, "%s, %d", name, i);
        CHECK_MSG(same_outcome(&o[0], &o[1]), "%s, %d: what stayed and what came back", name, i);
        if (i == 0) first = o[0];
        if (i != 1 && i != 4)            /* there, what was sampled is not sampled again */
            CHECK_MSG(same_outcome(&o[0], &o[2]), "%s, %d: without a cache", name, i);
        session_free(s);
        session_free(u);
    }
    /* a session that is at the end of what is asked for stays as it is, whatever is cached */
    const int pos = session_pos(stays);
    request more = after(session_ids(stays), pos, 9, 36, r->m);
    ask(&o[0], r, tok, stays, ram, &more, 0);
    CHECK_MSG(o[0].stats.n_reused == pos, "%d of %d", o[0].stats.n_reused, pos);
    prefix_cache_free(one);
    prefix_cache_free(ram);
    session_free(stays);
    tokenizer_free(tok);
    files_remove();
}

int main(int argc, char **argv)
{
    fixture r[2], tiny;
    char temp[256];
    /* Which states are kept does not depend on their contents, nor on a device: unless there is time,
     * one model is enough, and on the CPU alone. */
    const bool once = !test_is_long(), on_cpu = !sim_gpu() || !once;
    const int rounds = SANITIZED ? 40 : test_rounds(150, 25);
    test_begin("prefix_cache", argc, argv);
    if (!CHECK(mkdtemp(test_temp(temp, sizeof temp)) != NULL) || !fixture_open_demos(r))
        return test_end();
    for (int i = 0; i < 2; i++) {
        test_one(&r[i], false);
        test_own_rows(&r[i]);
        if (on_cpu) test_strangers(&r[i], &r[!i]);
        if (on_cpu && (!once || i == 0)) test_least_recent(&r[i]);
        test_no_memory(&r[i]);
        test_path(files.folder, sizeof files.folder, "%s/kept", temp);
        if (!once || (on_cpu && i == 0)) test_answers(&r[i], fixture_demos[i], 0);
        files.folder[0] = '\0';
    }
    for (int i = 0; i < 2; i++) fixture_close(&r[i]);
    for (int i = 0; i < 4; i++) {
        if (!fixture_open_tiny(&tiny, i)) continue;
        if (i == 2) test_one(&tiny, true);
        else if (on_cpu && (!once || i == 0 || i == 3))
            test_many(&tiny, 5 + (uint64_t)i, fixture_room(&tiny, 6, 200), rounds);
        test_path(files.folder, sizeof files.folder, "%s/kept", temp);
        if (i < 2) {
            if (!once) test_answers(&tiny, "cuts", 0);
            if (!once || i == 1) test_answers(&tiny, "more cuts", 16);
            files.bytes = fixture_room(&tiny, 20, 200);
            if (!once || i == 1)
                test_many(&tiny, 15 + (uint64_t)i, fixture_room(&tiny, 3, 200), rounds);
            files.bytes = UINT64_MAX / 2;
        }
        files.folder[0] = '\0';
        fixture_close(&tiny);
    }
    test_remove(temp);
    return test_end();
}
