/* test_state_file.c - sessions to files and back: other sizes, other spaces, other models, damage,
 * failing disks and memory.
 *
 * The disk is that of bad_disk.h. */
#include "tests/case_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/bytes.h"
#include "tests/bad_disk.h"
#include "tests/state_reference.h"

/* ---- files of the test ---------------------------------------------------------------------- */

static case_rows cases;                  /* of cases/state.txt */
static char folder[256];
static int n_ram;                        /* layers of theirs that are in RAM anyway */
static mem_space *where;                 /* of the states under test; NULL: RAM */

static const char *in_folder(const char *name)
{
    static char path[2][400];
    static int turn;
    turn = !turn;
    return test_path(path[turn], sizeof path[0], "%s/%s", folder, name);
}

static int n_files(void)
{
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void put_file(const char *path, const uint8_t *bytes, size_t n)
{
    unlink(path);                        /* cutting it makes some file systems wait for the disk */
    FILE *f = fopen(path, "wb");
    const bool ok = f && fwrite(bytes, 1, n, f) == n;
    if (f) fclose(f);
    if (!ok) CHECK_MSG(false, "cannot write %s", path);
}

static const state_tag own_tag = { 0x1234567890ABCDEF, "qwen3next", "Test \"80B\"" };

static int save(const reference *t, const char *path, str_view extra, err_ctx *err)
{
    return state_save(t->s, path, &own_tag, t->ids, extra, err);
}

/* Loads, and expects exactly what `from` holds. */
static void load_same(reference *t, const char *path, const reference *from, str_view extra,
                      const char *what)
{
    err_ctx err = { 0 };
    char *have = NULL;
    size_t n = 0;
    test_rng rng = { 9 };
    const int rc = state_load(t->s, path, &own_tag, t->ids, t->o.ctx, &have, &n, &err);
    CHECK_MSG(rc == 0 && have && n == extra.len && str_eq((str_view){ have, n }, extra) &&
              !have[n], "%s: %s", what, err.msg);
    CHECK_MSG(memcmp(t->ids, from->ids, (size_t)from->pos * sizeof *t->ids) == 0, "%s: ids", what);
    reference_loaded(t, from);
    CHECK_MSG(reference_holds(t, &rng), "%s: %s", what, t->why);
    mem_free(have);
}

/* ---- round trips ---------------------------------------------------------------------------- */

/* A walk that now and then goes on in another session, perhaps in another space, through a file. */
static void test_moves(void)
{
    static const struct { int ctx, slack; } sizes[] = {
        { 260, 40 }, { 261, 90 }, { 290, 10 }, { 264, 200 }, { 400, 50 },
    };
    static const char *const layers[] = { "WF", "DDF", "DWF", "F", "D", "VF", "WFwf" };
    for (size_t i = 0; i < 3 * ARRAY_LEN(layers); i++) {
        model *m = reference_model(layers[i / 3], 2, 32, 20);
        state_options o = { 260, 40, (kv_type)(i % 3), 2, reference_segments(m, where, n_ram) };
        test_rng rng = { i };
        reference t;
        char what[64];
        reference_open(&t, m, &o);
        for (int step = 0; step < 60; step++) {
            const int left = t.o.ctx - t.pos, most = left < t.o.slack ? left : t.o.slack;
            const uint32_t dice = test_below(&rng, 10);
            if (dice < 6 && left > 0)
                reference_run(&t, &rng, 1 + (int)test_below(&rng, (uint32_t)most), dice == 0);
            else if (dice < 8) reference_snapshot(&t);
            else reference_rewind(&t, t.pos - (int)test_below(&rng, 8));
            if (step % 6 != 5) continue;

            const size_t k = test_below(&rng, ARRAY_LEN(sizes));
            const str_view extra = { "any\0bytes", test_below(&rng, 10) };
            reference next;
            err_ctx err = { 0 };
            test_path(what, sizeof what, "%s, %s, step %d", layers[i / 3], kv_type_name(o.kv),
                      step);
            if (t.pos > sizes[k].ctx) reference_rewind(&t, 0);
            CHECK_MSG(save(&t, in_folder("move"), extra, &err) == 0, "%s: %s", what, err.msg);
            o.ctx = sizes[k].ctx;
            o.slack = sizes[k].slack;
            mem_space *other = test_below(&rng, 2) ? NULL : far_space();
            o.in = reference_segments(m, other, (int)test_below(&rng, (uint32_t)m->hp.n_layer + 1));
            reference_open(&next, m, &o);
            reference_run(&next, &rng, 1, false);        /* something to be replaced */
            reference_snapshot(&next);
            load_same(&next, in_folder("move"), &t, extra, what);
            reference_close(&t);
            t = next;
        }
        CHECK_MSG(reference_holds(&t, &rng), "%s: %s", layers[i / 3], t.why);
        reference_close(&t);
        reference_model_free(m);
    }
    CHECK(n_files() == 1);
}

/* ---- what does not fit ---------------------------------------------------------------------- */

/* A small session that holds something, with the bytes of its file. */
typedef struct sample {
    model *m;
    reference t;
    uint8_t *bytes;
    size_t n;
} sample;

static void sample_open(sample *a, kv_type type)
{
    a->m = reference_model("WFD", 1, 32, 3);
    const state_options o = { 20, 3, type, 1, reference_segments(a->m, where, n_ram) };
    test_rng rng = { 11 };
    err_ctx err = { 0 };
    reference_open(&a->t, a->m, &o);
    for (int i = 0; i < 3; i++) reference_run(&a->t, &rng, 3, false);
    CHECK_MSG(save(&a->t, in_folder("sample"), str_from("extra"), &err) == 0, "%s", err.msg);
    a->bytes = test_read_file(in_folder("sample"), &a->n);
}

static void sample_close(sample *a)
{
    reference_close(&a->t);
    reference_model_free(a->m);
    mem_free(a->bytes);
}

/* The file must be refused with this text, and nothing may have changed. */
static bool refused(sample *a, const char *path, const state_tag *tag, const char *text,
                    const char *what)
{
    static int32_t ids[64];
    err_ctx err = { 0 };
    char *extra = (char *)"set";
    size_t n = 5;
    test_rng rng = { 2 };
    memset(ids, 0x55, sizeof ids);
    const int rc = state_load(a->t.s, path, tag, ids, 64, &extra, &n, &err);
    bool ok = rc < 0 && err.code == rc && !extra && n == 0 && strstr(err.msg, text);
    for (size_t i = 0; i < 64; i++) ok = ok && ids[i] == 0x55555555;
    ok = ok && reference_holds(&a->t, &rng);
    if (rc == 0) mem_free(extra);
    if (!ok) CHECK_MSG(false, "%s: rc %d '%s', want '%s' %s", what, rc, err.msg, text, a->t.why);
    return ok;
}

static void test_other_model(void)
{
    static const struct { state_tag tag; const char *text; } tags[] = {
        { { 0x1234567890ABCDEF, "gpt-oss", "Test \"80B\"" },
          "made for qwen3next \"Test \"80B\"\", this is gpt-oss" },
        { { 0x1234567890ABCDEF, "qwen3next", "Other\n" }, "this is qwen3next \"Other\\x0A\"" },
        { { 0x1234567890ABCDEE, "qwen3next", "Test \"80B\"" }, "another file of qwen3next" },
    };
    sample a;
    err_ctx err = { 0 };
    char *extra;
    size_t n;
    sample_open(&a, KV_F16);
    for (size_t i = 0; i < ARRAY_LEN(tags); i++)
        CHECK(refused(&a, in_folder("sample"), &tags[i].tag, tags[i].text, "tag"));
    for (int i = 0; i < cases.n; i++) {
        char *const *cells = cases.cells[i];
        int heads, dim, window, ctx;
        kv_type type = KV_F16;
        if (strcmp(cells[0], "other") != 0) continue;
        CHECK(sscanf(cells[2], "%d %d %d %d", &heads, &dim, &window, &ctx) == 4 &&
              kv_type_from_name(&type, cells[3]));
        model *m = reference_model(cells[1], heads, dim, window);
        const state_options o = { ctx, 3, type, 0, reference_segments(m, where, n_ram) };
        sample b = { .m = m };
        reference_open(&b.t, m, &o);
        if (cells[4][0]) CHECK(refused(&b, in_folder("sample"), &own_tag, cells[4], "model"));
        else load_same(&b.t, in_folder("sample"), &a.t, str_from("extra"), "just long enough");
        sample_close(&b);
    }
    int32_t ids[8];
    CHECK(state_load(a.t.s, in_folder("sample"), &own_tag, ids, 8, &extra, &n, &err) == ERR_RANGE);
    CHECK_MSG(strstr(err.msg, "room for 8"), "%s", err.msg);
    a.m->hp.n_vocab = 51;
    CHECK(refused(&a, in_folder("sample"), &own_tag, "50 tokens in the vocabulary", "vocabulary"));
    a.m->hp.n_vocab = 50;
    load_same(&a.t, in_folder("sample"), &a.t, str_from("extra"), "itself");
    sample_close(&a);
}

static void test_paths(void)
{
    sample a;
    err_ctx err = { 0 };
    struct stat st;
    sample_open(&a, KV_F32);
    const int n = n_files();
    CHECK(refused(&a, in_folder("none"), &own_tag, "cannot open: No such file or directory",
                  "missing"));
    CHECK(refused(&a, folder, &own_tag, "not a regular file", "folder"));
    CHECK(mkfifo(in_folder("fifo"), 0600) == 0);
    CHECK(refused(&a, in_folder("fifo"), &own_tag, "not a regular file", "FIFO without a writer"));
    unlink(in_folder("fifo"));
    CHECK(save(&a.t, in_folder("no/such"), str_from(""), &err) == ERR_IO &&
          strstr(err.msg, "cannot write: No such file or directory"));
    mkdir(in_folder("dir"), 0700);
    CHECK(save(&a.t, in_folder("dir"), str_from(""), &err) == ERR_IO &&
          strstr(err.msg, "cannot write: "));
    rmdir(in_folder("dir"));
    CHECK(n_files() == n);
    CHECK(stat(in_folder("sample"), &st) == 0 && (st.st_mode & 0777) == 0600);
    sample_close(&a);
}

/* ---- damage --------------------------------------------------------------------------------- */

/* The file's checksums, as state_file.c describes them: the header's at 168, the other one last. */
static uint64_t sum_of(const uint8_t *p, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = 0;
        memcpy(&word, p + i, n - i < 8 ? n - i : 8);
        sum = (sum ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        sum ^= sum >> 32;
    }
    return sum;
}

static void sum_again(uint8_t *p, size_t n)
{
    if (n < 184) return;
    store_u64(p + 168, sum_of(p, 168));
    store_u64(p + n - 8, sum_of(p, n - 8));
}

static void test_cut_and_flipped(void)
{
    sample a;
    sample_open(&a, KV_Q8_0);
    uint8_t *b = mem_alloc(a.n + 1);
    const char *path = in_folder("sample");
    int bad = 0;
    for (size_t n = 0; n < a.n; n++) {
        put_file(path, a.bytes, n);
        bad += !refused(&a, path, &own_tag, n < 8 ? "not a session file" : "truncated", "prefix");
    }
    CHECK_MSG(bad == 0, "%d prefixes of %zu", bad, a.n);
    memcpy(b, a.bytes, a.n);
    b[a.n] = 0;
    put_file(path, b, a.n + 1);
    CHECK(refused(&a, path, &own_tag, "too long", "one byte more"));
    for (size_t i = 0; i < a.n; i++) {
        b[i] ^= i % 9 == 8 ? 0xFF : 1u << i % 9;
        put_file(path, b, a.n);
        bad += !refused(&a, path, &own_tag, i < 8 ? "not a session file" :
                        i < 12 ? "version" : "damaged", "flipped");
        b[i] = a.bytes[i];
    }
    CHECK_MSG(bad == 0, "%d flipped bytes of %zu", bad, a.n);
    put_file(path, b, a.n);
    load_same(&a.t, path, &a.t, str_from("extra"), "whole again");
    mem_free(b);
    sample_close(&a);
}

/* Files that are wrong and have the right checksums. */
static void test_forged(void)
{
    sample a;
    sample_open(&a, KV_F16);
    for (int i = 0; i < cases.n; i++) {
        char *const *cells = cases.cells[i], *next = cells[1];
        if (strcmp(cells[0], "forged") != 0) continue;
        const size_t first = strtoul(next, &next, 10), bytes = strtoul(next, &next, 10);
        const uint64_t value = strtoull(next, NULL, 16);
        uint8_t *b = mem_alloc(a.n);
        memcpy(b, a.bytes, a.n);
        memcpy(b + first, &value, bytes);
        sum_again(b, a.n);
        put_file(in_folder("sample"), b, a.n);
        CHECK(refused(&a, in_folder("sample"), &own_tag, cells[2], "forged"));
        mem_free(b);
    }
    sample_close(&a);
}

static size_t damage(uint8_t *b, const uint8_t *good, size_t n, test_rng *rng)
{
    const uint32_t kind = test_below(rng, 4);
    size_t len = n;
    memcpy(b, good, n);
    for (uint32_t k = 1 + test_below(rng, 6); k > 0; k--) {
        const size_t at = test_below(rng, (uint32_t)(test_below(rng, 2) ? n : 300));
        const size_t from = test_below(rng, (uint32_t)n), most = n - (at > from ? at : from);
        const size_t run = test_below(rng, (uint32_t)(most < 40 ? most : 40));
        if (kind == 0) b[at] = (uint8_t)test_rand(rng);
        else if (kind == 1) memmove(b + at, b + from, run);
        else if (kind == 2) memset(b + at, test_below(rng, 2) ? 0xFF : 0, run);
        else len = at;
    }
    return len;
}

/* Random damage is refused; with the checksums put right it may be taken, but breaks nothing. */
static void test_random_damage(void)
{
    static const kv_type types[] = { KV_F32, KV_F16, KV_Q8_0 };
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        test_rng rng = { 77 + i };
        sample a;
        int bad = 0, taken = 0;
        sample_open(&a, types[i]);
        uint8_t *b = mem_alloc(a.n);
        for (int step = 0; step < 1200; step++) {
            const bool forged = step % 2;
            const size_t n = damage(b, a.bytes, a.n, &rng);
            const char *path = in_folder("sample");
            if (forged) sum_again(b, n);
            if (n == a.n && memcmp(a.bytes, b, n) == 0) continue;
            put_file(path, b, n);
            if (!forged) {
                bad += !refused(&a, path, &own_tag, "", "damaged");
                continue;
            }
            int32_t ids[20];
            char *extra;
            size_t n_extra;
            err_ctx err = { 0 };
            const int rc = state_load(a.t.s, path, &own_tag, ids, 20, &extra, &n_extra, &err);
            taken += rc == 0;
            for (int t = 0; rc == 0 && t < state_pos(a.t.s); t++)
                bad += ids[t] < 0 || ids[t] >= a.m->hp.n_vocab;
            bad += rc == 0 && (state_pos(a.t.s) > 20 || n_extra > n);
            mem_free(extra);
            put_file(path, a.bytes, a.n);
            if (state_load(a.t.s, path, &own_tag, ids, 20, &extra, &n_extra, &err) == 0)
                mem_free(extra);
            else bad++;
        }
        CHECK_MSG(bad == 0 && taken > 60, "%s: %d bad, %d taken", kv_type_name(types[i]), bad,
                  taken);
        mem_free(b);
        sample_close(&a);
    }
}

