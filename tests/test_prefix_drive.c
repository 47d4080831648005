/* test_prefix_drive.c - kept states in files: found again, shared, damaged, forged, on a drive
 * that fails or is slow. How one sees that a state is the right one: prefix_fixture.h. On a GPU,
 * where there is one; real or simulated. */
#include "tests/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/session/prefix_tree.h"
#include "engine/session/state_internal.h"
#include "loader/bytes.h"
#include "tests/bad_disk.h"
#include "tests/prefix_fixture.h"

/* ---- files ----------------------------------------------------------------------------------- */

static void put_file(const char *name, const uint8_t *bytes, size_t n)
{
    char path[400];
    /* cut short, it would be synced */
    unlink(test_path(path, sizeof path, "%s/%s", files.folder, name));
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
    prefix_cache *c = fixture_cache(s, ram);
    err_ctx err = { 0 };
    session_rewind(s, 0);
    for (int i = 0; i < LINKS; i++) {
        fixture_eval(s, chain + i * LINK, LINK);
        CHECK_MSG(fixture_keep(c, s, t, &err) == 0, "%s", err.msg);
    }
    return c;
}

/* Out of RAM to the drive and back, in this program and in the next one. */
static void test_drive_access(const fixture *r)
{
    enum { N = 6 };
    const uint64_t ram = fixture_room(r, 2, CHAIN) + (LINKS - 1) * fixture_room(r, 2, LINK);
    session *s = fixture_session(r, CTX, 32, KV_F16), *u = fixture_session(r, CTX, 64, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    static char names[100][80];
    char path[400];
    int32_t ids[N][CHAIN];
    struct stat st;
    err_ctx err = { 0 };

    files_remove();
    prefix_cache *c = fixture_cache(s, ram);
    for (int i = 0; i < N; i++) {
        fixture_ids(ids[i], CHAIN, 50 + (uint64_t)i, r->m);
        session_rewind(s, 0);
        for (int k = 0; k < LINKS; k++) {
            fixture_eval(s, ids[i] + k * LINK, LINK);
            CHECK_MSG(fixture_keep(c, s, t, &err) == 0, "%s", err.msg);
        }
    }
    prefix_cache_stats n = prefix_cache_counts(c);
    CHECK_MSG(n.n_state == N * LINKS && n.n_ram < n.n_state && n.n_drive > 0 &&
              n.n_ram + n.n_drive >= n.n_state && n.ram_bytes <= ram, "%d states, %d in RAM, %d on "
              "the drive", n.n_state, n.n_ram, n.n_drive);
    for (int i = 0; i < N; i++)
        CHECK(fixture_load(c, u, ids[i], CHAIN, t, "spilled") == CHAIN);
    CHECK(prefix_cache_flush(c, &err) == 0);
    n = prefix_cache_counts(c);
    CHECK(n.n_drive == n.n_state && files_list(names, 100) == n.n_state);
    uint64_t sum = 0;
    for (int i = 0; i < n.n_state; i++) {
        CHECK(stat(test_path(path, sizeof path, "%s/%s", files.folder, names[i]), &st) == 0 &&
              (st.st_mode & 0777) == 0600);
        sum += (uint64_t)st.st_size;
    }
    CHECK(sum == n.drive_bytes);
    CHECK(prefix_cache_flush(c, &err) == 0);             /* nothing is written twice */
    prefix_cache_free(c);

    c = fixture_cache(u, ram);
    n = prefix_cache_counts(c);
    CHECK(n.n_state == N * LINKS && n.n_ram == 0 && n.ram_bytes == 0 && n.drive_bytes == sum);
    for (int i = 0; i < N; i++)
        CHECK(fixture_load(c, u, ids[i], CHAIN - i, t, "the next program") ==
              (i ? CHAIN - LINK : CHAIN));
    CHECK(prefix_cache_counts(c).n_ram > 0 && prefix_cache_counts(c).ram_bytes <= ram);
    prefix_cache_free(c);

    /* what does not fit into RAM goes straight into the session */
    c = fixture_cache(u, 0);
    CHECK(fixture_load(c, u, ids[2], CHAIN, t, "no RAM") == CHAIN &&
          prefix_cache_counts(c).n_ram == 0);
    prefix_cache_free(c);

    files_remove();                      /* nor is it any trouble to keep */
    fixture_ids(chain, CHAIN, 77, r->m);
    c = make_chain(s, t, 0);
    n = prefix_cache_counts(c);
    CHECK(n.n_state == LINKS && n.n_ram == 0 && n.ram_bytes == 0 && n.n_drive == LINKS);
    CHECK_MSG(n.drive_bytes < state_rows_bytes(r->m, KV_F16, CHAIN) + LINKS *
              (state_checkpoint_bytes(r->m, KV_F16, CHAIN) + 4 * CHAIN + 100), "rows are written once");
    CHECK(fixture_load(c, u, chain, CHAIN, t, "never in RAM") == CHAIN);
    files.bytes = n.drive_bytes;
    prefix_cache_free(c);
    c = fixture_cache(s, 0);            /* neither here nor there */
    files.bytes = 10;
    prefix_cache_free(c);
    c = fixture_cache(s, 0);
    CHECK(fixture_keep(c, s, t, &err) == ERR_NOMEM && strstr(err.msg, "nor on the drive"));
    CHECK(prefix_cache_counts(c).n_state == 0 && prefix_cache_counts(c).ram_bytes == 0);
    prefix_cache_free(c);
    files.bytes = UINT64_MAX / 2;
    c = fixture_cache(s, ram);
    for (int i = 0; i < N; i++) {
        session_rewind(s, 0);
        for (int k = 0; k < LINKS; k++) {
            fixture_eval(s, ids[i] + k * LINK, LINK);
            CHECK(fixture_keep(c, s, t, &err) == 0);
        }
    }
    CHECK(prefix_cache_flush(c, &err) == 0);
    prefix_cache_free(c);

    /* those used last stay on a smaller drive: of the first, since it was just used */
    c = fixture_cache(u, ram);
    CHECK(fixture_load(c, u, ids[0], CHAIN, t, "used last") == CHAIN);
    prefix_cache_free(c);
    files.bytes = sum / N + 100;
    c = fixture_cache(u, ram);
    n = prefix_cache_counts(c);
    CHECK_MSG(n.drive_bytes <= files.bytes && n.n_state == LINKS &&
              prefix_cache_find(c, ids[0], CHAIN) == CHAIN, "%d states, %d tokens", n.n_state,
              prefix_cache_find(c, ids[0], CHAIN));
    fixture_fill(s, ids[3], CHAIN);
    CHECK(fixture_keep(c, s, t, &err) == 0 && prefix_cache_flush(c, &err) == 0);
    CHECK(prefix_cache_counts(c).drive_bytes <= files.bytes);
    prefix_cache_free(c);
    c = fixture_cache(u, ram);
    CHECK(fixture_load(c, s, ids[3], CHAIN, t, "in place of the other") == CHAIN);
    prefix_cache_free(c);
    files.bytes = UINT64_MAX / 2;
    CHECK_MSG(files.n_note == 0, "%s", files.note);
    notes_free(t);
    session_free(s);
    session_free(u);
}

/* Shorter, where what is computed does not matter. */
static int short_link(void) { return test_rounds(LINK, 10); }
static int short_chain(void) { return LINKS * short_link(); }

/* The chain of this seed in a cache, whatever the cache has room for. */
static void keep_chain(prefix_cache *c, session *s, notes *t, uint64_t seed)
{
    err_ctx err = { 0 };
    fixture_ids(chain, short_chain(), seed, chain_model);
    session_rewind(s, 0);
    for (int i = 0; i < LINKS; i++) {
        fixture_eval(s, chain + i * short_link(), short_link());
        CHECK_MSG(fixture_keep(c, s, t, &err) == 0, "%s", err.msg);
    }
}

/* Two programs share a folder: the second one reads what the first one wrote, and writes and
 * removes nothing. Files that are gone or damaged are misses. */
static void test_second_program(const fixture *r)
{
    session *s = fixture_session(r, CTX, 32, KV_F16), *u = fixture_session(r, CTX, 32, KV_F16);
    session *f32 = fixture_session(r, CTX, 32, KV_F32);
    const uint64_t ram = fixture_room(r, 2 * LINKS, short_chain());
    notes *t = mem_zalloc(sizeof *t);
    static char names[40][80], after[40][80];
    char path[400], last[80] = "";
    err_ctx err = { 0 };
    chain_model = r->m;
    files_remove();
    prefix_cache *first = fixture_cache(s, ram);
    keep_chain(first, s, t, 1);
    CHECK(prefix_cache_flush(first, &err) == 0 && files_list(names, 40) == LINKS);
    prefix_cache *second = fixture_cache(u, ram);
    CHECK_MSG(files.n_note == 1 && strstr(files.note, "another program"), "%s", files.note);
    CHECK(fixture_load(second, u, chain, short_chain(), t, "of the first program") ==
          short_chain());
    CHECK(prefix_cache_counts(second).loaded == 1 && prefix_cache_counts(second).damaged == 0);

    keep_chain(second, u, t, 2);         /* in RAM alone */
    CHECK(!prefix_cache_poll(second) && prefix_cache_flush(second, &err) == 0);
    CHECK(fixture_load(second, u, chain, short_chain(), t, "of its own") == short_chain());
    CHECK(files_list(after, 40) == LINKS && memcmp(names, after, LINKS * sizeof *names) == 0);
    prefix_cache *other = fixture_cache(f32, ram);  /* other sessions have a writer of their own */
    fixture_fill(f32, chain, short_link());
    CHECK(prefix_cache_keep(other, f32, &err) == 0 && prefix_cache_flush(other, &err) == 0);
    CHECK(prefix_cache_counts(other).n_drive == 1 && files_list(after, 40) == LINKS + 1);
    prefix_cache_free(other);

    /* without RAM for a state of its own, and with bounds that the folder exceeds */
    const uint64_t most = files.bytes;
    prefix_cache_free(second);
    files.bytes = 1;
    second = fixture_cache(u, 0);
    files.bytes = most;
    fixture_ids(chain, short_chain(), 3, r->m);
    fixture_fill(u, chain, short_link());
    CHECK(prefix_cache_keep(second, u, &err) == ERR_NOMEM && files_list(after, 40) == LINKS + 1);

    /* one file damaged, then gone */
    size_t n;
    fixture_ids(chain, short_chain(), 1, r->m);
    for (int i = 0; i < LINKS; i++) {
        uint8_t *b = test_read_file(test_path(path, sizeof path, "%s/%s", files.folder, names[i]),
                                    &n);
        if ((int)load_u32(b + 16) == short_chain()) {
            b[n - 1] ^= 1;
            put_file(names[i], b, n);
            memcpy(last, names[i], sizeof last);
        }
        mem_free(b);
    }
    const int less = short_chain() - short_link();
    CHECK(prefix_cache_load(second, u, chain, short_chain(), &err) == less &&
          held_same(held_by(u), *notes_find(t, chain, less)));
    CHECK(prefix_cache_counts(second).damaged == 1 && files_list(after, 40) == LINKS + 1);
    prefix_cache_free(second);
    second = fixture_cache(u, 0);
    CHECK(prefix_cache_find(second, chain, short_chain()) == short_chain());
    unlink(test_path(path, sizeof path, "%s/%s", files.folder, last));
    CHECK(prefix_cache_load(second, u, chain, short_chain(), &err) == less);
    CHECK_MSG(prefix_cache_counts(second).damaged == 0 && files_list(after, 40) == LINKS, "%s",
              files.note);
    prefix_cache_free(first);
    prefix_cache_free(second);

    /* the next program writes, also after one that died with the lock */
    const pid_t child = fork();
    if (child == 0) _exit(fixture_cache(s, 0) ? 0 : 1);
    int status = 1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    files.n_note = 0;
    first = fixture_cache(s, ram);
    keep_chain(first, s, t, 4);
    CHECK(prefix_cache_flush(first, &err) == 0 && files_list(after, 40) == 2 * LINKS);
    CHECK_MSG(files.n_note == 0, "%s", files.note);
    prefix_cache_free(first);
    notes_free(t);
    session_free(s);
    session_free(u);
    session_free(f32);
}

/* Counts steps through trees of states, of any caller. */
static uint64_t n_step;
prefix_node *__real_prefix_tree_next(prefix_node *k, bool into);
prefix_node *__wrap_prefix_tree_next(prefix_node *k, bool into);
prefix_node *__wrap_prefix_tree_next(prefix_node *k, bool into)
{
    n_step++;
    return __real_prefix_tree_next(k, into);
}

/* A full drive with thousands of files: eviction takes the oldest leaf, and a walk for each. */
static void test_many_files(const fixture *r)
{
    enum { CONVERSATIONS = 50, STATES = 80, N = CONVERSATIONS * STATES };
    session *s = fixture_session(r, CTX, 32, KV_F16);
    int32_t ids[STATES];
    err_ctx err = { 0 };
    prefix_node *oldest = NULL, *last = NULL;
    files_remove();
    prefix_cache *c = fixture_cache(s, fixture_room(r, 4, LINK));
    for (int i = 0; i < CONVERSATIONS; i++) {
        fixture_ids(ids, STATES, 4000 + (uint64_t)i, r->m);
        prefix_node *parent = &c->root;
        for (int to = 1; to <= STATES; to++) {           /* made up: no file is read here */
            const prefix_node shape = prefix_tree_shape(c, to - 1, to);
            const prefix_file f = { .to = to, .rows_bytes = shape.rows_bytes,
                                    .checkpoint_bytes = shape.checkpoint_bytes };
            prefix_node *k = prefix_tree_make(&shape, ids, false);
            k->stamp = (uint64_t)(1 + i * STATES + to);
            k->on_drive = true;
            prefix_tree_add(c, parent, k);
            k->used = (uint64_t)(1 + i);                 /* all states of it at once */
            c->n.drive_bytes += prefix_file_bytes(&f);
            parent = k;
        }
        if (i == 0) oldest = parent->parent;
        last = parent;
    }
    c->o.drive_bytes = c->n.drive_bytes;
    fixture_ids(chain, LINK, 3999, r->m);
    fixture_fill(s, chain, 1);
    CHECK(prefix_cache_keep(c, s, &err) == 0);
    n_step = 0;
    CHECK_MSG(prefix_cache_flush(c, &err) == 0, "%s", err.msg);
    CHECK_MSG(n_step <= 6 * N, "%llu steps for %d files", (unsigned long long)n_step, N);
    CHECK(oldest->on_drive && !oldest->child && last->on_drive);
    CHECK(prefix_cache_counts(c).n_drive == N && c->n.drive_bytes <= c->o.drive_bytes);
    prefix_cache_free(c);
    session_free(s);
}

/* Kept later, from snapshots: the same states, and the session does not notice. */
static void tend_all(prefix_cache *c)
{
    int n = 0;
    while (prefix_cache_poll(c) && n++ < 100000) nanosleep(&(struct timespec){ 0, 100000 }, NULL);
    CHECK_MSG(n < 100000, "there is no end to it");
}

/* Files are written while the caller goes on, whatever happens to their states meanwhile. */
static void test_two_programs(const fixture *r)
{
    session *s = fixture_session(r, CTX, 32, KV_F16), *u = fixture_session(r, CTX, 32, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    static char names[60][80];
    err_ctx err = { 0 };
    prefix_cache_stats n;

    files_remove();
    fixture_ids(chain, CHAIN + 1, 31, r->m);
    prefix_cache *c = make_chain(s, t, 64u << 20);
    CHECK(prefix_cache_poll(c));
    CHECK(fixture_load(c, u, chain, CHAIN, t, "while it is written") == CHAIN);
    tend_all(c);
    n = prefix_cache_counts(c);
    CHECK(n.n_drive == LINKS && n.n_ram == LINKS && files_list(names, 60) == LINKS);
    prefix_cache_free(c);
    c = fixture_cache(u, 64u << 20);
    CHECK(fixture_load(c, u, chain, CHAIN, t, "written by the other") == CHAIN);
    CHECK(!prefix_cache_poll(c));
    prefix_cache_free(c);

    for (int fail = 1; fail < 12; fail += test_rounds(1, 2)) { /* one line, then another */
        files_remove();
        c = make_chain(s, t, 64u << 20);
        files.n_note = 0;
        disk.n_call = 0;
        disk.fail_at = fail;
        tend_all(c);
        disk.fail_at = 0;
        n = prefix_cache_counts(c);
        CHECK_MSG(files.n_note == (n.n_drive < LINKS), "call %d: %d notes", fail, files.n_note);
        CHECK(files_list(names, 60) == n.n_drive && n.n_ram == LINKS);
        session_rewind(s, 0);
        CHECK(fixture_eval(s, chain + 1, LINK) && fixture_keep(c, s, t, &err) == 0);
        tend_all(c);
        n = prefix_cache_counts(c);
        CHECK_MSG(n.n_drive == LINKS + 1 && files_list(names, 60) == n.n_drive, "call %d", fail);
        prefix_cache_free(c);
    }

    /* RAM for one of two: each evicts the other */
    for (int i = 0; i < test_rounds(20, 4); i++) {
        if (i % 5 == 0) files_remove();
        c = fixture_cache(s, fixture_room(r, 1, CHAIN));
        for (int k = 0; k < 2; k++) {
            fixture_ids(chain, CHAIN, 900 + (uint64_t)((i + k) % 7), r->m);
            fixture_fill(s, chain, CHAIN);
            CHECK_MSG(fixture_keep(c, s, t, &err) == 0, "%s", err.msg);
            prefix_cache_poll(c);
            CHECK(fixture_load(c, u, chain, CHAIN, t, "one of two") == CHAIN);
        }
        prefix_cache_free(c);            /* perhaps in the middle */
        c = fixture_cache(u, 0);
        n = prefix_cache_counts(c);
        CHECK(n.damaged == 0 && n.n_state == files_list(names, 60) && n.n_state > 0);
        prefix_cache_free(c);
    }
    files.n_note = 0;
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

static void test_deferred(const fixture *r, int ctx)
{
    enum { N = 90 };
    static const int at[] = { LINK, 2 * LINK };
    session *s = fixture_session(r, ctx, 32, KV_F16), *u = fixture_session(r, CTX, 32, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    int32_t ids[N];
    err_ctx err = { 0 };
    fixture_ids(ids, N, 5, r->m);
    files_remove();
    prefix_cache *c = fixture_cache(s, 0);
    prefix_cache_defer(c, at, 2);
    for (int n = 0; n < N; n += LINK) {
        fixture_eval(u, ids + n, LINK);
        notes_add(t, u);
        fixture_eval(s, ids + n, LINK);
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
              (state_checkpoint_bytes(r->m, KV_F16, 2 * LINK) + 8 * LINK + 100), "rows are written once");
    CHECK(fixture_load(c, u, ids, N, t, "settled") == 2 * LINK);
    CHECK(fixture_load(c, u, ids, 2 * LINK - 1, t, "settled first") == LINK);
    CHECK(session_pos(s) == N && held_same(held_by(s), *notes_find(t, ids, N)));
    CHECK(prefix_cache_settle(c, s, 1, 1, &err) == 0);      /* there already, but for the end */
    prefix_cache_free(c);

    c = fixture_cache(s, 0);            /* what is too large for memory is left where it is */
    CHECK(prefix_cache_find(c, ids, N) >= 2 * LINK);
    prefix_cache_free(c);
    prefix_cache_options o = fixture_options(0);
    o.most_bytes = 1;
    CHECK(prefix_cache_create(&c, s, &o, &err) == 0);
    CHECK(prefix_cache_load(c, u, ids, N, &err) == 0 && session_pos(u) == 0);
    fixture_fill(u, ids + 1, LINK);
    CHECK(prefix_cache_keep(c, u, &err) == ERR_NOMEM && files.n_note == 0);
    prefix_cache_free(c);
    notes_free(t);
    session_free(s);
    session_free(u);
}

/* Everything that can be wrong with a file: it is not used, and there is one line about it. */
static void test_damage(const fixture *r)
{
    session *s = fixture_session(r, CTX, 32, KV_F16), *u = fixture_session(r, CTX, 64, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    static char names[20][80];
    char path[400];
    err_ctx err = { 0 };
    size_t bytes[LINKS];
    uint8_t *good[LINKS];

    files_remove();
    fixture_ids(chain, CHAIN + 1, 9, r->m);
    prefix_cache *c = make_chain(s, t, 64u << 20);
    CHECK(prefix_cache_flush(c, &err) == 0 && files_list(names, 20) == LINKS);
    prefix_cache_free(c);
    for (int i = 0; i < LINKS; i++)
        good[i] = test_read_file(test_path(path, sizeof path, "%s/%s", files.folder, names[i]),
                                 &bytes[i]);
    test_rng rng = { 12 };
    for (int round = 0; round < (SANITIZED ? 32 : test_rounds(160, 16)); round++) {
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
        if (kind == 7) unlink(test_path(path, sizeof path, "%s/%s", files.folder, names[i]));
        files.n_note = 0;
        c = fixture_cache(u, 64u << 20);
        fixture_fill(u, chain + 1, 10);
        const int got = prefix_cache_load(c, u, chain, CHAIN, &err);
        const bool ok = got == from && (session_pos(u) == from || from == 0) &&
                        (from == 0 || held_same(held_by(u), *notes_find(t, chain, from)));
        const int want = kind == 7 && from == CHAIN - LINK ? 0 : 1;
        CHECK_MSG(ok && files.n_note >= want && files.n_note <= 2 &&
                  !strncmp(files.note, "prefix cache: ", 14),
                  "kind %d at %zu: %d of %d tokens, %d notes, '%s'", kind, at, got, from,
                  files.n_note, files.note);
        CHECK(files_list(names + LINKS, 10) == from / LINK);
        prefix_cache_free(c);
        mem_free(b);
    }
    for (int i = 0; i < LINKS; i++) mem_free(good[i]);
    notes_free(t);
    session_free(s);
    session_free(u);
}

/* Files with the right sums that are not for these sessions, and things that are no files. */
static void test_forged(const fixture *r, const fixture *other)
{
    session *s = fixture_session(r, CTX, 32, KV_F16);
    session *kv = fixture_session(r, CTX, 32, KV_F32), *m = fixture_session(other, CTX, 32, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    static char names[20][80];
    char path[400], name[80];
    err_ctx err = { 0 };
    size_t n;

    files_remove();
    fixture_ids(chain, CHAIN + 1, 9, r->m);
    prefix_cache *c = make_chain(s, t, 64u << 20);
    CHECK(prefix_cache_flush(c, &err) == 0);
    prefix_cache_free(c);
    session *strangers[] = { kv, m };
    for (int i = 0; i < 2; i++) {        /* they are left alone, without a word */
        c = fixture_cache(strangers[i], 64u << 20);
        CHECK(prefix_cache_counts(c).n_state == 0 && prefix_cache_find(c, chain, CHAIN) == 0);
        prefix_cache_free(c);
    }
    CHECK(files.n_note == 0 && files_list(names, 20) == LINKS);

    /* under the name of one for the other session */
    c = fixture_cache(kv, 64u << 20);
    fixture_fill(kv, chain, 5);
    CHECK(prefix_cache_keep(c, kv, &err) == 0 && prefix_cache_flush(c, &err) == 0);
    prefix_cache_free(c);
    char all[20][80];
    CHECK(files_list(all, 20) == LINKS + 1);
    for (int i = 0; i <= LINKS; i++)
        for (int k = 0; k < LINKS; k++)
            if (strncmp(all[i], names[k], 16) != 0) snprintf(name, sizeof name, "%.79s", all[i]);
    uint8_t *b = test_read_file(test_path(path, sizeof path, "%s/%s", files.folder, names[0]), &n);
    put_file(name, b, n);
    c = fixture_cache(kv, 64u << 20);
    CHECK_MSG(prefix_cache_counts(c).n_state == 0 && files.n_note == 1 &&
              strstr(files.note, "another model") && strstr(files.note, name), "%s", files.note);
    prefix_cache_free(c);
    CHECK(files_list(all, 20) == LINKS);

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
        files.n_note = 0;
        c = fixture_cache(s, 64u << 20);
        CHECK_MSG(prefix_cache_counts(c).n_state == LINKS && files.n_note == 1,
                  "kind %d: %d states, '%s'", kind, prefix_cache_counts(c).n_state, files.note);
        CHECK(fixture_load(c, s, chain, CHAIN, t, "next to it") == CHAIN);
        prefix_cache_free(c);
        CHECK(files_list(all, 20) == LINKS);
        mem_free(w);
    }
    mem_free(b);

    /* a folder, a FIFO and leftovers of others */
    snprintf(name, sizeof name, "%.17s0123456789abcdef.prefix", names[0]);
    CHECK(mkfifo(test_path(path, sizeof path, "%s/%s", files.folder, name), 0600) == 0);
    put_file("readme.prefix", (const uint8_t *)"x", 1);
    snprintf(name, sizeof name, "%.17s0123456789abcdef.prefix.abcdef", names[0]);
    put_file(name, (const uint8_t *)"x", 1);
    files.n_note = 0;
    c = fixture_cache(s, 64u << 20);
    CHECK_MSG(files.n_note == 1 && strstr(files.note, "not a regular file"), "%d %s", files.n_note,
              files.note);
    prefix_cache_free(c);
    CHECK(files_list(all, 20) == LINKS + 2);
    const struct timespec old[2] = { { 1000, 0 }, { 1000, 0 } };
    utimensat(AT_FDCWD, test_path(path, sizeof path, "%s/%s", files.folder, name), old, 0);
    prefix_cache_free(fixture_cache(s, 64u << 20));
    CHECK(files_list(all, 20) == LINKS + 1);             /* no program writes it now */

    /* no folder can be made: RAM alone */
    snprintf(path, sizeof path, "%s/no/such", files.folder);
    prefix_cache_options o = fixture_options(64u << 20);
    o.folder = path;
    files.n_note = 0;
    CHECK(prefix_cache_create(&c, s, &o, &err) == 0 && files.n_note == 1 &&
          strstr(files.note, "No such"));
    CHECK(prefix_cache_keep(c, s, &err) == 0 && prefix_cache_flush(c, &err) == 0);
    CHECK(prefix_cache_counts(c).n_drive == 0);
    prefix_cache_free(c);
    notes_free(t);
    session_free(s);
    session_free(kv);
    session_free(m);
    files_remove();
}

/* Each call of the system fails once, and each allocation: less is kept, nothing is wrong. */
static void test_bad_drive(const fixture *r)
{
    session *s = fixture_session(r, CTX, 32, KV_F16);
    notes *t = mem_zalloc(sizeof *t);
    static char names[40][80];
    err_ctx err = { 0 };
    int n = 0, rc = -1;

    files_remove();
    fixture_ids(chain, CHAIN + 1, 9, r->m);
    prefix_cache *c = make_chain(s, t, 64u << 20);
    for (; rc < 0 && n < 100; n++) {     /* the disk is full, then it is not */
        disk.n_call = 0;
        disk.fail_at = n + 1;
        rc = prefix_cache_flush(c, &err);
        disk.fail_at = 0;
        CHECK_MSG(rc == 0 || (rc == ERR_IO && strstr(err.msg, "cannot write")), "%s", err.msg);
        CHECK(files_list(names, 40) == prefix_cache_counts(c).n_drive);
        CHECK(fixture_load(c, s, chain, CHAIN, t, "from RAM") == CHAIN);
    }
    CHECK_MSG(n >= 2, "%d rounds", n);
    prefix_cache_free(c);
    disk.lazy = true;
    c = fixture_cache(s, 0);
    CHECK(fixture_load(c, s, chain, CHAIN, t, "bit by bit") == CHAIN);
    disk.lazy = false;
    prefix_cache_free(c);

    for (int cut = 1; cut >= 0; cut--) { /* reading: less, but right */
        int reach = -1;
        for (n = 1; reach < CHAIN && n < 60; n += test_rounds(1, 2)) {
            files_remove();
            prefix_cache_free((c = make_chain(s, t, 64u << 20), prefix_cache_flush(c, &err), c));
            disk.n_call = 0;
            disk.fail_at = n;
            disk.cut = cut;
            c = fixture_cache(s, 0);
            reach = prefix_cache_load(c, s, chain, CHAIN, &err);
            disk.fail_at = 0;
            CHECK_MSG(reach >= 0 && reach % LINK == 0, "call %d: %d tokens", n, reach);
            if (reach > 0) CHECK(session_pos(s) == reach &&
                                 held_same(held_by(s), *notes_find(t, chain, reach)));
            prefix_cache_free(c);
        }
        CHECK_MSG(n > 8 && n < 60, "%d calls", n);
    }

    files_remove();                      /* a drive that fails while RAM evicts */
    c = fixture_cache(s, fixture_room(r, 1, CHAIN));
    for (int i = 0; i < test_rounds(20, 8); i++) {
        fixture_ids(chain, CHAIN, 200 + (uint64_t)i, r->m);
        fixture_fill(s, chain, CHAIN);
        disk.n_call = 0;
        disk.fail_at = i + 1;
        rc = fixture_keep(c, s, t, &err);
        disk.fail_at = 0;
        CHECK_MSG(rc == 0, "%s", err.msg);
        CHECK(files_list(names, 40) == prefix_cache_counts(c).n_drive);
        CHECK(fixture_load(c, s, chain, CHAIN, t, "failing drive") == CHAIN);
    }
    prefix_cache_free(c);

    fixture_ids(chain, CHAIN + 1, 9, r->m); /* no memory */
    files_remove();
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
        const prefix_cache_options o = fixture_options(64u << 20);
        mem_fail_after(n);
        rc = prefix_cache_create(&c, s, &o, &err);
        mem_fail_after(0);
        CHECK(rc == 0 ? prefix_cache_counts(c).n_state == LINKS : rc == ERR_NOMEM && !c);
    }
    CHECK_MSG(n > 8 && n < 100, "%d allocations", n);
    for (n = 1, rc = 0; rc < CHAIN && n < 100; n++) {
        prefix_cache_free(c);
        c = fixture_cache(s, 64u << 20);
        mem_fail_after(n);
        rc = prefix_cache_load(c, s, chain, CHAIN, &err);
        mem_fail_after(0);
        CHECK_MSG(rc >= 0 && rc % LINK == 0, "%d %s", rc, err.msg);
        if (rc > 0) CHECK(held_same(held_by(s), *notes_find(t, chain, rc)));
        CHECK(prefix_cache_counts(c).n_state == LINKS);  /* nothing is lost for that */
    }
    CHECK_MSG(n > 6 && n < 100, "%d allocations", n);
    prefix_cache_free(c);
    notes_free(t);
    session_free(s);
    files_remove();
}

int main(int argc, char **argv)
{
    fixture r[2], tiny;
    char temp[256];
    const bool once = !test_is_long();   /* as in test_prefix_cache.c */
    test_begin("prefix_drive", argc, argv);
    disk.portion = 1000;
    if (!CHECK(mkdtemp(test_temp(temp, sizeof temp)) != NULL) || !fixture_open_demos(r))
        return test_end();
    test_path(files.folder, sizeof files.folder, "%s/kept", temp);
    for (int i = 0; i < 2; i++) {
        if (!once || i == 1) test_drive_access(&r[i]);
        test_deferred(&r[i], CTX);
        test_deferred(&r[i], 96);
        test_forged(&r[i], &r[!i]);
    }
    for (int i = 0; i < 2; i++) fixture_close(&r[i]);
    for (int i = 0; i < 2; i++) {
        if (!fixture_open_tiny(&tiny, i)) continue;
        test_damage(&tiny);
        test_deferred(&tiny, CTX);
        test_deferred(&tiny, 96);
        test_second_program(&tiny);
        test_many_files(&tiny);
        if (!once || i == 0) test_two_programs(&tiny);
        if (!once || i == 1) test_bad_drive(&tiny);
        fixture_close(&tiny);
    }
    if (fixture_open_tiny(&tiny, 3)) {
        test_deferred(&tiny, CTX);
        test_deferred(&tiny, 96);
        fixture_close(&tiny);
    }
    test_remove(temp);
    return test_end();
}
