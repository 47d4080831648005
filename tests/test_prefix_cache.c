/* test_prefix_cache.c - states that come back have the bits they left with, and are nobody else's.
 *
 * Whenever a state is kept, what the session holds is noted beside its tokens: a hash of all bytes
 * of the state, and one of the logits after one more token. Whatever the cache puts into a session
 * later must have both. Sessions differ in their chunks, so the same tokens have other bits in
 * some of them: a cache that mixed their rows would be noticed. On a GPU, where there is one; real
 * or simulated. */
#include "tests/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cuda/gpu.h"
#include "engine/engine_internal.h"
#include "engine/session/answer.h"
#include "engine/session/prefix_cache.h"
#include "engine/session/state_internal.h"
#include "loader/bytes.h"
#include "tests/bad_disk.h"
#include "tests/places.h"
#include "tests/sim_gpu.h"

/* Sanitizers make it twenty times slower: fewer rounds, and the tiny models alone. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum { CTX = 400, PROBE = 7, MOST_NOTES = 4000 };

/* ---- models and sessions --------------------------------------------------------------------- */

typedef struct rig {
    gguf *g;
    model *m;
    engine *e;
} rig;

/* full: windows are taken away, so that rows are all there is. */
static bool rig_open(rig *r, const char *path, bool full)
{
    err_ctx err = { 0 };
    const engine_options eo = { .threads = test_n_thread(1) };
    *r = (rig){ 0 };
    if (!CHECK_MSG(gguf_open(&r->g, path, &err) == 0 && model_bind(&r->m, r->g, &err) == 0,
                   "%s: %s", path, err.msg))
        return false;
    for (int l = 0; full && l < r->m->hp.n_layer; l++) r->m->layers[l].window = 0;
    return CHECK_MSG(engine_open(&r->e, r->m, &eo, &err) == 0, "%s: %s", path, err.msg) &&
           (gpu_count() == 0 || place_engine(r->e, r->m, &places[N_CPU_PLACES]));
}

static void rig_close(rig *r)
{
    engine_close(r->e);
    model_free(r->m);
    gguf_close(r->g);
}

static session *open_session(const rig *r, int ctx, int chunk, kv_type kv)
{
    const session_options so = { .ctx = ctx, .chunk = chunk, .kv = kv, .n_snapshot = 2 };
    session *s = NULL;
    err_ctx err = { 0 };
    CHECK_MSG(session_create(&s, r->e, &so, &err) == 0, "session: %s", err.msg);
    return s;
}

static char folder[256];                 /* of all files; "" where RAM is all there is */
static char noted[1000];                 /* the last note */
static int n_noted;
static uint64_t drive_bytes = UINT64_MAX / 2;

static void on_note(void *ctx, const char *line)
{
    (void)ctx;
    n_noted++;
    snprintf(noted, sizeof noted, "%s", line);
}

static prefix_cache_options options(uint64_t ram)
{
    return (prefix_cache_options){ .ram_bytes = ram, .folder = folder[0] ? folder : NULL,
                                   .drive_bytes = drive_bytes, .note = on_note };
}

static prefix_cache *open_cache(session *like, uint64_t ram)
{
    const prefix_cache_options o = options(ram);
    prefix_cache *c = NULL;
    err_ctx err = { 0 };
    CHECK_MSG(prefix_cache_create(&c, like, &o, &err) == 0, "%s", err.msg);
    return c;
}

static bool eval(session *s, const int32_t *ids, int n)
{
    err_ctx err = { 0 };
    const int rc = session_eval(s, ids, n, NULL, 0, NULL, NULL, &err);
    if (rc < 0) CHECK_MSG(false, "%s", err.msg);
    return rc == 0;
}

/* Starts anew and takes in the tokens. */
static void fill(session *s, const int32_t *ids, int n)
{
    session_rewind(s, 0);
    eval(s, ids, n);
}

static void make_ids(int32_t *ids, int n, uint64_t seed, const model *m)
{
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(random_word(seed, (uint64_t)i) % (uint64_t)m->hp.n_vocab);
}

/* ---- what a session holds -------------------------------------------------------------------- */

typedef struct held { uint64_t state, logits; } held;

/* All bytes of the state; the logits of one more token, which is taken back. */
static held look(session *s)
{
    const state *st = session_state(s);
    const int pos = session_pos(s);
    const size_t rows = (size_t)state_rows_bytes(st->m, st->o.kv, pos);
    const size_t n = rows + (size_t)state_mark_bytes(st->m, st->o.kv, pos);
    const size_t n_vocab = (size_t)session_vocab(s);
    char *bytes = test_alloc(n + 1, 1);
    float *logits = test_alloc(n_vocab, sizeof *logits);
    const int32_t probe = PROBE;
    err_ctx err = { 0 };
    held h = { 0 };
    CHECK_MSG(state_export(st, bytes, 0, bytes + rows, &err) == 0, "%s", err.msg);
    h.state = str_hash((str_view){ bytes, n });
    session_snapshot(s);
    if (CHECK_MSG(session_eval(s, &probe, 1, logits, 1, NULL, NULL, &err) == 0, "%s", err.msg))
        h.logits = str_hash((str_view){ (char *)logits, n_vocab * sizeof *logits });
    if (session_rewind(s, pos) != pos) CHECK_MSG(false, "the probe stays in");
    mem_free(bytes);
    mem_free(logits);
    return h;
}

static bool is_same(held a, held b) { return a.state == b.state && a.logits == b.logits; }

/* Everything that was kept, the latest last. */
typedef struct notes {
    struct note { int32_t *ids; int n; held h; } list[MOST_NOTES];
    int n;
} notes;

static void notes_add(notes *t, session *s)
{
    if (t->n == MOST_NOTES) return;
    struct note *k = &t->list[t->n++];
    k->n = session_pos(s);
    k->ids = test_alloc((size_t)k->n, sizeof *k->ids);
    memcpy(k->ids, session_ids(s), (size_t)k->n * sizeof *k->ids);
    k->h = look(s);
}

static const held *notes_find(const notes *t, const int32_t *ids, int n)
{
    for (int i = t->n - 1; i >= 0; i--)
        if (t->list[i].n == n && !memcmp(t->list[i].ids, ids, (size_t)n * sizeof *ids))
            return &t->list[i].h;
    return NULL;
}

static void notes_free(notes *t)
{
    for (int i = 0; i < t->n; i++) mem_free(t->list[i].ids);
    mem_free(t);
}

/* Keeps, and notes it if the cache did not have it. */
static int keep(prefix_cache *c, session *s, notes *t, err_ctx *err)
{
    const uint64_t before = prefix_cache_counts(c).kept;
    const int rc = prefix_cache_keep(c, s, err);
    if (rc == 0 && prefix_cache_counts(c).kept > before) notes_add(t, s);
    return rc;
}

/* Loads as much as find promises, with the bits that were noted. Returns how much. */
static int load(prefix_cache *c, session *s, const int32_t *ids, int n, const notes *t,
                const char *why)
{
    err_ctx err = { 0 };
    const int found = prefix_cache_find(c, ids, n);
    const int got = prefix_cache_load(c, s, ids, n, &err);
    if (!CHECK_MSG(got == found, "%s: %d of %d found: %s", why, got, found, err.msg) || got <= 0)
        return got;
    CHECK_MSG(session_pos(s) == got && !memcmp(session_ids(s), ids, (size_t)got * sizeof *ids),
              "%s: other tokens", why);
    const held *want = notes_find(t, ids, got);
    if (CHECK_MSG(want != NULL, "%s: %d tokens were never kept", why, got)) {
        const held have = look(s);
        CHECK_MSG(have.state == want->state, "%s: other state at %d", why, got);
        CHECK_MSG(have.logits == want->logits, "%s: other logits at %d", why, got);
    }
    return got;
}