/* ---- failing disks and memory --------------------------------------------------------------- */

/* A session whose file is longer than the buffer, next to an older one of the same name. */
static void test_save_fails(void)
{
    model *m = reference_model("WF", 4, 64, 3);
    const state_options o = { 500, 100, KV_F32, 0, reference_segments(m, where, n_ram) };
    test_rng rng = { 1 };
    err_ctx err = { 0 };
    reference t, other;
    int n = 0, rc;

    unlink(in_folder("sample"));
    unlink(in_folder("move"));
    reference_open(&t, m, &o);
    reference_open(&other, m, &o);
    reference_run(&t, &rng, 7, false);
    CHECK(save(&t, in_folder("old"), str_from("old"), &err) == 0);
    for (int i = 0; i < 4; i++) reference_run(&other, &rng, 100, false);
    do {
        disk.n_call = 0;
        disk.fail_at = ++n;
        rc = save(&other, in_folder("old"), str_from("new"), &err);
        disk.fail_at = 0;
        if (rc == 0) break;
        CHECK_MSG(rc == ERR_IO && strstr(err.msg, "cannot write: "), "%s", err.msg);
        CHECK_MSG(n_files() == 1, "%d files after failure %d", n_files(), n);
        load_same(&t, in_folder("old"), &t, str_from("old"), "older file");
    } while (n < 100);
    CHECK_MSG(n > 6, "%d calls", n);                     /* 4 or more writes, fsync, rename */
    load_same(&t, in_folder("old"), &other, str_from("new"), "written at last");
    disk.lazy = true;
    CHECK(save(&other, in_folder("old"), str_from("bit by bit"), &err) == 0);
    disk.lazy = true;
    load_same(&t, in_folder("old"), &other, str_from("bit by bit"), "bit by bit");
    disk.lazy = false;
    reference_close(&t);
    reference_close(&other);
    reference_model_free(m);
}

