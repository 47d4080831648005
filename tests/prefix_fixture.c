/* prefix_fixture.c - models, sessions and caches for tests, and what a session holds. */
#include "tests/prefix_fixture.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda/gpu.h"
#include "engine/session/state_internal.h"
#include "tests/cache_fixture.h"

enum { PROBE = 7 };

/* ---- models and sessions --------------------------------------------------------------------- */

bool fixture_open(fixture *r, const char *path, bool full)
{
    err_ctx err = { 0 };
    const engine_options eo = { .threads = test_n_thread(1) };
    *r = (fixture){ 0 };
    if (!CHECK_MSG(gguf_open(&r->g, path, &err) == 0 && model_bind(&r->m, r->g, &err) == 0,
                   "%s: %s", path, err.msg))
        return false;
    for (int l = 0; full && l < r->m->hp.n_layer; l++) r->m->layers[l].window = 0;
    return CHECK_MSG(engine_open(&r->e, r->m, &eo, &err) == 0, "%s: %s", path, err.msg) &&
           (gpu_count() == 0 || place_engine(r->e, r->m, &places[N_CPU_PLACES]));
}

void fixture_close(fixture *r)
{
    engine_close(r->e);
    model_free(r->m);
    gguf_close(r->g);
}

const char *const fixture_demos[2] = { "tests/models/demo-qwen3next-mtp.gguf",
                                   "tests/models/demo-gptoss-MXFP4.gguf" };

bool fixture_open_tiny(fixture *r, int i)
{
    static const char *const names[] = { "models/tiny-qwen3next-f32", "models/tiny-gptoss-f32",
                                         "models/tiny-gptoss-f32",
                                         "families/tiny-gemma4-shared-bf16" };
    char path[512];
    return fixture_open(r, test_path(path, sizeof path, "%s/%s.gguf", test_unpacked(), names[i]),
                        i == 2);
}

bool fixture_open_demos(fixture r[2])
{
    for (int i = 0; i < 2; i++)
        if (!(SANITIZED ? fixture_open_tiny(&r[i], i)
                        : fixture_open(&r[i], fixture_demos[i], false)))
            return false;
    return true;
}

session *fixture_session(const fixture *r, int ctx, int chunk, kv_type kv)
{
    const session_options so = { .ctx = ctx, .chunk = chunk, .kv = kv, .n_snapshot = 2 };
    session *s = NULL;
    err_ctx err = { 0 };
    CHECK_MSG(session_create(&s, r->e, &so, &err) == 0, "session: %s", err.msg);
    return s;
}

/* ---- caches and their files ------------------------------------------------------------------ */

cache_files files = { .bytes = UINT64_MAX / 2 };

static void on_note(void *ctx, const char *line)
{
    (void)ctx;
    files.n_note++;
    snprintf(files.note, sizeof files.note, "%s", line);
}

prefix_cache_options fixture_options(uint64_t ram)
{
    return (prefix_cache_options){ .ram_bytes = ram,
                                   .folder = files.folder[0] ? files.folder : NULL,
                                   .drive_bytes = files.bytes, .note = on_note };
}

prefix_cache *fixture_cache(session *like, uint64_t ram)
{
    const prefix_cache_options o = fixture_options(ram);
    prefix_cache *c = NULL;
    err_ctx err = { 0 };
    CHECK_MSG(prefix_cache_create(&c, like, &o, &err) == 0, "%s", err.msg);
    return c;
}

bool fixture_eval(session *s, const int32_t *ids, int n)
{
    err_ctx err = { 0 };
    const int rc = session_eval(s, ids, n, NULL, 0, NULL, NULL, &err);
    if (rc < 0) CHECK_MSG(false, "%s", err.msg);
    return rc == 0;
}

void fixture_fill(session *s, const int32_t *ids, int n)
{
    session_rewind(s, 0);
    fixture_eval(s, ids, n);
}

void fixture_ids(int32_t *ids, int n, uint64_t seed, const model *m)
{
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(random_word(seed, (uint64_t)i) % (uint64_t)m->hp.n_vocab);
}

int files_list(char names[][80], int cap)
{
    DIR *d = opendir(files.folder);
    int n = 0;
    for (const struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' && n < cap) snprintf(names[n++], 80, "%.79s", e->d_name);
    if (d) closedir(d);
    return n;
}

void files_remove(void)
{
    static char names[2000][80];
    char path[400];
    const int n = files_list(names, 2000);
    for (int i = 0; i < n; i++)
        unlink(test_path(path, sizeof path, "%s/%s", files.folder, names[i]));
    files.n_note = 0;
}

/* ---- what a session holds -------------------------------------------------------------------- */

held held_by(session *s)
{
    const state *st = session_state(s);
    const int pos = session_pos(s);
    const size_t rows = (size_t)state_rows_bytes(st->m, st->o.kv, pos);
    const size_t n = rows + (size_t)state_checkpoint_bytes(st->m, st->o.kv, pos);
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

bool held_same(held a, held b) { return a.state == b.state && a.logits == b.logits; }

void notes_add(notes *t, session *s)
{
    if (t->n == MOST_NOTES) return;
    struct note *k = &t->list[t->n++];
    k->n = session_pos(s);
    k->ids = test_alloc((size_t)k->n, sizeof *k->ids);
    memcpy(k->ids, session_ids(s), (size_t)k->n * sizeof *k->ids);
    k->h = held_by(s);
}

const held *notes_find(const notes *t, const int32_t *ids, int n)
{
    for (int i = t->n - 1; i >= 0; i--)
        if (t->list[i].n == n && !memcmp(t->list[i].ids, ids, (size_t)n * sizeof *ids))
            return &t->list[i].h;
    return NULL;
}

void notes_free(notes *t)
{
    for (int i = 0; i < t->n; i++) mem_free(t->list[i].ids);
    mem_free(t);
}

int fixture_keep(prefix_cache *c, session *s, notes *t, err_ctx *err)
{
    const uint64_t before = prefix_cache_counts(c).kept;
    const int rc = prefix_cache_keep(c, s, err);
    if (rc == 0 && prefix_cache_counts(c).kept > before) notes_add(t, s);
    return rc;
}

int fixture_load(prefix_cache *c, session *s, const int32_t *ids, int n, const notes *t,
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
        const held have = held_by(s);
        CHECK_MSG(have.state == want->state, "%s: other state at %d", why, got);
        CHECK_MSG(have.logits == want->logits, "%s: other logits at %d", why, got);
    }
    return got;
}

uint64_t fixture_room(const fixture *r, int n, int tokens)
{
    return (uint64_t)n * (state_rows_bytes(r->m, KV_F16, tokens) +
                          state_checkpoint_bytes(r->m, KV_F16, tokens) +
                          4 * (uint64_t)tokens + 200);
}