/* ---- a few conversations --------------------------------------------------------------------- */

/* What is found where tokens part, and what a session goes through itself. */
static void test_one(const rig *r, bool any)
{
    session *s = open_session(r, CTX, 32, KV_F16), *u = open_session(r, CTX, 64, KV_F16);
    prefix_cache *c = open_cache(s, 64u << 20);
    notes *t = mem_zalloc(sizeof *t);
    int32_t ids[300], other[300];
    err_ctx err = { 0 };

    make_ids(ids, 300, 1, r->m);
    CHECK(prefix_cache_find(c, ids, 300) == 0 && prefix_cache_load(c, u, ids, 300, &err) == 0);
    CHECK(prefix_cache_keep(c, s, &err) == 0 && prefix_cache_counts(c).n_state == 0);
    for (int i = 0; i < 3; i++) {        /* 40, 80, 120 */
        eval(s, ids + 40 * i, 40);
        CHECK_MSG(keep(c, s, t, &err) == 0, "%s", err.msg);
    }
    const prefix_cache_stats n = prefix_cache_counts(c);
    const uint64_t rows = state_rows_bytes(r->m, KV_F16, 120);
    const uint64_t mark = state_mark_bytes(r->m, KV_F16, 120);
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
    for (int i = 0; i < 3; i++) load(c, u, ids, 40 * (i + 1), t, "one after the other");
    CHECK(prefix_cache_held(c, u, 300) == 120 && prefix_cache_held(c, u, 119) == 80);
    CHECK(session_rewind(u, 0) == 0 && prefix_cache_held(c, u, 300) == 0);

    /* it goes on from where it was, and adds to the same rows */
    if (any && CHECK(session_rewind(s, 100) == 100)) notes_add(t, s);
    load(c, u, ids, 100, t, "in the middle");
    make_ids(other, 300, 2, r->m);
    memcpy(other, ids, (size_t)session_pos(u) * sizeof *ids);
    eval(u, other + session_pos(u), 150 - session_pos(u));
    CHECK(keep(c, u, t, &err) == 0 && prefix_cache_held(c, u, 149) == 80);
    load(c, s, other, 300, t, "a branch");
    CHECK(session_pos(s) == 150);
    load(c, s, ids, 300, t, "the older one");

    /* the same tokens from another session are not stored twice */
    const int n_state = prefix_cache_counts(c).n_state;
    fill(u, ids, 120);
    CHECK(keep(c, u, t, &err) == 0 && prefix_cache_counts(c).n_state == n_state);
    /* what it computes after them has its own rows */
    eval(u, ids + 120, 30);
    CHECK(keep(c, u, t, &err) == 0 && prefix_cache_held(c, u, 149) == 0);
    load(c, s, ids, 300, t, "rows of its own");
    CHECK(session_pos(s) == 150);

    /* a shorter context gets what fits */
    session *small = open_session(r, 100, 16, KV_F16);
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
static void test_own_rows(const rig *r)
{
    session *s = open_session(r, CTX, 64, KV_F16), *u = open_session(r, CTX, 64, KV_F16);
    prefix_cache *c = open_cache(s, 64u << 20);
    notes *t = mem_zalloc(sizeof *t);
    int32_t ids[150];
    err_ctx err = { 0 };
    make_ids(ids, 150, 4, r->m);
    for (int i = 0; i < 3; i++) {        /* 40, 80, 120 */
        eval(s, ids + 40 * i, 40);
        session_snapshot(s);
        CHECK(prefix_cache_keep(c, s, &err) == 0);
    }
    if (CHECK(session_rewind(s, 80) == 80)) {
        for (int i = 80; i < 150; i += 5) eval(s, ids + i, 5);
        CHECK(keep(c, s, t, &err) == 0 && prefix_cache_held(c, s, 149) == 80);
        CHECK(load(c, u, ids, 150, t, "computed again") == 150);
    }
    prefix_cache_free(c);
    notes_free(t);
    session_free(s);
    session_free(u);
}

/* Sessions that do not belong to it. */
static void test_strangers(const rig *r, const rig *other)
{
    session *s = open_session(r, CTX, 32, KV_F16);
    session *kv = open_session(r, CTX, 32, KV_F32), *m = open_session(other, CTX, 32, KV_F16);
    session *list[] = { kv, m };
    prefix_cache *c = open_cache(s, 64u << 20);
    int32_t ids[50];
    err_ctx err = { 0 };
    make_ids(ids, 50, 1, r->m);
    for (int i = 0; i < 50; i++) ids[i] %= other->m->hp.n_vocab;
    fill(s, ids, 50);
    CHECK(prefix_cache_keep(c, s, &err) == 0);
    for (int i = 0; i < 2; i++) {
        fill(list[i], ids, 20);
        const held before = look(list[i]);
        CHECK(prefix_cache_keep(c, list[i], &err) == ERR_UNSUPPORTED &&
              strstr(err.msg, "another model"));
        CHECK(prefix_cache_load(c, list[i], ids, 50, &err) == ERR_UNSUPPORTED);
        CHECK(session_pos(list[i]) == 20 && is_same(look(list[i]), before));
    }
    CHECK(prefix_cache_counts(c).n_state == 1);
    prefix_cache_free(c);
    session_free(s);
    session_free(kv);
    session_free(m);
}

/* ---- room ------------------------------------------------------------------------------------ */

/* n conversations of this many tokens fit, and no more. */
static uint64_t room_for(const rig *r, int n, int tokens)
{
    return (uint64_t)n * (state_rows_bytes(r->m, KV_F16, tokens) +
                          state_mark_bytes(r->m, KV_F16, tokens) + 4 * (uint64_t)tokens + 200);
}

static void test_least_recent(const rig *r)
{
    enum { N = 8, LEN = 48 };
    session *s = open_session(r, CTX, 32, KV_F16);
    prefix_cache *c = open_cache(s, room_for(r, N, LEN));
    notes *t = mem_zalloc(sizeof *t);
    int32_t ids[N + 2][LEN], longer[CTX];
    err_ctx err = { 0 };
    for (int i = 0; i < N + 2; i++) make_ids(ids[i], LEN, 100 + (uint64_t)i, r->m);
    for (int i = 0; i < N; i++) {
        fill(s, ids[i], LEN);
        CHECK_MSG(keep(c, s, t, &err) == 0, "%s", err.msg);
    }
    for (int i = 0; i < N; i++) CHECK(prefix_cache_find(c, ids[i], LEN) == LEN);
    load(c, s, ids[0], LEN, t, "the first is used");
    for (int i = N; i < N + 2; i++) {
        fill(s, ids[i], LEN);
        CHECK_MSG(keep(c, s, t, &err) == 0, "%s", err.msg);
    }
    for (int i = 0; i < N + 2; i++)
        CHECK_MSG((prefix_cache_find(c, ids[i], LEN) == LEN) == (i != 1 && i != 2),
                  "conversation %d", i);
    CHECK(prefix_cache_counts(c).dropped == 2);
    load(c, s, ids[3], LEN, t, "it is there");

    /* what cannot fit beside all that it goes on from drives nobody out */
    make_ids(longer, CTX, 7, r->m);
    memcpy(longer, ids[3], sizeof ids[3]);
    eval(s, longer + LEN, CTX - LEN - 1);
    const held before = look(s);
    if (room_for(r, 1, CTX - LEN) > room_for(r, N - 1, LEN))
        CHECK(keep(c, s, t, &err) == ERR_NOMEM && strstr(err.msg, "does not fit"));
    CHECK(is_same(look(s), before) && prefix_cache_counts(c).n_state >= 1);
    CHECK(prefix_cache_counts(c).kept > N + 2 || prefix_cache_counts(c).dropped == 2);
    CHECK(prefix_cache_find(c, ids[3], LEN) == LEN);
    prefix_cache_free(c);

    c = open_cache(s, 0);
    CHECK(prefix_cache_keep(c, s, &err) == ERR_NOMEM && prefix_cache_find(c, longer, CTX) == 0);
    prefix_cache_free(c);
    notes_free(t);
    session_free(s);
}

static void test_no_memory(const rig *r)
{
    session *s = open_session(r, CTX, 32, KV_F16);
    prefix_cache *c = NULL;
    const prefix_cache_options o = { .ram_bytes = 64u << 20 };
    int32_t ids[60];
    err_ctx err = { 0 };
    long n = 0;
    make_ids(ids, 60, 3, r->m);
    for (int rc = -1; rc < 0 && n < 10;) {
        mem_fail_after(++n);
        rc = prefix_cache_create(&c, s, &o, &err);
        mem_fail_after(0);
        CHECK_MSG(rc == 0 ? c != NULL : rc == ERR_NOMEM && !c, "%s", err.msg);
    }
    CHECK(n == 2);
    fill(s, ids, 60);
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
        if (!eval(s, ids + pos, 1 + (int)test_below(rng, (uint32_t)most))) return;
        if (test_below(rng, 4) == 0) continue;
        const int rc = keep(c, s, t, &err);
        CHECK_MSG(rc == 0 || rc == ERR_NOMEM, "%s", err.msg);
        CHECK_MSG(rc < 0 || prefix_cache_find(c, ids, session_pos(s)) == session_pos(s), "lost");
        CHECK_MSG(prefix_cache_counts(c).ram_bytes <= ram, "too much RAM");
    }
}