/* Until the first reading ends nothing changes; after it the state is empty, not half full. */
static void test_load_fails(void)
{
    model *m = reference_model("WFD", 4, 64, 3);
    const state_options o = { 500, 100, KV_F32, 1, reference_segments(m, where, n_ram) };
    test_rng rng = { 1 };
    err_ctx err = { 0 };
    char *extra;
    size_t n_extra;
    int32_t ids[500];
    reference t, big;
    int kept = 0, emptied = 0;

    reference_open(&big, m, &o);
    for (int i = 0; i < 4; i++) reference_run(&big, &rng, 100, false);
    CHECK(save(&big, in_folder("old"), str_from("x"), &err) == 0);
    for (int n = 1, rc = -1; rc < 0 && n < 200; n++) {
        reference_open(&t, m, &o);
        reference_run(&t, &rng, 5, false);
        reference_snapshot(&t);
        disk.n_call = 0;
        disk.fail_at = n / 2 + 1;
        disk.cut = n % 2;
        rc = state_load(t.s, in_folder("old"), &own_tag, ids, 500, &extra, &n_extra, &err);
        disk.fail_at = 0;
        if (rc < 0) {
            CHECK_MSG(rc == (disk.cut ? ERR_FORMAT : ERR_IO) && !extra, "call %d: %d %s", n, rc,
                      err.msg);
            if (state_pos(t.s) == 5) kept++;
            else {
                emptied++;
                CHECK(state_pos(t.s) == 0 && state_rewind_target(t.s, 5) == 0);
                t.pos = 0;
            }
            CHECK_MSG(reference_holds(&t, &rng), "call %d: %s", n, t.why);
            CHECK_MSG(emptied == 0 || state_pos(t.s) == 0, "call %d: kept after emptied", n);
        }
        mem_free(extra);
        reference_close(&t);
    }
    CHECK_MSG(kept >= 8 && emptied >= 8, "%d kept, %d emptied", kept, emptied);
    reference_close(&big);
    reference_model_free(m);
}

