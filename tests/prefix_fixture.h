/* prefix_fixture.h - what tests of the prefix cache share: models, sessions, caches, and how one
 * sees that a state is the right one.
 *
 * Whenever a state is kept, what the session holds is stored with its tokens: a hash of all bytes
 * of the state, and one of the logits after one more token. Whatever the cache puts into a session
 * later must have both. Sessions differ in their chunks, so the same tokens have other bits in
 * some of them: a cache that mixed their rows would be noticed. */
#ifndef TESTS_PREFIX_FIXTURE_H
#define TESTS_PREFIX_FIXTURE_H

#include "engine/engine_internal.h"
#include "engine/session/prefix_cache.h"
#include "tests/test.h"

enum { CTX = 400, MOST_NOTES = 4000 };

/* ---- models and sessions ---- */

typedef struct fixture {
    gguf *g;
    model *m;
    engine *e;
} fixture;

/* full: windows are taken away, so that rows are all there is. */
bool fixture_open(fixture *r, const char *path, bool full);
void fixture_close(fixture *r);

/* The demo models, for Qwen3-Next and gpt-oss; with a sanitizer the tiny ones. */
bool fixture_open_demos(fixture r[2]);
extern const char *const fixture_demos[2];

/* Tiny models: 0 Qwen3-Next, 1 gpt-oss, 2 the latter without windows, 3 Gemma 4, whose windowed
 * layers have other heads. */
bool fixture_open_tiny(fixture *r, int i);

session *fixture_session(const fixture *r, int ctx, int chunk, kv_type kv);
bool fixture_eval(session *s, const int32_t *ids, int n);
void fixture_fill(session *s, const int32_t *ids, int n);  /* starts anew and takes in the tokens */
void fixture_ids(int32_t *ids, int n, uint64_t seed, const model *m);

/* ---- caches ---- */

/* Where caches keep files, and what they last said about them. */
typedef struct cache_files {
    char folder[256];                    /* "": RAM is all there is */
    uint64_t bytes;                      /* most of them */
    char note[1000];                     /* the last one */
    int n_note;
} cache_files;
extern cache_files files;

int files_list(char names[][80], int cap);       /* their names; returns how many */
void files_remove(void);                 /* all of them, and the notes */

prefix_cache_options fixture_options(uint64_t ram);
prefix_cache *fixture_cache(session *like, uint64_t ram);
uint64_t fixture_room(const fixture *r, int n,
                      int tokens); /* n conversations of this many tokens fit,
                                                          * and no more */

/* ---- what a session holds ---- */

typedef struct held { uint64_t state, logits; } held;

/* All bytes of the state; the logits of one more token, which is taken back. */
held held_by(session *s);
bool held_same(held a, held b);

/* Everything that was kept, the latest last. */
typedef struct notes {
    struct note { int32_t *ids; int n; held h; } list[MOST_NOTES];
    int n;
} notes;

void notes_add(notes *t, session *s);
const held *notes_find(const notes *t, const int32_t *ids, int n);
void notes_free(notes *t);

/* Keeps, and notes it if the cache did not have it. */
int fixture_keep(prefix_cache *c, session *s, notes *t, err_ctx *err);

/* Loads as much as find promises, with the bits that were noted. Returns how much. */
int fixture_load(prefix_cache *c, session *s, const int32_t *ids, int n, const notes *t,
                 const char *why);

#endif