/* With a folder another program goes on now and then, after this one ended with or without saying
 * goodbye. */
static void test_many(const rig *r, uint64_t seed, uint64_t ram, int rounds)
{
    session *s[3] = { open_session(r, CTX, 16, KV_Q8_0), open_session(r, CTX, 48, KV_Q8_0),
                      open_session(r, CTX + 50, CTX, KV_Q8_0) };
    prefix_cache *c = open_cache(s[0], ram);
    notes *t = mem_zalloc(sizeof *t);
    test_rng rng = { seed };
    int32_t ids[CTX];
    int hits = 0;
    for (int i = 0; i < rounds; i++) {
        session *k = s[test_below(&rng, 3)];
        if (folder[0] && i % 20 == 19) {
            err_ctx err = { 0 };
            if (i % 40 == 19) CHECK_MSG(prefix_cache_flush(c, &err) == 0, "%s", err.msg);
            prefix_cache_free(c);
            c = open_cache(s[1], ram);
            CHECK(prefix_cache_counts(c).drive_bytes <= drive_bytes);
        }
        const int n = next_request(ids, &rng, t, r->m);
        const uint32_t dice = test_below(&rng, 10);
        if (dice < 6) {
            if (load(c, k, ids, n, t, "many") > 0) hits++;
            else session_rewind(k, 0);
        } else {                         /* what it holds itself; without the cache's help */
            int same = 0;
            while (same < n && same < session_pos(k) && session_ids(k)[same] == ids[same]) same++;
            session_rewind(k, dice < 9 ? same : 0);
        }
        take_in(c, k, ids, n, &rng, t, ram);
        for (int j = i % 4; j < 3; j++) prefix_cache_tend(c);    /* and the thread goes on */
    }
    const prefix_cache_stats n = prefix_cache_counts(c);
    CHECK_MSG(hits > rounds / 7, "%d hits in %d rounds", hits, rounds);
    CHECK_MSG(n.dropped > (uint64_t)rounds / 15 || folder[0] || SANITIZED, "%d dropped",
              (int)n.dropped);
    CHECK_MSG(n.damaged == 0 && n_noted == 0, "%d notes, such as '%s'", n_noted, noted);
    prefix_cache_free(c);
    notes_free(t);
    for (int i = 0; i < 3; i++) session_free(s[i]);
}

/* ---- the drive ------------------------------------------------------------------------------- */