static void test_no_memory(void)
{
    sample a;
    err_ctx err = { 0 };
    long n = 0;
    int rc = -1;
    char *extra;
    size_t n_extra;
    int32_t ids[20];
    sample_open(&a, KV_F32);
    const int files = n_files();
    while (rc < 0 && n < 20) {
        mem_fail_after(++n);
        rc = save(&a.t, in_folder("sample"), str_from("extra"), &err);
        mem_fail_after(0);
        if (rc < 0) CHECK_MSG(rc == ERR_NOMEM && n_files() == files, "%d %s", rc, err.msg);
    }
    CHECK_MSG(n > 1 && n < 20, "saving: %ld allocations", n);
    n = 0;
    rc = -1;
    while (rc < 0 && n < 20) {
        test_rng rng = { 3 };
        mem_fail_after(++n);
        rc = state_load(a.t.s, in_folder("sample"), &own_tag, ids, 20, &extra, &n_extra, &err);
        mem_fail_after(0);
        if (rc < 0) CHECK_MSG(rc == ERR_NOMEM && !extra, "%d %s", rc, err.msg);
        CHECK_MSG(reference_holds(&a.t, &rng), "%s", a.t.why);
    }
    CHECK_MSG(n > 1 && n < 20, "loading: %ld allocations", n);
    mem_free(extra);
    sample_close(&a);
}

/* ---- failing spaces -------------------------------------------------------------------------- */

/* The bytes of a file do not tell what space they came from. */
static void test_same_bytes(void)
{
    sample a, b;
    for (int type = KV_F32; type <= KV_Q8_0; type++) {
        where = NULL;
        sample_open(&a, (kv_type)type);
        where = far_space();
        sample_open(&b, (kv_type)type);
        CHECK_MSG(a.n == b.n && memcmp(a.bytes, b.bytes, a.n) == 0, "%s",
                  kv_type_name((kv_type)type));
        sample_close(&a);
        sample_close(&b);
    }
    where = NULL;
    unlink(in_folder("sample"));
}

static void test_space_fails(void)
{
    model *m = reference_model("WFD", 2, 32, 3);
    const state_options near = { 50, 10, KV_F16, 0, { .n = 0 } };
    const state_options o = { 50, 10, KV_F16, 1, reference_segments(m, far_space(), 0) };
    const char *path = in_folder("old");
    test_rng rng = { 4 };
    err_ctx err = { 0 };
    char *extra;
    size_t n_extra;
    int32_t ids[50];
    reference old, t, u;
    int n = 0, rc = -1;

    reference_open(&old, m, &near);
    reference_run(&old, &rng, 7, false);
    CHECK(save(&old, path, str_from("old"), &err) == 0);
    reference_open(&t, m, &o);
    for (int i = 0; i < 2; i++) reference_run(&t, &rng, 10, false);
    while (rc < 0 && n < 100) {
        far_fail_after(++n);
        rc = save(&t, path, str_from("new"), &err);
        far_fail_after(0);
        if (rc == 0) break;
        CHECK_MSG(rc == ERR_IO && strstr(err.msg, "far space: read failed"), "%d %s", rc, err.msg);
        CHECK_MSG(n_files() == 1, "%d files after failure %d", n_files(), n);
        load_same(&old, path, &old, str_from("old"), "older file");
    }
    /* keys and values of 2 heads, those of the ring perhaps in two parts, and the block */
    CHECK_MSG(n >= 10 && n <= 14, "saving: %d calls", n);
    load_same(&old, path, &t, str_from("new"), "written at last");

    for (n = 0, rc = -1; rc < 0 && n < 100;) {
        reference_open(&u, m, &o);
        reference_run(&u, &rng, 5, false);
        reference_snapshot(&u);
        far_fail_after(++n);
        rc = state_load(u.s, path, &own_tag, ids, 50, &extra, &n_extra, &err);
        far_fail_after(0);
        if (rc < 0) {
            CHECK_MSG(rc == ERR_IO && !extra && n_extra == 0 && strstr(err.msg, "far space: "),
                      "%d %s", rc, err.msg);
            CHECK(state_pos(u.s) == 0 && state_rewind_target(u.s, 5) == 0);
            u.pos = 0;
        } else {
            reference_loaded(&u, &t);
        }
        CHECK_MSG(reference_holds(&u, &rng), "loading, failure %d: %s", n, u.why);
        mem_free(extra);
        reference_close(&u);
    }
    CHECK_MSG(n >= 11 && n <= 15, "loading: %d calls", n);
    reference_close(&old);
    reference_close(&t);
    reference_model_free(m);
    unlink(path);
}

int main(int argc, char **argv)
{
    test_begin("state_file", argc, argv);
    (void)case_rows_read(&cases, "state.txt");
    case_rows_kinds(&cases, "limit walk other forged");
    disk.portion = 1000;
    if (!CHECK(mkdtemp(test_temp(folder, sizeof folder)) != NULL)) return test_end();
    for (int i = 0; i < 3; i++) {
        where = i == 0 ? NULL : far_space();
        n_ram = i == 2 ? 1 : 0;
        test_moves();
        test_other_model();
        test_paths();
        /* what a file may hold: one space is enough if there is no time */
        if (i == 2 || test_is_long()) test_cut_and_flipped();
        test_forged();
        if (i == 0 || test_is_long()) test_random_damage();
        test_save_fails();
        test_load_fails();
        test_no_memory();
        unlink(in_folder("sample"));
        unlink(in_folder("old"));
    }
    n_ram = 0;
    test_same_bytes();
    test_space_fails();
    CHECK(far_blocks() == 0);
    CHECK_MSG(rmdir(folder) == 0, "something was left in %s", folder);
    case_rows_free(&cases);
    return test_end();
}