/* The names of all files; returns how many. */
static int list_files(char names[][80], int cap)
{
    DIR *d = opendir(folder);
    int n = 0;
    for (const struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' && n < cap) snprintf(names[n++], 80, "%.79s", e->d_name);
    if (d) closedir(d);
    return n;
}

static void empty_folder(void)
{
    static char names[2000][80];
    char path[400];
    const int n = list_files(names, 2000);
    for (int i = 0; i < n; i++) unlink(test_path(path, sizeof path, "%s/%s", folder, names[i]));
    n_noted = 0;
}

static void put_file(const char *name, const uint8_t *bytes, size_t n)
{
    char path[400];
    unlink(test_path(path, sizeof path, "%s/%s", folder, name));   /* cut short, it is synced */
    FILE *f = fopen(path, "wb");
    const bool ok = f && fwrite(bytes, 1, n, f) == n;
    if (f) fclose(f);
    if (!ok) CHECK_MSG(false, "cannot write %s", path);
}

/* A conversation of LINKS states of 30 tokens in a cache with the folder, and what was noted. */
enum { LINKS = 4, LINK = 30, CHAIN = LINKS * LINK };
static int32_t chain[CHAIN + 1];
static const model *chain_model;

static prefix_cache *make_chain(session *s, notes *t, uint64_t ram)
{
    prefix_cache *c = open_cache(s, ram);
    err_ctx err = { 0 };
    session_rewind(s, 0);
    for (int i = 0; i < LINKS; i++) {
        eval(s, chain + i * LINK, LINK);
        CHECK_MSG(keep(c, s, t, &err) == 0, "%s", err.msg);
    }
    return c;
}

/* Out of RAM to the drive and back, in this program and in the next one. */
static void test_drive(const rig *r)
{
    enum { N = 6 };
    const uint64_t ram = room_for(r, 2, CHAIN) + (LINKS - 1) * room_for(r, 2, LINK);
    session *s = open_session(r, CTX, 32, KV_F16), *u = open_session(r, CTX, 64, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    static char names[100][80];
    char path[400];
    int32_t ids[N][CHAIN];
    struct stat st;
    err_ctx err = { 0 };

    empty_folder();
    prefix_cache *c = open_cache(s, ram);
    for (int i = 0; i < N; i++) {
        make_ids(ids[i], CHAIN, 50 + (uint64_t)i, r->m);
        session_rewind(s, 0);
        for (int k = 0; k < LINKS; k++) {
            eval(s, ids[i] + k * LINK, LINK);
            CHECK_MSG(keep(c, s, t, &err) == 0, "%s", err.msg);
        }
    }
    prefix_cache_stats n = prefix_cache_counts(c);
    CHECK_MSG(n.n_state == N * LINKS && n.n_ram < n.n_state && n.n_drive > 0 &&
              n.n_ram + n.n_drive >= n.n_state && n.ram_bytes <= ram, "%d states, %d in RAM, %d on "
              "the drive", n.n_state, n.n_ram, n.n_drive);
    for (int i = 0; i < N; i++)
        CHECK(load(c, u, ids[i], CHAIN, t, "spilled") == CHAIN);
    CHECK(prefix_cache_flush(c, &err) == 0);
    n = prefix_cache_counts(c);
    CHECK(n.n_drive == n.n_state && list_files(names, 100) == n.n_state);
    uint64_t sum = 0;
    for (int i = 0; i < n.n_state; i++) {
        CHECK(stat(test_path(path, sizeof path, "%s/%s", folder, names[i]), &st) == 0 &&
              (st.st_mode & 0777) == 0600);
        sum += (uint64_t)st.st_size;
    }
    CHECK(sum == n.drive_bytes);
    CHECK(prefix_cache_flush(c, &err) == 0);             /* nothing is written twice */
    prefix_cache_free(c);

    c = open_cache(u, ram);
    n = prefix_cache_counts(c);
    CHECK(n.n_state == N * LINKS && n.n_ram == 0 && n.ram_bytes == 0 && n.drive_bytes == sum);
    for (int i = 0; i < N; i++)
        CHECK(load(c, u, ids[i], CHAIN - i, t, "the next program") == (i ? CHAIN - LINK : CHAIN));
    CHECK(prefix_cache_counts(c).n_ram > 0 && prefix_cache_counts(c).ram_bytes <= ram);
    prefix_cache_free(c);

    /* what does not fit into RAM goes straight into the session */
    c = open_cache(u, 0);
    CHECK(load(c, u, ids[2], CHAIN, t, "no RAM") == CHAIN && prefix_cache_counts(c).n_ram == 0);
    prefix_cache_free(c);

    empty_folder();                      /* nor is it any trouble to keep */
    make_ids(chain, CHAIN, 77, r->m);
    c = make_chain(s, t, 0);
    n = prefix_cache_counts(c);
    CHECK(n.n_state == LINKS && n.n_ram == 0 && n.ram_bytes == 0 && n.n_drive == LINKS);
    CHECK_MSG(n.drive_bytes < state_rows_bytes(r->m, KV_F16, CHAIN) + LINKS *
              (state_mark_bytes(r->m, KV_F16, CHAIN) + 4 * CHAIN + 100), "rows are written once");
    CHECK(load(c, u, chain, CHAIN, t, "never in RAM") == CHAIN);
    drive_bytes = n.drive_bytes;
    prefix_cache_free(c);
    c = open_cache(s, 0);                /* neither here nor there */
    drive_bytes = 10;
    prefix_cache_free(c);
    c = open_cache(s, 0);
    CHECK(keep(c, s, t, &err) == ERR_NOMEM && strstr(err.msg, "nor on the drive"));
    CHECK(prefix_cache_counts(c).n_state == 0 && prefix_cache_counts(c).ram_bytes == 0);
    prefix_cache_free(c);
    drive_bytes = UINT64_MAX / 2;
    c = open_cache(s, ram);
    for (int i = 0; i < N; i++) {
        session_rewind(s, 0);
        for (int k = 0; k < LINKS; k++) {
            eval(s, ids[i] + k * LINK, LINK);
            CHECK(keep(c, s, t, &err) == 0);
        }
    }
    CHECK(prefix_cache_flush(c, &err) == 0);
    prefix_cache_free(c);

    /* those used last stay on a smaller drive: of the first, since it was just used */
    c = open_cache(u, ram);
    CHECK(load(c, u, ids[0], CHAIN, t, "used last") == CHAIN);
    prefix_cache_free(c);
    drive_bytes = sum / N + 100;
    c = open_cache(u, ram);
    n = prefix_cache_counts(c);
    CHECK_MSG(n.drive_bytes <= drive_bytes && n.n_state == LINKS &&
              prefix_cache_find(c, ids[0], CHAIN) == CHAIN, "%d states, %d tokens", n.n_state,
              prefix_cache_find(c, ids[0], CHAIN));
    fill(s, ids[3], CHAIN);
    CHECK(keep(c, s, t, &err) == 0 && prefix_cache_flush(c, &err) == 0);
    CHECK(prefix_cache_counts(c).drive_bytes <= drive_bytes);
    prefix_cache_free(c);
    c = open_cache(u, ram);
    CHECK(load(c, s, ids[3], CHAIN, t, "in place of the other") == CHAIN);
    prefix_cache_free(c);
    drive_bytes = UINT64_MAX / 2;
    CHECK_MSG(n_noted == 0, "%s", noted);
    notes_free(t);
    session_free(s);
    session_free(u);
}

static uint64_t folder_bytes(void)
{
    static char names[2000][80];
    const int n = list_files(names, 2000);
    char path[400];
    struct stat st;
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        if (stat(test_path(path, sizeof path, "%s/%s", folder, names[i]), &st) == 0)
            sum += (uint64_t)st.st_size;
    return sum;
}

/* Shorter, where what is computed does not matter. */
static int short_link(void) { return test_rounds(LINK, 10); }
static int short_chain(void) { return LINKS * short_link(); }

/* The chain of this seed, whose first half is that of an earlier one, in both caches in turn. */
static void keep_chain(prefix_cache *c, session *s, notes *t, uint64_t seed)
{
    err_ctx err = { 0 };
    make_ids(chain, short_chain() / 2, seed / 2, chain_model);
    make_ids(chain + short_chain() / 2, short_chain() / 2, 1000 + seed, chain_model);
    session_rewind(s, 0);
    for (int i = 0; i < LINKS; i++) {
        eval(s, chain + i * short_link(), short_link());
        const int rc = keep(c, s, t, &err);
        CHECK_MSG(rc == 0 || rc == ERR_NOMEM, "%s", err.msg);
    }
}

/* Programs that share a folder: each finds what others wrote, none minds what others gave up, and
 * the bound is that of all. */
static void test_shared(const rig *r, uint64_t ram)
{
    enum { N_CACHE = 3 };
    session *s = open_session(r, CTX, 32, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    prefix_cache *c[N_CACHE];
    const int rounds = SANITIZED ? 60 : test_rounds(120, sim_gpu() ? 30 : 40);
    int n_loaded = 0;
    test_rng rng = { ram + 7 };
    err_ctx err = { 0 };
    chain_model = r->m;
    empty_folder();
    for (int i = 0; i < N_CACHE; i++) c[i] = open_cache(s, ram);
    keep_chain(c[0], s, t, 900);
    CHECK(prefix_cache_flush(c[0], &err) == 0);
    const uint64_t one = folder_bytes();
    keep_chain(c[1], s, t, 900);         /* the same once more: one file each */
    CHECK(prefix_cache_flush(c[1], &err) == 0 && folder_bytes() == one);
    CHECK_MSG(prefix_cache_counts(c[1]).drive_bytes == one, "counted twice");
    for (int i = 0; i < N_CACHE; i++) prefix_cache_free(c[i]);
    empty_folder();
    drive_bytes = 3 * one;
    for (int i = 0; i < N_CACHE; i++) c[i] = open_cache(s, ram);
    for (int i = 0; i < rounds; i++) {
        const int k = (int)test_below(&rng, N_CACHE);
        const uint64_t seed = 2 + test_below(&rng, 12);
        keep_chain(c[k], s, t, seed);
        if (prefix_cache_flush(c[k], &err) < 0) CHECK_MSG(false, "%s", err.msg);
        CHECK_MSG(folder_bytes() <= drive_bytes, "%llu bytes of %llu",
                  (unsigned long long)folder_bytes(), (unsigned long long)drive_bytes);
        const int other = (int)test_below(&rng, N_CACHE);
        const int got = prefix_cache_load(c[other], s, chain, short_chain(), &err);
        const held *want = got > 0 ? notes_find(t, chain, got) : NULL;
        CHECK_MSG(got == 0 || (want && is_same(*want, look(s))), "other bits at %d", got);
        n_loaded += got == short_chain() && other != k;
        if (test_below(&rng, 8) == 0) {
            prefix_cache_free(c[other]);
            c[other] = open_cache(s, ram);
            CHECK(prefix_cache_find(c[other], chain, short_chain()) > 0);
        }
    }
    CHECK_MSG(n_loaded > (rounds < 60 ? 0 : 5), "%d times what another had", n_loaded);
    CHECK_MSG(n_noted == 0, "%s", noted);
    for (int i = 0; i < N_CACHE; i++) {
        CHECK(prefix_cache_counts(c[i]).damaged == 0);
        prefix_cache_free(c[i]);
    }
    drive_bytes = UINT64_MAX / 2;
    notes_free(t);
    session_free(s);
}

/* Another program that does not let go of the folder is waited for once, not for each state. */
static void test_busy_folder(const rig *r)
{
    session *s = open_session(r, CTX, 32, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    err_ctx err = { 0 };
    chain_model = r->m;
    empty_folder();
    prefix_cache *c = open_cache(s, room_for(r, 2 * LINKS, short_chain()));
    keep_chain(c, s, t, 700);
    const int fd = open(folder, O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    CHECK(prefix_cache_tend(c) && prefix_cache_tend(c));         /* later */
    const uint64_t from = clock_ns();
    CHECK(prefix_cache_flush(c, &err) == ERR_IO && strstr(err.msg, "another program"));
    CHECK(prefix_cache_flush(c, &err) == ERR_IO);
    CHECK_MSG(clock_since(from) < 9, "%.1f s", clock_since(from));
    CHECK(prefix_cache_counts(c).n_drive == 0);
    close(fd);
    CHECK(prefix_cache_flush(c, &err) == 0 && prefix_cache_counts(c).n_drive == LINKS);
    prefix_cache_free(c);
    notes_free(t);
    session_free(s);
}

/* Kept later, from snapshots: the same states, and the session does not notice. */
static void tend_all(prefix_cache *c)
{
    int n = 0;
    while (prefix_cache_tend(c) && n++ < 100000) nanosleep(&(struct timespec){ 0, 100000 }, NULL);
    CHECK_MSG(n < 100000, "there is no end to it");
}

/* Files are written while the caller goes on, whatever happens to their states meanwhile. */
static void test_beside(const rig *r)
{
    session *s = open_session(r, CTX, 32, KV_F16), *u = open_session(r, CTX, 32, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    static char names[60][80];
    err_ctx err = { 0 };
    prefix_cache_stats n;

    empty_folder();
    make_ids(chain, CHAIN + 1, 31, r->m);
    prefix_cache *c = make_chain(s, t, 64u << 20);
    CHECK(prefix_cache_tend(c));
    CHECK(load(c, u, chain, CHAIN, t, "while it is written") == CHAIN);
    tend_all(c);
    n = prefix_cache_counts(c);
    CHECK(n.n_drive == LINKS && n.n_ram == LINKS && list_files(names, 60) == LINKS);
    prefix_cache_free(c);
    c = open_cache(u, 64u << 20);
    CHECK(load(c, u, chain, CHAIN, t, "written beside") == CHAIN);
    CHECK(!prefix_cache_tend(c));
    prefix_cache_free(c);

    for (int fail = 1; fail < 12; fail++) {      /* one line, and again when there is more */
        empty_folder();
        c = make_chain(s, t, 64u << 20);
        n_noted = 0;
        disk.n_call = 0;
        disk.fail_at = fail;
        tend_all(c);
        disk.fail_at = 0;
        n = prefix_cache_counts(c);
        CHECK_MSG(n_noted == (n.n_drive < LINKS), "call %d: %d notes", fail, n_noted);
        CHECK(list_files(names, 60) == n.n_drive && n.n_ram == LINKS);
        session_rewind(s, 0);
        CHECK(eval(s, chain + 1, LINK) && keep(c, s, t, &err) == 0);
        tend_all(c);
        n = prefix_cache_counts(c);
        CHECK_MSG(n.n_drive == LINKS + 1 && list_files(names, 60) == n.n_drive, "call %d", fail);
        prefix_cache_free(c);
    }

    /* RAM for one of two: each makes room for the other */
    for (int i = 0; i < test_rounds(20, 10); i++) {
        if (i % 5 == 0) empty_folder();
        c = open_cache(s, room_for(r, 1, CHAIN));
        for (int k = 0; k < 2; k++) {
            make_ids(chain, CHAIN, 900 + (uint64_t)((i + k) % 7), r->m);
            fill(s, chain, CHAIN);
            CHECK_MSG(keep(c, s, t, &err) == 0, "%s", err.msg);
            prefix_cache_tend(c);
            CHECK(load(c, u, chain, CHAIN, t, "one of two") == CHAIN);
        }
        prefix_cache_free(c);            /* perhaps in the middle */
        c = open_cache(u, 0);
        n = prefix_cache_counts(c);
        CHECK(n.damaged == 0 && n.n_state == list_files(names, 60) && n.n_state > 0);
        prefix_cache_free(c);
    }
    n_noted = 0;
    notes_free(t);
    session_free(s);
    session_free(u);
}

/* A snapshot that s has here already is not taken once more: it is as good, and may be large. The
 * session's first one. */
static void check_untouched(prefix_cache *c, session *s)
{
    const state *st = session_state(s);
    session_snapshot(s);
    if (st->snap_bytes > 0) st->snap_mem[0] ^= 1;
    uint8_t *before = test_alloc((size_t)st->snap_bytes + 1, 1);
    memcpy(before, st->snap_mem, (size_t)st->snap_bytes);
    CHECK(prefix_cache_keep(c, s, NULL) == 0);
    CHECK(memcmp(before, st->snap_mem, (size_t)st->snap_bytes) == 0);
    if (st->snap_bytes > 0) st->snap_mem[0] ^= 1;
    mem_free(before);
}

static void test_deferred(const rig *r, int ctx)
{
    enum { N = 90 };
    static const int at[] = { LINK, 2 * LINK };
    session *s = open_session(r, ctx, 32, KV_F16), *u = open_session(r, CTX, 32, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    int32_t ids[N];
    err_ctx err = { 0 };
    make_ids(ids, N, 5, r->m);
    empty_folder();
    prefix_cache *c = open_cache(s, 0);
    prefix_cache_defer(c, at, 2);
    for (int n = 0; n < N; n += LINK) {
        eval(u, ids + n, LINK);
        notes_add(t, u);
        eval(s, ids + n, LINK);
        if (n == 0) check_untouched(c, s);
        CHECK(prefix_cache_keep(c, s, &err) == 0 && prefix_cache_counts(c).n_state == 0);
    }
    CHECK(prefix_cache_held(c, s, N) == 0);
    CHECK(prefix_cache_settle(c, s, LINK + 1, 2 * LINK + 1, &err) == 0);   /* not worth it */
    CHECK(prefix_cache_counts(c).n_state == 0);
    CHECK_MSG(prefix_cache_settle(c, s, LINK, LINK, &err) == 0, "%s", err.msg);
    const prefix_cache_stats n = prefix_cache_counts(c);
    CHECK_MSG(n.n_drive == 2 && n.n_ram == 0, "%d states", n.n_drive);
    CHECK_MSG(n.drive_bytes < state_rows_bytes(r->m, KV_F16, 2 * LINK) + 2 *
              (state_mark_bytes(r->m, KV_F16, 2 * LINK) + 8 * LINK + 100), "rows are written once");
    CHECK(load(c, u, ids, N, t, "settled") == 2 * LINK);
    CHECK(load(c, u, ids, 2 * LINK - 1, t, "settled first") == LINK);
    CHECK(session_pos(s) == N && is_same(look(s), *notes_find(t, ids, N)));
    CHECK(prefix_cache_settle(c, s, 1, 1, &err) == 0);      /* there already, but for the end */
    prefix_cache_free(c);

    c = open_cache(s, 0);                /* what is too large for memory is left where it is */
    CHECK(prefix_cache_find(c, ids, N) >= 2 * LINK);
    prefix_cache_free(c);
    prefix_cache_options o = options(0);
    o.most_bytes = 1;
    CHECK(prefix_cache_create(&c, s, &o, &err) == 0);
    CHECK(prefix_cache_load(c, u, ids, N, &err) == 0 && session_pos(u) == 0);
    fill(u, ids + 1, LINK);
    CHECK(prefix_cache_keep(c, u, &err) == ERR_NOMEM && n_noted == 0);
    prefix_cache_free(c);
    notes_free(t);
    session_free(s);
    session_free(u);
}

/* Everything that can be wrong with a file: it is not used, and there is one line about it. */
static void test_damage(const rig *r)
{
    session *s = open_session(r, CTX, 32, KV_F16), *u = open_session(r, CTX, 64, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    static char names[20][80];
    char path[400];
    err_ctx err = { 0 };
    size_t bytes[LINKS];
    uint8_t *good[LINKS];

    empty_folder();
    make_ids(chain, CHAIN + 1, 9, r->m);
    prefix_cache *c = make_chain(s, t, 64u << 20);
    CHECK(prefix_cache_flush(c, &err) == 0 && list_files(names, 20) == LINKS);
    prefix_cache_free(c);
    for (int i = 0; i < LINKS; i++)
        good[i] = test_read_file(test_path(path, sizeof path, "%s/%s", folder, names[i]),
                                 &bytes[i]);
    test_rng rng = { 12 };
    for (int round = 0; round < (SANITIZED ? 32 : test_rounds(160, 40)); round++) {
        const int i = (int)test_below(&rng, LINKS), kind = round % 8;
        const int from = (int)load_u32(good[i] + 12);    /* what is before it can still be had */
        const size_t head = 72 + 4 * (size_t)load_u32(good[i] + 16);
        uint8_t *b = test_alloc(bytes[i] + 1, 1);
        size_t n = bytes[i];
        memcpy(b, good[i], n);
        b[n] = 0;
        const size_t at = kind == 0 ? test_below(&rng, 72) : kind == 1 ? 72 + test_below(&rng,
                          (uint32_t)head - 72) : head + test_below(&rng, (uint32_t)(n - head));
        if (kind < 4) b[at] ^= (uint8_t)(1u << test_below(&rng, 8));
        else if (kind == 4) n = test_below(&rng, (uint32_t)n);
        else if (kind == 5) n++;
        else if (kind == 6) n = 0;
        for (int k = 0; k < LINKS; k++) put_file(names[k], good[k], bytes[k]);
        put_file(names[i], b, n);
        if (kind == 7) unlink(test_path(path, sizeof path, "%s/%s", folder, names[i]));
        n_noted = 0;
        c = open_cache(u, 64u << 20);
        fill(u, chain + 1, 10);
        const int got = prefix_cache_load(c, u, chain, CHAIN, &err);
        const bool ok = got == from && (session_pos(u) == from || from == 0) &&
                        (from == 0 || is_same(look(u), *notes_find(t, chain, from)));
        const int want = kind == 7 && from == CHAIN - LINK ? 0 : 1;
        CHECK_MSG(ok && n_noted >= want && n_noted <= 2 && !strncmp(noted, "prefix cache: ", 14),
                  "kind %d at %zu: %d of %d tokens, %d notes, '%s'", kind, at, got, from, n_noted,
                  noted);
        CHECK(list_files(names + LINKS, 10) == from / LINK);
        prefix_cache_free(c);
        mem_free(b);
    }
    for (int i = 0; i < LINKS; i++) mem_free(good[i]);
    notes_free(t);
    session_free(s);
    session_free(u);
}

/* Files with the right sums that are not for these sessions, and things that are no files. */
static void test_forged(const rig *r, const rig *other)
{
    session *s = open_session(r, CTX, 32, KV_F16);
    session *kv = open_session(r, CTX, 32, KV_F32), *m = open_session(other, CTX, 32, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    static char names[20][80];
    char path[400], name[80];
    err_ctx err = { 0 };
    size_t n;

    empty_folder();
    make_ids(chain, CHAIN + 1, 9, r->m);
    prefix_cache *c = make_chain(s, t, 64u << 20);
    CHECK(prefix_cache_flush(c, &err) == 0);
    prefix_cache_free(c);
    session *strangers[] = { kv, m };
    for (int i = 0; i < 2; i++) {        /* they are left alone, without a word */
        c = open_cache(strangers[i], 64u << 20);
        CHECK(prefix_cache_counts(c).n_state == 0 && prefix_cache_find(c, chain, CHAIN) == 0);
        prefix_cache_free(c);
    }
    CHECK(n_noted == 0 && list_files(names, 20) == LINKS);

    /* under the name of one for the other session */
    c = open_cache(kv, 64u << 20);
    fill(kv, chain, 5);
    CHECK(prefix_cache_keep(c, kv, &err) == 0 && prefix_cache_flush(c, &err) == 0);
    prefix_cache_free(c);
    char all[20][80];
    CHECK(list_files(all, 20) == LINKS + 1);
    for (int i = 0; i <= LINKS; i++)
        for (int k = 0; k < LINKS; k++)
            if (strncmp(all[i], names[k], 16) != 0) snprintf(name, sizeof name, "%.79s", all[i]);
    uint8_t *b = test_read_file(test_path(path, sizeof path, "%s/%s", folder, names[0]), &n);
    put_file(name, b, n);
    c = open_cache(kv, 64u << 20);
    CHECK_MSG(prefix_cache_counts(c).n_state == 0 && n_noted == 1 &&
              strstr(noted, "another model") && strstr(noted, name), "%s", noted);
    prefix_cache_free(c);
    CHECK(list_files(all, 20) == LINKS);

    /* right sums, wrong content: an id outside the vocabulary, another layout */
    for (int kind = 0; kind < 3; kind++) {
        const uint32_t to = load_u32(b + 16);
        uint8_t *w = test_alloc(n, 1);
        memcpy(w, b, n);
        if (kind == 0) store_u32(w + 72, (uint32_t)r->m->hp.n_vocab);
        if (kind == 1) store_u64(w + 40, load_u64(w + 40) + 8), store_u64(w + 48,
                                                                          load_u64(w + 48) - 8);
        if (kind == 2) store_u64(w + 32, 12345);         /* goes on from nothing */
        const uint64_t stamp = state_checksum(state_checksum(0, w, 64), w + 72, 4 * (size_t)to);
        store_u64(w + 64, stamp);
        snprintf(name, sizeof name, "%.16s-%016llx.prefix", names[0], (unsigned long long)stamp);
        put_file(name, w, n);
        n_noted = 0;
        c = open_cache(s, 64u << 20);
        CHECK_MSG(prefix_cache_counts(c).n_state == LINKS && n_noted == 1, "kind %d: %d states, "
                  "'%s'", kind, prefix_cache_counts(c).n_state, noted);
        CHECK(load(c, s, chain, CHAIN, t, "beside it") == CHAIN);
        prefix_cache_free(c);
        CHECK(list_files(all, 20) == LINKS);
        mem_free(w);
    }
    mem_free(b);

    /* a folder, a FIFO and leftovers of others */
    snprintf(name, sizeof name, "%.17s0123456789abcdef.prefix", names[0]);
    CHECK(mkfifo(test_path(path, sizeof path, "%s/%s", folder, name), 0600) == 0);
    put_file("readme.prefix", (const uint8_t *)"x", 1);
    snprintf(name, sizeof name, "%.17s0123456789abcdef.prefix.abcdef", names[0]);
    put_file(name, (const uint8_t *)"x", 1);
    n_noted = 0;
    c = open_cache(s, 64u << 20);
    CHECK_MSG(n_noted == 1 && strstr(noted, "not a regular file"), "%d %s", n_noted, noted);
    prefix_cache_free(c);
    CHECK(list_files(all, 20) == LINKS + 2);
    const struct timespec old[2] = { { 1000, 0 }, { 1000, 0 } };
    utimensat(AT_FDCWD, test_path(path, sizeof path, "%s/%s", folder, name), old, 0);
    prefix_cache_free(open_cache(s, 64u << 20));
    CHECK(list_files(all, 20) == LINKS + 1);             /* nobody writes it any more */

    /* no folder can be made: RAM alone */
    snprintf(path, sizeof path, "%s/no/such", folder);
    const prefix_cache_options o = { .ram_bytes = 64u << 20, .folder = path, .note = on_note };
    n_noted = 0;
    CHECK(prefix_cache_create(&c, s, &o, &err) == 0 && n_noted == 1 && strstr(noted, "No such"));
    CHECK(prefix_cache_keep(c, s, &err) == 0 && prefix_cache_flush(c, &err) == 0);
    CHECK(prefix_cache_counts(c).n_drive == 0);
    prefix_cache_free(c);
    notes_free(t);
    session_free(s);
    session_free(kv);
    session_free(m);
    empty_folder();
}

/* Each call of the system fails once, and each allocation: less is kept, nothing is wrong. */
static void test_bad_drive(const rig *r)
{
    session *s = open_session(r, CTX, 32, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    static char names[40][80];
    err_ctx err = { 0 };
    int n = 0, rc = -1;

    empty_folder();
    make_ids(chain, CHAIN + 1, 9, r->m);
    prefix_cache *c = make_chain(s, t, 64u << 20);
    for (; rc < 0 && n < 100; n++) {     /* the disk is full, then it is not */
        disk.n_call = 0;
        disk.fail_at = n + 1;
        rc = prefix_cache_flush(c, &err);
        disk.fail_at = 0;
        CHECK_MSG(rc == 0 || (rc == ERR_IO && strstr(err.msg, "cannot write")), "%s", err.msg);
        CHECK(list_files(names, 40) == prefix_cache_counts(c).n_drive);
        CHECK(load(c, s, chain, CHAIN, t, "from RAM") == CHAIN);
    }
    CHECK_MSG(n >= 2, "%d rounds", n);
    prefix_cache_free(c);
    disk.lazy = true;
    c = open_cache(s, 0);
    CHECK(load(c, s, chain, CHAIN, t, "bit by bit") == CHAIN);
    disk.lazy = false;
    prefix_cache_free(c);

    for (int cut = 1; cut >= 0; cut--) { /* reading: less, but right */
        int reach = -1;
        for (n = 1; reach < CHAIN && n < 60; n++) {
            empty_folder();
            prefix_cache_free((c = make_chain(s, t, 64u << 20), prefix_cache_flush(c, &err), c));
            disk.n_call = 0;
            disk.fail_at = n;
            disk.cut = cut;
            c = open_cache(s, 0);
            reach = prefix_cache_load(c, s, chain, CHAIN, &err);
            disk.fail_at = 0;
            CHECK_MSG(reach >= 0 && reach % LINK == 0, "call %d: %d tokens", n, reach);
            if (reach > 0) CHECK(session_pos(s) == reach &&
                                 is_same(look(s), *notes_find(t, chain, reach)));
            prefix_cache_free(c);
        }
        CHECK_MSG(n > 8 && n < 60, "%d calls", n);
    }

    empty_folder();                      /* a drive that fails while RAM makes room */
    c = open_cache(s, room_for(r, 1, CHAIN));
    for (int i = 0; i < 20; i++) {
        make_ids(chain, CHAIN, 200 + (uint64_t)i, r->m);
        fill(s, chain, CHAIN);
        disk.n_call = 0;
        disk.fail_at = i + 1;
        rc = keep(c, s, t, &err);
        disk.fail_at = 0;
        CHECK_MSG(rc == 0, "%s", err.msg);
        CHECK(list_files(names, 40) == prefix_cache_counts(c).n_drive);
        CHECK(load(c, s, chain, CHAIN, t, "failing drive") == CHAIN);
    }
    prefix_cache_free(c);

    make_ids(chain, CHAIN + 1, 9, r->m); /* no memory */
    empty_folder();
    c = make_chain(s, t, 64u << 20);
    for (n = 1, rc = -1; rc < 0 && n < 100; n++) {
        mem_fail_after(n);
        rc = prefix_cache_flush(c, &err);
        mem_fail_after(0);
        CHECK(rc == 0 || rc == ERR_NOMEM);
    }
    CHECK_MSG(n > 2 && n < 100, "%d allocations", n);
    prefix_cache_free(c);
    for (n = 1, rc = -1; rc < 0 && n < 100; n++) {
        const prefix_cache_options o = options(64u << 20);
        mem_fail_after(n);
        rc = prefix_cache_create(&c, s, &o, &err);
        mem_fail_after(0);
        CHECK(rc == 0 ? prefix_cache_counts(c).n_state == LINKS : rc == ERR_NOMEM && !c);
    }
    CHECK_MSG(n > 8 && n < 100, "%d allocations", n);
    for (n = 1, rc = 0; rc < CHAIN && n < 100; n++) {
        prefix_cache_free(c);
        c = open_cache(s, 64u << 20);
        mem_fail_after(n);
        rc = prefix_cache_load(c, s, chain, CHAIN, &err);
        mem_fail_after(0);
        CHECK_MSG(rc >= 0 && rc % LINK == 0, "%d %s", rc, err.msg);
        if (rc > 0) CHECK(is_same(look(s), *notes_find(t, chain, rc)));
        CHECK(prefix_cache_counts(c).n_state == LINKS);  /* nothing is lost for that */
    }
    CHECK_MSG(n > 6 && n < 100, "%d allocations", n);
    prefix_cache_free(c);
    notes_free(t);
    session_free(s);
    empty_folder();
}

/* ---- answers --------------------------------------------------------------------------------- */

enum { SYSTEM = 40, USER = 70, CUE = 3, SAID = 8 };

/* One request: its tokens, with a cue at the end, and where it is cut. */
typedef struct request {
    int32_t ids[CTX];
    int n, marks[4];
    int from;                            /* tokens that a cache has after the requests before it */
} request;

typedef struct outcome {
    answer_stats stats;
    int32_t ids[CTX];
    int n;
    held h;
} outcome;

static void ask(outcome *out, const rig *r, const tokenizer *tok, session *s, prefix_cache *c,
                const request *q, int mark_every)
{
    const sampler_options so = { .temperature = 0.8, .top_p = 1, .repeat_penalty = 1, .seed = 3,
                                 .penalty_window = -1 };
    const answer_options ao = { .tok = tok, .max_tokens = SAID, .n_stable = q->n - CUE, .cache = c,
                                .marks = q->marks, .n_mark = 4, .mark_every = mark_every };
    sampler *smp = NULL;
    err_ctx err = { 0 };
    CHECK(sampler_create(&smp, &so, r->m->hp.n_vocab, CTX, &err) == 0);
    CHECK_MSG(answer_run(&out->stats, s, smp, q->ids, q->n, &ao, NULL, &err) == 0, "%s", err.msg);
    sampler_free(smp);
    out->n = session_pos(s);
    memcpy(out->ids, session_ids(s), (size_t)out->n * sizeof *out->ids);
    out->h = look(s);
}

static bool same_outcome(const outcome *a, const outcome *b)
{
    return a->n == b->n && !memcmp(a->ids, b->ids, (size_t)a->n * sizeof *a->ids) &&
           is_same(a->h, b->h);
}

/* n tokens after the first of another request, or of what became of it. */
static request after(const int32_t *before, int n_before, int n, uint64_t seed, const model *m)
{
    request q = { .n = n_before + n, .marks = { USER, SYSTEM, n_before + n - CUE, 1000 } };
    if (n_before > 0) memcpy(q.ids, before, (size_t)n_before * sizeof *before);
    make_ids(q.ids + n_before, n, seed, m);
    return q;
}

/* Turns of two conversations with a common beginning: in a session that stays in memory, in a new
 * one for each, and, with a folder, in a new program for each. What is computed does not show. */
static void test_answers(const rig *r, const char *name, int mark_every)
{
    tokenizer *tok = NULL;
    err_ctx err = { 0 };
    outcome first = { 0 }, o[3] = { 0 };
    request q[7] = { 0 };
    if (!CHECK(tokenizer_create(&tok, r->g, &err) == 0)) return;
    empty_folder();
    session *stays = open_session(r, CTX, 32, KV_F16);
    prefix_cache *one = open_cache(stays, 64u << 20);
    char kept[256];
    snprintf(kept, sizeof kept, "%s", folder);
    folder[0] = '\0';
    prefix_cache *ram = open_cache(stays, 64u << 20);
    for (int i = 0; i < 7; i++) {
        if (i == 0) q[0] = after(NULL, 0, USER + CUE, 31, r->m);
        else if (i == 1) q[1] = after(first.ids, first.n, 20 + CUE, 32, r->m);  /* the next turn */
        else if (i == 2) q[2] = after(first.ids, USER, 50 + CUE, 33, r->m);     /* differs there */
        else if (i == 3) q[3] = after(first.ids, SYSTEM, 60 + CUE, 34, r->m);   /* another one */
        else if (i == 4) q[4] = q[1];                                           /* once more */
        else if (i == 5) q[5] = after(first.ids, SYSTEM - 1, 44 + CUE, 35, r->m);
        else q[6] = after(o[0].ids, q[5].n - 8, 20 + CUE, 36, r->m);    /* not at a mark */
        const int wants[7] = { 0, first.n, USER, SYSTEM, q[4].n - CUE,
                               mark_every ? (SYSTEM - 1) / mark_every * mark_every : 0, USER };
        const int want = wants[i];
        session *s = open_session(r, CTX, 32, KV_F16), *u = open_session(r, CTX, 32, KV_F16);
        ask(&o[0], r, tok, stays, ram, &q[i], mark_every);
        folder[0] = '\0';
        ask(&o[1], r, tok, s, one, &q[i], mark_every);
        CHECK(prefix_cache_flush(one, &err) == 0);
        prefix_cache_free(one);
        snprintf(folder, sizeof folder, "%s", kept);
        one = open_cache(s, 64u << 20);
        ask(&o[2], r, tok, u, NULL, &q[i], mark_every);
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
    empty_folder();
}

int main(int argc, char **argv)
{
    static const char *const demos[] = {
        "tests/models/demo-qwen3next-Q4_K_M.gguf", "tests/models/demo-gptoss-MXFP4.gguf",
    };
    rig r[2], tiny;
    char path[512], temp[256];
    /* where states are computed makes little difference to which are kept: if there is no time,
     * one model is enough for that on a simulated GPU */
    const bool once = sim_gpu() && !test_is_long();
    const int rounds = SANITIZED ? 40 : test_rounds(150, sim_gpu() ? 25 : 40);
    test_begin("prefix_cache", argc, argv);
    disk.portion = 1000;
    if (!CHECK(mkdtemp(test_temp(temp, sizeof temp)) != NULL)) return test_end();
    for (int i = 0; i < 2; i++) {
        test_path(path, sizeof path, "%s/models/tiny-%s-f32.gguf", test_unpacked(),
                  i == 0 ? "qwen3next" : "gptoss");
        if (!rig_open(&r[i], SANITIZED ? path : demos[i], false)) return test_end();
    }
    for (int i = 0; i < 2; i++) {
        test_one(&r[i], false);
        test_own_rows(&r[i]);
        test_strangers(&r[i], &r[!i]);
        if (!once || i == 0) test_least_recent(&r[i]);
        test_no_memory(&r[i]);
        test_path(folder, sizeof folder, "%s/kept", temp);
        if (!once || i == 1) test_drive(&r[i]);
        test_deferred(&r[i], CTX);
        test_deferred(&r[i], 96);
        test_forged(&r[i], &r[!i]);
        test_answers(&r[i], demos[i], 0);
        folder[0] = '\0';
    }
    for (int i = 0; i < 2; i++) rig_close(&r[i]);
    for (int i = 0; i < 3; i++) {
        test_path(path, sizeof path, "%s/models/tiny-%s-f32.gguf", test_unpacked(),
                  i == 0 ? "qwen3next" : "gptoss");
        if (!rig_open(&tiny, path, i == 2)) continue;
        if (i == 2) test_one(&tiny, true);
        else test_many(&tiny, 5 + (uint64_t)i, room_for(&tiny, 6, 200), rounds);
        test_path(folder, sizeof folder, "%s/kept", temp);
        if (i < 2) {
            if (!once || i == 0) test_answers(&tiny, "marks", 0);
            if (!once || i == 1) test_answers(&tiny, "more marks", 16);
            test_damage(&tiny);
            test_deferred(&tiny, CTX);
            test_deferred(&tiny, 96);
            if (test_is_long() || i == 0) test_shared(&tiny, 0);
            if (test_is_long() || i == 1) test_shared(&tiny, room_for(&tiny, 3, short_chain()));
            if (i == 0 && (!sim_gpu() || test_is_long())) test_busy_folder(&tiny);
            if (test_is_long() || i == 0) test_beside(&tiny);
            if (test_is_long() || i == 1) test_bad_drive(&tiny);
            drive_bytes = room_for(&tiny, 20, 200);
            test_many(&tiny, 15 + (uint64_t)i, room_for(&tiny, 3, 200), rounds);
            drive_bytes = UINT64_MAX / 2;
        }
        folder[0] = '\0';
        rig_close(&tiny);
    }
    test_remove(temp);
    return test_end();
}
